//! A request body on its way in: what delimits it, how much came, and where it goes.

use bytes::Bytes;
use flatout_wire::chunk::{ChunkFault, Decoder, Event};
use flatout_wire::{Framing, Status};
use http_body::Frame;

use crate::body::{BodyFault, BodySender};

/// A body that is not whole yet.
pub(crate) struct Incoming {
    left: Left,
    bytes_max: u64,
    received_bytes: u64,
    sink: Sink,
}

enum Left {
    Length(u64),
    Chunked(Box<Decoder>),
}

/// Where the bytes go.
pub(crate) enum Sink {
    /// Into a request that is handed over when it is whole: its head, and its body so far.
    Whole(Whole),
    /// To a reader, as they come.
    Stream(BodySender),
    /// Nowhere: they are only skipped, so that the next request can be read.
    Discard,
}

/// A request that waits for its body.
#[derive(Default)]
pub(crate) struct Whole {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What became of the bytes that were fed.
pub(crate) enum Fed {
    /// All were taken, more are needed.
    More,
    /// The body is whole; so many bytes were taken.
    Whole(usize),
    /// So many were taken; the reader is behind.
    Paused(usize),
}

/// Why a body cannot be read on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum IncomingFault {
    Chunk(ChunkFault),
    TooLarge,
}

impl IncomingFault {
    pub(crate) fn status(self) -> Status {
        match self {
            IncomingFault::Chunk(fault) => fault.status(),
            IncomingFault::TooLarge => Status::CONTENT_TOO_LARGE,
        }
    }

    pub(crate) fn reason(self) -> &'static str {
        match self {
            IncomingFault::Chunk(fault) => fault.reason(),
            IncomingFault::TooLarge => "the request body is too large",
        }
    }

    fn for_reader(self) -> BodyFault {
        match self {
            IncomingFault::Chunk(_) => BodyFault::Malformed,
            IncomingFault::TooLarge => BodyFault::TooLarge,
        }
    }
}

impl Incoming {
    /// A body with this framing (not [`Framing::None`]), of at most `bytes_max` decoded bytes.
    pub(crate) fn new(framing: Framing, bytes_max: u64, sink: Sink) -> Incoming {
        let left = match framing {
            Framing::None => Left::Length(0),
            Framing::Length(length) => Left::Length(length),
            Framing::Chunked => Left::Chunked(Box::new(Decoder::new(Default::default()))),
        };
        Incoming { left, bytes_max, received_bytes: 0, sink }
    }

    /// Bytes still to come, where the framing tells.
    pub(crate) fn length_left(&self) -> Option<u64> {
        match self.left {
            Left::Length(left) => Some(left),
            Left::Chunked(_) => None,
        }
    }

    /// Whether a reader holds the peer back.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(&self.sink, Sink::Stream(sender) if sender.is_full())
    }

    /// Whether the service has not been called yet, because it waits for this body.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(self.sink, Sink::Whole(_))
    }

    /// Skips what is left instead of keeping it, up to `bytes_max` bytes.
    pub(crate) fn discard(&mut self, bytes_max: u64) {
        self.sink = Sink::Discard;
        self.bytes_max = self.received_bytes.saturating_add(bytes_max);
    }

    /// Takes the request out, once its body is whole; `None` if it went elsewhere.
    pub(crate) fn into_whole(self) -> Option<Whole> {
        match self.sink {
            Sink::Whole(whole) => Some(whole),
            _ => None,
        }
    }

    /// Takes bytes from the connection.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<Fed, IncomingFault> {
        let fed = self.feed_unguarded(bytes);
        if let (Err(fault), Sink::Stream(sender)) = (&fed, &self.sink) {
            sender.end(Err(fault.for_reader()));
        }
        fed
    }

    fn feed_unguarded(&mut self, bytes: &[u8]) -> Result<Fed, IncomingFault> {
        let mut at = 0;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            match &mut self.left {
                Left::Length(left) => {
                    let take = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= take as u64;
                    let whole = *left == 0;
                    self.keep(rest.get(..take).unwrap_or_default())?;
                    at += take;
                    if whole {
                        self.finish(Vec::new());
                        return Ok(Fed::Whole(at));
                    }
                    return Ok(if self.is_paused() { Fed::Paused(at) } else { Fed::More });
                }
                Left::Chunked(decoder) => {
                    let (taken, event) = decoder.step(rest).map_err(IncomingFault::Chunk)?;
                    at += taken;
                    match event {
                        Event::Data(data) => {
                            self.keep(data)?;
                            if self.is_paused() {
                                return Ok(Fed::Paused(at));
                            }
                        }
                        Event::NeedMore => return Ok(Fed::More),
                        Event::End => {
                            let trailers = decoder.take_trailers();
                            self.finish(trailers);
                            return Ok(Fed::Whole(at));
                        }
                    }
                }
            }
        }
    }

    fn keep(&mut self, data: &[u8]) -> Result<(), IncomingFault> {
        self.received_bytes += data.len() as u64;
        if self.received_bytes > self.bytes_max {
            return Err(IncomingFault::TooLarge);
        }
        match &mut self.sink {
            Sink::Whole(whole) => whole.body.extend_from_slice(data),
            Sink::Stream(sender) if !data.is_empty() && !sender.reader_gone() => {
                sender.send(Frame::data(Bytes::copy_from_slice(data)));
            }
            Sink::Stream(_) | Sink::Discard => {}
        }
        Ok(())
    }

    fn finish(&mut self, trailers: Vec<(Vec<u8>, Vec<u8>)>) {
        match &mut self.sink {
            Sink::Whole(whole) => whole.trailers = trailers,
            Sink::Stream(sender) => {
                if !trailers.is_empty() {
                    sender.send(Frame::trailers(header_map(&trailers)));
                }
                sender.end(Ok(()));
            }
            Sink::Discard => {}
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
