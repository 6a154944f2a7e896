//! Parses KDL, and rewords the parser's errors.

use std::ops::Range;

use kdl::{KdlDocument, KdlError};

use crate::closings::unclosed;
use crate::habits::{Edit, Habit, habit};
use crate::mistake::Mistake;
use crate::pieces::{Piece, placed_pieces};
use crate::source::Source;

/// The parser recurses for every nested brace. No file that [`Source`] accepts can use up this much stack. Memory is
/// only used as needed.
const STACK_BYTES: usize = 256 << 20;

/// Parser errors that are examined: later ones usually follow from the first few.
const COMPLAINTS_MAX: usize = 64;

/// How often a text is mended and parsed again.
const ROUNDS_MAX: usize = 16;

/// The largest text that is mended: each round takes as long as the first.
const MENDED_BYTES_MAX: usize = 64 << 10;

/// A chunk of a text as it was parsed, after its habits were mended.
pub(crate) struct Mended {
    /// `None` if it cannot be parsed.
    pub(crate) document: Option<KdlDocument>,
    /// Where its bytes are in the source.
    pub(crate) origin: Origin,
    /// All mistakes of its syntax.
    pub(crate) mistakes: Vec<Mistake>,
}

/// Where the bytes of a mended chunk are in the source. Without an entry for each byte, they follow each other.
#[derive(Debug, Default)]
pub(crate) struct Origin {
    start: usize,
    places: Vec<usize>,
}

impl Origin {
    /// The same bytes in the source.
    pub(crate) fn of(&self, at: Range<usize>) -> Range<usize> {
        self.byte(at.start)..self.byte(at.end)
    }

    fn byte(&self, at: usize) -> usize {
        self.start + self.places.get(at).copied().unwrap_or(at)
    }

    /// Changes a text, and remembers where its bytes were. Edits must not overlap.
    fn edit(&mut self, text: &str, mut edits: Vec<Edit>) -> String {
        edits.sort_by_key(|edit| edit.at.start);
        let mut places = Vec::with_capacity(text.len() + 1);
        let mut edited = String::with_capacity(text.len());
        let mut done = 0;
        for edit in edits.iter().filter(|edit| edit.at.end <= text.len()) {
            if edit.at.start < done {
                continue;
            }
            edited.push_str(&text[done..edit.at.start]);
            let place = |at: usize| self.places.get(at).copied().unwrap_or(at);
            places.extend((done..edit.at.start).map(place));
            edited.push_str(&edit.text);
            // Bytes that replace others stand at their places; those beyond stand at the end.
            places.extend((0..edit.text.len()).map(|nth| place((edit.at.start + nth).min(edit.at.end))));
            done = edit.at.end;
        }
        edited.push_str(&text[done..]);
        places.extend((done..=text.len()).map(|at| self.places.get(at).copied().unwrap_or(at)));
        self.places = places;
        edited
    }
}

/// Parses a file that is one chunk.
///
/// # Errors
/// The first mistake.
pub(crate) fn document(source: &Source) -> Result<KdlDocument, Mistake> {
    chunk(source, 0..source.text().len())
}

/// Parses a chunk of a file. Positions begin with it.
///
/// # Errors
/// The first mistake.
pub(crate) fn chunk(source: &Source, chunk: Range<usize>) -> Result<KdlDocument, Mistake> {
    let text = &source.text()[chunk.clone()];
    parse(text).map_err(|unread| {
        let habits = unread.habits(text).into_iter().map(|habit| (habit.at, habit.message));
        let (at, message) = habits.min_by_key(|(at, _)| at.start).unwrap_or_else(|| unread.complaint(text));
        source.mistake(chunk.start + at.start..chunk.start + at.end, message)
    })
}

/// Parses a chunk of a file with as many of its mistakes as can be found, or with the first few.
pub(crate) fn mended(source: &Source, chunk: Range<usize>, finds_all: bool) -> Mended {
    let mut text = source.text()[chunk.clone()].to_owned();
    let mut origin = Origin { start: chunk.start, places: Vec::new() };
    let mut mistakes = Vec::new();
    let rounds = if finds_all && text.len() <= MENDED_BYTES_MAX { ROUNDS_MAX } else { 1 };
    for _ in 0..rounds {
        let unread = match parse(&text) {
            Ok(document) => return Mended { document: Some(document), origin, mistakes },
            Err(unread) => unread,
        };
        let habits = unread.habits(&text);
        if habits.is_empty() {
            let (at, message) = unread.complaint(&text);
            mistakes.push(source.mistake(origin.of(at), message));
            break;
        }
        let mut edits = Vec::new();
        for habit in habits {
            mistakes.push(source.mistake(origin.of(habit.at), habit.message));
            edits.extend(habit.edits);
        }
        text = origin.edit(&text, edits);
    }
    Mended { document: None, origin, mistakes }
}

/// Why a text cannot be parsed; `None`: the parser failed.
struct Unread(Option<KdlError>);

fn parse(text: &str) -> Result<KdlDocument, Unread> {
    parse_kdl(text).or_else(|unread| match blocks_ended(text) {
        ended if ended == text => Err(unread),
        ended => parse_kdl(&ended),
    })
}

/// The text with `;` in place of a blank behind each block: kdl 6.5 refuses blanks and comments there. All positions stay.
fn blocks_ended(text: &str) -> String {
    let mut ended = text.as_bytes().to_vec();
    for (at, piece) in placed_pieces(text) {
        let behind = &text[at + usize::from(piece == Piece::Close)..];
        let is_next =
            behind.starts_with([' ', '\t']) && !behind.trim_start_matches([' ', '\t']).starts_with(';');
        if piece == Piece::Close && is_next {
            ended[at + 1] = b';';
        }
    }
    String::from_utf8(ended).unwrap_or_default()
}

fn parse_kdl(text: &str) -> Result<KdlDocument, Unread> {
    let parse = || KdlDocument::parse(text);
    let parsed = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, parse);
        thread.ok().and_then(|thread| thread.join().ok())
    });
    match parsed {
        Some(Ok(document)) => Ok(document),
        Some(Err(error)) => Err(Unread(Some(error))),
        None => Err(Unread(None)),
    }
}

impl Unread {
    /// The habits on lines that the parser complains about, one a line.
    fn habits(&self, text: &str) -> Vec<Habit> {
        let mut found: Vec<Habit> = Vec::new();
        let complaints = self.0.iter().flat_map(|error| &error.diagnostics).take(COMPLAINTS_MAX);
        for habit in complaints.filter_map(|complaint| habit(text, complaint.span.offset())) {
            if !found.iter().any(|other| other.at == habit.at) {
                found.push(habit);
            }
        }
        found
    }

    /// What is wrong if it is no habit.
    fn complaint(&self, text: &str) -> (Range<usize>, String) {
        let Some(error) = &self.0 else { return (0..0, "the KDL parser failed".to_owned()) };
        if let Some(unclosed) = unclosed(text) {
            return unclosed;
        }
        let Some(first) = error.diagnostics.first() else { return (0..0, "it is not KDL".to_owned()) };
        let start = first.span.offset();
        let what = first.message.as_deref().or(first.label.as_deref()).unwrap_or("this is not KDL");
        let help = first.help.as_deref().map(|help| format!("; {help}")).unwrap_or_default();
        (start..start + first.span.len(), format!("{what}{help}"))
    }
}
