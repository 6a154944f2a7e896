//! Both sides of HTTP/2 joined: each receives what the other sends, in a script given by the input
//! (`crates/wire/tests/h2_conversation/pair.rs`).

#[path = "../../crates/wire/tests/h2_conversation/mod.rs"]
mod h2_conversation;

pub fn run(input: &[u8]) {
    h2_conversation::pair::play(input);
}
