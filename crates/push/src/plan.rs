//! The settings of a route with channels.

use std::time::Duration;

use super::line::Line;

/// Settings of the channels of one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The prefix of a channel's path; the rest is the channel's name.
    pub prefix: String,
    /// The group of its channels. Routes of one group have the same channels; a channel of another group is another channel,
    /// also if it has the same name.
    pub group: String,
    /// The history of a channel.
    pub history: History,
    /// Bytes of one message.
    pub message_bytes_max: usize,
    /// How many messages a reader of a log may be behind before it is dropped.
    pub lag_max: u32,
    /// The heartbeat interval of idle subscribers, by which dead connections are noticed.
    pub heartbeat: Duration,
    /// When a disconnected client reconnects: after a random time between this and twice this, to avoid a stampede
    /// after a restart.
    pub retry: Duration,
    /// How long a long poll waits.
    pub poll_time: Duration,
    /// Pages of these origins may subscribe, besides those of the server's own host; `*` is any.
    pub origins: Vec<String>,
    /// Publishers over HTTP send this in `Authorization: Bearer`; without it, publishing over HTTP is off.
    pub publish_token: Option<String>,
    /// Subscribers need a token signed with this (JWT, HS256).
    pub subscribe_secret: Option<String>,
    /// The line for each value of `?keys=`; `None` returns one JSON object.
    pub keys_line: Option<Line>,
    /// Subscribers of one channel.
    pub subscribers_max: Option<u32>,
    /// Subscribers from one address.
    pub per_address_max: Option<u32>,
}

/// The history of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// The kind of channel.
    pub kind: Kind,
    /// The number of messages of a log, or of keys of latest values, to keep.
    pub count: usize,
    /// How long messages of a log are kept.
    pub age: Duration,
}

/// The kinds of channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Every message matters: events. A reader that falls too far behind is dropped.
    Log,
    /// Only the last message of each key matters: quotes. A reader that falls behind gets the newest of each key.
    Latest,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            prefix: "/live".to_owned(),
            group: String::new(),
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

/// The limits for all channels of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Channels that have subscribers or messages.
    pub channels_max: usize,
    /// Bytes of the messages of all channels.
    pub history_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { channels_max: 100_000, history_bytes_max: 256 << 20 }
    }
}

/// What identifies a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelName<'n> {
    /// Its group.
    pub group: &'n str,
    /// Its name, which is unique within the group.
    pub name: &'n str,
}

/// Bytes of the name of a group, which may come from a route with a long expression.
pub const GROUP_BYTES_MAX: usize = 2 << 10;

/// Bytes of a channel's name.
pub(super) const NAME_BYTES_MAX: usize = 128;

/// Channels on one connection.
pub(super) const CHANNELS_PER_SUBSCRIBER_MAX: usize = 64;

/// Whether this is a valid channel name.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~@!$+=/|".contains(&byte))
}
