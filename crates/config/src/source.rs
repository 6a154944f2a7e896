//! The text of a file, and where in it something is.

use std::ops::Range;

use crate::mistake::Mistake;

/// Bytes of a file. A plan has a few thousand; who names a disk by mistake is told so.
pub const BYTES_MAX: usize = 64 << 10;

/// Braces and comments of a file. Each variant has one; the parser needs stack for each that lies in another.
pub const OPENINGS_MAX: usize = 256;

/// Characters of a line that are shown.
const SHOWN_MAX: usize = 100;

/// A file that is text, and of a size that can be parsed.
#[derive(Debug, Clone)]
pub struct Source {
    name: String,
    text: String,
}

impl Source {
    /// The file `name` with these bytes.
    ///
    /// # Errors
    /// More than [`BYTES_MAX`], nothing, no UTF-8, or more braces than [`OPENINGS_MAX`].
    pub fn new(name: &str, bytes: Vec<u8>) -> Result<Source, Mistake> {
        let name = name.to_owned();
        if bytes.len() > BYTES_MAX {
            let message = format!("it is larger than {} KiB, the limit of a plan", BYTES_MAX >> 10);
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
            return Err(source.mistake(0..0, "it is empty; a plan needs at least one rung".to_owned()));
        }
        source.check_openings()?;
        Ok(source)
    }

    /// A mistake at these bytes of the text.
    pub fn mistake(&self, at: Range<usize>, message: String) -> Mistake {
        let start = self.boundary(at.start);
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..].find(['\n', '\r']).map_or(self.text.len(), |at| start + at);
        let end = self.boundary(at.end).clamp(start, line_end.max(start));
        let before = self.text[line_start..start].chars().count();
        let length = self.text[start..end].chars().count();
        // What is wrong is in sight, with some of what is before it.
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

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The line, from 1, with this byte.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.text[..self.boundary(at)].matches('\n').count() + 1
    }

    /// The last boundary of characters that is not behind `at`.
    fn boundary(&self, at: usize) -> usize {
        let at = at.min(self.text.len());
        (0..=at).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }

    /// Counts what opens, wherever it stands: what is a string and what is not is the parser's to know, and it is the
    /// parser that has to be kept from going too deep.
    fn check_openings(&self) -> Result<(), Mistake> {
        let openings = self.text.match_indices(['{', '(']).chain(self.text.match_indices("/*"));
        match openings.map(|(at, _)| at).nth(OPENINGS_MAX) {
            Some(at) => {
                let message = format!("there are more than {OPENINGS_MAX} braces and comments");
                Err(self.mistake(at..at + 1, message))
            }
            None => Ok(()),
        }
    }
}

/// What a terminal would act on becomes what it can show.
fn harmless(char: char) -> char {
    if char.is_control() && char != '\t' { char::REPLACEMENT_CHARACTER } else { char }
}
