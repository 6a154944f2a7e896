//! Requests enter the proxy: their jobs are made here, and nowhere else.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{BodyPlan, ExchangeKey, Reply, Request, Response};
use flatout_gateway::{
    AuthDecision, AuthQuery, BufferRequests, Forward, Forwarded, Forwarding, PARAM, ResponseOrigin,
};
use flatout_lane::clock;
use flatout_wire::h1::Sent;
use flatout_wire::{Framing, Head, Method, Status, Version};
use tokio::sync::oneshot;

use crate::hash::{NO_KEY, hash};
use crate::plan::{Balance, Key, Protocol, Server};
use crate::receiver::{ParkedClient, Receiver, ResponseSink};
use crate::request::auth_query::write_auth_query;
use crate::request::cgi::{drop_params, write_sent_target};
use crate::request::head::{body_length, names_server, write_head};
use crate::request::job::{Job, Pulled};
use crate::request::trailers;
use crate::request::upgrade::write_key;
use crate::select::sticky;
use crate::table::UpstreamId;
use crate::upstream::LiveUpstream;
use crate::worker::ProxyWorker;
use crate::worker::mirror::collects_body;

/// Bodies up to this size are sent together with their head, once they are complete.
const WHOLE_BYTES_MAX: u64 = 16 << 10;

/// A request ready to be forwarded, without the receiver of its response.
pub struct Prepared(Box<Job>);

impl Prepared {
    /// Adds lines to the head, each ended by CRLF.
    pub fn add_lines(&mut self, lines: &[u8]) {
        self.0.head.extend_from_slice(lines);
    }
}

impl ProxyWorker {
    /// Prepares a request without a body. `None` if there is no such upstream.
    pub fn prepare(&self, request: &Request<'_>, what: &Forwarded<'_>) -> Option<Prepared> {
        let upstream = self.upstreams.id(what.forward.upstream)?;
        Some(Prepared(self.job(request, what, upstream, Receiver::nobody())))
    }

    /// A copy of a request, which has the time of a request that begins now.
    pub fn prepare_again(&self, Prepared(job): &Prepared) -> Prepared {
        let upstream = self.upstreams.at(job.upstream);
        Prepared(Box::new(Job {
            ends_ns: self.ends_ns(upstream, None),
            retry_until_ns: retry_until_ns(upstream),
            ..job.again()
        }))
    }

    /// Forwards a request whose response goes to the client.
    pub fn pass_on(&self, mut prepared: Prepared, client: ParkedClient) {
        prepared.0.receiver = Receiver::client(&self.lane, client);
        self.begin_job(prepared.0);
    }

    /// Forwards a request whose response goes to `sink`, which may be called before this returns.
    pub fn fetch(&self, mut prepared: Prepared, sink: Rc<dyn ResponseSink>) {
        prepared.0.receiver = Receiver::Sink(sink);
        self.begin_job(prepared.0);
    }

    /// The name of an upstream.
    pub fn upstream_name(&self, upstream: usize) -> &str {
        <[LiveUpstream]>::get(&self.upstreams, upstream).map_or("", |upstream| &upstream.plan.name)
    }

    /// Builds the request to forward. Its head is written here, while the client's head is still available.
    fn job(
        &self,
        request: &Request<'_>,
        what: &Forwarded<'_>,
        upstream_id: UpstreamId,
        receiver: Receiver,
    ) -> Box<Job> {
        let Request { head, body, peer, .. } = request;
        let upstream = self.upstreams.at(upstream_id);
        let whole = match body {
            flatout_engine::RequestBody::Whole { bytes, .. } => *bytes,
            flatout_engine::RequestBody::Stream(_) => &[],
        };
        let exchange = receiver.exchange();
        // Whatever the settings say now: this is what became of the body when its head was read.
        let has_body = head.framing != Framing::None && !what.edits.replaces_body;
        let is_pulled = has_body && exchange.is_some_and(|key| self.lane.is_pulled(key));
        let pulled = if is_pulled { Pulled::Waiting } else { Pulled::Not };
        let (spare, stuck_to) = {
            let state = &mut *self.state.borrow_mut();
            let stuck_to = match &upstream.plan.balance {
                Balance::Sticky { cookie } => {
                    let shares = &state.groups.at(upstream_id).shares;
                    sticky::server(head, cookie, shares)
                }
                _ => None,
            };
            (state.spare.pop(), stuck_to)
        };
        let (mut bytes, spare) = match spare {
            Some(mut job) => (std::mem::take(&mut job.head), Some(job)),
            None => (Vec::new(), None),
        };
        bytes.clear();
        bytes.reserve(head.len() + 256);
        let is_upgrade = write_head(head, what, peer.map(|peer| peer.ip()), &mut bytes);
        if what.edits.lines.starts_with(&[PARAM as u8]) && !upstream.plan.protocol.is_cgi() {
            drop_params(&mut bytes);
        }
        if upstream.plan.protocol.is_cgi() {
            write_sent_target(head, what.target, &mut bytes);
        }
        let is_websocket_of_h2 = is_upgrade && head.version == Version::Http2;
        let accept = is_websocket_of_h2.then(|| write_key(&mut bytes).into_boxed_str());
        let method = what.edits.method(head);
        let job = Job {
            sent: Sent::of(method, is_upgrade),
            body: Bytes::copy_from_slice(whole),
            length: body_length(head, method, pulled == Pulled::Not, whole.len()),
            pulled,
            collects: is_pulled && what.forward.buffer_requests == BufferRequests::All,
            is_idempotent: is_idempotent(method) || upstream.plan.retry_on.non_idempotent,
            spool_bytes_max: what.forward.buffer_response_bytes,
            private: what.forward.private,
            peer: *peer,
            client: Some(what.client),
            // Only parameters of CGI protocols depend on it.
            has_sent_scheme: upstream.plan.protocol.is_cgi()
                && !what.forward.x_forwarded
                && !what.edits.drops(b"x-forwarded-proto"),
            hash: key_hash(&upstream.plan.balance, request, what.client.address),
            accept,
            via: what.forward.via.clone(),
            named: what.forward.server.as_deref().and_then(|named| named_server(upstream, named)),
            stuck_to,
            names_server: names_server(&what.forward.host, head),
            trailers: trailers::passed_trailers(head, what),
            ends_ns: self.ends_ns(upstream, exchange),
            retry_until_ns: retry_until_ns(upstream),
            ..Job::new(upstream_id, upstream.plan.retries_max, receiver, bytes)
        };
        match spare {
            Some(mut spare) => {
                *spare = job;
                spare
            }
            None => Box::new(job),
        }
    }
}

/// The server that a request names, if requests name the servers of its upstream and may name this one.
#[cold]
fn named_server(upstream: &LiveUpstream, named: &str) -> Option<Box<Server>> {
    upstream.plan.named.as_ref()?.server(named, upstream.plan.protocol).map(Box::new)
}

/// Until when a request that begins now may be sent again.
fn retry_until_ns(upstream: &LiveUpstream) -> Option<u64> {
    let time_max = upstream.plan.retry_time_max?;
    Some(clock::nanoseconds() + time_max.as_nanos() as u64)
}

/// Whether repeating has the same effect as sending once (RFC 9110 section 9.2.2).
fn is_idempotent(method: Method) -> bool {
    matches!(
        method,
        Method::Get | Method::Head | Method::Put | Method::Delete | Method::Options | Method::Trace
    )
}

/// Whether the body after this head is streamed.
fn is_pulled(forward: &Forward, head: &Head<'_>) -> bool {
    match (head.framing, forward.buffer_requests) {
        (Framing::None, _) => false,
        // A client that waits for 100 gets it when the body is taken, for the server or for all of it.
        (Framing::Length(length), BufferRequests::Short | BufferRequests::All) => {
            length > WHOLE_BYTES_MAX || head.expects_continue
        }
        (Framing::Length(length), BufferRequests::None) => length > 0,
        (Framing::Chunked, _) => true,
    }
}

/// Whether a body for FastCGI, SCGI or uwsgi is pulled. A process of the application is busy with a request from its first byte, so bodies
/// are complete before, unless the route says otherwise. Over SCGI and uwsgi, its length comes first.
fn is_cgi_pulled(protocol: Protocol, buffer_requests: BufferRequests, framing: Framing) -> bool {
    match buffer_requests {
        BufferRequests::All => true,
        BufferRequests::Short => false,
        BufferRequests::None => protocol == Protocol::FastCgi || matches!(framing, Framing::Length(_)),
    }
}

/// How the body after this head is to be read; `bytes_max` is the route's limit, `None` the server's.
pub fn body_plan(forward: &Forward, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
    match is_pulled(forward, head) {
        true => BodyPlan::Pull { bytes_max },
        false => BodyPlan::Whole { bytes_max },
    }
}

pub(crate) fn key_hash(balance: &Balance, request: &Request<'_>, client: Option<IpAddr>) -> u64 {
    let Balance::Hash(key) = balance else { return NO_KEY };
    let head = &request.head;
    match key {
        Key::Client => match client {
            Some(IpAddr::V4(address)) => hash(&address.octets()),
            Some(IpAddr::V6(address)) => hash(&address.octets()),
            None => NO_KEY,
        },
        Key::Path => hash(request.path),
        Key::Target => hash(head.target()),
        Key::Header(name) => text_hash(head.field(name)),
        Key::Cookie(name) => text_hash(sticky::cookie(head, name)),
        Key::Argument(name) => text_hash(argument(head, name)),
    }
}

/// Requests without the text would otherwise all go to the same server.
fn text_hash(text: Option<&[u8]>) -> u64 {
    text.filter(|text| !text.is_empty()).map_or(NO_KEY, hash)
}

/// A parameter of the query, as it was sent.
fn argument<'h>(head: &Head<'h>, name: &str) -> Option<&'h [u8]> {
    head.query()?.split(|&byte| byte == b'&').find_map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        let (this, value) = pair.split_at(at);
        this.eq_ignore_ascii_case(name.as_bytes()).then(|| value.get(1..).unwrap_or_default())
    })
}

impl Forwarding for ProxyWorker {
    fn body(&self, to: &Forward, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
        let upstream = <[LiveUpstream]>::get(&self.upstreams, to.upstream);
        if head.framing != Framing::None
            && let Some(protocol) = upstream.map(|it| it.plan.protocol).filter(|it| it.is_cgi())
            && !is_cgi_pulled(protocol, to.buffer_requests, head.framing)
        {
            return BodyPlan::Whole { bytes_max };
        }
        let is_in_memory = to.buffer_requests == BufferRequests::All && self.spool.folder().is_none();
        if is_in_memory || collects_body(to, head) {
            return BodyPlan::Whole { bytes_max };
        }
        body_plan(to, head, bytes_max)
    }

    fn forward(&self, request: Request<'_>, what: Forwarded<'_>, response: &mut Response) -> Reply {
        // A tunnel to an address that the client chooses is the job of a forward proxy.
        if request.head.method == Method::Connect {
            response.set_status(Status::NOT_IMPLEMENTED).close();
            what.finish.finish(response, ResponseOrigin::Here);
            return Reply::Now;
        }
        let Some(upstream) = self.upstreams.id(what.forward.upstream) else {
            response.set_status(Status::BAD_GATEWAY);
            what.finish.finish(response, ResponseOrigin::Here);
            return Reply::Now;
        };
        let client = ParkedClient { exchange: request.park(), finish: what.finish.clone() };
        let job = self.job(&request, &what, upstream, Receiver::client(&self.lane, client));
        let copies = match what.forward.mirrors.is_empty() {
            true => Vec::new(),
            false => self.copies(&request, &what, &job),
        };
        self.begin_job(job);
        // After it: they must not take its connection.
        copies.into_iter().for_each(|copy| self.begin_job(Box::new(copy)));
        Reply::Parked
    }

    fn time_left(&self, to: &Forward, key: ExchangeKey) -> Option<Duration> {
        let time_max = self.upstreams.get(to.upstream)?.plan.request_time_max?;
        Some(time_max.saturating_sub(self.lane.age(key)))
    }

    fn ask(&self, query: AuthQuery<'_>, then: oneshot::Sender<AuthDecision>) {
        // The rule fails closed when its sender is dropped.
        let Some(upstream_id) = self.upstreams.id(query.upstream) else { return };
        let upstream = self.upstreams.at(upstream_id);
        let mut head = Vec::with_capacity(query.head.len() + 256);
        write_auth_query(&query, &mut head);
        let receiver = Receiver::rule(then, query.response_fields.to_vec());
        self.begin_job(Box::new(Job {
            names_server: query.head.authority().is_empty(),
            ends_ns: self.ends_ns(upstream, None),
            retry_until_ns: retry_until_ns(upstream),
            ..Job::new(upstream_id, upstream.plan.retries_max, receiver, head)
        }));
    }
}

#[cfg(test)]
mod tests {
    use flatout_wire::head::{HeadLimits, parse};

    use super::*;

    #[test]
    fn bodies_are_collected_as_the_route_says() {
        for (line, buffer_requests, is_pulled) in [
            ("Content-Length: 10", BufferRequests::Short, false),
            ("Content-Length: 10", BufferRequests::None, true),
            ("Content-Length: 0", BufferRequests::None, false),
            ("Content-Length: 100000", BufferRequests::Short, true),
            ("Content-Length: 100000", BufferRequests::All, true),
            ("Content-Length: 10", BufferRequests::All, false),
            ("Transfer-Encoding: chunked", BufferRequests::Short, true),
            ("Transfer-Encoding: chunked", BufferRequests::All, true),
            ("X-A: b", BufferRequests::None, false),
        ] {
            let text = format!("POST / HTTP/1.1\r\nHost: t\r\n{line}\r\n\r\n");
            let mut fields = Vec::new();
            let head = parse(text.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
            let forward = Forward { buffer_requests, ..Forward::to(0) };
            let plan = body_plan(&forward, &head, None);
            assert_eq!(matches!(plan, BodyPlan::Pull { .. }), is_pulled, "{line} {buffer_requests:?}");
        }
    }
}
