//! Serves connections: the state that a worker's connections share, and the steps that all protocols have in common.
//!
//! ```text
//! worker ──> dispatch ──> h1 | h2 ──> body_plan ──> call ──> h1 | h2 ──> flush ──> transport
//!               │            └ buffer, budget, exchanges, records, refusal
//!               └ linger
//! ```
//!
//! The protocols do not know each other: both are modules of functions over a [`Serving`] and a connection, and `dispatch`
//! selects one.

mod body_plan;
mod budget;
mod buffer;
mod call;
pub(crate) mod dispatch;
mod exchanges;
mod flush;
mod linger;
mod records;
mod refusal;
mod state;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use flatout_lane::clock::{self, Moment};
use flatout_lane::slab::Key;
use flatout_wire::h2;
use flatout_wire::head::{Field, HeadLimits};
use flatout_wire::target::PathForm;

use crate::exchange::{GuestEvent, GuestKey, Lane, Mailbox};
use crate::output::{Output, Prelude};
use crate::plan::Limits;
use crate::readers::Readers;
use crate::record::Record;
use crate::service::{Outcome, Response, Service, Takeover, first_number};
use crate::shared::Shared;

pub(crate) use body_plan::{prepare, read_on};
pub(crate) use budget::acknowledged_bytes;
pub(crate) use buffer::{READ_BYTES, SLICE_BYTES, STAGE_SOCKETS};
pub(crate) use call::{Parker, call, normal_path};
pub(crate) use dispatch::{is_http2_preface, state_of};
pub(crate) use exchanges::body_fault_of;
pub(crate) use flatout_wire::h1::{DISCARD_BYTES_MAX, Refusal, Trailers};
pub(crate) use refusal::{BAD_PATH, refused};
pub use state::State;

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
pub(crate) enum FlushTime {
    AtOnce,
    Staged,
}

/// Responses that wait in the output for the end of the stage.
pub(crate) struct StagedOutput {
    pub(crate) key: Key,
    pub(crate) span: Range<usize>,
    /// Their records, among the stage's.
    pub(crate) records: Range<usize>,
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
    /// The number of the current request, for its id.
    pub(crate) number: u64,
    pub(crate) lane: Lane,
    pub(crate) mailbox: Mailbox,
    /// Memory of all request bodies that the server collects.
    pub(crate) bodies_bytes: Arc<AtomicU64>,
    pub(crate) readers: Arc<Readers>,
    /// Connections whose bodies wait for memory.
    pub(crate) starved: Vec<Key>,
    /// Connections that wait for the next tick, because their rate is limited.
    pub(crate) held_back: Vec<Key>,
    /// Guests to notify of events of their exchanges.
    pub(crate) notices: Vec<(GuestKey, GuestEvent)>,
    pub(crate) bounds: Bounds,
    pub(crate) budget_ends_ns: u64,
    pub(crate) read: Box<[u8]>,
    pub(crate) output: Output,
    pub(crate) response: Response,
    pub(crate) fields: Vec<Field>,
    pub(crate) path: Vec<u8>,
    pub(crate) staged: Vec<StagedOutput>,
    /// Records of requests that ended in this stage.
    pub(crate) records: Vec<Record>,
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
            bounds: Bounds::of(&limits),
            limits,
            now: clock::now(),
            prelude: Prelude::new(server_name),
            draining: false,
            requests_count: 0,
            number: first_number(),
            lane,
            mailbox,
            bodies_bytes: shared.bodies_bytes(),
            readers: shared.readers(),
            starved: Vec::new(),
            held_back: Vec::new(),
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
        self.bounds = Bounds::of(&limits);
        self.lane.set_body_limits(self.bodies_bytes.clone(), &limits);
        self.limits = limits;
        self.prelude = Prelude::new(server_name);
        self.prelude.follow(self.now.unix_seconds);
    }

    /// Whether the service trusts this peer to announce a connection's client.
    pub(crate) fn believes_proxy(&self, peer: Option<SocketAddr>, listener: u16) -> bool {
        let asked = std::panic::AssertUnwindSafe(|| self.service.believes_proxy(peer, listener));
        std::panic::catch_unwind(asked).unwrap_or(false)
    }

    /// Memory of the response buffer.
    pub(crate) fn output_bytes_kept(&self) -> usize {
        self.output.bytes_kept()
    }
}

/// What follows from the limits, in the units of the hot path.
pub(crate) struct Bounds {
    pub(crate) head: HeadLimits,
    pub(crate) idle_ticks: clock::Ticks,
    pub(crate) head_ticks: clock::Ticks,
    pub(crate) handshake_ticks: clock::Ticks,
    pub(crate) window_ticks: clock::Ticks,
    /// Requests that a new connection may send.
    pub(crate) requests_max: u32,
}

impl Bounds {
    fn of(limits: &Limits) -> Bounds {
        let head = HeadLimits {
            head_bytes_max: limits.head_bytes_max,
            target_bytes_max: limits.target_bytes_max,
            fields_max: limits.headers_max,
        };
        Bounds {
            head,
            idle_ticks: clock::ticks(limits.idle_time_max),
            head_ticks: clock::ticks(limits.head_time_max),
            handshake_ticks: clock::ticks(limits.handshake_time_max),
            window_ticks: clock::ticks(limits.rate_window),
            requests_max: limits.requests_per_connection_max.unwrap_or(u32::MAX),
        }
    }
}
