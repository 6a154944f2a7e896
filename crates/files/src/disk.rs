//! Opens files that are not in memory, on a worker: large files, and any file until the first scan of the folder has
//! ended.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use flatout_wire::accept::Coding;

use super::entry::{Entry, Sidecar};
use super::indexer::FolderState;
use super::load::sidecar;
use super::opened::{OpenFiles, Opened};
use super::source::{Fault, fault};
use super::write_detection::{Stamp, is_half, stamp};
use super::{Listing, listing, names};

/// The most names that are listed at once; a longer listing waits for the end of the first scan.
const LISTED_MAX: usize = 1000;

/// The current state of an entry's file.
#[derive(Clone)]
pub(crate) enum Reached {
    /// It is the entry's version.
    Same(Opened),
    /// It was just replaced, and the tree will have the new version soon: the new version is served, completely.
    Newer(Arc<Entry>, Opened),
    /// It is being rewritten, or cannot be read now.
    NotNow,
    /// It does not exist any more.
    Nothing,
}

/// The result of a lookup.
#[derive(Clone)]
pub(crate) enum Found {
    File(Arc<Entry>, Opened),
    /// A folder requested without a trailing slash.
    Folder,
    Listing(Bytes),
    /// It exists, but cannot be read now.
    NotNow,
    Nothing,
}

/// Opens the file of an entry, unless it is already open.
pub(crate) fn reach(site: &FolderState, open: &mut OpenFiles, entry: &Arc<Entry>) -> Reached {
    if let Some(opened) = open.get(entry) {
        match stamp(&opened.file) {
            Ok(now) if now == entry.stamp => return Reached::Same(opened.with_witness(open, entry)),
            // Another file may have its name now, or its file system was remounted under another handle.
            Ok(now) => {
                note_rewriting(entry, &opened, now);
                open.close(entry);
            }
            Err(_) => open.close(entry),
        }
    }
    let opened = site.source.load().open_beneath(&entry.path).and_then(|file| Ok((stamp(&file)?, file)));
    let (now, file) = match opened {
        Ok(opened) => opened,
        Err(error) => return if is_absent(&error) { Reached::Nothing } else { Reached::NotNow },
    };
    if now == entry.stamp {
        let opened = Opened::new(Arc::new(file), now);
        open.put(entry, opened.clone());
        return Reached::Same(opened);
    }
    if is_half(entry, &file, now, || None) {
        return Reached::NotNow;
    }
    let (entry, opened) = as_it_is(site, entry.path.clone(), file, now);
    Reached::Newer(entry, opened)
}

/// Notes that a file is being rewritten: it is longer than its version, but its old part has changed.
fn note_rewriting(entry: &Entry, opened: &Opened, now: Stamp) {
    let is_longer = now.bytes > entry.stamp.bytes;
    if is_longer
        && let (Some(witness), Ok(metadata)) = (&opened.witness, opened.file.metadata())
        && !witness.is_unchanged(&opened.file, &metadata)
    {
        entry.tear();
    }
}

/// Looks up a decoded path by the same rules as the tree.
pub(crate) fn find(site: &FolderState, path: &[u8]) -> Found {
    let Some(relative) = relative(path) else { return Found::Nothing };
    let source = site.source.load();
    if !source.is_visible(&relative) {
        return Found::Nothing;
    }
    if !path.ends_with(b"/") {
        return open(site, &relative);
    }
    for name in &site.plan.index {
        let wanted = relative.join(name);
        if !source.is_visible(&wanted) {
            continue;
        }
        match open(site, &wanted) {
            // A folder with the name of an index file is ignored.
            Found::Nothing | Found::Folder => {}
            found => return found,
        }
    }
    match site.plan.listing {
        Listing::Off => Found::Nothing,
        _ => list(site, &relative),
    }
}

fn open(site: &FolderState, path: &Path) -> Found {
    let opened = site.source.load().open_beneath(path).and_then(|file| Ok((file.metadata()?, file)));
    match opened {
        Ok((metadata, _)) if metadata.is_dir() => Found::Folder,
        Ok((metadata, file)) if metadata.is_file() => match Stamp::of(&metadata) {
            Ok(now) => {
                let (entry, opened) = as_it_is(site, path.to_path_buf(), file, now);
                Found::File(entry, opened)
            }
            Err(_) => Found::NotNow,
        },
        Ok(_) => Found::Nothing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => compressed_only(site, path),
        Err(error) if is_absent(&error) => Found::Nothing,
        Err(_) => Found::NotNow,
    }
}

/// A file that exists only in compressed forms: one of them, the one that most clients know first.
fn compressed_only(site: &FolderState, path: &Path) -> Found {
    for coding in [Coding::Gzip, Coding::Brotli, Coding::Zstd] {
        let opened = site.source.load().open_beneath(&sidecar(path, coding));
        let opened = opened.and_then(|file| Ok((file.metadata()?, file)));
        let Ok((metadata, file)) = opened else { continue };
        let Some(now) = Stamp::of(&metadata).ok().filter(|_| metadata.is_file()) else { continue };
        let cache_control = site.plan.cache_control.as_deref();
        let sidecars = vec![Sidecar::new(path, coding, now)];
        if let Some(entry) = Entry::compressed_only(path.to_path_buf(), sidecars, cache_control) {
            return Found::File(Arc::new(entry), Opened::new(Arc::new(file), now));
        }
    }
    Found::Nothing
}

fn list(site: &FolderState, path: &Path) -> Found {
    match names::children(&site.source.load(), path, LISTED_MAX) {
        Ok(Some(known)) => match listing::listing(site.plan.listing, path, &known) {
            Some(listing) => Found::Listing(listing),
            None => Found::Nothing,
        },
        Ok(None) => Found::NotNow,
        Err(error) if is_absent(&error) => Found::Nothing,
        Err(_) => Found::NotNow,
    }
}

fn as_it_is(site: &FolderState, path: PathBuf, file: File, now: Stamp) -> (Arc<Entry>, Opened) {
    let entry = Entry::new(path, now, Vec::new(), site.plan.cache_control.as_deref());
    (Arc::new(entry), Opened::new(Arc::new(file), now))
}

fn is_absent(error: &io::Error) -> bool {
    fault(error) == Fault::Absent
}

/// The path relative to the root; `None` if the tree has no such path.
fn relative(path: &[u8]) -> Option<PathBuf> {
    let inner = path.strip_prefix(b"/")?;
    let inner = inner.strip_suffix(b"/").filter(|inner| !inner.is_empty()).unwrap_or(inner);
    // The tree has only one spelling of each path.
    let is_plain = |part: &[u8]| !part.is_empty() && part != b"." && part != b".." && !part.contains(&0);
    if !inner.is_empty() && !inner.split(|&byte| byte == b'/').all(is_plain) {
        return None;
    }
    Some(PathBuf::from(OsStr::from_bytes(inner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_spelling() {
        let relative = |path: &str| relative(path.as_bytes()).map(|path| path.to_string_lossy().into_owned());
        assert_eq!(relative("/").as_deref(), Some(""));
        assert_eq!(relative("/a/b").as_deref(), Some("a/b"));
        assert_eq!(relative("/a/b/").as_deref(), Some("a/b"));
        assert_eq!(relative("/.well-known/x").as_deref(), Some(".well-known/x"));
        for path in ["", "*", "a", "//", "//a", "/a//b", "/a//", "/../a", "/./a", "/a\0"] {
            assert_eq!(relative(path), None, "{path}");
        }
    }
}
