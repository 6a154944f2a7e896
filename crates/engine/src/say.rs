//! Messages to the operator.
//!
//! ```text
//! flatout: 2026-11-21T17:34:07.123Z info: listening on http://127.0.0.1:8080
//! {"time":"2026-11-21T17:34:07.123Z","level":"info","message":"listening on http://127.0.0.1:8080"}
//! ```

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use flatout_lane::clock;

/// How urgent a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Severity {
    /// Something failed: somebody has to act.
    Error,
    /// Something is wrong, and the server has a way around it.
    Warning,
    /// Something has happened.
    #[default]
    Info,
}

impl Severity {
    const ALL: [Severity; 3] = [Severity::Error, Severity::Warning, Severity::Info];

    /// Its name in messages and settings.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

impl FromStr for Severity {
    type Err = String;

    fn from_str(text: &str) -> Result<Severity, String> {
        let known = Severity::ALL.into_iter().find(|level| level.name() == text);
        known.ok_or_else(|| format!("got `{text}`, need error, warning or info"))
    }
}

/// Which messages are written, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessagePlan {
    /// The least urgent ones that are written.
    pub level: Severity,
    /// As a JSON object for each line, instead of text.
    pub is_json: bool,
}

/// Warnings and errors that are kept in memory, for those who look later.
const RECENT_MAX: usize = 50;

/// Bytes of a kept message.
const RECENT_BYTES_MAX: usize = 1000;

/// A warning or an error of the last time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentMessage {
    /// When it was reported: milliseconds since 1970.
    pub unix_ms: u64,
    /// How urgent it is.
    pub severity: Severity,
    /// Its text, shortened if it is long.
    pub text: String,
}

static RECENT: Mutex<VecDeque<RecentMessage>> = Mutex::new(VecDeque::new());

/// The last warnings and errors of this process, the oldest first, whatever is written to stderr.
pub fn recent_messages() -> Vec<RecentMessage> {
    RECENT.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

fn keep(unix_ms: u64, severity: Severity, text: &str) {
    let end = (0..=text.len().min(RECENT_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at));
    let shortened = &text[..end.unwrap_or_default()];
    let more = if shortened.len() < text.len() { "…" } else { "" };
    let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
    if recent.len() >= RECENT_MAX {
        recent.pop_front();
    }
    recent.push_back(RecentMessage { unix_ms, severity, text: format!("{shortened}{more}") });
}

static LEVEL: AtomicU8 = AtomicU8::new(Severity::Info as u8);
static IS_JSON: AtomicBool = AtomicBool::new(false);

impl MessagePlan {
    /// Applies to all messages of this process from now on.
    pub fn apply(self) {
        LEVEL.store(self.level as u8, Ordering::Relaxed);
        IS_JSON.store(self.is_json, Ordering::Relaxed);
    }
}

/// Writes an informational line to stderr.
pub fn say(message: fmt::Arguments<'_>) {
    report(Severity::Info, message);
}

/// Writes a line to stderr, with one write. If stderr is closed, only the line is lost: `eprintln!` would panic, and
/// end a worker because of a message.
#[cold]
pub fn report(severity: Severity, message: fmt::Arguments<'_>) {
    // The simulator looks for its own findings.
    #[cfg(feature = "simulation")]
    if flatout_lane::clock::simulated::is_set() {
        return;
    }
    let unix_ms = clock::unix_milliseconds();
    if severity < Severity::Info {
        keep(unix_ms, severity, &message.to_string());
    }
    if severity as u8 > LEVEL.load(Ordering::Relaxed) {
        return;
    }
    let time = iso_milliseconds(unix_ms);
    let level = severity.name();
    let line = match IS_JSON.load(Ordering::Relaxed) {
        true => format!(
            "{{\"time\":\"{time}\",\"level\":\"{level}\",\"message\":{}}}\n",
            Quoted(&message.to_string())
        ),
        false => format!("flatout: {time} {level}: {message}\n"),
    };
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// A time as in `2026-11-21T17:34:07.123Z`.
fn iso_milliseconds(unix_ms: u64) -> String {
    let time = flatout_wire::date::rfc_3339(unix_ms / 1000);
    format!("{}.{:03}Z", time.trim_end_matches('Z'), unix_ms % 1000)
}

/// Writes a string of JSON (RFC 8259, section 7).
pub struct Quoted<'t>(
    /// Its text.
    pub &'t str,
);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for char in self.0.chars() {
            match char {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                char if char.is_control() => write!(f, "\\u{:04x}", char as u32)?,
                char => f.write_char(char)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_messages_are_kept() {
        for number in 0..RECENT_MAX + 3 {
            keep(number as u64, Severity::Warning, &format!("{number} {}", "é".repeat(RECENT_BYTES_MAX)));
        }
        let kept = recent_messages();
        assert_eq!(kept.len(), RECENT_MAX);
        let last = kept.last().unwrap();
        assert!(last.text.starts_with("52 é") && last.text.ends_with("é…"), "{}", last.text);
        assert!(last.text.len() <= RECENT_BYTES_MAX + "…".len());
    }

    #[test]
    fn times_and_json_strings_are_written() {
        assert_eq!(iso_milliseconds(784_111_777_007), "1994-11-06T08:49:37.007Z");
        assert_eq!(Quoted("a\"\\\n\u{1}ü").to_string(), "\"a\\\"\\\\\\n\\u0001ü\"");
        assert_eq!("warning".parse(), Ok(Severity::Warning));
        assert!("loud".parse::<Severity>().unwrap_err().contains("error, warning or info"));
        assert!(Severity::Error < Severity::Info);
    }
}
