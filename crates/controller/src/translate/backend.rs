//! Where requests go: services become upstreams. Rules with the same service, port and settings share one, with its connections
//! and its health.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use flatout_proxy::{Balance, Protocol, Server, Tls, Upstream};
use flatout_tls::{Identity, SubjectName};

use super::certificate::Files;
use super::endpoint::Endpoints;
use super::grant::{Referrer, is_granted};
use super::policy::{CheckedTls, Policies};
use crate::condition::Condition;
use crate::kinds::ObjectKey;
use crate::kinds::route::BackendRef;
use crate::objects::Objects;

/// How the servers of a service are used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct UpstreamOptions {
    /// For connections that are passed on: nothing is said to the servers in any protocol.
    pub(super) is_passthrough: bool,
    /// What is passed on was inside TLS that has ended here.
    pub(super) is_decrypted: bool,
    /// HTTP/2 without TLS.
    pub(super) is_h2c: bool,
    /// With TLS, whose certificates are not checked: ingresses have no way to name an authority.
    pub(super) is_tls: bool,
    /// With TLS, whose certificates are checked.
    pub(super) tls: Option<CheckedTls>,
    /// The certificate that servers with TLS are shown.
    pub(super) client: Option<Identity>,
    /// The time limit of requests as a whole.
    pub(super) request_time: Option<Duration>,
    /// How long a server may be silent.
    pub(super) read_time: Option<Duration>,
    pub(super) connect_time: Option<Duration>,
    pub(super) send_time: Option<Duration>,
    /// Clients stay with their server by this cookie.
    pub(super) cookie: Option<String>,
    /// Which requests are sent again, if not as usual.
    pub(super) retry: Option<Retry>,
}

/// Which requests are sent again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Retry {
    /// The statuses that cause it, besides errors and timeouts.
    pub(super) statuses: Vec<u16>,
    /// How often; none: as usual.
    pub(super) attempts: Option<u32>,
}

/// The upstreams of a plan.
pub(super) struct Upstreams<'o> {
    objects: &'o Objects,
    /// All of them, once they are needed.
    endpoints: OnceCell<Endpoints<'o>>,
    indices: HashMap<String, usize>,
    former: FormerUpstreams<'o>,
    pub(super) policies: Policies<'o>,
    /// The services of the references that were looked up since it was emptied.
    pub(super) looked_up: Vec<ObjectKey>,
    /// The upstreams that were found since it was emptied.
    pub(super) used: Vec<usize>,
    pub(super) list: Vec<Upstream>,
    /// Where the servers of each come from.
    pub(super) backends: Vec<UpstreamBackend>,
}

/// The upstreams of the last translation.
#[derive(Default)]
pub(super) struct FormerUpstreams<'f> {
    by_name: HashMap<&'f str, (&'f Upstream, &'f UpstreamBackend)>,
    /// The services whose endpoints have changed since.
    changed: Option<&'f BTreeSet<ObjectKey>>,
}

impl<'f> FormerUpstreams<'f> {
    pub(super) fn of(
        list: &'f [Upstream],
        backends: &'f [UpstreamBackend],
        changed: &'f BTreeSet<ObjectKey>,
    ) -> FormerUpstreams<'f> {
        let named = list.iter().zip(backends).map(|(it, backend)| (it.name.as_str(), (it, backend)));
        FormerUpstreams { by_name: named.collect(), changed: Some(changed) }
    }

    /// The upstream of this name, if its servers are still the same.
    fn unchanged(&self, name: &str) -> Option<(&'f Upstream, &'f UpstreamBackend)> {
        let (upstream, backend) = self.by_name.get(name).copied()?;
        self.changed.filter(|changed| !changed.contains(&backend.service)).map(|_| (upstream, backend))
    }
}

/// Where the servers of an upstream come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamBackend {
    service: ObjectKey,
    port_name: String,
    tls: Option<Tls>,
}

/// The servers of the upstreams of these services, with the indices of the upstreams.
pub(crate) fn servers_of(
    objects: &Objects,
    backends: &[UpstreamBackend],
    services: &BTreeSet<ObjectKey>,
) -> Vec<(usize, Vec<Server>)> {
    let endpoints = Endpoints::of(objects, |service| services.contains(service));
    let changed = backends.iter().enumerate().filter(|(_, it)| services.contains(&it.service));
    changed.map(|(at, it)| (at, it.servers(&endpoints))).collect()
}

impl UpstreamBackend {
    fn servers(&self, endpoints: &Endpoints<'_>) -> Vec<Server> {
        let mut servers = endpoints.servers(&self.service, &self.port_name);
        servers.iter_mut().for_each(|server| server.tls.clone_from(&self.tls));
        servers
    }
}

/// A reference that leads nowhere: its share of requests gets 500.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unresolved {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Unresolved {
    pub(super) fn condition(&self) -> Condition {
        Condition::bad("ResolvedRefs", self.reason, self.message.clone())
    }
}

impl<'o> Upstreams<'o> {
    /// `former` are those of a translation in which all services were the same.
    pub(super) fn new(objects: &'o Objects, files: &mut Files, former: FormerUpstreams<'o>) -> Upstreams<'o> {
        Upstreams {
            objects,
            endpoints: OnceCell::new(),
            indices: HashMap::new(),
            former,
            policies: Policies::new(objects, files),
            looked_up: Vec::new(),
            used: Vec::new(),
            list: Vec::new(),
            backends: Vec::new(),
        }
    }

    /// The upstream of a reference in a route; its index.
    pub(super) fn of_reference(
        &mut self,
        from: Referrer<'_>,
        reference: &BackendRef,
        options: &UpstreamOptions,
    ) -> Result<usize, Unresolved> {
        let unresolved = |reason, message: String| Err(Unresolved { reason, message });
        let (group, kind) =
            (reference.group.as_deref().unwrap_or_default(), reference.kind.as_deref().unwrap_or("Service"));
        if !(group.is_empty() || group == "core") || kind != "Service" {
            return unresolved(
                "InvalidKind",
                format!("a backend of the kind {kind}; only Services are supported"),
            );
        }
        let key = ObjectKey::new(reference.namespace.as_deref().unwrap_or(from.namespace), &reference.name);
        if !is_granted(self.objects, from, "Service", &key) {
            let message =
                format!("the Service {key} is in another namespace, and no ReferenceGrant there allows it");
            return unresolved("RefNotPermitted", message);
        }
        let Some(port) = reference.port else {
            return unresolved("BackendNotFound", format!("the reference to the Service {key} has no port"));
        };
        self.looked_up.push(key.clone());
        self.of_service(&key, port, options)
    }

    /// The upstream of a service; its index.
    pub(super) fn of_service(
        &mut self,
        key: &ObjectKey,
        port: u16,
        options: &UpstreamOptions,
    ) -> Result<usize, Unresolved> {
        let unresolved = |reason, message: String| Err(Unresolved { reason, message });
        let Some(service) = self.objects.services.get(key) else {
            return unresolved("BackendNotFound", format!("there is no Service {key}"));
        };
        if service.spec.kind == "ExternalName" {
            return unresolved(
                "UnsupportedValue",
                format!("the Service {key} is an ExternalName, which is not supported"),
            );
        }
        let Some(known) = service.spec.ports.iter().find(|it| it.port == port) else {
            let ports: Vec<String> = service.spec.ports.iter().map(|it| it.port.to_string()).collect();
            let ports = if ports.is_empty() { "none".to_owned() } else { ports.join(", ") };
            return unresolved(
                "BackendNotFound",
                format!("the Service {key} has no port {port}; it has {ports}"),
            );
        };
        let mut options = options.clone();
        let app_protocol = known.app_protocol.as_deref().filter(|_| !options.is_passthrough);
        match app_protocol {
            Some("kubernetes.io/h2c") => options.is_h2c = true,
            None | Some("http" | "kubernetes.io/ws" | "") => {}
            Some("https") => options.is_tls = true,
            Some("kubernetes.io/wss") => {
                let message =
                    format!("the Service {key} has the protocol kubernetes.io/wss, which is not supported");
                return unresolved("UnsupportedProtocol", message);
            }
            // Names such as `grpc` or `redis` are hints for people, and the standard leaves them open.
            Some(_) => {}
        }
        let encrypted = options.is_passthrough && !options.is_decrypted;
        match self.policies.of(key, &known.name).filter(|_| !encrypted) {
            Some(_) if options.is_decrypted => {
                let message = format!(
                    "the Service {key} has a BackendTLSPolicy, which is not supported behind a listener that ends TLS for TLSRoutes"
                );
                return unresolved("UnsupportedValue", message);
            }
            Some(Ok(tls)) => (options.is_tls, options.tls) = (true, Some(tls)),
            Some(Err(message)) => return unresolved("InvalidBackendTLSPolicy", message),
            None => {}
        }
        options.client = options.client.filter(|_| options.is_tls);
        let name = options.named(key, port);
        let at = match self.indices.get(&name) {
            Some(known) => *known,
            None => {
                let backend = UpstreamBackend {
                    service: key.clone(),
                    port_name: known.name.clone(),
                    tls: options.server_tls(),
                };
                let servers = match self.former.unchanged(&name) {
                    Some((former, of)) if *of == backend => former.servers.clone(),
                    _ => backend.servers(self.endpoints()),
                };
                self.push(options.upstream(&name, servers), backend)
            }
        };
        self.used.push(at);
        Ok(at)
    }

    fn push(&mut self, upstream: Upstream, backend: UpstreamBackend) -> usize {
        let at = self.list.len();
        self.indices.insert(upstream.name.clone(), at);
        self.list.push(upstream);
        self.backends.push(backend);
        at
    }

    fn endpoints(&self) -> &Endpoints<'o> {
        self.endpoints.get_or_init(|| Endpoints::new(self.objects))
    }

    /// The upstreams that were used since it was emptied, in the order of their first use.
    pub(super) fn take_used(&mut self) -> Vec<(usize, String)> {
        let mut found: Vec<(usize, String)> = Vec::new();
        for at in std::mem::take(&mut self.used) {
            if !found.iter().any(|(known, _)| *known == at) {
                found.push((at, self.list[at].name.clone()));
            }
        }
        found
    }

    /// Uses upstreams of the last translation as a route did there. Returns false if they would not have the same indices; then nothing
    /// has changed.
    pub(super) fn use_again(&mut self, uses: &[(usize, String)]) -> bool {
        let mut next = self.list.len();
        for (at, name) in uses {
            match self.indices.get(name) {
                Some(known) if known == at => {}
                None if next == *at && self.former.by_name.contains_key(name.as_str()) => next += 1,
                _ => return false,
            }
        }
        for (_, name) in uses {
            if self.indices.contains_key(name) {
                continue;
            }
            let Some((former, backend)) = self.former.by_name.get(name.as_str()).copied() else { continue };
            let mut upstream = former.clone();
            if self.former.unchanged(name).is_none() {
                upstream.servers = backend.servers(self.endpoints());
            }
            self.push(upstream, backend.clone());
        }
        true
    }

    /// The number of a service's port.
    pub(super) fn port_named(&self, key: &ObjectKey, name: &str) -> Option<u16> {
        let service = self.objects.services.get(key)?;
        service.spec.ports.iter().find(|it| it.name == name).map(|it| it.port)
    }
}

impl UpstreamOptions {
    /// The name of the upstream, from which follows everything that distinguishes it.
    fn named(&self, key: &ObjectKey, port: u16) -> String {
        let mut name = format!("{key}:{port}");
        let UpstreamOptions { is_passthrough, is_h2c, is_tls, tls, client, cookie, retry, .. } = self;
        let UpstreamOptions { request_time, read_time, connect_time, send_time, .. } = self;
        let mut add = |text: String| {
            let separator = if name.contains('?') { ',' } else { '?' };
            let _ = write!(name, "{separator}{text}");
        };
        let flags = [(*is_passthrough, "passthrough"), (*is_h2c, "h2c"), (*is_tls, "tls")];
        flags.iter().filter(|(is_set, _)| *is_set).for_each(|(_, name)| add((*name).to_owned()));
        let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(CheckedTls { name, alternatives, authorities }) = tls {
            add(format!("name={name},ca={}", stem(authorities)));
            for alternative in alternatives {
                add(match alternative {
                    SubjectName::Dns(name) => format!("dns={name}"),
                    SubjectName::Uri(uri) => format!("uri={uri}"),
                });
            }
        }
        if let Some(Identity { certificate, key, .. }) = client {
            add(format!("certificate={},key={}", stem(certificate), stem(key)));
        }
        let times =
            [("request", request_time), ("read", read_time), ("connect", connect_time), ("send", send_time)];
        for (name, time) in times {
            if let Some(time) = time {
                add(format!("{name}={}ms", time.as_millis()));
            }
        }
        if let Some(cookie) = cookie {
            add(format!("cookie={cookie}"));
        }
        if let Some(Retry { statuses, attempts }) = retry {
            let statuses: Vec<String> = statuses.iter().map(u16::to_string).collect();
            let attempts = attempts.map_or_else(String::new, |attempts| format!("x{attempts}"));
            add(format!("retry={}{attempts}", statuses.join("+")));
        }
        name
    }

    /// TLS to its servers.
    fn server_tls(&self) -> Option<Tls> {
        let certificate = self.client.clone();
        let tls = match &self.tls {
            Some(CheckedTls { name, alternatives, authorities }) => Tls {
                name: Some(name.clone()),
                alternatives: alternatives.clone(),
                authorities: Some(authorities.clone()),
                certificate,
                ..Tls::default()
            },
            None => Tls { verify: false, certificate, ..Tls::default() },
        };
        self.is_tls.then_some(tls)
    }

    fn upstream(&self, name: &str, servers: Vec<Server>) -> Upstream {
        let mut upstream = Upstream::new(name, servers);
        if self.is_h2c {
            upstream.protocol = Protocol::H2c { streams_max: Protocol::STREAMS_MAX };
        }
        upstream.request_time_max = self.request_time;
        for (from, to) in [
            (self.read_time, &mut upstream.read_time_max),
            (self.connect_time, &mut upstream.connect_time_max),
            (self.send_time, &mut upstream.send_time_max),
        ] {
            *to = from.unwrap_or(*to);
        }
        if let Some(Retry { statuses, attempts }) = &self.retry {
            upstream.retry_on.statuses.clone_from(statuses);
            upstream.retries_max = attempts.unwrap_or(upstream.retries_max);
        }
        if let Some(cookie) = &self.cookie {
            upstream.balance = Balance::Sticky { cookie: cookie.clone() };
        }
        upstream
    }
}
