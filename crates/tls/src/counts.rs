//! How many handshakes there were.

use std::sync::atomic::{AtomicU64, Ordering};

/// Handshakes of a server, all workers together. A handshake costs so much that a shared count does not show.
#[derive(Debug, Default)]
pub struct Counts {
    full: AtomicU64,
    resumed: AtomicU64,
    failed: AtomicU64,
}

/// What was counted so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Handshakes with a key exchange and a certificate.
    pub full: u64,
    /// Those that went on from an earlier session.
    pub resumed: u64,
    /// Those that failed.
    pub failed: u64,
}

impl Counts {
    /// What was counted so far.
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
