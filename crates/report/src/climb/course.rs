//! The progress of a climb: a line for each finished comparison, and the live line below. A rung gets its own line
//! (`finished_line`) when its comparison ends, so there is none for that here.

use std::time::Duration;

use flatout_climb::{ClimbProgress, Stage};

use super::text::{interval, shortened};
use crate::text::bar;

/// Columns of the bar, of a comparison's name and of its interval.
const BAR_COLUMNS: usize = 24;
const NAME_COLUMNS: usize = 40;
pub(super) const INTERVAL_COLUMNS: usize = 25;

/// The current comparison.
#[derive(Debug, Default)]
pub struct Course {
    stage: Option<Stage>,
    name: String,
    interval: Option<String>,
    pairs: usize,
    done: usize,
    left: usize,
    budget: Duration,
    time_left: Duration,
}

impl Course {
    /// Updates the progress. Returns the line of the previous comparison, if a new one has started.
    pub fn take(&mut self, live: &ClimbProgress<'_>) -> Option<String> {
        let progress = &live.progress;
        let is_new = self.stage != Some(progress.stage);
        let is_of_rung = matches!(self.stage, Some(Stage::Forward(_) | Stage::SecondLook(_)));
        let over = if is_new { self.end().filter(|_| !is_of_rung) } else { None };
        if is_new {
            self.name = name(live);
            self.stage = Some(progress.stage);
        }
        self.interval = progress.estimate.as_ref().map(interval);
        (self.pairs, self.left, self.time_left) = (progress.pairs, progress.left, live.left);
        self.budget = self.budget.max(live.left);
        over
    }

    /// The line of the last comparison.
    pub fn end(&mut self) -> Option<String> {
        let stage = self.stage.take()?;
        self.done += 1;
        // Random orders are not comparisons: their result is known when all are done.
        if matches!(stage, Stage::Order(_)) {
            return None;
        }
        let interval = self.interval.take();
        let interval = interval.unwrap_or_else(|| "no result".to_owned());
        let pairs = if self.pairs == 1 { "pair" } else { "pairs" };
        let name = shortened(&self.name, NAME_COLUMNS);
        Some(format!("{name:<NAME_COLUMNS$} {interval:<INTERVAL_COLUMNS$} {:>4} {pairs}", self.pairs))
    }

    /// The live line, no wider than `columns`.
    pub fn line(&self, columns: usize) -> String {
        let spent = 1.0 - self.time_left.as_secs_f64() / self.budget.as_secs_f64().max(1e-9);
        let through = self.done as f64 / (self.done + self.left).max(1) as f64;
        let share = spent.max(through).clamp(0.0, 1.0);
        let filled = bar(share * BAR_COLUMNS as f64);
        let so_far = self.interval.as_ref().map_or(String::new(), |interval| format!(", {interval}"));
        let left = self.time_left.as_secs();
        let line = format!(
            "▕{filled:<BAR_COLUMNS$}▏ at most {}:{:02} left, about {} to go · {}, pair {}{so_far}",
            left / 60,
            left % 60,
            self.left,
            self.name,
            self.pairs + 1
        );
        line.chars().take(columns).collect()
    }
}

/// The name of the comparison.
fn name(live: &ClimbProgress<'_>) -> String {
    match (live.progress.stage, live.rung) {
        (Stage::Noise, _) => "measuring noise (A/A)".to_owned(),
        (Stage::NoiseOfServers, _) => "measuring noise (A/A) of servers".to_owned(),
        (Stage::Forward(_), Some(rung)) => rung.to_owned(),
        (Stage::SecondLook(_), Some(rung)) => format!("{rung}, more runs"),
        (Stage::LeaveOneOut(_), Some(rung)) => format!("everything without {rung}"),
        (Stage::Block, _) => "runs before or after the reboot".to_owned(),
        (Stage::Order(at), _) => format!("random order {}", at + 1),
        _ => "everything together".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use flatout_climb::{Estimate, Progress};

    use super::*;

    fn live(stage: Stage, pairs: usize, gain: Option<f64>, left: u64) -> ClimbProgress<'static> {
        let estimate = gain.map(|gain| Estimate { gain, low: gain - 0.02, high: gain + 0.03 });
        let progress = Progress { stage, pairs, estimate, left: 3, share: 0.3 };
        ClimbProgress {
            progress,
            rung: Some("reno"),
            left: Duration::from_secs(left),
            budget: Duration::from_secs(60),
            finished: None,
            ahead: None,
        }
    }

    #[test]
    fn each_comparison_leaves_a_line() {
        let mut course = Course::default();
        assert_eq!(course.take(&live(Stage::Noise, 0, None, 100)), None);
        assert_eq!(course.take(&live(Stage::Noise, 7, Some(0.001), 80)), None);
        let noise = course.take(&live(Stage::Forward(0), 0, None, 75)).unwrap();
        assert!(
            noise.starts_with("measuring noise (A/A)  ")
                && noise.ends_with("+0.1 % (-1.9 to +3.1)        7 pairs")
        );
        course.take(&live(Stage::Forward(0), 1, Some(0.1), 75));
        let line = course.line(200);
        assert!(line.contains("at most 1:15 left, about 3 to go · reno, pair 2, +10.0 %"), "{line}");
        assert!(line.starts_with("▕██████ ") && course.line(30).chars().count() == 30, "{line}");
        assert_eq!(
            course.take(&live(Stage::SecondLook(0), 0, None, 60)),
            None,
            "the rung has a line of its own"
        );
        assert_eq!(course.take(&live(Stage::LeaveOneOut(0), 1, Some(0.1), 60)), None);
        let left_out = course.take(&live(Stage::SecondLook(0), 0, None, 50)).unwrap();
        assert!(
            left_out.starts_with("everything without reno ") && left_out.ends_with(" 1 pair"),
            "{left_out}"
        );
        assert!(
            course
                .end()
                .is_some_and(|line| line.starts_with("reno, more runs") && line.contains("no result"))
        );
        assert_eq!(course.end(), None);
    }
}
