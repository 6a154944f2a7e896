//! Certificates that a server gets automatically, and other TLS state in the state folder.
//!
//! ```text
//! acme ──── an authority on the network ─┐
//! local ─── an authority of this machine ┴─> state folder ──> files that the server's acceptor follows
//! tickets ─ keys of session tickets ────────> state folder
//! ```
//!
//! This crate does not know how requests are served: pending challenges are passed to a [`Publish`](acme::Publish)
//! function.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used)]

pub mod acme;
pub mod local;
mod state;
mod tickets;

pub use state::{Lock, State};
pub use tickets::KeptTickets;

/// How important a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// All is well.
    Info,
    /// The operator may have to do something.
    Warning,
}

/// Where messages for the operator go.
pub type Say = fn(Level, std::fmt::Arguments<'_>);
