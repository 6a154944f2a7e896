//! The results of a climb.

use crate::across::Block;
use crate::effect::{Effect, Estimate};

/// The status of a rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It helps.
    Kept,
    /// It makes no significant difference.
    None,
    /// It harms.
    Worse,
    /// It cannot be measured on this path.
    NotMeasurable,
    /// It was not measured.
    Skipped,
}

/// How the effect of a rung was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum How {
    /// Runs with and without it alternated.
    #[default]
    InTurn,
    /// The server kept running, and the change was switched on and off between short blocks of load.
    Switched,
    /// Both variants were alive, and short blocks of load alternated between them.
    SideBySide,
    /// By adding a burden equal to the one that it would remove: its gain is what removing one would gain.
    FromTheOtherSide,
    /// By one block of runs before a reboot and one after it.
    AcrossReboot,
}

/// The result of a rung.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Its status.
    pub status: Status,
    /// How it was measured.
    pub how: How,
    /// Its effect on top of those kept before it.
    pub forward: Option<Effect>,
    /// Its worth among all that were kept.
    pub leave_one_out: Option<Estimate>,
    /// Its Shapley value: its share, averaged over orders.
    pub shapley: Option<Estimate>,
    /// The reason for its status; empty if the figures show it.
    pub reason: String,
}

/// The unchanged server against itself (A/A).
#[derive(Debug, Clone, PartialEq)]
pub struct Noise {
    /// What looked like an effect.
    pub effect: Effect,
    /// The far end of its interval, as a share; `None` if the runs did not report the figure.
    pub floor: Option<f64>,
}

/// The result of a climb.
#[derive(Debug, Clone, PartialEq)]
pub struct Climbed<E> {
    /// The A/A measurement.
    pub noise: Option<Noise>,
    /// The same by the method of changes of the server, if the plan also has others; `noise` is by the method of those then.
    pub noise_of_servers: Option<Noise>,
    /// The rungs, in order.
    pub rungs: Vec<Found>,
    /// Everything kept, against the unchanged server.
    pub total: Option<Effect>,
    /// The rung that waits for a reboot, and the runs of this boot to compare with.
    pub waiting: Option<(usize, Block)>,
    /// How it ended.
    pub end: End<E>,
    /// Why not everything was undone, if so.
    pub left_behind: Option<E>,
}

/// How a climb ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End<E> {
    /// It is complete.
    Done,
    /// The budget was used up.
    Over,
    /// It was interrupted.
    Interrupted,
    /// Something failed.
    Failed(E),
}

impl Status {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Status::Kept => "kept",
            Status::None => "none",
            Status::Worse => "worse",
            Status::NotMeasurable => "not-measurable",
            Status::Skipped => "skipped",
        }
    }
}

impl How {
    /// All of them, for their names.
    pub const ALL: [How; 5] =
        [How::InTurn, How::Switched, How::SideBySide, How::FromTheOtherSide, How::AcrossReboot];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            How::InTurn => "in-turn",
            How::Switched => "switched",
            How::SideBySide => "side-by-side",
            How::FromTheOtherSide => "from-the-other-side",
            How::AcrossReboot => "across-a-reboot",
        }
    }
}

impl<E> Climbed<E> {
    /// The rungs that were kept, one `bool` for each.
    pub fn kept(&self) -> Vec<bool> {
        self.rungs.iter().map(|found| found.status == Status::Kept).collect()
    }

    pub(crate) fn begin(rungs: usize) -> Climbed<E> {
        let found = Found {
            status: Status::Skipped,
            how: How::InTurn,
            forward: None,
            leave_one_out: None,
            shapley: None,
            reason: String::new(),
        };
        Climbed {
            noise: None,
            noise_of_servers: None,
            rungs: vec![found; rungs],
            total: None,
            waiting: None,
            end: End::Done,
            left_behind: None,
        }
    }
}
