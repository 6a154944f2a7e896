//! The name of a request that is being answered.

use flatout_lane::slab::Key;

/// Names one exchange, a request that is being answered, on its worker. It may be copied and kept anywhere; after the
/// exchange has ended, it matches nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExchangeKey(pub(crate) Key);

impl ExchangeKey {
    /// A key that never finds anything.
    pub(crate) fn none() -> ExchangeKey {
        ExchangeKey(Key::from_u64(0))
    }
}
