//! Scans a folder, keeps memory within its limit, and publishes the tree.
//!
//! A folder on a volume that may hang has threads of its own; all others share some (`pool.rs`, `precompress.rs`): there may be ten thousand
//! folders.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use flatout_engine::{Severity, report};

use super::entry::Entry;
use super::faults::Faults;
use super::inbox::{Batch, Inbox};
use super::load::{Loaded, load, loadable_bytes, plain_of};
use super::memory::Memory;
use super::pool::{self, Task};
use super::remote::Threads;
use super::scan::{self, ScanResult};
use super::source::Source;
use super::tree::{Known, Tree};
use super::watch::Watching;
use super::{Plan, Watch, precompress};

/// The length of an epoch, the unit for how recently files were used.
const EPOCH: Duration = Duration::from_secs(1);

/// How long memory is filled before changes are handled again.
const FILL_TIME: Duration = Duration::from_millis(20);

/// How long opening a site waits for the first scan, so that a small site is in memory from the first request on.
const FIRST_LOOK_TIME: Duration = Duration::from_millis(50);

/// The state of a folder that workers see.
pub(crate) struct FolderState {
    pub(crate) tree: ArcSwap<Tree>,
    pub(crate) epoch: AtomicU32,
    /// Opens files that are not in memory.
    pub(crate) source: ArcSwap<Source>,
    pub(crate) plan: Plan,
    pub(crate) inbox: Arc<Inbox>,
    precompress: Arc<precompress::Queue>,
    /// Those that wait for the folder in place of workers, if it may hang: it is on a volume that does not report changes.
    pub(crate) remote: Option<Arc<Threads>>,
}

impl FolderState {
    /// A client requested it, and it is not in memory.
    pub(crate) fn ask_to_load(&self, entry: &Arc<Entry>) {
        if loadable_bytes(entry, self.plan.small_bytes_max).is_some() {
            self.inbox.request(entry);
        }
    }

    /// A client accepts a compressed form that does not exist yet.
    #[inline]
    pub(crate) fn request_precompression(&self, entry: &Arc<Entry>) {
        if self.plan.compress {
            self.precompress.request(entry);
        }
    }
}

impl Drop for FolderState {
    fn drop(&mut self) {
        self.inbox.end();
        self.precompress.end();
    }
}

/// The indexer's own state.
pub(crate) struct Indexer {
    site: Weak<FolderState>,
    plan: Plan,
    inbox: Arc<Inbox>,
    precompress: Arc<precompress::Queue>,
    pub(crate) watching: Watching,
    known: Known,
    memory: Memory,
    /// Symbolic links: changes of their targets are not reported.
    links: BTreeSet<PathBuf>,
    /// Not loaded yet; requested ones come first.
    to_load: VecDeque<Weak<Entry>>,
    /// Requested, but not loaded; may be requested again in the next epoch.
    declined: Vec<Arc<Entry>>,
    /// To be scanned again in the next epoch: unreadable, or being written.
    again: BTreeSet<PathBuf>,
    faults: Faults,
    pub(crate) next_epoch: Instant,
    /// How much later it may begin if nothing waits for it.
    leeway: Duration,
    /// Whether the root's path does not exist.
    is_away: bool,
    is_first: bool,
}

/// Begins to scan and watch the folder.
pub(crate) fn open(plan: Plan) -> io::Result<Arc<FolderState>> {
    let (site, indexer) = prepare(plan)?;
    let (ready, is_ready) = sync_channel(1);
    let is_soon = if site.remote.is_some() {
        let queue = site.precompress.clone();
        thread::Builder::new().name("files-compress".to_owned()).spawn(move || precompress::run(&queue))?;
        thread::Builder::new().name("files-indexer".to_owned()).spawn(move || indexer.run(&ready))?;
        true
    } else {
        site.precompress.share_threads();
        pool::add(indexer, ready)?
    };
    // A large folder is served from disk meanwhile.
    if is_soon {
        let _ = is_ready.recv_timeout(FIRST_LOOK_TIME);
    }
    Ok(site)
}

/// A site that was not scanned yet, and its indexer.
pub(crate) fn prepare(plan: Plan) -> io::Result<(Arc<FolderState>, Indexer)> {
    let source = Source::open(plan.clone())?;
    let inbox = Arc::new(Inbox::default());
    let watching = Watching::start(&plan, source.root_path(), inbox.clone());
    let site = Arc::new(FolderState {
        tree: ArcSwap::from_pointee(Tree::default()),
        epoch: AtomicU32::new(1),
        source: ArcSwap::from_pointee(source),
        plan: plan.clone(),
        precompress: Arc::new(precompress::Queue::new(inbox.clone())),
        inbox,
        remote: matches!(plan.watch, Watch::Sweep(_)).then(Arc::default),
    });
    let indexer = Indexer::new(&site, plan, watching);
    Ok((site, indexer))
}

impl Indexer {
    fn new(site: &Arc<FolderState>, plan: Plan, watching: Watching) -> Indexer {
        Indexer {
            site: Arc::downgrade(site),
            inbox: site.inbox.clone(),
            precompress: site.precompress.clone(),
            watching,
            known: Known::new(),
            memory: Memory::new(plan.memory_bytes_max, plan.cache_control.clone()),
            plan,
            links: BTreeSet::new(),
            to_load: VecDeque::new(),
            declined: Vec::new(),
            again: BTreeSet::new(),
            faults: Faults::default(),
            next_epoch: Instant::now() + EPOCH,
            leeway: Duration::ZERO,
            is_away: false,
            is_first: true,
        }
    }

    /// Keeps this thread until the folder is not served any more.
    fn run(mut self, ready: &SyncSender<()>) {
        let mut batch = Batch::changed("");
        while let Some(next) = self.turn_with(batch) {
            // Requests need not wait for the first scan any more.
            let _ = ready.try_send(());
            batch = self.inbox.take(next);
        }
    }

    /// After a panic: the folder is served as it was, and nothing waits for its indexer.
    pub(crate) fn give_up(&self) {
        self.inbox.end();
        let root = self.plan.root.display();
        report(
            Severity::Error,
            format_args!(
                "a panic ended the indexing of {root}: its changes are not found any more; restart the server, and report this"
            ),
        );
    }

    /// The messages are read by this task. The first one is that everything is to be scanned.
    pub(crate) fn read_by(&self, task: Task) {
        self.inbox.changed(PathBuf::new());
        self.inbox.read_by(task);
    }

    /// Handles the messages that have arrived. An epoch in which nothing is to be done may be longer by `leeway`. Returns the time of the
    /// next work without a message; `None` if the folder is not served any more.
    pub(crate) fn step(&mut self, leeway: Duration) -> Option<Instant> {
        self.leeway = leeway;
        self.turn_with(self.inbox.take_now())
    }

    fn turn_with(&mut self, batch: Batch) -> Option<Instant> {
        let site = self.site.upgrade().filter(|_| !batch.is_over)?;
        self.turn(&site, batch);
        Some(self.next_turn())
    }

    /// The time of the next work without a message.
    fn next_turn(&self) -> Instant {
        if !self.to_load.is_empty() {
            return Instant::now();
        }
        let waits = self.is_away || !self.again.is_empty() || !self.declined.is_empty();
        let epoch = if waits { self.next_epoch } else { self.next_epoch + self.leeway };
        self.watching.due().map_or(epoch, |due| due.min(epoch))
    }

    /// Handles messages and timers.
    pub(crate) fn turn(&mut self, site: &FolderState, batch: Batch) {
        let epoch = site.epoch.load(Ordering::Relaxed);
        let mut paths = batch.changed;
        if let Some(reason) = batch.blind {
            self.watching.lose(site.source.load().root_path(), &reason);
            paths.insert(PathBuf::new());
        }
        for (entry, variants) in batch.compressed {
            self.memory.put_variants(&entry, variants, epoch);
        }
        self.on_time(site, &mut paths);
        let changed = self.look(site, paths);
        self.load_requested(site, batch.requested);
        self.fill(site);
        self.memory.trim(epoch);
        if changed {
            site.tree.store(Arc::new(Tree::of(&self.known, &self.plan)));
        }
    }

    /// Handles timers: the epoch, a sweep, a check of the root.
    fn on_time(&mut self, site: &FolderState, paths: &mut BTreeSet<PathBuf>) {
        if self.watching.on_time(&self.plan, site.source.load().root_path()) {
            paths.insert(PathBuf::new());
        }
        let now = Instant::now();
        if now < self.next_epoch {
            return;
        }
        self.next_epoch = now + EPOCH;
        site.epoch.fetch_add(1, Ordering::Relaxed);
        self.memory.begin_epoch();
        self.declined.drain(..).for_each(|entry| entry.end_asking());
        paths.append(&mut self.again);
        if self.plan.watch != Watch::Off || self.is_away {
            self.follow_root(site, paths);
        }
    }

    /// If the root's path leads to another folder now, serves that; if it does not exist, keeps serving the old
    /// contents until it exists again. In both cases changes in the meantime were not reported, so everything is
    /// scanned.
    fn follow_root(&mut self, site: &FolderState, paths: &mut BTreeSet<PathBuf>) {
        let is_current = site.source.load().is_current();
        if is_current && !self.is_away {
            return;
        }
        if !is_current {
            let Ok(source) = Source::open(self.plan.clone()) else {
                self.is_away = true;
                return;
            };
            site.source.store(Arc::new(source));
        }
        self.is_away = false;
        self.watching.restart(&self.plan, site.source.load().root_path());
        paths.insert(PathBuf::new());
    }

    /// Scans these paths; returns whether anything changed.
    fn look(&mut self, site: &FolderState, paths: BTreeSet<PathBuf>) -> bool {
        if paths.is_empty() {
            return false;
        }
        let source = site.source.load_full();
        if !source.is_current() {
            // Everything is scanned when the root is back.
            self.is_away = true;
            return false;
        }
        let mut due: BTreeSet<PathBuf> = paths.iter().filter_map(|path| plain_of(path)).collect();
        due.extend(paths);
        due.extend(self.links.iter().cloned());
        if due.contains(Path::new("")) {
            due = BTreeSet::from([PathBuf::new()]);
        }
        let mut changed = false;
        for path in due {
            let (inotify, room) = (self.watching.inotify(), self.memory.room());
            match scan::update(&source, &path, &mut self.known, inotify, self.is_first, room) {
                Ok(found) => changed |= self.take_over(&source, &path, found),
                Err(_) => {
                    self.again.insert(path);
                }
            }
        }
        changed
    }

    fn take_over(&mut self, source: &Source, path: &Path, found: ScanResult) -> bool {
        self.is_first &= path != Path::new("");
        self.links.retain(|link| !link.starts_with(path));
        self.links.extend(found.links);
        found.gone.iter().for_each(|entry| self.memory.forget(entry));
        for entry in &found.new {
            if entry.contents().is_in_memory() {
                self.memory.add(entry);
                self.precompress_later(entry);
            } else if entry.has_plain && loadable_bytes(entry, self.plan.small_bytes_max).is_some() {
                self.to_load.push_back(Arc::downgrade(entry));
            }
        }
        self.again.extend(found.unsettled);
        self.faults.note_look(path, &found.unread);
        self.again.extend(found.unread.into_iter().map(|(path, _)| path));
        match found.blind {
            Some(_) => self
                .watching
                .lose(source.root_path(), "the watch limit is reached (fs.inotify.max_user_watches)"),
            None if path == Path::new("") => self.watching.note_whole_look(source.root_path()),
            None => {}
        }
        found.changed
    }

    /// Loads requested files into memory, in place of files that are not requested.
    fn load_requested(&mut self, site: &FolderState, requested: Vec<Arc<Entry>>) {
        let epoch = site.epoch.load(Ordering::Relaxed);
        for entry in requested {
            let bytes = loadable_bytes(&entry, self.plan.small_bytes_max).unwrap_or(0);
            let is_wanted = !entry.is_gone() && !entry.contents().is_in_memory();
            if is_wanted && self.memory.make_room(bytes, epoch) {
                self.load(site, &entry);
                if entry.is_to_precompress(&entry.contents()) {
                    site.request_precompression(&entry);
                }
            }
            self.declined.push(entry);
        }
    }

    /// Loads files that were not requested yet into memory, as long as there is room, for a short time.
    fn fill(&mut self, site: &FolderState) {
        let until = Instant::now() + FILL_TIME;
        while Instant::now() < until {
            let Some(entry) = self.to_load.pop_front() else { return };
            let Some(entry) = entry.upgrade() else { continue };
            if self.memory.room() == 0 {
                // The rest is loaded on request.
                self.to_load.clear();
            } else if !entry.is_gone() && !entry.contents().is_in_memory() {
                self.load(site, &entry);
            }
        }
    }

    fn load(&mut self, site: &FolderState, entry: &Arc<Entry>) {
        match load(&site.source.load(), entry, self.memory.room()) {
            Ok(Loaded::Contents(contents)) => {
                self.memory.put(entry, contents);
                self.precompress_later(entry);
            }
            Ok(Loaded::Nothing) => {}
            // It is being replaced by another version.
            Ok(Loaded::Changed) => {
                self.again.insert(entry.path.clone());
            }
            // It is sent from disk, if it can be read there.
            Err(error) => self.faults.note_look(&entry.path, &[(entry.path.clone(), error)]),
        }
    }

    fn precompress_later(&self, entry: &Arc<Entry>) {
        if self.plan.compress && entry.is_to_precompress(&entry.contents()) {
            self.precompress.add(entry);
        }
    }
}
