//! Where a request's body goes while it arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use flatout_wire::h1::{Refusal, Trailers};
use http_body::Frame;

use crate::service::{BodyFault, BodySender};

/// A body that is not whole yet.
pub(crate) struct Intake {
    bytes_max: u64,
    received_bytes: u64,
    sink: Sink,
}

/// Where the bytes go.
enum Sink {
    /// Into a request that is handed over when it is whole.
    Whole(Whole),
    /// To a reader, as they come.
    Stream(BodySender),
}

/// A request that waits for its body: its head, and its body so far.
pub(crate) struct Whole {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
    memory: Memory,
    /// What the body is known to be long, as far as memory for it is concerned.
    length: Option<u64>,
}

/// What became of bytes that were offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fed {
    /// They were taken.
    Taken,
    /// They were taken, and the reader is behind.
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

/// Memory for the bodies that a server collects; given back when dropped.
pub(crate) struct Memory {
    all: Arc<AtomicU64>,
    bytes_max: u64,
    taken_bytes: u64,
}

impl Memory {
    /// None yet, of a server that uses at most `bytes_max` bytes in all.
    pub(crate) fn none(all: Arc<AtomicU64>, bytes_max: u64) -> Memory {
        Memory { all, bytes_max, taken_bytes: 0 }
    }

    /// Takes more, if the server has it.
    fn grow(&mut self, bytes: u64) -> bool {
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

/// The first piece of memory that a body takes.
const BODY_BYTES_FIRST: u64 = 4 << 10;

impl Intake {
    /// For a body that is collected behind its head; `length` is what Content-Length said.
    pub(crate) fn whole(head: &[u8], length: Option<u64>, bytes_max: u64, memory: Memory) -> Intake {
        let whole = Whole { head: head.to_vec(), body: Vec::new(), memory, length };
        Intake { bytes_max, received_bytes: 0, sink: Sink::Whole(whole) }
    }

    /// For a body that is handed on as it comes.
    pub(crate) fn stream(sender: BodySender, bytes_max: u64) -> Intake {
        Intake { bytes_max, received_bytes: 0, sink: Sink::Stream(sender) }
    }

    /// Whether a reader holds the peer back.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(&self.sink, Sink::Stream(sender) if sender.is_full())
    }

    /// Whether the service has not been called yet, because it waits for this body.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(self.sink, Sink::Whole(_))
    }

    /// Makes room for so many bytes more. `false` means that the server's memory for bodies is used up: they have to wait.
    pub(crate) fn make_room(&mut self, bytes: usize) -> bool {
        let Sink::Whole(whole) = &mut self.sink else { return true };
        let wanted = (whole.body.len() + bytes) as u64;
        let has = whole.memory.taken_bytes;
        if wanted <= has {
            return true;
        }
        // Doubled, so that a body is not copied for each of its pieces, but not beyond what it can become.
        let most = whole.length.unwrap_or(self.bytes_max).min(self.bytes_max).max(wanted);
        let target = (has * 2).max(BODY_BYTES_FIRST).max(wanted).min(most);
        if !whole.memory.grow(target - has) {
            return false;
        }
        whole.body.reserve_exact((target - whole.body.len() as u64) as usize);
        true
    }

    /// Takes a piece of the body.
    pub(crate) fn feed(&mut self, data: &[u8]) -> Result<Fed, IntakeFault> {
        self.received_bytes += data.len() as u64;
        if self.received_bytes > self.bytes_max {
            if let Sink::Stream(sender) = &self.sink {
                sender.end(Err(BodyFault::TooLarge));
            }
            return Err(IntakeFault::TooLarge);
        }
        match &mut self.sink {
            Sink::Whole(whole) => whole.body.extend_from_slice(data),
            Sink::Stream(sender) => {
                if !sender.reader_gone() {
                    sender.send(Frame::data(Bytes::copy_from_slice(data)));
                }
                if sender.is_full() {
                    return Ok(Fed::Paused);
                }
            }
        }
        Ok(Fed::Taken)
    }

    /// The body is malformed: reports that to its reader.
    pub(crate) fn spoil(&self) {
        if let Sink::Stream(sender) = &self.sink {
            sender.end(Err(BodyFault::Malformed));
        }
    }

    /// Ends the body; returns the request, if it waited for it, and the trailers, if nobody has taken them.
    pub(crate) fn finish(self, trailers: Trailers) -> Option<(Whole, Trailers)> {
        match self.sink {
            Sink::Whole(whole) => Some((whole, trailers)),
            Sink::Stream(sender) => {
                if !trailers.is_empty() {
                    sender.send(Frame::trailers(header_map(&trailers)));
                }
                sender.end(Ok(()));
                None
            }
        }
    }
}

/// The decoder checked names and values; one that `http` refuses all the same is left out.
fn header_map(fields: &[(Vec<u8>, Vec<u8>)]) -> http::HeaderMap {
    let pairs = fields.iter().filter_map(|(name, value)| {
        let name = http::HeaderName::from_bytes(name).ok()?;
        Some((name, http::HeaderValue::from_bytes(value).ok()?))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bodies_share_one_limit_and_give_back_what_they_took() {
        let all = Arc::new(AtomicU64::new(0));
        let body = |length| Intake::whole(b"", length, 1 << 20, Memory::none(all.clone(), 10_000));
        let mut first = body(Some(8_000));
        assert!(first.make_room(5_000) && first.feed(&[0; 5_000]).is_ok());
        let mut second = body(None);
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
