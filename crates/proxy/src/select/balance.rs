//! Chooses the server of an upstream for a request.

use crate::hash::mix;
use crate::plan::Balance;
use crate::upstream::LiveUpstream;

/// One worker's counts for the servers of an upstream.
pub(crate) struct Shares {
    /// Requests in progress at each server.
    busy: Vec<u32>,
    /// The credit of each server in weighted round robin.
    credit: Vec<i64>,
    random: u64,
}

/// Servers whose failed attempts are recorded; retries treat further servers as untried.
const TRIED_MAX: usize = 64;

impl Shares {
    pub(crate) fn new(servers: usize, seed: u64) -> Shares {
        Shares { busy: vec![0; servers], credit: vec![0; servers], random: seed | 1 }
    }

    /// A request was assigned to a server.
    pub(crate) fn begin(&mut self, server: usize) {
        if let Some(busy) = self.busy.get_mut(server) {
            *busy += 1;
        }
    }

    /// A request at a server has ended.
    pub(crate) fn end(&mut self, server: usize) {
        if let Some(busy) = self.busy.get_mut(server) {
            *busy = busy.saturating_sub(1);
        }
    }

    /// Requests in progress at a server.
    pub(crate) fn busy(&self, server: usize) -> u32 {
        self.busy.get(server).copied().unwrap_or(0)
    }

    /// Chooses a server for a request whose key has this hash, and that was already `tried` at some; `wanted` is the
    /// server in its cookie. `None` if no server is up. Costs one look at each server, and almost nothing for a
    /// single server.
    pub(crate) fn choose(
        &mut self,
        upstream: &LiveUpstream,
        hash: u64,
        tried: u64,
        wanted: Option<usize>,
    ) -> Option<usize> {
        let servers = &upstream.servers;
        // Considering it down would leave no server.
        if servers.len() == 1 {
            return (tried == 0 && servers.first()?.is_checked_up()).then_some(0);
        }
        if let Some(wanted) = wanted
            && servers.get(wanted).is_some_and(|server| server.is_up())
            && !was_tried(tried, wanted)
        {
            return Some(wanted);
        }
        let is_open = |at: &usize| !was_tried(tried, *at) && servers.get(*at).is_some_and(|it| it.is_up());
        let of_kind = |backup: bool| {
            (0..servers.len())
                .filter(is_open)
                .filter(move |at| servers.get(*at).is_some_and(|it| it.plan.backup == backup))
        };
        let mut open: Vec<(usize, u64)> = Vec::with_capacity(servers.len());
        for backup in [false, true] {
            let weight = |at: usize| servers.get(at).map_or(1, |it| it.weight_now(upstream.plan.slow_start));
            open.extend(of_kind(backup).map(|at| (at, weight(at))));
            if !open.is_empty() {
                break;
            }
        }
        match &upstream.plan.balance {
            Balance::RoundRobin | Balance::Sticky { .. } => self.by_turns(&open),
            Balance::LeastConnections => self.least(&open),
            Balance::TwoChoices => self.better_of_two(&open),
            Balance::Hash(_) => by_hash(upstream, &open, hash),
        }
    }

    /// Smooth weighted round robin, as in nginx: each server gains its weight, the one with the most credit is chosen
    /// and pays for all.
    fn by_turns(&mut self, open: &[(usize, u64)]) -> Option<usize> {
        let mut best: Option<(usize, i64)> = None;
        let mut total = 0;
        for &(at, weight) in open {
            let credit = self.credit.get_mut(at)?;
            *credit += weight as i64;
            total += weight as i64;
            if best.is_none_or(|(_, most)| *credit > most) {
                best = Some((at, *credit));
            }
        }
        let (at, _) = best?;
        *self.credit.get_mut(at)? -= total;
        Some(at)
    }

    /// The server with the fewest requests for its weight; round robin among equals.
    fn least(&mut self, open: &[(usize, u64)]) -> Option<usize> {
        let load = |&(at, weight): &(usize, u64)| u64::from(self.busy(at)) * 1_000_000 / weight;
        let least = open.iter().map(load).min()?;
        let equals: Vec<_> = open.iter().filter(|it| load(it) == least).copied().collect();
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
}

/// Weighted rendezvous hashing: each server draws a number for the key, and the best draw wins. When a server is
/// added or removed, only the keys that it wins move.
fn by_hash(upstream: &LiveUpstream, open: &[(usize, u64)], hash: u64) -> Option<usize> {
    let draw = |&(at, weight): &(usize, u64)| {
        // By its address: a server keeps its keys when others are added to or removed from the site file.
        let mixed = mix(hash ^ mix(upstream.servers.get(at).map_or(0, |server| server.number)));
        let unit = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        weight as f64 / -unit.ln()
    };
    open.iter().max_by(|one, other| draw(one).total_cmp(&draw(other))).map(|&(at, _)| at)
}

/// Whether a server was tried before.
pub(crate) fn was_tried(tried: u64, server: usize) -> bool {
    server < TRIED_MAX && tried & (1 << server) != 0
}

/// `tried` with this server added.
pub(crate) fn with_tried(tried: u64, server: usize) -> u64 {
    if server < TRIED_MAX { tried | (1 << server) } else { tried }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::hash;
    use crate::plan::{self, Address, Key};

    fn upstream(weights: &[u32], balance: Balance) -> LiveUpstream {
        let server = |(at, &weight): (usize, &u32)| plan::Server {
            weight,
            ..plan::Server::new(Address::Socket(([127, 0, 0, 1], at as u16 + 1).into()))
        };
        let servers = weights.iter().enumerate().map(server).collect();
        LiveUpstream::after(plan::Upstream { balance, ..plan::Upstream::new("t", servers) }, &[]).unwrap()
    }

    fn counts(upstream: &LiveUpstream, requests: u64, holds: bool) -> Vec<u32> {
        let mut shares = Shares::new(upstream.servers.len(), 7);
        let mut counts = vec![0; upstream.servers.len()];
        for key in 0..requests {
            let at = shares.choose(upstream, hash(&key.to_le_bytes()), 0, None).unwrap();
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
        let mut shares = Shares::new(3, 1);
        let order: Vec<_> = (0..7).map(|_| shares.choose(&upstream, 0, 0, None).unwrap()).collect();
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
    fn few_keys_move_when_a_server_goes() {
        let balance = Balance::Hash(Key::Target);
        let (before, after) = (upstream(&[1, 1, 1, 1], balance.clone()), upstream(&[1, 1, 1, 1], balance));
        after.servers[2].set_healthy(false);
        let mut shares = Shares::new(4, 1);
        let mut moved = 0;
        for key in 0..4000u64 {
            let hash = hash(&key.to_le_bytes());
            let was = shares.choose(&before, hash, 0, None).unwrap();
            let is = shares.choose(&after, hash, 0, None).unwrap();
            assert!(was == is || was == 2, "only its own keys move");
            moved += u32::from(was != is);
        }
        assert!((850..1150).contains(&moved), "{moved}");
    }

    #[test]
    fn a_retry_goes_elsewhere_and_backups_come_last() {
        let mut upstream = upstream(&[1, 1, 1], Balance::RoundRobin);
        std::sync::Arc::get_mut(&mut upstream.servers[2]).unwrap().plan.backup = true;
        let mut shares = Shares::new(3, 1);
        let first = shares.choose(&upstream, 0, 0, None).unwrap();
        let tried = with_tried(0, first);
        let second = shares.choose(&upstream, 0, tried, None).unwrap();
        assert!(first != second && second < 2);
        let tried = with_tried(tried, second);
        assert_eq!(shares.choose(&upstream, 0, tried, None), Some(2));
        assert_eq!(shares.choose(&upstream, 0, with_tried(tried, 2), None), None);
        assert_eq!(shares.choose(&upstream, 0, 0, Some(2)), Some(2), "a cookie's server");
    }
}
