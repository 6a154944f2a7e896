//! How one finds out what changes do, from measurements that are noisy: pure experiments, without I/O and clock.
//!
//! ```text
//!            compare     do two candidates differ?            pairs of figures ──> Verdict
//!               │
//!            effect      the same for a change: throughput, p99, CPU, errors
//!               │
//! Subject <── climb      which changes help?                  noise ─> forward ─> leave one out ─> all ─> orders
//!               │
//!            across      the same for what takes a reboot     a block of runs before and one after
//!  set, measure, look
//! ```
//!
//! Whoever has something to change and to measure is a [`Subject`]; it sets, measures, and says when to end.
#![forbid(unsafe_code)]

mod across;
mod climb;
pub mod compare;
mod effect;
mod found;
mod judged;
mod random;
mod sample;
mod subject;

pub use across::{Block, Resumed};
pub use climb::{Plan, climb, resume};
pub use effect::{Effect, Estimate, Levels};
pub use found::{Climbed, End, Found, How, Status};
pub use judged::STAYS;
pub use random::Random;
pub use sample::{Objective, Sample};
pub use subject::{Go, Progress, Set, Stage, Subject};
