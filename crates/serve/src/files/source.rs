//! Reading the folder: what there is, and each file as one whole version.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flatout_wire::accept::Coding;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Plan;
use super::entry::{Content, Entry, Stamp};
use super::tree::{Known, Thing};

/// Folders inside folders, so that what symbolic links make of a tree stays finite.
const DEPTH_MAX: usize = 64;

/// Names beside its own under which a folder is served. Links that lead to folders with links can make millions.
const LINKED_NAMES_MAX: u32 = 16;

/// How often a file that changes while it is read is read again.
const READS_MAX: usize = 3;

/// The folder that is served, and what is read from it.
pub(crate) struct Source {
    root: OwnedFd,
    root_path: PathBuf,
    plan: Plan,
}

impl Source {
    /// Opens the root.
    ///
    /// # Errors
    /// The system's, where it is no readable folder.
    pub(crate) fn open(plan: Plan) -> io::Result<Source> {
        let root_path = plan.root.canonicalize()?;
        let root = rustix::fs::openat(CWD, &root_path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Source { root, root_path, plan })
    }

    pub(crate) fn root_path(&self) -> &Path {
        &self.root_path
    }

    /// Whether the root's path leads to this very folder still: deployments rename folders and turn links.
    pub(crate) fn is_current(&self) -> bool {
        let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let here = rustix::fs::fstat(&self.root).ok().map(|stat| (stat.st_dev, stat.st_ino));
        std::fs::metadata(&self.plan.root).ok().map(identity) == here
    }

    /// Brings `known` up to date at `path` and everything below it. Files that have not changed stay as they are;
    /// of new ones at most `memory_bytes` are read into memory.
    ///
    /// # Errors
    /// The system is out of descriptors or memory: what is there cannot be told, and `known` stays as it is.
    pub(crate) fn update(&self, path: &Path, known: &mut Known, memory_bytes: u64) -> io::Result<Update> {
        let mut seen = Known::new();
        let mut links = BTreeSet::new();
        if is_visible(path) {
            let memory_bytes = Cell::new(memory_bytes);
            let via_link = self.is_link(path);
            links.extend(via_link.then(|| path.to_path_buf()));
            let reading = Reading {
                source: self,
                known,
                memory_bytes,
                linked: RefCell::default(),
                links: RefCell::new(links),
            };
            reading.read(path, via_link, &mut Vec::new(), &mut seen)?;
            links = reading.links.into_inner();
        }
        let gone: Vec<PathBuf> = below(path, known).filter(|old| !seen.contains_key(*old)).cloned().collect();
        let mut changed = !gone.is_empty();
        for old in gone {
            known.remove(&old);
        }
        for (path, thing) in seen {
            let same = match (known.get(&path), &thing) {
                (Some(Thing::File(old)), Thing::File(new)) => Arc::ptr_eq(old, new),
                (Some(Thing::Folder), Thing::Folder) => true,
                _ => false,
            };
            if !same {
                changed = true;
                known.insert(path, thing);
            }
        }
        Ok(Update { changed, links })
    }

    fn is_link(&self, path: &Path) -> bool {
        let found = rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    /// Compressed variants that lie beside a file, are not older than it, and smaller.
    fn sidecars(&self, path: &Path, plain: Stamp) -> io::Result<Vec<(Coding, PathBuf, Stamp)>> {
        let mut found = Vec::new();
        for coding in [Coding::Brotli, Coding::Zstd, Coding::Gzip] {
            let path = sidecar(path, coding);
            let Some(file) = present(self.open_beneath(&path))? else { continue };
            if !present(file.metadata())?.is_some_and(|metadata| metadata.is_file()) {
                continue;
            }
            let stamp = stamp(&file)?;
            if stamp.modified >= plain.modified && stamp.bytes < plain.bytes {
                found.push((coding, path, stamp));
            }
        }
        Ok(found)
    }

    /// Opens a path below the root, without blocking on what is no file. Symbolic links are followed as long as they
    /// stay inside.
    ///
    /// # Source
    /// openat2(2), Linux 5.6; on older kernels the canonical path is compared instead.
    pub(crate) fn open_beneath(&self, path: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let beneath = |path: &Path| {
            let path = if path == Path::new("") { Path::new(".") } else { path };
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve)
        };
        let opened = match beneath(path) {
            // An absolute link may still lead inside, and one that goes up cannot be followed while anybody renames: the
            // canonical path tells, and is opened under the same rule.
            Err(Errno::XDEV | Errno::AGAIN) => beneath(&self.canonical(path)?),
            Err(Errno::NOSYS) => {
                rustix::fs::openat(CWD, self.root_path.join(self.canonical(path)?), flags, Mode::empty())
            }
            opened => opened,
        };
        Ok(opened?.into())
    }

    /// The path without links, relative to the root.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        let full = self.root_path.join(path).canonicalize()?;
        let inside =
            full.strip_prefix(&self.root_path).map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(inside.to_path_buf())
    }
}

/// What an update came to.
#[derive(Default)]
pub(crate) struct Update {
    /// Whether anything changed.
    pub(crate) changed: bool,
    /// Names at and below the path that are symbolic links: what they lead to may change without a word about them.
    pub(crate) links: BTreeSet<PathBuf>,
}

/// One reading of a part of the folder.
struct Reading<'a> {
    source: &'a Source,
    known: &'a Known,
    memory_bytes: Cell<u64>,
    /// How many names of each folder lead through links.
    linked: RefCell<HashMap<Identity, u32>>,
    /// Names that are links.
    links: RefCell<BTreeSet<PathBuf>>,
}

/// The device and the inode of a folder.
type Identity = (u64, u64);

impl Reading<'_> {
    /// Reads what is at `path` into `seen`. `ancestors` are the folders above it, by which a loop is noticed.
    fn read(
        &self,
        path: &Path,
        via_link: bool,
        ancestors: &mut Vec<Identity>,
        seen: &mut Known,
    ) -> io::Result<()> {
        let Some(file) = present(self.source.open_beneath(path))? else { return Ok(()) };
        let Some(metadata) = present(file.metadata())? else { return Ok(()) };
        if metadata.is_file() {
            let old = self.known.get(path).and_then(|thing| match thing {
                Thing::File(entry) => Some(entry),
                Thing::Folder => None,
            });
            if let Some(entry) = present(self.read_file(path, file, old))? {
                seen.insert(path.to_path_buf(), Thing::File(entry));
            }
            return Ok(());
        }
        let identity = (metadata.dev(), metadata.ino());
        if !metadata.is_dir() || ancestors.len() >= DEPTH_MAX || ancestors.contains(&identity) {
            return Ok(());
        }
        if via_link {
            match self.linked.borrow_mut().entry(identity).or_insert(0) {
                count if *count == LINKED_NAMES_MAX => return Ok(()),
                count => *count += 1,
            }
        }
        seen.insert(path.to_path_buf(), Thing::Folder);
        ancestors.push(identity);
        for (name, is_link) in present(names(file))?.unwrap_or_default() {
            let path = path.join(name);
            if is_visible(&path) {
                if is_link {
                    self.links.borrow_mut().insert(path.clone());
                }
                self.read(&path, via_link || is_link, ancestors, seen)?;
            }
        }
        ancestors.pop();
        Ok(())
    }

    /// A file as it is served: the entry that there was, if nothing has changed.
    fn read_file(&self, path: &Path, file: File, old: Option<&Arc<Entry>>) -> io::Result<Arc<Entry>> {
        let found = stamp(&file)?;
        let beside = self.source.sidecars(path, found)?;
        let sidecars: Vec<Stamp> = beside.iter().map(|(_, _, stamp)| *stamp).collect();
        if let Some(old) = old.filter(|old| old.stamp == found && old.sidecars == sidecars) {
            return Ok(old.clone());
        }
        let (stamp, content) = self.contents(path, file)?;
        let mut contents = vec![(Coding::Identity, content)];
        for (coding, path, _) in beside {
            // Of a large one the path would have to be kept too: rare enough to do without.
            let read = self.source.open_beneath(&path).and_then(|file| self.contents(&path, file));
            if let Some((_, content @ Content::Memory(_))) = present(read)? {
                contents.push((coding, content));
            }
        }
        let cache_control = self.source.plan.cache_control.as_deref();
        Ok(Arc::new(Entry::new(path.to_path_buf(), stamp, sidecars, contents, cache_control)))
    }

    /// Reads a small file whole, and between two equal stamps, so that it is one version; keeps a large one on disk.
    fn contents(&self, path: &Path, mut file: File) -> io::Result<(Stamp, Content)> {
        for _ in 0..READS_MAX {
            let before = stamp(&file)?;
            let left = self.memory_bytes.get();
            if before.bytes > self.source.plan.small_bytes_max || before.bytes > left {
                return Ok((before, Content::Disk(before.bytes)));
            }
            let mut bytes = Vec::with_capacity(before.bytes as usize);
            // One byte more than promised tells that it has grown.
            (&mut file).take(before.bytes + 1).read_to_end(&mut bytes)?;
            if stamp(&file)? == before && bytes.len() as u64 == before.bytes {
                self.memory_bytes.set(left - before.bytes);
                return Ok((before, Content::Memory(bytes.into())));
            }
            file = self.source.open_beneath(path)?;
        }
        Err(io::Error::other("it changes while it is read: its writer's end will be noticed"))
    }
}

/// `None` for what is not there, or not for us. That the system is out of something says nothing of what is there.
fn present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_exhaustion(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Whether the process or the host is out of descriptors or memory.
pub(crate) fn is_exhaustion(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// The stamp of an open file.
pub(crate) fn stamp(file: &File) -> io::Result<Stamp> {
    let metadata = file.metadata()?;
    Ok(Stamp { inode: metadata.ino(), bytes: metadata.len(), modified: metadata.modified()? })
}

/// The file that `path` may be a compressed variant of.
pub(crate) fn plain_of(path: &Path) -> Option<PathBuf> {
    let extension = path.extension()?.to_str()?;
    matches!(extension, "gz" | "br" | "zst").then(|| path.with_extension(""))
}

/// Whether a path may be served: no part of it begins with a dot, but for `.well-known` (RFC 8615).
pub(crate) fn is_visible(path: &Path) -> bool {
    path.components().all(|part| {
        let name = part.as_os_str().as_encoded_bytes();
        !name.starts_with(b".") || name == b".well-known"
    })
}

/// What was known at and below a path.
fn below<'k>(path: &'k Path, known: &'k Known) -> impl Iterator<Item = &'k PathBuf> {
    known.range(path.to_path_buf()..).map(|(this, _)| this).take_while(move |this| this.starts_with(path))
}

fn sidecar(path: &Path, coding: Coding) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(coding.extension());
    name.into()
}

/// The names in a folder, and whether each is a link; where the file system does not tell, it may be one.
fn names(folder: File) -> io::Result<Vec<(PathBuf, bool)>> {
    use std::os::unix::ffi::OsStrExt;
    let entries = Dir::read_from(&folder)?.flatten();
    let named = entries.map(|entry| {
        let name = PathBuf::from(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
        (name, matches!(entry.file_type(), FileType::Symlink | FileType::Unknown))
    });
    Ok(named.filter(|(name, _)| name != Path::new(".") && name != Path::new("..")).collect())
}
