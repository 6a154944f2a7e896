//! Determines whether a file on disk is one complete version, with stamps, writers, and files that only grow.

use std::fs::{File, Metadata};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flatout_engine::Witness;
use flatout_lane::file::{Writer, writer};
use rustix::io::{ReadWriteFlags, preadv2};

use super::entry::Entry;

/// A file whose writers the kernel does not report is considered complete after this time without a write.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// How long the previous version is served, or a large file is refused, while the file is being rewritten. After that
/// it is treated as a truncated log that is never closed, and served as it is.
const HALF_TIME_MAX: Duration = Duration::from_secs(600);

/// Samples of a file that grows while it is sent, spread over the announced bytes.
const SAMPLES: u64 = 4;

/// Bytes of one sample.
const SAMPLE_BYTES: u64 = 256;

/// Distinguishes one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> io::Result<Stamp> {
        Ok(Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: metadata.modified()?,
        })
    }

    /// Whether both are versions of the same inode, not two files with the same name.
    pub(crate) fn is_same_file(&self, other: &Stamp) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether it was written a moment ago.
    pub(crate) fn is_recent(&self, settle_time: Duration) -> bool {
        SystemTime::now().duration_since(self.modified).is_ok_and(|age| age < settle_time)
    }

    /// The modification time since 1970, if it is later than that.
    pub(crate) fn since_1970(&self) -> Option<Duration> {
        self.modified.duration_since(UNIX_EPOCH).ok()
    }
}

/// The stamp of an open file.
pub(crate) fn stamp(file: &File) -> io::Result<Stamp> {
    Stamp::of(&file.metadata()?)
}

/// Whether `file`, whose stamp is `now`, may be an incomplete version that is replacing `former`. `is_written` is
/// called if the kernel does not report writers.
pub(crate) fn is_half(
    former: &Entry,
    file: &File,
    now: Stamp,
    is_written: impl FnOnce() -> Option<bool>,
) -> bool {
    if !former.stamp.is_same_file(&now) {
        // A file that was renamed into place is complete, unless it is known to be open for writing.
        return has_writer(file, is_written) && is_worth_waiting(former);
    }
    if now.bytes < former.stamp.bytes {
        former.tear();
    }
    !has_only_grown(former, file, now) && !is_closed(file, now, is_written) && is_worth_waiting(former)
}

fn is_worth_waiting(former: &Entry) -> bool {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    now_s.saturating_sub(former.half_since_s(now_s)) < HALF_TIME_MAX.as_secs()
}

/// Whether this file is not being written: according to the kernel, otherwise inotify, otherwise its age.
pub(crate) fn is_closed(file: &File, now: Stamp, is_written: impl FnOnce() -> Option<bool>) -> bool {
    match writer(file) {
        // It was closed before the stamp was taken, if the stamp is still the same.
        Writer::None => stamp(file).is_ok_and(|after| after == now),
        Writer::Some => false,
        Writer::Unknown => !is_written().unwrap_or_else(|| now.is_recent(SETTLE_TIME)),
    }
}

/// Whether this file is known to be open for writing.
fn has_writer(file: &File, is_written: impl FnOnce() -> Option<bool>) -> bool {
    match writer(file) {
        Writer::None => false,
        Writer::Some => true,
        Writer::Unknown => is_written() == Some(true),
    }
}

/// Whether the previous version is a prefix of the current file, as with logs. For a version that is not in memory,
/// the only contrary evidence is that it was seen shorter.
fn has_only_grown(former: &Entry, file: &File, now: Stamp) -> bool {
    if now.bytes <= former.stamp.bytes || former.is_torn() {
        return false;
    }
    let contents = former.contents();
    let Some(plain) = contents.plain() else { return true };
    let mut beginning = vec![0; plain.len()];
    file.read_exact_at(&mut beginning, 0).is_ok() && beginning == *plain
}

/// Samples of an announced version, to distinguish a file that has only grown from one that was rewritten.
///
/// A writer that goes from start to end has passed all samples when the file is longer than announced. It is missed
/// only if it left every sample unchanged.
#[derive(Debug)]
pub(crate) struct Samples {
    bytes: u64,
    samples: Vec<(u64, Vec<u8>)>,
}

impl Samples {
    /// Takes the samples, if that is possible without waiting for the disk.
    pub(crate) fn take(file: &File, stamp: Stamp) -> Option<Samples> {
        let length = SAMPLE_BYTES.min(stamp.bytes);
        let last = stamp.bytes - length;
        let take = |index| {
            let offset = last * index / (SAMPLES - 1);
            let mut sample = vec![0; length as usize];
            let read = preadv2(file, &mut [IoSliceMut::new(&mut sample)], offset, ReadWriteFlags::NOWAIT);
            (read.ok()? == sample.len()).then_some((offset, sample))
        };
        Some(Samples { bytes: stamp.bytes, samples: (0..SAMPLES).map(take).collect::<Option<_>>()? })
    }
}

impl Witness for Samples {
    fn is_unchanged(&self, file: &File, now: &Metadata) -> bool {
        now.len() > self.bytes
            && self.samples.iter().all(|(offset, sample)| {
                let mut found = vec![0; sample.len()];
                file.read_exact_at(&mut found, *offset).is_ok() && found == *sample
            })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::Ordering;

    use bytes::Bytes;
    use flatout_wire::accept::Coding;

    use super::super::entry::Content;
    use super::super::tests::Folder;
    use super::*;

    fn entry(folder: &Folder, in_memory: bool) -> Entry {
        let path = folder.0.join("file");
        let entry = Entry::new("file".into(), stamp(&File::open(&path).unwrap()).unwrap(), Vec::new(), None);
        if in_memory {
            let bytes = Bytes::from(std::fs::read(&path).unwrap());
            entry.set_contents(vec![(Coding::Identity, Content::Memory(bytes))], None);
        }
        entry
    }

    fn half(entry: &Entry, folder: &Folder, is_written: Option<bool>) -> bool {
        let file = File::open(folder.0.join("file")).unwrap();
        is_half(entry, &file, stamp(&file).unwrap(), || is_written)
    }

    fn age(file: &File) {
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }

    #[test]
    fn a_writer_may_pause_for_any_time() {
        let folder = Folder::new();
        folder.write("file", "the former version");
        let former = entry(&folder, true);
        let mut writer = File::create(folder.0.join("file")).unwrap();
        writer.write_all(b"half").unwrap();
        age(&writer);
        if flatout_lane::file::writer(&File::open(folder.0.join("file")).unwrap()) == Writer::Unknown {
            return;
        }
        assert!(half(&former, &folder, None), "it is still open, an hour after its last write");
        writer.write_all(b" and more than the former version had").unwrap();
        age(&writer);
        assert!(half(&former, &folder, None), "longer than before, and still not whole");
        let began_s = former.half_since_s(0);
        former.half_since_s.store(began_s - HALF_TIME_MAX.as_secs(), Ordering::Relaxed);
        assert!(!half(&former, &folder, None), "a log that was truncated, and is never closed");
        former.half_since_s.store(began_s, Ordering::Relaxed);
        drop(writer);
        assert!(!half(&former, &folder, Some(true)));
    }

    #[test]
    fn another_file_in_its_place_is_whole_unless_it_is_being_written() {
        let folder = Folder::new();
        folder.write("file", "the former version");
        // Keeps the inode from being reused by the next file.
        let kept = File::open(folder.0.join("file")).unwrap();
        let former = entry(&folder, true);
        std::fs::remove_file(folder.0.join("file")).unwrap();
        let mut writer = File::create(folder.0.join("file")).unwrap();
        writer.write_all(b"half").unwrap();
        assert!(half(&former, &folder, Some(true)));
        drop(writer);
        assert!(!half(&former, &folder, None), "renamed or written, it is closed");
        drop(kept);
    }

    #[test]
    fn a_file_that_only_grew_is_complete() {
        for in_memory in [true, false] {
            let folder = Folder::new();
            folder.write("file", "line\n");
            let former = entry(&folder, in_memory);
            let mut log = File::options().append(true).open(folder.0.join("file")).unwrap();
            log.write_all(b"line\n").unwrap();
            assert!(!half(&former, &folder, Some(true)));
        }
        let folder = Folder::new();
        folder.write("file", "line\n");
        let former = entry(&folder, true);
        let log = File::options().write(true).open(folder.0.join("file")).unwrap();
        log.write_all_at(b"other line\n", 0).unwrap();
        assert!(half(&former, &folder, Some(true)), "longer, but with another beginning");
    }

    #[test]
    fn a_file_seen_shorter_is_torn() {
        let folder = Folder::new();
        folder.write("file", "a large file");
        let former = entry(&folder, false);
        let mut writer = File::create(folder.0.join("file")).unwrap();
        assert!(half(&former, &folder, Some(true)));
        writer.write_all(b"a file that is larger").unwrap();
        assert!(half(&former, &folder, Some(true)));
        drop(writer);
        assert!(!half(&former, &folder, None) || writer_is_unknown(&folder));
    }

    fn writer_is_unknown(folder: &Folder) -> bool {
        writer(&File::open(folder.0.join("file")).unwrap()) == Writer::Unknown
    }

    #[test]
    fn samples_distinguish_growth_from_rewriting() {
        for bytes in [1, 100, 100_000] {
            let folder = Folder::new();
            folder.write("file", vec![b'x'; bytes]);
            let file = File::options().read(true).write(true).open(folder.0.join("file")).unwrap();
            let samples = Samples::take(&file, stamp(&file).unwrap()).unwrap();
            let holds = |file: &File| samples.is_unchanged(file, &file.metadata().unwrap());
            assert!(!holds(&file), "it was written to and has not grown: it was rewritten");
            file.write_all_at(b"more", bytes as u64).unwrap();
            assert!(holds(&file));
            file.write_all_at(b"y", bytes as u64 - 1).unwrap();
            assert!(!holds(&file));
        }
    }
}
