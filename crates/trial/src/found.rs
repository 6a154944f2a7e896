//! What a climb finds.

use crate::across::Block;
use crate::effect::{Effect, Estimate};

/// What became of a rung.
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

/// How the effect of a rung was found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum How {
    /// Runs with it and without it took turns.
    #[default]
    InTurn,
    /// By a burden equal to the one that it would take away: the gain is what taking one away would gain.
    FromTheOtherSide,
    /// By one block of runs before a reboot and one after it.
    AcrossReboot,
}

/// What is known of a rung.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// What became of it.
    pub status: Status,
    /// How that was found out.
    pub how: How,
    /// What it does on top of those kept before it.
    pub forward: Option<Effect>,
    /// What it is worth among all that were kept.
    pub leave_one_out: Option<Estimate>,
    /// Its share, averaged over orders.
    pub shapley: Option<Estimate>,
    /// Why its status is what it is; empty where the figures say it.
    pub reason: String,
}

/// What a climb found.
#[derive(Debug, Clone, PartialEq)]
pub struct Climbed<E> {
    /// Nothing against nothing.
    pub noise: Option<Effect>,
    /// An effect that is no larger is none: the far end of the interval of nothing against nothing, as a share.
    pub noise_floor: Option<f64>,
    /// The rungs, in their order.
    pub rungs: Vec<Found>,
    /// All that was kept against nothing.
    pub total: Option<Effect>,
    /// The rung that waits for a reboot, and the runs of this boot that it is to be held against.
    pub waiting: Option<(usize, Block)>,
    /// How it ended.
    pub end: End<E>,
    /// Why not everything could be undone, if so.
    pub left_behind: Option<E>,
}

/// How a climb ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End<E> {
    /// All was found out.
    Done,
    /// The budget was used up before.
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
    pub const ALL: [How; 3] = [How::InTurn, How::FromTheOtherSide, How::AcrossReboot];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            How::InTurn => "in-turn",
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
            noise_floor: None,
            rungs: vec![found; rungs],
            total: None,
            waiting: None,
            end: End::Done,
            left_behind: None,
        }
    }
}
