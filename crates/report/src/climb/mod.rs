//! A climb's result for people and programs.

mod axis;
mod cost;
mod course;
mod fall;
pub mod html;
pub mod json;
mod old;
mod picture;
mod read;
#[cfg(test)]
mod scripted;
pub mod text;

use flatout_climb::{End, Error, Figures, Objective, Outcome};

use crate::Machine;
use crate::secret::masked;

pub use cost::{Meaning, Today};
pub use course::Course;
pub use old::Old;
pub use picture::svg;
pub use read::from_json;

/// A climb with everything that is reported with it.
#[derive(Debug)]
pub struct Climb {
    /// The command line, for a shell; `None` if it is not known.
    pub command: Option<String>,
    /// When it ended, in UTC; `None` if it is not known.
    pub date: Option<String>,
    /// The URL as it was given.
    pub url: String,
    /// The objective.
    pub objective: Objective,
    /// The outcome.
    pub outcome: Outcome,
    /// The machine.
    pub machine: Machine,
    /// The user's current load.
    pub today: Today,
    /// An earlier climb to compare with.
    pub old: Option<Old>,
}

impl Climb {
    /// The meaning of one side's figures.
    pub(crate) fn meaning(&self, figures: &Figures) -> Meaning {
        Meaning::of(figures, &self.today, self.outcome.load_rate_per_s.is_some())
    }

    /// The same without secrets. The command line is already masked here: see
    /// [`secret::arguments`](crate::secret::arguments).
    pub fn without_secrets(mut self) -> Climb {
        let outcome = &mut self.outcome;
        if let End::Failed(error) = &outcome.end {
            outcome.end = End::Failed(Error::System(masked(&error.to_string())));
        }
        let rungs = outcome.rungs.iter_mut();
        let told = rungs
            .flat_map(|rung| [Some(&mut rung.found.reason), rung.apply.as_mut(), rung.take_back.as_mut()]);
        let all = [
            Some(&mut self.url),
            self.command.as_mut(),
            outcome.apply.as_mut(),
            outcome.take_back.as_mut(),
            outcome.left_behind.as_mut(),
            outcome.diff.as_mut(),
        ];
        told.chain(all).flatten().chain(&mut outcome.next).for_each(|text| *text = masked(text));
        self
    }
}
