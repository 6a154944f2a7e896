//! Metrics of an application.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::buckets::{Counted, Latency};
use super::{Family, Kind, Source, Value};

/// The most metrics of an application, counting each set of labels; further ones work but are not shown.
const FIGURES_MAX: usize = 10_000;

/// The metrics of an application; clones share them. Create each metric once at the start; any thread can update it.
#[derive(Clone, Default)]
pub struct Figures(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    figures: Vec<Figure>,
    fault: Option<String>,
}

struct Figure {
    name: &'static str,
    help: &'static str,
    labels: Vec<(&'static str, String)>,
    of: Of,
}

enum Of {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
}

/// A counter that only increases; clones share it. An update costs one atomic addition.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<AtomicU64>);

/// A number that goes up and down; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Gauge(Arc<AtomicI64>);

/// Durations in buckets; clones share them. An update costs two atomic additions.
#[derive(Clone)]
pub struct Histogram(Arc<Counted>);

impl Counter {
    /// Adds to the counter.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The count so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Gauge {
    /// Sets the number.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds `change` to the number.
    pub fn add(&self, change: i64) {
        self.0.fetch_add(change, Ordering::Relaxed);
    }

    /// The number.
    pub fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Histogram {
    /// Counts a duration.
    pub fn record(&self, took: Duration) {
        self.0.record_shared(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// All durations so far.
    pub fn latency(&self) -> Latency {
        self.0.read()
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram(Arc::new(Counted::default()))
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Histogram").field(&self.latency().count()).finish()
    }
}

impl Figures {
    /// Without metrics.
    pub fn new() -> Figures {
        Figures::default()
    }

    /// A counter. `name` is without `_total`, which the format adds; `labels` distinguish counters of the same name.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Counter {
        let counter = Counter::default();
        self.insert(name, help, labels, Of::Counter(counter.clone()));
        counter
    }

    /// A gauge.
    pub fn gauge(&self, name: &'static str, help: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        let gauge = Gauge::default();
        self.insert(name, help, labels, Of::Gauge(gauge.clone()));
        gauge
    }

    /// A histogram of durations; its name should end in `_seconds`.
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Histogram {
        let histogram = Histogram::default();
        self.insert(name, help, labels, Of::Histogram(histogram.clone()));
        histogram
    }

    /// Checks the names: a reader would reject all metrics for a single invalid one.
    ///
    /// # Errors
    /// A name is not allowed by OpenMetrics, is reserved for `flatout`, or has two kinds.
    pub fn check(&self) -> Result<(), String> {
        self.known().fault.clone().map_or(Ok(()), Err)
    }

    fn insert(&self, name: &'static str, help: &'static str, labels: &[(&'static str, &str)], of: Of) {
        let mut known = self.known();
        let figure = Figure {
            name,
            help,
            labels: labels.iter().map(|(label, value)| (*label, (*value).to_owned())).collect(),
            of,
        };
        let fault = figure.fault(&known.figures);
        known.fault = known.fault.take().or(fault);
        if known.figures.len() < FIGURES_MAX {
            known.figures.push(figure);
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Figure {
    fn kind(&self) -> Kind {
        match self.of {
            Of::Counter(_) => Kind::Counter,
            Of::Gauge(_) => Kind::Gauge,
            Of::Histogram(_) => Kind::Histogram,
        }
    }

    fn value(&self) -> Value {
        match &self.of {
            Of::Counter(counter) => Value::Count(counter.count()),
            Of::Gauge(gauge) => Value::Number(gauge.value() as f64),
            Of::Histogram(histogram) => Value::Latency(Box::new(histogram.latency())),
        }
    }

    /// What is wrong with it, also in relation to existing metrics.
    fn fault(&self, others: &[Figure]) -> Option<String> {
        let name = self.name;
        if !is_name(name) || name.ends_with("_total") {
            return Some(format!(
                "figure: got the name `{name}`, allowed are letters, digits and `_`, without `_total` at the end"
            ));
        }
        if ["flatout_", "process_"].iter().any(|own| name.starts_with(own)) {
            return Some(format!("figure: `{name}` is reserved for the server"));
        }
        if let Some((label, _)) = self.labels.iter().find(|(label, _)| !is_name(label) || *label == "le") {
            return Some(format!(
                "figure `{name}`: got the label `{label}`, allowed are letters, digits and `_`"
            ));
        }
        let same = others.iter().filter(|other| other.name == name);
        for other in same {
            if other.kind() != self.kind() || other.help != self.help {
                return Some(format!(
                    "figure `{name}`: another one of this name has a different kind or help"
                ));
            }
            if other.labels == self.labels {
                return Some(format!("figure `{name}`: another one has the same labels"));
            }
        }
        None
    }
}

/// Whether it is an OpenMetrics name, without a colon, which is reserved for rules.
fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(is_letter)
        && name.bytes().all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

impl Source for Figures {
    fn collect(&self, into: &mut Vec<Family>) {
        for figure in &self.known().figures {
            let labels: Vec<(&'static str, &str)> =
                figure.labels.iter().map(|(label, value)| (*label, value.as_str())).collect();
            into.push(Family::new(figure.name, figure.kind(), figure.help).with(&labels, figure.value()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_with_their_labels() {
        let figures = Figures::new();
        let (paid, failed) = (
            figures.counter("shop_orders", "Orders", &[("state", "paid")]),
            figures.counter("shop_orders", "Orders", &[("state", "failed")]),
        );
        let queue = figures.gauge("shop_queue", "Orders that wait", &[]);
        let took = figures.histogram("shop_payment_seconds", "How long payments take", &[]);
        paid.add(3);
        failed.clone().add(1);
        queue.set(5);
        queue.add(-7);
        took.record(Duration::from_millis(2));
        took.record(Duration::MAX);
        assert_eq!(figures.check(), Ok(()));
        let metrics = crate::metrics::Metrics::new(Default::default());
        metrics.add(Arc::new(figures));
        let text = metrics.text();
        for expected in [
            "shop_orders_total{state=\"paid\"} 3\n",
            "shop_orders_total{state=\"failed\"} 1\n",
            "shop_queue -2.0\n",
            "shop_payment_seconds_count 2\n",
            "shop_payment_seconds_bucket{le=\"0.002097152\"} 1\n",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn names_are_checked() {
        for (name, label) in [
            ("", "a"),
            ("a-b", "a"),
            ("1a", "a"),
            ("a_total", "a"),
            ("flatout_x", "a"),
            ("a", "le"),
            ("a", ""),
        ] {
            let figures = Figures::new();
            figures.counter(name, "help", &[(label, "x")]);
            assert!(figures.check().is_err(), "{name} {label}");
        }
        let figures = Figures::new();
        figures.counter("a", "help", &[]);
        figures.gauge("a", "help", &[]);
        assert!(figures.check().unwrap_err().contains("different kind or help"));
        let figures = Figures::new();
        figures.counter("a", "help", &[]);
        figures.counter("a", "help", &[]);
        assert!(figures.check().unwrap_err().contains("same labels"));
    }
}
