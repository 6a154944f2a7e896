//! `return` and `rewrite`.

use crate::nginx::Directive;

use super::chain::Chain;
use super::out::{Lines, text, value};
use super::{Import, values};

/// Routes for each `rewrite` with `redirect` or `permanent`.
pub(super) struct Redirects(pub(super) Vec<(String, String)>);

/// Whether a `rewrite` cannot be converted.
pub(super) fn is_lost(directive: &Directive, maps: &[String]) -> bool {
    regex::Regex::new(directive.word(0)).is_err()
        || values::unknown_variable(directive.word(1), maps).is_some()
}

impl<'d> Import<'d> {
    /// The response of `return`.
    ///
    /// # Errors
    /// Why it cannot be converted.
    pub(super) fn answer(&mut self, directive: &'d Directive, chain: &Chain<'d>) -> Result<String, String> {
        let (status, rest) = match directive.texts()[..] {
            [one] if one.parse::<u16>().is_ok() => (one, ""),
            [one] => ("302", one),
            [status, rest] => (status, rest),
            _ => return Err("its values are not supported".to_owned()),
        };
        if let Some(unknown) = values::unknown_variable(rest, &self.maps) {
            return Err(format!("the variable ${unknown} is not supported"));
        }
        let said = match status {
            "301" | "302" | "303" | "307" | "308" if !rest.is_empty() => {
                // nginx makes a path into a URL.
                let to = if rest.starts_with('/') {
                    format!("$scheme://$http_host{rest}")
                } else {
                    rest.to_owned()
                };
                format!("redirect {} status={status}", text(&to))
            }
            "444" => "close".to_owned(),
            _ if !status.parse().is_ok_and(|status: u16| (200..=599).contains(&status)) => {
                return Err("its status is not supported".to_owned());
            }
            _ if rest.is_empty() => format!("respond {status}"),
            _ => {
                let kind = chain.word("default_type");
                let kind = if kind.is_empty() { "text/plain" } else { kind };
                format!("respond {status} {} type={}", text(rest), value(kind))
            }
        };
        self.fates.carried(directive);
        Ok(said)
    }

    /// The rewrites of a block. Those that redirect become routes; in a location, the last one that applies selects a
    /// route for the new path, as in nginx.
    pub(super) fn rewrites(&mut self, chain: &Chain<'d>, is_location: bool, lines: &mut Lines) -> Redirects {
        let mut redirects = Redirects(Vec::new());
        let all: Vec<&Directive> =
            chain.own().iter().filter(|directive| directive.name == "rewrite").collect();
        for (index, directive) in all.iter().enumerate() {
            let (pattern, to, flag) = (directive.word(0), directive.word(1), directive.word(2));
            if let Err(error) = regex::Regex::new(pattern) {
                let error = error.to_string();
                let last =
                    error.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned();
                self.leave(directive, &last, lines);
                continue;
            }
            if let Some(unknown) = values::unknown_variable(to, &self.maps) {
                self.leave(directive, &format!("the variable ${unknown} is not supported"), lines);
                continue;
            }
            self.fates.carried(directive);
            let is_away =
                to.starts_with("http://") || to.starts_with("https://") || to.starts_with("$scheme");
            if is_away || ["redirect", "permanent"].contains(&flag) {
                let status = if flag == "permanent" { 301 } else { 302 };
                let to =
                    if to.starts_with('/') { format!("$scheme://$http_host{to}") } else { to.to_owned() };
                // The query is kept unless the new URL ends with a question mark.
                let to = match to.strip_suffix('?') {
                    Some(to) => to.to_owned(),
                    None => format!("{to}$is_args$args"),
                };
                let head = format!("route {} match=regex", text(pattern));
                redirects.0.push((head, format!("redirect {} status={status}", text(&to))));
                continue;
            }
            let is_last = index + 1 == all.len();
            let then = match flag {
                "break" => "stop",
                "last" if is_location => "route",
                "last" => "stop",
                _ if is_location && is_last => "route",
                _ => "next",
            };
            let then = if then == "next" { String::new() } else { format!(" then={then}") };
            lines.setting(format!("rewrite {} {}{then}", text(pattern), text(to)));
        }
        redirects
    }
}
