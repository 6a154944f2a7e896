//! The normal form of a path for forwarded requests: `%2F` does not separate segments, dot segments are resolved.

use super::{PathFault, escape};

/// Decodes `path` (it starts with `/`, without the query) into `out`, once, resolves its dot segments, merges its
/// slashes, and returns the result.
///
/// The escapes of `/`, `\` and `%` stay, in upper case: `%2F`, `%5C`, `%25`. So a slash is always a separator, a
/// percent sign always starts one of these three, and normalizing twice changes nothing. There is no control byte and
/// no dot segment. Costs one pass; if there is nothing to do, `path` itself is returned, and `out` is not used.
///
/// # Errors
/// [`PathFault::DotSegment`] for one that leads above the root.
pub fn forward_path<'a>(path: &'a [u8], out: &'a mut Vec<u8>) -> Result<&'a [u8], PathFault> {
    if path.first() != Some(&b'/') {
        return Err(PathFault::ForbiddenByte);
    }
    let (mut is_plain, mut before) = (true, 0);
    for &byte in path {
        if is_forbidden(byte) {
            return Err(PathFault::ForbiddenByte);
        }
        is_plain &= byte != b'%' && !(before == b'/' && matches!(byte, b'/' | b'.'));
        before = byte;
    }
    if is_plain {
        return Ok(path);
    }
    out.clear();
    let mut segments = path.split(|&byte| byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let at = out.len();
        out.push(b'/');
        decode_segment(segment, out)?;
        let is_last = segments.peek().is_none();
        match out.get(at + 1..).unwrap_or_default() {
            b"" | b"." => out.truncate(at),
            b".." => {
                let parent = out.get(..at).and_then(|above| above.iter().rposition(|&byte| byte == b'/'));
                out.truncate(parent.ok_or(PathFault::DotSegment)?);
            }
            _ => continue,
        }
        if is_last {
            out.push(b'/');
        }
    }
    Ok(out)
}

/// Writes a path in the form of [`forward_path`] as part of a request target.
pub fn encode_path(form: &[u8], out: &mut Vec<u8>) {
    for &byte in form {
        if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/%".contains(&byte) {
            out.push(byte);
        } else {
            push_escape(byte, out);
        }
    }
}

fn decode_segment(segment: &[u8], out: &mut Vec<u8>) -> Result<(), PathFault> {
    let mut rest = segment;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (value, tail) = escape(tail).ok_or(PathFault::BadEscape)?;
        rest = tail;
        match value {
            b'/' | b'\\' | b'%' => push_escape(value, out),
            _ if is_forbidden(value) => return Err(PathFault::ForbiddenByte),
            _ => out.push(value),
        }
    }
    Ok(())
}

/// Appends a byte in its percent encoding.
pub fn push_escape(byte: u8, out: &mut Vec<u8>) {
    let digit = |value: u8| if value < 10 { b'0' + value } else { b'A' + value - 10 };
    out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
}

fn is_forbidden(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7f || byte == b'\\'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(path: &str) -> Result<String, PathFault> {
        let mut out = Vec::new();
        forward_path(path.as_bytes(), &mut out).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    #[test]
    fn paths_are_decoded_resolved_and_merged() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b.css", "/a/b.css"),
            ("/a%20b", "/a b"),
            ("/%e2%82%ac", "/€"),
            ("/@scope%2fname", "/@scope%2Fname"),
            ("/100%25", "/100%25"),
            ("/a%252Fb", "/a%252Fb"),
            ("/a%5cb", "/a%5Cb"),
            ("/a%3Fb%23", "/a?b#"),
            ("//", "/"),
            ("//admin", "/admin"),
            ("/a//b///", "/a/b/"),
            ("/a/../b", "/b"),
            ("/a//../b", "/b"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/./a", "/a"),
            ("/a;/../admin", "/admin"),
            ("/%2e%2E/", "up"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e/b", "/b"),
            ("/admin/..%2f", "/admin/..%2F"),
            ("/a/..;/b", "/a/..;/b"),
            ("/.hidden", "/.hidden"),
            ("/...", "/..."),
        ] {
            let expected = if expected == "up" { Err(PathFault::DotSegment) } else { Ok(expected) };
            assert_eq!(forward(path).as_deref().map_err(|fault| *fault), expected, "{path}");
        }
    }

    #[test]
    fn unsafe_paths_are_refused() {
        use PathFault::*;
        for (path, fault) in [
            ("/..", DotSegment),
            ("/a/../..", DotSegment),
            ("/a/../../b", DotSegment),
            ("/a\\b", ForbiddenByte),
            ("/admin%00", ForbiddenByte),
            ("/a%0d%0aSet-Cookie:b", ForbiddenByte),
            ("/a%7f", ForbiddenByte),
            ("/%", BadEscape),
            ("/%2", BadEscape),
            ("/%2/a", BadEscape),
            ("/%zz", BadEscape),
            ("", ForbiddenByte),
            ("a", ForbiddenByte),
        ] {
            assert_eq!(forward(path), Err(fault), "{path}");
        }
    }

    #[test]
    fn forms_are_written_as_targets() {
        let mut out = Vec::new();
        encode_path("/a b?c#€/%2F%25;x=1,@:~\"<|".as_bytes(), &mut out);
        assert_eq!(out, b"/a%20b%3Fc%23%E2%82%AC/%2F%25;x=1,@:~%22%3C%7C");
    }
}
