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

mod format;
mod forwarding;
mod giving;
mod link;
mod taking;
#[cfg(test)]
mod tests;

pub use giving::{Former, replace};
pub use taking::{Successor, Whose};

/// Set in the environment of a successor process; its standard input is the connection to the old one.
const VARIABLE: &str = "FLATOUT_SUCCEEDS";
