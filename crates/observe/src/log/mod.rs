//! The access log: a line for each request. No request waits for the log.
//!
//! ```text
//! begun ── what the head says, as text ──> kept ─┐
//! ended ── status, sizes, times ─────────────────┴─> line in the worker's buffer ── full ──> its queue ──> writer ──> file
//!                                                                └── flush, reopen, end: taken by the writer ┘
//! ```
//!
//! A worker writes into its own buffer. Each log has one thread that writes buffers to the file, and only this thread
//! waits for the disk. Lines that the disk does not accept, or not in time, are lost, counted and reported; a line is
//! written completely or not at all.

mod clock;
mod condition;
mod escape;
mod files;
mod lines;
#[cfg(test)]
mod oracle;
mod secret;
mod sink;
mod steps;
mod syslog;
mod template;
#[cfg(test)]
mod tests;
mod text;
mod variable;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use clock::iso_time;
pub use condition::Condition;
pub use escape::Escape;
pub(crate) use lines::Lines;
pub use sink::StandardStream;
pub use syslog::SyslogTarget;
pub use template::Format;

use crate::notes::{LOG_CONDITIONS_MAX, RequestLogs, WantedTexts};
use writer::Shared;

/// The settings of a log.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The file, which is created if it does not exist, or the name of a system log ([`SyslogTarget::parse`]). A file's name may have
    /// variables that are known when a request begins.
    pub path: PathBuf,
    /// The format of a line.
    pub format: Format,
    /// Bytes that a worker buffers before they are written.
    pub buffer_bytes: usize,
    /// The longest time before a line is written.
    pub flush: Duration,
    /// Conditions for logging a request; all must hold.
    pub only: Vec<Condition>,
    /// Logs one in this many requests, and all errors.
    pub sample: u32,
    /// The requests that are logged.
    pub scope: Scope,
    /// Requests that it leaves out: those with this bit in their note, below [`LOG_CONDITIONS_MAX`].
    pub skip: Option<u8>,
}

/// The requests of a log. Those of a route with logs of its own are in no other log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scope {
    /// All.
    #[default]
    Server,
    /// Those of a site, by its number ([`Sites`](crate::observed::Sites)).
    Site(u16),
    /// Those of the routes with this number ([`RequestLogs::Route`]).
    Route(u16),
}

impl Scope {
    /// Whether a request of this site with these logs is logged.
    #[inline]
    pub(crate) fn has(self, site: u16, logs: RequestLogs) -> bool {
        match (self, logs) {
            (Scope::Server, RequestLogs::Usual) => true,
            (Scope::Site(wanted), RequestLogs::Usual) => wanted == site,
            (Scope::Route(wanted), RequestLogs::Route(number)) => wanted == number,
            _ => false,
        }
    }
}

/// The limits for a worker's buffer.
const BUFFER_BYTES_MIN: usize = 1 << 10;
const BUFFER_BYTES_MAX: usize = 64 << 20;

/// The longest time between two writes.
const FLUSH_MAX: Duration = Duration::from_secs(3600);

impl Plan {
    /// Logs to this file, with default settings.
    pub fn new(path: impl Into<PathBuf>) -> Plan {
        Plan {
            path: path.into(),
            format: Format::combined(),
            buffer_bytes: 256 << 10,
            flush: Duration::from_secs(10),
            only: Vec::new(),
            sample: 1,
            scope: Scope::Server,
            skip: None,
        }
    }

    /// Checks the plan; errors are for the person who configured it.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn check(&self) -> Result<(), String> {
        if !(BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&self.buffer_bytes) {
            return Err(format!("log buffer: got {} bytes, allowed 1KiB to 64MiB", self.buffer_bytes));
        }
        if self.flush.is_zero() || self.flush > FLUSH_MAX {
            return Err(format!("log flush: got {:?}, allowed 1ms to 1h", self.flush));
        }
        files::name_format(&self.path)?;
        if self.skip.is_some_and(|bit| usize::from(bit) >= LOG_CONDITIONS_MAX) {
            return Err(format!("access logs: at most {LOG_CONDITIONS_MAX} conditions"));
        }
        if self.sample == 0 {
            return Err("log sample: got 0, need at least 1, which logs every request".to_owned());
        }
        Ok(())
    }

    /// Whether the name of the file has variables.
    pub fn has_variable_name(&self) -> bool {
        files::has_variables(&self.path)
    }

    /// The format of what a request adds to the buffer: its line, behind the name of its file if that depends on the request.
    pub(crate) fn line_format(&self) -> Format {
        match files::name_format(&self.path) {
            Ok(Some(name)) => name.before(&self.format),
            Ok(None) | Err(_) => self.format.clone(),
        }
    }
}

/// The statistics of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Lines written to the file.
    pub lines: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Lines that were lost.
    pub lost: u64,
}

/// An open log; clones share it.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

impl Log {
    /// Opens the file with the current privileges, and starts the writer thread.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started.
    pub fn open(plan: Plan) -> io::Result<Log> {
        Ok(Log { shared: writer::open(plan)? })
    }

    /// Reopens the file by name, after a log rotation renamed it. Lines logged before this call go to the old file.
    /// Returns at once.
    pub fn reopen(&self) {
        self.shared.reopen();
    }

    /// Writes all buffered lines and ends the writer. Waits up to five seconds for a slow disk.
    pub fn close(&self) {
        self.shared.close();
    }

    /// The statistics so far.
    pub fn tally(&self) -> Tally {
        self.shared.tally()
    }

    /// Whether its format uses upstream values.
    pub(crate) fn wants_upstreams(&self) -> bool {
        self.shared.plan.format.wants_upstreams()
    }

    /// The texts that its format has of its requests, if any.
    pub(crate) fn wanted_texts(&self) -> Option<WantedTexts> {
        let plan = &self.shared.plan;
        let (has_body, names) = (plan.format.has_bodies(), plan.format.names());
        (has_body || !names.is_empty()).then_some(WantedTexts { scope: plan.scope, has_body, names })
    }

    /// The file's path.
    pub fn path(&self) -> &std::path::Path {
        &self.shared.plan.path
    }
}
