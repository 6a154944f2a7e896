//! Classifies field names that have a meaning in HTTP/2.

use crate::field;

/// The kind of a field.
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
    /// A field without a meaning for the connection.
    Plain,
    /// `host`
    Host,
    /// `cookie`
    Cookie,
    /// `content-length`
    ContentLength,
    /// `expect`
    Expect,
    /// `te`, whose only allowed value is `trailers`.
    Te,
    /// `priority` (RFC 9218)
    Priority,
    /// A connection field of HTTP/1, which HTTP/2 forbids (RFC 9113 section 8.2.2).
    Connection,
    /// Not a valid field name, or not in HTTP/2: it contains an upper-case letter or a colon.
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

    /// The kind of a name with a meaning here.
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

    /// Whether it is a pseudo-header field, which must precede all others.
    #[inline]
    pub fn is_pseudo(self) -> bool {
        matches!(
            self,
            Kind::Method | Kind::Scheme | Kind::Authority | Kind::Path | Kind::Protocol | Kind::Status
        )
    }
}

/// Whether `value` is valid in HTTP/2: no control bytes except tab, and no white space around it (RFC 9113 section
/// 8.2.1).
#[inline]
pub(super) fn is_value(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    field::is_field_value(value) && !is_space(value.first()) && !is_space(value.last())
}
