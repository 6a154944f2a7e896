//! Templates: text with markers that are filled in for each request.

use flatout_trial::Random;

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(Vec<u8>),
    /// `{counter}`: 0, 1, 2, …; each number is used once among all threads.
    Counter,
    /// `{random:1-1000}`
    Random(u64, u64),
    /// `{pick:red,green,blue}`
    Pick(Vec<Vec<u8>>),
}

/// The state of one thread's markers.
#[derive(Debug, Clone)]
pub(crate) struct Filler {
    counter: u64,
    counter_step: u64,
    random: Random,
}

impl Filler {
    /// For thread `index` of `threads`.
    pub(crate) fn new((index, threads): (usize, usize), seed: u64) -> Filler {
        Filler {
            counter: index as u64,
            counter_step: threads as u64,
            random: Random::new(seed ^ (index as u64) << 32),
        }
    }

    /// A number below `limit`.
    #[inline]
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    /// Adds a template's text to `out`.
    pub(crate) fn fill(&mut self, pieces: &[Piece], out: &mut Vec<u8>) {
        pieces.iter().for_each(|piece| self.fill_piece(piece, out));
    }

    fn fill_piece(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text(text) => out.extend_from_slice(text),
            Piece::Counter => {
                out.extend_from_slice(self.counter.to_string().as_bytes());
                self.counter += self.counter_step;
            }
            Piece::Random(low, high) => {
                let number = low + self.below((high - low).saturating_add(1));
                out.extend_from_slice(number.to_string().as_bytes());
            }
            Piece::Pick(choices) => {
                out.extend_from_slice(&choices[self.below(choices.len() as u64) as usize])
            }
        }
    }
}

/// Whether there are no markers.
pub(crate) fn is_plain(pieces: &[Piece]) -> bool {
    matches!(pieces, [] | [Piece::Text(_)])
}

/// Parses a template. Text that only resembles a marker stays as it is: JSON is full of braces.
pub(crate) fn pieces(text: &[u8]) -> Vec<Piece> {
    let mut found = Vec::new();
    let mut plain = Vec::new();
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        if let Some((piece, length)) = marker(rest) {
            if !plain.is_empty() {
                found.push(Piece::Text(std::mem::take(&mut plain)));
            }
            found.push(piece);
            rest = &rest[length..];
        } else {
            plain.push(byte);
            rest = behind;
        }
    }
    if !plain.is_empty() {
        found.push(Piece::Text(plain));
    }
    found
}

/// The marker at the start of `text`, and its length.
fn marker(text: &[u8]) -> Option<(Piece, usize)> {
    let inner = text.strip_prefix(b"{")?;
    let end = inner.iter().position(|&byte| byte == b'}')?;
    let inner = std::str::from_utf8(&inner[..end]).ok()?;
    let piece = match inner.split_once(':') {
        None if inner == "counter" => Piece::Counter,
        Some(("random", range)) => {
            let (low, high) = range.split_once('-')?;
            let (low, high) = (low.parse().ok()?, high.parse().ok()?);
            (low <= high).then_some(Piece::Random(low, high))?
        }
        Some(("pick", choices)) => {
            Piece::Pick(choices.split(',').map(|choice| choice.as_bytes().to_vec()).collect())
        }
        _ => return None,
    };
    Some((piece, end + 2))
}
