//! The path of `proxy_pass`: none, a text that replaces the location's, or one with variables, which replaces the whole
//! path and query.

use super::chain::Chain;
use super::location::Path;
use super::out::text;
use super::proxy::split;
use super::{Import, values};

/// What becomes of a request's path.
pub(super) enum Target {
    /// It stays as it is.
    Same,
    /// This replaces the beginning that its location names.
    Path(String),
    /// A `rewrite` makes a new one.
    Made(String),
}

/// Texts that are the request's path and query.
const WHOLE: [&str; 5] =
    ["$uri$is_args$args", "$uri?$args", "$uri?$query_string", "$document_uri$is_args$args", "$request_uri"];

impl<'d> Import<'d> {
    /// The authority of what follows `http://`, and the path.
    ///
    /// # Errors
    /// Why it cannot be converted.
    pub(super) fn target<'w>(
        &self,
        rest: &'w str,
        chain: &Chain<'d>,
        path: Option<&Path>,
    ) -> Result<(&'w str, Target), String> {
        let at = rest.find(['/', '$']).filter(|_| !rest.starts_with("unix:")).unwrap_or(rest.len());
        let (authority, uri) = rest.split_at(at);
        let begins_with_path = uri.starts_with('/') || WHOLE.contains(&uri) || uri == "$uri";
        if !uri.contains('$') || authority.is_empty() || !begins_with_path {
            if let Some((authority, uri)) = named(rest) {
                let target = match uri {
                    "" => Target::Same,
                    uri => self.made(uri, chain, path)?,
                };
                return Ok((authority, target));
            }
            let (authority, uri) = split(rest);
            if uri.is_some_and(|uri| uri.contains('$')) && !authority.contains('$') {
                return Err("variables are not supported in the path of a socket".to_owned());
            }
            return Ok((authority, uri.map_or(Target::Same, |uri| Target::Path(uri.to_owned()))));
        }
        Ok((authority, self.made(uri, chain, path)?))
    }

    /// What becomes of the path if this text, perhaps with variables, replaces it.
    ///
    /// # Errors
    /// Why it cannot be converted.
    fn made(&self, uri: &str, chain: &Chain<'d>, path: Option<&Path>) -> Result<Target, String> {
        // The path of the client, not that of the location's rewrites, is in it.
        let is_rewritten = chain.at_server().own().iter().chain(chain.own()).any(|it| it.name == "rewrite");
        if WHOLE.contains(&uri) && !(is_rewritten && uri == "$request_uri") {
            return Ok(Target::Same);
        }
        if let Some(why) = self.no_path(uri) {
            return Err(why);
        }
        let names = values::variables(uri);
        if names.contains(&"request_uri") {
            return Err("$request_uri is supported only as the whole path".to_owned());
        }
        let has_group = names.iter().any(|name| name.len() == 1 && name.as_bytes()[0].is_ascii_digit());
        let (pattern, ignore_case) = match path.and_then(Path::pattern) {
            _ if !has_group => ("^", false),
            Some(own) if !is_rewritten => own,
            _ => return Err("its groups need a location with an expression, without rewrites".to_owned()),
        };
        let ignore_case = if ignore_case { " ignore-case=on" } else { "" };
        Ok(Target::Made(format!(
            "rewrite {} {} then=stop{ignore_case}",
            text(pattern),
            text(&as_rewrite(uri))
        )))
    }
}

/// The server that requests name by variables, and the path behind it.
fn named(rest: &str) -> Option<(&str, &str)> {
    if rest.starts_with("unix:") {
        return None;
    }
    let (authority, uri) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => {
            let is_end = |end: &&&str| rest.len() > end.len() && rest.ends_with(**end);
            let end = WHOLE.iter().find(is_end).copied().unwrap_or_default();
            rest.split_at(rest.len() - end.len())
        }
    };
    (authority.contains('$') && !authority.starts_with("$uri")).then_some((authority, uri))
}

/// A path and a query as `rewrite` has them: it appends the request's query unless they end with a question mark.
fn as_rewrite(uri: &str) -> String {
    for query in ["$is_args$args", "$is_args$query_string", "?$args", "?$query_string"] {
        if let Some(path) = uri.strip_suffix(query).filter(|path| !path.contains('?')) {
            return path.to_owned();
        }
    }
    format!("{uri}?")
}
