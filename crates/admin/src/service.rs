//! The responses of the admin listener.

use std::sync::Arc;

use flatout_engine::{Body, Reply, Request, RequestBody, Response, Service};
use flatout_observe::metrics;
use flatout_wire::{Head, Method, Status};

use super::board::Board;
use super::events::Clients;
use super::{Action, Plan};

const PAGE: &str = include_str!("page.html");

/// The page may run only its inline scripts, connect only to this listener, and not be framed.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Serves operators.
pub(super) struct AdminService {
    plan: Arc<Plan>,
    board: Arc<Board>,
    clients: Clients,
}

impl AdminService {
    pub(super) fn new(plan: Arc<Plan>, board: Arc<Board>, clients: Clients) -> AdminService {
        AdminService { plan, board, clients }
    }

    fn read(&self, path: &[u8], response: &mut Response) {
        response.header("Cache-Control", "no-store").header("X-Content-Type-Options", "nosniff");
        match path {
            b"/" => {
                response.header("Content-Type", "text/html; charset=utf-8");
                response.header("Content-Security-Policy", POLICY);
                response.set_body(Body::Static(PAGE.as_bytes()));
            }
            b"/metrics" => {
                response.header("Content-Type", metrics::CONTENT_TYPE);
                response.set_body(Body::Shared(self.board.view.metrics.text().into()));
            }
            b"/health" => match self.board.is_serving() {
                true => text(response, Status::OK, "serving\n"),
                // Load balancers should stop sending requests now.
                false => text(response, Status::SERVICE_UNAVAILABLE, "draining\n"),
            },
            _ => {
                response.header("Content-Type", "application/json");
                let start = self.board.start();
                let status = serde_json::json!({
                    "about": start.about,
                    "now": start.frames.last().cloned().unwrap_or_default(),
                    "sites": start.sites,
                    "messages": start.messages,
                });
                response.buffer().extend_from_slice(status.to_string().as_bytes());
                response.buffer().push(b'\n');
            }
        }
    }

    fn act(&self, action: &Action, request: &Request<'_>) -> Reply {
        let run = action.run.clone();
        let body = match &request.body {
            RequestBody::Whole { bytes, .. } => bytes.to_vec(),
            RequestBody::Stream(_) => Vec::new(),
        };
        Reply::Later(Box::pin(async move {
            let mut response = Response::new();
            match tokio::task::spawn_blocking(move || run(&body)).await {
                Ok(Ok(done)) => text(&mut response, Status::OK, &format!("{done}\n")),
                Ok(Err(why)) => text(&mut response, Status::CONFLICT, &format!("{why}\n")),
                Err(_) => text(&mut response, Status::INTERNAL_SERVER_ERROR, "it panicked\n"),
            }
            response
        }))
    }
}

impl Service for AdminService {
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        if !self.plan.public && request.peer.is_some() && !is_local(request.head.authority()) {
            // The page of another site may use a name that resolves to this host (DNS rebinding): its scripts must
            // not read the response.
            text(response, Status::MISDIRECTED_REQUEST, "use a loopback address or localhost as the host\n");
            return Reply::Now;
        }
        let method = request.head.method;
        let action = self.plan.actions.iter().find(|action| action.path.as_bytes() == request.path);
        match (request.path, action) {
            (_, Some(_)) if method != Method::Post => refuse_method(response, "POST"),
            (_, Some(_)) if is_foreign(&request.head) => {
                text(response, Status::FORBIDDEN, "cross-site requests are not allowed\n");
            }
            (_, Some(action)) => return self.act(action, &request),
            (b"/" | b"/metrics" | b"/health" | b"/status" | b"/events", None)
                if !matches!(method, Method::Get | Method::Head) =>
            {
                refuse_method(response, "GET, HEAD");
            }
            (b"/events", None) if method == Method::Get => {
                if !self.clients.join(&self.board, response) {
                    response.header("Retry-After", "5");
                    text(response, Status::SERVICE_UNAVAILABLE, "too many clients read the events already\n");
                }
            }
            (b"/events", None) => {
                response.header("Content-Type", "text/event-stream");
            }
            (path @ (b"/" | b"/metrics" | b"/health" | b"/status"), None) => self.read(path, response),
            _ => text(
                response,
                Status::NOT_FOUND,
                "not found; there are /, /metrics, /health, /status and /events\n",
            ),
        }
        Reply::Now
    }
}

fn text(response: &mut Response, status: Status, text: &str) {
    response.set_status(status).header("Content-Type", "text/plain; charset=utf-8");
    response.buffer().extend_from_slice(text.as_bytes());
}

fn refuse_method(response: &mut Response, allowed: &str) {
    response.header("Allow", allowed);
    text(response, Status::METHOD_NOT_ALLOWED, &format!("allowed: {allowed}\n"));
}

/// Whether a host is a loopback address or `localhost`.
fn is_local(authority: &[u8]) -> bool {
    let Ok(authority) = std::str::from_utf8(authority) else { return false };
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Whether the browser reports that a page of another origin sent the request.
fn is_foreign(head: &Head<'_>) -> bool {
    let site = head.field("sec-fetch-site");
    let origin = head.field("origin").map(|origin| origin.strip_prefix(b"http://").unwrap_or(origin));
    site.is_some_and(|site| site != b"same-origin" && site != b"none")
        || origin.is_some_and(|origin| origin != head.authority())
}
