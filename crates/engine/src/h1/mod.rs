//! HTTP/1 on one connection: bytes from its transport through the state machine to the service, and back.
//!
//! ```text
//! receive ──> read buffer ──> consume ── head | body ──> service ──> Output ── leave | flush ──> transport
//!                 ^              │ what is left of it                  ^
//!                 └─ Work::held <┘            exchange's outbox ── attend
//! ```
//!
//! Bytes are parsed where the kernel put them: a connection owns a buffer only for an incomplete part of a request.
//! `wire::h1` knows the protocol; this module acts on its events.

pub(crate) mod answering;
mod bodies;
pub(crate) mod ending;
mod reading;
pub(crate) mod requests;
mod sending;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use flatout_lane::clock::{self, Moment};
use flatout_lane::slab::Key;
use flatout_wire::h2;
use flatout_wire::head::{Field, HeadLimits};
use flatout_wire::target::PathForm;

use crate::connection::Connection;
use crate::exchange::{GuestEvent, GuestKey, Lane, Mailbox};
use crate::output::{Output, Prelude};
use crate::plan::Limits;
use crate::readers::Readers;
use crate::record::Record;
use crate::service::{Outcome, Response, Service, Takeover};
use crate::shared::Shared;

/// Bytes of the worker's single read buffer, and so of one receive.
pub(crate) const READ_BYTES: usize = 64 << 10;
const _: () = assert!(crate::plan::HEAD_BYTES_MAX_CEILING < READ_BYTES);

/// Sockets that are received from before any of them is served.
pub(crate) const STAGE_SOCKETS: usize = 16;

/// Bytes per socket in the read buffer.
const SLICE_BYTES: usize = READ_BYTES / STAGE_SOCKETS;

/// How long one connection, or one stage, is served before others get their turn. Checked after a few requests, so it
/// does not help against a single handler that blocks.
pub(crate) const BUDGET_NS: u64 = 250_000;

/// Encoded bytes of one connection after which they are sent before more is encoded.
pub(crate) const OUT_BYTES_PER_SEND: u64 = 128 << 10;

/// What to do with a connection.
pub(crate) enum Fate {
    /// Keep it in the lane.
    Keep,
    /// Keep it, and serve it again after others.
    Again,
    /// Close it.
    Close(Outcome),
    /// Take it out of the lane.
    Take(Takeover),
}

/// Whether responses are sent as soon as they are made, or at the end of the stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    AtOnce,
    Staged,
}

/// Responses that wait in the output for the end of the stage.
pub(crate) struct Staged {
    pub(crate) key: Key,
    pub(crate) span: Range<usize>,
    /// Their records, among the stage's.
    records: Range<usize>,
}

/// The result of one step of parsing.
enum Step {
    /// Nothing can be done with the bytes now.
    Partial,
    /// This many were used.
    Used(usize),
    /// They are the start of an HTTP/2 connection.
    Http2,
}

/// Everything that serving needs besides the connection itself.
pub(crate) struct Serving {
    pub(crate) service: Box<dyn Service>,
    pub(crate) wants_ended: bool,
    pub(crate) path_form: PathForm,
    pub(crate) wants_begun: bool,
    pub(crate) limits: Limits,
    pub(crate) now: Moment,
    pub(crate) prelude: Prelude,
    pub(crate) draining: bool,
    pub(crate) requests_count: u64,
    pub(crate) lane: Lane,
    pub(crate) mailbox: Mailbox,
    /// Memory of all request bodies that the server collects.
    pub(crate) bodies_bytes: Arc<AtomicU64>,
    pub(crate) readers: Arc<Readers>,
    /// Connections whose bodies wait for memory.
    pub(crate) starved: Vec<Key>,
    /// Guests to notify of events of their exchanges.
    pub(crate) notices: Vec<(GuestKey, GuestEvent)>,
    pub(crate) head_limits: HeadLimits,
    pub(crate) idle_ticks: clock::Ticks,
    pub(crate) head_ticks: clock::Ticks,
    pub(crate) handshake_ticks: clock::Ticks,
    pub(crate) window_ticks: clock::Ticks,
    pub(crate) budget_ends_ns: u64,
    pub(crate) read: Box<[u8]>,
    pub(crate) output: Output,
    pub(crate) response: Response,
    pub(crate) fields: Vec<Field>,
    pub(crate) path: Vec<u8>,
    pub(crate) staged: Vec<Staged>,
    /// Records of requests that ended in this stage.
    pub(crate) records: Vec<Record>,
    /// Requests that a new connection may send.
    pub(crate) requests_max: u32,
    /// Scratch space in which HTTP/2 heads are assembled.
    pub(crate) room: h2::Room,
    /// The last of these records belongs to the current request.
    pub(crate) has_open: bool,
}

impl Serving {
    pub(crate) fn new(
        service: Box<dyn Service>,
        limits: Limits,
        server_name: Option<&str>,
        lane: Lane,
        mailbox: Mailbox,
        shared: &Shared,
    ) -> Serving {
        lane.set_body_limits(shared.bodies_bytes(), &limits);
        Serving {
            wants_ended: service.wants_ended(),
            path_form: service.path_form(),
            wants_begun: service.wants_ended() && service.wants_begun(),
            service,
            head_limits: head_limits(&limits),
            idle_ticks: clock::ticks(limits.idle_time_max),
            head_ticks: clock::ticks(limits.head_time_max),
            handshake_ticks: clock::ticks(limits.handshake_time_max),
            window_ticks: clock::ticks(limits.rate_window),
            requests_max: limits.requests_per_connection_max.unwrap_or(u32::MAX),
            limits,
            now: clock::now(),
            prelude: Prelude::new(server_name),
            draining: false,
            requests_count: 0,
            lane,
            mailbox,
            bodies_bytes: shared.bodies_bytes(),
            readers: shared.readers(),
            starved: Vec::new(),
            notices: Vec::new(),
            budget_ends_ns: 0,
            read: vec![0; READ_BYTES].into_boxed_slice(),
            output: Output::default(),
            response: Response::new(),
            fields: Vec::new(),
            path: Vec::new(),
            staged: Vec::with_capacity(STAGE_SOCKETS),
            records: Vec::new(),
            room: h2::Room::default(),
            has_open: false,
        }
    }

    /// Applies these limits to requests from now on.
    pub(crate) fn set_limits(&mut self, limits: Limits, server_name: Option<&str>) {
        self.head_limits = head_limits(&limits);
        self.idle_ticks = clock::ticks(limits.idle_time_max);
        self.head_ticks = clock::ticks(limits.head_time_max);
        self.window_ticks = clock::ticks(limits.rate_window);
        self.requests_max = limits.requests_per_connection_max.unwrap_or(u32::MAX);
        self.lane.set_body_limits(self.bodies_bytes.clone(), &limits);
        self.limits = limits;
        self.prelude = Prelude::new(server_name);
        self.prelude.follow(self.now.unix_seconds);
    }

    /// Whether the service trusts this peer to announce a connection's client.
    pub(crate) fn believes_proxy(&self, peer: Option<SocketAddr>) -> bool {
        let asked = std::panic::AssertUnwindSafe(|| self.service.believes_proxy(peer));
        std::panic::catch_unwind(asked).unwrap_or(false)
    }

    /// Starts a turn and its first stage. Returns the time.
    #[inline]
    pub(crate) fn tick(&mut self) -> u64 {
        let now_ns = self.begin();
        self.now.advance(now_ns);
        self.lane.set_now(self.now.ticks);
        self.prelude.follow(self.now.unix_seconds);
        now_ns
    }

    /// Starts a stage, or the visit of one connection: its time budget starts now. Returns the time.
    #[inline]
    pub(crate) fn begin(&mut self) -> u64 {
        let now_ns = clock::nanoseconds();
        self.budget_ends_ns = now_ns + BUDGET_NS;
        now_ns
    }

    /// Memory of the response buffer.
    pub(crate) fn output_bytes_kept(&self) -> usize {
        self.output.bytes_kept()
    }

    /// When the current stage started, or the visit of one connection.
    #[inline]
    pub(crate) fn began_ns(&self) -> u64 {
        self.budget_ends_ns - BUDGET_NS
    }

    /// Whether the time budget is used up. Reads the clock.
    #[inline]
    pub(crate) fn is_over_budget(&self) -> bool {
        clock::nanoseconds() > self.budget_ends_ns
    }

    /// Starts a window for the peer's rate, which is checked at its end.
    pub(crate) fn begin_window(&self, connection: &mut Connection) {
        connection.deadline = self.now.ticks + self.window_ticks;
        let work = connection.work();
        work.moved_bytes = 0;
        work.judged_at = self.now.ticks;
    }

    pub(crate) fn idle_deadline(&self) -> clock::Ticks {
        self.now.ticks + self.idle_ticks
    }

    pub(crate) fn handshake_deadline(&self) -> clock::Ticks {
        self.now.ticks + self.handshake_ticks
    }
}

fn head_limits(limits: &Limits) -> HeadLimits {
    HeadLimits {
        head_bytes_max: limits.head_bytes_max,
        target_bytes_max: limits.target_bytes_max,
        fields_max: limits.headers_max,
    }
}
