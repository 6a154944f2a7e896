//! Ingresses, with the annotations of ingress-nginx that charts use. An Ingress with an annotation that would be a hole if it were left
//! out, such as a snippet, is closed: its requests get 500. They must not go to a shorter path of another Ingress, which may lead to the same
//! application without the protection.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use flatout_site::Regex;
use flatout_site::plan::{Action, ForwardAuth, PathMatch, Rewrite, RewriteFrom, Route, Template, Then};
use flatout_tls::Profile;
use serde_json::json;

use super::Settings;
use super::annotation::{Annotations, Canary, IngressRates, makes_expressions};
use super::auth_service::{AuthPlace, AuthService};
use super::backend::{UpstreamOptions, Upstreams};
use super::certificate::Files;
use super::certificate_refs::identity;
use super::grant::{Referrer, is_granted};
use super::hostname::HostName;
use super::listener::TlsEnding;
use super::precedence::{Specificity, checked_path, literal_start, parsed, prefix};
use super::rule::{RankedRoute, forward, refusal};
use super::site::Sites;
use crate::alias::Aliases;
use crate::condition::StatusUpdate;
use crate::kinds::gateway::ObjectRef;
use crate::kinds::ingress::{Ingress, IngressBackend, IngressPath};
use crate::kinds::{Ages, ObjectKey, oldest_first};
use crate::objects::{Objects, find_kind};

/// The ports of Ingresses.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// What Ingresses are added to.
pub(super) struct IngressParts<'p, 'o> {
    pub(super) objects: &'o Objects,
    pub(super) settings: &'p Settings,
    pub(super) upstreams: &'p mut Upstreams<'o>,
    pub(super) sites: &'p mut Sites,
    pub(super) files: &'p mut Files,
    pub(super) ages: &'p Ages<'o>,
    pub(super) rates: IngressRates<'p>,
    /// The paths of each host, those of the oldest Ingress first; made when they are first needed.
    pub(super) served_paths: HashMap<&'o str, Vec<(&'o Ingress, &'o IngressPath)>>,
    /// The paths that are asked about the requests of an Ingress for a host.
    pub(super) auth_places: HashMap<(ObjectKey, String), Option<AuthPath>>,
}

/// A path of an Ingress, and how its servers are used.
pub(super) type AuthPath = (ObjectKey, IngressPath, UpstreamOptions);

/// Where Ingresses are served.
struct IngressListeners {
    plain: SocketAddr,
    secure: SocketAddr,
}

/// Paths of Ingresses that are no canary, by host, path and type of path: a canary is served only beside one of these, and protected as it is.
#[derive(Default)]
struct Mains {
    paths: HashMap<(String, String, String), Rc<MainPath>>,
    /// The oldest Ingress with a path, closed or not, by host name and the path as it is matched.
    owners: HashMap<HostName, HashMap<PathMatch, ObjectKey>>,
}

struct MainPath {
    ingress: ObjectKey,
    annotations: Rc<Annotations>,
    /// The host, and its aliases.
    names: Rc<[IngressName]>,
}

/// A host name of an Ingress, and how it is served.
#[derive(Clone)]
struct IngressName {
    hostname: HostName,
    has_plain: bool,
    is_secure: bool,
    /// Clients without TLS are sent to HTTPS.
    redirects: bool,
}

/// What an Ingress says of TLS for a host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostTls {
    Unasked,
    /// Its certificate cannot be used. Nothing that should be encrypted is served without TLS in its place.
    Broken,
    Served,
}

/// What all Ingresses of a host have in common.
#[derive(Default)]
struct IngressHosts {
    /// Those whose paths are expressions, because an Ingress has `use-regex` or `rewrite-target`.
    with_expressions: HashSet<String>,
    /// Those with a rule for all paths.
    with_root: HashSet<String>,
    /// Those that some Ingress has a certificate for.
    secured: HashSet<HostName>,
    aliases: Aliases,
}

impl IngressParts<'_, '_> {
    /// Adds all Ingresses of this controller, the oldest first, and canaries behind the others. Returns their statuses.
    pub(super) fn add_all(&mut self) -> Vec<Arc<StatusUpdate>> {
        let ours = self.objects.ingresses.values().filter(|it| self.is_ours(it));
        let mut read: Vec<ReadIngress<'_>> = oldest_first(ours, |it| &it.metadata)
            .into_iter()
            .map(|ingress| {
                let age = self.ages.place(&ingress.metadata);
                let mut notes = Vec::new();
                let annotations = Annotations::parse(ingress, self.objects, &mut notes).map(Rc::new);
                ReadIngress { ingress, age, annotations, notes, hosts: Vec::new() }
            })
            .collect();
        read.sort_by_key(ReadIngress::is_canary);
        // What one Ingress says of a host holds for all of its paths.
        let named = read.iter().flat_map(|it| &it.ingress.spec.rules).map(|rule| rule.host.clone());
        let mut hosts = IngressHosts { aliases: Aliases::beside(named), ..IngressHosts::default() };
        for ingress in &mut read {
            self.add_names(ingress, &mut hosts);
        }
        let mut mains = Mains::default();
        read.into_iter().filter_map(|it| self.add(it, &mut hosts, &mut mains)).collect()
    }

    /// Adds the listeners of an Ingress.
    fn add_names(&mut self, read: &mut ReadIngress<'_>, hosts: &mut IngressHosts) {
        let ReadIngress { ingress, annotations, notes, .. } = read;
        for (host, paths) in rules(ingress) {
            if paths.iter().any(|path| makes_expressions(ingress, &path.path)) {
                hosts.with_expressions.insert(host.to_owned());
            }
        }
        let annotations = match annotations {
            Ok(annotations) if annotations.canary.is_some() => return,
            Ok(annotations) => annotations.clone(),
            Err(_) => {
                let Some(closed) = Annotations::closed(ingress) else { return };
                Rc::new(closed)
            }
        };
        let Some(at) = self.listeners() else { return };
        let aliases = hosts.aliases.take(&ingress.metadata.key(), &annotations.aliases, notes);
        for (host, paths) in rules(ingress) {
            let aliases = aliases.iter().copied().filter(|_| !host.is_empty());
            let names: Vec<IngressName> = std::iter::once(host)
                .chain(aliases)
                .filter_map(|name| self.serve_name(ingress, &annotations, &at, name, notes))
                .collect();
            let secured = names.iter().filter(|name| name.is_secure).map(|name| name.hostname.clone());
            hosts.secured.extend(secured);
            if paths.iter().any(|path| path_text(path) == "/" && path.path_type != "Exact") {
                hosts.with_root.insert(host.to_owned());
            }
            read.hosts.push(IngressHost { host: host.to_owned(), paths, names });
        }
    }

    fn is_ours(&self, ingress: &Ingress) -> bool {
        let classes = &self.objects.ingress_classes;
        let has_class = |name: &str| {
            let class = classes.get(&ObjectKey::new("", name));
            class.is_some_and(|class| class.spec.controller == self.settings.controller_name)
        };
        let is_default = |annotations: &std::collections::BTreeMap<String, String>| {
            annotations.get("ingressclass.kubernetes.io/is-default-class").is_some_and(|it| it == "true")
        };
        let named = ingress.metadata.annotations.get("kubernetes.io/ingress.class");
        match ingress.spec.ingress_class_name.as_ref().or(named) {
            Some(name) => has_class(name),
            None => classes
                .values()
                .any(|it| has_class(&it.metadata.name) && is_default(&it.metadata.annotations)),
        }
    }

    fn add(
        &mut self,
        read: ReadIngress<'_>,
        all: &mut IngressHosts,
        mains: &mut Mains,
    ) -> Option<Arc<StatusUpdate>> {
        let kind = find_kind("networking.k8s.io/v1", "Ingress")?;
        let ReadIngress { ingress, age, annotations, mut notes, hosts } = read;
        let key = ingress.metadata.key();
        let served = match annotations {
            Ok(annotations) => {
                match &annotations.canary {
                    Some(canary) => self.serve_canary((ingress, age), canary, (all, mains), &mut notes),
                    None => self.serve((ingress, age, hosts), &annotations, (all, mains), &mut notes),
                }
                true
            }
            Err(why) => {
                notes.push(format!("not served: {why}"));
                if let Some(closed) = Annotations::closed(ingress) {
                    self.serve((ingress, age, hosts), &Rc::new(closed), (all, mains), &mut notes);
                }
                false
            }
        };
        let addresses: Vec<_> = match &self.settings.published[..] {
            [] => self
                .settings
                .addresses
                .iter()
                .filter(|it| !it.is_unspecified())
                .take(1)
                .map(IpAddr::to_string)
                .collect(),
            published => published.to_vec(),
        };
        let of = |text: &String| match text.parse::<IpAddr>() {
            Ok(_) => json!({"ip": text}),
            Err(_) => json!({"hostname": text}),
        };
        let list: Vec<_> = addresses.iter().filter(|_| served).map(of).collect();
        let status = json!({"loadBalancer": {"ingress": list}});
        Some(Arc::new(StatusUpdate { kind, key, status, notes }))
    }

    /// Where Ingresses are served; `None` if this machine has no address for them.
    fn listeners(&self) -> Option<IngressListeners> {
        let address = *self.settings.addresses.first()?;
        Some(IngressListeners {
            plain: SocketAddr::new(address, HTTP_PORT),
            secure: SocketAddr::new(address, HTTPS_PORT),
        })
    }

    fn serve(
        &mut self,
        (ingress, age, hosts): (&Ingress, usize, Vec<IngressHost>),
        annotations: &Rc<Annotations>,
        (all, mains): (&mut IngressHosts, &mut Mains),
        notes: &mut Vec<String>,
    ) {
        let Some(at) = self.listeners() else { return };
        for IngressHost { host, mut paths, mut names } in hosts {
            for name in names.iter_mut().filter(|name| all.secured.contains(&name.hostname)) {
                name.redirects |= annotations.redirects;
                name.is_secure = true;
            }
            // The default backend has all other paths of its hosts, too.
            let rest = ingress.spec.default_backend.clone();
            if let Some(backend) = rest.filter(|_| all.with_root.insert(host.clone())) {
                paths.push(IngressPath::rest(backend));
            }
            let key = ingress.metadata.key();
            let is_pattern = all.with_expressions.contains(&host);
            let routes: Arc<[RankedRoute]> = paths
                .iter()
                .flat_map(|path| {
                    let place = PathPlace { host: &host, path, is_pattern };
                    self.routes(ingress, place, (&key, annotations), None, notes)
                })
                .collect();
            self.add_routes(&at, &names, (age, &routes));
            for name in &names {
                let owners = mains.owners.entry(name.hostname.clone()).or_default();
                for RankedRoute { route, .. } in &*routes {
                    owners.entry(table_entry(&route.path)).or_insert_with(|| key.clone());
                }
            }
            if annotations.is_closed {
                continue;
            }
            let names: Rc<[IngressName]> = names.into();
            for path in paths {
                let (ingress, annotations) = (key.clone(), annotations.clone());
                let main = Rc::new(MainPath { ingress, annotations, names: names.clone() });
                mains.paths.entry((host.clone(), path.path, path.path_type)).or_insert(main);
            }
        }
    }

    /// Serves a canary: some of the requests of another Ingress, with all the rules of that one.
    fn serve_canary(
        &mut self,
        (ingress, age): (&Ingress, usize),
        canary: &Canary,
        (all, mains): (&IngressHosts, &Mains),
        notes: &mut Vec<String>,
    ) {
        let Some(at) = self.listeners() else { return };
        for (host, paths) in rules(ingress) {
            for path in &paths {
                let place = (host.to_owned(), path.path.clone(), path.path_type.clone());
                let main =
                    mains.paths.get(&place).filter(|it| it.ingress.namespace == ingress.metadata.namespace);
                let Some(main) = main else {
                    notes.push(format!(
                        "not served: no other Ingress of this namespace serves the host `{host}` with the path `{}`, of which this \
                         is a canary",
                        path.path
                    ));
                    continue;
                };
                let of_main = (&main.ingress, &*main.annotations);
                let place = PathPlace { host, path, is_pattern: all.with_expressions.contains(host) };
                let routes: Arc<[RankedRoute]> =
                    self.routes(ingress, place, of_main, Some(canary), notes).into();
                // Routes of a canary come before all others of the path, also before those of an older Ingress that has it.
                let is_owner = |name: &&IngressName| {
                    let owners = mains.owners.get(&name.hostname);
                    routes.iter().all(|it| {
                        owners.and_then(|owners| owners.get(&table_entry(&it.route.path)))
                            == Some(&main.ingress)
                    })
                };
                let (owned, others): (Vec<&IngressName>, Vec<&IngressName>) =
                    main.names.iter().partition(is_owner);
                for name in others {
                    notes.push(format!(
                        "not served for {}: an older Ingress has the path `{}` there",
                        name.hostname, path.path
                    ));
                }
                let owned: Vec<IngressName> = owned.into_iter().cloned().collect();
                self.add_routes(&at, &owned, (age, &routes));
            }
        }
    }

    /// Adds the listeners of a host name, or of an alias. `None` if it is no name.
    fn serve_name(
        &mut self,
        ingress: &Ingress,
        annotations: &Annotations,
        at: &IngressListeners,
        name: &str,
        notes: &mut Vec<String>,
    ) -> Option<IngressName> {
        let hostname = HostName::parse(Some(name)).map_err(|why| notes.push(why)).ok()?;
        let tls = self.secure(ingress, at, name, &hostname, notes);
        let redirects = annotations.redirects_always || (tls != HostTls::Unasked && annotations.redirects);
        let has_plain = !self.settings.refused.contains(&at.plain)
            && self.sites.add_listener(at.plain, hostname.clone(), Profile::default(), TlsEnding::None);
        if !has_plain {
            notes.push(format!("{} is not available for HTTP", at.plain));
        }
        Some(IngressName { hostname, has_plain, is_secure: tls == HostTls::Served, redirects })
    }

    fn add_routes(
        &mut self,
        at: &IngressListeners,
        names: &[IngressName],
        (age, routes): (usize, &Arc<[RankedRoute]>),
    ) {
        for IngressName { hostname, has_plain, is_secure, redirects } in names {
            if *has_plain {
                let plain = if *redirects { routes.iter().map(to_https).collect() } else { routes.clone() };
                self.sites.add_routes((at.plain, hostname), hostname, (age, &plain));
            }
            if *is_secure {
                self.sites.add_routes((at.secure, hostname), hostname, (age, routes));
            }
        }
    }

    /// Serves a host with TLS, if the Ingress has a certificate for it. An entry without hosts is for all hosts of its Ingress.
    fn secure(
        &mut self,
        ingress: &Ingress,
        at: &IngressListeners,
        host: &str,
        hostname: &HostName,
        notes: &mut Vec<String>,
    ) -> HostTls {
        let covers = |pattern: &String| {
            HostName::parse(Some(pattern)).is_ok_and(|pattern| !host.is_empty() && pattern.contains(hostname))
        };
        let named = ingress.spec.tls.iter().find(|tls| tls.hosts.iter().any(covers));
        let tls = named.or_else(|| ingress.spec.tls.iter().find(|tls| tls.hosts.is_empty()));
        let Some(secret) = tls.and_then(|tls| tls.secret_name.clone()) else { return HostTls::Unasked };
        let from =
            Referrer { group: "networking.k8s.io", kind: "Ingress", namespace: &ingress.metadata.namespace };
        let reference = ObjectRef { name: secret, ..ObjectRef::default() };
        let is_served = match identity(from, &reference, "InvalidCertificateRef", self.objects, self.files) {
            Ok(found) if !self.settings.refused.contains(&at.secure) => {
                let profile = Profile { identities: vec![found], ..Profile::default() };
                self.sites.add_listener(at.secure, hostname.clone(), profile, TlsEnding::Here)
            }
            Ok(_) => false,
            Err((_, why)) => {
                notes.push(why);
                false
            }
        };
        if is_served { HostTls::Served } else { HostTls::Broken }
    }

    /// The routes of a path. `main` has the rules: of this Ingress, or of the one that it is a canary of.
    fn routes(
        &mut self,
        ingress: &Ingress,
        place: PathPlace<'_>,
        (main, annotations): (&ObjectKey, &Annotations),
        canary: Option<&Canary>,
        notes: &mut Vec<String>,
    ) -> Vec<RankedRoute> {
        let key = ingress.metadata.key();
        let PathPlace { host, path, .. } = place;
        let is_needed = annotations.is_closed || annotations.protects();
        let refused = |matched: PathMatch, specificity: Specificity| {
            let route = Route { name: route_name(&key, path), ..Route::new(matched, refusal()) };
            vec![RankedRoute { specificity, route }]
        };
        let matched = match path_match(place) {
            Ok(matched) => matched,
            Err(why) => {
                notes.push(why);
                // Without protection, other paths may have its requests.
                return match closed_path(place).filter(|_| is_needed) {
                    Some(closed) => {
                        let rank = Specificity::of_ingress(&closed, 0);
                        refused(closed, rank.max(Specificity::of_unusable(path_text(path))))
                    }
                    None => Vec::new(),
                };
            }
        };
        if annotations.is_closed {
            let rank = Specificity::of_ingress(&matched, 0);
            return refused(matched, rank);
        }
        let auth = annotations.auth_service.as_ref().map(|it| self.forward_auth(it, main, host)).transpose();
        let backend =
            auth.and_then(|auth| Ok((self.upstream(&key, &path.backend, &annotations.options)?, auth)));
        let (action, auth) = match backend {
            Ok((upstream, auth)) => (Action::Proxy(forward(upstream)), auth),
            Err(why) => {
                notes.push(why);
                (refusal(), None)
            }
        };
        let mut route = Route { name: route_name(&key, path), ..Route::new(matched, action) };
        annotations.apply(&mut route);
        route.rules.forward_auth = auth;
        if let Some(rate) = &annotations.rate {
            match rate.in_plan(main, &mut self.rates) {
                Ok(rate) => route.rules.rates.push(rate),
                Err(why) => {
                    let note = format!("not served: {why}");
                    if !notes.contains(&note) {
                        notes.push(note);
                    }
                    let rank = Specificity::of_ingress(&route.path, 0);
                    return refused(route.path, rank);
                }
            }
        }
        if let (Some(target), Action::Proxy(_)) = (&annotations.rewrite, &route.action) {
            let pattern = format!("(?i)^{}", path.path);
            route.rewrites.push(Rewrite {
                from: RewriteFrom::Regex { pattern, ignore_case: false },
                to: target.clone(),
                then: Then::Stop,
                when: Vec::new(),
            });
        }
        let ranked = |rank: usize, conditions: &[String]| -> Result<RankedRoute, String> {
            let specificity = Specificity::of_ingress(&route.path, rank);
            let route = Route { when: parsed(conditions)?, ..route.clone() };
            Ok(RankedRoute { specificity, route })
        };
        let ranked: Result<Vec<RankedRoute>, String> = match canary {
            None => ranked(0, &[]).map(|route| vec![route]),
            Some(canary) => {
                canary.conditions().iter().map(|(rank, conditions)| ranked(*rank, conditions)).collect()
            }
        };
        ranked.unwrap_or_else(|why| {
            notes.push(why);
            Vec::new()
        })
    }

    /// The service that is asked about the requests of an Ingress for a host.
    fn forward_auth(
        &mut self,
        auth: &AuthService,
        ingress: &ObjectKey,
        host: &str,
    ) -> Result<ForwardAuth, String> {
        let wrong = |why: String| format!("not served: annotation auth-url: {why}");
        let upstream = match &auth.place {
            AuthPlace::Service(key, port) => {
                let from =
                    Referrer { group: "networking.k8s.io", kind: "Ingress", namespace: &ingress.namespace };
                if !is_granted(self.objects, from, "Service", key) {
                    return Err(wrong(format!(
                        "the Service {key} is in another namespace, and no ReferenceGrant there allows it to Ingresses of {}",
                        ingress.namespace
                    )));
                }
                let options = UpstreamOptions { is_tls: auth.is_tls, ..UpstreamOptions::default() };
                self.upstreams.of_service(key, *port, &options).map_err(|why| wrong(why.message))?
            }
            AuthPlace::Host(named) => {
                let host = named.as_deref().unwrap_or(host);
                let place = (ingress.clone(), host.to_owned());
                let known = match self.auth_places.get(&place) {
                    Some(known) => known.clone(),
                    None => {
                        let found = self.served_at(&ingress.namespace, host, &auth.path);
                        self.auth_places.insert(place, found.clone());
                        found
                    }
                };
                let (at, path, options) = known.ok_or_else(|| {
                    wrong(format!(
                        "no other Ingress of this namespace serves `{host}{}` without asking a service itself; name a Service, such \
                         as http://auth.default.svc.cluster.local{0}",
                        auth.path
                    ))
                })?;
                self.upstream(&at, &path.backend, &options).map_err(wrong)?
            }
        };
        Ok(ForwardAuth {
            upstream,
            target: auth.target.clone(),
            request_fields: Vec::new(),
            response_fields: auth.response_fields.clone(),
            sign_in: auth.sign_in.clone(),
        })
    }

    /// The path by which a URL is served as it is, and how its servers are used; none, if that is not a path of an Ingress of this
    /// namespace, or of one that asks a service itself: an application must not be asked for permission to use it.
    fn served_at(&mut self, namespace: &str, host: &str, path: &str) -> Option<AuthPath> {
        if self.served_paths.is_empty() {
            let ours = self.objects.ingresses.values().filter(|it| self.is_ours(it));
            for ingress in oldest_first(ours, |it| &it.metadata) {
                for rule in &ingress.spec.rules {
                    let paths = rule.http.iter().flat_map(|http| &http.paths);
                    let of_host = self.served_paths.entry(&rule.host).or_default();
                    of_host.extend(paths.map(|path| (ingress, path)));
                }
            }
        }
        let of_host = self.served_paths.get(host).map(Vec::as_slice).unwrap_or_default();
        let mut found: Vec<(&Ingress, &IngressPath)> =
            of_host.iter().copied().filter(|(_, it)| covers(it, path)).collect();
        // Of equal ones the oldest counts.
        found.sort_by_key(|(_, it)| std::cmp::Reverse(it.path.len()));
        let (ingress, path) = found.first()?;
        let annotations = Annotations::parse(ingress, self.objects, &mut Vec::new()).ok()?;
        let is_plain =
            annotations.canary.is_none() && annotations.rewrite.is_none() && !annotations.use_regex;
        let is_for_others = ingress.metadata.namespace == namespace && annotations.auth_service.is_none();
        (is_plain && is_for_others).then(|| (ingress.metadata.key(), (*path).clone(), annotations.options))
    }

    fn upstream(
        &mut self,
        ingress: &ObjectKey,
        backend: &IngressBackend,
        options: &UpstreamOptions,
    ) -> Result<usize, String> {
        let Some(service) = &backend.service else {
            return Err("a backend that is no service is not supported".to_owned());
        };
        let key = ObjectKey::new(&ingress.namespace, &service.name);
        let port = match service.port.number {
            0 => self.upstreams.port_named(&key, &service.port.name),
            number => Some(number),
        };
        let port = port.ok_or_else(|| format!("the Service {key} has no port `{}`", service.port.name))?;
        self.upstreams.of_service(&key, port, options).map_err(|why| why.message)
    }
}

/// An Ingress of this controller.
struct ReadIngress<'o> {
    ingress: &'o Ingress,
    /// Its place among all routes and Ingresses, the oldest first.
    age: usize,
    annotations: Result<Rc<Annotations>, String>,
    notes: Vec<String>,
    /// Its hosts; none for a canary.
    hosts: Vec<IngressHost>,
}

/// A host of an Ingress with its paths, the host's name, and its aliases.
struct IngressHost {
    host: String,
    paths: Vec<IngressPath>,
    names: Vec<IngressName>,
}

/// A path of a host.
#[derive(Clone, Copy)]
struct PathPlace<'p> {
    host: &'p str,
    path: &'p IngressPath,
    /// It is an expression.
    is_pattern: bool,
}

impl ReadIngress<'_> {
    fn is_canary(&self) -> bool {
        self.annotations.as_ref().is_ok_and(|annotations| annotations.canary.is_some())
    }
}

/// The hosts and paths of an Ingress, with those of its default backend.
fn rules(ingress: &Ingress) -> Vec<(&str, Vec<IngressPath>)> {
    let mut rules: Vec<(&str, Vec<IngressPath>)> = Vec::new();
    for rule in &ingress.spec.rules {
        let paths = rule.http.as_ref().map(|http| http.paths.clone()).unwrap_or_default();
        rules.push((&rule.host, paths));
    }
    if let Some(backend) = &ingress.spec.default_backend {
        rules.push(("", vec![IngressPath::rest(backend.clone())]));
    }
    rules
}

/// Whether a path of an Ingress, if it is no expression, has this one.
fn covers(served: &IngressPath, path: &str) -> bool {
    match served.path_type.as_str() {
        "Exact" => served.path == path,
        _ => path
            .strip_prefix(served.path.trim_end_matches('/'))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
    }
}

/// The name of a path's route in logs.
fn route_name(ingress: &ObjectKey, path: &IngressPath) -> String {
    format!("Ingress/{ingress}{}", path_text(path))
}

fn path_text(path: &IngressPath) -> &str {
    if path.path.is_empty() { "/" } else { &path.path }
}

/// What a path has in common with others whose routes are tried in one order: prefixes of whole segments are among all of their text.
fn table_entry(path: &PathMatch) -> PathMatch {
    match path {
        PathMatch::Prefix { path, before_patterns, .. } => {
            PathMatch::Prefix { path: path.clone(), segments: false, before_patterns: *before_patterns }
        }
        other => other.clone(),
    }
}

/// The paths that get 500 because an expression for them, or their type, cannot be used: all that begin as it does. None, if no request has
/// such a path.
fn closed_path(PathPlace { path, is_pattern, .. }: PathPlace<'_>) -> Option<PathMatch> {
    if is_pattern {
        let pattern = format!("^{}", literal_start(&path.path));
        return Some(PathMatch::Regex { pattern, ignore_case: true });
    }
    let path = checked_path(path_text(path)).ok()?;
    Some(PathMatch::Prefix { path, segments: false, before_patterns: false })
}

fn path_match(PathPlace { path, is_pattern, .. }: PathPlace<'_>) -> Result<PathMatch, String> {
    let text = path_text(path);
    // As ingress-nginx does: expressions begin at the start of the path, and ignore case.
    if is_pattern {
        let pattern = format!("^{text}");
        Regex::new(&pattern, true).map_err(|why| format!("the path `{text}`: {why}"))?;
        return Ok(PathMatch::Regex { pattern, ignore_case: true });
    }
    match path.path_type.as_str() {
        "Exact" => Ok(PathMatch::Exact(checked_path(text)?)),
        "Prefix" => prefix(text),
        "ImplementationSpecific" | "" => {
            Ok(PathMatch::Prefix { path: checked_path(text)?, segments: false, before_patterns: false })
        }
        other => Err(format!("the path type `{other}`; there are Exact, Prefix and ImplementationSpecific")),
    }
}

/// The route that sends clients to HTTPS.
fn to_https(route: &RankedRoute) -> RankedRoute {
    let to = Template::parse("https://$host$request_uri", |_| None).unwrap_or_default();
    let plain = Route {
        name: route.route.name.clone(),
        when: route.route.when.clone(),
        ..Route::new(route.route.path.clone(), Action::Redirect { status: 308, to })
    };
    RankedRoute { route: plain, ..route.clone() }
}
