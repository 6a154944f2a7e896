//! An HdrHistogram log, for HdrHistogram's own tools.

use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use crate::Measured;

/// The whole run as one interval tagged `latency`, and in the open loop a second one tagged `raw`. Values are in
/// nanoseconds.
///
/// # Errors
/// The histogram cannot be written; a message.
pub fn hdr(measured: &Measured) -> Result<String, String> {
    let outcome = &measured.outcome;
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let now = SystemTime::now();
    let begun = now.checked_sub(outcome.elapsed).unwrap_or(now);
    let failed = |error: &dyn std::fmt::Debug| format!("cannot write the histogram log: {error:?}");
    let mut writer = IntervalLogWriterBuilder::new()
        .with_start_time(begun)
        .with_max_value_divisor(1.0)
        .begin_log_with(&mut bytes, &mut serializer)
        .map_err(|error| failed(&error))?;
    let all = [Some(("latency", &outcome.latency)), outcome.latency_raw.as_ref().map(|raw| ("raw", raw))];
    for (name, latency) in all.into_iter().flatten() {
        let histogram = latency.histogram();
        writer
            .write_histogram(histogram, Duration::ZERO, outcome.elapsed, Tag::new(name))
            .map_err(|error| failed(&error))?;
    }
    drop(writer);
    String::from_utf8(bytes).map_err(|error| failed(&error))
}
