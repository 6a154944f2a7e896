//! The settings of a cache and the routes that use it.

use std::time::Duration;

pub use crate::disk::DiskPlan;

/// A cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The memory limit for responses, including the index.
    pub memory_bytes: u64,
    /// The folder in which they survive a restart, if any.
    pub disk: Option<DiskPlan>,
    /// Responses not requested for this time are removed, fresh or not; `None` keeps them.
    pub inactive: Option<Duration>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { memory_bytes: 256 << 20, disk: None, inactive: None }
    }
}

pub(crate) fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}
