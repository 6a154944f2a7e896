//! The data of the live screen: figures of each second so far.

use std::time::Duration;

use flatout_load::{Detail, Latency, Live, Plan};
use flatout_report::text::{how, several};

/// Seconds that are kept: more than any terminal is wide.
const SECONDS_MAX: usize = 1000;

/// The progress of a measurement.
pub(super) struct RunProgress {
    pub(super) url: String,
    pub(super) setup: String,
    duration: Duration,
    requests_max: Option<u64>,
    /// The number of the current run, of several, from 1.
    pub(super) run: u32,
    /// Since counting started; `None` before.
    pub(super) elapsed: Option<Duration>,
    pub(super) requests: u64,
    pub(super) errors: u64,
    /// Requests, median and p99 in nanoseconds of each second, the oldest first.
    pub(super) seconds: Vec<Second>,
    pub(super) detail: Option<Detail>,
    /// The state when the last second started.
    before: (Duration, u64, Option<Latency>),
}

/// The figures of a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Second {
    pub(super) requests_per_s: f64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
}

impl RunProgress {
    pub(super) fn new(url: &str, plan: &Plan) -> RunProgress {
        RunProgress {
            url: url.to_owned(),
            setup: [several(plan.connections, "connection"), several(plan.threads, "thread"), how(plan)]
                .join(", "),
            duration: plan.duration,
            requests_max: plan.requests_max,
            run: 1,
            elapsed: None,
            requests: 0,
            errors: 0,
            seconds: Vec::new(),
            detail: None,
            before: (Duration::ZERO, 0, None),
        }
    }

    pub(super) fn take(&mut self, live: &Live<'_>) {
        let now = live.elapsed.unwrap_or_default();
        if now < self.elapsed.unwrap_or_default() || live.requests < self.requests {
            self.run += 1;
            self.before = (Duration::ZERO, 0, None);
        }
        (self.elapsed, self.requests, self.errors) = (live.elapsed, live.requests, live.errors);
        self.detail = live.detail().or(self.detail.take());
        self.end_of_second(now);
    }

    /// Adds a finished second.
    fn end_of_second(&mut self, now: Duration) {
        let (begun, requests, latency) = &self.before;
        let passed = now.saturating_sub(*begun);
        let Some(detail) = self.detail.as_ref().filter(|_| passed >= Duration::from_secs(1)) else { return };
        let new = latency.as_ref().map_or_else(|| detail.latency.clone(), |old| detail.latency.since(old));
        if self.seconds.len() == SECONDS_MAX {
            self.seconds.remove(0);
        }
        self.seconds.push(Second {
            requests_per_s: self.requests.saturating_sub(*requests) as f64 / passed.as_secs_f64(),
            p50_ns: new.percentile(50.0),
            p99_ns: new.percentile(99.0),
        });
        self.before = (now, self.requests, Some(detail.latency.clone()));
    }

    /// The finished share of it, 0 to 1.
    pub(super) fn share(&self) -> f64 {
        let by_time = self.elapsed.unwrap_or_default().as_secs_f64() / self.duration.as_secs_f64().max(1e-9);
        let by_count = self.requests_max.map_or(0.0, |max| self.requests as f64 / max.max(1) as f64);
        by_time.max(by_count).clamp(0.0, 1.0)
    }

    /// The remaining time.
    pub(super) fn left(&self) -> Duration {
        let elapsed = self.elapsed.unwrap_or_default();
        let by_time = self.duration.saturating_sub(elapsed);
        let left =
            |max: u64| elapsed.mul_f64((max as f64 / self.requests.max(1) as f64 - 1.0).clamp(0.0, 1e6));
        self.requests_max.map_or(by_time, |max| left(max).min(by_time))
    }

    /// Requests per second since counting started.
    pub(super) fn mean_per_s(&self) -> f64 {
        self.requests as f64 / self.elapsed.unwrap_or_default().as_secs_f64().max(1e-9)
    }
}
