//! Reading the folder: what there is, and each file as one whole version.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flatout_wire::accept::Coding;
use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Plan;
use super::entry::{Content, Entry, Stamp};
use super::tree::{Known, Thing};

/// Folders inside folders, so that what symbolic links make of a tree stays finite.
const DEPTH_MAX: usize = 64;

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
    /// of new ones at most `memory_bytes` are read into memory. Returns whether anything changed.
    pub(crate) fn update(&self, path: &Path, known: &mut Known, memory_bytes: u64) -> bool {
        let mut seen = Known::new();
        if is_visible(path) {
            let memory_bytes = Cell::new(memory_bytes);
            let reading = Reading { source: self, known, memory_bytes };
            reading.read(path, &mut Vec::new(), &mut seen);
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
        changed
    }

    /// Compressed variants that lie beside a file, are not older than it, and smaller.
    fn sidecars(&self, path: &Path, plain: Stamp) -> Vec<(Coding, PathBuf, Stamp)> {
        let found = [Coding::Brotli, Coding::Zstd, Coding::Gzip].into_iter().filter_map(|coding| {
            let path = sidecar(path, coding);
            let file = self.open_beneath(&path).ok()?;
            let stamp = file.metadata().ok().filter(|metadata| metadata.is_file()).and(stamp(&file).ok())?;
            let is_fresh = (stamp.modified_s, stamp.modified_ns) >= (plain.modified_s, plain.modified_ns);
            (is_fresh && stamp.bytes < plain.bytes).then_some((coding, path, stamp))
        });
        found.collect()
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
            // An absolute link may still lead inside: its canonical path tells, and is opened under the same rule.
            Err(Errno::XDEV) => beneath(&self.canonical(path)?),
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

/// One reading of a part of the folder.
struct Reading<'a> {
    source: &'a Source,
    known: &'a Known,
    memory_bytes: Cell<u64>,
}

impl Reading<'_> {
    /// Reads what is at `path` into `seen`. `ancestors` are the folders above it, by which a loop is noticed.
    fn read(&self, path: &Path, ancestors: &mut Vec<(u64, u64)>, seen: &mut Known) {
        let Ok(file) = self.source.open_beneath(path) else { return };
        let Ok(metadata) = file.metadata() else { return };
        if metadata.is_file() {
            let old = self.known.get(path).and_then(|thing| match thing {
                Thing::File(entry) => Some(entry),
                Thing::Folder => None,
            });
            if let Some(entry) = self.read_file(path, file, old) {
                seen.insert(path.to_path_buf(), Thing::File(entry));
            }
            return;
        }
        let identity = (metadata.dev(), metadata.ino());
        if !metadata.is_dir() || ancestors.len() >= DEPTH_MAX || ancestors.contains(&identity) {
            return;
        }
        seen.insert(path.to_path_buf(), Thing::Folder);
        ancestors.push(identity);
        for name in names(file) {
            let path = path.join(name);
            if is_visible(&path) {
                self.read(&path, ancestors, seen);
            }
        }
        ancestors.pop();
    }

    /// A file as it is served: the entry that there was, if nothing has changed.
    fn read_file(&self, path: &Path, file: File, old: Option<&Arc<Entry>>) -> Option<Arc<Entry>> {
        let found = stamp(&file).ok()?;
        let beside = self.source.sidecars(path, found);
        let sidecars: Vec<Stamp> = beside.iter().map(|(_, _, stamp)| *stamp).collect();
        if let Some(old) = old.filter(|old| old.stamp == found && old.sidecars == sidecars) {
            return Some(old.clone());
        }
        let (stamp, content) = self.contents(path, file)?;
        let mut contents = vec![(Coding::Identity, content)];
        for (coding, path, _) in beside {
            // Of a large one the path would have to be kept too: rare enough to do without.
            if let Some((_, content @ Content::Memory(_))) =
                self.source.open_beneath(&path).ok().and_then(|file| self.contents(&path, file))
            {
                contents.push((coding, content));
            }
        }
        let cache_control = self.source.plan.cache_control.as_deref();
        Some(Arc::new(Entry::new(path.to_path_buf(), stamp, sidecars, contents, cache_control)))
    }

    /// Reads a small file whole, and between two equal stamps, so that it is one version; keeps a large one on disk.
    fn contents(&self, path: &Path, mut file: File) -> Option<(Stamp, Content)> {
        for _ in 0..READS_MAX {
            let before = stamp(&file).ok()?;
            let left = self.memory_bytes.get();
            if before.bytes > self.source.plan.small_bytes_max || before.bytes > left {
                return Some((before, Content::Disk(before.bytes)));
            }
            let mut bytes = Vec::with_capacity(before.bytes as usize);
            // One byte more than promised tells that it has grown.
            (&mut file).take(before.bytes + 1).read_to_end(&mut bytes).ok()?;
            if stamp(&file).ok()? == before && bytes.len() as u64 == before.bytes {
                self.memory_bytes.set(left - before.bytes);
                return Some((before, Content::Memory(bytes.into())));
            }
            file = self.source.open_beneath(path).ok()?;
        }
        None
    }
}

/// The stamp of an open file.
pub(crate) fn stamp(file: &File) -> io::Result<Stamp> {
    let metadata = file.metadata()?;
    Ok(Stamp {
        inode: metadata.ino(),
        bytes: metadata.len(),
        modified_s: metadata.mtime(),
        modified_ns: metadata.mtime_nsec() as u32,
    })
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

fn names(folder: File) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let Ok(folder) = Dir::read_from(&folder) else { return Vec::new() };
    let names = folder.flatten().map(|entry| entry.file_name().to_bytes().to_vec());
    names
        .filter(|name| name != b"." && name != b"..")
        .map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(&name)))
        .collect()
}
