//! The handshake: its request and response (RFC 6455 section 4).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use super::extension::Deflate;
use crate::{Framing, Head, Method, Status, Version};

/// Bytes of a key, and of the accept value, as sent.
pub const KEY_BYTES: usize = 24;

/// Random bytes in a key.
const KEY_BYTES_DECODED: usize = 16;

/// A WebSocket request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeOffer {
    /// The value of `Sec-WebSocket-Accept` in the response; `None` over HTTP/2, which has no key (RFC 8441 section 5).
    pub accept: Option<String>,
    /// Compression, if the client offers one that can be agreed on.
    pub deflate: Option<Deflate>,
}

/// Why a WebSocket request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeRefusal {
    /// A method other than GET, HTTP/1.0, or a body: 400.
    Request,
    /// A version other than 13: 426, and the response names the supported one.
    Version,
    /// An invalid key, or several: 400.
    Key,
}

impl UpgradeRefusal {
    /// The status of the response. 426 needs `Sec-WebSocket-Version: 13`.
    pub fn status(self) -> Status {
        match self {
            UpgradeRefusal::Request | UpgradeRefusal::Key => Status::BAD_REQUEST,
            UpgradeRefusal::Version => Status::UPGRADE_REQUIRED,
        }
    }

    /// The reason, as text.
    pub fn reason(self) -> &'static str {
        match self {
            UpgradeRefusal::Request => "a WebSocket needs a GET request with HTTP/1.1 and without a body",
            UpgradeRefusal::Version => "only version 13 of WebSocket is supported",
            UpgradeRefusal::Key => "Sec-WebSocket-Key is not 16 bytes in base64",
        }
    }
}

impl UpgradeOffer {
    /// Parses a request; `None` if it is not for a WebSocket.
    ///
    /// # Errors
    /// It is an invalid WebSocket request.
    pub fn of(head: &Head<'_>) -> Option<Result<UpgradeOffer, UpgradeRefusal>> {
        let is_asked = has_token(head, "upgrade", b"websocket") && has_token(head, "connection", b"upgrade");
        is_asked.then(|| UpgradeOffer::checked(head))
    }

    fn checked(head: &Head<'_>) -> Result<UpgradeOffer, UpgradeRefusal> {
        let is_good = head.method == Method::Get
            && matches!(head.version, Version::Http11 | Version::Http2)
            && matches!(head.framing, Framing::None | Framing::Length(0));
        if !is_good {
            return Err(UpgradeRefusal::Request);
        }
        if only(head, "sec-websocket-version") != Some(b"13") {
            return Err(UpgradeRefusal::Version);
        }
        let accept = match head.version {
            // Its two fields stand for an extended CONNECT.
            Version::Http2 => None,
            _ => {
                let key =
                    only(head, "sec-websocket-key").filter(|key| is_key(key)).ok_or(UpgradeRefusal::Key)?;
                Some(accept_key(key))
            }
        };
        Ok(UpgradeOffer { accept, deflate: Deflate::accept(head.field_all("sec-websocket-extensions")) })
    }
}

/// Proves that the key was read: the value of `Sec-WebSocket-Accept`.
pub fn accept_key(key: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(hash.finalize())
}

fn is_key(key: &[u8]) -> bool {
    let mut decoded = [0; KEY_BYTES_DECODED + 2];
    key.len() == KEY_BYTES && STANDARD.decode_slice(key, &mut decoded) == Ok(KEY_BYTES_DECODED)
}

/// The value of a field that must not be repeated.
fn only<'b>(head: &Head<'b>, name: &str) -> Option<&'b [u8]> {
    let mut values = head.field_all(name);
    let first = values.next();
    first.filter(|_| values.next().is_none())
}

fn has_token(head: &Head<'_>, name: &str, token: &[u8]) -> bool {
    let mut tokens = head.field_all(name).flat_map(|value| value.split(|&byte| byte == b','));
    tokens.any(|this| this.trim_ascii().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::{HeadLimits, parse};

    const GOOD: &str = "GET /chat HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
                        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

    fn offer_of(text: &str) -> Option<Result<UpgradeOffer, UpgradeRefusal>> {
        let mut fields = Vec::new();
        let head = parse(text.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
        UpgradeOffer::of(&head)
    }

    #[test]
    fn the_example_of_the_rfc_is_accepted() {
        let asked = offer_of(GOOD).unwrap().unwrap();
        assert_eq!(asked.accept.as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(asked.deflate, None);
    }

    #[test]
    fn invalid_handshakes_are_refused() {
        for (from, to, refusal) in [
            ("GET", "PUT", UpgradeRefusal::Request),
            ("\r\n\r\n", "\r\nContent-Length: 1\r\n\r\n", UpgradeRefusal::Request),
            ("Version: 13", "Version: 8", UpgradeRefusal::Version),
            ("Sec-WebSocket-Version: 13\r\n", "", UpgradeRefusal::Version),
            ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZ", UpgradeRefusal::Key),
            ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZQQQ", UpgradeRefusal::Key),
            ("dGhlIHNhbXBsZSBub25jZQ==", "!!!!!!!!!!!!!!!!!!!!!!==", UpgradeRefusal::Key),
            ("\r\n\r\n", "\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", UpgradeRefusal::Key),
        ] {
            assert_eq!(offer_of(&GOOD.replacen(from, to, 1)), Some(Err(refusal)), "{to}");
        }
        assert_eq!(UpgradeRefusal::Version.status().code(), 426);
    }

    #[test]
    fn requests_without_an_upgrade_are_none() {
        for (from, to) in
            [("websocket", "h2c"), ("keep-alive, Upgrade", "keep-alive"), ("Upgrade: websocket\r\n", "")]
        {
            assert_eq!(offer_of(&GOOD.replacen(from, to, 1)), None, "{to}");
        }
    }
}
