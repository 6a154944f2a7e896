//! The text of a file, and positions in it.

use std::ops::Range;

use crate::chunks::chunks;
use crate::closings::unclosed;
use crate::mistake::Mistake;

/// The limits of a kind of file.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The name of this kind in a sentence.
    pub name: &'static str,
    /// Its size limit in bytes, so that a device given by mistake is reported and not read.
    pub bytes_max: usize,
    /// Limit of a chunk, which is parsed at once: in a long file a block at its top, with what is near it.
    pub chunk_bytes_max: usize,
    /// Limit of braces and comments of a chunk; the parser needs stack for each nesting level.
    pub openings_max: usize,
    /// What an empty file lacks.
    pub lacks: &'static str,
}

/// A plan file: a few thousand bytes, and a brace per variant.
pub const PLAN: Bounds = Bounds {
    name: "a plan",
    bytes_max: 64 << 10,
    chunk_bytes_max: 64 << 10,
    openings_max: 256,
    lacks: "a plan needs at least one rung",
};

/// A site file: a few thousand bytes, and a brace for each route, per site; and tens of thousands of sites.
pub const SITE_FILE: Bounds = Bounds {
    name: "a site file",
    bytes_max: 64 << 20,
    chunk_bytes_max: 1 << 20,
    openings_max: 8192,
    lacks: "a site file needs something to serve, such as files \"./public\"",
};

/// Characters of a line that are shown.
const SHOWN_MAX: usize = 100;

/// A text file of a size that can be parsed.
#[derive(Debug, Clone)]
pub struct Source {
    name: String,
    text: String,
}

impl Source {
    /// The file `name` with these bytes.
    ///
    /// # Errors
    /// More bytes or braces than its kind or a chunk of it may have, an empty file, or invalid UTF-8.
    pub fn new(name: &str, bytes: Vec<u8>, bounds: &Bounds) -> Result<Source, Mistake> {
        let name = name.to_owned();
        if bytes.len() > bounds.bytes_max {
            let message =
                format!("it is larger than {} KiB, the limit of {}", bounds.bytes_max >> 10, bounds.name);
            return Err(Source { name, text: String::new() }.mistake(0..0, message));
        }
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let valid_bytes = error.utf8_error().valid_up_to();
                let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
                let at = valid_bytes..valid_bytes + char::REPLACEMENT_CHARACTER.len_utf8();
                return Err(Source { name, text }.mistake(at, "it is not UTF-8".to_owned()));
            }
        };
        let source = Source { name, text };
        if source.text.trim().is_empty() {
            return Err(source.mistake(0..0, format!("it is empty; {}", bounds.lacks)));
        }
        for chunk in chunks(&source.text) {
            source.check_chunk(chunk, bounds)?;
        }
        Ok(source)
    }

    /// A text that we have generated.
    pub(crate) fn whole(name: &str, text: &str) -> Source {
        Source { name: name.to_owned(), text: text.to_owned() }
    }

    /// A mistake at these bytes of the text.
    pub fn mistake(&self, at: Range<usize>, message: String) -> Mistake {
        let start = self.boundary(at.start);
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..].find(['\n', '\r']).map_or(self.text.len(), |at| start + at);
        let end = self.boundary(at.end).clamp(start, line_end.max(start));
        let before = self.text[line_start..start].chars().count();
        let length = self.text[start..end].chars().count();
        // Shorten the line so that the mistake is visible, with some text before it.
        let first = if before + length <= SHOWN_MAX { 0 } else { before.saturating_sub(SHOWN_MAX / 2) };
        let line = &self.text[line_start..line_end];
        Mistake {
            file: self.name.clone(),
            line: self.text[..start].matches('\n').count() + 1,
            column: before + 1,
            message: message.chars().map(harmless).collect(),
            shown: line.chars().skip(first).take(SHOWN_MAX).map(harmless).collect(),
            caret: (before - first, length.min(SHOWN_MAX - (before - first))),
        }
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line number, from 1, of this byte.
    pub fn line(&self, at: usize) -> usize {
        self.text[..self.boundary(at)].matches('\n').count() + 1
    }

    /// The last character boundary at or before `at`.
    fn boundary(&self, at: usize) -> usize {
        let at = at.min(self.text.len());
        (0..=at).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }

    /// Counts opening characters anywhere, even in strings: only the parser knows what is a string, and it is the
    /// parser that must not nest too deeply.
    fn check_chunk(&self, chunk: Range<usize>, bounds: &Bounds) -> Result<(), Mistake> {
        let text = &self.text[chunk.clone()];
        let openings = text.match_indices(['{', '(']).chain(text.match_indices("/*"));
        let excess = match openings.map(|(at, _)| at).nth(bounds.openings_max) {
            Some(at) => (at, format!("there are more than {} braces and comments", bounds.openings_max)),
            None if text.len() > bounds.chunk_bytes_max => {
                (0, format!("a block has more than {} KiB", bounds.chunk_bytes_max >> 10))
            }
            None => return Ok(()),
        };
        // A long chunk is most often a block that does not end.
        let (at, message) = match unclosed(text) {
            Some(found) if self.text.len() > bounds.chunk_bytes_max => found,
            _ => (excess.0..excess.0 + 1, excess.1),
        };
        Err(self.mistake(chunk.start + at.start..chunk.start + at.end, message))
    }
}

/// Replaces control characters by printable ones.
fn harmless(char: char) -> char {
    if char.is_control() && char != '\t' { char::REPLACEMENT_CHARACTER } else { char }
}
