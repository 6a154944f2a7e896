//! `listen`: where servers are served. nginx chooses among the servers of an address; the first of them, or the one with
//! `default_server`, gets requests for other names.

use crate::nginx::Directive;

use super::out::line;

/// Ports of one `listen` with a range; more are not converted.
const PORTS_MAX: u16 = 256;

/// An address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerAddress {
    /// As the site file writes it.
    pub(super) text: String,
    is_secure: bool,
    proxy_header: ListenHeader,
    is_default: bool,
}

/// Whether connections start with a PROXY protocol header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ListenHeader {
    None,
    /// No server of the address takes clients from it.
    Untrusted,
    Trusted,
}

/// The addresses of all servers, in their order.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    servers: Vec<Vec<ServerAddress>>,
}

/// Why an address cannot be converted.
pub(super) type Refused = &'static str;

impl Addresses {
    /// Those of these servers; with reasons for the ones that are left out.
    pub(super) fn of<'d>(servers: &[&'d Directive]) -> (Addresses, Vec<(&'d Directive, Refused)>) {
        let mut refused = Vec::new();
        let of_server = |server: &&'d Directive| {
            let listens: Vec<&Directive> =
                server.inner().iter().filter(|directive| directive.name == "listen").collect();
            if listens.is_empty() {
                return parse(&["80"]).unwrap_or_default();
            }
            let mut found = Vec::new();
            for listen in listens {
                match parse(&listen.texts()) {
                    Ok(addresses) => found.extend(addresses),
                    Err(why) => refused.push((listen, why)),
                }
            }
            found
        };
        let mut addresses = Addresses { servers: servers.iter().map(of_server).collect() };
        addresses.settle();
        (addresses, refused)
    }

    /// All servers of an address use TLS or the PROXY protocol if one of them says so, and one of them is the default.
    fn settle(&mut self) {
        let all: Vec<ServerAddress> = self.servers.iter().flatten().cloned().collect();
        let mut defaults: Vec<&str> = Vec::new();
        for address in self.servers.iter_mut().flatten() {
            let same = || all.iter().filter(|other| other.text == address.text);
            let header = same().map(|other| other.proxy_header).max();
            (address.is_secure, address.proxy_header) =
                (same().any(|other| other.is_secure), header.unwrap_or(address.proxy_header));
            let is_named = same().any(|other| other.is_default);
            let text = all.iter().find(|other| other.text == address.text).map_or("", |other| &other.text);
            address.is_default = (address.is_default || !is_named) && !defaults.contains(&text);
            if address.is_default {
                defaults.push(text);
            }
        }
    }

    /// Those of the server at this place.
    pub(super) fn at(&self, server: usize) -> &[ServerAddress] {
        self.servers.get(server).map(Vec::as_slice).unwrap_or_default()
    }

    /// Leaves a server only those of its addresses where it gets requests: for one of its names, or as the default server.
    pub(super) fn retain(&mut self, server: usize, has_name: impl Fn(&str) -> bool) {
        if let Some(addresses) = self.servers.get_mut(server) {
            addresses.retain(|address| address.is_default || has_name(&address.text));
        }
    }

    /// Whether all servers have the same ones, so that they belong to the top of the file.
    pub(super) fn are_shared(&self) -> bool {
        let of = |server: &Vec<ServerAddress>| {
            let mut texts: Vec<String> = server.iter().map(|address| address.text.clone()).collect();
            texts.sort();
            texts.dedup();
            texts
        };
        let is_default = |server: &Vec<ServerAddress>| server.iter().all(|address| address.is_default);
        let mut all = self.servers.iter().map(of);
        let first = all.next().unwrap_or_default();
        all.all(|other| other == first) && self.servers.iter().any(is_default)
    }

    /// Whether any address is served with TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.servers.iter().flatten().any(|address| address.is_secure)
    }

    /// Whether a server is served with TLS.
    pub(super) fn speaks_tls(&self, server: usize) -> bool {
        self.at(server).iter().any(|address| address.is_secure)
    }

    /// The places of the default servers of a server's addresses with TLS.
    pub(super) fn defaults_of(&self, server: usize) -> Vec<usize> {
        let here = self.at(server);
        let is_default = |other: &usize| {
            let mut secure = self.at(*other).iter().filter(|it| it.is_default && it.is_secure);
            secure.any(|it| here.iter().any(|own| own.text == it.text))
        };
        (0..self.servers.len()).filter(is_default).collect()
    }

    /// Whether a server gets the requests for other names at all its addresses.
    pub(super) fn is_default(&self, server: usize) -> bool {
        self.at(server).iter().all(|address| address.is_default)
    }

    /// Whether it does at any of them.
    pub(super) fn is_default_anywhere(&self, server: usize) -> bool {
        self.at(server).iter().any(|address| address.is_default)
    }

    /// PROXY protocol headers name clients at addresses where some server takes clients from them: `trusts` says it for the server at
    /// a place.
    pub(super) fn trust_headers(&mut self, trusts: &[bool]) {
        let servers = self.servers.iter().zip(trusts).filter(|(_, trusts)| **trusts);
        let trusted: Vec<String> =
            servers.flat_map(|(server, _)| server).map(|address| address.text.clone()).collect();
        for address in self.servers.iter_mut().flatten() {
            if address.proxy_header == ListenHeader::Untrusted && trusted.contains(&address.text) {
                address.proxy_header = ListenHeader::Trusted;
            }
        }
    }
}

impl ServerAddress {
    /// Its setting. In a site it says whether the site gets requests for other names, if the site's names do not.
    pub(super) fn setting(&self, has_tls: bool, names_default: bool) -> String {
        let word = if has_tls && !self.is_secure { "listen-plain" } else { "listen" };
        let header = match self.proxy_header {
            ListenHeader::None => "",
            ListenHeader::Untrusted => " proxy-protocol=untrusted",
            ListenHeader::Trusted => " proxy-protocol=on",
        };
        let default = if names_default && self.is_default { " default=on" } else { "" };
        format!("{}{header}{default}", line(word, &self.text))
    }
}

/// The addresses of a `listen`.
fn parse(texts: &[&str]) -> Result<Vec<ServerAddress>, Refused> {
    if texts.contains(&"quic") {
        return Err("HTTP/3 is not supported yet");
    }
    let given = texts.first().copied().unwrap_or_default();
    let has = |name: &str| texts.contains(&name);
    let address = |text: String| ServerAddress {
        text,
        is_secure: has("ssl"),
        proxy_header: if has("proxy_protocol") { ListenHeader::Untrusted } else { ListenHeader::None },
        is_default: has("default_server") || has("default"),
    };
    if given.starts_with("unix:") {
        return Ok(vec![address(given.to_owned())]);
    }
    let (host, port) = match given.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') && (!host.starts_with('[') || host.ends_with(']')) => {
            (host, port)
        }
        _ if given.starts_with('[') => (given, "80"),
        _ if given.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') => ("*", given),
        _ => (given, "80"),
    };
    let host = match host {
        "*" | "0.0.0.0" => "",
        "localhost" => "127.0.0.1",
        host if host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok() => host,
        _ => return Err("it needs an IP address; names are not supported"),
    };
    let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or("it has no valid port");
    let (first, last) = match port.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(port)?, number(port)?),
    };
    if last.checked_sub(first).is_none_or(|more| more >= PORTS_MAX) {
        return Err("its range of ports is not supported");
    }
    Ok((first..=last).map(|port| address(format!("{host}:{port}"))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_site_file_does() {
        for (given, expected) in [
            ("80", Ok(vec![":80"])),
            ("*:81", Ok(vec![":81"])),
            ("0.0.0.0:81", Ok(vec![":81"])),
            ("127.0.0.1", Ok(vec!["127.0.0.1:80"])),
            ("127.0.0.1:8080", Ok(vec!["127.0.0.1:8080"])),
            ("localhost:8080", Ok(vec!["127.0.0.1:8080"])),
            ("[::]:80", Ok(vec!["[::]:80"])),
            ("[::1]", Ok(vec!["[::1]:80"])),
            ("unix:/run/x.sock", Ok(vec!["unix:/run/x.sock"])),
            ("8000-8002", Ok(vec![":8000", ":8001", ":8002"])),
            ("127.0.0.1:1-2", Ok(vec!["127.0.0.1:1", "127.0.0.1:2"])),
            ("example.org:80", Err("it needs an IP address; names are not supported")),
            ("1-60000", Err("its range of ports is not supported")),
            ("9-8", Err("its range of ports is not supported")),
            ("0", Err("it has no valid port")),
            ("127.0.0.1:x", Err("it has no valid port")),
        ] {
            let parsed = parse(&[given]).map(|all| all.into_iter().map(|it| it.text).collect::<Vec<_>>());
            assert_eq!(parsed, expected.map(|all| all.into_iter().map(str::to_owned).collect()), "{given}");
        }
        assert!(parse(&["443", "quic"]).is_err());
    }
}
