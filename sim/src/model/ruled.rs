//! What the rules of `scene/ruled.rs` must do, in words of their own: what an upstream gets, and what a client.

use super::{Got, Planned, Sent};
use crate::scene::Configuration;
use crate::scene::ruled::{CHOSEN, HOSTS, Inputs, ORIGIN, RULED, SORRY, expires_text, missing_page};

/// The fields that are compared.
const FIELDS: [&str; 14] = [
    "x-class",
    "x-trace",
    "x-version",
    "x-conditional",
    "x-failed",
    "x-fifth",
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "access-control-expose-headers",
    "access-control-allow-methods",
    "cache-control",
    "location",
    "set-cookie",
    "x-secret",
];

/// The class of a request, by the map.
fn class(inputs: Inputs, version: u8) -> String {
    match inputs.kind {
        Some(0) => format!("zero-v{version}"),
        Some(kind) => format!("some-{kind}-v{version}"),
        None => format!("none-v{version}"),
    }
}

impl Planned {
    pub(crate) fn inputs(&self) -> Inputs {
        Inputs::of(self.id)
    }

    /// It asks whether a page may send another request.
    pub(crate) fn is_preflight(&self) -> bool {
        self.method == "OPTIONS"
    }

    /// Whether its head has the fields that rules look at.
    pub(crate) fn has_inputs(&self) -> bool {
        self.resource.is_none() && matches!(self.path, RULED | CHOSEN | SORRY)
    }

    /// The path and query after the rewrite; `None` if it does not apply.
    pub(super) fn rewritten_by_rule(&self) -> Option<String> {
        let small = self.id % 7;
        let applies = self.path == RULED && self.inputs().kind == Some(2) && small <= 2;
        applies.then(|| format!("{RULED}/small-{small}?from=rewrite&id={}", self.id))
    }

    /// Why no upstream may get it, because of the rules.
    pub(super) fn why_rules_refuse(&self) -> Option<&'static str> {
        match self.path {
            RULED if self.inputs().is_banned => Some("is denied under a condition"),
            RULED if self.is_preflight() => Some("is a preflight"),
            SORRY => Some("is for a path that only error pages reach"),
            CHOSEN => Some("has a fixed response"),
            _ => None,
        }
    }
}

/// Checks the fields of a request that an upstream has got; `field` returns the value of one.
pub(crate) fn check_request<'c, 'h>(
    planned: &Planned,
    field: impl Fn(&str) -> Option<&'h str>,
    mut configurations: impl Iterator<Item = &'c Configuration>,
) -> Result<(), String> {
    if planned.path != RULED || planned.resource.is_some() {
        return Ok(());
    }
    let inputs = planned.inputs();
    let names = ["x-label", "x-summary", "x-kind", "x-secret", "x-conditional"];
    let got = names.map(|name| field(name).map(str::to_owned));
    let expected = |version: u8| {
        let (class, method) = (class(inputs, version), planned.method);
        let label = if inputs.is_dark { format!("dark {class}") } else { format!("{class}/{method}") };
        let kind = inputs.kind.map_or("missing".to_owned(), |kind| format!("kind-{kind}"));
        let conditional = (inputs.kind == Some(1)).then(|| format!("one-v{version}"));
        [Some(label), Some(format!("{method}-{class}-v{version}")), Some(kind), None, conditional]
    };
    match configurations.any(|it| expected(it.rules_version) == got) {
        true => Ok(()),
        false => Err(format!("request {}: {names:?} are {got:?}, against the rules", planned.id)),
    }
}

/// What a client must have.
#[derive(Debug)]
struct Expected {
    status: u16,
    /// `None`: that of the upstream.
    body: Option<String>,
    fields: Vec<(&'static str, String)>,
}

/// Whether rules for successful responses apply.
fn is_success(status: u16) -> bool {
    matches!(status, 200 | 201 | 204 | 206 | 301..=304 | 307 | 308)
}

/// What [`RULED`] adds to a response with this status.
fn fields(planned: &Planned, status: u16, version: u8, is_of_upstream: bool) -> Vec<(&'static str, String)> {
    let (inputs, id) = (planned.inputs(), planned.id);
    let mut fields =
        vec![("x-trace", format!("{} {status}", planned.method)), ("x-version", format!("v{version}"))];
    if is_success(status) {
        fields.push(("x-class", class(inputs, version)));
        fields.push(("cache-control", expires_text()));
    }
    fields.extend((inputs.kind == Some(1)).then(|| ("x-conditional", format!("one-v{version}"))));
    fields.extend((status >= 400).then(|| ("x-failed", status.to_string())));
    fields.extend((status < 400 && id.is_multiple_of(5)).then(|| ("x-fifth", "yes".to_owned())));
    if inputs.origin == Some(ORIGIN) {
        fields.push(("access-control-allow-origin", ORIGIN.to_owned()));
        fields.push(("access-control-allow-credentials", "true".to_owned()));
        fields.push(("access-control-expose-headers", "X-Sent".to_owned()));
    }
    if is_of_upstream {
        let cookie = format!("session={id}; Path=/x; Domain=a.test; Secure; SameSite=Lax");
        fields.push(("set-cookie", cookie));
        if status == 201 {
            fields.push(("location", format!("/moved/{}/{id}", class(inputs, version))));
        }
    }
    fields
}

/// What a client gets for an upstream's response, under a configuration of this version.
fn of_upstream(planned: &Planned, sent: u16, version: u8) -> Expected {
    let status = if sent == 404 { 410 } else { sent };
    let body = (sent == 404).then(|| missing_page(version));
    Expected { status, body, fields: fields(planned, status, version, true) }
}

/// What a client gets for a response that the rules make, with this status.
fn of_rules(planned: &Planned, status: u16, version: u8) -> Option<Expected> {
    let (inputs, fields_of) = (planned.inputs(), |status| fields(planned, status, version, false));
    let class = class(inputs, version);
    let with = |body: String, fields| Some(Expected { status, body: Some(body), fields });
    match (planned.path, status) {
        (RULED, 403) if inputs.is_banned => with(format!("sorry {SORRY}/{class}, v{version}"), Vec::new()),
        (RULED, 500) if !inputs.is_banned => with(format!("failed, says {class} of v{version}"), Vec::new()),
        (RULED, 204) if planned.is_preflight() && !inputs.is_banned => {
            let mut fields = fields_of(204);
            if inputs.origin == Some(ORIGIN) {
                fields.push(("access-control-allow-methods", "GET, PUT".to_owned()));
            }
            with(String::new(), fields)
        }
        (CHOSEN, 200) => with(chosen(planned, version), Vec::new()),
        _ => None,
    }
}

/// The text of the route that is chosen: an exact path, then expressions and globs in their order, then the longest prefix.
fn chosen(planned: &Planned, version: u8) -> String {
    let (small, host) = (planned.id % 7, planned.host);
    let name = match host {
        _ if host == HOSTS[1] => Some("b"),
        _ if host == HOSTS[2] => Some("below c"),
        _ => None,
    };
    let what = match (name, small) {
        (Some(name), _) => format!("{host} of {name}"),
        (None, 3) => "exact".to_owned(),
        (None, 0 | 1) => format!("expression {small}"),
        (None, 4) => "glob".to_owned(),
        (None, _) if planned.inputs().kind == Some(0) => "first".to_owned(),
        (None, _) => "second".to_owned(),
    };
    format!("{what}, v{version}")
}

/// Checks an upstream's response to a request for [`RULED`]. Returns the text of the page that has replaced its body.
pub(super) fn check_response<'c>(
    planned: &Planned,
    got: &Got<'_>,
    sent: &Sent,
    configurations: impl Iterator<Item = &'c Configuration>,
) -> Result<Option<String>, String> {
    let all = configurations.map(|it| of_upstream(planned, sent.status, it.rules_version));
    one_of(planned, got, all.collect())
}

/// Checks a response of the server's own, if it is one of the rules.
///
/// Returns `false` if the rules make none with this status.
pub(super) fn check_own<'c>(
    planned: &Planned,
    got: &Got<'_>,
    configurations: impl Iterator<Item = &'c Configuration>,
) -> Result<bool, String> {
    let all: Vec<Expected> =
        configurations.filter_map(|it| of_rules(planned, got.status, it.rules_version)).collect();
    if all.is_empty() {
        return Ok(false);
    }
    one_of(planned, got, all)?;
    Ok(true)
}

/// Checks that a response is one of those that are expected. Returns its text, if that is not an upstream's.
fn one_of(planned: &Planned, got: &Got<'_>, all: Vec<Expected>) -> Result<Option<String>, String> {
    let of_got = |name: &str| {
        let found = got.all.iter().filter(|(it, _)| it.eq_ignore_ascii_case(name));
        found.map(|(_, value)| *value).collect::<Vec<_>>()
    };
    let has_body = planned.method != "HEAD" && got.is_complete && !matches!(got.status, 204 | 304);
    let is_it = |expected: &Expected| {
        let has = |name: &str| {
            let values = expected.fields.iter().filter(|(it, _)| *it == name);
            values.map(|(_, value)| value.as_str()).eq(of_got(name))
        };
        let is_body = expected.body.as_ref().is_none_or(|body| !has_body || body.as_bytes() == got.body);
        expected.status == got.status && is_body && FIELDS.iter().all(|name| has(name))
    };
    match all.iter().position(is_it) {
        Some(at) => Ok(all.into_iter().nth(at).and_then(|it| it.body)),
        None => Err(format!(
            "request {} {} of {:?}: {} with {:?} and {:?}, against the rules: {all:?}",
            planned.id,
            planned.target(),
            planned.inputs(),
            got.status,
            FIELDS.map(|name| (name, of_got(name))),
            String::from_utf8_lossy(&got.body[..got.body.len().min(80)])
        )),
    }
}
