//! Which crawler has sent a request, by its `User-Agent`. The list is `crawlers.txt`.

use std::sync::LazyLock;

/// A crawler, or a fetcher of link previews.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crawler {
    /// Its token in `User-Agent`, as its operator writes it.
    pub name: &'static str,
    /// Its kind.
    pub kind: CrawlerKind,
    /// The domains of the reverse DNS names of its addresses, separated by commas; empty if its operator publishes none.
    pub domains: &'static str,
}

/// The kind of a crawler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CrawlerKind {
    /// Search engines.
    Search,
    /// Social networks.
    Social,
    /// Messengers.
    Chat,
    /// Models and their assistants.
    Ai,
    /// Checkers of links and pages, archives, feeds.
    Tool,
}

impl CrawlerKind {
    /// All of them.
    pub const ALL: [CrawlerKind; 5] =
        [CrawlerKind::Search, CrawlerKind::Social, CrawlerKind::Chat, CrawlerKind::Ai, CrawlerKind::Tool];

    /// Its name in the list, in settings and in variables.
    pub fn name(self) -> &'static str {
        match self {
            CrawlerKind::Search => "search",
            CrawlerKind::Social => "social",
            CrawlerKind::Chat => "chat",
            CrawlerKind::Ai => "ai",
            CrawlerKind::Tool => "tool",
        }
    }

    /// The kind of this name.
    pub fn of(name: &str) -> Option<CrawlerKind> {
        CrawlerKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl Crawler {
    /// The crawler of this name in the list; case is ignored.
    pub fn of(name: &str) -> Option<Crawler> {
        CRAWLERS.iter().find(|crawler| crawler.name.eq_ignore_ascii_case(name)).copied()
    }

    /// The names of all crawlers.
    pub fn names() -> impl Iterator<Item = &'static str> {
        CRAWLERS.iter().map(|crawler| crawler.name)
    }
}

/// The longest part of a `User-Agent` that is examined, in bytes.
const EXAMINED_BYTES_MAX: usize = 512;

/// The crawler that claims to have sent this `User-Agent`; `None` for browsers and all others.
///
/// Cost: one pass over at most 512 bytes. Only lines of the list with the letter at hand are compared.
///
/// ```
/// use flatout_prerender::{CrawlerKind, crawler};
///
/// let found = crawler(b"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)");
/// assert_eq!(found.map(|crawler| crawler.kind), Some(CrawlerKind::Search));
/// assert!(crawler(b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0").is_none());
/// ```
pub fn crawler(user_agent: &[u8]) -> Option<Crawler> {
    crawler_index(user_agent).and_then(|index| CRAWLERS.get(index)).copied()
}

/// The same as an index into the list.
pub(crate) fn crawler_index(user_agent: &[u8]) -> Option<usize> {
    let text = user_agent.get(..EXAMINED_BYTES_MAX).unwrap_or(user_agent);
    let mut before = b' ';
    for (at, &byte) in text.iter().enumerate() {
        let is_begin = !before.is_ascii_alphanumeric();
        before = byte;
        if !is_begin {
            continue;
        }
        let rest = text.get(at..).unwrap_or_default();
        let mut here = BY_LETTER.get(usize::from(byte.to_ascii_lowercase())).into_iter().flatten();
        let is_it = |index: &&usize| CRAWLERS.get(**index).is_some_and(|crawler| begins(rest, crawler.name));
        if let Some(found) = here.find(is_it) {
            return Some(*found);
        }
    }
    None
}

fn begins(text: &[u8], token: &str) -> bool {
    text.get(..token.len()).is_some_and(|text| text.eq_ignore_ascii_case(token.as_bytes()))
}

/// The list, parsed once.
pub(crate) static CRAWLERS: LazyLock<Vec<Crawler>> =
    LazyLock::new(|| include_str!("../crawlers.txt").lines().filter_map(line).collect());

/// Indexes into the list by the first letter of the token, in lower case.
static BY_LETTER: LazyLock<Vec<Vec<usize>>> = LazyLock::new(|| {
    let mut by_letter = vec![Vec::new(); 256];
    for (index, crawler) in CRAWLERS.iter().enumerate() {
        let letter = crawler.name.as_bytes().first().map_or(0, u8::to_ascii_lowercase);
        if let Some(indexes) = by_letter.get_mut(usize::from(letter)) {
            indexes.push(index);
        }
    }
    by_letter
});

/// A crawler of the list; `None` for comments and empty lines. A token may contain single spaces.
fn line(line: &'static str) -> Option<Crawler> {
    let line = line.trim_end();
    if line.starts_with('#') {
        return None;
    }
    let (rest, _source) = line.rsplit_once(' ')?;
    let (rest, domains) = rest.trim_end().rsplit_once(' ')?;
    let (name, kind) = rest.trim_end().rsplit_once(' ')?;
    let domains = if domains == "-" { "" } else { domains };
    Some(Crawler { name: name.trim_end(), kind: CrawlerKind::of(kind)?, domains })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_list_is_a_crawler_with_a_source() {
        let mut lines = 0;
        for text in include_str!("../crawlers.txt").lines() {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            lines += 1;
            let found = line(text).unwrap_or_else(|| panic!("this line is malformed: {text}"));
            assert!(text.ends_with(|c: char| !c.is_whitespace()) && text.contains("https://"), "{text}");
            assert!(found.name.len() >= 4, "{text}: such a short token matches browsers");
            assert!(
                found.domains.split(',').all(|domain| domain.is_empty() || domain.contains('.')),
                "{text}"
            );
        }
        assert!(lines > 100, "{lines}");
        assert!(include_str!("../crawlers.txt").contains("# Checked: 20"), "the list has a date");
    }

    #[test]
    fn every_token_is_recognised_as_itself() {
        for listed in CRAWLERS.iter() {
            let user_agent = format!("Mozilla/5.0 (compatible; {}/1.0)", listed.name);
            assert_eq!(crawler(user_agent.as_bytes()), Some(*listed));
            assert_eq!(crawler(user_agent.to_uppercase().as_bytes()), Some(*listed));
            let inside = format!("Mozilla/5.0 x{}", listed.name);
            assert_eq!(crawler(inside.as_bytes()), None, "{inside}");
        }
    }

    #[test]
    fn only_the_beginning_of_a_long_user_agent_is_examined() {
        let mut long = vec![b' '; EXAMINED_BYTES_MAX];
        long.extend_from_slice(b"Googlebot");
        assert_eq!(crawler(&long), None);
        assert_eq!(crawler(b""), None);
    }
}
