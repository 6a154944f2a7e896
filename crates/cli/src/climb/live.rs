//! How a climb goes, on stderr: a line for each finished comparison, and for each rung as soon as there is a result;
//! below them, on a terminal, one that moves.

use std::io::Write;

use flatout_climb::Halfway;
use flatout_report::climb::Course;
use flatout_report::climb::text::finished_line;

use crate::terminal;

/// What was written, and where.
pub(crate) struct Screen {
    is_terminal: bool,
    course: Course,
}

impl Screen {
    pub(crate) fn new(is_terminal: bool) -> Screen {
        Screen { is_terminal, course: Course::default() }
    }

    /// Takes in a run that is to come.
    pub(crate) fn show(&mut self, live: &Halfway<'_>) {
        if let Some(finished) = &live.finished {
            return self.write(Some(finished_line(finished)));
        }
        let over = self.course.take(live);
        self.write(over);
        if self.is_terminal {
            // The last column stays free: a terminal would go on to the next line.
            let line = self.course.line(terminal::columns().saturating_sub(1));
            let _ = write!(std::io::stderr(), "{line}");
        }
    }

    /// Ends the last line.
    pub(crate) fn end(&mut self) {
        let over = self.course.end();
        self.write(over);
    }

    /// Writes a line that stays, in place of the one that moves. A terminal that is gone is no reason to stop climbing.
    fn write(&mut self, line: Option<String>) {
        let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
        let line = line.map_or(String::new(), |line| format!("{line}\n"));
        let _ = write!(std::io::stderr(), "{clear}{line}");
    }
}
