//! Watches folders with inotify.
//!
//! A scan watches each folder before it reads its names, so everything that appears afterwards is reported. A thread
//! reads the events and turns them into paths to scan.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};
use rustix::io::Errno;

use super::inbox::Inbox;

/// Events read at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Files with open writers that are remembered; further ones are treated as closed.
const WRITTEN_MAX: usize = 65_536;

/// A written file that was not closed is treated as closed after this time without a write. `truncate(2)` writes
/// without opening, and so without closing.
pub(crate) const WRITTEN_TIME_MAX: Duration = Duration::from_secs(60);

/// A running watch; it ends when this is dropped.
pub(crate) struct Inotify {
    shared: Arc<Shared>,
    _end: OwnedFd,
}

struct Shared {
    inotify: OwnedFd,
    root: PathBuf,
    state: Mutex<State>,
    inbox: Arc<Inbox>,
}

#[derive(Default)]
struct State {
    /// Watched folders, relative to the root.
    folders: HashMap<i32, PathBuf>,
    /// Files that were created or written and not closed since, with the time.
    written: HashMap<PathBuf, Instant>,
}

impl Inotify {
    /// Starts inotify without any watches.
    ///
    /// # Errors
    /// A limit of inotify instances, descriptors or threads was reached.
    pub(crate) fn start(root: &Path, inbox: Arc<Inbox>) -> io::Result<Inotify> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let (ended, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let shared = Arc::new(Shared { inotify, root: root.to_owned(), state: Mutex::default(), inbox });
        let reader = shared.clone();
        thread::Builder::new().name("files-watch".to_owned()).spawn(move || reader.run(&ended))?;
        Ok(Inotify { shared, _end: end })
    }

    /// Watches a folder; everything that appears in it afterwards is reported.
    ///
    /// # Errors
    /// `StorageFull`: the limit of watches was reached. `NotFound` and similar: it is not a folder any more.
    pub(crate) fn watch(&self, folder: &Path) -> io::Result<()> {
        let mut flags = WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW
            | WatchFlags::EXCL_UNLINK
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO;
        if folder == Path::new("") {
            flags |= WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        }
        // Events are resolved to paths under the same lock, so each folder's path is known before its events.
        let mut state = self.shared.lock();
        let watch = add_watch(&self.shared.inotify, self.shared.root.join(folder), flags)?;
        state.folders.insert(watch, folder.to_owned());
        Ok(())
    }

    /// Whether the file was created or written and not closed since, according to events.
    pub(crate) fn is_written(&self, file: &Path) -> bool {
        self.shared.lock().written.get(file).is_some_and(|since| since.elapsed() < WRITTEN_TIME_MAX)
    }
}

/// Whether this is the error of the watch limit.
pub(crate) fn is_limit(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOSPC.raw_os_error())
}

impl Shared {
    fn run(&self, ended: &OwnedFd) {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(self.inotify.as_fd(), &mut buffer);
        loop {
            let mut both = [
                PollFd::new(&self.inotify, PollFlags::IN),
                // Nothing is written to it; the close of its other side is reported without a flag.
                PollFd::new(ended, PollFlags::empty()),
            ];
            match poll(&mut both, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return self.inbox.blind(io::Error::from(error).to_string()),
            }
            if !both[1].revents().is_empty() {
                return;
            }
            loop {
                match reader.next() {
                    Ok(event) => {
                        let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                        self.event(event.wd(), event.events(), name);
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(error) => return self.inbox.blind(io::Error::from(error).to_string()),
                }
            }
        }
    }

    fn event(&self, watch: i32, what: ReadFlags, name: Option<&OsStr>) {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.inbox.blind("its queue overflowed (fs.inotify.max_queued_events)".to_owned());
        }
        let mut state = self.lock();
        if what.contains(ReadFlags::IGNORED) {
            state.folders.remove(&watch);
            return;
        }
        let Some(folder) = state.folders.get(&watch) else { return };
        let path = name.map_or_else(|| folder.clone(), |name| folder.join(name));
        if state.note(&path, what) {
            if what.contains(ReadFlags::MOVED_FROM | ReadFlags::ISDIR) {
                // It is watched again under its new path.
                state.folders.retain(|watch, folder| {
                    let stays = !folder.starts_with(&path);
                    if !stays {
                        let _ = remove_watch(&self.inotify, *watch);
                    }
                    stays
                });
            }
            drop(state);
            self.inbox.changed(path);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Tracks writers, and returns whether there is something to scan. While a file is written there are many events;
    /// only the close by its writer matters.
    fn note(&mut self, path: &Path, what: ReadFlags) -> bool {
        let is_file = !what.contains(ReadFlags::ISDIR);
        if is_file && what.intersects(ReadFlags::CREATE | ReadFlags::MODIFY) {
            if self.written.len() >= WRITTEN_MAX {
                self.written.retain(|_, since| since.elapsed() < WRITTEN_TIME_MAX);
            }
            if self.written.len() < WRITTEN_MAX {
                self.written.insert(path.to_owned(), Instant::now());
            }
        }
        let ends = ReadFlags::CLOSE_WRITE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO | ReadFlags::DELETE;
        if is_file && what.intersects(ends) {
            self.written.remove(path);
        }
        !what.difference(ReadFlags::ISDIR | ReadFlags::MODIFY).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::tests::Folder;
    use super::*;

    fn next(inbox: &Inbox) -> Vec<PathBuf> {
        inbox
            .take(Instant::now() + Duration::from_secs(30), Duration::from_millis(300))
            .changed
            .into_iter()
            .collect()
    }

    #[test]
    fn a_file_is_written_until_it_is_closed() {
        let folder = Folder::new();
        let inbox = Arc::new(Inbox::default());
        let inotify = Inotify::start(&folder.0, inbox.clone()).unwrap();
        inotify.watch(Path::new("")).unwrap();
        let mut file = std::fs::File::create(folder.0.join("file")).unwrap();
        assert_eq!(next(&inbox), [PathBuf::from("file")]);
        assert!(inotify.is_written(Path::new("file")));
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(next(&inbox), [PathBuf::from("file")]);
        assert!(!inotify.is_written(Path::new("file")));
        std::fs::create_dir(folder.0.join("sub")).unwrap();
        assert_eq!(next(&inbox), [PathBuf::from("sub")]);
        inotify.watch(Path::new("sub")).unwrap();
        std::fs::rename(folder.0.join("sub"), folder.0.join("moved")).unwrap();
        assert_eq!(next(&inbox), [PathBuf::from("moved"), PathBuf::from("sub")]);
        inotify.watch(Path::new("moved")).unwrap();
        std::fs::hard_link(folder.0.join("file"), folder.0.join("moved/link")).unwrap();
        assert!(next(&inbox).contains(&PathBuf::from("moved/link")));
        let error = inotify.watch(Path::new("nothing")).unwrap_err();
        assert!(!is_limit(&error));
    }

    #[test]
    fn an_overflow_is_reported() {
        let inbox = Arc::new(Inbox::default());
        let inotify = Inotify::start(Path::new("/"), inbox.clone()).unwrap();
        inotify.shared.event(-1, ReadFlags::QUEUE_OVERFLOW, None);
        assert!(inbox.take(Instant::now(), Duration::ZERO).blind.is_some());
    }

    #[test]
    fn the_files_that_are_remembered_are_bounded() {
        let mut state = State::default();
        for number in 0..WRITTEN_MAX + 10 {
            state.note(Path::new(&number.to_string()), ReadFlags::MODIFY);
        }
        assert_eq!(state.written.len(), WRITTEN_MAX);
    }
}
