//! Time: the budget of a stage or visit, deadlines, and the minimum transfer rate.

use flatout_lane::clock::{self, Ticks};

use super::Serving;
use crate::connection::Connection;
use crate::output::Pace;

/// How long one connection, or one stage, is served before others get their turn. Checked after a few requests, so it
/// does not help against a single handler that blocks.
pub(crate) const BUDGET_NS: u64 = 250_000;

/// How long a new connection may take to send its first request while the server drains. Its client has only just
/// connected, and does not expect it to be closed.
const FIRST_REQUEST_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(1);

impl Serving {
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

    /// When the current stage started, or the visit of one connection.
    #[inline]
    pub(crate) fn began_ns(&self) -> u64 {
        self.budget_ends_ns - BUDGET_NS
    }

    /// Whether the time budget is used up. Reads the clock.
    #[inline]
    pub(crate) fn is_over_budget(&self) -> bool {
        clock::is_over(self.budget_ends_ns)
    }

    /// Starts a window for the peer's rate, which is checked at its end.
    pub(crate) fn begin_window(&self, connection: &mut Connection) {
        connection.deadline = self.now.ticks + self.bounds.window_ticks;
        let work = connection.work();
        work.moved_bytes = 0;
        work.judged_at = self.now.ticks;
    }

    pub(crate) fn idle_deadline(&self) -> Ticks {
        self.now.ticks + self.bounds.idle_ticks
    }

    pub(crate) fn handshake_deadline(&self) -> Ticks {
        self.now.ticks + self.bounds.handshake_ticks
    }

    /// When a new connection must have sent its first request while the server drains.
    pub(crate) fn first_request_deadline(&self) -> Ticks {
        self.now.ticks + clock::ticks(FIRST_REQUEST_TIME_MAX)
    }

    /// Whether this is enough bytes since the rate was last checked. `pace`: that of what is sent, if it is limited.
    pub(crate) fn is_enough(&self, connection: &mut Connection, bytes: u64, pace: Option<Pace>) -> bool {
        let ticks = self.now.ticks.saturating_sub(connection.work().judged_at);
        let seconds = f64::from(ticks) * clock::TICK.as_secs_f64();
        let rate_min = self.limits.rate_min_bytes_per_s as f64;
        let rate_min = pace.map_or(rate_min, |pace| pace.rate_min(rate_min));
        bytes as f64 >= rate_min * seconds
    }
}

/// Bytes that were moved since the rate was last checked. When sending, only those that the peer has acknowledged: a
/// send buffer may be full, and report no room, while its reader steadily continues. `None`: a response is measured
/// from its own start, not from a time when there was nothing to send.
pub(crate) fn acknowledged_bytes(connection: &mut Connection, is_sending: bool) -> Option<u64> {
    let waiting = if is_sending { connection.transport.unacknowledged_bytes() } else { 0 };
    let work = connection.work();
    let before = std::mem::replace(&mut work.unacknowledged_bytes, is_sending.then_some(waiting));
    if is_sending && before.is_none() {
        return None;
    }
    Some((work.moved_bytes + before.unwrap_or(waiting)).saturating_sub(waiting))
}
