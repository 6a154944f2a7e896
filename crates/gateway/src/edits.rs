//! Changes of a request: of its fields, and of its method.

use flatout_wire::{Head, Method};

/// The first character of lines that are parameters for FastCGI, SCGI and uwsgi. No field of a client begins with it.
pub const PARAM: char = ':';

/// Changes of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Edits<'a> {
    /// Names of fields that are left out, in lower case.
    pub dropped: &'a [String],
    /// More such names.
    pub dropped_too: &'a [String],
    /// More such names, of conditional rules.
    pub left_out: &'a [&'a [u8]],
    /// More such names, from code between the site and the proxy.
    pub handled: &'a [&'a [u8]],
    /// The host and port that the upstream gets in place of the client's spelling: the cache's key has this one.
    pub authority: Option<&'a [u8]>,
    /// The method that the upstream gets in place of the client's: a token, neither `HEAD` nor `CONNECT`.
    pub method: Option<&'a [u8]>,
    /// Whether another body takes the place of the client's.
    pub replaces_body: bool,
    /// Whether all fields of the client are left out.
    pub drops_all: bool,
    /// Field lines to add, each ended by CRLF. They contain no control bytes, and no fields of the connection or of
    /// framing. Those that begin with [`PARAM`] come first.
    pub lines: &'a [u8],
}

impl Edits<'_> {
    /// The host and port that the upstream gets.
    pub fn authority<'h>(&'h self, head: &'h Head<'_>) -> &'h [u8] {
        self.authority.unwrap_or(head.authority())
    }

    /// The method that the upstream gets.
    pub fn method(&self, head: &Head<'_>) -> Method {
        self.method.map_or(head.method, Method::from_token)
    }

    /// Whether the client's field of this name is removed. `_` and `-` are equal: applications behind CGI, WSGI and
    /// the like see `X_Real_IP` as `X-Real-IP`.
    pub fn drops(&self, name: &[u8]) -> bool {
        self.drops_all
            || self.dropped.iter().chain(self.dropped_too).any(|dropped| is_alike(name, dropped.as_bytes()))
            || self.left_out.iter().chain(self.handled).any(|dropped| is_alike(name, dropped))
    }
}

/// Whether applications may read `name` as this lower-case one.
pub fn is_alike(name: &[u8], dropped: &[u8]) -> bool {
    let alike = |(&a, &b): (&u8, &u8)| a.eq_ignore_ascii_case(&b) || (a == b'_' && b == b'-');
    name.len() == dropped.len() && name.iter().zip(dropped).all(alike)
}
