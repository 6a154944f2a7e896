//! Why what disturbs a server is recorded beside its figures, and not taken out of them (covariates): in pairs it cancels already, and
//! where it does not, the change itself has caused it.

use flatout_trial::Random;
use flatout_trial::compare::{Level, judge_planned};

const BATCHES: usize = 82;

/// The logarithms of ratios without what a straight line through a covariate explains, and with their mean.
fn adjusted(logs: &[f64], covariate: &[f64], at: f64) -> Vec<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_log, mean_covariate) = (mean(logs), mean(covariate));
    let both = logs.iter().zip(covariate);
    let slope = both.clone().map(|(log, at)| (log - mean_log) * (at - mean_covariate)).sum::<f64>()
        / covariate.iter().map(|at| (at - mean_covariate).powi(2)).sum::<f64>();
    both.map(|(log, covariate)| log - slope * (covariate - at)).collect()
}

fn judge(logs: &[f64]) -> (f64, f64) {
    let pairs: Vec<(f64, f64)> = logs.iter().map(|log| (log.exp(), 1.0)).collect();
    let verdict = judge_planned(&pairs, Level::ONE);
    (verdict.low.ln(), verdict.high.ln())
}

/// A normal number, from the sum of twelve equal ones.
fn normal(random: &mut Random) -> f64 {
    (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0
}

/// Time that the hypervisor takes hits both blocks of a pair: with it as a covariate, intervals are no narrower than by 2 %.
#[test]
fn noise_of_both_servers_cancels() {
    let mut random = Random::new(71);
    let mut narrower = 0.0;
    for _ in 0..40 {
        let stolen: Vec<f64> = (0..BATCHES).map(|_| normal(&mut random).abs()).collect();
        // Half of a batch's noise grows with what is stolen, alike for both; the rest differs.
        let logs: Vec<f64> = stolen
            .iter()
            .map(|stolen| {
                let both = 0.1 * stolen;
                let [one, other] =
                    [0.05 + both, both].map(|cost| cost + 0.05 * (1.0 + stolen) * normal(&mut random));
                one - other
            })
            .collect();
        let (low, high) = judge(&logs);
        let mean = stolen.iter().sum::<f64>() / stolen.len() as f64;
        let (low_adjusted, high_adjusted) = judge(&adjusted(&logs, &stolen, mean));
        narrower += 1.0 - (high_adjusted - low_adjusted) / (high - low);
    }
    assert!(narrower / 40.0 < 0.02, "{}", narrower / 40.0);
}

/// A change that makes threads wait for each other costs 10 %, 8 of them by the waiting: with the difference in waits as a covariate, the
/// climb would find 2 %.
#[test]
fn waits_that_a_change_causes_are_part_of_its_effect() {
    let mut random = Random::new(72);
    let (mut right, mut right_adjusted) = (0, 0);
    for _ in 0..100 {
        let waits: Vec<f64> = (0..BATCHES).map(|_| 0.8 + 0.3 * normal(&mut random)).collect();
        let logs: Vec<f64> =
            waits.iter().map(|wait| -0.02 - 0.1 * wait + 0.02 * normal(&mut random)).collect();
        let contains = |(low, high): (f64, f64)| (low..=high).contains(&-0.1);
        right += u32::from(contains(judge(&logs)));
        right_adjusted += u32::from(contains(judge(&adjusted(&logs, &waits, 0.0))));
    }
    assert!(right >= 88, "{right} of 100");
    assert!(right_adjusted <= 5, "{right_adjusted} of 100");
}
