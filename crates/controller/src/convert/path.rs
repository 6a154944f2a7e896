//! Paths of Ingresses: matches and rewrites of the Gateway API.
//!
//! In ingress-nginx, all paths of a host are expressions that ignore case as soon as an Ingress has `use-regex` or `rewrite-target` for it:
//! `location ~* "^PATH"`, the longest path first. An expression of an HTTPRoute matches the whole path, and the longest is tried first here, too:
//!
//! ```text
//! /v[0-9]+     ──>  (?i)/v[0-9]+.*
//! /a|/b        ──>  (?i).*(?:^/a|/b).*     the second alternative is found anywhere; then all paths of the host have this form
//! ```

use flatout_site::Regex;
use serde_json::{Value, json};

use super::annotation::Wanted;
use crate::kinds::ingress::IngressPath;
use crate::translate::{anchored, escaped, is_special, literal_start, may_begin_otherwise};

/// How expressions end that match a prefix and what follows it, and the group that has what follows.
const IDIOMS: [(&str, &str); 3] = [("(/|$)(.*)", "$2"), ("(/|$)(.*)$", "$2"), ("/(.*)", "$1")];

/// Bytes of a path's value, as the Gateway API limits them.
const VALUE_BYTES_MAX: usize = 1024;

/// An expression that matches the empty text: it makes others longer.
const NOTHING: &str = "(?:)";

/// How the paths of a host are read.
#[derive(Debug, Default)]
pub(super) struct HostPaths {
    /// As expressions.
    are_patterns: bool,
    /// Some have alternatives outside of groups.
    have_alternatives: bool,
    /// There is one for all requests.
    pub(super) have_root: bool,
    /// Prefixes whose rest is part of a rewrite, and the bytes of their expressions. They match after all expressions.
    rewritten: Vec<(String, usize)>,
}

/// A path in the form of an HTTPRoute.
#[derive(Debug)]
pub(super) struct ConvertedPath {
    /// The match.
    pub(super) matched: Value,
    /// The change of the path, if there is one, or why requests get 500.
    pub(super) rewrite: Result<Option<Value>, String>,
    /// What is lost.
    pub(super) lost: Option<String>,
}

impl HostPaths {
    /// Adds a path of an Ingress with these annotations.
    pub(super) fn add(&mut self, path: &IngressPath, wanted: &Wanted, is_left_out: bool) {
        self.are_patterns |= wanted.use_regex || wanted.rewrite.as_ref().is_some_and(|to| *to != path.path);
        self.have_root |= text_of(path) == "/" && path.path_type != "Exact" && wanted.canary.is_none();
        self.have_alternatives |= may_begin_otherwise(&path.path);
        // One that is left out stays an expression.
        let rewrite = wanted.rewrite.as_deref().filter(|_| !is_left_out);
        if let Some(Ok(Some((before, _)))) = rewrite.map(|to| idiom(text_of(path), to)) {
            self.rewritten.push((before.to_ascii_lowercase(), path.path.len()));
        }
    }
}

/// Converts a path of a host. If its requests get 500, it matches at least those that it has in ingress-nginx: none of them may go to a shorter
/// path.
pub(super) fn converted_path(
    path: &IngressPath,
    wanted: &Wanted,
    host: &HostPaths,
    is_closed: bool,
) -> ConvertedPath {
    let text = text_of(path);
    if is_closed {
        return closed(path, host);
    }
    let target = wanted.rewrite.as_deref();
    let rewrite = match target.map(|target| idiom(text, target)) {
        None => Ok(None),
        Some(Ok(None)) => Ok(target.map(|to| json!({"type": "ReplaceFullPath", "replaceFullPath": to}))),
        Some(Ok(Some((before, to)))) => {
            let change = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": to});
            let lost = format!("the path `{text}` becomes the prefix `{before}`, which minds case");
            return ConvertedPath {
                matched: matched("PathPrefix", before),
                rewrite: Ok(Some(change)),
                lost: Some(lost),
            };
        }
        Some(Err(why)) => Err(why),
    };
    if host.are_patterns && text != "/" {
        return expression(text, rewrite, host);
    }
    let (matched, lost) = match path.path_type.as_str() {
        "Exact" => (matched("Exact", text), None),
        "Prefix" => (matched("PathPrefix", text), None),
        _ => {
            let lost = format!("the path `{text}` matches whole segments, no longer `{text}x`");
            (matched("PathPrefix", text), Some(lost).filter(|_| !text.ends_with('/')))
        }
    };
    ConvertedPath { matched, rewrite, lost }
}

/// A path whose requests get 500.
fn closed(path: &IngressPath, host: &HostPaths) -> ConvertedPath {
    let text = text_of(path);
    let matched = if host.are_patterns && text != "/" {
        let value = pattern(text, host);
        match fault_of(text, &value) {
            None => matched("RegularExpression", &as_long(value, text)),
            Some(_) => fallback(text, host),
        }
    } else {
        match path.path_type.as_str() {
            "Exact" => matched("Exact", text),
            // The start of the path, not whole segments.
            kind if kind != "Prefix" && !text.ends_with('/') => {
                let value = format!("{}.*", escaped(text));
                match anchored(&value) {
                    Ok(_) if value.len() <= VALUE_BYTES_MAX => matched("RegularExpression", &value),
                    _ => matched("PathPrefix", text),
                }
            }
            _ => matched("PathPrefix", text),
        }
    };
    ConvertedPath { matched, rewrite: Ok(None), lost: None }
}

/// An expression as an HTTPRoute has it.
fn pattern(text: &str, host: &HostPaths) -> String {
    match host.have_alternatives {
        true => format!("(?i).*(?:^{text}).*"),
        false => format!("(?i){}.*", text.trim_start_matches('^')),
    }
}

/// The match of an expression that cannot be used: all that begins as it does. It is at least as long as the expression: the longest
/// expression is tried first.
fn fallback(text: &str, host: &HostPaths) -> Value {
    let bytes = pattern(text, host).len();
    let mut value = format!("(?i){}.*", literal_start(text));
    while value.len() < bytes && value.len() + NOTHING.len() <= VALUE_BYTES_MAX {
        value.push_str(NOTHING);
    }
    matched("RegularExpression", &value)
}

/// An expression that is not tried later than its length says: with look-ahead, the controller adds four bytes less to it.
fn as_long(value: String, text: &str) -> String {
    let is_short = text.contains("(?!") || text.contains("(?=");
    match is_short && value.len() + NOTHING.len() <= VALUE_BYTES_MAX {
        true => format!("{value}{NOTHING}"),
        false => value,
    }
}

/// A path that is an expression.
fn expression(text: &str, rewrite: Result<Option<Value>, String>, host: &HostPaths) -> ConvertedPath {
    let start = literal_start(text);
    let lower = start.to_ascii_lowercase();
    let below = host.rewritten.iter().find(|(prefix, _)| prefix.starts_with(&lower));
    if let Some((prefix, _)) = below.filter(|_| rewrite.is_ok() && !text.contains(is_special)) {
        let lost = format!(
            "the path `{text}` minds case and matches whole segments, so that `{prefix}` keeps its requests"
        );
        return ConvertedPath { matched: matched("PathPrefix", text), rewrite, lost: Some(lost) };
    }
    let around = host.rewritten.iter().find(|(prefix, _)| lower.starts_with(prefix)).or(below);
    let lost = around.filter(|(_, bytes)| *bytes >= text.len()).map(|(prefix, _)| {
        format!("the path `{text}` gets its requests before the prefix `{prefix}`, which came first")
    });
    let value = pattern(text, host);
    match fault_of(text, &value) {
        None => ConvertedPath { matched: matched("RegularExpression", &value), rewrite, lost },
        Some(why) => {
            let why = format!("{why}; all requests that begin with `{start}` get 500");
            ConvertedPath { matched: fallback(text, host), rewrite: Err(why), lost: None }
        }
    }
}

/// Why an expression cannot be used.
fn fault_of(text: &str, value: &str) -> Option<String> {
    if value.len() > VALUE_BYTES_MAX {
        return Some(format!("{} bytes; an HTTPRoute has at most {VALUE_BYTES_MAX}", value.len()));
    }
    // PCRE does not give up what these have matched; here, they would match more.
    if Regex::new(r"(^|[^\\])[*+?}]\+", false).is_ok_and(|possessive| possessive.is_match(text.as_bytes())) {
        return Some("possessive quantifiers are not supported".to_owned());
    }
    // As it is, and as the controller reads it.
    Regex::new(&format!("^{text}"), true).and(anchored(value).map(drop)).err()
}

/// The prefix and the change of a path whose rewrite has groups of it; none without groups.
///
/// # Errors
/// It cannot be expressed.
fn idiom<'t>(text: &'t str, target: &'t str) -> Result<Option<(&'t str, &'t str)>, String> {
    if !target.starts_with('/') || target.contains('?') {
        return Err(format!("rewrite-target `{target}`; need a path without a query"));
    }
    if !target.contains('$') {
        return Ok(None);
    }
    let found = IDIOMS.iter().find_map(|(ending, group)| {
        let before = text.trim_start_matches('^').strip_suffix(ending)?;
        let to = target.strip_suffix(group).filter(|to| !to.contains('$'))?;
        Some((before, to)).filter(|(before, _)| !before.contains(is_special))
    });
    let (before, to) =
        found.ok_or_else(|| format!("rewrite-target `{target}` with groups of an expression"))?;
    let or_root = |text: &'t str| if text.is_empty() { "/" } else { text };
    Ok(Some((or_root(before), or_root(to))))
}

fn matched(kind: &str, value: &str) -> Value {
    json!({"path": {"type": kind, "value": value}})
}

fn text_of(path: &IngressPath) -> &str {
    if path.path.is_empty() { "/" } else { &path.path }
}
