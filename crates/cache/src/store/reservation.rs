//! The memory of bodies that are still arriving.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Store;

/// The maximum additional memory of bodies that are still arriving, as a share.
const RESERVED_SHARE: u64 = 4;

/// Bytes of arriving bodies. They count until this is dropped.
pub(crate) struct BodyReservation {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl BodyReservation {
    /// Counts these bytes too.
    pub(crate) fn add(&mut self, mut other: BodyReservation) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Counts at most this many bytes from now on.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.all.fetch_sub(less, Ordering::Relaxed);
        self.bytes -= less;
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Store {
    /// Counts bytes of an arriving body. The flag is whether there is room for them; if not, the response is
    /// passed through without being stored.
    pub(crate) fn hold(&self, bytes: u64) -> (BodyReservation, bool) {
        let reserved_bytes_max = self.memory_bytes() / RESERVED_SHARE;
        let has_room = self.reserved_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= reserved_bytes_max;
        (BodyReservation { bytes, all: self.reserved_bytes.clone() }, has_room)
    }
}
