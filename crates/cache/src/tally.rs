//! The counters of a cache.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flatout_engine::Response;
use flatout_observe::observed::Notes;

use crate::status::CacheOutcome;
use crate::store::Store;
use flatout_observe::metrics::{Family, Kind, Value};

const LABELS: usize = CacheOutcome::ALL.len();

/// The counters of all workers, and the shared ones.
#[derive(Default)]
pub(crate) struct Tally {
    workers: Mutex<Vec<Arc<Counters>>>,
    pub(crate) evicted: Arc<AtomicU64>,
    stored: AtomicU64,
    purged: AtomicU64,
    inactive: AtomicU64,
}

/// One worker's counters, written by that worker only.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    labels: [AtomicU64; LABELS],
    collapsed: AtomicU64,
}

impl Counters {
    /// Counts a response.
    #[inline]
    pub(crate) fn count(&self, label: CacheOutcome) {
        add_one(&self.labels[label as usize]);
    }

    /// Counts a response, and notes its origin for the log.
    #[inline]
    pub(crate) fn count_response(&self, label: CacheOutcome, response: &mut Response) {
        self.count(label);
        note_outcome(label, response);
    }

    /// Counts a request that shares another's response.
    pub(crate) fn collapsed(&self) {
        add_one(&self.collapsed);
    }
}

/// No locked instruction: only this worker writes it.
#[inline]
fn add_one(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    labels: [u64; LABELS],
    collapsed: u64,
    pub(crate) evicted: u64,
    stored: u64,
    purged: u64,
    inactive: u64,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

/// Notes the origin of a response for the log.
#[inline]
pub(crate) fn note_outcome(label: CacheOutcome, response: &mut Response) {
    response.set_note(Notes::cached(response.note(), label as u8));
}

impl Tally {
    /// The counters of another worker.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(counters.clone());
        counters
    }

    pub(crate) fn stored(&self) {
        self.stored.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn purged(&self, count: usize) {
        self.purged.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn inactive(&self, count: usize) {
        self.inactive.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals {
            evicted: self.evicted.load(Ordering::Relaxed),
            stored: self.stored.load(Ordering::Relaxed),
            purged: self.purged.load(Ordering::Relaxed),
            inactive: self.inactive.load(Ordering::Relaxed),
            ..Totals::default()
        };
        for worker in self.workers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            for (total, count) in totals.labels.iter_mut().zip(&worker.labels) {
                *total += count.load(Ordering::Relaxed);
            }
            totals.collapsed += worker.collapsed.load(Ordering::Relaxed);
        }
        totals
    }
}

/// A snapshot of a cache: its counters since it was opened, and its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Responses from the cache that were fresh, or confirmed by the upstream.
    pub hits: u64,
    /// Responses from the upstream, because nothing or nothing fresh was stored.
    pub misses: u64,
    /// Stale responses from the cache.
    pub stale: u64,
    /// Requests collapsed into the request of another client.
    pub collapsed: u64,
    /// Responses evicted to make room.
    pub evicted: u64,
    /// Responses in memory.
    pub memory_entries: u64,
    /// Their size, including the index.
    pub memory_bytes: u64,
    /// Responses on disk, and their bytes, if the cache has a folder.
    pub disk: Option<(u64, u64)>,
}

impl Store {
    /// The figures for operators.
    pub(crate) fn figures(&self) -> Figures {
        let totals = self.totals();
        let of = |labels: [CacheOutcome; 2]| -> u64 {
            labels.into_iter().map(|label| totals.labels[label as usize]).sum()
        };
        Figures {
            hits: of([CacheOutcome::Hit, CacheOutcome::Revalidated]),
            misses: of([CacheOutcome::Miss, CacheOutcome::Expired]),
            stale: of([CacheOutcome::Stale, CacheOutcome::Updating]),
            collapsed: totals.collapsed,
            evicted: totals.evicted,
            memory_entries: totals.entries,
            memory_bytes: totals.bytes,
            disk: self.disk().map(crate::disk::Disk::size),
        }
    }

    /// The figures as metrics.
    pub(crate) fn collect(&self, into: &mut Vec<Family>) {
        let totals = self.totals();
        let mut requests = Family::new(
            "flatout_cache_requests",
            Kind::Counter,
            "Responses of cached routes, by cache status",
        );
        for (label, count) in CacheOutcome::ALL.into_iter().zip(totals.labels) {
            requests.add(&[("status", label.name())], Value::Count(count));
        }
        into.push(requests);
        into.push(Family::counter(
            "flatout_cache_collapsed",
            "Requests collapsed into the request of another client",
            totals.collapsed,
        ));
        into.push(Family::counter("flatout_cache_stored", "Responses stored", totals.stored));
        into.push(Family::counter("flatout_cache_evicted", "Responses evicted to make room", totals.evicted));
        into.push(Family::counter("flatout_cache_purged", "Responses purged", totals.purged));
        into.push(Family::counter(
            "flatout_cache_inactive",
            "Responses removed because they were inactive",
            totals.inactive,
        ));
        let gauge = |name, help, count| {
            Family::new(name, Kind::Gauge, help).with(&[("tier", "memory")], Value::Count(count))
        };
        if let Some(disk) = self.disk() {
            let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let tally = disk.tally();
            for (name, help, count) in [
                ("flatout_cache_disk_reads", "Responses read from disk", of(&tally.hits)),
                ("flatout_cache_disk_writes", "Responses written to disk", of(&tally.written)),
                (
                    "flatout_cache_disk_skipped",
                    "Responses not written to disk because the queue was full",
                    of(&tally.skipped),
                ),
                ("flatout_cache_disk_errors", "Disk errors", of(&tally.errors)),
            ] {
                into.push(Family::counter(name, help, count));
            }
        }
        let (disk_entries, disk_bytes) = self.disk().map(crate::disk::Disk::size).unwrap_or_default();
        let with_disk = |family: Family, count| match self.disk() {
            Some(_) => family.with(&[("tier", "disk")], Value::Count(count)),
            None => family,
        };
        into.push(with_disk(
            gauge("flatout_cache_entries", "Responses in the cache", totals.entries),
            disk_entries,
        ));
        into.push(with_disk(
            gauge("flatout_cache_bytes", "Bytes of the responses in the cache, with the index", totals.bytes),
            disk_bytes,
        ));
    }
}
