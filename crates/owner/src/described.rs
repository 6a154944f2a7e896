//! The processes that hold a port, in a few words.

use crate::{Listening, Proc};

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

/// Who holds a port, as one of its would-be listeners sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holders {
    /// That process itself, and no other.
    Own,
    /// Processes that it may not see.
    Hidden,
    /// These other processes, in ascending order; never empty.
    Others(Vec<u32>),
}

impl Listening {
    /// Who holds the port, for the process with this id.
    ///
    /// ```
    /// use flatout_owner::{Here, Holders, Listening};
    ///
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let found = Listening::find(&Here, listener.local_addr()?.port())?;
    /// assert_eq!(found.holders(std::process::id()), Holders::Own);
    /// assert_eq!(found.holders(0), Holders::Others(vec![std::process::id()]));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn holders(&self, own: u32) -> Holders {
        let others: Vec<u32> = self.pids.iter().copied().filter(|pid| *pid != own).collect();
        match (others.is_empty(), self.pids.contains(&own)) {
            (false, _) => Holders::Others(others),
            (true, true) => Holders::Own,
            (true, false) => Holders::Hidden,
        }
    }
}
