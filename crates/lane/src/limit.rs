//! Limits of buffers and of slices of time. In a simulation they are smaller: what happens when a buffer of 256 KiB is full must not need
//! bodies of that length, and a slice must be able to end after any part of its work.

/// How many bytes may wait, or are moved at once.
#[inline]
pub fn bytes(limit: usize) -> usize {
    #[cfg(feature = "simulation")]
    if let Some(most) = simulated::bytes_max() {
        return limit.min(most.get());
    }
    limit
}

/// The part of a buffer into which is received at once.
#[inline]
pub fn room(buffer: &mut [u8]) -> &mut [u8] {
    let most = bytes(buffer.len());
    buffer.get_mut(..most).unwrap_or_default()
}

/// After how many parts of its work a slice of time looks at the clock.
pub const fn looks(parts: usize) -> usize {
    if cfg!(feature = "simulation") { 2 } else { parts }
}

/// The simulator's limit, for the thread that runs it; other threads have those of the server.
#[cfg(feature = "simulation")]
pub mod simulated {
    use std::cell::Cell;
    use std::num::NonZeroUsize;

    thread_local! {
        static BYTES_MAX: Cell<Option<NonZeroUsize>> = const { Cell::new(None) };
    }

    /// With `Some`, no limit is larger; with `None`, all are as they are elsewhere.
    pub fn set_bytes_max(bytes: Option<NonZeroUsize>) {
        BYTES_MAX.set(bytes);
    }

    pub(super) fn bytes_max() -> Option<NonZeroUsize> {
        BYTES_MAX.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_servers_are_their_own() {
        assert_eq!(bytes(256 << 10), 256 << 10);
        assert_eq!(room(&mut [0; 9]).len(), 9);
    }
}
