//! Addresses to listen on.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// Where to listen: `127.0.0.1:8080`, `[::]:8080`, `:8080`, `8080` (loopback only) or `unix:/run/site.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP; port 0 lets the kernel choose.
    Tcp(SocketAddr),
    /// A Unix stream socket. A socket file without a listener is replaced.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            // sun_path holds 108 bytes with its NUL (unix(7)).
            if path.is_empty() || path.len() > 107 {
                return Err(format!("unix socket path: got {} bytes, allowed 1 to 107", path.len()));
            }
            return Ok(Address::Unix(path.into()));
        }
        let at = |ip: Ipv4Addr, port: &str| port.parse().ok().map(|port| SocketAddr::from((ip, port)));
        let of_port = || match text.strip_prefix(':') {
            Some(port) => at(Ipv4Addr::UNSPECIFIED, port),
            None => at(Ipv4Addr::LOCALHOST, text),
        };
        let named = || {
            let (host, port) = text.rsplit_once(':')?;
            let port = port.parse().ok()?;
            match host {
                "localhost" => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
                "*" => Some(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
                _ => None,
            }
        };
        text.parse()
            .ok()
            .or_else(of_port)
            .or_else(named)
            .map(Address::Tcp)
            .ok_or_else(|| {
                format!("got `{text}`, need an address: IP:PORT, [IPv6]:PORT, :PORT (all addresses), PORT (this machine only) or unix:PATH")
            })
    }
}

impl Address {
    /// It as a URL: `http://127.0.0.1:80`, `https://…` with TLS, or `unix:/run/site.sock`.
    pub fn url(&self, is_secure: bool) -> String {
        match self {
            Address::Tcp(address) if is_secure => format!("https://{address}"),
            address => address.to_string(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse() {
        for (text, shown) in [
            ("127.0.0.1:80", "http://127.0.0.1:80"),
            ("[::1]:80", "http://[::1]:80"),
            (":80", "http://0.0.0.0:80"),
            ("80", "http://127.0.0.1:80"),
            ("*:80", "http://[::]:80"),
            ("localhost:0", "http://127.0.0.1:0"),
            ("unix:/a/b", "unix:/a/b"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
        for text in ["", "a", "1.2.3.4", "1.2.3.4:99999", "unix:", "::1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
