//! Purges, and which of them a response in progress has missed.

use std::fmt;

use crate::entry::Entry;
use crate::key::write_url;

/// A purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purge {
    /// Which responses.
    pub scope: PurgeScope,
    /// Whether they are marked stale, and kept for revalidation and as stale responses; otherwise they are removed.
    pub is_soft: bool,
}

/// Which responses are purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurgeScope {
    /// All variants of one URL: the client's scheme and host, and path and query as the upstream gets them.
    Url(String),
    /// URLs that start with this one.
    Prefix(String),
    /// Those with this tag in `Cache-Tag` or `Surrogate-Key`.
    Tag(String),
    /// All.
    All,
}

/// The text is not a purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadPurge(String);

impl fmt::Display for BadPurge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let need = "need url or prefix with a whole URL such as https://example.org/a, tag with a value, or all; and soft or hard";
        write!(f, "got `{}`, {need}", self.0)
    }
}

impl std::error::Error for BadPurge {}

impl PurgeScope {
    fn fits(&self, entry: &Entry) -> bool {
        match self {
            PurgeScope::Url(url) => entry.url() == url.as_bytes(),
            PurgeScope::Prefix(url) => entry.url().starts_with(url.as_bytes()),
            PurgeScope::Tag(tag) => entry.fields().any(|(name, value)| has_tag(name, value, tag.as_bytes())),
            PurgeScope::All => true,
        }
    }
}

fn has_tag(name: &[u8], value: &[u8], tag: &[u8]) -> bool {
    let is_between: fn(&u8) -> bool = match name.len() {
        9 if name.eq_ignore_ascii_case(b"cache-tag") => |byte| *byte == b',',
        13 if name.eq_ignore_ascii_case(b"surrogate-key") => u8::is_ascii_whitespace,
        _ => return false,
    };
    value.split(is_between).any(|this| this.trim_ascii() == tag)
}

impl Purge {
    /// Its text form: `hard url http://example.org/a`, one line.
    pub fn to_text(&self) -> String {
        let how = if self.is_soft { "soft" } else { "hard" };
        match &self.scope {
            PurgeScope::Url(url) => format!("{how} url {url}"),
            PurgeScope::Prefix(url) => format!("{how} prefix {url}"),
            PurgeScope::Tag(tag) => format!("{how} tag {tag}"),
            PurgeScope::All => format!("{how} all"),
        }
    }

    /// Parses that text.
    ///
    /// # Errors
    /// It is something else.
    pub fn from_text(text: &str) -> Result<Purge, BadPurge> {
        let bad = || BadPurge(text.chars().take(100).collect());
        let (how, rest) = text.trim().split_once(' ').ok_or_else(bad)?;
        let is_soft = match how {
            "soft" => true,
            "hard" => false,
            _ => return Err(bad()),
        };
        let (kind, value) = rest.split_once(' ').unwrap_or((rest, ""));
        let scope = match (kind, value) {
            ("all", "") => PurgeScope::All,
            (_, "") => return Err(bad()),
            ("url", url) => PurgeScope::Url(as_in_keys(url).ok_or_else(bad)?),
            ("prefix", url) => PurgeScope::Prefix(as_in_keys(url).ok_or_else(bad)?),
            ("tag", tag) => PurgeScope::Tag(tag.to_owned()),
            _ => return Err(bad()),
        };
        Ok(Purge { scope, is_soft })
    }

    /// Whether it applies to this entry.
    pub(crate) fn fits(&self, entry: &Entry) -> bool {
        self.scope.fits(entry)
    }
}

/// A URL as in keys; `None` if it is none, and would purge nothing.
fn as_in_keys(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let is_https = scheme.eq_ignore_ascii_case("https");
    if !is_https && !scheme.eq_ignore_ascii_case("http") {
        return None;
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if authority.is_empty() {
        return None;
    }
    // The URL of a host without a path means its root.
    let path = if path.is_empty() { "/" } else { path };
    let mut out = Vec::new();
    write_url(is_https, authority.as_bytes(), path.as_bytes(), &mut out);
    Some(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::entry::Parts;
    use crate::key::Key;
    use flatout_wire::Status;
    use flatout_wire::cache::Policy;

    pub(crate) fn entry(url: &str, lines: &str) -> Entry {
        let key = Key { url: url.as_bytes(), rest: b"", is_custom: false, hash: 0 };
        let policy = Policy::default();
        let lines = lines.as_bytes();
        Entry::new(&Parts { key, vary: b"", selected: b"", lines, status: Status::OK, policy }, Vec::new())
    }

    #[test]
    fn a_purge_is_text_and_back() {
        for text in ["hard url http://a/b?c d", "soft prefix http://a/", "hard tag a", "soft all"] {
            assert_eq!(Purge::from_text(text).unwrap().to_text(), text);
        }
        assert_eq!(
            Purge::from_text("hard url HTTP://A.b:8/C").unwrap().scope,
            PurgeScope::Url("http://a.b:8/C".into())
        );
        assert_eq!(
            Purge::from_text("hard prefix http://A").unwrap().scope,
            PurgeScope::Prefix("http://a/".into())
        );
        assert_eq!(
            Purge::from_text("hard url HTTPS://A.b.:443/C:80").unwrap().scope,
            PurgeScope::Url("https://a.b/C:80".into())
        );
        let no_urls = ["hard url /a", "hard url a.test/b", "hard prefix ftp://a/", "soft url https:///a"];
        let others = ["", "hard", "url a", "hard url", "hard url ", "hard all x", "soft x y"];
        for text in no_urls.into_iter().chain(others) {
            assert!(Purge::from_text(text).is_err(), "{text}");
        }
    }

    #[test]
    fn purges_match_url_prefix_and_tag() {
        let fits = |text: &str, entry: &Entry| Purge::from_text(text).unwrap().fits(entry);
        let one = entry("http://a/b/c", "Cache-Tag: x, y-1\r\nSurrogate-Key: s t\r\n");
        for (text, expected) in [
            ("hard url http://a/b/c", true),
            ("hard url http://a/b", false),
            ("hard prefix http://a/b", true),
            ("hard prefix http://a/c", false),
            ("hard tag y-1", true),
            ("hard tag y", false),
            ("hard tag t", true),
            ("hard all", true),
        ] {
            assert_eq!(fits(text, &one), expected, "{text}");
        }
    }
}
