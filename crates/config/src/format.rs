//! A file in the one form that `flatout fmt` gives it: four spaces for each brace, a line for each setting, comments and
//! single empty lines kept, values as they were written.

use kdl::{KdlDocument, KdlNode};

use crate::mistake::Mistake;
use crate::pieces::{Piece, pieces};
use crate::source::Source;
use crate::syntax;

/// One step to the right.
const INDENT: &str = "    ";

/// The text of a file in its one form. It means the same.
///
/// # Errors
/// What is no KDL; or a file whose meaning could not be kept, which is left to its author.
pub fn formatted(source: &Source) -> Result<String, Mistake> {
    let before = syntax::document(source)?;
    let mut lines = Lines::default();
    for piece in pieces(source.text()) {
        lines.take(piece);
    }
    let text = lines.end();
    let again = Source::whole("", &text);
    let same = syntax::document(&again).is_ok_and(|after| is_same(&before, &after));
    if same && comments(source.text()).eq(comments(&text)) {
        return Ok(text);
    }
    Err(source
        .mistake(0..0, "it cannot be formatted without changing its meaning; it was not changed".to_owned()))
}

/// A text in quotes, as it has to stand in a file.
pub fn quoted(text: &str) -> String {
    let mut told = String::with_capacity(text.len() + 2);
    told.push('"');
    for char in text.chars() {
        match char {
            '"' => told.push_str("\\\""),
            '\\' => told.push_str("\\\\"),
            '\n' => told.push_str("\\n"),
            '\r' => told.push_str("\\r"),
            '\t' => told.push_str("\\t"),
            // What KDL does not allow as it is.
            char if char.is_control() || !is_plain(char) => {
                told.push_str(&format!("\\u{{{:x}}}", u32::from(char)))
            }
            char => told.push(char),
        }
    }
    told.push('"');
    told
}

/// Whether a character may stand in a KDL string as it is: no line ends, no marks of direction.
fn is_plain(char: char) -> bool {
    !matches!(char, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Lines that become longer.
#[derive(Default)]
struct Lines {
    text: String,
    line: String,
    depth: usize,
    /// Empty lines before this one.
    gaps: usize,
    /// Whether the node of this line has ended; a comment may follow it.
    has_ended: bool,
    /// Whether a blank stood before the next piece.
    is_apart: bool,
    /// Whether this line goes on from the one before.
    goes_on: bool,
    /// Whether anything stands in the braces, or in the file.
    is_begun: bool,
}

impl Lines {
    fn take(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Blank => self.is_apart = true,
            Piece::NewLine if self.line.is_empty() => self.gaps += 1,
            Piece::NewLine => self.end_line(),
            Piece::End => self.has_ended = true,
            Piece::GoesOn(text) => {
                self.word(text.trim_end(), true);
                self.flush();
                self.goes_on = true;
            }
            Piece::LineComment(text) => self.word(text.trim_end(), true),
            Piece::Word(text) => {
                if self.has_ended {
                    self.end_line();
                }
                let is_apart = self.is_apart;
                self.word(text, is_apart);
            }
            Piece::Open => {
                if self.has_ended {
                    self.end_line();
                }
                self.word("{", true);
                self.has_ended = true;
                self.depth += 1;
                self.is_begun = false;
            }
            Piece::Close => {
                self.depth = self.depth.saturating_sub(1);
                self.gaps = 0;
                if self.is_begun || !self.line.ends_with('{') {
                    self.end_line();
                    self.gaps = 0;
                }
                self.word("}", false);
                self.has_ended = true;
                self.is_begun = true;
            }
        }
    }

    fn word(&mut self, text: &str, is_apart: bool) {
        if self.line.is_empty() {
            if self.gaps > 0 && self.is_begun && !self.goes_on {
                self.text.push('\n');
            }
            self.gaps = 0;
            let depth = self.depth + usize::from(self.goes_on);
            self.line.push_str(&INDENT.repeat(depth));
            self.goes_on = false;
        } else if is_apart {
            self.line.push(' ');
        }
        self.line.push_str(text);
        self.is_apart = false;
        // A brace that opens begins something of its own.
        self.is_begun = true;
    }

    fn end_line(&mut self) {
        let opens = self.has_ended && self.line.ends_with('{');
        self.flush();
        self.has_ended = false;
        self.is_begun = !opens || self.is_begun;
    }

    fn flush(&mut self) {
        if !self.line.is_empty() {
            self.text.push_str(self.line.trim_end());
            self.text.push('\n');
        }
        self.line.clear();
        self.is_apart = false;
    }

    fn end(mut self) -> String {
        self.flush();
        self.text
    }
}

/// Whether both say the same.
fn is_same(one: &KdlDocument, other: &KdlDocument) -> bool {
    let entries = |node: &KdlNode| -> Vec<_> {
        let name = |entry: &kdl::KdlEntry| entry.name().map(|name| name.value().to_owned());
        node.entries().iter().map(|entry| (name(entry), entry.value().clone())).collect()
    };
    let same_node = |(one, other): (&KdlNode, &KdlNode)| {
        let inner = match (one.children(), other.children()) {
            (Some(one), Some(other)) => is_same(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        one.name().value() == other.name().value() && entries(one) == entries(other) && inner
    };
    one.nodes().len() == other.nodes().len() && one.nodes().iter().zip(other.nodes()).all(same_node)
}

/// What of a text is no blank: none of it may be lost, also in comments.
fn comments(text: &str) -> impl Iterator<Item = char> {
    text.trim_start_matches('\u{feff}').chars().filter(|char| !char.is_whitespace() && *char != ';')
}
