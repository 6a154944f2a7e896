//! Upgraded connections: bytes in both directions, small amounts by copying, the rest through pipes.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use bytes::{Buf, Bytes};
use flatout_engine::{
    Body, ConnectionPermit, DetachedConnection, GuestKey, Lane, Moved, PIPE_BYTES, PooledPipe, Response,
};

use super::worker::{ProxyWorker, State};
use flatout_gateway::ResponseOrigin;

/// Marks the client's side of a tunnel in a guest's tag.
pub(super) const CLIENT_SIDE: u64 = 1 << 63;

/// Moves in one direction before others get their turn.
const MOVES_PER_CALL: usize = 8;

/// A client's connection joined to an upstream's.
pub(super) struct Tunnel {
    client: GuestKey,
    there: Direction,
    back: Direction,
    /// Counts the client's connection for as long as the tunnel lives.
    _seat: ConnectionPermit,
}

/// One direction of a tunnel.
#[derive(Default)]
struct Direction {
    /// Received bytes that were not sent; initially those that arrived before the tunnel was opened.
    held: Bytes,
    /// Bytes received by `splice` that were not sent; `None` if there are none.
    pipe: Option<PooledPipe>,
    is_readable: bool,
    /// The last receive filled the lane's buffer, so more may follow.
    is_large: bool,
    /// The sender's end of stream is behind the readable bytes.
    is_read_closed: bool,
    /// The sender has closed its side.
    has_ended: bool,
    /// The receiver accepts no more for now.
    is_full: bool,
    /// EOF was passed to the receiver.
    is_over: bool,
}

/// The progress of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It waits for one of its ends.
    Waits,
    /// There is more to move than its turn allows.
    More,
    Broken,
}

impl Direction {
    fn go(&mut self, lane: &Lane, from: GuestKey, to: GuestKey) -> Progress {
        for _ in 0..MOVES_PER_CALL {
            if self.is_over || (self.is_full && self.has_something()) {
                return Progress::Waits;
            }
            let moved = if !self.held.is_empty() {
                let moved = lane.send(to, &self.held);
                if let Moved::Bytes(sent) = moved {
                    self.held.advance(sent);
                }
                moved
            } else if let Some(pipe) = &mut self.pipe {
                let moved = lane.send_pipe(to, pipe);
                if pipe.bytes() == 0 {
                    self.pipe = None;
                }
                moved
            } else if self.has_ended {
                lane.shut_down(to);
                self.is_over = true;
                return Progress::Waits;
            } else if self.is_readable {
                match self.take(lane, from, to) {
                    Progress::More => continue,
                    progress => return progress,
                }
            } else {
                return Progress::Waits;
            };
            match moved {
                Moved::Bytes(_) => {}
                Moved::WouldBlock => self.is_full = true,
                Moved::Broken => return Progress::Broken,
            }
        }
        Progress::More
    }

    fn take(&mut self, lane: &Lane, from: GuestKey, to: GuestKey) -> Progress {
        match self.is_large && lane.has_pipe(from) && lane.has_pipe(to) {
            true => self.take_into_pipe(lane, from),
            false => self.copy(lane, from, to),
        }
    }

    /// Receives and sends at once: two system calls. A pipe takes three, and two descriptors.
    fn copy(&mut self, lane: &Lane, from: GuestKey, to: GuestKey) -> Progress {
        let mut buffer = lane.buffer();
        match lane.receive(from, &mut buffer) {
            Moved::Bytes(0) => self.has_ended = true,
            Moved::Bytes(count) => {
                self.is_large = count == buffer.len();
                // A short read emptied the socket: at most the end of stream can still follow.
                self.is_readable = self.is_large || self.is_read_closed;
                let bytes = buffer.get(..count).unwrap_or_default();
                let sent = match lane.send(to, bytes) {
                    Moved::Bytes(sent) => sent,
                    Moved::WouldBlock => 0,
                    Moved::Broken => return Progress::Broken,
                };
                self.held = Bytes::copy_from_slice(bytes.get(sent..).unwrap_or_default());
            }
            Moved::WouldBlock => {
                self.is_readable = false;
                return Progress::Waits;
            }
            Moved::Broken => return Progress::Broken,
        }
        Progress::More
    }

    fn take_into_pipe(&mut self, lane: &Lane, from: GuestKey) -> Progress {
        let Ok(mut pipe) = lane.pipe() else { return Progress::Broken };
        match lane.fill_pipe(from, &mut pipe, PIPE_BYTES) {
            Moved::Bytes(0) => self.has_ended = true,
            Moved::Bytes(_) => self.pipe = Some(pipe),
            Moved::WouldBlock => {
                self.is_readable = false;
                self.is_large = false;
                return Progress::Waits;
            }
            Moved::Broken => return Progress::Broken,
        }
        Progress::More
    }

    fn has_something(&self) -> bool {
        self.pipe.is_some() || !self.held.is_empty()
    }
}

/// A tunnel that waits for the client's connection; dropping it closes the upstream's.
struct PendingTunnel {
    worker: Weak<ProxyWorker>,
    at: usize,
    guest: GuestKey,
    /// It was dropped while the connections were in use.
    is_left: Rc<Cell<bool>>,
}

impl PendingTunnel {
    fn join(&self, taken: DetachedConnection) {
        let Some(worker) = self.worker.upgrade() else { return };
        worker.with_state(|state| self.join_in(&worker, state, taken));
    }

    fn join_in(&self, worker: &Rc<ProxyWorker>, state: &mut State, taken: DetachedConnection) {
        let Some(connection) = state.table.get(self.at).filter(|connection| connection.guest == self.guest)
        else {
            return;
        };
        let DetachedConnection { carrier, read, permit, .. } = taken;
        let Ok(client) = worker.lane.enter(carrier, worker.clone(), self.at as u64 | CLIENT_SIDE) else {
            return worker.close(state, self.at);
        };
        let there = Direction { held: read, is_readable: true, ..Direction::default() };
        let back = Direction {
            held: std::mem::take(&mut connection.held).into(),
            is_readable: connection.is_readable,
            is_read_closed: connection.is_read_closed,
            ..Direction::default()
        };
        connection.tunnel = Some(Tunnel { client, there, back, _seat: permit });
        worker.tunnel(state, self.at);
    }
}

impl Drop for PendingTunnel {
    fn drop(&mut self) {
        let Some(worker) = self.worker.upgrade() else { return };
        // It is dropped by the engine, or at the end of `join`.
        let Ok(mut state) = worker.state.try_borrow_mut() else { return self.is_left.set(true) };
        let is_left = state
            .table
            .get(self.at)
            .is_some_and(|connection| connection.guest == self.guest && connection.tunnel.is_none());
        if is_left {
            worker.close(&mut state, self.at);
        }
    }
}

impl ProxyWorker {
    /// The upstream switches protocols; the client's connection switches after its response was sent.
    pub(super) fn switch(&self, state: &mut State, at: usize, mut response: Box<Response>) {
        let Some(mut job) = state.take_job(at) else { return };
        let (Some(connection), Some(me)) = (state.table.get(at), self.owner()) else { return };
        let is_left = Rc::new(Cell::new(false));
        let waiting = PendingTunnel {
            worker: Rc::downgrade(&me),
            at,
            guest: connection.guest,
            is_left: is_left.clone(),
        };
        connection.is_switching = true;
        self.lane.set_deadline(connection.guest, None);
        response.set_body(Body::Take(Box::new(move |taken| {
            waiting.join(taken);
            Box::pin(std::future::ready(()))
        })));
        job.waiter.answer(&self.lane, None, response, ResponseOrigin::Upstream);
        // The client was gone already, or gets another response.
        if is_left.get() {
            self.close(state, at);
        }
    }

    /// An event at one end of a tunnel.
    pub(super) fn tunnel_ready(
        &self,
        state: &mut State,
        at: usize,
        is_client: bool,
        ready: Option<flatout_engine::Ready>,
    ) {
        let Some(tunnel) = state.table.get(at).and_then(|connection| connection.tunnel.as_mut()) else {
            return;
        };
        let Tunnel { there, back, .. } = tunnel;
        let (from, to) = if is_client { (there, back) } else { (back, there) };
        match ready {
            Some(ready) => {
                from.is_read_closed |= ready.read_closed() || ready.hung_up();
                from.is_readable |= ready.readable() || from.is_read_closed;
                to.is_full &= !ready.writable();
                // All that it sent was passed on, and it receives nothing more.
                if ready.hung_up() && from.is_over {
                    return self.close(state, at);
                }
            }
            // No event reports the end of stream that TLS holds.
            None => from.is_readable = true,
        }
        self.tunnel(state, at);
    }

    /// Moves data through a tunnel, in both directions.
    fn tunnel(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.get(at) else { return };
        let Some(upstream) = self.upstreams.get(connection.server_id.upstream) else { return };
        let guest = connection.guest;
        let Some(tunnel) = connection.tunnel.as_mut() else { return };
        let there = tunnel.there.go(&self.lane, tunnel.client, guest);
        let back = tunnel.back.go(&self.lane, guest, tunnel.client);
        let is_over = tunnel.there.is_over && tunnel.back.is_over;
        if is_over || there == Progress::Broken || back == Progress::Broken {
            return self.close(state, at);
        }
        self.lane.set_deadline(guest, Some(upstream.plan.tunnel_time_max));
        if there == Progress::More || back == Progress::More {
            self.lane.call_again(guest);
        }
    }
}

impl Tunnel {
    /// The client's end.
    pub(super) fn client(&self) -> GuestKey {
        self.client
    }
}
