//! Request methods (RFC 9110 section 9).

/// A request method: the nine that every server knows, and [`Method::Other`] for any other token.
///
/// The name of an [`Other`](Method::Other) one is in [`Head::method_name`](crate::head::Head::method_name).
///
/// ```
/// use flatout_wire::Method;
///
/// assert_eq!(Method::from_token(b"PATCH"), Method::Patch);
/// assert_eq!(Method::Patch.name(), "PATCH");
/// assert!(!Method::NAMED.contains(&Method::from_token(b"get")));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Patch,
    Options,
    Connect,
    Trace,
    Other,
}

impl Method {
    /// The methods with their own variants, in the order in which an `Allow` field lists them.
    pub const NAMED: [Method; 9] = [
        Method::Get,
        Method::Head,
        Method::Post,
        Method::Put,
        Method::Delete,
        Method::Patch,
        Method::Options,
        Method::Connect,
        Method::Trace,
    ];

    /// The method of a token. Methods are case-sensitive: `get` is [`Method::Other`].
    #[inline]
    pub fn from_token(token: &[u8]) -> Method {
        match token {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"PATCH" => Method::Patch,
            b"OPTIONS" => Method::Options,
            b"CONNECT" => Method::Connect,
            b"TRACE" => Method::Trace,
            _ => Method::Other,
        }
    }

    /// The token, empty for [`Method::Other`].
    pub fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Patch => "PATCH",
            Method::Options => "OPTIONS",
            Method::Connect => "CONNECT",
            Method::Trace => "TRACE",
            Method::Other => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_tokens_agree() {
        for method in Method::NAMED {
            assert_eq!(Method::from_token(method.name().as_bytes()), method);
        }
        for other in [&b"get"[..], b"PURGE", b"", b"GETT"] {
            assert_eq!(Method::from_token(other), Method::Other);
        }
    }
}
