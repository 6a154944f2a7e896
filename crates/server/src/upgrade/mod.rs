//! Replaces a process by a new version of the program while connections stay open.
//!
//! ```text
//! former                                         successor, started by it
//!   ├── listeners ────────────────────────────────> opens all that it serves
//!   │ <──────────────────────────────────────────── Ready
//!   ├── publishes wait; channels, messages ───────> its workers serve
//!   │ <──────────────────────────────────────────── Serving
//!   ├── Batch: up to 64 subscribers ──────────────> holds them
//!   │ <──────────────────────────────────────────── Got
//!   ├── Yours ─────────────────────────────────────> they are its own
//!   ├── Commit: it publishes. Done ────────────────> channels that nobody needs are forgotten again
//!   └── publishes that come here still, keys that
//!       its last requests invalidate ──────────────> drains, and ends
//! ```
//!
//! Both listen on the same sockets meanwhile, so no connection is refused. A batch of subscribers belongs to
//! the old process until it has sent `Yours`; if anything fails before, it kills the successor, serves the
//! batch again and resumes publishing. Subscribers over TLS or HTTP/2 streams have state that cannot move:
//! they are asked to reconnect, and find the history in the new process.
//!
//! If the old process gets SIGTERM before the successor serves, it kills the successor; later, it has the successor
//! stop too. If the old process ends in any other way, the successor, which has the listeners, serves alone.

mod format;
mod forward;
mod link;
mod predecessor;
mod program;
#[cfg(feature = "simulation")]
pub(crate) mod simulated;
mod successor;
#[cfg(test)]
mod tests;

pub use predecessor::{Predecessor, Takeover, replace};
pub(crate) use program::Program;
pub use successor::{ListenerOwner, Successor};

/// Set in the environment of a successor process; its standard input is the connection to the old one.
const VARIABLE: &str = "FLATOUT_SUCCEEDS";
