//! HTTP/1 connections: a slow and simple oracle computes the expected result, drivers produce the actual one.
//!
//! ```text
//!  bytes, scripts ──> oracle  (the whole input known; text in hand, no state)   ──┐
//!        │                                                                       ├── the same
//!        └── in pieces ──> driver ──> the machine                               ──┘
//! ```
//!
//! The oracles use nothing of `flatout_wire` but its constants. Shared by the tests and the fuzz target
//! `conversation`.

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod text;

/// Where `bytes` bytes are split: not at all, into single bytes, or into pieces of 1 to 32 bytes chosen by `seed`.
/// The last position is the end.
pub(crate) fn cuts(bytes: usize, seed: u32) -> Vec<usize> {
    match seed {
        0 => return vec![bytes],
        1 => return (0..=bytes).collect(),
        _ => {}
    }
    let (mut cuts, mut at, mut state) = (Vec::new(), 0, seed);
    while at < bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        at += 1 + (state >> 27) as usize;
        cuts.push(at.min(bytes));
    }
    cuts.push(bytes);
    cuts
}

/// Bytes of a script.
pub(crate) const SCRIPT_BYTES: usize = 6;

/// The bytes of a script; zeros follow the last one.
pub(crate) struct Source<'b>(pub(crate) &'b [u8]);

impl Source<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// One of `choices`.
    pub(crate) fn choice<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// Up to three pieces of a body, of 0 to 18 bytes each.
    pub(crate) fn pieces(&mut self) -> Vec<Vec<u8>> {
        let seed = self.byte();
        (0..seed % 4)
            .map(|index| vec![b'a' + index; usize::from(seed / 4 % 19) * usize::from(index % 2 + 1) / 2])
            .collect()
    }
}

/// How the length of an application's body is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announced {
    Known,
    Declared,
    Unknown,
}

/// Encodes a body in chunks, with or without a trailer field.
pub(crate) fn in_chunks(pieces: &[Vec<u8>], trailers: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        out.extend(format!("{:x}\r\n", piece.len()).bytes());
        out.extend(piece);
        out.extend(b"\r\n");
    }
    out.extend(b"0\r\n");
    out.extend(trailers);
    out.extend(b"\r\n");
    out
}
