//! Compression of single messages (RFC 7692 with `no_context_takeover`): a thread needs one compressor for all its
//! connections.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use flatout_wire::websocket::{FrameFault, TAIL};

/// A compromise: other connections wait while a message is compressed.
const LEVEL: u32 = 4;

/// Smallest growth of an output.
const STEP_BYTES: usize = 4 << 10;

thread_local! {
    static COMPRESS: RefCell<Option<Compress>> = const { RefCell::new(None) };
    static DECOMPRESS: RefCell<Option<Decompress>> = const { RefCell::new(None) };
}

/// Appends the compressed message to `out`. Returns whether it became shorter; otherwise `out` is unchanged.
pub fn compress(message: &[u8], out: &mut Vec<u8>) -> bool {
    COMPRESS.with_borrow_mut(|compressor| {
        let compressor = compressor.get_or_insert_with(|| Compress::new(Compression::new(LEVEL), false));
        compressor.reset();
        let at = out.len();
        if write_compressed(compressor, message, out).is_none() || out.len() - at >= message.len() {
            out.truncate(at);
            return false;
        }
        true
    })
}

fn write_compressed(compressor: &mut Compress, message: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut rest = message;
    loop {
        out.reserve(STEP_BYTES);
        let before = compressor.total_in();
        compressor.compress_vec(rest, out, FlushCompress::Sync).ok()?;
        rest = rest.get((compressor.total_in() - before) as usize..)?;
        // Room is left: everything was flushed.
        if rest.is_empty() && out.len() < out.capacity() {
            break;
        }
    }
    let end = out.strip_suffix(&TAIL)?.len();
    out.truncate(end);
    Some(())
}

/// Appends a decompressed message to `out`.
///
/// # Errors
/// It is malformed, or longer than `bytes_max` bytes.
pub fn decompress(message: &[u8], bytes_max: u64, out: &mut Vec<u8>) -> Result<(), FrameFault> {
    DECOMPRESS.with_borrow_mut(|decompressor| {
        let decompressor = decompressor.get_or_insert_with(|| Decompress::new(false));
        decompressor.reset(false);
        let at = out.len();
        for input in [message, &TAIL] {
            if write_decompressed(decompressor, input, bytes_max, at, out)? == Status::StreamEnd {
                break;
            }
        }
        Ok(())
    })
}

fn write_decompressed(
    decompressor: &mut Decompress,
    mut input: &[u8],
    bytes_max: u64,
    at: usize,
    out: &mut Vec<u8>,
) -> Result<Status, FrameFault> {
    loop {
        out.reserve(STEP_BYTES);
        let before = decompressor.total_in();
        let status = decompressor.decompress_vec(input, out, FlushDecompress::Sync);
        let status = status.map_err(|_| FrameFault::Compressed)?;
        let used = (decompressor.total_in() - before) as usize;
        input = input.get(used..).unwrap_or_default();
        if (out.len() - at) as u64 > bytes_max {
            return Err(FrameFault::MessageTooLarge);
        }
        // A message may contain a final block: then one empty byte follows it (RFC 7692 section 7.2.3.4).
        if status == Status::StreamEnd {
            return if input.len() <= 1 || input == TAIL { Ok(status) } else { Err(FrameFault::Compressed) };
        }
        if input.is_empty() && out.len() < out.capacity() {
            return Ok(status);
        }
        if used == 0 && out.len() < out.capacity() {
            return Err(FrameFault::Compressed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(message: &[u8]) {
        let (mut packed, mut back) = (Vec::new(), Vec::new());
        if compress(message, &mut packed) {
            decompress(&packed, u64::MAX, &mut back).unwrap();
            assert_eq!(back, message);
        }
    }

    #[test]
    fn messages_round_trip() {
        there_and_back(b"");
        there_and_back(&b"hello ".repeat(10));
        there_and_back(&vec![b'a'; 1 << 20]);
        let noise: Vec<u8> = (0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        there_and_back(&[&noise[..], &noise].concat());
        // After existing content, and not at all if it would be longer.
        let mut out = b"head".to_vec();
        assert!(!compress(b"abc", &mut out));
        assert_eq!(out, b"head");
    }

    #[test]
    fn rfc_examples_are_decoded() {
        for packed in [
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..],
            // Uncompressed, with a final block, and in two blocks.
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
            &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
        ] {
            let mut out = Vec::new();
            assert_eq!(decompress(packed, 5, &mut out), Ok(()), "{packed:x?}");
            assert_eq!(out, b"Hello", "{packed:x?}");
        }
    }

    #[test]
    fn bombs_and_garbage_are_refused() {
        let mut bomb = Vec::new();
        assert!(compress(&vec![0; 8 << 20], &mut bomb));
        assert!(bomb.len() < 16 << 10);
        let mut out = Vec::new();
        assert_eq!(decompress(&bomb, 1 << 20, &mut out), Err(FrameFault::MessageTooLarge));
        assert!(out.len() < (1 << 20) + 2 * (1 << 20), "{}", out.len());
        assert_eq!(decompress(&[0xff; 10], 100, &mut Vec::new()), Err(FrameFault::Compressed));
        // Nothing may follow the end of a stream.
        let behind = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 1, 2, 3, 4, 5];
        assert_eq!(decompress(&behind, 100, &mut Vec::new()), Err(FrameFault::Compressed));
        // An earlier error does not affect the next message.
        there_and_back(&b"hello ".repeat(10));
    }
}
