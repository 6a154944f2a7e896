//! Samples stacks of a server, and of what the kernel does for it, and says what a request costs.
//!
//! ```text
//! Plan ── Sampler ── raw chains ── symbols ──> Profile ── areas, compare ──> cost per request
//! ```
//!
//! It works on any process, ours or not. It knows neither HTTP nor how a result is shown.
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
