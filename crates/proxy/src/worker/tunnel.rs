//! Connections that switch to another protocol.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use flatout_engine::{Body, DetachedConnection, GuestEvent, GuestKey, Ready, Response, bug};
use flatout_gateway::ResponseOrigin;

use crate::connection::ConnectionProtocol;
use crate::connection::tunnel::{CLIENT_SIDE, Direction, Progress, Tunnel};
use crate::worker::ProxyWorker;
use crate::worker::state::State;

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
        let Some(connection) = state.table.find(self.at).filter(|connection| connection.guest == self.guest)
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
        let tunnel = Tunnel { client, there, back, _seat: permit };
        connection.protocol = ConnectionProtocol::Tunnel(Box::new(tunnel));
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
            .find(self.at)
            .is_some_and(|connection| connection.guest == self.guest && connection.tunnel().is_none());
        if is_left {
            worker.close(&mut state, self.at);
        }
    }
}

impl ProxyWorker {
    /// The upstream switches protocols; the client's connection switches after its response was sent.
    pub(crate) fn switch(&self, state: &mut State, at: usize, mut response: Box<Response>) {
        let Some(mut job) = state.take_job(at) else {
            bug!("a connection without a request switches protocols");
            return self.close(state, at);
        };
        let (Some(connection), Some(me)) = (state.table.known(at), self.owner()) else { return };
        let is_left = Rc::new(Cell::new(false));
        let waiting = PendingTunnel {
            worker: Rc::downgrade(&me),
            at,
            guest: connection.guest,
            is_left: is_left.clone(),
        };
        connection.protocol = ConnectionProtocol::Switching;
        self.lane.set_deadline(connection.guest, None);
        response.set_body(Body::Take(Box::new(move |taken| {
            waiting.join(taken);
            Box::pin(std::future::ready(()))
        })));
        job.receiver.answer(&self.lane, None, response, ResponseOrigin::Upstream);
        // The client was gone already, or gets another response.
        if is_left.get() {
            self.close(state, at);
        }
    }

    /// An event of a connection that waits for its client's.
    pub(crate) fn happened_switching(&self, state: &mut State, at: usize, event: GuestEvent) {
        let Some(connection) = state.table.known(at) else { return };
        match event {
            GuestEvent::Socket(ready) => connection.note(ready),
            GuestEvent::Deadline => self.close(state, at),
            _ => {}
        }
    }

    /// An event of a tunnel.
    pub(crate) fn happened_tunnel(&self, state: &mut State, at: usize, is_client: bool, event: GuestEvent) {
        match event {
            GuestEvent::Socket(ready) => self.tunnel_ready(state, at, is_client, Some(ready)),
            GuestEvent::Again => self.tunnel_ready(state, at, is_client, None),
            GuestEvent::Deadline => self.close(state, at),
            // It continues until the drain's deadline.
            GuestEvent::Room(_) | GuestEvent::Body(_) | GuestEvent::Gone(_) | GuestEvent::Draining => {}
        }
    }

    /// An event at one end of a tunnel.
    pub(crate) fn tunnel_ready(&self, state: &mut State, at: usize, is_client: bool, ready: Option<Ready>) {
        let Some(tunnel) = state.table.known(at).and_then(|connection| connection.tunnel()) else {
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
        let Some(connection) = state.table.known(at) else { return };
        let upstream = self.upstreams.at(connection.server_id.upstream);
        let guest = connection.guest;
        let ConnectionProtocol::Tunnel(tunnel) = &mut connection.protocol else {
            bug!("{} is no tunnel", connection.address);
            return self.close(state, at);
        };
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
