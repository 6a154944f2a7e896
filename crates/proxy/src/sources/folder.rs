//! Folders of watched files: an event in one of them is a hint to look at the files. Editors and deployment tools replace files, links or
//! whole folders (the `..data` link of a Kubernetes ConfigMap), so that watching the file itself would miss changes.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init, remove_watch};
use rustix::io::Errno;

/// Events read at once.
const BUFFER_BYTES: usize = 16 << 10;

/// Watched folders.
pub(super) struct FolderWatch {
    inotify: OwnedFd,
    watches: BTreeSet<i32>,
}

impl FolderWatch {
    /// Of no folder yet.
    ///
    /// # Errors
    /// The limit of inotify instances or descriptors was reached.
    pub(super) fn new() -> io::Result<FolderWatch> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(FolderWatch { inotify, watches: BTreeSet::new() })
    }

    /// Watches these folders and no others. One that cannot be watched, for example because it does not exist, is left out. Folders that
    /// are watched already cost one system call.
    pub(super) fn watch<'p>(&mut self, folders: impl Iterator<Item = &'p Path>) {
        // Not MODIFY: a file that is being written is looked at when it is closed.
        let flags = WatchFlags::ONLYDIR
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let watches: BTreeSet<i32> =
            folders.filter_map(|folder| add_watch(&self.inotify, folder, flags).ok()).collect();
        for former in self.watches.difference(&watches) {
            let _ = remove_watch(&self.inotify, *former);
        }
        self.watches = watches;
    }

    /// What is readable when something has happened in a folder.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Forgets what has happened so far.
    pub(super) fn clear(&self) {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        while matches!(reader.next().map(drop), Ok(()) | Err(Errno::INTR)) {}
    }
}
