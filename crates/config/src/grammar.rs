//! The grammar of files with blocks: words by scope, and the values of each.
//!
//! A word's values are written as in its manual, and that notation is also the rule for a file:
//!
//! ```text
//! ""              nothing            ADDR     one value       [TEXT]   one, or none
//! on|off          one of these       N        a whole number  HOST…    one or more
//! [on|off]        or nothing at all  A B      two values      STATUS   a whole number
//! ```

/// Notations of whole numbers; these must not be quoted.
const NUMBERS: [&str; 3] = ["N", "STATUS", "PID"];

/// Notations of values with or without a unit: `4096` is valid as well as `"4KiB"`.
const EITHER: [&str; 5] = ["BYTES", "ADDR", "RATE", "STATUSES", "CODE"];

/// The grammar of a file. The first scope is the top of the file.
#[derive(Debug, Clone)]
pub struct Grammar<'g> {
    /// All scopes.
    pub scopes: Vec<Scope<'g>>,
    /// Words of other programs, and our words for them.
    pub elsewhere: &'g [(&'g str, &'g str)],
    /// Where all words are listed; shown for an unknown word that resembles none.
    pub manual: &'g str,
}

/// A scope: the top of a file, or the braces of a block.
#[derive(Debug, Clone)]
pub struct Scope<'g> {
    /// Its name in a sentence: `in a site`, `at the top of the file`.
    pub name: &'g str,
    /// Its words.
    pub words: Vec<SiteWord<'g>>,
}

/// A word of a scope.
#[derive(Debug, Clone)]
pub struct SiteWord<'g> {
    /// The word.
    pub name: &'g str,
    /// The notation of its values.
    pub values: &'g str,
    /// Keys that may follow as `name=value`, with the notation of their values.
    pub keys: Vec<(&'g str, &'g str)>,
    /// The scope of its braces, by index; `None`: it has no braces.
    pub braces: Option<usize>,
    /// Whether it may be repeated.
    pub is_list: bool,
}

/// One value of a notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'g> {
    /// Its name in the manual, or its choices.
    pub name: &'g str,
    /// Whether it may be left out.
    pub is_optional: bool,
    /// Whether more values like it may follow.
    pub repeats: bool,
}

/// The type of a value in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// A whole number.
    Number,
    /// A number or text.
    Either,
    /// One of several words.
    Choice,
}

/// The values of a notation.
pub fn parts(notation: &str) -> impl Iterator<Item = Part<'_>> {
    notation.split_whitespace().map(|word| {
        let inner = word.strip_prefix('[').and_then(|word| word.strip_suffix(']'));
        let (is_optional, word) = (inner.is_some(), inner.unwrap_or(word));
        let first = word.strip_suffix('…');
        Part { name: first.unwrap_or(word), is_optional, repeats: first.is_some() }
    })
}

impl<'g> Part<'g> {
    /// Its type in a file.
    pub fn kind(&self) -> Kind {
        match self.name {
            name if name.contains('|') => Kind::Choice,
            name if NUMBERS.contains(&name) => Kind::Number,
            name if EITHER.contains(&name) => Kind::Either,
            _ => Kind::Text,
        }
    }

    /// The allowed words, if it is a choice.
    pub fn choices(&self) -> impl Iterator<Item = &'g str> + use<'g> {
        let choices = if self.kind() == Kind::Choice { self.name } else { "" };
        choices.split('|').filter(|choice| !choice.is_empty())
    }
}

impl<'g> Grammar<'g> {
    /// The names of the scopes that have this word.
    pub(crate) fn homes(&self, word: &str) -> Vec<&'g str> {
        let has = |scope: &&Scope<'_>| scope.words.iter().any(|known| known.name == word);
        self.scopes.iter().filter(has).map(|scope| scope.name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notations() {
        let told = |notation: &'static str| -> Vec<_> {
            parts(notation).map(|part| (part.name, part.kind(), part.is_optional, part.repeats)).collect()
        };
        assert_eq!(told(""), []);
        assert_eq!(told("[on|off]"), [("on|off", Kind::Choice, true, false)]);
        assert_eq!(
            told("STATUS [TEXT…]"),
            [("STATUS", Kind::Number, false, false), ("TEXT", Kind::Text, true, true)]
        );
        assert_eq!(parts("a|b").flat_map(|part| part.choices()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(parts("TEXT").flat_map(|part| part.choices()).count(), 0);
    }
}
