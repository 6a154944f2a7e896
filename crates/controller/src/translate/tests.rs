//! Cases in YAML: objects, and the route that a request gets.
//!
//! ```text
//! objects.yaml ── translate ──> plan ──> table of routes, as `flatout explain` reads it
//! ```

use std::net::SocketAddr;

use flatout_proxy::Upstream;
use flatout_site::explain::{Question, explain};
use flatout_site::plan::{Action, FieldChange, Host, PathMatch, Route, Site};
use serde_json::Value;

use super::*;
use crate::objects::{Insertion, ObjectChanges};
use crate::yaml;

mod cases;
mod conflicts;
mod gateway_tls;
mod hostile;
mod incremental;
mod ingress_requests;
mod ingresses;
mod listener_sets;
mod policies;
mod policy_requests;
mod route_policies;
mod route_requests;
mod status;
mod tls_routes;

/// The response to a request, as [`Translation::response`] writes both.
pub(crate) type RequestCase<'c> = (&'c str, &'c str);

/// A class, a gateway with a listener for all hosts at port 80, a service `a` and one `b`, with endpoints.
const BASE: &str = include_str!("tests/base.yaml");

fn settings() -> Settings {
    Settings {
        controller_name: CONTROLLER_NAME.to_owned(),
        addresses: vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()],
        published: Vec::new(),
        health: None,
        refused: BTreeSet::new(),
        assigned: BTreeMap::new(),
        folder: PathBuf::from("/certificates"),
    }
}

fn objects(text: &str) -> Objects {
    let mut objects = Objects::default();
    for value in yaml::objects(text).unwrap() {
        objects.insert(value).unwrap();
    }
    objects
}

/// The translation of the objects in [`BASE`] and these.
fn with_base(text: &str) -> Translation {
    translated(&format!("{BASE}\n---\n{text}"))
}

/// Compares the responses to requests.
fn check_responses(translation: &Translation, cases: &[RequestCase<'_>], about: &str) {
    for (request, expected) in cases {
        assert_eq!(translation.response(request), *expected, "{request}: {about}");
    }
}

fn translated(text: &str) -> Translation {
    let translation = translate(&objects(text), &settings());
    flatout_site::check(&translation.sites).unwrap();
    // Whatever a translation has, data planes get.
    let settings = settings();
    crate::data::tests::check_round_trip(&translation, &settings.addresses, &settings.folder);
    translation
}

/// An HTTPRoute `name` at the gateway `gw`, with these lines as its specification.
fn route(name: &str, spec: &str) -> String {
    let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}, generation: 3}}\n\
         spec:\n  parentRefs: [{{name: gw}}]\n{spec}"
    )
}

impl Translation {
    /// The site of a host at an address.
    fn site(&self, bind: &str, host: &str) -> &Site {
        let bind: SocketAddr = bind.parse().unwrap();
        let is_there = |at: usize| {
            self.site_listen[at].iter().any(|it| it.listen.address == flatout_engine::Address::Tcp(bind))
        };
        let rank = |known: &Host| match known {
            Host::Exact(name) => (*name == host).then_some((2, name.len())),
            Host::Below(name) => host.ends_with(&format!(".{name}")).then_some((1, name.len())),
            _ => Some((0, 0)),
        };
        let here = self.sites.sites.iter().enumerate().filter(|(at, _)| is_there(*at));
        let fits = here.filter_map(|(_, site)| Some((rank(&site.hosts[0])?, site)));
        fits.max_by_key(|(rank, _)| *rank).expect("a site").1
    }

    fn routes(&self, host: &str) -> &[Route] {
        &self.site("10.0.0.1:80", host).routes
    }

    /// The names of the upstreams and texts that routes lead to, in their order.
    fn targets(&self, host: &str) -> Vec<String> {
        self.routes(host).iter().map(|route| self.target(route)).collect()
    }

    fn target(&self, route: &Route) -> String {
        match &route.action {
            Action::Proxy(forward) => self.sites.upstreams[forward.upstream].name.clone(),
            Action::Respond { status, .. } => status.to_string(),
            Action::Redirect { status, .. } => format!("redirect {status}"),
            other => format!("{other:?}"),
        }
    }

    /// What becomes of a request, such as `POST http://a.test/x?y=1 field=value`, at the first address: the upstream, and the target that it
    /// gets if that is another one; or a status.
    pub(crate) fn response(&self, request: &str) -> String {
        let mut words = request.split(' ').peekable();
        let method = words.next_if(|word| !word.contains('/')).unwrap_or("GET");
        let (scheme, url) = words.next().and_then(|url| url.split_once("://")).expect("a URL");
        let (host, target) = url.split_at(url.find('/').expect("a path"));
        let is_tls = scheme == "https";
        let port = host.split_once(':').map_or(if is_tls { "443" } else { "80" }, |(_, port)| port);
        let bind: SocketAddr = format!("10.0.0.1:{port}").parse().unwrap();
        let at = flatout_engine::Address::Tcp(bind);
        let is_here = |listens: &Vec<SiteListen>| listens.iter().any(|it| it.listen.address == at);
        let Some(site) = self.site_listen.iter().position(is_here) else { return "closed-port".to_owned() };
        let field =
            |word: &str| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        let question = Question {
            method: method.to_owned(),
            host: host.to_owned(),
            target: target.to_owned(),
            fields: words.filter_map(field).collect(),
            peer: None,
            listener: self.sites.sites[site].listeners[0].number,
            is_tls,
        };
        let explained = explain(&self.sites, &question).unwrap();
        match (explained.site, explained.route) {
            (Some(site), Ok(route)) => {
                let to = self.target(&self.sites.sites[site].routes[route]);
                let is_redirect = to.starts_with("redirect 30") && self.is_changed(site, route);
                let is_changed = explained.target != target && to.contains('/');
                match (is_redirect, is_changed) {
                    (true, _) => format!("{to} {}", explained.path),
                    (_, true) => format!("{to} {}", explained.target),
                    _ => to,
                }
            }
            (_, Err(refused)) => refused.status.to_string(),
            (None, Ok(_)) => "no site".to_owned(),
        }
    }

    /// Whether a redirect of a route is one of a filter: its path may be changed.
    fn is_changed(&self, site: usize, route: usize) -> bool {
        self.sites.sites[site].routes[route].name.starts_with("HTTPRoute/")
    }

    fn upstream(&self, name: &str) -> &Upstream {
        self.sites.upstreams.iter().find(|it| it.name == name).expect("an upstream")
    }

    fn status(&self, kind: &str, name: &str) -> &Value {
        let is_it = |it: &&Arc<StatusUpdate>| it.kind.name == kind && it.key.name == name;
        &self.statuses.iter().find(is_it).expect("a status").status
    }

    /// A condition, as `True Reason`.
    fn condition(&self, kind: &str, name: &str, pointer: &str, condition: &str) -> String {
        let list = self.status(kind, name).pointer(pointer).and_then(Value::as_array).expect("conditions");
        let found = list.iter().find(|it| it["type"] == condition);
        found.map_or("none".to_owned(), |it| {
            format!("{} {}", it["status"].as_str().unwrap(), it["reason"].as_str().unwrap())
        })
    }

    /// A condition of a route for its first parent.
    fn of_route(&self, name: &str, condition: &str) -> String {
        self.condition("HTTPRoute", name, "/parents/0/conditions", condition)
    }
}
