//! Certificates that a server gets by itself, and what else its TLS keeps in the state folder.
//!
//! ```text
//! acme ──── an authority on the network ─┐
//! local ─── an authority of this machine ┴─> state folder ──> files that the server's acceptor follows
//! tickets ─ keys of session tickets ────────> state folder
//! ```
//!
//! Nothing here knows how requests are served: what an authority asks for while it checks a name is handed to whoever
//! [publishes](acme::Publish) it.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used)]

pub mod acme;
pub mod local;
mod state;
mod tickets;

pub use state::{Lock, State};
pub use tickets::KeptTickets;

/// Where messages for the operator go.
pub type Say = fn(std::fmt::Arguments<'_>);
