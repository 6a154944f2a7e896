//! State shared by workers: counters that only change when a connection starts or ends.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::bug;
use crate::readers::Readers;

/// Connections of the whole server.
pub(crate) struct Shared {
    connections: AtomicUsize,
    connections_max: AtomicUsize,
    addresses: Option<Addresses>,
    /// Memory of collected request bodies.
    bodies_bytes: Arc<AtomicU64>,
    readers: Arc<Readers>,
    started: Instant,
    complained_at_s: AtomicU64,
    proxy_complained_at_s: AtomicU64,
}

struct Addresses {
    counts: Mutex<HashMap<Prefix, usize>>,
    connections_max: usize,
}

/// Figures of one worker, which it writes once per turn: on separate cache lines, so that workers do not share any.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Stats {
    pub(crate) requests: AtomicU64,
    pub(crate) connections: AtomicUsize,
    pub(crate) accepted: AtomicU64,
    /// Connections that were closed because of their PROXY protocol headers.
    pub(crate) proxy_refused: AtomicU64,
    /// Connections that have left the lane.
    pub(crate) taken: AtomicUsize,
    /// Connections by state when the worker last counted, in the order of [`State`](crate::State).
    pub(crate) states: [AtomicUsize; 5],
    /// Memory of the worker's tables and buffers at that time.
    pub(crate) memory_bytes: AtomicUsize,
    /// States were requested: the worker counts its connections.
    pub(crate) is_asked: AtomicBool,
}

impl Shared {
    pub(crate) fn new(connections_max: usize, per_address_max: Option<usize>) -> Shared {
        let addresses = per_address_max
            .map(|connections_max| Addresses { counts: Mutex::new(HashMap::new()), connections_max });
        Shared {
            connections: AtomicUsize::new(0),
            connections_max: AtomicUsize::new(connections_max),
            addresses,
            bodies_bytes: Arc::default(),
            readers: Arc::default(),
            started: Instant::now(),
            complained_at_s: AtomicU64::new(u64::MAX),
            proxy_complained_at_s: AtomicU64::new(u64::MAX),
        }
    }

    /// Memory of the collected request bodies of all workers.
    pub(crate) fn bodies_bytes(&self) -> Arc<AtomicU64> {
        self.bodies_bytes.clone()
    }

    /// The threads that read files for the workers.
    pub(crate) fn readers(&self) -> Arc<Readers> {
        self.readers.clone()
    }

    /// Whether one more connection may be accepted. Workers may exceed the limit by one each.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.connections.load(Ordering::Relaxed) < self.connections_max.load(Ordering::Relaxed)
    }

    /// Sets the limit of open connections; existing ones stay.
    pub(crate) fn set_connections_max(&self, connections_max: usize) {
        self.connections_max.store(connections_max, Ordering::Relaxed);
    }

    /// Counts a connection; `false` if its address has too many, and it has to be closed.
    pub(crate) fn admit(&self, peer: Option<SocketAddr>) -> bool {
        let is_admitted = self.admit_address(peer);
        self.connections.fetch_add(usize::from(is_admitted), Ordering::Relaxed);
        is_admitted
    }

    /// Counts the address of a connection that is already counted, but had no known client until now.
    pub(crate) fn admit_address(&self, peer: Option<SocketAddr>) -> bool {
        if let (Some(addresses), Some(peer)) = (&self.addresses, peer) {
            let mut counts = addresses.counts.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(Prefix::of(peer)).or_insert(0);
            if *count >= addresses.connections_max {
                return false;
            }
            *count += 1;
        }
        true
    }

    /// Uncounts a connection.
    pub(crate) fn release(&self, peer: Option<Prefix>) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        if let (Some(addresses), Some(peer)) = (&self.addresses, peer) {
            let mut counts = addresses.counts.lock().unwrap_or_else(PoisonError::into_inner);
            match counts.get_mut(&peer) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) => drop(counts.remove(&peer)),
                None => bug!("a connection ends whose address was not counted"),
            }
        }
    }

    /// Logs, at most once a second for the whole server, that accepting has to wait.
    pub(crate) fn complain(&self, error: &io::Error) {
        if self.is_new_second(&self.complained_at_s) {
            let served = self.connections.load(Ordering::Relaxed);
            crate::say::report(
                crate::say::Severity::Warning,
                format_args!(
                    "cannot accept new connections: {error}; the {served} open ones are still served"
                ),
            );
        }
    }

    /// Logs, at most once a second too, that a connection was closed because of its PROXY protocol header.
    pub(crate) fn complain_of_proxy(&self, peer: Option<SocketAddr>, reason: &str) {
        if self.is_new_second(&self.proxy_complained_at_s) {
            let peer = peer.map_or_else(|| "a Unix socket".to_owned(), |peer| peer.to_string());
            crate::say::report(
                crate::say::Severity::Warning,
                format_args!("a connection from {peer} was closed: {reason}"),
            );
        }
    }

    fn is_new_second(&self, last_s: &AtomicU64) -> bool {
        let now = self.started.elapsed().as_secs();
        last_s.swap(now, Ordering::Relaxed) != now
    }
}

/// A client for the limit per address: an IPv4 address, or an IPv6 /64. It takes eight bytes, because every
/// connection that has left the lane keeps one. IPv4 is mapped to a reserved IPv6 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Prefix(NonZeroU64);

impl Prefix {
    pub(crate) fn of(peer: SocketAddr) -> Prefix {
        let bits = match peer.ip().to_canonical() {
            IpAddr::V4(address) => 0xffff_0000_0000 | u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        // ::/64 is the loopback's.
        Prefix(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_counted_separately() {
        let shared = Shared::new(10, Some(1));
        let peer = |text: &str| Some(text.parse().unwrap());
        assert!(shared.admit(peer("[2001:db8::1]:1")));
        assert!(!shared.admit(peer("[2001:db8::2]:1")), "one /64 is one address");
        assert!(shared.admit(peer("[2001:db8:0:1::]:1")));
        assert!(shared.admit(peer("1.2.3.4:1")));
        assert!(!shared.admit(peer("[::ffff:1.2.3.4]:2")), "a mapped address is the IPv4 one");
        assert!(shared.admit(None) && shared.admit(None), "Unix sockets have none");
        shared.release(peer("1.2.3.4:9").map(Prefix::of));
        assert!(shared.admit(peer("1.2.3.4:2")));
    }

    #[test]
    fn connection_limit_is_enforced() {
        let shared = Shared::new(1, None);
        assert!(shared.has_room() && shared.admit(None));
        assert!(!shared.has_room());
        shared.release(None);
        assert!(shared.has_room());
    }
}
