//! The figures of a server for the page, the terminal and scripts: the form that `/status` and `/events` have.

use serde::{Deserialize, Serialize};

/// What does not change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct About {
    /// The program's version.
    pub version: String,
    /// The process's id.
    pub pid: u32,
    /// When the listener was started: seconds since 1970.
    pub started_at: u64,
    /// Where the server listens.
    pub listen: Vec<String>,
    /// The names of its sites.
    pub sites: Vec<String>,
}

/// How a stream begins.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Start {
    /// What does not change.
    pub about: About,
    /// The last minutes, the oldest first.
    pub frames: Vec<Frame>,
}

/// One second of a server.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Frame {
    /// When it ended: seconds since 1970.
    pub at: u64,
    /// `serving` or `draining`.
    pub state: String,
    /// Requests that ended in it.
    pub requests_per_s: f64,
    /// Those among them that went wrong on our side: 5xx, or a response that broke off.
    pub errors_per_s: f64,
    /// By status class from 1xx to 5xx.
    pub statuses_per_s: [f64; 5],
    /// The median of how long they took, in microseconds; none without requests.
    pub p50_us: Option<f64>,
    /// The 99th percentile.
    pub p99_us: Option<f64>,
    /// Bytes of requests.
    pub received_per_s: f64,
    /// Bytes of responses.
    pub sent_per_s: f64,
    /// Open connections.
    pub connections: u64,
    /// Those among them that wait for a request, read one, are served, are sent a response, close; and those that have
    /// left HTTP. Some seconds old.
    pub states: [u64; 6],
    /// CPU time of the workers for a request, in microseconds; none without requests.
    pub cpu_us_per_request: Option<f64>,
    /// CPU time of the whole process: 1.0 is one CPU.
    pub cpus: f64,
    /// Memory of the process.
    pub memory_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// How many there may be.
    pub descriptors_max: u64,
    /// Requests since the start.
    pub requests: u64,
    /// Errors since the start.
    pub errors: u64,
    /// Each worker.
    pub workers: Vec<Worker>,
    /// Each upstream.
    pub upstreams: Vec<Upstream>,
    /// The response cache, if there is one.
    pub cache: Option<Cache>,
    /// Channels; none where nobody has used one.
    pub push: Option<Push>,
    /// The bus to other servers, if there is one.
    pub bus: Option<Bus>,
}

/// The bus to other servers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Bus {
    /// `joining`, `joined` or `away`.
    pub state: String,
    /// Messages and purges that wait for it.
    pub queued: u64,
    /// Those since the start that were dropped, because too many waited or they were too large.
    pub dropped: u64,
    /// How often since the start some of other servers did not arrive.
    pub missed: u64,
}

/// The response cache.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Cache {
    /// Responses from the cache, fresh or confirmed by the upstream.
    pub hits_per_s: f64,
    /// Responses from the upstream, because nothing or nothing fresh was stored.
    pub misses_per_s: f64,
    /// Stale responses from the cache.
    pub stale_per_s: f64,
    /// Requests that shared the response to another's request.
    pub collapsed_per_s: f64,
    /// Responses that made room for others.
    pub evicted_per_s: f64,
    /// Responses in memory.
    pub memory_entries: u64,
    /// Bytes that they take.
    pub memory_bytes: u64,
    /// Responses on disk; none without a folder.
    pub disk_entries: Option<u64>,
    /// Bytes of that folder.
    pub disk_bytes: Option<u64>,
}

/// One worker.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Worker {
    /// CPU time: 1.0 is one CPU.
    pub cpus: f64,
    /// Requests.
    pub requests_per_s: f64,
    /// Open connections.
    pub connections: u64,
}

/// All channels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Push {
    /// Subscribers by Server-Sent Events, WebSocket and long poll.
    pub subscribers: [u64; 3],
    /// Channels with subscribers or messages.
    pub channels: u64,
    /// Messages that were published.
    pub published_per_s: f64,
    /// Messages that were handed to subscribers' sockets.
    pub delivered_per_s: f64,
    /// Keys of latest values that were asked for.
    pub keys_per_s: f64,
    /// How long a worker's last delivery to all subscribers of a channel took, in milliseconds.
    pub lag_ms: u64,
    /// Subscribers since the start that were dropped because they were too far behind.
    pub dropped: u64,
}

/// One upstream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Upstream {
    /// Its name.
    pub name: String,
    /// Requests that wait for a connection.
    pub queued: u64,
    /// Requests since the start that no server was asked for: too many waited, they waited too long, or no server was up.
    pub refused: u64,
    /// Retries since the start that were not made because their budget was used up.
    pub refused_retries: u64,
    /// Its servers.
    pub servers: Vec<UpstreamServer>,
}

/// One server of an upstream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct UpstreamServer {
    /// Its address.
    pub address: String,
    /// `up`, `slow start`, `down`, or `no address`.
    pub state: String,
    /// Requests that it was sent.
    pub requests_per_s: f64,
    /// The median of how long its responses took, in microseconds; none without responses.
    pub p50_us: Option<f64>,
    /// The 99th percentile.
    pub p99_us: Option<f64>,
    /// Requests that it is serving.
    pub active: u64,
    /// Open connections.
    pub connections: u64,
    /// Those among them that wait for a request.
    pub idle: u64,
    /// Requests that it was sent since the start.
    pub requests: u64,
    /// Those among them that failed, and attempts to connect that did.
    pub failures: u64,
    /// Requests that were sent once more after they had failed here.
    pub retries: u64,
}
