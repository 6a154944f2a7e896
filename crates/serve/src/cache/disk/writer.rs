//! The writer thread: it first reads the existing segments, and is the only thread that changes segments.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use super::index::Place;
use super::record::{self, Kind, Text};
use super::{Hash, Shared, Slot};
use crate::cache::entry::Entry;
use crate::cache::purge::Purge;
use crate::cache::slices::is_slice;

/// How long writes are suspended after an error.
const PAUSE: Duration = Duration::from_secs(10);

/// A job for the writer.
pub(super) enum Write {
    /// A response, with its slot.
    Entry(Arc<Entry>, u64),
    Purge(Purge, SyncSender<()>),
    /// Invalidate a key: its bytes, the length of its URL, its hash, and whether it is a configured key.
    Forget(Vec<u8>, usize, u64, bool),
    /// Remove the oldest segments if they have no valid records.
    Reclaim,
    Stop,
}

impl Shared {
    /// Reads all segments, then executes jobs until [`Write::Stop`].
    pub(super) fn write_all(&self, orders: &Receiver<Write>, now_s: u32, hash: &Hash, slot: &Slot) {
        let mut next = self.read_all(now_s, hash, slot);
        self.is_ready.store(true, Ordering::Release);
        let mut paused_until = None;
        while let Ok(order) = orders.recv() {
            if matches!(order, Write::Stop) {
                return;
            }
            self.write(order, &mut next, &mut paused_until);
        }
    }

    /// Reads all segments. Returns the number of the next record.
    fn read_all(&self, now_s: u32, hash: &Hash, slot: &Slot) -> u64 {
        let mut last = 0;
        let read = self.segments.read_all(|place, head, text| {
            last = last.max(head.number);
            let key = if head.is_custom { text.rest.to_vec() } else { [text.url, text.rest].concat() };
            let key_hash = hash(&key);
            let mut index = self.index();
            match head.kind {
                Kind::Entry => {
                    let at = if text.selected.is_empty() { key_hash } else { slot(key_hash, text.selected) };
                    // The first variant is stored in the slot of its key too; after a restart, another
                    // variant may be the first.
                    index.insert(at, place, now_s);
                    if at != key_hash && !is_slice(text.vary) {
                        index.insert(key_hash, place, now_s);
                    }
                }
                Kind::Forget => index.forget(key_hash, head.number),
                Kind::Purge => {
                    if let Ok(purge) = Purge::from_text(&String::from_utf8_lossy(text.lines)) {
                        index.purge(purge, head.number);
                    }
                }
            }
        });
        if let Err(error) = read {
            self.failed("read", &error);
        }
        self.index().number_from(last + 1);
        last + 1
    }

    fn write(&self, order: Write, next: &mut u64, paused_until: &mut Option<Instant>) {
        let number = *next;
        *next += 1;
        let is_paused = paused_until.is_some_and(|until| Instant::now() < until);
        let mut bytes = Vec::new();
        let written = match &order {
            Write::Entry(entry, slot) => {
                self.queued_bytes.fetch_sub(entry.weight(), Ordering::Relaxed);
                // If it was marked stale, the record of that purge may already be written. An entry written
                // after it would be fresh again after a restart.
                if is_paused || entry.is_outdated() {
                    return;
                }
                let text = Text::of(entry);
                if !record::write(Kind::Entry, number, entry.is_custom(), text, Some(entry), &mut bytes) {
                    return;
                }
                self.append(&bytes, entry.body().len() as u32, number).map(|place| {
                    // It may have been purged while it was written.
                    if !entry.is_dead() {
                        self.index().insert(*slot, place, entry.used_s());
                        self.tally.written.fetch_add(1, Ordering::Relaxed);
                    }
                })
            }
            Write::Forget(key, url_ends, hash, is_custom) => {
                self.index().forget(*hash, number);
                let (url, rest) = key.split_at_checked(*url_ends).unwrap_or((key, b""));
                record::write(
                    Kind::Forget,
                    number,
                    *is_custom,
                    Text { url, rest, ..Text::default() },
                    None,
                    &mut bytes,
                );
                let written = self.append(&bytes, 0, number).map(drop);
                self.clear_unless(written)
            }
            Write::Purge(purge, done) => {
                self.index().purge(purge.clone(), number);
                let lines = purge.to_text();
                let text = Text { lines: lines.as_bytes(), ..Text::default() };
                record::write(Kind::Purge, number, false, text, None, &mut bytes);
                let written = self.append(&bytes, 0, number).and_then(|_| self.segments.sync());
                let written = self.clear_unless(written);
                let _ = done.send(());
                written
            }
            Write::Reclaim => {
                let removed = self.segments.remove_oldest(|segment| self.index().has_segment(segment));
                // A removed segment does not mean that writes succeed again: the pause stays.
                return removed.unwrap_or_else(|error| self.failed("remove", &error));
            }
            Write::Stop => Ok(()),
        };
        match written {
            Ok(()) => *paused_until = None,
            Err(error) => {
                *paused_until = Some(Instant::now() + PAUSE);
                self.failed("write", &error);
            }
        }
    }

    /// If a purge could not be written, removes all segments: after a restart they would be served as valid.
    fn clear_unless(&self, written: io::Result<()>) -> io::Result<()> {
        if written.is_err() {
            let removed = self.segments.clear();
            removed.into_iter().for_each(|segment| self.index().remove_segment(segment));
        }
        written
    }

    fn append(&self, bytes: &[u8], body_bytes: u32, number: u64) -> io::Result<Place> {
        self.segments.append(bytes, body_bytes, number, |segment| self.index().remove_segment(segment))
    }
}
