//! The access log: a line for each request, and never a request that waits for one.
//!
//! ```text
//! begun ── what the head says, as text ──> kept ─┐
//! ended ── status, sizes, times ─────────────────┴─> line in the worker's buffer ── full ──> its queue ──> writer ──> file
//!                                                                └── flush, reopen, end: taken by the writer ┘
//! ```
//!
//! A worker writes into a buffer of its own. One thread for each log writes buffers to the file, and it alone waits for a
//! disk. What the disk does not take in time, or at all, is lost, counted and reported; a line is whole or not there.

mod clock;
mod condition;
mod escape;
mod lines;
#[cfg(test)]
mod oracle;
mod sink;
mod steps;
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

pub use condition::Condition;
pub(crate) use lines::Lines;
pub use template::Format;

use writer::Shared;

/// What is logged, where to, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The file; it is made where there is none.
    pub path: PathBuf,
    /// How a line looks.
    pub format: Format,
    /// Bytes that a worker collects before they are written.
    pub buffer_bytes: usize,
    /// How long a line waits at most before it is written.
    pub flush: Duration,
    /// What a request has to be to be logged; all of it.
    pub only: Vec<Condition>,
    /// One request in so many is logged; errors always are.
    pub sample: u32,
    /// Requests of this site alone, by its number ([`Sites`](crate::observed::Sites)).
    pub site: Option<u16>,
}

/// The least and the most of what a worker collects.
const BUFFER_BYTES_MIN: usize = 1 << 10;
const BUFFER_BYTES_MAX: usize = 64 << 20;

/// The longest time between two writes.
const FLUSH_MAX: Duration = Duration::from_secs(3600);

impl Plan {
    /// To this file, with everything else as usual.
    pub fn new(path: impl Into<PathBuf>) -> Plan {
        Plan {
            path: path.into(),
            format: Format::combined(),
            buffer_bytes: 256 << 10,
            flush: Duration::from_secs(10),
            only: Vec::new(),
            sample: 1,
            site: None,
        }
    }

    /// Says what cannot be, in words for the person who configured it.
    ///
    /// # Errors
    /// A value out of its range.
    pub fn check(&self) -> Result<(), String> {
        if !(BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&self.buffer_bytes) {
            return Err(format!("log buffer: got {} bytes, allowed 1KiB to 64MiB", self.buffer_bytes));
        }
        if self.flush.is_zero() || self.flush > FLUSH_MAX {
            return Err(format!("log flush: got {:?}, allowed 1ms to 1h", self.flush));
        }
        if self.sample == 0 {
            return Err("log sample: got 0, need at least 1, which logs every request".to_owned());
        }
        Ok(())
    }
}

/// How a log has fared so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Lines that the file has taken.
    pub lines: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Lines that were lost.
    pub lost: u64,
}

/// An open log; clones are the same log.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

impl Log {
    /// Opens the file and starts the thread that writes it, with the rights of the moment.
    ///
    /// # Errors
    /// A file that cannot be opened, or a thread that cannot be started.
    pub fn open(plan: Plan) -> io::Result<Log> {
        Ok(Log { shared: writer::open(plan)? })
    }

    /// Reopens the file by its name: it was renamed by a log rotation. What was logged before goes into the old one.
    /// Returns at once.
    pub fn reopen(&self) {
        self.shared.reopen();
    }

    /// Writes all that is there and ends the writer. Waits for a slow disk, but not long: five seconds.
    pub fn close(&self) {
        self.shared.close();
    }

    /// How it has fared so far.
    pub fn tally(&self) -> Tally {
        self.shared.tally()
    }

    /// Whether its lines say anything of upstreams.
    pub(crate) fn wants_upstreams(&self) -> bool {
        self.shared.plan.format.wants_upstreams()
    }

    /// Where it is written.
    pub fn path(&self) -> &std::path::Path {
        &self.shared.plan.path
    }
}
