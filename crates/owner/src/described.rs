//! A process in a few words.

use crate::Proc;

/// Characters of a command line that are shown.
const COMMAND_CHARS_MAX: usize = 60;

/// A process with the start of its command line, as in `4711 (nginx: master process)`; the number alone if it cannot be read.
/// Reads one file.
///
/// ```
/// let described = flatout_owner::described(&flatout_owner::Here, std::process::id());
/// assert!(described.starts_with(&format!("{} (", std::process::id())));
/// ```
pub fn described(proc: &dyn Proc, pid: u32) -> String {
    let bytes = proc.read(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> =
        bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(String::from_utf8_lossy).collect();
    let line: String = words.join(" ").chars().filter(|char| !char.is_control()).collect();
    let short: String = line.chars().take(COMMAND_CHARS_MAX).collect();
    match short.is_empty() {
        true => pid.to_string(),
        false if short.len() < line.len() => format!("{pid} ({short}…)"),
        false => format!("{pid} ({short})"),
    }
}
