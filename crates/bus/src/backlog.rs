//! The bytes of received messages that are not processed yet. The library limits only their number, and each can be as large as the bus
//! permits.

/// Maximum bytes of unprocessed messages. Above it, the connection is replaced; lost messages are detected by their numbers.
const BYTES_MAX: u64 = 64 << 20;

/// Compares the bytes received on the connection with those of the processed messages.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// The bytes received when the queue was last empty, and those processed since.
    received_before: u64,
    taken: u64,
}

impl Backlog {
    /// The queue is empty, after this many bytes were received on the connection.
    pub(super) fn clear(&mut self, received: u64) {
        *self = Backlog { received_before: received, taken: 0 };
    }

    /// A message was processed.
    pub(super) fn take(&mut self, bytes: usize) {
        self.taken += bytes as u64;
    }

    /// Whether too much is queued, after this many bytes were received on the connection.
    pub(super) fn is_over(&self, received: u64) -> bool {
        received.saturating_sub(self.received_before + self.taken) > BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unprocessed_bytes_count() {
        let (mut backlog, mut received) = (Backlog::default(), 0);
        for _ in 0..1000 {
            received += 1 << 20;
            backlog.take(1 << 20);
            assert!(!backlog.is_over(received), "each is processed at once");
        }
        received += BYTES_MAX;
        assert!(!backlog.is_over(received) && backlog.is_over(received + 1));
        backlog.take(1000);
        assert!(!backlog.is_over(received + 1000) && backlog.is_over(received + 1001));
        backlog.clear(received + 1001);
        assert!(!backlog.is_over(received + 1001));
    }
}
