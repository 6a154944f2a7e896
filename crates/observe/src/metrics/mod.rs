//! Metrics of a running server: each worker counts separately, and readers add up.
//!
//! ```text
//! ended ──> Recorder (cache lines of its worker's own) ──┐
//! engine ─> WorkerFigures                               ─┼─> Source::collect ──> families ──> /metrics
//! /proc  ─> threads, memory, descriptors                ─┤
//! other sources of figures: a proxy, a cache, a log     ─┘
//! ```

mod buckets;
mod counters;
mod logs;
mod own;
mod process;
mod server;
mod text;
mod tls;

use std::sync::{Arc, Mutex, PoisonError};

pub use buckets::Latency;
pub use buckets::{Counted, count};
pub use counters::{Recorder, SiteTotals, Totals};
pub use own::{Counter, Figures, Gauge, Histogram};
pub use process::{Process, Thread};
pub use server::ServerSource;
pub use text::CONTENT_TYPE;
pub use tls::TlsSource;

use crate::notes::Sites;
use counters::{COUNTED_SITES_MAX, Counters};

/// A source of metrics, called whenever they are read.
pub trait Source: Send + Sync {
    /// Adds its families. Called on the control plane; it may take a lock, but must not block.
    fn collect(&self, into: &mut Vec<Family>);
}

/// Metrics with the same name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// The name, without the suffix for its kind or unit: `flatout_requests`.
    pub name: &'static str,
    /// What it measures, in a sentence without a full stop.
    pub help: &'static str,
    /// The kind of metric.
    pub kind: Kind,
    /// The samples with their labels.
    pub samples: Vec<Sample>,
}

/// Kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only increases.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Latencies.
    Histogram,
}

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: Value,
}

/// The value of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// Any number.
    Number(f64),
    /// Latencies.
    Latency(Box<Latency>),
}

impl Family {
    /// A family without samples.
    pub fn new(name: &'static str, kind: Kind, help: &'static str) -> Family {
        Family { name, help, kind, samples: Vec::new() }
    }

    /// A counter without labels.
    pub fn counter(name: &'static str, help: &'static str, count: u64) -> Family {
        Family::new(name, Kind::Counter, help).with(&[], Value::Count(count))
    }

    /// A gauge without labels.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Family {
        Family::new(name, Kind::Gauge, help).with(&[], Value::Count(value))
    }

    /// Adds a sample.
    pub fn add(&mut self, labels: &[(&'static str, &str)], value: Value) {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.samples.push(Sample { labels, value });
    }

    /// The family with another sample.
    #[must_use]
    pub fn with(mut self, labels: &[(&'static str, &str)], value: Value) -> Family {
        self.add(labels, value);
        self
    }
}

/// All metrics of a server; clones share them.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    sites: Sites,
    workers: Mutex<Vec<Arc<Counters>>>,
    sources: Mutex<Vec<Arc<dyn Source>>>,
}

impl Metrics {
    /// For these sites, whose requests are counted separately by the numbers in their notes.
    pub fn new(sites: Sites) -> Metrics {
        Metrics(Arc::new(Inner { sites, workers: Mutex::default(), sources: Mutex::default() }))
    }

    /// Adds a source.
    pub fn add(&self, source: Arc<dyn Source>) {
        self.0.sources.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// The counters for another worker.
    pub fn recorder(&self) -> Recorder {
        let counters = Arc::new(Counters::default());
        self.0.workers.lock().unwrap_or_else(PoisonError::into_inner).push(counters.clone());
        Recorder::new(counters)
    }

    /// The names of the sites that are counted. If there are more, the last name is `other`: its figures are those of all the rest.
    pub fn sites(&self) -> Vec<String> {
        let mut names = self.0.sites.names();
        if names.len() > COUNTED_SITES_MAX {
            names.truncate(COUNTED_SITES_MAX - 1);
            names.push("other".to_owned());
        }
        names
    }

    /// The totals so far, by site.
    pub fn totals(&self) -> Totals {
        let workers = self.0.workers.lock().unwrap_or_else(PoisonError::into_inner);
        Totals::of(workers.iter().map(Arc::as_ref))
    }

    /// All metrics. A source that panics is left out.
    pub fn collect(&self) -> Vec<Family> {
        let mut families = self.totals().families(&self.sites());
        let sources = self.0.sources.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for source in sources {
            let mut found = Vec::new();
            let collect = std::panic::AssertUnwindSafe(|| source.collect(&mut found));
            if std::panic::catch_unwind(collect).is_ok() {
                families.append(&mut found);
            }
        }
        families
    }

    /// All metrics in the text format of OpenMetrics.
    pub fn text(&self) -> String {
        text::text(self.collect())
    }
}
