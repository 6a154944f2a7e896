//! Reads a version into memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flatout_wire::accept::Coding;

use super::entry::{Content, Entry};
use super::source::{Fault, Source, fault};
use super::write_detection::{Stamp, stamp};

/// How often to retry when a file changes while it is read.
const READS_MAX: usize = 3;

/// The result of loading.
pub(crate) enum Loaded {
    /// All forms, of which at least one is in memory.
    Contents(Vec<(Coding, Content)>),
    /// The file is not this version any more, or is changing now.
    Changed,
    /// Everything is too large, or there is no room.
    Nothing,
}

/// The bytes that this version may use in memory; `None` if everything is too large.
pub(crate) fn loadable_bytes(entry: &Entry, small_bytes_max: u64) -> Option<u64> {
    let plain = entry.has_plain.then_some(entry.stamp.bytes);
    let sizes = plain.into_iter().chain(entry.sidecars.iter().map(|sidecar| sidecar.file.stamp.bytes));
    let small = sizes.filter(|bytes| *bytes <= small_bytes_max);
    small.reduce(u64::saturating_add)
}

/// Reads variants that are small enough, at most `room` bytes, each between two equal stamps, so that it is one
/// version.
///
/// # Errors
/// The file exists but cannot be read now.
pub(crate) fn load(source: &Source, entry: &Entry, room: u64) -> io::Result<Loaded> {
    let small_bytes_max = source.plan.small_bytes_max;
    let mut left = room;
    let mut fits = |bytes: u64| {
        let fits = bytes <= small_bytes_max && bytes <= left;
        left -= if fits { bytes } else { 0 };
        fits
    };
    let mut contents = entry.on_disk();
    for (coding, content) in &mut contents {
        let (path, stamp) = match entry.sidecar(*coding) {
            Some(file) => (&file.path, file.stamp),
            None => (&entry.path, entry.stamp),
        };
        if !fits(stamp.bytes) {
            continue;
        }
        match read(source, path, stamp)? {
            Some(bytes) => *content = Content::Memory(bytes),
            None if *coding == Coding::Identity => return Ok(Loaded::Changed),
            // It has changed, and the next scan will see that.
            None => {}
        }
    }
    let is_loaded = contents.iter().any(|(_, content)| matches!(content, Content::Memory(_)));
    Ok(if is_loaded { Loaded::Contents(contents) } else { Loaded::Nothing })
}

/// The bytes of this version; `None` if it is gone or was replaced during the read.
fn read(source: &Source, path: &Path, version: Stamp) -> io::Result<Option<Bytes>> {
    for _ in 0..READS_MAX {
        let file = match source.open_beneath(path) {
            Ok(file) => file,
            Err(error) if fault(&error) == Fault::Absent => return Ok(None),
            Err(error) => return Err(error),
        };
        if stamp(&file)? != version {
            return Ok(None);
        }
        let bytes = read_whole(&file, version.bytes)?;
        if stamp(&file)? == version && bytes.len() as u64 == version.bytes {
            return Ok(Some(bytes.into()));
        }
    }
    Ok(None)
}

fn read_whole(file: &File, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length as usize);
    // Read one byte more than expected, to notice growth.
    let mut limited = file.take(length + 1);
    limited.read_to_end(&mut bytes)?;
    bytes.shrink_to_fit();
    Ok(bytes)
}

/// The name of a file's compressed variant.
pub(crate) fn sidecar(path: &Path, coding: Coding) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(coding.extension());
    name.into()
}

/// The file that `path` may be a compressed variant of.
pub(crate) fn plain_of(path: &Path) -> Option<PathBuf> {
    let extension = path.extension()?.to_str()?;
    matches!(extension, "gz" | "br" | "zst").then(|| path.with_extension(""))
}
