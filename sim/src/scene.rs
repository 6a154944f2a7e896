//! What a run is drawn from its seed: the server's configurations, and what clients and upstreams are able to do wrong.

use std::path::{Path, PathBuf};
use std::time::Duration;

use flatout_cache::{DiskPlan, Plan as CachePlan};
use flatout_engine::{self as engine, Limits, Listen, ProxyHeader};
use flatout_gateway::{BufferRequests, Forward, Rules as CacheRules};
use flatout_lane::poll::EVENTS_MAX;
use flatout_proxy as proxy;
use flatout_server::{Checked, Invalid, Plan};
use flatout_site::plan::{
    self as site, Access, Action, AddressFrom, Cached, Concurrency, ConcurrencyUse, FieldChange, FieldRule,
    ForwardAuth, Host, Limited, PathMatch, Peers, Rate, RateUse, Route, Rules, Site, Template, Trust,
    Verdict, When,
};
use flatout_tls::ServerPlan;

use crate::message::BODY_BYTES_MAX;
use crate::model::cache::RESOURCES;
use crate::model::push::CHANNELS_PATH;
use crate::{secure, subscriber};

/// Paths that no client may reach, and where the authorization service refuses.
pub(crate) const DENIED: &str = "/denied";
pub(crate) const REFUSED: &str = "/refused";

/// Servers of the application, and their names.
const SERVERS_MAX: usize = 2;
pub(crate) const APPLICATION: [&str; SERVERS_MAX] = ["application", "application-2"];

/// The smaller limit of a body.
pub(crate) const BODY_MAX_SMALL: usize = 20_000;

/// A lifetime that is longer than most runs.
const FRESH_S_LONG: u32 = 200;

/// Every time limit of a configuration, and every pause of a peer that keeps the rules, is shorter.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(40);

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
    /// Servers of the application.
    pub(crate) servers: usize,
    pub(crate) retry_on: proxy::RetryOn,
    /// Bytes of a response, and of the memory of all, that are kept for clients that are slow; the rest goes into files.
    pub(crate) buffer_response_bytes: u64,
    pub(crate) spool_memory_max: u64,
    pub(crate) spools_to_files: bool,
    /// Bytes of a body.
    pub(crate) body_max: u64,
    /// A field that the upstream is sent.
    pub(crate) adds_field: bool,
    /// The upstream is sent the id of the request.
    pub(crate) sends_request_id: bool,
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
    /// It has an access log and metrics.
    pub(crate) is_observed: bool,
    /// How often another is served, one after the other, and from the first again.
    pub(crate) reloads: u32,
    /// Clients break rules: they reset, close one side, or stop.
    pub(crate) clients_fail: bool,
    /// Upstreams do.
    pub(crate) upstreams_fail: bool,
    pub(crate) rate_min: u64,
    pub(crate) requests_per_connection_max: Option<u32>,
    /// Most requests are for a few resources whose responses may be stored.
    pub(crate) shares_resources: bool,
    /// If so, most of these requests are for this resource.
    pub(crate) popular: Option<u8>,
    /// How often one of them is purged.
    pub(crate) purges: u32,
    /// Messages that are published.
    pub(crate) channels: Option<Channels>,
    pub(crate) disk: DiskFaults,
    /// Stored responses are also in a folder, which may have so many bytes.
    pub(crate) folder_bytes: Option<u64>,
    /// How often the server is killed.
    pub(crate) crashes: u32,
    /// How many events a worker takes at a time.
    pub(crate) events_max: usize,
    /// How much of what is sent over a connection waits in the kernel; `None` is its default.
    pub(crate) send_buffer_bytes: Option<usize>,
    /// Many bodies are longer than what the server keeps of one.
    pub(crate) has_long_bodies: bool,
    /// The longest body. With small buffers, long ones would take as many turns as all others together.
    pub(crate) body_bytes_max: usize,
}

/// A buffer that a few messages or a short body fill. The smallest has room for two pieces of 2 kB.
const SEND_BUFFER_SMALL: usize = 30_000;

/// More jobs than wait at once.
const WAITING_MAX: usize = 1024;

/// What the threads for files may do wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskFaults {
    /// How many of 256 jobs are late.
    pub(crate) slow_of_256: u8,
    /// How many jobs may wait.
    pub(crate) waiting_max: usize,
    /// The disk is full now and then.
    pub(crate) fills_up: bool,
    /// Writes end in the middle now and then.
    pub(crate) tears: bool,
    /// How many of 256 steps change whether what is read is in the page cache.
    pub(crate) cold_of_256: u8,
}

impl DiskFaults {
    /// Whether a file may not be written, or not be read in time.
    pub(crate) fn may_refuse(self) -> bool {
        self.fills_up || self.tears || self.waiting_max < WAITING_MAX || self.slow_of_256 > 0
    }

    fn draw(random: &mut fastrand::Rng) -> DiskFaults {
        DiskFaults {
            slow_of_256: *random.choice(&[0, 16, 128]).expect("some"),
            waiting_max: *random.choice(&[1, 3, WAITING_MAX, WAITING_MAX]).expect("some"),
            fills_up: random.u8(..4) == 0,
            tears: false,
            cold_of_256: 0,
        }
    }
}

/// Channels, their messages and who gets them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Channels {
    pub(crate) subscribers: usize,
    pub(crate) messages: u32,
    /// How many messages of each channel are kept, and how many a subscriber may be behind.
    pub(crate) history: usize,
    pub(crate) lag_max: u32,
}

/// The lengths from this draw on are those of runs with long bodies.
const LONG_FIRST: u8 = 8;

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
            is_observed: random.bool(),
            reloads: if count > 1 { random.u32(1..=8) } else { 0 },
            clients_fail: random.bool() && !is_calm,
            upstreams_fail: random.bool() && !is_calm,
            rate_min: if !is_calm && random.u8(..4) == 0 { 240 } else { 0 },
            requests_per_connection_max: (random.u8(..6) == 0).then(|| random.u32(1..=3)),
            shares_resources: random.bool() || is_calm,
            popular: random.bool().then(|| random.u8(..RESOURCES)),
            channels: (random.u8(..4) == 0).then(|| Channels {
                subscribers: random.usize(1..=4),
                messages: random.u32(1..=100),
                history: *random.choice(&[2, 10, 1000]).expect("some"),
                lag_max: *random.choice(&[2, 1000]).expect("some"),
            }),
            purges: if random.bool() { random.u32(1..=30) } else { 0 },
            disk: DiskFaults::draw(random),
            folder_bytes: None,
            crashes: 0,
            events_max: *random.choice(&[1, 2, EVENTS_MAX]).expect("some"),
            send_buffer_bytes: None,
            has_long_bodies: random.u8(..8) == 0,
            body_bytes_max: BODY_BYTES_MAX,
        };
        let buffer = *random.choice(&[None, None, Some(SEND_BUFFER_SMALL), Some(0)]).expect("some");
        if let Some(bytes) = buffer.filter(|_| !scene.has_long_bodies) {
            (scene.send_buffer_bytes, scene.body_bytes_max) = (Some(bytes), 40_000 + 2 * bytes);
        }
        if scene.disk.waiting_max < WAITING_MAX && random.bool() {
            scene.configurations.iter_mut().for_each(Configuration::keep_nothing_in_memory);
        }
        // By a generator of its own: everything else stays as it is without a folder.
        scene.draw_folder(&mut fastrand::Rng::with_seed(random.get_seed()));
        scene
    }

    /// Draws the length of a body. Long ones are rare in most runs: each costs as much as many others together.
    pub(crate) fn draw_length(&self, random: &mut fastrand::Rng) -> usize {
        let first = if self.has_long_bodies { LONG_FIRST } else { 0 };
        let length = match random.u8(first..12) {
            0 | 1 => 0,
            2..=4 => random.usize(1..=100),
            5..=8 => random.usize(1..=16_384),
            9 | 10 => random.usize(1..=70_000),
            _ if random.u8(..3) == 0 => random.usize(1..=BODY_BYTES_MAX),
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
            let caches = self.configurations.iter_mut().filter_map(|it| it.cache.as_mut());
            caches.filter(|_| random.u8(..4) > 0).for_each(|cache| cache.fresh_s = Some(FRESH_S_LONG));
            // Messages and lines of the log are lost with the process.
            (self.channels, self.is_observed) = (None, false);
        }
    }
}

impl Scene {
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

impl Configuration {
    /// Nothing but the head of a request decides about its response: the cache recognizes heads that are the same.
    fn keep_to_heads(&mut self) {
        (self.has_authorization, self.adds_field, self.sends_request_id) = (false, false, false);
        (self.rate, self.concurrency) = (None, None);
    }

    /// With the same upstreams as another configuration.
    fn with_upstreams_of(self, other: &Configuration) -> Configuration {
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
            retry_on: other.retry_on.clone(),
            ..self
        }
    }

    /// Bodies go to the disk.
    fn keep_nothing_in_memory(&mut self) {
        (self.buffers_requests, self.spools_to_files, self.spool_memory_max) = (true, true, 0);
        self.buffer_response_bytes = 1 << 30;
    }

    fn draw(random: &mut fastrand::Rng) -> Configuration {
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
            sends_request_id,
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

    /// The plan of a server below a folder.
    ///
    /// # Panics
    /// A configuration that the server refuses.
    pub(crate) fn checked(&self, scene: &Scene, folder: &Path) -> Checked {
        let upstream = |names: &[&str], is_fastcgi: bool| {
            let server = |name: &&str| proxy::Server::new(proxy::Address::Unix(upstream_path(folder, name)));
            proxy::Upstream {
                protocol: match self.streams_max {
                    _ if is_fastcgi => proxy::Protocol::FastCgi,
                    Some(streams_max) => proxy::Protocol::H2c { streams_max },
                    None => proxy::Protocol::Http1,
                },
                connections_max: self.connections_max,
                idle_max: self.idle_max,
                queue_time_max: self.queue_time_max,
                read_time_max: self.read_time_max,
                request_time_max: self.request_time_max,
                retries_max: self.retries_max,
                retry_on: self.retry_on.clone(),
                cgi: proxy::Cgi { root: "/scripts".to_owned(), ..proxy::Cgi::default() },
                ..proxy::Upstream::new(names[0], names.iter().map(server).collect())
            }
        };
        let (rates, rate_uses) = match self.rate {
            None => (Vec::new(), Vec::new()),
            Some((requests, burst, delay)) => {
                let rate = Rate {
                    name: "rate".to_owned(),
                    key: Limited::Everyone,
                    requests,
                    window: Duration::from_secs(1),
                    keys_max: 1000,
                };
                (
                    vec![rate],
                    vec![RateUse { rate: 0, burst, delay, status: 429, fields: false, is_dry_run: false }],
                )
            }
        };
        let concurrency = self.concurrency.map(|(requests_max, queue_max)| Concurrency {
            name: "concurrency".to_owned(),
            key: Limited::Everyone,
            requests_max,
            queue_max,
            queue_time_max: self.queue_time_max,
            keys_max: 1000,
            status: 503,
        });
        let field = |name: &str, template| FieldRule {
            change: FieldChange::Set(template),
            name: name.to_owned(),
            when: When::Always,
        };
        let added = self.adds_field.then(|| field("X-Added", Template::text("yes")));
        let request_id = Template::parse("$request_id", |_| None).expect("a variable that there is");
        let id = self.sends_request_id.then(|| field("X-Request-Id", request_id));
        let rules = Rules {
            rates: rate_uses,
            forward_auth: self.has_authorization.then(|| ForwardAuth {
                upstream: 1,
                target: Template::text("/authorize"),
                request_fields: Vec::new(),
                response_fields: Vec::new(),
            }),
            body: site::BodyLimit { bytes_max: Some(self.body_max) },
            concurrency: concurrency.iter().map(|_| ConcurrencyUse { limit: 0, is_dry_run: false }).collect(),
            request_fields: added.into_iter().chain(id).collect(),
            cache: self.cache.map(CacheSettings::rules),
            limit_rate_bytes_per_s: self.limit_rate.map_or(0, |limit| limit.bytes_per_s),
            limit_rate_after_bytes: self.limit_rate.map_or(0, |limit| limit.after_bytes),
            ..Rules::default()
        };
        let forward = Forward {
            buffer_requests: if self.buffers_requests { BufferRequests::All } else { BufferRequests::Short },
            buffer_response_bytes: self.buffer_response_bytes,
            ..Forward::to(0)
        };
        let all = Route {
            rules: rules.clone(),
            ..Route::new(PathMatch::prefix("/"), Action::Proxy(forward.clone()))
        };
        let nobody = Access { verdict: Verdict::Deny, peers: Peers::All };
        let denied = Route {
            rules: Rules { access: vec![nobody], ..rules },
            ..Route::new(PathMatch::prefix(DENIED), Action::Proxy(forward))
        };
        let channels = scene.channels.map(|channels| {
            let plan = Box::new(subscriber::plan(channels));
            Route::new(PathMatch::prefix(CHANNELS_PATH), Action::Push(plan))
        });
        let proxies = scene.has_proxy_header.then_some(Peers::Unix);
        let sites = site::Plan {
            upstreams: vec![
                upstream(&APPLICATION[..self.servers], self.is_fastcgi),
                upstream(&["authorization"], false),
            ],
            spool: proxy::SpoolPlan {
                folder: self.spools_to_files.then(|| folder.to_owned()),
                memory_max: self.spool_memory_max,
                ..proxy::SpoolPlan::default()
            },
            cache: CachePlan {
                disk: scene.folder_bytes.map(|bytes_max| DiskPlan { dir: cache_path(folder), bytes_max }),
                ..CachePlan::default()
            },
            rates,
            concurrency: concurrency.into_iter().collect(),
            sites: vec![
                Site {
                    name: "*".to_owned(),
                    hosts: vec![Host::Any],
                    routes: [all, denied].into_iter().chain(channels).collect(),
                    trust: Trust { proxies: proxies.into_iter().collect(), from: AddressFrom::ProxyProtocol },
                    ..Site::default()
                }
                .into(),
            ],
            ..site::Plan::default()
        };
        let limits = Limits {
            rate_min_bytes_per_s: scene.rate_min,
            requests_per_connection_max: scene.requests_per_connection_max,
            ..Limits::default()
        };
        let plain = Listen { is_plain: scene.has_tls, ..engine::Address::Unix(listen_path(folder)).into() };
        let with_tls: Option<Listen> =
            scene.has_tls.then(|| engine::Address::Unix(secure_path(folder)).into());
        let proxied: Option<Listen> = scene.has_proxy_header.then(|| Listen {
            is_plain: scene.has_tls,
            proxy_header: ProxyHeader::Trusted,
            ..engine::Address::Unix(proxied_path(folder)).into()
        });
        let server = engine::Plan {
            listen: std::iter::once(plain).chain(with_tls).chain(proxied).collect(),
            workers: Some(scene.workers),
            limits,
            pin: false,
            ..engine::Plan::default()
        };
        let secure = if scene.has_tls { secure::plan(folder) } else { ServerPlan::default() };
        match (Plan { server, sites, secure, ..Plan::default() }).check() {
            Ok(checked) => checked,
            Err(Invalid::Sites(fault)) => panic!("a plan that is refused: {fault}: {self:?}"),
            Err(Invalid::Value(value)) => panic!("a plan that is refused: {value}: {self:?}"),
            Err(_) => panic!("a plan that is refused: {self:?}"),
        }
    }
}

impl CacheSettings {
    fn rules(self) -> Cached {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let rules = match self.fresh_s {
            Some(fresh_s) => CacheRules::fresh(seconds(fresh_s)),
            None => CacheRules::default(),
        };
        Cached { rules: CacheRules { stale_time: seconds(self.stale_s), ..rules }, ..Cached::default() }
    }
}

/// Where the server listens.
pub(crate) fn listen_path(folder: &Path) -> PathBuf {
    folder.join("server.sock")
}

/// Where it listens with TLS.
pub(crate) fn secure_path(folder: &Path) -> PathBuf {
    folder.join("secure.sock")
}

/// Where it listens for a proxy that announces clients.
pub(crate) fn proxied_path(folder: &Path) -> PathBuf {
    folder.join("proxied.sock")
}

/// Where stored responses are.
pub(crate) fn cache_path(folder: &Path) -> PathBuf {
    folder.join("cache")
}

/// Where an upstream listens.
pub(crate) fn upstream_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.sock"))
}
