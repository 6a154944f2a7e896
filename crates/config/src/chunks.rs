//! Splits a long file into chunks that are parsed one after the other: the parser keeps many times the bytes of a text, and needs stack
//! for each brace that may be open.

use std::ops::Range;

use crate::pieces::{Piece, placed_pieces};

/// A chunk of several nodes has at most so many bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// A chunk of several nodes has at most so many opening characters.
const CHUNK_OPENINGS: usize = 4096;

/// The chunks of a text: each has whole nodes, and ends with a line. A short text is one chunk.
pub(crate) fn chunks(text: &str) -> Vec<Range<usize>> {
    let mut chunks = Chunks { text, done: Vec::new(), begin: 0, end: 0, openings: 0 };
    let mut depth = 0_usize;
    let mut goes_on = false;
    for (at, piece) in placed_pieces(text) {
        match piece {
            Piece::Open => depth += 1,
            Piece::Close => depth = depth.saturating_sub(1),
            Piece::NewLine if depth == 0 && !goes_on => chunks.add_up_to(at + 1),
            _ => {}
        }
        // What `/-` leaves out may stand on the next line.
        goes_on = match piece {
            Piece::Blank | Piece::NewLine | Piece::LineComment(_) | Piece::GoesOn(_) => goes_on,
            Piece::Word(word) if word.starts_with("/*") => goes_on,
            Piece::Word(word) => word == "/-",
            _ => false,
        };
    }
    chunks.add_up_to(text.len());
    chunks.done.push(chunks.begin..text.len());
    chunks.done
}

struct Chunks<'t> {
    text: &'t str,
    done: Vec<Range<usize>>,
    /// Of the chunk that is being filled.
    begin: usize,
    end: usize,
    openings: usize,
}

impl Chunks<'_> {
    /// Adds the lines up to this byte, which belong together.
    fn add_up_to(&mut self, end: usize) {
        let openings = self.text[self.end..end].matches(['{', '(', '*']).count();
        self.openings += openings;
        let is_full = end - self.begin > CHUNK_BYTES || self.openings > CHUNK_OPENINGS;
        if is_full && self.end > self.begin {
            self.done.push(self.begin..self.end);
            (self.begin, self.openings) = (self.end, openings);
        }
        self.end = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_nodes_and_together_the_text() {
        let short = "listen 80\nsite a { spa; }\n";
        assert_eq!(chunks(short), std::slice::from_ref(&(0..short.len())));
        assert_eq!(chunks("").len(), 1);
        let block = "site \"}\" { // }\n  route \"/{\" {\n    spa /* } */\n  }\n}\n/-\nsite b {\n}\n";
        for count in [2000, 5000] {
            let text = block.repeat(count);
            let chunks = chunks(&text);
            assert!(chunks.len() > 2 && chunks[0].start == 0 && chunks.last().unwrap().end == text.len());
            assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
            for chunk in chunks {
                let chunk = &text[chunk];
                assert!(chunk.len() <= CHUNK_BYTES, "{}", chunk.len());
                assert!(chunk.starts_with("site \"") || chunk.starts_with("/-"), "{chunk:.40}");
                assert!(chunk.ends_with("}\n"));
            }
        }
        // What `/-` leaves out may stand behind a comment, and a comment ends at each end of a line that KDL has.
        let left_out = "/- /* old */\nsite b {\n}\n// note\rsite c {\n}\n";
        let text = left_out.repeat(5000);
        let chunks_of_it = chunks(&text);
        assert!(chunks_of_it.len() > 2 && chunks_of_it.into_iter().all(|chunk| text[chunk].ends_with("}\n")));
        // A block that does not end is one chunk, whatever its length.
        let open = format!("site a {{\n{}", "spa\n".repeat(50_000));
        assert_eq!(chunks(&open).len(), 1);
    }
}
