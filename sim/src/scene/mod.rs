//! What a run is drawn from its seed: the server's configurations, and what clients and upstreams are able to do wrong.

mod configuration;
mod faults;
mod focus;
mod paths;
mod plan;
pub(crate) mod routes;
pub(crate) mod ruled;

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use flatout_lane::poll::EVENTS_MAX;

pub(crate) use configuration::{CacheSettings, Configuration};
pub(crate) use faults::{DiskFaults, WAITING_MAX};
pub(crate) use paths::{cache_path, listen_path, passed_path, proxied_path, secure_path, upstream_path};
pub(crate) use routes::{DENIED, REFUSED};

use crate::message::BODY_BYTES_MAX;
use crate::model::cache::{PLAIN_RESOURCES, RESOURCES};

/// Servers of the application, and their names.
const SERVERS_MAX: usize = 3;
pub(crate) const APPLICATION: [&str; SERVERS_MAX] = ["application", "application-2", "application-3"];
pub(crate) const APPLICATION_NUMBERS: [usize; SERVERS_MAX] = [0, 2, 4];

/// After so many failures a server is down: the default of an upstream.
pub(crate) const FAILURES_MAX: u32 = 3;

/// The server that gets the TLS connections that are passed on.
pub(crate) const PASSED: &str = "passed";

/// The smaller limit of a body.
pub(crate) const BODY_MAX_SMALL: usize = 20_000;

/// A lifetime that is longer than most runs.
const FRESH_S_LONG: u32 = 200;

/// A short time for which messages are kept. It is longer than the server needs to send them, and shorter than a subscriber's longest pause.
const AGE_SHORT: Duration = Duration::from_secs(3);

/// Every time limit of a configuration, and every pause of a peer that keeps the rules, is shorter.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(40);

/// What is drawn for a run besides configurations.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) workers: usize,
    /// The first is served from the start.
    pub(crate) configurations: Vec<Configuration>,
    pub(crate) clients: usize,
    /// The server also listens with TLS.
    pub(crate) has_tls: bool,
    /// It also listens for a proxy that announces clients by the PROXY protocol.
    pub(crate) has_proxy_header: bool,
    /// It also listens for TLS connections that it passes on.
    pub(crate) passes_tls: bool,
    /// It has an access log and metrics.
    pub(crate) is_observed: bool,
    /// How often another is served, one after the other, and from the first again.
    pub(crate) reloads: u32,
    /// Clients break rules: they reset, close one side, or stop.
    pub(crate) clients_fail: bool,
    /// Upstreams do.
    pub(crate) upstreams_fail: bool,
    /// Nearly all of their responses fail.
    pub(crate) upstreams_fail_mostly: bool,
    /// This server of the application closes its connections in place of all responses.
    pub(crate) failing_server: Option<usize>,
    pub(crate) rate_min: u64,
    pub(crate) requests_per_connection_max: Option<u32>,
    /// Most requests are for a few resources whose responses may be stored.
    pub(crate) shares_resources: bool,
    /// If so, most of these requests are for this resource.
    pub(crate) popular: Option<u8>,
    /// If so, many of these requests want a response that was validated for them.
    pub(crate) insists: bool,
    /// How often one of them is purged.
    pub(crate) purges: u32,
    /// Messages that are published.
    pub(crate) channels: Option<Channels>,
    pub(crate) disk: DiskFaults,
    /// Stored responses are also in a folder, which may have so many bytes.
    pub(crate) folder_bytes: Option<u64>,
    /// How often the server is killed.
    pub(crate) crashes: u32,
    /// How often another server takes over.
    pub(crate) upgrades: u32,
    /// When most of the operator's changes happen, and how many responses come before.
    pub(crate) changes: Occasion,
    pub(crate) responses_before_changes: u64,
    /// Most responses of upstreams begin after a pause.
    pub(crate) responses_are_late: bool,
    /// Upstreams respond before they have read the request, and close their connections when they have.
    pub(crate) upstreams_are_hasty: bool,
    /// How often the operator changes the servers of the application.
    pub(crate) server_changes: u32,
    /// How often the clock of the machine is set.
    pub(crate) clock_steps: u32,
    /// One in so many calls of `accept` fails for lack of descriptors. `None`: none fails.
    pub(crate) accepts_per_failure: Option<NonZeroU64>,
    /// The server's limits of connections and of memory for bodies.
    pub(crate) connections_max: Option<usize>,
    pub(crate) bodies_memory_max: Option<u64>,
    /// How many events a worker takes at a time.
    pub(crate) events_max: usize,
    /// The clock moves in short steps.
    pub(crate) has_short_steps: bool,
    /// Connections have many small pieces.
    pub(crate) is_fine: bool,
    /// How much of what is sent over a connection waits in the kernel; `None` is its default.
    pub(crate) send_buffer_bytes: Option<usize>,
    /// A slice of a worker's turn ends at the look at the clock with this number. `None`: no slice ends early.
    pub(crate) slice_looks: Option<NonZeroU64>,
    /// Many bodies are longer than what the server keeps of one.
    pub(crate) has_long_bodies: bool,
    /// The longest body. With small buffers, long ones would take as many turns as all others together.
    pub(crate) body_bytes_max: usize,
    /// Most requests are uploads.
    pub(crate) has_many_uploads: bool,
    /// There are routes with many rules. Their expressions make each start of a server slower.
    pub(crate) has_rules: bool,
    /// Most requests are for routes with many rules.
    pub(crate) has_many_rules: bool,
    /// The server's limits of buffers are at most this. `None`: they are as they are.
    pub(crate) limit_bytes: Option<NonZeroUsize>,
}

/// When most of the operator's changes happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    Any,
    /// Something is in the middle: the body of a request, its authorization, or a message on its way.
    Invited,
    /// A client leaves before it has its response.
    ClientLeaves,
    /// A subscriber is behind.
    SubscriberIsBehind,
    /// The body of a request is on its way.
    BodyWaits,
}

/// A buffer that a few messages or a short body fill. The smallest has room for two pieces of 2 kB.
const SEND_BUFFER_SMALL: usize = 30_000;

/// The longest body in runs with the smallest buffers.
const BODY_BYTES_SHORT: usize = 40_000;

/// Channels, their messages and who gets them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Channels {
    pub(crate) subscribers: usize,
    pub(crate) messages: u32,
    /// How many messages of each channel are kept, and how long, and how many a subscriber may be behind.
    pub(crate) history: usize,
    pub(crate) age: Duration,
    pub(crate) lag_max: u32,
    /// Some messages come from another server.
    pub(crate) has_bus: bool,
    /// Channels keep the latest value of each key in place of a log.
    pub(crate) is_latest: bool,
    /// Some messages are published over HTTP.
    pub(crate) is_over_http: bool,
    /// Subscribers need tokens.
    pub(crate) has_tokens: bool,
    /// All messages and subscribers have the same channel.
    pub(crate) is_single: bool,
    /// Messages come one right behind the other, and subscribers read a little at a time, with short pauses: some are always behind.
    pub(crate) is_busy: bool,
}

/// The most subscribers of a run.
const MANY_SUBSCRIBERS: usize = 12;

/// Lengths are drawn by such a number. Those from the second on are those of runs with long bodies.
const LENGTHS: u8 = 36;
const LONG_FIRST: u8 = 34;

impl Scene {
    pub(crate) fn draw(random: &mut fastrand::Rng) -> Scene {
        // Nobody breaks rules and nothing has a limit: what the cache does can be predicted best.
        let is_calm = random.u8(..5) == 0;
        let count = if !is_calm && random.bool() { random.usize(2..=4) } else { 1 };
        let mut configurations = vec![Configuration::draw(random)];
        for _ in 1..count {
            let next = Configuration::draw(random);
            // Often an operator changes no upstream, and connections to it are kept.
            configurations.push(if random.bool() {
                next.with_upstreams_of(&configurations[0])
            } else {
                next
            });
        }
        if random.bool() {
            // Two configurations that follow each other differ in what an upstream sees.
            let all = configurations.iter_mut().enumerate();
            all.for_each(|(number, configuration)| configuration.adds_field = number % 2 == 0);
        }
        if is_calm {
            configurations[0].request_time_max = None;
            configurations[0].cache = Some(CacheSettings { fresh_s: Some(10), stale_s: 10 });
            if random.bool() {
                configurations[0].keep_to_heads();
            }
        }
        let mut scene = Scene {
            workers: random.usize(1..=3),
            configurations,
            clients: random.usize(1..=8),
            has_tls: random.u8(..3) == 0,
            has_proxy_header: random.u8(..3) == 0,
            passes_tls: false,
            is_observed: random.bool(),
            reloads: if count > 1 { random.u32(1..=8) } else { 0 },
            clients_fail: random.bool() && !is_calm,
            upstreams_fail: random.bool() && !is_calm,
            upstreams_fail_mostly: false,
            failing_server: None,
            rate_min: if !is_calm && random.u8(..4) == 0 { 240 } else { 0 },
            requests_per_connection_max: (random.u8(..6) == 0).then(|| random.u32(1..=3)),
            shares_resources: random.bool() || is_calm,
            popular: random.bool().then(|| random.u8(..RESOURCES)),
            insists: random.u8(..8) == 0,
            channels: (random.u8(..4) == 0).then(|| Channels {
                subscribers: random.usize(1..=4),
                messages: random.u32(1..=100),
                history: *random.choice(&[2, 10, 1000]).expect("some"),
                age: *random.choice(&[AGE_SHORT, 100 * TIME_MAX]).expect("some"),
                lag_max: *random.choice(&[2, 1000]).expect("some"),
                has_bus: random.u8(..3) == 0,
                is_latest: false,
                is_over_http: random.bool(),
                has_tokens: random.u8(..3) == 0,
                is_single: false,
                is_busy: false,
            }),
            purges: if random.bool() { random.u32(1..=30) } else { 0 },
            disk: DiskFaults::draw(random),
            folder_bytes: None,
            crashes: 0,
            upgrades: 0,
            changes: if random.u8(..3) == 0 { Occasion::Invited } else { Occasion::Any },
            responses_before_changes: 0,
            responses_are_late: false,
            upstreams_are_hasty: false,
            server_changes: 0,
            clock_steps: 0,
            accepts_per_failure: None,
            connections_max: None,
            bodies_memory_max: None,
            events_max: *random.choice(&[1, 2, EVENTS_MAX, EVENTS_MAX, EVENTS_MAX]).expect("some"),
            has_short_steps: random.u8(..4) == 0,
            is_fine: random.u8(..3) == 0,
            slice_looks: None,
            send_buffer_bytes: None,
            has_long_bodies: random.u8(..16) == 0,
            body_bytes_max: BODY_BYTES_MAX,
            has_many_uploads: false,
            has_rules: false,
            has_many_rules: false,
            limit_bytes: None,
        };
        let buffer = *random.choice(&[None, None, Some(SEND_BUFFER_SMALL), Some(0)]).expect("some");
        if let Some(bytes) = buffer.filter(|_| !scene.has_long_bodies) {
            (scene.send_buffer_bytes, scene.body_bytes_max) = (Some(bytes), BODY_BYTES_SHORT + 2 * bytes);
        }
        if scene.disk.waiting_max < WAITING_MAX && random.bool() {
            scene.configurations.iter_mut().for_each(Configuration::keep_nothing_in_memory);
        } else if random.u8(..12) == 0 {
            // Small buffers make clients slow, so that responses are stored in files repeatedly.
            scene.configurations.iter_mut().for_each(Configuration::keep_nothing_in_memory);
            (scene.send_buffer_bytes, scene.body_bytes_max) = (Some(SEND_BUFFER_SMALL), BODY_BYTES_MAX);
            scene.has_long_bodies = true;
        }
        if random.u8(..10) == 0 && !scene.has_long_bodies {
            // The rest of a request's body still fills a socket when the next request is about to be sent.
            scene.upstreams_are_hasty = true;
            (scene.send_buffer_bytes, scene.body_bytes_max) = (Some(0), BODY_BYTES_SHORT);
            for configuration in &mut scene.configurations {
                configuration.connections_max = configuration.connections_max.min(2);
                configuration.idle_max = configuration.idle_max.max(1);
            }
            scene.clients = scene.clients.max(3);
            (scene.has_many_uploads, scene.shares_resources) = (true, false);
        }
        // By a generator of its own: everything else stays as it is without a folder.
        scene.draw_folder(&mut fastrand::Rng::with_seed(random.get_seed()));
        scene.draw_operator(&mut fastrand::Rng::with_seed(random.get_seed().wrapping_add(1)));
        scene.draw_upgrades_with_crashes(&mut fastrand::Rng::with_seed(random.get_seed().wrapping_add(4)));
        let is_focused = scene.draw_focus(&mut fastrand::Rng::with_seed(random.get_seed().wrapping_add(2)));
        scene.draw_limits(is_focused, &mut fastrand::Rng::with_seed(random.get_seed().wrapping_add(3)));
        let draws_rules = fastrand::Rng::with_seed(random.get_seed().wrapping_add(5)).u8(..3) == 0;
        scene.has_rules = scene.has_many_rules || draws_rules;
        scene
    }

    /// Draws the length of a body. Long ones are rare in most runs: each costs as much as many others together.
    pub(crate) fn draw_length(&self, random: &mut fastrand::Rng) -> usize {
        let first = if self.has_long_bodies { LONG_FIRST } else { 0 };
        let length = match random.u8(first..LENGTHS) {
            0..=5 => 0,
            6..=15 => random.usize(1..=100),
            16..=24 => random.usize(1..=2_000),
            25..=29 => random.usize(1..=16_384),
            30..=34 => random.usize(1..=70_000),
            _ if random.u8(..3) == 0 || self.has_long_bodies => random.usize(1..=BODY_BYTES_MAX),
            _ => random.usize(1..=300_000),
        };
        length.min(self.body_bytes_max)
    }

    fn draw_folder(&mut self, random: &mut fastrand::Rng) {
        self.disk.cold_of_256 = random.choice([0, 0, 16, 128]).expect("some");
        let has_cache = self.configurations.iter().any(|configuration| configuration.cache.is_some());
        if !has_cache || random.u8(..3) > 0 {
            return;
        }
        self.folder_bytes = random.choice([1 << 20, 16 << 20, 1 << 30]);
        self.disk.tears = random.u8(..4) == 0;
        if random.bool() {
            self.crashes = random.u32(1..=4);
            // What is stored is requested again after a crash, and is fresh then.
            (self.shares_resources, self.clients) = (true, random.usize(4..=8));
            if random.bool() {
                // A purged response must not come back, even if the disk was full during the purge.
                (self.purges, self.disk.fills_up) = (self.purges.max(random.u32(2..10)), true);
                self.popular = Some(random.u8(..PLAIN_RESOURCES));
            }
            let caches = self.configurations.iter_mut().filter_map(|it| it.cache.as_mut());
            caches.filter(|_| random.u8(..4) > 0).for_each(|cache| cache.fresh_s = Some(FRESH_S_LONG));
            // Messages and lines of the log are lost with the process.
            (self.channels, self.is_observed) = (None, false);
        }
    }
}

impl Scene {
    /// Draws what the operator does besides reloads and purges, and the limits of the server.
    fn draw_operator(&mut self, random: &mut fastrand::Rng) {
        if self.crashes == 0 && random.u8(..3) == 0 {
            self.upgrades = random.u32(1..=3);
            if self.folder_bytes.is_none() && random.u8(..3) == 0 {
                self.folder_bytes = Some(16 << 20);
            }
            self.draw_around_upgrades(random);
        }
        if self.crashes == 0 && random.u8(..6) == 0 {
            // The model compares the log with requests, and these connections have lines too.
            (self.passes_tls, self.is_observed) = (true, false);
        }
        if random.u8(..4) == 0 {
            self.server_changes = random.u32(1..=8);
        }
        if matches!(self.changes, Occasion::ClientLeaves | Occasion::SubscriberIsBehind) {
            (self.reloads, self.server_changes) = (0, 0);
        }
        // The age of stored responses depends on the time of day.
        let has_cache = self.configurations.iter().any(|configuration| configuration.cache.is_some());
        if !has_cache && random.u8(..6) == 0 {
            self.clock_steps = random.u32(1..=4);
        }
        self.accepts_per_failure = NonZeroU64::new(random.u64(2..=5)).filter(|_| random.u8(..6) == 0);
        self.connections_max = (random.u8(..8) == 0).then(|| random.usize(2..=6));
        self.bodies_memory_max = (random.u8(..10) == 0).then(|| random.u64(1..=60_000));
        let looks = random.choice([None, None, None, NonZeroU64::new(2), NonZeroU64::new(5)]);
        self.slice_looks = looks.flatten();
        if let Some(channels) = self.channels.as_mut().filter(|_| random.u8(..3) == 0) {
            // Several of a worker have the same channel, and some of them are late.
            channels.subscribers = random.usize(5..=MANY_SUBSCRIBERS);
            channels.is_single = random.bool();
        }
        if let Some(channels) = self.channels.as_mut().filter(|_| random.u8(..4) == 0) {
            (channels.is_latest, channels.has_bus) = (true, false);
        }
        if let Some(channels) = self.channels.as_mut().filter(|_| self.connections_max.is_some()) {
            // Subscribers may have all connections, and stay as long as not all messages are published.
            channels.is_over_http = false;
        }
    }

    /// In some runs, servers are killed and replaced: the new one, or the former one while it drains.
    fn draw_upgrades_with_crashes(&mut self, random: &mut fastrand::Rng) {
        if self.crashes > 0 && random.u8(..3) == 0 {
            (self.upgrades, self.crashes) = (random.u32(1..=3), random.u32(2..=6));
            self.draw_around_upgrades(random);
        }
    }

    /// Some upgrades come when subscribers are behind, some when a worker fetches a response for clients of other workers only, and some
    /// when responses of the folder are fresh.
    fn draw_around_upgrades(&mut self, random: &mut fastrand::Rng) {
        if self.channels.is_some() && random.bool() {
            self.changes = Occasion::SubscriberIsBehind;
            self.send_buffer_bytes = Some(0);
            self.body_bytes_max = self.body_bytes_max.min(BODY_BYTES_SHORT);
        }
        if self.folder_bytes.is_some() {
            // Upgrades come late enough that something is stored. Some purges come before the new server has the folder, and what they remove
            // is requested again.
            self.responses_before_changes = random.u64(3..30);
            (self.shares_resources, self.purges) = (true, self.purges.max(random.u32(10..30)));
            (self.popular, self.clients) = (Some(random.u8(..PLAIN_RESOURCES)), random.usize(3..=6));
            for configuration in &mut self.configurations {
                configuration.cache = Some(CacheSettings { fresh_s: Some(FRESH_S_LONG), stale_s: 0 });
            }
            if random.bool() {
                self.disk.waiting_max = WAITING_MAX;
            }
        }
        if self.clients_fail && random.bool() {
            (self.changes, self.upgrades) = (Occasion::ClientLeaves, 3);
            (self.workers, self.clients) = (self.workers.max(2), random.usize(3..=6));
            (self.shares_resources, self.popular) = (true, Some(random.u8(..PLAIN_RESOURCES)));
            // What was purged is fetched again, and takes a while.
            (self.purges, self.responses_are_late) = (random.u32(20..40), true);
            for configuration in &mut self.configurations {
                configuration.cache.get_or_insert(CacheSettings { fresh_s: Some(10), stale_s: 0 });
            }
        }
    }

    /// Whether the same server runs from the beginning to the end.
    pub(crate) fn has_one_server(&self) -> bool {
        self.crashes == 0 && self.upgrades == 0
    }

    /// Whether all connections are accepted before the clock moves.
    pub(crate) fn accepts_at_once(&self) -> bool {
        self.accepts_per_failure.is_none() && self.connections_max.is_none()
    }

    /// Whether all configurations have the cache: otherwise requests pass by what is in the folder.
    pub(crate) fn always_has_cache(&self) -> bool {
        self.configurations.iter().all(|configuration| configuration.cache.is_some())
    }

    /// Whether the end of a response may come from its upstream when its client has all of it, so that the server reads the next request
    /// later than when that is sent.
    pub(crate) fn has_separate_ends(&self) -> bool {
        self.configurations
            .iter()
            .any(|configuration| configuration.is_fastcgi || configuration.streams_max.is_some())
    }

    /// Whether clients ask for tunnels: only to upstreams of HTTP/1.
    pub(crate) fn may_tunnel(&self) -> bool {
        !self.has_separate_ends() && self.crashes == 0
    }

    /// Whether a body of this length may be over the limit.
    pub(crate) fn is_too_large(&self, length: usize) -> bool {
        self.configurations.iter().any(|configuration| length as u64 > configuration.body_max)
    }
}
