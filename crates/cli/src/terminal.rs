//! Messages on stderr.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::error::ErrorKind;
use flatout_report::text::bar;

use crate::command::program;

/// Prints an error in the parser's format; coloured only on a terminal that supports colour.
pub(crate) fn complain(message: &str) {
    // A closed terminal is no reason to fail.
    let _ = clap::Error::raw(ErrorKind::ValueValidation, format!("{message}\n")).with_cmd(&program()).print();
}

/// Prints the parser's message. A log gets only the error, so that its last line is the reason.
pub(crate) fn explain(error: clap::Error) {
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::DisplayVersion
    );
    let text = error.to_string();
    match text.split_once("\n\nUsage:").and_then(|(mistake, _)| mistake.strip_prefix("error: ")) {
        Some(mistake) if !is_help && !std::io::stderr().is_terminal() => complain(mistake),
        // A closed terminal or pipe is no reason to fail.
        _ => drop(error.print()),
    }
}

/// The width of the terminal on stderr.
pub(crate) fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
    if size > 0 { usize::from(size) } else { 80 }
}

/// Progress through a fixed time, on one line of stderr; only on a terminal.
pub(crate) struct Progress {
    is_on: bool,
    time: Duration,
    /// The text after the remaining time.
    note: &'static str,
    shown: Option<Duration>,
}

/// Columns of a bar, and how often it is drawn.
const BAR_COLUMNS: usize = 24;
const DRAW_TIME: Duration = Duration::from_millis(200);

impl Progress {
    pub(crate) fn new(time: Duration, note: &'static str) -> Progress {
        Progress { is_on: std::io::stderr().is_terminal(), time, note, shown: None }
    }

    pub(crate) fn show(&mut self, so_far: Duration) {
        if !self.is_on || self.shown.is_some_and(|shown| so_far < shown + DRAW_TIME) {
            return;
        }
        self.shown = Some(so_far);
        let share = (so_far.as_secs_f64() / self.time.as_secs_f64().max(1e-9)).min(1.0);
        let (bar, left) = (bar(share * BAR_COLUMNS as f64), self.time.saturating_sub(so_far));
        let left = left.as_secs_f64().ceil();
        // A closed terminal is no reason to stop.
        let _ = write!(
            std::io::stderr(),
            "\r\x1b[K▕{bar:<BAR_COLUMNS$}▏ {} s, {left} s left · {}",
            so_far.as_secs(),
            self.note
        );
    }

    /// Replaces the line with `text`.
    pub(crate) fn end(&mut self, text: &str) {
        if self.is_on {
            let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
        }
    }
}

/// Whether a screen can be drawn on stderr, and stdout is not a pipe.
pub(crate) fn is_interactive() -> bool {
    std::io::stderr().is_terminal()
        && std::io::stdout().is_terminal()
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
