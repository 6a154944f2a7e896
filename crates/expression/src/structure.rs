//! Splits the text of a regular expression into classes, groups and alternatives.

/// What a character of an expression is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CharPlace {
    /// None of the following.
    Plain,
    /// Behind a backslash.
    Escaped,
    /// The bracket that begins a class.
    ClassStart,
    /// A character of a class.
    Class,
    /// The bracket that ends a class.
    ClassEnd,
}

/// The characters of an expression with their positions and places.
pub fn places(pattern: &str) -> impl Iterator<Item = (usize, char, CharPlace)> {
    // Where the characters of the current class begin, and where a name in it, such as `[:alpha:]`, ends.
    let (mut class_at, mut name_end) = (None, 0);
    let mut is_escaped = false;
    pattern.char_indices().map(move |(at, char)| {
        let place = match class_at {
            _ if std::mem::take(&mut is_escaped) => CharPlace::Escaped,
            None if char == '[' => {
                class_at = Some(at + 1);
                CharPlace::ClassStart
            }
            None => CharPlace::Plain,
            Some(_) if at < name_end => CharPlace::Class,
            // At the start of a class it is one of its characters.
            Some(start) if char == ']' && !matches!(pattern.get(start..at), Some("" | "^")) => {
                class_at = None;
                CharPlace::ClassEnd
            }
            Some(_) => {
                let name = pattern.get(at..).filter(|rest| rest.starts_with("[:"));
                name_end = name.and_then(|rest| rest.find(":]")).map_or(name_end, |end| at + end + 2);
                CharPlace::Class
            }
        };
        is_escaped = char == '\\' && place != CharPlace::Escaped && at >= name_end;
        (at, char, place)
    })
}

/// What divides an expression into groups and alternatives: its parentheses and bars with their positions.
pub fn dividers(pattern: &str) -> impl Iterator<Item = (usize, char)> {
    let is_divider = |(_, char, place): &(usize, char, CharPlace)| {
        *place == CharPlace::Plain && matches!(char, '(' | ')' | '|')
    };
    places(pattern).filter(is_divider).map(|(at, char, _)| (at, char))
}

/// The length of the group at the start of a text.
pub fn group_bytes(pattern: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, char) in dividers(pattern) {
        match char {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// Whether an expression has alternatives outside of its groups.
pub(crate) fn has_alternatives(pattern: &str) -> bool {
    let mut depth = 0i32;
    dividers(pattern).any(|(_, char)| {
        depth += match char {
            '(' => 1,
            ')' => -1,
            _ => return depth == 0,
        };
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dividers_are_neither_escaped_nor_in_classes() {
        for (pattern, expected) in [
            (r"(a\(|b)", "(|)"),
            ("[(|)]x)", ")"),
            ("[](]|[^])]", "|"),
            ("[[:alpha:](]|", "|"),
            (r"[\](]|", "|"),
            (r"\\(", "("),
            ("[[(]|", "|"),
        ] {
            let found: String = dividers(pattern).map(|(_, char)| char).collect();
            assert_eq!(found, expected, "{pattern}");
        }
    }

    #[test]
    fn groups_end_where_they_are_closed() {
        assert_eq!(group_bytes("(a(b|[)])c)d"), Some(11));
        assert_eq!((group_bytes("(a"), group_bytes("a)")), (None, None));
        assert!(has_alternatives("(a|b)|c") && !has_alternatives("(a|b)c"));
    }
}
