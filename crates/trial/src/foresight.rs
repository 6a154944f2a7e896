//! What a climb will be able to see, from its A/A runs: the smallest effect that is found in a given number of pairs, and the
//! number of pairs that an effect needs.

use crate::compare::{Level, spread, student};
use crate::effect::figures;
use crate::looks::Look;
use crate::sample::{Objective, Sample};

/// What the comparisons after the A/A runs will be able to see.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Foresight {
    /// The standard deviation that a pair adds to the logarithm of the ratio.
    spread: f64,
    level: Level,
    /// The A/A pairs that this is based on.
    pub pairs: usize,
}

/// Of effects of the smallest size that is called visible, one of five is missed: its two-sided probability.
const MISSED: f64 = 0.4;

/// More pairs do not fit into any budget.
const PAIRS_MAX: usize = 1_000_000;

impl Foresight {
    /// From A/A runs, for comparisons at this level; `None` with too few runs.
    pub(crate) fn of(pairs: &[(Sample, Sample)], objective: Objective, level: Level) -> Option<Foresight> {
        let spread = spread(&figures(pairs, objective))?;
        Some(Foresight { spread, level, pairs: pairs.len() })
    }

    /// The smallest gain, as a share, that a comparison of this many pairs finds in four of five climbs.
    pub fn smallest(&self, pairs: usize) -> f64 {
        let pairs = pairs.max(2);
        let level = self.level.at(Look::Last);
        let errors = student(level, pairs - 1) + student(MISSED, pairs - 1);
        (errors * self.spread / (pairs as f64).sqrt()).exp_m1()
    }

    /// The number of pairs in which a gain of this share is found in four of five climbs.
    pub fn pairs_for(&self, gain: f64) -> usize {
        let (mut low, mut high) = (2, PAIRS_MAX);
        while low < high {
            let middle = (low + high) / 2;
            if self.smallest(middle) > gain { low = middle + 1 } else { high = middle }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use crate::compare::{Word, judge_look};

    fn normal(random: &mut Random) -> f64 {
        (-2.0 * random.fraction().ln()).sqrt() * (std::f64::consts::TAU * random.fraction()).cos()
    }

    fn runs(random: &mut Random, count: usize, gain: f64) -> Vec<(Sample, Sample)> {
        let mut sample =
            |by: f64| Sample { requests_per_s: by * (0.03 * normal(random)).exp(), ..Sample::default() };
        (0..count).map(|_| (sample(1.0 + gain), sample(1.0))).collect()
    }

    #[test]
    fn more_pairs_see_smaller_effects() {
        let noise = runs(&mut Random::new(21), 40, 0.0);
        let foresight = Foresight::of(&noise, Objective::Throughput, Level::shared(6)).unwrap();
        let smallest = [10, 40, 160].map(|pairs| foresight.smallest(pairs));
        assert!(smallest[0] > 1.9 * smallest[1] && smallest[1] > 1.9 * smallest[2], "{smallest:?}");
        for gain in [0.01, 0.05, 0.3] {
            let pairs = foresight.pairs_for(gain);
            assert!(foresight.smallest(pairs) <= gain, "{gain}: {pairs}");
            assert!(pairs == 2 || foresight.smallest(pairs - 1) > gain, "{gain}: {pairs}");
        }
        assert_eq!(Foresight::of(&noise[..1], Objective::Throughput, Level::ONE), None);
        assert_eq!(Foresight::of(&noise, Objective::Cpu, Level::ONE), None);
    }

    /// Of 200 comparisons with an effect of the size that is called visible, about 160 find it; three standard
    /// deviations of the count are 17, and the spread itself is estimated.
    #[test]
    fn four_of_five_are_found() {
        let mut random = Random::new(22);
        let noise = runs(&mut random, 300, 0.0);
        let foresight = Foresight::of(&noise, Objective::Throughput, Level::shared(6)).unwrap();
        let gain = foresight.smallest(14);
        let found = (0..200).filter(|_| {
            let figures = figures(&runs(&mut random, 14, gain), Objective::Throughput);
            judge_look(&figures, Level::shared(6), Look::Last).word == Word::Faster
        });
        let found = found.count();
        assert!((160 - 25..=160 + 25).contains(&found), "{found} of 200 at {gain}");
    }
}
