//! Escapes client data in a line: none of its bytes may end the line or a field, or control a terminal.

use std::str::FromStr;

/// How values are escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escape {
    /// Like nginx by default: `"`, `\` and bytes that are not printable ASCII become `\xXX`.
    Text,
    /// Like a JSON string. Bytes that are not UTF-8 are read as Latin-1.
    Json,
    /// Not at all, except that line ends become `\x0D` and `\x0A`: a client cannot add lines.
    Plain,
}

impl FromStr for Escape {
    type Err = String;

    /// `text`, `json` or `none`.
    fn from_str(text: &str) -> Result<Escape, String> {
        match text {
            "text" => Ok(Escape::Text),
            "json" => Ok(Escape::Json),
            "none" => Ok(Escape::Plain),
            _ => Err(format!("got `{text}`, need text, json or none")),
        }
    }
}

impl Escape {
    /// Adds a value that contains bytes to escape.
    #[cold]
    pub(super) fn write_escaped(self, value: &[u8], out: &mut Vec<u8>) {
        match self {
            Escape::Text => escape_text(value, out),
            Escape::Json => escape_json(value, out),
            Escape::Plain => escape_line_ends(value, out),
        }
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Whether a byte has to be escaped in either format.
#[inline]
pub(super) fn is_odd(byte: u8) -> bool {
    (byte.wrapping_sub(b' ') > b'~' - b' ') | (byte == b'"') | (byte == b'\\')
}

fn escape_text(value: &[u8], out: &mut Vec<u8>) {
    escape_bytes(value, is_odd, out);
}

fn escape_line_ends(value: &[u8], out: &mut Vec<u8>) {
    escape_bytes(value, |byte| matches!(byte, b'\r' | b'\n'), out);
}

fn escape_bytes(value: &[u8], is_escaped: fn(u8) -> bool, out: &mut Vec<u8>) {
    for &byte in value {
        match is_escaped(byte) {
            true => out.extend_from_slice(&[b'\\', b'x', hex(byte >> 4), hex(byte)]),
            false => out.push(byte),
        }
    }
}

fn escape_json(value: &[u8], out: &mut Vec<u8>) {
    for chunk in value.utf8_chunks() {
        for &byte in chunk.valid().as_bytes() {
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                ..b' ' | 0x7f => escape_unit(byte, out),
                _ => out.push(byte),
            }
        }
        chunk.invalid().iter().for_each(|&byte| escape_unit(byte, out));
    }
}

fn escape_unit(byte: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte)]);
}

fn hex(nibble: u8) -> u8 {
    HEX.get(usize::from(nibble & 15)).copied().unwrap_or(b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(escape: Escape, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        escape.write_escaped(value, &mut out);
        out
    }

    #[test]
    fn special_characters_are_escaped_as_in_nginx() {
        for (value, expected) in [
            (&b"GET / HTTP/1.1"[..], &b"GET / HTTP/1.1"[..]),
            (b"a\"b\\c\x1b[31m\r\nd\x7f\x80", b"a\\x22b\\x5Cc\\x1B[31m\\x0D\\x0Ad\\x7F\\x80"),
            ("é".as_bytes(), b"\\xC3\\xA9"),
            (b"", b""),
        ] {
            assert_eq!(escaped(Escape::Text, value), expected);
        }
        assert_eq!(escaped(Escape::Plain, b"a\"\\\x1b\xe9\r\nb"), b"a\"\\\x1b\xe9\\x0D\\x0Ab");
        assert_eq!(("json".parse(), "default".parse::<Escape>().is_err()), (Ok(Escape::Json), true));
    }

    /// A JSON parser returns all bytes unchanged, or as Latin-1 if they are not UTF-8.
    #[test]
    fn json_is_json() {
        let mut seed = 7u64;
        for _ in 0..20_000 {
            let mut value = Vec::new();
            let length = {
                seed = step(seed);
                seed as usize % 40
            };
            for _ in 0..length {
                seed = step(seed);
                match seed % 4 {
                    0 => value.push((seed >> 8) as u8),
                    1 => value.extend_from_slice("€é\u{7f}".as_bytes()),
                    _ => value.push(b' ' + (seed >> 8) as u8 % 95),
                }
            }
            let text = [b"\"".to_vec(), escaped(Escape::Json, &value), b"\"".to_vec()].concat();
            let read: String =
                serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{error}: {value:?}"));
            if let Ok(expected) = std::str::from_utf8(&value) {
                assert_eq!(read, expected);
            }
            assert!(!text.iter().any(|byte| *byte < b' ' || *byte == 0x7f));
        }
    }

    fn step(seed: u64) -> u64 {
        let mut next = seed ^ (seed << 13);
        next ^= next >> 7;
        next ^ (next << 17)
    }
}
