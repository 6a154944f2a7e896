//! A climb as people and programs read it.

mod axis;
pub mod html;
pub mod json;
mod meaning;
mod old;
mod read;
#[cfg(test)]
mod scripted;
pub mod text;

use flatout_climb::{Objective, Outcome};

use crate::Machine;

pub use meaning::{Meaning, Today};
pub use old::Old;
pub use read::from_json;

/// A climb with all that belongs to it.
#[derive(Debug)]
pub struct Climb {
    /// The command line, for a shell; none where it is not known.
    pub command: Option<String>,
    /// The URL as it was given.
    pub url: String,
    /// What rungs were kept for.
    pub objective: Objective,
    /// What came out.
    pub outcome: Outcome,
    /// The machine.
    pub machine: Machine,
    /// What the user says of the load of today.
    pub today: Today,
    /// An earlier climb to compare with.
    pub old: Option<Old>,
}
