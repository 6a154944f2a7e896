//! A running server from other threads: ends, figures, changes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use flatout_lane::process;
use tokio::sync::watch;

use crate::Error;
use crate::exchange::{DrainTime, Mail, Mailbox, WorkerSockets};
use crate::listeners::{AddressChanges, Inherited, Listeners, NewLimits, PreparedListeners};
use crate::plan::{Address, DESCRIPTORS_RESERVED, Limits, Plan};
use crate::shared::{Shared, Stats};

/// How long a worker may take to send back its sockets.
const REPLY_TIME_MAX: Duration = Duration::from_secs(5);

/// Stops a server from any thread, and reads its figures; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(super) mailboxes: Arc<[Mailbox]>,
    pub(super) stats: Arc<[Arc<Stats>]>,
    pub(super) shared: Arc<Shared>,
    pub(super) listening: Arc<Mutex<Listeners>>,
    pub(super) drain_time_max_ms: Arc<AtomicU64>,
    pub(super) tunnel_drain_time_max_ms: Arc<AtomicU64>,
    pub(super) draining: watch::Sender<bool>,
}

/// A prepared change of a running server: its new addresses are bound, but nothing else has changed yet. Dropping it
/// changes nothing.
#[must_use]
pub struct Change {
    handle: Handle,
    prepared: PreparedListeners,
    plan: Plan,
}

/// Figures of a running server, summed over its workers; up to a second old.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Requests whose head was parsed.
    pub requests: u64,
    /// Connections that are open.
    pub connections: usize,
    /// Accepted connections so far.
    pub accepted: u64,
    /// Connections that were closed because their PROXY protocol header was missing, malformed, late, or from an
    /// untrusted peer.
    pub proxy_refused: u64,
}

/// Figures of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerFigures {
    /// Requests whose head was parsed, and connections, up to a second old.
    pub figures: Figures,
    /// Connections by state, in the order of [`State::ALL`](crate::State::ALL): as last counted by the worker, about
    /// two seconds ago if they are read regularly.
    pub states: [usize; 5],
    /// Connections that have left HTTP, such as WebSockets.
    pub taken: usize,
    /// Memory of its connection table and its buffers.
    pub memory_bytes: usize,
}

impl Stats {
    fn figures(&self) -> Figures {
        Figures {
            requests: self.requests.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
            proxy_refused: self.proxy_refused.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn of_worker(&self) -> WorkerFigures {
        // Where connections are counted by the sweep, the next figures have newer ones.
        self.is_asked.store(true, Ordering::Relaxed);
        WorkerFigures {
            figures: self.figures(),
            states: std::array::from_fn(|at| self.states[at].load(Ordering::Relaxed)),
            taken: self.taken.load(Ordering::Relaxed),
            memory_bytes: self.memory_bytes.load(Ordering::Relaxed),
        }
    }
}

impl Handle {
    /// Drains: no new connections, requests in flight finish up to the plan's deadline. A second call changes
    /// nothing, except after [`Handle::drain_for_successor`]: tunnels get the deadline of requests.
    pub fn drain(&self) {
        let time_max = Duration::from_millis(self.drain_time_max_ms.load(Ordering::Relaxed));
        self.drain_within(DrainTime { requests: time_max, tunnels: time_max });
    }

    /// Drains after another process has taken over: connections that have switched to another protocol, such as WebSockets of
    /// upstreams, cannot move there and may go on longer ([`Plan::tunnel_drain_time_max`]).
    pub fn drain_for_successor(&self) {
        let requests = Duration::from_millis(self.drain_time_max_ms.load(Ordering::Relaxed));
        let tunnels = Duration::from_millis(self.tunnel_drain_time_max_ms.load(Ordering::Relaxed));
        self.drain_within(DrainTime { requests, tunnels: tunnels.max(requests) });
    }

    fn drain_within(&self, time: DrainTime) {
        self.draining.send_replace(true);
        self.post_to_all(|| Mail::Drain(time));
    }

    /// Stops at once: connections are closed in any state.
    pub fn stop(&self) {
        self.draining.send_replace(true);
        self.post_to_all(|| Mail::Stop);
    }

    /// Becomes `true` when draining starts.
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// The current figures.
    pub fn figures(&self) -> Figures {
        self.stats.iter().map(|stats| stats.figures()).fold(Figures::default(), |sum, one| Figures {
            requests: sum.requests + one.requests,
            connections: sum.connections + one.connections,
            accepted: sum.accepted + one.accepted,
            proxy_refused: sum.proxy_refused + one.proxy_refused,
        })
    }

    /// The number of workers.
    pub fn workers_count(&self) -> usize {
        self.mailboxes.len()
    }

    /// Figures of each worker. Makes the workers count connections by state, within the next second.
    pub fn figures_of_workers(&self) -> Vec<WorkerFigures> {
        self.stats.iter().map(|stats| stats.of_worker()).collect()
    }

    /// The current addresses, with the ports that the kernel chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.listening().addresses()
    }

    /// The same as URLs, which show where TLS is used.
    pub fn urls(&self) -> Vec<String> {
        self.listening().urls()
    }

    /// The port of its first TCP address with TLS.
    pub fn secure_port(&self) -> Option<u16> {
        self.listening().secure_port()
    }

    /// Copies of all listeners, for the process that replaces this one. Waits for the workers.
    ///
    /// # Errors
    /// A worker that does not reply, or no descriptors.
    pub fn inherited(&self) -> Result<Vec<Inherited>, Error> {
        let failed = |error| Error::System("the listeners".to_owned(), error);
        let (sender, replies) = mpsc::channel::<WorkerSockets>();
        for (index, mailbox) in self.mailboxes.iter().enumerate() {
            mailbox.post(Mail::Sockets(index, sender.clone()));
        }
        drop(sender);
        let mut workers: Vec<Vec<_>> = self.mailboxes.iter().map(|_| Vec::new()).collect();
        for _ in 0..workers.len() {
            let (index, sockets) =
                replies.recv_timeout(REPLY_TIME_MAX).map_err(|_| failed(io::ErrorKind::TimedOut.into()))?;
            workers[index] = sockets.map_err(failed)?;
        }
        self.listening().inherited(workers)
    }

    /// Binds the additional addresses of another plan. A running server can change its addresses ([`Plan::listen`], with
    /// which of them are plain and which have PROXY headers), its [`Limits`] except for the connections per address, its
    /// name and its drain time. The rest of the plan is ignored, except that it must have TLS if the server has. Addresses that both plans have
    /// stay bound, also those that begin or end to use TLS.
    ///
    /// # Errors
    /// An invalid plan, TLS that the server was not started with or that the plan lacks, or an address that cannot be
    /// bound: nothing has changed.
    pub fn prepare(&self, plan: Plan) -> Result<Change, Error> {
        plan.check().map_err(Error::Plan)?;
        let prepared = self.listening().prepare(&plan)?;
        Ok(Change { handle: self.clone(), prepared, plan })
    }

    fn listening(&self) -> MutexGuard<'_, Listeners> {
        // Even after a panic, it is in its old or its new state.
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post_to_all(&self, mail: impl Fn() -> Mail) {
        for mailbox in self.mailboxes.iter() {
            mailbox.post(mail());
        }
    }
}

impl Change {
    /// Applies the change. Removed listeners take no new connections and are closed when their pending connections
    /// were accepted; established connections stay.
    pub fn commit(self) -> AddressChanges {
        let Change { handle, prepared, plan } = self;
        handle.drain_time_max_ms.store(milliseconds(plan.drain_time_max), Ordering::Relaxed);
        handle.tunnel_drain_time_max_ms.store(milliseconds(plan.tunnel_drain_time_max), Ordering::Relaxed);
        handle.shared.set_connections_max(connections_max(&plan.limits));
        handle.post_to_all(|| {
            let (limits, server_name) = (plan.limits.clone(), plan.server_name.clone());
            Mail::Limits(Box::new(NewLimits { limits, server_name }))
        });
        let (changes, changed) = handle.listening().commit(prepared);
        for (mailbox, change) in handle.mailboxes.iter().zip(changes) {
            mailbox.post(Mail::Listen(Box::new(change)));
        }
        changed
    }
}

pub(super) fn connections_max(limits: &Limits) -> usize {
    let limit = usize::try_from(process::descriptor_limit()).unwrap_or(usize::MAX);
    // A very low descriptor limit is split in half.
    let room = limit.saturating_sub(DESCRIPTORS_RESERVED).max(limit / 2).max(1);
    limits.connections_max.unwrap_or(room)
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
