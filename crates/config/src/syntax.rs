//! Parses KDL, and rewords the parser's errors.

use std::ops::Range;

use kdl::{KdlDocument, KdlError};

use crate::mistake::Mistake;
use crate::source::Source;

/// The parser recurses for every nested brace. No file that [`Source`] accepts can use up this much stack. Memory is
/// only used as needed.
const STACK_BYTES: usize = 256 << 20;

/// Parser errors that are examined: later ones usually follow from the first few.
const COMPLAINTS_MAX: usize = 16;

/// Parses a file.
pub(crate) fn document(source: &Source) -> Result<KdlDocument, Mistake> {
    let parse = || KdlDocument::parse(source.text());
    let parsed = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, parse);
        thread.ok().and_then(|thread| thread.join().ok())
    });
    match parsed {
        Some(Ok(document)) => Ok(document),
        Some(Err(error)) => Err(mistake(source, &error)),
        None => Err(source.mistake(0..0, "the KDL parser failed".to_owned())),
    }
}

/// The first error of the parser.
pub(crate) fn mistake(source: &Source, error: &KdlError) -> Mistake {
    let Some(first) = error.diagnostics.first() else {
        return source.mistake(0..0, "it is not KDL".to_owned());
    };
    let habits = error
        .diagnostics
        .iter()
        .take(COMPLAINTS_MAX)
        .find_map(|complaint| habit(source.text(), complaint.span.offset()));
    if let Some((at, message)) = habits {
        return source.mistake(at, message);
    }
    let start = first.span.offset();
    let what = first.message.as_deref().or(first.label.as_deref()).unwrap_or("this is not KDL");
    let help = first.help.as_deref().map(|help| format!("; {help}")).unwrap_or_default();
    source.mistake(start..start + first.span.len(), format!("{what}{help}"))
}

/// Habits from other configurations: a value with a unit or a slash without quotes, and comments that start with `#`.
fn habit(text: &str, start: usize) -> Option<(Range<usize>, String)> {
    let start = (0..=start.min(text.len())).rev().find(|at| text.is_char_boundary(*at))?;
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[line_start..].find('\n').map_or(text.len(), |at| line_start + at);
    let line = &text[line_start..line_end];
    let mut at = line_start;
    for (index, word) in line.split([' ', '\t']).enumerate() {
        let begin = at;
        at += word.len() + 1;
        let is_comment = word.starts_with('#')
            && !["#true", "#false", "#null"].contains(&word.trim_end_matches([';', '}']));
        if is_comment && !word[1..].starts_with(['"', '#']) {
            let end = line_start + line.trim_end().len();
            return Some((begin..end.max(begin), "comments begin with `//`, not with `#`".to_owned()));
        }
        if word.contains('"') || word.starts_with("//") {
            return None;
        }
        let value =
            word.split_once('=').map_or(word, |(_, value)| value).trim_end_matches([';', '{', '}', '\r']);
        let has_unit = value.starts_with(|char: char| char.is_ascii_digit())
            && value.contains(|char: char| !char.is_ascii_digit());
        if (index > 0 || line.starts_with([' ', '\t']))
            && (has_unit || value.contains('/'))
            && !value.is_empty()
        {
            let begin = begin + word.find(value)?;
            return Some((begin..begin + value.len(), format!("this needs quotes: \"{value}\"")));
        }
    }
    None
}
