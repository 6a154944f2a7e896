//! Watches folders with inotify.
//!
//! A scan watches each folder before it reads its names, so everything that appears afterwards is reported. A thread
//! reads the events and turns them into paths to scan.
//!
//! ```text
//! served folder ──┐
//! served folder ──┴── instance of the kernel, and its thread      at most INSTANCES_MAX: users may have only 128, so many folders share them
//! ```

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};
use rustix::io::Errno;

use super::inbox::Inbox;

/// Instances of one process. A burst of changes that is too long for an instance's queue makes all of its folders scan again.
const INSTANCES_MAX: usize = 32;

/// Watches that are given up at once: the kernel reports each, and others need room in the instance's queue.
const LEAVE_COUNT: usize = 1000;

/// The time for its thread to read these events.
const LEAVE_TIME: Duration = Duration::from_millis(2);

/// Events read at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Files with open writers that are remembered; further ones are treated as closed.
const WRITTEN_MAX: usize = 65_536;

/// A written file that was not closed is treated as closed after this time without a write. `truncate(2)` writes
/// without opening, and so without closing.
pub(crate) const WRITTEN_TIME_MAX: Duration = Duration::from_secs(60);

/// A running watch of a served folder; it ends when this is dropped.
pub(crate) struct Inotify {
    folder: Arc<Folder>,
    instance: Arc<Instance>,
}

/// A served folder.
struct Folder {
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

/// An instance of inotify, with the thread that reads its events. Both end with the last of its folders.
struct Instance {
    shared: Arc<Shared>,
    _end: OwnedFd,
}

struct Shared {
    inotify: OwnedFd,
    /// Its thread has ended: nothing is reported any more.
    has_ended: AtomicBool,
    /// Who watches a folder: one that belongs to several served folders has one number. Locked before a served folder's own state.
    watches: Mutex<HashMap<i32, Vec<Arc<Folder>>>>,
}

/// The instances of this process.
static INSTANCES: Mutex<Vec<Weak<Instance>>> = Mutex::new(Vec::new());

impl Inotify {
    /// Starts inotify without any watches.
    ///
    /// # Errors
    /// A limit of inotify instances, descriptors or threads was reached, and no instance can be shared.
    pub(crate) fn start(root: &Path, inbox: Arc<Inbox>) -> io::Result<Inotify> {
        let folder = Arc::new(Folder { root: root.to_owned(), state: Mutex::default(), inbox });
        Ok(Inotify { folder, instance: Instance::least_used()? })
    }

    /// Watches a folder; everything that appears in it afterwards is reported.
    ///
    /// # Errors
    /// `StorageFull`: the limit of watches was reached. `NotFound` and similar: it is not a folder any more.
    pub(crate) fn watch(&self, folder: &Path) -> io::Result<()> {
        let mut flags = WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW
            | WatchFlags::EXCL_UNLINK
            // Others may watch the same one for more.
            | WatchFlags::MASK_ADD
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
        let shared = &self.instance.shared;
        if shared.has_ended.load(Ordering::Relaxed) {
            return Err(Errno::NOSPC.into());
        }
        // Events are resolved to paths under the same lock, so each folder's path is known before its events.
        let mut watches = shared.lock();
        let watch = add_watch(&shared.inotify, self.folder.root.join(folder), flags)?;
        let watchers = watches.entry(watch).or_default();
        if !watchers.iter().any(|watcher| Arc::ptr_eq(watcher, &self.folder)) {
            watchers.push(self.folder.clone());
        }
        self.folder.lock().folders.insert(watch, folder.to_owned());
        Ok(())
    }

    /// Whether the file was created or written and not closed since, according to events.
    pub(crate) fn is_written(&self, file: &Path) -> bool {
        self.folder.lock().written.get(file).is_some_and(|since| since.elapsed() < WRITTEN_TIME_MAX)
    }
}

impl Drop for Inotify {
    fn drop(&mut self) {
        let shared = &self.instance.shared;
        if self.instance.is_left() {
            // It ends, and with it all watches. Nobody misses a change by that: the folder may be watched by another instance now.
            return shared.lock().clear();
        }
        loop {
            let mut watches = shared.lock();
            let mut state = self.folder.lock();
            let some: Vec<i32> = state.folders.keys().copied().take(LEAVE_COUNT).collect();
            some.iter().for_each(|watch| _ = state.folders.remove(watch));
            let is_last = state.folders.is_empty();
            drop(state);
            some.into_iter().for_each(|watch| shared.leave(&mut watches, watch, &self.folder));
            drop(watches);
            if is_last {
                return;
            }
            thread::sleep(LEAVE_TIME);
        }
    }
}

impl Instance {
    /// A new instance, or one that is shared if there are enough, or if the kernel refuses more.
    fn least_used() -> io::Result<Arc<Instance>> {
        let mut instances = INSTANCES.lock().unwrap_or_else(PoisonError::into_inner);
        instances.retain(|instance| {
            instance.upgrade().is_some_and(|it| !it.shared.has_ended.load(Ordering::Relaxed))
        });
        let is_full = instances.len() >= INSTANCES_MAX;
        let started = if is_full { Err(Errno::MFILE.into()) } else { Instance::start() };
        started.inspect(|instance| instances.push(Arc::downgrade(instance))).or_else(|error| {
            let alive = instances.iter().filter_map(Weak::upgrade);
            alive.min_by_key(Arc::strong_count).ok_or(error)
        })
    }

    /// Whether its last folder leaves it. Then no other one gets it.
    fn is_left(self: &Arc<Instance>) -> bool {
        let mut instances = INSTANCES.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = Arc::strong_count(self) == 1;
        if is_last {
            instances.retain(|instance| !std::ptr::eq(instance.as_ptr(), Arc::as_ptr(self)));
        }
        is_last
    }

    fn start() -> io::Result<Arc<Instance>> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let (ended, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (has_ended, watches) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { inotify, has_ended, watches });
        let reader = Reading(shared.clone());
        thread::Builder::new().name("files-watch".to_owned()).spawn(move || reader.0.run(&ended))?;
        Ok(Arc::new(Instance { shared, _end: end }))
    }
}

/// Whether this is the error of the watch limit.
pub(crate) fn is_limit(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOSPC.raw_os_error())
}

/// Notes the end of an instance's thread, whatever ends it.
struct Reading(Arc<Shared>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Relaxed);
        self.0.blind("its thread has ended");
    }
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
                Err(error) => return self.blind(&io::Error::from(error).to_string()),
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
                    Err(error) => return self.blind(&io::Error::from(error).to_string()),
                }
            }
        }
    }

    fn event(&self, watch: i32, what: ReadFlags, name: Option<&OsStr>) {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.blind("its queue overflowed (fs.inotify.max_queued_events)");
        }
        let mut watches = self.lock();
        if what.contains(ReadFlags::IGNORED) {
            let watchers = watches.remove(&watch).unwrap_or_default();
            return watchers.iter().for_each(|folder| drop(folder.lock().folders.remove(&watch)));
        }
        let mut gone = Vec::new();
        for folder in watches.get(&watch).into_iter().flatten() {
            gone.extend(folder.event(watch, what, name).into_iter().map(|watch| (watch, folder.clone())));
        }
        gone.into_iter().for_each(|(watch, folder)| self.leave(&mut watches, watch, &folder));
    }

    /// A served folder does not watch this one any more.
    fn leave(&self, watches: &mut HashMap<i32, Vec<Arc<Folder>>>, watch: i32, folder: &Arc<Folder>) {
        let Some(watchers) = watches.get_mut(&watch) else { return };
        watchers.retain(|watcher| !Arc::ptr_eq(watcher, folder));
        if watchers.is_empty() {
            watches.remove(&watch);
            // It may be gone.
            let _ = remove_watch(&self.inotify, watch);
        }
    }

    /// All folders may miss changes.
    fn blind(&self, reason: &str) {
        let watches = self.lock();
        let folders: HashMap<*const Folder, &Arc<Folder>> =
            watches.values().flatten().map(|folder| (Arc::as_ptr(folder), folder)).collect();
        folders.into_values().for_each(|folder| folder.inbox.blind(reason.to_owned()));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Vec<Arc<Folder>>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Folder {
    /// Handles an event. Returns the watches of folders that were moved away.
    fn event(&self, watch: i32, what: ReadFlags, name: Option<&OsStr>) -> Vec<i32> {
        let mut state = self.lock();
        let Some(folder) = state.folders.get(&watch) else { return Vec::new() };
        let path = name.map_or_else(|| folder.clone(), |name| folder.join(name));
        if !state.note(&path, what) {
            return Vec::new();
        }
        let mut gone = Vec::new();
        if what.contains(ReadFlags::MOVED_FROM | ReadFlags::ISDIR) {
            // It is watched again under its new path.
            gone.extend(
                state.folders.extract_if(|_, folder| folder.starts_with(&path)).map(|(watch, _)| watch),
            );
        }
        drop(state);
        self.inbox.changed(path);
        gone
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
        inbox.take(Instant::now() + Duration::from_secs(30)).changed.into_iter().collect()
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
        let folder = Folder::new();
        let inbox = Arc::new(Inbox::default());
        let inotify = Inotify::start(&folder.0, inbox.clone()).unwrap();
        inotify.watch(Path::new("")).unwrap();
        inotify.instance.shared.event(-1, ReadFlags::QUEUE_OVERFLOW, None);
        assert!(inbox.take_now().blind.is_some());
    }

    #[test]
    fn the_end_of_a_watch_is_no_loss() {
        let folder = Folder::new();
        let inbox = Arc::new(Inbox::default());
        let former = Inotify::start(&folder.0, inbox.clone()).unwrap();
        former.watch(Path::new("")).unwrap();
        let (instance, shared) = (Arc::downgrade(&former.instance), former.instance.shared.clone());
        // As if the root had been replaced: another watch reports changes to the same inbox.
        let _later = Inotify::start(&folder.0, inbox.clone()).unwrap();
        drop(former);
        // Other tests may share the instance, and then the thread goes on.
        while instance.strong_count() == 0 && Arc::strong_count(&shared) > 1 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(inbox.take_now().blind, None);
    }

    #[test]
    fn folders_share_instances_and_the_watches_of_folders_that_they_have_in_common() {
        let folder = Folder::new();
        std::fs::create_dir(folder.0.join("sub")).unwrap();
        let start = |root: PathBuf| {
            let inbox = Arc::new(Inbox::default());
            (Inotify::start(&root, inbox.clone()).unwrap(), inbox)
        };
        let mut many: Vec<_> = (0..2 * INSTANCES_MAX).map(|_| start(folder.0.clone())).collect();
        let alive = || INSTANCES.lock().unwrap().iter().filter_map(Weak::upgrade).count();
        assert!(alive() <= INSTANCES_MAX, "{}", alive());
        // Of one instance: a folder, and a folder in it.
        let (outer, outer_inbox) = many.pop().unwrap();
        let inner_inbox = Arc::new(Inbox::default());
        let root = folder.0.join("sub");
        let served = super::Folder { root, state: Mutex::default(), inbox: inner_inbox.clone() };
        let inner = Inotify { folder: Arc::new(served), instance: outer.instance.clone() };
        outer.watch(Path::new("")).unwrap();
        outer.watch(Path::new("sub")).unwrap();
        inner.watch(Path::new("")).unwrap();
        std::fs::write(folder.0.join("sub/a"), "").unwrap();
        assert_eq!(next(&outer_inbox), [PathBuf::from("sub/a")]);
        assert_eq!(next(&inner_inbox), [PathBuf::from("a")]);
        drop(outer);
        std::fs::write(folder.0.join("sub/b"), "").unwrap();
        assert_eq!(next(&inner_inbox), [PathBuf::from("b")], "the other one still watches it");
        assert!(outer_inbox.take_now().changed.is_empty());
        let shared = inner.instance.shared.clone();
        drop(inner);
        // Other tests may share the instance.
        assert!(!shared.lock().values().flatten().any(|watcher| watcher.root.starts_with(&folder.0)));
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
