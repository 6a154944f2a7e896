//! Request bodies that are taken whole before a server is chosen (`buffer-requests on`): into memory, and beyond a limit into a file
//! without a name. So a client that uploads slowly does not occupy a server, and the request can be sent again.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{ExchangeKey, GuestEvent, GuestKey, Guests, Pull};
use flatout_lane::clock;
use flatout_wire::h1::Length;

use crate::failure::{Failure, error_text};
use crate::request::job::{Job, Pulled};
use crate::spool::disk::{Completion, DiskJob, SpoolFile, Work};
use crate::spool::store::SpoolMemory;
use crate::spool::stored::StoredBody;
use crate::worker::ProxyWorker;

/// Memory of one body before its file is used, and of what waits for the file: while it is written, nothing more is taken.
const HELD_BYTES_MAX: usize = 256 << 10;

/// What a piece costs besides its bytes.
const PIECE_BYTES: usize = 64;

/// A body that is being taken.
struct Collector {
    worker: Rc<ProxyWorker>,
    exchange: ExchangeKey,
    content: RefCell<CollectedBody>,
}

struct CollectedBody {
    guest: GuestKey,
    /// The request; nobody's once it has gone on or ended.
    job: Option<Box<Job>>,
    /// What is in memory only.
    held: Vec<Bytes>,
    held_bytes: usize,
    file: Option<Arc<SpoolFile>>,
    /// Bytes that are in the file.
    file_bytes: u64,
    /// Bytes that are being written.
    writing: Option<(Completion, u64)>,
    has_ended: bool,
    memory: SpoolMemory,
}

/// What to do next.
enum Next {
    Wait,
    Send(Box<Job>),
    Refuse(Box<Job>, Failure, Option<String>),
    /// Its client is gone.
    Drop,
}

impl ProxyWorker {
    /// Takes the body of a request, and forwards it then.
    pub(crate) fn collect(&self, job: Box<Job>, exchange: ExchangeKey) {
        let Some(worker) = self.owner() else { return };
        let guest = self.lane.register_observer(worker.clone(), u64::MAX);
        let time_left = job.ends_ns.map(|ends_ns| ends_ns.saturating_sub(clock::nanoseconds()));
        let content = CollectedBody {
            guest,
            job: Some(job),
            held: Vec::new(),
            held_bytes: 0,
            file: None,
            file_bytes: 0,
            writing: None,
            has_ended: false,
            memory: SpoolMemory::of_request(&self.spool),
        };
        let collector = Rc::new(Collector { worker, exchange, content: RefCell::new(content) });
        self.lane.give(guest, collector.clone(), 0);
        self.lane.attach(exchange, guest);
        self.lane.set_deadline(guest, time_left.map(Duration::from_nanos));
        collector.advance();
    }
}

impl Guests for Collector {
    fn ready(&self, _: GuestKey, _: u64, event: GuestEvent) {
        match event {
            GuestEvent::Body(key) if key == self.exchange => self.advance(),
            GuestEvent::Again => self.advance(),
            GuestEvent::Gone(key) if key == self.exchange => self.follow(Next::Drop),
            GuestEvent::Deadline => {
                let job = self.content.borrow_mut().job.take();
                if let Some(job) = job {
                    self.follow(Next::Refuse(job, Failure::RequestTime, None));
                }
            }
            _ => {}
        }
    }
}

impl Collector {
    fn advance(&self) {
        let next = self.content.borrow_mut().advance(self);
        self.follow(next);
    }

    fn follow(&self, next: Next) {
        if matches!(next, Next::Wait) {
            return;
        }
        let (guest, left) = {
            let content = &mut *self.content.borrow_mut();
            (content.guest, content.clear())
        };
        // What it holds belongs to a service.
        drop(left);
        // The exchange gets the connection to the server in its place.
        self.worker.lane.detach(self.exchange);
        self.worker.lane.remove(guest);
        match next {
            Next::Send(job) => self.worker.begin_job(job),
            Next::Refuse(job, failure, detail) => self.worker.with_state(|state| {
                self.worker.log(failure, job.upstream, None, Some(&job), detail.as_deref());
                self.worker.refuse(state, job, failure);
            }),
            Next::Drop | Next::Wait => {}
        }
    }
}

impl CollectedBody {
    /// Does what can be done now.
    fn advance(&mut self, collector: &Collector) -> Next {
        if self.job.is_none() {
            return Next::Wait;
        }
        let worker = &*collector.worker;
        loop {
            if let Some((done, bytes)) = &self.writing {
                match done.take() {
                    None => return Next::Wait,
                    Some(Ok(_)) => self.file_bytes += *bytes,
                    Some(Err(error)) => {
                        worker.spool.failed(&error);
                        let detail = Some(error_text(&error));
                        return self.refuse(Failure::BodyStorage, detail);
                    }
                }
                self.writing = None;
                self.memory.release(self.memory.bytes());
            }
            if !self.has_ended {
                match self.take(collector) {
                    Next::Wait => {}
                    next => return next,
                }
            }
            if self.has_ended && (self.held.is_empty() || self.file.is_none()) {
                return self.send(worker);
            }
            let is_full = self.held_bytes >= HELD_BYTES_MAX || !worker.spool.has_memory(4);
            if self.held.is_empty() || !(is_full || self.has_ended) {
                return Next::Wait;
            }
            if let Err(why) = self.write(worker) {
                return self.refuse(Failure::BodyStorage, Some(why.to_owned()));
            }
        }
    }

    /// Takes what is there of the body, as far as it may be held.
    fn take(&mut self, collector: &Collector) -> Next {
        let worker = &*collector.worker;
        while self.held_bytes < HELD_BYTES_MAX && (self.held.is_empty() || worker.spool.has_memory(4)) {
            let data = match worker.lane.pull(collector.exchange) {
                Pull::Data(data) => Some(data),
                Pull::Pipe(mut pipe) => pipe.take_bytes(),
                Pull::End(_) => {
                    self.has_ended = true;
                    break;
                }
                Pull::Fault(fault) => return self.refuse(fault.into(), None),
                Pull::Later => break,
                Pull::Gone => return Next::Drop,
            };
            let Some(data) = data else { return self.refuse(Failure::BadBody, None) };
            let cost = data.len() + PIECE_BYTES;
            self.held_bytes += cost;
            self.memory.take(cost as u64);
            self.held.push(data);
        }
        Next::Wait
    }

    /// Has the file take what is held.
    fn write(&mut self, worker: &ProxyWorker) -> Result<(), &'static str> {
        if !worker.spool.is_writable() {
            return Err("its folder could not be written to");
        }
        let bytes: u64 = self.held.iter().map(|piece| piece.len() as u64).sum();
        let file = self.file.get_or_insert_with(|| SpoolFile::new(&worker.spool));
        if !file.reserve(self.file_bytes + bytes) {
            return Err("buffer-size is used up");
        }
        let done = Completion::new(&worker.mailbox, self.guest);
        let work = Work::Write(file.clone(), std::mem::take(&mut self.held), self.file_bytes);
        self.held_bytes = 0;
        let job = DiskJob { work, done: Some(done.clone()) };
        if !worker.spool.disk().is_some_and(|disk| disk.begin(job)) {
            return Err("the threads that write have too much to do");
        }
        self.writing = Some((done, bytes));
        Ok(())
    }

    /// The body is complete.
    fn send(&mut self, worker: &ProxyWorker) -> Next {
        let Some(mut job) = self.job.take() else { return Next::Wait };
        // They need chunks, and the request now has a Content-Length.
        job.trailers = Vec::new();
        let bytes = match self.file.take() {
            Some(file) => {
                let stored = StoredBody::new(file, self.file_bytes, &worker.spool, &worker.mailbox);
                job.stored = Some(Box::new(stored));
                job.pulled = Pulled::Waiting;
                self.file_bytes
            }
            None => {
                job.body = joined(&mut self.held);
                job.pulled = Pulled::Not;
                let none = SpoolMemory::of_request(&worker.spool);
                job.collected = Some(std::mem::replace(&mut self.memory, none));
                job.body.len() as u64
            }
        };
        job.length = Some(Length::Known(bytes));
        Next::Send(job)
    }

    fn refuse(&mut self, failure: Failure, detail: Option<String>) -> Next {
        self.job.take().map_or(Next::Wait, |job| Next::Refuse(job, failure, detail))
    }

    /// Drops what it has; returns the request, if it is still here.
    fn clear(&mut self) -> Option<Box<Job>> {
        self.held = Vec::new();
        self.file = None;
        self.memory.release(self.memory.bytes());
        self.job.take()
    }
}

fn joined(pieces: &mut Vec<Bytes>) -> Bytes {
    match pieces.len() {
        1 => pieces.pop().unwrap_or_default(),
        _ => pieces.concat().into(),
    }
}
