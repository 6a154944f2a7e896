//! Rate limits for clients.
//!
//! The generic cell rate algorithm (GCRA): for each client one time is stored, at which its bucket will be empty. A
//! request moves this time forward by its share of a second. It is rejected if the time would then be further ahead than
//! the burst allows.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use flatout_engine::{Reply, Response};
use flatout_wire::Status;

use super::{Inner, Middleware};
use crate::extract::Extract;
use crate::{ClientIp, Context, Problem, Respond};

/// Shards of the table, so that workers rarely wait for each other.
const SHARDS: usize = 64;

/// Clients per shard. If there are more, the others are not limited: a rate limit must not become a way to lock out
/// clients.
const CLIENTS_PER_SHARD_MAX: usize = 16_384;

/// How often a full shard is searched for expired clients.
const PURGE_EVERY: Duration = Duration::from_secs(1);

/// Responds with 429 and `Retry-After` to clients that send too many requests, counted over all workers. A client is an
/// address ([`ClientIp`], for IPv6 a /64), or the key chosen by [`RateLimit::by`]. More than a million clients can be
/// tracked at the same time.
///
/// ```
/// use flatout::middleware::RateLimit;
/// use flatout::{App, test::Client};
///
/// let limit = RateLimit::per_second(1.0).burst(2).by(|context| context.header("x-key").map(<[u8]>::to_vec));
/// let client = Client::new(App::new().with(limit).get("/", || "in"))?;
/// let status = |key| client.get("/").header("X-Key", key).send().status().code();
/// assert_eq!([status("a"), status("a"), status("a"), status("b")], [200, 200, 429, 200]);
/// # Ok::<(), flatout::Error>(())
/// ```
///
/// Logins are limited more than the rest:
///
/// ```
/// use flatout::App;
/// use flatout::middleware::RateLimit;
///
/// let logins = App::new().with(RateLimit::per_minute(10.0)).post("/", || "welcome");
/// App::new().with(RateLimit::per_second(50.0).burst(200)).nest("/login", logins);
/// ```
pub struct RateLimit {
    /// The time between two requests at the rate.
    interval_ns: u64,
    burst: u32,
    key: Key,
    table: Table,
}

/// The key of a client; `None` is not limited.
type Key = Box<dyn Fn(&mut Context<'_>, &RandomState) -> Option<u64> + Send + Sync>;

struct Table {
    start: Instant,
    hash: RandomState,
    shards: Vec<Mutex<Shard>>,
}

#[derive(Default)]
struct Shard {
    /// The time at which the bucket is empty, by the hash of the client.
    empty_at_ns: HashMap<u64, u64>,
    purge_at_ns: u64,
}

impl RateLimit {
    /// This many requests per second in the long run, and as many in a burst.
    pub fn per_second(rate: f64) -> RateLimit {
        // An invalid rate is rejected when the application starts.
        let interval_ns = if rate > 0.0 { (1e9 / rate) as u64 } else { 0 };
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        RateLimit {
            interval_ns,
            burst: rate.clamp(1.0, f64::from(u32::MAX)) as u32,
            key: Box::new(|context, hash| {
                let ClientIp(address) = ClientIp::extract(context).ok()?;
                Some(hash.hash_one(network(address?)))
            }),
            table: Table { start: Instant::now(), hash: RandomState::new(), shards },
        }
    }

    /// This many requests per minute in the long run.
    pub fn per_minute(rate: f64) -> RateLimit {
        RateLimit::per_second(rate / 60.0)
    }

    /// The size of a burst.
    pub fn burst(mut self, requests: u32) -> RateLimit {
        self.burst = requests;
        self
    }

    /// Identifies clients by something other than their address, such as a user or a key. `None` is not limited.
    pub fn by<K: Hash>(
        mut self,
        key: impl Fn(&mut Context<'_>) -> Option<K> + Send + Sync + 'static,
    ) -> RateLimit {
        self.key = Box::new(move |context, hash| key(context).map(|key| hash.hash_one(key)));
        self
    }

    /// # Errors
    /// The time for which the client has to wait.
    fn pass(&self, client: u64, now_ns: u64) -> Result<(), Duration> {
        let shard = &self.table.shards[client as usize % SHARDS];
        // Every change in the lock is a single step.
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if !shard.make_room(client, now_ns) {
            return Ok(());
        }
        let empty_at = shard.empty_at_ns.entry(client).or_insert(now_ns);
        let next = (*empty_at).max(now_ns).saturating_add(self.interval_ns);
        let latest = now_ns.saturating_add(self.interval_ns.saturating_mul(u64::from(self.burst)));
        if next > latest {
            return Err(Duration::from_nanos(next - latest));
        }
        *empty_at = next;
        Ok(())
    }
}

impl Shard {
    /// Whether this client can be stored.
    fn make_room(&mut self, client: u64, now_ns: u64) -> bool {
        if self.empty_at_ns.len() < CLIENTS_PER_SHARD_MAX || self.empty_at_ns.contains_key(&client) {
            return true;
        }
        if now_ns < self.purge_at_ns {
            return false;
        }
        self.purge_at_ns = now_ns + PURGE_EVERY.as_nanos() as u64;
        self.empty_at_ns.retain(|_, empty_at_ns| *empty_at_ns > now_ns);
        self.empty_at_ns.len() < CLIENTS_PER_SHARD_MAX
    }
}

/// A client that has one address of a /64 usually has all of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

impl Middleware for RateLimit {
    fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
        let Some(client) = (self.key)(context, &self.table.hash) else {
            return inner.call(context, response);
        };
        let now_ns = u64::try_from(self.table.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        match self.pass(client, now_ns) {
            Ok(()) => inner.call(context, response),
            Err(wait) => {
                let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
                Problem::new(Status::TOO_MANY_REQUESTS)
                    .header("Retry-After", seconds.max(1).to_string())
                    .respond(response);
                Reply::Now
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        match (self.interval_ns, self.burst) {
            (0, _) => Err("rate limit: the rate must be above 0 and at most 1e9 a second".to_owned()),
            (_, 0) => Err("rate limit: a burst of 0 allows no request".to_owned()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn a_client_has_its_burst_and_then_its_rate() {
        let limit = RateLimit::per_second(10.0).burst(5);
        let passed = |now_ns| (0..20).filter(|_| limit.pass(7, now_ns).is_ok()).count();
        assert_eq!(passed(SECOND_NS), 5);
        assert_eq!(limit.pass(7, SECOND_NS), Err(Duration::from_millis(100)));
        assert_eq!(passed(SECOND_NS + SECOND_NS / 10), 1);
        assert_eq!(passed(SECOND_NS + SECOND_NS / 10 * 3), 2);
        assert_eq!(passed(100 * SECOND_NS), 5);
        assert!(limit.pass(8, 100 * SECOND_NS).is_ok());
    }

    #[test]
    fn over_an_hour_a_steady_client_gets_its_rate_and_no_more() {
        let limit = RateLimit::per_minute(60.0).burst(1);
        let tries = (0..36_000u64).map(|tenth| limit.pass(1, tenth * SECOND_NS / 10));
        assert_eq!(tries.filter(Result::is_ok).count(), 3600);
    }

    #[test]
    fn a_full_table_replaces_old_clients_with_new_ones() {
        let limit = RateLimit::per_second(1.0);
        let client = |number: usize| (number * SHARDS) as u64;
        for number in 0..CLIENTS_PER_SHARD_MAX {
            assert!(limit.pass(client(number), SECOND_NS).is_ok());
        }
        let late = client(CLIENTS_PER_SHARD_MAX);
        assert!(limit.pass(late, SECOND_NS).is_ok() && limit.pass(late, SECOND_NS).is_ok());
        assert!(limit.pass(client(0), SECOND_NS).is_err());
        let later = 10 * SECOND_NS;
        assert!(limit.pass(late, later).is_ok() && limit.pass(late, later).is_err());
        assert_eq!(limit.table.shards[0].lock().unwrap().empty_at_ns.len(), 1);
    }

    #[test]
    fn neighbours_of_an_ipv6_network_are_one_client() {
        let same = |one: &str, other: &str| network(one.parse().unwrap()) == network(other.parse().unwrap());
        assert!(same("2001:db8::1", "2001:db8::ffff:1"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1") && !same("10.0.0.1", "10.0.0.2"));
    }
}
