//! Normal forms of the path of a request target (RFC 3986 section 6, RFC 9110 section 4).
//!
//! Routing, files, cache and upstreams all see the path in one form, so they cannot disagree about the resource.
//! There are two forms. [`normal_path`], for files and handlers, rejects everything ambiguous instead of repairing
//! it. [`forward_path`] is for requests that are forwarded to applications, which need paths that the first form
//! rejects.

mod forward;

pub use forward::{encode_path, forward_path, push_escape};

/// The normal form for a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathForm {
    /// [`normal_path`]
    #[default]
    Strict,
    /// [`forward_path`]
    Forward,
}

/// Why a path has no normal form; the response is always 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathFault {
    /// A percent sign without two hexadecimal digits after it.
    BadEscape,
    /// A slash, backslash, NUL or other control byte, directly or escaped.
    ForbiddenByte,
    /// A segment that is `.` or `..`, directly or escaped, also if escaped twice or with parameters: `..;x` is `..`
    /// to servers that cut them off.
    DotSegment,
}

/// Decodes `path` (it starts with `/`, without the query) into `out`, once, and returns the decoded bytes.
///
/// The decoded form has no `.` or `..` segment, no control byte and no backslash, and an escaped slash is rejected,
/// so its segments are those of the raw path. Escapes may decode to bytes above 127. Costs one pass; if there is
/// nothing to decode, `path` itself is returned, and `out` is not used.
pub fn normal_path<'a>(path: &'a [u8], out: &'a mut Vec<u8>) -> Result<&'a [u8], PathFault> {
    let decoded: &'a [u8] = if path.contains(&b'%') {
        decode_into(path, out)?;
        out
    } else {
        path
    };
    if decoded.iter().any(|&byte| byte < 0x20 || byte == 0x7f || byte == b'\\') {
        return Err(PathFault::ForbiddenByte);
    }
    if decoded.split(|&byte| byte == b'/').any(is_dot_segment) {
        return Err(PathFault::DotSegment);
    }
    if decoded.contains(&b'%') {
        refuse_second_reading(decoded)?;
    }
    Ok(decoded)
}

/// Whether a path has two consecutive slashes. Checks eight bytes at a time.
#[inline]
pub fn has_empty_segment(path: &[u8]) -> bool {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let (words, rest) = path.as_chunks::<8>();
    // The highest bit of each byte that follows a slash.
    let mut follows = 0;
    for word in words {
        let differs = u64::from_le_bytes(*word) ^ u64::from_le_bytes([b'/'; 8]);
        // The highest bit of each byte that is a slash.
        let slashes = !(((differs & LOW) + LOW) | differs | LOW);
        if slashes & (slashes << 8 | follows) != 0 {
            return true;
        }
        follows = slashes >> 56;
    }
    let mut is_behind_slash = follows != 0;
    for &byte in rest {
        if byte == b'/' && is_behind_slash {
            return true;
        }
        is_behind_slash = byte == b'/';
    }
    false
}

/// Percent-decodes one component (a query name or value). With `plus_is_space`, `+` is a space, as in HTML forms.
/// Returns `None` at a percent sign without two hexadecimal digits after it.
pub fn decode_component(text: &[u8], plus_is_space: bool) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'%' => {
                let (value, tail) = escape(tail)?;
                out.push(value);
                rest = tail;
            }
            b'+' if plus_is_space => out.push(b' '),
            _ => out.push(byte),
        }
    }
    Some(out)
}

/// The value of the two hexadecimal digits at the start of `text`, and the rest.
pub(crate) fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let (digits, tail) = text.split_first_chunk::<2>()?;
    let high = (digits[0] as char).to_digit(16)?;
    let low = (digits[1] as char).to_digit(16)?;
    Some(((high << 4 | low) as u8, tail))
}

fn decode_into(path: &[u8], out: &mut Vec<u8>) -> Result<(), PathFault> {
    out.clear();
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (value, tail) = escape(tail).ok_or(PathFault::BadEscape)?;
        if value == b'/' {
            return Err(PathFault::ForbiddenByte);
        }
        out.push(value);
        rest = tail;
    }
    Ok(())
}

/// Rejects a decoded path that a second decoding by an application would change into another one: `%252e%252e` and
/// the like. A literal percent sign (`100%`) is accepted.
fn refuse_second_reading(decoded: &[u8]) -> Result<(), PathFault> {
    for segment in decoded.split(|&byte| byte == b'/') {
        let mut again = Vec::with_capacity(segment.len());
        let mut rest = segment;
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            match escape(tail).filter(|_| byte == b'%') {
                Some((value, tail)) => {
                    if value < 0x20 || value == b'/' || value == b'\\' || value == 0x7f {
                        return Err(PathFault::ForbiddenByte);
                    }
                    again.push(value);
                    rest = tail;
                }
                None => again.push(byte),
            }
        }
        if is_dot_segment(&again) {
            return Err(PathFault::DotSegment);
        }
    }
    Ok(())
}

fn is_dot_segment(segment: &[u8]) -> bool {
    let dots = segment.iter().take_while(|&&byte| byte == b'.').count();
    (1..=2).contains(&dots) && matches!(segment.get(dots), None | Some(b';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(path: &str) -> Result<String, PathFault> {
        let mut out = Vec::new();
        normal_path(path.as_bytes(), &mut out).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    #[test]
    fn ordinary_paths_stay_or_are_decoded_once() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b.css", "/a/b.css"),
            ("/a%20b", "/a b"),
            ("/100%25", "/100%"),
            ("/%e2%82%ac", "/€"),
            ("/...", "/..."),
            ("/.hidden", "/.hidden"),
            ("/a;v=1", "/a;v=1"),
            ("/..a;b", "/..a;b"),
            ("/a..;b", "/a..;b"),
            ("//", "//"),
        ] {
            assert_eq!(normal(path).as_deref(), Ok(expected), "{path}");
        }
    }

    #[test]
    fn ambiguous_targets_are_refused() {
        use PathFault::*;
        for (path, fault) in [
            ("/..", DotSegment),
            ("/a/../b", DotSegment),
            ("/./a", DotSegment),
            ("/%2e%2e/etc", DotSegment),
            ("/.%2E", DotSegment),
            ("/a/..;/b", DotSegment),
            ("/.;v=1", DotSegment),
            ("/%2e%2e%3b/b", DotSegment),
            ("/%252e%252e%253b/b", DotSegment),
            ("/%252e%252e/etc", DotSegment),
            ("/%252fetc", ForbiddenByte),
            ("/a%2fb", ForbiddenByte),
            ("/a%2Fb", ForbiddenByte),
            ("/a\\b", ForbiddenByte),
            ("/a%5cb", ForbiddenByte),
            ("/a%00.css", ForbiddenByte),
            ("/a%0a.css", ForbiddenByte),
            ("/%", BadEscape),
            ("/%4", BadEscape),
            ("/%zz", BadEscape),
        ] {
            assert_eq!(normal(path), Err(fault), "{path}");
        }
    }

    #[test]
    fn two_slashes_in_a_row_are_found_wherever_they_are() {
        let mut state = 1u32;
        for _ in 0..100_000 {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 16
            };
            let length = next() as usize % 30;
            // Bytes that differ from a slash in one bit, or in the highest.
            let path: Vec<u8> = (0..length).map(|_| b"/a.\xaf-\x2e\0\xffb0"[next() as usize % 10]).collect();
            let expected = path.windows(2).any(|pair| pair == b"//");
            assert_eq!(has_empty_segment(&path), expected, "{path:?}");
        }
    }

    #[test]
    fn components_decode() {
        assert_eq!(decode_component(b"a+b%26c", true).as_deref(), Some(&b"a b&c"[..]));
        assert_eq!(decode_component(b"a+b", false).as_deref(), Some(&b"a+b"[..]));
        assert_eq!(decode_component(b"%g0", true), None);
    }
}
