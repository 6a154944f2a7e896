//! The settings of a cache and the routes that use it.

use std::ops::RangeInclusive;
use std::time::Duration;

pub use flatout_wire::cache::Ignored;

pub use super::disk::DiskPlan;
use crate::site::plan::Template;

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

/// How the responses of a route are cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// How long responses without their own lifetime are fresh; the first entry that includes the status applies.
    pub valid: Vec<Validity>,
    /// The parts of a request that identify its response; `None` is scheme, host, path and query, and the lines that
    /// the site adds for the upstream.
    pub key: Option<Template>,
    /// A request bypasses the cache if one of these is neither empty nor `0`.
    pub bypass: Vec<Template>,
    /// The response is not stored if one of these is neither empty nor `0`.
    pub no_store: Vec<Template>,
    /// The number of requests after which a response is stored; at least 1.
    pub uses_min: u32,
    /// Response fields that are ignored.
    pub ignored: Ignored,
    /// Whether `Cache-Control` and `Pragma` of requests are ignored.
    pub ignores_requests: bool,
    /// How long a stale response may replace one from an unreachable upstream.
    pub stale_time: Duration,
    /// The size of slices: ranges of responses that are not stored are fetched as aligned slices of this size, which
    /// are stored; `None` forwards them. Slices larger than a sixteenth of the cache's memory are not stored, and
    /// such ranges forwarded.
    pub slice_bytes: Option<u64>,
    /// Whether responses show their origin in `Cache-Status` and `X-Cache-Status`.
    pub says_status: bool,
}

/// How long responses of some statuses are fresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validity {
    /// The statuses.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// The lifetime; zero leaves it to the response.
    pub time: Duration,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            valid: Vec::new(),
            key: None,
            bypass: Vec::new(),
            no_store: Vec::new(),
            uses_min: 1,
            ignored: Ignored::default(),
            ignores_requests: false,
            stale_time: Duration::from_secs(60),
            slice_bytes: None,
            says_status: true,
        }
    }
}

impl Rules {
    /// A 200 without its own lifetime is fresh for `time`; other responses are fresh only if they declare it.
    pub fn fresh(time: Duration) -> Rules {
        Rules { valid: vec![Validity { statuses: vec![200..=200], time }], ..Rules::default() }
    }

    /// How long a stale response may replace one from an unreachable upstream.
    pub(super) fn stale_seconds(&self) -> u32 {
        seconds(self.stale_time)
    }

    /// The rules for responses with a status.
    pub(super) fn of(&self, status: u16) -> flatout_wire::cache::Rules {
        let named =
            self.valid.iter().find(|valid| valid.statuses.iter().any(|these| these.contains(&status)));
        flatout_wire::cache::Rules { validity: named.map(|valid| seconds(valid.time)), ignored: self.ignored }
    }
}

pub(super) fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}
