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

mod content;
pub(crate) mod disk;
pub(crate) mod pace;
pub(crate) mod store;
pub(crate) mod stored;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{ExchangeKey, GuestEvent, GuestKey, Guests, Lane, Mailbox};

use crate::receiver::Receiver;
use crate::spool::content::{Content, Pending, SpoolEnd};
use crate::spool::disk::{Completion, DiskJob, Work};
use crate::spool::store::{SpoolMemory, SpoolStore};

/// The rest of one response.
pub(crate) struct Spool {
    lane: Lane,
    mailbox: Mailbox,
    store: Arc<SpoolStore>,
    content: RefCell<Content>,
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

impl Spool {
    /// Starts a job of the disk's threads. `None` if they have too much to do.
    fn begin(&self, work: Work, guest: GuestKey) -> Option<Completion> {
        let done = Completion::new(&self.mailbox, guest);
        let job = DiskJob { work, done: Some(done.clone()) };
        self.store.disk()?.begin(job).then_some(done)
    }
}
