//! How the responses of a route are cached.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

pub use flatout_wire::cache::Ignored;

/// How the responses of a route are cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// How long responses without their own lifetime are fresh; the first entry that includes the status applies.
    pub valid: Vec<Validity>,
    /// The number of requests after which a response is stored; at least 1.
    pub uses_min: u32,
    /// Response fields that are ignored.
    pub ignored: Ignored,
    /// Whether `Cache-Control` and `Pragma` of requests are ignored.
    pub ignores_requests: bool,
    /// How long a stale response may replace one from an unreachable upstream.
    pub stale_time: Duration,
    /// Statuses of the upstream that it may replace too.
    pub stale_statuses: Vec<RangeInclusive<u16>>,
    /// How long a stale response may be served while it is fetched again; the response may allow more.
    pub updating_time: Duration,
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
            uses_min: 1,
            ignored: Ignored::default(),
            ignores_requests: false,
            stale_time: Duration::from_secs(60),
            stale_statuses: Vec::new(),
            updating_time: Duration::ZERO,
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
    pub fn stale_seconds(&self) -> u32 {
        seconds(self.stale_time)
    }

    /// Whether a stale response may replace one of the upstream with this status.
    pub fn is_replaced(&self, status: u16) -> bool {
        self.stale_statuses.iter().any(|these| these.contains(&status))
    }

    /// The rules for responses with a status.
    pub fn of(&self, status: u16) -> flatout_wire::cache::Rules {
        let named =
            self.valid.iter().find(|valid| valid.statuses.iter().any(|these| these.contains(&status)));
        flatout_wire::cache::Rules {
            validity: named.map(|valid| seconds(valid.time)),
            while_revalidate: seconds(self.updating_time),
            ignored: self.ignored,
        }
    }
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// How the response to a request is cached.
#[derive(Debug, Clone, Copy)]
pub struct Caching<'a> {
    /// The route's settings.
    pub rules: &'a Arc<Rules>,
    /// The operator's key, rendered; `None` is the default key.
    pub key: Option<&'a [u8]>,
    /// Distinguishes the site from others with the same host names at other listeners; empty if there is none.
    pub space: &'a [u8],
    /// `Authorization` is part of the key, so only clients that send the same value share responses.
    pub names_authorization: bool,
    /// The route's rules depend on nothing but the request head: identical heads get the same response.
    pub repeats: bool,
    /// The cache does not answer this request.
    pub is_bypassed: bool,
    /// The cache does not answer this request either, but it stores the response.
    pub is_refreshed: bool,
    /// The response is not stored.
    pub is_unstored: bool,
}
