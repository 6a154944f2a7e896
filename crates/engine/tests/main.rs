//! The integration tests, in one program: it is linked once. `cargo test --test it NAME::` runs those of one file.
//! Those with a program of their own are in `Cargo.toml`.
#![allow(clippy::duplicate_mod, reason = "each file names the support that it needs, as it would alone")]

#[path = "early.rs"]
mod early;
#[path = "forms.rs"]
mod forms;
#[path = "h2.rs"]
mod h2;
#[path = "h2_attacks.rs"]
mod h2_attacks;
#[path = "h2_websockets.rs"]
mod h2_websockets;
#[path = "held_bodies.rs"]
mod held_bodies;
#[path = "hostile.rs"]
mod hostile;
#[path = "listeners.rs"]
mod listeners;
#[path = "pace.rs"]
mod pace;
#[path = "protocols.rs"]
mod protocols;
#[path = "proxy_protocol.rs"]
mod proxy_protocol;
#[path = "tls.rs"]
mod tls;
