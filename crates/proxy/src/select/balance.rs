//! Chooses the server of an upstream for a request.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use flatout_lane::clock;

use crate::hash::{NO_KEY, mix};
use crate::plan;
use crate::plan::Balance;
use crate::select::moving_time::MovingTime;
use crate::select::tally::Tally;
use crate::server::LiveServer;

/// The servers of an upstream as one worker knows them, each with this worker's counts. Places are stable: a server that
/// has left keeps its own until its last connection is closed.
#[derive(Default)]
pub(crate) struct Shares {
    places: Vec<Place>,
    /// The places of servers that may get requests.
    active: Vec<usize>,
    /// Scratch space: the places to choose from, with their weights.
    open: Vec<(usize, u64)>,
    random: u64,
}

/// A server, with this worker's counts.
struct Place {
    server: Arc<LiveServer>,
    /// Requests in progress.
    busy: u32,
    /// Its credit in weighted round robin.
    credit: i64,
    /// What this worker has seen of it.
    tally: Arc<Tally>,
    /// The moving average of its times to a response.
    time: Cell<MovingTime>,
}

impl Place {
    fn new(server: Arc<LiveServer>) -> Place {
        let tally = server.new_tally();
        Place { server, busy: 0, credit: 0, tally, time: Cell::default() }
    }
}

/// Servers whose failed attempts are recorded; retries treat further servers as untried.
const TRIED_MAX: usize = 64;

impl Shares {
    pub(crate) fn new(servers: &[Arc<LiveServer>], seed: u64) -> Shares {
        let mut shares = Shares { random: seed | 1, ..Shares::default() };
        servers.iter().for_each(|server| shares.push(server.clone()));
        shares.activate(servers);
        shares
    }

    /// Adds a place for a server, which is not active yet.
    pub(crate) fn push(&mut self, server: Arc<LiveServer>) {
        self.places.push(Place::new(server));
    }

    /// Gives a place to another server, which is not active yet.
    pub(crate) fn replace(&mut self, at: usize, server: Arc<LiveServer>) {
        if let Some(place) = self.places.get_mut(at) {
            *place = Place::new(server);
        }
    }

    /// Those of `servers` that do not leave may get requests from now on, in this order, and no others.
    pub(crate) fn activate(&mut self, servers: &[Arc<LiveServer>]) {
        let places = self.places.iter().enumerate();
        let places: HashMap<_, usize> = places.map(|(at, place)| (Arc::as_ptr(&place.server), at)).collect();
        let active = servers.iter().filter(|server| !server.is_leaving());
        self.active = active.filter_map(|server| places.get(&Arc::as_ptr(server)).copied()).collect();
        // Shares among a former set of servers mean nothing, and a server that is new must not have to catch up.
        self.places.iter_mut().for_each(|place| place.credit = 0);
    }

    /// The place of this server object.
    pub(crate) fn place_of(&self, server: &Arc<LiveServer>) -> Option<usize> {
        self.places.iter().position(|place| Arc::ptr_eq(&place.server, server))
    }

    /// The number of places.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// The server at a place.
    #[inline]
    pub(crate) fn server(&self, at: usize) -> Option<&Arc<LiveServer>> {
        self.places.get(at).map(|place| &place.server)
    }

    /// The places of servers that may get requests while they are up.
    #[inline]
    pub(crate) fn active(&self) -> &[usize] {
        &self.active
    }

    /// A request was assigned to a server.
    pub(crate) fn begin(&mut self, server: usize) {
        if let Some(place) = self.places.get_mut(server) {
            place.busy += 1;
        }
    }

    /// A request at a server has ended.
    pub(crate) fn end(&mut self, server: usize) {
        if let Some(place) = self.places.get_mut(server) {
            place.busy = place.busy.saturating_sub(1);
        }
    }

    /// A server has responded after this time; 0: it was not measured.
    pub(crate) fn responded(&self, server: usize, is_error: bool, time_ns: u64) {
        if let Some(place) = self.places.get(server).filter(|_| time_ns > 0) {
            place.tally.responded(is_error, time_ns);
            place.time.set(place.time.get().with(time_ns, clock::nanoseconds()));
        }
    }

    /// A request at a server has failed.
    pub(crate) fn failed(&self, server: usize) {
        if let Some(place) = self.places.get(server) {
            place.tally.failed();
        }
    }

    /// Requests in progress at a server.
    pub(crate) fn busy(&self, server: usize) -> u32 {
        self.places.get(server).map_or(0, |place| place.busy)
    }

    /// Chooses a server for a request whose key has this hash, and that was already `tried` at some; `wanted` is the
    /// server in its cookie. `None` if no server is up. Costs one look at each server, and almost nothing for a
    /// single server.
    pub(crate) fn choose(
        &mut self,
        plan: &plan::Upstream,
        hash: u64,
        tried: u64,
        wanted: Option<usize>,
    ) -> Option<usize> {
        // Considering it down would leave no server.
        if let [only] = self.active[..] {
            let server = self.server(only)?;
            return (tried == 0 && server.may_serve_last() && server.has_slot()).then_some(only);
        }
        let is_up = |at: usize| self.server(at).is_some_and(|server| server.is_up() && server.has_slot());
        if let Some(wanted) = wanted
            && is_up(wanted)
            && !was_tried(tried, wanted)
        {
            return Some(wanted);
        }
        let mut open = std::mem::take(&mut self.open);
        open.clear();
        for backup in [false, true] {
            let of_kind = self.active.iter().filter_map(|&at| {
                let server = self.server(at)?;
                let is_it = server.plan.backup == backup
                    && !was_tried(tried, at)
                    && server.is_up()
                    && server.has_slot();
                is_it.then(|| (at, server.weight_now(plan.slow_start)))
            });
            open.extend(of_kind);
            if !open.is_empty() {
                break;
            }
        }
        if open.is_empty() {
            // One that only stands out is better than none.
            let untried = self.active.iter().filter(|at| !was_tried(tried, **at));
            let last = untried.filter_map(|&at| Some((at, self.server(at)?)));
            let last = last.filter(|(_, server)| server.is_only_ejected() && server.has_slot());
            open.extend(last.map(|(at, server)| (at, server.weight_now(plan.slow_start))));
        }
        let chosen = match &plan.balance {
            Balance::RoundRobin | Balance::Sticky { .. } => self.by_turns(&open),
            Balance::LeastConnections => self.least(&open),
            Balance::LeastTime => self.soonest(&open),
            Balance::TwoChoices => self.better_of_two(&open),
            Balance::Hash(_) if hash == NO_KEY => self.by_turns(&open),
            Balance::Hash(_) => self.by_hash(&open, hash),
        };
        self.open = open;
        chosen
    }

    /// Whether a server that a request may use, and was not `tried`, has as many requests as it may have.
    #[cold]
    pub(crate) fn is_at_limit(&self, tried: u64) -> bool {
        let is_alone = self.active.len() == 1;
        let may_serve = |server: &LiveServer| if is_alone { server.may_serve_last() } else { server.is_up() };
        let untried = self.active.iter().filter(|at| !was_tried(tried, **at));
        untried.filter_map(|&at| self.server(at)).any(|server| may_serve(server) && !server.has_slot())
    }

    /// Whether a server with a limit has room.
    pub(crate) fn has_free_slot(&self) -> bool {
        let mut servers = self.active.iter().filter_map(|&at| self.server(at));
        servers.any(|server| server.plan.requests_max > 0 && server.has_slot())
    }

    /// Whether a server gets requests because others have no room: a backup only replaces servers that are down.
    pub(crate) fn takes_over(&self, server: usize) -> bool {
        self.server(server).is_some_and(|server| !server.plan.backup)
    }

    /// Smooth weighted round robin, as in nginx: each server gains its weight, the one with the most credit is chosen
    /// and pays for all.
    fn by_turns(&mut self, open: &[(usize, u64)]) -> Option<usize> {
        let mut best: Option<(usize, i64)> = None;
        let mut total = 0;
        for &(at, weight) in open {
            let credit = &mut self.places.get_mut(at)?.credit;
            *credit += weight as i64;
            total += weight as i64;
            if best.is_none_or(|(_, most)| *credit > most) {
                best = Some((at, *credit));
            }
        }
        let (at, _) = best?;
        self.places.get_mut(at)?.credit -= total;
        Some(at)
    }

    /// The server with the fewest requests for its weight; round robin among equals.
    fn least(&mut self, open: &[(usize, u64)]) -> Option<usize> {
        let load = |&(at, weight): &(usize, u64)| f64::from(self.busy(at)) / weight as f64;
        let least = open.iter().map(load).min_by(f64::total_cmp)?;
        let equals: Vec<_> = open.iter().filter(|it| load(it) == least).copied().collect();
        self.by_turns(&equals)
    }

    /// The server that is expected to respond first; one without responses so far is tried.
    fn soonest(&mut self, open: &[(usize, u64)]) -> Option<usize> {
        let now_ns = clock::nanoseconds();
        let time = |at: usize| self.places.get(at).map_or(0.0, |place| place.time.get().expected_ns(now_ns));
        let load = |&(at, weight): &(usize, u64)| time(at) * f64::from(self.busy(at) + 1) / weight as f64;
        let least = open.iter().map(load).min_by(f64::total_cmp)?;
        let equals: Vec<_> = open.iter().filter(|it| load(it) <= least).copied().collect();
        self.by_turns(&equals)
    }

    fn better_of_two(&mut self, open: &[(usize, u64)]) -> Option<usize> {
        if open.len() < 3 {
            return self.least(open);
        }
        let first = self.below(open.len());
        let second = (first + 1 + self.below(open.len() - 1)) % open.len();
        let two = [*open.get(first)?, *open.get(second)?];
        self.least(&two)
    }

    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as usize % end.max(1)
    }

    /// Weighted rendezvous hashing: each server draws a number for the key, and the best draw wins. When a server is
    /// added or removed, only the keys that it wins move.
    fn by_hash(&self, open: &[(usize, u64)], hash: u64) -> Option<usize> {
        let draw = |&(at, weight): &(usize, u64)| {
            // By its address: a server keeps its keys when others are added or removed.
            let mixed = mix(hash ^ mix(self.server(at).map_or(0, |server| server.number)));
            let unit = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            weight as f64 / -unit.ln()
        };
        open.iter().max_by(|one, other| draw(one).total_cmp(&draw(other))).map(|&(at, _)| at)
    }
}

/// Whether a server was tried before.
pub(crate) fn was_tried(tried: u64, server: usize) -> bool {
    server < TRIED_MAX && tried & (1 << server) != 0
}

/// `tried` with this server added.
pub(crate) fn with_tried(tried: u64, server: usize) -> u64 {
    if server < TRIED_MAX { tried | (1 << server) } else { tried }
}

/// `tried` without this server.
pub(crate) fn without_tried(tried: u64, server: usize) -> u64 {
    if server < TRIED_MAX { tried & !(1 << server) } else { tried }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::hash;
    use crate::plan::{Address, Key};
    use crate::upstream::LiveUpstream;

    fn upstream(weights: &[u32], balance: Balance) -> LiveUpstream {
        let server = |(at, &weight): (usize, &u32)| plan::Server {
            weight,
            ..plan::Server::new(Address::Socket(([127, 0, 0, 1], at as u16 + 1).into()))
        };
        let servers = weights.iter().enumerate().map(server).collect();
        LiveUpstream::after(plan::Upstream { balance, ..plan::Upstream::new("t", servers) }, &[]).unwrap()
    }

    fn shares(upstream: &LiveUpstream, seed: u64) -> Shares {
        Shares::new(&upstream.servers(), seed)
    }

    fn counts(upstream: &LiveUpstream, requests: u64, holds: bool) -> Vec<u32> {
        let mut shares = shares(upstream, 7);
        let mut counts = vec![0; shares.len()];
        for key in 0..requests {
            let at = shares.choose(&upstream.plan, hash(&key.to_le_bytes()), 0, None).unwrap();
            counts[at] += 1;
            if holds {
                shares.begin(at);
            }
        }
        counts
    }

    #[test]
    fn turns_are_by_weight_and_smooth() {
        let upstream = upstream(&[5, 1, 1], Balance::RoundRobin);
        assert_eq!(counts(&upstream, 700, false), [500, 100, 100]);
        let mut shares = shares(&upstream, 1);
        let order: Vec<_> = (0..7).map(|_| shares.choose(&upstream.plan, 0, 0, None).unwrap()).collect();
        assert_eq!(order, [0, 0, 1, 0, 2, 0, 0], "as nginx documents it");
    }

    #[test]
    fn load_is_levelled() {
        for balance in [Balance::LeastConnections, Balance::TwoChoices] {
            let counts = counts(&upstream(&[1, 1, 2, 1], balance.clone()), 1000, true);
            let most = counts.iter().max().unwrap();
            assert!((380..=420).contains(most) && counts[2] == *most, "{balance:?} {counts:?}");
        }
    }

    #[test]
    fn faster_servers_get_more_requests() {
        let upstream = upstream(&[1, 1], Balance::LeastTime);
        let mut shares = shares(&upstream, 1);
        let mut counts = [0; 2];
        for round in 0..200 {
            let at = shares.choose(&upstream.plan, 0, 0, None).unwrap();
            counts[at] += u32::from(round >= 2);
            shares.responded(at, false, if at == 0 { 1_000_000 } else { 5_000_000 });
        }
        assert!(counts[0] > 150, "{counts:?}");
        // With enough in progress there, the slower one is expected to be first.
        (0..8).for_each(|_| shares.begin(0));
        assert_eq!(shares.choose(&upstream.plan, 0, 0, None), Some(1));
    }

    #[test]
    fn ejected_servers_get_requests_only_if_no_other_does() {
        let upstream = upstream(&[1, 1], Balance::RoundRobin);
        let mut shares = shares(&upstream, 1);
        let servers = upstream.servers();
        let reason = crate::select::outliers::OutlierReason::Time { times: 9.0 };
        servers[0].eject(reason, &plan::Outliers::default());
        for _ in 0..4 {
            assert_eq!(shares.choose(&upstream.plan, 0, 0, Some(0)), Some(1));
        }
        assert_eq!(shares.choose(&upstream.plan, 0, with_tried(0, 1), None), Some(0));
        servers[1].set_healthy(false);
        assert_eq!(shares.choose(&upstream.plan, 0, 0, None), Some(0));
        servers[0].set_mode(crate::server::ServerMode::SetDown);
        assert_eq!(shares.choose(&upstream.plan, 0, 0, None), None);
    }

    /// The only server is never considered down, so requests wait for a place there too.
    #[test]
    fn an_only_server_at_its_limit_is_waited_for() {
        let limited = plan::Server {
            requests_max: 1,
            ..plan::Server::new(Address::Socket(([127, 0, 0, 1], 1).into()))
        };
        let upstream = LiveUpstream::after(plan::Upstream::new("t", vec![limited]), &[]).unwrap();
        let mut shares = shares(&upstream, 1);
        let server = upstream.servers()[0].clone();
        let slot = server.take_slot().unwrap();
        assert!(slot.is_some() && shares.choose(&upstream.plan, 0, 0, None).is_none());
        assert!(shares.is_at_limit(0));
        server.eject(crate::select::outliers::OutlierReason::Time { times: 9.0 }, &plan::Outliers::default());
        assert!(!server.is_up() && shares.is_at_limit(0));
        assert!(!shares.is_at_limit(with_tried(0, 0)));
        server.set_mode(crate::server::ServerMode::SetDown);
        assert!(!shares.is_at_limit(0));
        server.set_mode(crate::server::ServerMode::Serving);
        drop(slot);
        assert_eq!(shares.choose(&upstream.plan, 0, 0, None), Some(0));
    }

    #[test]
    fn few_keys_move_when_a_server_goes() {
        let balance = Balance::Hash(Key::Target);
        let (before, after) = (upstream(&[1, 1, 1, 1], balance.clone()), upstream(&[1, 1, 1, 1], balance));
        after.servers()[2].set_healthy(false);
        let (mut first, mut second) = (shares(&before, 1), shares(&after, 1));
        let mut moved = 0;
        for key in 0..4000u64 {
            let hash = hash(&key.to_le_bytes());
            let was = first.choose(&before.plan, hash, 0, None).unwrap();
            let is = second.choose(&after.plan, hash, 0, None).unwrap();
            assert!(was == is || was == 2, "only its own keys move");
            moved += u32::from(was != is);
        }
        assert!((850..1150).contains(&moved), "{moved}");
    }

    #[test]
    fn requests_without_a_key_are_spread() {
        let upstream = upstream(&[1, 1, 1], Balance::Hash(Key::Target));
        let mut shares = shares(&upstream, 1);
        let mut counts = [0; 3];
        for _ in 0..6 {
            counts[shares.choose(&upstream.plan, NO_KEY, 0, None).unwrap()] += 1;
        }
        assert_eq!(counts, [2, 2, 2]);
    }

    #[test]
    fn large_weights_do_not_hide_requests_in_progress() {
        let upstream = upstream(&[5000, 5000], Balance::LeastConnections);
        let mut shares = shares(&upstream, 1);
        shares.begin(0);
        for _ in 0..4 {
            assert_eq!(shares.choose(&upstream.plan, 0, 0, None), Some(1));
        }
    }

    #[test]
    fn a_retry_goes_elsewhere_and_backups_come_last() {
        let mut plan = upstream(&[1, 1, 1], Balance::RoundRobin).plan;
        plan.servers[2].backup = true;
        let upstream = LiveUpstream::after(plan, &[]).unwrap();
        let mut shares = shares(&upstream, 1);
        let first = shares.choose(&upstream.plan, 0, 0, None).unwrap();
        let tried = with_tried(0, first);
        let second = shares.choose(&upstream.plan, 0, tried, None).unwrap();
        assert!(first != second && second < 2);
        let tried = with_tried(tried, second);
        assert_eq!(shares.choose(&upstream.plan, 0, tried, None), Some(2));
        assert_eq!(shares.choose(&upstream.plan, 0, with_tried(tried, 2), None), None);
        assert_eq!(shares.choose(&upstream.plan, 0, 0, Some(2)), Some(2), "a cookie's server");
    }

    #[test]
    fn a_server_that_leaves_gets_nothing_and_keeps_its_place() {
        let upstream = upstream(&[1, 1, 1], Balance::RoundRobin);
        let servers = upstream.servers();
        let mut shares = shares(&upstream, 1);
        shares.begin(1);
        servers[1].set_mode(crate::server::ServerMode::Draining);
        for _ in 0..6 {
            assert_ne!(shares.choose(&upstream.plan, 0, 0, Some(1)), Some(1), "even before it is not active");
        }
        shares.activate(&servers[1..]);
        assert_eq!((shares.active(), shares.busy(1)), (&[2][..], 1));
        servers[2].failed(&plan::Passive { failures_max: 1, ..upstream.plan.passive });
        assert_eq!(shares.choose(&upstream.plan, 0, 0, None), Some(2), "the last one is always tried");
        shares.activate(&[]);
        assert_eq!(shares.choose(&upstream.plan, 0, 0, None), None);
    }
}
