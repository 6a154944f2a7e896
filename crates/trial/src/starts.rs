//! Several starts of the same servers: what differs from start to start is part of the interval.
//!
//! ```text
//! start   1        2        3        4        5 …
//! runs    ▪▪▪▪▪    ▪▪▪▪▪    ▪▪▪▪▪    ▪▪▪▪▪    ▪▪▪▪▪   pairs of runs, with the change and without it
//! mean      d₁       d₂       d₃       d₄       d₅    of the logarithms of their ratios
//! ```
//!
//! The same program is faster after one start than after another: its memory is laid out anew, its connections and threads
//! meet other CPUs. Further runs of the same processes do not show this, however many there are. So each start of the two
//! servers gives one value, and the interval comes from the variance between these values, with Student's t. That variance
//! contains the one within the starts.
//!
//! # Source
//! Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013: an experiment with several levels, of which
//! the highest decides.

use crate::compare::{Level, Verdict, mean_log, verdict_of_values};
use crate::effect::Effect;
use crate::looks::Look;
use crate::sample::{Objective, Sample};

/// Fewest starts for a verdict.
pub const STARTS_MIN: usize = 4;

/// Starts that a comparison of two servers is divided into if both are alive: their starts cost little time.
pub(crate) const STARTS_SIDE_BY_SIDE: usize = 10;

/// The same if each has to be started alone.
pub(crate) const STARTS_IN_TURN: usize = 6;

/// Judges pairs of figures, where more is better, that are grouped by the start that they were measured in, at a planned
/// look. With fewer than [`STARTS_MIN`] starts that have a figure there is no verdict.
pub fn judge_starts(starts: &[Vec<(f64, f64)>], level: Level, look: Look) -> Verdict {
    verdict_of_values(&means(starts), STARTS_MIN, level.at(look))
}

/// The logarithm of the ratio in each start that has one.
fn means(starts: &[Vec<(f64, f64)>]) -> Vec<f64> {
    starts.iter().filter_map(|start| mean_log(start)).collect()
}

/// How the logarithm of the ratio differs, as standard deviations: between starts, and between the runs of one start.
pub(crate) fn spreads(starts: &[Vec<(f64, f64)>]) -> Option<(f64, f64)> {
    let means = means(starts);
    let variance = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64
    };
    if means.len() < STARTS_MIN {
        return None;
    }
    let logs = |start: &Vec<(f64, f64)>| -> Vec<f64> {
        start.iter().map(|(one, other)| (one / other).ln()).filter(|log| log.is_finite()).collect()
    };
    let within: Vec<Vec<f64>> = starts.iter().map(logs).filter(|logs| logs.len() > 1).collect();
    let runs = starts.iter().map(Vec::len).sum::<usize>() as f64 / starts.len() as f64;
    let within = within.iter().map(|logs| variance(logs)).sum::<f64>() / within.len().max(1) as f64;
    let between = (variance(&means) - within / runs).max(0.0);
    Some((between.sqrt(), within.sqrt()))
}

/// Runs with one set and with the other, in the order of their starts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pairs {
    runs: Vec<(Sample, Sample)>,
    /// Where the runs of each start begin; empty if the server was not started for these runs.
    begins: Vec<usize>,
}

impl Pairs {
    /// The runs that follow are of new starts.
    pub(crate) fn begin_start(&mut self) {
        // A start without a run has no place here.
        if self.begins.last() != Some(&self.runs.len()) {
            self.begins.push(self.runs.len());
        }
    }

    pub(crate) fn push(&mut self, with: Sample, without: Sample) {
        self.runs.push((with, without));
    }

    pub(crate) fn runs(&self) -> &[(Sample, Sample)] {
        &self.runs
    }

    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// The number of starts that have runs.
    pub(crate) fn starts(&self) -> usize {
        self.begins.iter().filter(|begin| **begin < self.runs.len()).count()
    }

    /// The runs of the last start.
    pub(crate) fn of_last_start(&self) -> usize {
        self.runs.len() - self.begins.last().copied().unwrap_or(0)
    }

    /// Whether these are enough for a verdict.
    pub(crate) fn are_enough(&self, level: Level) -> bool {
        match self.starts() {
            0 => self.runs.len() >= level.pairs_min(),
            starts => starts >= STARTS_MIN,
        }
    }

    /// The figures of each start.
    pub(crate) fn figures(&self, objective: Objective) -> Vec<Vec<(f64, f64)>> {
        let ends = self.begins.iter().skip(1).copied().chain([self.runs.len()]);
        let starts = self.begins.iter().zip(ends).map(|(&begin, end)| &self.runs[begin..end]);
        starts.map(|runs| crate::effect::figures(runs, objective)).collect()
    }

    /// The effect so far, whose interval holds at all times at once.
    pub(crate) fn effect(&self, objective: Objective, level: Level) -> Effect {
        if self.starts() == 0 {
            return Effect::of(&self.runs, objective, level);
        }
        Effect::of_values(&self.runs, objective, level, |objective| {
            let values: Vec<(f64, f64)> =
                means(&self.figures(objective)).into_iter().map(|log| (log.exp(), 1.0)).collect();
            crate::compare::judge(&values, level)
        })
    }

    /// The effect at a planned look.
    pub(crate) fn effect_at(&self, objective: Objective, level: Level, look: Look) -> Effect {
        if self.starts() == 0 {
            return Effect::at_look(&self.runs, objective, level, look);
        }
        let effect = Effect::of_values(&self.runs, objective, level, |objective| {
            judge_starts(&self.figures(objective), level, look)
        });
        Effect { starts: self.starts(), ..effect }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Word;

    fn run(with: f64, without: f64) -> (Sample, Sample) {
        let sample = |requests_per_s| Sample { requests_per_s, ..Sample::default() };
        (sample(with), sample(without))
    }

    /// 40 runs of one start agree on 5 %; the four starts do not.
    #[test]
    fn many_runs_of_few_starts_are_few_values() {
        let starts: Vec<Vec<(f64, f64)>> = [1.10, 1.02, 1.12, 0.96]
            .map(|ratio| (0..10).map(|run| (ratio * (1.0 + 0.001 * f64::from(run % 2)), 1.0)).collect())
            .to_vec();
        let verdict = judge_starts(&starts, Level::ONE, Look::Last);
        assert_eq!(verdict.word, Word::NoDifference, "{verdict:?}");
        assert!((verdict.ratio - 1.05).abs() < 0.01, "{verdict:?}");
        let all: Vec<(f64, f64)> = starts.concat();
        assert_eq!(crate::compare::judge_look(&all, Level::ONE, Look::Last).word, Word::Faster);
    }

    /// Values 1 to 4 have the mean 2.5, the standard error √(5/3)/2 and, at 5 %, t = 3.182.
    #[test]
    fn the_interval_is_students() {
        let starts: Vec<Vec<(f64, f64)>> = (1..=4).map(|log| vec![(f64::from(log).exp(), 1.0)]).collect();
        let verdict = verdict_of_values(&means(&starts), STARTS_MIN, 0.05);
        let half = 3.182_446 * (5.0_f64 / 3.0).sqrt() / 2.0;
        assert!((verdict.ratio.ln() - 2.5).abs() < 1e-9, "{verdict:?}");
        assert!(
            (verdict.high.ln() - 2.5 - half).abs() < 1e-5 && (2.5 - half - verdict.low.ln()).abs() < 1e-5
        );
        assert!(
            judge_starts(&starts[..3], Level::ONE, Look::Last).ratio.is_nan(),
            "three starts are too few"
        );
    }

    #[test]
    fn runs_belong_to_their_start() {
        let mut pairs = Pairs::default();
        assert_eq!((pairs.starts(), pairs.of_last_start()), (0, 0));
        for start in 0..3 {
            pairs.begin_start();
            pairs.begin_start();
            (0..=start).for_each(|_| pairs.push(run(2.0, 1.0).0, run(2.0, 1.0).1));
        }
        assert_eq!((pairs.len(), pairs.starts(), pairs.of_last_start()), (6, 3, 3));
        let lengths: Vec<usize> = pairs.figures(Objective::Throughput).iter().map(Vec::len).collect();
        assert_eq!(lengths, [1, 2, 3]);
        assert!(!pairs.are_enough(Level::ONE));
        pairs.begin_start();
        assert_eq!(pairs.starts(), 3, "the fourth has no run yet");
        pairs.push(run(2.0, 1.0).0, run(2.0, 1.0).1);
        assert!(pairs.are_enough(Level::ONE));
        let effect = pairs.effect_at(Objective::Throughput, Level::ONE, Look::Last);
        assert_eq!((effect.pairs, effect.starts), (7, 4));
        assert_eq!(effect.throughput.unwrap().gain, 1.0);
    }

    #[test]
    fn the_variance_is_divided_between_the_levels() {
        let starts: Vec<Vec<(f64, f64)>> = [0.1, -0.1, 0.1, -0.1]
            .map(|between: f64| (0..100).map(|run| ((between + [0.2, -0.2][run % 2]).exp(), 1.0)).collect())
            .to_vec();
        let (between, within) = spreads(&starts).unwrap();
        assert!((between - 0.1155).abs() < 0.01 && (within - 0.2).abs() < 0.01, "{between} {within}");
        assert_eq!(spreads(&starts[..3]), None);
    }
}
