//! `if`: its rules and its action become a `when`.

use crate::nginx::Directive;

use super::chain::Chain;
use super::out::{text, value};
use super::rewrite::{absolute, whole_path};
use super::{Import, closed, values};

/// An `if` as a `when`.
pub(super) struct Conditional {
    pub(super) expression: String,
    pub(super) settings: Vec<String>,
}

impl<'d> Import<'d> {
    /// The expression and the content of an `if`; `None` if any of it cannot be converted.
    pub(super) fn conditional(&self, directive: &Directive, chain: &Chain<'d>) -> Option<Conditional> {
        let inner = directive.inner();
        // Handled like `try_files`.
        if closed::is_about_missing(directive) && inner.iter().any(|it| it.name == "rewrite") {
            return None;
        }
        let mut when = Conditional { expression: self.expression(directive, chain)?, settings: Vec::new() };
        let fields: Vec<&Directive> = inner.iter().filter(|it| it.name == "add_header").collect();
        when.settings.extend(self.fields_instead(&fields, chain)?);
        for (at, one) in inner.iter().enumerate() {
            let setting = match one.name.as_str() {
                "add_header" | "break" => continue,
                "return" if has_group(one.word(0)) || has_group(one.word(1)) => return None,
                "return" => self.answer_of(one, chain).ok()?,
                "set" => self.set_line(one)?,
                "rewrite" => {
                    let is_last = inner.iter().skip(at + 1).all(|it| it.name == "break");
                    self.rewrite_in(one, chain, is_last, &mut when.expression)?
                }
                _ => return None,
            };
            when.settings.push(setting);
            // nginx goes no further.
            if one.name == "return" || ["redirect", "permanent"].contains(&one.word(2)) {
                break;
            }
        }
        Some(when)
    }

    /// A `set`, if its variable and its value exist here.
    pub(super) fn set_line(&self, directive: &Directive) -> Option<String> {
        let name = directive.word(0).trim_start_matches('$');
        let is_known = values::unknown_variable(directive.word(1), &self.maps).is_none();
        let exists = self.set_names.iter().any(|known| known == name);
        (is_known && exists).then(|| format!("set {} {}", value(name), text(directive.word(1))))
    }

    /// `add_header` in an `if` replaces those around it.
    fn fields_instead(&self, fields: &[&Directive], chain: &Chain<'d>) -> Option<Vec<String>> {
        let mut settings = Vec::new();
        if fields.is_empty() {
            return Some(settings);
        }
        let has = |name: &str| fields.iter().any(|field| field.word(0).eq_ignore_ascii_case(name));
        for outer in chain.list(&["add_header"]).iter().filter(|outer| !has(outer.word(0))) {
            settings.push(format!("response-header remove {}", value(outer.word(0))));
        }
        for field in fields {
            // Each name for the first time replaces the outer one.
            let line = self.header(field).ok()??;
            let name = format!(" {} ", value(field.word(0)));
            let is_first = !settings.iter().any(|other| other.contains(&name));
            settings.push(if is_first { line.replacen(" add ", " set ", 1) } else { line });
        }
        Some(settings)
    }

    fn rewrite_in(
        &self,
        directive: &Directive,
        chain: &Chain<'d>,
        is_last: bool,
        expression: &mut String,
    ) -> Option<String> {
        let (pattern, to, flag) = (directive.word(0), directive.word(1), directive.word(2));
        if regex::Regex::new(pattern).is_err() || values::unknown_variable(to, &self.maps).is_some() {
            return None;
        }
        let redirects = ["redirect", "permanent"].contains(&flag)
            || ["http://", "https://", "$scheme"].iter().any(|scheme| to.starts_with(scheme));
        if !redirects {
            // In a server, no location was chosen yet.
            let is_server = chain.is_server(0);
            let then = match flag {
                "break" => " then=stop",
                "last" if is_server => " then=stop",
                "last" => " then=route",
                _ if is_last && !is_server => " then=route",
                _ => "",
            };
            return Some(format!("rewrite {} {}{then}", text(pattern), text(to)));
        }
        let to = match whole_path(pattern, to) {
            Some(to) => to,
            None if has_group(to) || pattern.contains('\'') => return None,
            None => {
                *expression = format!("({expression}) && $uri.matches(r'{pattern}')");
                to.to_owned()
            }
        };
        let to = absolute(&to, chain);
        let to = match to.strip_suffix('?') {
            Some(to) => to.to_owned(),
            None if to.contains('?') => format!("{to}&$args"),
            None => format!("{to}$is_args$args"),
        };
        let status = if flag == "permanent" { 301 } else { 302 };
        Some(format!("redirect {} status={status}", text(&to)))
    }
}

/// Whether a text uses a group of an expression.
pub(super) fn has_group(text: &str) -> bool {
    let is_group = |name: &&str| name.len() == 1 && name.starts_with(|char: char| char.is_ascii_digit());
    values::variables(text).iter().any(is_group)
}
