//! Counters for upstreams: each worker has its own, on its own cache lines, written with plain loads and stores.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::failure::Failure;
use flatout_observe::metrics::{Counted, Latency, count};

/// The counters of all upstreams. They outlive plans: a server that stays keeps its counters after a reload. Clones
/// share them.
#[derive(Clone, Default)]
pub struct Figures(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    /// By upstream and server.
    servers: BTreeMap<(String, String), PerWorker<OfServer>>,
    upstreams: BTreeMap<String, PerWorker<OfUpstream>>,
}

/// One worker's counters each, under the worker's index.
type PerWorker<T> = Vec<(usize, Arc<T>)>;

/// Servers and upstreams whose counters are kept. Beyond that, those in no current plan are dropped; if none can be
/// dropped, a new one is not counted.
const KEPT_MAX: usize = 4096;

/// What one worker counts of a server.
#[repr(align(128))]
pub(crate) struct OfServer {
    pub(crate) requests: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) retries: AtomicU64,
    /// Gauges: these three go up and down.
    pub(crate) active: AtomicU64,
    pub(crate) open: AtomicU64,
    pub(crate) idle: AtomicU64,
    pub(crate) responses: Counted,
}

/// What one worker counts of an upstream.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct OfUpstream {
    /// A gauge.
    pub(crate) queued: AtomicU64,
    pub(crate) queue_full: AtomicU64,
    pub(crate) queue_time: AtomicU64,
    pub(crate) no_server: AtomicU64,
    pub(crate) no_budget: AtomicU64,
    /// By the place in [`Failure::ALL`].
    pub(crate) ended: [AtomicU64; Failure::ALL.len()],
}

impl Default for OfServer {
    fn default() -> OfServer {
        let zero = || AtomicU64::new(0);
        OfServer {
            requests: zero(),
            failures: zero(),
            retries: zero(),
            active: zero(),
            open: zero(),
            idle: zero(),
            responses: Counted::default(),
        }
    }
}

/// What all workers have counted of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerFigures {
    /// Requests sent to it.
    pub requests: u64,
    /// Failed requests, and failed attempts to connect.
    pub failures: u64,
    /// Requests repeated, at any server, after they had failed here.
    pub retries: u64,
    /// Requests in progress.
    pub active: u64,
    /// Open connections.
    pub open: u64,
    /// Open connections that are idle.
    pub idle: u64,
    /// From the start of an attempt to the end of its response.
    pub responses: Latency,
}

/// What all workers have counted of an upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpstreamFigures {
    /// Requests that wait for a connection.
    pub queued: u64,
    /// Requests refused because the queue was full.
    pub queue_full: u64,
    /// Requests refused because they waited too long.
    pub queue_time: u64,
    /// Requests refused because no server was up.
    pub no_server: u64,
    /// Retries not made because the retry budget was used up.
    pub no_budget: u64,
    /// Requests that have ended without the complete response of a server, in the order of [`Failure::ALL`].
    pub ended: [u64; Failure::ALL.len()],
}

impl Figures {
    /// A worker's counters for a server.
    pub(crate) fn of_server(&self, worker: usize, upstream: &str, server: &str) -> Arc<OfServer> {
        let servers = &mut self.lock().servers;
        own(servers, (upstream.to_owned(), server.to_owned()), worker)
    }

    /// A worker's counters for an upstream.
    pub(crate) fn of_upstream(&self, worker: usize, upstream: &str) -> Arc<OfUpstream> {
        own(&mut self.lock().upstreams, upstream.to_owned(), worker)
    }

    /// The totals of a server so far.
    pub fn server(&self, upstream: &str, server: &str) -> ServerFigures {
        let mut sum = ServerFigures::default();
        let kept = self.lock();
        for (_, one) in kept.servers.get(&(upstream.to_owned(), server.to_owned())).into_iter().flatten() {
            sum.requests += read(&one.requests);
            sum.failures += read(&one.failures);
            sum.retries += read(&one.retries);
            sum.active += read(&one.active);
            sum.open += read(&one.open);
            sum.idle += read(&one.idle);
            sum.responses.merge(&one.responses.read());
        }
        sum
    }

    /// The totals of an upstream so far.
    pub fn upstream(&self, upstream: &str) -> UpstreamFigures {
        let mut sum = UpstreamFigures::default();
        for (_, one) in self.lock().upstreams.get(upstream).into_iter().flatten() {
            sum.queued += read(&one.queued);
            sum.queue_full += read(&one.queue_full);
            sum.queue_time += read(&one.queue_time);
            sum.no_server += read(&one.no_server);
            sum.no_budget += read(&one.no_budget);
            for (sum, counter) in sum.ended.iter_mut().zip(&one.ended) {
                *sum += read(counter);
            }
        }
        sum
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's own counters under a key; later calls return the same ones.
fn own<K: Ord, T: Default>(all: &mut BTreeMap<K, PerWorker<T>>, key: K, worker: usize) -> Arc<T> {
    if all.len() >= KEPT_MAX && !all.contains_key(&key) {
        all.retain(|_, workers| workers.iter().any(|(_, counters)| Arc::strong_count(counters) > 1));
        if all.len() >= KEPT_MAX {
            return Arc::default();
        }
    }
    let workers = all.entry(key).or_default();
    if let Some((_, counters)) = workers.iter().find(|(index, _)| *index == worker) {
        return counters.clone();
    }
    let counters: Arc<T> = Arc::default();
    workers.push((worker, counters.clone()));
    counters
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Adds one.
#[inline]
pub(crate) fn up(counter: &AtomicU64) {
    count(counter, 1);
}

/// Subtracts one from a gauge.
#[inline]
pub(crate) fn down(counter: &AtomicU64) {
    count(counter, u64::MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_added_up_and_go_on_after_a_reload() {
        let figures = Figures::default();
        let (one, other) = (figures.of_server(0, "api", "a:1"), figures.of_server(1, "api", "a:1"));
        up(&one.requests);
        up(&other.requests);
        up(&one.active);
        up(&other.active);
        down(&other.active);
        one.responses.record(5_000_000);
        drop((one, other));
        up(&figures.of_server(1, "api", "a:1").requests);
        let found = figures.server("api", "a:1");
        assert_eq!((found.requests, found.active, found.responses.count()), (3, 1, 1));
        assert_eq!(figures.server("api", "b:1"), ServerFigures::default());
        up(&figures.of_upstream(0, "api").queued);
        assert_eq!(figures.upstream("api").queued, 1);
    }

    #[test]
    fn figures_without_a_plan_are_dropped_when_full() {
        let figures = Figures::default();
        let first = figures.of_upstream(0, "first");
        up(&first.queued);
        for number in 0..2 * KEPT_MAX {
            figures.of_upstream(0, &number.to_string());
        }
        assert!(figures.lock().upstreams.len() <= KEPT_MAX);
        assert_eq!(figures.upstream("first").queued, 1);
    }
}
