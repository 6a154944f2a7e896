//! A message body on its way in.

use crate::chunk::{ChunkFault, ChunkLimits, Decoder};

/// What delimits a body, and what is left of it.
#[derive(Debug)]
pub enum Incoming {
    /// So many bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked(Box<Decoder>),
    /// All bytes until the peer closes; responses only.
    UntilClose,
}

/// Trailer fields: name and value of each, in the order in which they came.
pub type Trailers = Vec<(Vec<u8>, Vec<u8>)>;

/// What bytes of a body came to.
pub use crate::chunk::Event as Piece;

impl Incoming {
    /// A chunked body, with the default limits. Allocates its decoder.
    pub fn chunked() -> Incoming {
        Incoming::Chunked(Box::new(Decoder::new(ChunkLimits::default())))
    }

    /// Takes bytes: how many were used, and what they are. Data lies in `bytes`, nothing is copied.
    ///
    /// # Errors
    /// The chunked coding is malformed, or one of its limits is passed.
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

    /// Whether all of it has come, without looking at more bytes.
    #[inline]
    pub fn is_whole(&self) -> bool {
        matches!(self, Incoming::Length(0))
    }

    /// So many bytes went by unseen. Returns whether that can be: not within chunks, nor beyond the length.
    pub(crate) fn pass(&mut self, bytes: u64) -> bool {
        match self {
            Incoming::Length(left) => left.checked_sub(bytes).map(|less| *left = less).is_some(),
            Incoming::UntilClose => true,
            Incoming::Chunked(_) => false,
        }
    }

    /// How many of the bytes that come next are the body's, whatever they are: 0 within chunks.
    pub(crate) fn plain_bytes(&self) -> u64 {
        match self {
            Incoming::Length(left) => *left,
            Incoming::UntilClose => u64::MAX,
            Incoming::Chunked(_) => 0,
        }
    }

    /// Bytes still to come, if the framing has a length.
    pub fn length_left(&self) -> Option<u64> {
        match self {
            Incoming::Length(left) => Some(*left),
            Incoming::Chunked(_) | Incoming::UntilClose => None,
        }
    }

    /// The trailer fields of a chunked body that is whole.
    pub fn take_trailers(&mut self) -> Trailers {
        match self {
            Incoming::Chunked(decoder) => decoder.take_trailers(),
            Incoming::Length(_) | Incoming::UntilClose => Vec::new(),
        }
    }
}
