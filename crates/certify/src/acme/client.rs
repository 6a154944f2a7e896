//! HTTPS requests to a CA: one connection each, with limits on time and size.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Request, Uri};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Time limit of a request, from connecting to the end of the response.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// Largest response body.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Longest `Retry-After` that we follow: a day. Longer values are capped, so that adding one to a clock cannot
/// overflow.
const RETRY_AFTER_S_MAX: u64 = 24 * 3600;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Makes requests. Clones share one client.
#[derive(Clone)]
pub(super) struct Http {
    connector: TlsConnector,
}

impl Http {
    /// A client that trusts the certificates in this file, or the system's.
    pub(super) fn open(authorities: Option<&Path>) -> Result<Http, String> {
        Ok(Http { connector: TlsConnector::from(flatout_tls::client_config(authorities)?) })
    }

    async fn exchange(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Failure> {
        let (mut parts, body) = request.into_parts();
        let (host, port) = place(&parts.uri)?;
        let socket = TcpStream::connect((host.as_str(), port))
            .await
            .map_err(|error| format!("{host}:{port}: {error}"))?;
        let name = ServerName::try_from(host.clone())?;
        let stream =
            self.connector.connect(name, socket).await.map_err(|error| format!("{host}:{port}: {error}"))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Dropping the set ends the driver task, however the request ends.
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let authority = parts.uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        parts.headers.insert(HOST, HeaderValue::from_str(authority)?);
        parts.uri = parts.uri.path_and_query().map_or("/", |target| target.as_str()).parse()?;
        let response = sender.send_request(Request::from_parts(parts, body)).await?;
        let (mut parts, body) = response.into_parts();
        shorten_retry(&mut parts.headers);
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await?.to_bytes();
        Ok(BytesResponse { parts, body: Box::new(body) })
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let exchange = self.clone().exchange(request);
        Box::pin(async move {
            match timeout(REQUEST_TIME_MAX, exchange).await {
                Ok(result) => result.map_err(Error::Other),
                Err(_) => {
                    Err(Error::Other(format!("no response in {} s", REQUEST_TIME_MAX.as_secs()).into()))
                }
            }
        })
    }
}

/// Host and port of a URI.
fn place(uri: &Uri) -> Result<(String, u16), Failure> {
    match (uri.scheme_str(), uri.host()) {
        (Some("https"), Some(host)) => {
            Ok((host.trim_matches(['[', ']']).to_owned(), uri.port_u16().unwrap_or(443)))
        }
        _ => Err(format!("`{uri}` is not an https address").into()),
    }
}

fn shorten_retry(headers: &mut HeaderMap) {
    let Some(value) = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()) else { return };
    let value = value.trim();
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && value.parse::<u64>().map_or(true, |seconds| seconds > RETRY_AFTER_S_MAX) {
        headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S_MAX));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_https_is_allowed() {
        let found = |text: &str| place(&text.parse().unwrap()).map_err(|error| error.to_string());
        assert_eq!(found("https://a.test/x"), Ok(("a.test".to_owned(), 443)));
        assert_eq!(found("https://[::1]:14000/dir"), Ok(("::1".to_owned(), 14000)));
        assert!(found("http://a.test/").unwrap_err().contains("not an https address"));
        assert!(found("/x").is_err());
    }

    #[test]
    fn unresponsive_servers_time_out() {
        let folder = tempfile::TempDir::new().unwrap();
        let authority = folder.path().join("ca.pem");
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&authority, made.cert.pem()).unwrap();
        let http = Http::open(Some(&authority)).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("https://{}/dir", listener.local_addr().unwrap());
        let request = Request::builder().uri(uri).body(BodyWrapper::default()).unwrap();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().unwrap();
        let error = runtime.block_on(http.request(request)).err().unwrap();
        assert_eq!(error.to_string(), "no response in 30 s");
    }

    #[test]
    fn retry_after_is_limited() {
        for (value, expected) in [
            ("5", "5"),
            ("86400", "86400"),
            ("86401", "86400"),
            ("18446744073709551615", "86400"),
            ("99999999999999999999999", "86400"),
            ("Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 31 Dec 1999 23:59:59 GMT"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(value).unwrap());
            shorten_retry(&mut headers);
            assert_eq!(headers[RETRY_AFTER], expected, "{value}");
        }
    }
}
