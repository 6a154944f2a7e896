//! The client's address: the peer's, unless a trusted proxy names another.

use std::net::{IpAddr, SocketAddr};

use flatout_engine::Request;
use flatout_wire::Head;

use super::access::AccessList;
use super::plan::{AddressFrom, Trust};
use flatout_gateway::Client;

/// Addresses of a list that are examined, from the right; behind more proxies than that, the client is the last one
/// found.
const ADDRESSES_MAX: usize = 64;

/// Whose information about the client's address is trusted.
#[derive(Debug)]
pub(crate) struct Clients {
    proxies: AccessList,
    from: AddressFrom,
}

impl Clients {
    pub(crate) fn new(trust: &Trust) -> Clients {
        Clients { proxies: AccessList::of(&trust.proxies), from: trust.from.clone() }
    }

    /// Whether a client may be another one than the peer of its connection: one that a proxy names in a field.
    pub(crate) fn are_named(&self) -> bool {
        self.from != AddressFrom::ProxyProtocol && !self.proxies.is_empty()
    }

    /// Whether this peer is a trusted proxy.
    pub(crate) fn believes(&self, peer: Option<SocketAddr>) -> bool {
        self.proxies.allows(peer.map(|peer| peer.ip().to_canonical()))
    }

    /// The client. Without trusted proxies that is the peer of the connection, at no cost.
    #[inline]
    pub(crate) fn client(&self, head: &Head<'_>, peer: Option<SocketAddr>, is_tls: bool) -> Client {
        let peer = peer.map(|peer| peer.ip().to_canonical());
        if !self.proxies.allows(peer) {
            return Client { address: peer, is_https: is_tls, is_early: false, is_from_proxy: false };
        }
        self.forwarded_client(head, peer, is_tls)
    }

    /// The client for a route that does not know its clients as its site does: also if the listener has taken the peer from a PROXY
    /// protocol header, or has not.
    pub(crate) fn of_request(&self, request: &Request<'_>) -> Client {
        let announced = request.announced();
        let peer = announced.as_ref().map_or(request.peer, |announced| announced.peer);
        let mut client = self.client(&request.head, peer, request.tls.is_some());
        if self.from == AddressFrom::ProxyProtocol
            && client.is_from_proxy
            && let Some(source) = announced.and_then(|announced| announced.source)
        {
            client.address = Some(source.ip().to_canonical());
        }
        client
    }

    fn forwarded_client(&self, head: &Head<'_>, peer: Option<IpAddr>, is_tls: bool) -> Client {
        let mut client = Client { address: peer, is_https: is_tls, is_early: false, is_from_proxy: true };
        match &self.from {
            AddressFrom::XForwardedFor => {
                client.address = self.outermost(peer, listed(head, "x-forwarded-for").map(address));
                let scheme = listed(head, "x-forwarded-proto").next();
                client.is_https = scheme.map_or(is_tls, |scheme| scheme.eq_ignore_ascii_case(b"https"));
            }
            AddressFrom::Forwarded => {
                let element = |element| parameter(element, b"for").and_then(address);
                client.address = self.outermost(peer, listed(head, "forwarded").map(element));
                let scheme =
                    listed(head, "forwarded").next().and_then(|element| parameter(element, b"proto"));
                client.is_https = scheme.map_or(is_tls, |scheme| scheme.eq_ignore_ascii_case(b"https"));
            }
            AddressFrom::Header(name) => {
                let mut values = head.field_all(name);
                // Two fields contradict each other, and the client may have sent one of them.
                if let (Some(value), None) = (values.next(), values.next()) {
                    client.address = address(value).or(peer);
                }
            }
            // The header came before the first request, and the engine has replaced the peer with it, if the site trusts it.
            AddressFrom::ProxyProtocol => {}
        }
        client
    }

    fn outermost(
        &self,
        peer: Option<IpAddr>,
        addresses: impl Iterator<Item = Option<IpAddr>>,
    ) -> Option<IpAddr> {
        outermost(&self.proxies, peer, addresses.take(ADDRESSES_MAX))
    }
}

/// The first address from the right that is not a proxy's; the leftmost if all are. An element that is not an
/// address ends the list: fields before it cannot be trusted.
fn outermost(
    proxies: &AccessList,
    peer: Option<IpAddr>,
    addresses: impl Iterator<Item = Option<IpAddr>>,
) -> Option<IpAddr> {
    let mut found = peer;
    for address in addresses {
        let Some(address) = address else { break };
        found = Some(address);
        if !proxies.allows(found) {
            break;
        }
    }
    found
}

/// The address that one of these proxies names in `X-Forwarded-For`; the last one there, or with `is_recursive` the last one that is
/// not a proxy's. That of any other peer is its own.
pub(crate) fn forwarded_address(
    proxies: &AccessList,
    is_recursive: bool,
    peer: Option<IpAddr>,
    head: &Head<'_>,
) -> Option<IpAddr> {
    if !proxies.allows(peer) {
        return peer;
    }
    let count = if is_recursive { ADDRESSES_MAX } else { 1 };
    outermost(proxies, peer, listed(head, "x-forwarded-for").map(address).take(count))
}

/// The elements of all fields of this name, from the last one of the last field on. Quoted commas do not occur in
/// these fields.
fn listed<'b>(head: &Head<'b>, name: &str) -> impl Iterator<Item = &'b [u8]> {
    let lines: Vec<&'b [u8]> = head.field_all(name).collect();
    lines
        .into_iter()
        .rev()
        .flat_map(|line| line.rsplit(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

/// The value of a parameter of a `Forwarded` element (RFC 7239 section 4).
fn parameter<'b>(element: &'b [u8], name: &[u8]) -> Option<&'b [u8]> {
    element.split(|&byte| byte == b';').find_map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        let (this, value) = pair.split_at(at);
        this.trim_ascii().eq_ignore_ascii_case(name).then(|| value.get(1..).unwrap_or_default().trim_ascii())
    })
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`, also in quotes.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let bare = match text.strip_prefix('[') {
        Some(text) => {
            let (address, port) = text.split_once(']')?;
            let is_port = port.is_empty()
                || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
            return address
                .parse::<std::net::Ipv6Addr>()
                .ok()
                .filter(|_| is_port)
                .map(|address| IpAddr::V6(address).to_canonical());
        }
        None => text,
    };
    let address = bare.parse().or_else(|_| bare.parse().map(|address: SocketAddr| address.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_wire::head::{HeadLimits, parse};

    /// The client's address and whether it used https, for a request with these fields from this peer.
    fn client(from: AddressFrom, fields: &str, peer: Option<&str>) -> (String, bool) {
        let proxies = ["10.0.0.0/8", "unix"].iter().map(|text| text.parse().unwrap()).collect();
        let clients = Clients::new(&Trust { proxies, from });
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut spans = Vec::new();
        let head = parse(text.as_bytes(), &mut spans, &HeadLimits::default()).unwrap().unwrap();
        let client = clients.client(&head, peer.map(|peer| SocketAddr::new(peer.parse().unwrap(), 1)), false);
        (client.address.map_or("-".to_owned(), |address| address.to_string()), client.is_https)
    }

    #[test]
    fn forwarded_fields_of_untrusted_peers_are_ignored() {
        let fields = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\nForwarded: for=192.0.2.1\r\n";
        for from in [AddressFrom::XForwardedFor, AddressFrom::Forwarded, AddressFrom::ProxyProtocol] {
            assert_eq!(client(from, fields, Some("203.0.113.9")), ("203.0.113.9".to_owned(), false));
        }
    }

    #[test]
    fn the_rightmost_untrusted_address_is_the_clients() {
        for (fields, expected) in [
            ("", "10.0.0.1"),
            ("X-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
            ("X-Forwarded-For: 1.1.1.1, 192.0.2.1, 10.0.0.2\r\n", "192.0.2.1"),
            ("X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
            ("X-Forwarded-For: 10.0.0.3, 10.0.0.2\r\n", "10.0.0.3"),
            ("X-Forwarded-For: 192.0.2.1, unknown, 10.0.0.2\r\n", "10.0.0.2"),
            ("X-Forwarded-For: unknown\r\n", "10.0.0.1"),
            ("X-Forwarded-For: 192.0.2.1:4711\r\n", "192.0.2.1"),
            ("X-Forwarded-For: 2001:db8::1\r\n", "2001:db8::1"),
            ("X-Forwarded-For: [2001:db8::1]:4711\r\n", "2001:db8::1"),
            ("X-Forwarded-For: [2001:db8::1]x\r\n", "10.0.0.1"),
            ("X-Forwarded-For: ::ffff:10.0.0.7\r\n", "10.0.0.7"),
            ("X-Forwarded-For: , ,\r\n", "10.0.0.1"),
            ("Forwarded: for=192.0.2.1\r\n", "10.0.0.1"),
        ] {
            assert_eq!(client(AddressFrom::XForwardedFor, fields, Some("10.0.0.1")).0, expected, "{fields}");
        }
    }

    #[test]
    fn proxies_name_one_address_or_the_last_that_is_not_theirs() {
        let proxies = AccessList::of(&["10.0.0.0/8".parse().unwrap()]);
        let found = |fields: &str, is_recursive: bool, peer: &str| {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let mut spans = Vec::new();
            let head = parse(text.as_bytes(), &mut spans, &HeadLimits::default()).unwrap().unwrap();
            let address = forwarded_address(&proxies, is_recursive, peer.parse().ok(), &head);
            address.map_or("-".to_owned(), |address| address.to_string())
        };
        let both = "X-Forwarded-For: 192.0.2.1, 192.0.2.2, 10.0.0.2\r\n";
        for (fields, peer, last, skipped) in [
            (both, "10.0.0.1", "10.0.0.2", "192.0.2.2"),
            (both, "203.0.113.9", "203.0.113.9", "203.0.113.9"),
            (both, "unix", "-", "-"),
            ("", "10.0.0.1", "10.0.0.1", "10.0.0.1"),
            (
                "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.9:80\r\n",
                "10.0.0.1",
                "192.0.2.9",
                "192.0.2.9",
            ),
            ("X-Forwarded-For: 192.0.2.1, x\r\n", "10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(found(fields, false, peer), last, "{fields} {peer}");
            assert_eq!(found(fields, true, peer), skipped, "{fields} {peer}");
        }
    }

    #[test]
    fn forwarded_is_read_in_the_same_way() {
        for (fields, expected) in [
            ("Forwarded: for=192.0.2.1;proto=https\r\n", ("192.0.2.1", true)),
            ("Forwarded: For=\"[2001:db8::1]:80\"; Proto=http\r\n", ("2001:db8::1", false)),
            ("Forwarded: for=1.1.1.1;proto=https, for=192.0.2.1;proto=http\r\n", ("192.0.2.1", false)),
            ("Forwarded: for=_hidden\r\n", ("10.0.0.1", false)),
            ("Forwarded: by=192.0.2.1\r\n", ("10.0.0.1", false)),
            ("X-Forwarded-For: 192.0.2.1\r\n", ("10.0.0.1", false)),
        ] {
            let told = client(AddressFrom::Forwarded, fields, Some("10.0.0.1"));
            assert_eq!((told.0.as_str(), told.1), expected, "{fields}");
        }
    }

    #[test]
    fn a_custom_address_field_has_one_address() {
        let from = || AddressFrom::Header("X-Real-IP".to_owned());
        assert_eq!(client(from(), "X-Real-IP: 192.0.2.1\r\n", None).0, "192.0.2.1");
        assert_eq!(client(from(), "X-Real-IP: 192.0.2.1\r\nX-Real-IP: 192.0.2.2\r\n", None).0, "-");
        assert_eq!(client(from(), "X-Real-IP: 192.0.2.1, 192.0.2.2\r\n", None).0, "-");
    }
}
