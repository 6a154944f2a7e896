//! Ingresses, with the annotations of ingress-nginx that charts use. An Ingress with an annotation that would be a hole if it were left
//! out, such as a snippet, is not served at all.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use flatout_site::plan::{Action, PathMatch, Rate, Rewrite, RewriteFrom, Route, Template, Then};
use flatout_tls::Profile;
use serde_json::json;

use super::Settings;
use super::annotation::Annotations;
use super::backend::{UpstreamOptions, Upstreams};
use super::certificate::Files;
use super::certificate_refs::identity;
use super::grant::Referrer;
use super::hostname::HostName;
use super::listener::TlsEnding;
use super::precedence::{Specificity, checked_path, parsed, prefix, quoted};
use super::rule::{RankedRoute, forward, refusal};
use super::site::Sites;
use crate::condition::StatusUpdate;
use crate::kinds::gateway::ObjectRef;
use crate::kinds::ingress::{Ingress, IngressBackend, IngressPath};
use crate::kinds::{ObjectKey, oldest_first};
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
    pub(super) rates: &'p mut Vec<Rate>,
}

/// Where one Ingress is served.
struct IngressListeners {
    plain: SocketAddr,
    secure: SocketAddr,
}

impl IngressParts<'_, '_> {
    /// Adds all Ingresses of this controller, the oldest first. Returns their statuses.
    pub(super) fn add_all(&mut self) -> Vec<Arc<StatusUpdate>> {
        let ours = self.objects.ingresses.values().filter(|it| self.is_ours(it));
        let ours = oldest_first(ours, |it| &it.metadata);
        let statuses = ours.into_iter().enumerate().filter_map(|(age, ingress)| self.add(ingress, age));
        statuses.collect()
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

    fn add(&mut self, ingress: &Ingress, age: usize) -> Option<Arc<StatusUpdate>> {
        let kind = find_kind("networking.k8s.io/v1", "Ingress")?;
        let key = ingress.metadata.key();
        let mut notes = Vec::new();
        let served = match Annotations::parse(ingress, self.objects, &mut notes) {
            Ok(annotations) => {
                self.serve(ingress, &annotations, age, &mut notes);
                true
            }
            Err(why) => {
                notes.push(format!("not served: {why}"));
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

    fn serve(&mut self, ingress: &Ingress, annotations: &Annotations, age: usize, notes: &mut Vec<String>) {
        let Some(address) = self.settings.addresses.first() else { return };
        let at = IngressListeners {
            plain: SocketAddr::new(*address, HTTP_PORT),
            secure: SocketAddr::new(*address, HTTPS_PORT),
        };
        let refused = &self.settings.refused;
        let mut rules: Vec<(&str, Vec<IngressPath>)> = Vec::new();
        for rule in &ingress.spec.rules {
            let paths = rule.http.as_ref().map(|http| http.paths.clone()).unwrap_or_default();
            rules.push((&rule.host, paths));
        }
        if let Some(backend) = &ingress.spec.default_backend {
            let path = |backend: &IngressBackend| IngressPath {
                path: "/".to_owned(),
                path_type: "Prefix".to_owned(),
                backend: backend.clone(),
            };
            rules.push(("", vec![path(backend)]));
        }
        for (host, paths) in rules {
            let names = std::iter::once(host)
                .chain(annotations.aliases.iter().map(String::as_str).filter(|_| !host.is_empty()));
            for name in names {
                let hostname = match HostName::parse(Some(name)) {
                    Ok(hostname) => hostname,
                    Err(why) => {
                        notes.push(why);
                        continue;
                    }
                };
                let is_secure = self.secure(ingress, &at, name, &hostname, notes);
                let redirects = annotations.redirects_always || (is_secure && annotations.redirects);
                let routes: Arc<[RankedRoute]> =
                    paths.iter().flat_map(|path| self.routes(ingress, path, annotations, notes)).collect();
                let has_plain = !refused.contains(&at.plain)
                    && self.sites.add_listener(
                        at.plain,
                        hostname.clone(),
                        Profile::default(),
                        TlsEnding::None,
                    );
                if has_plain {
                    let plain =
                        if redirects { routes.iter().map(to_https).collect() } else { routes.clone() };
                    self.sites.add_routes((at.plain, &hostname), &hostname, (age, &plain));
                } else {
                    notes.push(format!("{} is not available for HTTP", at.plain));
                }
                if is_secure {
                    self.sites.add_routes((at.secure, &hostname), &hostname, (age, &routes));
                }
            }
        }
    }

    /// Serves a host with TLS, if the Ingress has a certificate for it. Returns whether it has.
    fn secure(
        &mut self,
        ingress: &Ingress,
        at: &IngressListeners,
        host: &str,
        hostname: &HostName,
        notes: &mut Vec<String>,
    ) -> bool {
        let covers = |pattern: &String| {
            HostName::parse(Some(pattern)).is_ok_and(|pattern| !host.is_empty() && pattern.contains(hostname))
        };
        let tls = ingress.spec.tls.iter().find(|tls| tls.hosts.iter().any(covers));
        let Some(secret) = tls.and_then(|tls| tls.secret_name.clone()) else { return false };
        let from =
            Referrer { group: "networking.k8s.io", kind: "Ingress", namespace: &ingress.metadata.namespace };
        let reference = ObjectRef { name: secret, ..ObjectRef::default() };
        match identity(from, &reference, "InvalidCertificateRef", self.objects, self.files) {
            Ok(found) if !self.settings.refused.contains(&at.secure) => {
                let profile = Profile { identities: vec![found], ..Profile::default() };
                self.sites.add_listener(at.secure, hostname.clone(), profile, TlsEnding::Here)
            }
            Ok(_) => false,
            Err((_, why)) => {
                notes.push(why);
                false
            }
        }
    }

    fn routes(
        &mut self,
        ingress: &Ingress,
        path: &IngressPath,
        annotations: &Annotations,
        notes: &mut Vec<String>,
    ) -> Vec<RankedRoute> {
        let key = ingress.metadata.key();
        let matched = match path_match(path, annotations) {
            Ok(matched) => matched,
            Err(why) => {
                notes.push(why);
                return Vec::new();
            }
        };
        let action = match self.upstream(&key, &path.backend, &annotations.options) {
            Ok(upstream) => Action::Proxy(forward(upstream)),
            Err(why) => {
                notes.push(why);
                refusal()
            }
        };
        let mut route = Route { name: format!("Ingress/{key}{}", path.path), ..Route::new(matched, action) };
        annotations.apply(&mut route);
        if let Some(rate) = &annotations.rate {
            route.rules.rates.push(rate.in_plan(&key, self.rates));
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
        let ranked: Result<Vec<RankedRoute>, String> = match &annotations.canary {
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

fn path_match(path: &IngressPath, annotations: &Annotations) -> Result<PathMatch, String> {
    let text = if path.path.is_empty() { "/" } else { &path.path };
    // As ingress-nginx does: expressions begin at the start of the path, and ignore case.
    let is_pattern = annotations.use_regex || (annotations.rewrite.is_some() && text.contains('('));
    if is_pattern && path.path_type != "Exact" {
        let pattern = format!("^{text}");
        parsed(&[format!("path.matches({})", quoted(&pattern))])?;
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
