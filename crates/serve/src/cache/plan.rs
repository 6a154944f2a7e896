//! What a cache and the routes that use it are set to.

use std::ops::RangeInclusive;
use std::time::Duration;

pub use flatout_wire::cache::Ignored;

pub use super::disk::DiskPlan;
use crate::site::plan::Template;

/// A cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of memory for responses, with all that it takes to find them.
    pub memory_bytes: u64,
    /// Where they survive a restart, if they do.
    pub disk: Option<DiskPlan>,
    /// Responses that nobody asks for in this time are removed, fresh or not; `None` keeps them.
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
    /// How long responses are fresh that do not say it themselves; the first that names a status counts.
    pub valid: Vec<Validity>,
    /// What requests must have in common to get the same response; `None` is scheme, host, path and query, and the lines that the
    /// site adds for the upstream.
    pub key: Option<Template>,
    /// Requests for which one of these is neither empty nor `0` are not answered from the cache.
    pub bypass: Vec<Template>,
    /// The responses to requests for which one of these is neither empty nor `0` are not stored.
    pub no_store: Vec<Template>,
    /// How often a response must have been asked for before it is stored; at least 1.
    pub uses_min: u32,
    /// Fields of responses that do not count.
    pub ignored: Ignored,
    /// `Cache-Control` and `Pragma` of requests do not count.
    pub ignores_requests: bool,
    /// How long a response that may be served stale stands in for an upstream that cannot be asked.
    pub stale_time: Duration,
    /// Ranges of what is not stored are fetched in aligned pieces of so many bytes, which are stored; `None` forwards them. Pieces larger
    /// than a sixteenth of the cache's memory are not stored, and such ranges forwarded.
    pub slice_bytes: Option<u64>,
    /// Whether responses say in `Cache-Status` and `X-Cache-Status` where they come from.
    pub says_status: bool,
}

/// How long responses of some statuses are fresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validity {
    /// The statuses.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// How long; zero leaves it to the response.
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
    /// A 200 that does not state how long it is fresh is fresh for `time`; other responses only if they state it.
    pub fn fresh(time: Duration) -> Rules {
        Rules { valid: vec![Validity { statuses: vec![200..=200], time }], ..Rules::default() }
    }

    /// How long a response stands in for an upstream that cannot be asked.
    pub(super) fn stale_seconds(&self) -> u32 {
        seconds(self.stale_time)
    }

    /// What holds for responses of a status.
    pub(super) fn of(&self, status: u16) -> flatout_wire::cache::Rules {
        let named =
            self.valid.iter().find(|valid| valid.statuses.iter().any(|these| these.contains(&status)));
        flatout_wire::cache::Rules { validity: named.map(|valid| seconds(valid.time)), ignored: self.ignored }
    }
}

pub(super) fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}
