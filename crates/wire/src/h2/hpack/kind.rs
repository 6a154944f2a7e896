//! Classifies field names that have a meaning in HTTP/2.

use crate::field;

/// The kind of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
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

impl FieldKind {
    /// The kind of the field with this name.
    #[inline]
    pub fn of(name: &[u8]) -> FieldKind {
        match FieldKind::known(name) {
            Some(kind) => kind,
            None if field::is_lower_token(name) => FieldKind::Plain,
            None => FieldKind::Malformed,
        }
    }

    /// The kind of a name with a meaning here.
    pub(super) const fn known(name: &[u8]) -> Option<FieldKind> {
        Some(match name {
            b":method" => FieldKind::Method,
            b":scheme" => FieldKind::Scheme,
            b":authority" => FieldKind::Authority,
            b":path" => FieldKind::Path,
            b":protocol" => FieldKind::Protocol,
            b":status" => FieldKind::Status,
            b"host" => FieldKind::Host,
            b"cookie" => FieldKind::Cookie,
            b"content-length" => FieldKind::ContentLength,
            b"expect" => FieldKind::Expect,
            b"te" => FieldKind::Te,
            b"priority" => FieldKind::Priority,
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
                FieldKind::Connection
            }
            _ => return None,
        })
    }

    /// Whether it is a pseudo-header field, which must precede all others.
    #[inline]
    pub fn is_pseudo(self) -> bool {
        matches!(
            self,
            FieldKind::Method
                | FieldKind::Scheme
                | FieldKind::Authority
                | FieldKind::Path
                | FieldKind::Protocol
                | FieldKind::Status
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
