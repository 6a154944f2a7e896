//! Figures of a running server: counted by each worker separately, added up when they are read.
//!
//! ```text
//! ended ──> Recorder (cache lines of its worker's own) ──┐
//! engine ─> WorkerFigures                               ─┼─> Source::collect ──> families ──> /metrics
//! /proc  ─> threads, memory, descriptors                ─┤
//! whoever else has figures: a proxy, a cache, a log     ─┘
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
pub(crate) use buckets::{Counted, count};
pub use counters::{Recorder, SiteTotals, Totals};
pub use own::{Counter, Figures, Gauge, Histogram};
pub use process::{Process, Thread};
pub use server::ServerSource;
pub use text::CONTENT_TYPE;
pub use tls::TlsSource;

use crate::notes::Sites;
use counters::Counters;

/// Something that has figures: it is called whenever figures are read.
pub trait Source: Send + Sync {
    /// Adds its families. Called on the control plane; it may take a lock, but must not wait.
    fn collect(&self, into: &mut Vec<Family>);
}

/// Figures of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// The name, without the ending that its kind or unit gives it: `flatout_requests`.
    pub name: &'static str,
    /// What it counts, in a sentence without a full stop.
    pub help: &'static str,
    /// What kind of figure it is.
    pub kind: Kind,
    /// Each with its labels.
    pub samples: Vec<Sample>,
}

/// Kinds of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Latencies.
    Histogram,
}

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The figure.
    pub value: Value,
}

/// The value of a figure.
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
    /// One without figures so far.
    pub fn new(name: &'static str, kind: Kind, help: &'static str) -> Family {
        Family { name, help, kind, samples: Vec::new() }
    }

    /// Adds a figure.
    pub fn add(&mut self, labels: &[(&'static str, &str)], value: Value) {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.samples.push(Sample { labels, value });
    }

    /// It with one figure more.
    #[must_use]
    pub fn with(mut self, labels: &[(&'static str, &str)], value: Value) -> Family {
        self.add(labels, value);
        self
    }
}

/// All figures of a server; clones are the same.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    sites: Sites,
    workers: Mutex<Vec<Arc<Counters>>>,
    sources: Mutex<Vec<Arc<dyn Source>>>,
}

impl Metrics {
    /// For these sites, whose requests are counted apart by the numbers in their notes.
    pub fn new(sites: Sites) -> Metrics {
        Metrics(Arc::new(Inner { sites, workers: Mutex::default(), sources: Mutex::default() }))
    }

    /// Has the figures of one more source shown.
    pub fn add(&self, source: Arc<dyn Source>) {
        self.0.sources.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// What one more worker counts with.
    pub fn recorder(&self) -> Recorder {
        let counters = Arc::new(Counters::default());
        self.0.workers.lock().unwrap_or_else(PoisonError::into_inner).push(counters.clone());
        Recorder::new(counters)
    }

    /// The names of the sites.
    pub fn sites(&self) -> Vec<String> {
        self.0.sites.names()
    }

    /// What was counted so far, by site.
    pub fn totals(&self) -> Totals {
        let workers = self.0.workers.lock().unwrap_or_else(PoisonError::into_inner);
        Totals::of(workers.iter().map(Arc::as_ref))
    }

    /// All figures. One whose source panics is left out.
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

    /// All figures in the text format of OpenMetrics.
    pub fn text(&self) -> String {
        text::text(self.collect())
    }
}
