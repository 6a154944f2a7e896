//! The entry of one exchange.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use flatout_lane::slab::Key;
use flatout_wire::Status;
use flatout_wire::h1::Trailers;
use flatout_wire::h2::StreamId;
use tokio::task::AbortHandle;

use super::guest::GuestKey;
use super::intake::{Intake, Whole};
use super::pipes::PooledPipe;
use crate::service::{BodyFault, Filter, Response};

/// Bytes of one exchange that may wait to be sent before its producer has to wait.
pub(crate) const OUTBOX_BYTES_MAX: u64 = 256 << 10;

/// One request that is being answered.
pub(crate) struct Exchange {
    /// Where it came from.
    pub(crate) connection: Key,
    /// Its body, until it is complete or no longer needed.
    pub(crate) intake: Option<Intake>,
    /// What was said to it first and is not framed yet: mostly the one thing, for which a queue would be memory to get.
    next: Option<Said>,
    /// What was said behind it.
    others: VecDeque<Said>,
    /// What both cost in memory.
    outbox_bytes: u64,
    /// Bytes that were framed and that the socket has not taken.
    pub(crate) unsent_bytes: u64,
    /// A piece was rejected because there was no room, and no room was reported since.
    pub(crate) was_refused: bool,
    /// Room was made for more of its body: the worker is to read on.
    pub(crate) reads_on: bool,
    /// The worker has it on its list of those to attend to.
    pub(crate) is_listed: bool,
    /// The service was called.
    pub(crate) is_called: bool,
    /// The task that makes the response or its body; ends with the exchange.
    pub(crate) task: Option<AbortHandle>,
    /// Wakes a producer that waits for room.
    pub(crate) room: Option<Waker>,
    /// What its body passes through.
    pub(crate) filter: Option<Box<dyn Filter>>,
    /// Which stream of its connection it is, where that is one of HTTP/2.
    stream: Option<StreamId>,
    /// Bytes that may wait to be sent.
    outbox_bytes_max: u64,
    /// The guest to notify of room, and of the end of the exchange.
    pub(crate) guest: Option<GuestKey>,
}

/// What was said to an exchange.
pub(crate) enum Said {
    Answer(Box<Response>),
    Inform(Status, Vec<u8>),
    Data(Bytes),
    /// A piece of the body that does not pass through the program.
    Pipe(PooledPipe),
    /// The end of the body, with trailers as whole field lines.
    End(Vec<u8>),
    /// The body cannot be finished.
    Cut,
    /// Whoever took the stream over has let go of it: what was pushed is still sent.
    Left,
    /// The connection is to end where its peer acknowledges nothing for so long.
    GiveUpAfter(Duration),
}

impl Said {
    /// What it costs in memory while it waits: pieces may be as small as a byte.
    fn bytes(&self) -> u64 {
        let carried = match self {
            Said::Data(bytes) => bytes.len(),
            Said::Pipe(pipe) => pipe.bytes(),
            Said::Inform(_, fields) => fields.len(),
            Said::End(trailers) => trailers.len(),
            Said::Answer(_) | Said::Cut | Said::Left | Said::GiveUpAfter(_) => 0,
        };
        (size_of::<Said>() + carried) as u64
    }
}

impl Exchange {
    /// Of a request that the service was called for.
    pub(crate) fn called(connection: Key) -> Exchange {
        Exchange::new(connection, None, true)
    }

    /// Of a request whose body is collected first.
    pub(crate) fn collecting(connection: Key, intake: Intake) -> Exchange {
        Exchange::new(connection, Some(intake), false)
    }

    fn new(connection: Key, intake: Option<Intake>, is_called: bool) -> Exchange {
        Exchange {
            connection,
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
            stream: None,
            outbox_bytes_max: OUTBOX_BYTES_MAX,
            guest: None,
        }
    }

    /// The same of a stream of HTTP/2.
    pub(crate) fn of_stream(mut self, stream: StreamId) -> Exchange {
        self.set_stream(stream);
        self
    }

    /// It is a stream's of HTTP/2: there may be many, so less of each may wait.
    pub(crate) fn set_stream(&mut self, stream: StreamId) {
        self.stream = Some(stream);
        self.outbox_bytes_max = crate::h2::OUTBOX_BYTES_MAX;
    }

    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.stream
    }

    /// Adds to what waits to be framed.
    pub(crate) fn say(&mut self, said: Said) {
        self.outbox_bytes += said.bytes();
        match self.next {
            None => self.next = Some(said),
            Some(_) => self.others.push_back(said),
        }
    }

    /// Takes what was said first.
    pub(crate) fn hear(&mut self) -> Option<Said> {
        let said = self.next.take()?;
        self.next = self.others.pop_front();
        self.outbox_bytes -= said.bytes();
        Some(said)
    }

    /// Ends its body. Returns the request if that was waiting for the whole body. A body that is pulled stays until it has been.
    pub(crate) fn end_body(&mut self, trailers: Trailers) -> Option<(Whole, Trailers)> {
        if let Some(pulled) = self.intake.as_mut().and_then(Intake::pulled) {
            pulled.end(Ok(trailers));
            return None;
        }
        self.intake.take()?.finish(trailers)
    }

    /// Reports to the reader of its body that the body is malformed or too large.
    pub(crate) fn spoil_body(&mut self, fault: BodyFault) {
        match self.intake.as_mut().and_then(Intake::pulled) {
            Some(pulled) => pulled.end(Err(fault)),
            None => {
                if let Some(intake) = self.intake.take() {
                    intake.spoil(fault);
                }
            }
        }
    }

    /// Whether the producer of the body may continue.
    pub(crate) fn has_room(&self) -> bool {
        self.outbox_bytes + self.unsent_bytes < self.outbox_bytes_max
    }

    /// How many bytes more of the body may wait.
    pub(crate) fn room_bytes(&self) -> usize {
        let taken = self.outbox_bytes + self.unsent_bytes;
        usize::try_from(self.outbox_bytes_max.saturating_sub(taken)).unwrap_or(usize::MAX)
    }

    /// Whether anything was said to it that the worker has not attended to.
    pub(crate) fn has_news(&self) -> bool {
        self.next.is_some() || self.reads_on
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        // A producer that waits for room finds the exchange gone.
        if let Some(room) = self.room.take() {
            room.wake();
        }
    }
}
