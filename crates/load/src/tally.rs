//! The counts of one thread, and how they are merged.

use std::ops::AddAssign;

use hdrhistogram::Histogram;

use crate::handshakes::Handshakes;
use crate::stages::Stage;
use crate::status::Statuses;
use crate::subscribe::Sequence;

/// Why a request has no correct response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The connection was refused or not established in time, or the system had no port left.
    Connect,
    /// The connection was closed before the response started.
    Closed,
    /// The connection was reset.
    Reset,
    /// The response was not complete in time.
    Timeout,
    /// The connection was closed within the body.
    ShortBody,
    /// A complete response with an unexpected status. It counts as a request too.
    BadStatus,
    /// The head or the chunks of the response are malformed, or there were unexpected bytes.
    Malformed,
    /// A complete response with an unexpected body. It counts as a request too.
    UnexpectedBody,
    /// The TLS handshake failed, or took too long.
    Handshake,
    /// The server has reset the stream (HTTP/2).
    StreamReset,
    /// GOAWAY without a response on this stream (HTTP/2).
    GoAway,
}

/// Errors by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Errors([u64; ErrorKind::ALL.len()]);

/// Latencies of requests, in nanoseconds, with three digits of precision.
#[derive(Debug, Clone)]
pub struct Latency(Histogram<u64>);

/// The largest latency that is recorded exactly: an hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// Precision in digits: 0.1 %.
const LATENCY_DIGITS: u8 = 3;

/// Seconds that are counted separately; later ones are not in the series.
const SERIES_SECONDS_MAX: u64 = 24 * 3600;

/// What happened in the counted time.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) errors: Errors,
    pub(crate) statuses: Statuses,
    pub(crate) bytes_read: u64,
    pub(crate) connections_made: u64,
    pub(crate) handshakes: Handshakes,
    /// The fewest streams per connection that a server allowed; `None` if no server set a limit.
    pub(crate) streams_allowed: Option<u32>,
    /// From when a request was due.
    pub(crate) latency: Latency,
    /// From when it was sent; only in the open loop, where the two differ.
    pub(crate) latency_raw: Option<Latency>,
    /// How late requests were sent although a connection was free.
    pub(crate) lag: Latency,
    /// Complete responses in each second of the counted time.
    pub(crate) series: Vec<u64>,
    pub(crate) last_answer_ns: u64,
    /// For subscribers.
    pub(crate) sequence: Sequence,
    /// By stage, if the plan has some: requests count in the stage in which they became due.
    pub(crate) stages: Vec<StageTally>,
}

/// What happened to the requests of one stage.
#[derive(Debug, Clone)]
pub(crate) struct StageTally {
    /// When it ends, from the start of the counted time.
    end_ns: u64,
    pub(crate) requests: u64,
    /// Responses that came while it lasted.
    pub(crate) responses_meanwhile: u64,
    pub(crate) errors: u64,
    pub(crate) latency: Latency,
}

impl ErrorKind {
    /// All kinds, in the order in which they are shown.
    pub const ALL: [ErrorKind; 11] = [
        ErrorKind::Connect,
        ErrorKind::Closed,
        ErrorKind::Reset,
        ErrorKind::Timeout,
        ErrorKind::ShortBody,
        ErrorKind::BadStatus,
        ErrorKind::Malformed,
        ErrorKind::UnexpectedBody,
        ErrorKind::Handshake,
        ErrorKind::StreamReset,
        ErrorKind::GoAway,
    ];

    /// The name in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Connect => "connect",
            ErrorKind::Closed => "closed",
            ErrorKind::Reset => "reset",
            ErrorKind::Timeout => "timeout",
            ErrorKind::ShortBody => "short_body",
            ErrorKind::BadStatus => "bad_status",
            ErrorKind::Malformed => "malformed",
            ErrorKind::UnexpectedBody => "unexpected_body",
            ErrorKind::Handshake => "handshake",
            ErrorKind::StreamReset => "stream_reset",
            ErrorKind::GoAway => "goaway",
        }
    }
}

impl Errors {
    /// Errors of one kind.
    pub fn of(&self, kind: ErrorKind) -> u64 {
        self.0[kind as usize]
    }

    /// Errors of all kinds.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds to a count.
    pub(crate) fn add(&mut self, kind: ErrorKind, count: u64) {
        self.0[kind as usize] += count;
    }
}

impl AddAssign for Errors {
    fn add_assign(&mut self, other: Errors) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }
}

impl Latency {
    /// An empty histogram.
    ///
    /// # Panics
    /// Never: the histogram accepts these constant bounds.
    #[allow(clippy::new_without_default, reason = "it allocates a quarter of a mebibyte")]
    pub fn new() -> Latency {
        Latency(Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS).expect("constant bounds"))
    }

    /// Records one; an hour is the maximum.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    /// Records several equal ones.
    pub fn record_several(&mut self, nanoseconds: u64, count: u64) {
        self.0.saturating_record_n(nanoseconds, count);
    }

    /// The latency that `percent` of the requests did not exceed, in nanoseconds.
    pub fn percentile(&self, percent: f64) -> u64 {
        // The histogram returns the upper end of a bucket, which may be above the largest recorded value.
        self.0.value_at_percentile(percent).min(self.0.max())
    }

    /// The longest, in nanoseconds.
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// The mean, in nanoseconds.
    pub fn mean(&self) -> f64 {
        self.0.mean()
    }

    /// The standard deviation, in nanoseconds.
    pub fn deviation(&self) -> f64 {
        self.0.stdev()
    }

    /// The number of latencies.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The histogram itself, for its log formats and plots.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.0
    }

    /// What was recorded since `earlier`, an older state of the same histogram.
    pub fn since(&self, earlier: &Latency) -> Latency {
        let mut rest = self.clone();
        // Both have the same bounds. If `earlier` is not an older state, everything remains.
        let _ = rest.0.subtract(&earlier.0);
        rest
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Latency) {
        // Both have the same bounds: adding cannot fail.
        let _ = self.0.add(&other.0);
    }
}

impl Tally {
    pub(crate) fn new(is_open: bool, stages: &[Stage]) -> Tally {
        let ends = stages.iter().scan(0, |end_ns, stage| {
            *end_ns += stage.time.as_nanos() as u64;
            Some(*end_ns)
        });
        let stage = |end_ns| StageTally {
            end_ns,
            requests: 0,
            responses_meanwhile: 0,
            errors: 0,
            latency: Latency::new(),
        };
        Tally {
            requests: 0,
            errors: Errors::default(),
            statuses: Statuses::default(),
            bytes_read: 0,
            connections_made: 0,
            handshakes: Handshakes::default(),
            streams_allowed: None,
            latency: Latency::new(),
            latency_raw: is_open.then(Latency::new),
            lag: Latency::new(),
            series: Vec::new(),
            last_answer_ns: 0,
            sequence: Sequence::default(),
            stages: ends.map(stage).collect(),
        }
    }

    /// Counts a complete response that arrived at `now_ns`, with its latencies.
    #[inline]
    pub(crate) fn answer(&mut self, due_ns: u64, sent_ns: u64, now_ns: u64, begin_ns: u64) {
        self.latency.record(now_ns.saturating_sub(due_ns));
        if let Some(raw) = &mut self.latency_raw {
            raw.record(now_ns.saturating_sub(sent_ns));
        }
        if let Some(stage) = self.stage(due_ns, begin_ns) {
            stage.requests += 1;
            stage.latency.record(now_ns.saturating_sub(due_ns));
            let since_ns = now_ns.saturating_sub(begin_ns);
            if let Some(stage) = self.stages.iter_mut().find(|stage| since_ns < stage.end_ns) {
                stage.responses_meanwhile += 1;
            }
        }
        self.count(now_ns, begin_ns);
    }

    /// Counts errors of requests that became due at `due_ns`.
    pub(crate) fn fail(&mut self, kind: ErrorKind, count: u64, due_ns: u64, begin_ns: u64) {
        self.errors.add(kind, count);
        if let Some(stage) = self.stage(due_ns, begin_ns) {
            stage.errors += count;
        }
    }

    /// The stage of a request that became due at `due_ns`; the last one for later ones.
    #[inline]
    fn stage(&mut self, due_ns: u64, begin_ns: u64) -> Option<&mut StageTally> {
        let last = self.stages.len().checked_sub(1)?;
        let at = self.stages.iter().position(|stage| due_ns.saturating_sub(begin_ns) < stage.end_ns);
        self.stages.get_mut(at.unwrap_or(last))
    }

    /// Records how long `count` requests have waited whose responses are no longer expected.
    pub(crate) fn wait(&mut self, due_ns: u64, sent_ns: u64, now_ns: u64, count: u64, begin_ns: u64) {
        self.latency.record_several(now_ns.saturating_sub(due_ns), count);
        if let Some(stage) = self.stage(due_ns, begin_ns) {
            stage.latency.record_several(now_ns.saturating_sub(due_ns), count);
        }
        if let Some(raw) = &mut self.latency_raw {
            raw.record_several(now_ns.saturating_sub(sent_ns), count);
        }
    }

    /// Records how long a request has waited that was never sent.
    pub(crate) fn leave(&mut self, due_ns: u64, now_ns: u64, begin_ns: u64) {
        self.latency.record(now_ns.saturating_sub(due_ns));
        if let Some(stage) = self.stage(due_ns, begin_ns) {
            stage.latency.record(now_ns.saturating_sub(due_ns));
        }
    }

    /// Notes how many streams per connection a server allows.
    pub(crate) fn allow_streams(&mut self, allowed: u32) {
        self.streams_allowed = Some(self.streams_allowed.map_or(allowed, |least| least.min(allowed)));
    }

    /// Counts a complete response or message that arrived at `now_ns`.
    #[inline]
    pub(crate) fn count(&mut self, now_ns: u64, begin_ns: u64) {
        self.requests += 1;
        self.last_answer_ns = now_ns;
        let second = (now_ns.saturating_sub(begin_ns) / 1_000_000_000).min(SERIES_SECONDS_MAX) as usize;
        match self.series.get_mut(second) {
            Some(count) => *count += 1,
            None => {
                self.series.resize(second + 1, 0);
                self.series[second] = 1;
            }
        }
    }

    pub(crate) fn merge(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.statuses += &other.statuses;
        self.bytes_read += other.bytes_read;
        self.connections_made += other.connections_made;
        self.handshakes.merge(&other.handshakes);
        other.streams_allowed.into_iter().for_each(|allowed| self.allow_streams(allowed));
        self.latency.merge(&other.latency);
        if let (Some(raw), Some(other)) = (&mut self.latency_raw, &other.latency_raw) {
            raw.merge(other);
        }
        self.lag.merge(&other.lag);
        self.series.resize(self.series.len().max(other.series.len()), 0);
        self.series.iter_mut().zip(&other.series).for_each(|(sum, count)| *sum += count);
        self.sequence += other.sequence;
        self.last_answer_ns = self.last_answer_ns.max(other.last_answer_ns);
        for (stage, other) in self.stages.iter_mut().zip(&other.stages) {
            stage.requests += other.requests;
            stage.responses_meanwhile += other.responses_meanwhile;
            stage.errors += other.errors;
            stage.latency.merge(&other.latency);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_threads_become_one() {
        let (mut one, mut other) = (Tally::new(true, &[]), Tally::new(true, &[]));
        one.answer(0, 500, 1_000, 0);
        other.answer(0, 0, 2_500_000_000, 0);
        other.errors.add(ErrorKind::Reset, 2);
        one.merge(&other);
        assert_eq!((one.requests, one.errors.of(ErrorKind::Reset), one.errors.sum()), (2, 2, 2));
        assert_eq!(one.series, [1, 0, 1]);
        assert_eq!(one.latency.count(), 2);
        assert_eq!(one.latency_raw.unwrap().percentile(50.0), 500);
    }

    #[test]
    fn every_kind_has_a_place_and_a_name() {
        let mut errors = Errors::default();
        for (at, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
            errors.add(kind, at as u64);
            assert_eq!(errors.of(kind), at as u64);
        }
    }
}
