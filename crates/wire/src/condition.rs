//! Conditional requests (RFC 9110 section 13).

use crate::{Head, Method, date};

/// The result of a request's preconditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Respond as if there were none.
    Proceed,
    /// 304: the client already has the representation.
    NotModified,
    /// 412: a precondition failed.
    Failed,
}

/// Evaluates the preconditions of `head` against a representation, in the order of section 13.2.2.
///
/// `etag` is the entity tag with its quotes, `modified` the modification time in seconds since 1970. Costs a pass
/// over the fields, and almost nothing if none of them starts with `If-`.
///
/// ```
/// use flatout_wire::condition::{Decision, evaluate};
/// use flatout_wire::head::{HeadLimits, parse};
///
/// let request = b"GET / HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"v7\"\r\n\r\n";
/// let mut fields = Vec::new();
/// let Ok(Some(head)) = parse(request, &mut fields, &HeadLimits::default()) else { panic!("not whole") };
/// assert_eq!(evaluate(&head, b"\"v7\"", None), Decision::NotModified);
/// assert_eq!(evaluate(&head, b"\"v8\"", None), Decision::Proceed);
/// ```
pub fn evaluate(head: &Head<'_>, etag: &[u8], modified: Option<u64>) -> Decision {
    let mut conditions = Conditions::default();
    for (name, value) in head.fields() {
        if name.len() > 7 && name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"if-")) {
            conditions.note(name, value, etag, modified);
        }
    }
    let safe = matches!(head.method, Method::Get | Method::Head);
    let failed = match (conditions.matched, conditions.unmodified) {
        (Some(matched), _) => !matched,
        (None, Some(unmodified)) => !unmodified,
        (None, None) => false,
    };
    if failed {
        return Decision::Failed;
    }
    match (conditions.none_matched, conditions.modified) {
        (Some(true), _) => Decision::Proceed,
        (Some(false), _) if safe => Decision::NotModified,
        (Some(false), _) => Decision::Failed,
        (None, Some(false)) if safe => Decision::NotModified,
        (None, _) => Decision::Proceed,
    }
}

/// Whether a `Range` field applies: `If-Range` is absent, or matches this representation. Weak tags, and dates other
/// than the modification time, do not match.
pub fn range_applies(head: &Head<'_>, etag: &[u8], modified: Option<u64>) -> bool {
    match head.field("if-range") {
        None => true,
        Some(tag) if tag.ends_with(b"\"") => !tag.starts_with(b"W/") && tag == etag,
        Some(text) => modified.is_some() && date::parse(text) == modified,
    }
}

/// The result of each condition in the request.
#[derive(Default)]
struct Conditions {
    matched: Option<bool>,
    none_matched: Option<bool>,
    unmodified: Option<bool>,
    modified: Option<bool>,
}

impl Conditions {
    fn note(&mut self, name: &[u8], value: &[u8], etag: &[u8], modified: Option<u64>) {
        if name.eq_ignore_ascii_case(b"if-match") {
            let found = value == b"*" || (!etag.starts_with(b"W/") && lists(value, etag, false));
            self.matched = Some(self.matched.unwrap_or(false) || found);
        } else if name.eq_ignore_ascii_case(b"if-none-match") {
            self.none_matched = Some(self.none_matched.unwrap_or(true) && !lists(value, etag, true));
        } else if name.eq_ignore_ascii_case(b"if-unmodified-since") {
            self.unmodified = since(value, modified).map(|newer| !newer);
        } else if name.eq_ignore_ascii_case(b"if-modified-since") {
            self.modified = since(value, modified);
        }
    }
}

/// Whether the modification time is after the date; `None` if either is unknown, and the condition is ignored.
fn since(value: &[u8], modified: Option<u64>) -> Option<bool> {
    Some(modified? > date::parse(value)?)
}

/// Whether a list of entity tags, or `*`, contains this one. A weak comparison ignores `W/`.
fn lists(value: &[u8], etag: &[u8], weak: bool) -> bool {
    if value == b"*" {
        return true;
    }
    let opaque = etag.strip_prefix(b"W/").unwrap_or(etag);
    let mut rest = value;
    loop {
        // Empty list elements are skipped (RFC 9110 section 5.6.1.2).
        let empty = rest.iter().take_while(|byte| matches!(byte, b',' | b' ' | b'\t')).count();
        rest = rest.get(empty..).unwrap_or_default();
        let is_weak = rest.starts_with(b"W/");
        let tag = rest.strip_prefix(b"W/").unwrap_or(rest);
        let Some(inner) = tag.strip_prefix(b"\"") else { return false };
        let Some(end) = inner.iter().position(|&byte| byte == b'"') else { return false };
        if (weak || !is_weak) && tag.get(..end + 2) == Some(opaque) {
            return true;
        }
        let after = tag.get(end + 2..).unwrap_or_default().trim_ascii_start();
        match after.strip_prefix(b",") {
            Some(next) => rest = next,
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::{HeadLimits, parse};

    const TAG: &[u8] = b"\"a\"";
    const TIME: Option<u64> = Some(784_111_777);
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const OLDER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    fn with_head<T>(method: &str, lines: &str, act: impl Fn(&Head<'_>) -> T) -> T {
        let text = format!("{method} / HTTP/1.1\r\nHost: t\r\n{lines}\r\n\r\n");
        let mut fields = Vec::new();
        act(&parse(text.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap())
    }

    #[test]
    fn conditions_are_weighed_in_their_order() {
        use Decision::*;
        for (method, lines, expected) in [
            ("GET", "A: b".to_owned(), Proceed),
            ("GET", "If-None-Match: \"a\"".to_owned(), NotModified),
            ("GET", "If-None-Match: W/\"a\"".to_owned(), NotModified),
            ("GET", "If-None-Match: \"b\", \"a\"".to_owned(), NotModified),
            ("GET", "If-None-Match: \"b\",W/\"c\"".to_owned(), Proceed),
            ("GET", "If-None-Match: , \"b\",, \"a\"".to_owned(), NotModified),
            ("GET", "If-None-Match: *".to_owned(), NotModified),
            ("GET", "If-None-Match: a".to_owned(), Proceed),
            ("GET", "If-None-Match: \"a".to_owned(), Proceed),
            ("PUT", "If-None-Match: *".to_owned(), Failed),
            ("GET", "If-Match: \"a\"".to_owned(), Proceed),
            ("GET", "If-Match: W/\"a\"".to_owned(), Failed),
            ("GET", "If-Match: \"b\"".to_owned(), Failed),
            ("GET", "If-Match: *".to_owned(), Proceed),
            ("GET", format!("If-Modified-Since: {SAME}"), NotModified),
            ("GET", format!("If-Modified-Since: {OLDER}"), Proceed),
            ("GET", "If-Modified-Since: soon".to_owned(), Proceed),
            ("POST", format!("If-Modified-Since: {SAME}"), Proceed),
            ("GET", format!("If-Unmodified-Since: {SAME}"), Proceed),
            ("GET", format!("If-Unmodified-Since: {OLDER}"), Failed),
            ("GET", format!("If-None-Match: \"b\"\r\nIf-Modified-Since: {SAME}"), Proceed),
            ("GET", format!("If-Match: \"a\"\r\nIf-Unmodified-Since: {OLDER}"), Proceed),
        ] {
            assert_eq!(
                with_head(method, &lines, |head| evaluate(head, TAG, TIME)),
                expected,
                "{method} {lines}"
            );
        }
    }

    #[test]
    fn a_weak_tag_exists_but_never_matches_strongly() {
        for (lines, expected) in [
            ("If-Match: *", Decision::Proceed),
            ("If-Match: W/\"a\"", Decision::Failed),
            ("If-Match: \"a\"", Decision::Failed),
            ("If-None-Match: \"a\"", Decision::NotModified),
            ("If-None-Match: W/\"a\"", Decision::NotModified),
        ] {
            let got = with_head("GET", lines, |head| evaluate(head, b"W/\"a\"", None));
            assert_eq!(got, expected, "{lines}");
        }
        assert!(!with_head("GET", "If-Range: W/\"a\"", |head| range_applies(head, b"W/\"a\"", None)));
    }

    #[test]
    fn a_range_counts_for_the_same_representation_only() {
        for (lines, expected) in [
            ("A: b".to_owned(), true),
            ("If-Range: \"a\"".to_owned(), true),
            ("If-Range: W/\"a\"".to_owned(), false),
            ("If-Range: \"b\"".to_owned(), false),
            (format!("If-Range: {SAME}"), true),
            (format!("If-Range: {OLDER}"), false),
            ("If-Range: soon".to_owned(), false),
        ] {
            assert_eq!(with_head("GET", &lines, |head| range_applies(head, TAG, TIME)), expected, "{lines}");
        }
        assert!(!with_head("GET", "If-Range: soon", |head| range_applies(head, TAG, None)));
    }
}
