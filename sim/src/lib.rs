//! A simulator of the whole server: see docs/internals/simulation.md.
//!
//! ```text
//! seed ──> scene: configurations, who may break rules ──> world: workers, clients, upstreams, operator ──> report
//!                                                          │ each step: one of them, drawn                  ├─ hash of all events
//!                                                          └ nobody has anything to do: the clock moves     └─ failure, with its ladder
//! ```
#![forbid(unsafe_code)]

mod carrier;
mod client;
mod message;
mod model;
mod reduce;
mod scene;
mod socket;
mod trace;
mod upstream;
mod world;

pub use reduce::{Reduction, reduce};
pub use world::{Failure, Report, run, run_reduced};
