//! Responses whose client is slower than their upstream: the upstream is let go as soon as it has sent everything.
//!
//! ```text
//! upstream ── push ──> front: memory ─────────────────────────────────────┐
//!                │ once that is full, or memory is short                  v
//!                └───> back: memory ── a thread ──> file without a name ──> client, as it has room
//! ```
//!
//! A response comes here when its client has fallen behind (`worker/behind.rs`), with what it has not sent yet. What is kept
//! goes to the client in order: `front`, the file, `back`. If the file cannot grow, because of a limit or of the disk, `back`
//! fills and the upstream has to wait, as without a spool: nothing is lost.

pub(crate) mod disk;
pub(crate) mod pace;
pub(crate) mod store;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{ExchangeKey, GuestEvent, GuestKey, Guests, Lane, Mailbox};

use crate::receiver::{PendingDecisions, Receiver};
use crate::spool::disk::{Completion, DiskJob, SpoolFile, Work};
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
enum SpoolEnd {
    /// Complete, with trailers.
    Whole(Vec<u8>),
    /// It cannot be completed.
    Cut,
}

/// A job of the disk's threads.
enum Pending {
    None,
    Write(Completion, Vec<Bytes>),
    Read(Completion, u64),
}

/// The rest of one response.
pub(crate) struct Spool {
    lane: Lane,
    mailbox: Mailbox,
    store: Arc<SpoolStore>,
    content: RefCell<Content>,
}

struct Content {
    /// Hears of the client's exchange.
    guest: GuestKey,
    exchange: ExchangeKey,
    /// The client; nobody after the end.
    client: Receiver,
    /// The upstream's connection, until the response has ended: it is called again when there is room.
    upstream: Option<GuestKey>,
    /// There was no room for the upstream.
    was_refused: bool,
    front: VecDeque<Bytes>,
    front_bytes: u64,
    file: Option<Arc<SpoolFile>>,
    /// What of the file is to be sent.
    read_at: u64,
    written_at: u64,
    /// Bytes that the file may have.
    file_bytes_max: u64,
    /// The disk has failed: the file does not grow any more.
    has_failed: bool,
    pending: Pending,
    back: VecDeque<Bytes>,
    /// Memory of `back`, and of what is being written.
    back_bytes: u64,
    end: Option<SpoolEnd>,
    is_over: bool,
    memory: SpoolMemory,
}

/// The upstream's side of a spool. If it is dropped before the end, the response is cut.
pub(crate) struct SpoolWriter(Rc<Spool>);

/// What is needed to begin one.
pub(crate) struct SpoolSetup<'a> {
    pub(crate) lane: &'a Lane,
    pub(crate) mailbox: &'a Mailbox,
    pub(crate) store: &'a Arc<SpoolStore>,
    /// The upstream's connection.
    pub(crate) upstream: GuestKey,
    /// Bytes that the file may have.
    pub(crate) file_bytes_max: u64,
}

/// The owner of a spool's guest until the spool exists.
struct Nobody;

impl Guests for Nobody {
    fn ready(&self, _: GuestKey, _: u64, _: GuestEvent) {}
}

impl SpoolWriter {
    /// Takes a client over, whose response has begun.
    pub(crate) fn begin(setup: &SpoolSetup<'_>, client: Receiver, exchange: ExchangeKey) -> SpoolWriter {
        let SpoolSetup { lane, mailbox, store, upstream, file_bytes_max } = *setup;
        let guest = lane.register_observer(Rc::new(Nobody), 0);
        let content = Content {
            guest,
            exchange,
            client,
            upstream: Some(upstream),
            was_refused: false,
            front: VecDeque::new(),
            front_bytes: 0,
            file: None,
            read_at: 0,
            written_at: 0,
            file_bytes_max,
            has_failed: false,
            pending: Pending::None,
            back: VecDeque::new(),
            back_bytes: 0,
            end: None,
            is_over: false,
            memory: SpoolMemory::new(store),
        };
        let (lane, mailbox, store) = (lane.clone(), mailbox.clone(), store.clone());
        let spool = Rc::new(Spool { lane, mailbox, store, content: RefCell::new(content) });
        spool.lane.give(guest, spool.clone(), 0);
        spool.lane.attach(exchange, guest);
        // The next room is to be reported to the spool.
        spool.lane.tell_of_room(exchange);
        SpoolWriter(spool)
    }

    /// Whether the client is still there.
    pub(crate) fn is_open(&self) -> bool {
        !self.0.content.borrow().is_over
    }

    /// Whether more can be taken now. If not, the upstream's connection is called again when it can.
    pub(crate) fn has_room(&self) -> bool {
        let content = &mut *self.0.content.borrow_mut();
        let has_room = content.has_room(&self.0.store);
        content.was_refused |= !has_room;
        has_room
    }

    /// Takes a piece. Returns whether the client is still there.
    pub(crate) fn push(&self, data: Bytes) -> bool {
        let has_client = {
            let content = &mut *self.0.content.borrow_mut();
            if !content.is_over {
                content.add(data, &self.0.store);
            }
            !content.is_over
        };
        self.0.advance();
        has_client
    }

    /// The response is complete.
    pub(crate) fn end(&self, trailers: &[u8]) {
        self.0.end(SpoolEnd::Whole(trailers.to_vec()));
    }

    /// It cannot be completed. The client gets what there is.
    pub(crate) fn cut(&self) {
        self.0.end(SpoolEnd::Cut);
    }
}

impl Drop for SpoolWriter {
    fn drop(&mut self) {
        self.0.end(SpoolEnd::Cut);
    }
}

impl Guests for Spool {
    fn ready(&self, _: GuestKey, _: u64, event: GuestEvent) {
        match event {
            GuestEvent::Gone(_) => self.close(),
            GuestEvent::Room(_) | GuestEvent::Again => self.advance(),
            GuestEvent::Socket(_) | GuestEvent::Body(_) | GuestEvent::Deadline | GuestEvent::Draining => {}
        }
    }
}

impl Spool {
    /// Only the first end counts.
    fn end(&self, end: SpoolEnd) {
        {
            let content = &mut *self.content.borrow_mut();
            content.upstream = None;
            if content.is_over || content.end.is_some() {
                return;
            }
            content.end = Some(end);
        }
        self.advance();
    }

    /// Does what can be done now: takes results of the disk, sends, writes, calls the upstream.
    fn advance(&self) {
        let is_sent = {
            let content = &mut *self.content.borrow_mut();
            if content.is_over {
                return;
            }
            content.finish_job(&self.store);
            let is_sent = content.send(self);
            if !is_sent {
                content.write(self);
                content.call_upstream(self);
            }
            is_sent
        };
        if is_sent {
            self.close();
        }
    }

    /// The client has got everything, or is gone.
    fn close(&self) {
        let (guest, upstream, client) = {
            let content = &mut *self.content.borrow_mut();
            if std::mem::replace(&mut content.is_over, true) {
                return;
            }
            content.front.clear();
            content.back.clear();
            (content.front_bytes, content.back_bytes) = (0, 0);
            content.file = None;
            content.memory.release(content.memory.bytes());
            let client = std::mem::replace(&mut content.client, Receiver::nobody());
            (content.guest, content.upstream.take(), client)
        };
        // What it holds belongs to a service.
        drop(client);
        self.lane.remove(guest);
        // It has nobody left to respond to.
        if let Some(upstream) = upstream {
            self.lane.call_again(upstream);
        }
    }
}

impl Content {
    fn has_room(&self, store: &SpoolStore) -> bool {
        // The last piece was too large, or the response has memory that others need.
        self.is_over
            || (self.back_bytes < BACK_BYTES_MAX && (self.memory.bytes() == 0 || store.has_memory(4)))
    }

    fn add(&mut self, data: Bytes, store: &SpoolStore) {
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
    fn finish_job(&mut self, store: &SpoolStore) {
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
    fn send(&mut self, spool: &Spool) -> bool {
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
            if let Some(done) = spool.begin(work, self.guest) {
                self.pending = Pending::Read(done, bytes);
            } else {
                // The threads have too much to do.
                spool.lane.tell_of_room(self.exchange);
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
    fn write(&mut self, spool: &Spool) {
        let is_busy = !matches!(self.pending, Pending::None);
        if self.back.is_empty() || is_busy || self.has_failed || !spool.store.is_writable() {
            return;
        }
        // Everything in the file was sent: it begins anew.
        if self.is_file_sent() && self.written_at > 0 && spool.lane.unsent_bytes(self.exchange) == 0 {
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

    fn call_upstream(&mut self, spool: &Spool) {
        if self.was_refused && self.has_room(&spool.store) {
            self.was_refused = false;
            if let Some(upstream) = self.upstream {
                spool.lane.call_again(upstream);
            }
        }
    }
}

impl Spool {
    /// Starts a job of the disk's threads. `None` if they have too much to do.
    fn begin(&self, work: Work, guest: GuestKey) -> Option<Completion> {
        let done = Completion::new(&self.mailbox, guest);
        let job = DiskJob { work, done: Some(done.clone()) };
        self.store.disk()?.begin(job).then_some(done)
    }
}
