//! Fetches what pages may have: from the site's own socket, or from an allowed origin at addresses that were checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::addresses::is_public;
use super::judge::PageOrigin;

/// Time limit of one request of a page.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(20);

/// The same for a page that is rendered first.
const RENDER_TIME_MAX: Duration = Duration::from_secs(600);

/// Largest body of a response to a page.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Addresses of an allowed origin that are tried.
const ADDRESSES_MAX: usize = 4;

/// The field that marks requests of the renderer. A route never renders a page for one.
pub(crate) const MARK: HeaderName = HeaderName::from_static("x-prerender");

/// Fields of pages that are not passed on: those of the connection, those that we set, and credentials.
const WITHHELD: [&str; 13] = [
    "accept-encoding",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-prerender",
];

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestTarget {
    /// The site of the page, through its own socket.
    Own { target: String },
    /// An origin of the operator's list.
    Allowed { is_https: bool, host: String, port: u16, target: String },
}

/// A request of a page.
pub(crate) struct PageRequest {
    pub(crate) to: RequestTarget,
    pub(crate) method: Method,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Bytes,
}

/// A response for a page.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) status: u16,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Bytes,
}

/// Why nothing was fetched.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FetchFault {
    /// The name leads to an address that pages must not reach.
    Address(SocketAddr),
    /// The site's own socket does not accept connections.
    Unreachable(String),
    /// All else, in words.
    Failed(String),
}

/// Fetches for the pages of one site.
pub(crate) struct Fetcher {
    /// The site's own socket.
    socket: PathBuf,
    page: PageOrigin,
    connector: Option<TlsConnector>,
    user_agent: HeaderValue,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Fetcher {
    pub(crate) fn new(
        socket: PathBuf,
        page: PageOrigin,
        connector: Option<TlsConnector>,
        user_agent: HeaderValue,
    ) -> Arc<Fetcher> {
        Arc::new(Fetcher { socket, page, connector, user_agent })
    }

    pub(crate) fn page(&self) -> &PageOrigin {
        &self.page
    }

    /// Fetches a response, whole. Redirects are not followed.
    ///
    /// # Errors
    /// It is not allowed, or failed, or took too long, or is too large.
    pub(crate) async fn fetch(&self, request: PageRequest) -> Result<Fetched, FetchFault> {
        match timeout(REQUEST_TIME_MAX, self.exchange(request, true)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(FetchFault::Failed(format!("no response in {} s", REQUEST_TIME_MAX.as_secs()))),
        }
    }

    /// The same as a crawler does it: the page may be rendered first.
    pub(crate) async fn fetch_unmarked(&self, request: PageRequest) -> Result<Fetched, FetchFault> {
        match timeout(RENDER_TIME_MAX, self.exchange(request, false)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(FetchFault::Failed(format!("no page in {} s", RENDER_TIME_MAX.as_secs()))),
        }
    }

    async fn exchange(&self, request: PageRequest, is_marked: bool) -> Result<Fetched, FetchFault> {
        let PageRequest { to, method, mut fields, body } = request;
        for name in WITHHELD {
            fields.remove(name);
        }
        fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        fields.insert(http::header::USER_AGENT, self.user_agent.clone());
        if is_marked {
            fields.insert(MARK, HeaderValue::from_static("1"));
        }
        let (stream, authority, target): (Box<dyn Stream>, String, String) = match to {
            RequestTarget::Own { target } => {
                let proto = if self.page.is_https { "https" } else { "http" };
                fields.insert("x-forwarded-proto", HeaderValue::from_static(proto));
                let stream = UnixStream::connect(&self.socket).await;
                let stream = stream.map_err(|error| FetchFault::Unreachable(error.to_string()))?;
                (Box::new(stream), self.page.authority.clone(), target)
            }
            RequestTarget::Allowed { is_https, host, port, target } => {
                let is_usual = port == if is_https { 443 } else { 80 };
                let authority = if is_usual { host.clone() } else { format!("{host}:{port}") };
                (self.connect(is_https, &host, port).await?, authority, target)
            }
        };
        let authority = HeaderValue::from_str(&authority).map_err(|error| failed("host", &error))?;
        fields.insert(HOST, authority);
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = target.parse().map_err(|error| failed("target", &error))?;
        *request.headers_mut() = fields;
        send(stream, request).await
    }

    /// Connects to an allowed origin. All of its addresses must be public: then none was slipped in between the check and the
    /// connection, since no name is resolved a second time.
    async fn connect(&self, is_https: bool, host: &str, port: u16) -> Result<Box<dyn Stream>, FetchFault> {
        let found = lookup_host((host, port)).await.map_err(|error| failed(host, &error))?;
        let addresses = checked(found.collect())?;
        let mut last = FetchFault::Failed(format!("{host} has no address"));
        for address in addresses.into_iter().take(ADDRESSES_MAX) {
            let stream = match TcpStream::connect(address).await {
                Ok(stream) => stream,
                Err(error) => {
                    last = failed(host, &error);
                    continue;
                }
            };
            let Some(connector) = self.connector.as_ref().filter(|_| is_https) else {
                return match is_https {
                    true => Err(FetchFault::Failed("TLS is not configured".to_owned())),
                    false => Ok(Box::new(stream)),
                };
            };
            let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(host, &error))?;
            let stream = connector.connect(name, stream).await.map_err(|error| failed(host, &error))?;
            return Ok(Box::new(stream));
        }
        Err(last)
    }
}

/// The addresses of an origin, if all of them are public.
fn checked(addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, FetchFault> {
    match addresses.iter().find(|address| !is_public(address.ip())) {
        Some(private) => Err(FetchFault::Address(*private)),
        None => Ok(addresses),
    }
}

async fn send(stream: Box<dyn Stream>, request: Request<Full<Bytes>>) -> Result<Fetched, FetchFault> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed("connection", &error))?;
    // Dropping the set ends the driver task, however the request ends.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let response: Response<Incoming> =
        sender.send_request(request).await.map_err(|error| failed("request", &error))?;
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
    let body = body.map_err(|error| FetchFault::Failed(format!("body: {error}")))?.to_bytes();
    Ok(Fetched { status: parts.status.as_u16(), fields: parts.headers, body })
}

fn failed(place: &str, error: &dyn std::error::Error) -> FetchFault {
    FetchFault::Failed(format!("{place}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_private_address_among_public_ones_refuses_the_origin() {
        let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let (public, private) = (address("1.1.1.1:443"), address("127.0.0.1:443"));
        assert_eq!(checked(vec![public]), Ok(vec![public]));
        assert_eq!(checked(vec![public, private]), Err(FetchFault::Address(private)));
        let mapped = address("[::ffff:10.0.0.1]:443");
        assert_eq!(checked(vec![mapped]), Err(FetchFault::Address(mapped)));
    }

    #[tokio::test]
    async fn names_of_this_machine_are_not_connected_to() {
        let page = PageOrigin { is_https: false, authority: "a.test".to_owned() };
        let fetcher = Fetcher::new("/nonexistent".into(), page, None, HeaderValue::from_static("x"));
        let found = fetcher.connect(false, "localhost", 9).await;
        assert!(matches!(found.err(), Some(FetchFault::Address(address)) if address.ip().is_loopback()));
        let found = fetcher.connect(false, "169.254.169.254", 80).await;
        assert!(matches!(found.err(), Some(FetchFault::Address(_))), "the address is never connected to");
    }
}
