//! The load generator: a [`Plan`] goes in, load goes out, an [`Outcome`] comes back.
//!
//! ```text
//! run ──> prepare: each thread makes its connections ──> all meet ──> warm-up ──> counted time ──> Outcome
//! ```
//!
//! Threads share nothing while they measure: each has its own epoll set, connections, read buffer and histogram, and
//! reads the clock once for each connection that is ready. It knows neither the server nor how anything is printed.
//!
//! TLS and HTTP/2 will come in between [`lane`](flatout_lane) and the reader of answers, one file each.
#![forbid(unsafe_code)]

mod answers;
mod candidate;
mod connection;
pub mod find_max;
mod list;
mod machine;
mod outcome;
mod pace;
mod plan;
mod request;
mod run;
mod server_cpu;
mod several;
mod shared;
mod status;
mod subscribe;
mod tally;
mod target;
mod worker;

pub use flatout_lane::connect::Remote;
pub use flatout_lane::cpu::allowed as allowed_cpus;
pub use flatout_lane::process::raise_descriptor_limit;

pub use candidate::{Candidate, Running};
pub use list::list;
pub use outcome::{CLIENT_CPU_SHARE_MAX, Outcome, ServerCpu, ThreadUse};
pub use pace::{Arrival, Pacing};
pub use plan::{Error, Expect, Plan, WrongField};
pub use request::{Mix, Request};
pub use run::{Live, run};
pub use server_cpu::{ServerProcesses, Used};
pub use several::{Control, Duel, FoundRate, duel, search, trials};
pub use shared::Detail;
pub use status::Statuses;
pub use subscribe::{Sequence, Transport};
pub use tally::{ErrorKind, Errors, Latency};
pub use target::Target;
