//! SCGI requests (the SCGI specification, revision 1.4).
//!
//! ```text
//! bytes of the headers ":" CONTENT_LENGTH NUL length NUL "SCGI" NUL "1" NUL name NUL value NUL … "," body
//! ```

/// A name or a value contains NUL, which would end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NulInHeader;

/// Appends a header to `headers`, except the two that [`write_request`] writes first.
///
/// # Errors
/// The header contains NUL; nothing is appended.
pub fn write_header(name: &[u8], value: &[u8], headers: &mut Vec<u8>) -> Result<(), NulInHeader> {
    if name.contains(&0) || value.contains(&0) {
        return Err(NulInHeader);
    }
    if name != b"CONTENT_LENGTH" && name != b"SCGI" {
        for part in [name, b"\0", value, b"\0"] {
            headers.extend_from_slice(part);
        }
    }
    Ok(())
}

/// Writes a whole request; `headers` are those of [`write_header`].
pub fn write_request(headers: &[u8], body: &[u8], out: &mut Vec<u8>) {
    write_head(headers, body.len() as u64, out);
    out.extend_from_slice(body);
}

/// The same without its body, which has this length.
pub fn write_head(headers: &[u8], body_bytes: u64, out: &mut Vec<u8>) {
    let first = format!("CONTENT_LENGTH\0{body_bytes}\0SCGI\x001\0");
    out.extend_from_slice(format!("{}:", first.len() + headers.len()).as_bytes());
    for part in [first.as_bytes(), headers, b","] {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_the_body_comes_first() {
        // The example of the specification, with the length that it counts.
        let mut headers = Vec::new();
        for (name, value) in [
            ("CONTENT_LENGTH", "9"),
            ("REQUEST_METHOD", "POST"),
            ("SCGI", "2"),
            ("REQUEST_URI", "/deepthought"),
        ] {
            write_header(name.as_bytes(), value.as_bytes(), &mut headers).unwrap();
        }
        let mut out = Vec::new();
        write_request(&headers, b"What is the answer to life?", &mut out);
        let expected =
            b"70:CONTENT_LENGTH\x0027\0SCGI\x001\0REQUEST_METHOD\0POST\0REQUEST_URI\0/deepthought\0,\
            What is the answer to life?";
        assert_eq!(out, expected);
    }

    #[test]
    fn nothing_can_add_a_header_of_its_own() {
        let mut headers = Vec::new();
        assert_eq!(write_header(b"A", b"b\0C\0d", &mut headers), Err(NulInHeader));
        assert_eq!(write_header(b"A\0b", b"", &mut headers), Err(NulInHeader));
        assert!(headers.is_empty());
    }
}
