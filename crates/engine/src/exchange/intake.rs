//! Where a request's body goes while it arrives.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use flatout_lane::limit;
use flatout_lane::socket::Moved;
use flatout_wire::Head;
use flatout_wire::h1::{Refusal, Trailers};
use http_body::Frame;

use super::lane::Pull;
use super::pipes::PooledPipe;
use crate::service::{BodyFault, BodySender, STREAM_BYTES_MAX, Ticket};

/// A body that is not complete.
pub(crate) struct Intake {
    bytes_max: u64,
    received_bytes: u64,
    sink: Sink,
}

/// Where the bytes go.
enum Sink {
    /// Into a request that is passed on when it is complete.
    Collected(CollectedRequest),
    /// To a reader, as they arrive.
    Stream(BodySender),
    /// To a consumer that pulls them by the exchange's key.
    Pull(PulledBody),
}

/// A body that waits to be pulled.
#[derive(Default)]
pub(crate) struct PulledBody {
    pieces: VecDeque<Pull>,
    /// Their memory.
    bytes: usize,
    /// The client is held back.
    is_paused: bool,
    /// The consumer was notified, and has not found the intake empty since.
    is_told: bool,
    has_ended: bool,
    /// Bytes above which the client is held back.
    bytes_max: usize,
    /// The client waits for 100, and nobody has pulled so far.
    is_unwanted: bool,
}

/// A request that waits for its body: its head, its body so far, and the service's ticket.
pub(crate) struct CollectedRequest {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
    pub(crate) number: u64,
    pub(crate) ticket: Option<Ticket>,
    memory: Memory,
    /// The known length of the body, for the memory limit.
    length: Option<u64>,
}

/// The result of offering bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acceptance {
    /// They were accepted.
    Accepted,
    /// They were accepted, and the reader is behind.
    Paused,
}

/// Why a body is not read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IntakeFault {
    TooLarge,
}

impl IntakeFault {
    pub(crate) fn refusal(self) -> Refusal {
        match self {
            IntakeFault::TooLarge => Refusal::BODY_TOO_LARGE,
        }
    }
}

/// Memory for the request bodies that a server collects; released when dropped.
pub(crate) struct Memory {
    all: Arc<AtomicU64>,
    bytes_max: u64,
    taken_bytes: u64,
}

impl Memory {
    /// No memory yet, for a server that uses at most `bytes_max` bytes in all.
    pub(crate) fn none(all: Arc<AtomicU64>, bytes_max: u64) -> Memory {
        Memory { all, bytes_max, taken_bytes: 0 }
    }

    /// Takes more, if the server has it.
    pub(super) fn grow(&mut self, bytes: u64) -> bool {
        let taken = self.all.fetch_add(bytes, Ordering::Relaxed);
        if taken.saturating_add(bytes) > self.bytes_max {
            self.all.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.taken_bytes += bytes;
        true
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.all.fetch_sub(self.taken_bytes, Ordering::Relaxed);
    }
}

/// The first allocation for a body.
const BODY_BYTES_FIRST: u64 = 4 << 10;

impl Intake {
    /// For a body that is collected after this head.
    pub(crate) fn collect(
        head: &Head<'_>,
        (number, ticket): (u64, Option<Ticket>),
        bytes_max: u64,
        memory: Memory,
    ) -> Intake {
        let whole = CollectedRequest {
            head: head.bytes().to_vec(),
            body: Vec::new(),
            number,
            ticket,
            memory,
            length: head.framing.length(),
        };
        Intake { bytes_max, received_bytes: 0, sink: Sink::Collected(whole) }
    }

    /// For a body that is passed on as it arrives.
    pub(crate) fn stream(sender: BodySender, bytes_max: u64) -> Intake {
        Intake { bytes_max, received_bytes: 0, sink: Sink::Stream(sender) }
    }

    /// For a body that is pulled.
    pub(crate) fn pull(bytes_max: u64) -> Intake {
        Intake::pull_with(bytes_max, STREAM_BYTES_MAX)
    }

    /// The same, with at most `unread_bytes_max` bytes waiting.
    pub(crate) fn pull_with(bytes_max: u64, unread_bytes_max: usize) -> Intake {
        let pulled = PulledBody { bytes_max: limit::bytes(unread_bytes_max), ..PulledBody::default() };
        Intake { bytes_max, received_bytes: 0, sink: Sink::Pull(pulled) }
    }

    /// Receives nothing until the body is first read or pulled: the client waits for 100.
    pub(crate) fn wait(&mut self) {
        match &mut self.sink {
            Sink::Stream(sender) => sender.wait(),
            Sink::Pull(pulled) => pulled.is_unwanted = true,
            Sink::Collected(_) => {}
        }
    }

    /// Whether nobody has read or pulled the body for which the client [waits](Intake::wait).
    pub(crate) fn is_unwanted(&self) -> bool {
        match &self.sink {
            Sink::Stream(sender) => sender.is_unwanted(),
            Sink::Pull(pulled) => pulled.is_unwanted,
            Sink::Collected(_) => false,
        }
    }

    /// Whether somebody holds the body to read it, also after the response.
    pub(crate) fn is_held(&self) -> bool {
        matches!(&self.sink, Sink::Stream(sender) if !sender.reader_gone())
    }

    /// Whether it only holds data that was not pulled yet.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(&self.sink, Sink::Pull(pulled) if pulled.has_ended)
    }

    /// The body, if it is pulled.
    pub(crate) fn pulled(&mut self) -> Option<&mut PulledBody> {
        match &mut self.sink {
            Sink::Pull(pulled) => Some(pulled),
            Sink::Collected(_) | Sink::Stream(_) => None,
        }
    }

    /// Whether a reader holds the peer back.
    pub(crate) fn is_paused(&self) -> bool {
        match &self.sink {
            Sink::Stream(sender) => sender.is_full(),
            Sink::Pull(pulled) => pulled.is_paused || pulled.is_unwanted,
            Sink::Collected(_) => false,
        }
    }

    /// How many bytes of the body may go through a pipe, if there is nothing else to pull.
    pub(crate) fn pipe_bytes_max(&self) -> Option<u64> {
        match &self.sink {
            Sink::Pull(pulled) if pulled.pieces.is_empty() => Some(self.bytes_max - self.received_bytes),
            _ => None,
        }
    }

    /// Accepts a piece of the body that is in a pipe.
    pub(crate) fn feed_pipe(&mut self, pipe: PooledPipe) {
        self.received_bytes += pipe.bytes() as u64;
        if let Sink::Pull(pulled) = &mut self.sink {
            pulled.push(pipe.bytes(), Pull::Pipe(pipe));
            // The rest goes through the next pipe.
            pulled.is_paused = true;
        }
    }

    /// Whether the service has not been called yet, because it waits for this body.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(self.sink, Sink::Collected(_))
    }

    /// Makes room for this many more bytes. `false` means that the server's memory for bodies is used up: they have
    /// to wait.
    pub(crate) fn make_room(&mut self, bytes: usize) -> bool {
        let Sink::Collected(whole) = &mut self.sink else { return true };
        let wanted = (whole.body.len() + bytes) as u64;
        let has = whole.memory.taken_bytes;
        if wanted <= has {
            return true;
        }
        // Doubled, so that a body is not copied for each of its pieces, but never beyond its possible length.
        let most = whole.length.unwrap_or(self.bytes_max).min(self.bytes_max).max(wanted);
        let target = (has * 2).max(BODY_BYTES_FIRST).max(wanted).min(most);
        if !whole.memory.grow(target - has) {
            return false;
        }
        whole.body.reserve_exact((target - whole.body.len() as u64) as usize);
        true
    }

    /// Accepts a piece of the body.
    pub(crate) fn feed(&mut self, data: &[u8]) -> Result<Acceptance, IntakeFault> {
        self.received_bytes += data.len() as u64;
        if self.received_bytes > self.bytes_max {
            return Err(IntakeFault::TooLarge);
        }
        match &mut self.sink {
            Sink::Collected(whole) => whole.body.extend_from_slice(data),
            Sink::Stream(sender) => {
                if !sender.reader_gone() {
                    sender.send(Frame::data(Bytes::copy_from_slice(data)));
                }
            }
            Sink::Pull(pulled) => pulled.push(data.len(), Pull::Data(Bytes::copy_from_slice(data))),
        }
        Ok(if self.is_paused() { Acceptance::Paused } else { Acceptance::Accepted })
    }

    /// The body cannot be read on: reports that to its reader.
    pub(crate) fn fail(&self, fault: BodyFault) {
        if let Sink::Stream(sender) = &self.sink {
            sender.end(Err(fault));
        }
    }

    /// Ends the body; returns the request, if it waited for it, and the trailers, if they were not taken.
    pub(crate) fn finish(self, trailers: Trailers) -> Option<(CollectedRequest, Trailers)> {
        match self.sink {
            Sink::Collected(whole) => Some((whole, trailers)),
            Sink::Stream(sender) => {
                if !trailers.is_empty() {
                    sender.send(Frame::trailers(header_map(&trailers)));
                }
                sender.end(Ok(()));
                None
            }
            Sink::Pull(_) => None,
        }
    }
}

impl PulledBody {
    fn push(&mut self, bytes: usize, piece: Pull) {
        self.bytes += PIECE_BYTES + bytes;
        self.is_paused |= self.bytes >= self.bytes_max;
        self.pieces.push_back(piece);
    }

    /// Ends the body, successfully or not.
    pub(crate) fn end(&mut self, end: Result<Trailers, BodyFault>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.pieces.push_back(match end {
                Ok(trailers) => Pull::End(trailers),
                Err(fault) => Pull::Fault(fault),
            });
        }
    }

    /// Whether the consumer has to be notified of new data; once until it has found nothing.
    pub(crate) fn has_news(&mut self) -> bool {
        !self.pieces.is_empty() && !std::mem::replace(&mut self.is_told, true)
    }

    /// The same for a consumer that was not notified before, whoever else was.
    pub(crate) fn is_news_to_another(&mut self) -> bool {
        self.is_told = false;
        self.has_news()
    }

    /// Copies pending data into `buffer`, as a receive from a socket does. Also returns whether the client
    /// may continue to send. After a short copy, the consumer is notified of the next data.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> (Moved, bool) {
        let mut filled = 0;
        while let Some(Pull::Data(bytes)) = self.pieces.front_mut()
            && let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty())
        {
            let count = bytes.len().min(room.len());
            room.get_mut(..count).unwrap_or_default().copy_from_slice(&bytes.split_to(count));
            filled += count;
            self.bytes -= count;
            if bytes.is_empty() {
                self.bytes -= PIECE_BYTES;
                self.pieces.pop_front();
            }
        }
        self.is_told &= filled == buffer.len();
        let moved = match self.pieces.front() {
            _ if filled > 0 => Moved::Bytes(filled),
            None => Moved::WouldBlock,
            Some(Pull::End(_)) => Moved::Bytes(0),
            Some(_) => Moved::Broken,
        };
        let goes_on = self.is_paused && self.bytes < self.bytes_max / 2;
        self.is_paused &= !goes_on;
        (moved, goes_on)
    }

    /// Whether something waits to be pulled, or the client waits for that.
    pub(crate) fn awaits_pull(&self) -> bool {
        self.is_unwanted || !self.pieces.is_empty()
    }

    /// Whether nothing but the end waits.
    pub(crate) fn is_at_end(&self) -> bool {
        matches!(self.pieces.front(), Some(Pull::End(_) | Pull::Fault(_)))
    }

    /// The next piece, and whether the client may continue to send.
    pub(crate) fn next(&mut self) -> (Pull, bool) {
        let is_first = std::mem::take(&mut self.is_unwanted);
        let Some(piece) = self.pieces.pop_front() else {
            self.is_told = false;
            return (Pull::Later, is_first);
        };
        self.bytes -= match &piece {
            Pull::Data(bytes) => PIECE_BYTES + bytes.len(),
            Pull::Pipe(pipe) => PIECE_BYTES + pipe.bytes(),
            _ => 0,
        };
        let goes_on = self.is_paused && self.bytes < self.bytes_max / 2;
        self.is_paused &= !goes_on;
        (piece, goes_on)
    }
}

/// Memory of a piece besides its data.
const PIECE_BYTES: usize = size_of::<Pull>();

/// The decoder checked names and values; one that `http` rejects nevertheless is left out.
fn header_map(fields: &[(Vec<u8>, Vec<u8>)]) -> http::HeaderMap {
    let pairs = fields.iter().filter_map(|(name, value)| {
        let name = http::HeaderName::from_bytes(name).ok()?;
        Some((name, http::HeaderValue::from_bytes(value).ok()?))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use flatout_wire::Framing;
    use flatout_wire::head::parse_kept;

    use super::*;

    #[test]
    fn bodies_share_one_limit_and_release_their_memory() {
        let all = Arc::new(AtomicU64::new(0));
        let mut fields = Vec::new();
        let mut body = |framing| {
            let head = parse_kept(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", &mut fields, Some(framing)).unwrap();
            Intake::collect(&head, (1, None), 1 << 20, Memory::none(all.clone(), 10_000))
        };
        let mut first = body(Framing::Length(8_000));
        assert!(first.make_room(5_000) && first.feed(&[0; 5_000]).is_ok());
        let mut second = body(Framing::Chunked);
        assert!(second.make_room(2_000) && second.feed(&[0; 2_000]).is_ok());
        assert!(!first.make_room(3_000), "no more than 10 000 bytes in all");
        assert_eq!(all.load(Ordering::Relaxed), 5_000 + BODY_BYTES_FIRST);
        drop(second);
        assert!(first.make_room(3_000) && first.feed(&[0; 3_000]).is_ok());
        assert_eq!(all.load(Ordering::Relaxed), 8_000);
        drop(first);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }
}
