//! Tests whose clients need to keep a pace, which a busy machine breaks now and then.

use std::panic::{AssertUnwindSafe, catch_unwind};

const ATTEMPTS: usize = 5;

/// Calls `act` until one attempt passes. A machine that pauses spoils some attempts, a defect spoils all.
pub(crate) fn attempts(act: impl Fn()) {
    for _ in 1..ATTEMPTS {
        if catch_unwind(AssertUnwindSafe(&act)).is_ok() {
            return;
        }
    }
    act();
}
