//! Climbs: carries changes out on this machine, one at a time, measures each on the user's own load, and takes them
//! back.
//!
//! It knows neither how a plan is written nor how an outcome is shown.
#![forbid(unsafe_code)]

mod outcome;
mod plan;
mod tunings;

pub use flatout_trial::{Effect, Estimate, Found, Objective, Status};
pub use outcome::{Climbed, End, Figures, Outcome};
pub use plan::{Change, Error, Generator, Needs, Plan, Rung, Server, Variant};
pub use tunings::{NoTunings, Tunings};
