//! HTTP/1 connections in both roles, compared with the slow, simple oracle of `crates/wire/tests/conversation`.
//!
//! The first byte of the input chooses the role and the number of scripts, the second seeds the cuts; the peer's
//! bytes follow the scripts.

#[path = "../../crates/wire/tests/conversation/mod.rs"]
mod conversation;

use conversation::client::{self, Ask};
use conversation::server::{self, Act};
use conversation::{SCRIPT_BYTES, Source};

/// Scripts of one input.
const SCRIPTS_MAX: usize = 4;

pub fn run(input: &[u8]) {
    let [first, second, rest @ ..] = input else { return };
    let count = 1 + usize::from(first >> 1) % SCRIPTS_MAX;
    let Some((scripts, bytes)) = rest.split_at_checked(count * SCRIPT_BYTES) else { return };
    let scripts = scripts.chunks(SCRIPT_BYTES).map(Source);
    let seeds = [0, 1, 2 + u32::from(*second)];
    if first & 1 == 0 {
        let acts: Vec<Act> = scripts.map(|mut source| Act::read(&mut source)).collect();
        seeds.into_iter().for_each(|seed| server::check(bytes, &acts, seed));
    } else {
        let directives: Vec<Ask> = scripts.map(|mut source| Ask::read(&mut source)).collect();
        seeds.into_iter().for_each(|seed| client::check(bytes, &directives, seed));
    }
}
