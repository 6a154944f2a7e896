//! Each worker's counters, on its own cache lines, written with plain loads and stores.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flatout_engine::{Ended, Outcome};

use super::buckets::{Counted, Latency, count};
use super::{Family, Kind, Value};

/// Status classes: none, 1xx to 5xx, and other.
const CLASSES: usize = 7;
const CLASS_NAMES: [&str; CLASSES] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx", "other"];

const OUTCOMES: usize = Outcome::ALL.len();

/// One worker's counters for each site, which are created at the first request for the site.
#[derive(Default)]
pub(super) struct Counters {
    sites: Mutex<Vec<Arc<Site>>>,
}

/// Sites with figures of their own; all later ones share the last ones.
pub(super) const COUNTED_SITES_MAX: usize = 1024;

/// The counters of one site.
#[repr(align(128))]
struct Site {
    /// Requests by outcome, and within that by status class.
    requests: [AtomicU64; OUTCOMES * CLASSES],
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    latency: Counted,
}

impl Site {
    fn new() -> Site {
        let zero = || AtomicU64::new(0);
        Site {
            requests: std::array::from_fn(|_| zero()),
            received_bytes: zero(),
            sent_bytes: zero(),
            latency: Counted::default(),
        }
    }

    #[inline]
    fn count(&self, ended: &Ended) {
        let class = usize::from(ended.status.map_or(0, |status| status.code()) / 100).min(CLASSES - 1);
        if let Some(requests) = self.requests.get(ended.outcome as usize * CLASSES + class) {
            count(requests, 1);
        }
        count(&self.received_bytes, ended.received_bytes);
        count(&self.sent_bytes, ended.sent_bytes);
        self.latency.record(ended.ended_ns.saturating_sub(ended.began_ns));
    }
}

/// Counts the requests of one worker.
pub struct Recorder {
    counters: Arc<Counters>,
    /// Sites used so far, which can be read without the lock.
    sites: RefCell<Vec<Arc<Site>>>,
}

impl Recorder {
    pub(super) fn new(counters: Arc<Counters>) -> Recorder {
        Recorder { counters, sites: RefCell::default() }
    }

    /// Counts a request of the site with this number.
    #[inline]
    pub fn record(&self, ended: &Ended, site: u16) {
        if let Some(site) = self.sites.borrow().get(usize::from(site)) {
            return site.count(ended);
        }
        self.record_first(ended, site);
    }

    /// Counts the first request for a site, or one for a site that shares the last counters.
    #[cold]
    fn record_first(&self, ended: &Ended, site: u16) {
        let last = usize::from(site).min(COUNTED_SITES_MAX - 1);
        let mut sites = self.sites.borrow_mut();
        if sites.len() <= last {
            let mut shared = self.counters.sites.lock().unwrap_or_else(PoisonError::into_inner);
            shared.resize_with(last + 1, || Arc::new(Site::new()));
            sites.clone_from(&shared);
        }
        if let Some(site) = sites.get(last) {
            site.count(ended);
        }
    }
}

/// The totals of all workers, by site.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// One for each site that had requests, by its number.
    pub sites: Vec<SiteTotals>,
}

/// The totals of one site.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SiteTotals {
    /// Requests by the first digit of their status; 0 is no response, 6 is other.
    pub classes: [u64; CLASSES],
    /// Requests by outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; OUTCOMES],
    /// Bytes of requests.
    pub received_bytes: u64,
    /// Bytes of responses.
    pub sent_bytes: u64,
    /// How long requests took.
    pub latency: Latency,
}

impl SiteTotals {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// Requests that failed on our side: 5xx, no response, or an incomplete one.
    pub fn errors(&self) -> u64 {
        let of = |outcome: Outcome| self.outcomes.get(outcome as usize).copied().unwrap_or(0);
        let [_, _, _, _, _, server, _] = self.classes;
        server + of(Outcome::Failed) + of(Outcome::TimedOut)
    }

    /// Adds the totals of another.
    pub fn merge(&mut self, other: &SiteTotals) {
        self.classes.iter_mut().zip(other.classes).for_each(|(sum, more)| *sum += more);
        self.outcomes.iter_mut().zip(other.outcomes).for_each(|(sum, more)| *sum += more);
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        self.latency.merge(&other.latency);
    }
}

impl Totals {
    pub(super) fn of<'a>(workers: impl Iterator<Item = &'a Counters>) -> Totals {
        let mut totals = Totals::default();
        for worker in workers {
            let counted = worker.sites.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if totals.sites.len() < counted.len() {
                totals.sites.resize_with(counted.len(), SiteTotals::default);
            }
            for (total, site) in totals.sites.iter_mut().zip(counted) {
                total.merge(&site.read());
            }
        }
        totals
    }

    /// All sites together.
    pub fn all(&self) -> SiteTotals {
        let mut all = SiteTotals::default();
        self.sites.iter().for_each(|site| all.merge(site));
        all
    }

    pub(super) fn families(&self, names: &[String]) -> Vec<Family> {
        let mut requests =
            Family::new("flatout_requests", Kind::Counter, "Requests by site and status class");
        let mut ended = Family::new("flatout_requests_ended", Kind::Counter, "Requests by outcome");
        let mut received =
            Family::new("flatout_received_bytes", Kind::Counter, "Bytes of requests, heads and bodies");
        let mut sent =
            Family::new("flatout_sent_bytes", Kind::Counter, "Bytes of responses, heads and bodies");
        let mut latency = Family::new(
            "flatout_request_duration_seconds",
            Kind::Histogram,
            "Time from the request head to the end of the response",
        );
        for (site, name) in self.sites.iter().zip(names) {
            for (class, count) in CLASS_NAMES.iter().zip(site.classes) {
                requests.add(&[("site", name), ("status", class)], Value::Count(count));
            }
            for (outcome, count) in Outcome::ALL.iter().zip(site.outcomes) {
                ended.add(&[("site", name), ("outcome", outcome.name())], Value::Count(count));
            }
            received.add(&[("site", name)], Value::Count(site.received_bytes));
            sent.add(&[("site", name)], Value::Count(site.sent_bytes));
            latency.add(&[("site", name)], Value::Latency(Box::new(site.latency.clone())));
        }
        vec![requests, ended, received, sent, latency]
    }
}

impl Site {
    fn read(&self) -> SiteTotals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let requests = self.requests.each_ref().map(read);
        let of_class = |class| requests.iter().skip(class).step_by(CLASSES).sum();
        let by_outcome = requests.as_chunks::<CLASSES>().0;
        let of_outcome =
            |outcome| by_outcome.get(outcome).map_or(0, |classes: &[u64; CLASSES]| classes.iter().sum());
        SiteTotals {
            classes: std::array::from_fn(of_class),
            outcomes: std::array::from_fn(of_outcome),
            received_bytes: read(&self.received_bytes),
            sent_bytes: read(&self.sent_bytes),
            latency: self.latency.read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::Sites;
    use flatout_wire::Status;

    fn ended(code: u16, outcome: Outcome) -> Ended {
        Ended {
            status: Status::from_code(code),
            received_bytes: 10,
            sent_bytes: 20,
            sent_head_bytes: 5,
            began_ns: 1_000_000,
            first_byte_ns: None,
            ended_ns: 3_000_000,
            unix_ns: 0,
            outcome,
            mark: 0,
            note: 0,
        }
    }

    #[test]
    fn workers_are_added_up_by_site() {
        let sites = Sites::single("a");
        let metrics = super::super::Metrics::new(sites.clone());
        assert_eq!(sites.number("b"), 1);
        let (one, other) = (metrics.recorder(), metrics.recorder());
        one.record(&ended(200, Outcome::Sent), 0);
        one.record(&ended(503, Outcome::Sent), 1);
        other.record(&ended(999, Outcome::Failed), 1);
        other.record(&ended(404, Outcome::Sent), u16::MAX);
        let totals = metrics.totals();
        assert_eq!(totals.sites[0].classes, [0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(totals.sites[1].classes, [0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(totals.sites[COUNTED_SITES_MAX - 1].classes, [0, 0, 0, 0, 1, 0, 0]);
        assert_eq!((totals.all().requests(), totals.all().errors()), (4, 2));
        // Those without figures of their own share the last name.
        for at in 2..=COUNTED_SITES_MAX {
            assert_eq!(sites.number(&format!("s{at}")), at as u16);
        }
        let names = metrics.sites();
        assert_eq!((names.len(), names.last().unwrap().as_str()), (COUNTED_SITES_MAX, "other"));
        assert_eq!(names[COUNTED_SITES_MAX - 2], format!("s{}", COUNTED_SITES_MAX - 2));
        assert_eq!((totals.all().received_bytes, totals.all().sent_bytes), (40, 80));
        assert_eq!(totals.all().latency.count(), 4);
        assert_eq!(totals.all().latency.sum_ns(), 8_000_000);
    }
}
