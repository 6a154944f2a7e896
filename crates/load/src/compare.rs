//! Whether two candidates differ: statistics over pairs of short runs, without running anything.
//!
//! Runs of two candidates alternate, so that a machine that drifts drifts for both. Each pair gives one ratio; the
//! logarithms of ratios are symmetric, so their mean and Student's t give an interval. A verdict needs an interval of
//! 99 %: with equal candidates it errs once in a hundred times, not five times.

/// What can be said of two candidates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// How many times as fast the first is.
    pub ratio: f64,
    /// The lower end of the interval that holds the true ratio with 95 % confidence.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// In a word.
    pub word: Word,
}

/// The verdict in a word, about the first of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// It is faster.
    Faster,
    /// It is slower.
    Slower,
    /// The runs do not show a difference.
    NotToldApart,
}

/// Pairs without which no interval is worth telling.
pub const PAIRS_MIN: usize = 3;

/// Student's t for two-sided 95 % and 99 %, by degrees of freedom from 2 on; the last is for all above.
const STUDENT: [(f64, f64); 29] = [
    (4.303, 9.925),
    (3.182, 5.841),
    (2.776, 4.604),
    (2.571, 4.032),
    (2.447, 3.707),
    (2.365, 3.499),
    (2.306, 3.355),
    (2.262, 3.250),
    (2.228, 3.169),
    (2.201, 3.106),
    (2.179, 3.055),
    (2.160, 3.012),
    (2.145, 2.977),
    (2.131, 2.947),
    (2.120, 2.921),
    (2.110, 2.898),
    (2.101, 2.878),
    (2.093, 2.861),
    (2.086, 2.845),
    (2.080, 2.831),
    (2.074, 2.819),
    (2.069, 2.807),
    (2.064, 2.797),
    (2.060, 2.787),
    (2.056, 2.779),
    (2.052, 2.771),
    (2.048, 2.763),
    (2.045, 2.756),
    (2.042, 2.750),
];

/// Judges pairs of figures of which more is better: of the first candidate, of the second. Pairs with a figure that is
/// not over 0 are left out; with fewer than [`PAIRS_MIN`] left nothing is told apart.
pub fn judge(pairs: &[(f64, f64)]) -> Verdict {
    let logs: Vec<f64> = pairs
        .iter()
        .filter(|(one, other)| *one > 0.0 && *other > 0.0)
        .map(|(one, other)| (one / other).ln())
        .collect();
    if logs.len() < PAIRS_MIN {
        return Verdict { ratio: f64::NAN, low: f64::NAN, high: f64::NAN, word: Word::NotToldApart };
    }
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let error = (variance / count).sqrt();
    let (t95, t99) = STUDENT[(logs.len() - PAIRS_MIN).min(STUDENT.len() - 1)];
    let word = match mean {
        mean if mean - t99 * error > 0.0 => Word::Faster,
        mean if mean + t99 * error < 0.0 => Word::Slower,
        _ => Word::NotToldApart,
    };
    Verdict { ratio: mean.exp(), low: (mean - t95 * error).exp(), high: (mean + t95 * error).exp(), word }
}

/// Which candidate runs at place `run` of A B B A A B …: the order within pairs alternates, so that what comes second
/// in a pair, on a machine that warms or throttles, is each as often. `true` is the first candidate.
pub fn is_first(run: usize) -> bool {
    (run + run / 2).is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// A figure around `mean` with normal noise (Box and Muller) and a drift over time.
    fn sample(random: &mut Random, mean: f64, noise: f64, run: usize) -> f64 {
        let normal =
            (-2.0 * random.fraction().ln()).sqrt() * (std::f64::consts::TAU * random.fraction()).cos();
        mean * (1.0 + noise * normal) * (1.0 + 0.002 * run as f64)
    }

    fn trial(random: &mut Random, ratio: f64, noise: f64, pairs: usize) -> Verdict {
        let pairs: Vec<(f64, f64)> = (0..pairs)
            .map(|pair| {
                let mut figures = [0.0; 2];
                for run in [2 * pair, 2 * pair + 1] {
                    let first = is_first(run);
                    figures[usize::from(!first)] =
                        sample(random, if first { ratio } else { 1.0 }, noise, run);
                }
                (figures[0], figures[1])
            })
            .collect();
        judge(&pairs)
    }

    #[test]
    fn the_same_is_not_told_apart() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            for pairs in [3, 5, 10, 40] {
                for noise in [0.001, 0.03, 0.2] {
                    let same = (0..100)
                        .filter(|_| trial(&mut random, 1.0, noise, pairs).word == Word::NotToldApart)
                        .count();
                    assert!(same >= 95, "seed {seed}: {same} of 100 with {pairs} pairs, noise {noise}");
                }
            }
        }
    }

    #[test]
    fn a_difference_is_found_and_within_its_interval() {
        let mut random = Random::new(3);
        let verdicts: Vec<Verdict> = (0..1000).map(|_| trial(&mut random, 1.1, 0.02, 10)).collect();
        assert!(verdicts.iter().filter(|verdict| verdict.word == Word::Faster).count() > 990);
        let within = verdicts.iter().filter(|verdict| (verdict.low..=verdict.high).contains(&1.1)).count();
        assert!((920..=975).contains(&within), "{within} of 1000 intervals of 95 %");
        assert_eq!(trial(&mut random, 0.5, 0.02, 5).word, Word::Slower);
    }

    #[test]
    fn too_little_is_not_judged() {
        assert_eq!(judge(&[(2.0, 1.0), (2.0, 1.0)]).word, Word::NotToldApart);
        assert_eq!(judge(&[(0.0, 1.0), (f64::NAN, 1.0), (1.0, 1.0)]).word, Word::NotToldApart);
    }

    #[test]
    fn candidates_take_turns_at_being_first() {
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7].map(is_first),
            [true, false, false, true, true, false, false, true]
        );
    }
}
