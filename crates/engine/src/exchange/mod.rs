//! Requests that wait for something: their body, their handler, their client.
//!
//! ```text
//!                       ┌ task (future, body) ─┐
//! Request::park ── key ─┤ guest                ├─ Lane: answer, push, end ──> outbox ── attended to ──> connection
//!                       └ another thread ──────┘  (Mailbox::run)
//! ```
//!
//! An exchange is an entry in its worker's table, under a key with a generation, and knows neither sockets nor
//! framing. Items given to it wait in its outbox until the worker handles them, in the same turn. A request that was
//! received completely and gets its response at once has no exchange.

mod entry;
mod guest;
mod intake;
mod lane;
mod mailbox;
mod permits;
mod pipes;
mod place;
mod relay;
mod streams;
mod tasks;
mod tunnel;

pub(crate) use entry::{Exchange, Outgoing};
pub use guest::{GuestEvent, GuestKey, Guests};
pub(crate) use intake::{Acceptance, CollectedRequest, Intake, Memory};
pub use lane::{BodyMemory, Lane, Pull, Push, WorkerHold};
pub(crate) use mailbox::{DrainTime, Mail, WorkerSockets};
pub use mailbox::{Mailbox, MailboxFull};
pub use pipes::{PIPE_BYTES, PooledPipe};
pub use place::Worker;
pub(crate) use relay::{bridge, relay};
pub(crate) use tasks::{panicked, spawn_body, spawn_response};
pub use tunnel::{Tunnel, TunnelEnd, TunnelProgress};
