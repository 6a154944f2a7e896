//! Stages of an open loop, as rows of a table: what was offered, and what came back meanwhile.

use flatout_load::StageOutcome;

use crate::text::percentile;
use crate::unit::{count, round_time};

/// The columns.
pub(crate) const HEADS: [&str; 7] = ["stage", "offered/s", "responses/s", "p50", "p99", "max", "errors"];

/// A row for each stage.
pub(crate) fn rows(stages: &[StageOutcome]) -> impl Iterator<Item = [String; HEADS.len()]> {
    stages.iter().map(|found| {
        let (latency, stage) = (&found.latency, &found.stage);
        let rate = |per_s: f64| count(per_s.round() as u64);
        let offered = match stage.from_per_s == stage.to_per_s {
            true => rate(stage.to_per_s),
            false => format!("{}..{}", rate(stage.from_per_s), rate(stage.to_per_s)),
        };
        let [p50, p99, max] = [50.0, 99.0, 100.0].map(|percent| percentile(latency, percent));
        let length = round_time(stage.time.as_nanos() as f64);
        [length, offered, rate(found.responses_per_s()), p50, p99, max, count(found.errors)]
    })
}

#[cfg(test)]
mod tests {
    use flatout_load::Latency;

    use super::*;

    #[test]
    fn a_stage_is_a_row() {
        let stage = |text: &str, requests| {
            let mut latency = Latency::new();
            latency.record_several(2_000_000, requests);
            StageOutcome {
                stage: text.parse().unwrap(),
                requests,
                responses_meanwhile: requests - 90,
                errors: 1,
                latency,
            }
        };
        let found: Vec<_> = rows(&[stage("10s:100", 990), stage("2s:0..5000", 4000)]).collect();
        assert_eq!(found[0], ["10s", "100", "90", "2.00ms", "2.00ms", "2.00ms", "1"]);
        assert_eq!(found[1][..3], ["2s", "0..5,000", "1,955"]);
    }
}
