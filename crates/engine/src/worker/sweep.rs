//! Work that depends on time: deadlines and draining.

use std::sync::atomic::Ordering;

use flatout_lane::clock::{self, Ticks};
use flatout_lane::slab::Cursor;

use super::WorkerLoop;
use super::turn::TURN_NS_MAX;
use crate::exchange::{DrainTime, GuestEvent, GuestKey};
use crate::h1;
use crate::service::Outcome;
use crate::serving::Fate;
use crate::serving::dispatch;

/// The sweep checks one slice of the table every [`TICK`](flatout_lane::clock::TICK), so each connection once a
/// second.
const SWEEP_SLICES: usize = 8;

impl WorkerLoop {
    /// Ends what is overdue in one slice of the table.
    pub(super) fn sweep(&mut self) {
        let now = self.serving.now.ticks;
        let slice = self.sweep_slice;
        if self.census.is_some() || self.stats.is_asked.load(Ordering::Relaxed) {
            self.count_states(slice, SWEEP_SLICES);
        }
        self.sweep_slice = (slice + 1) % SWEEP_SLICES;
        let mut cursor = self.connections.slice(slice, SWEEP_SLICES);
        while let Some((key, connection)) = cursor.next(&self.connections) {
            if connection.deadline > now {
                continue;
            }
            let (awaits_proxy_header, awaits_hello) =
                (connection.awaits_proxy_header(), connection.awaits_hello());
            self.serving.begin();
            if awaits_hello {
                self.close(key, Outcome::TimedOut);
            }
            if awaits_proxy_header {
                self.refuse_proxy(key, "its PROXY header did not arrive in time");
            }
            self.with(key, |serving, connection| dispatch::expire(serving, key, connection));
        }
        self.feed_starved();
        let mut overdue = Vec::new();
        self.serving.lane.overdue(now, slice, SWEEP_SLICES, &mut overdue);
        for guest in overdue {
            self.call_guest(GuestKey(guest), GuestEvent::Deadline);
        }
        match self.drain_deadline {
            Some(deadline) if deadline <= now => self.end_drain(now),
            // What held it may be over.
            Some(_) => self.end_if_drained(),
            None => {}
        }
        self.resume_accepting();
        self.close_listeners();
    }

    /// Resumes bodies that waited for memory, the longest waiting first.
    fn feed_starved(&mut self) {
        for key in std::mem::take(&mut self.serving.starved) {
            self.serving.begin();
            self.with(key, |serving, connection| h1::feed_starved(serving, key, connection));
        }
    }

    /// Stops accepting from clients, closes idle connections, and lets the others finish.
    pub(super) fn drain(&mut self, time: DrainTime) {
        let now = self.serving.now.ticks;
        self.tunnel_deadline = self.tunnel_deadline.min(now.saturating_add(clock::ticks(time.tunnels)));
        if self.drain_deadline.is_some() {
            return;
        }
        // Connections already accepted by the kernel would be reset with the listener: they are served.
        self.accept_again = true;
        while std::mem::take(&mut self.accept_again) {
            self.accept_all();
        }
        self.close_for_drain();
        self.drain_deadline = Some(now.saturating_add(clock::ticks(time.requests)));
        self.serving.draining = true;
        self.drain_cursor = Some(Cursor::default());
        self.end_if_drained();
    }

    /// The time of the drain is over, for all but tunnels perhaps.
    fn end_drain(&mut self, now: Ticks) {
        if self.tunnel_deadline <= now {
            self.ended = true;
            return;
        }
        let mut cursor = Cursor::default();
        while let Some((key, connection)) = cursor.next(&self.connections) {
            if !connection.carries_tunnel() {
                self.close(key, Outcome::Stopped);
            }
        }
        self.end_if_drained();
    }

    /// Notifies connections of the drain, for at most one turn; the next turn continues. A connection that responds
    /// before it is notified announces its end in that response.
    pub(super) fn notify_of_drain(&mut self) {
        let ends_ns = clock::nanoseconds() + TURN_NS_MAX;
        let mut cursor = self.drain_cursor.take().unwrap_or_default();
        while let Some((key, connection)) = cursor.next(&self.connections) {
            // Whoever gets it is notified of the drain.
            if connection.awaits_inside() {
                continue;
            }
            let awaits_start = connection.awaits_proxy_header() || connection.awaits_hello();
            self.serving.begin();
            if awaits_start && !self.read_start(key) {
                self.close(key, Outcome::Stopped);
            }
            self.with(key, |serving, connection| {
                // A request may have arrived whose event was not taken yet.
                connection.readable = true;
                match dispatch::pump(serving, key, connection) {
                    Fate::Keep if connection.is_at_rest() => serving.finish_draining(connection),
                    fate => fate,
                }
            });
            if clock::is_over(ends_ns) {
                self.drain_cursor = Some(cursor);
                return;
            }
        }
        self.draining_guests = self.serving.lane.guests();
        // The oldest comes first. It may be a part of the service, which must know of the drain before it gets more guests.
        self.draining_guests.reverse();
    }

    /// Notifies guests of the drain, for at most one turn.
    pub(super) fn notify_guests_of_drain(&mut self) {
        let ends_ns = clock::nanoseconds() + TURN_NS_MAX;
        while let Some(guest) = self.draining_guests.pop() {
            self.call_guest(GuestKey(guest), GuestEvent::Draining);
            if clock::is_over(ends_ns) {
                return;
            }
        }
    }
}
