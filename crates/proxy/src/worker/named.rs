//! Servers that requests name. Each worker has its own list of them.
//!
//! ```text
//! dispatch: no server ── named_server ──> known, with addresses: this one
//!                             └── lookup ── control/lookups.rs ──> named_found: what waits for it is sent, or refused
//! ```

use std::net::SocketAddr;
use std::sync::Arc;

use flatout_lane::clock;

use crate::control::lookups::FoundName;
use crate::failure::Failure;
use crate::plan::Server;
use crate::pool::{NameState, NamedPlace, Pool};
use crate::request::job::Job;
use crate::server::LiveServer;
use crate::table::UpstreamId;
use crate::watch::ServerCounts;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// The number of servers of one upstream that a worker keeps, in use or not. Beyond that, a new server replaces the unused one whose
/// last request is the oldest.
const KEPT: usize = 256;

/// The limit for these servers if all are in use. Requests that name further ones are refused.
const NAMED_MAX: usize = 1024;

/// The label of all of them in metrics: clients choose the names, so there is no label for each.
const LABEL: &str = "named";

/// Why a request is refused.
pub(crate) const NOT_NAMED: &str = "the request names no server that it may name";

/// What becomes of a request that names its server.
pub(crate) enum NamedChoice {
    /// It goes to the server at this place.
    Known(usize),
    /// It waits for a lookup.
    Later,
    Refused,
}

impl ProxyWorker {
    /// The server that a request names; `None` if requests do not name the servers of its upstream.
    #[cold]
    pub(crate) fn named_server(&self, state: &mut State, job: &mut Job) -> Option<NamedChoice> {
        let upstream = self.upstreams.at(job.upstream);
        upstream.plan.named.as_ref()?;
        let Some(wanted) = &job.named else { return Some(NamedChoice::Refused) };
        let Some(at) = self.named_place(state, job.upstream, wanted) else {
            return Some(NamedChoice::Refused);
        };
        let group = state.groups.at_mut(job.upstream);
        let Some((server, place)) = group.shares.server(at).zip(group.named.get_mut(at)) else {
            return Some(NamedChoice::Refused);
        };
        let now_ns = clock::nanoseconds();
        place.used_ns = now_ns;
        match place.lookup {
            NameState::Fixed => {}
            NameState::Until(until_ns) if now_ns < until_ns => {}
            NameState::Pending => return Some(NamedChoice::Later),
            NameState::Until(_) => {
                place.lookup = NameState::Pending;
                self.look_up(job.upstream, server.clone());
                return Some(NamedChoice::Later);
            }
        }
        if !server.is_up() {
            // There is no other one: each request tries it.
            server.succeeded();
        }
        // Each address of the server is tried once.
        let untried = (server.addresses_count() as u32).saturating_sub(job.attempt);
        job.retries_left = job.retries_left.min(untried);
        Some(if server.is_up() { NamedChoice::Known(at) } else { NamedChoice::Refused })
    }

    /// The place of a server, perhaps a new one; `None` if there is none.
    fn named_place(&self, state: &mut State, id: UpstreamId, wanted: &Server) -> Option<usize> {
        let group = state.groups.at(id);
        let is_it = |at: &usize| group.shares.server(*at).is_some_and(|server| server.plan == *wanted);
        if let Some(at) = (0..group.shares.len()).find(is_it) {
            return Some(at);
        }
        let upstream = self.upstreams.at(id);
        let server = match LiveServer::new(wanted.clone(), &upstream.plan) {
            Ok(server) => Arc::new(server),
            Err(why) => {
                self.log(Failure::NoServer, id, None, None, Some(&why));
                return None;
            }
        };
        let counts = self.watch.figures.as_ref();
        let counts = counts.map(|figures| figures.of_server(self.index, &upstream.plan.name, LABEL));
        let pool = Pool::new(server.label.as_str().into(), ServerCounts(counts));
        let lookup = if server.dns_name().is_some() { NameState::Until(0) } else { NameState::Fixed };
        let place = NamedPlace { used_ns: 0, lookup };
        let unused = if group.shares.len() < KEPT { None } else { self.longest_unused(state, id) };
        let group = state.groups.at_mut(id);
        match unused {
            None if group.shares.len() >= NAMED_MAX => None,
            None => {
                group.shares.push(server);
                group.pools.push(pool);
                group.named.push(place);
                Some(group.shares.len() - 1)
            }
            Some(at) => {
                group.shares.replace(at, server);
                *group.pools.at_mut(at) = pool;
                *group.named.get_mut(at)? = place;
                group.queue.iter_mut().for_each(|job| job.forget_server(at));
                Some(at)
            }
        }
    }

    /// Closes the idle connections to the server that is unused for the longest time, and returns its place.
    fn longest_unused(&self, state: &mut State, id: UpstreamId) -> Option<usize> {
        let group = state.groups.at(id);
        let is_unused = |at: &usize| {
            let pool = group.pools.at(*at);
            group.shares.busy(*at) == 0 && pool.open == pool.idle.len()
        };
        let places = group.named.iter().enumerate().filter(|(_, place)| place.lookup != NameState::Pending);
        let at = places.filter(|(at, _)| is_unused(at)).min_by_key(|(_, place)| place.used_ns)?.0;
        for connection in group.pools.at(at).idle.clone() {
            self.close_unused(state, connection);
        }
        (state.groups.at(id).pools.at(at).open == 0).then_some(at)
    }

    fn look_up(&self, id: UpstreamId, server: Arc<LiveServer>) {
        let (Some(me), Some((name, port))) = (self.owner(), server.dns_name()) else { return };
        let found = self.lookups.begin(id, name.to_owned());
        tokio::task::spawn_local(async move {
            let found = found.await.unwrap_or_else(|_| Err("too many names are looked up".to_owned()));
            me.with_state(|state| me.named_found(state, id, &server, port, found));
        });
    }

    /// A lookup has ended: requests that wait for it are sent, or refused.
    fn named_found(
        &self,
        state: &mut State,
        id: UpstreamId,
        server: &Arc<LiveServer>,
        port: u16,
        found: Result<FoundName, String>,
    ) {
        let group = state.groups.at_mut(id);
        let place = group.shares.place_of(server).and_then(|at| group.named.get_mut(at));
        let found = found.and_then(|found| match found.addresses.is_empty() {
            true => Err("its name has no address".to_owned()),
            false => Ok(found),
        });
        let (addresses, until_ns) = match &found {
            Ok(found) => {
                let addresses = found.addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
                (addresses, clock::nanoseconds().saturating_add(found.valid_time.as_nanos() as u64))
            }
            Err(_) => (Vec::new(), 0),
        };
        server.found_at(addresses);
        if let Some(place) = place {
            place.lookup = NameState::Until(until_ns);
        }
        let why = found.err();
        for _ in 0..group_len(state, id) {
            let group = state.groups.at_mut(id);
            let Some(job) = group.queue.pop_front() else { return };
            if job.named.as_deref() != Some(&server.plan) {
                group.queue.push_back(job);
                continue;
            }
            group.counts.down(|counts| &counts.queued);
            match &why {
                // Its client may have disconnected meanwhile.
                _ if !job.receiver.is_open(&self.lane) => {}
                None => self.dispatch(state, job),
                Some(why) => {
                    let why = format!("{}: {why}", server.label);
                    self.log(Failure::NoServer, id, None, Some(&job), Some(&why));
                    self.refuse(state, job, Failure::NoServer);
                }
            }
        }
    }
}

/// The number of requests that wait.
fn group_len(state: &State, id: UpstreamId) -> usize {
    state.groups.at(id).queue.len()
}
