//! Why a server gets no requests: marks of operators and of health checks. Workers read them as one byte.

use std::sync::atomic::Ordering;

use flatout_lane::clock;

use super::LiveServer;

/// Its health checks have failed.
const UNHEALTHY: u8 = 1;
/// An operator drains it.
const DRAINING: u8 = 1 << 1;
/// An operator has set it down.
const SET_DOWN: u8 = 1 << 2;
/// It is no longer one of its upstream.
const REMOVED: u8 = 1 << 3;
/// It was added to a running upstream, and its name has not resolved yet.
pub(super) const UNRESOLVED: u8 = 1 << 4;
/// It stands out from its siblings.
pub(super) const EJECTED: u8 = 1 << 5;
/// Its source, such as a file, drains it.
const SOURCE_DRAINS: u8 = 1 << 6;
/// It gets no more requests for good, or until somebody changes that.
const LEAVING: u8 = DRAINING | SET_DOWN | REMOVED | SOURCE_DRAINS;

/// The marks of a server that is new.
pub(super) fn of_plan(plan: &crate::plan::Server) -> u8 {
    if plan.drain { SOURCE_DRAINS } else { 0 }
}

/// What an operator wants of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerMode {
    /// It gets requests while it is up.
    #[default]
    Serving,
    /// It gets no more requests. Those in progress are finished, and so are tunnels.
    Draining,
    /// It gets no more requests, and those in progress end: they are sent to another server if that is safe.
    SetDown,
}

impl ServerMode {
    fn bits(self) -> u8 {
        match self {
            ServerMode::Serving => 0,
            ServerMode::Draining => DRAINING,
            ServerMode::SetDown => SET_DOWN,
        }
    }
}

/// The state of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// It gets its full share of requests.
    Up,
    /// It has recovered, and gets less than its share for a while.
    SlowStart,
    /// It has failed, or its health checks have.
    Down,
    /// Its name has not resolved yet.
    NoAddress,
    /// An operator or its source drains it: it finishes its requests.
    Draining,
    /// An operator has set it down.
    SetDown,
    /// It stands out from its siblings by errors or times, and pauses.
    Ejected,
}

impl ServerState {
    /// All states.
    pub const ALL: [ServerState; 7] = [
        ServerState::Up,
        ServerState::SlowStart,
        ServerState::Down,
        ServerState::NoAddress,
        ServerState::Draining,
        ServerState::SetDown,
        ServerState::Ejected,
    ];

    /// Its name, for people and metrics.
    pub fn name(self) -> &'static str {
        match self {
            ServerState::Up => "up",
            ServerState::SlowStart => "slow start",
            ServerState::Down => "down",
            ServerState::NoAddress => "no address",
            ServerState::Draining => "draining",
            ServerState::SetDown => "set down",
            ServerState::Ejected => "ejected",
        }
    }
}

impl LiveServer {
    /// It is added to a running upstream: its share grows, if its upstream has a slow start, and it waits for its address.
    pub(crate) fn joins(&self) {
        self.up_since_ns.store(clock::nanoseconds(), Ordering::Relaxed);
        if self.dns_name().is_some() {
            self.set_closed(UNRESOLVED, true);
        }
    }

    /// It is no longer one of its upstream.
    pub(crate) fn leaves(&self) {
        self.set_closed(REMOVED, true);
    }

    pub(super) fn set_closed(&self, bit: u8, is_set: bool) -> bool {
        let was = match is_set {
            true => self.closed.fetch_or(bit, Ordering::Relaxed),
            false => self.closed.fetch_and(!bit, Ordering::Relaxed),
        };
        was & bit != 0
    }

    /// What an operator wants of it.
    pub(crate) fn mode(&self) -> ServerMode {
        let closed = self.closed.load(Ordering::Relaxed);
        match (closed & SET_DOWN != 0, closed & DRAINING != 0) {
            (true, _) => ServerMode::SetDown,
            (false, true) => ServerMode::Draining,
            (false, false) => ServerMode::Serving,
        }
    }

    /// Only one thread changes it at a time.
    pub(crate) fn set_mode(&self, mode: ServerMode) {
        let wanted = mode.bits();
        for bit in [DRAINING, SET_DOWN] {
            self.set_closed(bit, wanted & bit != 0);
        }
        if mode == ServerMode::Serving {
            self.up_since_ns.store(clock::nanoseconds(), Ordering::Relaxed);
        }
    }

    /// Its full weight.
    pub(crate) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    pub(crate) fn set_weight(&self, weight: u32) {
        self.weight.store(weight.max(1), Ordering::Relaxed);
    }

    /// Whether its source drains it.
    pub(crate) fn is_drained_by_source(&self) -> bool {
        self.closed.load(Ordering::Relaxed) & SOURCE_DRAINS != 0
    }

    /// Its source drains it, or does no longer. Returns whether that is new.
    pub(crate) fn set_drained_by_source(&self, drains: bool) -> bool {
        let is_new = self.set_closed(SOURCE_DRAINS, drains) != drains;
        if is_new && !drains {
            self.recovers();
        }
        is_new
    }

    /// Takes what operators want of another one, which may be the same.
    pub(crate) fn set_mode_like(&self, other: &LiveServer) {
        if self.mode() != other.mode() {
            self.set_mode(other.mode());
        }
    }

    /// Takes what operators have changed of another one.
    pub(crate) fn changed_like(&self, other: &LiveServer) {
        self.set_weight(other.weight());
        self.set_mode(other.mode());
    }

    /// Takes the marks of another one that say how it fares.
    pub(super) fn marked_like(&self, other: &LiveServer) {
        let marks = other.closed.load(Ordering::Relaxed);
        for bit in [UNHEALTHY, UNRESOLVED, EJECTED] {
            self.set_closed(bit, marks & bit != 0);
        }
    }

    /// Whether nobody has changed it since it was read from a plan.
    pub(crate) fn is_as_planned(&self) -> bool {
        self.weight() == self.plan.weight.max(1)
            && self.closed.load(Ordering::Relaxed) & (DRAINING | SET_DOWN | REMOVED) == 0
    }

    /// Whether it leaves for good, or until an operator changes that: it keeps no idle connections.
    #[inline]
    pub(crate) fn is_leaving(&self) -> bool {
        self.closed.load(Ordering::Relaxed) & LEAVING != 0
    }

    /// Whether nothing speaks against requests to it but failures of the last seconds.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.closed.load(Ordering::Relaxed) == 0
    }

    /// Whether it may get requests if no other server does: it only stands out from the others.
    pub(crate) fn may_serve_last(&self) -> bool {
        self.closed.load(Ordering::Relaxed) & !EJECTED == 0
    }

    /// Whether it gets no requests for this reason alone.
    pub(crate) fn is_only_ejected(&self) -> bool {
        self.closed.load(Ordering::Relaxed) == EJECTED
    }

    /// It gets requests again: its share grows, if its upstream has a slow start.
    pub(super) fn recovers(&self) {
        self.up_since_ns.store(clock::nanoseconds(), Ordering::Relaxed);
    }

    /// Its state; `slow_start` is its upstream's.
    pub(crate) fn state(&self, slow_start: std::time::Duration) -> ServerState {
        match self.mode() {
            ServerMode::Serving if self.is_drained_by_source() => return ServerState::Draining,
            ServerMode::Serving => {}
            ServerMode::Draining => return ServerState::Draining,
            ServerMode::SetDown => return ServerState::SetDown,
        }
        if self.remotes.load().is_empty() {
            ServerState::NoAddress
        } else if !self.is_checked_up() || self.down_until_ns.load(Ordering::Relaxed) != 0 {
            ServerState::Down
        } else if self.closed.load(Ordering::Relaxed) & EJECTED != 0 {
            ServerState::Ejected
        } else if self.weight_now(slow_start) < u64::from(self.weight()) * 1000 {
            ServerState::SlowStart
        } else {
            ServerState::Up
        }
    }

    /// Whether the health checks find it up, or there are none.
    pub(crate) fn is_checked_up(&self) -> bool {
        self.closed.load(Ordering::Relaxed) & UNHEALTHY == 0
    }

    /// Records the result of a health check.
    pub(crate) fn set_healthy(&self, is_healthy: bool) {
        let was_unhealthy = self.set_closed(UNHEALTHY, !is_healthy);
        if is_healthy && was_unhealthy {
            self.failures.store(0, Ordering::Relaxed);
            self.down_until_ns.store(0, Ordering::Relaxed);
            self.up_since_ns.store(clock::nanoseconds(), Ordering::Relaxed);
        }
    }
}
