//! Which clients are slow.

/// A client that takes less than this between two looks, and has no room, is slow: 1.6 MB/s.
const SLOW_BYTES: u64 = 32 << 10;

/// A client that has had no room at this many looks in a row has to take more: it holds its upstream for long, and that is not
/// because this machine is busy.
const PATIENCE_LOOKS: u32 = 5;

/// What it has to take then: 25 MB/s.
const KEEPS_UP_BYTES: u64 = 512 << 10;

/// How fast a client takes its response.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    looks: u32,
    /// Forwarded at the last look.
    bytes: u64,
}

impl Pace {
    /// Looks at a client without room, to which this many bytes were forwarded so far. Returns whether it is slow.
    pub(crate) fn is_slow(&mut self, bytes: u64) -> bool {
        let taken = bytes.wrapping_sub(std::mem::replace(&mut self.bytes, bytes));
        let wanted = if self.looks < PATIENCE_LOOKS { SLOW_BYTES } else { KEEPS_UP_BYTES };
        self.looks += 1;
        self.looks > 1 && taken < wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At how many looks a client is slow that takes this many bytes between two of them.
    fn looks_until_slow(bytes: u64) -> Option<u32> {
        let mut pace = Pace::default();
        (1..100).find(|&look| pace.is_slow(u64::from(look) * bytes))
    }

    #[test]
    fn a_slow_client_is_found_by_its_pace() {
        assert_eq!(looks_until_slow(0), Some(2));
        assert_eq!(looks_until_slow(SLOW_BYTES - 1), Some(2));
        assert_eq!(looks_until_slow(SLOW_BYTES), Some(PATIENCE_LOOKS + 1));
        assert_eq!(looks_until_slow(KEEPS_UP_BYTES), None);
    }
}
