//! Habits from other configurations that KDL does not know: values without quotes, `#` for comments, `=` after a name, `true`.
//! Each is reported, and mended in a copy of the text, so that the rest of the file can be read.

use std::ops::Range;

/// Starts of words that are numbers, whatever follows.
const NUMBER_STARTS: [&str; 3] = ["0x", "0o", "0b"];

/// Words that begin with `#` and are no comments.
const KEYWORDS: [&str; 6] = ["#true", "#false", "#null", "#nan", "#inf", "#-inf"];

/// A habit.
#[derive(Debug)]
pub(crate) struct Habit {
    /// Where it is.
    pub(crate) at: Range<usize>,
    /// What to write.
    pub(crate) message: String,
    /// What mends it.
    pub(crate) edits: Vec<Edit>,
}

/// A change of a text.
#[derive(Debug)]
pub(crate) struct Edit {
    /// The bytes to replace.
    pub(crate) at: Range<usize>,
    /// What replaces them.
    pub(crate) text: String,
}

impl Edit {
    fn new(at: Range<usize>, text: impl Into<String>) -> Edit {
        Edit { at, text: text.into() }
    }
}

/// The first habit on the line with this byte.
pub(crate) fn habit(text: &str, start: usize) -> Option<Habit> {
    let start = (0..=start.min(text.len())).rev().find(|at| text.is_char_boundary(*at))?;
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[line_start..].find('\n').map_or(text.len(), |at| line_start + at);
    let line = text[line_start..line_end].trim_end();
    let is_indented = line.starts_with([' ', '\t']);
    let words = words(line);
    words.iter().enumerate().find_map(|(nth, word)| {
        let at = line_start + word.at.start..line_start + word.at.end;
        let typed = &text[at.clone()];
        let comment_end = line_start + line.len();
        comment(typed, at.start..comment_end)
            .or_else(|| equals(typed, word, words.get(nth + 1), &at))
            .or_else(|| value(text, at.clone(), comment_end, word.nth > 0 || is_indented))
    })
}

/// `# …`
fn comment(typed: &str, at: Range<usize>) -> Option<Habit> {
    let rest = typed.strip_prefix('#')?;
    if KEYWORDS.contains(&typed) || rest.starts_with(['"', '#']) {
        return None;
    }
    let mark = at.start..at.start + 1;
    Some(Habit {
        at: at.clone(),
        message: "comments begin with `//`, not with `#`".to_owned(),
        edits: vec![Edit::new(mark, "//")],
    })
}

/// `workers = 4`, `workers=4`
fn equals(typed: &str, word: &LineWord, next: Option<&LineWord>, at: &Range<usize>) -> Option<Habit> {
    let place = match (word.nth, typed.find('=')) {
        (0, Some(place)) => place,
        (1, Some(0)) if typed.len() > 1 || next.is_some_and(|next| next.nth == 2) => 0,
        _ => return None,
    };
    let place = at.start + place..at.start + place + 1;
    Some(Habit {
        at: place.clone(),
        message: "leave out this `=`: a setting and its value are separated by a space".to_owned(),
        edits: vec![Edit::new(place, " ")],
    })
}

/// A value without the quotes that it needs.
fn value(text: &str, at: Range<usize>, line_end: usize, may_have_slash: bool) -> Option<Habit> {
    let typed = &text[at.clone()];
    if typed.contains('"') {
        return None;
    }
    let value = typed.split_once('=').map_or(typed, |(_, value)| value);
    let from = at.end - value.len();
    if !may_have_slash || value.is_empty() {
        return None;
    }
    if let Some(inner) = value.strip_prefix('\'') {
        let rest = &text[from + 1..line_end];
        let end = from + 1 + rest.find('\'').unwrap_or(inner.len().min(rest.len()));
        let meant = &text[from + 1..end];
        let past = (end + 1).min(line_end);
        return Some(Habit {
            at: from..past,
            message: format!("text needs double quotes: \"{meant}\""),
            edits: vec![Edit::new(from..from + 1, "\""), Edit::new(end..past, "\"")],
        });
    }
    let switch = match value {
        "true" => Some("on"),
        "false" => Some("off"),
        _ => None,
    };
    if let Some(switch) = switch {
        let padded = format!("{switch:0$}", value.len());
        return Some(Habit {
            at: from..at.end,
            message: format!("got `{value}`, need {switch}, or #{value} with a #"),
            edits: vec![Edit::new(from..at.end, padded)],
        });
    }
    let is_number =
        value.parse::<f64>().is_ok() || NUMBER_STARTS.iter().any(|start| value.starts_with(start));
    let has_unit = value.starts_with(|char: char| char.is_ascii_digit()) && !is_number;
    if !has_unit && !value.contains(['/', '[']) {
        return None;
    }
    Some(Habit {
        at: from..at.end,
        message: format!("this needs quotes: \"{value}\""),
        edits: vec![Edit::new(from..from, "\""), Edit::new(at.end..at.end, "\"")],
    })
}

/// A word of a line.
struct LineWord {
    at: Range<usize>,
    /// Its place in its node: 0 is the name.
    nth: usize,
}

/// The words of a line up to a comment; blanks in quotes do not split.
fn words(line: &str) -> Vec<LineWord> {
    let mut words: Vec<LineWord> = Vec::new();
    let (mut start, mut nth) = (None, 0);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, char) in line.char_indices().chain([(line.len(), '\n')]) {
        if is_quoted {
            is_quoted = char != '"' || is_escaped;
            is_escaped = char == '\\' && !is_escaped;
            continue;
        }
        let ends = char.is_whitespace() || "{};".contains(char);
        match (start, ends) {
            (None, false) if line[at..].starts_with("//") || line[at..].starts_with("/*") => break,
            (None, false) => start = Some(at),
            (Some(from), true) => {
                words.push(LineWord { at: from..at, nth });
                nth += 1;
                start = None;
            }
            _ => {}
        }
        if "{};".contains(char) {
            nth = 0;
        }
        is_quoted = char == '"';
    }
    words
}
