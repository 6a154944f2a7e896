//! Chunked bodies. The result does not depend on how the input is cut, and equals a walk by httparse's chunk sizes if
//! it is accepted.
//!
//! The first byte of the input seeds the cuts.

use flatout_wire::chunk::{ChunkDecoder, ChunkEvent, ChunkFault, ChunkLimits};

/// Data, trailers, and how many bytes they took; `None` if the body is incomplete.
type Outcome = Result<Option<(Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>, usize)>, ChunkFault>;

pub fn run(input: &[u8]) {
    let Some((&seed, body)) = input.split_first() else { return };
    let whole = decode([body]);
    assert_eq!(decode(body.chunks(1)), whole);
    assert_eq!(decode(cuts(body, seed)), whole);
    match whole {
        Ok(Some((data, _, taken))) => assert_eq!(walk(&body[..taken]), data),
        Ok(None) => {}
        Err(fault) => assert!(matches!(fault.status().code(), 400 | 431) && !fault.reason().is_empty()),
    }
}

fn decode<'b>(pieces: impl IntoIterator<Item = &'b [u8]>) -> Outcome {
    let mut decoder = ChunkDecoder::new(ChunkLimits::default());
    let (mut data, mut taken_sum) = (Vec::new(), 0);
    for mut piece in pieces {
        loop {
            let (taken, event) = decoder.step(piece)?;
            taken_sum += taken;
            piece = &piece[taken..];
            match event {
                ChunkEvent::Data(bytes) => {
                    assert!(!bytes.is_empty() && bytes.len() <= taken);
                    data.extend_from_slice(bytes);
                }
                ChunkEvent::NeedMore => {
                    assert!(piece.is_empty());
                    break;
                }
                ChunkEvent::End => return Ok(Some((data, decoder.take_trailers(), taken_sum))),
            }
        }
    }
    Ok(None)
}

/// Cuts `body` into pieces of 1 to 16 bytes.
fn cuts(mut body: &[u8], seed: u8) -> Vec<&[u8]> {
    let (mut pieces, mut state) = (Vec::new(), u32::from(seed));
    while !body.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (piece, rest) = body.split_at(body.len().min(1 + (state >> 28) as usize));
        pieces.push(piece);
        body = rest;
    }
    pieces
}

/// The data of an accepted body, found in the simplest way.
fn walk(mut body: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    loop {
        let Ok(httparse::Status::Complete((line, size))) = httparse::parse_chunk_size(body) else {
            panic!("httparse refuses this size line: {body:?}")
        };
        let size = size as usize;
        if size == 0 {
            assert!(body.ends_with(b"\r\n\r\n") || body[line..] == *b"\r\n");
            return data;
        }
        data.extend_from_slice(&body[line..line + size]);
        body = body[line + size..].strip_prefix(b"\r\n").expect("CRLF behind the data");
    }
}
