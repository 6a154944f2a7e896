//! Connections that outlive a reload: the new proxy takes over the old one's connections to servers that both have.

use std::rc::Rc;

use crate::connection::UpstreamConnection;
use crate::table::ServerId;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

impl ProxyWorker {
    /// Takes over from `former`: its idle connections now, those in use when they become idle.
    pub(crate) fn succeed(self: &Rc<Self>, former: &ProxyWorker) {
        let newest = former.newest.borrow().clone();
        newest.replace(Rc::downgrade(self));
        self.newest.replace(newest);
        former.is_retired.set(true);
        // While they are in use, its connections come when they become idle.
        let Ok(mut state) = former.state.try_borrow_mut() else { return };
        let idle: Vec<usize> = state
            .groups
            .iter()
            .flat_map(|group| group.pools.iter())
            .flat_map(|pool| pool.idle.clone())
            .collect();
        for at in idle {
            let server_id = state.table.known(at).map(|connection| connection.server_id);
            if let Some(server_id) = server_id.and_then(|id| self.place_after(former, &state, id))
                && let Some(connection) = leave(&mut state, at)
            {
                self.adopt(&mut self.state.borrow_mut(), *connection, server_id);
            } else if server_id.is_some_and(|id| state.groups.at(id.upstream).queue.is_empty()) {
                // Nothing will use it: with it, all of the former part would stay until it has been idle for too long.
                former.close_unused(&mut state, at);
            }
        }
    }

    /// Passes a connection that has become idle to this part's successor. Returns whether the successor took it.
    pub(crate) fn hand_on(&self, state: &mut State, at: usize) -> bool {
        let newest = self.newest.borrow().borrow().upgrade();
        let (Some(newest), Some(connection)) = (newest, state.table.known(at)) else { return false };
        let server_id = connection.server_id;
        let Some(server_id) = newest.place_after(self, state, server_id) else { return false };
        let has_room = newest.state.try_borrow().is_ok_and(|state| {
            let idle = state.groups.at(server_id.upstream).pools.at(server_id.server).idle.len();
            idle < newest.upstreams.at(server_id.upstream).plan.idle_max
        });
        if !has_room {
            return false;
        }
        let Some(connection) = leave(state, at) else { return false };
        newest.with_state(|state| {
            newest.adopt(state, *connection, server_id);
            // One of HTTP/2 has room for several requests that wait.
            newest.use_streams(state, server_id.upstream);
        });
        true
    }

    fn adopt(self: &Rc<Self>, state: &mut State, connection: UpstreamConnection, server_id: ServerId) {
        let (guest, at) = (
            connection.guest,
            state.table.insert(UpstreamConnection { server_id, is_behind: false, ..connection }),
        );
        let pool = state.pool(server_id);
        pool.idle.push(at);
        pool.open += 1;
        pool.counts.up(|counts| &counts.idle);
        pool.counts.up(|counts| &counts.open);
        self.lane.give(guest, self.clone(), at as u64);
        self.lane.set_deadline(guest, Some(self.upstreams.at(server_id.upstream).plan.idle_time_max));
    }

    /// The id here of a server of `former`. It has to be the same server object, not just an equal one.
    fn place_after(&self, former: &ProxyWorker, state: &State, server_id: ServerId) -> Option<ServerId> {
        let server = state.server(server_id)?;
        let name = &former.upstreams.at(server_id.upstream).plan.name;
        let upstream = self.upstreams.find(name)?;
        let own = self.state.try_borrow().ok()?;
        let server = own.groups.at(upstream).shares.place_of(server)?;
        Some(ServerId { upstream, server })
    }
}

/// Removes an idle connection without closing it.
fn leave(state: &mut State, at: usize) -> Option<Box<UpstreamConnection>> {
    let connection = state.table.remove(at)?;
    state.pool(connection.server_id).forget(at);
    Some(connection)
}
