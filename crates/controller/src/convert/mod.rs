//! Ingresses into objects of the Gateway API, for people who move to it: a pure function.
//!
//! ```text
//! Ingresses, Services ── hosts, paths, annotations ──> Gateways, HTTPRoutes, LimitPolicies ── yaml ──> text
//!                                    └──> what is lost, for a person to decide
//! ```
//!
//! An Ingress with an annotation that protects something, and that the Gateway API has nothing for, is left out: without it, its routes
//! would be open to everybody.

mod annotation;
mod path;
mod requests;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use self::annotation::Wanted;
use self::path::converted_path;
pub use self::requests::{IngressRequest, ingress_requests};
pub use self::write::yaml_documents;
use crate::kinds::ingress::{Ingress, IngressBackend, IngressPath};
use crate::kinds::own_policy::OWN_GROUP;
use crate::kinds::{GATEWAY_GROUP, ObjectKey};
use crate::objects::Objects;

/// The class and the name of the gateways that are made: one in each namespace.
const CLASS: &str = "flatout";
const GATEWAY: &str = "gateway";

/// Listeners of one gateway, as the standard limits them: one for HTTP, the others for certificates.
const LISTENERS_MAX: usize = 64;

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
    matched: Value,
    filters: Vec<Value>,
    backend: Value,
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
    let mut conversion =
        Conversion { objects, result: Converted::default(), routes: Vec::new(), canaries: Vec::new() };
    for ingress in objects.ingresses.values() {
        let key = ingress.metadata.key();
        match Wanted::parse(ingress) {
            Ok((wanted, lost)) => {
                conversion.result.converted += 1;
                lost.into_iter().for_each(|why| conversion.lose(&key, &why));
                conversion.add(ingress, &wanted);
            }
            Err(why) => {
                conversion.result.left_out += 1;
                conversion.lose(&key, &format!("left out: {why}"));
            }
        }
    }
    conversion.finish()
}

struct Conversion<'o> {
    objects: &'o Objects,
    result: Converted,
    routes: Vec<HostRoute>,
    canaries: Vec<CanaryRule>,
}

impl Conversion<'_> {
    fn lose(&mut self, ingress: &ObjectKey, why: &str) {
        self.result.lost.push(format!("Ingress {ingress}: {why}"));
    }

    fn add(&mut self, ingress: &Ingress, wanted: &Wanted) {
        let key = ingress.metadata.key();
        // Rules of one host belong together.
        let mut hosts: BTreeMap<&str, Vec<IngressPath>> = BTreeMap::new();
        for rule in &ingress.spec.rules {
            let paths = rule.http.iter().flat_map(|http| http.paths.iter().cloned());
            hosts.entry(&rule.host).or_default().extend(paths);
        }
        if let Some(backend) = &ingress.spec.default_backend {
            let all = IngressPath {
                path: "/".to_owned(),
                path_type: "Prefix".to_owned(),
                backend: backend.clone(),
            };
            hosts.entry("").or_default().push(all);
        }
        for (host, paths) in hosts {
            let secret = secret_of(ingress, host);
            let mut rules = Vec::new();
            for path in &paths {
                match self.rule(&key, host, path, wanted) {
                    Ok(rule) => rules.push(rule),
                    Err(why) => self.lose(&key, &format!("the path `{}` is left out: {why}", path.path)),
                }
            }
            if let Some(canary) = &wanted.canary {
                let canaries = rules.into_iter().map(|rule| CanaryRule {
                    ingress: key.clone(),
                    host: rule.host,
                    path: rule.path,
                    backend: rule.backend,
                    wanted: canary.clone(),
                    is_used: false,
                });
                self.canaries.extend(canaries);
                continue;
            }
            if wanted.redirects_always && secret.is_none() {
                self.lose(&key, "force-ssl-redirect without a certificate: TLS ends before the gateway, which cannot know it");
            }
            let aliases = wanted.aliases.iter().filter(|_| !host.is_empty()).cloned();
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
        &self,
        ingress: &ObjectKey,
        host: &str,
        path: &IngressPath,
        wanted: &Wanted,
    ) -> Result<HostRule, String> {
        let (matched, rewrite) = converted_path(path, wanted)?;
        let mut filters = Vec::new();
        filters.extend(rewrite.map(|path| json!({"type": "URLRewrite", "urlRewrite": {"path": path}})));
        filters.extend(wanted.cors.clone().map(|cors| json!({"type": "CORS", "cors": cors})));
        let backend = self.backend(ingress, &path.backend)?;
        Ok(HostRule { host: host.to_owned(), path: path.path.clone(), matched, filters, backend })
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

    fn finish(mut self) -> Converted {
        let mut listeners: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        // Each Ingress has its own name for its first route.
        let mut taken: BTreeSet<ObjectKey> = self.routes.iter().map(|route| route.ingress.clone()).collect();
        let mut seen: BTreeSet<ObjectKey> = BTreeSet::new();
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
            if route.redirects {
                let redirect = json!({"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": 308}});
                let rules = json!([{"filters": [redirect]}]);
                let redirect = format!("{name}-redirect");
                let redirect = match taken.insert(ObjectKey::new(&namespace, &redirect)) {
                    true => redirect,
                    false => free_name(&mut taken, &namespace, &redirect),
                };
                self.push_route(&namespace, &redirect, &[parent("http")], &route.hosts, rules);
            } else {
                parents.push(parent("http"));
            }
            let rules: Vec<Value> =
                route.rules.iter().flat_map(|rule| self.with_canaries(&namespace, rule)).collect();
            self.push_route(&namespace, &name, &parents, &route.hosts, Value::Array(rules));
            if !route.limits.is_empty() {
                let target = json!({"group": GATEWAY_GROUP, "kind": "HTTPRoute", "name": name});
                policies.entry(route.ingress.clone()).or_insert((route.limits, Vec::new())).1.push(target);
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
                &format!("a canary for the path `{}`, which no other Ingress has", canary.path),
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
        let written = |matched: &Value, backends: Vec<Value>| {
            let mut value = json!({"matches": [matched], "backendRefs": backends});
            if !rule.filters.is_empty() {
                value["filters"] = Value::Array(rule.filters.clone());
            }
            value
        };
        let mut rules = Vec::new();
        let mut backends = vec![rule.backend.clone()];
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
