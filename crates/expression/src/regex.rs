//! Regular expressions over bytes, in time proportional to the text's length.
//!
//! Those of the crate `regex`, and one thing more that configurations of other servers often have: look-ahead at the start, as in
//! `^/(?!admin|private)`. It stands where every match has the same beginning, so that it is a second expression there, and not a
//! search that could go back.

use std::cell::Cell;

use regex::bytes::{CaptureNames, Captures, RegexBuilder};

use crate::REGEX_BYTES_MAX;
use crate::structure::{group_bytes, has_alternatives};

thread_local! {
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// A regular expression.
#[derive(Debug)]
pub struct Regex {
    whole: regex::bytes::Regex,
    /// What must be true at the start.
    ahead: Vec<Ahead>,
}

/// A look-ahead, with the text before it.
#[derive(Debug, Clone)]
struct Ahead {
    regex: regex::bytes::Regex,
    is_wanted: bool,
}

impl Regex {
    /// Compiles an expression. A dot is any byte.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn new(pattern: &str, ignore_case: bool) -> Result<Regex, String> {
        let build = |pattern: &str| {
            let built = RegexBuilder::new(pattern)
                .unicode(false)
                .dot_matches_new_line(true)
                .case_insensitive(ignore_case)
                .size_limit(REGEX_BYTES_MAX)
                .build();
            built.map_err(|error| last_line(&error.to_string()))
        };
        let (whole, parts) = split(pattern);
        let mut ahead = Vec::new();
        for (part, is_wanted) in parts {
            ahead.push(Ahead { regex: build(&part)?, is_wanted });
        }
        let whole = build(&whole)?;
        count();
        Ok(Regex { whole, ahead })
    }

    /// How many expressions and clones of expressions this thread has made. Threads that search with the same one contend for its memory; a
    /// clone has its own.
    pub fn count_made() -> usize {
        MADE.get()
    }

    /// Whether it matches somewhere in a text.
    #[inline]
    pub fn is_match(&self, text: &[u8]) -> bool {
        self.whole.is_match(text) && self.is_ahead(text)
    }

    /// What its groups matched; `None` if it does not match.
    pub fn captures<'t>(&self, text: &'t [u8]) -> Option<Captures<'t>> {
        self.whole.captures(text).filter(|_| self.is_ahead(text))
    }

    /// The number of its groups, with the whole match as the first.
    pub fn captures_len(&self) -> usize {
        self.whole.captures_len()
    }

    /// The names of its groups.
    pub fn capture_names(&self) -> CaptureNames<'_> {
        self.whole.capture_names()
    }

    #[inline]
    fn is_ahead(&self, text: &[u8]) -> bool {
        self.ahead.iter().all(|ahead| ahead.regex.is_match(text) == ahead.is_wanted)
    }
}

impl Clone for Regex {
    fn clone(&self) -> Regex {
        count();
        Regex { whole: self.whole.clone(), ahead: self.ahead.clone() }
    }
}

fn count() {
    MADE.set(MADE.get().wrapping_add(1));
}

/// The crate's message ends with what is wrong; the lines before show the expression with a mark below it.
fn last_line(message: &str) -> String {
    let last = message.lines().next_back().unwrap_or(message).trim_start_matches("error: ");
    match last.starts_with("look-around") {
        true => "look-around is only supported as look-ahead behind `^` and plain text, such as ^/(?!admin)"
            .to_owned(),
        false => last.to_owned(),
    }
}

/// Takes look-ahead out of an expression that begins with `^`, plain text and look-ahead: the expression without it, and each as an
/// expression of its own, with whether it must match. Any other expression is left as it is.
fn split(pattern: &str) -> (String, Vec<(String, bool)>) {
    let none = || (pattern.to_owned(), Vec::new());
    let flags = if pattern.starts_with("(?i)") { "(?i)" } else { "" };
    let rest = pattern.strip_prefix(flags).unwrap_or(pattern);
    let Some(at) = start_bytes(rest) else { return none() };
    let Some((start, mut rest)) = rest.split_at_checked(at) else { return none() };
    let start = format!("{flags}{start}");
    let (mut groups, mut parts) = (0, Vec::new());
    while let Some(is_wanted) = look_ahead(rest) {
        let Some(bytes) = group_bytes(rest) else { return none() };
        let Some((group, behind)) = rest.split_at_checked(bytes) else { return none() };
        let Some(inner) = group.get("(?!".len()..group.len() - 1) else { return none() };
        let ahead = format!("{start}(?:{inner})");
        let count = regex::bytes::Regex::new(&ahead).map_or(0, |regex| regex.captures_len() - 1);
        // What groups match in look-ahead that must match stays known behind it.
        if is_wanted && count > 0 {
            return none();
        }
        groups += count;
        parts.push((ahead, is_wanted));
        rest = behind;
    }
    // Another alternative could begin in another way; a repeated look-ahead is none.
    if parts.is_empty() || has_alternatives(rest) || rest.starts_with(['*', '+', '?', '{']) {
        return none();
    }
    // Groups keep their numbers.
    (format!("{start}{}{rest}", "()".repeat(groups)), parts)
}

/// The length of `^` and the plain text behind it, if look-ahead follows.
fn start_bytes(pattern: &str) -> Option<usize> {
    let mut at = pattern.strip_prefix('^').map(|_| 1)?;
    loop {
        let rest = pattern.get(at..)?;
        if look_ahead(rest).is_some() {
            return Some(at);
        }
        let mut chars = rest.chars();
        at += match chars.next()? {
            '\\' => 1 + chars.next().filter(char::is_ascii_punctuation)?.len_utf8(),
            '.' | '[' | '(' | ')' | '|' | '*' | '+' | '?' | '{' | '^' | '$' => return None,
            char => char.len_utf8(),
        };
    }
}

/// Whether a text begins with look-ahead, and whether that must match.
fn look_ahead(text: &str) -> Option<bool> {
    match text.get(.."(?!".len())? {
        "(?=" => Some(true),
        "(?!" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regex(pattern: &str) -> Regex {
        Regex::new(pattern, false).unwrap_or_else(|error| panic!("{pattern}: {error}"))
    }

    #[test]
    fn look_ahead_at_the_start_is_supported() {
        for (pattern, text, expected) in [
            ("^/(?!index|status)", "/other", true),
            ("^/(?!index|status)", "/index.php", false),
            ("^/(?!index|status)", "/a/index", true),
            (r"^/(?!v[12]|a/.+)\w+$", "/v3", true),
            (r"^/(?!v[12]|a/.+)\w+$", "/v1", false),
            (r"^/(?!v[12]|a/.+)\w+$", "/v3/", false),
            ("^(?!(GET|HEAD)).*:", "POST:x", true),
            ("^(?!(GET|HEAD)).*:", "POST", false),
            ("^(?!(GET|HEAD)).*:", "HEAD:", false),
            (r"^/a\.b(?=/)", "/a.b/", true),
            (r"^/a\.b(?=/)", "/a.b", false),
            (r"^/a\.b(?=/)", "/aXb/", false),
            ("^/(?!a)(?!b)(?=.{3})", "/cde", true),
            ("^/(?!a)(?!b)(?=.{3})", "/bde", false),
            ("^/(?!a)(?!b)(?=.{3})", "/cd", false),
            ("(?i)^/(?!admin)", "/ADMIN", false),
            (r"^/(?![)\]|(])x", "/x", true),
            ("^/(?!x)[|)]", "/|", true),
        ] {
            assert_eq!(regex(pattern).is_match(text.as_bytes()), expected, "{pattern} {text}");
            assert_eq!(regex(pattern).captures(text.as_bytes()).is_some(), expected, "{pattern} {text}");
        }
        assert!(!Regex::new("^/(?!admin)", true).unwrap().is_match(b"/Admin"));
    }

    #[test]
    fn groups_keep_their_numbers_and_names() {
        let captures = regex("^/(?!(a)|b(c))(.)(?P<rest>.*)$");
        assert_eq!(captures.captures_len(), 5);
        let found = captures.captures(b"/xyz").unwrap();
        assert_eq!((&found[3], &found["rest"], &found[1]), (&b"x"[..], &b"yz"[..], &b""[..]));
        assert_eq!(captures.capture_names().flatten().collect::<Vec<_>>(), ["rest"]);
        assert!(captures.captures(b"/bc").is_none());
    }

    #[test]
    fn other_look_around_is_refused() {
        for pattern in [
            "/(?!a)",
            "^/.(?!a)",
            "^/a*(?!a)",
            "^/(?!a)b|c",
            "^/(?!a)*",
            "(?<=a)b",
            "^/(?!a(?!b))",
            "^/(?=(a))",
            r"^\d(?!a)",
            "^/(?!a",
        ] {
            let error = Regex::new(pattern, false).unwrap_err();
            assert!(
                error.contains("look-ahead behind `^`") || error.contains("unclosed"),
                "{pattern}: {error}"
            );
        }
        assert_eq!(Regex::new("/(a", false).unwrap_err(), "unclosed group");
        assert!(Regex::new("(((a{100}){100}){100})", false).unwrap_err().contains("size limit"));
    }

    #[test]
    fn bytes_that_are_no_text_are_matched() {
        assert!(regex("^/admin/.*$").is_match(b"/admin/\xff\n"));
        assert!(!regex("^/(?!.*x)").is_match(b"/\xffx"));
    }
}
