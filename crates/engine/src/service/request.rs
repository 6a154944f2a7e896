//! A request as a service sees it.

use std::net::SocketAddr;
use std::rc::Rc;

use flatout_tls::PeerCertificate;
use flatout_wire::Head;

use super::key::ExchangeKey;
use super::stream::BodyStream;
use super::ticket::Ticket;
use crate::secured::Secured;

/// One request: borrowed from the worker's read buffer for the duration of the call.
pub struct Request<'a> {
    /// Method, target, version and fields.
    pub head: Head<'a>,
    /// The decoded path in the service's normal form ([`Service::path_form`](crate::Service::path_form)); `*` for
    /// `OPTIONS *`.
    pub path: &'a [u8],
    /// The body, read as [`Service::prepare`](crate::Service::prepare) has decided.
    pub body: RequestBody<'a>,
    /// The client's address; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
    /// Facts about its TLS connection; `None` without TLS.
    pub tls: Option<Tls<'a>>,
    /// The number of its connection's listener ([`Listen::number`](crate::Listen::number)).
    pub listener: u16,
    /// Its number in this process, from which its id is made ([`write_request_id`](crate::write_request_id)); 0 without a
    /// connection.
    pub number: u64,
    /// From [`Service::prepare`](crate::Service::prepare).
    pub ticket: Option<Ticket>,
    pub(crate) parking: Option<&'a dyn Park>,
}

/// The TLS connection of a request.
#[derive(Debug, Clone, Copy)]
pub struct Tls<'a>(Known<'a>);

#[derive(Debug, Clone, Copy)]
enum Known<'a> {
    Connection(&'a Secured),
    /// Copied when its request had to wait.
    Copy(&'a TlsFacts),
    /// Nothing but whether it was early data.
    Early(bool),
}

/// The facts about a TLS connection that a request keeps while it waits.
#[derive(Debug)]
pub(crate) struct TlsFacts {
    is_early: bool,
    cipher: Option<(&'static str, String)>,
    rules: Option<u16>,
    client_certificate: Option<PeerCertificate>,
    is_resumed: bool,
    server_name: Option<Box<str>>,
}

impl TlsFacts {
    /// An early request is still treated as early, although the handshake may be complete by the time it is resumed.
    pub(crate) fn of(tls: Tls<'_>) -> TlsFacts {
        TlsFacts {
            is_early: tls.is_early(),
            cipher: tls.cipher(),
            rules: tls.rules(),
            client_certificate: tls.client_certificate(),
            is_resumed: tls.is_resumed(),
            server_name: tls.server_name(),
        }
    }
}

impl<'a> Tls<'a> {
    /// One of which nothing is known, for tests of services.
    pub const UNKNOWN: Tls<'static> = Tls(Known::Early(false));

    /// The same for a request that is [early](Tls::is_early).
    pub const EARLY: Tls<'static> = Tls(Known::Early(true));

    #[inline]
    pub(crate) fn of(secured: &'a Secured) -> Tls<'a> {
        Tls(Known::Connection(secured))
    }

    pub(crate) fn copy(facts: &'a TlsFacts) -> Tls<'a> {
        Tls(Known::Copy(facts))
    }

    /// Whether the request arrived before the end of the handshake (early data, which a plan must enable) and
    /// so could be a replay by an attacker (RFC 8470). After the handshake this returns `false`.
    pub fn is_early(&self) -> bool {
        match self.0 {
            Known::Connection(secured) => secured.with(|channel| channel.is_early()).unwrap_or(false),
            Known::Copy(facts) => facts.is_early,
            Known::Early(is_early) => is_early,
        }
    }

    /// Version and cipher suite, such as `TLSv1.3` and `TLS_AES_128_GCM_SHA256`.
    pub fn cipher(&self) -> Option<(&'static str, String)> {
        match self.0 {
            Known::Connection(secured) => secured.with(|channel| channel.cipher()).flatten(),
            Known::Copy(facts) => facts.cipher.clone(),
            Known::Early(_) => None,
        }
    }

    /// The number of the rules that the client had to follow ([`Acceptor::rules`](crate::tls::Acceptor::rules)); `None` if the
    /// connection is not known any more.
    pub fn rules(&self) -> Option<u16> {
        match self.0 {
            Known::Connection(secured) => secured.with(|channel| channel.rules()).flatten(),
            Known::Copy(facts) => facts.rules,
            Known::Early(_) => None,
        }
    }

    /// Whether it has resumed a session.
    pub fn is_resumed(&self) -> bool {
        match self.0 {
            Known::Connection(secured) => secured.with(|channel| channel.is_resumed()).unwrap_or(false),
            Known::Copy(facts) => facts.is_resumed,
            Known::Early(_) => false,
        }
    }

    /// The name that the client has asked for (SNI), in lower case.
    pub fn server_name(&self) -> Option<Box<str>> {
        match self.0 {
            Known::Connection(secured) => {
                secured.with(|channel| channel.server_name().map(Box::from)).flatten()
            }
            Known::Copy(facts) => facts.server_name.clone(),
            Known::Early(_) => None,
        }
    }

    /// The client's certificate, if it was requested and presented.
    pub fn client_certificate(&self) -> Option<PeerCertificate> {
        match self.0 {
            Known::Connection(secured) => secured.with(|channel| channel.client_certificate()).flatten(),
            Known::Copy(facts) => facts.client_certificate.clone(),
            Known::Early(_) => None,
        }
    }
}

/// The addresses in a connection's PROXY protocol header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// The client, if present.
    pub source: Option<SocketAddr>,
    /// The address to which the client has connected, if present.
    pub target: Option<SocketAddr>,
    /// The peer that has sent the header; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
}

/// Creates an exchange for the current request, and knows its connection.
pub(crate) trait Park {
    fn park(&self) -> ExchangeKey;

    fn announced(&self) -> Option<Rc<Announced>>;

    /// The number of its connection.
    fn connection(&self) -> u64;
}

/// For detached requests: they have no exchange.
impl Park for Rc<Announced> {
    fn park(&self) -> ExchangeKey {
        ExchangeKey::none()
    }

    fn announced(&self) -> Option<Rc<Announced>> {
        Some(self.clone())
    }

    fn connection(&self) -> u64 {
        0
    }
}

impl<'a> Request<'a> {
    /// A request without a connection, for tests of services.
    pub fn detached(head: Head<'a>, path: &'a [u8], body: RequestBody<'a>) -> Request<'a> {
        Request {
            head,
            path,
            body,
            peer: None,
            tls: None,
            listener: 0,
            number: 0,
            ticket: None,
            parking: None,
        }
    }

    /// The same with the addresses in the header of another request's connection, if that had one.
    pub fn detached_behind(
        announced: Option<&'a Rc<Announced>>,
        head: Head<'a>,
        path: &'a [u8],
        body: RequestBody<'a>,
    ) -> Request<'a> {
        let parking = announced.map(|announced| announced as &dyn Park);
        Request { parking, ..Request::detached(head, path, body) }
    }

    /// The addresses in its connection's PROXY protocol header; `None` without one. Requests do not carry it: it is looked up.
    pub fn announced(&self) -> Option<Rc<Announced>> {
        self.parking?.announced()
    }

    /// The number of its connection, which no other connection of its worker has while the process runs; 0 without one.
    pub fn connection(&self) -> u64 {
        self.parking.map_or(0, |parking| parking.connection())
    }

    /// The key of this request's exchange, which is created now. With it the response can be sent later
    /// ([`Reply::Parked`](crate::Reply::Parked)), or an interim response before. The key of a detached request
    /// matches nothing.
    pub fn park(&self) -> ExchangeKey {
        self.parking.map_or_else(ExchangeKey::none, |parking| parking.park())
    }
}

/// The body of a request.
pub enum RequestBody<'a> {
    /// All of it; empty where there was none.
    Whole {
        /// The decoded bytes.
        bytes: &'a [u8],
        /// The trailer fields of a chunked body.
        trailers: &'a [(Vec<u8>, Vec<u8>)],
    },
    /// Still being received.
    Stream(BodyStream),
}

impl RequestBody<'_> {
    /// No body.
    pub const NONE: RequestBody<'static> = RequestBody::Whole { bytes: &[], trailers: &[] };
}

#[cfg(test)]
mod tests {
    use flatout_wire::head::parse_kept;

    use super::*;
    use crate::service::OwnedRequest;

    #[test]
    fn requests_that_wait_keep_the_facts_of_their_tls_connection() {
        let facts = TlsFacts {
            is_early: true,
            cipher: Some(("TLSv1.3", "TLS_AES_128_GCM_SHA256".to_owned())),
            rules: Some(7),
            client_certificate: Some(PeerCertificate { der: b"der".to_vec(), is_verified: false }),
            is_resumed: true,
            server_name: Some("a.example".into()),
        };
        let mut fields = Vec::new();
        let head = parse_kept(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &mut fields, None).unwrap();
        let mut request = Request::detached(head, b"/", RequestBody::NONE);
        request.tls = Some(Tls::copy(&facts));
        // It may wait more than once.
        let once = OwnedRequest::of(request);
        let twice = once.resume(OwnedRequest::of).unwrap();
        let seen = twice.resume(|request| {
            let tls = request.tls.unwrap();
            (tls.is_early(), tls.cipher(), tls.rules(), tls.client_certificate(), tls.server_name())
        });
        assert_eq!(seen, Some((true, facts.cipher, Some(7), facts.client_certificate, facts.server_name)));
    }

    #[test]
    fn requests_without_tls_wait_without_it() {
        let mut fields = Vec::new();
        let head = parse_kept(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &mut fields, None).unwrap();
        let owned = OwnedRequest::of(Request::detached(head, b"/", RequestBody::NONE));
        assert_eq!(owned.resume(|request| request.tls.is_none()), Some(true));
    }
}
