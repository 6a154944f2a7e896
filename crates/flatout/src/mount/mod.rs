//! A `tower::Service` as a handler.

#[cfg(feature = "upgrade")]
mod socket;
#[cfg(feature = "upgrade")]
mod upgrade;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;
use flatout_engine::{BodyStream, BoxError, Reply, RequestBody, Response, say};
use flatout_wire::target::PathForm;
use flatout_wire::{Method, Status, Version};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tower_service::Service;

use crate::extract::{BodyUse, header_map};
use crate::handler::Endpoint;
use crate::ready::{SpareId, later_unless_ready};
use crate::{Context, Peer, Problem, Respond, Shutdown};

/// The body of a request as a mounted service sees it.
///
/// ```
/// use std::convert::Infallible;
/// use flatout::{App, Body, Bytes, test::Client};
/// use http_body_util::{BodyExt, Full};
/// use tower::service_fn;
///
/// let count = service_fn(|request: http::Request<Body>| async move {
///     let bytes = request.into_body().collect().await.map_or(0, |body| body.to_bytes().len());
///     Ok::<_, Infallible>(http::Response::new(Full::<Bytes>::from(bytes.to_string())))
/// });
/// let client = Client::new(App::new().mount("/count", count))?;
/// assert_eq!(client.post("/count").body("hello").send().text(), "5");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug)]
pub struct Body(pub(crate) BodyStream);

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// Response bodies up to this size are collected and sent in one piece.
const COLLECTED_BYTES_MAX: u64 = 64 << 10;

/// A service and the number of path segments that it does not see.
pub(crate) struct Mounted<S> {
    segments: OnceLock<usize>,
    service: S,
    spare: SpareId,
}

impl<S> Mounted<S> {
    pub(crate) fn new(service: S) -> Mounted<S> {
        Mounted { segments: OnceLock::new(), service, spare: SpareId::new() }
    }
}

impl<S, B> Endpoint for Mounted<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
    S::Future: 'static,
    S::Error: std::fmt::Display,
    B: http_body::Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    fn body_use(&self) -> BodyUse {
        BodyUse::Stream
    }

    /// Its first pattern is its prefix, including those of the outer applications.
    fn placed(&self, pattern: &str) {
        let _ = self.segments.set(pattern.trim_end_matches('/').matches('/').count());
    }

    fn takes_connections(&self) -> bool {
        cfg!(feature = "upgrade")
    }

    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
        let segments = self.segments.get().copied().unwrap_or_default();
        let inner = below(context.path(), segments);
        let request = match request(context, inner) {
            Ok(request) => request,
            Err(problem) => {
                problem.respond(response);
                return Reply::Now;
            }
        };
        let service = self.service.clone();
        #[cfg(feature = "upgrade")]
        if upgrade::is_wanted(context) {
            return Reply::Leave(upgrade::takeover(service, request, Shutdown::of(context)));
        }
        let is_head = context.method() == Method::Head;
        later_unless_ready(self.spare, context, response, async move {
            match run(service, request).await {
                Some(answer) => respond(answer, is_head).await,
                None => {
                    let mut response = Response::new();
                    Problem::new(Status::INTERNAL_SERVER_ERROR).respond(&mut response);
                    response
                }
            }
        })
    }
}

/// The rest of a path after this many segments; may be empty.
pub(crate) fn below(path: &str, segments: usize) -> &str {
    path.match_indices('/').nth(segments).map_or("", |(at, _)| &path[at..])
}

/// The service's response; `None` if it failed, which is reported on stderr.
pub(crate) async fn run<S, B>(mut service: S, request: http::Request<Body>) -> Option<http::Response<B>>
where
    S: Service<http::Request<Body>, Response = http::Response<B>>,
    S::Error: std::fmt::Display,
{
    let answer = match poll_fn(|context| service.poll_ready(context)).await {
        Ok(()) => service.call(request).await,
        Err(error) => Err(error),
    };
    answer.inspect_err(|error| say(format_args!("a mounted service failed: {error}"))).ok()
}

/// `inner` is the path that the service sees.
pub(crate) fn request(context: &mut Context<'_>, inner: &str) -> Result<http::Request<Body>, Problem> {
    let refused = |_| Problem::new(Status::BAD_REQUEST).detail("the request target is malformed");
    let target = target(context, inner);
    let body = match context.take_body()? {
        RequestBody::Stream(stream) => stream,
        RequestBody::Whole { bytes, .. } => BodyStream::whole(Bytes::copy_from_slice(bytes)),
    };
    let mut request = http::Request::new(Body(body));
    *request.method_mut() = http::Method::from_bytes(context.head().method_name())
        .map_err(|_| Problem::new(Status::NOT_IMPLEMENTED))?;
    *request.uri_mut() = target.parse().map_err(refused)?;
    *request.version_mut() = match context.head().version {
        Version::Http10 => http::Version::HTTP_10,
        Version::Http11 => http::Version::HTTP_11,
        Version::Http2 => http::Version::HTTP_2,
    };
    *request.headers_mut() = header_map(context);
    *request.extensions_mut() = std::mem::take(context.extensions_mut());
    request.extensions_mut().insert(Peer(context.peer()));
    request.extensions_mut().insert(Shutdown::of(context));
    Ok(request)
}

/// The request target for a mounted service: the rest of the path, `inner`, and the query. It is made from the normal form that
/// routing used, so that routing and the service see the same resource.
pub(crate) fn target(context: &Context<'_>, inner: &str) -> String {
    let inner = if inner.is_empty() { "/".to_owned() } else { encoded(inner, context.path_form) };
    match context.query() {
        Some(query) => format!("{inner}?{query}"),
        None => inner,
    }
}

/// A decoded path, encoded for a URI (RFC 3986 section 3.3). Escapes that the path form keeps are not encoded again.
fn encoded(path: &str, form: PathForm) -> String {
    let keeps_percent = form == PathForm::Forward;
    path.bytes().fold(String::with_capacity(path.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric()
            || b"-._~!$&'()*+,;=:@/".contains(&byte)
            || (byte == b'%' && keeps_percent)
        {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

pub(crate) async fn respond<B>(answer: http::Response<B>, is_head: bool) -> Response
where
    B: http_body::Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = answer.into_parts();
    let mut response = head(&parts);
    if response.status() != from_http(parts.status) {
        return response;
    }
    let status = response.status();
    let said = declared_length(&parts);
    let exact = body.size_hint().exact();
    if is_head || status == Status::NOT_MODIFIED {
        // For HEAD, most services omit the body, so its length is not the length for GET.
        match said.or(exact.filter(|&bytes| bytes > 0)) {
            Some(bytes) => response.declare_length(bytes),
            None => response.set_body(flatout_engine::Body::Pushed),
        };
        return response;
    }
    if exact.is_none_or(|bytes| bytes > COLLECTED_BYTES_MAX) {
        if let Some(bytes) = said {
            response.declare_length(bytes);
        }
        response.set_body(flatout_engine::Body::Stream(Box::pin(body.map_err(Into::into))));
        return response;
    }
    match body.collect().await {
        Ok(collected) => response.set_body(flatout_engine::Body::Shared(collected.to_bytes())),
        Err(_) => {
            response = Response::new();
            Problem::new(Status::INTERNAL_SERVER_ERROR).respond(&mut response);
            return response;
        }
    };
    response
}

/// Status and fields; the engine leaves out what is its own. A service's final response with a status for interim ones
/// becomes 500.
pub(crate) fn head(parts: &http::response::Parts) -> Response {
    if parts.status.is_informational() {
        say(format_args!(
            "a mounted service responded with {}, which is no final status",
            parts.status.as_u16()
        ));
        let mut response = Response::new();
        Problem::new(Status::INTERNAL_SERVER_ERROR).respond(&mut response);
        return response;
    }
    fields_of(parts)
}

/// The same with the status as it is, for a connection that is taken over.
pub(crate) fn fields_of(parts: &http::response::Parts) -> Response {
    let mut response = Response::with_status(from_http(parts.status));
    // `Upgrade` goes with an option of `Connection`, which the engine writes itself (RFC 9110 section 7.8).
    let is_switch = parts.status == http::StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in parts.headers.iter().filter(|(name, _)| is_switch || name != &http::header::UPGRADE)
    {
        response.header(name.as_str(), value);
    }
    response
}

fn from_http(status: http::StatusCode) -> Status {
    Status::from_code(status.as_u16()).unwrap_or(Status::INTERNAL_SERVER_ERROR)
}

/// The length that a service sets itself, if any. With 304 it is that of the response 200: some services write the length of
/// their empty body instead.
pub(crate) fn declared_length(parts: &http::response::Parts) -> Option<u64> {
    let digits = parts.headers.get(http::header::CONTENT_LENGTH)?.to_str().ok()?;
    // `parse` would take a sign.
    let length = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
    length.filter(|&bytes: &u64| bytes > 0 || parts.status != http::StatusCode::NOT_MODIFIED)
}
