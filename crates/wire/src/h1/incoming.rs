//! A message body that is being received.

use crate::chunk::{ChunkDecoder, ChunkFault, ChunkLimits};

/// How a body is delimited, and what is left of it.
#[derive(Debug)]
pub enum Incoming {
    /// This many bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked(Box<ChunkDecoder>),
    /// All bytes until the peer closes; responses only.
    UntilClose,
}

/// Trailer fields in order: name and value of each.
pub type Trailers = Vec<(Vec<u8>, Vec<u8>)>;

/// The result of consuming bytes of a body.
pub use crate::chunk::ChunkEvent as Piece;

impl Incoming {
    /// A chunked body, with the default limits. Allocates its decoder.
    pub fn chunked() -> Incoming {
        Incoming::Chunked(Box::new(ChunkDecoder::new(ChunkLimits::default())))
    }

    /// Consumes bytes. Returns how many, and the result. Data is a slice of `bytes`, nothing is copied.
    ///
    /// # Errors
    /// The chunked coding is malformed, or exceeds a limit.
    #[inline]
    pub fn step<'b>(&mut self, bytes: &'b [u8]) -> Result<(usize, Piece<'b>), ChunkFault> {
        match self {
            Incoming::Length(0) => Ok((0, Piece::End)),
            _ if bytes.is_empty() => Ok((0, Piece::NeedMore)),
            Incoming::Length(left) => {
                let here = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= here as u64;
                Ok((here, Piece::Data(&bytes[..here])))
            }
            Incoming::Chunked(decoder) => decoder.step(bytes),
            Incoming::UntilClose => Ok((bytes.len(), Piece::Data(bytes))),
        }
    }

    /// Whether it is complete, without looking at more bytes.
    #[inline]
    pub fn is_whole(&self) -> bool {
        matches!(self, Incoming::Length(0))
    }

    /// This many bytes have passed by unseen. Returns whether that is possible: not within chunks, nor beyond the
    /// length.
    pub(crate) fn pass(&mut self, bytes: u64) -> bool {
        match self {
            Incoming::Length(left) => left.checked_sub(bytes).map(|less| *left = less).is_some(),
            Incoming::UntilClose => true,
            Incoming::Chunked(_) => false,
        }
    }

    /// How many of the next bytes certainly belong to the body: 0 within chunks.
    pub(crate) fn plain_bytes(&self) -> u64 {
        match self {
            Incoming::Length(left) => *left,
            Incoming::UntilClose => u64::MAX,
            Incoming::Chunked(_) => 0,
        }
    }

    /// Remaining bytes, if the framing has a length.
    pub fn length_left(&self) -> Option<u64> {
        match self {
            Incoming::Length(left) => Some(*left),
            Incoming::Chunked(_) | Incoming::UntilClose => None,
        }
    }

    /// The trailer fields of a complete chunked body.
    pub fn take_trailers(&mut self) -> Trailers {
        match self {
            Incoming::Chunked(decoder) => decoder.take_trailers(),
            Incoming::Length(_) | Incoming::UntilClose => Vec::new(),
        }
    }
}
