//! Negotiation of compression (RFC 7692), without the compressor.
//!
//! Both sides reset the context after each message (`no_context_takeover`): so a message for many clients is
//! compressed once, and an idle connection holds no window of 32 KiB. If a client asks for a smaller window, longer
//! messages are sent uncompressed: within a shorter message, no reference reaches back further.

use std::fmt;

/// The end of every compressed message, which is not transmitted.
pub const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

const WINDOW_BITS: u8 = 15;

/// Negotiated compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deflate {
    /// The largest window that the client accepts, if it said so.
    window_bits: Option<u8>,
}

impl Deflate {
    /// The first acceptable offer in the values of `Sec-WebSocket-Extensions`.
    pub fn accept<'b>(values: impl Iterator<Item = &'b [u8]>) -> Option<Deflate> {
        values.flat_map(|value| value.split(|&byte| byte == b',')).find_map(offer)
    }

    /// The longest message that may be compressed.
    pub fn message_bytes_max(self) -> usize {
        match self.window_bits {
            None | Some(WINDOW_BITS) => usize::MAX,
            Some(bits) => 1 << bits,
        }
    }
}

/// The value of `Sec-WebSocket-Extensions` in the response.
impl fmt::Display for Deflate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("permessage-deflate; server_no_context_takeover; client_no_context_takeover")?;
        match self.window_bits {
            Some(bits) => write!(f, "; server_max_window_bits={bits}"),
            None => Ok(()),
        }
    }
}

/// One offer; `None` for another extension, and for parameters that are unknown, malformed or repeated.
fn offer(text: &[u8]) -> Option<Deflate> {
    let mut parts = text.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    if !parts.next()?.eq_ignore_ascii_case(b"permessage-deflate") {
        return None;
    }
    let mut agreed = Deflate { window_bits: None };
    let mut seen = [false; 4];
    for part in parts {
        let (name, value) = match part.iter().position(|&byte| byte == b'=') {
            Some(at) => (part[..at].trim_ascii(), Some(unquoted(part[at + 1..].trim_ascii()))),
            None => (part, None),
        };
        let which = match (name, value) {
            (b"server_no_context_takeover", None) => 0,
            (b"client_no_context_takeover", None) => 1,
            (b"server_max_window_bits", Some(value)) => {
                agreed.window_bits = Some(window_bits(value)?);
                2
            }
            (b"client_max_window_bits", None) => 3,
            (b"client_max_window_bits", Some(value)) => {
                window_bits(value)?;
                3
            }
            _ => return None,
        };
        if std::mem::replace(&mut seen[which], true) {
            return None;
        }
    }
    Some(agreed)
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
}

fn window_bits(value: &[u8]) -> Option<u8> {
    match value {
        [digit @ b'8'..=b'9'] => Some(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(value: &str) -> Option<String> {
        Deflate::accept([value.as_bytes()].into_iter()).map(|deflate| deflate.to_string())
    }

    #[test]
    fn the_first_offer_that_can_be_accepted_is() {
        let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        for offer in [
            "permessage-deflate",
            "permessage-deflate; client_max_window_bits",
            "x-webkit-deflate-frame, permessage-deflate;client_max_window_bits=\"10\"",
            "permessage-deflate; server_max_window_bits=16, permessage-deflate; server_no_context_takeover",
        ] {
            assert_eq!(accepted(offer).as_deref(), Some(plain), "{offer}");
        }
        let narrow = accepted("permessage-deflate; server_max_window_bits=9").unwrap();
        assert_eq!(narrow, format!("{plain}; server_max_window_bits=9"));
        for offer in [
            "",
            "other",
            "permessage-deflate; server_max_window_bits",
            "permessage-deflate; server_max_window_bits=7",
            "permessage-deflate; server_max_window_bits=010",
            "permessage-deflate; server_no_context_takeover=1",
            "permessage-deflate; client_max_window_bits; client_max_window_bits",
            "permessage-deflate; unknown",
        ] {
            assert_eq!(accepted(offer), None, "{offer}");
        }
    }

    #[test]
    fn a_narrow_window_limits_compression() {
        let of = |value: &str| Deflate::accept([value.as_bytes()].into_iter()).unwrap().message_bytes_max();
        assert_eq!(of("permessage-deflate; server_max_window_bits=8"), 256);
        assert_eq!(of("permessage-deflate; server_max_window_bits=15"), usize::MAX);
        assert_eq!(of("permessage-deflate"), usize::MAX);
    }
}
