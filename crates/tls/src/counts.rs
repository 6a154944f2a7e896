//! Handshake counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// Handshakes of a server, over all workers. Compared with a handshake, the cost of a shared counter is negligible.
#[derive(Debug, Default)]
pub struct Counts {
    full: AtomicU64,
    resumed: AtomicU64,
    failed: AtomicU64,
}

/// A snapshot of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Handshakes with a key exchange and a certificate.
    pub full: u64,
    /// Resumed sessions.
    pub resumed: u64,
    /// Failed handshakes.
    pub failed: u64,
}

impl Counts {
    /// The counters so far.
    pub fn now(&self) -> Counted {
        Counted {
            full: self.full.load(Ordering::Relaxed),
            resumed: self.resumed.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn note_done(&self, is_resumed: bool) {
        let count = if is_resumed { &self.resumed } else { &self.full };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}
