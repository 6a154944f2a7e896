//! A span for each request, by the names of OpenTelemetry's conventions for HTTP servers.

use std::sync::Arc;

use flatout_engine::{Reply, Response};
use flatout_wire::Version;
use tracing::field::{Empty, display};
use tracing::{Span, info_span};

use super::{Inner, Middleware};
use crate::extract::Extract;
use crate::{ClientIp, Context};

/// A `tracing` span around each request: its handler and the events of the handler are inside the span. The fields have
/// the names of OpenTelemetry's semantic conventions (HTTP server spans, 1.23 and later), so that `tracing-opentelemetry`
/// can export them unchanged: `http.request.method`, `http.route`, `url.path`, `url.query`, `server.address`,
/// `client.address`, `user_agent.original`, `network.protocol.version`, `http.response.status_code`, `error.type`.
///
/// The cost is that of the subscriber; without one, checking a flag.
///
/// ```
/// use flatout::{App, middleware::Tracing};
///
/// let app = App::new().with(Tracing::new()).get("/items/{id}", || {
///     tracing::info!("in the request's span");
///     "item"
/// });
/// ```
#[derive(Clone, Default)]
pub struct Tracing {
    on_span: Option<Arc<OnSpan>>,
}

/// A function that sees each span and its request before the handler runs.
type OnSpan = dyn Fn(&Span, &Context<'_>) + Send + Sync;

impl Tracing {
    /// A span for each request.
    pub fn new() -> Tracing {
        Tracing::default()
    }

    /// Runs with each span before its handler: for example to join the trace of `traceparent`, or to record more fields.
    ///
    /// ```
    /// use flatout::{App, middleware::Tracing};
    ///
    /// // An event at the start of each request, inside its span.
    /// let spans = Tracing::new().on_span(|span, context| {
    ///     span.in_scope(|| tracing::debug!(bytes = context.head().bytes().len(), "a request has come"));
    /// });
    /// App::new().with(spans).get("/", || "hello");
    /// ```
    pub fn on_span(mut self, act: impl Fn(&Span, &Context<'_>) + Send + Sync + 'static) -> Tracing {
        self.on_span = Some(Arc::new(act));
        self
    }
}

impl Middleware for Tracing {
    fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
        let span = span(context, inner.route());
        if let Some(on_span) = &self.on_span {
            on_span(&span, context);
        }
        let entered = span.enter();
        let reply = inner.call(context, response);
        drop(entered);
        match reply {
            Reply::Now => {
                record(&span, response);
                Reply::Now
            }
            Reply::Later(mut future) => Reply::Later(Box::pin(async move {
                let response =
                    std::future::poll_fn(|context| span.in_scope(|| future.as_mut().poll(context))).await;
                record(&span, &response);
                response
            })),
            reply @ (Reply::Parked | Reply::Leave(_)) => reply,
        }
    }
}

fn span(context: &mut Context<'_>, route: Option<&str>) -> Span {
    let method = context.method().name();
    let span = info_span!(
        "HTTP request",
        otel.name = Empty,
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        url.scheme = "http",
        url.path = context.path(),
        url.query = context.query(),
        server.address = Empty,
        client.address = Empty,
        user_agent.original = Empty,
        network.protocol.version = match context.head().version {
            Version::Http10 => "1.0",
            Version::Http11 => "1.1",
            Version::Http2 => "2",
        },
        http.response.status_code = Empty,
        error.type = Empty,
    );
    if span.is_disabled() {
        return span;
    }
    match route {
        Some(route) => span.record("otel.name", display(format_args!("{method} {route}"))),
        None => span.record("otel.name", method),
    };
    for (field, name) in [("server.address", "host"), ("user_agent.original", "user-agent")] {
        if let Some(value) = context.header(name) {
            span.record(field, display(String::from_utf8_lossy(value)));
        }
    }
    if let Ok(ClientIp(Some(client))) = ClientIp::extract(context) {
        span.record("client.address", display(client));
    }
    span
}

fn record(span: &Span, response: &Response) {
    let code = response.status().code();
    span.record("http.response.status_code", code);
    // A client error is not an error of the server.
    if code >= 500 {
        span.record("error.type", display(code));
        span.record("otel.status_code", "ERROR");
    }
}
