//! How much was received on a connection and waits to be taken. The library limits only the number of messages that wait, and each can be as
//! large as the bus permits.

/// Bytes that wait. A server that is so far behind joins again; what it has missed by that is noticed by the numbers.
const BYTES_MAX: u64 = 64 << 20;

/// Counts in bytes received, of any kind, and in bytes of messages.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// What was received when nothing waited, and what was taken since.
    received_before: u64,
    taken: u64,
}

impl Backlog {
    /// Nothing waits, after so many bytes were received on this connection.
    pub(super) fn clear(&mut self, received: u64) {
        *self = Backlog { received_before: received, taken: 0 };
    }

    /// A message was taken.
    pub(super) fn take(&mut self, bytes: usize) {
        self.taken += bytes as u64;
    }

    /// Whether too much waits, after so many bytes were received on this connection.
    pub(super) fn is_over(&self, received: u64) -> bool {
        received.saturating_sub(self.received_before + self.taken) > BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_waits_counts() {
        let (mut backlog, mut received) = (Backlog::default(), 0);
        for _ in 0..1000 {
            received += 1 << 20;
            backlog.take(1 << 20);
            assert!(!backlog.is_over(received), "each is taken at once");
        }
        received += BYTES_MAX;
        assert!(!backlog.is_over(received) && backlog.is_over(received + 1));
        backlog.take(1000);
        assert!(!backlog.is_over(received + 1000) && backlog.is_over(received + 1001));
        backlog.clear(received + 1001);
        assert!(!backlog.is_over(received + 1001));
    }
}
