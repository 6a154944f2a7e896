//! Connections that outlive a reload: the new proxy takes over the old one's connections to servers that both have.

use std::rc::Rc;
use std::sync::Arc;

use super::link::{Link, Place};
use super::links::{Links, State};

impl Links {
    /// Takes over from `former`: its idle connections now, those in use when they become idle.
    pub(super) fn succeed(self: &Rc<Self>, former: &Links) {
        let newest = former.newest.borrow().clone();
        newest.replace(Rc::downgrade(self));
        self.newest.replace(newest);
        former.is_retired.set(true);
        let Ok(mut state) = former.state.try_borrow_mut() else { return };
        let idle: Vec<usize> =
            state.groups.iter().flat_map(|group| &group.pools).flat_map(|pool| pool.idle.clone()).collect();
        for at in idle {
            let place = state.table.get(at).map(|link| link.place);
            if let Some(place) = place.and_then(|place| self.place_after(former, place))
                && let Some(link) = leave(&mut state, at)
            {
                self.adopt(&mut self.state.borrow_mut(), *link, place);
            }
        }
    }

    /// Passes a connection that has become idle to this part's successor. Returns whether the successor took it.
    pub(super) fn hand_on(&self, state: &mut State, at: usize) -> bool {
        let newest = self.newest.borrow().borrow().upgrade();
        let (Some(newest), Some(link)) = (newest, state.table.get(at)) else { return false };
        let Some(place) = newest.place_after(self, link.place) else { return false };
        let has_room = newest.state.try_borrow().is_ok_and(|state| {
            let pool = state.groups.get(place.upstream).and_then(|group| group.pools.get(place.server));
            let idle_max = newest.upstreams.get(place.upstream).map_or(0, |upstream| upstream.plan.idle_max);
            pool.is_some_and(|pool| pool.idle.len() < idle_max)
        });
        if !has_room {
            return false;
        }
        let Some(link) = leave(state, at) else { return false };
        newest.with_state(|state| {
            newest.adopt(state, *link, place);
            newest.dequeue(state, place.upstream);
        });
        true
    }

    fn adopt(self: &Rc<Self>, state: &mut State, link: Link, place: Place) {
        let (guest, at) = (link.guest, state.table.insert(Link { place, ..link }));
        let pool = state.groups.get_mut(place.upstream).and_then(|group| group.pools.get_mut(place.server));
        if let Some(pool) = pool {
            pool.idle.push(at);
            pool.open += 1;
            pool.counts.up(|counts| &counts.idle);
            pool.counts.up(|counts| &counts.open);
        }
        self.lane.give(guest, self.clone(), at as u64);
        let idle_time = self.upstreams.get(place.upstream).map(|upstream| upstream.plan.idle_time_max);
        self.lane.set_deadline(guest, idle_time);
    }

    /// The place here of a server of `former`. It has to be the same server object, not just an equal one.
    fn place_after(&self, former: &Links, place: Place) -> Option<Place> {
        let server = former.upstreams.get(place.upstream)?.servers.get(place.server)?;
        let name = &former.upstreams.get(place.upstream)?.plan.name;
        let upstream = self.upstreams.iter().position(|upstream| upstream.plan.name == *name)?;
        let servers = &self.upstreams.get(upstream)?.servers;
        let server = servers.iter().position(|known| Arc::ptr_eq(known, server))?;
        Some(Place { upstream, server })
    }
}

/// Removes an idle connection without closing it.
fn leave(state: &mut State, at: usize) -> Option<Box<Link>> {
    let link = state.table.remove(at)?;
    let group = state.groups.get_mut(link.place.upstream);
    if let Some(pool) = group.and_then(|group| group.pools.get_mut(link.place.server)) {
        pool.open = pool.open.saturating_sub(1);
        pool.counts.down(|counts| &counts.open);
        let idle = pool.idle.len();
        pool.idle.retain(|&idle| idle != at);
        if pool.idle.len() < idle {
            pool.counts.down(|counts| &counts.idle);
        }
    }
    Some(link)
}
