//! The renderer as an upstream: a request for a page gets HTML, or the page as it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::budget::client_of;
use crate::figures::{Counters, RenderOutcome, RenderPhase};
use crate::page::{Document, PageResult, Rendered};
use crate::pool::{Pool, RenderFault};
use crate::refresh::{Background, RenderedPage};
use crate::walls::{FetchFault, Fetched, Fetcher, MARK, PageOrigin, PageRequest, RequestTarget};

/// Fields of the document that its HTML keeps.
const PASSED: [&str; 5] = ["cache-tag", "content-language", "link", "surrogate-key", "x-robots-tag"];

/// Fields that pages must not set by `prerender-header`: of the connection, of our own responses, and those that would change what
/// browsers do on the site's origin.
const NOT_SETTABLE: [&str; 12] = [
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "keep-alive",
    "server",
    "set-cookie",
    "trailer",
    "transfer-encoding",
    "x-prerender",
];

/// Who asks: fields that a page may use, of the request of a crawler. Nothing that identifies a visitor is among them.
const OF_CRAWLER: [&str; 2] = ["accept", "accept-language"];

/// The field in which our proxy names the client.
const FORWARDED: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Its value for pages that nobody waits for: the site's address of a renderer. No client has it.
const NO_CLIENT: &str = "100::";

/// How long a page is stored that was not finished, one that has moved, and one that is no page.
const SHORT: &str = "max-age=60";

/// The field in which a route says how long its pages are stored. Only the route can send it: it replaces that of clients.
const ROUTE_LIFETIME: &str = "x-prerender-cache";

/// The field that says so to our own cache, and to no other (RFC 9213).
const CACHE_LIFETIME: HeaderName = HeaderName::from_static("flatout-cache-control");

/// Renders the pages of one site.
pub(crate) struct SiteRenderer {
    pub(crate) pool: Arc<Pool>,
    /// The site's own socket.
    pub(crate) socket: std::path::PathBuf,
    pub(crate) connector: Option<TlsConnector>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) background: Arc<Background>,
}

impl SiteRenderer {
    /// Responds to a request for a page.
    pub(crate) async fn respond<B>(&self, request: Request<B>) -> Response<Full<Bytes>> {
        if is_for_client(request.headers()) {
            self.counters.for_clients.fetch_add(1, Ordering::Relaxed);
        }
        let (response, outcome) = self.decide(request.map(drop)).await;
        self.counters.add(outcome);
        response
    }

    async fn decide(&self, request: Request<()>) -> (Response<Full<Bytes>>, RenderOutcome) {
        let Some(page) = origin(request.headers()) else {
            return (error(StatusCode::BAD_REQUEST, "the request has no host"), RenderOutcome::Error);
        };
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let url = page.url(&target);
        let lifetime = request.headers().get(ROUTE_LIFETIME).cloned();
        let fetcher = |agent: &str| {
            let agent = HeaderValue::from_str(agent).unwrap_or(HeaderValue::from_static("flatout-prerender"));
            Fetcher::new(self.socket.clone(), page.clone(), self.connector.clone(), agent)
        };
        let begun = Instant::now();
        let fetched = document(&fetcher("flatout-prerender"), &request, target.clone()).await;
        self.counters.spend(RenderPhase::Fetch, begun.elapsed());
        let fetched = match fetched {
            Ok(fetched) => fetched,
            Err(fault) => {
                let text = format!("the page could not be fetched: {fault:?}");
                return (error(StatusCode::BAD_GATEWAY, &text), RenderOutcome::Error);
            }
        };
        if !is_page(&fetched) || request.method() != Method::GET {
            return (plain(fetched, "plain"), RenderOutcome::Plain);
        }
        let document = Document { url, fetched, is_preview: false };
        let client =
            || request.headers().get(FORWARDED).and_then(|value| value.to_str().ok()).and_then(client_of);
        if is_for_client(request.headers()) && !self.pool.is_within_budget(client(), &self.socket) {
            return (skipped(document, "budget"), RenderOutcome::Budget);
        }
        match self.pool.render(&document, fetcher).await {
            Ok(PageResult::Rendered(rendered)) => {
                let outcome = if rendered.is_late { RenderOutcome::Late } else { RenderOutcome::Rendered };
                let response = html(&document.fetched.fields, rendered, lifetime);
                let stored = response.headers().get(CACHE_LIFETIME).and_then(|it| it.to_str().ok());
                if let Some(lifetime) = stored.filter(|lifetime| *lifetime != SHORT) {
                    let PageOrigin { is_https, authority } = page;
                    let page = RenderedPage { socket: self.socket.clone(), is_https, authority, target };
                    self.background.rendered(page, lifetime);
                }
                (response, outcome)
            }
            Ok(PageResult::Moved(url)) => (moved(&url), RenderOutcome::Moved),
            Err(RenderFault::Overload) => (skipped(document, "overload"), RenderOutcome::Overload),
            Err(RenderFault::NoBrowser) => (skipped(document, "no-browser"), RenderOutcome::NoBrowser),
            Err(RenderFault::Page(fault)) => (skipped(document, fault.label()), RenderOutcome::Failed),
        }
    }
}

/// Whether somebody waits for the page: it is neither a warm-up nor a refresh.
fn is_for_client(fields: &HeaderMap) -> bool {
    fields.get(FORWARDED).is_none_or(|forwarded| forwarded.as_bytes() != NO_CLIENT.as_bytes())
}

/// The origin of the page: the host of the request, and the scheme that our proxy has added.
fn origin(fields: &HeaderMap) -> Option<PageOrigin> {
    let authority = fields.get(HOST)?.to_str().ok().filter(|host| !host.is_empty())?.to_owned();
    let is_https = fields.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
    let page = PageOrigin { is_https, authority };
    // A host with other bytes than those of names and ports would make another URL of it.
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    page.authority.bytes().all(is_host).then_some(page)
}

async fn document(fetcher: &Fetcher, request: &Request<()>, target: String) -> Result<Fetched, FetchFault> {
    let mut fields = HeaderMap::new();
    for name in OF_CRAWLER {
        if let Some(value) = request.headers().get(name) {
            fields.insert(HeaderName::from_static(name), value.clone());
        }
    }
    let method = if request.method() == Method::HEAD { Method::HEAD } else { Method::GET };
    fetcher.fetch(PageRequest { to: RequestTarget::Own { target }, method, fields, body: Bytes::new() }).await
}

/// Whether a response is a page that a browser can render.
fn is_page(fetched: &Fetched) -> bool {
    let kind = fetched.fields.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    fetched.status == 200
        && [&b"text/html"[..], b"application/xhtml+xml"].iter().any(|it| kind.eq_ignore_ascii_case(it))
}

/// The HTML of a page.
fn html(document: &HeaderMap, rendered: Rendered, lifetime: Option<HeaderValue>) -> Response<Full<Bytes>> {
    let status =
        StatusCode::from_u16(rendered.status).ok().filter(|status| (200..600).contains(&status.as_u16()));
    let status = status.unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(rendered.html)));
    *response.status_mut() = status;
    let fields = response.headers_mut();
    for name in PASSED {
        for value in document.get_all(name) {
            fields.append(HeaderName::from_static(name), value.clone());
        }
    }
    for line in &rendered.fields {
        let Some((name, value)) = line.split_once(':') else { continue };
        let name = HeaderName::from_bytes(name.trim().as_bytes());
        let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value.trim())) else { continue };
        if !NOT_SETTABLE.contains(&name.as_str()) {
            fields.append(name, value);
        }
    }
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    fields
        .insert(MARK, HeaderValue::from_static(if rendered.is_late { "rendered; late" } else { "rendered" }));
    if is_private(document) {
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    } else {
        let is_final = !rendered.is_late && status.is_success();
        let lifetime = lifetime.filter(|_| is_final).unwrap_or(HeaderValue::from_static(SHORT));
        fields.insert(CACHE_LIFETIME, lifetime);
    }
    response
}

/// Whether a document must not be stored. Its other rules are about the empty page of an application, which is not what is stored here.
fn is_private(document: &HeaderMap) -> bool {
    document.get_all(CACHE_CONTROL).iter().any(|value| {
        let directives = value.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        directives
            .into_iter()
            .any(|it| it.eq_ignore_ascii_case(b"no-store") || it.eq_ignore_ascii_case(b"private"))
    })
}

fn moved(url: &str) -> Response<Full<Bytes>> {
    let Ok(url) = HeaderValue::from_str(url) else {
        return error(StatusCode::BAD_GATEWAY, "the page moved to no URL");
    };
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::FOUND;
    response.headers_mut().insert(LOCATION, url);
    response.headers_mut().insert(CACHE_LIFETIME, HeaderValue::from_static(SHORT));
    response.headers_mut().insert(MARK, HeaderValue::from_static("moved"));
    response
}

/// The response of the site, as it is.
fn plain(fetched: Fetched, mark: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(fetched.body));
    *response.status_mut() = StatusCode::from_u16(fetched.status).unwrap_or(StatusCode::BAD_GATEWAY);
    *response.headers_mut() = fetched.fields;
    let response_status = response.status();
    let fields = response.headers_mut();
    for name in
        ["connection", "flatout-cache-control", "keep-alive", "set-cookie", "trailer", "transfer-encoding"]
    {
        fields.remove(name);
    }
    let is_stored_for_short = response_status.is_redirection() || response_status.is_client_error();
    if is_stored_for_short && !is_private(fields) {
        fields.insert(CACHE_LIFETIME, HeaderValue::from_static(SHORT));
    }
    fields.insert(MARK, HeaderValue::from_str(mark).unwrap_or(HeaderValue::from_static("plain")));
    response
}

/// The page as it is, which is not stored: the next request may find room.
fn skipped(document: Document, reason: &str) -> Response<Full<Bytes>> {
    let mut response = plain(document.fetched, &format!("skipped; reason={reason}"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn error(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_would_make_another_url_are_refused() {
        let page = |host: &str| {
            let mut fields = HeaderMap::new();
            fields.insert(HOST, HeaderValue::from_str(host).unwrap());
            origin(&fields).map(|page| page.url("/x"))
        };
        assert_eq!(page("a.test:8080").as_deref(), Some("http://a.test:8080/x"));
        assert_eq!(page("[::1]:80").as_deref(), Some("http://[::1]:80/x"));
        for host in ["", "a.test/", "a@b.test", "a.test#", "a.test?x", "a b"] {
            assert_eq!(page(host), None, "{host}");
        }
        assert_eq!(origin(&HeaderMap::new()), None);
    }

    #[test]
    fn pages_set_only_fields_of_their_content() {
        let rendered = Rendered {
            status: 404,
            fields: [
                "X-Robots-Tag: noindex",
                "Set-Cookie: a=b",
                "Content-Length: 3",
                "Transfer-Encoding: chunked",
                "no colon",
                "bad name: x",
                "X: a\r\nY: b",
                "X-Prerender: x",
            ]
            .map(str::to_owned)
            .to_vec(),
            ..Rendered::default()
        };
        let lifetime = Some(HeaderValue::from_static("max-age=9"));
        let response = html(&HeaderMap::new(), rendered, lifetime.clone());
        assert_eq!(response.headers()["flatout-cache-control"], "max-age=60");
        assert_eq!(response.status(), 404);
        let names: Vec<&str> = response.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(response.headers()["x-robots-tag"], "noindex");
        assert_eq!(response.headers()["x-prerender"], "rendered");
        for status in [0, 1, 101, 99, 600, 999] {
            assert_eq!(
                html(&HeaderMap::new(), Rendered { status, ..Rendered::default() }, None).status(),
                200,
                "{status}"
            );
        }
    }

    #[test]
    fn private_documents_are_not_stored() {
        for (value, expected) in [
            ("no-store", true),
            ("max-age=0, Private", true),
            ("no-cache", false),
            ("max-age=0, must-revalidate", false),
        ] {
            let mut fields = HeaderMap::new();
            fields.insert(CACHE_CONTROL, HeaderValue::from_static(value));
            assert_eq!(is_private(&fields), expected, "{value}");
        }
    }
}
