//! What a place with channels is set to.

use std::time::Duration;

use super::line::Line;

/// Settings of the channels of one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What the path of a channel begins with: what comes behind it is the channel's name.
    pub prefix: String,
    /// What is kept of a channel, and how.
    pub history: History,
    /// Bytes of one message.
    pub message_bytes_max: usize,
    /// Messages that a reader of a log may be behind before it is dropped.
    pub lag_max: u32,
    /// How often an idle subscriber is sent something, so that one that is gone is noticed.
    pub heartbeat: Duration,
    /// When a client whose connection has ended comes back: after this at the least, and twice this at the most, so that a restart
    /// is not a stampede.
    pub retry: Duration,
    /// How long a long poll waits.
    pub poll_time: Duration,
    /// Pages of these origins may subscribe, besides those of the server's own host; `*` is any.
    pub origins: Vec<String>,
    /// Who publishes over HTTP says this in `Authorization: Bearer`; without one, nobody can.
    pub publish_token: Option<String>,
    /// Subscribers have to show a token signed with this (JWT, HS256).
    pub subscribe_secret: Option<String>,
    /// The line in which `?keys=` returns each value; one JSON object without it.
    pub keys_line: Option<Line>,
    /// Subscribers of one channel.
    pub subscribers_max: Option<u32>,
    /// Subscribers from one address.
    pub per_address_max: Option<u32>,
}

/// What is kept of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// How messages follow each other.
    pub kind: Kind,
    /// Messages of a log, or keys of latest values, that are kept.
    pub count: usize,
    /// How long messages of a log are kept.
    pub age: Duration,
}

/// How messages of a channel follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Each counts: events. A reader that falls too far behind is dropped.
    Log,
    /// The last of each key counts: quotes. A reader that falls behind gets the newest of each key.
    Latest,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            prefix: "/live".to_owned(),
            history: History::default(),
            message_bytes_max: 64 << 10,
            lag_max: 1000,
            heartbeat: Duration::from_secs(25),
            retry: Duration::from_secs(2),
            poll_time: Duration::from_secs(25),
            origins: Vec::new(),
            publish_token: None,
            subscribe_secret: None,
            keys_line: None,
            subscribers_max: None,
            per_address_max: None,
        }
    }
}

impl Default for History {
    fn default() -> Self {
        History { kind: Kind::Log, count: 100, age: Duration::from_secs(300) }
    }
}

/// Ceilings of all channels of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Channels that have subscribers or messages.
    pub channels_max: usize,
    /// Bytes that the messages of all channels take.
    pub history_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { channels_max: 100_000, history_bytes_max: 256 << 20 }
    }
}

/// Bytes of a channel's name.
pub(super) const NAME_BYTES_MAX: usize = 128;

/// Channels on one connection.
pub(super) const CHANNELS_PER_SUBSCRIBER_MAX: usize = 64;

/// Whether this names a channel.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~@!$+=/|".contains(&byte))
}
