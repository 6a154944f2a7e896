//! A simulator of the whole server: see docs/internals/simulation.md.
//!
//! ```text
//! seed ──> scene: configurations, who may break rules ──> world: workers, clients, upstreams, operator ──> report
//!                                                          │ each step: one of them, drawn                  ├─ hash of all events
//!                                                          └ nobody has anything to do: the clock moves     └─ failure, with its ladder
//! ```
#![forbid(unsafe_code)]

mod bus;
mod carrier;
mod client;
mod crash;
mod disk;
mod event_stream;
mod frames;
mod message;
mod model;
mod observer;
mod pairs;
mod panicked;
mod publication;
mod reduce;
mod run;
mod scene;
mod secure;
mod server;
mod socket;
mod subscriber;
mod subscriber_event;
mod token;
mod trace;
mod tunnel;
mod upstream;
mod world;

pub use pairs::{Pairs, Properties};
pub use panicked::keep_panics;
pub use reduce::{Reduction, reduce};
pub use run::{Failure, Report, run, run_reduced};
pub use trace::Trace;
