//! How a climb goes: on a terminal one line of stderr that is written over, elsewhere one for each comparison.

use std::io::Write;

use flatout_climb::{Live, Stage};
use flatout_report::climb::text::live_line;

/// What was written last.
pub(crate) struct Screen {
    is_terminal: bool,
    stage: Option<Stage>,
}

impl Screen {
    pub(crate) fn new(is_terminal: bool) -> Screen {
        Screen { is_terminal, stage: None }
    }

    /// Tells of a run that is to come.
    pub(crate) fn show(&mut self, live: &Live<'_>) {
        let is_new = self.stage != Some(live.progress.stage);
        self.stage = Some(live.progress.stage);
        // A terminal that is gone is no reason to stop climbing.
        let _ = match self.is_terminal {
            true => write!(std::io::stderr(), "\r\x1b[K{}", live_line(live)),
            false if is_new => writeln!(std::io::stderr(), "{}", live_line(live)),
            false => Ok(()),
        };
    }

    /// Takes the line away.
    pub(crate) fn end(&mut self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
