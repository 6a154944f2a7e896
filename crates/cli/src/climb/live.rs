//! The progress of a climb on stderr: a line for each finished comparison, and for each rung as soon as there is a
//! result; below them, on a terminal, a live line.

use std::io::Write;

use flatout_climb::ClimbProgress;
use flatout_report::climb::Course;
use flatout_report::climb::text::{ahead_line, finished_line};

use crate::terminal;

/// What was written, and where.
pub(crate) struct ClimbScreen {
    is_terminal: bool,
    course: Course,
}

impl ClimbScreen {
    pub(crate) fn new(is_terminal: bool) -> ClimbScreen {
        ClimbScreen { is_terminal, course: Course::default() }
    }

    /// Updates the screen before and after a run.
    pub(crate) fn show(&mut self, live: &ClimbProgress<'_>) {
        if let Some(finished) = &live.finished {
            return self.write(Some(finished_line(finished)));
        }
        if let Some(ahead) = &live.ahead {
            let over = self.course.end();
            self.write(over);
            return self.write(Some(ahead_line(ahead)));
        }
        let over = self.course.take(live);
        self.write(over);
        if self.is_terminal {
            // The last column stays free: otherwise a terminal would wrap.
            let line = self.course.line(terminal::columns().saturating_sub(1));
            let _ = write!(std::io::stderr(), "{line}");
        }
    }

    /// Ends the last line.
    pub(crate) fn end(&mut self) {
        let over = self.course.end();
        self.write(over);
    }

    /// Writes a permanent line in place of the live one. A closed terminal is no reason to stop climbing.
    fn write(&mut self, line: Option<String>) {
        let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
        let line = line.map_or(String::new(), |line| format!("{line}\n"));
        let _ = write!(std::io::stderr(), "{clear}{line}");
    }
}
