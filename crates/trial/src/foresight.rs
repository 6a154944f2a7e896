//! What a climb will be able to see, from its A/A runs: the smallest effect that is found in a given number of pairs, and the
//! number of pairs that an effect needs.

use crate::compare::{Level, spread, student};
use crate::effect::figures;
use crate::looks::Look;
use crate::sample::Objective;
use crate::starts::{Pairs, spreads};

/// What the comparisons after the A/A runs will be able to see.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Foresight {
    /// The standard deviation that a pair adds to the logarithm of the ratio.
    spread: f64,
    /// The same of a start, and the number of starts; `None` if the server keeps running.
    starts: Option<(f64, usize)>,
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
    pub(crate) fn of(pairs: &Pairs, objective: Objective, level: Level) -> Option<Foresight> {
        let count = pairs.len();
        if pairs.starts() == 0 {
            let spread = spread(&figures(pairs.runs(), objective))?;
            return Some(Foresight { spread, starts: None, level, pairs: count });
        }
        let (between, spread) = spreads(&pairs.figures(objective))?;
        Some(Foresight { spread, starts: Some((between, pairs.starts())), level, pairs: count })
    }

    /// The smallest gain, as a share, that a comparison of this many pairs finds in four of five climbs.
    pub fn smallest(&self, pairs: usize) -> f64 {
        let pairs = pairs.max(2);
        let (variance, values) = match self.starts {
            None => (self.spread.powi(2), pairs),
            Some((between, starts)) => {
                let runs = (pairs as f64 / starts as f64).max(1.0);
                (between.powi(2) + self.spread.powi(2) / runs, starts)
            }
        };
        let level = self.level.at(Look::Last);
        let errors = student(level, values - 1) + student(MISSED, values - 1);
        (errors * (variance / values as f64).sqrt()).exp_m1()
    }

    /// The number of pairs in which a gain of this share is found in four of five climbs; `None` if no number is enough,
    /// because the starts differ by more.
    pub fn pairs_for(&self, gain: f64) -> Option<usize> {
        let (mut low, mut high) = (2, PAIRS_MAX);
        while low < high {
            let middle = (low + high) / 2;
            if self.smallest(middle) > gain { low = middle + 1 } else { high = middle }
        }
        Some(low).filter(|pairs| self.smallest(*pairs) <= gain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use crate::Sample;
    use crate::compare::Word;

    fn normal(random: &mut Random) -> f64 {
        (-2.0 * random.fraction().ln()).sqrt() * (std::f64::consts::TAU * random.fraction()).cos()
    }

    /// Runs of one start, or of this many that differ by 3 %.
    fn runs(random: &mut Random, count: usize, starts: usize, gain: f64) -> Pairs {
        let mut pairs = Pairs::default();
        let mut start = 1.0;
        for run in 0..count {
            if starts > 0 && run % (count / starts) == 0 {
                pairs.begin_start();
                start = (0.03 * normal(random)).exp();
            }
            let mut sample =
                |by: f64| Sample { requests_per_s: by * (0.03 * normal(random)).exp(), ..Sample::default() };
            pairs.push(sample((1.0 + gain) * start), sample(1.0));
        }
        pairs
    }

    #[test]
    fn more_pairs_see_smaller_effects() {
        let noise = runs(&mut Random::new(21), 40, 0, 0.0);
        let foresight = Foresight::of(&noise, Objective::Throughput, Level::shared(6)).unwrap();
        let smallest = [10, 40, 160].map(|pairs| foresight.smallest(pairs));
        assert!(smallest[0] > 1.9 * smallest[1] && smallest[1] > 1.9 * smallest[2], "{smallest:?}");
        for gain in [0.01, 0.05, 0.3] {
            let pairs = foresight.pairs_for(gain).unwrap();
            assert!(foresight.smallest(pairs) <= gain, "{gain}: {pairs}");
            assert!(pairs == 2 || foresight.smallest(pairs - 1) > gain, "{gain}: {pairs}");
        }
        let one = runs(&mut Random::new(21), 1, 0, 0.0);
        assert_eq!(Foresight::of(&one, Objective::Throughput, Level::ONE), None);
        assert_eq!(Foresight::of(&noise, Objective::Cpu, Level::ONE), None);
    }

    /// Of 200 comparisons with an effect of the size that is called visible, about 160 find it; three standard
    /// deviations of the count are 17, and the spread itself is estimated.
    #[test]
    fn four_of_five_are_found() {
        let mut random = Random::new(22);
        for (starts, pairs) in [(0, 14), (8, 32)] {
            let noise = runs(&mut random, 304, starts, 0.0);
            let foresight = Foresight::of(&noise, Objective::Throughput, Level::shared(6)).unwrap();
            let foresight = Foresight { starts: foresight.starts.map(|_| (0.03, starts)), ..foresight };
            let gain = foresight.smallest(pairs);
            let found = (0..200).filter(|_| {
                let pairs = runs(&mut random, pairs, starts, gain);
                pairs.effect_at(Objective::Throughput, Level::shared(6), Look::Last).word == Word::Faster
            });
            let found = found.count();
            assert!((160 - 25..=160 + 25).contains(&found), "{found} of 200 at {gain}, {starts} starts");
        }
    }

    /// With eight starts that differ by 3 %, no number of runs shows 1 %.
    #[test]
    fn runs_do_not_replace_starts() {
        let foresight =
            Foresight { spread: 0.04, starts: Some((0.03, 8)), level: Level::shared(6), pairs: 80 };
        assert_eq!(foresight.pairs_for(0.01), None);
        assert!(foresight.pairs_for(0.2).is_some());
    }
}
