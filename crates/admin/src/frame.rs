//! The figures of a server for the page, the terminal and scripts, as in `/status` and `/events`.

use serde::{Deserialize, Serialize};

/// The constant part.
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

/// The first event of a stream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Start {
    /// The constant part.
    pub about: About,
    /// The last minutes, the oldest first.
    pub frames: Vec<Frame>,
    /// Its sites and routes.
    #[serde(default)]
    pub sites: Vec<Site>,
    /// The last warnings and errors, the oldest first.
    #[serde(default)]
    pub messages: Vec<Message>,
}

/// A site, in a few words.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Site {
    /// Its name, as in [`About::sites`].
    pub name: String,
    /// Its host names.
    pub hosts: Vec<String>,
    /// Its routes.
    pub routes: Vec<Route>,
}

/// A route, in a few words.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Route {
    /// Its path, and what else selects it.
    pub name: String,
    /// What handles its requests: `proxy api`.
    pub action: String,
    /// The settings of its rules.
    pub rules: Vec<String>,
}

/// A warning or an error of the server.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Message {
    /// When: milliseconds since 1970.
    pub at_ms: u64,
    /// `warning` or `error`.
    pub level: String,
    /// What, and why.
    pub text: String,
}

/// One second of a site.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SiteFigures {
    /// Its name; requests for no site have the first name of [`About::sites`].
    pub name: String,
    /// Requests.
    pub requests_per_s: f64,
    /// Those that failed on our side.
    pub errors_per_s: f64,
    /// The median request time in microseconds; `None` without requests.
    pub p50_us: Option<f64>,
    /// The 99th percentile.
    pub p99_us: Option<f64>,
    /// Requests since the start.
    pub requests: u64,
    /// Errors since the start.
    pub errors: u64,
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
    /// Those of them that failed on our side: 5xx, or an incomplete response.
    pub errors_per_s: f64,
    /// By status class from 1xx to 5xx.
    pub statuses_per_s: [f64; 5],
    /// The median request time in microseconds; `None` without requests.
    pub p50_us: Option<f64>,
    /// The 99th percentile.
    pub p99_us: Option<f64>,
    /// Bytes of requests.
    pub received_per_s: f64,
    /// Bytes of responses.
    pub sent_per_s: f64,
    /// Open connections.
    pub connections: u64,
    /// Those of them in each state: idle, reading a request, serving one, sending a response, closing, and no longer
    /// HTTP. Some seconds old.
    pub states: [u64; 6],
    /// CPU time of the workers per request, in microseconds; `None` without requests.
    pub cpu_us_per_request: Option<f64>,
    /// CPU time of the whole process: 1.0 is one CPU.
    pub cpus: f64,
    /// Memory of the process.
    pub memory_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// The limit of open descriptors.
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
    /// Rendered pages, if a route has them.
    pub prerender: Option<Prerender>,
    /// Channels; `None` if none was ever used.
    pub push: Option<Push>,
    /// The bus to other servers, if there is one.
    pub bus: Option<Bus>,
    /// Sites with requests, those with the most first.
    #[serde(default)]
    pub sites: Vec<SiteFigures>,
    /// Sites and routes, in the first second in which they differ from the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_sites: Option<Vec<Site>>,
    /// Warnings and errors of this second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
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
    /// Requests collapsed into the request of another client.
    pub collapsed_per_s: f64,
    /// Responses evicted to make room.
    pub evicted_per_s: f64,
    /// Responses in memory.
    pub memory_entries: u64,
    /// Bytes of those.
    pub memory_bytes: u64,
    /// Responses on disk; none without a folder.
    pub disk_entries: Option<u64>,
    /// Bytes of those.
    pub disk_bytes: Option<u64>,
}

/// Pages that a browser renders for crawlers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Prerender {
    /// Requests of crawlers for pages.
    pub requests_per_s: f64,
    /// Those of them that needed no render.
    pub hits_per_s: f64,
    /// Pages rendered.
    pub renders_per_s: f64,
    /// Requests that got the page as it is, because it was not rendered.
    pub skipped_per_s: f64,
    /// The mean time of a page in the browser in the last second, in milliseconds; `None` without renders.
    pub page_ms: Option<f64>,
    /// Pages that are being rendered.
    pub active: u64,
    /// Requests that wait for a page.
    pub waiting: u64,
    /// Memory of pages.
    pub memory_bytes: u64,
    /// Pages of warm-ups that are to come.
    pub warming: u64,
    /// The crawlers with the most requests since the start.
    pub crawlers: Vec<CrawlerRequests>,
}

/// The requests of a crawler for pages since the start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CrawlerRequests {
    /// Its name; empty: all who are not in the list of crawlers.
    pub name: String,
    /// Its kind, such as `search`.
    pub kind: String,
    /// Its requests.
    pub requests: u64,
    /// Addresses that were verified, and those that were not of its operator.
    pub verified: u64,
    /// The latter.
    pub forged: u64,
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
    /// Messages written to subscribers' sockets.
    pub delivered_per_s: f64,
    /// Keys of latest values that clients asked for.
    pub keys_per_s: f64,
    /// How long a worker's last delivery to all subscribers of a channel took, in milliseconds.
    pub lag_ms: u64,
    /// Subscribers since the start that were dropped because they fell too far behind.
    pub dropped: u64,
}

/// One upstream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Upstream {
    /// Its name.
    pub name: String,
    /// Requests that wait for a connection.
    pub queued: u64,
    /// Requests since the start that were sent to no server: the queue was full, they waited too long, or no server
    /// was up.
    pub refused: u64,
    /// Retries since the start that were not made because the retry budget was used up.
    pub refused_retries: u64,
    /// Its servers.
    pub servers: Vec<UpstreamServer>,
    /// Why the last good list of its servers is in use, if a file of servers has a mistake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One server of an upstream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct UpstreamServer {
    /// Its address.
    pub address: String,
    /// `up`, `not used yet`, `slow start`, `down`, `no address`, `draining`, `set down`, or `ejected`.
    pub state: String,
    /// Why it is ejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Requests sent to it.
    pub requests_per_s: f64,
    /// The median response time in microseconds; `None` without responses.
    pub p50_us: Option<f64>,
    /// The 99th percentile.
    pub p99_us: Option<f64>,
    /// Requests in progress.
    pub active: u64,
    /// Open connections.
    pub connections: u64,
    /// Those of them that are idle.
    pub idle: u64,
    /// Requests sent to it since the start.
    pub requests: u64,
    /// Failed requests, and failed attempts to connect.
    pub failures: u64,
    /// Requests repeated after they had failed here.
    pub retries: u64,
}
