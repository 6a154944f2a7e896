//! `return` and `rewrite`.

use flatout_expression::Regex;

use crate::nginx::Directive;

use super::chain::Chain;
use super::location::Path;
use super::out::{Lines, text, value};
use super::pattern::{has_named_group, with_only_group};
use super::{Import, media_types, values};

/// What becomes of each `rewrite` with `redirect` or `permanent`.
#[derive(Default)]
pub(super) struct Redirects {
    /// Routes of their own: their heads and their redirects.
    pub(super) routes: Vec<(String, Redirect)>,
    /// The redirect of all requests of the location itself.
    pub(super) all: Option<Redirect>,
    /// Why the location must not be served: one cannot be converted.
    pub(super) lost: Option<String>,
}

/// A redirect.
pub(super) struct Redirect {
    to: String,
    status: u16,
    /// The query of the request is kept.
    keeps_query: bool,
}

impl Redirect {
    /// The same under a condition, with a further one about the query where its URL has one, too.
    fn under(self, condition: &str) -> Vec<(String, Redirect)> {
        if !self.keeps_query || !self.to.contains('?') {
            return vec![(condition.to_owned(), self)];
        }
        let without = Redirect { to: self.to.clone(), keeps_query: false, ..self };
        vec![(format!("{condition} && query != ''"), self), (format!("{condition} && query == ''"), without)]
    }

    /// Writes it; a query in its URL comes before that of the request. A named route has no actions under conditions.
    pub(super) fn write(&self, is_named: bool, lines: &mut Lines) {
        let setting = |to: &str| format!("redirect {} status={}", text(to), self.status);
        let to = &self.to;
        match (self.keeps_query, to.contains('?')) {
            (true, true) if is_named => lines.setting(setting(&format!("{to}&$args"))),
            (true, true) => {
                let mut inner = Lines::default();
                inner.setting(setting(&format!("{to}&$args")));
                lines.block(&[], "when \"query != ''\"".to_owned(), inner);
                lines.setting(setting(to));
            }
            (true, false) => lines.setting(setting(&format!("{to}$is_args$args"))),
            (false, _) => lines.setting(setting(to)),
        }
    }
}

/// The requests that come to a redirect of a server for all paths.
enum Reached<'d> {
    All,
    /// Those for which all of these are true, but not those that one of these `rewrite`s finds.
    When(Vec<String>, Vec<&'d Directive>),
    /// They are not known, for this reason.
    Lost(String),
}

/// Where a redirecting `rewrite` of a location belongs.
enum Confined {
    /// A route with its expression finds nothing outside of the location.
    Route,
    /// All requests of the location are redirected, to this URL.
    All(String),
    No,
}

/// Expressions that match every path, with the text before the path in their first group; `None` without a group.
const EVERY_PATH: [(&str, Option<&str>); 18] = [
    ("^", None),
    (".*", None),
    ("^.*", None),
    ("^.*$", None),
    ("^/", None),
    ("^/.*", None),
    ("^/.*$", None),
    (".+", None),
    ("^.+", None),
    ("^.+$", None),
    ("(.+)", Some("")),
    ("^(.+)", Some("")),
    ("^(.+)$", Some("")),
    ("(.*)", Some("")),
    ("^(.*)", Some("")),
    ("^(.*)$", Some("")),
    ("^/(.*)", Some("/")),
    ("^/(.*)$", Some("/")),
];

/// The URL of a redirect whose expression matches every path, with the path in place of its group.
pub(super) fn whole_path(pattern: &str, to: &str) -> Option<String> {
    let (_, before) = EVERY_PATH.iter().find(|(every, _)| *every == pattern)?;
    if !super::ifs::has_group(to) {
        return Some(to.to_owned());
    }
    let before = (*before)?;
    let all = to.replace(&format!("{before}$1"), "$uri").replace(&format!("{before}${{1}}"), "$uri");
    (!super::ifs::has_group(&all)).then_some(all)
}

/// The URL that nginx makes of a path, with the port of the server if that is not the usual one.
pub(super) fn absolute(to: &str, chain: &Chain<'_>) -> String {
    match origin(chain).filter(|_| to.starts_with('/')) {
        Some(origin) => format!("{origin}{to}"),
        None => to.to_owned(),
    }
}

/// What nginx puts in front of a path in `Location`, if anything.
pub(super) fn origin(chain: &Chain<'_>) -> Option<String> {
    let is_off = |name: &str| chain.word(name) == "off";
    if is_off("absolute_redirect") {
        return None;
    }
    let server = chain.server();
    let name = server.iter().find(|it| it.name == "server_name").map_or("", |names| names.word(0));
    let is_name =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    let host = match chain.is_on("server_name_in_redirect") && is_name {
        true => name.trim_start_matches('.'),
        false => "$host",
    };
    Some(match super::constants::port(server) {
        _ if is_off("port_in_redirect") => format!("$scheme://{host}"),
        _ if !super::constants::has_only_unusual_ports(server) => match host {
            "$host" => "$scheme://$http_host".to_owned(),
            name => format!("$scheme://{name}"),
        },
        Some(port) => format!("$scheme://{host}:{port}"),
        None => format!("$scheme://{host}:$server_port"),
    })
}

/// Whether a block has a location that comes before expressions, for a path that this one may find.
fn hides(block: &[Directive], pattern: &str) -> bool {
    let start = literal(pattern);
    block.iter().filter(|it| it.name == "location").any(|location| {
        let is_hidden = match Path::of(location) {
            Some(Path::Exact(path)) => {
                Regex::new(pattern, false).is_ok_and(|regex| regex.is_match(path.as_bytes()))
            }
            Some(Path::Prefix { path, before_patterns: true }) => {
                start.starts_with(&path) || path.starts_with(&start)
            }
            _ => false,
        };
        is_hidden || hides(location.inner(), pattern)
    })
}

/// How a `rewrite` to this URL is confined to the requests of its location.
fn confined(path: &Path, pattern: &str, to: &str) -> Confined {
    if let Some(all) = whole_path(pattern, to) {
        return Confined::All(all);
    }
    match path {
        Path::Prefix { path, .. } if literal(pattern).starts_with(path.as_str()) => Confined::Route,
        Path::Exact(path) if pattern.ends_with('$') && literal(pattern) == *path => Confined::Route,
        Path::Regex { pattern: own, ignore_case: false, except } if own == pattern && except.is_empty() => {
            Confined::Route
        }
        _ => Confined::No,
    }
}

/// The text that every match of an anchored expression begins with.
pub(super) fn literal(pattern: &str) -> String {
    let Some(rest) = pattern.strip_prefix('^') else { return String::new() };
    let mut text = String::new();
    let mut chars = rest.chars().peekable();
    while let Some(char) = chars.next() {
        let char = match char {
            '\\' => match chars.next() {
                Some(escaped) if !escaped.is_ascii_alphanumeric() => escaped,
                _ => break,
            },
            '.' | '[' | '(' | ')' | '|' | '*' | '+' | '?' | '{' | '^' | '$' => break,
            char => char,
        };
        // It may be there any number of times.
        if matches!(chars.peek(), Some('*' | '+' | '?' | '{')) {
            break;
        }
        text.push(char);
    }
    // An alternative may begin in any way.
    if rest.contains('|') { String::new() } else { text }
}

/// The variable for a group of the expression of a conditional redirect.
pub(super) const GROUP: &str = "redirect_";

/// Settings that make the groups of an expression that a URL uses into variables, and the URL with these.
pub(super) fn groups_as_variables(pattern: &str, to: &str, maps: &[String]) -> Option<(Vec<String>, String)> {
    groups_of("$uri", pattern, to, maps)
}

/// The same for an expression that is searched in this variable.
pub(super) fn groups_of(
    variable: &str,
    pattern: &str,
    to: &str,
    maps: &[String],
) -> Option<(Vec<String>, String)> {
    let (mut settings, mut to) = (Vec::new(), to.to_owned());
    for number in 1..=9 {
        if !values::variables(&to).contains(&number.to_string().as_str()) {
            continue;
        }
        let name = format!("{GROUP}{number}");
        if pattern.contains('\'') || maps.contains(&name) {
            return None;
        }
        let only = with_only_group(pattern, number)?;
        settings.push(format!("set {name} expr={}", text(&format!("{variable}.extract(r'{only}')"))));
        for group in [format!("${{{number}}}"), format!("${number}")] {
            to = to.replace(&group, &format!("${{{name}}}"));
        }
    }
    Some((settings, to))
}

impl<'d> Import<'d> {
    /// Why a `rewrite` cannot be converted. The URL of a redirect is made when the user is known.
    pub(super) fn lost_rewrite(&self, directive: &Directive) -> Option<String> {
        let to = directive.word(1);
        if let Err(why) = Regex::new(directive.word(0), false) {
            return Some(why);
        }
        if super::ifs::is_redirect(directive) {
            return self.unsupported(to);
        }
        self.no_path(to)
    }

    /// A redirect of those requests of a location whose paths match: each `when` with its content.
    ///
    /// # Errors
    /// Why it cannot be converted.
    fn conditional_redirect(
        &self,
        location: Option<&Path>,
        pattern: &str,
        redirect: &Redirect,
        lines: &Lines,
    ) -> Result<Vec<(String, Lines)>, &'static str> {
        if matches!(location, Some(Path::Named(_))) {
            return Err("conditional redirects are not supported in a named location");
        }
        if lines.has("rewrite") {
            return Err(
                "its expression finds paths outside of the location too, and the path was changed before",
            );
        }
        let (settings, to) = groups_as_variables(pattern, &redirect.to, &self.maps)
            .filter(|_| !pattern.contains('\''))
            .ok_or(
                "its expression finds paths outside of the location too, and has a named group or a quote",
            )?;
        let matches = format!("$uri.matches(r'{pattern}')");
        let block = |condition: &str, to: &str, keeps_query: bool| {
            let mut inner = Lines::default();
            settings.iter().for_each(|setting| inner.setting(setting.clone()));
            Redirect { to: to.to_owned(), keeps_query, ..*redirect }.write(true, &mut inner);
            (format!("when {}", text(condition)), inner)
        };
        Ok(match redirect.keeps_query && to.contains('?') {
            true => vec![
                block(&format!("{matches} && query != ''"), &to, true),
                block(&format!("{matches} && query == ''"), &to, false),
            ],
            false => vec![block(&matches, &to, redirect.keeps_query)],
        })
    }

    /// The response of `return`.
    ///
    /// # Errors
    /// Why it cannot be converted.
    pub(super) fn answer(
        &mut self,
        directive: &'d Directive,
        chain: &Chain<'d>,
        path: Option<&Path>,
    ) -> Result<String, String> {
        let said = self.answer_of(directive, chain, path)?;
        self.fates.carried(directive);
        Ok(said)
    }

    /// The same without counting it.
    pub(super) fn answer_of(
        &self,
        directive: &Directive,
        chain: &Chain<'d>,
        path: Option<&Path>,
    ) -> Result<String, String> {
        self.answer_with(directive, chain, path, &self.maps)
    }

    /// The same with these variables.
    pub(super) fn answer_with(
        &self,
        directive: &Directive,
        chain: &Chain<'d>,
        path: Option<&Path>,
        maps: &[String],
    ) -> Result<String, String> {
        let (status, rest) = match directive.texts()[..] {
            [one] if one.parse::<u16>().is_ok() => (one, ""),
            [one] => ("302", one),
            [status, rest] => (status, rest),
            _ => return Err("its values are not supported".to_owned()),
        };
        let is_redirect = ["301", "302", "303", "307", "308"].contains(&status);
        let rest = &*values::without_body(rest);
        let unknown = match is_redirect {
            true => values::unknown_variable(rest, maps),
            false => values::unknown_in_page(rest, maps),
        };
        if let Some(unknown) = unknown {
            return Err(values::unsupported(unknown));
        }
        let said = match status {
            "301" | "302" | "303" | "307" | "308" if !rest.is_empty() => {
                // nginx makes a path into a URL.
                let to = absolute(rest, chain);
                format!("redirect {} status={status}", text(&to))
            }
            "444" => "close".to_owned(),
            _ if !status.parse().is_ok_and(|status: u16| (200..=599).contains(&status)) => {
                return Err("its status is not supported".to_owned());
            }
            _ if rest.is_empty() => format!("respond {status}"),
            _ => {
                let kind = media_types::of_path(path, chain);
                format!("respond {status} {} type={}", text(rest), value(&kind))
            }
        };
        Ok(said)
    }

    /// Which requests of a server come to its first redirect for all paths: not those for which an earlier rule is the last one.
    fn reached(&mut self, chain: &Chain<'d>) -> Reached<'d> {
        let rules = chain.until_end();
        let is_all = |it: &Directive| {
            super::ifs::is_redirect(it)
                && self.lost_rewrite(it).is_none()
                && whole_path(it.word(0), it.word(1)).is_some()
        };
        let Some(at) = rules.iter().position(is_all) else { return Reached::All };
        let before = rules.get(..at).unwrap_or_default();
        let (mut conditions, mut ends) = (Vec::new(), Vec::new());
        // What each condition is about is the path as it was at first.
        let mut other = None;
        for it in before {
            let lost = || Reached::Lost(format!("{it}: a redirect behind it is not for all requests"));
            match it.name.as_str() {
                "rewrite" if super::ifs::ends_here(it) => {
                    let pattern = it.word(0);
                    if self.lost_rewrite(it).is_some() || pattern.contains('\'') || has_named_group(pattern) {
                        return lost();
                    }
                    ends.push(it);
                }
                "rewrite" => other = Some(lost()),
                "if" if super::ifs::breaks_only(it) => match self.expression(it, chain) {
                    Some(expression) => conditions.push(format!("!({expression})")),
                    None => return lost(),
                },
                "if" => {
                    let has = |name: &str| it.inner().iter().any(|inner| inner.name == name);
                    let is_rule = has("rewrite") || has("return");
                    if super::ifs::may_end(it) || is_rule && self.conditional(it, chain).is_none() {
                        return lost();
                    }
                    if has("rewrite") {
                        other = Some(lost());
                    }
                }
                _ => {}
            }
        }
        match (conditions.is_empty() && ends.is_empty(), other) {
            (true, _) => Reached::All,
            (false, Some(lost)) => lost,
            (false, None) => {
                // With others between them, what a `break` ends is not only the redirect.
                if before
                    .iter()
                    .all(|it| !["rewrite", "if"].contains(&&*it.name) || super::ifs::breaks_only(it))
                {
                    for it in before.iter().filter(|it| it.name == "if") {
                        self.carry(it);
                        self.breaks.push(it);
                    }
                }
                Reached::When(conditions, ends)
            }
        }
    }

    /// Requests for which a `rewrite` is the last rule, before a redirect of all others. Conditions of a site are tried behind its
    /// rewrites, and do not see which of them applied.
    fn closed_end(&mut self, end: &'d Directive, chain: &Chain<'d>, lines: &mut Lines) {
        let why = "a redirect for all other requests stands behind it";
        self.leave(end, why, lines);
        self.set_place(end);
        let mut inner = self.fields_of_action(chain);
        self.close(why, &mut inner);
        lines.block(&[], format!("when {}", text(&format!("$uri.matches(r'{}')", end.word(0)))), inner);
    }

    /// The rewrites of a block. Those that redirect become routes; in a location, the last one that applies selects a
    /// route for the new path, as in nginx.
    pub(super) fn rewrites(
        &mut self,
        chain: &Chain<'d>,
        location: Option<&Path>,
        lines: &mut Lines,
    ) -> Redirects {
        let is_location = location.is_some();
        let mut redirects = Redirects::default();
        let reached = if is_location { Reached::All } else { self.reached(chain) };
        let start = lines.len();
        let all: Vec<&Directive> =
            chain.until_end().iter().filter(|directive| directive.name == "rewrite").collect();
        // What follows the rewrites decides, with the new path.
        let end = chain.until_end().last().filter(|end| ["break", "return"].contains(&end.name.as_str()));
        if let Some(end) = end.filter(|end| end.name == "break") {
            self.fates.carried(end);
        }
        for (index, directive) in all.iter().enumerate() {
            let (pattern, to, flag) = (directive.word(0), directive.word(1), directive.word(2));
            if let Some(why) = self.lost_rewrite(directive) {
                self.leave(directive, &why, lines);
                continue;
            }
            self.fates.carried(directive);
            if super::ifs::is_redirect(directive) {
                let status = if flag == "permanent" { 301 } else { 302 };
                let to =
                    match to.starts_with("$1") && pattern.starts_with("^(") && !pattern.starts_with("^(?") {
                        // The group begins with the slash of the path.
                        true => absolute(&format!("/{to}"), chain).replacen("/$1", "$1", 1),
                        false => absolute(to, chain),
                    };
                // The query is kept unless the new URL ends with a question mark.
                let (to, keeps_query) = match to.strip_suffix('?') {
                    Some(to) => (to.to_owned(), false),
                    None => (to, true),
                };
                let redirect = |to: &str| Redirect { to: to.to_owned(), status, keeps_query };
                let confined = match location {
                    Some(path) => confined(path, pattern, &to),
                    None => whole_path(pattern, &to).map_or(Confined::Route, Confined::All),
                };
                // In a location it has a place among the rules of that. In a server it comes before all locations; a route comes before
                // expressions and plain paths only.
                let placed = match location {
                    None if !hides(chain.own(), pattern) => Err("a route comes first here"),
                    _ => self.conditional_redirect(location, pattern, &redirect(&to), lines),
                };
                let placed = placed.map(|mut blocks| {
                    if location.is_none() {
                        for (_, inner) in &mut blocks {
                            let mut fields = self.fields_of_action(chain);
                            fields.extend(std::mem::take(inner));
                            *inner = fields;
                        }
                    }
                    blocks
                });
                match (confined, placed) {
                    (Confined::All(to), _) => {
                        match &reached {
                            Reached::All => redirects.all = Some(redirect(&to)),
                            Reached::When(conditions, ends) => {
                                lines.truncate(start);
                                for end in ends {
                                    self.closed_end(end, chain, lines);
                                }
                                if conditions.is_empty() {
                                    redirects.all = Some(redirect(&to));
                                    break;
                                }
                                for (condition, to) in redirect(&to).under(&conditions.join(" && ")) {
                                    let mut inner = self.fields_of_action(chain);
                                    to.write(true, &mut inner);
                                    lines.block(&[], format!("when {}", text(&condition)), inner);
                                }
                            }
                            Reached::Lost(why) => redirects.lost = Some(why.clone()),
                        }
                        break;
                    }
                    (_, Ok(blocks)) => {
                        blocks.into_iter().for_each(|(condition, inner)| lines.block(&[], condition, inner));
                    }
                    (Confined::Route, Err(_)) => {
                        let head = format!("route {} match=regex", text(pattern));
                        // The first one applies.
                        if !redirects.routes.iter().any(|(other, _)| *other == head) {
                            redirects.routes.push((head, redirect(&to)));
                        }
                    }
                    (Confined::No, Err(why)) => {
                        redirects.lost = Some(format!("{directive}: {why}"));
                        self.leave(directive, why, lines);
                    }
                }
                continue;
            }
            let is_last = index + 1 == all.len();
            let then = match flag {
                "break" => "stop",
                "" if is_last && end.is_some() => "stop",
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
