//! A process that takes another's place while its connections stay: a new version of the program.
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
//!   └── publishes that come here still ───────────> drains, and ends
//! ```
//!
//! Both listen on the same sockets meanwhile, so no connection is refused. A batch of subscribers belongs to the former process until
//! it has said `Yours`; whatever goes wrong before, it ends the successor, takes the batch back and publishes again. Subscribers that
//! are encrypted, or streams of HTTP/2, have a state that does not move: they are asked to come back, to a history that has moved.

mod format;
mod giving;
mod link;
mod taking;
#[cfg(test)]
mod tests;

pub use giving::{Former, replace};
pub use taking::{Successor, Whose};

/// Set in the environment of a process that is to take another's place; its standard input is the way to that.
const VARIABLE: &str = "FLATOUT_SUCCEEDS";
