//! Messages of other servers, held while the channels move to another process.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// Limits of the held messages. Above them, the oldest is dropped; the loss is detected by the number of the next one.
const HOLDBACK_MAX: usize = 16 << 10;
const HOLDBACK_BYTES_MAX: usize = 16 << 20;

/// The messages, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct HoldbackQueue {
    queue: VecDeque<DelayedParcel>,
    bytes: usize,
}

#[derive(Debug, Clone)]
pub(super) struct DelayedParcel {
    pub(super) bytes: Bytes,
    /// Its age when it arrived.
    age: Duration,
    since: Instant,
}

impl DelayedParcel {
    /// Its age now.
    pub(super) fn age(&self) -> Duration {
        self.age + self.since.elapsed()
    }
}

impl HoldbackQueue {
    pub(super) fn push(&mut self, bytes: Bytes, age: Duration) {
        self.bytes += bytes.len();
        self.queue.push_back(DelayedParcel { bytes, age, since: Instant::now() });
        while self.queue.len() > HOLDBACK_MAX || self.bytes > HOLDBACK_BYTES_MAX {
            if self.pop().is_none() {
                return;
            }
        }
    }

    pub(super) fn first(&self) -> Option<DelayedParcel> {
        self.queue.front().cloned()
    }

    pub(super) fn pop(&mut self) -> Option<DelayedParcel> {
        let one = self.queue.pop_front()?;
        self.bytes = self.bytes.saturating_sub(one.bytes.len());
        Some(one)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_the_limits_the_oldest_are_dropped() {
        let mut queue = HoldbackQueue::default();
        for number in 0..HOLDBACK_MAX + 5 {
            queue.push(Bytes::from(number.to_string()), Duration::from_secs(60));
        }
        assert_eq!(queue.queue.len(), HOLDBACK_MAX);
        let first = queue.first().unwrap();
        assert_eq!(first.bytes, "5");
        assert!(first.age() >= Duration::from_secs(60));
        queue.push(vec![0; HOLDBACK_BYTES_MAX].into(), Duration::ZERO);
        assert_eq!((queue.queue.len(), queue.bytes), (1, HOLDBACK_BYTES_MAX));
        queue.push(vec![0; HOLDBACK_BYTES_MAX + 1].into(), Duration::ZERO);
        assert!(queue.is_empty() && queue.bytes == 0);
    }
}
