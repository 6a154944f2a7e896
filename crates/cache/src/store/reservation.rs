//! The memory of bodies that are still arriving, or were read from disk for one response.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::Store;
use crate::entry::Entry;

/// The maximum additional memory of bodies that are still arriving, as a share.
const RESERVED_SHARE: u64 = 4;

/// The maximum additional memory of bodies that were read from disk for one response each, as a share: with slow clients
/// they stay for long.
const ONCE_SHARE: u64 = 8;

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

/// The body of an entry that nobody else has, with its reservation.
struct OnceBody {
    entry: Arc<Entry>,
    _reservation: BodyReservation,
}

impl AsRef<[u8]> for OnceBody {
    fn as_ref(&self) -> &[u8] {
        self.entry.body()
    }
}

impl BodyReservation {
    /// The body of an entry, for as long as this counts.
    pub(crate) fn body(self, entry: Arc<Entry>) -> Bytes {
        match entry.body().is_empty() {
            true => Bytes::new(),
            false => Bytes::from_owner(OnceBody { entry, _reservation: self }),
        }
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

    /// Counts bytes of a body that was read from disk for one response. `None` if there is no room for them.
    pub(super) fn hold_once(&self, bytes: u64) -> Option<BodyReservation> {
        let once_bytes_max = self.memory_bytes() / ONCE_SHARE;
        let before = self.once_bytes.fetch_add(bytes, Ordering::Relaxed);
        let reservation = BodyReservation { bytes, all: self.once_bytes.clone() };
        (before + bytes <= once_bytes_max).then_some(reservation)
    }
}
