//! Splits the text of a KDL file into pieces, without losing any of it.

/// A piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    /// Spaces and tabs.
    Blank,
    /// The end of a line.
    NewLine,
    /// `;`
    End,
    /// `{`
    Open,
    /// `}`
    Close,
    /// A backslash and the rest of its line; the node continues on the next line.
    GoesOn(&'t str),
    /// `// …` up to the end of its line.
    LineComment(&'t str),
    /// Everything else without blanks: a name, a value, a comment between `/*` and `*/`, or a part of one.
    Word(&'t str),
}

/// What ends a line, and a comment, in KDL.
const LINE_ENDS: [char; 7] = ['\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}'];

/// The pieces of any text.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    placed_pieces(text).map(|(_, piece)| piece)
}

/// The same, each with the place of its first byte.
pub(crate) fn placed_pieces(text: &str) -> impl Iterator<Item = (usize, Piece<'_>)> {
    let mut rest = text.trim_start_matches('\u{feff}');
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let at = text.len() - rest.len();
        let length = match first {
            '\\' => goes_on(rest),
            '\n' | '{' | '}' | ';' => 1,
            char if char.is_whitespace() => char.len_utf8(),
            _ if rest.starts_with("//") => rest.find(LINE_ENDS).unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => block_comment(rest),
            _ if rest.starts_with("/-") => 2,
            '"' => quoted(rest),
            '#' => raw(rest).unwrap_or_else(|| bare(rest)),
            _ => bare(rest),
        };
        let (taken, behind) = rest.split_at(length);
        rest = behind;
        let piece = match first {
            '\\' => Piece::GoesOn(taken),
            '\n' => Piece::NewLine,
            '{' => Piece::Open,
            '}' => Piece::Close,
            ';' => Piece::End,
            char if char.is_whitespace() => Piece::Blank,
            _ if taken.starts_with("//") => Piece::LineComment(taken),
            _ => Piece::Word(taken),
        };
        Some((at, piece))
    })
}

/// A backslash and the rest of its line.
fn goes_on(text: &str) -> usize {
    text.find('\n').map_or(text.len(), |at| at + 1)
}

/// A comment with nested ones.
fn block_comment(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0);
    while at < bytes.len() {
        match bytes.get(at..at + 2) {
            Some(b"/*") => {
                depth += 1;
                at += 2;
            }
            Some(b"*/") => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

fn quoted(text: &str) -> usize {
    if let Some(inner) = text.strip_prefix("\"\"\"") {
        return closing(inner, "\"\"\"").map_or(text.len(), |at| 3 + at + 3);
    }
    closing(&text[1..], "\"").map_or(text.len(), |at| 1 + at + 1)
}

/// The position of the first unescaped quote.
fn closing(text: &str, quote: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, char)| {
        let found = !is_escaped && text[at..].starts_with(quote);
        is_escaped = char == '\\' && !is_escaped;
        found.then_some(at)
    })
}

/// `#"…"#`, with the same number of `#` at both ends.
fn raw(text: &str) -> Option<usize> {
    let marks = text.len() - text.trim_start_matches('#').len();
    let inner = text[marks..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(marks));
    Some(inner.find(&end).map_or(text.len(), |at| marks + 1 + at + end.len()))
}

fn bare(text: &str) -> usize {
    let ends = |(at, char): &(usize, char)| {
        *at > 0
            && (char.is_whitespace()
                || "{};\"\\".contains(*char)
                || (*char == '/' && is_comment(&text[*at..])))
    };
    text.char_indices().find(ends).map_or(text.len(), |(at, _)| at)
}

fn is_comment(text: &str) -> bool {
    ["//", "/*", "/-"].iter().any(|mark| text.starts_with(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fall_into_pieces() {
        let words = |text: &'static str| -> Vec<_> {
            pieces(text)
                .filter_map(|piece| match piece {
                    Piece::Word(word) | Piece::LineComment(word) => Some(word),
                    _ => None,
                })
                .collect()
        };
        for (text, expected) in [
            ("a b=\"c; {d}\" // e\nf", &["a", "b=", "\"c; {d}\"", "// e", "f"][..]),
            ("#\"a\"b\"# #true \"\\\"x\"", &["#\"a\"b\"#", "#true", "\"\\\"x\""]),
            ("a/* b /* c */ */d /-e", &["a", "/* b /* c */ */", "d", "/-", "e"]),
            ("\"\"\"\na \"b\"\n\"\"\";x", &["\"\"\"\na \"b\"\n\"\"\"", "x"]),
            ("\"a", &["\"a"]),
            ("é\\ // on\nü", &["é", "ü"]),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
    }
}
