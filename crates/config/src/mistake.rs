//! What is wrong with a file, and where.

use std::fmt;

/// A mistake in a file, as shown to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The file name, as given.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The character of the line, from 1.
    pub column: usize,
    /// What is wrong, the value, what is allowed.
    pub message: String,
    /// The line, without control characters; shortened if it is very long.
    pub shown: String,
    /// Characters of `shown` before the mistake, and of the mistake.
    pub caret: (usize, usize),
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mistake { file, line, column, message, shown, caret: (before, length) } = self;
        write!(f, "{file}:{line}:{column}: {message}")?;
        if shown.trim().is_empty() {
            return Ok(());
        }
        let shown = without_credentials(shown);
        // A tab stays one, so that the caret stands below what it means, however wide a tab is.
        let blank: String =
            shown.chars().take(*before).map(|char| if char == '\t' { char } else { ' ' }).collect();
        let number = line.to_string();
        write!(f, "\n  {number} | {shown}\n  {:1$} | {blank}{2:^<3$}", "", number.len(), "", (*length).max(1))
    }
}

impl std::error::Error for Mistake {}

impl Mistake {
    /// Hides the marked text: it is a secret, and mistakes are logged.
    #[must_use]
    pub fn without_marked(mut self) -> Mistake {
        let (before, length) = self.caret;
        let is_marked = |at: usize| (before..before + length).contains(&at);
        let shown = self.shown.chars().enumerate();
        self.shown = shown.map(|(at, char)| if is_marked(at) { '*' } else { char }).collect();
        self
    }
}

/// A line without the credentials of URLs, what stands between `://` and `@`: mistakes are logged.
fn without_credentials(line: &str) -> String {
    let is_end = |char: char| char.is_whitespace() || char == '"' || char == ',';
    let shown = |word: &str| match (word.find("://").map(|at| at + 3), word.rfind('@')) {
        (Some(from), Some(to)) if from < to => {
            let (before, rest) = word.split_at(from);
            let (secret, place) = rest.split_at(to - from);
            format!("{before}{}{place}", "*".repeat(secret.chars().count()))
        }
        _ => word.to_owned(),
    };
    line.split_inclusive(is_end).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_hidden() {
        for (line, shown) in [
            ("bus \"nats://us:pw@h:1,tls://t@g\" grup=a", "bus \"nats://*****@h:1,tls://*@g\" grup=a"),
            ("bus nats://u:p://é@h", "bus nats://*******@h"),
            ("to \"http://a/b\" x@y", "to \"http://a/b\" x@y"),
            ("a", "a"),
            ("://@", "://@"),
        ] {
            // One character for each, so that the caret stays where it belongs.
            let found = without_credentials(line);
            assert_eq!(found.chars().count(), line.chars().count());
            assert_eq!(found, shown, "{line}");
        }
    }
}
