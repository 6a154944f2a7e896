//! Messages of other servers, held while the channels move to another process.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// Limits of the held messages. Above them, the oldest is dropped; the loss is detected by the number of the next one.
const HELD_MAX: usize = 16 << 10;
const HELD_BYTES_MAX: usize = 16 << 20;

/// The messages, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Held {
    queue: VecDeque<One>,
    bytes: usize,
}

#[derive(Debug, Clone)]
pub(super) struct One {
    pub(super) bytes: Bytes,
    /// Its age when it arrived.
    age: Duration,
    since: Instant,
}

impl One {
    /// Its age now.
    pub(super) fn age(&self) -> Duration {
        self.age + self.since.elapsed()
    }
}

impl Held {
    pub(super) fn push(&mut self, bytes: Bytes, age: Duration) {
        self.bytes += bytes.len();
        self.queue.push_back(One { bytes, age, since: Instant::now() });
        while self.queue.len() > HELD_MAX || self.bytes > HELD_BYTES_MAX {
            if self.pop().is_none() {
                return;
            }
        }
    }

    pub(super) fn first(&self) -> Option<One> {
        self.queue.front().cloned()
    }

    pub(super) fn pop(&mut self) -> Option<One> {
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
        let mut held = Held::default();
        for number in 0..HELD_MAX + 5 {
            held.push(Bytes::from(number.to_string()), Duration::from_secs(60));
        }
        assert_eq!(held.queue.len(), HELD_MAX);
        let first = held.first().unwrap();
        assert_eq!(first.bytes, "5");
        assert!(first.age() >= Duration::from_secs(60));
        held.push(vec![0; HELD_BYTES_MAX].into(), Duration::ZERO);
        assert_eq!((held.queue.len(), held.bytes), (1, HELD_BYTES_MAX));
        held.push(vec![0; HELD_BYTES_MAX + 1].into(), Duration::ZERO);
        assert!(held.is_empty() && held.bytes == 0);
    }
}
