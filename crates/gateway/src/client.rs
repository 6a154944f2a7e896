//! The client of a request.

use std::net::IpAddr;

/// The client, according to trusted proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The client's address; `None` on a Unix socket whose information about it is not trusted.
    pub address: Option<IpAddr>,
    /// Whether the client used https.
    pub is_https: bool,
    /// Whether the request arrived as early data of TLS: it could be a replay (RFC 8470).
    pub is_early: bool,
    /// Whether the peer of the connection is a trusted proxy: only then are its `X-Forwarded-*` and `Forwarded` passed on,
    /// with our line added. Everybody else's are replaced.
    pub is_from_proxy: bool,
}
