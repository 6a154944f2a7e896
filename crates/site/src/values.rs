//! The values of variables for a request.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD};
use flatout_engine::tls::PeerCertificate;
use flatout_engine::{Request, bug, sent_request_id};
use flatout_lane::process::host_name;
use flatout_prerender::{Crawler, crawler};
use flatout_wire::target::{encode_path, push_escape};
use flatout_wire::{Head, Version};

use super::crawlers::verification;
use super::facts::TlsNoted;
use super::hosts::name_of;
use super::plan::{OfAnnounced, OfCertificate, OfLimits, Variable};
use super::render::{Paths, View};

impl View<'_> {
    fn tls_facts(&self) -> Option<&TlsNoted> {
        self.noted.tls(self.request.and_then(|request| request.tls))
    }

    /// The peer of the connection, which is not the one in its PROXY protocol header.
    fn connected_peer(&self) -> Option<SocketAddr> {
        let request = self.request?;
        request.announced().map_or(request.peer, |announced| announced.peer)
    }

    /// Its address; `None` on a Unix socket, whatever a header says of its client.
    pub(super) fn peer_address(&self) -> Option<IpAddr> {
        match self.request {
            Some(_) => self.connected_peer().map(|peer| peer.ip().to_canonical()),
            None => self.peer,
        }
    }

    fn write_announced(&self, of: OfAnnounced, out: &mut Vec<u8>) -> io::Result<()> {
        let Some(announced) = self.request.and_then(|request| request.announced()) else { return Ok(()) };
        let (source, target) = (announced.source, announced.target);
        let address = |address: Option<SocketAddr>, out: &mut Vec<u8>| {
            address.map_or(Ok(()), |address| write!(out, "{}", address.ip()))
        };
        match of {
            OfAnnounced::Address => address(source, out),
            OfAnnounced::Port => write_port(source, out),
            OfAnnounced::ServerAddress => address(target, out),
            OfAnnounced::ServerPort => write_port(target, out),
        }
    }

    /// The text of a variable that is not made for it.
    pub(super) fn borrowed(&self, variable: &Variable) -> Option<&[u8]> {
        let head = self.head;
        Some(match variable {
            Variable::Scheme => {
                if self.client.is_https {
                    b"https"
                } else {
                    b"http"
                }
            }
            Variable::Authority => head.authority(),
            Variable::Host => {
                let name = name_of(head.authority());
                return (!name.iter().any(u8::is_ascii_uppercase)).then_some(name);
            }
            Variable::AuthorityPort => port_of(head.authority()).unwrap_or_default(),
            Variable::AuthorityColon => port_of(head.authority()).map_or(b"", |_| b":"),
            Variable::Method => head.method_name(),
            Variable::Path => self.path,
            Variable::Query => self.query.unwrap_or_default(),
            Variable::Argument(name) => argument(self.query, name).unwrap_or_default(),
            Variable::Header(name) => {
                let mut values = head.field_all(name);
                let first = values.next().unwrap_or_default();
                return values.next().is_none().then_some(first);
            }
            Variable::Cookie(name) => cookie(head, name).unwrap_or_default(),
            Variable::User => self.user,
            Variable::AuthField(name) => {
                let found = self.auth_fields.iter().find(|(this, _)| this.eq_ignore_ascii_case(name));
                found.map_or(b"", |(_, value)| value)
            }
            Variable::Limit(OfLimits::Rates) => self.limits.rates.name().as_bytes(),
            Variable::Limit(OfLimits::Concurrency) => self.limits.concurrency.name().as_bytes(),
            Variable::Capture(at) => self.captured.group(*at),
            Variable::Protocol => protocol(head),
            Variable::Https => {
                if self.client.is_https {
                    b"on"
                } else {
                    b""
                }
            }
            Variable::Crawler => crawler_of(head).map_or(b"", |found| found.name.as_bytes()),
            Variable::CrawlerKind => crawler_of(head).map_or(b"", |found| found.kind.name().as_bytes()),
            Variable::CrawlerVerification => {
                verification(head.field("user-agent"), self.client.address, self.tables)
            }
            Variable::SiteName => self.site_name.as_bytes(),
            Variable::TlsVersion => self.tls_facts().map_or(b"", |facts| facts.version.as_bytes()),
            Variable::TlsCipher => self.tls_facts().map_or(b"", |facts| facts.cipher.as_bytes()),
            Variable::TlsResumed => match self.tls_facts() {
                None => b"",
                Some(facts) if facts.is_resumed => b"r",
                Some(_) => b".",
            },
            Variable::TlsEarly => {
                let is_early = |request: &Request<'_>| request.tls.is_some_and(|tls| tls.is_early());
                // The connection is not known any more when a response has come.
                if self.client.is_early || self.request.is_some_and(is_early) { b"1" } else { b"" }
            }
            Variable::TlsServerName => self.tls_facts().map_or(b"", |facts| facts.server_name.as_bytes()),
            Variable::Http2 if head.version != Version::Http2 => b"",
            Variable::Http2 if self.request.is_some_and(|request| request.tls.is_some()) => b"h2",
            Variable::Http2 => b"h2c",
            Variable::HostName => HOST_NAME.as_bytes(),
            _ => return None,
        })
    }

    /// Whether the request has this field, parameter or cookie.
    pub(super) fn has_entry(&self, variable: &Variable) -> bool {
        match variable {
            Variable::Argument(name) => argument(self.query, name).is_some(),
            Variable::Header(name) => self.head.field(name).is_some(),
            Variable::Cookie(name) => cookie(self.head, name).is_some(),
            _ => false,
        }
    }

    pub(super) fn write(&self, variable: &Variable, paths: Paths, depth: usize, out: &mut Vec<u8>) {
        match variable {
            Variable::Path => write_path(self.path, paths, out),
            Variable::Capture(at) => self.write_group(self.captured.group(*at), paths, out),
            Variable::Map(at) => self.write_mapped(*at, depth, out),
            Variable::Set(at) => self.write_set(*at, out),
            variable => match self.borrowed(variable) {
                Some(text) => out.extend_from_slice(text),
                None => self.write_made(variable, out),
            },
        }
    }

    /// Writes what a group found. In a query, encoded `&` and `+` of the path must not become its separators and blanks. As with nginx, those
    /// of a path without any encoding are taken to be meant so, as in `rewrite "^/x/(.*)$" "/x?$1"`.
    fn write_group(&self, group: &[u8], paths: Paths, out: &mut Vec<u8>) {
        let at = out.len();
        write_path(group, paths, out);
        let is_encoded = || self.head.path().iter().any(|byte| matches!(byte, b'%' | b'+'));
        if paths == Paths::Query && is_encoded() {
            let escaped = out.split_off(at);
            for byte in escaped {
                match byte {
                    b'&' | b'+' | b';' => push_escape(byte, out),
                    _ => out.push(byte),
                }
            }
        }
    }

    /// The address of the connection's listener.
    fn listening(&self) -> Option<SocketAddr> {
        let (listener, addresses) = self.listener;
        addresses.iter().find(|(number, _)| *number == listener).map(|(_, address)| *address)
    }

    /// Writes a text that is made for the variable.
    fn write_made(&self, variable: &Variable, out: &mut Vec<u8>) {
        let moment = || self.noted.moment();
        // Writing to memory does not fail.
        let _ = match variable {
            Variable::Host => {
                let at = out.len();
                out.extend_from_slice(name_of(self.head.authority()));
                out.get_mut(at..).unwrap_or_default().make_ascii_lowercase();
                Ok(())
            }
            Variable::QuestionMark if self.query.is_some_and(|query| !query.is_empty()) => {
                out.write_all(b"?")
            }
            Variable::Target => {
                self.head.write_origin_form(out);
                Ok(())
            }
            Variable::EscapedTarget => {
                let mut target = Vec::new();
                self.head.write_origin_form(&mut target);
                escape_all(&target, out);
                Ok(())
            }
            Variable::Header(name) => {
                let separator = if name == "cookie" { &b"; "[..] } else { b", " };
                let values: Vec<&[u8]> = self.head.field_all(name).collect();
                out.write_all(&values.join(separator))
            }
            Variable::ForwardedFor => {
                for value in self.head.field_all("x-forwarded-for") {
                    out.extend_from_slice(value);
                    out.extend_from_slice(b", ");
                }
                write_address(self.client.address, out)
            }
            Variable::ServerPort => {
                self.listening().map_or(Ok(()), |address| write!(out, "{}", address.port()))
            }
            // One listener has connections to several addresses, which are not known here.
            Variable::ServerAddress => {
                let ip = self.listening().map(|address| address.ip().to_canonical());
                write_address(ip.filter(|ip| !ip.is_unspecified()), out)
            }
            Variable::Client => write_address(self.client.address, out),
            Variable::Peer => write_address(self.peer_address(), out),
            Variable::ClientPort => {
                // Fields name addresses without ports; the header of the connection has one, which the route may trust.
                let is_clients = |peer: &SocketAddr| Some(peer.ip().to_canonical()) == self.client.address;
                let announced = || self.request?.announced()?.source;
                let peer = self.request.and_then(|request| request.peer).filter(is_clients);
                write_port(peer.or_else(|| announced().filter(is_clients)), out)
            }
            Variable::PeerPort => write_port(self.connected_peer(), out),
            Variable::Announced(of) => self.write_announced(*of, out),
            Variable::Connection => match self.request.map_or(0, Request::connection) {
                0 => Ok(()),
                number => write!(out, "{number}"),
            },
            Variable::Process => write!(out, "{}", std::process::id()),
            Variable::Certificate(property) => {
                write_property(*property, self.certificate, out);
                Ok(())
            }
            Variable::Time => {
                let unix_ms = moment().unix_ms;
                write!(out, "{}.{:03}", unix_ms / 1000, unix_ms % 1000)
            }
            Variable::Random => write!(out, "{:.6}", moment().fraction()),
            Variable::RequestId => match sent_request_id(self.head) {
                Some(id) => out.write_all(id),
                None => {
                    let [one, other] = moment().random;
                    write!(out, "{one:016x}{other:016x}")
                }
            },
            Variable::RandomId => {
                let id = random_id(moment().random);
                out.write_all(id.as_bytes())
            }
            Variable::TraceParent => match self.head.field("traceparent").filter(|it| is_traceparent(it)) {
                Some(sent) => out.write_all(sent),
                None => {
                    let [one, other] = moment().random;
                    // A span must not be 0.
                    let span = (one ^ other.rotate_left(32)) | 1;
                    write!(out, "00-{one:016x}{other:016x}-{span:016x}-01")
                }
            },
            Variable::NamedCapture(name) => {
                bug!("the group `{name}` was not resolved when its text was made");
                Ok(())
            }
            // There is no response yet.
            _ => Ok(()),
        };
    }
}

/// 128 random bits that cannot be derived from a request id.
fn random_id([one, other]: [u64; 2]) -> String {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let half = |at: u8| SECRET.hash_one((one, other, at)).to_be_bytes();
    BASE64_STANDARD_NO_PAD.encode([half(0), half(1)].concat())
}

fn write_port(address: Option<SocketAddr>, out: &mut Vec<u8>) -> io::Result<()> {
    address.map_or(Ok(()), |address| write!(out, "{}", address.port()))
}

/// The name of this machine, as it was when it was first used.
static HOST_NAME: LazyLock<String> = LazyLock::new(|| host_name().to_ascii_lowercase());

/// The port of an authority, if it has one.
fn port_of(authority: &[u8]) -> Option<&[u8]> {
    let rest = authority.get(name_of(authority).len()..)?;
    let rest = rest.strip_prefix(b".").unwrap_or(rest);
    rest.strip_prefix(b":").filter(|port| !port.is_empty())
}

/// Whether this is the `traceparent` of a trace: version, trace, span and flags (W3C Trace Context, 3.2.2). That of a later
/// version may be longer.
fn is_traceparent(text: &[u8]) -> bool {
    let mut parts = text.split(|&byte| byte == b'-');
    let mut has = |length: usize| {
        parts.next().filter(|part| part.len() == length && part.iter().all(is_lower_hex)).map(<[u8]>::to_vec)
    };
    let is_something = |part: &[u8]| part.iter().any(|&byte| byte != b'0');
    let (Some(version), Some(trace), Some(span), Some(_)) = (has(2), has(32), has(16), has(2)) else {
        return false;
    };
    is_something(&trace)
        && is_something(&span)
        && version != b"ff"
        && (version != b"00" || parts.next().is_none())
}

fn is_lower_hex(byte: &u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Escapes bytes that a request target must not contain: a variable's value must not end it.
pub(crate) fn escape_unsafe(text: &mut Vec<u8>) {
    let is_unsafe = |byte: &u8| !byte.is_ascii_graphic() || matches!(byte, b'#' | b'"' | b'<' | b'>' | b'\\');
    if !text.iter().any(is_unsafe) {
        return;
    }
    let escape = |byte: u8| if is_unsafe(&byte) { format!("%{byte:02X}").into_bytes() } else { vec![byte] };
    *text = std::mem::take(text).into_iter().flat_map(escape).collect();
}

/// Escapes everything but the unreserved characters of RFC 3986, so that it can be the value of a parameter of a query.
fn escape_all(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => out.push(byte),
            false => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
}

fn write_path(path: &[u8], paths: Paths, out: &mut Vec<u8>) {
    match paths {
        Paths::Decoded => out.extend_from_slice(path),
        Paths::Encoded | Paths::Query => encode_path(path, out),
    }
}

/// The crawler that claims to send a request.
fn crawler_of(head: &Head<'_>) -> Option<Crawler> {
    head.field("user-agent").and_then(crawler)
}

/// The protocol's name as nginx writes it.
fn protocol(head: &Head<'_>) -> &'static [u8] {
    match head.version {
        Version::Http10 => b"HTTP/1.0",
        Version::Http11 => b"HTTP/1.1",
        Version::Http2 => b"HTTP/2.0",
    }
}

fn write_address(address: Option<IpAddr>, out: &mut Vec<u8>) -> io::Result<()> {
    match address {
        Some(address) => write!(out, "{address}"),
        None => write!(out, "unix:"),
    }
}

fn write_property(property: OfCertificate, certificate: Option<&PeerCertificate>, out: &mut Vec<u8>) {
    match (property, certificate) {
        (OfCertificate::Verify, None) => out.extend_from_slice(b"NONE"),
        (_, None) => {}
        (OfCertificate::Verify, Some(certificate)) => out.extend_from_slice(match certificate.is_verified {
            true => b"SUCCESS",
            // Other connections whose certificate cannot be verified are refused in their handshake.
            false => b"FAILED:unknown issuer",
        }),
        (OfCertificate::Pem, Some(certificate)) => write_escaped_pem(&certificate.der, out),
        (OfCertificate::FoldedPem, Some(certificate)) => write_folded_pem(&certificate.der, out),
        (OfCertificate::Property(property), Some(certificate)) => {
            out.extend_from_slice(property.of(&certificate.der).unwrap_or_default().as_bytes());
        }
    }
}

/// A certificate in PEM (RFC 7468).
fn pem(certificate: &[u8]) -> Vec<u8> {
    let text = BASE64_STANDARD.encode(certificate);
    let lines = text.as_bytes().chunks(64).flat_map(|line| [line, b"\n"]);
    let begin = &b"-----BEGIN CERTIFICATE-----\n"[..];
    let all = [begin].into_iter().chain(lines).chain([&b"-----END CERTIFICATE-----\n"[..]]);
    all.collect::<Vec<_>>().concat()
}

/// Writes a certificate in PEM, percent-encoded: it has line ends, which no field may have.
fn write_escaped_pem(certificate: &[u8], out: &mut Vec<u8>) {
    for byte in pem(certificate) {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => out.push(byte),
            _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
}

/// The same in one line, as a recipient reads a field with folded lines (RFC 9112, 5.2).
fn write_folded_pem(certificate: &[u8], out: &mut Vec<u8>) {
    let text = pem(certificate);
    let lines = text.strip_suffix(b"\n").unwrap_or(&text);
    out.extend(lines.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }));
}

fn argument<'q>(query: Option<&'q [u8]>, name: &str) -> Option<&'q [u8]> {
    query?.split(|&byte| byte == b'&').find_map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        let (this, value) = pair.split_at(at);
        this.eq_ignore_ascii_case(name.as_bytes()).then(|| value.get(1..).unwrap_or_default())
    })
}

fn cookie<'h>(head: &Head<'h>, name: &str) -> Option<&'h [u8]> {
    let mut pairs = head.field_all("cookie").flat_map(|line| line.split(|&byte| byte == b';'));
    pairs.find_map(|pair| {
        let pair = pair.trim_ascii();
        let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(value)
    })
}
