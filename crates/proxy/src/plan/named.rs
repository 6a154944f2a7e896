//! Servers that requests name.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use super::{Address, Protocol, Server, Tls};

/// Which servers requests may name, and how their names are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedServers {
    /// Their hosts; at least one.
    pub hosts: Vec<NamedHost>,
    /// The settings of TLS to those that have it.
    pub tls: Tls,
    /// The DNS servers; empty: those of the other upstreams.
    pub resolvers: Vec<SocketAddr>,
    /// Whether IPv6 addresses of names are used.
    pub ipv6: bool,
    /// How long a lookup may take.
    pub lookup_time_max: Duration,
    /// How long an address is used; `None`: as long as its record says.
    pub valid_time: Option<Duration>,
}

/// A host that requests may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedHost {
    /// All of them, with all addresses that this machine reaches.
    Any,
    /// All IP addresses.
    AnyAddress,
    /// This name or IP address, in lower case.
    One(String),
    /// The names that end with this, which begins with a dot.
    Below(String),
}

impl NamedServers {
    /// How long a lookup may take by default.
    pub const LOOKUP_TIME_MAX: Duration = Duration::from_secs(5);

    /// The server that a request names, if it may.
    pub(crate) fn server(&self, named: &str, protocol: Protocol) -> Option<Server> {
        let server: Server = match named.split_once("://") {
            Some(("grpc", rest)) => format!("http://{rest}").parse().ok()?,
            Some(("grpcs", rest)) => format!("https://{rest}").parse().ok()?,
            _ => named.parse().ok()?,
        };
        let is_possible = match protocol {
            Protocol::H2 { .. } => server.tls.is_some(),
            Protocol::Http1 | Protocol::Uwsgi => true,
            Protocol::H2c { .. } | Protocol::FastCgi | Protocol::Scgi => server.tls.is_none(),
        };
        let is_allowed = is_possible && self.hosts.iter().any(|host| host.is_of(&server.address));
        is_allowed.then(|| Server { tls: server.tls.is_some().then(|| self.tls.clone()), ..server })
    }
}

impl NamedHost {
    /// Never a Unix socket.
    fn is_of(&self, address: &Address) -> bool {
        match (self, address) {
            (_, Address::Unix(_)) => false,
            (NamedHost::Any, _) | (NamedHost::AnyAddress, Address::Socket(_)) => true,
            (NamedHost::One(one), Address::Name(name, _)) => name.trim_end_matches('.') == one,
            (NamedHost::One(one), Address::Socket(address)) => {
                one.parse::<IpAddr>().is_ok_and(|ip| ip == address.ip())
            }
            (NamedHost::Below(end), Address::Name(name, _)) => {
                name.trim_end_matches('.').strip_suffix(end.as_str()).is_some_and(|start| !start.is_empty())
            }
            (NamedHost::AnyAddress | NamedHost::Below(_), _) => false,
        }
    }
}

/// As a site file has it: `*`, `address`, `*.example.org`, a name, or an address.
impl FromStr for NamedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedHost, String> {
        let lower = text.to_ascii_lowercase();
        let is_name = |name: &str| {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
                && !name.starts_with('.')
        };
        Ok(match lower.as_str() {
            "*" => NamedHost::Any,
            "address" => NamedHost::AnyAddress,
            _ => match lower.strip_prefix("*.") {
                Some(end) if is_name(end) => NamedHost::Below(format!(".{end}")),
                None if is_name(&lower) => NamedHost::One(lower.trim_end_matches('.').to_owned()),
                None if lower.parse::<IpAddr>().is_ok() => NamedHost::One(lower),
                _ => {
                    let need = "need a host name, an IP address, *.DOMAIN, `address` for all IP addresses, or * for all";
                    return Err(format!("got `{text}`, {need}"));
                }
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(hosts: &[&str]) -> NamedServers {
        NamedServers {
            hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
            tls: Tls { verify: false, ..Tls::default() },
            resolvers: Vec::new(),
            ipv6: true,
            lookup_time_max: NamedServers::LOOKUP_TIME_MAX,
            valid_time: None,
        }
    }

    #[test]
    fn requests_name_only_allowed_servers() {
        let allowed = |hosts: &[&str], text: &str| named(hosts).server(text, Protocol::Http1).is_some();
        for (host, text, expected) in [
            ("*", "http://a.example:8080", true),
            ("*", "10.0.0.1:80", true),
            ("*", "http://unix:/run/app.sock", false),
            ("*", "unix:/run/app.sock", false),
            ("*", "http://a/b", false),
            ("*", "http://user@a:80", false),
            ("*", "ftp://a", false),
            ("*", "a", false),
            ("*", "", false),
            ("address", "http://10.0.0.1", true),
            ("address", "http://[::1]:80", true),
            ("address", "http://localhost:80", false),
            ("*.internal", "http://a.internal:80", true),
            ("*.internal", "http://A.INTERNAL.:80", true),
            ("*.internal", "http://internal:80", false),
            ("*.internal", "http://.internal:80", false),
            ("*.internal", "http://ainternal:80", false),
            ("*.internal", "http://a.internal.example:80", false),
            ("a.internal", "http://a.internal:81", true),
            ("a.internal", "http://b.a.internal:81", false),
            ("10.0.0.1", "http://10.0.0.1:81", true),
            ("10.0.0.1", "http://10.0.0.2:81", false),
            ("::1", "http://[::1]:81", true),
        ] {
            assert_eq!(allowed(&[host], text), expected, "{host} {text}");
        }
        assert!(!allowed(&[], "http://a:80"));
        assert!(
            ["", "*.", "*..a", "a/b", "a:80", "*a"].iter().all(|text| text.parse::<NamedHost>().is_err())
        );
    }

    #[test]
    fn a_named_server_has_the_settings_of_tls() {
        let found = named(&["*"]).server("https://a", Protocol::Http1).unwrap();
        assert!(found.tls.is_some_and(|tls| !tls.verify));
        assert!(named(&["*"]).server("https://a", Protocol::H2c { streams_max: 1 }).is_none());
        assert!(named(&["*"]).server("http://a", Protocol::H2 { streams_max: 1 }).is_none());
    }
}
