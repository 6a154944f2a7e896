//! The client's address behind proxies.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use super::Extract;
use crate::{Context, Problem};

/// The client's address: that of the connection, or, if that is one of
/// [`App::trusted_proxies`](crate::App::trusted_proxies), the one in `X-Forwarded-For`. `None` on a Unix socket that is
/// not trusted or sends no address.
///
/// The field is read from its end, because every proxy appends the address that it has seen: the first address that is
/// not a trusted proxy is the client. Addresses that the client wrote itself come before it and are never used.
///
/// ```
/// use flatout::{App, ClientIp, test::Client};
///
/// // The proxy in front of the application is on the same machine.
/// let app = App::new()
///     .trusted_proxies(&["127.0.0.1"])
///     .get("/", |ClientIp(client): ClientIp| client.map(|client| client.to_string()));
/// let client = Client::over_socket(app)?;
/// let answer = client.get("/").header("X-Forwarded-For", "192.0.2.1, 203.0.113.9").send();
/// assert_eq!(answer.text(), "203.0.113.9");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientIp(pub Option<IpAddr>);

/// Addresses that share their first bits, or Unix sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    Ip { address: IpAddr, bits: u8 },
    Unix,
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let fault = || {
            format!("trusted proxy: got `{text}`, need an address, a network such as `10.0.0.0/8`, or `unix`")
        };
        if text == "unix" {
            return Ok(Network::Unix);
        }
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| fault())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(bits_max), str::parse).map_err(|_| fault())?;
        if bits > bits_max { Err(fault()) } else { Ok(Network::Ip { address, bits }) }
    }
}

impl Network {
    fn has(&self, peer: Option<IpAddr>) -> bool {
        match (self, peer) {
            (Network::Unix, None) => true,
            (Network::Ip { address: IpAddr::V4(network), bits }, Some(IpAddr::V4(peer))) => {
                let differ = network.to_bits() ^ peer.to_bits();
                differ.checked_shr(32 - u32::from(*bits)).unwrap_or(0) == 0
            }
            (Network::Ip { address: IpAddr::V6(network), bits }, Some(IpAddr::V6(peer))) => {
                let differ = network.to_bits() ^ peer.to_bits();
                differ.checked_shr(128 - u32::from(*bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// The first address, from the connection on outwards, that is not trusted.
fn client<'f>(
    peer: Option<IpAddr>,
    trusted: &[Network],
    forwarded: impl DoubleEndedIterator<Item = &'f [u8]>,
) -> Option<IpAddr> {
    let mut client = peer.map(|peer| peer.to_canonical());
    for said in forwarded.rev() {
        if !trusted.iter().any(|network| network.has(client)) {
            break;
        }
        // Anything but an address was not written by a trusted proxy.
        let Some(address) = address(said) else { break };
        client = Some(address);
    }
    client
}

/// An address, with or without a port.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let parsed = bare.parse().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    parsed.ok().map(|address: IpAddr| address.to_canonical())
}

/// Whether the connection comes from a trusted proxy.
#[cfg(feature = "proxy")]
pub(crate) fn is_from_proxy(context: &Context<'_>) -> bool {
    let peer = context.peer().map(|peer| peer.ip().to_canonical());
    context.place.trusted().iter().any(|network| network.has(peer))
}

/// Whether the client used https: by this connection, or, if that comes from a trusted proxy, by what this one says in
/// `X-Forwarded-Proto`. `Forwarded` is not read, as for the client's address: a proxy that does not write it passes on the client's.
#[cfg(feature = "proxy")]
pub(crate) fn is_https(context: &Context<'_>) -> bool {
    let last = context.head().field_all("x-forwarded-proto").last().filter(|_| is_from_proxy(context));
    let scheme = last.and_then(|value| value.rsplit(|&byte| byte == b',').next()).map(<[u8]>::trim_ascii);
    scheme.map_or(context.request.tls.is_some(), |scheme| scheme.eq_ignore_ascii_case(b"https"))
}

impl Extract for ClientIp {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        let peer = context.peer().map(|peer| peer.ip());
        let trusted = context.place.trusted();
        let values: Vec<&[u8]> = match trusted {
            [] => Vec::new(),
            _ => context.head().field_all("x-forwarded-for").collect(),
        };
        let forwarded = values.iter().flat_map(|value| value.split(|&byte| byte == b','));
        Ok(ClientIp(client(peer, trusted, forwarded)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(peer: &str, trusted: &[&str], forwarded: &str) -> String {
        let trusted: Vec<Network> = trusted.iter().map(|text| text.parse().unwrap()).collect();
        let forwarded = forwarded.split(',').filter(|text| !text.is_empty()).map(str::as_bytes);
        client(peer.parse().ok(), &trusted, forwarded).map_or("none".to_owned(), |found| found.to_string())
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let proxies = ["10.0.0.0/8", "fd00::/8", "192.0.2.7"];
        for (peer, forwarded, expected) in [
            ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
            ("10.1.2.3", "198.51.100.1", "198.51.100.1"),
            ("::ffff:10.1.2.3", "198.51.100.1", "198.51.100.1"),
            ("10.1.2.3", "198.51.100.1, 203.0.113.9", "203.0.113.9"),
            ("10.1.2.3", "1.1.1.1, 203.0.113.9, 10.9.9.9,192.0.2.7", "203.0.113.9"),
            ("10.1.2.3", "", "10.1.2.3"),
            ("10.1.2.3", "10.4.4.4", "10.4.4.4"),
            ("10.1.2.3", "203.0.113.9, unknown", "10.1.2.3"),
            ("fd00::1", "203.0.113.9:4711", "203.0.113.9"),
            ("fd00::1", "[2001:db8::1]:80", "2001:db8::1"),
            ("fd00::1", "[2001:db8::1]", "2001:db8::1"),
            ("192.0.2.8", "203.0.113.9", "192.0.2.8"),
            ("unix", "203.0.113.9", "none"),
        ] {
            assert_eq!(find(peer, &proxies, forwarded), expected, "{peer} {forwarded}");
        }
        assert_eq!(find("unix", &["unix"], "203.0.113.9"), "203.0.113.9");
        assert_eq!(find("8.8.8.8", &["0.0.0.0/0"], "203.0.113.9"), "203.0.113.9");
        assert_eq!(find("::1", &["::/0"], "203.0.113.9"), "203.0.113.9");
    }

    #[test]
    fn networks_are_checked() {
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0/8", "example.com", "10.0.0.0/-1"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
