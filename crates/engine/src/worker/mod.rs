//! One worker: a thread, its lane, and its turn.
//!
//! ```text
//!            ┌──────────────────────────── no task lives ───────────────────────────┐
//! wait ──> turn: stages of receive, serve, send ──> attend to exchanges ──> tasks ──┴─> wait in the runtime
//!            ├─ accept
//!            ├─ guests
//!            └─ mailbox: drain, resume a body, jobs, end                    sweep: deadlines, eight slices a second
//! ```

mod accept;
mod census;
mod hello;
mod proxy_header;
mod run;
#[cfg(feature = "simulation")]
mod stepped;
mod sweep;
mod turn;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flatout_lane::clock::Ticks;
use flatout_lane::poll::Poll;
use flatout_lane::slab::{Cursor, Key, Slab};
use flatout_tls::Acceptor;
use tokio::task::spawn_local;

use crate::connection::Connection;
use crate::exchange::{GuestEvent, GuestKey, Mail, Mailbox, relay};
use crate::listeners::Listener;
use crate::plan::Limits;
use crate::service::{ConnectionPermit, DetachedConnection, Outcome, Takeover};
use crate::serving::dispatch;
use crate::serving::{Fate, Serving};
use crate::shared::{Prefix, Shared, Stats};
use crate::transport::Transport;

pub(crate) use accept::LISTENER_CLOSE_TIME;
pub(crate) use run::run;
#[cfg(feature = "simulation")]
pub use stepped::SteppedWorker;

/// The parts of a worker.
pub(crate) struct Setup {
    pub(crate) index: usize,
    pub(crate) count: usize,
    pub(crate) draining: tokio::sync::watch::Receiver<bool>,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) acceptor: Option<Acceptor>,
    pub(crate) busy_poll: Option<Duration>,
    pub(crate) limits: Limits,
    pub(crate) server_name: Option<String>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) mailbox: Mailbox,
    /// Those of all workers.
    pub(crate) workers: Arc<[Mailbox]>,
}

/// A worker's state, owned by its loop.
struct WorkerLoop {
    poll: Poll,
    /// Events that were taken and not served yet.
    events: Range<usize>,
    listeners: Vec<Listener>,
    /// Starts TLS.
    acceptor: Option<Acceptor>,
    /// New connections are left in the kernel's backlog.
    paused: bool,
    /// A listener has more connections than fitted its turn.
    accept_again: bool,
    /// Other threads have sent messages.
    has_mail: bool,
    mailbox: Mailbox,
    /// Messages that were taken from the mailbox and not handled yet.
    mail: VecDeque<Mail>,
    connections: Slab<Connection>,
    serving: Serving,
    /// Connections with more work than fitted their turn.
    again: Vec<Key>,
    /// What the current stage has received: the connection of each slice, and how many bytes.
    received: Vec<(Key, usize)>,
    /// Connections that are served one by one, after the current stage.
    single: Vec<Key>,
    shared: Arc<Shared>,
    stats: Arc<Stats>,
    drain_deadline: Option<Ticks>,
    /// The later one of connections that have switched to another protocol, if the server drains.
    tunnel_deadline: Ticks,
    /// The slot of the next connection to notify of the drain.
    drain_cursor: Option<Cursor>,
    /// Guests to notify of the drain.
    draining_guests: Vec<Key>,
    sweep_slice: usize,
    census: Option<census::Census>,
    accepted_count: u64,
    next_sweep: Ticks,
    ended: bool,
}

impl WorkerLoop {
    /// Accesses a connection, if it still exists.
    #[inline]
    fn with(&mut self, key: Key, act: impl FnOnce(&mut Serving, &mut Connection) -> Fate) {
        if let Some(connection) = self.connections.get_mut(key) {
            let fate = act(&mut self.serving, connection);
            self.apply(key, fate);
        }
    }

    #[inline]
    fn apply(&mut self, key: Key, fate: Fate) {
        match fate {
            Fate::Keep => {}
            Fate::Again => self.schedule_again(key),
            Fate::Close(outcome) => self.close(key, outcome),
            Fate::Take(takeover) => self.take(key, takeover),
        }
    }

    /// Gives a connection another turn. Each is listed once, so that heavy senders get no more turns than others.
    fn schedule_again(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !std::mem::replace(&mut connection.is_scheduled, true) {
            self.again.push(key);
        }
    }

    fn close(&mut self, key: Key, outcome: Outcome) {
        self.serving.forget_output();
        let Some(mut connection) = self.connections.remove(key) else { return };
        dispatch::closed(&mut self.serving, &mut connection, outcome);
        self.serving.lane.forget_announced(key);
        self.shared.release(connection.peer.address().map(Prefix::of));
        drop(connection);
        self.connection_ended();
    }

    fn connection_ended(&mut self) {
        if self.drain_deadline.is_some() {
            self.end_if_drained();
        }
        if self.paused {
            self.resume_accepting();
        }
    }

    /// Takes a connection out of the lane; it still counts until its task ends.
    fn take(&mut self, key: Key, takeover: Takeover) {
        let Some(mut connection) = self.connections.remove(key) else { return };
        let read = connection.work.as_mut().map(|work| std::mem::take(&mut work.held)).unwrap_or_default();
        dispatch::closed(&mut self.serving, &mut connection, Outcome::Taken);
        self.serving.lane.forget_announced(key);
        let peer = connection.peer.address();
        let permit = self.serving.lane.permits().issue(peer.map(Prefix::of));
        connection.transport.unwatch(self.poll.set());
        let (socket, is_direct) = match connection.transport {
            Transport::Plain(socket) => (socket, true),
            transport => match relay(&self.serving.lane, transport, permit.clone()) {
                Ok(socket) => (socket, false),
                // No descriptors, no memory: it is closed.
                Err(_) => return,
            },
        };
        let taken = DetachedConnection {
            carrier: socket.into(),
            read: read.into(),
            peer,
            is_direct,
            permit: ConnectionPermit(permit.clone()),
        };
        spawn_local(async move {
            let _permit = permit;
            takeover(taken).await;
        });
    }

    /// Counts connections from another process, and uncounts those that have left the lane and ended.
    fn settle_permits(&mut self) {
        let permits = self.serving.lane.permits();
        if !permits.have_changed() {
            return;
        }
        let (inherited, ended) = (permits.take_inherited(), permits.take_ended());
        for _ in 0..inherited {
            self.shared.admit(None);
        }
        for peer in ended {
            self.shared.release(peer);
            self.connection_ended();
        }
    }

    /// Notifies the owners of guests of events of their exchanges.
    fn send_notices(&mut self) {
        for (guest, event) in std::mem::take(&mut self.serving.notices) {
            self.call_guest(guest, event);
        }
    }

    /// Calls the owner of a guest; a panic removes the guest.
    fn call_guest(&mut self, guest: GuestKey, event: GuestEvent) {
        let Some((owner, tag, event)) = self.serving.lane.owner(guest.0, event) else { return };
        let call = std::panic::AssertUnwindSafe(|| owner.ready(guest, tag, event));
        if std::panic::catch_unwind(call).is_err() {
            self.serving.lane.remove(guest);
        }
    }

    fn note_stats(&self) {
        self.stats.requests.store(self.serving.requests_count, Ordering::Relaxed);
        let taken = self.serving.lane.permits().count();
        self.stats.connections.store(self.connections.len() + taken, Ordering::Relaxed);
        self.stats.taken.store(taken, Ordering::Relaxed);
        self.stats.accepted.store(self.accepted_count, Ordering::Relaxed);
    }

    /// Ends everything that is left: every request is reported.
    fn end(&mut self) {
        let mut cursor = Cursor::default();
        while let Some((key, _)) = cursor.next(&self.connections) {
            self.close(key, Outcome::Stopped);
        }
        self.mailbox.close();
        self.note_stats();
    }

    /// Ends the worker if nothing is left that it drains for. A hold does not keep it beyond the time for requests: nobody waits any more.
    fn end_if_drained(&mut self) {
        let is_held = self.serving.lane.is_held()
            && self.drain_deadline.is_some_and(|deadline| deadline > self.serving.now.ticks);
        self.ended |= self.connections.is_empty() && self.serving.lane.permits().count() == 0 && !is_held;
    }
}

/// However the worker ends: its guests and tasks may hold the lane, which must not hold them in turn.
impl Drop for WorkerLoop {
    fn drop(&mut self) {
        self.serving.lane.clear();
    }
}
