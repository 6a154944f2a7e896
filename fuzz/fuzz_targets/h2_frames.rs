//! One side of HTTP/2 with arbitrary input: the result does not depend on the cuts; heads that it returns are also
//! valid for HTTP/1; its output and memory are bounded (`crates/wire/tests/h2_conversation/frames.rs`).
//!
//! The first byte chooses the role, the second seeds the cuts; the rest is the peer's data after its preface and
//! SETTINGS.

#[path = "../../crates/wire/tests/h2_conversation/mod.rs"]
mod h2_conversation;

use flatout_wire::h2::{Limits, PREFACE};
use h2_conversation::frames::hear;

pub fn run(input: &[u8]) {
    let [role, seed, rest @ ..] = input else { return };
    let is_server = role & 1 == 0;
    let mut bytes = if is_server { PREFACE.to_vec() } else { Vec::new() };
    if role & 2 == 0 {
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    }
    bytes.extend(rest);
    let limits = Limits { connect_protocol: role & 4 == 0, streams_max: 3, ..Limits::default() };
    let whole = hear(&bytes, is_server, limits, &[bytes.len()]);
    let (mut cuts, mut at, mut state) = (Vec::new(), 0, u32::from(*seed));
    while at < bytes.len() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        at += 1 + (state >> 27) as usize;
        cuts.push(at.min(bytes.len()));
    }
    cuts.push(bytes.len());
    let cut = hear(&bytes, is_server, limits, &cuts);
    assert_eq!((whole.events, whole.fault), (cut.events, cut.fault));
    assert!(cut.memory_bytes < 128 << 10, "{}", cut.memory_bytes);
    assert!(cut.out_bytes <= 4 * bytes.len() + 400, "{} for {}", cut.out_bytes, bytes.len());
}
