//! Climbs: carries changes out on this machine, one at a time, measures each on the user's own load, and takes them
//! back.
//!
//! ```text
//! Plan ──> run ──> trial::climb ──> Ascent
//!                      │ set, leave, measure, look
//!                   ground ──> server     a command that is started and ended, or one that runs
//!                          ──> changes    commands of the user, tunings by name
//!                          ──> generator  our own, or a command whose output is understood
//! ```
//!
//! What takes a reboot waits for it in a file ([`State`]), and [`resume`] goes on from there.
//!
//! It knows neither how a plan is written nor how an outcome is shown.
#![forbid(unsafe_code)]

mod changes;
mod command;
mod gathered;
mod generator;
mod ground;
mod lab;
mod outcome;
mod plan;
mod run;
mod server;
mod state;
mod status;
mod tuned;
mod tunings;
mod understand;
mod variants;

pub use flatout_trial::{
    Block, Effect, End, Estimate, Found, How, Objective, Progress, Sample, Stage, Status,
};
pub use flatout_tune::Needs;
pub use lab::DEVICE as LAB_DEVICE;
pub use outcome::{Ascent, Figures, Mean, Means, Profiles, TriedRung, Waiting};
pub use variants::{Config, Edit};

pub use plan::{Attempt, Error, Fault, FaultAt, Generator, LoadRate, Plan, Rung, ServerPlan, Variant};
pub use run::{Finished, Halfway, resume, run};
pub use state::State;
pub use tuned::Tuned;
pub use tunings::{Reading, Tunings};
