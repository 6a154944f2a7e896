//! A volume with faults: a folder that is mounted a second time, by a file system of this process. Its operations take time, fail, or
//! show times of another clock, as those of a network volume do.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, SessionACL, TimeOrNow,
    WriteFlags,
};

use crate::Folder;

/// Operations at the same time: enough that one that waits delays no other.
const THREADS: usize = 8;

/// What can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Finding a name, and attributes.
    Look,
    /// Opening a file or a folder.
    Open,
    /// Reading a file.
    Read,
    /// Making a file or a folder, or changing its size.
    Make,
    /// Writing a file.
    Write,
    /// Writing to disk.
    Sync,
    /// Renaming.
    Rename,
    /// Removing.
    Remove,
}

impl Operation {
    fn changes(self) -> bool {
        !matches!(self, Operation::Look | Operation::Open | Operation::Read)
    }
}

/// What is wrong with a volume.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Each operation takes this time.
    pub delay: Duration,
    /// This operation fails with this error, as `errno` has it.
    pub error: Option<(Operation, i32)>,
    /// Operations that change anything until the volume is gone, as if the process that uses it had been killed.
    pub changes_left: Option<usize>,
    /// Seconds by which its clock is ahead of this machine's.
    pub ahead_s: i64,
}

/// A folder that is mounted a second time.
pub struct FaultyVolume {
    place: Folder,
    faults: Arc<Mutex<Faults>>,
    session: Option<BackgroundSession>,
}

impl FaultyVolume {
    /// Mounts a folder. `None`, if this machine cannot.
    pub fn mount(behind: &Path) -> Option<FaultyVolume> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return None;
        }
        let (place, faults) = (Folder::new(), Arc::new(Mutex::new(Faults::default())));
        let shared = Shared {
            root: behind.to_owned(),
            faults: faults.clone(),
            paths: Mutex::new(HashMap::from([(INodeNo::ROOT.0, behind.to_owned())])),
            open: Mutex::default(),
            last: AtomicU64::new(0),
        };
        let mut config = Config::default();
        config.acl = SessionACL::All;
        config.n_threads = Some(THREADS);
        let session = fuser::spawn_mount(shared, &place.0, &config).expect("mounting by /dev/fuse, as root");
        Some(FaultyVolume { place, faults, session: Some(session) })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.place.0
    }

    /// Changes what is wrong with it.
    pub fn set(&self, faults: Faults) {
        *self.lock() = faults;
    }

    /// What is wrong with it.
    pub fn faults(&self) -> Faults {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FaultyVolume {
    fn drop(&mut self) {
        self.set(Faults::default());
        // Whoever has a file open there does not keep it mounted.
        let _ = Command::new("umount").arg("--lazy").arg(&self.place.0).status();
        drop(self.session.take());
    }
}

struct Shared {
    root: PathBuf,
    faults: Arc<Mutex<Faults>>,
    /// The path of each inode that was looked up; its number is that of the file behind it.
    paths: Mutex<HashMap<u64, PathBuf>>,
    open: Mutex<HashMap<u64, Arc<File>>>,
    last: AtomicU64,
}

/// Nothing is remembered by the kernel: each question arrives here.
const REMEMBERED: Duration = Duration::ZERO;

fn errno(error: io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()))
}

impl Shared {
    /// Waits, and fails, as the faults say.
    fn begin(&self, operation: Operation) -> Result<(), Errno> {
        let (delay, result) = {
            let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
            let is_gone = match &mut faults.changes_left {
                Some(0) => true,
                Some(left) if operation.changes() => {
                    *left -= 1;
                    false
                }
                _ => false,
            };
            let result = match faults.error {
                _ if is_gone => Err(Errno::EIO),
                Some((failing, error)) if failing == operation => Err(Errno::from_i32(error)),
                _ => Ok(()),
            };
            (faults.delay, result)
        };
        thread::sleep(delay);
        result
    }

    fn path(&self, inode: INodeNo) -> Result<PathBuf, Errno> {
        let paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.get(&inode.0).cloned().ok_or(Errno::ESTALE)
    }

    fn below(&self, parent: INodeNo, name: &OsStr) -> Result<PathBuf, Errno> {
        Ok(self.path(parent)?.join(name))
    }

    /// The path of an inode that still has its name: another file in its place is not it.
    fn current(&self, inode: INodeNo) -> Result<PathBuf, Errno> {
        let path = self.path(inode)?;
        let about = fs::symlink_metadata(&path).map_err(|_| Errno::ESTALE)?;
        let is_same = inode == INodeNo::ROOT || about.ino() == inode.0;
        is_same.then_some(path).ok_or(Errno::ESTALE)
    }

    /// The attributes of a path, whose inode is known from now on.
    fn found(&self, path: &Path) -> Result<FileAttr, Errno> {
        let about = fs::symlink_metadata(path).map_err(errno)?;
        let is_root = path == self.root;
        let inode = if is_root { INodeNo::ROOT } else { INodeNo(about.ino()) };
        self.paths.lock().unwrap_or_else(PoisonError::into_inner).insert(inode.0, path.to_owned());
        Ok(self.attributes(inode, &about))
    }

    fn attributes(&self, ino: INodeNo, about: &fs::Metadata) -> FileAttr {
        let ahead_s = self.faults.lock().unwrap_or_else(PoisonError::into_inner).ahead_s;
        let ahead = Duration::from_secs(ahead_s.unsigned_abs());
        let time = |seconds: i64, nanoseconds: i64| {
            let time = SystemTime::UNIX_EPOCH + Duration::new(seconds.max(0) as u64, nanoseconds as u32);
            if ahead_s < 0 { time - ahead } else { time + ahead }
        };
        FileAttr {
            ino,
            size: about.len(),
            blocks: about.blocks(),
            atime: time(about.atime(), about.atime_nsec()),
            mtime: time(about.mtime(), about.mtime_nsec()),
            ctime: time(about.ctime(), about.ctime_nsec()),
            crtime: SystemTime::UNIX_EPOCH,
            kind: if about.is_dir() { FileType::Directory } else { FileType::RegularFile },
            perm: (about.permissions().mode() & 0o7777) as u16,
            nlink: about.nlink() as u32,
            uid: about.uid(),
            gid: about.gid(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn keep(&self, file: File) -> FileHandle {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> Result<Arc<File>, Errno> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    fn opened(&self, inode: INodeNo, flags: OpenFlags) -> Result<FileHandle, Errno> {
        self.begin(Operation::Open)?;
        let access = flags.acc_mode();
        let mut options = OpenOptions::new();
        options.read(access != OpenAccMode::O_WRONLY).write(access != OpenAccMode::O_RDONLY);
        options.open(self.current(inode)?).map(|file| self.keep(file)).map_err(errno)
    }

    fn removed(&self, path: &Path, remove: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Errno> {
        self.begin(Operation::Remove)?;
        remove(path).map_err(errno)
    }
}

/// Answers with the result, by these two methods.
macro_rules! answer {
    ($reply:ident, $result:expr, $found:ident => $good:expr) => {
        match $result {
            Ok($found) => $good,
            Err(error) => $reply.error(error),
        }
    };
}

impl Filesystem for Shared {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.begin(Operation::Look).and_then(|()| self.found(&self.below(parent, name)?));
        answer!(reply, found, attributes => reply.entry(&REMEMBERED, &attributes, Generation(0)));
    }

    fn getattr(&self, _: &Request, inode: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.begin(Operation::Look).and_then(|()| match handle {
            // Its name may be gone.
            Some(handle) => Ok(self.attributes(inode, &self.file(handle)?.metadata().map_err(errno)?)),
            None => self.found(&self.current(inode)?),
        });
        answer!(reply, found, attributes => reply.attr(&REMEMBERED, &attributes));
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = || {
            self.begin(Operation::Make)?;
            let path = self.current(inode)?;
            if let Some(mode) = mode {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777)).map_err(errno)?;
            }
            let file = OpenOptions::new().write(true).open(&path);
            if let Some(size) = size {
                file.as_ref().map_err(|error| errno(error.kind().into()))?.set_len(size).map_err(errno)?;
            }
            if let (Some(modified), Ok(file)) = (modified, &file) {
                let time = match modified {
                    TimeOrNow::SpecificTime(time) => time,
                    TimeOrNow::Now => SystemTime::now(),
                };
                file.set_modified(time).map_err(errno)?;
            }
            self.found(&path)
        };
        answer!(reply, change(), attributes => reply.attr(&REMEMBERED, &attributes));
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let make = || {
            self.begin(Operation::Make)?;
            let path = self.below(parent, name)?;
            fs::create_dir(&path).map_err(errno)?;
            self.found(&path)
        };
        answer!(reply, make(), attributes => reply.entry(&REMEMBERED, &attributes, Generation(0)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.below(parent, name).and_then(|path| self.removed(&path, |it| fs::remove_file(it)));
        answer!(reply, done, _done => reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.below(parent, name).and_then(|path| self.removed(&path, |it| fs::remove_dir(it)));
        answer!(reply, done, _done => reply.ok());
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || {
            self.begin(Operation::Rename)?;
            let (from, to) = (self.below(parent, name)?, self.below(new_parent, new_name)?);
            fs::rename(&from, &to).map_err(errno)?;
            self.found(&to)
        };
        answer!(reply, rename(), _found => reply.ok());
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // Reads arrive here, also of what was read before.
        answer!(reply, self.opened(inode, flags), handle => reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO));
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let make = || {
            self.begin(Operation::Make)?;
            let path = self.below(parent, name)?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true);
            options.create_new(flags & rustix::fs::OFlags::EXCL.bits() as i32 != 0);
            let file = options.open(&path).map_err(errno)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777)).map_err(errno)?;
            Ok((self.found(&path)?, self.keep(file)))
        };
        answer!(reply, make(), made => reply.created(&REMEMBERED, &made.0, Generation(0), made.1, FopenFlags::FOPEN_DIRECT_IO));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = || {
            self.begin(Operation::Read)?;
            let mut buffer = vec![0; size as usize];
            let count = self.file(handle)?.read_at(&mut buffer, offset).map_err(errno)?;
            buffer.truncate(count);
            Ok(buffer)
        };
        answer!(reply, read(), bytes => reply.data(&bytes));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let write = || {
            self.begin(Operation::Write)?;
            self.file(handle)?.write_all_at(data, offset).map_err(errno)
        };
        answer!(reply, write(), _done => reply.written(data.len() as u32));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer!(reply, self.begin(Operation::Sync), _done => reply.ok());
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer!(reply, self.begin(Operation::Sync), _done => reply.ok());
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        answer!(reply, self.begin(Operation::Open), _done => reply.opened(FileHandle(0), FopenFlags::empty()));
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let list = || {
            self.begin(Operation::Look)?;
            let entries = fs::read_dir(self.path(inode)?).map_err(errno)?;
            let mut names: Vec<_> = entries.flatten().collect();
            names.sort_by_key(fs::DirEntry::file_name);
            Ok(names)
        };
        let names = match list() {
            Ok(names) => names,
            Err(error) => return reply.error(error),
        };
        for (at, entry) in names.iter().enumerate().skip(offset as usize) {
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_dir() => FileType::Directory,
                _ => FileType::RegularFile,
            };
            let inode = entry.metadata().map(|about| about.ino()).unwrap_or_default();
            if reply.add(INodeNo(inode), at as u64 + 1, kind, entry.file_name()) {
                break;
            }
        }
        reply.ok();
    }
}
