//! The files of the tier, written by one thread and read by all.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{IoSliceMut, ReadWriteFlags};

use super::folder;
use super::index::RecordLocation;
use super::record::{HEAD_BYTES, Head, Text};

/// The number of segments of full size. Each has an open descriptor.
const SEGMENTS: u64 = 64;

/// Maximum number of files, with those that were started after errors and restarts.
const FILES_MAX: u64 = 256;

/// The minimum and maximum size of a segment: positions in it have 32 bits.
const SEGMENT_BYTES_MIN: u64 = 256 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

pub(super) struct Segments {
    dir: PathBuf,
    /// The folder itself, to have names in it on the disk.
    folder: File,
    bytes_max: AtomicU64,
    state: Mutex<SegmentList>,
    /// Locked for as long as this process uses the folder. Others cannot open it, so they cannot lock it either.
    lock: File,
}

#[derive(Default)]
struct SegmentList {
    /// The oldest first; the last one is being written.
    files: Vec<Segment>,
    bytes: u64,
    next: u32,
    /// The last file whose name is on the disk.
    named: u32,
    /// This process created the last one, and all writes to it were complete.
    is_open: bool,
}

/// A record read from disk. The body is separate, because its entry takes it without a copy.
pub(super) struct Record {
    /// The head, followed by the text.
    pub(super) text: Vec<u8>,
    pub(super) body: Vec<u8>,
}

impl Record {
    /// With buffers for the record at a place.
    fn of(place: RecordLocation) -> Record {
        let text_bytes = place.bytes.saturating_sub(place.body_bytes) as usize;
        Record { text: vec![0; text_bytes], body: vec![0; place.body_bytes as usize] }
    }
}

#[derive(Clone)]
struct Segment {
    number: u32,
    file: Arc<File>,
    bytes: u64,
}

impl Segments {
    /// # Errors
    /// The folder cannot be used, or another process uses it.
    pub(super) fn open(dir: &Path, bytes_max: u64) -> io::Result<Segments> {
        folder::prepare(dir)?;
        let lock = folder::open_or_create(&dir.join(folder::LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| io::Error::new(ErrorKind::WouldBlock, "another process uses this folder"))?;
        let mut numbers = Vec::new();
        for found in std::fs::read_dir(dir)? {
            numbers.extend(folder::number_of(&found?.file_name()));
        }
        numbers.sort_unstable();
        let mut state = SegmentList {
            next: numbers.last().map_or(1, |last| last.saturating_add(1)),
            ..SegmentList::default()
        };
        for number in numbers {
            let file = folder::open(&folder::path_of(dir, number))?;
            let bytes = file.metadata()?.len();
            state.bytes += bytes;
            state.files.push(Segment { number, file: Arc::new(file), bytes });
        }
        let folder = File::open(dir)?;
        let (dir, state) = (dir.to_owned(), Mutex::new(state));
        Ok(Segments { dir, folder, bytes_max: AtomicU64::new(bytes_max), state, lock })
    }

    /// Changes the size.
    pub(super) fn resize(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Another process may use the folder from now on. Nothing is written any more.
    pub(super) fn unlock(&self) {
        // If that fails, it is free when this process ends.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    fn segment_bytes_max(&self) -> u64 {
        (self.bytes_max() / SEGMENTS).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
    }

    fn state(&self) -> MutexGuard<'_, SegmentList> {
        // Each change under the lock leaves consistent data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    fn file(&self, segment: u32) -> io::Result<Arc<File>> {
        let state = self.state();
        let found = state.files.iter().find(|file| file.number == segment);
        found.map(|found| found.file.clone()).ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Appends a record. Returns its place; `removed` is called with segments removed to make room. After an error a
    /// new segment is started: a partial record has no valid checksum.
    pub(super) fn append(
        &self,
        bytes: &[u8],
        body_bytes: u32,
        number: u64,
        removed: impl FnMut(u32),
    ) -> io::Result<RecordLocation> {
        let length = u32::try_from(bytes.len()).map_err(|_| io::Error::from(ErrorKind::FileTooLarge))?;
        let fits = |last: &Segment| last.bytes + u64::from(length) <= self.segment_bytes_max();
        let has_room = {
            let state = self.state();
            state.is_open && state.files.last().is_some_and(fits)
        };
        if !has_room {
            self.begin_segment(u64::from(length), removed)?;
        }
        let last = self.state().files.last().cloned().ok_or(ErrorKind::NotFound)?;
        let written = write_record(&last, bytes);
        let mut state = self.state();
        if written.is_err() {
            state.is_open = false;
        } else if let Some(last) = state.files.last_mut() {
            last.bytes += u64::from(length);
            state.bytes += u64::from(length);
        }
        drop(state);
        written?;
        let at = u32::try_from(last.bytes).map_err(|_| io::Error::from(ErrorKind::FileTooLarge))?;
        Ok(RecordLocation { segment: last.number, at, bytes: length, body_bytes, number })
    }

    /// Starts a segment. Removes the oldest ones until there is room for a full one. Only one thread writes.
    fn begin_segment(&self, least: u64, mut removed: impl FnMut(u32)) -> io::Result<()> {
        let room = least.max(self.segment_bytes_max());
        let is_full = || {
            let state = self.state();
            state.bytes + room > self.bytes_max() || state.files.len() as u64 >= FILES_MAX
        };
        while is_full() {
            match self.remove_first()? {
                Some(segment) => removed(segment),
                None => break,
            }
        }
        let number = self.state().next;
        let file = folder::create(&folder::path_of(&self.dir, number))?;
        let mut state = self.state();
        state.next = number.saturating_add(1);
        state.is_open = true;
        state.files.push(Segment { number, file: Arc::new(file), bytes: 0 });
        Ok(())
    }

    /// Removes the oldest segments, up to the first that is in use. Later ones have to stay, because they replace or
    /// purge entries in older ones. Only the writing thread calls this.
    pub(super) fn remove_oldest(
        &self,
        is_used: impl Fn(u32) -> bool,
        mut removed: impl FnMut(u32),
    ) -> io::Result<()> {
        loop {
            let oldest = match &self.state().files[..] {
                // The last one is being written.
                [] | [_] => return Ok(()),
                [oldest, ..] => oldest.number,
            };
            if is_used(oldest) {
                return Ok(());
            }
            self.remove_first()?.into_iter().for_each(&mut removed);
        }
    }

    /// Removes the oldest segment, if any. Returns its number. If that fails, it still counts.
    fn remove_first(&self) -> io::Result<Option<u32>> {
        let Some(oldest) = self.state().files.first().cloned() else { return Ok(None) };
        match std::fs::remove_file(folder::path_of(&self.dir, oldest.number)) {
            // A file that no longer exists is fine, too.
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut state = self.state();
        state.files.retain(|file| file.number != oldest.number);
        state.bytes = state.bytes.saturating_sub(oldest.bytes);
        state.is_open &= !state.files.is_empty();
        Ok(Some(oldest.number))
    }

    /// Removes all segments as far as possible, the oldest first: if this is interrupted, no replaced entry can come
    /// back. Returns the removed ones.
    pub(super) fn clear(&self) -> Vec<u32> {
        let files = {
            let mut state = self.state();
            state.bytes = 0;
            state.is_open = false;
            std::mem::take(&mut state.files)
        };
        for file in &files {
            // In a read-only folder, the file may still be writable.
            let _ = std::fs::remove_file(folder::path_of(&self.dir, file.number))
                .or_else(|_| file.file.set_len(0));
        }
        // Otherwise a loss of power could bring them back.
        let _ = self.sync_names();
        files.into_iter().map(|file| file.number).collect()
    }

    /// Flushes everything that was written to the disk, and the name of the last file: without it, a loss of power could lose the file.
    pub(super) fn sync(&self) -> io::Result<()> {
        let last = self.state().files.last().cloned();
        let Some(last) = last else { return Ok(()) };
        #[cfg(feature = "simulation")]
        if flatout_lane::clock::simulated::is_set() {
            flatout_lane::jobs::check_disk()?;
            flatout_lane::jobs::note_synced(last.number, last.bytes);
            return Ok(());
        }
        last.file.sync_data()?;
        if self.state().named < last.number {
            self.sync_names()?;
            self.state().named = last.number;
        }
        Ok(())
    }

    /// Flushes the names of files. Some file systems keep those by themselves, and refuse this.
    fn sync_names(&self) -> io::Result<()> {
        match rustix::fs::fsync(&self.folder) {
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::BADF) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a record, if it is in the page cache.
    pub(super) fn read_now(&self, place: RecordLocation) -> io::Result<Option<Record>> {
        #[cfg(feature = "simulation")]
        if flatout_lane::clock::simulated::is_set() {
            // What is in the page cache is the seed's decision.
            return if flatout_lane::jobs::is_cold() { Ok(None) } else { self.read(place).map(Some) };
        }
        let file = self.file(place.segment)?;
        let mut record = Record::of(place);
        let into = &mut [IoSliceMut::new(&mut record.text), IoSliceMut::new(&mut record.body)];
        match rustix::io::preadv2(&*file, into, place.at.into(), ReadWriteFlags::NOWAIT) {
            Ok(count) if count == place.bytes as usize => Ok(Some(record)),
            // A partial read is repeated by a thread that may block.
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a record, and may block.
    pub(super) fn read(&self, place: RecordLocation) -> io::Result<Record> {
        let file = self.file(place.segment)?;
        let mut record = Record::of(place);
        let at = u64::from(place.at);
        file.read_exact_at(&mut record.text, at)?;
        file.read_exact_at(&mut record.body, at + record.text.len() as u64)?;
        Ok(record)
    }

    /// Reads heads and texts of all records, the oldest first. A segment ends at the first incomplete record.
    ///
    /// # Errors
    /// A file cannot be read; the others are.
    pub(super) fn read_all(&self, mut take: impl FnMut(RecordLocation, &Head, Text<'_>)) -> io::Result<()> {
        let files = self.state().files.clone();
        let mut failed = Ok(());
        for segment in files {
            if let Err(error) = read_segment(&segment, &mut take) {
                failed = Err(error);
            }
        }
        failed
    }
}

fn write_record(segment: &Segment, bytes: &[u8]) -> io::Result<()> {
    #[cfg(feature = "simulation")]
    if let Err(error) = flatout_lane::jobs::check_disk() {
        if flatout_lane::jobs::disk_fault() == Some(flatout_lane::jobs::DiskFault::Torn) {
            segment.file.write_all_at(&bytes[..bytes.len() / 2], segment.bytes)?;
        }
        return Err(error);
    }
    segment.file.write_all_at(bytes, segment.bytes)
}

fn read_segment(segment: &Segment, take: &mut impl FnMut(RecordLocation, &Head, Text<'_>)) -> io::Result<()> {
    let mut at = 0;
    loop {
        let mut head = [0; HEAD_BYTES];
        if at + HEAD_BYTES as u64 > segment.bytes {
            return Ok(());
        }
        segment.file.read_exact_at(&mut head, at)?;
        let Some(head) = Head::read(&head) else { return Ok(()) };
        if at + head.record_bytes() > segment.bytes {
            return Ok(());
        }
        // A head that was read has a limited text.
        let mut text = vec![0; usize::try_from(head.text_bytes()).unwrap_or(0)];
        segment.file.read_exact_at(&mut text, at + HEAD_BYTES as u64)?;
        if let (Some(text), Ok(place_at), Ok(bytes)) =
            (head.text(&text), u32::try_from(at), u32::try_from(head.record_bytes()))
        {
            let (segment, body_bytes, number) = (segment.number, head.body_bytes, head.number);
            take(RecordLocation { segment, at: place_at, bytes, body_bytes, number }, &head, text);
        }
        at += head.record_bytes();
    }
}
