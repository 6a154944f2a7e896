//! Finds out what changes do from noisy measurements: the experiment's method, without I/O or a clock.
//!
//! ```text
//!            compare     do two candidates differ?            pairs of figures ──> Verdict
//!               │
//!            effect      the same for a change: throughput, p99, CPU, errors
//!               │
//! Subject <── climb      which changes help?                  noise ─> forward ─> leave one out ─> all ─> orders
//!               │
//!            across      the same for what takes a reboot     a block of runs before and one after
//!            turns       two servers that are both alive      blocks of load in random order ──> one pair of runs
//!            shapley     the share of each change              balanced orders, means that add up
//!            starts      servers that are started anew        runs of several starts ──> the variance between starts
//!  set, measure, look
//! ```
//!
//! The caller implements [`Subject`]: it applies changes, measures, and decides when to stop.
//!
//! ```
//! use flatout_trial::compare::{Level, Word, judge};
//!
//! // Requests a second of two candidates in pairs of runs.
//! let pairs: Vec<(f64, f64)> = (0..20).map(|run| (1100.0 + f64::from(run % 3), 1000.0 + f64::from(run % 2))).collect();
//! let verdict = judge(&pairs, Level::ONE);
//! assert_eq!(verdict.word, Word::Faster);
//! assert!(1.09 < verdict.low && verdict.high < 1.11);
//! ```
#![forbid(unsafe_code)]

mod across;
mod climb;
pub mod compare;
mod effect;
mod errors;
mod foresight;
mod found;
mod judged;
mod looks;
mod random;
mod sample;
mod shapley;
mod starts;
mod subject;
mod turns;

pub use across::{Block, Resumed};
pub use climb::{Plan, climb, resume};
pub use effect::{Effect, Estimate, Levels};
pub use foresight::Foresight;
pub use found::{Climbed, End, Found, How, Noise, Status};
pub use judged::STAYS;
pub use looks::{INTERIM_PAIRS, Look};
pub use random::Random;
pub use sample::{Disturbance, Objective, Sample};
pub use shapley::ORDERS_MIN;
pub use starts::{STARTS_MIN, judge_starts};
pub use subject::{Both, Go, Progress, Set, Stage, Subject};
pub use turns::{Turn, is_steady, samples};
