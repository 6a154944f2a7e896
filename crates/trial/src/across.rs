//! What takes a reboot: one block of runs before it and one after, each made by one boot alone.
//!
//! The runs of two boots cannot take turns. So a block is nothing against nothing, as the noise run of a climb is: it
//! brings its own noise floor, and the interval reaches farther by the larger of both. What else differs from boot to boot
//! (where memory came to lie, what else was started) is in the effect and in no interval; that is told with it.

use crate::compare::Level;
use crate::effect::Effect;
use crate::found::{End, Found, How, Status};
use crate::judged::judged;
use crate::sample::{Objective, Sample};

/// The runs of one configuration in one boot.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// In their order.
    pub samples: Vec<Sample>,
    /// The far end of their interval of nothing against nothing, as a share.
    pub noise_floor: f64,
}

/// What came of the runs after the reboot.
#[derive(Debug, Clone, PartialEq)]
pub struct Resumed<E> {
    /// What the rung does; none where the runs did not finish.
    pub found: Option<Found>,
    /// How it ended.
    pub end: End<E>,
    /// Why the configuration of the first block cannot be had in this boot, if so.
    pub refused: Option<String>,
    /// Why not everything could be undone, if so.
    pub left_behind: Option<E>,
}

impl Block {
    /// Of pairs of runs that were all made with the same in place.
    pub(crate) fn of(pairs: &[(Sample, Sample)], objective: Objective) -> Block {
        let estimate = Effect::of(pairs, objective, Level::ONE).on(objective);
        Block {
            samples: pairs.iter().flat_map(|(one, other)| [*one, *other]).collect(),
            noise_floor: estimate.map_or(0.0, |estimate| estimate.far_end()),
        }
    }

    /// How many pairs of runs it has.
    pub fn pairs(&self) -> usize {
        self.samples.len() / 2
    }
}

/// What a rung does of which there are the runs before the reboot that it took and those after it. On top of all the
/// others, that is also what it is worth among them.
pub(crate) fn across(before: &Block, after: &Block, objective: Objective, level: Level) -> Found {
    let floor = before.noise_floor.max(after.noise_floor);
    let effect = Effect::apart(&after.samples, &before.samples, objective, level).widened(floor, objective);
    let (status, mut reason) = judged(&effect, objective);
    if !reason.is_empty() {
        reason.push_str("; ");
    }
    reason.push_str("measured across a reboot: other differences between the two boots are part of it");
    Found {
        status,
        how: How::AcrossReboot,
        leave_one_out: effect.on(objective).filter(|_| status == Status::Kept),
        shapley: None,
        forward: Some(effect),
        reason,
    }
}
