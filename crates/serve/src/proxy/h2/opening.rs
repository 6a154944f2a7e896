//! Opens HTTP/2 connections, and keeps them in the lists of their pool.

use flatout_engine::GuestKey;
use flatout_wire::Status;

use super::{Session, Shelf};
use crate::proxy::job::Job;
use crate::proxy::links::{Links, State};
use crate::proxy::upstream::H2;

impl Links {
    /// Starts an HTTP/2 session on a new connection; its first request waits for it.
    pub(in crate::proxy) fn open_shared(
        &self,
        state: &mut State,
        at: usize,
        streams_max: u32,
        job: Box<Job>,
    ) {
        let Some(link) = state.table.get(at) else { return };
        let (guest, place) = (link.guest, link.place);
        link.session = Some(Box::new(Session::new(streams_max)));
        if let Some(upstream) = self.upstreams.get(place.upstream) {
            self.lane.set_deadline(guest, Some(upstream.plan.connect_time_max));
        }
        self.enlist(state, at, job);
    }

    /// Checks the outcome of a connection attempt. Returns whether the connection is open.
    pub(super) fn connected_h2(&self, state: &mut State, at: usize) -> bool {
        let Some(link) = state.table.get(at) else { return false };
        if link.is_full && !link.is_read_closed {
            // The event was not about the connection attempt.
            return false;
        }
        let place = link.place;
        let server =
            self.upstreams.get(place.upstream).and_then(|upstream| upstream.servers.get(place.server));
        if let Err(error) = self.lane.outcome(link.guest) {
            if let (Some(server), Some(upstream)) = (server, self.upstreams.get(place.upstream)) {
                server.complain(&upstream.plan.name, &error);
            }
            self.not_opened(state, at, Status::BAD_GATEWAY, None);
            return false;
        }
        let is_secure = server.is_some_and(|server| server.is_secure());
        if is_secure && self.lane.protocol(link.guest).as_deref() != Some(H2) {
            let why = "it did not choose h2 in the TLS handshake (ALPN)".to_owned();
            self.not_opened(state, at, Status::BAD_GATEWAY, Some(why));
            return false;
        }
        link.is_connecting = false;
        true
    }

    /// The server's SETTINGS have arrived: waiting requests are sent.
    pub(super) fn opened(&self, state: &mut State, at: usize) {
        let Some(link) = state.table.get(at) else { return };
        let Some(upstream) = self.upstreams.get(link.place.upstream) else { return };
        let streams_max = upstream.plan.protocol.streams_max().unwrap_or(1);
        let Some((session, guest, place)) = link.shared() else { return };
        session.is_ready = true;
        // No event reports what arrived after the SETTINGS.
        self.schedule(session, guest);
        if !session.has_room(streams_max) {
            // A further connection to this server would have the same limit.
            return self.not_opened(state, at, Status::BAD_GATEWAY, Some("it allows no streams".to_owned()));
        }
        let mut waiting = std::mem::take(&mut session.waiting).into_iter();
        while state.is_still(at, guest)
            && let Some((session, ..)) = state.table.get(at).and_then(|link| link.shared())
            && session.has_room(streams_max)
            && let Some(job) = waiting.next()
        {
            self.start(state, at, job);
        }
        self.shelve(state, at);
        // The server allows fewer streams than there are waiting requests.
        for job in waiting {
            state.count_out(place);
            self.dispatch(state, job);
        }
    }

    /// Moves a connection to the list that matches its room. One without requests becomes idle, or is closed.
    pub(super) fn shelve(&self, state: &mut State, at: usize) {
        let State { table, groups, .. } = &mut *state;
        let Some(link) = table.get(at) else { return };
        let Some(upstream) = self.upstreams.get(link.place.upstream) else { return };
        let streams_max = upstream.plan.protocol.streams_max().unwrap_or(1);
        let Some((session, guest, place)) = link.shared() else { return };
        let has_room = session.has_room(streams_max);
        let shelf = match (session.is_idle(), has_room) {
            (true, true) => Shelf::Idle,
            (true, false) => return self.close(state, at),
            (false, true) => Shelf::Shared,
            (false, false) => Shelf::None,
        };
        let was = std::mem::replace(&mut session.shelf, shelf);
        if was == shelf {
            return;
        }
        if shelf == Shelf::Idle {
            session.rest();
        }
        let Some(group) = groups.get_mut(place.upstream) else { return };
        let is_wanted_here = !self.is_retired.get() || !group.queue.is_empty();
        let Some(pool) = group.pools.get_mut(place.server) else { return };
        match was {
            Shelf::None => {}
            Shelf::Shared => pool.shared.retain(|&shared| shared != at),
            Shelf::Idle => {
                pool.idle.retain(|&idle| idle != at);
                pool.counts.down(|counts| &counts.idle);
            }
        }
        match shelf {
            Shelf::None => {}
            Shelf::Shared => pool.shared.push(at),
            Shelf::Idle => {
                if !is_wanted_here && self.hand_on(state, at) {
                    return;
                }
                self.keep_idle(state, at, guest);
            }
        }
    }

    fn keep_idle(&self, state: &mut State, at: usize, guest: GuestKey) {
        let Some(place) = state.table.get(at).map(|link| link.place) else { return };
        let Some(upstream) = self.upstreams.get(place.upstream) else { return };
        let pool = state.groups.get_mut(place.upstream).and_then(|group| group.pools.get_mut(place.server));
        match pool {
            Some(pool) if pool.idle.len() < upstream.plan.idle_max => {
                pool.idle.push(at);
                pool.counts.up(|counts| &counts.idle);
                self.lane.set_deadline(guest, Some(upstream.plan.idle_time_max));
            }
            _ => self.close(state, at),
        }
    }
}
