//! What is written to people on stderr besides a result.

use std::io::IsTerminal;

use clap::error::ErrorKind;

use crate::command::program;

/// Says what went wrong, in the way of the parser; coloured only on a terminal that wants colour.
pub(crate) fn complain(message: &str) {
    // A terminal that is gone is no reason to fail.
    let _ = clap::Error::raw(ErrorKind::ValueValidation, format!("{message}\n")).with_cmd(&program()).print();
}

/// Says what the parser has to say. A log gets the mistake alone: whoever shows its last line shows what matters.
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
        // A terminal or a pipe that is gone is no reason to fail.
        _ => drop(error.print()),
    }
}

/// The width of the terminal behind stderr.
pub(crate) fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
    if size > 0 { usize::from(size) } else { 80 }
}

/// Whether a screen can be drawn on stderr and stdout is not a pipe that somebody reads beside it.
pub(crate) fn is_interactive() -> bool {
    std::io::stderr().is_terminal()
        && std::io::stdout().is_terminal()
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
