//! What is kept of one response, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{ExchangeKey, GuestKey, Lane};

use crate::receiver::{PendingDecisions, Receiver};
use crate::spool::Spool;
use crate::spool::disk::{Completion, SpoolFile, Work};
use crate::spool::store::{SpoolMemory, SpoolStore};

/// Memory of one response before its file is used: most responses never need one.
const FRONT_BYTES_MAX: u64 = 256 << 10;

/// Memory of one response that waits for its file; above that the upstream waits.
const BACK_BYTES_MAX: u64 = 256 << 10;

/// Bytes of a file that are given to the engine, or read, at a time.
const RANGE_BYTES_MAX: u64 = 256 << 10;

/// What a piece costs besides its bytes.
const PIECE_BYTES: u64 = 64;

/// The end of an upstream's response.
pub(super) enum SpoolEnd {
    /// Complete, with trailers.
    Whole(Vec<u8>),
    /// It cannot be completed.
    Cut,
}

/// A job of the disk's threads.
pub(super) enum Pending {
    None,
    Write(Completion, Vec<Bytes>),
    Read(Completion, u64),
}

/// What is kept, and where it is.
pub(super) struct Content {
    /// Hears of the client's exchange.
    pub(super) guest: GuestKey,
    pub(super) exchange: ExchangeKey,
    /// The client; nobody after the end.
    pub(super) client: Receiver,
    /// The upstream's connection, until the response has ended: it is called again when there is room.
    pub(super) upstream: Option<GuestKey>,
    /// There was no room for the upstream.
    pub(super) was_refused: bool,
    pub(super) front: VecDeque<Bytes>,
    pub(super) front_bytes: u64,
    pub(super) file: Option<Arc<SpoolFile>>,
    /// What of the file is to be sent.
    pub(super) read_at: u64,
    pub(super) written_at: u64,
    /// Bytes that the file may have.
    pub(super) file_bytes_max: u64,
    /// The disk has failed: the file does not grow any more.
    pub(super) has_failed: bool,
    pub(super) pending: Pending,
    pub(super) back: VecDeque<Bytes>,
    /// Memory of `back`, and of what is being written.
    pub(super) back_bytes: u64,
    pub(super) end: Option<SpoolEnd>,
    pub(super) is_over: bool,
    pub(super) memory: SpoolMemory,
}

impl Content {
    pub(super) fn has_room(&self, store: &SpoolStore) -> bool {
        // The last piece was too large, or the response has memory that others need.
        self.is_over
            || (self.back_bytes < BACK_BYTES_MAX && (self.memory.bytes() == 0 || store.has_memory(4)))
    }

    pub(super) fn add(&mut self, data: Bytes, store: &SpoolStore) {
        let bytes = data.len() as u64 + PIECE_BYTES;
        self.memory.take(bytes);
        let is_first = self.is_file_sent() && matches!(self.pending, Pending::None) && self.back.is_empty();
        let has_front = self.front_bytes == 0
            || (self.front_bytes + bytes <= FRONT_BYTES_MAX && (!store.is_writable() || store.has_memory(3)));
        if is_first && has_front {
            self.front.push_back(data);
            self.front_bytes += bytes;
        } else {
            self.back.push_back(data);
            self.back_bytes += bytes;
        }
    }

    fn is_file_sent(&self) -> bool {
        self.read_at == self.written_at
    }

    /// Takes the result of a job that is done.
    pub(super) fn finish_job(&mut self, store: &SpoolStore) {
        let (Pending::Write(done, _) | Pending::Read(done, _)) = &self.pending else { return };
        let Some(result) = done.take() else { return };
        match (std::mem::replace(&mut self.pending, Pending::None), result) {
            (Pending::Write(_, pieces), Ok(_)) => {
                let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
                let cost = bytes + PIECE_BYTES * pieces.len() as u64;
                self.written_at += bytes;
                self.back_bytes = self.back_bytes.saturating_sub(cost);
                self.memory.release(cost);
            }
            // They are sent from memory, and what follows them waits at the upstream.
            (Pending::Write(_, pieces), Err(error)) => {
                pieces.into_iter().rev().for_each(|piece| self.back.push_front(piece));
                self.has_failed = true;
                store.failed(&error);
            }
            (Pending::Read(_, bytes), Ok(data)) => {
                self.read_at += bytes;
                let cost = data.len() as u64 + PIECE_BYTES;
                self.memory.take(cost);
                self.front_bytes += cost;
                self.front.push_back(data);
            }
            // What follows cannot be sent without it.
            (_, Err(error)) => {
                store.failed(&error);
                self.front.clear();
                self.back.clear();
                self.read_at = self.written_at;
                self.end = Some(SpoolEnd::Cut);
            }
            (Pending::None, Ok(_)) => {}
        }
    }

    /// Gives the client what it has room for. Returns whether that was all, and the response has ended.
    pub(super) fn send(&mut self, spool: &Spool) -> bool {
        let lane = &spool.lane;
        loop {
            let is_busy = !matches!(self.pending, Pending::None);
            if self.front.is_empty() && self.is_file_sent() && self.back.is_empty() && !is_busy {
                return self.send_end(lane);
            }
            if !self.client.has_room(lane) {
                return false;
            }
            if let Some(data) = self.front.pop_front() {
                let cost = data.len() as u64 + PIECE_BYTES;
                self.front_bytes = self.front_bytes.saturating_sub(cost);
                self.memory.release(cost);
                self.client.push(lane, data);
            } else if !self.is_file_sent() {
                if !self.send_file(spool) {
                    return false;
                }
            } else if is_busy {
                return false;
            } else if let Some(data) = self.back.pop_front() {
                let cost = data.len() as u64 + PIECE_BYTES;
                self.back_bytes = self.back_bytes.saturating_sub(cost);
                self.memory.release(cost);
                self.client.push(lane, data);
            }
        }
    }

    /// Gives the client a part of the file. Returns whether to go on.
    fn send_file(&mut self, spool: &Spool) -> bool {
        let Some(file) = &self.file else { return false };
        let bytes = (self.written_at - self.read_at).min(RANGE_BYTES_MAX);
        if spool.lane.takes_files(self.exchange) {
            let Some(range) = file.range(self.read_at, bytes) else { return false };
            self.read_at += bytes;
            return spool.lane.push_file(self.exchange, range);
        }
        if matches!(self.pending, Pending::None) {
            let work = Work::Read(file.clone(), self.read_at, bytes as usize);
            // If the threads have too much to do, the guest is called when they have less.
            if let Some(done) = spool.begin(work, self.guest) {
                self.pending = Pending::Read(done, bytes);
            }
        }
        false
    }

    fn send_end(&mut self, lane: &Lane) -> bool {
        match self.end.take() {
            None => return false,
            Some(SpoolEnd::Whole(trailers)) => self.client.end(lane, &trailers, &mut PendingDecisions::new()),
            Some(SpoolEnd::Cut) => self.client.cut(lane, &mut PendingDecisions::new()),
        }
        lane.detach(self.exchange);
        true
    }

    /// Has the file take what waits for it.
    pub(super) fn write(&mut self, spool: &Spool) {
        let is_busy = !matches!(self.pending, Pending::None);
        if self.back.is_empty() || is_busy || self.has_failed || !spool.store.is_writable() {
            return;
        }
        // The engine has all of the file, and may not have sent all of it: the rest goes to another one.
        if self.is_file_sent() && self.written_at > 0 {
            self.file = None;
            (self.read_at, self.written_at) = (0, 0);
        }
        let bytes: u64 = self.back.iter().map(|piece| piece.len() as u64).sum();
        let end = self.written_at + bytes;
        let file = self.file.get_or_insert_with(|| SpoolFile::new(&spool.store));
        if end > self.file_bytes_max || !file.reserve(end) {
            return;
        }
        let pieces: Vec<Bytes> = self.back.drain(..).collect();
        let work = Work::Write(file.clone(), pieces.clone(), self.written_at);
        match spool.begin(work, self.guest) {
            Some(done) => self.pending = Pending::Write(done, pieces),
            None => self.back.extend(pieces),
        }
    }

    pub(super) fn call_upstream(&mut self, spool: &Spool) {
        if self.was_refused && self.has_room(&spool.store) {
            self.was_refused = false;
            if let Some(upstream) = self.upstream {
                spool.lane.call_again(upstream);
            }
        }
    }
}
