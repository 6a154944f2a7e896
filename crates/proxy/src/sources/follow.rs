//! A thread that follows the sources of all upstreams.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Weak;
use std::time::Duration;

use flatout_engine::{Severity, report};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet};

use super::folder::FolderWatch;
use super::{file, service};
use crate::control::names::{Names, Resolver};
use crate::plan::{Server, ServerSource, SourcePlace, Upstream};

/// How often files are looked at without any event: on some network file systems there are none, and links on the way to a file may change.
const SWEEP: Duration = Duration::from_secs(2);

/// A file is read when it has not changed for this time.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// A file that changes for this many times [`SETTLE_TIME`] is read nevertheless: 5 s.
const SETTLES_MAX: u32 = 50;

/// Who owns the upstreams whose sources are followed.
pub trait SourceOwner: Send + Sync {
    /// The sources of now, each with its upstream.
    fn sources(&self) -> Vec<(Upstream, ServerSource)>;

    /// What looks names up now.
    fn resolver(&self) -> Resolver;

    /// What a source has now, or why that is not known: for [`crate::Proxy::set_source`] of the proxy that serves.
    fn found(&self, upstream: &str, source: &ServerSource, found: Result<Vec<Server>, String>);
}

/// Two threads, one for files and one for services; they end when this is dropped.
pub struct SourceFollower {
    /// A byte in it wakes the thread for files.
    wake: OwnedFd,
    /// Wakes the thread for services.
    renewed: watch::Sender<()>,
}

impl SourceFollower {
    /// Starts them.
    ///
    /// # Errors
    /// A thread cannot be started, or the limit of descriptors was reached.
    pub fn start(owner: Weak<dyn SourceOwner>) -> io::Result<SourceFollower> {
        let (woken, wake) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let thread = std::thread::Builder::new().name("flatout-sources".to_owned());
        let of_files = owner.clone();
        thread.spawn(move || follow_files(&of_files, &woken))?;
        let (renewed, changes) = watch::channel(());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("flatout-services".to_owned());
        thread.spawn(move || LocalSet::new().block_on(&runtime, follow_services(owner, changes)))?;
        Ok(SourceFollower { wake, renewed })
    }

    /// The owner may have other sources now.
    pub fn renew(&self) {
        // If the pipe is full, the thread is awake already.
        let _ = rustix::io::write(&self.wake, &[0]);
        self.renewed.send_replace(());
    }
}

/// What differs when a file was changed or replaced: its number, size and times.
type Stamp = (u64, u64, u64, i64, i64, i64, i64);

/// A file that is followed.
struct FollowedFile {
    upstream: Upstream,
    source: ServerSource,
    path: PathBuf,
    /// The file that was read last; `None` before that.
    seen: Option<Option<Stamp>>,
    /// The file as it was looked at last.
    looked_at: Option<Stamp>,
    /// How often it was another one each time it was looked at.
    settles: u32,
}

impl FollowedFile {
    /// Its folder.
    fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// Looks at the file, and reads it if it is another one that has settled. Returns whether it has to be looked at again soon.
    fn look(&mut self, owner: &dyn SourceOwner) -> bool {
        let now = stamp(&self.path);
        if self.seen == Some(now) {
            self.settles = 0;
            return false;
        }
        let is_settled = self.looked_at == now;
        self.looked_at = now;
        if !is_settled && self.settles < SETTLES_MAX {
            self.settles += 1;
            return true;
        }
        (self.seen, self.settles) = (Some(now), 0);
        let found = file::read(&self.path, &self.source, &self.upstream);
        owner.found(&self.upstream.name, &self.source, found);
        false
    }
}

/// Follows all files until the owner or the other side of `woken` is gone.
fn follow_files(owner: &Weak<dyn SourceOwner>, woken: &OwnedFd) {
    let mut folders = open_folders();
    let (mut files, mut is_renewed) = (Vec::new(), true);
    loop {
        let Some(owner) = owner.upgrade() else { return };
        if is_renewed {
            files = followed(owner.sources());
        }
        if let Some(folders) = &mut folders {
            folders.watch(files.iter().map(FollowedFile::folder));
            folders.clear();
        }
        let unsettled = files.iter_mut().filter_map(|file| file.look(&*owner).then_some(())).count();
        drop(owner);
        is_renewed = false;
        if unsettled == 0 {
            match wait(woken, folders.as_ref(), !files.is_empty()) {
                Waited::Renewed => is_renewed = true,
                Waited::Event => {}
                Waited::Ended => return,
            }
        }
        // This also limits how often files are looked at because of events.
        std::thread::sleep(SETTLE_TIME);
    }
}

/// Watches folders, unless the system has no more room for it.
fn open_folders() -> Option<FolderWatch> {
    let every = SWEEP.as_secs();
    let without = |error: &io::Error| {
        let what = format_args!("files of servers: inotify: {error}; they are looked at every {every} s");
        report(Severity::Warning, what);
    };
    FolderWatch::new().inspect_err(without).ok()
}

/// Why a wait has ended.
enum Waited {
    /// The owner has other sources.
    Renewed,
    /// Something has happened in a folder, or it is time to look at the files.
    Event,
    /// Nobody needs the thread any more.
    Ended,
}

fn wait(woken: &OwnedFd, folders: Option<&FolderWatch>, has_files: bool) -> Waited {
    let sweep = Timespec { tv_sec: SWEEP.as_secs().try_into().unwrap_or(1), tv_nsec: 0 };
    let mut both = [
        PollFd::new(woken, PollFlags::IN),
        // Without inotify, the first one twice.
        match folders {
            Some(folders) => PollFd::from_borrowed_fd(folders.descriptor(), PollFlags::IN),
            None => PollFd::new(woken, PollFlags::IN),
        },
    ];
    match poll(&mut both, has_files.then_some(&sweep)) {
        Ok(_) | Err(Errno::INTR) => {}
        // Out of memory: the files are looked at nevertheless.
        Err(_) => std::thread::sleep(SWEEP),
    }
    let mut bytes = [0; 64];
    match rustix::io::read(woken, &mut bytes) {
        Ok(0) => Waited::Ended,
        Ok(_) => Waited::Renewed,
        Err(_) => Waited::Event,
    }
}

/// The files of these sources. Each is read once more: it may have changed since its upstream was opened.
fn followed(sources: Vec<(Upstream, ServerSource)>) -> Vec<FollowedFile> {
    let of = |(upstream, source): (Upstream, ServerSource)| {
        let SourcePlace::File(path) = &source.place else { return None };
        let path = path.clone();
        Some(FollowedFile { upstream, source, path, seen: None, looked_at: None, settles: 0 })
    };
    sources.into_iter().filter_map(of).collect()
}

fn stamp(path: &Path) -> Option<Stamp> {
    let of = std::fs::metadata(path).ok()?;
    Some((of.dev(), of.ino(), of.len(), of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()))
}

/// Follows all services until the owner or the other side of `changes` is gone.
async fn follow_services(owner: Weak<dyn SourceOwner>, mut changes: watch::Receiver<()>) {
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    loop {
        changes.mark_unchanged();
        tasks.drain(..).for_each(|task| task.abort());
        let Some(serves) = owner.upgrade() else { return };
        let (sources, resolver) = (serves.sources(), serves.resolver());
        drop(serves);
        let services: Vec<_> = sources.into_iter().filter(|(_, source)| source.is_service()).collect();
        if !services.is_empty() {
            match Names::uncached(&resolver) {
                Ok(names) => {
                    let names = Rc::new(names);
                    let follow = |(upstream, source)| {
                        tokio::task::spawn_local(follow_service(
                            owner.clone(),
                            names.clone(),
                            upstream,
                            source,
                        ))
                    };
                    tasks.extend(services.into_iter().map(follow));
                }
                Err(error) => {
                    let what = format_args!("SRV records of upstreams cannot be looked up: {error}");
                    report(Severity::Error, what);
                }
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Looks a service up whenever its records expire.
async fn follow_service(
    owner: Weak<dyn SourceOwner>,
    names: Rc<Names>,
    upstream: Upstream,
    source: ServerSource,
) {
    loop {
        let (found, pause) = service::look_up(&names, &source, &upstream).await;
        let Some(owner) = owner.upgrade() else { return };
        owner.found(&upstream.name, &source, found);
        drop(owner);
        tokio::time::sleep(pause).await;
    }
}
