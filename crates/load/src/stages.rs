//! Stages of an open loop: the rate goes evenly from one value to another, one stage after the other.

use std::str::FromStr;
use std::time::Duration;

/// A stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// How long it takes.
    pub time: Duration,
    /// Requests per second at its start.
    pub from_per_s: f64,
    /// Requests per second at its end.
    pub to_per_s: f64,
}

/// Stages of one run: each has its own latencies, which take a quarter of a mebibyte for each thread.
pub const STAGES_MAX: usize = 64;

impl Stage {
    /// The mean of its rate.
    pub fn mean_per_s(&self) -> f64 {
        (self.from_per_s + self.to_per_s) / 2.0
    }

    /// The number of requests that become due in it.
    fn requests(&self) -> f64 {
        self.mean_per_s() * self.time.as_secs_f64()
    }

    /// Seconds from its start until this many requests became due.
    fn seconds_until(&self, requests: f64) -> f64 {
        let growth = (self.to_per_s - self.from_per_s) / self.time.as_secs_f64();
        // The solution of from·t + growth·t²/2 = requests that is exact for a small growth too.
        let root = (self.from_per_s * self.from_per_s + 2.0 * growth * requests).max(0.0).sqrt();
        let seconds = 2.0 * requests / (self.from_per_s + root);
        if seconds.is_finite() { seconds } else { 0.0 }
    }
}

impl FromStr for Stage {
    type Err = String;

    /// Reads `30s:100` or `30s:100..5000`.
    fn from_str(text: &str) -> Result<Stage, String> {
        let wrong =
            || format!("got `{text}`, need a time and a rate such as 30s:100, or two rates: 30s:100..5000");
        let (time, rates) = text.split_once(':').ok_or_else(wrong)?;
        let (from, to) = rates.split_once("..").unwrap_or((rates, rates));
        let rate = |text: &str| text.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate >= 0.0);
        let (Some(from_per_s), Some(to_per_s)) = (rate(from), rate(to)) else { return Err(wrong()) };
        let time = seconds(time).ok_or_else(wrong)?;
        Ok(Stage { time, from_per_s, to_per_s })
    }
}

/// A time with its unit, above 0.
fn seconds(text: &str) -> Option<Duration> {
    let digits = text.find(|char: char| !char.is_ascii_digit() && char != '.')?;
    let (number, unit) = text.split_at_checked(digits)?;
    let factor = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let time = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * factor).ok()?;
    (!time.is_zero()).then_some(time)
}

/// When requests become due, by their number among all of a run.
#[derive(Debug)]
pub(crate) struct RateCurve {
    stages: Vec<Stage>,
    /// The stage of the last request, when it begins, and how many requests are due before it.
    at: usize,
    begin_s: f64,
    before: f64,
}

impl RateCurve {
    pub(crate) fn new(stages: &[Stage]) -> RateCurve {
        RateCurve { stages: stages.to_vec(), at: 0, begin_s: 0.0, before: 0.0 }
    }

    /// Nanoseconds from the start of the run until this many requests became due; after the last stage: infinite. Numbers must not
    /// decrease from call to call.
    pub(crate) fn due_ns(&mut self, requests: f64) -> f64 {
        while let Some(stage) = self.stages.get(self.at) {
            let own = stage.requests();
            if requests < self.before + own {
                return (self.begin_s + stage.seconds_until(requests - self.before)) * 1e9;
            }
            self.before += own;
            self.begin_s += stage.time.as_secs_f64();
            self.at += 1;
        }
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(all: &[&str]) -> Vec<Stage> {
        all.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn stages_are_times_with_rates() {
        let stage = |seconds, from_per_s, to_per_s| Stage {
            time: Duration::from_secs(seconds),
            from_per_s,
            to_per_s,
        };
        assert_eq!("30s:100".parse(), Ok(stage(30, 100.0, 100.0)));
        assert_eq!("2m:0..5000".parse(), Ok(stage(120, 0.0, 5000.0)));
        assert_eq!("1.5s:7.5".parse(), Ok(Stage { time: Duration::from_millis(1500), ..stage(0, 7.5, 7.5) }));
        for wrong in ["", "30s", "30:5", "0s:5", "5s:-1", "5s:1..", "5s:inf", "5d:1", "s:1", "1.2.3s:1"] {
            assert!(
                wrong.parse::<Stage>().is_err_and(|message| message.contains("30s:100..5000")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn each_stage_has_its_number_of_requests() {
        let stages = stages(&["10s:100", "10s:100..300", "5s:0", "10s:300..0"]);
        let mut curve = RateCurve::new(&stages);
        let due: Vec<f64> = (0..4500).map(|at| curve.due_ns(f64::from(at)) / 1e9).collect();
        assert!(due.is_sorted());
        let between = |from: f64, to: f64| due.iter().filter(|at| (from..to).contains(*at)).count();
        assert_eq!(between(0.0, 10.0), 1000);
        assert_eq!(between(10.0, 20.0), 2000);
        assert!(between(20.0, 25.0) <= 1, "a pause");
        assert_eq!(between(25.0, 36.0), 1500);
        // The rate in the middle of a ramp is the mean of its ends.
        assert_eq!(between(14.5, 15.5), 200);
        assert_eq!(curve.due_ns(4501.0), f64::INFINITY);
    }

    #[test]
    fn a_ramp_from_nothing_begins_at_once() {
        let mut curve = RateCurve::new(&stages(&["10s:0..100"]));
        assert_eq!(curve.due_ns(0.0), 0.0);
        assert!((curve.due_ns(250.0) / 1e9 - 7.071).abs() < 1e-3);
    }
}
