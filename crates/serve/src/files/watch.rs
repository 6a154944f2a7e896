//! Noticing changes: inotify's events, or a sweep where there are none.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;

use flatout_engine::say;
use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind};
use notify::{Config, Event, RecommendedWatcher, RecursiveMode, Watcher};

use super::keeper::Message;
use super::{Plan, Watch};

/// How often times are looked at where inotify cannot be had.
const FALLBACK_SWEEP: Duration = Duration::from_secs(5);

/// What notices changes, for as long as it lives.
pub(crate) enum Watching {
    /// inotify does.
    Events(#[allow(dead_code, reason = "dropping it ends the watch")] RecommendedWatcher),
    /// The keeper has to look for itself, so often.
    Sweep(Duration),
    /// Nobody.
    Off,
}

impl Watching {
    /// How long the keeper may wait before it looks for itself.
    pub(crate) fn sweep(&self) -> Option<Duration> {
        match self {
            Watching::Sweep(time) => Some(*time),
            Watching::Events(_) | Watching::Off => None,
        }
    }
}

/// Starts to watch.
pub(crate) fn start(plan: &Plan, root: &Path, keeper: Sender<Message>) -> Watching {
    match plan.watch {
        Watch::Off => Watching::Off,
        Watch::Sweep(time) => Watching::Sweep(time),
        Watch::Inotify => watch(root, keeper).unwrap_or_else(|error| {
            let seconds = FALLBACK_SWEEP.as_secs();
            let root = root.display();
            say(format_args!("no inotify for {root}: {error}; looking every {seconds} s instead"));
            Watching::Sweep(FALLBACK_SWEEP)
        }),
    }
}

fn watch(root: &Path, keeper: Sender<Message>) -> notify::Result<Watching> {
    let base = root.to_path_buf();
    // Links are not followed: those that lead outside are nobody's business, and what those inside lead to is watched
    // where it is.
    let config = Config::default().with_follow_symlinks(false);
    let tell = move |event: notify::Result<Event>| {
        let paths = match event {
            Ok(event) if event.need_rescan() => vec![PathBuf::new()],
            Ok(event) if matters(&event) => relative(&base, event.paths),
            Ok(_) => return,
            Err(_) => vec![PathBuf::new()],
        };
        // A keeper that has ended wants to know nothing more.
        let _ = keeper.send(Message::Changed(paths));
    };
    let mut watcher = RecommendedWatcher::new(tell, config)?;
    watcher.watch(root, RecursiveMode::Recursive)?;
    Ok(Watching::Events(watcher))
}

/// Whether a file may be whole now. While one is being written there are many events; the one that counts is that its
/// writer has closed it.
fn matters(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) | EventKind::Modify(ModifyKind::Data(_)) => false,
        EventKind::Create(CreateKind::File) => event.paths.iter().any(|path| is_complete_at_birth(path)),
        EventKind::Create(_) | EventKind::Modify(_) | EventKind::Remove(_) => true,
        EventKind::Any | EventKind::Other => true,
    }
}

/// Links are whole when they appear; what has one name only was created by somebody who will write it.
fn is_complete_at_birth(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file() || metadata.nlink() > 1)
}

fn relative(root: &Path, paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.iter().filter_map(|path| path.strip_prefix(root).ok()).map(Path::to_path_buf).collect()
}
