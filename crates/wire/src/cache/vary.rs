//! `Vary`: which requests a stored response is for (RFC 9111 section 4.1).

use crate::field::trim_ows;

/// Whether a response varies on everything (`*`).
pub fn is_any<'a>(lines: impl Iterator<Item = &'a [u8]>) -> bool {
    elements(lines).any(|name| name == b"*")
}

/// The names of the selecting fields, in lower case, each preceded by a line feed.
pub fn names<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut names: Vec<Vec<u8>> = elements(lines).map(<[u8]>::to_ascii_lowercase).collect();
    names.sort_unstable();
    names.dedup();
    names.iter().flat_map(|name| [b"\n", name.as_slice()].concat()).collect()
}

/// Writes a request's values of the fields in `names`, normalized so that equivalent requests have the same text:
/// lines are joined, without white space around commas; case and order are normalized if they do not matter. `field`
/// returns the values of a field's lines.
pub fn write_selected<'h, I: Iterator<Item = &'h [u8]>>(
    names: &[u8],
    mut field: impl FnMut(&[u8]) -> I,
    out: &mut Vec<u8>,
) {
    for name in names.split(|&byte| byte == b'\n').skip(1) {
        match name {
            b"accept-encoding" | b"accept-charset" => write_set(field(name), out),
            b"accept-language" => {
                let at = out.len();
                write_list(field(name), out);
                out.get_mut(at..).unwrap_or_default().make_ascii_lowercase();
            }
            _ => write_list(field(name), out),
        }
        // No value contains one, so two values cannot be taken for one.
        out.push(b'\n');
    }
}

fn elements<'a>(lines: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    lines.flat_map(|line| line.split(|&byte| byte == b',')).map(trim_ows).filter(|name| !name.is_empty())
}

/// An empty field is different from an absent one.
fn write_list<'h>(lines: impl Iterator<Item = &'h [u8]>, out: &mut Vec<u8>) {
    for line in lines {
        for element in line.split(|&byte| byte == b',') {
            out.push(b',');
            out.extend_from_slice(trim_ows(element));
        }
    }
}

fn write_set<'h>(lines: impl Iterator<Item = &'h [u8]>, out: &mut Vec<u8>) {
    let without_spaces = |element: &[u8]| -> Vec<u8> {
        let bytes = element.iter().filter(|byte| !matches!(byte, b' ' | b'\t'));
        bytes.map(u8::to_ascii_lowercase).collect()
    };
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        out.push(b',');
    }
    let mut set: Vec<Vec<u8>> = elements(lines).map(without_spaces).collect();
    set.sort_unstable();
    set.dedup();
    for element in set {
        out.extend_from_slice(&element);
        out.push(b',');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(vary: &str, fields: &[(&str, &'static str)]) -> String {
        let names = names(std::iter::once(vary.as_bytes()));
        let mut out = Vec::new();
        let field = |name: &[u8]| {
            let name = name.to_vec();
            let found: Vec<&'static [u8]> = fields
                .iter()
                .filter(|(this, _)| this.as_bytes().eq_ignore_ascii_case(&name))
                .map(|(_, value)| value.as_bytes())
                .collect();
            found.into_iter()
        };
        write_selected(&names, field, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn names_are_read_in_any_spelling() {
        let read = |line: &str| names(std::iter::once(line.as_bytes()));
        assert_eq!(read("B, a ,, A"), b"\na\nb");
        assert_eq!(read(""), b"");
        for (line, expected) in [("*", true), (", *", true), ("a, *", true), ("a", false), ("", false)] {
            assert_eq!(is_any(std::iter::once(line.as_bytes())), expected, "{line}");
        }
    }

    #[test]
    fn requests_that_mean_the_same_are_the_same() {
        let same = |vary, one: &[(&str, &'static str)], other: &[(&str, &'static str)]| {
            selected(vary, one) == selected(vary, other)
        };
        assert!(same("x", &[("X", "a, b")], &[("x", "a"), ("X", "b")]));
        assert!(same("x", &[("X", "a ,b")], &[("x", "a,b")]));
        assert!(!same("x", &[("X", "a")], &[("X", "A")]));
        assert!(!same("x", &[("X", "")], &[]));
        assert!(!same("x, y", &[("X", "1")], &[("Y", "1")]));
        assert!(same(
            "accept-encoding",
            &[("Accept-Encoding", "gzip, BR")],
            &[("accept-encoding", "br,gzip")]
        ));
        assert!(!same("accept-encoding", &[("Accept-Encoding", "gzip")], &[]));
        assert!(same("accept-language", &[("Accept-Language", "EN, de")], &[("Accept-Language", "en,de")]));
        assert!(!same("accept-language", &[("Accept-Language", "en,de")], &[("Accept-Language", "de,en")]));
    }
}
