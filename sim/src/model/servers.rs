//! Which server of the application gets a request: by a hash of a key, by turns and weights, backups only when all others are down, and
//! nothing for a server that is down because it has failed.
//!
//! Only in steady runs, where nobody breaks off and no limit makes a request go elsewhere, all of this is known exactly.

use flatout_proxy::Balance;

use super::cache::Moment;
use super::{Model, Planned};
use crate::scene::{APPLICATION_NUMBERS, Configuration, FAILURES_MAX, Scene, WAITING_MAX};

/// Keys of requests.
pub(crate) const KEYS: u32 = 8;

/// How long a server that has failed too often gets nothing, and how long failures count: the defaults of an upstream.
const DOWN_NS: u64 = 10_000_000_000;
const WINDOW_NS: u64 = 10_000_000_000;

/// The clock moves in steps.
const SLACK_NS: u64 = 1_200_000_000;

/// So many requests show how they are shared.
const SHARED_MIN: u32 = 60;

/// Requests to a server besides its share: the last ones of each turn, and those that were sent again because a connection had ended.
const SHARE_SLACK: u32 = 4;

/// What the servers of the application have got.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    is_steady: bool,
    counts: [u32; APPLICATION_NUMBERS.len()],
    /// The server of each key.
    of_keys: [Option<usize>; KEYS as usize],
    failing: Failing,
}

/// A server that fails always.
#[derive(Debug, Default)]
struct Failing {
    failures: u32,
    window_began_ns: u64,
    down: Option<Down>,
}

/// It is down since a moment, and until another.
#[derive(Debug, Clone, Copy)]
struct Down {
    since_ns: u64,
    until_ns: u64,
}

/// The key that a client sends with a request.
pub(crate) fn key_of(planned: &Planned) -> Option<u32> {
    planned.resource.is_none().then_some(planned.id % KEYS)
}

/// Whether no request goes to another server than the one that is chosen for it.
fn is_steady(scene: &Scene) -> bool {
    let [configuration] = scene.configurations.as_slice() else { return false };
    let breaks_off = scene.clients_fail
        || scene.upstreams_fail
        || scene.failing_server.is_some()
        || scene.upstreams_are_hasty
        || scene.rate_min > 0
        || scene.disk.fills_up
        || scene.disk.tears
        || scene.disk.waiting_max < WAITING_MAX;
    let has_limits = configuration.request_time_max.is_some()
        || configuration.requests_max > 0
        || configuration.connections_max < 4096
        || !configuration.retry_on.statuses.is_empty();
    !breaks_off && !has_limits && scene.server_changes == 0 && scene.has_one_server()
}

impl Servers {
    pub(super) fn of(scene: &Scene) -> Servers {
        Servers { is_steady: is_steady(scene), ..Servers::default() }
    }

    /// A server has got a request.
    fn gets(&mut self, at: usize, planned: &Planned, configuration: &Configuration) -> Result<(), String> {
        self.counts[at] += 1;
        if !self.is_steady {
            return Ok(());
        }
        let id = planned.id;
        if configuration.has_backup && at + 1 == configuration.servers && at > 0 {
            return Err(format!("request {id} went to the backup, although no other server is down"));
        }
        let Some(key) = key_of(planned).filter(|_| matches!(configuration.balance, Balance::Hash(_))) else {
            return Ok(());
        };
        match self.of_keys[key as usize].replace(at) {
            Some(former) if former != at => Err(format!(
                "request {id} with key {key} went to server {at}, others with that key to server {former}"
            )),
            _ => Ok(()),
        }
    }

    /// At the end: whether requests were shared as the settings say.
    pub(crate) fn check_shares(&self, scene: &Scene) -> Result<(), String> {
        let [configuration] = scene.configurations.as_slice() else { return Ok(()) };
        let servers =
            configuration.servers - usize::from(configuration.has_backup && configuration.servers > 1);
        let counts = &self.counts[..servers];
        let sum: u32 = counts.iter().sum();
        if !self.is_steady || sum < SHARED_MIN || servers < 2 {
            return Ok(());
        }
        let weights: u32 = configuration.weights[..servers].iter().sum();
        let is_exact = configuration.balance == Balance::RoundRobin && scene.workers == 1;
        let is_fair = match &configuration.balance {
            Balance::RoundRobin if is_exact => counts
                .iter()
                .zip(configuration.weights)
                .all(|(count, weight)| (sum * weight / weights).abs_diff(*count) <= SHARE_SLACK + sum / 20),
            // Keys may be at one of them.
            Balance::Hash(_) => counts.iter().filter(|count| **count > 0).count() > 1,
            _ => counts.iter().all(|count| *count > 0),
        };
        match is_fair {
            true => Ok(()),
            false => Err(format!(
                "the servers have got {counts:?} requests, with weights {:?} and {:?}",
                &configuration.weights[..servers],
                configuration.balance
            )),
        }
    }
}

impl Failing {
    /// It has failed.
    fn fail(&mut self, now_ns: u64) {
        if now_ns - self.window_began_ns > WINDOW_NS {
            (self.window_began_ns, self.failures) = (now_ns, 0);
        }
        self.failures += 1;
        if self.failures >= FAILURES_MAX {
            let since_ns = self.down.map_or(now_ns, |down| down.since_ns);
            self.down = Some(Down { since_ns, until_ns: now_ns + DOWN_NS });
        }
    }

    /// It has got a request that began at `began_ns`.
    fn gets(&mut self, id: u32, began_ns: u64, now_ns: u64) -> Result<(), String> {
        let Some(down) = self.down.as_mut().filter(|down| began_ns > down.since_ns) else { return Ok(()) };
        if now_ns + SLACK_NS < down.until_ns {
            return Err(format!(
                "request {id} went to a server that has failed, {} ms before it may be tried again",
                (down.until_ns - now_ns) / 1_000_000
            ));
        }
        // This one tries it.
        down.until_ns = now_ns + DOWN_NS;
        Ok(())
    }
}

impl Model {
    /// A server of the application has got a request.
    pub(crate) fn server_gets(
        &mut self,
        upstream: usize,
        planned: &Planned,
        now: Moment,
        scene: &Scene,
    ) -> Result<(), String> {
        let Some(at) = APPLICATION_NUMBERS.iter().position(|number| *number == upstream) else {
            return Ok(());
        };
        if scene.failing_server == Some(at) {
            let began_ns = self.began.get(&planned.id).map_or(0, |began| began.ns);
            self.servers.failing.gets(planned.id, began_ns, now.ns)?;
        }
        self.at_server.insert(planned.id, upstream);
        let [configuration] = scene.configurations.as_slice() else { return Ok(()) };
        self.are_within_limit(upstream, configuration, scene)?;
        self.servers.gets(at, planned, configuration)
    }

    /// A server of the application has closed a connection in place of a response.
    pub(crate) fn server_fails(&mut self, now: Moment) {
        self.servers.failing.fail(now.ns);
    }

    /// A server has no more requests at once than its limit allows.
    fn are_within_limit(
        &self,
        upstream: usize,
        configuration: &Configuration,
        scene: &Scene,
    ) -> Result<(), String> {
        let breaks_off = scene.clients_fail
            || scene.upstreams_fail
            || scene.failing_server.is_some()
            || scene.rate_min > 0
            || configuration.request_time_max.is_some()
            || configuration.cache.is_some()
            || scene.server_changes > 0
            || !scene.has_one_server();
        if configuration.requests_max == 0 || breaks_off {
            return Ok(());
        }
        // One that is refused while its body comes has ended too.
        let is_here = |id: &&u32| {
            self.at_server.get(id) == Some(&upstream) && !scene.is_too_large(self.planned[id].body_length)
        };
        match self.awaited.iter().filter(is_here).count() {
            count if count > configuration.requests_max as usize => Err(format!(
                "upstream {upstream} has {count} requests at once, {} are allowed",
                configuration.requests_max
            )),
            _ => Ok(()),
        }
    }
}
