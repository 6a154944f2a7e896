//! Connections that switch to another protocol.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use flatout_engine::{
    Body, DetachedConnection, GuestEvent, GuestKey, Ready, Response, Tunnel, TunnelEnd, TunnelProgress, bug,
};
use flatout_gateway::ResponseOrigin;

use crate::connection::{ClientTunnel, ConnectionProtocol};
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// Marks the client's side of a tunnel in a guest's tag.
pub(crate) const CLIENT_SIDE: u64 = 1 << 63;

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
        let of_client = TunnelEnd { received: read, is_readable: true, is_read_closed: false };
        let of_upstream = TunnelEnd {
            received: std::mem::take(&mut connection.held).into(),
            is_readable: connection.is_readable,
            is_read_closed: connection.is_read_closed,
        };
        let mut tunnel = Tunnel::new((client, of_client), (connection.guest, of_upstream));
        let progress = tunnel.go(&worker.lane);
        let tunnel = ClientTunnel { tunnel, _permit: permit, ending: None };
        connection.protocol = ConnectionProtocol::Tunnel(Box::new(tunnel));
        worker.tunnel_moved(state, self.at, progress);
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
        connection.slot = job.slot.take();
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
            GuestEvent::Deadline => self.tunnel_overdue(state, at),
            // It continues until the drain's deadline.
            GuestEvent::Room(_) | GuestEvent::Body(_) | GuestEvent::Gone(_) | GuestEvent::Draining => {}
        }
    }

    /// An event at one end of a tunnel.
    pub(crate) fn tunnel_ready(&self, state: &mut State, at: usize, is_client: bool, ready: Option<Ready>) {
        let Some(joined) = state.table.known(at).and_then(|connection| connection.tunnel()) else {
            return;
        };
        let progress = joined.tunnel.ready(&self.lane, is_client, ready);
        self.tunnel_moved(state, at, progress);
    }

    /// Data has moved through a tunnel.
    pub(crate) fn tunnel_moved(&self, state: &mut State, at: usize, progress: TunnelProgress) {
        let Some(connection) = state.table.known(at) else { return };
        if progress == TunnelProgress::Over {
            return self.close(state, at);
        }
        let upstream = self.upstreams.at(connection.server_id.upstream);
        self.lane.set_deadline(connection.guest, Some(upstream.plan.tunnel_time_max));
        if progress == TunnelProgress::More {
            self.lane.call_again(connection.guest);
        }
    }
}
