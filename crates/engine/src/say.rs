//! Messages to the operator.

use std::fmt;
use std::io::Write;

/// Writes a line to stderr, with one write. If stderr is closed, only the line is lost: `eprintln!` would panic, and
/// end a worker because of a message.
pub fn say(message: fmt::Arguments<'_>) {
    // The simulator looks for its own findings.
    #[cfg(feature = "simulation")]
    if flatout_lane::clock::simulated::is_set() {
        return;
    }
    let _ = std::io::stderr().write_all(format!("flatout: {message}\n").as_bytes());
}
