//! What all workers know of an upstream: its servers and their state.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use flatout_engine::tls::{Channel, ClientPlan, Connector};
use flatout_lane::clock;
use flatout_lane::connect::Remote;

use super::balance::hash;
use super::plan::{self, Address, Protocol};

/// The ALPN name of HTTP/2.
pub(super) const H2: &[u8] = b"h2";

/// An upstream, shared by all workers.
pub(super) struct LiveUpstream {
    pub(super) plan: plan::Upstream,
    /// A server that existed before a reload is the same object, with its state.
    pub(super) servers: Vec<Arc<LiveServer>>,
}

/// One server of an upstream. Its state is read by all workers and written when it changes.
pub(super) struct LiveServer {
    pub(super) plan: plan::Server,
    /// For `Host` and messages.
    pub(super) name: String,
    /// Its name in logs and metrics.
    pub(super) label: String,
    /// A hash of its address, the same on every host and after every start.
    pub(super) number: u64,
    /// Its addresses; empty until its name resolves.
    remotes: ArcSwap<Vec<Arc<Remote>>>,
    connector: Option<Connector>,
    /// The next of several addresses.
    next: AtomicUsize,
    /// Failures since `window_began_ns`.
    failures: AtomicU32,
    window_began_ns: AtomicU64,
    /// When its down time ends; 0 for a server that is up.
    down_until_ns: AtomicU64,
    /// When it came up again, for slow start; 0 if it was never down.
    up_since_ns: AtomicU64,
    /// The last result of the health checks.
    is_healthy: AtomicBool,
}

/// The state of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// It gets its full share of requests.
    Up,
    /// It has recovered, and gets less than its share for a while.
    SlowStart,
    /// It has failed, or its health checks have.
    Down,
    /// Its name has not resolved yet.
    NoAddress,
}

impl ServerState {
    /// All states.
    pub const ALL: [ServerState; 4] =
        [ServerState::Up, ServerState::SlowStart, ServerState::Down, ServerState::NoAddress];

    /// Its name, for people and metrics.
    pub fn name(self) -> &'static str {
        match self {
            ServerState::Up => "up",
            ServerState::SlowStart => "slow start",
            ServerState::Down => "down",
            ServerState::NoAddress => "no address",
        }
    }
}

impl LiveUpstream {
    /// Servers with unchanged settings are taken from `former`; those with TLS files are opened anew.
    ///
    /// # Errors
    /// The TLS settings of a server are invalid.
    pub(super) fn after(plan: plan::Upstream, former: &[LiveUpstream]) -> Result<LiveUpstream, String> {
        let former = former.iter().find(|former| former.plan.name == plan.name);
        let former = former.filter(|former| former.plan.speaks_alike(&plan));
        let known = |server: &plan::Server| {
            let is_known = |known: &&Arc<LiveServer>| known.plan == *server && !server.has_files();
            former.and_then(|former| former.servers.iter().find(is_known))
        };
        plan.check().map_err(|why| format!("upstream {}: {why}", plan.name))?;
        let open = |server: &plan::Server| match known(server) {
            Some(known) => Ok(known.clone()),
            None => LiveServer::new(server.clone(), plan.protocol)
                .map(Arc::new)
                .map_err(|why| format!("upstream {}: {why}", plan.name)),
        };
        let servers = plan.servers.iter().map(open).collect::<Result<_, _>>()?;
        Ok(LiveUpstream { plan, servers })
    }
}

/// Prepares TLS to a server.
fn connector(tls: &plan::Tls, address: &Address, protocol: Protocol) -> Result<Connector, String> {
    let plan = ClientPlan {
        authorities: tls.authorities.clone(),
        verify: tls.verify,
        identity: tls.certificate.clone(),
        protocols: match protocol {
            Protocol::H2 { .. } => vec![H2.to_vec()],
            Protocol::Http1 | Protocol::H2c { .. } => ClientPlan::default().protocols,
        },
        ..ClientPlan::default()
    };
    let name = match (&tls.name, address) {
        (Some(name), _) => name.clone(),
        (None, Address::Name(name, _)) => name.clone(),
        (None, Address::Socket(address)) => address.ip().to_string(),
        (None, Address::Unix(_)) => "localhost".to_owned(),
    };
    Connector::open(&plan, &name)
}

impl LiveServer {
    fn new(plan: plan::Server, protocol: Protocol) -> Result<LiveServer, String> {
        let (name, remote) = match &plan.address {
            Address::Socket(address) => (address.to_string(), Some(Remote::Tcp(*address))),
            Address::Name(name, port) => (format!("{name}:{port}"), None),
            Address::Unix(path) => ("localhost".to_owned(), Some(Remote::Unix(path.clone()))),
        };
        let connector = match &plan.tls {
            Some(tls) => Some(connector(tls, &plan.address, protocol)?),
            None => None,
        };
        let label = match &remote {
            Some(remote) => remote.to_string(),
            None => name.clone(),
        };
        Ok(LiveServer {
            number: hash(format!("{:?}", plan.address).as_bytes()),
            plan,
            name,
            label,
            connector,
            remotes: ArcSwap::from_pointee(remote.into_iter().map(Arc::new).collect()),
            next: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            window_began_ns: AtomicU64::new(0),
            down_until_ns: AtomicU64::new(0),
            up_since_ns: AtomicU64::new(0),
            is_healthy: AtomicBool::new(true),
        })
    }

    /// Starts TLS over a connection to it, if it uses TLS.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn secure(&self, socket: OwnedFd) -> io::Result<Result<Channel, OwnedFd>> {
        match &self.connector {
            Some(connector) => connector.connect(socket).map(Ok).map_err(io::Error::other),
            None => Ok(Err(socket)),
        }
    }

    pub(super) fn is_secure(&self) -> bool {
        self.connector.is_some()
    }

    /// Its address; round robin if its name has several.
    pub(super) fn remote(&self) -> Option<Arc<Remote>> {
        let remotes = self.remotes.load();
        match remotes.as_slice() {
            [only] => Some(only.clone()),
            several => {
                let next = self.next.fetch_add(1, Ordering::Relaxed);
                several.get(next.checked_rem(several.len())?).cloned()
            }
        }
    }

    /// The name to look up, and the port.
    pub(super) fn dns_name(&self) -> Option<(&str, u16)> {
        match &self.plan.address {
            Address::Name(name, port) => Some((name, *port)),
            Address::Socket(_) | Address::Unix(_) => None,
        }
    }

    /// Stores the result of a lookup.
    pub(super) fn found_at(&self, addresses: Vec<SocketAddr>) {
        let remotes = addresses.into_iter().map(|address| Arc::new(Remote::Tcp(address))).collect();
        self.remotes.store(Arc::new(remotes));
    }

    /// Whether requests may go to it. After its down time, one request tries it: the first.
    pub(super) fn is_up(&self) -> bool {
        if !self.is_checked_up() {
            return false;
        }
        let down_until_ns = self.down_until_ns.load(Ordering::Relaxed);
        down_until_ns == 0 || clock::nanoseconds() >= down_until_ns
    }

    /// Its state; `slow_start` is its upstream's.
    pub(super) fn state(&self, slow_start: std::time::Duration) -> ServerState {
        if self.remotes.load().is_empty() {
            ServerState::NoAddress
        } else if !self.is_checked_up() || self.down_until_ns.load(Ordering::Relaxed) != 0 {
            ServerState::Down
        } else if self.weight_now(slow_start) < u64::from(self.plan.weight.max(1)) * 1000 {
            ServerState::SlowStart
        } else {
            ServerState::Up
        }
    }

    /// Whether the health checks find it up, or there are none.
    pub(super) fn is_checked_up(&self) -> bool {
        self.is_healthy.load(Ordering::Relaxed)
    }

    /// Whether this request is the one that tries a server after its down time.
    pub(super) fn try_again(&self, passive: &plan::Passive) -> bool {
        let down_until_ns = self.down_until_ns.load(Ordering::Relaxed);
        if down_until_ns == 0 {
            return true;
        }
        let next_ns = clock::nanoseconds() + passive.down_time.as_nanos() as u64;
        self.down_until_ns
            .compare_exchange(down_until_ns, next_ns, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Records a success.
    pub(super) fn succeeded(&self) {
        if self.down_until_ns.load(Ordering::Relaxed) != 0 {
            self.down_until_ns.store(0, Ordering::Relaxed);
            self.up_since_ns.store(clock::nanoseconds(), Ordering::Relaxed);
        }
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records a failure: no response, or an invalid one.
    pub(super) fn failed(&self, passive: &plan::Passive) {
        if passive.failures_max == 0 {
            return;
        }
        let now_ns = clock::nanoseconds();
        let began_ns = self.window_began_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(began_ns) > passive.window.as_nanos() as u64 {
            self.window_began_ns.store(now_ns, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= passive.failures_max {
            self.down_until_ns.store(now_ns + passive.down_time.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Records the result of a health check.
    pub(super) fn set_healthy(&self, is_healthy: bool) {
        let was = self.is_healthy.swap(is_healthy, Ordering::Relaxed);
        if is_healthy && !was {
            self.failures.store(0, Ordering::Relaxed);
            self.down_until_ns.store(0, Ordering::Relaxed);
            self.up_since_ns.store(clock::nanoseconds(), Ordering::Relaxed);
        }
    }

    /// Its current weight, in thousandths: less than its full weight during slow start.
    pub(super) fn weight_now(&self, slow_start: std::time::Duration) -> u64 {
        let whole = u64::from(self.plan.weight.max(1)) * 1000;
        let since_ns = self.up_since_ns.load(Ordering::Relaxed);
        if since_ns == 0 || slow_start.is_zero() {
            return whole;
        }
        let up_ns = clock::nanoseconds().saturating_sub(since_ns);
        let share = up_ns as f64 / slow_start.as_nanos() as f64;
        ((whole as f64 * share.min(1.0)) as u64).max(1)
    }
}

impl plan::Server {
    fn has_files(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.authorities.is_some() || tls.certificate.is_some())
    }
}

impl plan::Upstream {
    /// Whether a server's state and connections stay valid when this upstream is replaced by `other`.
    fn speaks_alike(&self, other: &plan::Upstream) -> bool {
        (&self.active, self.passive, self.send_proxy_protocol, self.protocol)
            == (&other.active, other.passive, other.send_proxy_protocol, other.protocol)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn server() -> LiveServer {
        LiveServer::new(plan::Server::new(Address::Socket("127.0.0.1:1".parse().unwrap())), Protocol::Http1)
            .unwrap()
    }

    #[test]
    fn a_server_that_fails_is_left_alone_for_a_while() {
        let passive = plan::Passive {
            failures_max: 2,
            window: Duration::from_secs(60),
            down_time: Duration::from_millis(500),
        };
        let server = server();
        server.failed(&passive);
        assert!(server.is_up(), "once is not enough");
        server.failed(&passive);
        assert!(!server.is_up());
        assert_eq!(server.state(Duration::ZERO), ServerState::Down);
        std::thread::sleep(Duration::from_millis(510));
        assert!(server.is_up() && server.try_again(&passive), "then one request tries it");
        assert!(!server.is_up(), "and nobody else meanwhile");
        server.succeeded();
        assert!(server.is_up());
        assert_eq!(server.weight_now(Duration::ZERO), 1000);
        assert_eq!(server.state(Duration::ZERO), ServerState::Up);
        assert_eq!(server.state(Duration::from_secs(3600)), ServerState::SlowStart);
        assert!(server.weight_now(Duration::from_secs(3600)) < 10, "it starts slowly");
    }

    #[test]
    fn servers_stay_where_nothing_changed_for_them() {
        let plan = |ports: &[u16], failures_max| {
            let server = |&port| plan::Server::new(Address::Socket(([127, 0, 0, 1], port).into()));
            let mut plan = plan::Upstream::new("u", ports.iter().map(server).collect());
            plan.passive.failures_max = failures_max;
            plan
        };
        let first = LiveUpstream::after(plan(&[1, 2], 1), &[]).unwrap();
        first.servers[1].failed(&first.plan.passive);
        let other = LiveUpstream::after(plan(&[3, 2], 1), std::slice::from_ref(&first)).unwrap();
        assert!(!Arc::ptr_eq(&other.servers[0], &first.servers[0]));
        assert!(Arc::ptr_eq(&other.servers[1], &first.servers[1]) && !other.servers[1].is_up());
        let lenient = LiveUpstream::after(plan(&[3, 2], 9), std::slice::from_ref(&other)).unwrap();
        assert!(lenient.servers[1].is_up(), "what was counted by other rules does not count");
    }

    #[test]
    fn failures_that_are_far_apart_do_not_add_up() {
        let passive = plan::Passive {
            failures_max: 2,
            window: Duration::from_millis(10),
            down_time: Duration::from_secs(60),
        };
        let server = server();
        for _ in 0..3 {
            server.failed(&passive);
            std::thread::sleep(Duration::from_millis(15));
        }
        assert!(server.is_up());
    }
}
