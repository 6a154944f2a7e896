//! The tokenizer: words, semicolons and braces.

use std::ops::Range;

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A word, without its quotes and escapes; and whether it was quoted.
    Word(String, bool),
    /// A comment, without its `#`.
    Comment(String),
    /// `;`
    End,
    /// `{`
    Open,
    /// `}`
    Close,
}

/// Reads tokens from a text.
pub(super) struct Tokens<'t> {
    text: &'t str,
    at: usize,
}

/// A syntax error and its position.
pub(super) type Wrong = (Range<usize>, String);

impl<'t> Tokens<'t> {
    pub(super) fn of(text: &'t str) -> Tokens<'t> {
        // A byte order mark is skipped, as nginx does.
        Tokens { text, at: if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 } }
    }

    /// The current position in the text.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next token and its position; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(Token, Range<usize>)>, Wrong> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
        let start = self.at;
        let Some(first) = self.text[start..].chars().next() else { return Ok(None) };
        let token = match first {
            ';' => self.single(Token::End),
            '{' => self.single(Token::Open),
            '}' => self.single(Token::Close),
            '#' => {
                let line = self.text[start..].lines().next().unwrap_or_default();
                self.at += line.len();
                Token::Comment(line.trim_start_matches('#').trim().to_owned())
            }
            '"' | '\'' => self.quoted(first)?,
            _ => self.bare(),
        };
        Ok(Some((token, start..self.at)))
    }

    /// Skips to the brace that closes the last one, without interpretation: the content is in another language.
    pub(super) fn skip_block(&mut self) -> Result<(), Wrong> {
        let (start, mut depth) = (self.at, 1);
        for (index, char) in self.text[start..].char_indices() {
            depth += match char {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            if depth == 0 {
                self.at = start + index + 1;
                return Ok(());
            }
        }
        Err((start.saturating_sub(1)..start, "this brace is not closed".to_owned()))
    }

    fn single(&mut self, token: Token) -> Token {
        self.at += 1;
        token
    }

    fn quoted(&mut self, quote: char) -> Result<Token, Wrong> {
        let start = self.at;
        let mut word = String::new();
        let mut chars = self.text[start + 1..].char_indices();
        while let Some((index, char)) = chars.next() {
            match char {
                '\\' => escape(&mut word, chars.next().map(|(_, char)| char)),
                char if char == quote => {
                    self.at = start + 1 + index + 1;
                    let behind = self.text[self.at..].chars().next();
                    // `)` ends the condition of an `if`.
                    if behind.is_some_and(|char| !" \t\r\n;{)".contains(char)) {
                        let message = "the closing quote must be followed by a space, `;` or `{`".to_owned();
                        return Err((self.at..self.at + 1, message));
                    }
                    return Ok(Token::Word(word, true));
                }
                char => word.push(char),
            }
        }
        Err((start..start + 1, "this quote is not closed".to_owned()))
    }

    fn bare(&mut self) -> Token {
        let start = self.at;
        let mut word = String::new();
        let mut before = '\0';
        let mut chars = self.text[start..].char_indices();
        self.at = self.text.len();
        while let Some((index, char)) = chars.next() {
            match char {
                '\\' => escape(&mut word, chars.next().map(|(_, char)| char)),
                // `${name}` is a variable, not a block.
                '{' if before == '$' => word.push(char),
                ' ' | '\t' | '\r' | '\n' | ';' | '{' => {
                    self.at = start + index;
                    break;
                }
                char => word.push(char),
            }
            before = char;
        }
        Token::Word(word, false)
    }
}

/// A backslash and the character after it: quotes, backslashes and control characters are unescaped, anything else
/// stays as it is.
fn escape(word: &mut String, behind: Option<char>) {
    match behind {
        Some(char @ ('"' | '\'' | '\\')) => word.push(char),
        Some('t') => word.push('\t'),
        Some('r') => word.push('\r'),
        Some('n') => word.push('\n'),
        Some(char) => word.extend(['\\', char]),
        None => word.push('\\'),
    }
}
