//! Opens HTTP/2 connections, and keeps them in the lists of their pool.

use flatout_engine::GuestKey;

use crate::connection::ConnectionProtocol;
use crate::connection::h2::{PoolList, SETTINGS_WAIT, Session};
use crate::failure::{Failure, error_text};
use crate::request::job::Job;
use crate::server::H2;
use crate::worker::ProxyWorker;
use crate::worker::h2::completion::TICK;
use crate::worker::state::State;

impl ProxyWorker {
    /// Starts an HTTP/2 session on a new connection; its first request waits for it.
    pub(crate) fn open_shared(&self, state: &mut State, at: usize, streams_max: u32, job: Box<Job>) {
        let Some(connection) = state.table.known(at) else { return };
        let (guest, server_id) = (connection.guest, connection.server_id);
        connection.protocol = ConnectionProtocol::Http2(Box::new(Session::new(streams_max)));
        self.lane.set_deadline(guest, Some(self.upstreams.at(server_id.upstream).plan.connect_time_max));
        self.enlist(state, at, job);
    }

    /// Checks the outcome of a connection attempt. Returns whether the connection is open.
    pub(crate) fn connected_h2(&self, state: &mut State, at: usize) -> bool {
        let Some(connection) = state.table.known(at) else { return false };
        if connection.is_full && !connection.is_read_closed {
            // The event was not about the connection attempt.
            return false;
        }
        let server_id = connection.server_id;
        if let Err(error) = self.lane.outcome(connection.guest) {
            self.not_opened(state, at, Failure::NotConnected, Some(&error_text(&error)));
            return false;
        }
        let guest = connection.guest;
        let is_secure = state.server(server_id).is_some_and(|server| server.is_secure());
        if is_secure && self.lane.protocol(guest).as_deref() != Some(H2) {
            let why = "it did not choose h2 in the TLS handshake (ALPN)";
            self.not_opened(state, at, Failure::NoHttp2, Some(why));
            return false;
        }
        let Some(connection) = state.table.known(at) else { return false };
        connection.is_connecting = false;
        let connect_time_max = self.upstreams.at(server_id.upstream).plan.connect_time_max;
        self.lane.set_deadline(guest, Some(SETTINGS_WAIT.min(connect_time_max)));
        true
    }

    /// The server's SETTINGS are late: the first request is sent without them, and they may take as long as a connection
    /// may take to open. Returns whether it was the first time.
    pub(crate) fn start_without_settings(&self, state: &mut State, at: usize) -> bool {
        let Some(connection) = state.table.known(at) else { return false };
        let upstream = self.upstreams.at(connection.server_id.upstream);
        let Some((session, guest, _)) = connection.h2() else { return false };
        if std::mem::replace(&mut session.is_late, true) || SETTINGS_WAIT >= upstream.plan.connect_time_max {
            return false;
        }
        self.lane.set_deadline(guest, Some(upstream.plan.connect_time_max - SETTINGS_WAIT));
        if !session.waiting.is_empty() {
            let first = session.waiting.remove(0);
            self.start(state, at, first);
        }
        true
    }

    /// The server's SETTINGS have arrived: waiting requests are sent.
    pub(crate) fn opened(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.known(at) else { return };
        let upstream = self.upstreams.at(connection.server_id.upstream);
        let streams_max = upstream.plan.protocol.streams_max().unwrap_or(1);
        let Some((session, guest, server_id)) = connection.h2() else { return };
        session.is_ready = true;
        if !session.streams.is_empty() {
            // The first request was sent without them.
            self.lane.set_deadline(guest, Some(TICK));
        }
        // No event reports what arrived after the SETTINGS.
        self.schedule(session, guest);
        if !session.has_room(streams_max) && session.streams.is_empty() {
            // A further connection to this server would have the same limit.
            return self.not_opened(state, at, Failure::NoHttp2, Some("it allows no streams"));
        }
        let mut waiting = std::mem::take(&mut session.waiting).into_iter();
        while state.is_still(at, guest)
            && let Some((session, ..)) = state.table.known(at).and_then(|connection| connection.h2())
            && session.has_room(streams_max)
            && let Some(job) = waiting.next()
        {
            self.start(state, at, job);
        }
        self.shelve(state, at);
        // The server allows fewer streams than there are waiting requests.
        for job in waiting {
            state.count_out(server_id);
            self.dispatch(state, job);
        }
        // Those that wait for a connection are more than the one for which it was opened.
        self.use_streams(state, server_id.upstream);
    }

    /// Moves a connection to the list that matches its room. One without requests becomes idle, or is closed.
    pub(crate) fn shelve(&self, state: &mut State, at: usize) {
        let State { table, groups, .. } = &mut *state;
        let Some(connection) = table.find(at) else { return };
        let upstream = self.upstreams.at(connection.server_id.upstream);
        let streams_max = upstream.plan.protocol.streams_max().unwrap_or(1);
        let Some((session, guest, server_id)) = connection.h2() else { return };
        let has_room = session.has_room(streams_max);
        let shelf = match (session.is_idle(), has_room) {
            (true, true) => PoolList::Idle,
            (true, false) => return self.close(state, at),
            (false, true) => PoolList::Shared,
            (false, false) => PoolList::None,
        };
        let was = std::mem::replace(&mut session.shelf, shelf);
        if was == shelf {
            return;
        }
        if shelf == PoolList::Idle {
            session.rest();
        }
        let group = groups.at_mut(server_id.upstream);
        let is_wanted_here = !self.is_retired.get() || !group.queue.is_empty();
        let pool = group.pools.at_mut(server_id.server);
        match was {
            PoolList::None => {}
            PoolList::Shared => pool.shared.retain(|&shared| shared != at),
            PoolList::Idle => {
                pool.idle.retain(|&idle| idle != at);
                pool.counts.down(|counts| &counts.idle);
            }
        }
        match shelf {
            PoolList::None => {}
            PoolList::Shared => pool.shared.push(at),
            PoolList::Idle => {
                if !is_wanted_here && self.hand_on(state, at) {
                    return;
                }
                self.keep_idle(state, at, guest);
            }
        }
    }

    fn keep_idle(&self, state: &mut State, at: usize, guest: GuestKey) {
        let Some(server_id) = state.table.known(at).map(|connection| connection.server_id) else { return };
        let upstream = self.upstreams.at(server_id.upstream);
        let is_leaving = state.server(server_id).is_none_or(|server| server.is_leaving());
        let pool = state.pool(server_id);
        if !is_leaving && pool.idle.len() < upstream.plan.idle_max {
            pool.idle.push(at);
            pool.counts.up(|counts| &counts.idle);
            self.lane.set_deadline(guest, Some(upstream.plan.idle_time_max));
        } else {
            self.close(state, at);
        }
    }
}
