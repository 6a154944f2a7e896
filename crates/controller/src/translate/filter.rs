//! Filters of rules: changes of fields, redirects, rewrites, CORS.

use std::time::Duration;

use flatout_site::plan::{
    Action, Cors, FieldChange, FieldRule, Origins, PathMatch, Piece, Rewrite, RewriteFrom, Route, Template,
    Then, Variable, When,
};

use super::annotation::is_token;
use super::hostname::HostName;
use crate::kinds::route::{
    CorsFilter, Fraction, HeaderModifier, HttpFilter, PathModifier, RequestMirror, RequestRedirect,
    UrlRewrite,
};

/// Where a redirect is sent from: what it does not name stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListenerOrigin {
    pub(super) is_https: bool,
    pub(super) port: u16,
}

/// The host for the backend, if a filter sets it.
pub(super) type BackendHost = Option<String>;

/// Applies the filters of a rule to a route. Returns the host for the backend.
///
/// # Errors
/// What is not supported, or invalid.
pub(super) fn apply(
    filters: &[HttpFilter],
    origin: ListenerOrigin,
    route: &mut Route,
) -> Result<BackendHost, String> {
    let mut host = None;
    for filter in filters {
        let lacks = || format!("a filter of the type {} without its settings", filter.kind);
        match filter.kind.as_str() {
            "RequestHeaderModifier" => {
                let modifier = filter.request_header_modifier.as_ref().ok_or_else(lacks)?;
                route.rules.request_fields.extend(fields(modifier)?);
            }
            "ResponseHeaderModifier" => {
                let modifier = filter.response_header_modifier.as_ref().ok_or_else(lacks)?;
                route.rules.response_fields.extend(fields(modifier)?);
            }
            "RequestRedirect" => {
                redirect(filter.request_redirect.as_ref().ok_or_else(lacks)?, origin, route)?
            }
            "URLRewrite" => {
                let UrlRewrite { hostname, path } = filter.url_rewrite.as_ref().ok_or_else(lacks)?;
                host = hostname.as_deref().map(checked_host).transpose()?.or(host);
                if let Some(path) = path {
                    route.rewrites.push(rewrite(path, &route.path)?);
                }
            }
            // Its backend is known before a listener is: see the rule.
            "RequestMirror" => {
                mirrored_share(filter.request_mirror.as_ref().ok_or_else(lacks)?)?;
            }
            "CORS" => {
                let cors = cors(filter.cors.as_ref().ok_or_else(lacks)?);
                flatout_site::check_cors(&cors)?;
                route.rules.cors = Some(cors);
            }
            other => {
                return Err(format!(
                    "a filter of the type {other} is not supported; there are RequestHeaderModifier, ResponseHeaderModifier, \
                     RequestRedirect, URLRewrite, RequestMirror and CORS"
                ));
            }
        }
    }
    Ok(host)
}

/// The share of requests that a mirror gets: so many of so many.
///
/// # Errors
/// It is more than all of them, or not a number.
pub(super) fn mirrored_share(mirror: &RequestMirror) -> Result<(u32, u32), String> {
    let (numerator, denominator) = match (mirror.percent, mirror.fraction) {
        (Some(_), Some(_)) => {
            return Err("a mirror with both a percentage and a fraction; need one".to_owned());
        }
        (Some(percent), None) => (percent, 100),
        (None, Some(Fraction { numerator, denominator })) => (numerator, denominator.unwrap_or(100)),
        (None, None) => (1, 1),
    };
    match numerator <= denominator && denominator > 0 {
        true => Ok((numerator, denominator)),
        false => Err(format!("a mirror for {numerator} of {denominator} requests; need at most all of them")),
    }
}

fn fields(modifier: &HeaderModifier) -> Result<Vec<FieldRule>, String> {
    let mut values = modifier.set.iter().chain(&modifier.add);
    if let Some(it) = values.find(|it| it.value.chars().any(|letter| letter.is_control() && letter != '\t')) {
        return Err(format!("the value {:?} of the field {} has control characters", it.value, it.name));
    }
    let names = modifier.set.iter().chain(&modifier.add).map(|it| &it.name).chain(&modifier.remove);
    if let Some(name) = names.into_iter().find(|name| !is_token(name)) {
        return Err(format!("got the field name {name:?}, need one as of RFC 9110"));
    }
    let rule = |name: &str, change| FieldRule { change, name: name.to_owned(), when: When::Always };
    let set = modifier.set.iter().map(|it| rule(&it.name, FieldChange::Set(Template::text(&it.value))));
    let add = modifier.add.iter().map(|it| rule(&it.name, FieldChange::Add(Template::text(&it.value))));
    let remove = modifier.remove.iter().map(|name| rule(name, FieldChange::Remove));
    Ok(set.chain(add).chain(remove).collect())
}

/// A host name that can stand in a URL.
fn checked_host(text: &str) -> Result<String, String> {
    match HostName::parse(Some(text))? {
        HostName::Exact(_) => Ok(text.to_owned()),
        _ => Err(format!("got the host name `{text}`, need one without a wildcard")),
    }
}

fn redirect(redirect: &RequestRedirect, origin: ListenerOrigin, route: &mut Route) -> Result<(), String> {
    let status = redirect.status_code.unwrap_or(302);
    if ![301, 302, 303, 307, 308].contains(&status) {
        return Err(format!("a redirect with the status {status}; allowed are 301, 302, 303, 307 and 308"));
    }
    let usual = if origin.is_https { "https" } else { "http" };
    let scheme = redirect.scheme.as_deref().unwrap_or(usual).to_ascii_lowercase();
    if !["http", "https"].contains(&scheme.as_str()) {
        return Err(format!("a redirect with the scheme `{scheme}`; there are http and https"));
    }
    let port = match (redirect.port, &redirect.scheme) {
        (Some(port), _) => Some(port),
        // The usual port of a scheme that was named.
        (None, Some(_)) => None,
        (None, None) => Some(origin.port),
    };
    let is_usual = matches!((scheme.as_str(), port), ("http", Some(80)) | ("https", Some(443)) | (_, None));
    let mut pieces = vec![Piece::Text(format!("{scheme}://"))];
    pieces.push(match &redirect.hostname {
        Some(host) => Piece::Text(checked_host(host)?),
        None => Piece::Variable(Variable::Host),
    });
    if let Some(port) = port.filter(|_| !is_usual) {
        pieces.push(Piece::Text(format!(":{port}")));
    }
    if let Some(path) = &redirect.path {
        route.rewrites.push(rewrite(path, &route.path)?);
    }
    pieces.extend([Variable::Path, Variable::QuestionMark, Variable::Query].map(Piece::Variable));
    route.action = Action::Redirect { status, to: Template(pieces) };
    Ok(())
}

fn rewrite(change: &PathModifier, path: &PathMatch) -> Result<Rewrite, String> {
    // A `?` would begin a query.
    let plain = |text: &str| {
        let is_path = text.is_empty() || text.starts_with('/');
        match is_path && !text.contains(|letter: char| letter == '?' || letter.is_control()) {
            true => Ok(Template::text(text)),
            false => Err(format!("got the path {text:?}, need one that begins with `/`, without a query")),
        }
    };
    let rewrite = |from, to| Rewrite { from, to, then: Then::Stop, when: Vec::new() };
    match (change.kind.as_str(), path) {
        ("ReplaceFullPath", _) => {
            let to = change.replace_full_path.as_deref().unwrap_or("/");
            let all = RewriteFrom::Regex { pattern: "^.*$".to_owned(), ignore_case: false };
            Ok(rewrite(all, plain(to)?))
        }
        ("ReplacePrefixMatch", PathMatch::Prefix { path: prefix, .. }) => {
            let to = change.replace_prefix_match.as_deref().unwrap_or_default().trim_end_matches('/');
            // Of `/`, the slash stays.
            let to = if prefix == "/" { format!("{to}/") } else { to.to_owned() };
            Ok(rewrite(RewriteFrom::Prefix(prefix.clone()), plain(&to)?))
        }
        ("ReplacePrefixMatch", _) => {
            Err("ReplacePrefixMatch needs a match of the type PathPrefix".to_owned())
        }
        (other, _) => Err(format!(
            "a change of the path of the type `{other}`; there are ReplaceFullPath and ReplacePrefixMatch"
        )),
    }
}

pub(super) fn cors(filter: &CorsFilter) -> Cors {
    let is_any = filter.allow_origins.iter().any(|it| it == "*");
    let credentials = filter.allow_credentials.unwrap_or(false);
    Cors {
        origins: match (is_any, credentials) {
            (false, _) => Origins::These(filter.allow_origins.clone()),
            (true, false) => Origins::Any,
            // The standard demands it.
            (true, true) => Origins::Echoed,
        },
        methods: match &filter.allow_methods[..] {
            [] => ["GET", "HEAD", "POST"].map(str::to_owned).to_vec(),
            methods => methods.to_vec(),
        },
        headers: filter.allow_headers.clone(),
        expose: filter.expose_headers.clone(),
        credentials,
        age_max: filter.max_age.map(Duration::from_secs),
    }
}
