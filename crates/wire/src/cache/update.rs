//! Which fields of a response are stored, and which of those a revalidation replaces (RFC 9111 sections 3.1 and 3.2).

/// Fields of a connection, of a proxy, of framing, instructions of an upstream to this server, and `Age`, which is computed each time.
const NOT_STORED: [&str; 19] = [
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
    "x-accel-buffering",
    "x-accel-charset",
    "x-accel-expires",
    "x-accel-limit-rate",
    "x-accel-redirect",
    "x-cache-status",
    "x-sendfile",
];

/// These describe the stored body, which a 304 does not contain.
const OF_THE_BODY: [&str; 3] = ["content-encoding", "content-length", "content-range"];

/// Whether a field is stored.
pub fn is_stored(name: &[u8]) -> bool {
    !is_among(name, &NOT_STORED)
}

/// Whether the response's own list withholds a field.
pub fn withheld_by(withheld: &[Vec<u8>], name: &[u8]) -> bool {
    withheld.iter().any(|this| name.eq_ignore_ascii_case(this))
}

/// Whether the stored field with this name is kept, whatever a 304 contains.
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
