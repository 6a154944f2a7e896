//! Encoders for gzip, Brotli and Zstandard. A thread uses those of gzip and Zstandard again: the memory of a new one
//! costs more than to compress a small response.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Write};

use flate2::{Compress, Compression, FlushCompress, Status};
use flatout_wire::accept::Coding;
use zstd::stream::raw::{CParameter, InBuffer, Operation, OutBuffer};

use super::rules::Level;

/// Bits of the Brotli and Zstandard window: 256 KiB, enough for nearly all responses. The default windows would take
/// megabytes for each response in progress.
const WINDOW_BITS: u32 = 18;

/// Bits of gzip's window: 32 KiB, the largest.
const GZIP_WINDOW_BITS: u8 = 15;

/// The input that Brotli buffers before it writes.
const BROTLI_BUFFER_BYTES: usize = 4 << 10;

/// Room for output, besides a quarter of the input.
const STEP_BYTES: usize = 1 << 10;

/// Encoders that a thread keeps for later bodies: some 300 KiB each for gzip, up to about a mebibyte for Zstandard.
const IDLE_MAX: usize = 4;

thread_local! {
    /// The oldest first.
    static IDLE: RefCell<Vec<(Level, Kind)>> = const { RefCell::new(Vec::new()) };
}

/// Compresses one body. Takes up to about a mebibyte of memory.
pub(crate) struct Encoder {
    level: Level,
    /// `None` once it was given back.
    kind: Option<Kind>,
}

enum Kind {
    Gzip(Compress),
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::raw::Encoder<'static>),
}

impl Encoder {
    /// `None` for [`Coding::Identity`], and if there is no memory. Costs some microseconds if this thread has a used one.
    pub(crate) fn new(level: Level) -> Option<Encoder> {
        let kind = idle(level).or_else(|| Kind::new(level))?;
        Some(Encoder { level, kind: Some(kind) })
    }

    /// Compresses a piece: returns the output with which the client can decode all input so far. Costs 5 to 20 ns per
    /// byte.
    ///
    /// # Errors
    /// The encoder is out of memory.
    pub(crate) fn piece(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        match &mut self.kind {
            Some(Kind::Gzip(encoder)) => deflate(encoder, bytes, FlushCompress::Sync, &mut out)?,
            Some(Kind::Zstd(encoder)) => zstandard(encoder, bytes, false, &mut out)?,
            Some(Kind::Brotli(writer)) => {
                writer.write_all(bytes)?;
                writer.flush()?;
                out = std::mem::take(writer.get_mut());
            }
            None => {}
        }
        Ok(out)
    }

    /// Compresses the last piece: returns the rest of the output.
    ///
    /// # Errors
    /// As [`Encoder::piece`].
    pub(crate) fn end(mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        match &mut self.kind {
            Some(Kind::Gzip(encoder)) => deflate(encoder, bytes, FlushCompress::Finish, &mut out)?,
            Some(Kind::Zstd(encoder)) => zstandard(encoder, bytes, true, &mut out)?,
            Some(Kind::Brotli(_)) | None => {
                if let Some(Kind::Brotli(mut writer)) = self.kind.take() {
                    writer.write_all(bytes)?;
                    out = writer.into_inner();
                }
            }
        }
        Ok(out)
    }
}

impl Drop for Encoder {
    /// Keeps it for a later body, also if this one was not completed: it is reset before it is used.
    fn drop(&mut self) {
        let Some(kind @ (Kind::Gzip(_) | Kind::Zstd(_))) = self.kind.take() else { return };
        let level = self.level;
        // A thread that ends keeps nothing.
        let _ = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            if idle.len() >= IDLE_MAX {
                idle.remove(0);
            }
            idle.push((level, kind));
        });
    }
}

/// An encoder that this thread has used before, as new.
fn idle(level: Level) -> Option<Kind> {
    let mut kind = IDLE
        .try_with(|idle| {
            let mut idle = idle.borrow_mut();
            let at = idle.iter().rposition(|(of, _)| *of == level)?;
            Some(idle.remove(at).1)
        })
        .ok()??;
    match &mut kind {
        Kind::Gzip(encoder) => encoder.reset(),
        Kind::Zstd(encoder) => encoder.reinit().ok()?,
        Kind::Brotli(_) => return None,
    }
    Some(kind)
}

impl Kind {
    fn new(level: Level) -> Option<Kind> {
        Some(match level.coding {
            Coding::Identity => return None,
            Coding::Gzip => {
                Kind::Gzip(Compress::new_gzip(Compression::new(u32::from(level.level)), GZIP_WINDOW_BITS))
            }
            Coding::Brotli => {
                let quality = u32::from(level.level);
                let writer =
                    brotli::CompressorWriter::new(Vec::new(), BROTLI_BUFFER_BYTES, quality, WINDOW_BITS);
                Kind::Brotli(Box::new(writer))
            }
            Coding::Zstd => {
                let mut encoder = zstd::stream::raw::Encoder::new(i32::from(level.level)).ok()?;
                encoder.set_parameter(CParameter::WindowLog(WINDOW_BITS)).ok()?;
                Kind::Zstd(encoder)
            }
        })
    }
}

/// Adds the output for these bytes, and with `flush` what the encoder still has.
fn deflate(
    encoder: &mut Compress,
    mut bytes: &[u8],
    flush: FlushCompress,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    loop {
        out.reserve(bytes.len() / 4 + STEP_BYTES);
        let (taken, made) = (encoder.total_in(), out.len());
        let status = encoder.compress_vec(bytes, out, flush)?;
        let taken = (encoder.total_in() - taken) as usize;
        bytes = bytes.get(taken..).unwrap_or_default();
        let is_done = match flush {
            FlushCompress::Finish => status == Status::StreamEnd,
            // Room is left: everything was written.
            _ => bytes.is_empty() && out.len() < out.capacity(),
        };
        if is_done {
            return Ok(());
        }
        if taken == 0 && out.len() == made {
            return Err(ErrorKind::WriteZero.into());
        }
    }
}

/// The same for Zstandard: flushed, or ended with the last bytes.
fn zstandard(
    encoder: &mut zstd::stream::raw::Encoder<'static>,
    bytes: &[u8],
    is_last: bool,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let mut input = InBuffer::around(bytes);
    loop {
        out.reserve(bytes.len() / 4 + STEP_BYTES);
        let made = out.len();
        let mut output = OutBuffer::around_pos(&mut *out, made);
        // Bytes that are known to be left in the encoder.
        let left = match (input.pos() < bytes.len(), is_last) {
            (true, _) => encoder.run(&mut input, &mut output).map(|_| 1)?,
            (false, true) => encoder.finish(&mut output, true)?,
            (false, false) => encoder.flush(&mut output)?,
        };
        if left == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::super::rules::DEFAULT_LEVELS;
    use super::*;

    /// What a client can decode of the bytes so far.
    fn read(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let mut reader: Box<dyn Read> = match coding {
            Coding::Gzip => Box::new(flate2::read::GzDecoder::new(bytes)),
            Coding::Brotli => Box::new(brotli::Decompressor::new(bytes, 4096)),
            Coding::Zstd => Box::new(zstd::stream::read::Decoder::new(bytes).unwrap()),
            Coding::Identity => Box::new(bytes),
        };
        let mut text = Vec::new();
        let mut piece = [0; 512];
        // An incomplete body ends with an error here.
        while let Ok(count @ 1..) = reader.read(&mut piece) {
            text.extend_from_slice(&piece[..count]);
        }
        text
    }

    #[test]
    fn each_flushed_piece_can_be_decompressed() {
        let words = "the quick brown fox jumps over the lazy dog, again and again. ".repeat(40);
        for level in DEFAULT_LEVELS {
            let mut encoder = Encoder::new(level).unwrap();
            let mut sent = Vec::new();
            let mut said = Vec::new();
            for piece in words.as_bytes().chunks(333) {
                sent.extend(encoder.piece(piece).unwrap());
                said.extend_from_slice(piece);
                assert_eq!(read(level.coding, &sent), said, "{:?}", level.coding);
            }
            sent.extend(encoder.end(b"the end").unwrap());
            said.extend_from_slice(b"the end");
            assert_eq!(read(level.coding, &sent), said);
            assert!(sent.len() < said.len() / 2, "{:?}: {} of {}", level.coding, sent.len(), said.len());
        }
    }

    #[test]
    fn a_used_encoder_is_as_good_as_a_new_one() {
        let text = |at: usize| format!("number {at}, ").repeat(300).into_bytes();
        for level in DEFAULT_LEVELS {
            let first = Encoder::new(level).unwrap().end(&text(0)).unwrap();
            for at in 0..3 * IDLE_MAX {
                // Given up before, in, and after a body.
                let mut given_up = Encoder::new(level).unwrap();
                if at % 2 == 0 {
                    given_up.piece(&text(at)).unwrap();
                }
                drop(given_up);
                let encoder = Encoder::new(level).unwrap();
                assert_eq!(read(level.coding, &encoder.end(&text(at)).unwrap()), text(at));
            }
            assert_eq!(Encoder::new(level).unwrap().end(&text(0)).unwrap(), first, "{:?}", level.coding);
        }
    }

    #[test]
    fn a_thread_keeps_few_encoders_of_the_levels_it_used_last() {
        let gzip = |level| Level { coding: Coding::Gzip, level };
        let all: Vec<Encoder> = (1..=9).map(|level| Encoder::new(gzip(level)).unwrap()).collect();
        drop(all);
        let count = || IDLE.with_borrow(Vec::len);
        assert_eq!(count(), IDLE_MAX);
        let first = Encoder::new(gzip(1)).unwrap();
        assert_eq!(count(), IDLE_MAX, "none of this level was kept");
        let last = Encoder::new(gzip(9)).unwrap();
        assert_eq!(count(), IDLE_MAX - 1);
        drop((first, last));
        assert_eq!(count(), IDLE_MAX);
    }

    #[test]
    fn noise_becomes_hardly_longer_in_pieces_of_any_size() {
        let mut seed = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        })
        .take(100_000)
        .collect();
        for level in DEFAULT_LEVELS {
            for piece_bytes in [1 << 10, 4095, 64 << 10] {
                let mut encoder = Encoder::new(level).unwrap();
                let mut sent = Vec::new();
                for piece in noise.chunks(piece_bytes) {
                    sent.extend(encoder.piece(piece).unwrap());
                }
                sent.extend(encoder.end(b"").unwrap());
                assert!(read(level.coding, &sent) == noise, "{:?} {piece_bytes}", level.coding);
                assert!(sent.len() < noise.len() + noise.len() / 10, "{:?}: {}", level.coding, sent.len());
            }
        }
    }

    #[test]
    fn an_empty_body_and_a_large_one_read_back() {
        let large: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(at) >> 11) as u8 & 0x3f).collect();
        for level in DEFAULT_LEVELS {
            assert_eq!(read(level.coding, &Encoder::new(level).unwrap().end(b"").unwrap()), b"");
            let mut encoder = Encoder::new(level).unwrap();
            let mut sent = Vec::new();
            for piece in large.chunks(64 << 10) {
                sent.extend(encoder.piece(piece).unwrap());
            }
            sent.extend(encoder.end(b"").unwrap());
            assert!(read(level.coding, &sent) == large, "{:?}", level.coding);
        }
    }
}
