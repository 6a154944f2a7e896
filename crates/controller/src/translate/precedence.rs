//! Conditions of requests: paths, methods, fields and parameters, as paths and expressions of a site.

use flatout_site::Regex;
use flatout_site::plan::{Condition, PathMatch, Vocabulary};

use crate::kinds::route::{GrpcMatch, HttpMatch, NamedMatch};

/// Conditions of requests, and how specific they are.
#[derive(Debug, Clone)]
pub(super) struct RequestMatch {
    pub(super) path: PathMatch,
    pub(super) conditions: Vec<Condition>,
    pub(super) specificity: Specificity,
}

/// How specific conditions are apart from the path, which the site's table compares; a larger one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Specificity {
    /// Of expressions for paths, the longest wins.
    pattern_bytes: usize,
    has_method: bool,
    headers: usize,
    arguments: usize,
}

impl Specificity {
    /// That of an Ingress; a canary comes before what it replaces.
    pub(super) fn of_ingress(path: &PathMatch, rank: usize) -> Specificity {
        Specificity { pattern_bytes: pattern_bytes(path), has_method: false, headers: rank, arguments: 0 }
    }

    /// That of an Ingress whose expression, of this text, cannot be used: it is tried when the expression would be.
    pub(super) fn of_unusable(text: &str) -> Specificity {
        Specificity { pattern_bytes: 1 + text.len(), has_method: false, headers: 0, arguments: 0 }
    }
}

impl RequestMatch {
    /// # Errors
    /// What is not supported, or invalid.
    pub(super) fn of_http(given: &HttpMatch) -> Result<RequestMatch, String> {
        let path = given.path.clone().unwrap_or_default();
        let value = path.value.as_deref().unwrap_or("/");
        let path = match path.kind.as_deref().unwrap_or("PathPrefix") {
            "Exact" => PathMatch::Exact(checked_path(value)?),
            "PathPrefix" => prefix(value)?,
            "RegularExpression" => anchored(value)?,
            other => {
                return Err(format!(
                    "a path match of the type `{other}`; there are Exact, PathPrefix and RegularExpression"
                ));
            }
        };
        let mut conditions = Vec::new();
        if let Some(method) = &given.method {
            conditions.push(format!("method == {}", quoted(method)));
        }
        conditions.extend(named("header", &given.headers, true)?);
        conditions.extend(named("arg", &given.query_params, false)?);
        let specificity = Specificity {
            pattern_bytes: pattern_bytes(&path),
            has_method: given.method.is_some(),
            headers: given.headers.len(),
            arguments: given.query_params.len(),
        };
        Ok(RequestMatch { path, conditions: parsed(&conditions)?, specificity })
    }

    /// # Errors
    /// What is not supported, or invalid.
    pub(super) fn of_grpc(given: &GrpcMatch) -> Result<RequestMatch, String> {
        let method = given.method.clone().unwrap_or_default();
        let (service, name) = (method.service.as_deref(), method.method.as_deref());
        let path = match (method.kind.as_deref().unwrap_or("Exact"), service, name) {
            (_, None, None) => PathMatch::prefix("/"),
            ("Exact", Some(service), Some(name)) => {
                PathMatch::Exact(checked_path(&format!("/{service}/{name}"))?)
            }
            ("Exact", Some(service), None) => prefix(&format!("/{service}"))?,
            ("Exact", None, Some(name)) => anchored(&format!("/[^/]+/{}", escaped(name)))?,
            ("RegularExpression", service, name) => {
                [service, name].into_iter().flatten().try_for_each(check_expression)?;
                anchored(&format!("/(?:{})/(?:{})", service.unwrap_or("[^/]+"), name.unwrap_or("[^/]+")))?
            }
            (other, ..) => {
                return Err(format!(
                    "a method match of the type `{other}`; there are Exact and RegularExpression"
                ));
            }
        };
        let conditions = named("header", &given.headers, true)?;
        let specificity = Specificity {
            pattern_bytes: pattern_bytes(&path),
            has_method: false,
            headers: given.headers.len(),
            arguments: 0,
        };
        Ok(RequestMatch { path, conditions: parsed(&conditions)?, specificity })
    }
}

/// Texts as conditions.
pub(crate) fn parsed(texts: &[String]) -> Result<Vec<Condition>, String> {
    let vocabulary = Vocabulary { other: &|_| None, others: &[] };
    let parse =
        |text: &String| Condition::parse(text, &vocabulary).map_err(|fault| format!("`{text}`: {fault}"));
    texts.iter().map(parse).collect()
}

/// A text as a literal of an expression.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                out.push('\\');
                out.push(character);
            }
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}

/// A prefix of whole segments. A slash at its end does not count.
pub(super) fn prefix(path: &str) -> Result<PathMatch, String> {
    let trimmed = path.trim_end_matches('/');
    Ok(PathMatch::prefix(&checked_path(if trimmed.is_empty() { "/" } else { trimmed })?))
}

/// A path that a request can have in its normal form.
pub(super) fn checked_path(path: &str) -> Result<String, String> {
    let is_clear = path.starts_with('/')
        && !path.contains("//")
        && !path.split('/').any(|segment| segment == "." || segment == "..")
        && !path.chars().any(char::is_control);
    match is_clear {
        true => Ok(path.to_owned()),
        false => {
            Err(format!("got the path `{path}`, need one that begins with `/`, without `//`, `.` and `..`"))
        }
    }
}

/// A path that matches an expression as a whole.
pub(crate) fn anchored(given: &str) -> Result<PathMatch, String> {
    let (flags, rest) = match given.strip_prefix("(?i)") {
        Some(rest) => ("(?i)", rest.trim_start_matches('^')),
        None => ("", given.trim_start_matches('^')),
    };
    check_expression(&format!("{flags}^{rest}"))?;
    // Look-ahead is only known behind `^`. An expression with it has no alternatives outside of groups, so that it needs none around it.
    let whole = [format!("^(?:{flags}{rest})$"), format!("{flags}^{rest}$")];
    let fit = whole.into_iter().find(|pattern| Regex::new(pattern, false).is_ok());
    let pattern = fit.ok_or_else(|| format!("the expression `{given}` does not match whole paths"))?;
    Ok(PathMatch::Regex { pattern, ignore_case: false })
}

/// Checks an expression before it becomes part of another one: with `)` too much, it would end the group around it.
fn check_expression(given: &str) -> Result<(), String> {
    Regex::new(given, false).map(drop).map_err(|why| format!("the expression `{given}`: {why}"))
}

/// A text with which all paths of an expression begin, valid or not. `/` if it is not certain.
pub(crate) fn literal_start(pattern: &str) -> &str {
    let pattern = pattern.trim_start_matches('^');
    let end = pattern.find(is_special).unwrap_or(pattern.len());
    let (start, rest) = pattern.split_at(end);
    // What is repeated may be missing.
    let is_repeated = rest.starts_with(['*', '+', '?', '{']);
    let last = start.char_indices().next_back().filter(|_| is_repeated).map_or(start.len(), |(at, _)| at);
    let start = start.get(..last).filter(|start| start.starts_with('/') && !may_begin_otherwise(rest));
    start.unwrap_or("/")
}

/// Whether a character of an expression may mean something else than itself.
pub(crate) fn is_special(letter: char) -> bool {
    "\\^$.*+?()[]{}|".contains(letter)
}

/// Whether an expression may have alternatives outside of its groups.
pub(crate) fn may_begin_otherwise(pattern: &str) -> bool {
    let mut depth = 0usize;
    let is_clear = !pattern.contains(['[', '\\']);
    pattern.contains('|')
        && !(is_clear
            && pattern.chars().all(|letter| {
                match letter {
                    '(' => depth += 1,
                    ')' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                letter != '|' || depth > 0
            }))
}

fn pattern_bytes(path: &PathMatch) -> usize {
    if let PathMatch::Regex { pattern, .. } = path { pattern.len() } else { 0 }
}

/// Conditions for entries of a table; of several for the same name, the first counts.
fn named(table: &str, matches: &[NamedMatch], ignores_case: bool) -> Result<Vec<String>, String> {
    let mut conditions = Vec::new();
    for (at, it) in matches.iter().enumerate() {
        let is_same = |other: &NamedMatch| match ignores_case {
            true => other.name.eq_ignore_ascii_case(&it.name),
            false => other.name == it.name,
        };
        if matches.iter().take(at).any(is_same) {
            continue;
        }
        let name = if ignores_case { it.name.to_ascii_lowercase() } else { it.name.clone() };
        let entry = format!("{table}[{}]", quoted(&name));
        let (condition, fits_empty) = match it.kind.as_deref().unwrap_or("Exact") {
            "Exact" => (format!("{entry} == {}", quoted(&it.value)), it.value.is_empty()),
            "RegularExpression" => {
                check_expression(&it.value)?;
                let whole = format!("^(?:{})$", it.value);
                let fits_empty = Regex::new(&whole, false).is_ok_and(|whole| whole.is_match(b""));
                (format!("{entry}.matches({})", quoted(&whole)), fits_empty)
            }
            other => {
                return Err(format!("a match of the type `{other}`; there are Exact and RegularExpression"));
            }
        };
        // What is missing has an empty text.
        let condition = if fits_empty { format!("has({entry}) && {condition}") } else { condition };
        conditions.push(match ignores_case || !name.contains(char::is_alphabetic) {
            true => condition,
            // The table ignores the case of names, as nginx does.
            false => {
                let named = quoted(&format!("(^|&){}=", escaped(&name)));
                format!("query.matches({named}) && {condition}")
            }
        });
    }
    Ok(conditions)
}

/// A text whose characters mean themselves in an expression.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if !character.is_alphanumeric() && character != '_' {
            out.push('\\');
        }
        out.push(character);
    }
    out
}
