//! Formats a file as `flatout fmt` does: four spaces per brace, one line per setting; comments and single empty lines
//! are kept, and values stay as they were written.

use kdl::{KdlDocument, KdlNode};

use crate::chunks::chunks;
use crate::mistake::Mistake;
use crate::pieces::{Piece, pieces};
use crate::source::Source;
use crate::syntax;

/// One level of indentation.
const INDENT: &str = "    ";

/// The formatted text of a file. Its meaning is unchanged.
///
/// # Errors
/// Invalid KDL; or a file whose meaning would change, which stays as it is.
pub fn formatted(source: &Source) -> Result<String, Mistake> {
    let before = documents(source)?;
    let mut lines = Lines::default();
    for piece in pieces(source.text()) {
        lines.take(piece);
    }
    let text = lines.end();
    let again = Source::whole("", &text);
    let same = documents(&again).is_ok_and(|after| is_same(nodes(&before), nodes(&after)));
    if same && comments(source.text()).eq(comments(&text)) {
        return Ok(text);
    }
    Err(source
        .mistake(0..0, "it cannot be formatted without changing its meaning; it was not changed".to_owned()))
}

/// The chunks of a file.
fn documents(source: &Source) -> Result<Vec<KdlDocument>, Mistake> {
    chunks(source.text()).into_iter().map(|chunk| syntax::chunk(source, chunk)).collect()
}

fn nodes(chunks: &[KdlDocument]) -> impl Iterator<Item = &KdlNode> {
    chunks.iter().flat_map(KdlDocument::nodes)
}

/// A text in quotes, as a file needs it.
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
            // Characters that KDL does not allow unescaped.
            char if char.is_control() || !is_plain(char) => {
                told.push_str(&format!("\\u{{{:x}}}", u32::from(char)))
            }
            char => told.push(char),
        }
    }
    told.push('"');
    told
}

/// Whether a character may appear unescaped in a KDL string: no line ends, no direction marks.
fn is_plain(char: char) -> bool {
    !matches!(char, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// The lines of the output.
#[derive(Default)]
struct Lines {
    text: String,
    line: String,
    depth: usize,
    /// Empty lines before this one.
    gaps: usize,
    /// Whether the node on this line has ended; a comment may follow it.
    has_ended: bool,
    /// Whether there was a blank before the next piece.
    is_apart: bool,
    /// Whether this line continues the previous one.
    goes_on: bool,
    /// Whether the braces, or the file, have any content so far.
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
        // An opening brace starts its own content.
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

/// Whether both have the same meaning.
fn is_same<'n>(
    mut one: impl Iterator<Item = &'n KdlNode>,
    mut other: impl Iterator<Item = &'n KdlNode>,
) -> bool {
    let entries = |node: &KdlNode| -> Vec<_> {
        let name = |entry: &kdl::KdlEntry| entry.name().map(|name| name.value().to_owned());
        node.entries().iter().map(|entry| (name(entry), entry.value().clone())).collect()
    };
    let same_node = |one: &KdlNode, other: &KdlNode| {
        let inner = match (one.children(), other.children()) {
            (Some(one), Some(other)) => is_same(one.nodes().iter(), other.nodes().iter()),
            (one, other) => one.is_none() && other.is_none(),
        };
        one.name().value() == other.name().value() && entries(one) == entries(other) && inner
    };
    loop {
        match (one.next(), other.next()) {
            (Some(one), Some(other)) if same_node(one, other) => {}
            (one, other) => return one.is_none() && other.is_none(),
        }
    }
}

/// The non-blank characters of a text: none of them may be lost, also in comments.
fn comments(text: &str) -> impl Iterator<Item = char> {
    text.trim_start_matches('\u{feff}').chars().filter(|char| !char.is_whitespace() && *char != ';')
}
