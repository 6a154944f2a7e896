//! Do two candidates differ? Statistics over pairs of short runs, without running anything.
//!
//! Runs of two candidates alternate, so that a drift of the machine affects both. Each pair gives one ratio, and the
//! logarithms of ratios are symmetric. On a shared machine some runs are hit by other work, and one such pair moves a
//! mean further than ten others. So a fifth is trimmed at either end, and the standard error is Yuen's for trimmed
//! means ("The two-sample trimmed t for unequal population variances", Biometrika 61, 1974), which counts what was
//! trimmed as scatter. With this noise it is half as large as that of a plain mean, and errs no more often.
//!
//! A comparison ends when its interval is narrow, when its time is over, or when somebody stops it. An interval of Student's t is
//! made for one look at a number of runs that was fixed before; looked at after each pair until it pleases, it misses the truth
//! more often than it says. So the interval here is a confidence sequence: with the stated confidence it contains the truth at
//! all numbers of pairs at once, and so at the one at which somebody chose to stop. It is that of Wang and Ramdas, "Anytime-valid
//! t-tests and confidence sequences for Gaussian means with unknown variance", 2024 (section 4, with a Gaussian mixture over the
//! effect size; first in Lai, "On confidence sequences", 1976): with the t of `n` values,
//!
//! ```text
//! √(c / (n + c)) · (1 − n r² / (n + c))^(−n/2)  <  1 / α        r² = t² / (t² + n − 1)
//! ```
//!
//! for all `n` with probability 1 − α, whatever the variance. The simulations below show that this also holds for
//! trimmed means, with normal noise and with that of a real machine.
//!
//! The interval that is shown is the one that decides: a candidate is faster if its whole interval is above 1.
//! Several comparisons of which none may err divide α among them ([`Level::shared`]).

use crate::looks::Look;

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// How many times as fast the first candidate is.
    pub ratio: f64,
    /// The lower end of the interval that contains the true ratio with the requested confidence.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// In a word.
    pub word: Word,
}

/// The verdict on the first candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// It is faster.
    Faster,
    /// It is slower.
    Slower,
    /// The runs do not show a difference.
    NoDifference,
}

/// The error probability of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    alpha: f64,
}

/// Fewest pairs for a finite interval at [`Level::ONE`].
pub const PAIRS_MIN: usize = 4;

/// The share of pairs that is trimmed at either end.
const TRIMMED: f64 = 0.2;

/// With fewer pairs than this, all count: after trimming, the interval would be too wide.
const TRIMMED_PAIRS_MIN: usize = 15;

/// The mixture's `c`: how many values the expectation of no effect weighs. Smaller values make early intervals
/// narrower and later ones wider; with this one, those of 5 to 40 pairs are within a tenth of the narrowest possible.
const MIXTURE: f64 = 0.3;

/// The error probability of the test for errors, as a share of that of the interval.
const ERRORS_SHARE: f64 = 0.1;

impl Level {
    /// One comparison: an error probability of 1 in 20.
    pub const ONE: Level = Level { alpha: 0.05 };

    /// The second measurement of the only rung that helped: an error probability of 1 in 5, which is 1 in 10 on its side. It
    /// comes after a result that chance gives to 1 climb in 40.
    pub(crate) const AGAIN: Level = Level { alpha: 0.2 };

    /// This many comparisons which together have the same error probability.
    pub fn shared(comparisons: usize) -> Level {
        Level { alpha: Level::ONE.alpha / comparisons.max(1) as f64 }
    }

    /// The error probability of one of several planned looks.
    pub(crate) fn at(self, look: Look) -> f64 {
        self.alpha * look.part()
    }

    /// The probability that an interval contains the truth, as a share.
    pub fn confidence(self) -> f64 {
        1.0 - self.alpha
    }

    /// The error probability of the test for errors beside the interval: a tenth on top of it. Several rungs that share
    /// a level of 5 % err with at most 5.5 % in all.
    pub(crate) fn of_errors(self) -> f64 {
        self.alpha * ERRORS_SHARE
    }

    /// Fewest pairs for a finite interval.
    pub fn pairs_min(self) -> usize {
        (PAIRS_MIN..).find(|&pairs| self.errors(pairs as f64).is_finite()).unwrap_or(usize::MAX)
    }

    /// Half the width of the interval of `count` values, in standard errors.
    fn errors(self, count: f64) -> f64 {
        let likelihood = self.alpha.powi(2) * MIXTURE / (count + MIXTURE);
        let r2 = (1.0 - likelihood.powf(1.0 / count)) * (count + MIXTURE) / count;
        if r2 < 1.0 { ((count - 1.0) * r2 / (1.0 - r2)).sqrt() } else { f64::INFINITY }
    }
}

/// Judges pairs of figures, where more is better: the first candidate's, the second's. Pairs with a figure that is
/// not above 0 are left out; with fewer than [`Level::pairs_min`] left there is no verdict.
pub fn judge(pairs: &[(f64, f64)], level: Level) -> Verdict {
    let mut logs = logs(pairs, |one, other| one / other);
    if logs.len() < PAIRS_MIN {
        return UNKNOWN;
    }
    let Trimmed { mean, error, count } = trimmed(&mut logs);
    verdict(mean, error, count as f64, level)
}

/// The same for a number of pairs that was fixed before the first one: Student's interval, which is about half as wide and
/// valid for this one look only.
pub fn judge_planned(pairs: &[(f64, f64)], level: Level) -> Verdict {
    let mut logs = logs(pairs, |one, other| one / other);
    if logs.len() < PAIRS_MIN {
        return UNKNOWN;
    }
    let Trimmed { mean, error, count } = trimmed(&mut logs);
    verdict_within(mean, error * student(level.alpha, count - 1))
}

/// The same at one of several planned looks, which together have the error probability of the level.
pub fn judge_look(pairs: &[(f64, f64)], level: Level, look: Look) -> Verdict {
    judge_planned(pairs, Level { alpha: level.at(look) })
}

/// The verdict on logarithms of ratios by their plain mean, if there are at least this many.
pub(crate) fn verdict_of_values(values: &[f64], least: usize, alpha: f64) -> Verdict {
    if values.len() < least.max(2) {
        return UNKNOWN;
    }
    let (middle, count) = (mean(values), values.len() as f64);
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    let error = (squares / (count * (count - 1.0))).sqrt();
    verdict_within(middle, error * student(alpha, values.len() - 1))
}

/// The trimmed mean of the logarithms of the ratios; `None` without a pair of figures.
pub(crate) fn mean_log(pairs: &[(f64, f64)]) -> Option<f64> {
    let mut logs = logs(pairs, |one, other| one / other);
    match logs[..] {
        [] => None,
        [one] => Some(one),
        _ => Some(trimmed(&mut logs).mean),
    }
}

/// The value that the magnitude of Student's t with this many degrees of freedom exceeds with probability `alpha`.
pub(crate) fn student(alpha: f64, freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, f64::from(1 << 20));
    // Halving to the precision of the type.
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        if 1.0 - within_student(middle, freedom) > alpha { low = middle } else { high = middle }
    }
    high
}

/// The probability that the magnitude of Student's t is at most `t`.
///
/// # Source
/// Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
fn within_student(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let is_odd = freedom % 2 == 1;
    let mut term = if is_odd { cosine } else { 1.0 };
    let mut sum = if freedom == 1 { 0.0 } else { term };
    for power in (if is_odd { 3 } else { 2 }..freedom.saturating_sub(1)).step_by(2) {
        term *= cosine * cosine * (power - 1) as f64 / power as f64;
        sum += term;
    }
    if is_odd { (angle + sine * sum) * std::f64::consts::FRAC_2_PI } else { sine * sum }
}

/// Two figures with this ratio, around the middle of all runs: the trimmed mean of the pairs' geometric means.
pub(crate) fn levels(pairs: &[(f64, f64)], ratio: f64) -> Option<(f64, f64)> {
    let mut logs = logs(pairs, |one, other| (one * other).sqrt());
    let middle = (logs.len() >= PAIRS_MIN).then(|| trimmed(&mut logs).mean.exp())?;
    let half = ratio.sqrt();
    (middle.is_finite() && half.is_finite() && half > 0.0).then(|| (middle * half, middle / half))
}

/// What one pair adds to the error of the logarithm of the ratio, as a standard deviation: the error of the trimmed mean is
/// this, divided by the root of the number of pairs. `None` with too few pairs.
pub(crate) fn spread(pairs: &[(f64, f64)]) -> Option<f64> {
    let mut logs = logs(pairs, |one, other| one / other);
    let count = logs.len();
    (count >= PAIRS_MIN).then(|| trimmed(&mut logs).error * (count as f64).sqrt())
}

/// Judges figures, where more is better, of candidates whose runs could not alternate: by the difference of the
/// trimmed mean logarithms, and Yuen's interval with Welch's degrees of freedom, which allows different variances. A
/// drift of the machine between the two is included.
pub fn judge_apart(one: &[f64], other: &[f64], level: Level) -> Verdict {
    let Some((one, other)) = both_trimmed(one, other) else { return UNKNOWN };
    let error = one.error.hypot(other.error);
    let weight = |trimmed: &Trimmed| trimmed.error.powi(4) / (trimmed.count as f64 - 1.0);
    // Without any variance, as many as possible.
    let freedom = error.powi(4) / (weight(&one) + weight(&other));
    let freedom = if freedom.is_finite() { freedom } else { (one.count + other.count - 2) as f64 };
    verdict(one.mean - other.mean, error, freedom + 1.0, level)
}

/// The middle of each.
pub(crate) fn levels_apart(one: &[f64], other: &[f64]) -> Option<(f64, f64)> {
    both_trimmed(one, other).map(|(one, other)| (one.mean.exp(), other.mean.exp()))
}

fn both_trimmed(one: &[f64], other: &[f64]) -> Option<(Trimmed, Trimmed)> {
    let logs = |figures: &[f64]| -> Vec<f64> {
        figures.iter().filter(|figure| **figure > 0.0).map(|figure| figure.ln()).collect()
    };
    let (mut one, mut other) = (logs(one), logs(other));
    (one.len().min(other.len()) >= PAIRS_MIN).then(|| (trimmed(&mut one), trimmed(&mut other)))
}

/// The logarithms of a function of each pair whose figures are both above 0.
fn logs(pairs: &[(f64, f64)], of: fn(f64, f64) -> f64) -> Vec<f64> {
    let whole = pairs.iter().filter(|(one, other)| *one > 0.0 && *other > 0.0);
    whole.map(|(one, other)| of(*one, *other).ln()).collect()
}

/// The verdict on too few values.
const UNKNOWN: Verdict = Verdict { ratio: f64::NAN, low: f64::NAN, high: f64::NAN, word: Word::NoDifference };

/// The verdict on a difference of logarithms with its standard error, from this many values.
fn verdict(mean: f64, error: f64, count: f64, level: Level) -> Verdict {
    let errors = level.errors(count);
    if errors.is_infinite() {
        return UNKNOWN;
    }
    verdict_within(mean, errors * error)
}

/// The verdict on a difference of logarithms with half the width of its interval.
fn verdict_within(mean: f64, half: f64) -> Verdict {
    let (low, high) = ((mean - half).exp(), (mean + half).exp());
    let word = match () {
        () if low > 1.0 => Word::Faster,
        () if high < 1.0 => Word::Slower,
        () => Word::NoDifference,
    };
    Verdict { ratio: mean.exp(), low, high, word }
}

/// Values after trimming.
struct Trimmed {
    mean: f64,
    /// The mean's standard error.
    error: f64,
    /// Remaining values; one more than the degrees of freedom.
    count: usize,
}

/// Trims and averages at least two values. The error is that of the values with each trimmed one moved to the nearest
/// remaining one (Winsor), spread over the remaining ones.
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

/// Which candidate is measured in run number `run` of A B B A A B …: the order within pairs alternates, so that each
/// candidate comes second equally often on a machine that warms up or throttles. `true` is the first candidate.
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
        judge(&pairs, Level::ONE)
    }

    /// Normal noise without a difference.
    fn nothing(random: &mut Random, noise: f64, run: usize) -> (f64, f64) {
        let first = sample(random, 1.0, noise, run);
        let second = sample(random, 1.0, noise, run + 1);
        if is_first(run) { (first, second) } else { (second, first) }
    }

    /// Checks after each pair, up to this many. Returns whether the interval ever excluded 1, and whether it did when
    /// it first was no wider than this.
    fn look_always(next: &mut dyn FnMut(usize) -> (f64, f64), pairs_max: usize, width: f64) -> (bool, bool) {
        let (mut pairs, mut has_missed, mut stopped) = (Vec::new(), false, None);
        for at in 0..pairs_max {
            pairs.push(next(2 * at));
            let verdict = judge(&pairs, Level::ONE);
            let misses = verdict.word != Word::NoDifference;
            has_missed |= misses;
            if pairs.len() >= 5 && verdict.high - verdict.low <= width {
                stopped.get_or_insert(misses);
            }
        }
        let last = judge(&pairs, Level::ONE).word != Word::NoDifference;
        (has_missed, stopped.unwrap_or(last))
    }

    /// The promise: with 95 % the truth is in the interval at all looks at once. Of 1000 comparisons with a look
    /// after each of 40 pairs, 50 may miss; three standard deviations of such a count are 21.
    #[test]
    fn intervals_hold_the_truth_whenever_one_stops() {
        let mut random = Random::new(11);
        for noise in [0.01, 0.2] {
            let mut missed = (0, 0);
            for _ in 0..1000 {
                let mut next = |run| nothing(&mut random, noise, run);
                let (ever, stopped) = look_always(&mut next, 40, noise);
                missed = (missed.0 + usize::from(ever), missed.1 + usize::from(stopped));
            }
            assert!(missed.0 <= 50 + 21, "{} of 1000 were missed at some look, noise {noise}", missed.0);
            assert!(missed.1 <= 40, "{} of 1000 were missed where one stopped, noise {noise}", missed.1);
        }
    }

    /// The same with the noise of a real machine, which is not normal.
    #[test]
    fn intervals_hold_the_truth_on_real_noise_whenever_one_stops() {
        let mut random = Random::new(13);
        let mut missed = (0, 0);
        for _ in 0..1000 {
            let (ever, stopped) = look_always(&mut |_| real_pair(&mut random), 40, 0.1);
            missed = (missed.0 + usize::from(ever), missed.1 + usize::from(stopped));
        }
        assert!(missed.0 <= 50 + 21, "{} of 1000 were missed at some look", missed.0);
        assert!(missed.1 <= 40, "{} of 1000 were missed where one stopped", missed.1);
    }

    /// The reason for this method: Student's interval, checked after each pair, errs several times as often as it
    /// says.
    #[test]
    fn students_interval_does_not_hold_that() {
        let mut random = Random::new(11);
        let missed = (0..500).filter(|_| {
            let pairs: Vec<f64> = (0..60)
                .map(|at| nothing(&mut random, 0.05, 2 * at))
                .map(|(one, other)| (one / other).ln())
                .collect();
            (5..=60).any(|count| {
                let Trimmed { mean, error, count } = trimmed(&mut pairs[..count].to_vec());
                // Student's t of 95 %, or a little more: 2.78 with four degrees of freedom, 2.02 with 59.
                mean.abs() > (1.96 + 3.3 / (count - 1) as f64) * error
            })
        });
        let missed = missed.count();
        assert!(missed > 50, "{missed} of 500, where 25 would be 5 %");
    }

    /// By hand, for four values at 5 %: 1 − (0.0025 · 0.3 / 4.3)^¼ is 0.88509, by 4.3 / 4 is 0.95147; √(3 · 0.95147 / 0.04853).
    #[test]
    fn the_boundary_is_that_of_the_paper() {
        assert!((Level::ONE.errors(4.0) - 7.669).abs() < 0.01, "{}", Level::ONE.errors(4.0));
        assert!(Level::ONE.errors(3.0).is_infinite() && Level::ONE.pairs_min() == PAIRS_MIN);
        for comparisons in [1, 2, 10, 100] {
            let level = Level::shared(comparisons);
            assert!((level.confidence() - (1.0 - 0.05 / comparisons as f64)).abs() < 1e-12);
            let reach: Vec<f64> = (level.pairs_min()..200).map(|count| level.errors(count as f64)).collect();
            assert!(
                reach[0].is_finite() && reach[0] > reach[20] && reach[20] < 8.0,
                "{comparisons}: {reach:?}"
            );
        }
        assert_eq!(judge(&[(2.0, 1.0); 4], Level::ONE).word, Word::Faster);
        assert_eq!(judge(&[(2.0, 1.0); 4], Level::shared(100)).word, Word::NoDifference, "too few for that");
    }

    #[test]
    fn levels_are_as_far_apart_as_their_ratio() {
        let pairs = [(150.0, 100.0), (160.0, 99.0), (140.0, 104.0), (900.0, 600.0)];
        let ratio = judge(&pairs, Level::ONE).ratio;
        let (one, other) = levels(&pairs, ratio).unwrap();
        assert!((one / other - ratio).abs() < 1e-12 && (150.0..400.0).contains(&one), "{one} {other}");
        assert_eq!(levels(&pairs[..2], ratio), None);
    }

    /// Thousands of requests per second in 120 consecutive runs of 200 ms each, of one server on a shared machine.
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

    /// Two neighbours among the real runs.
    fn real_pair(random: &mut Random) -> (f64, f64) {
        let at = random.below(REAL.len() as u64 - 1) as usize;
        let is_turned = usize::from(random.fraction() < 0.5);
        (REAL[at + is_turned], REAL[at + 1 - is_turned])
    }

    /// Pairs of neighbours among the real runs, with the first made `ratio` times as fast.
    fn real(random: &mut Random, ratio: f64, pairs: usize) -> Verdict {
        let pairs = (0..pairs).map(|_| real_pair(random)).map(|(one, other)| (one * ratio, other));
        judge(&pairs.collect::<Vec<_>>(), Level::ONE)
    }

    #[test]
    fn real_noise_shows_no_difference_and_a_narrow_interval() {
        let mut random = Random::new(7);
        for pairs in [4, 5, 9, 10, 20, 40] {
            let verdicts: Vec<Verdict> = (0..1000).map(|_| real(&mut random, 1.0, pairs)).collect();
            let same = verdicts.iter().filter(|verdict| verdict.word == Word::NoDifference).count();
            let within =
                verdicts.iter().filter(|verdict| (verdict.low..=verdict.high).contains(&1.0)).count();
            assert!(same >= 970 && within == same, "{same} and {within} of 1000 with {pairs} pairs");
        }
        let found = (0..100).filter(|_| real(&mut random, 1.1, 60).word == Word::Faster).count();
        assert!(found >= 90, "a tenth is found {found} times of 100");
        let width = |verdict: Verdict| verdict.high - verdict.low;
        let mean = (0..100).map(|_| width(real(&mut random, 1.0, 40))).sum::<f64>() / 100.0;
        assert!(mean < 0.09, "40 pairs tell it to {mean}; those of a plain mean would to 0.13");
    }

    /// One pair that was hit by other work.
    #[test]
    fn outliers_have_no_effect() {
        let mut pairs: Vec<(f64, f64)> = (0..15).map(|at| (1.05 + 0.001 * f64::from(at), 1.0)).collect();
        pairs[4].0 = 0.2;
        let verdict = judge(&pairs, Level::ONE);
        assert!((verdict.ratio - 1.057).abs() < 0.005 && verdict.low > 1.04, "{verdict:?}");
        assert_eq!(verdict.word, Word::Faster);
    }

    /// Yuen's figures by hand: of 1 to 15, trimmed 4 to 12; mean 8, Winsor's squares 2 · (4² + 3² + 2² + 1²) + 2 · 3 · 4².
    #[test]
    fn trimmed_means_are_those_of_the_book() {
        let mut values: Vec<f64> = (1..=15).map(|at| f64::from(at * 7 % 16)).collect();
        let Trimmed { mean, error, count } = trimmed(&mut values);
        assert_eq!((mean, count), (8.0, 9));
        assert!((error - (156.0_f64 / (9.0 * 8.0)).sqrt()).abs() < 1e-12, "{error}");
        assert_eq!(trimmed(&mut [1.0, 2.0, 6.0]).mean, 3.0, "too few to trim");
    }

    #[test]
    fn a_difference_is_found_and_within_its_interval() {
        let mut random = Random::new(3);
        let verdicts: Vec<Verdict> = (0..1000).map(|_| trial(&mut random, 1.1, 0.02, 10)).collect();
        assert!(verdicts.iter().filter(|verdict| verdict.word == Word::Faster).count() > 990);
        let within = verdicts.iter().filter(|verdict| (verdict.low..=verdict.high).contains(&1.1)).count();
        assert!(within >= 970, "{within} of 1000 intervals that would be of 95 % at all looks together");
        assert_eq!(trial(&mut random, 0.5, 0.02, 5).word, Word::Slower);
    }

    fn apart(random: &mut Random, ratio: f64, noises: (f64, f64), count: usize) -> Verdict {
        let mut block = |mean: f64, noise: f64| -> Vec<f64> {
            (0..count).map(|run| sample(random, mean, noise, run)).collect()
        };
        let (one, other) = (block(ratio, noises.0), block(1.0, noises.1));
        judge_apart(&one, &other, Level::ONE)
    }

    /// Also if one has more variance than the other.
    #[test]
    fn equal_blocks_show_no_difference() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            for count in [6, 10, 40] {
                for noises in [(0.005, 0.005), (0.03, 0.03), (0.1, 0.1), (0.01, 0.1)] {
                    let same = (0..100)
                        .filter(|_| apart(&mut random, 1.0, noises, count).word == Word::NoDifference)
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
        assert!(within >= 970, "{within} of 1000 intervals");
        assert_eq!(apart(&mut random, 0.5, (0.02, 0.02), 6).word, Word::Slower);
        assert_eq!(judge_apart(&[2.0; 4], &[1.0; 4], Level::ONE).word, Word::Faster, "nothing scatters");
        assert_eq!(judge_apart(&[2.0, 2.0, 2.0, 0.0], &[1.0; 4], Level::ONE).word, Word::NoDifference);
    }

    #[test]
    fn quantiles_of_student_are_those_of_the_tables() {
        for (freedom, expected) in
            [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (60, 2.000)]
        {
            let found = student(0.05, freedom);
            assert!((found - expected).abs() < 0.001, "{freedom}: {found}");
        }
    }

    #[test]
    fn a_planned_end_has_a_narrower_interval_that_holds() {
        let mut random = Random::new(9);
        let (mut missed, mut planned_width, mut any_width) = (0, 0.0, 0.0);
        for _ in 0..2000 {
            let pairs: Vec<(f64, f64)> = (0..10).map(|pair| nothing(&mut random, 0.05, 2 * pair)).collect();
            let (planned, any) = (judge_planned(&pairs, Level::ONE), judge(&pairs, Level::ONE));
            missed += usize::from(planned.word != Word::NoDifference);
            planned_width += planned.high - planned.low;
            any_width += any.high - any.low;
        }
        assert!((60..=140).contains(&missed), "{missed} of 2000 intervals of 95 %");
        assert!(planned_width < 0.75 * any_width, "{}", planned_width / any_width);
    }

    #[test]
    fn too_little_is_not_judged() {
        let told = |pairs: &[(f64, f64)]| judge(pairs, Level::ONE).word;
        assert_eq!(told(&[(2.0, 1.0); 3]), Word::NoDifference);
        assert_eq!(
            told(&[(0.0, 1.0), (f64::NAN, 1.0), (2.0, 1.0), (2.0, 1.0), (2.0, 1.0)]),
            Word::NoDifference
        );
    }

    #[test]
    fn candidates_take_turns_at_being_first() {
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7].map(is_first),
            [true, false, false, true, true, false, false, true]
        );
    }
}
