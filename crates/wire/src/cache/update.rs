//! Which fields of a response are stored, and which of those a validation replaces (RFC 9111 sections 3.1 and 3.2).

/// Fields of a connection, of a proxy, of framing, and `Age`, which is said anew each time.
const NOT_STORED: [&str; 13] = [
    "age",
    "connection",
    "content-length",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-cache-status",
];

/// They describe the bytes that are stored, which a 304 does not bring.
const OF_THE_BODY: [&str; 3] = ["content-encoding", "content-length", "content-range"];

/// Whether a field is stored at all.
pub fn is_stored(name: &[u8]) -> bool {
    !is_among(name, &NOT_STORED)
}

/// Whether a response's own list withholds a field.
pub fn withheld_by(withheld: &[Vec<u8>], name: &[u8]) -> bool {
    withheld.iter().any(|this| name.eq_ignore_ascii_case(this))
}

/// Whether the stored field of this name stays as it is, whatever a 304 says.
pub fn is_kept_on_update(name: &[u8]) -> bool {
    is_among(name, &OF_THE_BODY)
}

fn is_among(name: &[u8], names: &[&str]) -> bool {
    names.iter().any(|this| name.eq_ignore_ascii_case(this.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_connection_are_not_stored() {
        assert!(!is_stored(b"Connection") && !is_stored(b"AGE") && is_stored(b"Date") && is_stored(b"X"));
        assert!(is_kept_on_update(b"Content-Encoding") && !is_kept_on_update(b"Content-Type"));
        assert!(withheld_by(&[b"set-cookie".to_vec()], b"Set-Cookie") && !withheld_by(&[], b"Set-Cookie"));
    }
}
