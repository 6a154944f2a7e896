//! Did a change cause errors? An exact test of two error counts.
//!
//! If a change has no effect on errors, each of the `e` errors of both sides belongs to the side with the change with a
//! probability of its share of the requests. So the count there is binomial, given `e`. This holds for any number of
//! errors, also for one (Przyborowski and Wilenski, "Homogeneity of results in testing samples from Poisson series",
//! Biometrika 31, 1940).

use crate::compare::Level;
use crate::sample::Sample;

/// A smaller rise is no reason to reject a change: 1 request in 10 000.
pub(crate) const LEAST_HARM: f64 = 1e-4;

/// Errors per request with and without the change, if they rose by at least [`LEAST_HARM`] and by more than chance
/// at this level.
pub(crate) fn errors_rose(with: &[Sample], without: &[Sample], level: Level) -> Option<(f64, f64)> {
    let errors = |samples: &[Sample]| samples.iter().map(|sample| sample.errors).sum::<u64>() as f64;
    let requests = |samples: &[Sample]| samples.iter().map(|sample| sample.requests).sum::<u64>() as f64;
    let (errors_with, errors_without) = (errors(with), errors(without));
    let all_with = requests(with).max(errors_with).max(1.0);
    let all_without = requests(without).max(errors_without).max(1.0);
    let rates = (errors_with / all_with, errors_without / all_without);
    if rates.0 - rates.1 < LEAST_HARM {
        return None;
    }
    let chance =
        binomial_tail(errors_with, errors_with + errors_without, all_with / (all_with + all_without));
    (chance < level.of_errors()).then_some(rates)
}

/// The probability of at least `least` of `count` events that each have the probability `share`.
fn binomial_tail(least: f64, count: f64, share: f64) -> f64 {
    if least <= 0.0 { 1.0 } else { incomplete_beta(share, least, count - least + 1.0) }
}

/// The regularized incomplete beta function.
///
/// # Source
/// Its continued fraction: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.5.8 and 26.5.2.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges quickly on this side of the mean.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln();
    front.exp() * fraction(x, a, b) / a
}

/// Terms of the fraction; it needs about the root of the larger parameter.
const TERMS_MAX: u32 = 100_000;

/// The continued fraction, from the front (Lentz).
fn fraction(x: f64, a: f64, b: f64) -> f64 {
    let apart = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / apart(1.0 - (a + b) * x / (a + 1.0));
    let mut value = d;
    for term in 1..TERMS_MAX {
        let m = f64::from(term);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = value;
        for factor in [even, odd] {
            d = 1.0 / apart(1.0 + factor * d);
            c = apart(1.0 + factor / c);
            value *= c * d;
        }
        if (value / before - 1.0).abs() < 1e-12 {
            break;
        }
    }
    value
}

/// The logarithm of the gamma function of a value above 0: Stirling's series from 10 on, by recurrence below.
fn ln_gamma(value: f64) -> f64 {
    let (mut z, mut below) = (value, 0.0);
    while z < 10.0 {
        below += z.ln();
        z += 1.0;
    }
    let series = 1.0 / (12.0 * z) - 1.0 / (360.0 * z.powi(3)) + 1.0 / (1260.0 * z.powi(5));
    (z - 0.5) * z.ln() - z + 0.5 * std::f64::consts::TAU.ln() + series - below
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    fn rose(with: u64, without: u64, requests: u64) -> bool {
        let sample = |errors| [Sample { requests, errors, ..Sample::default() }];
        errors_rose(&sample(with), &sample(without), Level::ONE).is_some()
    }

    /// By summing up the terms.
    fn plain_tail(least: u32, count: u32, share: f64) -> f64 {
        let ways = |of: u32| (0..of).map(|at| f64::from(count - at) / f64::from(at + 1)).product::<f64>();
        let term = |of: u32| ways(of) * share.powi(of as i32) * (1.0 - share).powi((count - of) as i32);
        (least..=count).map(term).sum()
    }

    #[test]
    fn the_tail_equals_the_sum_of_its_terms() {
        for count in [1, 2, 7, 40] {
            for least in 0..=count {
                for share in [0.1, 0.5, 0.8] {
                    let (fast, slow) = (
                        binomial_tail(f64::from(least), f64::from(count), share),
                        plain_tail(least, count, share),
                    );
                    assert!((fast - slow).abs() < 1e-9, "{least} of {count} at {share}: {fast} {slow}");
                }
            }
        }
        let half = binomial_tail(500_000.0, 1e6 - 1.0, 0.5);
        assert!((half - 0.5).abs() < 1e-6, "{half}");
    }

    #[test]
    fn errors_rise_by_more_than_chance() {
        assert!(!rose(1, 0, 1000) && !rose(4, 0, 1000), "a few errors are chance");
        assert!(rose(10, 0, 1000) && rose(110, 50, 1000));
        assert!(!rose(52, 50, 1000) && !rose(0, 50, 1000) && !rose(0, 0, 0));
        assert!(!rose(90, 0, 1_000_000), "less than the least harm");
        assert!(rose(150, 0, 1_000_000));
    }

    /// Of identical variants with some errors, no more are reported than the level of errors permits: 0.5 %.
    #[test]
    fn identical_variants_are_not_worse() {
        let mut random = Random::new(17);
        for rate in [2e-4, 1e-3, 0.01] {
            let mut count = || (0..5_000).filter(|_| random.fraction() <= rate).count() as u64;
            let wrong = (0..1000).filter(|_| rose(count(), count(), 5_000)).count();
            assert!(wrong <= 12, "{wrong} of 1000 at {rate}");
        }
    }
}
