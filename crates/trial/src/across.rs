//! Changes that need a reboot: one block of runs before it and one after, each within one boot.
//!
//! Runs of two boots cannot alternate. A block measures a configuration against itself, like the A/A run of a climb:
//! this gives a noise floor, and the interval is widened by the larger of both. Other differences between the boots
//! (memory layout, other programs) are part of the effect, but not of the interval; the result says so.

use crate::compare::Level;
use crate::effect::Effect;
use crate::found::{End, Found, How, Status};
use crate::judged::judged;
use crate::sample::{Objective, Sample};

/// The runs of one configuration in one boot.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// In order.
    pub samples: Vec<Sample>,
    /// The far end of their A/A interval, as a share.
    pub noise_floor: f64,
}

/// The result of the runs after the reboot.
#[derive(Debug, Clone, PartialEq)]
pub struct Resumed<E> {
    /// The effect of the rung; `None` if the runs did not finish.
    pub found: Option<Found>,
    /// How it ended.
    pub end: End<E>,
    /// Why the configuration of the first block cannot be applied in this boot, if so.
    pub refused: Option<String>,
    /// Why not everything was undone, if so.
    pub left_behind: Option<E>,
}

impl Block {
    /// From pairs of runs with the same configuration.
    pub(crate) fn of(pairs: &[(Sample, Sample)], objective: Objective) -> Block {
        let estimate = Effect::of(pairs, objective, Level::ONE).on(objective);
        Block {
            samples: pairs.iter().flat_map(|(one, other)| [*one, *other]).collect(),
            noise_floor: estimate.map_or(0.0, |estimate| estimate.far_end()),
        }
    }

    /// The number of pairs.
    pub fn pairs(&self) -> usize {
        self.samples.len() / 2
    }
}

/// The effect of a rung from the runs before and after its reboot. Since all other rungs are applied, it is also its
/// worth among them.
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
