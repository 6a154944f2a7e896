//! Paths of Ingresses: matches and rewrites of the Gateway API.

use serde_json::{Value, json};

use super::annotation::Wanted;
use crate::kinds::ingress::IngressPath;

/// How expressions end that match a prefix and what follows it, and the group that has what follows.
const IDIOMS: [(&str, &str); 3] = [("(/|$)(.*)", "$2"), ("(/|$)(.*)$", "$2"), ("/(.*)", "$1")];

/// The match of a path, and the change of the path, if there is one.
///
/// # Errors
/// Its rewrite cannot be expressed.
pub(super) fn converted_path(path: &IngressPath, wanted: &Wanted) -> Result<(Value, Option<Value>), String> {
    let text = if path.path.is_empty() { "/" } else { path.path.as_str() };
    let matched = |kind: &str, value: &str| json!({"path": {"type": kind, "value": value}});
    let full = |to: &str| json!({"type": "ReplaceFullPath", "replaceFullPath": to});
    let prefix = |to: &str| json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": to});
    let target = wanted.rewrite.as_deref();
    if let Some(target) = target.filter(|target| !target.starts_with('/') || target.contains('?')) {
        return Err(format!("rewrite-target `{target}`; need a path without a query"));
    }
    if let Some(target) = target.filter(|target| target.contains('$')) {
        let idiom = IDIOMS.iter().find_map(|(ending, group)| {
            let before = text.trim_start_matches('^').strip_suffix(ending)?;
            let to = target.strip_suffix(group).filter(|to| !to.contains('$'))?;
            Some((before, to)).filter(|(before, _)| is_plain(before))
        });
        let (before, to) =
            idiom.ok_or_else(|| format!("rewrite-target `{target}` with groups of an expression"))?;
        let before = if before.is_empty() { "/" } else { before };
        return Ok((matched("PathPrefix", before), Some(prefix(if to.is_empty() { "/" } else { to }))));
    }
    let is_expression = wanted.use_regex && path.path_type != "Exact" && !is_plain(text);
    let matched = match path.path_type.as_str() {
        _ if is_expression => matched("RegularExpression", &format!("{}.*", text.trim_end_matches(".*"))),
        "Exact" => matched("Exact", text),
        _ if is_plain(text) => matched("PathPrefix", text),
        _ => return Err("an expression without use-regex".to_owned()),
    };
    Ok((matched, target.map(full)))
}

/// Whether a path has no characters of expressions.
fn is_plain(path: &str) -> bool {
    !path.chars().any(|letter| "\\^$*+?()[]{}|".contains(letter))
}
