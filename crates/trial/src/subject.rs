//! What is climbed: something that can be changed and measured, and that has the clock.

use crate::effect::Estimate;
use crate::found::Found;
use crate::sample::Sample;

/// What is changed and measured. A set of rungs is one `bool` for each rung.
pub trait Subject {
    /// Why the climb cannot go on.
    type Error;

    /// Why the effect of a rung could not be seen on this path, if so. It is not tried then.
    fn obstacle(&self, _rung: usize) -> Option<String> {
        None
    }

    /// Why a rung is not to be tried, if so.
    fn omission(&self, _rung: usize) -> Option<String> {
        None
    }

    /// Whether a rung adds a burden equal to one that is there and must stay. What it costs is what taking one away
    /// would gain; it is never kept.
    fn is_burden(&self, _rung: usize) -> bool {
        false
    }

    /// Whether a rung takes effect with the next boot. What can be measured before is measured, and a block of runs that
    /// those of the next boot are held against.
    fn takes_reboot(&self, _rung: usize) -> bool {
        false
    }

    /// Called before a comparison with both of its sets and its purpose, so that all their runs can be made alike.
    fn compare(&mut self, _stage: Stage, _one: &[bool], _other: &[bool]) {}

    /// Puts exactly these rungs in place. If one is refused, nothing has to be in place.
    ///
    /// # Errors
    /// What ends the climb.
    fn set(&mut self, on: &[bool]) -> Result<Set, Self::Error>;

    /// Puts exactly these rungs in place for good: nothing is measured afterwards. Goes as far as it can.
    ///
    /// # Errors
    /// What could not be undone.
    fn leave(&mut self, on: &[bool]) -> Result<(), Self::Error>;

    /// One short run with what is in place.
    ///
    /// # Errors
    /// What ends the climb.
    fn measure(&mut self) -> Result<Sample, Self::Error>;

    /// Whether two sets come to the same, as when a later rung replaces what an earlier one did.
    fn is_same(&self, one: &[bool], other: &[bool]) -> bool {
        one == other
    }

    /// Called with what is known of a rung, as soon as it is known and whenever it changes.
    fn found(&mut self, _rung: usize, _found: &Found) {}

    /// Called before and after each run with the progress. It has the clock, and decides whether to go on.
    fn look(&mut self, progress: &Progress) -> Go;
}

/// What became of putting rungs in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Set {
    /// They are.
    Done,
    /// One of them cannot be, here and now; why.
    Refused(String),
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Go {
    /// Yes.
    On,
    /// With the next comparison, as soon as this one has pairs enough for a judgement.
    Next,
    /// To the end: the budget is used up.
    Over,
    /// At once.
    Interrupted,
}

/// Where the climb is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing against nothing.
    Noise,
    /// This rung on top of those kept.
    Forward(usize),
    /// The same again, because it is not known exactly enough.
    SecondLook(usize),
    /// All kept rungs against all but this one.
    LeaveOneOut(usize),
    /// All kept rungs against none.
    Total,
    /// All kept rungs against themselves: this boot's part of what takes a reboot.
    Block,
    /// This of the random orders.
    Order(usize),
}

/// How far the climb is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// Whole pairs in this comparison.
    pub pairs: usize,
    /// What they say so far.
    pub estimate: Option<Estimate>,
    /// Comparisons and orders to go, this one included, if half of what is still to be tried helps.
    pub left: usize,
}
