//! The one thread that knows the folder: it reads, keeps within the memory ceiling, and publishes.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use flatout_wire::accept::Coding;

use super::entry::{Content, Entry};
use super::source::{Source, plain_of};
use super::tree::{Known, Thing, Tree};
use super::watch::Watching;
use super::{Plan, Watch, press, watch};

/// How long changes are gathered before they are read: editors and deployments come in bursts.
const GATHER_TIME: Duration = Duration::from_millis(50);

/// How long an epoch is; what is least used is judged by epochs.
const EPOCH: Duration = Duration::from_secs(1);

/// What the keeper is told.
pub(crate) enum Message {
    /// Something may have changed at these paths, relative to the root.
    Changed(Vec<PathBuf>),
    /// Variants of this very entry.
    Compressed(Arc<Entry>, Vec<(Coding, Bytes)>),
    /// The site is no longer served.
    End,
}

/// What workers see of a folder.
pub(crate) struct Site {
    pub(crate) tree: ArcSwap<Tree>,
    pub(crate) epoch: AtomicU32,
    /// Opens what is not kept in memory.
    pub(crate) source: ArcSwap<Source>,
    pub(crate) plan: Plan,
    keeper: Sender<Message>,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.keeper.send(Message::End);
    }
}

/// The keeper's own state.
struct Keeper {
    site: Weak<Site>,
    known: Known,
    /// Names that are symbolic links: nobody tells when what they lead to has changed.
    links: BTreeSet<PathBuf>,
    plan: Plan,
    press: Sender<Arc<Entry>>,
    own: Sender<Message>,
    watching: Watching,
    next_epoch: Instant,
    next_sweep: Option<Instant>,
    /// Could not be looked at for want of descriptors or memory.
    unread: BTreeSet<PathBuf>,
}

/// Reads the folder once and starts the threads that keep up with it.
pub(crate) fn open(plan: Plan) -> io::Result<Arc<Site>> {
    let source = Source::open(plan.clone())?;
    let (own, messages) = mpsc::channel();
    // Watching begins before reading, so that no change falls in between.
    let watching = watch::start(&plan, source.root_path(), own.clone());
    let mut known = Known::new();
    let update = source.update(Path::new(""), &mut known, plan.memory_bytes_max)?;
    let site = Arc::new(Site {
        tree: ArcSwap::from_pointee(Tree::of(&known, &plan)),
        epoch: AtomicU32::new(1),
        source: ArcSwap::from_pointee(source),
        plan: plan.clone(),
        keeper: own.clone(),
    });
    let (press, entries) = mpsc::channel();
    let now = Instant::now();
    let keeper = Keeper {
        site: Arc::downgrade(&site),
        known,
        links: update.links,
        plan,
        press,
        own: own.clone(),
        next_epoch: now + EPOCH,
        next_sweep: watching.sweep().map(|time| now + time),
        watching,
        unread: BTreeSet::new(),
    };
    thread::Builder::new().name("files-press".to_owned()).spawn(move || press::run(&entries, &own))?;
    thread::Builder::new().name("files-keeper".to_owned()).spawn(move || keeper.run(&messages))?;
    Ok(site)
}

impl Keeper {
    fn run(mut self, messages: &Receiver<Message>) {
        self.compress_what_is_new();
        loop {
            let mut next = self.next_message(messages, self.next_epoch);
            let gathered_at = Instant::now() + GATHER_TIME;
            let mut paths = BTreeSet::new();
            let mut changed = false;
            while let Some(message) = next {
                match message {
                    Message::Changed(some) => paths.extend(some),
                    Message::Compressed(entry, variants) => changed |= self.adopt(&entry, variants),
                    Message::End => return,
                }
                next = self.next_message(messages, gathered_at);
            }
            let Some(site) = self.site.upgrade() else { return };
            changed |= self.on_time(&site, &mut paths);
            changed |= self.read(&site, &paths);
            if changed {
                self.publish(&site);
            }
        }
    }

    fn next_message(&self, messages: &Receiver<Message>, until: Instant) -> Option<Message> {
        // The keeper holds a sender itself, so the channel never ends: a message says when it is over.
        messages.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    /// What is due by the clock: an epoch, a sweep, another look at the root.
    fn on_time(&mut self, site: &Site, paths: &mut BTreeSet<PathBuf>) -> bool {
        let now = Instant::now();
        if self.next_sweep.is_some_and(|due| due <= now) {
            paths.insert(PathBuf::new());
            self.next_sweep = self.watching.sweep().map(|time| now + time);
        }
        if now < self.next_epoch {
            return false;
        }
        self.next_epoch = now + EPOCH;
        paths.append(&mut self.unread);
        site.epoch.fetch_add(1, Ordering::Relaxed);
        if self.plan.watch != Watch::Off && !site.source.load().is_current() {
            self.follow_root(site);
            paths.insert(PathBuf::new());
        }
        self.balance(site)
    }

    /// The root's path leads elsewhere now, or nowhere: then what was there is served until it is there again.
    fn follow_root(&mut self, site: &Site) {
        let Ok(source) = Source::open(self.plan.clone()) else { return };
        self.watching = watch::start(&self.plan, source.root_path(), self.own.clone());
        self.next_sweep = self.watching.sweep().map(|time| Instant::now() + time);
        site.source.store(Arc::new(source));
    }

    fn read(&mut self, site: &Site, paths: &BTreeSet<PathBuf>) -> bool {
        let source = site.source.load();
        if !source.is_current() {
            return false;
        }
        let mut changed = false;
        // Counted once for all paths: what is over in the end is trimmed.
        let memory_bytes = self.plan.memory_bytes_max.saturating_sub(self.memory_bytes());
        let mut due: BTreeSet<PathBuf> = paths.iter().filter_map(|path| plain_of(path)).collect();
        due.extend(paths.iter().cloned());
        if !due.is_empty() {
            due.extend(self.links.iter().cloned());
        }
        for path in due {
            match source.update(&path, &mut self.known, memory_bytes) {
                Ok(update) => {
                    changed |= update.changed;
                    self.links.retain(|link| !link.starts_with(&path));
                    self.links.extend(update.links);
                }
                Err(_) => {
                    self.unread.insert(path);
                }
            }
        }
        changed
    }

    /// Takes variants over, if the file is still the one that they were made of.
    fn adopt(&mut self, entry: &Arc<Entry>, variants: Vec<(Coding, Bytes)>) -> bool {
        let Some(Thing::File(current)) = self.known.get(&entry.path) else { return false };
        let Some(plain) = entry.to_compress().filter(|_| Arc::ptr_eq(current, entry)) else { return false };
        let plain = (Coding::Identity, Content::Memory(plain.clone()));
        let made = variants.into_iter().map(|(coding, bytes)| (coding, Content::Memory(bytes)));
        self.replace(entry, std::iter::once(plain).chain(made).collect());
        self.trim();
        true
    }

    fn publish(&mut self, site: &Site) {
        self.trim();
        self.compress_what_is_new();
        site.tree.store(Arc::new(Tree::of(&self.known, &self.plan)));
    }

    fn compress_what_is_new(&self) {
        if self.plan.compress {
            for entry in self.files().filter(|entry| entry.begin_pressing()) {
                // It ends with the keeper.
                let _ = self.press.send(entry.clone());
            }
        }
    }

    /// Lets the least used contents go, until the rest is within the ceiling.
    fn trim(&mut self) {
        let mut over = self.memory_bytes().saturating_sub(self.plan.memory_bytes_max);
        if over == 0 {
            return;
        }
        let mut kept: Vec<Arc<Entry>> = self.files().filter(|entry| entry.is_in_memory()).cloned().collect();
        kept.sort_by_key(|entry| (entry.used(), u64::MAX - entry.memory_bytes()));
        for entry in kept {
            if over == 0 {
                return;
            }
            over = over.saturating_sub(entry.memory_bytes());
            self.replace(&entry, vec![(Coding::Identity, Content::Disk(entry.stamp.bytes))]);
        }
    }

    /// Takes small files back into memory that were asked for lately, as far as others were not. Returns whether
    /// anything changed.
    fn balance(&mut self, site: &Site) -> bool {
        let epoch = site.epoch.load(Ordering::Relaxed);
        let is_wanted = |entry: &&Arc<Entry>| {
            let small = entry.stamp.bytes <= self.plan.small_bytes_max;
            small && !entry.is_in_memory() && entry.used() + 1 >= epoch
        };
        let wanted: Vec<Arc<Entry>> = self.files().filter(is_wanted).cloned().collect();
        let mut changed = false;
        for entry in wanted {
            let idle = |kept: &Arc<Entry>| kept.is_in_memory() && kept.used() + 1 < epoch;
            let idle_bytes: u64 =
                self.files().filter(|kept| idle(kept)).map(|kept| kept.memory_bytes()).sum();
            let free_bytes = self.plan.memory_bytes_max.saturating_sub(self.memory_bytes());
            if entry.stamp.bytes <= free_bytes + idle_bytes {
                self.known.remove(&entry.path);
                match site.source.load().update(&entry.path, &mut self.known, entry.stamp.bytes) {
                    Ok(update) => changed |= update.changed,
                    Err(_) => {
                        self.known.insert(entry.path.clone(), Thing::File(entry.clone()));
                    }
                }
                if let Some(Thing::File(back)) = self.known.get(&entry.path) {
                    back.use_in(entry.used());
                }
            }
        }
        changed
    }

    fn replace(&mut self, entry: &Entry, contents: Vec<(Coding, Content)>) {
        let entry = entry.with_contents(contents, self.plan.cache_control.as_deref());
        self.known.insert(entry.path.clone(), Thing::File(Arc::new(entry)));
    }

    fn memory_bytes(&self) -> u64 {
        self.files().map(|entry| entry.memory_bytes()).sum()
    }

    fn files(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.known.values().filter_map(|thing| match thing {
            Thing::File(entry) => Some(entry),
            Thing::Folder => None,
        })
    }
}
