//! A turn: handles all events that were taken, in stages.
//!
//! A stage receives from up to [`STAGE_SOCKETS`] sockets, then serves all of them, then sends all responses. The code
//! of each step stays in the cache, and consecutive sends wake their clients less often. It is limited in sockets and
//! in time, so that the first does not wait for the last.

use flatout_lane::clock;
use flatout_lane::limit;
use flatout_lane::poll::{Ready, Token};
use flatout_lane::slab::Key;
use flatout_wire::h1::Wants;

use super::WorkerLoop;
use crate::exchange::{GuestEvent, GuestKey, Mail};
use crate::h1;
use crate::service::Outcome;
use crate::serving::dispatch;
use crate::serving::{Fate, STAGE_SOCKETS};

/// How long a turn lasts, except for its last stage: then tasks get theirs.
pub(super) const TURN_NS_MAX: u64 = 500_000;

/// Connections of a stage that are served between two clock readings.
const SERVED_PER_LOOK: usize = limit::looks(4);

impl WorkerLoop {
    /// Handles the events that were taken, and connections with more work than fitted their last turn.
    pub(super) fn turn(&mut self) {
        let mut began_ns = self.serving.tick();
        if self.has_more_than_events() {
            self.turn_again();
            began_ns = self.serving.begin();
        }
        if !self.events.is_empty() {
            self.stage();
            while !self.events.is_empty() && self.serving.begin() - began_ns < TURN_NS_MAX {
                self.stage();
            }
            self.attend();
        }
        if self.serving.now.ticks >= self.next_sweep {
            self.next_sweep = self.serving.now.ticks + 1;
            self.continue_held_back();
            self.sweep();
        }
    }

    /// Whether the worker itself has work without an event.
    #[inline]
    pub(super) fn has_more_than_events(&self) -> bool {
        self.accept_again
            || self.has_mail
            || self.drain_cursor.is_some()
            || !self.draining_guests.is_empty()
            || !self.again.is_empty()
            || self.serving.lane.has_again()
    }

    /// A tick has passed: responses whose rate is limited may send more.
    fn continue_held_back(&mut self) {
        for key in std::mem::take(&mut self.serving.held_back) {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.work().is_held_back = false;
                self.schedule_again(key);
            }
        }
    }

    fn stage(&mut self) {
        self.receive();
        for slice in 0..self.received.len() {
            let Some(&(key, bytes)) = self.received.get(slice) else { break };
            let Some(connection) = self.connections.get_mut(key) else { continue };
            match h1::serve_slice(&mut self.serving, key, connection, slice, bytes) {
                Fate::Keep if connection.readable => self.single.push(key),
                Fate::Keep => {}
                fate => self.apply(key, fate),
            }
            if slice % SERVED_PER_LOOK == SERVED_PER_LOOK - 1 && self.serving.is_over_budget() {
                self.flush_stage();
                self.serving.begin();
            }
        }
        self.flush_stage();
        if !self.single.is_empty() {
            self.serve_singles();
        }
        if self.has_mail {
            self.read_mail();
        }
    }

    /// Takes events until a stage is full. Anything other than input of a connection at rest is handled at once, or
    /// after the stage.
    fn receive(&mut self) {
        self.received.clear();
        while self.received.len() + self.single.len() < STAGE_SOCKETS
            && let Some(index) = self.events.next()
        {
            let Some(ready) = self.poll.event(index) else { break };
            match Token::from_u64(ready.token) {
                Token::Client(key) => {
                    if let Some(bytes) = self.receive_from(key, ready, self.received.len()) {
                        self.received.push((key, bytes));
                    }
                }
                Token::Listener(id) => self.accept(id),
                Token::Guest(key) => self.call_guest(GuestKey(key), GuestEvent::Socket(ready)),
                // Mail may resume connections, for which the read buffer must be free.
                Token::Wake => self.has_mail = true,
            }
        }
    }

    /// How many bytes were received into the slice, if they are to be served with it.
    #[inline]
    fn receive_from(&mut self, key: Key, ready: Ready, slice: usize) -> Option<usize> {
        let connection = self.connections.get_mut(key)?;
        if ready.hung_up() {
            // Reset, or closed on both sides. Bytes sent before are read; a response could not be delivered.
            let is_over = connection.lingering.is_some()
                || connection.is_sending()
                || connection.machine.wants() == Wants::Answer
                || (ready.broken() && !h1::wants_input(&self.serving, connection));
            if is_over {
                self.close(key, Outcome::ClientGone);
                return None;
            }
            connection.read_closed = true;
        }
        connection.read_closed |= ready.read_closed();
        if ready.readable() || ready.hung_up() {
            connection.readable = true;
        } else if !connection.is_sending() && !connection.transport.wants_room() {
            return None;
        }
        if connection.is_scheduled {
            // It will get its turn.
            return None;
        }
        if !connection.is_at_rest() {
            self.single.push(key);
            return None;
        }
        match dispatch::receive_slice(&mut self.serving, connection, slice) {
            Ok(0) => None,
            Ok(bytes) => Some(bytes),
            Err(fate) => {
                self.apply(key, fate);
                None
            }
        }
    }

    fn flush_stage(&mut self) {
        let staged = std::mem::take(&mut self.serving.staged);
        for response in &staged {
            let Some(connection) = self.connections.get_mut(response.key) else {
                self.serving.forget_staged(response);
                continue;
            };
            match self.serving.flush_staged(response, connection) {
                Fate::Keep => {}
                fate => self.apply(response.key, fate),
            }
        }
        self.serving.staged = staged;
        self.serving.clear_stage();
    }

    /// Serves connections that need the whole read buffer, or have something to send.
    fn serve_singles(&mut self) {
        let mut single = std::mem::take(&mut self.single);
        for key in single.drain(..) {
            self.serve_single(key);
        }
        self.single = single;
    }

    fn serve_single(&mut self, key: Key) {
        self.serving.begin();
        if !self.read_start(key) {
            return;
        }
        self.with(key, |serving, connection| {
            if connection.is_sending() {
                match dispatch::writable(serving, key, connection) {
                    Fate::Keep => {}
                    fate => return fate,
                }
            }
            dispatch::resume(serving, key, connection)
        });
    }

    /// Serves connections with more work than fitted their turn.
    fn turn_again(&mut self) {
        if self.has_mail {
            self.read_mail();
        }
        if self.drain_cursor.is_some() {
            self.notify_of_drain();
        }
        if !self.draining_guests.is_empty() {
            self.notify_guests_of_drain();
        }
        if std::mem::take(&mut self.accept_again) {
            self.accept_all();
        }
        for (key, event) in self.serving.lane.take_again() {
            self.call_guest(GuestKey(key), event);
        }
        let ends_ns = clock::nanoseconds() + TURN_NS_MAX;
        let mut keys = std::mem::take(&mut self.again).into_iter();
        for key in keys.by_ref() {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.is_scheduled = false;
            }
            self.serve_single(key);
            if clock::is_over(ends_ns) {
                break;
            }
        }
        // Connections without a turn so far come before those that need another one.
        let waiting: Vec<Key> = keys.collect();
        self.again.splice(..0, waiting);
    }

    /// Handles items given to exchanges by the service, guests and tasks, for at most one turn. Returns whether there
    /// were any.
    #[inline]
    pub(super) fn attend(&mut self) -> bool {
        let had_notices = !self.serving.notices.is_empty();
        if had_notices {
            self.send_notices();
        }
        if !self.serving.lane.has_listed() {
            return had_notices;
        }
        self.attend_to_listed();
        true
    }

    #[inline(never)]
    fn attend_to_listed(&mut self) {
        let ends_ns = self.serving.begin() + TURN_NS_MAX;
        for attended in 1usize.. {
            let Some(exchange) = self.serving.lane.next_listed() else { return };
            if let Some(key) = self.serving.lane.with(exchange, |exchange| exchange.connection) {
                self.with(key, |serving, connection| dispatch::attend(serving, key, connection, exchange));
                self.send_notices();
            }
            if attended % SERVED_PER_LOOK == 0 && clock::is_over_at(self.serving.begin(), ends_ns) {
                return;
            }
        }
    }

    /// Handles messages of other threads, for at most one turn. Messages that were taken are handled before more are
    /// taken, so that at most two full mailboxes wait.
    fn read_mail(&mut self) {
        let was_taken_before = !self.mail.is_empty();
        if !was_taken_before {
            self.mail = self.mailbox.take();
        }
        let ends_ns = clock::nanoseconds() + TURN_NS_MAX;
        while let Some(mail) = self.mail.pop_front() {
            match mail {
                Mail::Drain(time) => self.drain(time),
                Mail::Stop => self.ended = true,
                Mail::Listen(change) => self.change_listeners(*change),
                Mail::Sockets(index, to) => {
                    // The receiver may have given up.
                    let _ = to.send((index, self.listening_sockets()));
                }
                Mail::Figures(to) => {
                    // The request may have ended.
                    let _ = to.send(self.figures());
                }
                Mail::Limits(limits) => self.set_limits(*limits),
                Mail::ReadOn(exchange) => {
                    if let Some(key) = self.serving.lane.with(exchange, |exchange| exchange.connection) {
                        self.with(key, |serving, connection| dispatch::read_on(serving, key, connection));
                    }
                }
                Mail::Warm(key, until) => {
                    self.with(key, |serving, connection| dispatch::warmed(serving, key, connection, until));
                }
                Mail::Again(guest) => self.serving.lane.call_again(guest),
                Mail::Run(job) => {
                    let lane = &self.serving.lane;
                    // A job that panics affects only its author.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(lane)));
                }
            }
            if clock::is_over(ends_ns) {
                break;
            }
        }
        // What came after messages were taken wakes the worker. If these were taken before, it may have done so already.
        self.has_mail = !self.mail.is_empty() || was_taken_before;
    }
}
