//! All connections of one worker to its upstreams.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{
    BodyPlan, ExchangeKey, GuestEvent, GuestKey, Guests, Lane, Reply, Request, Response, Worker,
};
use flatout_wire::field::Field;
use flatout_wire::h1::Sent;
use flatout_wire::h2::Room;
use flatout_wire::{Framing, Head, Method, Status, Version};
use tokio::sync::oneshot;

use super::balance::{Shares, hash};
use super::budget::Budget;
use super::connection::{ServerId, UpstreamConnection};
use super::failure::Failure;
use super::h2::REFUSALS_MAX;
use super::job::{Job, Pulled};
use super::plan::{Balance, Key};
use super::request::{body_length, names_server, passed_trailers, write_auth_query, write_head, write_key};
use super::sticky;
use super::tunnel::CLIENT_SIDE;
use super::upstream::{LiveServer, LiveUpstream};
use super::waiter::{ParkedClient, PendingDecisions, ResponseSink, Waiter};
use super::watch::{ServerCounts, Trail, UpstreamCounts, Watch};
use super::windows::Windows;
use flatout_gateway::Forward;
use flatout_gateway::{AuthDecision, AuthQuery, Forwarded, Forwarding, ResponseOrigin};

/// Bodies up to this size are sent together with their head, once they are complete.
const WHOLE_BYTES_MAX: u64 = 16 << 10;

/// Unused request objects that are kept for reuse.
const JOBS_KEPT: usize = 64;

/// Bytes of a head buffer that are kept for reuse.
const HEAD_BYTES_KEPT: usize = 4 << 10;

/// A worker's part of the proxy.
pub struct ProxyWorker {
    me: Weak<ProxyWorker>,
    pub(super) lane: Lane,
    pub(super) upstreams: Arc<[LiveUpstream]>,
    pub(super) watch: Watch,
    pub(super) state: RefCell<State>,
    /// The newest of the parts that have replaced each other.
    pub(super) newest: RefCell<Rc<RefCell<Weak<ProxyWorker>>>>,
    /// Another part has replaced this one.
    pub(super) is_retired: Cell<bool>,
}

/// The mutable part.
pub(super) struct State {
    pub(super) table: Table,
    /// One for each upstream.
    pub(super) groups: Vec<Group>,
    /// The fields of the current response head.
    pub(super) fields: Vec<Field>,
    /// What is being encoded.
    pub(super) scratch: Vec<u8>,
    /// Scratch space in which HTTP/2 heads are assembled.
    pub(super) room: Room,
    /// Results for rules, to be delivered.
    pub(super) decisions: PendingDecisions,
    /// Finished requests, kept for their memory.
    #[expect(clippy::vec_box, reason = "they come and go in their boxes")]
    spare: Vec<Box<Job>>,
    /// Windows of HTTP/2 upstreams beyond the first, by the client's connection.
    pub(super) windows: Windows,
    /// A task ends requests that take too long.
    pub(super) is_timing: bool,
}

/// A worker's state for one upstream.
pub(super) struct Group {
    pub(super) shares: Shares,
    pub(super) budget: Budget,
    /// One for each server.
    pub(super) pools: Vec<Pool>,
    /// Requests that wait for a connection, the oldest at the front.
    pub(super) queue: VecDeque<Box<Job>>,
    pub(super) counts: UpstreamCounts,
    /// A task checks it for requests that have waited too long.
    pub(super) is_watched: bool,
}

/// Connections to one server.
pub(super) struct Pool {
    /// The server's address, for logs.
    pub(super) address: Rc<str>,
    pub(super) counts: ServerCounts,
    /// Idle connections that can carry a request, the one used last at the end.
    pub(super) idle: Vec<usize>,
    /// HTTP/2 connections that carry requests and have room for more.
    pub(super) shared: Vec<usize>,
    /// Open connections in all.
    pub(super) open: usize,
}

/// The connections, by index; the index is a guest's tag.
#[derive(Default)]
pub(super) struct Table {
    entries: Vec<Option<Box<UpstreamConnection>>>,
    free: Vec<usize>,
}

impl Table {
    /// The index that the next connection gets.
    pub(super) fn next(&self) -> usize {
        self.free.last().copied().unwrap_or(self.entries.len())
    }

    pub(super) fn insert(&mut self, connection: UpstreamConnection) -> usize {
        let connection = Some(Box::new(connection));
        match self.free.pop() {
            Some(at) => {
                if let Some(entry) = self.entries.get_mut(at) {
                    *entry = connection;
                }
                at
            }
            None => {
                self.entries.push(connection);
                self.entries.len() - 1
            }
        }
    }

    /// All indices are below this.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&mut self, at: usize) -> Option<&mut UpstreamConnection> {
        self.entries.get_mut(at)?.as_deref_mut()
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<Box<UpstreamConnection>> {
        let connection = self.entries.get_mut(at)?.take()?;
        self.free.push(at);
        Some(connection)
    }
}

impl Group {
    /// The counters of a server.
    #[inline]
    pub(super) fn counts_of(&self, server: usize) -> &ServerCounts {
        const NOBODYS: &ServerCounts = &ServerCounts(None);
        self.pools.get(server).map_or(NOBODYS, |pool| &pool.counts)
    }
}

impl State {
    /// The counters of a server.
    #[inline]
    pub(super) fn counts_of(&self, server_id: ServerId) -> &ServerCounts {
        const NOBODYS: &ServerCounts = &ServerCounts(None);
        self.groups.get(server_id.upstream).map_or(NOBODYS, |group| group.counts_of(server_id.server))
    }

    /// Assigns a request to a connection, and counts it for the server.
    pub(super) fn give_job(&mut self, at: usize, job: Box<Job>) {
        let Some(connection) = self.table.get(at) else { return };
        connection.job = Some(job);
        let server_id = connection.server_id;
        self.count_in(server_id);
    }

    /// A request was assigned to a server.
    #[inline]
    pub(super) fn count_in(&mut self, server_id: ServerId) {
        if let Some(group) = self.groups.get_mut(server_id.upstream) {
            group.shares.begin(server_id.server);
            group.counts_of(server_id.server).up(|counts| &counts.active);
        }
    }

    /// Counts that a request has left a server.
    #[inline]
    pub(super) fn count_out(&mut self, server_id: ServerId) {
        if let Some(group) = self.groups.get_mut(server_id.upstream) {
            group.shares.end(server_id.server);
            group.counts_of(server_id.server).down(|counts| &counts.active);
        }
    }

    /// Counts a request of an upstream that has ended for this reason.
    pub(super) fn count_ended(&self, upstream: usize, failure: Failure) {
        if let Some(group) = self.groups.get(upstream) {
            group.counts.ended(failure);
        }
    }

    /// Takes a connection's request, which is no longer counted.
    pub(super) fn take_job(&mut self, at: usize) -> Option<Box<Job>> {
        let connection = self.table.get(at)?;
        let job = connection.job.take()?;
        let server_id = connection.server_id;
        self.count_out(server_id);
        Some(job)
    }

    /// Ends a request, and keeps its memory for another.
    pub(super) fn end_job(&mut self, mut job: Box<Job>) {
        // This releases what its route holds for it.
        job.waiter = Waiter::nobody();
        if self.spare.len() < JOBS_KEPT && job.head.capacity() <= HEAD_BYTES_KEPT {
            self.spare.push(job);
        }
    }
}

impl ProxyWorker {
    pub(super) fn new(worker: &Worker, upstreams: Arc<[LiveUpstream]>, watch: Watch) -> Rc<ProxyWorker> {
        let pool = |upstream: &LiveUpstream, server: &LiveServer| Pool {
            address: server.label.as_str().into(),
            counts: ServerCounts(
                watch
                    .figures
                    .as_ref()
                    .map(|figures| figures.of_server(worker.index, &upstream.plan.name, &server.label)),
            ),
            idle: Vec::new(),
            shared: Vec::new(),
            open: 0,
        };
        let group = |upstream: &LiveUpstream| Group {
            // Workers start round robin at different servers.
            shares: Shares::new(upstream.servers.len(), hash(&worker.index.to_le_bytes())),
            budget: Budget::new(upstream.plan.retry_budget),
            pools: upstream.servers.iter().map(|server| pool(upstream, server)).collect(),
            queue: VecDeque::new(),
            counts: UpstreamCounts(
                watch.figures.as_ref().map(|figures| figures.of_upstream(worker.index, &upstream.plan.name)),
            ),
            is_watched: false,
        };
        let state = State {
            table: Table::default(),
            groups: upstreams.iter().map(group).collect(),
            fields: Vec::new(),
            scratch: Vec::new(),
            room: Room::default(),
            decisions: PendingDecisions::new(),
            spare: Vec::new(),
            windows: Windows::default(),
            is_timing: false,
        };
        Rc::new_cyclic(|me| ProxyWorker {
            me: me.clone(),
            lane: worker.lane.clone(),
            upstreams,
            watch,
            state: RefCell::new(state),
            newest: RefCell::new(Rc::new(RefCell::new(me.clone()))),
            is_retired: Cell::new(false),
        })
    }

    pub(super) fn owner(&self) -> Option<Rc<ProxyWorker>> {
        self.me.upgrade()
    }

    /// Builds the request to forward. Its head is written here, while the client's head is still available.
    fn job(&self, request: &Request<'_>, what: &Forwarded<'_>, waiter: Waiter) -> Option<Box<Job>> {
        let Request { head, body, peer, .. } = request;
        let upstream = self.upstreams.get(what.forward.upstream)?;
        let whole = match body {
            flatout_engine::RequestBody::Whole { bytes, .. } => *bytes,
            flatout_engine::RequestBody::Stream(_) => &[],
        };
        let exchange = waiter.exchange();
        // Whatever the settings say now: this is what became of the body when its head was read.
        let is_pulled = head.framing != Framing::None && exchange.is_some_and(|key| self.lane.is_pulled(key));
        let pulled = if is_pulled { Pulled::Waiting } else { Pulled::Not };
        let spare = self.state.borrow_mut().spare.pop();
        let (mut bytes, spare) = match spare {
            Some(mut job) => (std::mem::take(&mut job.head), Some(job)),
            None => (Vec::new(), None),
        };
        bytes.clear();
        bytes.reserve(head.len() + 256);
        let is_upgrade = write_head(head, what, peer.map(|peer| peer.ip()), &mut bytes);
        let is_websocket_of_h2 = is_upgrade && head.version == Version::Http2;
        let accept = is_websocket_of_h2.then(|| write_key(&mut bytes).into_boxed_str());
        let stuck_to = match &upstream.plan.balance {
            Balance::Sticky { cookie } => sticky::server(head, cookie, upstream),
            _ => None,
        };
        let job = Job {
            waiter,
            upstream: what.forward.upstream,
            sent: Sent::of(head.method, is_upgrade),
            head: bytes,
            body: Bytes::copy_from_slice(whole),
            length: body_length(head, pulled == Pulled::Not, whole.len()),
            pulled,
            is_idempotent: is_idempotent(head.method),
            retries_left: upstream.plan.retries_max,
            refusals_left: REFUSALS_MAX,
            tried: 0,
            peer: *peer,
            hash: key_hash(&upstream.plan.balance, request, what.client.address),
            is_answered: false,
            accept,
            via: what.forward.via.clone(),
            wants_new: false,
            stuck_to,
            names_server: names_server(&what.forward.host, head),
            trailers: passed_trailers(head, what),
            ends_ns: self.ends_ns(upstream, exchange),
            has_client_sent: false,
            queued_ns: None,
            trail: Trail::default(),
        };
        Some(match spare {
            Some(mut spare) => {
                *spare = job;
                spare
            }
            None => Box::new(job),
        })
    }
}

/// Delivers the results of questions to rules.
#[cold]
fn deliver(decisions: PendingDecisions) {
    for (then, decision) in decisions {
        if let Some(decision) = decision {
            // Its client may be gone.
            drop(then.send(decision));
        }
    }
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
    match head.framing {
        Framing::None => false,
        // A client that waits for 100 gets it when the server takes the body.
        Framing::Length(length) => {
            (length > WHOLE_BYTES_MAX || head.expects_continue) && !forward.buffer_requests
        }
        Framing::Chunked => !forward.buffer_requests,
    }
}

/// How the body after this head is to be read; `bytes_max` is the route's limit, `None` the server's.
pub fn body_plan(forward: &Forward, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
    match is_pulled(forward, head) {
        true => BodyPlan::Pull { bytes_max },
        false => BodyPlan::Whole { bytes_max },
    }
}

fn key_hash(balance: &Balance, request: &Request<'_>, client: Option<IpAddr>) -> u64 {
    let Balance::Hash(key) = balance else { return 0 };
    let head = &request.head;
    match key {
        Key::Client => match client {
            Some(IpAddr::V4(address)) => hash(&address.octets()),
            Some(IpAddr::V6(address)) => hash(&address.octets()),
            None => 0,
        },
        Key::Path => hash(request.path),
        Key::Target => hash(head.target()),
        Key::Header(name) => hash(head.field(name).unwrap_or_default()),
        Key::Cookie(name) => hash(sticky::cookie(head, name).unwrap_or_default()),
    }
}

impl Forwarding for ProxyWorker {
    fn body(&self, to: &Forward, head: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
        body_plan(to, head, bytes_max)
    }

    fn forward(&self, request: Request<'_>, what: Forwarded<'_>, response: &mut Response) -> Reply {
        // A tunnel to an address that the client chooses is the job of a forward proxy.
        if request.head.method == Method::Connect {
            response.set_status(Status::NOT_IMPLEMENTED).close();
            what.finish.finish(response, ResponseOrigin::Here);
            return Reply::Now;
        }
        let waiter = Waiter::Client { exchange: request.park(), finish: what.finish.clone() };
        match self.job(&request, &what, waiter) {
            Some(job) => {
                self.begin_job(job);
                Reply::Parked
            }
            None => {
                response.set_status(Status::BAD_GATEWAY);
                what.finish.finish(response, ResponseOrigin::Here);
                Reply::Now
            }
        }
    }

    fn time_left(&self, to: &Forward, key: ExchangeKey) -> Option<Duration> {
        let time_max = self.upstreams.get(to.upstream)?.plan.request_time_max?;
        Some(time_max.saturating_sub(self.lane.age(key)))
    }

    fn ask(&self, query: AuthQuery<'_>, then: oneshot::Sender<AuthDecision>) {
        let Some(upstream) = self.upstreams.get(query.upstream) else { return };
        let mut head = Vec::with_capacity(query.head.len() + 256);
        write_auth_query(&query, &mut head);
        self.begin_job(Box::new(Job {
            waiter: Waiter::rule(then, query.response_fields.to_vec()),
            upstream: query.upstream,
            sent: Sent::default(),
            head,
            body: Bytes::new(),
            length: None,
            pulled: Pulled::Not,
            is_idempotent: true,
            retries_left: upstream.plan.retries_max,
            refusals_left: REFUSALS_MAX,
            tried: 0,
            peer: None,
            hash: 0,
            is_answered: false,
            accept: None,
            via: None,
            wants_new: false,
            stuck_to: None,
            names_server: query.head.authority().is_empty(),
            trailers: Vec::new(),
            ends_ns: self.ends_ns(upstream, None),
            has_client_sent: false,
            queued_ns: None,
            trail: Trail::default(),
        }));
    }
}

impl Guests for ProxyWorker {
    fn ready(&self, guest: GuestKey, tag: u64, event: GuestEvent) {
        self.with_state(|state| self.happened(state, guest, tag, event));
    }
}

/// A request ready to be forwarded, without the receiver of its response.
pub struct Prepared(Box<Job>);

impl Prepared {
    /// Adds lines to the head, each ended by CRLF.
    pub fn add_lines(&mut self, lines: &[u8]) {
        self.0.head.extend_from_slice(lines);
    }

    /// A copy of the request, to forward a second time.
    pub fn again(&self) -> Prepared {
        let Job { upstream, sent, length, pulled, is_idempotent, retries_left, peer, hash, .. } = *self.0;
        let Job { stuck_to, names_server, refusals_left, ends_ns, .. } = *self.0;
        Prepared(Box::new(Job {
            waiter: Waiter::nobody(),
            upstream,
            sent,
            head: self.0.head.clone(),
            body: self.0.body.clone(),
            length,
            pulled,
            is_idempotent,
            retries_left,
            refusals_left,
            tried: 0,
            peer,
            hash,
            is_answered: false,
            accept: self.0.accept.clone(),
            via: self.0.via.clone(),
            wants_new: false,
            stuck_to,
            names_server,
            trailers: self.0.trailers.clone(),
            ends_ns,
            has_client_sent: false,
            queued_ns: None,
            trail: Trail::default(),
        }))
    }
}

impl ProxyWorker {
    /// Prepares a request without a body. `None` if there is no such upstream.
    pub fn prepare(&self, request: &Request<'_>, what: &Forwarded<'_>) -> Option<Prepared> {
        self.job(request, what, Waiter::nobody()).map(Prepared)
    }

    /// Forwards a request whose response goes to the client.
    pub fn pass_on(&self, mut prepared: Prepared, ParkedClient { exchange, finish }: ParkedClient) {
        prepared.0.waiter = Waiter::Client { exchange, finish };
        self.begin_job(prepared.0);
    }

    /// Forwards a request whose response goes to `sink`, which may be called before this returns.
    pub fn fetch(&self, mut prepared: Prepared, sink: Rc<dyn ResponseSink>) {
        prepared.0.waiter = Waiter::Sink(sink);
        self.begin_job(prepared.0);
    }

    /// The name of an upstream.
    pub fn upstream_name(&self, upstream: usize) -> &str {
        self.upstreams.get(upstream).map_or("", |upstream| &upstream.plan.name)
    }

    /// Runs `act` on the connections, then delivers results to rules. Delivery happens outside the borrow, because a
    /// rule may forward its request at once.
    pub(super) fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let (done, decisions) = {
            let state = &mut *self.state.borrow_mut();
            (act(state), std::mem::take(&mut state.decisions))
        };
        if !decisions.is_empty() {
            deliver(decisions);
        }
        done
    }

    fn begin_job(&self, job: Box<Job>) {
        self.with_state(|state| {
            if let Some(group) = state.groups.get_mut(job.upstream) {
                group.budget.earn();
            }
            if job.ends_ns.is_some() && !self.watch_time(state, &job) {
                return self.refuse(state, job, Failure::RequestTime);
            }
            self.dispatch(state, job);
        });
    }

    fn happened(&self, state: &mut State, guest: GuestKey, tag: u64, event: GuestEvent) {
        let is_client = tag & CLIENT_SIDE != 0;
        let at = (tag & !CLIENT_SIDE) as usize;
        let Some(connection) = state.table.get(at) else { return };
        let is_tunnel = connection.tunnel.is_some();
        let is_known = match &connection.tunnel {
            Some(tunnel) if is_client => tunnel.client() == guest,
            _ => !is_client && connection.guest == guest,
        };
        if !is_known {
            return;
        }
        if connection.session.is_some() {
            return self.happened_h2(state, at, event);
        }
        match event {
            GuestEvent::Socket(ready) if is_tunnel => {
                return self.tunnel_ready(state, at, is_client, Some(ready));
            }
            GuestEvent::Again if is_tunnel => return self.tunnel_ready(state, at, is_client, None),
            GuestEvent::Deadline if is_tunnel => return self.close(state, at),
            _ => {}
        }
        let is_of =
            |key: ExchangeKey| connection.job.as_ref().is_some_and(|job| job.waiter.exchange() == Some(key));
        match event {
            GuestEvent::Socket(ready) => {
                connection.is_full &= !ready.writable();
                connection.is_read_closed |= ready.read_closed() || ready.hung_up();
                connection.is_readable |= ready.readable() || ready.hung_up();
                let is_switching = connection.is_switching;
                if is_switching || (connection.is_connecting && !self.connected(state, at)) {
                    return;
                }
                self.pump(state, at);
            }
            GuestEvent::Room(key) | GuestEvent::Body(key) if is_of(key) => self.pump(state, at),
            // Its client has disconnected.
            GuestEvent::Gone(key) if is_of(key) => self.close(state, at),
            // Waiting clients get their responses, and tunnels continue until the drain's deadline.
            GuestEvent::Room(_) | GuestEvent::Body(_) | GuestEvent::Gone(_) | GuestEvent::Draining => {}
            GuestEvent::Again => self.pump(state, at),
            GuestEvent::Deadline => self.overdue(state, at),
        }
    }
}
