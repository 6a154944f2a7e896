//! One server of an upstream, and whether it is up.

mod ejection;
mod marks;
mod slots;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use flatout_engine::tls::{Channel, ClientPlan, Connector};
use flatout_lane::clock;
use flatout_lane::connect::Remote;

pub use self::ejection::EjectionCounts;
use self::marks::UNRESOLVED;
pub use self::marks::{ServerMode, ServerState};
pub(crate) use self::slots::ServerSlot;
use crate::hash::hash;
use crate::plan;
use crate::plan::{Address, Protocol};

/// The ALPN name of HTTP/2.
pub(crate) const H2: &[u8] = b"h2";

/// One server of an upstream. Its state is read by all workers and written when it changes.
pub(crate) struct LiveServer {
    pub(crate) plan: plan::Server,
    /// For `Host` and messages.
    pub(crate) name: String,
    /// Its name in logs and metrics.
    pub(crate) label: String,
    /// A hash of its address, the same on every host and after every start.
    pub(crate) number: u64,
    /// Its value in the cookie of sticky sessions, which does not reveal its address. Not its position in the file: clients keep their
    /// server when another is added or removed.
    pub(crate) cookie: String,
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
    /// Why it gets no requests: any of the bits below.
    closed: AtomicU8,
    /// Its weight, which an operator may change.
    weight: AtomicU32,
    /// Requests that count for its limit, with those of former settings of it.
    in_progress: Arc<AtomicU32>,
    /// How it compares with its siblings.
    standing: Mutex<ejection::Standing>,
}

/// Prepares TLS to a server.
fn connector(tls: &plan::Tls, address: &Address, protocol: Protocol) -> Result<Connector, String> {
    let plan = ClientPlan {
        authorities: tls.authorities.clone(),
        revoked: tls.revoked.clone(),
        verify: tls.verify,
        alternatives: tls.alternatives.clone(),
        identity: tls.certificate.clone(),
        protocols: match protocol {
            Protocol::H2 { .. } => vec![H2.to_vec()],
            Protocol::Http1 | Protocol::FastCgi | Protocol::Scgi | Protocol::Uwsgi | Protocol::H2c { .. } => {
                ClientPlan::default().protocols
            }
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

/// A hash of an address.
fn number_of(address: &Address) -> u64 {
    // The folder of a simulation has another name each time.
    #[cfg(feature = "simulation")]
    if let Address::Unix(path) = address {
        return hash(format!("{:?}", path.file_name()).as_bytes());
    }
    hash(format!("{address:?}").as_bytes())
}

impl LiveServer {
    /// A server of this upstream.
    ///
    /// # Errors
    /// Its TLS settings are invalid.
    pub(crate) fn new(plan: plan::Server, upstream: &plan::Upstream) -> Result<LiveServer, String> {
        let tls = plan.tls.as_ref().map(|tls| connector(tls, &plan.address, upstream.protocol));
        let connector = tls.transpose()?;
        Ok(LiveServer::open(plan, &upstream.name, connector))
    }

    fn open(plan: plan::Server, upstream: &str, connector: Option<Connector>) -> LiveServer {
        let (name, remote) = match &plan.address {
            Address::Socket(address) => (address.to_string(), Some(Remote::Tcp(*address))),
            Address::Name(name, port) => (format!("{name}:{port}"), None),
            Address::Unix(path) => ("localhost".to_owned(), Some(Remote::Unix(path.clone()))),
        };
        let label = match &remote {
            Some(remote) => remote.to_string(),
            None => name.clone(),
        };
        let number = number_of(&plan.address);
        LiveServer {
            number,
            cookie: format!("{:016x}", hash(format!("{upstream} {number}").as_bytes())),
            weight: AtomicU32::new(plan.weight.max(1)),
            closed: AtomicU8::new(marks::of_plan(&plan)),
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
            in_progress: Arc::default(),
            standing: Mutex::default(),
        }
    }

    /// It is the same server as `former`, opened anew. What is in progress there counts here, and its addresses are known. If also failures
    /// are found in the same way, it is as well as that one.
    pub(crate) fn succeeding(self, former: &LiveServer, is_alike: bool) -> LiveServer {
        let succeeding = self.counting_with(former);
        succeeding.remotes.store(former.remotes.load_full());
        if is_alike {
            succeeding.marked_like(former);
            succeeding.stands_like(former);
            let copy = |to: &AtomicU64, from: &AtomicU64| {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            };
            copy(&succeeding.window_began_ns, &former.window_began_ns);
            copy(&succeeding.down_until_ns, &former.down_until_ns);
            copy(&succeeding.up_since_ns, &former.up_since_ns);
            succeeding.failures.store(former.failures.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        succeeding
    }

    /// Starts TLS over a connection to it, if it uses TLS.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn secure(&self, socket: OwnedFd) -> io::Result<Result<Channel, OwnedFd>> {
        match &self.connector {
            Some(connector) => connector.connect(socket).map(Ok).map_err(io::Error::other),
            None => Ok(Err(socket)),
        }
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.connector.is_some()
    }

    /// Its address; round robin if its name has several.
    pub(crate) fn remote(&self) -> Option<Arc<Remote>> {
        let remotes = self.remotes.load();
        match remotes.as_slice() {
            [only] => Some(only.clone()),
            several => {
                let next = self.next.fetch_add(1, Ordering::Relaxed);
                several.get(next.checked_rem(several.len())?).cloned()
            }
        }
    }

    /// The number of its addresses.
    pub(crate) fn addresses_count(&self) -> usize {
        self.remotes.load().len()
    }

    /// The name to look up, and the port.
    pub(crate) fn dns_name(&self) -> Option<(&str, u16)> {
        match &self.plan.address {
            Address::Name(name, port) => Some((name, *port)),
            Address::Socket(_) | Address::Unix(_) => None,
        }
    }

    /// Stores the result of a lookup.
    pub(crate) fn found_at(&self, addresses: Vec<SocketAddr>) {
        let remotes = addresses.into_iter().map(|address| Arc::new(Remote::Tcp(address))).collect();
        self.remotes.store(Arc::new(remotes));
        self.set_closed(UNRESOLVED, false);
    }

    /// Whether requests may go to it. After its down time, one request tries it: the first.
    pub(crate) fn is_up(&self) -> bool {
        if !self.is_open() {
            return false;
        }
        let down_until_ns = self.down_until_ns.load(Ordering::Relaxed);
        down_until_ns == 0 || clock::nanoseconds() >= down_until_ns
    }

    /// Whether this request is the one that tries a server after its down time.
    pub(crate) fn try_again(&self, passive: &plan::Passive) -> bool {
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
    pub(crate) fn succeeded(&self) {
        if self.down_until_ns.load(Ordering::Relaxed) != 0 {
            self.down_until_ns.store(0, Ordering::Relaxed);
            self.up_since_ns.store(clock::nanoseconds(), Ordering::Relaxed);
        }
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records a failure: no response, or an invalid one.
    pub(crate) fn failed(&self, passive: &plan::Passive) {
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

    /// Its current weight, in thousandths: less than its full weight during slow start.
    pub(crate) fn weight_now(&self, slow_start: std::time::Duration) -> u64 {
        let whole = u64::from(self.weight()) * 1000;
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
    pub(crate) fn has_files(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.authorities.is_some() || tls.certificate.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::Address;

    fn server() -> LiveServer {
        let plan = plan::Server::new(Address::Socket("127.0.0.1:1".parse().unwrap()));
        LiveServer::new(plan.clone(), &plan::Upstream::new("t", vec![plan])).unwrap()
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
