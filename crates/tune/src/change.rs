//! A change as data: a setting and its new value.

use serde::{Deserialize, Serialize};

use crate::settings::Setting;

/// The complete value of a setting. The journal stores it, so it is never a summary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Nothing exists: no file, no rule.
    Absent,
    /// Text, byte for byte.
    Text(String),
    /// Bytes that are not UTF-8.
    Bytes(Vec<u8>),
}

/// One change: a setting and its new value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The setting.
    pub setting: Setting,
    /// The new value.
    pub to: Content,
}

impl Change {
    /// A change to a text value.
    pub(crate) fn text(setting: impl Into<Setting>, to: impl ToString) -> Change {
        Change { setting: setting.into(), to: Content::Text(to.to_string()) }
    }
}

impl Content {
    /// The content of a file.
    pub(crate) fn of(bytes: Option<Vec<u8>>) -> Content {
        match bytes.map(String::from_utf8) {
            None => Content::Absent,
            Some(Ok(text)) => Content::Text(text),
            Some(Err(error)) => Content::Bytes(error.into_bytes()),
        }
    }

    /// The bytes to write, unless nothing is to exist.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Content::Absent => None,
            Content::Text(text) => Some(text.as_bytes()),
            Content::Bytes(bytes) => Some(bytes),
        }
    }

    /// One short line for messages.
    pub fn line(&self) -> String {
        match self {
            Content::Absent => "nothing".to_owned(),
            Content::Bytes(bytes) => format!("{} bytes", bytes.len()),
            Content::Text(text) => {
                let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
                match words.char_indices().nth(LINE_CHARS_MAX) {
                    Some((end, _)) => format!("{}…", &words[..end]),
                    None => words,
                }
            }
        }
    }

    /// Whether both mean the same to the kernel, which reports `a [b] c` where `b` was written, tabs instead of
    /// spaces, and a line end where there was none.
    pub(crate) fn means(&self, wanted: &Content) -> bool {
        match (self, wanted) {
            (Content::Text(now), Content::Text(wanted)) => {
                words(now).eq(words(wanted)) || chosen(now) == Some(wanted.trim())
            }
            (now, wanted) => now == wanted,
        }
    }
}

/// Characters of a value on one line.
const LINE_CHARS_MAX: usize = 60;

/// The choice in brackets, as in `always [madvise] never`.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reformatted_values_equal_the_written_ones() {
        let text = |text: &str| Content::Text(text.to_owned());
        assert!(text("4096\t131072\t6291456\n").means(&text("4096 131072 6291456")));
        assert!(text("always [madvise] never\n").means(&text("madvise")));
        assert!(!text("always [madvise] never\n").means(&text("never")));
        assert!(!Content::Absent.means(&text("")));
    }

    #[test]
    fn a_value_on_one_line_is_short() {
        assert_eq!(Content::Text("a\tb\n".into()).line(), "a b");
        assert_eq!(Content::Text("ä".repeat(100)).line().chars().count(), LINE_CHARS_MAX + 1);
    }
}
