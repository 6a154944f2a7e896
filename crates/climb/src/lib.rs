//! Climbs: applies changes to this machine, one at a time, measures each with the user's own load, and undoes them.
//!
//! ```text
//! Plan ──> run ──> trial::climb ──> Outcome
//!                      │ set, leave, measure, look
//!                   machine ─> server     a command that is started and ended, or one that runs
//!                          ──> changes    commands of the user, tunings by name
//!                          ──> generator  our own, or a command whose output is understood
//! ```
//!
//! If a reboot is needed, the state is stored in a file ([`State`]), and [`resume`] continues from there.
//!
//! This crate does not know how a plan is written or how an outcome is shown.
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use flatout_climb::{Attempt, Generator, Needs, Plan, Rung, ServerPlan, Tuned, Variant, run};
//! use flatout_tune::{Host, ServerSelector};
//!
//! let huge = Variant { set: Some("echo 1024 >/proc/sys/vm/nr_hugepages".to_owned()), ..Variant::default() };
//! let rung = Rung { name: "huge pages".to_owned(), change: Attempt::Variant(huge), needs: Needs::AnyPath };
//! let generator = Generator::Command("wrk -d 3 http://127.0.0.1:8080/".to_owned());
//! let server = ServerPlan::Command("./server".to_owned());
//! let plan = Plan::new(server, "http://127.0.0.1:8080/".to_owned(), generator, vec![rung]);
//! let host = Host::live();
//! let mut tunings = Tuned::new(&host, ServerSelector { port: Some(8080), pid: None, device: None }, host.state_default(), false);
//! let outcome = run(&plan, &mut tunings, &AtomicBool::new(false), &mut |_| ())?;
//! println!("{:?}", outcome.apply);
//! # Ok::<(), flatout_climb::Error>(())
//! ```
#![forbid(unsafe_code)]

mod changes;
mod command;
mod evidence;
mod folders;
mod gathered;
mod generator;
mod lab;
mod machine;
mod outcome;
mod output;
mod plan;
mod run;
mod server;
mod side_by_side;
mod state;
mod status;
mod tuned;
mod variants;

pub use flatout_trial::{
    Block, Disturbance, Effect, End, Estimate, Found, How, Noise, Objective, Progress, Sample, Stage, Status,
};
pub use flatout_tune::Needs;
pub use lab::DEVICE as LAB_DEVICE;
pub use outcome::{Figures, Mean, Means, Outcome, Profiles, TriedRung, Waiting};
pub use variants::{Config, Edit, Facts};

pub use plan::{Attempt, Error, Fault, FaultAt, Generator, LoadRate, Plan, Rung, ServerPlan, Variant};
pub use run::{Ahead, ClimbProgress, Finished, resume, run};
pub use state::State;
pub use tuned::{Reading, Tuned};
