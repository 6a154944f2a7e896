//! A configuration of the server, as it is drawn.

use std::time::Duration;

use flatout_proxy as proxy;

use super::{BODY_MAX_SMALL, SERVERS_MAX};

/// Less than one piece of a response. Without any, no response goes to a file.
const SPOOL_MEMORY_SMALL: u64 = 1_000;

/// A configuration.
#[derive(Debug, Clone)]
pub(crate) struct Configuration {
    /// Requests wait for an authorization service.
    pub(crate) has_authorization: bool,
    /// Requests a second, how many may come at once, and how many of those are not delayed.
    pub(crate) rate: Option<(u32, u32, Option<u32>)>,
    /// Requests at once, and how many wait.
    pub(crate) concurrency: Option<(u32, u32)>,
    /// The whole body is read before the upstream is asked.
    pub(crate) buffers_requests: bool,
    /// Upstreams speak HTTP/2, with so many requests at once on a connection.
    pub(crate) streams_max: Option<u32>,
    /// Those of the application speak FastCGI.
    pub(crate) is_fastcgi: bool,
    pub(crate) connections_max: usize,
    pub(crate) idle_max: usize,
    pub(crate) queue_time_max: Duration,
    pub(crate) read_time_max: Duration,
    pub(crate) request_time_max: Option<Duration>,
    pub(crate) retries_max: u32,
    /// The number of servers of the application, and how one of them is chosen.
    pub(crate) servers: usize,
    pub(crate) balance: proxy::Balance,
    pub(crate) weights: [u32; SERVERS_MAX],
    /// The last one is a backup.
    pub(crate) has_backup: bool,
    /// Requests at once of each; 0 is no limit.
    pub(crate) requests_max: u32,
    /// How long one that was down gets less than its share.
    pub(crate) slow_start: Duration,
    pub(crate) retry_on: proxy::RetryOn,
    /// Bytes of a response, and of the memory of all, that are kept for clients that are slow; the rest goes into files.
    pub(crate) buffer_response_bytes: u64,
    pub(crate) spool_memory_max: u64,
    pub(crate) spools_to_files: bool,
    /// Bytes of a body.
    pub(crate) body_max: u64,
    /// A field that the upstream is sent.
    pub(crate) adds_field: bool,
    /// A field with variables of the request is sent to the upstream.
    pub(crate) shows_request: bool,
    /// The rules for fields of responses are used.
    pub(crate) changes_fields: bool,
    /// The texts of rules name this.
    pub(crate) rules_version: u8,
    /// The upstream is sent the id of the request.
    pub(crate) sends_request_id: bool,
    /// Responses are compressed for clients that accept it.
    pub(crate) compresses: bool,
    pub(crate) cache: Option<CacheSettings>,
    pub(crate) limit_rate: Option<RateLimit>,
}

/// How fast each response is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RateLimit {
    pub(crate) bytes_per_s: u64,
    /// Bytes that are sent without the limit.
    pub(crate) after_bytes: u64,
}

/// How responses are stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheSettings {
    /// The lifetime of a response that says none.
    pub(crate) fresh_s: Option<u32>,
    /// How long stale responses are served if the upstream cannot be reached.
    pub(crate) stale_s: u32,
}

impl Configuration {
    /// Nothing but the head of a request decides about its response: the cache recognizes heads that are the same.
    pub(super) fn keep_to_heads(&mut self) {
        (self.has_authorization, self.adds_field, self.sends_request_id) = (false, false, false);
        (self.shows_request, self.changes_fields) = (false, false);
        (self.rate, self.concurrency) = (None, None);
    }

    /// The servers of the application: what an operator changes holds as long as a configuration has the same. Each is its weight, whether it is a
    /// backup, and its limit.
    pub(crate) fn planned_servers(&self) -> impl Iterator<Item = (u32, bool, u32)> {
        let is_backup = |at| self.has_backup && at > 0 && at + 1 == self.servers;
        (0..self.servers).map(move |at| (self.weights[at], is_backup(at), self.requests_max))
    }

    /// With the same upstreams as another configuration.
    pub(super) fn with_upstreams_of(self, other: &Configuration) -> Configuration {
        Configuration {
            streams_max: other.streams_max,
            is_fastcgi: other.is_fastcgi,
            connections_max: other.connections_max,
            idle_max: other.idle_max,
            queue_time_max: other.queue_time_max,
            read_time_max: other.read_time_max,
            request_time_max: other.request_time_max,
            retries_max: other.retries_max,
            servers: other.servers,
            balance: other.balance.clone(),
            weights: other.weights,
            has_backup: other.has_backup,
            requests_max: other.requests_max,
            slow_start: other.slow_start,
            retry_on: other.retry_on.clone(),
            ..self
        }
    }

    /// Bodies go to the disk.
    pub(super) fn keep_nothing_in_memory(&mut self) {
        (self.buffers_requests, self.spools_to_files) = (true, true);
        self.spool_memory_max = SPOOL_MEMORY_SMALL;
        self.buffer_response_bytes = 1 << 30;
    }

    pub(super) fn draw(random: &mut fastrand::Rng) -> Configuration {
        let mut sometimes = |of| random.u8(..of) == 0;
        let (has_authorization, has_rate, has_concurrency) = (sometimes(3), sometimes(3), sometimes(3));
        let (buffers_requests, has_request_time, has_body_max) = (sometimes(4), sometimes(3), sometimes(4));
        let adds_field = sometimes(2);
        let (sends_request_id, spools_to_files) = (sometimes(2), sometimes(2));
        let seconds = |random: &mut fastrand::Rng, from, to| Duration::from_secs(random.u64(from..=to));
        Configuration {
            has_authorization,
            rate: has_rate.then(|| {
                let burst = random.u32(0..=10);
                (random.u32(1..=10), burst, random.bool().then(|| random.u32(0..=burst)))
            }),
            concurrency: has_concurrency.then(|| (random.u32(1..=3), random.u32(0..=10))),
            buffers_requests,
            streams_max: (random.u8(..3) == 0).then(|| random.u32(1..=8)),
            is_fastcgi: random.u8(..5) == 0,
            connections_max: *random.choice(&[1, 1, 2, 4096]).expect("some"),
            idle_max: *random.choice(&[0, 1, 256]).expect("some"),
            queue_time_max: seconds(random, 1, 30),
            read_time_max: seconds(random, 10, 30),
            request_time_max: has_request_time.then(|| seconds(random, 5, 40)),
            retries_max: random.u32(0..=2),
            servers: random.usize(1..=SERVERS_MAX),
            balance: draw_balance(random),
            weights: if random.u8(..3) == 0 {
                [1; SERVERS_MAX].map(|_| random.u32(1..=4))
            } else {
                [1; SERVERS_MAX]
            },
            has_backup: random.u8(..6) == 0,
            requests_max: if random.u8(..8) == 0 { random.u32(1..=3) } else { 0 },
            slow_start: if random.u8(..6) == 0 { seconds(random, 1, 30) } else { Duration::ZERO },
            retry_on: proxy::RetryOn {
                error: random.u8(..4) > 0,
                timeout: random.bool(),
                invalid_response: random.bool(),
                non_idempotent: random.u8(..4) == 0,
                statuses: if random.u8(..3) == 0 { vec![500] } else { Vec::new() },
            },
            buffer_response_bytes: *random.choice(&[0, 1_000, 100_000, 1 << 30]).expect("some"),
            spool_memory_max: *random.choice(&[0, 20_000, 64 << 20]).expect("some"),
            spools_to_files,
            body_max: if has_body_max { BODY_MAX_SMALL as u64 } else { 1 << 20 },
            adds_field,
            shows_request: random.bool(),
            changes_fields: random.bool(),
            rules_version: random.u8(..3),
            sends_request_id,
            compresses: random.u8(..5) == 0,
            cache: random.bool().then(|| CacheSettings {
                fresh_s: random.bool().then(|| random.u32(1..=20)),
                stale_s: random.u32(..20),
            }),
            limit_rate: (random.u8(..6) == 0).then(|| RateLimit {
                bytes_per_s: random.u64(20_000..500_000),
                after_bytes: if random.bool() { 0 } else { random.u64(..100_000) },
            }),
        }
    }
}

/// How a server is chosen. Keys are in a field of their own.
pub(super) fn draw_balance(random: &mut fastrand::Rng) -> proxy::Balance {
    match random.u8(..8) {
        0 | 1 => proxy::Balance::LeastConnections,
        2 => proxy::Balance::LeastTime,
        3 => proxy::Balance::TwoChoices,
        4 => proxy::Balance::Hash(proxy::Key::Header("x-key".to_owned())),
        _ => proxy::Balance::RoundRobin,
    }
}
