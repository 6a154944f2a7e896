//! `if`: its rules and its action become a `when`.

use crate::nginx::Directive;

use super::chain::Chain;
use super::constants::is_used;
use super::lists::{is_empty_length, is_empty_return};
use super::more_headers::is_more;
use super::named_groups::substituted;
use super::out::{text, value};
use super::pattern::{self, Pattern, with_only_group};
use super::rewrite::{GROUP, absolute, groups_as_variables, groups_of, whole_path};
use super::{Import, closed, values};

/// An `if` as a `when`.
pub(super) struct Conditional {
    pub(super) expression: String,
    pub(super) settings: Vec<String>,
    /// Redirects under a further condition, which come before: expressions and settings.
    pub(super) before: Vec<(String, Vec<String>)>,
}

impl<'d> Import<'d> {
    /// The condition under which an `if` of a location passes requests on, instead of what the location does. `None` if it does
    /// something else, or if that of others of the location would come before it.
    pub(super) fn passing_if(&self, directive: &Directive, chain: &Chain<'d>) -> Option<String> {
        const RULES: [&str; 5] = ["rewrite", "return", "set", "break", "if"];
        let is_rule = |it: &Directive| RULES.contains(&it.name.as_str());
        // With nothing behind it, a `break` ends nothing.
        let at = chain.own().iter().position(|it| std::ptr::eq(it, directive));
        let is_last = at.is_some_and(|at| !chain.own().iter().skip(at + 1).any(is_rule));
        let is_end = |it: &Directive| is_last && is_break(it);
        let has_groups = |it: &Directive| it.texts().iter().any(|text| has_group(text));
        let passes = |it: &Directive| {
            it.name == "if"
                && it.inner().iter().any(|inner| closed::PASSES.contains(&inner.name.as_str()))
                && !it.inner().iter().any(|inner| is_rule(inner) && !is_end(inner) || has_groups(inner))
        };
        let has_limits = chain.own().iter().any(|it| it.name == "limit_except");
        if !passes(directive)
            || has_limits
            || self.tests_user(directive)
            || chain.is_server(0)
            || chain
                .own()
                .iter()
                .any(|it| is_rule(it) && !passes(it) && !is_redirect(it) && !is_unused_text(it, chain))
        {
            return None;
        }
        self.expression(directive, chain)
    }

    /// The expression and the content of an `if`; `None` if any of it cannot be converted.
    pub(super) fn conditional(&self, directive: &Directive, chain: &Chain<'d>) -> Option<Conditional> {
        let inner = directive.inner();
        if is_tried(directive, chain) {
            return None;
        }
        let stops = stops(directive, chain)?;
        let mut when = Conditional {
            expression: self.expression(directive, chain)?,
            settings: Vec::new(),
            before: Vec::new(),
        };
        // The response has no other length.
        let is_empty = inner.iter().any(is_empty_return);
        let is_field = |it: &&Directive| it.name == "add_header" && !(is_empty && is_empty_length(it));
        let fields: Vec<&Directive> = inner.iter().filter(is_field).collect();
        when.settings.extend(self.fields_instead(&fields, chain)?);
        for (at, one) in inner.iter().enumerate() {
            match one.name.as_str() {
                "add_header" => continue,
                // All that is behind it in the `if`.
                "break" => break,
                // It is only for paths that the `rewrite` before it does not find.
                "return" if inner.iter().take(at).any(ends_here) => return None,
                "return" if has_group(one.word(0)) => return None,
                "return" => {
                    let one = self.with_groups(directive, one, &mut when.settings)?;
                    let maps = &one.1;
                    when.settings.push(self.answer_with(&one.0, chain, None, maps).ok()?);
                }
                "set" => when.settings.push(self.set_in(directive, one)?),
                "rewrite" => self.rewrite_in(one, chain, at + 1 == inner.len(), &mut when)?,
                _ if is_more(one) => {
                    let more =
                        self.more_headers_of(one, chain).ok().filter(|more| more.condition().is_none())?;
                    when.settings.extend(more.lines);
                }
                _ => return None,
            }
            // nginx goes no further.
            let is_whole = one.name == "rewrite" && whole_path(one.word(0), "/").is_some();
            if one.name == "return" || is_whole && (is_redirect(one) || ends_here(one)) {
                break;
            }
        }
        if stops {
            // The path stays, and the rewrites behind it find nothing.
            when.settings.push("rewrite \"^\" \"$uri\" then=stop".to_owned());
        }
        let changes_path = when.settings.iter().any(|setting| setting.starts_with("rewrite "));
        (!changes_path || !self.tests_user(directive)).then_some(when)
    }

    /// Whether the condition of an `if` depends on the user.
    fn tests_user(&self, directive: &Directive) -> bool {
        directive.texts().iter().any(|text| self.of_user(text).is_some())
    }

    /// A `set`, if its variable and its value exist here.
    pub(super) fn set_line(&self, directive: &Directive) -> Option<String> {
        let (name, to) = (directive.word(0).trim_start_matches('$'), directive.word(1));
        if name == "args" {
            // The path stays, with another query.
            let query = if to.is_empty() { String::new() } else { format!("?{to}") };
            let is_possible = self.no_path(to).is_none() && !has_group(to) && !to.contains('?');
            return is_possible.then(|| format!("rewrite \"^\" {}", text(&format!("$uri{query}?"))));
        }
        let is_known = values::unknown_variable(to, &self.maps).is_none();
        let exists = self.set_names.iter().any(|known| known == name);
        (is_known && exists).then(|| format!("set {} {}", value(name), text(to)))
    }

    /// A `return` in an `if` whose expression has groups, with variables in their place; and all variables that there are.
    fn with_groups(
        &self,
        condition: &Directive,
        directive: &Directive,
        settings: &mut Vec<String>,
    ) -> Option<(Directive, Vec<String>)> {
        let (mut own, mut maps) = (directive.clone(), self.maps.clone());
        let Some((variable, pattern)) = searched(condition) else {
            return (!has_group(directive.word(1))).then_some((own, maps));
        };
        let names = group_names(&pattern);
        for word in own.words.iter_mut().skip(usize::from(directive.words.len() > 1)) {
            let numbered = substituted(&word.text, &names);
            if !has_group(&numbered) {
                continue;
            }
            let (sets, to) = groups_of(&variable, &pattern, &numbered, &self.maps)?;
            maps.extend(
                values::variables(&to).into_iter().filter(|name| name.starts_with(GROUP)).map(str::to_owned),
            );
            settings.extend(sets);
            word.text = to;
        }
        Some((own, maps))
    }

    /// A `set` in an `if`, to a text or to a group of its expression.
    fn set_in(&self, condition: &Directive, directive: &Directive) -> Option<String> {
        let given = directive.word(1);
        let names = searched(condition).map(|(_, pattern)| group_names(&pattern)).unwrap_or_default();
        let numbered = substituted(given, &names);
        if !has_group(&numbered) {
            return self.set_line(directive);
        }
        let (variable, pattern) = searched(condition)?;
        let number = numbered.trim_start_matches("${").trim_start_matches('$').trim_end_matches('}');
        let only = with_only_group(&pattern, number.parse().ok()?)?;
        let name = directive.word(0).trim_start_matches('$');
        let exists = self.set_names.iter().any(|known| known == name);
        let expression = format!("{variable}.extract(r'{only}')");
        exists.then(|| format!("set {} expr={}", value(name), text(&expression)))
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
        when: &mut Conditional,
    ) -> Option<()> {
        let (pattern, to, flag) = (directive.word(0), directive.word(1), directive.word(2));
        if self.lost_rewrite(directive).is_some() {
            return None;
        }
        if !is_redirect(directive) {
            // In a server, no location was chosen yet.
            let is_server = chain.is_server(0);
            let then = match flag {
                "break" => " then=stop",
                "last" if is_server => " then=stop",
                "last" => " then=route",
                _ if is_last && !is_server => " then=route",
                _ => "",
            };
            when.settings.push(format!("rewrite {} {}{then}", text(pattern), text(to)));
            return Some(());
        }
        let (mut narrowed, mut own) = (None, Vec::new());
        let to = match whole_path(pattern, to) {
            Some(to) => to,
            None if pattern.contains('\'') => return None,
            None => {
                let (settings, to) = groups_as_variables(pattern, to, &self.maps)?;
                if when.settings.iter().any(|setting| setting.starts_with("rewrite ")) {
                    return None;
                }
                narrowed = Some(format!("({}) && $uri.matches(r'{pattern}')", when.expression));
                own = [when.settings.clone(), settings].concat();
                to
            }
        };
        let to = absolute(&to, chain);
        let to = match to.strip_suffix('?') {
            Some(to) => to.to_owned(),
            None if to.contains('?') => format!("{to}&$args"),
            None => format!("{to}$is_args$args"),
        };
        let status = if flag == "permanent" { 301 } else { 302 };
        let redirect = format!("redirect {} status={status}", text(&to));
        match narrowed {
            None => when.settings.push(redirect),
            Some(expression) => {
                own.push(redirect);
                when.before.push((expression, own));
            }
        }
        Some(())
    }
}

/// The names of an expression's groups, in the order of their numbers; empty for those without a name.
fn group_names(pattern: &str) -> Vec<String> {
    pattern::groups(pattern).map(|group| group.name.to_owned()).collect()
}

/// The variable and the expression of a condition that is true where the expression finds something.
fn searched(condition: &Directive) -> Option<(String, String)> {
    let words = condition.texts();
    let at = words.iter().position(|word| ["~", "~*"].contains(word))?;
    let operand = match words.get(at + 1..)? {
        [operand] => operand.strip_suffix(')')?,
        // Behind a quoted one, the parenthesis is a word.
        [operand, ")"] => operand,
        _ => return None,
    };
    let [variable] = values::variables(words.get(at.checked_sub(1)?)?)[..] else { return None };
    let flags = if words.get(at) == Some(&"~*") { "(?i)" } else { "" };
    let Some(Pattern::Same(pattern)) = pattern::read(operand).filter(|_| !operand.contains('\'')) else {
        return None;
    };
    Some((format!("${variable}"), format!("{flags}{pattern}")))
}

/// Whether the `break` of an `if` keeps rewrites from being applied; `None` if it also keeps others from that, or stands
/// between rewrites: conditions are written before these.
fn stops(directive: &Directive, chain: &Chain<'_>) -> Option<bool> {
    let inner = directive.inner();
    let Some(end) = inner.iter().position(is_end).filter(|at| inner.get(*at).is_some_and(is_break)) else {
        return Some(false);
    };
    let level = Chain::of(chain.level_of(directive)?).until_end();
    let at = level.iter().position(|it| std::ptr::eq(it, directive)).unwrap_or(level.len());
    let is_rule = |it: &&Directive| ["rewrite", "if", "set", "return"].contains(&it.name.as_str());
    let breaks_only = |it: &Directive| it.name == "if" && it.inner().iter().all(is_break);
    let behind: Vec<&Directive> = level.iter().skip(at + 1).filter(is_rule).collect();
    let own = || inner.iter().take(end).filter(|it| it.name == "rewrite");
    let has_own = own().any(|it| !is_redirect(it));
    if behind.iter().all(|it| breaks_only(it)) {
        return Some(has_own);
    }
    // Files that exist are not missing.
    let is_implied = |it: &Directive| closed::is_about_missing(it) || breaks_only(it);
    if closed::is_about_found(directive) && !has_own && behind.iter().all(|it| is_implied(it)) {
        return Some(false);
    }
    let is_first = !level.iter().take(at).any(|it| it.name == "rewrite");
    let is_path = |it: &Directive| it.name == "rewrite" && !is_redirect(it);
    // A redirect narrows the condition.
    (is_first && !own().any(is_redirect) && behind.iter().all(|it| is_path(it) || breaks_only(it)))
        .then_some(true)
}

/// Whether an `if` may end what nginx applies behind it, and the request goes on to a location.
pub(super) fn may_end(directive: &Directive) -> bool {
    let rules = directive.inner().iter();
    let mut rules = rules
        .take_while(|it| it.name != "return" && !(is_redirect(it) && whole_path(it.word(0), "/").is_some()));
    rules.any(|it| is_break(it) || ends_here(it))
}

/// Whether a directive is a `rewrite` after which nginx applies no others, without a redirect.
pub(super) fn ends_here(directive: &Directive) -> bool {
    directive.name == "rewrite" && !is_redirect(directive) && ["last", "break"].contains(&directive.word(2))
}

/// Whether an `if` has nothing but `break`.
pub(super) fn breaks_only(directive: &Directive) -> bool {
    directive.name == "if" && !directive.inner().is_empty() && directive.inner().iter().all(is_break)
}

fn is_break(directive: &Directive) -> bool {
    directive.name == "break"
}

/// Whether nginx applies nothing behind this one in its `if`.
fn is_end(directive: &Directive) -> bool {
    let is_last = ["last", "break"].contains(&directive.word(2)) || is_redirect(directive);
    let is_rewrite = directive.name == "rewrite" && is_last;
    ["break", "return"].contains(&directive.name.as_str())
        || is_rewrite && whole_path(directive.word(0), "/").is_some()
}

/// Whether a directive is a `rewrite` that redirects the client.
pub(super) fn is_redirect(directive: &Directive) -> bool {
    directive.name == "rewrite"
        && (["redirect", "permanent"].contains(&directive.word(2))
            || ["http://", "https://", "$scheme"].iter().any(|scheme| directive.word(1).starts_with(scheme)))
}

/// Whether the `break` of an `if` ends what nginx would apply behind it.
pub(super) fn ends_rewrites(directive: &Directive, chain: &Chain<'_>) -> bool {
    !is_tried(directive, chain) && stops(directive, chain) != Some(false)
}

/// Whether an `if` for files that do not exist is handled like `try_files`: it sends all of them to one path. Beside `try_files` it
/// comes first.
fn is_tried(directive: &Directive, chain: &Chain<'_>) -> bool {
    if chain.level_of(directive).is_some_and(|level| level.iter().any(|it| it.name == "try_files")) {
        return false;
    }
    let mut rules = directive.inner().iter().filter(|it| !is_break(it));
    let only = rules.next().filter(|it| it.name == "rewrite" && !is_redirect(it));
    closed::is_about_missing(directive)
        && only.is_some_and(|it| whole_path(it.word(0), it.word(1)).is_some())
        && rules.next().is_none()
}

/// Whether a text uses a group of an expression.
pub(super) fn has_group(text: &str) -> bool {
    let is_group = |name: &&str| name.len() == 1 && name.starts_with(|char: char| char.is_ascii_digit());
    values::variables(text).iter().any(is_group)
}

/// Whether it gives a variable a text, which stands in place of the variable wherever that was used.
fn is_unused_text(directive: &Directive, chain: &Chain<'_>) -> bool {
    let name = directive.word(0).trim_start_matches('$');
    let is_elsewhere = |it: &Directive| ["http", "location", "server", "set"].contains(&it.name.as_str());
    let uses = |it: &Directive| !is_elsewhere(it) && is_used(it, name);
    directive.name == "set"
        && !directive.word(1).contains('$')
        && !chain.levels().iter().any(|level| level.iter().any(uses))
}
