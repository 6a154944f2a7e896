//! The waterfall of a climb as numbers: the level before and after each rung. Text, page and picture all draw this.

use flatout_climb::{Estimate, Status, TriedRung};

use super::Climb;
use super::text::{figure, level};

/// All rungs, and the total of those kept. Levels are multiples of the unchanged server's.
pub(super) struct Fall<'c> {
    pub(super) steps: Vec<Step<'c>>,
    pub(super) total: Option<Estimate>,
    climb: &'c Climb,
}

/// One rung.
pub(super) struct Step<'c> {
    pub(super) rung: &'c TriedRung,
    /// Its own gain, on top of the rungs kept before it.
    pub(super) gain: Option<Estimate>,
    /// The levels before and after it: the same unless it was kept.
    pub(super) begun: f64,
    pub(super) ended: f64,
}

impl<'c> Fall<'c> {
    pub(super) fn of(climb: &'c Climb) -> Fall<'c> {
        let mut level = 1.0;
        let step = |rung: &'c TriedRung| {
            let gain = rung.found.forward.as_ref().and_then(|effect| effect.on(climb.objective));
            let is_kept = rung.found.status == Status::Kept;
            let begun = level;
            level *= gain.filter(|_| is_kept).map_or(1.0, |gain| 1.0 + gain.gain);
            Step { rung, gain, begun, ended: level }
        };
        let steps = climb.outcome.rungs.iter().map(step).collect();
        let total = climb.outcome.total.as_ref().and_then(|total| total.on(climb.objective));
        Fall { steps, total, climb }
    }

    /// The combined level of the kept rungs.
    pub(super) fn top(&self) -> f64 {
        self.steps.last().map_or(1.0, |step| step.ended)
    }

    /// The measured figure before, at a level; empty if there is none.
    pub(super) fn figure_at(&self, at: f64) -> String {
        let before = self.climb.outcome.before.as_ref();
        let before = before.and_then(|figures| figure(figures, self.climb.objective));
        before.map(|before| level(before, at, self.climb.objective)).unwrap_or_default()
    }

    /// The measured figure after; empty if there is none.
    pub(super) fn figure_after(&self) -> String {
        let after = self.climb.outcome.after.as_ref();
        let after = after.and_then(|figures| figure(figures, self.climb.objective));
        after.map(|after| level(after, 1.0, self.climb.objective)).unwrap_or_default()
    }
}

impl Step<'_> {
    /// Its gain, relative to the unchanged server.
    pub(super) fn bar(&self) -> Option<Estimate> {
        let raise = |gain: f64| self.begun * (1.0 + gain) - 1.0;
        self.gain.map(|gain| Estimate {
            gain: raise(gain.gain),
            low: raise(gain.low),
            high: raise(gain.high),
        })
    }

    pub(super) fn is_kept(&self) -> bool {
        self.rung.found.status == Status::Kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::climb::scripted;

    #[test]
    fn a_step_starts_where_the_last_kept_one_ended() {
        let climb = scripted::climb();
        let fall = Fall::of(&climb);
        let levels: Vec<(f64, f64)> = fall.steps.iter().map(|step| (step.begun, step.ended)).collect();
        assert!(levels[0].0 == 1.0 && (levels[0].1 - 1.82).abs() < 1e-9);
        assert!((fall.top() - 1.82 * 1.114).abs() < 1e-9);
        assert!(levels[2..].iter().all(|(begun, ended)| begun == ended && *begun == fall.top()));
        assert!((fall.steps[1].bar().unwrap().gain - (1.82 * 1.114 - 1.0)).abs() < 1e-9);
        assert_eq!((fall.figure_at(1.0).as_str(), fall.figure_after().as_str()), ("101,234/s", "204,567/s"));
    }
}
