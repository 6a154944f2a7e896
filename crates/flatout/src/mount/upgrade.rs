//! Requests of mounted services that ask for an upgrade, such as WebSocket handshakes.
//!
//! To take over a connection, a service needs a `hyper::upgrade::OnUpgrade`, which only hyper can make. So the connection
//! leaves the lane before the response, and hyper reads the request head again:
//!
//! ```text
//! lane ── Reply::Leave ──> hyper, one request ── refused ──> closed
//!                             └── 101 ──> Upgraded, the service's own, until it drops it
//! ```

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{BoxError, Takeover};
use flatout_wire::{Framing, Method, Version};
use http::HeaderValue;
use http::header::CONNECTION;
use http_body_util::{Either, Empty};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tower_service::Service;

use super::socket::Socket;
use super::{Body, run};
use crate::{Context, Shutdown};

/// How long a service may use a connection that it has taken over, after draining has begun.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);

/// Whether the request asks for a protocol other than HTTP. `h2c`, which some clients always ask for, is not supported:
/// such a request is served in the lane.
pub(super) fn is_wanted(context: &Context<'_>) -> bool {
    let head = context.head();
    let Some(protocol) = head.field("upgrade") else { return false };
    let mut options = head.field_all("connection").flat_map(|value| value.split(|&byte| byte == b','));
    head.method == Method::Get
        && head.version == Version::Http11
        && head.framing == Framing::None
        && !protocol.eq_ignore_ascii_case(b"h2c")
        && options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
}

/// Serves the request with hyper on its connection, as long as the service uses it.
pub(super) fn takeover<S, B>(service: S, request: http::Request<Body>, mut shutdown: Shutdown) -> Takeover
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + 'static,
    S::Future: 'static,
    S::Error: std::fmt::Display,
    B: http_body::Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    Box::new(move |taken| {
        Box::pin(async move {
            // The runtime does not accept the descriptor, so no response is possible.
            let Ok((socket, owner)) = Socket::new(taken) else { return };
            let asked = Cell::new(Some((service, request)));
            let answer = service_fn(move |mut read: http::Request<hyper::body::Incoming>| {
                let asked = asked.take();
                async move {
                    // There is one request on this connection.
                    let (service, mut request) = asked.ok_or("a second request")?;
                    if let Some(upgrade) = read.extensions_mut().remove::<OnUpgrade>() {
                        request.extensions_mut().insert(upgrade);
                    }
                    let mut answer = match run(service, request).await {
                        Some(answer) => answer.map(Either::Left),
                        None => {
                            let mut failed = http::Response::new(Either::Right(Empty::<Bytes>::new()));
                            *failed.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
                            failed
                        }
                    };
                    if answer.status() != http::StatusCode::SWITCHING_PROTOCOLS {
                        // Not with hyper's `keep_alive(false)`, which would add `Connection: close` to a 101 too.
                        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                    Ok::<_, BoxError>(answer)
                }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), answer);
            // The client has disconnected.
            let _ = connection.with_upgrades().await;
            let drained = async {
                shutdown.begun().await;
                tokio::time::sleep(DRAIN_TIME_MAX).await;
            };
            owner.dropped(drained).await;
        })
    })
}
