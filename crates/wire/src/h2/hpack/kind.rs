//! Which field a name names, as far as HTTP/2 has something to say of it.

use crate::field;

/// What a field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `:method`
    Method,
    /// `:scheme`
    Scheme,
    /// `:authority`
    Authority,
    /// `:path`
    Path,
    /// `:protocol` (RFC 8441)
    Protocol,
    /// `:status`
    Status,
    /// A field that means nothing to the connection.
    Plain,
    /// `host`
    Host,
    /// `cookie`
    Cookie,
    /// `content-length`
    ContentLength,
    /// `expect`
    Expect,
    /// `te`, which may say `trailers` and nothing else.
    Te,
    /// `priority` (RFC 9218)
    Priority,
    /// One that concerns a connection of HTTP/1, and that HTTP/2 forbids (RFC 9113 section 8.2.2).
    Connection,
    /// Not the name of a field, or not of one in HTTP/2: it has a capital letter, or a colon.
    Malformed,
}

impl Kind {
    /// The kind of the field with this name.
    #[inline]
    pub fn of(name: &[u8]) -> Kind {
        match Kind::known(name) {
            Some(kind) => kind,
            None if field::is_lower_token(name) => Kind::Plain,
            None => Kind::Malformed,
        }
    }

    /// The kind of a name that means something here.
    pub(super) const fn known(name: &[u8]) -> Option<Kind> {
        Some(match name {
            b":method" => Kind::Method,
            b":scheme" => Kind::Scheme,
            b":authority" => Kind::Authority,
            b":path" => Kind::Path,
            b":protocol" => Kind::Protocol,
            b":status" => Kind::Status,
            b"host" => Kind::Host,
            b"cookie" => Kind::Cookie,
            b"content-length" => Kind::ContentLength,
            b"expect" => Kind::Expect,
            b"te" => Kind::Te,
            b"priority" => Kind::Priority,
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
                Kind::Connection
            }
            _ => return None,
        })
    }

    /// Whether it is a pseudo-header, which stands before all others.
    #[inline]
    pub fn is_pseudo(self) -> bool {
        matches!(
            self,
            Kind::Method | Kind::Scheme | Kind::Authority | Kind::Path | Kind::Protocol | Kind::Status
        )
    }
}

/// Whether `value` may stand in a field of HTTP/2: no control byte but tab, and no white space around it (RFC 9113 section
/// 8.2.1).
#[inline]
pub(super) fn is_value(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    field::is_field_value(value) && !is_space(value.first()) && !is_space(value.last())
}
