//! The names in one folder.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Dir, FileType};

use super::entry::Entry;
use super::source::Source;
use super::tree::{Known, Thing};
use super::write_detection::Stamp;

/// A name in a folder.
pub(crate) struct Name {
    pub(crate) name: PathBuf,
    /// `Unknown` if the file system does not report it.
    pub(crate) kind: FileType,
}

/// The names in a folder.
pub(crate) fn names(folder: &File) -> io::Result<Vec<Name>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let name = std::ffi::OsString::from_vec(name.to_vec()).into();
            names.push(Name { name, kind: entry.file_type() });
        }
    }
    Ok(names)
}

/// The seconds from 1970 to the last change of a folder.
pub(crate) fn modified(folder: &Metadata) -> u64 {
    folder.mtime().try_into().unwrap_or(0)
}

/// The files and folders directly in a folder, for a listing; `None` if there are more than `count_max`.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn children(source: &Source, path: &Path, count_max: usize) -> io::Result<Option<Known>> {
    let folder = source.open_beneath(path)?;
    let mut known = Known::new();
    let names = names(&folder)?;
    if names.len() > count_max {
        return Ok(None);
    }
    for Name { name, .. } in names {
        let path = path.join(name);
        if !source.is_visible(&path) {
            continue;
        }
        let Ok(metadata) = source.open_beneath(&path).and_then(|file| file.metadata()) else { continue };
        if metadata.is_dir() {
            known.insert(path, Thing::Folder(modified(&metadata)));
        } else if metadata.is_file() {
            let entry = Entry::new(path.clone(), Stamp::of(&metadata)?, Vec::new(), None);
            known.insert(path, Thing::File(Arc::new(entry)));
        }
    }
    Ok(Some(known))
}
