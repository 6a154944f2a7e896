//! How a climb goes: a line for each rung as soon as something is known of it, which stays; on a terminal below them one that is
//! written over, elsewhere one for each comparison.

use std::io::Write;

use flatout_climb::{Live, Stage};
use flatout_report::climb::text::{finished_line, live_line};

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
        if let Some(finished) = &live.finished {
            let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
            let _ = writeln!(std::io::stderr(), "{clear}{}", finished_line(finished));
            return;
        }
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
