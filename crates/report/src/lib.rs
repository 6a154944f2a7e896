//! Results for people and programs: text, JSON, CSV, an HdrHistogram log, one HTML page.
//!
//! Each format is a function from a [`Measured`], or from a profile ([`flame`]), to a string. Nothing here runs
//! anything or writes anywhere.
//!
//! ```
//! use flatout_report::{secret, unit};
//!
//! assert_eq!(unit::time(1.5e6), "1.50ms");
//! assert_eq!(unit::count(1_234_567), "1,234,567");
//! assert!(!secret::field("Authorization: Bearer s3cret").contains("s3cret"));
//! ```
#![forbid(unsafe_code)]

pub mod climb;
mod comparison;
pub mod csv;
pub mod flame;
pub mod hdr;
pub mod histogram;
pub mod html;
pub mod json;
mod machine;
mod origin;
mod page;
mod plot;
pub mod require;
mod search;
pub mod secret;
mod stages;
pub mod text;
pub mod unit;
mod verdict;

use flatout_load::find_max::{RateStep, Slo, confirmed};
use flatout_load::{Outcome, Plan};
use flatout_trial::compare::Verdict;

use secret::{masked, value};

pub use machine::Machine;
pub use origin::ResultOrigin;
pub use verdict::{Limit, limit};

/// A measurement with everything that is reported with it.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The plan.
    pub plan: Plan,
    /// The URL as it was given.
    pub url: String,
    /// The outcome; of several trials, the one with the median requests per second.
    pub outcome: Outcome,
    /// Requests per second of each trial.
    pub trials: Vec<f64>,
    /// The steps of a search for the highest rate.
    pub steps: Vec<RateStep>,
    /// The objective of that search.
    pub objective: Option<Slo>,
    /// The comparison with another candidate.
    pub comparison: Option<Opponent>,
    /// The machine.
    pub machine: Machine,
    /// How and when it was made.
    pub origin: ResultOrigin,
}

impl Measured {
    /// Warnings for the reader of the figures, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = self.outcome.warnings();
        if !self.steps.is_empty() && confirmed(&self.steps).is_none() {
            found.push(
                "no rate has met the objective three times: the highest that met it once is not confirmed"
                    .to_owned(),
            );
        }
        found
    }

    /// The same without secrets.
    pub fn without_secrets(mut self) -> Measured {
        self.url = masked(&self.url);
        for request in &mut self.plan.requests {
            request.path = masked(&request.path);
            request.fields.iter_mut().for_each(|(name, text)| *text = value(name, text));
        }
        if let Some(comparison) = &mut self.comparison {
            comparison.one = masked(&comparison.one);
            comparison.other = masked(&comparison.other);
        }
        self
    }
}

/// The comparison with another candidate.
#[derive(Debug, Clone)]
pub struct Opponent {
    /// The measured candidate: its URL or its command.
    pub one: String,
    /// The other candidate: its URL or its command.
    pub other: String,
    /// The other candidate's run with the median requests per second.
    pub outcome: Outcome,
    /// Requests per second in each pair: of the measured candidate, of the other.
    pub pairs: Vec<(f64, f64)>,
    /// The verdict on their ratio.
    pub verdict: Verdict,
}
