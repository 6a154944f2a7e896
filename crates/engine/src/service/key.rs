//! The key of a request in progress.

use flatout_lane::slab::Key;

/// Identifies one exchange, a request in progress, on its worker. It may be copied and kept anywhere; after the
/// exchange has ended, it matches nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExchangeKey(pub(crate) Key);

impl ExchangeKey {
    /// A key that never matches.
    pub(crate) fn none() -> ExchangeKey {
        ExchangeKey(Key::from_u64(0))
    }
}
