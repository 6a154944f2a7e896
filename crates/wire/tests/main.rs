//! The integration tests, in one program: it is linked once. `cargo test --test it NAME::` runs those of one file.
#![allow(clippy::duplicate_mod, reason = "each file names the support that it needs, as it would alone")]

#[path = "answer.rs"]
mod answer;
#[path = "cache.rs"]
mod cache;
#[path = "desync.rs"]
mod desync;
#[path = "h1.rs"]
mod h1;
#[path = "h2.rs"]
mod h2;
#[path = "h2_attacks.rs"]
mod h2_attacks;
#[path = "head.rs"]
mod head;
#[path = "values.rs"]
mod values;
