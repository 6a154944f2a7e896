//! All connections of one worker to its upstreams, and what happens to them.

#[cfg(feature = "simulation")]
pub(crate) mod audit;
mod behind;
mod cgi;
mod collect;
mod completion;
mod dispatch;
pub(crate) mod forward;
mod h2;
mod limit;
mod mirror;
pub(crate) mod named;
pub(crate) mod passthrough;
mod queue;
mod receive;
pub(crate) mod retry;
mod send;
mod servers;
pub(crate) mod state;
mod takeover;
mod tunnel;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use flatout_engine::{ExchangeKey, GuestEvent, GuestKey, Guests, Lane, Mailbox, Worker, bug};
use flatout_observe::observed::Notes;
use flatout_wire::h2::Room;
use tokio::sync::watch;

use self::tunnel::CLIENT_SIDE;
use crate::connection::ConnectionProtocol;
use crate::connection::h2::windows::Windows;
use crate::control::lookups::Lookups;
use crate::failure::Failure;
use crate::figures::Figures;
use crate::hash::hash;
use crate::pool::{Group, Table};
use crate::receiver::PendingDecisions;
use crate::request::job::Job;
use crate::select::balance::Shares;
use crate::select::budget::Budget;
use crate::spool::store::SpoolStore;
use crate::table::FixedTable;
use crate::upstream::{LiveUpstream, Upstreams};
use crate::watch::{UpstreamCounts, Watch};
use crate::worker::behind::BehindList;
use crate::worker::servers::new_pool;
use crate::worker::state::State;

/// A worker's part of the proxy.
pub struct ProxyWorker {
    me: Weak<ProxyWorker>,
    /// The worker's.
    index: usize,
    pub(crate) lane: Lane,
    pub(crate) mailbox: Mailbox,
    pub(crate) upstreams: Arc<Upstreams>,
    pub(crate) lookups: Lookups,
    pub(crate) spool: Arc<SpoolStore>,
    pub(crate) watch: Watch,
    pub(crate) state: RefCell<State>,
    /// The newest of the parts that have replaced each other.
    pub(crate) newest: RefCell<Rc<RefCell<Weak<ProxyWorker>>>>,
    /// Another part has replaced this one.
    pub(crate) is_retired: Cell<bool>,
}

impl ProxyWorker {
    /// `changes` notifies it of changes of servers.
    pub(crate) fn new(
        worker: &Worker,
        (upstreams, lookups): (Arc<Upstreams>, Lookups),
        changes: watch::Receiver<()>,
        spool: Arc<SpoolStore>,
        watch: Watch,
    ) -> Rc<ProxyWorker> {
        let figures = watch.figures.as_ref();
        let group = |upstream: &LiveUpstream| {
            let of = |figures: &Figures| figures.of_upstream(worker.index, &upstream.plan.name);
            let changes_count = upstream.changes_count();
            let servers = upstream.servers();
            let pool = |server| new_pool(figures, worker.index, upstream, server);
            Group::new(
                // Workers start round robin at different servers.
                (Shares::new(&servers, hash(&worker.index.to_le_bytes())), changes_count),
                Budget::new(upstream.plan.retry_budget),
                servers.iter().map(|server| pool(server)).collect(),
                UpstreamCounts(figures.map(of)),
            )
        };
        let none =
            Group::new((Shares::default(), 0), Budget::new(0.0), Vec::new(), UpstreamCounts::default());
        let state = State {
            table: Table::default(),
            groups: FixedTable::new(upstreams.iter().map(group).collect(), none),
            fields: Vec::new(),
            scratch: Vec::new(),
            room: Room::default(),
            decisions: PendingDecisions::new(),
            spare: Vec::new(),
            windows: Windows::default(),
            is_timing: false,
            behind: BehindList::default(),
        };
        let made = Rc::new_cyclic(|me| ProxyWorker {
            me: me.clone(),
            index: worker.index,
            lane: worker.lane.clone(),
            mailbox: worker.mailbox.clone(),
            upstreams,
            lookups,
            spool,
            watch,
            state: RefCell::new(state),
            newest: RefCell::new(Rc::new(RefCell::new(me.clone()))),
            is_retired: Cell::new(false),
        });
        made.follow_changes(changes);
        #[cfg(feature = "simulation")]
        audit::watch(&made);
        made
    }

    /// Where it notes attempts, for rules that show them.
    pub fn notes(&self) -> Option<&Rc<Notes>> {
        self.watch.notes.as_ref()
    }

    /// Whether it is a worker's part of the proxy with these upstreams.
    pub(crate) fn is_part_of(&self, upstreams: &Arc<Upstreams>) -> bool {
        Arc::ptr_eq(&self.upstreams, upstreams)
    }

    /// Itself, for those who call it later.
    pub(crate) fn owner(&self) -> Option<Rc<ProxyWorker>> {
        let owner = self.me.upgrade();
        if owner.is_none() {
            bug!("a worker's part of the proxy is used while it is dropped");
        }
        owner
    }
}

/// Delivers the results of questions to rules.
#[cold]
fn deliver(decisions: PendingDecisions) {
    for (then, decision) in decisions {
        if let Some(decision) = decision {
            // Its client may be gone.
            drop(then.send(decision));
        }
    }
}

impl Guests for ProxyWorker {
    fn ready(&self, guest: GuestKey, tag: u64, event: GuestEvent) {
        self.with_state(|state| self.happened(state, guest, tag, event));
    }
}

impl ProxyWorker {
    /// Runs `act` on the connections, then delivers results to rules. Delivery happens outside the borrow, because a
    /// rule may forward its request at once.
    pub(crate) fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let (done, decisions) = {
            let state = &mut *self.state.borrow_mut();
            (act(state), std::mem::take(&mut state.decisions))
        };
        if !decisions.is_empty() {
            deliver(decisions);
        }
        done
    }

    fn begin_job(&self, mut job: Box<Job>) {
        if std::mem::take(&mut job.collects)
            && let Some(exchange) = job.receiver.exchange()
        {
            return self.collect(job, exchange);
        }
        self.with_state(|state| {
            state.groups.at_mut(job.upstream).budget.earn();
            if job.ends_ns.is_some() && !self.watch_time(state, &job) {
                return self.refuse(state, job, Failure::RequestTime);
            }
            self.dispatch(state, job);
        });
    }

    fn happened(&self, state: &mut State, guest: GuestKey, tag: u64, event: GuestEvent) {
        let is_client = tag & CLIENT_SIDE != 0;
        let at = (tag & !CLIENT_SIDE) as usize;
        let Some(connection) = state.table.find(at) else { return };
        let is_known = match &connection.protocol {
            ConnectionProtocol::Tunnel(tunnel) if is_client => tunnel.client() == guest,
            _ => !is_client && connection.guest == guest,
        };
        if !is_known {
            return;
        }
        match connection.protocol {
            ConnectionProtocol::Http1 | ConnectionProtocol::Cgi(_) => {}
            ConnectionProtocol::Http2(_) => return self.happened_h2(state, at, event),
            ConnectionProtocol::Switching => return self.happened_switching(state, at, event),
            ConnectionProtocol::Tunnel(_) => return self.happened_tunnel(state, at, is_client, event),
        }
        let is_of = |key: ExchangeKey| {
            connection.job.as_ref().is_some_and(|job| job.receiver.exchange() == Some(key))
        };
        match event {
            GuestEvent::Socket(ready) => {
                connection.note(ready);
                if connection.is_connecting && !self.connected(state, at) {
                    return;
                }
                self.pump(state, at);
            }
            GuestEvent::Room(key) | GuestEvent::Body(key) if is_of(key) => self.pump(state, at),
            // Its client has disconnected.
            GuestEvent::Gone(key) if is_of(key) => self.close(state, at),
            // Waiting clients get their responses, and tunnels continue until the drain's deadline.
            GuestEvent::Room(_) | GuestEvent::Body(_) | GuestEvent::Gone(_) | GuestEvent::Draining => {}
            // Only its spool knows that the client has disconnected.
            GuestEvent::Again if connection.job.as_ref().is_some_and(|job| job.receiver.is_abandoned()) => {
                self.close(state, at);
            }
            GuestEvent::Again => self.pump(state, at),
            GuestEvent::Deadline => self.overdue(state, at),
        }
    }
}
