//! The load generator: a [`Plan`] goes in, load goes out, an [`Outcome`] comes back.
//!
//! ```text
//! run ──> prepare: each thread makes its connections ──> all meet ──> warm-up ──> counted time ──> Outcome
//! ```
//!
//! Threads share nothing while they measure: each has its own epoll set, connections, read buffer and histogram, and
//! reads the clock once for each ready connection. This crate does not know the server or how anything is printed.
//!
//! TLS lies below the response reader (`socket`); HTTP/2 replaces it (`streams`).
#![forbid(unsafe_code)]

mod answers;
mod candidate;
mod connection;
mod disturbance;
pub mod find_max;
mod handshakes;
mod kernel_work;
mod list;
mod machine;
mod outcome;
mod pace;
mod plan;
mod probe;
mod request;
mod run;
mod server_cpu;
mod several;
mod shared;
pub mod side_by_side;
mod socket;
mod stages;
mod status;
mod streams;
mod subscribe;
mod tally;
mod target;
mod template;
mod worker;

pub use flatout_lane::connect::Remote;
pub use flatout_lane::cpu::allowed as allowed_cpus;
pub use flatout_lane::process::raise_descriptor_limit;
pub use flatout_tls::ClientPlan;

pub use candidate::{Candidate, Running};
pub use handshakes::{Agreed, Handshakes, Security};
pub use kernel_work::KernelWork;
pub use list::list;
pub use outcome::{CLIENT_CPU_SHARE_MAX, Outcome, ServerCpu, StageOutcome, ThreadUse};
pub use pace::{Arrival, Pacing};
pub use plan::{Error, Expect, Plan, WrongField};
pub use request::{Mix, Request};
pub use run::{Live, run};
pub use server_cpu::{ServerProcesses, Used};
pub use several::{Control, Duel, FoundRate, duel, search, trials};
pub use shared::Detail;
pub use stages::{STAGES_MAX, Stage};
pub use status::Statuses;
pub use subscribe::{Sequence, Transport};
pub use tally::{ErrorKind, Errors, Latency};
pub use target::Target;
