//! The server's plan for a configuration.

use std::path::Path;
use std::time::Duration;

use flatout_cache::{DiskPlan, Plan as CachePlan};
use flatout_compress::{Compress, Level};
use flatout_engine::{self as engine, Limits, Listen, ProxyHeader};
use flatout_gateway::{BufferRequests, Forward, Rules as CacheRules};
use flatout_proxy as proxy;
use flatout_server::{Checked, Invalid, Plan, SiteListen};
use flatout_site::plan::{
    self as site, Action, AddressFrom, ByteCount, Cached, Concurrency, ConcurrencyUse, FieldChange,
    ForwardAuth, Host, Limited, PassthroughShare, PathMatch, Peers, Rate, RateUse, Route, Rules, Site,
    Template, TlsPassthrough, Trust,
};
use flatout_tls::ServerPlan;
use flatout_wire::accept::Coding;

use super::paths::{cache_path, listen_path, passed_path, proxied_path, secure_path, upstream_path};
use super::{APPLICATION, CacheSettings, Configuration, PASSED, Scene, routes, ruled};
use crate::model::push::CHANNELS_PATH;
use crate::{secure, subscriber};

/// The index of the upstream for connections that are passed on.
const PASSED_UPSTREAM: usize = 2;

/// Shorter bodies are not compressed.
const COMPRESSED_BYTES_MIN: u64 = 100;

/// Longer than any request takes.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1000);

impl Configuration {
    /// The plan of a server below a folder.
    ///
    /// # Panics
    /// A configuration that the server refuses.
    pub(crate) fn checked(&self, scene: &Scene, folder: &Path) -> Checked {
        let server = |name: &&str| proxy::Server::new(proxy::Address::Unix(upstream_path(folder, name)));
        let upstream = |names: &[&str], is_fastcgi: bool| proxy::Upstream {
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
            balance: self.balance.clone(),
            cgi: proxy::Cgi { root: "/scripts".to_owned(), ..proxy::Cgi::default() },
            slow_start: self.slow_start,
            ..proxy::Upstream::new(names[0], self.servers(names, folder))
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
        let set = |name: &str, template| routes::field(name, FieldChange::Set(template));
        let added = self.adds_field.then(|| set("X-Added", Template::text("yes")));
        let id = self.sends_request_id.then(|| set("X-Request-Id", routes::template("$request_id")));
        let shown = self.shows_request.then(routes::shown_field);
        let rules = Rules {
            rates: rate_uses,
            forward_auth: self.has_authorization.then(|| ForwardAuth {
                upstream: 1,
                target: Template::text("/authorize"),
                request_fields: Vec::new(),
                response_fields: Vec::new(),
                sign_in: None,
            }),
            body: site::BodyLimit { bytes_max: Some(self.body_max) },
            concurrency: concurrency.iter().map(|_| ConcurrencyUse { limit: 0, is_dry_run: false }).collect(),
            request_fields: added.into_iter().chain(id).chain(shown).collect(),
            response_fields: if self.changes_fields { routes::response_fields() } else { Vec::new() },
            cache: self.cache.map(CacheSettings::rules),
            compress: self.compresses.then(compress),
            limit_rate: ByteCount::Fixed(self.limit_rate.map_or(0, |limit| limit.bytes_per_s)),
            limit_rate_after: ByteCount::Fixed(self.limit_rate.map_or(0, |limit| limit.after_bytes)),
            ..Rules::default()
        };
        let forward = Forward {
            buffer_requests: if self.buffers_requests { BufferRequests::All } else { BufferRequests::Short },
            buffer_response_bytes: self.buffer_response_bytes,
            ..Forward::to(0)
        };
        let channels = scene.channels.map(|channels| {
            let plan = Box::new(subscriber::plan(channels));
            Route::new(PathMatch::prefix(CHANNELS_PATH), Action::Push(plan))
        });
        let proxies = scene.has_proxy_header.then_some(Peers::Unix);
        let trust = Trust { proxies: proxies.into_iter().collect(), from: AddressFrom::ProxyProtocol };
        let ruled = match scene.has_rules {
            true => ruled::all(self.rules_version, &rules, &forward),
            false => Vec::new(),
        };
        let others = if scene.has_rules { ruled::sites(self.rules_version, &trust) } else { Vec::new() };
        let everything = Site {
            name: "*".to_owned(),
            hosts: vec![Host::Any],
            routes: routes::all(&rules, &forward).into_iter().chain(ruled).chain(channels).collect(),
            trust,
            ..Site::default()
        };
        let share = PassthroughShare { weight: 1, upstream: Some(PASSED_UPSTREAM) };
        let passing = scene.passes_tls.then(|| Site {
            name: PASSED.to_owned(),
            hosts: vec![Host::Exact("a.test".to_owned())],
            tls_passthrough: Some(TlsPassthrough { ends_tls: false, shares: vec![share] }),
            ..Site::default()
        });
        let sites = site::Plan {
            upstreams: vec![
                upstream(&APPLICATION[..self.servers], self.is_fastcgi),
                upstream(&["authorization"], false),
                proxy::Upstream::new(PASSED, vec![server(&PASSED)]),
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
            maps: if scene.has_rules { ruled::maps(self.rules_version) } else { Vec::new() },
            sets: if scene.has_rules { ruled::sets(self.rules_version) } else { Vec::new() },
            sites: std::iter::once(everything).chain(passing).chain(others).map(Into::into).collect(),
            ..site::Plan::default()
        };
        let limits = Limits {
            rate_min_bytes_per_s: scene.rate_min,
            requests_per_connection_max: scene.requests_per_connection_max,
            bodies_memory_max: scene.bodies_memory_max.unwrap_or(Limits::default().bodies_memory_max),
            connections_max: scene.connections_max.or(Limits::default().connections_max),
            ..Limits::default()
        };
        let plain = Listen {
            is_plain: scene.has_tls || scene.passes_tls,
            ..engine::Address::Unix(listen_path(folder)).into()
        };
        let with_tls: Option<Listen> =
            scene.has_tls.then(|| engine::Address::Unix(secure_path(folder)).into());
        let proxied: Option<Listen> = scene.has_proxy_header.then(|| Listen {
            is_plain: scene.has_tls || scene.passes_tls,
            proxy_header: ProxyHeader::Trusted,
            ..engine::Address::Unix(proxied_path(folder)).into()
        });
        let passed: Option<Listen> = scene
            .passes_tls
            .then(|| Listen { passes_tls: true, ..engine::Address::Unix(passed_path(folder)).into() });
        let server = engine::Plan {
            listen: std::iter::once(plain).chain(with_tls).chain(proxied).collect(),
            workers: Some(scene.workers),
            drain_time_max: DRAIN_TIME_MAX,
            limits,
            pin: false,
            ..engine::Plan::default()
        };
        let secure = if scene.has_tls { secure::plan(folder) } else { ServerPlan::default() };
        let own = passed.map(|listen| SiteListen { listen, is_default: false });
        // The second site is the one for connections that are passed on. It has its own address.
        let site_listen = vec![Vec::new(), own.into_iter().collect()];
        match (Plan { server, sites, secure, site_listen, ..Plan::default() }).check() {
            Ok(checked) => checked,
            Err(Invalid::Sites(fault)) => panic!("a plan that is refused: {fault}: {self:?}"),
            Err(Invalid::Value(value)) => panic!("a plan that is refused: {value}: {self:?}"),
            Err(_) => panic!("a plan that is refused: {self:?}"),
        }
    }
}

/// Compresses all bodies, except very short ones.
fn compress() -> Compress {
    Compress {
        levels: vec![Level { coding: Coding::Gzip, level: 1 }],
        types: vec!["*/*".to_owned()],
        bytes_min: COMPRESSED_BYTES_MIN,
        decodes: false,
    }
}

impl Configuration {
    /// The servers of an upstream with these names.
    fn servers(&self, names: &[&str], folder: &Path) -> Vec<proxy::Server> {
        let server = |(at, name): (usize, &&str)| proxy::Server {
            weight: self.weights[at],
            backup: self.has_backup && at > 0 && at + 1 == names.len(),
            // Not of the authorization service.
            requests_max: if names[0] == APPLICATION[0] { self.requests_max } else { 0 },
            ..proxy::Server::new(proxy::Address::Unix(upstream_path(folder, name)))
        };
        names.iter().enumerate().map(server).collect()
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
