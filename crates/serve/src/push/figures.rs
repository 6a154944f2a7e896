//! What is counted.

use std::sync::atomic::{AtomicU64, Ordering};

use super::hub::Hub;
use crate::metrics::{Family, Kind, Source, Value};

/// A count that several threads add to, now and then.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn take(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The figures of all channels. Workers add to them once for many deliveries.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) published: Count,
    pub(super) delivered: Count,
    /// Deliveries that a socket had no room for.
    pub(super) delayed: Count,
    /// Subscribers that were behind too far.
    pub(super) dropped: Count,
    /// Subscribers that were told of a gap.
    pub(super) gaps: Count,
    pub(super) events: Count,
    pub(super) websockets: Count,
    pub(super) polls: Count,
    /// Keys of latest values that were asked for.
    pub(super) keys: Count,
    /// Milliseconds that the last delivery to all subscribers of a channel on one worker took.
    pub(super) lag_ms: AtomicU64,
}

impl Source for Hub {
    fn collect(&self, into: &mut Vec<Family>) {
        let (figures, totals) = (&self.0.figures, self.totals());
        let one = |name, kind, help, count| Family::new(name, kind, help).with(&[], Value::Count(count));
        let subscribers =
            Family::new("flatout_push_subscribers", Kind::Gauge, "Subscribers that are there now")
                .with(&[("transport", "events")], Value::Count(figures.events.value()))
                .with(&[("transport", "websocket")], Value::Count(figures.websockets.value()))
                .with(&[("transport", "poll")], Value::Count(figures.polls.value()));
        let lag_s = figures.lag_ms.load(Ordering::Relaxed) as f64 / 1e3;
        into.extend([
            subscribers,
            one(
                "flatout_push_channels",
                Kind::Gauge,
                "Channels with subscribers or messages",
                totals.channels,
            ),
            one(
                "flatout_push_history_bytes",
                Kind::Gauge,
                "Bytes that messages of channels take",
                totals.history_bytes,
            ),
            one(
                "flatout_push_published",
                Kind::Counter,
                "Messages that were published",
                figures.published.value(),
            ),
            one(
                "flatout_push_delivered",
                Kind::Counter,
                "Messages that were handed to subscribers' sockets",
                figures.delivered.value(),
            ),
            one(
                "flatout_push_delayed",
                Kind::Counter,
                "Deliveries that had to wait for a subscriber's socket",
                figures.delayed.value(),
            ),
            one(
                "flatout_push_dropped",
                Kind::Counter,
                "Subscribers that were dropped because they were too far behind",
                figures.dropped.value(),
            ),
            one(
                "flatout_push_gaps",
                Kind::Counter,
                "Subscribers that missed messages and were told so",
                figures.gaps.value(),
            ),
            one(
                "flatout_push_keys",
                Kind::Counter,
                "Keys of latest values that were asked for",
                figures.keys.value(),
            ),
            Family::new(
                "flatout_push_walk_seconds",
                Kind::Gauge,
                "How long a worker's last delivery to all subscribers of a channel took",
            )
            .with(&[], Value::Number(lag_s)),
        ]);
    }
}
