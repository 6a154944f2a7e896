//! Compression in advance: once, to the smallest size.

use std::io::{self, Write};

use bytes::Bytes;
use flatout_wire::accept::Coding;

/// A result is kept if it is at most this percentage of the plain bytes.
const KEPT_PERCENT: usize = 95;

/// Brotli's highest quality takes a second per mebibyte, which is acceptable for data kept in memory.
const BROTLI_QUALITY: i32 = 11;
const BROTLI_WINDOW_BITS: i32 = 22;
const ZSTD_LEVEL: i32 = 19;
const GZIP_LEVEL: u32 = 9;

/// The niceness of threads that compress in advance (nice(2)): the maximum.
const NICENESS: i32 = 19;

/// Gives this thread the lowest priority, and lets it run on any CPU.
pub fn give_way() {
    flatout_lane::cpu::unpin();
    // Refused in some sandboxes; then the thread competes normally.
    let _ = rustix::process::nice(NICENESS);
}

/// Compresses the bytes with this coding; `None` if the result is not clearly smaller.
pub fn compressed(coding: Coding, plain: &[u8]) -> Option<Bytes> {
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
