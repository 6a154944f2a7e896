//! The writer thread: it first reads the existing segments, and is the only thread that changes segments.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use flatout_lane::clock;

use super::index::{Offer, RecordLocation, Slots};
use super::invalid::WriteId;
use super::record::{self, Kind, Text};
use super::{KeyHash, Shared, VariantSlot};
use crate::entry::Entry;
use crate::key::{Key, KeyBuf};
use crate::purge::{Purge, PurgeScope};
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

/// The thread's part.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) orders: Receiver<Write>,
    pub(super) now_s: u32,
    pub(super) hash: KeyHash,
    pub(super) slot: VariantSlot,
    /// The number of the next record, when all segments were read.
    pub(super) next: Option<u64>,
    /// In nanoseconds since boot.
    pub(super) paused_until_ns: u64,
}

impl Writer {
    /// Reads all segments, then executes jobs until [`Write::Stop`].
    pub(super) fn run(mut self) {
        self.read();
        while let Ok(order) = self.orders.recv() {
            let is_last = matches!(order, Write::Stop);
            self.execute(order);
            if is_last {
                return;
            }
        }
    }

    fn read(&mut self) -> u64 {
        let next = self.shared.read_all(self.now_s, &self.hash, &self.slot);
        self.next = Some(next);
        self.shared.index().set_reading(false);
        self.shared.is_ready.store(true, Ordering::Release);
        next
    }

    fn execute(&mut self, order: Write) {
        let mut next = self.next.unwrap_or_else(|| self.read());
        self.shared.write(order, &mut next, &mut self.paused_until_ns);
        let late = std::mem::take(&mut *self.shared.late());
        late.into_iter().for_each(|order| self.shared.write(order, &mut next, &mut self.paused_until_ns));
        self.next = Some(next);
    }

    /// One of these steps. Returns whether there was anything to do.
    #[cfg(feature = "simulation")]
    pub(super) fn step(&mut self) -> bool {
        if self.next.is_none() {
            self.read();
            return true;
        }
        let order = self.orders.try_recv();
        order.map(|order| self.execute(order)).is_ok()
    }
}

impl Shared {
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

    fn write(&self, order: Write, next: &mut u64, paused_until_ns: &mut u64) {
        let number = *next;
        *next += 1;
        let is_paused = clock::nanoseconds() < *paused_until_ns;
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
            // Some purge that was confirmed, or is about to be, comes too late: the next owner of the folder must not serve what it
            // applies to. Of a URL only the hash is known here, so nothing of the folder is left.
            Write::Stop if self.index().has_unwritten_purges() => {
                let all = Purge { scope: PurgeScope::All, is_soft: false };
                let order = self.index().purge_now(&all);
                return self.write(Write::Purge(all, order, sync_channel(1).0), next, paused_until_ns);
            }
            Write::Stop => return,
        };
        match written {
            Ok(()) => *paused_until_ns = 0,
            Err(error) => {
                *paused_until_ns = clock::nanoseconds() + PAUSE.as_nanos() as u64;
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
