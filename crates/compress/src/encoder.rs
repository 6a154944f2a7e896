//! Encoders for gzip, Brotli and Zstandard.

use std::io::{self, Write};

use flatout_wire::accept::Coding;

use super::rules::Level;

/// Bits of the Brotli and Zstandard window: 256 KiB, enough for nearly all responses. The default windows would take
/// megabytes for each response in progress.
const WINDOW_BITS: u32 = 18;

/// The input that Brotli buffers before it writes.
const BROTLI_BUFFER_BYTES: usize = 4 << 10;

/// Compresses one body. Takes up to about a mebibyte of memory.
pub(crate) struct Encoder(Kind);

enum Kind {
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Encoder {
    /// `None` for [`Coding::Identity`], and if there is no memory.
    pub(crate) fn new(level: Level) -> Option<Encoder> {
        let kind = match level.coding {
            Coding::Identity => return None,
            Coding::Gzip => {
                let level = flate2::Compression::new(u32::from(level.level));
                Kind::Gzip(flate2::write::GzEncoder::new(Vec::new(), level))
            }
            Coding::Brotli => {
                let quality = u32::from(level.level);
                let writer =
                    brotli::CompressorWriter::new(Vec::new(), BROTLI_BUFFER_BYTES, quality, WINDOW_BITS);
                Kind::Brotli(Box::new(writer))
            }
            Coding::Zstd => {
                let mut encoder =
                    zstd::stream::write::Encoder::new(Vec::new(), i32::from(level.level)).ok()?;
                encoder.window_log(WINDOW_BITS).ok()?;
                Kind::Zstd(encoder)
            }
        };
        Some(Encoder(kind))
    }

    /// Compresses a piece: returns the output with which the client can decode all input so far. Costs 10 to 20 ns
    /// per byte.
    ///
    /// # Errors
    /// The encoder is out of memory.
    pub(crate) fn piece(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let writer: &mut dyn Write = match &mut self.0 {
            Kind::Gzip(writer) => writer,
            Kind::Brotli(writer) => &mut **writer,
            Kind::Zstd(writer) => writer,
        };
        writer.write_all(bytes)?;
        writer.flush()?;
        Ok(std::mem::take(match &mut self.0 {
            Kind::Gzip(writer) => writer.get_mut(),
            Kind::Brotli(writer) => writer.get_mut(),
            Kind::Zstd(writer) => writer.get_mut(),
        }))
    }

    /// Compresses the last piece: returns the rest of the output.
    ///
    /// # Errors
    /// As [`Encoder::piece`].
    pub(crate) fn end(self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        match self.0 {
            Kind::Gzip(mut writer) => {
                writer.write_all(bytes)?;
                writer.finish()
            }
            Kind::Brotli(mut writer) => {
                writer.write_all(bytes)?;
                Ok(writer.into_inner())
            }
            Kind::Zstd(mut writer) => {
                writer.write_all(bytes)?;
                writer.finish()
            }
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
