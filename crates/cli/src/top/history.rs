//! The data of the live screen: the seconds so far.

use std::collections::VecDeque;

use flatout_admin::{About, Event, Frame};
use flatout_report::unit::{bytes, count, time};

/// Seconds that are kept: more than any terminal is wide.
const SECONDS_MAX: usize = 1000;

/// The history of a server.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) address: String,
    pub(super) about: About,
    /// The oldest first.
    pub(super) seconds: VecDeque<Frame>,
}

impl History {
    pub(super) fn new(address: &str) -> History {
        History { address: address.to_owned(), ..History::default() }
    }

    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Start(start) => {
                self.about = start.about;
                self.seconds = start.frames.into();
            }
            Event::Frame(frame) => self.seconds.push_back(*frame),
        }
        while self.seconds.len() > SECONDS_MAX {
            self.seconds.pop_front();
        }
    }

    /// The last second.
    pub(super) fn last(&self) -> Option<&Frame> {
        self.seconds.back()
    }

    /// The last seconds, up to this many.
    pub(super) fn latest(&self, seconds: usize) -> impl Iterator<Item = &Frame> {
        self.seconds.iter().skip(self.seconds.len().saturating_sub(seconds))
    }

    /// The heading of the lines of [`History::line`].
    pub(super) fn heading() -> String {
        let columns =
            ["requests/s", "p50", "p99", "errors/s", "connections", "CPU/request", "CPUs", "out/s", "memory"];
        columns.map(|name| format!("{name:>12}")).concat() + "\n"
    }

    /// A second as one line.
    pub(super) fn line(frame: &Frame) -> String {
        let columns = [
            count(frame.requests_per_s as u64),
            latency(frame.p50_us),
            latency(frame.p99_us),
            count(frame.errors_per_s.ceil() as u64),
            count(frame.connections),
            latency(frame.cpu_us_per_request),
            format!("{:.2}", frame.cpus),
            bytes(frame.sent_per_s),
            bytes(frame.memory_bytes as f64),
        ];
        columns.map(|value| format!("{value:>12}")).concat() + "\n"
    }
}

/// A time in microseconds, or a dash.
pub(super) fn latency(us: Option<f64>) -> String {
    us.map_or("–".to_owned(), |us| time(us * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_admin::Start;

    #[test]
    fn seconds_are_kept_within_their_limit() {
        let mut history = History::new("unix:/a");
        let frame = |at| Frame { at, ..Frame::default() };
        let start = Start { frames: (0..300).map(frame).collect(), ..Start::default() };
        history.take(Event::Start(Box::new(start)));
        (300..1500).for_each(|at| history.take(Event::Frame(Box::new(frame(at)))));
        assert_eq!((history.seconds.len(), history.seconds[0].at), (SECONDS_MAX, 500));
        assert_eq!(history.latest(2).map(|frame| frame.at).collect::<Vec<_>>(), [1498, 1499]);
    }

    #[test]
    fn a_line_has_its_columns() {
        let frame = Frame { requests_per_s: 12345.6, p50_us: Some(250.0), ..Frame::default() };
        let (heading, line) = (History::heading(), History::line(&frame));
        assert_eq!(heading.chars().count(), line.chars().count());
        assert!(line.contains("12,345") && line.contains("250"), "{line}");
    }
}
