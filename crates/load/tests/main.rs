//! The integration tests, in one program: it is linked once. `cargo test --test it NAME::` runs those of one file.
#![allow(clippy::duplicate_mod, reason = "each file names the support that it needs, as it would alone")]

#[path = "scripted.rs"]
mod scripted;
#[path = "secured.rs"]
mod secured;
#[path = "side_by_side.rs"]
mod side_by_side;
#[path = "streams.rs"]
mod streams;
