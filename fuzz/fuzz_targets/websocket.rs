//! WebSocket frames. The result does not depend on how the input is cut, and equals a frame-by-frame walk if it is
//! accepted.
//!
//! The first byte of the input: its lowest bit is the role, the next whether compression was negotiated; the whole
//! byte seeds the cuts.

use flatout_wire::websocket::{FrameFault, MessageLimits, Reader, ReaderEvent, Role};

const LIMITS: MessageLimits = MessageLimits { message_bytes_max: 2000, fragments_max: 50 };

/// The messages as text, and how the connection ended.
type Outcome = (Vec<u8>, Option<FrameFault>);

pub fn run(input: &[u8]) {
    let Some((&seed, bytes)) = input.split_first() else { return };
    let role = if seed & 1 == 0 { Role::Server } else { Role::Client };
    let may_compress = seed & 2 != 0;
    let whole = read(role, may_compress, [bytes]);
    for cut in [read(role, may_compress, bytes.chunks(1)), read(role, may_compress, cuts(bytes, seed))] {
        assert_eq!(cut.1, whole.1);
        // A fault may be found before the piece in front of it was returned.
        assert!(cut.0 == whole.0 || whole.1.is_some());
    }
    if let Some(fault) = whole.1 {
        assert!([1002, 1007, 1008, 1009].contains(&fault.code()) && !fault.reason().is_empty());
    }
}

fn read<'b>(role: Role, may_compress: bool, pieces: impl IntoIterator<Item = &'b [u8]>) -> Outcome {
    let mut reader = Reader::new(role, may_compress);
    let (mut said, mut held) = (Vec::new(), Vec::new());
    let mut message_bytes = 0;
    for piece in pieces {
        held.extend_from_slice(piece);
        let mut at = 0;
        loop {
            let (used, event) = match reader.step(&mut held[at..], &LIMITS) {
                Ok(step) => step,
                Err(fault) => return (said, Some(fault)),
            };
            at += used;
            match event {
                ReaderEvent::NeedMore => break,
                ReaderEvent::Data { bytes, is_last, .. } => {
                    message_bytes += bytes.len();
                    assert!(message_bytes as u64 <= LIMITS.message_bytes_max);
                    said.extend_from_slice(bytes);
                    if is_last {
                        said.extend_from_slice(b"<end>");
                        message_bytes = 0;
                    }
                }
                ReaderEvent::Ping(bytes) | ReaderEvent::Pong(bytes) => {
                    assert!(bytes.len() <= 125);
                    said.extend_from_slice(b"<control>");
                    said.extend_from_slice(bytes);
                }
                ReaderEvent::Close(close) => {
                    said.extend_from_slice(format!("<{:?} {}>", close.code, close.reason).as_bytes());
                    return (said, None);
                }
            }
        }
        held.drain(..at);
        assert!(held.len() < 139);
    }
    (said, None)
}

/// Cuts `bytes` into pieces of 1 to 16 bytes.
fn cuts(mut bytes: &[u8], seed: u8) -> Vec<&[u8]> {
    let (mut pieces, mut state) = (Vec::new(), u32::from(seed));
    while !bytes.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (piece, rest) = bytes.split_at(bytes.len().min(1 + (state >> 28) as usize));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}
