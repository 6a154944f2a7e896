//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};

use super::groups::GroupCount;
use super::hub::Hub;
use flatout_observe::metrics::{Family, Kind, Source, Value};

/// A counter that several threads update occasionally.
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

/// The counters of all channels. Workers update them once for many deliveries.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) published: Count,
    pub(super) delivered: Count,
    /// Deliveries for which a socket had no room.
    pub(super) delayed: Count,
    /// Subscribers dropped because they fell too far behind.
    pub(super) dropped: Count,
    /// Subscribers that were sent a gap.
    pub(super) gaps: Count,
    pub(super) events: Count,
    pub(super) websockets: Count,
    pub(super) polls: Count,
    /// Keys of latest values that were requested.
    pub(super) keys: Count,
    /// The duration in milliseconds of a worker's last delivery to all subscribers of a channel.
    pub(super) lag_ms: AtomicU64,
}

/// A snapshot of the counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Current subscribers: by Server-Sent Events, WebSocket and long poll.
    pub subscribers: [u64; 3],
    /// Channels with subscribers or messages.
    pub channels: u64,
    /// Bytes of the messages of all channels.
    pub history_bytes: u64,
    /// Published messages.
    pub published: u64,
    /// Messages written to subscribers' sockets.
    pub delivered: u64,
    /// Deliveries that had to wait for a subscriber's socket.
    pub delayed: u64,
    /// Subscribers dropped because they fell too far behind.
    pub dropped: u64,
    /// Subscribers that missed messages and were notified.
    pub gaps: u64,
    /// Keys of latest values that were requested.
    pub keys: u64,
    /// How long a worker's last delivery to all subscribers of a channel took.
    pub lag_ms: u64,
}

/// The names of transports in figures, in the order of [`Counted::subscribers`].
const TRANSPORTS: [&str; 3] = ["events", "websocket", "poll"];

impl Hub {
    /// The figures of all channels.
    pub fn counted(&self) -> Counted {
        let (figures, totals) = (&self.0.figures, self.totals());
        Counted {
            subscribers: [&figures.events, &figures.websockets, &figures.polls].map(Count::value),
            channels: totals.channels,
            history_bytes: totals.history_bytes,
            published: figures.published.value(),
            delivered: figures.delivered.value(),
            delayed: figures.delayed.value(),
            dropped: figures.dropped.value(),
            gaps: figures.gaps.value(),
            keys: figures.keys.value(),
            lag_ms: figures.lag_ms.load(Ordering::Relaxed),
        }
    }
}

impl Source for Hub {
    fn collect(&self, into: &mut Vec<Family>) {
        let now = self.counted();
        let mut subscribers = Family::new("flatout_push_subscribers", Kind::Gauge, "Current subscribers");
        for (transport, count) in TRANSPORTS.into_iter().zip(now.subscribers) {
            subscribers = subscribers.with(&[("transport", transport)], Value::Count(count));
        }
        let mut groups = [
            Family::new(
                "flatout_push_group_channels",
                Kind::Gauge,
                "Channels with subscribers or messages, by push-group",
            ),
            Family::new(
                "flatout_push_group_subscribers",
                Kind::Gauge,
                "Subscriptions to channels, by push-group",
            ),
        ];
        for GroupCount { group, channels, subscribers } in self.group_counts() {
            let [of_channels, of_subscribers] = groups;
            groups = [
                of_channels.with(&[("group", &group)], Value::Count(channels)),
                of_subscribers.with(&[("group", &group)], Value::Count(subscribers)),
            ];
        }
        let counts = [
            Family::gauge("flatout_push_channels", "Channels with subscribers or messages", now.channels),
            Family::gauge(
                "flatout_push_history_bytes",
                "Memory of the messages of all channels",
                now.history_bytes,
            ),
            Family::counter("flatout_push_published", "Messages published", now.published),
            Family::counter(
                "flatout_push_delivered",
                "Messages written to subscribers' sockets",
                now.delivered,
            ),
            Family::counter(
                "flatout_push_delayed",
                "Deliveries that had to wait for a subscriber's socket",
                now.delayed,
            ),
            Family::counter(
                "flatout_push_dropped",
                "Subscribers dropped because they were too far behind",
                now.dropped,
            ),
            Family::counter("flatout_push_gaps", "Gaps reported to subscribers", now.gaps),
            Family::counter("flatout_push_keys", "Keys of latest values requested", now.keys),
        ];
        into.push(subscribers);
        into.extend(groups);
        into.extend(counts);
        let help = "How long a worker's last delivery to all subscribers of a channel took";
        let lag_s = Value::Number(now.lag_ms as f64 / 1e3);
        into.push(Family::new("flatout_push_walk_seconds", Kind::Gauge, help).with(&[], lag_s));
    }
}
