//! Finds quotes and braces that are not closed, and says where they were opened.

use std::ops::Range;

use crate::pieces::{Piece, placed_pieces};

/// A brace that is open, and the indentation of its line.
struct OpenBrace {
    at: usize,
    indent: usize,
}

/// Blocks that are open at once; more are no site file, and the question has no answer.
const DEPTH_MAX: usize = 65_536;

/// The first quote that is not closed on its line, or else the brace that has no partner.
pub(crate) fn unclosed(text: &str) -> Option<(Range<usize>, String)> {
    let mut open: Vec<OpenBrace> = Vec::new();
    let mut suspect = None;
    let mut line = Line::at(text, 0);
    for (at, piece) in placed_pieces(text) {
        match piece {
            Piece::Word(word) if is_unclosed(word) => {
                let line = word.lines().next().unwrap_or_default().len();
                return Some((at..at + line, "this text has no closing quote on its line".to_owned()));
            }
            Piece::Open if open.len() == DEPTH_MAX => return None,
            Piece::Open => open.push(OpenBrace { at, indent: line.indent }),
            Piece::Close => match open.pop() {
                None => {
                    return Some((
                        at..at + 1,
                        "there is no block to close here; leave out this `}`".to_owned(),
                    ));
                }
                // A brace that stands further left than the line of its partner most likely closes a block around it.
                Some(brace) if line.is_first(at) && line.indent < brace.indent => {
                    suspect.get_or_insert(brace.at);
                }
                Some(_) => {}
            },
            _ => {}
        }
        let lines = match piece {
            Piece::NewLine => Some(0),
            Piece::Word(text) | Piece::GoesOn(text) => text.rfind('\n'),
            _ => None,
        };
        if let Some(end) = lines {
            line = Line::at(text, at + end + 1);
        }
    }
    let last = open.pop()?;
    let place = suspect.unwrap_or(last.at);
    Some((place..place + 1, "this `{` is not closed: a `}` is missing".to_owned()))
}

/// A line of the text.
struct Line {
    start: usize,
    /// Blanks before its first word.
    indent: usize,
}

impl Line {
    fn at(text: &str, start: usize) -> Line {
        let blanks = text[start..].bytes().take_while(|byte| matches!(byte, b' ' | b'\t'));
        Line { start, indent: blanks.count() }
    }

    /// Whether only blanks are before this byte.
    fn is_first(&self, at: usize) -> bool {
        at == self.start + self.indent
    }
}

/// A text in quotes that goes on behind the end of its line.
fn is_unclosed(word: &str) -> bool {
    let is_single = word.starts_with('"') && !word.starts_with("\"\"\"");
    is_single && (word.contains('\n') || word.len() == 1 || !word.ends_with('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_open_block_is_found() {
        for (text, expected) in [
            ("a {\n  b {\n    c 1\n}\n", Some((8, "not closed"))),
            ("a {\n  b {\n    c 1\n  }\n", Some((2, "not closed"))),
            ("a {\n  b { c 1; }\n}\nd {\n", Some((21, "not closed"))),
            ("a {\n}\n}\n", Some((6, "no block"))),
            ("a \"b\nc \"d\"\n", Some((2, "no closing quote"))),
            ("a {\n  b \"{\" // {\n}\n", None),
        ] {
            let found = unclosed(text).map(|(at, message)| (at.start, message));
            assert_eq!(found.as_ref().map(|(at, _)| *at), expected.map(|(at, _)| at), "{text}");
            if let (Some((_, message)), Some((_, part))) = (found, expected) {
                assert!(message.contains(part), "{message}");
            }
        }
    }
}
