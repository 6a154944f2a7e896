//! Expressions of PCRE that the expressions of a site file do not have.

use flatout_expression::Regex;
use flatout_expression::structure::{CharPlace, dividers, group_bytes, places};

/// An expression in the site file's form.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// It matches the same paths.
    Same(String),
    /// It matches these paths and more.
    Wider(String),
}

/// Converts an expression; `None` if that is not possible.
pub(super) fn read(pattern: &str) -> Option<Pattern> {
    let is_valid = |pattern: &String| Regex::new(pattern, false).is_ok();
    if let Some(same) = Some(pattern.to_owned()).filter(is_valid) {
        return Some(Pattern::Same(same));
    }
    if let Some(same) = without_negative(pattern).filter(is_valid) {
        return Some(Pattern::Same(same));
    }
    without_lookaround(pattern).filter(is_valid).map(Pattern::Wider)
}

/// Writes a negative look-ahead such as `\.(?!well-known).*` without it: as what may follow instead. What comes after it must match
/// anything.
fn without_negative(pattern: &str) -> Option<String> {
    let at = pattern.find("(?!")?;
    let end = at + group_bytes(pattern.get(at..)?)?;
    let (before, after) = (pattern.get(..at)?, pattern.get(end..)?);
    let chars = single_chars(pattern.get(at + "(?!".len()..end - 1)?)?;
    if !matches_anything(after) {
        return None;
    }
    let others = chars.iter().rev().fold(String::new(), |inner, (char, other)| {
        let longer = if inner.is_empty() { String::new() } else { format!("|{char}{inner}") };
        format!("(?:$|{other}{longer})")
    });
    let after = if ANYTHING.contains(&after) { "" } else { after };
    Some(format!("{before}{others}{after}"))
}

/// Ends of an expression that match every text.
const ANYTHING: [&str; 5] = ["", ".*", "(.*)", ".*$", "(.*)$"];

/// Whether what follows in an expression matches every text, whatever groups end there.
fn matches_anything(after: &str) -> bool {
    let mut rest = after;
    while !ANYTHING.contains(&rest) {
        if let Some(behind) = rest.strip_prefix(')') {
            if behind.starts_with(['*', '+', '?', '{']) {
                return false;
            }
            rest = behind;
        } else if let Some(others) = rest.strip_prefix('|') {
            // The other alternatives of a group are not behind this one.
            let mut depth = 0;
            let end = dividers(others).find(|(_, char)| {
                depth += i32::from(*char == '(') - i32::from(*char == ')');
                depth < 0
            });
            rest = end.map_or("", |(at, _)| others.get(at..).unwrap_or_default());
        } else {
            return false;
        }
    }
    true
}

/// The parts of an expression for one character each, with what matches all other characters. `None` if there is anything else in it.
fn single_chars(text: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (part, other) = match first {
            '\\' => {
                let escaped = rest.chars().nth(1)?;
                let is_known = !escaped.is_ascii_alphanumeric() || "dws".contains(escaped);
                let part = rest.get(..1 + escaped.len_utf8()).filter(|_| is_known)?;
                (part, format!("[^{part}]"))
            }
            '[' => {
                let end = rest.get(2..)?.find(']')? + 3;
                let part = rest.get(..end).filter(|part| !part[1..].contains(['[', '\\']))?;
                let inside = part.get(1..part.len() - 1)?;
                (
                    part,
                    inside.strip_prefix('^').map_or_else(|| format!("[^{inside}]"), |not| format!("[{not}]")),
                )
            }
            _ if ".()|*+?{}^$".contains(first) => return None,
            _ => {
                let part = rest.get(..first.len_utf8())?;
                (part, format!("[^{}]", regex::escape(part)))
            }
        };
        found.push((part.to_owned(), other));
        rest = rest.get(part.len()..)?;
    }
    (!found.is_empty()).then_some(found)
}

/// Removes look-around, so that the expression matches more.
pub(crate) fn without_lookaround(pattern: &str) -> Option<String> {
    let mut text = pattern.to_owned();
    while let Some(at) = ["(?!", "(?=", "(?<!", "(?<="].iter().filter_map(|start| text.find(start)).min() {
        let end = at + group_bytes(text.get(at..)?)?;
        if text.get(end..)?.starts_with(['*', '+', '?', '{']) {
            return None;
        }
        text.replace_range(at..end, "");
    }
    if text.is_empty() {
        text.push('^');
    }
    Some(text)
}

/// The expression with the meaning that PCRE gives to what is something else here: `\<` and `\>`, and brackets and doubled signs in a class.
pub(crate) fn translated(pattern: &str) -> String {
    let pattern = &unquoted(pattern);
    let mut text = String::with_capacity(pattern.len());
    let mut before = None;
    for (at, char, place) in places(pattern) {
        let begins_name = pattern.get(at..).is_some_and(|rest| rest.starts_with("[:"));
        let is_doubled = matches!(char, '&' | '-' | '~') && before == Some((char, place));
        before = Some((char, place));
        match (place, char) {
            (CharPlace::Escaped, '<' | '>') => {
                text.pop();
            }
            (CharPlace::Class, '[') if !begins_name => text.push('\\'),
            (CharPlace::Class, _) if is_doubled => text.push('\\'),
            _ => {}
        }
        text.push(char);
    }
    text
}

/// The expression with escapes in place of `\Q…\E`, between which all signs stand for themselves.
fn unquoted(pattern: &str) -> String {
    let mut parts = pattern.split("\\Q");
    let mut text = parts.next().unwrap_or_default().to_owned();
    // An escaped backslash before a letter is something else.
    if pattern.contains("\\\\Q") || pattern.contains("\\\\E") {
        return pattern.to_owned();
    }
    for part in parts {
        let (literal, rest) = part.split_once("\\E").unwrap_or((part, ""));
        text.push_str(&regex::escape(literal));
        text.push_str(rest);
    }
    text
}

/// How a group with a name begins, and what ends its name.
const NAMED: [(&str, char); 3] = [("(?<", '>'), ("(?P<", '>'), ("(?'", '\'')];

/// A group of an expression that has a number.
pub(super) struct Group<'p> {
    /// Where its parenthesis is.
    pub(super) at: usize,
    /// Where its content begins, behind its name.
    pub(super) inside: usize,
    /// Its name; empty if it has none.
    pub(super) name: &'p str,
}

/// The groups of an expression in the order of their numbers.
pub(super) fn groups(pattern: &str) -> impl Iterator<Item = Group<'_>> {
    let starts = dividers(pattern).filter(|(_, char)| *char == '(');
    starts.filter_map(|(at, _)| group(pattern, at))
}

fn group(pattern: &str, at: usize) -> Option<Group<'_>> {
    let text = pattern.get(at..)?;
    if !text.starts_with("(?") {
        return Some(Group { at, inside: at + 1, name: "" });
    }
    NAMED.iter().find_map(|(beginning, end)| {
        let (name, _) = text.strip_prefix(beginning)?.split_once(*end)?;
        let inside = at + beginning.len() + name.len() + end.len_utf8();
        is_name(name).then_some(Group { at, inside, name })
    })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Whether an expression has a group with a name, or look-behind.
pub(super) fn has_named_group(pattern: &str) -> bool {
    pattern.contains("(?<") || pattern.contains("(?P<")
}

/// The expression with this group as its only one; `None` if there is no such group.
pub(super) fn with_only_group(text: &str, number: usize) -> Option<String> {
    let (mut only, mut taken, mut count) = (String::new(), 0, 0);
    for group in groups(text) {
        count += 1;
        if count != number {
            only.push_str(text.get(taken..=group.at)?);
            only.push_str("?:");
            taken = group.inside;
        }
    }
    only.push_str(text.get(taken..)?);
    (number <= count).then_some(only)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_have_their_meaning_in_pcre() {
        for (pattern, text, expected) in [
            (r"\<\?php", "<?php", true),
            (r"x\>y", "x>y", true),
            ("/[a[x]]y", "/[]y", true),
            ("[p&&q]z", "&z", true),
            ("[a~~c]v", "~v", true),
            ("[+--]v", ",v", true),
            (r"[\--x]v", "av", true),
            ("[[:alpha:]]1", "a1", true),
            ("[[:alpha:]]1", ":1", false),
            (r"[]\]a]b", "]b", true),
            (r"a\Q.b(\Ec.", "a.b(cd", true),
            (r"a\Q.b\E", "axb", false),
        ] {
            let regex = Regex::new(&translated(pattern), false).unwrap();
            assert_eq!(regex.is_match(text.as_bytes()), expected, "{pattern} {text} {}", translated(pattern));
        }
        assert_eq!(translated(r"^/a(b)[c-d](?!x)\.php$"), r"^/a(b)[c-d](?!x)\.php$");
        assert_eq!(with_only_group("[])(](a)", 1).as_deref(), Some("[])(](a)"));
        assert_eq!(read("^/(?!a){0}b"), None);
    }

    #[test]
    fn one_group_is_left() {
        for (number, expected) in
            [(1, Some("^/(a(?:b))(?:[(]|c)(?:d)")), (2, Some("^/(?:a(b))(?:[(]|c)(?:d)")), (4, None)]
        {
            assert_eq!(with_only_group("^/(a(b))(?:[(]|c)(d)", number).as_deref(), expected);
        }
        assert_eq!(with_only_group("^/(?<a>b)(c)(?P<d>e)", 2).as_deref(), Some("^/(?:b)(c)(?:e)"));
        assert_eq!(with_only_group("(?P<P>x)(?P<x>y)(?<_>z)", 3).as_deref(), Some("(?:x)(?:y)(?<_>z)"));
        assert_eq!(with_only_group("^/(?<a>b)(c)(?<!x)", 1).as_deref(), Some("^/(?<a>b)(?:c)(?<!x)"));
    }

    #[test]
    fn look_around_is_written_without_it() {
        let Some(Pattern::Same(laravel)) = read(r"/\.(?!well-known).*") else { panic!("it is plain") };
        let laravel = Regex::new(&laravel, false).unwrap();
        for (path, expected) in [
            ("/.env", true),
            ("/a/.git/config", true),
            ("/.well-know", true),
            ("/.w", true),
            ("/.", true),
            ("/.well-known/x", false),
            ("/.well-known", false),
            ("/a.b", false),
            ("/.well-known/.env", true),
        ] {
            assert_eq!(laravel.is_match(path.as_bytes()), expected, "{path}");
        }
        // That of the documentation of Docker's registry.
        let Some(Pattern::Same(old)) = read(r"^(docker\/1\.(3|4|5(?!\.[0-9]-dev))|Go ).*$") else {
            panic!("it is plain")
        };
        let old = Regex::new(&old, false).unwrap();
        for (agent, expected) in [
            ("docker/1.3", true),
            ("docker/1.4.1", true),
            ("docker/1.5", true),
            ("docker/1.5.0", true),
            ("docker/1.5.0-de", true),
            ("docker/1.5.x-dev", true),
            ("docker/1.5.0-dev", false),
            ("docker/1.5.0-dev2", false),
            ("docker/1.6", false),
            ("Go 1.1", true),
            ("xGo ", false),
        ] {
            assert_eq!(old.is_match(agent.as_bytes()), expected, "{agent}");
        }
        for (pattern, text, expected) in [
            (r"^/(?:a(?!\d|x))", "/a", None),
            (r"^/a(?![^b])", "/ab", Some(true)),
            (r"^/a(?![^b])", "/ac", Some(false)),
            (r"x(?!\d)|yz", "x1", Some(false)),
            (r"x(?!\d)|yz", "yz", Some(true)),
            (r"^(x(?!\d))+$", "x", None),
        ] {
            let found = match read(pattern) {
                Some(Pattern::Same(same)) => {
                    Some(Regex::new(&same, false).unwrap().is_match(text.as_bytes()))
                }
                _ => None,
            };
            assert_eq!(found, expected, "{pattern} {text}");
        }
        assert_eq!(read("^/a$"), Some(Pattern::Same("^/a$".to_owned())));
        assert_eq!(read("^/(?!a|b)c"), Some(Pattern::Same("^/(?!a|b)c".to_owned())));
        assert_eq!(read("^/.*(?!a|b)c"), Some(Pattern::Wider("^/.*c".to_owned())));
        assert_eq!(read("(?<=a(b))[)]c(?=d)"), Some(Pattern::Wider("[)]c".to_owned())));
        assert_eq!(read(r"(a)\1"), None);
        assert_eq!(read("(?=a"), None);
        assert_eq!(read("(?=a)"), Some(Pattern::Wider("^".to_owned())));
    }
}
