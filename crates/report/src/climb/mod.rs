//! A climb as people and programs read it.

mod axis;
mod course;
mod fall;
pub mod html;
pub mod json;
mod meaning;
mod old;
mod picture;
mod read;
#[cfg(test)]
mod scripted;
pub mod text;

use flatout_climb::{Ascent, End, Error, Figures, Objective};

use crate::Machine;
use crate::secret::masked;

pub use course::Course;
pub use meaning::{Meaning, Today};
pub use old::Old;
pub use picture::svg;
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
    pub outcome: Ascent,
    /// The machine.
    pub machine: Machine,
    /// What the user says of the load of today.
    pub today: Today,
    /// An earlier climb to compare with.
    pub old: Option<Old>,
}

impl Climb {
    /// What the figures of one side mean.
    pub(crate) fn meaning(&self, figures: &Figures) -> Meaning {
        Meaning::of(figures, &self.today, self.outcome.load_rate_per_s.is_some())
    }

    /// The same without what must not be handed on. What was typed comes here without it: see
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
