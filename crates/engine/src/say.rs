//! What the server tells its operator.

use std::fmt;
use std::io::Write;

/// Writes a line to stderr, as one write. Where nobody reads stderr any more the line is lost, and nothing else:
/// `eprintln!` would panic, and end a worker for a message.
pub fn say(message: fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("flatout: {message}\n").as_bytes());
}
