//! `if`, `set`, `map`, `geo` and `split_clients`: conditions, variables and tables.

use flatout_expression::Regex;

use crate::nginx::Directive;

use super::chain::Chain;
use super::file_tests::{file_test, path_of_test};
use super::ifs::has_group;
use super::out::{Lines, line, text, value};
use super::pattern::{Pattern, has_named_group};
use super::{Import, pattern, values};

impl<'d> Import<'d> {
    /// Finds the variables that `set` makes and that can be converted: each is empty unless a block sets it.
    pub(super) fn variables(&mut self, main: &'d [Directive], top: &mut Lines) {
        let tables = self.maps.len();
        let mut names = Vec::new();
        all_sets(main, &mut names);
        // Conditions use such variables, so without one of them another may be lost.
        loop {
            self.maps.truncate(tables);
            self.maps.extend(names.iter().cloned());
            self.set_names.clone_from(&names);
            let mut excluded = Vec::new();
            self.lost_sets(main, &mut excluded);
            let count = names.len();
            names.retain(|name| !excluded.contains(name));
            if names.len() == count {
                break;
            }
        }
        for name in names {
            top.setting(format!("set {} \"\"", value(&name)));
        }
    }

    /// Variables that cannot be converted: set in an `if` that is not converted, twice in one block, or to a group of an expression.
    fn lost_sets(&self, block: &'d [Directive], excluded: &mut Vec<String>) {
        let mut here: Vec<&str> = Vec::new();
        for directive in block {
            if directive.name == "set" {
                let name = directive.word(0).trim_start_matches('$');
                if has_group(directive.word(1)) || !is_free(name) || here.contains(&name) {
                    excluded.push(name.to_owned());
                }
                here.push(name);
            }
            if directive.name == "if" {
                match self.conditional(directive, &Chain::of(block)) {
                    None => all_sets(directive.inner(), excluded),
                    // Once each; a group is one of the condition.
                    Some(_) => self.doubled_sets(directive.inner(), excluded),
                }
                continue;
            }
            self.lost_sets(directive.inner(), excluded);
        }
    }

    /// Variables of an `if` that are set twice in it, or cannot have their names.
    fn doubled_sets(&self, block: &'d [Directive], excluded: &mut Vec<String>) {
        let mut here: Vec<&str> = Vec::new();
        for directive in block.iter().filter(|directive| directive.name == "set") {
            let name = directive.word(0).trim_start_matches('$');
            if !is_free(name) || here.contains(&name) {
                excluded.push(name.to_owned());
            }
            here.push(name);
        }
    }

    /// Writes the variables and the conditions of a block.
    pub(super) fn ifs_and_sets(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        self.valid_referers(chain, lines);
        self.secure_link(chain, lines);
        for unused in chain.own().iter().skip(chain.until_end().len()) {
            if ["rewrite", "if", "set", "break", "return"].contains(&unused.name.as_str()) {
                self.fates.needless(unused);
            }
        }
        for directive in chain.until_end() {
            match directive.name.as_str() {
                "set" => {
                    if let Some(line) = self.set_line(directive) {
                        self.fates.carried(directive);
                        lines.setting(line);
                    }
                }
                "if" if directive.inner().is_empty() => self.fates.carried(directive),
                "if" => {
                    if let Some(when) = self.conditional(directive, chain) {
                        self.carry(directive);
                        for (expression, settings) in
                            when.before.into_iter().chain([(when.expression, when.settings)])
                        {
                            let has = |names: &[&str]| {
                                settings.iter().any(|it| names.iter().any(|name| it.starts_with(name)))
                            };
                            let mut inner = match chain.is_server(0)
                                && has(&["respond ", "redirect "])
                                && !has(&["response-header "])
                            {
                                true => self.fields_of_action(chain),
                                false => Lines::default(),
                            };
                            settings.into_iter().for_each(|setting| inner.setting(setting));
                            if !inner.is_empty() {
                                lines.block(&[], format!("when {}", text(&expression)), inner);
                            }
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// The condition of an `if`, in the syntax of the site file.
    pub(super) fn expression(&self, directive: &Directive, chain: &Chain<'d>) -> Option<String> {
        let words = directive.texts();
        let (first, rest) = words.split_first()?;
        let mut words: Vec<&str> =
            std::iter::once(first.strip_prefix('(')?).chain(rest.iter().copied()).collect();
        let last = words.pop()?;
        words.push(last.strip_suffix(')')?);
        // The parentheses may stand alone; a quoted word between them may be empty.
        if words.first() == Some(&"") && first == &"(" {
            words.remove(0);
        }
        if words.last() == Some(&"") && last == ")" {
            words.pop();
        }
        let (variable, test) = match words[..] {
            [variable] => (variable, None),
            [operator, path] => return file_test(operator, &path_of_test(path, chain)?, &self.maps),
            [variable, operator, operand] => (variable, Some((operator, operand))),
            _ => return None,
        };
        let is_variable = variable.starts_with('$') && values::variables(variable).len() == 1;
        if !is_variable || values::unknown_variable(variable, &self.maps).is_some() || variable == "$1" {
            return None;
        }
        let variable = format!("${}", values::variables(variable).first()?);
        let Some((operator, operand)) = test else { return Some(format!("!({variable} in ['', '0'])")) };
        if operand.contains(['\'', '\\', '$']) && matches!(operator, "=" | "!=") || operand.contains('\'') {
            return None;
        }
        let matches = |flags: &str| {
            let Some(Pattern::Same(operand)) = pattern::read(operand) else { return None };
            let pattern = format!("{flags}{operand}");
            Regex::new(&pattern, false).ok()?;
            // A dollar sign followed by a letter would be a variable there.
            Some(format!("{variable}.matches(r'{pattern}')"))
        };
        Some(match operator {
            "=" => format!("{variable} == '{operand}'"),
            "!=" => format!("{variable} != '{operand}'"),
            "~" => matches("")?,
            "~*" => matches("(?i)")?,
            "!~" => format!("!{}", matches("")?),
            "!~*" => format!("!{}", matches("(?i)")?),
            _ => return None,
        })
    }

    /// `map`, `geo` and `split_clients`. One that uses another comes after it.
    pub(super) fn tables(&mut self, http: &'d [Directive], top: &mut Lines) {
        let is_table =
            |directive: &&Directive| ["map", "geo", "split_clients"].contains(&directive.name.as_str());
        let mut waiting: Vec<&'d Directive> = http.iter().filter(is_table).collect();
        // Of several with the same name, nginx uses the last one.
        let name = |table: &Directive| table.texts().last().map(|name| (*name).to_owned());
        for at in (0..waiting.len()).rev() {
            let mut behind = waiting.iter().skip(at + 1);
            if waiting.get(at).is_some_and(|table| behind.any(|other| name(other) == name(table))) {
                self.carry(waiting.remove(at));
            }
        }
        loop {
            let count = waiting.len();
            waiting.retain(|directive| {
                let Ok((name, head, lines)) = self.table(directive) else { return true };
                top.block(&directive.comments, head, lines);
                self.table_names.push(name.clone());
                match is_of_response(directive) {
                    true => self.response_maps.push(name),
                    false => self.maps.push(name),
                }
                self.carry(directive);
                false
            });
            if waiting.len() == count {
                break;
            }
        }
        for directive in waiting {
            if let Err(why) = self.table(directive) {
                self.leave(directive, &why, top);
            }
        }
    }

    fn table(&self, directive: &Directive) -> Result<(String, String, Lines), String> {
        match directive.name.as_str() {
            "map" => self.map(directive),
            "geo" => super::geo::geo(directive, &self.maps),
            _ => shares(directive, &self.maps),
        }
    }

    fn map(&self, map: &Directive) -> Result<(String, String, Lines), String> {
        let (source, name) = (map.word(0), map.word(1).trim_start_matches('$'));
        let is_of_response = is_of_response(map);
        let unknown_in = |text: &str| match is_of_response {
            // It has the response alone.
            true => values::unknown_in_response(text, &[]).or_else(|| of_request(text)).map(str::to_owned),
            false => values::unknown_variable(text, &self.maps).map(str::to_owned),
        };
        if let Some(unknown) = unknown_in(source) {
            return Err(values::unsupported(&unknown));
        }
        let has_hostnames = map.inner().iter().any(|case| case.name == "hostnames");
        let mut lines = Lines::default();
        for case in map.inner() {
            // The address in binary is the key of a limit, for which its text is as good.
            let (key, to) = (case.name.as_str(), case.word(0).replace("$binary_remote_addr", "$remote_addr"));
            let to = to.as_str();
            if let Some(unknown) = unknown_in(to) {
                return Err(values::unsupported(&unknown));
            }
            let is_wildcard = key.starts_with("*.") || key.ends_with(".*");
            match key {
                "volatile" | "hostnames" => {}
                "default" => lines.setting(line("default", to)),
                _ if key.starts_with('~') => {
                    let pattern = key.trim_start_matches('~').trim_start_matches('*');
                    if Regex::new(pattern, false).is_err() || has_named_group(pattern) {
                        return Err(format!("the expression of its case `{key}` is not supported"));
                    }
                    lines.setting(format!("case {} {}", text(key), value(to)));
                }
                // A charset may follow here where nginx has none.
                _ if source == CONTENT_TYPE && !key.is_empty() => {
                    let exact = format!("~*^{}(?:;|$)", regex::escape(key.trim_start_matches('\\')));
                    lines.setting_first(format!("case {} {}", text(&exact), value(to)));
                }
                // Plain text in nginx. An expression that finds nothing else must be tried first.
                _ if is_wildcard && !has_hostnames => {
                    let exact = format!("~^{}$", regex::escape(key));
                    lines.setting_first(format!("case {} {}", text(&exact), value(to)));
                }
                _ if has_hostnames && key.starts_with('.') => {
                    lines.setting(format!("case {} {}", value(&key[1..]), value(to)));
                    lines.setting(format!("case {} {}", text(&format!("*{key}")), value(to)));
                }
                _ => lines.setting(format!("case {} {}", value(key.trim_start_matches('\\')), value(to))),
            }
        }
        if finds_nothing(map) {
            let usual =
                map.inner().iter().find(|case| case.name == "default").map_or("", |case| case.word(0));
            lines.setting(format!("case {} {}", value(""), value(usual)));
        }
        Ok((name.to_owned(), format!("map {} {}", value(name), text(source)), lines))
    }
}

/// Whether an expression of a map would find an empty value: nginx tries none for it.
fn finds_nothing(map: &Directive) -> bool {
    let finds = |case: &Directive| {
        let pattern = case.name.strip_prefix('~').map(|pattern| pattern.trim_start_matches('*'));
        pattern.is_some_and(|pattern| Regex::new(pattern, false).is_ok_and(|regex| regex.is_match(b"")))
    };
    map.inner().iter().any(finds) && !map.inner().iter().any(|case| case.name.is_empty())
}

/// The type of a response.
const CONTENT_TYPE: &str = "$sent_http_content_type";

/// Whether a `map` depends on the response.
fn is_of_response(map: &Directive) -> bool {
    let texts = map.inner().iter().map(|case| case.word(0)).chain([map.word(0)]);
    map.name == "map"
        && texts.into_iter().any(|text| {
            values::unknown_variable(text, &[]).is_some() && values::unknown_in_response(text, &[]).is_none()
        })
}

/// The first variable of a text that is of the request, and no group.
fn of_request(text: &str) -> Option<&str> {
    let is_group = |name: &str| name.starts_with(|char: char| char.is_ascii_digit());
    let is_known = |name: &&str| values::unknown_variable(&format!("${name}"), &[]).is_none();
    values::variables(text).into_iter().filter(is_known).find(|name| !is_group(name))
}

fn shares(split: &Directive, maps: &[String]) -> Result<(String, String, Lines), String> {
    let (source, name) = (split.word(0), split.word(1).trim_start_matches('$'));
    if let Some(unknown) = values::unknown_variable(source, maps) {
        return Err(values::unsupported(unknown));
    }
    let mut lines = Lines::default();
    for case in split.inner() {
        match case.name.as_str() {
            "*" => lines.setting(line("default", case.word(0))),
            share => lines.setting(format!("case {} {}", text(share), value(case.word(0)))),
        }
    }
    Ok((name.to_owned(), format!("map {} {} by=share", value(name), text(source)), lines))
}

/// The names of the variables of `set` in these blocks, each once.
fn all_sets(block: &[Directive], names: &mut Vec<String>) {
    for directive in block {
        let name = directive.word(0).trim_start_matches('$');
        if directive.name == "set" && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
        all_sets(directive.inner(), names);
    }
}

/// Whether a variable can have this name.
pub(super) fn is_free(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        && name.starts_with(|char: char| char.is_ascii_lowercase())
        && values::unknown_variable(&format!("${name}"), &[]).is_some()
}
