//! How a measurement goes, on a terminal: one line of stderr that is written over.

use std::io::Write;

use flatout_load::Live;
use flatout_report::text::{live_line, sparkline};

/// Seconds of which the sparkline tells.
const SECONDS_SHOWN: usize = 40;

/// The line and what it remembers.
pub(crate) struct Screen {
    is_on: bool,
    second: u64,
    requests: u64,
    rates: Vec<f64>,
}

impl Screen {
    pub(crate) fn new(is_on: bool) -> Screen {
        Screen { is_on, second: 0, requests: 0, rates: Vec::new() }
    }

    /// Writes the line once a second.
    pub(crate) fn show(&mut self, live: &Live) {
        let second = live.elapsed.map_or(0, |elapsed| elapsed.as_secs());
        if !self.is_on || second == self.second {
            return;
        }
        // A new run begins at 0 again.
        let begun = if live.requests < self.requests { 0 } else { self.requests };
        self.rates.push((live.requests - begun) as f64);
        (self.second, self.requests) = (second, live.requests);
        let from = self.rates.len().saturating_sub(SECONDS_SHOWN);
        // A terminal that is gone is no reason to stop measuring.
        let line = live_line(live, self.rates.last().copied().unwrap_or(0.0));
        let _ = write!(std::io::stderr(), "\r\x1b[K{line} {}", sparkline(&self.rates[from..]));
    }

    /// Takes the line away.
    pub(crate) fn end(&mut self) {
        if self.is_on {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
