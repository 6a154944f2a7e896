//! Applies changes of an upstream's servers to one worker, while it serves. Connections to other servers stay as they are.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::watch;

use crate::connection::ConnectionProtocol;
use crate::connection::h2::frames::ReceiveOutcome;
use crate::failure::Failure;
use crate::figures::Figures;
use crate::pool::{Group, Pool};
use crate::server::{LiveServer, ServerMode};
use crate::table::UpstreamId;
use crate::upstream::LiveUpstream;
use crate::watch::ServerCounts;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// No connections to a server yet.
pub(crate) fn new_pool(
    figures: Option<&Figures>,
    worker: usize,
    upstream: &LiveUpstream,
    server: &LiveServer,
) -> Pool {
    let counts = figures.map(|figures| figures.of_server(worker, &upstream.plan.name, &server.label));
    Pool::new(server.label.as_str().into(), ServerCounts(counts))
}

impl Group {
    /// Whether it has neither connections nor requests.
    fn is_unused(&self) -> bool {
        self.queue.is_empty() && self.pools.iter().all(|pool| pool.open == 0)
    }

    /// Makes places for servers that have none. Places of servers that have left, and have no connections, are used again.
    fn take_in(&mut self, servers: &[Arc<LiveServer>], new_pool: impl Fn(&LiveServer) -> Pool) {
        let current: HashSet<*const LiveServer> = servers.iter().map(Arc::as_ptr).collect();
        let own = |at: usize| self.shares.server(at).map(Arc::as_ptr);
        let known: HashSet<_> = (0..self.shares.len()).filter_map(own).collect();
        let is_free = |at: &usize| {
            let is_unused = self.shares.busy(*at) == 0 && self.pools.at(*at).open == 0;
            is_unused && own(*at).is_some_and(|server| !current.contains(&server))
        };
        let mut free = (0..self.shares.len()).filter(is_free).collect::<Vec<_>>().into_iter();
        for server in servers.iter().filter(|server| !known.contains(&Arc::as_ptr(server))) {
            let pool = new_pool(server);
            let Some(at) = free.next() else {
                self.shares.push(server.clone());
                self.pools.push(pool);
                continue;
            };
            self.shares.replace(at, server.clone());
            *self.pools.at_mut(at) = pool;
            self.queue.iter_mut().for_each(|job| job.forget_server(at));
        }
    }
}

impl ProxyWorker {
    /// Applies changes of servers for as long as this part is used.
    pub(crate) fn follow_changes(self: &Rc<Self>, mut changes: watch::Receiver<()>) {
        if self.upstreams.is_empty() {
            return;
        }
        let me = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            while changes.changed().await.is_ok() {
                let Some(me) = me.upgrade() else { return };
                me.with_state(|state| me.apply_changes(state));
            }
        });
    }

    /// Applies what has changed since the last call.
    fn apply_changes(&self, state: &mut State) {
        for id in self.upstreams.ids() {
            let upstream = self.upstreams.at(id);
            let changes_count = upstream.changes_count();
            let group = state.groups.at_mut(id);
            // Servers of a part that was replaced leave without a change of its upstreams.
            let is_same = group.changes_count == changes_count;
            if is_same && (!self.is_retired.get() || group.is_unused()) {
                continue;
            }
            group.changes_count = changes_count;
            self.take_servers(group, upstream, &self.servers_of(upstream));
            self.close_idle(state, id);
            self.end_set_down(state, id);
            // A server that is new may have room for them, and one that is gone must not be what they wait for.
            for _ in 0..state.groups.at(id).queue.len() {
                self.dequeue(state, id);
            }
        }
    }

    /// The servers of an upstream now. A part that was replaced has those of its own plan; when all of them have left, those of the
    /// upstream that has replaced it, if requests are sent to them in the same way.
    fn servers_of(&self, upstream: &LiveUpstream) -> Arc<Vec<Arc<LiveServer>>> {
        if self.is_retired.get()
            && upstream.is_empty()
            && let Some(newest) = self.newest.borrow().borrow().upgrade()
            && let Some(successor) = newest.upstreams.find(&upstream.plan.name)
        {
            let successor = newest.upstreams.at(successor);
            if successor.plan.speaks_alike(&upstream.plan) {
                return successor.servers();
            }
        }
        upstream.servers()
    }

    /// From now on, requests go to these servers.
    fn take_servers(&self, group: &mut Group, upstream: &LiveUpstream, servers: &[Arc<LiveServer>]) {
        group.take_in(servers, |server| new_pool(self.watch.figures.as_ref(), self.index, upstream, server));
        group.shares.activate(servers);
    }

    /// Looks for servers that have come since changes were applied, when there is none for a request. Returns whether there are some.
    #[cold]
    pub(crate) fn finds_servers(&self, group: &mut Group, upstream: &LiveUpstream) -> bool {
        if !self.is_retired.get() && group.changes_count == upstream.changes_count() {
            return false;
        }
        let servers = self.servers_of(upstream);
        let shares = &group.shares;
        let is_active = |server| shares.place_of(server).is_some_and(|at| shares.active().contains(&at));
        let are_known = servers.iter().all(|server| server.is_leaving() || is_active(server));
        if !are_known {
            self.take_servers(group, upstream, &servers);
        }
        !are_known
    }

    /// Closes idle connections to servers that leave.
    fn close_idle(&self, state: &mut State, id: UpstreamId) {
        let Group { shares, pools, .. } = state.groups.at(id);
        let is_leaving = |at: usize| shares.server(at).is_some_and(|server| server.is_leaving());
        let idle =
            pools.iter().enumerate().filter(|(at, _)| is_leaving(*at)).flat_map(|(_, pool)| &pool.idle);
        for at in idle.copied().collect::<Vec<_>>() {
            self.close_unused(state, at);
        }
    }

    /// Closes an idle connection.
    pub(crate) fn close_unused(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.known(at) else { return };
        if matches!(connection.protocol, ConnectionProtocol::Http2(_))
            && let Some((session, guest, _)) = connection.h2()
        {
            session.machine.leave_now(&mut session.out);
            let _ = session.flush(&self.lane, guest, &mut false);
        }
        self.close(state, at);
    }

    /// Ends what is in progress at servers that an operator has set down.
    fn end_set_down(&self, state: &mut State, id: UpstreamId) {
        let Group { shares, pools, .. } = state.groups.at(id);
        let is_set_down = |at: &usize| {
            let is_it = shares.server(*at).is_some_and(|server| server.mode() == ServerMode::SetDown);
            is_it && pools.at(*at).open > 0
        };
        let set_down: Vec<usize> = (0..shares.len()).filter(is_set_down).collect();
        if set_down.is_empty() {
            return;
        }
        for at in 0..state.table.len() {
            let Some(connection) = state.table.find(at) else { continue };
            let server_id = connection.server_id;
            if server_id.upstream == id && set_down.contains(&server_id.server) {
                self.break_off(state, at);
            }
        }
    }

    /// Ends a connection and what is in progress on it, as if its server had failed.
    fn break_off(&self, state: &mut State, at: usize) {
        const WHY: &str = "an operator has set this server down";
        let Some(connection) = state.table.known(at) else { return };
        let (server_id, address) = (connection.server_id, connection.address.clone());
        if matches!(connection.protocol, ConnectionProtocol::Http2(_)) {
            return self.lost_h2(state, at, ReceiveOutcome::Ended);
        }
        let was_seen = !connection.is_connecting;
        let job = state.take_job(at);
        self.close(state, at);
        let Some(mut job) = job else { return };
        // This is no retry: the server has not failed.
        job.wants_new = true;
        job.retries_left += 1;
        self.log(Failure::Closed, server_id.upstream, Some(&address), Some(&job), Some(WHY));
        match job.is_answered {
            true => self.end_with(state, job, Failure::Closed),
            false => self.repeat_or_refuse(state, job, server_id, was_seen, Failure::Closed),
        }
    }
}
