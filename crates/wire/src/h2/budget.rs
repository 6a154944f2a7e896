//! What a peer may cost: filled at first, spent by what brings nothing, and filled again by what is served and by time.

use super::event::Fault;
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
    pub(super) fn reset(&mut self) -> Result<(), Fault> {
        if self.resets.spend(1) { Ok(()) } else { Err(Fault::TOO_MANY_RESETS) }
    }

    /// A frame came that brings nothing, or as much work as so many.
    pub(super) fn frames(&mut self, count: u32) -> Result<(), Fault> {
        if self.frames.spend(count) { Ok(()) } else { Err(Fault::TOO_MANY_FRAMES) }
    }

    /// Something of use was sent or received: the peer acts on it with some frames.
    #[inline]
    pub(super) fn useful(&mut self, frames: u32) {
        self.frames.refund(frames);
    }

    /// A stream came to its end.
    pub(super) fn served(&mut self) {
        self.resets.refund(1);
    }

    /// Time has passed: a tenth of all.
    pub(super) fn refill(&mut self) {
        self.resets.refund(self.resets.max.div_ceil(10));
        self.frames.refund(self.frames.max.div_ceil(10));
    }
}
