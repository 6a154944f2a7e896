//! What a reader of a site file might not expect, and what this machine lacks for it, each with its line.

use flatout_config::{Node, Value};
use flatout_server::{Lack, Plan};
use flatout_site::Fault;
use flatout_site::explain::{Advice, AdviceKind, advice};
use flatout_site::plan::{Action, Route};

use super::site::Built;

/// Caddy's placeholders, and our variables for them.
const PLACEHOLDERS: [(&str, &str); 14] = [
    ("uri", "$request_uri"),
    ("http.request.uri", "$request_uri"),
    ("path", "$uri"),
    ("http.request.uri.path", "$uri"),
    ("query", "$args"),
    ("host", "$host"),
    ("http.request.host", "$host"),
    ("hostport", "$http_host"),
    ("scheme", "$scheme"),
    ("method", "$request_method"),
    ("remote_host", "$remote_addr"),
    ("client_ip", "$remote_addr"),
    ("remote", "$remote_addr"),
    ("tls_version", "$ssl_protocol"),
];

/// Unexpected effects of a valid file.
pub(super) fn notes(built: &Built, plan: &Plan) -> Result<Vec<String>, Fault> {
    let mut notes: Vec<String> =
        advice(&plan.sites)?.into_iter().filter_map(|found| of_advice(built, plan, found)).collect();
    placeholders(built, &built.tree.nodes, &mut notes);
    if is_hsts_useless(plan) {
        let line = line_of_name(built, &built.tree.nodes, "hsts").unwrap_or(0);
        notes.push(format!("{line}: note: {HSTS_USELESS}"));
    }
    Ok(notes)
}

/// What [`is_hsts_useless`] means.
pub(super) const HSTS_USELESS: &str = "`hsts` has no effect, because nothing here uses TLS: give a certificate (`tls CERT KEY`, `domain`), or \
                                       name the proxy in front that does (`trusted-proxies`)";

/// Whether a route asks for HSTS, which is sent over HTTPS only, and no request can come over HTTPS.
pub(super) fn is_hsts_useless(plan: &Plan) -> bool {
    let sites = &plan.sites.sites;
    let is_behind = sites.iter().any(|site| !site.trust.proxies.is_empty());
    let has_hsts = sites.iter().flat_map(|site| &site.routes).any(|route| route.rules.hsts.is_some());
    has_hsts && !plan.is_secure() && !is_behind
}

fn of_advice(built: &Built, plan: &Plan, found: Advice) -> Option<String> {
    let place = |route: usize| built.places.routes.get(found.site)?.get(route);
    let line = |route: usize| place(route).map_or(0, |at| built.tree.line(at));
    let routes = &plan.sites.sites.get(found.site)?.routes;
    let (route, other) = (routes.get(found.route)?, routes.get(found.other)?);
    let (name, other_name, other_line) = (&route.name, &other.name, line(found.other));
    let alike = routes.iter().filter(|other| other.path.is_same(&route.path));
    let methods: Vec<&str> = alike.flat_map(|route| &route.methods).map(String::as_str).collect();
    let text = match found.kind {
        AdviceKind::Methods => format!(
            "route `{name}` serves {} only; other methods get 405 after its rules, and do not go to route \
             `{other_name}` on line {other_line}",
            methods.join(", ")
        ),
        AdviceKind::Pattern => format!(
            "paths below route `{name}` that match `{other_name}` on line {other_line} get the rules of that route, \
             which lets in other clients; before-patterns=on keeps them here"
        ),
    };
    Some(format!("{}: note: {text}", line(found.route)))
}

/// Finds Caddy's placeholders, which are plain text here.
fn placeholders(built: &Built, nodes: &[Node], notes: &mut Vec<String>) {
    for node in nodes {
        for value in node.values.iter().chain(node.keys.iter().map(|(_, value)| value)) {
            notes.extend(placeholder(value).map(|(name, variable)| {
                let line = built.tree.line(&value.at);
                format!("{line}: note: `{{{name}}}` is plain text here; the variable is `{variable}`")
            }));
        }
        placeholders(built, node.inner.as_deref().unwrap_or_default(), notes);
    }
}

/// The first placeholder in a text, and our variable for it.
fn placeholder(value: &Value) -> Option<(String, String)> {
    let text = &value.text;
    let opened = text.match_indices('{').filter(|(at, _)| !text[..*at].ends_with('$'));
    opened.filter_map(|(at, _)| text[at + 1..].split_once('}')).find_map(|(name, _)| {
        let known =
            PLACEHOLDERS.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| (*ours).to_owned());
        let field = || {
            let field = name.strip_prefix("header.").or_else(|| name.strip_prefix("http.request.header."))?;
            Some(format!("$http_{}", field.to_ascii_lowercase().replace('-', "_")))
        };
        Some((name.to_owned(), known.or_else(field)?))
    })
}

/// Something that this machine lacks. The file may be for another machine, so this is no mistake in it.
pub(super) struct Shown {
    pub(super) text: String,
    /// A server would not start here.
    pub(super) prevents_start: bool,
}

/// What this machine lacks.
pub(super) fn lacks(built: &Built, plan: &Plan) -> Vec<Shown> {
    let no_start = |line: String, why: String| Shown {
        text: format!("{line} warning: a server would not start here: {why}"),
        prevents_start: true,
    };
    let shown = |lack| match lack {
        Lack::Folder(at, why) => {
            let line = line_of(built, plan, |route| {
                matches!(route.action, Action::Files(folder) if folder == at) || route.try_files == Some(at)
            });
            no_start(line, why)
        }
        Lack::Certificate(why) => no_start(String::new(), why),
        Lack::Setting(name, value, why) => {
            let line = line_of_setting(built, &built.tree.nodes, name, &value);
            no_start(line.map_or_else(String::new, |line| format!("{line}:")), why)
        }
        Lack::Name(at, why) => {
            let named = built.tree.nodes.iter().filter(|node| node.name == "upstream").nth(at);
            let line = named.map(|node| format!("{}:", built.tree.line(&node.at)));
            let of_route =
                |route: &Route| matches!(&route.action, Action::Proxy(forward) if forward.upstream == at);
            let line = line.unwrap_or_else(|| line_of(built, plan, of_route));
            let text = format!("{line} warning: requests to this upstream would fail here: {why}");
            Shown { text, prevents_start: false }
        }
    };
    flatout_server::examine(plan).into_iter().map(shown).collect()
}

/// The line of the setting with this name whose value is meant: paths are written relative to the file, and addresses in short.
fn line_of_setting(built: &Built, nodes: &[Node], name: &str, value: &str) -> Option<usize> {
    let is_meant = |node: &&Node| {
        let text = node.values.first().map_or("", |value| value.text.as_str());
        node.name == name && !text.is_empty() && value.ends_with(text.trim_start_matches("./"))
    };
    let found = nodes.iter().find(is_meant).map(|node| built.tree.line(&node.at));
    let mut inner = nodes.iter().filter_map(|node| node.inner.as_deref());
    found.or_else(|| inner.find_map(|nodes| line_of_setting(built, nodes, name, value)))
}

/// The line of the first setting with this name.
fn line_of_name(built: &Built, nodes: &[Node], name: &str) -> Option<usize> {
    nodes.iter().find_map(|node| match node.name == name {
        true => Some(built.tree.line(&node.at)),
        false => line_of_name(built, node.inner.as_deref()?, name),
    })
}

/// The line of the first such route, with a colon; empty if there is none.
fn line_of(built: &Built, plan: &Plan, is_wanted: impl Fn(&Route) -> bool) -> String {
    let sites = plan.sites.sites.iter().zip(&built.places.routes);
    let mut routes = sites.flat_map(|(site, places)| site.routes.iter().zip(places));
    let found = routes.find(|(route, _)| is_wanted(route));
    found.map_or_else(String::new, |(_, at)| format!("{}:", built.tree.line(at)))
}
