//! The writer thread: it first reads the existing segments, and is the only thread that changes segments.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use super::index::{Offer, RecordLocation, Slots};
use super::invalid::WriteId;
use super::record::{self, Kind, Text};
use super::{KeyHash, Shared, VariantSlot};
use crate::entry::Entry;
use crate::key::{Key, KeyBuf};
use crate::purge::Purge;
use crate::slices::manifest::is_slice;

/// How long writes are suspended after an error.
const PAUSE: Duration = Duration::from_secs(10);

/// A job for the writer.
pub(super) enum Write {
    /// A response, with its slots.
    Entry(Arc<Entry>, Slots, Offer),
    /// A purge, its order, and the channel that reports that it was written.
    Purge(Purge, WriteId, SyncSender<()>),
    Forget(ForgottenKey),
    /// Remove the oldest segments if they have no valid records.
    Reclaim,
    /// The last one.
    Stop,
}

/// An invalidated key.
pub(super) struct ForgottenKey {
    pub(super) key: KeyBuf,
    pub(super) hash: u64,
    pub(super) order: WriteId,
}

impl Shared {
    /// Reads all segments, then executes jobs until [`Write::Stop`].
    pub(super) fn write_all(&self, orders: &Receiver<Write>, now_s: u32, hash: &KeyHash, slot: &VariantSlot) {
        let mut next = self.read_all(now_s, hash, slot);
        self.index().set_reading(false);
        self.is_ready.store(true, Ordering::Release);
        let mut paused_until = None;
        while let Ok(order) = orders.recv() {
            let is_last = matches!(order, Write::Stop);
            self.write(order, &mut next, &mut paused_until);
            let late = std::mem::take(&mut *self.late());
            late.into_iter().for_each(|order| self.write(order, &mut next, &mut paused_until));
            if is_last {
                return;
            }
        }
    }

    /// Reads all segments. Returns the number of the next record.
    fn read_all(&self, now_s: u32, hash: &KeyHash, slot: &VariantSlot) -> u64 {
        let mut last = 0;
        let read = self.segments.read_all(|place, head, text| {
            last = last.max(head.number);
            let key = if head.is_custom { text.rest.to_vec() } else { [text.url, text.rest].concat() };
            let key_hash = hash(&key);
            let mut index = self.index();
            index.note(place, (head.kind == Kind::Entry).then_some(key_hash));
            match head.kind {
                Kind::Entry => {
                    let at = if text.selected.is_empty() { key_hash } else { slot(key_hash, text.selected) };
                    // The first variant is stored in the slot of its key too; after a restart, another
                    // variant may be the first.
                    let first = if is_slice(text.vary) { at } else { key_hash };
                    index.insert_read([first, at], place, now_s);
                }
                Kind::Forget => index.forget_read(key_hash, head.number),
                Kind::Purge => {
                    if let Ok(purge) = Purge::from_text(&String::from_utf8_lossy(text.lines)) {
                        index.purge(&purge, head.number, None);
                    }
                }
            }
        });
        if let Err(error) = read {
            self.failed("read", &error);
            self.index().note_unread();
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
            Write::Entry(entry, slots, offer) => {
                self.queued_bytes.fetch_sub(entry.weight(), Ordering::Relaxed);
                let written = match is_paused {
                    true => Ok(None),
                    false => self.write_entry(entry, number),
                };
                self.list(entry, *slots, *offer, written.as_ref().ok().copied().flatten());
                match written {
                    Ok(None) => return,
                    written => written.map(drop),
                }
            }
            Write::Forget(forgotten) => {
                let ForgottenKey { key, hash, order } = forgotten;
                if !self.index().forget(*hash, number, *order) {
                    return;
                }
                let Key { url, rest, is_custom, .. } = key.key(|_| *hash);
                let text = Text { url, rest, ..Text::default() };
                record::write(Kind::Forget, number, is_custom, text, None, &mut bytes);
                let written = self.append(&bytes, 0, number).map(drop);
                self.clear_unless(written)
            }
            Write::Purge(purge, order, done) => {
                self.index().purge(purge, number, Some(*order));
                let lines = purge.to_text();
                let text = Text { lines: lines.as_bytes(), ..Text::default() };
                record::write(Kind::Purge, number, false, text, None, &mut bytes);
                let written = self.append(&bytes, 0, number).and_then(|_| self.segments.sync());
                let written = self.clear_unless(written);
                let _ = done.send(());
                written
            }
            Write::Reclaim => {
                let is_used = |segment| self.index().has_segment(segment);
                let removed =
                    self.segments.remove_oldest(is_used, |segment| self.index().remove_segment(segment));
                // A removed segment does not mean that writes succeed again: the pause stays.
                return removed.unwrap_or_else(|error| self.failed("remove", &error));
            }
            Write::Stop => return,
        };
        match written {
            Ok(()) => *paused_until = None,
            Err(error) => {
                *paused_until = Some(Instant::now() + PAUSE);
                self.failed("write", &error);
            }
        }
    }

    /// Writes a response. Returns its place, or `None` if it is not written.
    fn write_entry(&self, entry: &Entry, number: u64) -> io::Result<Option<RecordLocation>> {
        // If it was marked stale, the record of that purge may already be written. An entry written after it
        // would be fresh again after a restart.
        if entry.is_outdated() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let text = Text::of(entry);
        match record::write(Kind::Entry, number, entry.is_custom(), text, Some(entry), &mut bytes) {
            true => self.append(&bytes, entry.body().len() as u32, number).map(Some),
            false => Ok(None),
        }
    }

    /// Adds a written response to the index. If it was not written, removes older records of it.
    fn list(&self, entry: &Entry, slots: Slots, offer: Offer, place: Option<RecordLocation>) {
        let mut index = self.index();
        place.into_iter().for_each(|place| index.note(place, Some(slots.key)));
        // It may have been purged or replaced while it was written. A replacement takes this lock after it has
        // marked the old entry as dead.
        match place.filter(|_| !entry.is_dead()) {
            Some(place) => {
                index.insert(slots, offer, place, entry.used_s());
                self.tally.written.fetch_add(1, Ordering::Relaxed);
            }
            None => index.supersede(slots),
        }
        index.unqueue(slots);
    }

    /// If a purge could not be written, removes all segments: after a restart they would be served as valid.
    fn clear_unless(&self, written: io::Result<()>) -> io::Result<()> {
        if written.is_err() {
            let removed = self.segments.clear();
            removed.into_iter().for_each(|segment| self.index().remove_segment(segment));
        }
        written
    }

    fn append(&self, bytes: &[u8], body_bytes: u32, number: u64) -> io::Result<RecordLocation> {
        let removed = |segment| self.index().remove_segment(segment);
        let place = self.segments.append(bytes, body_bytes, number, removed)?;
        self.index().note(place, None);
        Ok(place)
    }
}
