//! Samples stacks of a server, and of the kernel working for it, and reports what a request costs.
//!
//! ```text
//! Plan ── Sampler ── raw chains ── symbols ──> Profile ── areas, compare ──> cost per request
//! ```
//!
//! It works on any process, ours or not. It does not know HTTP, nor how a result is shown.
//!
//! ```no_run
//! use std::time::Duration;
//! use flatout_profile::{Plan, RATE_HZ_DEFAULT, Sampler, Softirq};
//!
//! let plan = Plan { pids: vec![4711], rate_hz: RATE_HZ_DEFAULT, softirq: Softirq::All };
//! let mut sampler = Sampler::start(plan)?;
//! sampler.run_while(|elapsed| elapsed < Duration::from_secs(10));
//! let profile = sampler.finish()?;
//! println!("{}: {} samples", profile.what, profile.sample_count);
//! # Ok::<(), flatout_profile::Error>(())
//! ```
#![forbid(unsafe_code)]

mod area;
mod compare;
mod error;
pub mod process;
mod result;
mod sampler;
mod symbols;

pub use area::{Area, AreaCost};
pub use compare::{Comparison, Per, compare};
pub use error::Error;
pub use flatout_lane::perf::Clock;
pub use result::{Frame, Kind, Profile, Stack, Stacks};
pub use sampler::{Plan, RATE_HZ_DEFAULT, RATE_HZ_MAX, Sampler, Softirq};
