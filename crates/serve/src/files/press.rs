//! Compressing text beforehand, on a thread that gives way to everything else.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use bytes::Bytes;
use flatout_wire::accept::Coding;

use super::entry::Entry;
use super::keeper::Message;

/// A variant is kept if it is at most so many hundredths of the plain file.
const KEPT_PERCENT: usize = 95;

/// Brotli's highest quality takes a second for a mebibyte, which is fine for what is kept in memory.
const BROTLI_QUALITY: i32 = 11;
const BROTLI_WINDOW_BITS: i32 = 22;
const ZSTD_LEVEL: i32 = 19;
const GZIP_LEVEL: u32 = 9;

/// How far this thread gives way (nice(2)): as far as there is.
const NICENESS: i32 = 19;

/// Compresses what comes in and sends back what is worth keeping, until there is nobody to send to.
pub(crate) fn run(entries: &Receiver<Arc<Entry>>, keeper: &Sender<Message>) {
    // Refused in some sandboxes; then it competes like any thread.
    let _ = rustix::process::nice(NICENESS);
    for entry in entries {
        let Some(plain) = entry.to_compress() else { continue };
        let variants = variants(plain);
        if !variants.is_empty() && keeper.send(Message::Compressed(entry, variants)).is_err() {
            return;
        }
    }
}

/// The variants of a text that are clearly smaller than it.
pub(crate) fn variants(plain: &Bytes) -> Vec<(Coding, Bytes)> {
    let made = [
        (Coding::Brotli, brotli(plain)),
        (Coding::Zstd, zstd::bulk::compress(plain, ZSTD_LEVEL)),
        (Coding::Gzip, gzip(plain)),
    ];
    let worthwhile = made.into_iter().filter_map(|(coding, bytes)| Some((coding, Bytes::from(bytes.ok()?))));
    worthwhile.filter(|(_, bytes)| bytes.len() * 100 <= plain.len() * KEPT_PERCENT).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn what_is_kept_reads_back() {
        let text = Bytes::from("all work and no play makes jack a dull boy\n".repeat(50));
        let made = variants(&text);
        assert_eq!(made.len(), 3);
        for (coding, bytes) in made {
            let mut back = Vec::new();
            match coding {
                Coding::Gzip => _ = flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut back).unwrap(),
                Coding::Zstd => back = zstd::bulk::decompress(&bytes, 10_000).unwrap(),
                Coding::Brotli => brotli::BrotliDecompress(&mut &bytes[..], &mut back).unwrap(),
                Coding::Identity => unreachable!("never made"),
            }
            assert_eq!(back, text);
        }
    }

    #[test]
    fn what_does_not_shrink_is_not_kept() {
        let mut state = 1u32;
        let noise = (0..2000).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        assert!(variants(&noise.collect()).is_empty());
    }
}
