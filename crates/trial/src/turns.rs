//! Two servers that are both alive: load switches between them in short blocks, and a batch of blocks becomes one pair of runs.
//!
//! ```text
//! one    ███    ███ ███       ███      A pair of blocks has a random order. Each block ends when its last response
//! other      ███        ██████   ███   has arrived, so nothing of one block is in the next one.
//! ```
//!
//! Other work on the machine lasts longer than a block, so it hits both blocks of a pair, and cancels out in their
//! ratio. A batch leaves out the pairs with the most unusual ratios, on both ends alike; what is left is summed up.

use crate::sample::Sample;

/// One block of load on one server.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Turn {
    /// Complete responses.
    pub requests: u64,
    /// Correct ones.
    pub good: u64,
    /// Requests with a wrong response, or none.
    pub errors: u64,
    /// From the first request until the last response.
    pub elapsed_s: f64,
    /// CPU time of the server's processes, and of the kernel's work for it as far as it is known; `None` if it is not known.
    pub cpu_s: Option<f64>,
    /// CPU time of the machine without the load generator; `None` if it is not known.
    pub machine_s: Option<f64>,
}

/// The share of pairs that is left out on either end; at least one.
const TRIMMED_SHARE: f64 = 0.1;

/// With fewer pairs than this, all count.
const TRIMMED_PAIRS_MIN: usize = 5;

/// Blocks in each of the two parts that are compared to judge whether a server is warm.
const STEADY_BLOCKS: usize = 4;

/// A larger difference between the two parts is a server that still warms up.
const STEADY_SHARE: f64 = 0.05;

/// One run of each server, from pairs of blocks; with the 99th percentiles of their latencies.
pub fn samples(pairs: &[[Turn; 2]], p99_ns: [Option<f64>; 2]) -> [Sample; 2] {
    let rates = trimmed(pairs, |turn| Some((turn.good as f64, turn.elapsed_s)));
    let costs = trimmed(pairs, |turn| turn.cpu_s.map(|cpu_s| (cpu_s * 1e6, turn.requests as f64)));
    let machine = [0, 1].map(|side| machine_cost(pairs.iter().map(|pair| &pair[side])));
    [0, 1].map(|side| {
        let sum = |of: fn(&Turn) -> u64| pairs.iter().map(|pair| of(&pair[side])).sum();
        Sample {
            requests_per_s: rates.map_or(0.0, |rates| rates[side]),
            p99_ns: p99_ns[side],
            cpu_us_per_request: costs.map(|costs| costs[side]),
            machine_us_per_request: machine[side],
            requests: sum(|turn| turn.requests),
            errors: sum(|turn| turn.errors),
            disturbance: None,
        }
    })
}

/// The machine's CPU time per request in these blocks, in microseconds. It is known in steps of 10 ms, so all blocks count.
fn machine_cost<'t>(turns: impl Iterator<Item = &'t Turn>) -> Option<f64> {
    let (mut cpu_s, mut requests) = (0.0, 0);
    for turn in turns {
        cpu_s += turn.machine_s?;
        requests += turn.requests;
    }
    (requests > 0).then(|| cpu_s * 1e6 / requests as f64)
}

/// The quotient of sums for each side, without the pairs whose ratios are the most unusual. `None` if less than half
/// of the pairs have the figure.
fn trimmed(pairs: &[[Turn; 2]], figure: impl Fn(&Turn) -> Option<(f64, f64)>) -> Option<[f64; 2]> {
    let both = pairs.iter().filter_map(|[one, other]| Some([figure(one)?, figure(other)?]));
    let mut both: Vec<[(f64, f64); 2]> =
        both.filter(|pair| pair.iter().all(|&(over, under)| over > 0.0 && under > 0.0)).collect();
    if both.is_empty() || 2 * both.len() < pairs.len() {
        return None;
    }
    let ratio = |[one, other]: &[(f64, f64); 2]| (one.0 / one.1) / (other.0 / other.1);
    both.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
    let out = match both.len() < TRIMMED_PAIRS_MIN {
        true => 0,
        false => (both.len() as f64 * TRIMMED_SHARE).ceil() as usize,
    };
    let left = &both[out..both.len() - out];
    Some([0, 1].map(|side| {
        let sum = |of: fn(&(f64, f64)) -> f64| left.iter().map(|pair| of(&pair[side])).sum::<f64>();
        sum(|figure| figure.0) / sum(|figure| figure.1)
    }))
}

/// Whether a server is warm, by its cost of a request in the blocks so far: the last blocks cost as much as those
/// before them, within 5 % or within their own noise.
pub fn is_steady(costs: &[f64]) -> bool {
    let Some(start) = costs.len().checked_sub(2 * STEADY_BLOCKS) else { return false };
    let (before, last) = costs[start..].split_at(STEADY_BLOCKS);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let spread = |part: &[f64]| {
        let mean = mean(part);
        part.iter().map(|cost| (cost - mean).powi(2)).sum::<f64>() / (part.len() - 1) as f64
    };
    let error = ((spread(before) + spread(last)) / STEADY_BLOCKS as f64).sqrt();
    let falls = mean(before) - mean(last);
    falls.abs() <= (STEADY_SHARE * mean(last)).max(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(requests: u64, elapsed_s: f64, cpu_s: f64) -> Turn {
        Turn {
            requests,
            good: requests,
            errors: 0,
            elapsed_s,
            cpu_s: Some(cpu_s),
            machine_s: Some(2.0 * cpu_s),
        }
    }

    #[test]
    fn a_batch_is_the_quotient_of_its_sums() {
        let pairs = [
            [turn(100, 0.05, 0.001), turn(50, 0.05, 0.001)],
            [turn(300, 0.05, 0.003), turn(150, 0.05, 0.003)],
        ];
        let [one, other] = samples(&pairs, [Some(1.0), None]);
        assert!((one.requests_per_s - 4000.0).abs() < 1e-6 && (other.requests_per_s - 2000.0).abs() < 1e-6);
        assert!((one.cpu_us_per_request.unwrap() - 10.0).abs() < 1e-9);
        assert!((other.cpu_us_per_request.unwrap() - 20.0).abs() < 1e-9);
        assert!((other.machine_us_per_request.unwrap() - 40.0).abs() < 1e-9);
        assert_eq!((one.requests, other.requests, one.p99_ns, other.p99_ns), (400, 200, Some(1.0), None));
    }

    #[test]
    fn the_most_unusual_pairs_are_left_out() {
        let mut pairs = vec![[turn(100, 0.05, 0.001); 2]; 18];
        pairs.push([turn(100, 0.05, 0.001), turn(2, 0.05, 0.01)]);
        pairs.push([turn(2, 0.05, 0.01), turn(100, 0.05, 0.001)]);
        let [one, other] = samples(&pairs, [None, None]);
        assert_eq!(
            (one.cpu_us_per_request, one.requests_per_s),
            (other.cpu_us_per_request, other.requests_per_s)
        );
        assert_eq!(one.requests, 1902, "every request counts for the comparison of errors");
    }

    #[test]
    fn unknown_values_are_no_figures() {
        let unknown = Turn { cpu_s: None, ..turn(10, 0.05, 0.0) };
        let [one, other] = samples(&[[turn(10, 0.05, 0.001), unknown]], [None, None]);
        assert_eq!((one.cpu_us_per_request, other.cpu_us_per_request), (None, None));
        assert!(one.requests_per_s > 0.0);
        let [one, _] = samples(&[], [None, None]);
        assert_eq!(one, Sample::default());
        let silent = Turn { requests: 0, good: 0, ..turn(0, 0.05, 0.0) };
        assert_eq!(samples(&[[silent; 2]], [None, None])[0].requests_per_s, 0.0);
    }

    #[test]
    fn a_server_is_warm_when_its_cost_no_longer_falls() {
        assert!(!is_steady(&[10.0; 7]), "too few blocks");
        assert!(is_steady(&[10.0; 8]));
        let warming: Vec<f64> = (0..8).map(|block| 24.0 - 2.0 * f64::from(block)).collect();
        assert!(!is_steady(&warming));
        let noisy = [10.0, 14.0, 8.0, 12.0, 13.0, 9.0, 11.0, 10.0];
        assert!(is_steady(&noisy));
        let warmed: Vec<f64> = warming.into_iter().chain(noisy).collect();
        assert!(is_steady(&warmed));
    }
}
