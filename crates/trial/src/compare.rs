//! Whether two candidates differ: statistics over pairs of short runs, without running anything.
//!
//! Runs of two candidates alternate, so that a machine that drifts drifts for both. Each pair gives one ratio, and the
//! logarithms of ratios are symmetric. On a shared machine some runs are hit by somebody else's work, and one such pair
//! moves a mean further than ten others: so the fifth at either end is trimmed, and the interval is Yuen's for trimmed
//! means ("The two-sample trimmed t for unequal population variances", Biometrika 61, 1974), which counts what was
//! trimmed as scatter. On this noise it is half as wide as that of a plain mean, and errs no more often. A verdict needs
//! an interval of 99 %: with equal candidates it errs once in a hundred times, not five times. A climb
//! that looks at a rung a second time gives it a second such chance.

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

/// The share of the pairs that is trimmed at either end.
const TRIMMED: f64 = 0.2;

/// With fewer pairs than this all count: what trimming leaves of them would have too wide an interval.
const TRIMMED_PAIRS_MIN: usize = 10;

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
    let mut logs: Vec<f64> = pairs
        .iter()
        .filter(|(one, other)| *one > 0.0 && *other > 0.0)
        .map(|(one, other)| (one / other).ln())
        .collect();
    if logs.len() < PAIRS_MIN {
        return UNKNOWN;
    }
    let Trimmed { mean, error, count } = trimmed(&mut logs);
    verdict(mean, error, count - 1)
}

/// Judges figures of which more is better, where those of the first candidate could not take turns with those of the
/// other: by the difference of the trimmed mean logarithms, and Yuen's interval with Welch's degrees of freedom, which
/// lets each scatter in its own way. What the machine did between the two is in it.
pub fn judge_apart(one: &[f64], other: &[f64]) -> Verdict {
    let logs = |figures: &[f64]| -> Vec<f64> {
        figures.iter().filter(|figure| **figure > 0.0).map(|figure| figure.ln()).collect()
    };
    let (mut one, mut other) = (logs(one), logs(other));
    if one.len().min(other.len()) < PAIRS_MIN {
        return UNKNOWN;
    }
    let (one, other) = (trimmed(&mut one), trimmed(&mut other));
    let error = one.error.hypot(other.error);
    let weight = |trimmed: &Trimmed| trimmed.error.powi(4) / (trimmed.count as f64 - 1.0);
    // Where nothing scatters at all, as many as there can be.
    let freedom = error.powi(4) / (weight(&one) + weight(&other));
    let freedom = if freedom.is_finite() { freedom as usize } else { one.count + other.count - 2 };
    verdict(one.mean - other.mean, error, freedom)
}

/// What is said where there is too little to say anything.
const UNKNOWN: Verdict = Verdict { ratio: f64::NAN, low: f64::NAN, high: f64::NAN, word: Word::NotToldApart };

/// The verdict on a difference of logarithms with its standard error.
fn verdict(mean: f64, error: f64, freedom: usize) -> Verdict {
    let (t95, t99) = STUDENT[freedom.saturating_sub(2).min(STUDENT.len() - 1)];
    let word = match mean {
        mean if mean - t99 * error > 0.0 => Word::Faster,
        mean if mean + t99 * error < 0.0 => Word::Slower,
        _ => Word::NotToldApart,
    };
    Verdict { ratio: mean.exp(), low: (mean - t95 * error).exp(), high: (mean + t95 * error).exp(), word }
}

/// What is left of values whose ends were trimmed.
struct Trimmed {
    mean: f64,
    /// The mean's standard error.
    error: f64,
    /// Values that were left; one more than the degrees of freedom.
    count: usize,
}

/// Trims and averages at least two values. The error is that of the values with each trimmed one moved to the nearest
/// that was left (Winsor), spread over those that were left.
fn trimmed(values: &mut [f64]) -> Trimmed {
    values.sort_unstable_by(f64::total_cmp);
    let all = values.len();
    let cut = if all < TRIMMED_PAIRS_MIN { 0 } else { (all as f64 * TRIMMED) as usize };
    let left = &values[cut..all - cut];
    let count = left.len();
    let winsorized: Vec<f64> = values.iter().map(|value| value.clamp(left[0], left[count - 1])).collect();
    let middle = mean(&winsorized);
    let squares: f64 = winsorized.iter().map(|value| (value - middle).powi(2)).sum();
    Trimmed { mean: mean(left), error: (squares / (count as f64 * (count - 1) as f64)).sqrt(), count }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Which candidate runs at place `run` of A B B A A B …: the order within pairs alternates, so that what comes second
/// in a pair, on a machine that warms or throttles, is each as often. `true` is the first candidate.
pub fn is_first(run: usize) -> bool {
    (run + run / 2).is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

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

    /// Thousands of requests a second of 120 runs of 200 ms each, one after the other, of one server on a shared machine.
    const REAL: [f64; 120] = [
        73.9, 71.7, 57.3, 58.6, 63.4, 67.2, 69.7, 66.4, 62.9, 66.4, 65.8, 68.9, 70.4, 73.6, 70.8, 66.5, 71.4,
        70.9, 71.5, 69.3, 57.8, 54.2, 48.6, 73.6, 56.5, 55.0, 54.5, 49.2, 59.0, 58.9, 55.8, 57.7, 57.0, 56.6,
        55.5, 55.9, 57.8, 45.5, 53.5, 47.2, 52.1, 55.2, 58.4, 57.0, 61.0, 58.8, 60.0, 56.5, 51.8, 55.8, 57.5,
        55.5, 58.9, 59.6, 54.2, 55.7, 59.6, 58.1, 58.6, 56.9, 60.4, 57.6, 59.6, 58.0, 56.7, 59.6, 59.0, 60.2,
        56.1, 56.9, 58.3, 46.8, 51.9, 56.8, 60.2, 60.7, 59.2, 59.1, 59.3, 52.0, 59.3, 53.6, 51.5, 46.5, 44.1,
        57.5, 54.0, 58.5, 58.4, 56.9, 57.8, 56.3, 53.3, 58.4, 33.9, 56.1, 53.2, 56.4, 55.0, 49.6, 60.5, 58.1,
        47.8, 56.3, 54.4, 57.3, 55.7, 56.0, 54.5, 53.3, 58.5, 58.9, 57.8, 39.2, 56.9, 56.8, 55.0, 61.5, 58.4,
        59.3,
    ];

    /// Pairs of neighbours among the real runs, of which the first is `ratio` times as fast as it was.
    fn real(random: &mut Random, ratio: f64, pairs: usize) -> Verdict {
        let mut pair = || {
            let at = random.below(REAL.len() as u64 - 1) as usize;
            let is_turned = usize::from(random.fraction() < 0.5);
            (REAL[at + is_turned] * ratio, REAL[at + 1 - is_turned])
        };
        judge(&(0..pairs).map(|_| pair()).collect::<Vec<_>>())
    }

    #[test]
    fn real_noise_is_not_told_apart_and_its_interval_is_narrow() {
        let mut random = Random::new(7);
        for pairs in [3, 5, 9, 10, 20, 40] {
            let verdicts: Vec<Verdict> = (0..1000).map(|_| real(&mut random, 1.0, pairs)).collect();
            let same = verdicts.iter().filter(|verdict| verdict.word == Word::NotToldApart).count();
            let within =
                verdicts.iter().filter(|verdict| (verdict.low..=verdict.high).contains(&1.0)).count();
            assert!(same >= 970 && within >= 930, "{same} and {within} of 1000 with {pairs} pairs");
        }
        let found = (0..100).filter(|_| real(&mut random, 1.1, 40).word == Word::Faster).count();
        assert!(found >= 90, "a tenth is found {found} times of 100");
    }

    /// One pair that somebody else's work hit.
    #[test]
    fn what_lies_far_out_moves_nothing() {
        let mut pairs: Vec<(f64, f64)> = (0..12).map(|at| (1.05 + 0.001 * f64::from(at), 1.0)).collect();
        pairs[4].0 = 0.2;
        let verdict = judge(&pairs);
        assert!((verdict.ratio - 1.055).abs() < 0.005 && verdict.low > 1.04, "{verdict:?}");
        assert_eq!(verdict.word, Word::Faster);
    }

    /// Yuen's figures by hand: of 1 to 10, trimmed 3 to 8; mean 5.5, Winsor's squares 42.5.
    #[test]
    fn trimmed_means_are_those_of_the_book() {
        let Trimmed { mean, error, count } =
            trimmed(&mut [4.0, 1.0, 10.0, 3.0, 2.0, 9.0, 5.0, 8.0, 6.0, 7.0]);
        assert_eq!((mean, count), (5.5, 6));
        assert!((error - (42.5_f64 / 30.0).sqrt()).abs() < 1e-12, "{error}");
        assert_eq!(trimmed(&mut [1.0, 2.0, 6.0]).mean, 3.0, "too few to trim");
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

    fn apart(random: &mut Random, ratio: f64, noises: (f64, f64), count: usize) -> Verdict {
        let mut block = |mean: f64, noise: f64| -> Vec<f64> {
            (0..count).map(|run| sample(random, mean, noise, run)).collect()
        };
        let (one, other) = (block(ratio, noises.0), block(1.0, noises.1));
        judge_apart(&one, &other)
    }

    /// Also where the one scatters more than the other.
    #[test]
    fn the_same_is_not_told_apart_in_two_blocks() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            for count in [6, 10, 40] {
                for noises in [(0.005, 0.005), (0.03, 0.03), (0.1, 0.1), (0.01, 0.1)] {
                    let same = (0..100)
                        .filter(|_| apart(&mut random, 1.0, noises, count).word == Word::NotToldApart)
                        .count();
                    assert!(same >= 95, "seed {seed}: {same} of 100 with {count} runs, noise {noises:?}");
                }
            }
        }
    }

    #[test]
    fn a_difference_of_two_blocks_is_found_and_within_its_interval() {
        let mut random = Random::new(3);
        let verdicts: Vec<Verdict> = (0..1000).map(|_| apart(&mut random, 1.1, (0.02, 0.04), 20)).collect();
        assert!(verdicts.iter().filter(|verdict| verdict.word == Word::Faster).count() > 990);
        let within = verdicts.iter().filter(|verdict| (verdict.low..=verdict.high).contains(&1.1)).count();
        assert!((920..=975).contains(&within), "{within} of 1000 intervals of 95 %");
        assert_eq!(apart(&mut random, 0.5, (0.02, 0.02), 6).word, Word::Slower);
        assert_eq!(judge_apart(&[2.0; 3], &[1.0; 3]).word, Word::Faster, "nothing scatters");
        assert_eq!(judge_apart(&[2.0, 2.0, 0.0], &[1.0; 3]).word, Word::NotToldApart);
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
