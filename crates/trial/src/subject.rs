//! The subject of a climb: can be changed and measured, and has the clock.

use crate::effect::Estimate;
use crate::foresight::Foresight;
use crate::found::Found;
use crate::sample::Sample;

/// The subject of a climb. A set of rungs is one `bool` per rung.
pub trait Subject {
    /// Why the climb cannot continue.
    type Error;

    /// Why the effect of a rung cannot be measured on this path, if so. It is not tried then.
    fn obstacle(&self, _rung: usize) -> Option<String> {
        None
    }

    /// Why a rung is not to be tried, if so.
    fn omission(&self, _rung: usize) -> Option<String> {
        None
    }

    /// Whether a rung adds a burden equal to one that exists and must stay. Its cost is what removing one would gain;
    /// it is never kept.
    fn is_burden(&self, _rung: usize) -> bool {
        false
    }

    /// Whether both variants of a rung are alive in [`Subject::measure_both`]. If other rungs are not, each kind has its own noise.
    fn is_in_the_server(&self, _rung: usize) -> bool {
        false
    }

    /// Whether a rung takes effect with the next boot. Everything that can be measured before is measured, and a
    /// block of runs to compare with those of the next boot.
    fn takes_reboot(&self, _rung: usize) -> bool {
        false
    }

    /// Called before a comparison with both sets and the stage, so that all their runs can be made alike.
    fn compare(&mut self, _stage: Stage, _one: &[bool], _other: &[bool]) {}

    /// Applies exactly these rungs. If one is refused, any set may be applied.
    ///
    /// # Errors
    /// An error that ends the climb.
    fn set(&mut self, on: &[bool]) -> Result<Set, Self::Error>;

    /// Applies exactly these rungs for good: nothing is measured afterwards. Does as much as it can.
    ///
    /// # Errors
    /// What could not be undone.
    fn leave(&mut self, on: &[bool]) -> Result<(), Self::Error>;

    /// Called before the runs of a new start: the next ones are of servers that were started for them.
    fn restart(&mut self) {}

    /// Whether [`Subject::set`] starts the server anew in this comparison. Then several runs follow each start.
    fn is_restarting(&self) -> bool {
        false
    }

    /// Seconds until the budget is used up; without a clock, there is no end.
    fn seconds_left(&self) -> f64 {
        f64::INFINITY
    }

    /// The share of this comparison's time that is over.
    fn spent(&self) -> f64 {
        0.0
    }

    /// One short run with the applied rungs.
    ///
    /// # Errors
    /// An error that ends the climb.
    fn measure(&mut self) -> Result<Sample, Self::Error>;

    /// A pair of runs with two sets, in short blocks in random order: of two servers that are both alive, or of one that keeps
    /// running while the sets are switched. It replaces [`Subject::set`] and [`Subject::measure`] of both. Called first for
    /// each pair.
    ///
    /// # Errors
    /// An error that ends the climb.
    fn measure_both(&mut self, _one: &[bool], _other: &[bool]) -> Result<Both, Self::Error> {
        Ok(Both::Alternate)
    }

    /// Why the subject died in the last run, if it did. The run does not count, and the next [`Subject::set`] starts
    /// it again.
    fn death(&mut self) -> Option<String> {
        None
    }

    /// Whether two sets are equivalent, for example because a later rung replaces an earlier one.
    fn is_same(&self, one: &[bool], other: &[bool]) -> bool {
        one == other
    }

    /// Called with the result of a rung, as soon as it is known and whenever it changes.
    fn found(&mut self, _rung: usize, _found: &Found) {}

    /// Called after the A/A runs with what the comparisons will be able to see.
    fn foresee(&mut self, _foresight: &Foresight) {}

    /// Called before and after each run with the progress. Decides whether to continue, since the subject has the
    /// clock.
    fn look(&mut self, progress: &Progress) -> Go;
}

/// The result of applying rungs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Set {
    /// They are applied.
    Done,
    /// One of them cannot be applied here and now, and why.
    Refused(String),
}

/// The result of a pair of runs in short blocks.
#[derive(Debug, Clone, PartialEq)]
pub enum Both {
    /// They cannot both be alive, nor be switched quickly: their runs have to alternate.
    Alternate,
    /// The run of the first set, and of the other; both were alive.
    Samples([Sample; 2]),
    /// The same of one server, which had the one set or the other in each block.
    Switched([Sample; 2]),
    /// The first set (0) or the other one (1) died, and why. The run does not count.
    Died(usize, String),
}

/// Whether to continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Go {
    /// Continue.
    On,
    /// Go to the next comparison as soon as this one has enough pairs for a verdict.
    Next,
    /// Finish: the budget is used up.
    Over,
    /// Stop at once.
    Interrupted,
}

/// The stage of a climb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The unchanged server against itself (A/A).
    Noise,
    /// The same by the method of changes of the server, if the plan has some. Otherwise, or if it also has others, there is `Noise`.
    NoiseOfServers,
    /// This rung on top of those kept.
    Forward(usize),
    /// The same again, because its effect is not known precisely enough.
    SecondLook(usize),
    /// All kept rungs against all but this one.
    LeaveOneOut(usize),
    /// All kept rungs against none.
    Total,
    /// All kept rungs against themselves: the block of this boot for a rung that needs a reboot.
    Block,
    /// This one of the random orders.
    Order(usize),
}

/// The progress of a climb.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// Complete pairs in this comparison.
    pub pairs: usize,
    /// Their estimate so far.
    pub estimate: Option<Estimate>,
    /// Remaining comparisons and orders, including this one, if half of the untried rungs help.
    pub left: usize,
    /// The share of the remaining time that is for this comparison.
    pub share: f64,
}
