//! Compressing in advance: once, and as small as it gets.

use std::io::{self, Write};

use bytes::Bytes;
use flatout_wire::accept::Coding;

/// A result is kept if it is at most so many hundredths of the plain bytes.
const KEPT_PERCENT: usize = 95;

/// Brotli's highest quality takes a second for a mebibyte, which is fine for what is kept in memory.
const BROTLI_QUALITY: i32 = 11;
const BROTLI_WINDOW_BITS: i32 = 22;
const ZSTD_LEVEL: i32 = 19;
const GZIP_LEVEL: u32 = 9;

/// How far a thread that compresses in advance gives way (nice(2)): as far as there is.
const NICENESS: i32 = 19;

/// Has this thread give way to all others, on whatever CPU is free.
pub(crate) fn give_way() {
    flatout_lane::cpu::unpin();
    // Refused in some sandboxes; then it competes like any thread.
    let _ = rustix::process::nice(NICENESS);
}

/// The bytes in this coding, if that is clearly smaller.
pub(crate) fn compressed(coding: Coding, plain: &[u8]) -> Option<Bytes> {
    let made = match coding {
        Coding::Identity => return None,
        Coding::Brotli => brotli(plain),
        Coding::Zstd => zstd::bulk::compress(plain, ZSTD_LEVEL),
        Coding::Gzip => gzip(plain),
    };
    made.ok().filter(|bytes| bytes.len() * 100 <= plain.len() * KEPT_PERCENT).map(Bytes::from)
}

fn brotli(plain: &[u8]) -> io::Result<Vec<u8>> {
    let parameters = brotli::enc::BrotliEncoderParams {
        quality: BROTLI_QUALITY,
        lgwin: BROTLI_WINDOW_BITS,
        size_hint: plain.len(),
        ..Default::default()
    };
    let mut out = Vec::new();
    brotli::BrotliCompress(&mut &plain[..], &mut out, &parameters)?;
    Ok(out)
}

fn gzip(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(GZIP_LEVEL));
    encoder.write_all(plain)?;
    encoder.finish()
}
