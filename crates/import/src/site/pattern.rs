//! Expressions of PCRE that the expressions of a site file do not have.

use flatout_expression::Regex;

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

/// Writes a negative look-ahead for a plain text, such as `\.(?!well-known).*`, without it: as what may follow instead. What
/// comes after it must match anything.
fn without_negative(pattern: &str) -> Option<String> {
    let (before, rest) = pattern.split_once("(?!")?;
    let (text, after) = rest.split_once(')')?;
    let text: Vec<char> =
        text.replace("\\/", "/").replace("\\-", "-").replace("\\.", "\u{1}").chars().collect();
    let is_plain = |char: &char| char.is_ascii_alphanumeric() || "/-_\u{1}".contains(*char);
    if !["", ".*", "(.*)", ".*$"].contains(&after) || text.is_empty() || !text.iter().all(is_plain) {
        return None;
    }
    let others = text.iter().rev().fold(String::new(), |inner, char| {
        let char = if *char == '\u{1}' { "\\.".to_owned() } else { regex::escape(&char.to_string()) };
        let longer = if inner.is_empty() { String::new() } else { format!("|{char}{inner}") };
        format!("(?:$|[^{char}]{longer})")
    });
    Some(format!("{before}{others}"))
}

/// Removes look-around, so that the expression matches more.
fn without_lookaround(pattern: &str) -> Option<String> {
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

/// Where a character of an expression stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Plain,
    /// Behind a backslash.
    Escaped,
    /// In brackets, or one of these.
    Class,
}

/// Finds that for each character, from the first one on.
#[derive(Default)]
struct Places {
    is_escaped: bool,
    /// The characters of the class so far.
    class: Option<String>,
}

impl Places {
    fn next(&mut self, char: char) -> Place {
        if std::mem::take(&mut self.is_escaped) {
            return Place::Escaped;
        }
        self.is_escaped = char == '\\';
        match (&mut self.class, char) {
            (None, '[') => self.class = Some(String::new()),
            (None, _) => return Place::Plain,
            // At the start of a class it is one of its characters.
            (Some(class), ']') if !matches!(class.as_str(), "" | "^") => self.class = None,
            (Some(class), _) => class.push(char),
        }
        Place::Class
    }
}

/// The expression with the meaning that PCRE gives to what is something else here: `\<` and `\>`, and brackets and doubled signs in a class.
pub(super) fn translated(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len());
    let (mut places, mut was_class) = (Places::default(), false);
    let mut chars = pattern.chars().peekable();
    while let Some(char) = chars.next() {
        let place = places.next(char);
        let before = text.chars().next_back();
        let is_doubled = ['&', '-', '~'].contains(&char) && before == Some(char);
        match (place, char) {
            (Place::Escaped, '<' | '>') => {
                text.pop();
                text.push(char);
            }
            (Place::Class, '[') if was_class && chars.peek() != Some(&':') => text.push_str("\\["),
            (Place::Class, _) if was_class && is_doubled => text.extend(['\\', char]),
            _ => text.push(char),
        }
        was_class = places.class.is_some();
    }
    text
}

/// The parentheses of an expression's groups, with their positions: not those that are escaped or in a class.
pub(super) fn parentheses(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut places = Places::default();
    text.char_indices().filter(move |(_, char)| {
        let place = places.next(*char);
        matches!(char, '(' | ')') && place == Place::Plain
    })
}

/// The expression with this group as its only one; `None` if there is no such group, or one with a name.
pub(super) fn with_only_group(text: &str, number: usize) -> Option<String> {
    let (mut only, mut taken, mut count) = (String::new(), 0, 0);
    for (at, _) in parentheses(text).filter(|(_, char)| *char == '(') {
        let behind = text.get(at + 1..)?;
        if behind.starts_with("?<") || behind.starts_with("?P<") {
            return None;
        }
        if behind.starts_with('?') {
            continue;
        }
        count += 1;
        if count != number {
            only.push_str(text.get(taken..=at)?);
            only.push_str("?:");
            taken = at + 1;
        }
    }
    only.push_str(text.get(taken..)?);
    (number <= count).then_some(only)
}

/// The length of the group at the start of a text.
fn group_bytes(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, char) in parentheses(text) {
        depth = if char == '(' { depth + 1 } else { depth.checked_sub(1)? };
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
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
            ("[[:alpha:]]1", "a1", true),
            ("[[:alpha:]]1", ":1", false),
            (r"[]\]a]b", "]b", true),
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
        assert_eq!(with_only_group("^/(?<a>b)(c)", 2), None);
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
        assert_eq!(read("^/a$"), Some(Pattern::Same("^/a$".to_owned())));
        assert_eq!(read("^/(?!a|b)c"), Some(Pattern::Same("^/(?!a|b)c".to_owned())));
        assert_eq!(read("^/.*(?!a|b)c"), Some(Pattern::Wider("^/.*c".to_owned())));
        assert_eq!(read("(?<=a(b))[)]c(?=d)"), Some(Pattern::Wider("[)]c".to_owned())));
        assert_eq!(read(r"(a)\1"), None);
        assert_eq!(read("(?=a"), None);
        assert_eq!(read("(?=a)"), Some(Pattern::Wider("^".to_owned())));
    }
}
