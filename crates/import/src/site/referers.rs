//! `valid_referers`: `$invalid_referer` becomes a variable with an expression over the Referer field.

use flatout_expression::Regex;

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::out::{Lines, text};

/// The variable.
const NAME: &str = "invalid_referer";

impl<'d> Import<'d> {
    /// Defines the variable, if each `valid_referers` can be converted.
    pub(super) fn referers(&mut self, main: &'d [Directive], top: &mut Lines) {
        let (mut found, mut names) = (Vec::new(), Vec::new());
        collect(main, &mut names, &mut found);
        if !found.is_empty() && found.iter().all(|(directive, names)| expression(directive, names).is_some())
        {
            top.setting(format!("set {NAME} \"\""));
            self.maps.push(NAME.to_owned());
        }
    }

    /// Writes the variable's value for a block.
    pub(super) fn valid_referers(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        let is_own = |directive: &&'d Directive| directive.name == "valid_referers";
        let mut levels = chain.of_route().iter().map(|level| level.iter().filter(is_own).collect::<Vec<_>>());
        let own = levels.find(|own| !own.is_empty()).unwrap_or_default();
        if own.is_empty() || !self.maps.iter().any(|name| name == NAME) {
            return;
        }
        let names: Vec<&str> = server_names(chain.server());
        let expressions: Vec<String> =
            own.iter().filter_map(|directive| expression(directive, &names)).collect();
        own.iter().for_each(|directive| self.fates.carried(directive));
        let valid = expressions.join(" || ");
        lines.setting(format!("set {NAME} expr={}", text(&format!("{valid} ? '' : '1'"))));
    }
}

fn server_names(server: &[Directive]) -> Vec<&str> {
    server.iter().filter(|directive| directive.name == "server_name").flat_map(Directive::texts).collect()
}

/// Each `valid_referers`, with the names of its server.
fn collect<'d>(
    block: &'d [Directive],
    names: &mut Vec<&'d str>,
    found: &mut Vec<(&'d Directive, Vec<&'d str>)>,
) {
    for directive in block {
        if directive.name == "valid_referers" {
            found.push((directive, names.clone()));
        }
        if directive.name == "server" {
            *names = server_names(directive.inner());
        }
        collect(directive.inner(), names, found);
    }
}

/// The condition that a Referer is valid.
fn expression(directive: &Directive, names: &[&str]) -> Option<String> {
    let (mut parts, mut hosts) = (Vec::new(), Vec::new());
    for word in directive.texts() {
        match word {
            "none" => parts.push("!has(header.referer)".to_owned()),
            // Others have no host.
            "blocked" => parts.push(
                "has(header.referer) && !header.referer.matches(r'^(?i)(http://.{4}|https://.{3})')"
                    .to_owned(),
            ),
            "server_names" => {
                for name in names.iter().filter(|name| !name.is_empty()) {
                    hosts.push(host(name)?);
                }
            }
            _ => hosts.push(host(word)?),
        }
    }
    if !hosts.is_empty() {
        parts.push(format!("header.referer.matches(r'^(?i:https?)://(?:{})')", hosts.join("|")));
    }
    let is_usual = Regex::new(&hosts.join("|"), false).is_ok() && !hosts.iter().any(|it| it.contains('\''));
    let parts: Vec<String> = match parts.len() {
        1 => parts,
        _ => parts
            .into_iter()
            .map(|part| if part.contains("&&") { format!("({part})") } else { part })
            .collect(),
    };
    (is_usual && !parts.is_empty()).then(|| parts.join(" || "))
}

/// An expression for what follows `https://`: a host with what may be around it, or an expression of the configuration.
fn host(word: &str) -> Option<String> {
    if let Some(pattern) = word.strip_prefix('~') {
        return Some(match pattern.strip_prefix('^') {
            Some(_) if pattern.contains('|') => return None,
            Some(rest) => format!("(?i:{rest})"),
            None => format!("(?i:.*(?:{pattern}))"),
        });
    }
    let (host, path) = word.split_at(word.find('/').unwrap_or(word.len()));
    if host.contains(['$', ':']) {
        return None;
    }
    let name = if let Some(rest) = host.strip_prefix("*.") {
        format!(r"[^/:]+\.{}", regex::escape(rest))
    } else if let Some(rest) = host.strip_prefix('.') {
        format!(r"(?:[^/:]+\.)?{}", regex::escape(rest))
    } else if let Some(rest) = host.strip_suffix(".*") {
        format!(r"{}\.[^/:]+", regex::escape(rest))
    } else {
        regex::escape(host)
    };
    let end =
        if path.is_empty() { "(?:[/:]|$)".to_owned() } else { format!("(?::[^/]*)?{}", regex::escape(path)) };
    Some(format!("(?i:{name}){end}"))
}
