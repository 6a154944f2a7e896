//! Metrics as text, in the format of OpenMetrics 1.0.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::{Family, Kind, Sample, Value};

/// The media type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of families. Families with the same name are merged.
pub(super) fn text(families: Vec<Family>) -> String {
    let mut joined: Vec<Family> = Vec::with_capacity(families.len());
    for family in families {
        match joined.iter_mut().find(|one| one.name == family.name && one.kind == family.kind) {
            Some(one) => one.samples.extend(family.samples),
            None => joined.push(family),
        }
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(joined)));
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut out, &registry);
    out
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in self.0.iter().filter(|family| !family.samples.is_empty()) {
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for sample in &family.samples {
                match sample.labels.is_empty() {
                    true => encode(&mut metric, family.kind, sample)?,
                    false => encode(&mut metric.encode_family(&sample.labels)?, family.kind, sample)?,
                }
            }
        }
        Ok(())
    }
}

/// No labels, in the type that the encoder needs.
type NoLabels = [(&'static str, String); 0];

fn encode(metric: &mut MetricEncoder<'_>, kind: Kind, sample: &Sample) -> Result<(), fmt::Error> {
    match (&sample.value, kind) {
        (Value::Latency(latency), _) => {
            let sum = latency.sum_ns() as f64 / 1e9;
            metric.encode_histogram::<NoLabels>(sum, latency.count(), &latency.by_power(), None)
        }
        (Value::Count(count), Kind::Counter) => metric.encode_counter::<NoLabels, u64, u64>(count, None),
        (Value::Number(number), Kind::Counter) => metric.encode_counter::<NoLabels, f64, u64>(number, None),
        (Value::Count(count), _) => metric.encode_gauge(count),
        (Value::Number(number), _) => metric.encode_gauge(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Latency;

    #[test]
    fn the_text_is_openmetrics() {
        let mut latency = Latency::default();
        latency.record(2_000_000);
        let families = vec![
            Family::new("flatout_requests", Kind::Counter, "Requests")
                .with(&[("site", "a\"\\\n"), ("status", "2xx")], Value::Count(3)),
            Family::new("flatout_up", Kind::Gauge, "Whether it is up").with(&[], Value::Number(1.5)),
            Family::new("flatout_requests", Kind::Counter, "Requests")
                .with(&[("site", "b"), ("status", "2xx")], Value::Count(4)),
            Family::new("flatout_time_seconds", Kind::Histogram, "Times")
                .with(&[("site", "a")], Value::Latency(Box::new(latency))),
            Family::new("flatout_none", Kind::Gauge, "Without figures"),
        ];
        let text = text(families);
        assert_eq!(text.matches("# TYPE flatout_requests counter").count(), 1, "{text}");
        for expected in [
            "flatout_requests_total{site=\"a\\\"\\\\\\n\",status=\"2xx\"} 3\n",
            "flatout_requests_total{site=\"b\",status=\"2xx\"} 4\n",
            "flatout_up 1.5\n",
            "flatout_time_seconds_bucket{le=\"0.002097152\",site=\"a\"} 1\n",
            "flatout_time_seconds_bucket{le=\"+Inf\",site=\"a\"} 1\n",
            "flatout_time_seconds_count{site=\"a\"} 1\n",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(text.ends_with("# EOF\n") && !text.contains("flatout_none"), "{text}");
    }
}
