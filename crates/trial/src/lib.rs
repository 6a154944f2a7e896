//! How one finds out what changes do, from measurements that are noisy: pure experiments, without I/O and clock.
//!
//! ```text
//!            compare     do two candidates differ?            pairs of figures ──> Verdict
//!               │
//!            effect      the same for a change: throughput, p99, CPU, errors
//!               │
//! Subject <── climb      which changes help?                  noise ─> forward ─> leave one out ─> all ─> orders
//!  set, measure, look
//! ```
//!
//! Whoever has something to change and to measure is a [`Subject`]; it sets, measures, and says when to end.
#![forbid(unsafe_code)]

mod climb;
pub mod compare;
mod effect;
mod found;
mod random;
mod sample;
mod subject;

pub use climb::{Plan, climb};
pub use effect::{Effect, Estimate};
pub use found::{Climbed, End, Found, Status};
pub use random::Random;
pub use sample::{Objective, Sample};
pub use subject::{Go, Progress, Set, Stage, Subject};
