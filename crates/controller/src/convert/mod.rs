//! Ingresses into objects of the Gateway API, for people who move to it: a pure function.
//!
//! ```text
//! Ingresses, Services ── hosts, paths, annotations ──> Gateways, HTTPRoutes, LimitPolicies ── yaml ──> text
//!                                    └──> what is lost, for a person to decide
//! ```
//!
//! An Ingress with an annotation that protects something, and that the Gateway API has nothing for, is left out: without it, its routes
//! would be open to everybody. Its paths have rules without a backend, so that requests get 500: they must not go to a shorter path of another
//! Ingress, which may lead to the same application.

mod annotation;
mod path;
mod requests;
mod write;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value, json};

use self::annotation::Wanted;
use self::path::{HostPaths, converted_path};
pub use self::requests::{IngressRequest, ingress_requests};
pub use self::write::yaml_documents;
use crate::alias::Aliases;
use crate::kinds::ingress::{Ingress, IngressBackend, IngressPath};
use crate::kinds::own_policy::OWN_GROUP;
use crate::kinds::{GATEWAY_GROUP, ObjectKey, oldest_first};
use crate::objects::Objects;

/// The class and the name of the gateways that are made: one in each namespace.
const CLASS: &str = "flatout";
const GATEWAY: &str = "gateway";

/// Listeners of one gateway, as the standard limits them: one for HTTP, the others for certificates.
const LISTENERS_MAX: usize = 64;

/// Rules and host names of one HTTPRoute, as the standard limits them.
const RULES_MAX: usize = 16;
const HOSTNAMES_MAX: usize = 16;

/// What became of Ingresses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Converted {
    /// Gateways, HTTPRoutes and LimitPolicies.
    pub objects: Vec<Value>,
    /// What is lost or differs, each with the Ingress that it concerns.
    pub lost: Vec<String>,
    /// The number of Ingresses that were converted, perhaps with losses.
    pub converted: usize,
    /// The number of those that were left out.
    pub left_out: usize,
    /// The number of paths whose requests get 500, because they could not be converted. Those of Ingresses that are left out are not counted.
    pub closed_paths: usize,
}

/// A route of a host: its rules, by path.
struct HostRoute {
    ingress: ObjectKey,
    hosts: Vec<String>,
    rules: Vec<HostRule>,
    /// The Secret with the certificate.
    secret: Option<String>,
    redirects: bool,
    limits: Map<String, Value>,
}

/// A rule, before the canaries of its path are known.
struct HostRule {
    host: String,
    path: String,
    /// The type of the path.
    kind: String,
    matched: Value,
    filters: Vec<Value>,
    /// None: requests get 500.
    backend: Option<Value>,
}

/// Requests of a path for the new version of an application.
struct CanaryRule {
    ingress: ObjectKey,
    host: String,
    path: String,
    backend: Value,
    wanted: annotation::WantedCanary,
    is_used: bool,
}

/// Converts all Ingresses, whatever their class is.
pub fn convert(objects: &Objects) -> Converted {
    let read = |ingress| match Wanted::parse(ingress) {
        Ok((wanted, lost)) => (ingress, wanted, Ok(lost)),
        Err(why) => (ingress, Wanted::of_left_out(ingress), Err(why)),
    };
    let oldest = oldest_first(objects.ingresses.values(), |it| &it.metadata);
    let all: Vec<_> = oldest.into_iter().map(read).collect();
    // What one Ingress says of a host holds for all of its paths.
    let mut hosts: BTreeMap<String, HostPaths> = BTreeMap::new();
    let mut secrets: BTreeMap<(String, String), String> = BTreeMap::new();
    for (ingress, wanted, read) in &all {
        for (host, paths) in given_paths(ingress) {
            if let Some(secret) = secret_of(ingress, host).filter(|_| wanted.canary.is_none()) {
                secrets.entry((ingress.metadata.namespace.clone(), host.to_owned())).or_insert(secret);
            }
            let host = hosts.entry(host.to_owned()).or_default();
            paths.iter().for_each(|path| host.add(path, wanted, read.is_err()));
        }
    }
    let aliases = Aliases::beside(hosts.keys().cloned());
    let mut conversion = Conversion {
        objects,
        hosts,
        secrets,
        aliases,
        result: Converted::default(),
        routes: Vec::new(),
        canaries: Vec::new(),
    };
    for (ingress, wanted, read) in all {
        let key = ingress.metadata.key();
        match read {
            Ok(lost) => {
                conversion.result.converted += 1;
                lost.into_iter().for_each(|why| conversion.lose(&key, &why));
                conversion.add(ingress, &wanted, false);
            }
            Err(why) => {
                conversion.result.left_out += 1;
                let is_canary = annotation::is_on(ingress, "canary");
                let rest = if is_canary { "" } else { "; its requests get 500" };
                conversion.lose(&key, &format!("left out: {why}{rest}"));
                if !is_canary {
                    conversion.add(ingress, &wanted, true);
                }
            }
        }
    }
    conversion.finish()
}

struct Conversion<'o> {
    objects: &'o Objects,
    hosts: BTreeMap<String, HostPaths>,
    /// Secrets with certificates, by namespace and host.
    secrets: BTreeMap<(String, String), String>,
    aliases: Aliases,
    result: Converted,
    routes: Vec<HostRoute>,
    canaries: Vec<CanaryRule>,
}

impl Conversion<'_> {
    fn lose(&mut self, ingress: &ObjectKey, why: &str) {
        self.result.lost.push(format!("Ingress {ingress}: {why}"));
    }

    /// Adds the routes of an Ingress, or with `is_left_out` those that refuse its requests.
    fn add(&mut self, ingress: &Ingress, wanted: &Wanted, is_left_out: bool) {
        let key = ingress.metadata.key();
        let mut notes = Vec::new();
        let aliases = match wanted.canary {
            None => self.aliases.take(&key, &wanted.aliases, &mut notes),
            Some(_) => Vec::new(),
        };
        notes.iter().for_each(|why| self.lose(&key, why));
        for (host, mut paths) in given_paths(ingress) {
            let shared = || self.secrets.get(&(key.namespace.clone(), host.to_owned())).cloned();
            let secret = secret_of(ingress, host).or_else(shared);
            // The default backend has all other paths of its hosts, too.
            let rest = ingress.spec.default_backend.clone().filter(|_| wanted.canary.is_none());
            if let Some((host, backend)) = self.hosts.get_mut(host).zip(rest)
                && !std::mem::replace(&mut host.have_root, true)
            {
                paths.push(Cow::Owned(IngressPath::rest(backend)));
            }
            let rules: Vec<HostRule> =
                paths.iter().map(|path| self.rule((&key, host), path, wanted, is_left_out)).collect();
            if let Some(canary) = &wanted.canary {
                let canaries = rules.into_iter().filter_map(|rule| {
                    Some(CanaryRule {
                        ingress: key.clone(),
                        host: rule.host,
                        path: rule.path,
                        backend: rule.backend?,
                        wanted: canary.clone(),
                        is_used: false,
                    })
                });
                self.canaries.extend(canaries);
                continue;
            }
            if wanted.redirects_always && secret.is_none() {
                self.lose(&key, "force-ssl-redirect without a certificate: TLS ends before the gateway, which cannot know it");
            }
            let aliases = aliases.iter().map(|alias| (*alias).to_owned()).filter(|_| !host.is_empty());
            let hosts =
                Some(host.to_owned()).filter(|host| !host.is_empty()).into_iter().chain(aliases).collect();
            let redirects = secret.is_some() && (wanted.redirects || wanted.redirects_always);
            if !rules.is_empty() {
                let limits = wanted.limits.clone();
                self.routes.push(HostRoute { ingress: key.clone(), hosts, rules, secret, redirects, limits });
            }
        }
    }

    fn rule(
        &mut self,
        (ingress, host): (&ObjectKey, &str),
        path: &IngressPath,
        wanted: &Wanted,
        is_left_out: bool,
    ) -> HostRule {
        let backend = self.backend(ingress, &path.backend);
        let is_closed = is_left_out || backend.is_err();
        let converted = match self.hosts.get(host) {
            Some(paths) => converted_path(path, wanted, paths, is_closed),
            None => converted_path(path, wanted, &HostPaths::default(), is_closed),
        };
        let mut filters = Vec::new();
        let served = match converted.rewrite {
            _ if is_left_out => None,
            Ok(rewrite) => Some(backend.map(|backend| (backend, rewrite))),
            Err(why) => Some(Err(why)),
        };
        let backend = match served {
            None => None,
            Some(Ok((backend, rewrite))) => {
                filters
                    .extend(rewrite.map(|path| json!({"type": "URLRewrite", "urlRewrite": {"path": path}})));
                filters.extend(wanted.cors.clone().map(|cors| json!({"type": "CORS", "cors": cors})));
                converted.lost.into_iter().for_each(|why| self.lose(ingress, &why));
                Some(backend)
            }
            Some(Err(why)) => {
                self.result.closed_paths += 1;
                self.lose(ingress, &format!("requests of the path `{}` get 500: {why}", path.path));
                None
            }
        };
        let (host, kind, path) = (host.to_owned(), path.path_type.clone(), path.path.clone());
        HostRule { host, path, kind, matched: converted.matched, filters, backend }
    }

    fn backend(&self, ingress: &ObjectKey, backend: &IngressBackend) -> Result<Value, String> {
        let service = backend.service.as_ref().ok_or("its backend is no Service")?;
        let port = match service.port.number {
            0 => {
                let key = ObjectKey::new(&ingress.namespace, &service.name);
                let known = self.objects.services.get(&key).into_iter().flat_map(|it| &it.spec.ports);
                let mut named = known.filter(|it| it.name == service.port.name).map(|it| it.port);
                let missing = || {
                    let name = &service.port.name;
                    format!(
                        "the port `{name}` of the Service {key} has no number here; put the Service into the folder"
                    )
                };
                named.next().ok_or_else(missing)?
            }
            number => number,
        };
        Ok(json!({"name": service.name, "port": port}))
    }

    /// Of rules of one host that match the same requests, ingress-nginx uses the oldest; names would decide between those of HTTPRoutes.
    /// The requests of a rule without a backend get 500 in any case.
    fn settle_conflicts(&mut self) {
        let mut routes = std::mem::take(&mut self.routes);
        let mut first: HashMap<(String, String), (usize, usize)> = HashMap::new();
        for at in 0..routes.len() {
            let (older, rest) = routes.split_at_mut(at);
            let Some((route, _)) = rest.split_first_mut() else { continue };
            let mut rules: Vec<HostRule> = Vec::new();
            for mut rule in std::mem::take(&mut route.rules) {
                let place = (at, rules.len());
                let known = *first.entry((rule.host.clone(), rule.matched.to_string())).or_insert(place);
                let former = match known {
                    _ if known == place => None,
                    (of, number) if of == at => rules.get_mut(number).map(|rule| (&route.ingress, rule)),
                    (of, number) => older
                        .get_mut(of)
                        .and_then(|it| it.rules.get_mut(number).map(|rule| (&it.ingress, rule))),
                };
                if let Some((ingress, former)) = former {
                    let is_same = former.kind == rule.kind && former.path == rule.path;
                    let about = |ingress: &ObjectKey, path: &str, why: &str| {
                        format!("Ingress {ingress}: the path `{path}` {why}")
                    };
                    if former.backend.is_none() && rule.backend.take().is_some() {
                        let why = format!("gets 500, as the same one of the older Ingress {ingress}");
                        self.result.closed_paths += 1;
                        self.result.lost.push(about(&route.ingress, &rule.path, &why));
                    } else if is_same
                        && (former.backend.is_some() && rule.backend.is_some()
                            // Another namespace has listeners of its own, whose shorter paths must not get these requests.
                            || former.backend.is_some() && ingress.namespace == route.ingress.namespace)
                    {
                        let why = format!("is left out: the older Ingress {ingress} has it");
                        self.result.lost.push(about(&route.ingress, &rule.path, &why));
                        continue;
                    } else if !is_same && rule.backend.is_none() && former.backend.take().is_some() {
                        let why = format!("gets 500, as the same requests of the Ingress {}", route.ingress);
                        self.result.closed_paths += 1;
                        self.result.lost.push(about(ingress, &former.path, &why));
                    }
                }
                rules.push(rule);
            }
            route.rules = rules;
        }
        routes.retain(|route| !route.rules.is_empty());
        self.routes = routes;
    }

    fn finish(mut self) -> Converted {
        self.settle_conflicts();
        let mut listeners: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        // Each Ingress has its own name for its first route.
        let mut taken: BTreeSet<ObjectKey> = self.routes.iter().map(|route| route.ingress.clone()).collect();
        let mut seen: BTreeSet<ObjectKey> = BTreeSet::new();
        // Host names whose requests without TLS are redirected already.
        let mut redirected: BTreeSet<(String, String)> = BTreeSet::new();
        // Limits, and the routes that they are for.
        let mut policies: BTreeMap<ObjectKey, (Map<String, Value>, Vec<Value>)> = BTreeMap::new();
        for route in std::mem::take(&mut self.routes) {
            let namespace = route.ingress.namespace.clone();
            let here = listeners
                .entry(namespace.clone())
                .or_insert_with(|| vec![json!({"name": "http", "port": 80, "protocol": "HTTP"})]);
            let secure = route.secret.as_ref().map(|secret| secure_listeners(here, &route.hosts, secret));
            let is_full = here.len() > LISTENERS_MAX;
            let name = match seen.insert(route.ingress.clone()) {
                true => route.ingress.name.clone(),
                false => free_name(&mut taken, &namespace, &route.ingress.name),
            };
            let parent = |section: &str| json!({"name": GATEWAY, "sectionName": section});
            let mut parents: Vec<Value> = secure.iter().flatten().map(|section| parent(section)).collect();
            let every = [String::new()];
            let hosts = if route.hosts.is_empty() { &every[..] } else { &route.hosts };
            let is_new = |host: &&String| redirected.insert((namespace.clone(), (*host).clone()));
            let unredirected: Vec<String> =
                hosts.iter().filter(|_| route.redirects).filter(is_new).cloned().collect();
            if !unredirected.is_empty() {
                let redirect = json!({"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": 308}});
                let rules = json!([{"filters": [redirect]}]);
                let redirect = format!("{name}-redirect");
                let redirect = match taken.insert(ObjectKey::new(&namespace, &redirect)) {
                    true => redirect,
                    false => free_name(&mut taken, &namespace, &redirect),
                };
                let hosts = if route.hosts.is_empty() { &[][..] } else { &unredirected };
                self.push_route(&namespace, &redirect, &[parent("http")], hosts, rules);
            }
            if !route.redirects {
                parents.push(parent("http"));
            }
            let rules: Vec<Value> =
                route.rules.iter().flat_map(|rule| self.with_canaries(&namespace, rule)).collect();
            for (number, rules) in rules.chunks(RULES_MAX).enumerate() {
                let name = match number {
                    0 => name.clone(),
                    _ => free_name(&mut taken, &namespace, &name),
                };
                self.push_route(&namespace, &name, &parents, &route.hosts, Value::Array(rules.to_vec()));
                if !route.limits.is_empty() {
                    let target = json!({"group": GATEWAY_GROUP, "kind": "HTTPRoute", "name": name});
                    let policy = policies.entry(route.ingress.clone());
                    policy.or_insert_with(|| (route.limits.clone(), Vec::new())).1.push(target);
                }
            }
            if route.hosts.len() > HOSTNAMES_MAX {
                let message = format!("a route has more than {HOSTNAMES_MAX} host names; split it");
                self.lose(&route.ingress, &message);
            }
            if is_full {
                let message =
                    format!("the gateway of the namespace has more than {LISTENERS_MAX} listeners; split it");
                self.lose(&route.ingress, &message);
            }
        }
        for (ingress, (mut spec, targets)) in policies {
            spec.insert("targetRefs".to_owned(), Value::Array(targets));
            self.result.objects.push(json!({
                "apiVersion": format!("{OWN_GROUP}/v1alpha1"), "kind": "LimitPolicy",
                "metadata": {"name": ingress.name, "namespace": ingress.namespace}, "spec": spec,
            }));
        }
        for canary in std::mem::take(&mut self.canaries).iter().filter(|canary| !canary.is_used) {
            self.lose(
                &canary.ingress,
                &format!("a canary for the path `{}`, which no other Ingress serves", canary.path),
            );
        }
        let gateways = listeners.into_iter().map(|(namespace, listeners)| {
            json!({
                "apiVersion": format!("{GATEWAY_GROUP}/v1"), "kind": "Gateway",
                "metadata": {"name": GATEWAY, "namespace": namespace},
                "spec": {"gatewayClassName": CLASS, "listeners": listeners},
            })
        });
        self.result.objects.splice(0..0, gateways.collect::<Vec<_>>());
        self.result
    }

    /// A rule as rules of a route: that of requests with the canary's field comes first.
    fn with_canaries(&mut self, namespace: &str, rule: &HostRule) -> Vec<Value> {
        let is_for = |canary: &&mut CanaryRule| {
            canary.ingress.namespace == namespace && canary.host == rule.host && canary.path == rule.path
        };
        let Some(backend) = &rule.backend else { return vec![json!({"matches": [rule.matched]})] };
        let written = |matched: &Value, backends: Vec<Value>| {
            let mut value = json!({"matches": [matched], "backendRefs": backends});
            if !rule.filters.is_empty() {
                value["filters"] = Value::Array(rule.filters.clone());
            }
            value
        };
        let mut rules = Vec::new();
        let mut backends = vec![backend.clone()];
        if let Some(canary) = self.canaries.iter_mut().find(is_for) {
            canary.is_used = true;
            if let Some((name, value)) = &canary.wanted.header {
                let mut matched = rule.matched.clone();
                matched["headers"] = json!([{"name": name, "value": value}]);
                rules.push(written(&matched, vec![canary.backend.clone()]));
            }
            if canary.wanted.weight > 0 {
                let mut new = canary.backend.clone();
                new["weight"] = canary.wanted.weight.into();
                backends[0]["weight"] = (100 - canary.wanted.weight).into();
                backends.push(new);
            }
        }
        rules.push(written(&rule.matched, backends));
        rules
    }

    fn push_route(&mut self, namespace: &str, name: &str, parents: &[Value], hosts: &[String], rules: Value) {
        let mut spec = json!({"parentRefs": parents, "rules": rules});
        if !hosts.is_empty() {
            spec["hostnames"] = json!(hosts);
        }
        self.result.objects.push(json!({
            "apiVersion": format!("{GATEWAY_GROUP}/v1"), "kind": "HTTPRoute",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec,
        }));
    }
}

/// The hosts of an Ingress with their paths; the default backend has all paths of no host.
fn given_paths(ingress: &Ingress) -> BTreeMap<&str, Vec<Cow<'_, IngressPath>>> {
    // Rules of one host belong together.
    let mut hosts: BTreeMap<&str, Vec<Cow<'_, IngressPath>>> = BTreeMap::new();
    for rule in &ingress.spec.rules {
        let paths = rule.http.iter().flat_map(|http| &http.paths).map(Cow::Borrowed);
        hosts.entry(&rule.host).or_default().extend(paths);
    }
    if let Some(backend) = &ingress.spec.default_backend {
        hosts.entry("").or_default().push(Cow::Owned(IngressPath::rest(backend.clone())));
    }
    hosts
}

/// The Secret for a host: one for it, or one for all hosts of the Ingress.
fn secret_of(ingress: &Ingress, host: &str) -> Option<String> {
    let is_for = |known: &String| {
        let below = known.strip_prefix("*.").zip(host.split_once('.'));
        known == host || below.is_some_and(|(known, (_, rest))| known == rest)
    };
    let fits = ingress.spec.tls.iter().find(|tls| tls.hosts.is_empty() || tls.hosts.iter().any(is_for));
    fits.and_then(|tls| tls.secret_name.clone())
}

/// A name that no object of this kind has: with a number from 2 on.
fn free_name(taken: &mut BTreeSet<ObjectKey>, namespace: &str, base: &str) -> String {
    let numbered = (2..).map(|number: usize| format!("{base}-{number}"));
    let free = numbered.into_iter().find(|name| taken.insert(ObjectKey::new(namespace, name)));
    free.unwrap_or_else(|| base.to_owned())
}

/// The names of the listeners for these hosts with this certificate, which are added if they are new.
fn secure_listeners(listeners: &mut Vec<Value>, hosts: &[String], secret: &str) -> Vec<String> {
    let every = [String::new()];
    let hosts = if hosts.is_empty() { &every[..] } else { hosts };
    let mut names = Vec::new();
    for host in hosts {
        let mut listener = json!({
            "port": 443, "protocol": "HTTPS",
            "tls": {"mode": "Terminate", "certificateRefs": [{"name": secret}]},
        });
        if !host.is_empty() {
            listener["hostname"] = json!(host);
        }
        // A host has one listener: with its first certificate.
        let known =
            listeners.iter().find(|it| it["port"] == 443 && it.get("hostname") == listener.get("hostname"));
        let name = match known.and_then(|it| it["name"].as_str()) {
            Some(name) => name.to_owned(),
            None => {
                let name = format!("https-{}", listeners.len());
                listener["name"] = json!(name);
                listeners.push(listener);
                name
            }
        };
        names.push(name);
    }
    names
}

#[cfg(test)]
mod tests;
