//! Scans a part of the folder, and takes each file as one complete version.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use flatout_wire::accept::Coding;
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::entry::{Entry, Sidecar};
use super::inotify::{self, Inotify, WRITTEN_TIME_MAX};
use super::load::{Loaded, load, plain_of, sidecar};
use super::names::{Name, modified, names};
use super::source::{Fault, Source, fault};
use super::tree::{Known, Thing};
use super::write_detection::{self, Stamp};

/// The maximum nesting of folders, so that symbolic links cannot make the tree infinite.
const DEPTH_MAX: usize = 64;

/// Additional names under which a folder is served. Links to folders that contain links can multiply into millions.
const LINKED_NAMES_MAX: u32 = 16;

/// A scan in progress.
pub(crate) struct Look<'a> {
    source: &'a Source,
    known: &'a Known,
    inotify: Option<&'a Inotify>,
    is_first: bool,
    room: u64,
    /// The number of names of each folder that go through links.
    linked: HashMap<Identity, u32>,
    seen: Known,
    found: ScanResult,
}

/// The result of a scan.
#[derive(Default)]
pub(crate) struct ScanResult {
    /// Whether anything changed.
    pub(crate) changed: bool,
    /// Versions that are new.
    pub(crate) new: Vec<Arc<Entry>>,
    /// Versions that no longer exist.
    pub(crate) gone: Vec<Arc<Entry>>,
    /// Symbolic links at and below the path: changes of their targets are not reported.
    pub(crate) links: BTreeSet<PathBuf>,
    /// Files that are being written: the known versions are kept.
    pub(crate) unsettled: BTreeSet<PathBuf>,
    /// Unreadable paths and their errors: the known versions are kept.
    pub(crate) unread: Vec<(PathBuf, io::Error)>,
    /// The error if inotify cannot watch more folders.
    pub(crate) blind: Option<io::Error>,
}

/// The device and the inode of a folder.
type Identity = (u64, u64);

/// Updates `known` at `path` and everything below it. Unchanged files keep their entries. New versions of files in
/// memory are loaded too, while they need at most `room` more bytes.
///
/// # Errors
/// Out of descriptors or memory: nothing was learned, and `known` is unchanged.
pub(crate) fn update(
    source: &Source,
    path: &Path,
    known: &mut Known,
    inotify: Option<&Inotify>,
    is_first: bool,
    room: u64,
) -> io::Result<ScanResult> {
    let mut look = Look {
        source,
        known,
        inotify,
        is_first,
        room,
        linked: HashMap::new(),
        seen: Known::new(),
        found: ScanResult::default(),
    };
    if source.is_visible(path) {
        let via_link = source.is_link(path);
        if via_link {
            look.found.links.insert(path.to_path_buf());
        }
        look.visit(path, via_link, &mut Vec::new())?;
    } else {
        look.watch_hidden(path, 0);
    }
    let Look { seen, mut found, .. } = look;
    merge(path, known, seen, &mut found);
    Ok(found)
}

fn merge(path: &Path, known: &mut Known, seen: Known, found: &mut ScanResult) {
    let gone: Vec<PathBuf> =
        below(path, known).map(|(old, _)| old).filter(|old| !seen.contains_key(*old)).cloned().collect();
    for old in gone {
        found.changed = true;
        if let Some(Thing::File(entry)) = known.remove(&old) {
            found.gone.push(entry);
        }
    }
    for (path, thing) in seen {
        let same = match (known.get(&path), &thing) {
            (Some(Thing::File(old)), Thing::File(new)) => Arc::ptr_eq(old, new),
            // What has changed in it is found by itself.
            (Some(Thing::Folder(_)), Thing::Folder(_)) => true,
            _ => false,
        };
        if !same {
            found.changed = true;
            if let Thing::File(entry) = &thing {
                found.new.push(entry.clone());
            }
            if let Some(Thing::File(entry)) = known.get(&path) {
                found.gone.push(entry.clone());
            }
        }
        known.insert(path, thing);
    }
}

/// The known entries at and below a path.
fn below<'k>(path: &'k Path, known: &'k Known) -> impl Iterator<Item = (&'k PathBuf, &'k Thing)> {
    known.range(path.to_path_buf()..).take_while(move |(this, _)| this.starts_with(path))
}

impl Look<'_> {
    /// Scans `path`. `ancestors` are the folders above it, for detecting loops.
    fn visit(&mut self, path: &Path, via_link: bool, ancestors: &mut Vec<Identity>) -> io::Result<()> {
        let source = self.source;
        let opened = source.open_beneath(path).and_then(|file| Ok((file.metadata()?, file)));
        if opened.as_ref().is_err_and(|error| Errno::from_io_error(error) == Some(Errno::NOENT)) {
            return self.compressed_only(path);
        }
        let Some((metadata, file)) = self.present(path, opened)? else { return Ok(()) };
        if metadata.is_file() {
            let may_have_sidecars = true;
            return self.file(path, &file, &metadata, may_have_sidecars);
        }
        let identity = (metadata.dev(), metadata.ino());
        if !metadata.is_dir() || ancestors.len() >= DEPTH_MAX || ancestors.contains(&identity) {
            return Ok(());
        }
        if via_link {
            match self.linked.entry(identity).or_insert(0) {
                count if *count == LINKED_NAMES_MAX => return Ok(()),
                count => *count += 1,
            }
        } else {
            // Watch before reading the names, so that no new name is missed.
            self.watch(path);
        }
        let Some(names) = self.present(path, names(&file))? else { return Ok(()) };
        self.seen.insert(path.to_path_buf(), Thing::Folder(modified(&metadata)));
        ancestors.push(identity);
        self.folder(path, &file, &names, via_link, ancestors)?;
        ancestors.pop();
        Ok(())
    }

    fn folder(
        &mut self,
        path: &Path,
        folder: &File,
        names: &[Name],
        via_link: bool,
        ancestors: &mut Vec<Identity>,
    ) -> io::Result<()> {
        let with_sidecars: HashSet<PathBuf> = names.iter().filter_map(|name| plain_of(&name.name)).collect();
        let mut without_plain = with_sidecars.clone();
        names.iter().for_each(|name| _ = without_plain.remove(&name.name));
        for Name { name, kind } in names {
            let path = path.join(name);
            if !self.source.is_visible(&path) {
                if !via_link && *kind == FileType::Directory {
                    self.watch_hidden(&path, ancestors.len());
                }
                continue;
            }
            let has_sidecars = with_sidecars.contains(name);
            if *kind == FileType::RegularFile && !has_sidecars && self.keep_unchanged(&path, folder, name) {
                continue;
            }
            // If the file system does not report the type, it may be a link.
            let is_link = matches!(kind, FileType::Symlink | FileType::Unknown);
            if is_link {
                self.found.links.insert(path.clone());
            }
            if *kind == FileType::RegularFile {
                let source = self.source;
                let opened = source.open_beneath(&path).and_then(|file| Ok((file.metadata()?, file)));
                if let Some((metadata, file)) = self.present(&path, opened)?
                    && metadata.is_file()
                {
                    self.file(&path, &file, &metadata, has_sidecars)?;
                }
            } else {
                self.visit(&path, via_link || is_link, ancestors)?;
            }
        }
        for name in without_plain {
            let path = path.join(name);
            if self.source.is_visible(&path) {
                self.compressed_only(&path)?;
            }
        }
        Ok(())
    }

    /// Keeps a file without opening it, if it has not changed since a scan last opened it.
    fn keep_unchanged(&mut self, path: &Path, folder: &File, name: &Path) -> bool {
        let Some(old) = self.old(path).filter(|old| old.sidecars.is_empty()) else { return false };
        let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        let (Ok(seconds), Ok(nanos)) = (u64::try_from(stat.st_mtime), u32::try_from(stat.st_mtime_nsec))
        else {
            return false;
        };
        let now = Stamp {
            device: stat.st_dev,
            inode: stat.st_ino,
            bytes: stat.st_size.try_into().unwrap_or(u64::MAX),
            modified: UNIX_EPOCH + Duration::new(seconds, nanos),
        };
        #[allow(clippy::unnecessary_cast, reason = "its type differs between architectures")]
        let changed_ns = nanoseconds(stat.st_ctime as i64, stat.st_ctime_nsec as i64);
        let same = old.stamp == now && old.is_checked(changed_ns);
        if same {
            self.seen.insert(path.to_path_buf(), Thing::File(old));
        }
        same
    }

    /// Scans a file. Returns the old entry if nothing has changed, or if a change is incomplete.
    fn file(
        &mut self,
        path: &Path,
        file: &File,
        metadata: &Metadata,
        may_have_sidecars: bool,
    ) -> io::Result<()> {
        let now = Stamp::of(metadata)?;
        let sidecars = if may_have_sidecars { self.sidecars(path, Some(now))? } else { Vec::new() };
        let old = self.old(path);
        let changed_ns = nanoseconds(metadata.ctime(), metadata.ctime_nsec());
        if let Some(old) =
            old.as_ref().filter(|old| old.has_plain && old.stamp == now && old.has_sidecars(&sidecars))
        {
            old.set_checked(changed_ns);
            self.seen.insert(path.to_path_buf(), Thing::File(old.clone()));
            return Ok(());
        }
        if !self.is_first && self.is_half(path, old.as_deref(), file, now) {
            self.found.unsettled.insert(path.to_path_buf());
            self.keep(path);
            return Ok(());
        }
        let cache_control = self.source.plan.cache_control.as_deref();
        let sidecars = sidecars_of(path, &sidecars, old.as_deref());
        let entry = Entry::new(path.to_path_buf(), now, sidecars, cache_control);
        entry.set_checked(changed_ns);
        // A file served from memory stays in memory, and is not replaced by one that cannot be read.
        let old_bytes = old.map_or(0, |old| old.contents().memory_bytes());
        if old_bytes > 0 {
            let loaded = load(self.source, &entry, self.room.saturating_add(old_bytes));
            match self.present(path, loaded)? {
                Some(Loaded::Contents(contents)) => {
                    entry.set_contents(contents, cache_control);
                    let bytes = entry.contents().memory_bytes();
                    self.room = self.room.saturating_add(old_bytes).saturating_sub(bytes);
                }
                Some(Loaded::Changed) => {
                    self.found.unsettled.insert(path.to_path_buf());
                    self.keep(path);
                    return Ok(());
                }
                Some(Loaded::Nothing) => {}
                None => return Ok(()),
            }
        }
        self.seen.insert(path.to_path_buf(), Thing::File(Arc::new(entry)));
        Ok(())
    }

    /// Whether a changed or new file is still being written.
    fn is_half(&self, path: &Path, old: Option<&Entry>, file: &File, now: Stamp) -> bool {
        let is_written = || self.inotify.map(|inotify| inotify.is_written(path));
        match old {
            // Only a file beside it has changed.
            Some(old) if old.has_plain && old.stamp == now => false,
            Some(old) => write_detection::is_half(old, file, now, is_written),
            // A log that is always open must appear eventually.
            None => now.is_recent(WRITTEN_TIME_MAX) && !write_detection::is_closed(file, now, is_written),
        }
    }

    /// Scans a file that does not exist, but may have compressed forms.
    fn compressed_only(&mut self, path: &Path) -> io::Result<()> {
        let found = self.sidecars(path, None)?;
        let old = self.old(path);
        if let Some(old) = old.as_ref().filter(|old| !old.has_plain && old.has_sidecars(&found)) {
            self.seen.insert(path.to_path_buf(), Thing::File(old.clone()));
            return Ok(());
        }
        let sidecars = sidecars_of(path, &found, old.as_deref());
        let cache_control = self.source.plan.cache_control.as_deref();
        if let Some(entry) = Entry::compressed_only(path.to_path_buf(), sidecars, cache_control) {
            self.seen.insert(path.to_path_buf(), Thing::File(Arc::new(entry)));
        }
        Ok(())
    }

    /// Compressed forms beside a file, except those that are being written: smaller and not older, if there is a plain
    /// file.
    fn sidecars(&mut self, path: &Path, plain: Option<Stamp>) -> io::Result<Vec<(Coding, Stamp)>> {
        let mut found = Vec::new();
        let old = self.old(path);
        for coding in [Coding::Brotli, Coding::Zstd, Coding::Gzip] {
            let beside = sidecar(path, coding);
            let opened = self.source.open_beneath(&beside).and_then(|file| Ok((file.metadata()?, file)));
            let (metadata, file) = match opened {
                Ok((metadata, file)) if metadata.is_file() => (metadata, file),
                Err(error) if fault(&error) == Fault::Exhausted => return Err(error),
                // An unreadable variant is ignored.
                Ok(_) | Err(_) => continue,
            };
            let stamp = Stamp::of(&metadata)?;
            let is_of = |plain: Stamp| stamp.modified >= plain.modified && stamp.bytes < plain.bytes;
            if !plain.is_none_or(is_of) {
                continue;
            }
            let old = old.as_ref().and_then(|old| old.sidecar(coding));
            if !self.is_first && self.is_half(&beside, old.map(Arc::as_ref), &file, stamp) {
                self.found.unsettled.insert(path.to_path_buf());
                continue;
            }
            found.push((coding, stamp));
        }
        Ok(found)
    }

    /// `None` if it does not exist or cannot be read now; in the second case the known entry is kept.
    fn present<T>(&mut self, path: &Path, found: io::Result<T>) -> io::Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error) => match fault(&error) {
                Fault::Absent => Ok(None),
                Fault::Exhausted => Err(error),
                Fault::Passing => {
                    self.keep(path);
                    self.found.unread.push((path.to_path_buf(), error));
                    Ok(None)
                }
            },
        }
    }

    /// Keeps the known entries at and below a path.
    fn keep(&mut self, path: &Path) {
        let kept = below(path, self.known).map(|(path, thing)| (path.clone(), thing.clone()));
        self.seen.extend(kept);
    }

    fn old(&self, path: &Path) -> Option<Arc<Entry>> {
        match self.known.get(path) {
            Some(Thing::File(entry)) => Some(entry.clone()),
            Some(Thing::Folder(_)) | None => None,
        }
    }

    fn watch(&mut self, path: &Path) {
        if self.found.blind.is_none()
            && let Some(inotify) = self.inotify
            && let Err(error) = inotify.watch(path)
            && inotify::is_limit(&error)
        {
            self.found.blind = Some(error);
        }
    }

    /// Watches a folder that is not served, and its subfolders, because link targets may be there.
    fn watch_hidden(&mut self, path: &Path, depth: usize) {
        if self.inotify.is_none() || depth >= DEPTH_MAX || self.source.is_link(path) {
            return;
        }
        let Ok(folder) = self.source.open_beneath(path) else { return };
        if !folder.metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return;
        }
        self.watch(path);
        for Name { name, kind } in names(&folder).unwrap_or_default() {
            if kind == FileType::Directory {
                self.watch_hidden(&path.join(name), depth + 1);
            }
        }
    }
}

/// The entries of compressed files; those that have not changed are kept.
fn sidecars_of(path: &Path, found: &[(Coding, Stamp)], old: Option<&Entry>) -> Vec<Sidecar> {
    let of = |&(coding, stamp): &(Coding, Stamp)| {
        let same = old.and_then(|old| old.sidecar(coding)).filter(|file| file.stamp == stamp);
        same.map_or_else(|| Sidecar::new(path, coding, stamp), |file| Sidecar { coding, file: file.clone() })
    };
    found.iter().map(of).collect()
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}
