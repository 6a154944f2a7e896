//! The entry of one exchange.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use flatout_lane::clock::Ticks;
use flatout_lane::limit;
use flatout_lane::slab::Key;
use flatout_wire::Status;
use flatout_wire::h1::Trailers;
use flatout_wire::h2::StreamId;
use tokio::task::AbortHandle;

use super::guest::GuestKey;
use super::intake::{CollectedRequest, Intake};
use super::pipes::PooledPipe;
use crate::service::{BodyFault, FileRange, Filter, Response, Takeover};
use crate::serving::OUT_BYTES_PER_SEND;

/// Bytes of one exchange that may wait to be sent; above that its producer has to wait.
const OUTBOX_BYTES_MAX: u64 = 256 << 10;

/// Before a request is read, so much of earlier responses may be unsent. A response that begins has room for what came with its head.
const _: () = assert!(OUT_BYTES_PER_SEND < OUTBOX_BYTES_MAX);

/// The same for a stream of HTTP/2, of which a connection has many.
const STREAM_OUTBOX_BYTES_MAX: usize = 32 << 10;

/// A request that waits for its response.
pub(crate) struct Exchange {
    /// Its connection.
    pub(crate) connection: Key,
    /// When the head of its request arrived; set by the lane.
    pub(crate) began: Ticks,
    /// Its body, until it is complete or no longer needed.
    pub(crate) intake: Option<Intake>,
    /// The first item that is not framed yet: usually the only one, so that no queue has to be allocated.
    next: Option<Outgoing>,
    /// Further items.
    others: VecDeque<Outgoing>,
    /// Memory of both.
    outbox_bytes: u64,
    /// Framed bytes that the socket has not accepted.
    pub(crate) unsent_bytes: u64,
    /// A piece was rejected because there was no room, and no room was reported since.
    pub(crate) was_refused: bool,
    /// There is room for more of its body: the worker should read on.
    pub(crate) reads_on: bool,
    /// It is on the worker's list of exchanges to handle.
    pub(crate) is_listed: bool,
    /// The service was called.
    pub(crate) is_called: bool,
    /// The task that makes the response or its body; ends with the exchange.
    pub(crate) task: Option<AbortHandle>,
    /// Wakes a producer that waits for room.
    pub(crate) room: Option<Waker>,
    /// A filter for its body.
    pub(crate) filter: Option<Box<dyn Filter>>,
    /// Trailer fields of its response that precede those of its pushed body, as complete lines.
    pub(crate) trailers: Option<Vec<u8>>,
    /// Its HTTP/2 stream, if any.
    stream: Option<StreamId>,
    /// Bytes that may wait to be sent.
    outbox_bytes_max: u64,
    /// The guest to notify of room, and of the end of the exchange.
    pub(crate) guest: Option<GuestKey>,
}

/// An item given to an exchange.
pub(crate) enum Outgoing {
    Answer(Box<Response>),
    Inform(Status, Vec<u8>),
    Data(Bytes),
    /// A piece of the body in a pipe.
    Pipe(PooledPipe),
    /// A piece of the body in a file.
    File(FileRange),
    /// The end of the body, with trailers as complete field lines.
    End(Vec<u8>),
    /// The body cannot be finished.
    Cut,
    /// The owner has left the stream; data already pushed is still sent.
    Abandon,
    /// The connection leaves the lane without a response; the code that takes it over gets these bytes first.
    Leave(Takeover, Vec<u8>),
    /// Set the time after which the connection ends if its peer acknowledges nothing (`TCP_USER_TIMEOUT`).
    GiveUpAfter(Duration),
}

impl Outgoing {
    /// Its memory while it waits: pieces may be as small as a byte.
    fn bytes(&self) -> u64 {
        let carried = match self {
            Outgoing::Data(bytes) => bytes.len(),
            Outgoing::Pipe(pipe) => pipe.bytes(),
            Outgoing::File(range) => range.bytes as usize,
            Outgoing::Inform(_, fields) => fields.len(),
            Outgoing::End(trailers) => trailers.len(),
            Outgoing::Leave(_, head) => head.len(),
            Outgoing::Answer(_) | Outgoing::Cut | Outgoing::Abandon | Outgoing::GiveUpAfter(_) => 0,
        };
        (size_of::<Outgoing>() + carried) as u64
    }
}

impl Exchange {
    /// For a request that was passed to the service.
    pub(crate) fn called(connection: Key) -> Exchange {
        Exchange::new(connection, None, true)
    }

    /// For a request whose body is collected first.
    pub(crate) fn collecting(connection: Key, intake: Intake) -> Exchange {
        Exchange::new(connection, Some(intake), false)
    }

    fn new(connection: Key, intake: Option<Intake>, is_called: bool) -> Exchange {
        Exchange {
            connection,
            began: 0,
            intake,
            next: None,
            others: VecDeque::new(),
            outbox_bytes: 0,
            unsent_bytes: 0,
            was_refused: false,
            reads_on: false,
            is_listed: false,
            is_called,
            task: None,
            room: None,
            filter: None,
            trailers: None,
            stream: None,
            outbox_bytes_max: OUTBOX_BYTES_MAX,
            guest: None,
        }
    }

    /// The same for an HTTP/2 stream.
    pub(crate) fn of_stream(mut self, stream: StreamId) -> Exchange {
        self.set_stream(stream);
        self
    }

    /// Marks it as an HTTP/2 stream: there may be many, so less of each may wait.
    pub(crate) fn set_stream(&mut self, stream: StreamId) {
        self.stream = Some(stream);
        self.outbox_bytes_max = limit::bytes(STREAM_OUTBOX_BYTES_MAX) as u64;
    }

    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.stream
    }

    /// Adds an item to be framed.
    pub(crate) fn enqueue(&mut self, item: Outgoing) {
        self.outbox_bytes += item.bytes();
        match self.next {
            None => self.next = Some(item),
            Some(_) => self.others.push_back(item),
        }
    }

    /// Takes the first item.
    pub(crate) fn dequeue(&mut self) -> Option<Outgoing> {
        let item = self.next.take()?;
        self.next = self.others.pop_front();
        self.outbox_bytes -= item.bytes();
        Some(item)
    }

    /// Ends its body. Returns the request if it was waiting for the whole body. A body that is pulled stays until it
    /// was pulled.
    pub(crate) fn end_body(&mut self, trailers: Trailers) -> Option<(CollectedRequest, Trailers)> {
        if let Some(pulled) = self.intake.as_mut().and_then(Intake::pulled) {
            pulled.end(Ok(trailers));
            return None;
        }
        self.intake.take()?.finish(trailers)
    }

    /// Reports to the reader of its body that the body is malformed or too large.
    pub(crate) fn fail_body(&mut self, fault: BodyFault) {
        match self.intake.as_mut().and_then(Intake::pulled) {
            Some(pulled) => pulled.end(Err(fault)),
            None => {
                if let Some(intake) = self.intake.take() {
                    intake.fail(fault);
                }
            }
        }
    }

    /// Its response was sent, and its body is still being read: returns the task and the guest, which have nothing left to do.
    pub(crate) fn end_response(&mut self) -> (Option<AbortHandle>, Option<GuestKey>) {
        if let Some(room) = self.room.take() {
            room.wake();
        }
        (self.task.take(), self.guest.take())
    }

    /// Whether the producer of the body may continue.
    pub(crate) fn has_room(&self) -> bool {
        self.outbox_bytes + self.unsent_bytes < self.outbox_bytes_max
    }

    /// Memory of what was given to it and is not framed.
    pub(crate) fn outbox_bytes(&self) -> u64 {
        self.outbox_bytes
    }

    /// How many bytes more of the body may wait.
    pub(crate) fn room_bytes(&self) -> usize {
        let taken = self.outbox_bytes + self.unsent_bytes;
        usize::try_from(self.outbox_bytes_max.saturating_sub(taken)).unwrap_or(usize::MAX)
    }

    /// Whether it has an item that the worker has not handled.
    pub(crate) fn has_news(&self) -> bool {
        self.next.is_some() || self.reads_on
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        // A producer that waits for room will find that the exchange is gone.
        if let Some(room) = self.room.take() {
            room.wake();
        }
    }
}
