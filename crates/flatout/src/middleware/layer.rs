//! Any `tower::Layer` around handlers.
//!
//! A layer wraps a service that can be cloned and sent to other threads, while the rest of the chain belongs to one
//! worker. Therefore the service has no data: each request carries the index of an entry in a table of its worker.
//!
//! ```text
//! Context ── http::Request + Inside(number) ──> layers ──> InnerService ── table ──> the rest of the chain
//! Response <── what HTTP types cannot say is put back ─── layers <── http::Response
//! ```

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use bytes::{Buf, Bytes};
use flatout_engine::{
    Body as EngineBody, BodyFault, BodyStream, BoxError, OwnedBody, OwnedRequest, Reply, RequestOrigin,
    Response, say,
};
use flatout_wire::{Method, Status};
use http::{HeaderName, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt;
use tower_service::Service;

use super::layer_body::InnerBody;
use super::owned::Owned;
use super::{Inner, Middleware};
use crate::chain::Rest;
use crate::extract::BodyUse;
use crate::mount;
use crate::ready::{SpareId, later_unless_ready};
use crate::scope::WorkerLocal;
use crate::{Body, Context, Problem, Respond};

/// The service inside layers: further middleware, and finally the handler. A layer sees the whole path; rewriting it has
/// no effect, because the handler was chosen before. The handler sees headers and extensions that a layer sets.
///
/// Its future is not `Send`, like those of handlers. Put layers that need `Send`, such as `tower::buffer` or axum's
/// `from_fn`, around the service that is [mounted](crate::App::mount).
///
/// ```
/// use flatout::middleware::InnerService;
/// use flatout::{App, test::Client};
/// use tower::limit::{ConcurrencyLimit, ConcurrencyLimitLayer};
/// use tower::Layer;
///
/// /// A layer of one's own is made around it.
/// #[derive(Clone)]
/// struct AtMost(usize);
///
/// impl Layer<InnerService> for AtMost {
///     type Service = ConcurrencyLimit<InnerService>;
///
///     fn layer(&self, inner: InnerService) -> Self::Service {
///         ConcurrencyLimitLayer::new(self.0).layer(inner)
///     }
/// }
///
/// let client = Client::new(App::new().layer(AtMost(100)).get("/", || "hello"))?;
/// assert_eq!(client.get("/").send().text(), "hello");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct InnerService(());

/// The number of an entry.
#[derive(Debug, Clone, Copy)]
struct Inside(u64);

thread_local! {
    /// The inner chains of this thread's requests.
    static TABLE: RefCell<HashMap<u64, Rc<LayeredRequest>>> = RefCell::default();
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

struct LayeredRequest {
    rest: Rest,
    local: Rc<WorkerLocal>,
    path: String,
    origin: RequestOrigin,
    kept: RefCell<Option<EngineParts>>,
}

/// Parts of a response that have no HTTP types.
struct EngineParts {
    response: Response,
    body: Option<EngineBody>,
}

/// An entry while its request is in the layers.
struct RequestGuard {
    number: u64,
    entry: Rc<LayeredRequest>,
}

impl RequestGuard {
    fn new(entry: LayeredRequest) -> RequestGuard {
        let number = NEXT.replace(NEXT.get() + 1);
        let entry = Rc::new(entry);
        TABLE.with_borrow_mut(|table| table.insert(number, entry.clone()));
        RequestGuard { number, entry }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        // A thread that is ending has no table.
        let removed = TABLE.try_with(|table| table.borrow_mut().remove(&self.number));
        drop(removed);
    }
}

/// A layered service as middleware.
pub(crate) struct Layered<S> {
    service: S,
    spare: SpareId,
}

impl<S> Layered<S> {
    pub(crate) fn new(service: S) -> Layered<S> {
        Layered { service, spare: SpareId::new() }
    }
}

impl<S, B> Middleware for Layered<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
    S::Future: 'static,
    S::Error: std::fmt::Display,
    B: http_body::Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
        let mut request = match mount::request(context, context.path()) {
            Ok(request) => request,
            Err(problem) => {
                problem.respond(response);
                return Reply::Now;
            }
        };
        let entered = RequestGuard::new(LayeredRequest {
            rest: inner.keep(),
            local: context.local.own(),
            path: context.path().to_owned(),
            origin: RequestOrigin::of(&context.request),
            kept: RefCell::default(),
        });
        request.extensions_mut().insert(Inside(entered.number));
        let is_head = context.method() == Method::Head;
        let service = self.service.clone();
        later_unless_ready(self.spare, context, response, async move {
            match mount::run(service, request).await {
                Some(answer) => entered.entry.respond(answer, is_head).await,
                // The inner service does not fail, so a layer gave up, because of a time limit or too much load.
                None => {
                    let mut response = Response::new();
                    Problem::new(Status::SERVICE_UNAVAILABLE).respond(&mut response);
                    response
                }
            }
        })
    }

    fn reads_body(&self) -> bool {
        true
    }
}

impl<B> Service<http::Request<B>> for InnerService
where
    B: http_body::Body + 'static,
    B::Error: Into<BoxError>,
{
    type Response = http::Response<InnerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let inside = request.extensions().get::<Inside>().copied();
        let entry = inside.and_then(|Inside(number)| TABLE.with_borrow(|table| table.get(&number).cloned()));
        Box::pin(async move {
            let Some(entry) = entry else {
                say(format_args!(
                    "a layer dropped the extensions of its request, or moved it to another thread"
                ));
                let mut lost = http::Response::new(InnerBody::new(EngineBody::Empty));
                *lost.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
                return Ok(lost);
            };
            let mut response = Response::new();
            if let Reply::Later(later) = entry.request(request).call(&entry.rest, &mut response) {
                response = later.await;
            }
            Ok(entry.answer(response))
        })
    }
}

impl LayeredRequest {
    /// The request after the layers.
    fn request<B>(&self, request: http::Request<B>) -> Owned
    where
        B: http_body::Body + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        let mut head = format!("{} {target} {:?}\r\n", parts.method, parts.version).into_bytes();
        for (name, value) in &parts.headers {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
        head.extend_from_slice(b"\r\n");
        let body = body_of(body, &self.rest, &self.local);
        let extensions = std::mem::take(&mut parts.extensions);
        let path = self.path.clone().into_bytes();
        let request =
            OwnedRequest { head, framing: None, path, body, origin: self.origin.clone(), ticket: None };
        Owned { request, extensions, local: self.local.clone() }
    }

    /// The response as layers see it.
    fn answer(&self, mut response: Response) -> http::Response<InnerBody> {
        let body = match response.take_body() {
            // Only the engine can send these.
            body @ (EngineBody::Pushed | EngineBody::Take(_)) => {
                let kept = EngineParts { response: Response::new(), body: Some(body) };
                *self.kept.borrow_mut() = Some(kept);
                EngineBody::Empty
            }
            body => body,
        };
        let mut answer = http::Response::new(InnerBody::new(body));
        *answer.status_mut() = http::StatusCode::from_u16(response.status().code())
            .unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        for (name, value) in response.fields() {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
                answer.headers_mut().append(name, value);
            }
        }
        if let Some(bytes) = response.declared_length() {
            answer.headers_mut().insert(http::header::CONTENT_LENGTH, bytes.into());
        }
        let body = self.kept.borrow_mut().take().and_then(|kept| kept.body);
        *self.kept.borrow_mut() = Some(EngineParts { response, body });
        answer
    }

    /// The response after the layers.
    async fn respond<B>(&self, answer: http::Response<B>, is_head: bool) -> Response
    where
        B: http_body::Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let kept = self.kept.borrow_mut().take();
        let (parts, body) = answer.into_parts();
        let body: Box<dyn Any> = Box::new(body);
        let mut response = match body.downcast::<InnerBody>() {
            // The layers have not changed the body.
            Ok(body) => {
                let is_taken =
                    kept.as_ref().is_some_and(|kept| matches!(kept.body, Some(EngineBody::Take(_))));
                let mut response = if is_taken { mount::fields_of(&parts) } else { mount::head(&parts) };
                if !is_taken && parts.status.is_informational() {
                    return response;
                }
                if let Some(bytes) = mount::declared_length(&parts) {
                    response.declare_length(bytes);
                }
                response.set_body(body.into_engine());
                response
            }
            Err(body) => match body.downcast::<B>() {
                Ok(body) => mount::respond(http::Response::from_parts(parts, *body), is_head).await,
                Err(_) => Response::with_status(Status::INTERNAL_SERVER_ERROR),
            },
        };
        // If a layer responded itself, this is not the handler's response.
        let kept = kept.filter(|kept| kept.response.status() == response.status());
        if let Some(EngineParts { response: inner, body }) = kept {
            restore(&inner, &mut response);
            if let Some(body) = body {
                response.set_body(body);
            }
        }
        response
    }
}

fn restore(inner: &Response, response: &mut Response) {
    for (name, value) in lines(inner.hints()) {
        response.hint(name, value);
    }
    for (name, value) in lines(inner.trailers()) {
        response.trailer(name, value);
    }
    response.set_note(inner.note());
    if inner.closes() {
        response.close();
    }
}

/// Names and values of whole lines.
fn lines(text: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    text.split(|&byte| byte == b'\n').filter_map(|line| {
        let at = line.iter().position(|&byte| byte == b':')?;
        Some((std::str::from_utf8(&line[..at]).ok()?, line[at + 1..].trim_ascii()))
    })
}

/// The body as the rest of the chain needs it: the last step collects it where the handler needs all of it. The route's limit
/// applies to what layers make of the received bytes too.
fn body_of<B>(body: B, rest: &Rest, local: &WorkerLocal) -> OwnedBody
where
    B: http_body::Body + 'static,
    B::Error: Into<BoxError>,
{
    if rest.body_use() == BodyUse::None {
        return OwnedBody::none();
    }
    let body: Box<dyn Any> = Box::new(body);
    match body.downcast::<Body>() {
        Ok(body) => OwnedBody::Stream(body.0),
        Err(body) => match body.downcast::<B>() {
            Ok(body) => {
                let body = (*body).map_frame(as_bytes).map_err(fault_of);
                OwnedBody::Stream(BodyStream::of(body, rest.body_bytes_max(local)))
            }
            // It is of one of the two types.
            Err(_) => OwnedBody::none(),
        },
    }
}

fn as_bytes(frame: Frame<impl Buf>) -> Frame<Bytes> {
    frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
}

/// A limit of a layer is one like that of the route.
fn fault_of(error: impl Into<BoxError>) -> BoxError {
    let error = error.into();
    if error.is::<http_body_util::LengthLimitError>() { BodyFault::TooLarge.into() } else { error }
}

/// A layer and what it wraps, as middleware.
pub(crate) fn layered<L, B>(layer: &L) -> Arc<dyn Middleware>
where
    L: tower_layer::Layer<InnerService>,
    L::Service: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
    <L::Service as Service<http::Request<Body>>>::Future: 'static,
    <L::Service as Service<http::Request<Body>>>::Error: std::fmt::Display,
    B: http_body::Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    Arc::new(Layered::new(layer.layer(InnerService::default())))
}
