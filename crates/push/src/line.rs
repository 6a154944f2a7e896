//! Latest values in a custom format: a line for each key, such as a JavaScript statement.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The default media type of a response with lines.
const CONTENT_TYPE: &str = "text/javascript; charset=utf-8";

/// The limit for a template, which is written once for each key of a request.
const TEMPLATE_BYTES_MAX: usize = 1024;

/// The template of a line, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pieces: Vec<Piece>,
    content_type: String,
    /// Changes with the template, so that another format gets another entity tag.
    tag: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Key,
    Value,
}

impl Line {
    /// Parses a template such as `var quote_{key}={value};`, in which `{value}` is replaced by the value as JSON.
    ///
    /// # Errors
    /// It has no value, or is too long; the message is for the person who wrote it.
    pub fn parse(template: &str, content_type: Option<String>) -> Result<Line, String> {
        if template.len() > TEMPLATE_BYTES_MAX {
            return Err(format!("got {} bytes, need at most {TEMPLATE_BYTES_MAX}", template.len()));
        }
        let mut pieces = Vec::new();
        let mut rest = template;
        while let Some((at, name, piece)) = next(rest) {
            pieces.push(Piece::Text(rest[..at].to_owned()));
            pieces.push(piece);
            rest = &rest[at + name.len()..];
        }
        pieces.push(Piece::Text(format!("{rest}\n")));
        if !pieces.contains(&Piece::Value) {
            return Err(format!(
                "got `{template}`, need {{value}} in it, such as var quote_{{key}}={{value}};"
            ));
        }
        let content_type = content_type.unwrap_or_else(|| CONTENT_TYPE.to_owned());
        let mut hash = DefaultHasher::new();
        (template, &content_type).hash(&mut hash);
        Ok(Line { pieces, content_type, tag: hash.finish() as u32 })
    }

    pub(super) fn content_type(&self) -> &str {
        &self.content_type
    }

    pub(super) fn tag(&self) -> u32 {
        self.tag
    }

    /// Adds the line of one key.
    pub(super) fn write(&self, key: &str, value: &[u8], out: &mut Vec<u8>) {
        for piece in &self.pieces {
            out.extend_from_slice(match piece {
                Piece::Text(text) => text.as_bytes(),
                Piece::Key => key.as_bytes(),
                Piece::Value => value,
            });
        }
    }
}

/// The next placeholder.
fn next(text: &str) -> Option<(usize, &'static str, Piece)> {
    let found = [("{key}", Piece::Key), ("{value}", Piece::Value)];
    let places = found.into_iter().filter_map(|(name, piece)| Some((text.find(name)?, name, piece)));
    places.min_by_key(|(at, ..)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_filled_in() {
        let line = Line::parse("q['{key}']={value}; // {value} {other}", None).unwrap();
        let mut out = Vec::new();
        line.write("sh600000", b"\"1,2\"", &mut out);
        line.write("é", b"{}", &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "q['sh600000']=\"1,2\"; // \"1,2\" {other}\nq['é']={}; // {} {other}\n");
        assert_ne!(line.tag(), Line::parse("{value}", None).unwrap().tag());
        assert_ne!(
            line.tag(),
            Line::parse("q['{key}']={value}", Some("text/plain".to_owned())).unwrap().tag()
        );
    }

    #[test]
    fn a_template_needs_a_value() {
        assert!(Line::parse("{key};", None).unwrap_err().contains("need {value}"));
        assert!(Line::parse(&"x".repeat(2000), None).unwrap_err().contains("at most 1024"));
    }
}
