//! The integration tests, in one program: it is linked once. `cargo test --test it NAME::` runs those of one file.
#![allow(clippy::duplicate_mod, reason = "each file names the support that it needs, as it would alone")]

#[path = "channel.rs"]
mod channel;
#[path = "clients.rs"]
mod clients;
#[path = "early.rs"]
mod early;
#[path = "pieces.rs"]
mod pieces;
#[path = "trust.rs"]
mod trust;
