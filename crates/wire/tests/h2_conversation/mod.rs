//! Conversations of HTTP/2: both roles joined together, and one of them against bytes of any kind.
//!
//! ```text
//!  script ──> client machine ══ bytes, cut anywhere ══> server machine ──> what the server heard ──┐
//!         ──> what was said <─────────────────────────────────────────────────────────────────────┴── the same
//! ```
//!
//! Shared by the tests and by the fuzz targets `h2_frames` and `h2_pair`.
#![allow(dead_code, reason = "each of those uses a part")]

pub(crate) mod frames;
pub(crate) mod pair;

/// The bytes of a script; zeros follow the last byte.
pub(crate) struct Source<'b>(pub(crate) &'b [u8]);

impl Source<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One of `choices`.
    pub(crate) fn choice<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }
}
