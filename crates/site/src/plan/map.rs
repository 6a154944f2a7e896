//! Tables that turn one text into another, and variables of a file.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::condition::{Condition, Expression};
use super::net::{Net, Peers};
use super::template::{Piece, Template};

/// A table that turns one text into another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Map {
    /// Its name; `$name` in templates.
    pub name: String,
    /// The text that is looked up. It may use maps that are defined before this one.
    pub source: Template,
    /// Keys and values. See [`MapKey`] for which one is used.
    pub cases: Vec<(MapKey, Template)>,
    /// The value for other texts.
    pub default: Template,
    /// A file with more entries.
    pub file: Option<MapFile>,
    /// Proxies whose `X-Forwarded-For` names the address that is looked up in place of theirs.
    pub proxies: Option<MapProxies>,
}

/// Proxies between clients and a server, for one map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapProxies {
    /// Their addresses.
    pub peers: Vec<Peers>,
    /// Whether an address that is that of a proxy, too, is skipped, and the one before it is looked up.
    pub is_recursive: bool,
}

impl Map {
    /// Whether it depends on the response: only rules of responses can use it then, as [`Variable::ResponseMap`](super::Variable::ResponseMap).
    pub fn is_of_response(&self) -> bool {
        let values = self.cases.iter().map(|(_, value)| value);
        let mut pieces = values.chain([&self.source, &self.default]).flat_map(|template| &template.0);
        pieces.any(|piece| matches!(piece, Piece::Variable(variable) if variable.is_of_response()))
    }
}

/// A key of a map. Exact texts are looked up first, then the longest name with a wildcard, then the smallest network, then ranges of
/// numbers, shares and regular expressions in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapKey {
    /// This text; case is ignored.
    Exact(String),
    /// Names that end with this, which begins with a dot: `.example.org` for `*.example.org`.
    EndsWith(String),
    /// Names that begin with this, which ends with a dot: `www.` for `www.*`.
    StartsWith(String),
    /// Addresses in this network.
    Net(Net),
    /// Whole numbers in this range.
    Numbers(RangeInclusive<i64>),
    /// A share of all texts, by their hash, in millionths.
    Share(u32),
    /// Texts that match this regular expression. Its groups are `$1` to `$9` in the value.
    Regex {
        /// The expression.
        pattern: String,
        /// Whether case is ignored.
        ignore_case: bool,
    },
}

/// How the keys of a map are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MapKind {
    /// Texts, wildcards and regular expressions.
    #[default]
    Text,
    /// Addresses and networks.
    Address,
    /// Whole numbers and ranges of them.
    Number,
    /// Shares such as 10%.
    Share,
}

/// A file of entries, one `KEY VALUE` a line. It is read again when it changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapFile {
    /// The file.
    pub path: PathBuf,
    /// How its keys are written.
    pub kind: MapKind,
}

/// A file with the addresses of a crawler: JSON as its operator publishes it, or one network a line. It is read again when it changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrawlerAddresses {
    /// The crawler's name in the list of crawlers.
    pub crawler: String,
    /// The file.
    pub path: PathBuf,
}

/// A value of a variable of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetVariable {
    /// The variable's name.
    pub name: String,
    /// The value.
    pub value: SetValue,
    /// It has this value if all of these are true.
    pub when: Vec<Condition>,
    /// Otherwise it has the value of this index in [`Plan::sets`](super::Plan::sets), which is smaller; or none.
    pub before: Option<usize>,
}

/// How a value is made, once for each request that uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetValue {
    /// From a text with variables.
    Text(Template),
    /// By an expression.
    Expression(Expression),
}

impl MapKey {
    /// Reads a key as it is written in a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, kind: MapKind) -> Result<MapKey, String> {
        match kind {
            MapKind::Text => Ok(MapKey::text(text)),
            MapKind::Address => text.parse().map(MapKey::Net).map_err(|bad| format!("got `{text}`: {bad}")),
            MapKind::Number => {
                let (first, last) = text.split_once("..").unwrap_or((text, text));
                match (first.parse(), last.parse()) {
                    (Ok(first), Ok(last)) if first <= last => Ok(MapKey::Numbers(first..=last)),
                    _ => Err(format!("got `{text}`, need a whole number or a range such as 100..199")),
                }
            }
            MapKind::Share => share(text).ok_or_else(|| format!("got `{text}`, need a share such as 0.5%")),
        }
    }

    fn text(text: &str) -> MapKey {
        if let Some(pattern) = text.strip_prefix("~*") {
            return MapKey::Regex { pattern: pattern.to_owned(), ignore_case: true };
        }
        if let Some(pattern) = text.strip_prefix('~') {
            return MapKey::Regex { pattern: pattern.to_owned(), ignore_case: false };
        }
        match (text.strip_prefix('*'), text.strip_suffix('*')) {
            (Some(end), _) if end.starts_with('.') && end.len() > 1 => {
                MapKey::EndsWith(end.to_ascii_lowercase())
            }
            (_, Some(start)) if start.ends_with('.') && start.len() > 1 => {
                MapKey::StartsWith(start.to_ascii_lowercase())
            }
            // A backslash makes the first character an ordinary one.
            _ => MapKey::Exact(text.strip_prefix('\\').unwrap_or(text).to_owned()),
        }
    }
}

fn share(text: &str) -> Option<MapKey> {
    let percent: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    (percent > 0.0 && percent <= 100.0).then(|| MapKey::Share((percent * 10_000.0).round() as u32))
}
