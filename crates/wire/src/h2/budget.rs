//! The budget of a peer: full at first, spent by useless frames, and refilled by served requests and by time.

use super::event::ConnectionFault;
use super::limits::Limits;

#[derive(Debug)]
pub(super) struct Budgets {
    resets: Budget,
    frames: Budget,
}

#[derive(Debug)]
struct Budget {
    left: u32,
    max: u32,
}

impl Budget {
    fn new(max: u32) -> Budget {
        Budget { left: max, max }
    }

    fn spend(&mut self, cost: u32) -> bool {
        let left = self.left.checked_sub(cost);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    fn refund(&mut self, cost: u32) {
        self.left = self.left.saturating_add(cost).min(self.max);
    }
}

impl Budgets {
    pub(super) fn new(limits: &Limits) -> Budgets {
        Budgets { resets: Budget::new(limits.resets_max), frames: Budget::new(limits.idle_frames_max) }
    }

    /// A stream was reset, by the peer or because of it.
    pub(super) fn reset(&mut self) -> Result<(), ConnectionFault> {
        if self.resets.spend(1) { Ok(()) } else { Err(ConnectionFault::TOO_MANY_RESETS) }
    }

    /// The peer has sent a useless frame, or one that costs as much as this many.
    pub(super) fn frames(&mut self, count: u32) -> Result<(), ConnectionFault> {
        if self.frames.spend(count) { Ok(()) } else { Err(ConnectionFault::TOO_MANY_FRAMES) }
    }

    /// Useful data was sent or received: the peer may react with some frames.
    #[inline]
    pub(super) fn useful(&mut self, frames: u32) {
        self.frames.refund(frames);
    }

    /// A stream has ended normally.
    pub(super) fn served(&mut self) {
        self.resets.refund(1);
    }

    /// A period has passed: refills a tenth.
    pub(super) fn refill(&mut self) {
        self.resets.refund(self.resets.max.div_ceil(10));
        self.frames.refund(self.frames.max.div_ceil(10));
    }
}
