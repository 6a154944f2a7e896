//! The combined results of all runs of one configuration.

use std::collections::HashMap;

use flatout_load::Latency;

use crate::generator::Run;
use crate::outcome::{Figures, Mean, Means};

/// The runs so far, by the set of applied rungs.
#[derive(Default)]
pub(crate) struct Gathered(HashMap<Vec<bool>, Runs>);

#[derive(Default)]
struct Runs {
    requests_per_s: Vec<f64>,
    p50_ns: Vec<f64>,
    p99_ns: Vec<f64>,
    cpu_us_per_request: Vec<f64>,
    generator_share: Vec<f64>,
    requests: u64,
    errors: u64,
    latency: Option<Latency>,
}

impl Gathered {
    /// Adds a run with these rungs applied.
    pub(crate) fn add(&mut self, on: &[bool], run: &Run) {
        let runs = self.0.entry(on.to_vec()).or_default();
        runs.requests_per_s.push(run.sample.requests_per_s);
        runs.p50_ns.extend(run.p50_ns);
        runs.p99_ns.extend(run.sample.p99_ns);
        runs.cpu_us_per_request.extend(run.sample.cpu_us_per_request);
        runs.generator_share.extend(run.generator_share);
        runs.requests += run.sample.requests;
        runs.errors += run.sample.errors;
        if let Some(latency) = &run.latency {
            runs.latency.get_or_insert_with(Latency::new).merge(latency);
        }
    }

    /// The figures with these rungs applied. Percentiles are those of all requests if they are known, otherwise the
    /// median of the runs.
    pub(crate) fn figures(&mut self, on: &[bool]) -> Option<Figures> {
        let mut runs = self.0.remove(on)?;
        let means = Means {
            throughput: Mean::of(&runs.requests_per_s),
            p99: Mean::of(&runs.p99_ns),
            cpu: Mean::of(&runs.cpu_us_per_request),
        };
        let percentile = |percent: f64, of_runs: &mut Vec<f64>| match &runs.latency {
            Some(latency) if latency.count() > 0 => Some(latency.percentile(percent) as f64),
            _ => median(of_runs),
        };
        let (p50_ns, p99_ns) = (percentile(50.0, &mut runs.p50_ns), percentile(99.0, &mut runs.p99_ns));
        Some(Figures {
            requests_per_s: median(&mut runs.requests_per_s)?,
            p50_ns,
            p99_ns,
            cpu_us_per_request: median(&mut runs.cpu_us_per_request),
            generator_share: median(&mut runs.generator_share),
            requests: runs.requests,
            errors: runs.errors,
            runs: runs.requests_per_s.len(),
            means,
            latency: runs.latency,
        })
    }
}

/// The median; of an even number, the mean of the two in the middle.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (lower, upper) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some((values[lower] + values[upper]) / 2.0)
}

#[cfg(test)]
mod tests {
    use flatout_trial::Sample;

    use super::*;

    #[test]
    fn runs_of_one_configuration_become_one() {
        let mut gathered = Gathered::default();
        for (requests_per_s, p99_ns) in [(1.0, 9.0), (4.0, 5.0), (2.0, 7.0), (2.0, 7.0)] {
            let sample =
                Sample { requests_per_s, p99_ns: Some(p99_ns), requests: 10, errors: 1, ..Sample::default() };
            gathered.add(&[true], &Run { sample, p50_ns: None, latency: None, generator_share: None });
        }
        let figures = gathered.figures(&[true]).unwrap();
        assert_eq!((figures.requests_per_s, figures.p99_ns, figures.p50_ns), (2.0, Some(7.0), None));
        assert_eq!((figures.requests, figures.errors, figures.runs), (40, 4, 4));
        let mean = figures.means.throughput.unwrap();
        assert!((mean.mean - 2.0).abs() < 1e-9, "the geometric mean of 1, 2, 2 and 4: {mean:?}");
        assert!(mean.low > 0.0 && mean.low < 1.0 && mean.high > 4.0, "four runs tell little: {mean:?}");
        assert_eq!(figures.means.cpu, None);
        assert!(gathered.figures(&[false]).is_none());
        assert_eq!(median(&mut [3.0, 1.0]), Some(2.0));
    }
}
