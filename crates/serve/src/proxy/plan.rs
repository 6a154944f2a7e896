//! What a proxied route and its upstream are set to.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use flatout_engine::tls::Identity;
pub use flatout_wire::proxy_protocol::Version as ProxyProtocol;

/// A named group of servers that answer the same requests.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// How it is called in the site file, in logs and in metrics.
    pub name: String,
    /// Its servers; at least one.
    pub servers: Vec<Server>,
    /// The protocol of its servers.
    pub protocol: Protocol,
    /// How one of them is chosen.
    pub balance: Balance,
    /// Idle connections that a worker keeps to each server; 0 keeps none.
    pub idle_max: usize,
    /// How long an idle connection is kept.
    pub idle_time_max: Duration,
    /// Connections of one worker to each server; requests over it wait in the queue.
    pub connections_max: usize,
    /// Requests of one worker that wait for a connection; over it the response is 503.
    pub queue_max: usize,
    /// How long a request waits for a connection before the response is 503.
    pub queue_time_max: Duration,
    /// How long a connection may take to be made.
    pub connect_time_max: Duration,
    /// How long a send may make no progress.
    pub send_time_max: Duration,
    /// How long the upstream may send nothing while a response is awaited or under way.
    pub read_time_max: Duration,
    /// How long a tunnel (WebSocket) may be silent.
    pub tunnel_time_max: Duration,
    /// Further attempts that one request may take, where that is safe.
    pub retries_max: u32,
    /// Retries as a share of all requests of the last seconds, over which none is made.
    pub retry_budget: f64,
    /// When a server counts as down because of how it answers.
    pub passive: Passive,
    /// Whether and how servers are asked for their health.
    pub active: Option<Active>,
    /// How long a server that has come back takes to get its whole share; zero gives it at once.
    pub slow_start: Duration,
    /// What is said before the first request of a connection.
    pub send_proxy_protocol: Option<ProxyProtocol>,
}

/// The protocol of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// One request at a time per connection.
    Http1,
    /// HTTP/2 without TLS, with prior knowledge.
    H2c {
        /// Concurrent requests per connection; the server may allow fewer.
        streams_max: u32,
    },
    /// HTTP/2 over TLS, negotiated by ALPN.
    H2 {
        /// Concurrent requests per connection; the server may allow fewer.
        streams_max: u32,
    },
}

impl Protocol {
    /// Default number of concurrent requests per connection.
    pub const STREAMS_MAX: u32 = 100;

    /// The largest value that can be set.
    pub const STREAMS_MAX_CEILING: u32 = flatout_wire::h2::STREAMS_MAX_CEILING;

    /// Concurrent requests per HTTP/2 connection; `None` for HTTP/1.
    pub(super) fn streams_max(self) -> Option<u32> {
        match self {
            Protocol::Http1 => None,
            Protocol::H2c { streams_max } | Protocol::H2 { streams_max } => Some(streams_max),
        }
    }
}

/// One server of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Where it listens.
    pub address: Address,
    /// Its share beside the others; at least 1.
    pub weight: u32,
    /// Whether it is used only where all that are no backups are down.
    pub backup: bool,
    /// TLS to it; `None` is plain.
    pub tls: Option<Tls>,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// An address that is known.
    Socket(SocketAddr),
    /// A name, which is looked up again when its time to live ends.
    Name(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// TLS to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The name that its certificate must have, and that is sent as SNI; `None` is the address's.
    pub name: Option<String>,
    /// Certificates of authorities to trust instead of the system's (PEM).
    pub authorities: Option<PathBuf>,
    /// Whether its certificate is checked.
    pub verify: bool,
    /// What it is shown if it asks for a certificate.
    pub certificate: Option<Identity>,
}

/// How a server is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Balance {
    /// One after the other, by weight.
    RoundRobin,
    /// The one with the fewest requests under way for its weight.
    LeastConnections,
    /// The better of two drawn at random.
    TwoChoices,
    /// By consistent hash of a key, so that few keys move when a server comes or goes.
    Hash(Key),
    /// The one that a cookie names; it is set by the first response.
    Sticky {
        /// The cookie's name.
        cookie: String,
    },
}

/// What of a request is hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// The client's address.
    Client,
    /// The path in its normal form.
    Path,
    /// Path and query as they were sent.
    Target,
    /// The field of that name.
    Header(String),
    /// The cookie of that name.
    Cookie(String),
}

/// When a server counts as down because of how it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passive {
    /// Failures within `window` after which it is down; 0 never.
    pub failures_max: u32,
    /// In which they are counted.
    pub window: Duration,
    /// How long it is down before one request tries it again.
    pub down_time: Duration,
}

/// How servers are asked for their health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Active {
    /// The target of the request.
    pub path: String,
    /// How often.
    pub interval: Duration,
    /// How long an answer may take.
    pub time_max: Duration,
    /// Good answers in a row after which a server is up.
    pub rise: u32,
    /// Bad ones after which it is down.
    pub fall: u32,
    /// The statuses of good answers.
    pub statuses: std::ops::RangeInclusive<u16>,
}

/// How the requests of one route are passed on.
#[derive(Debug, Clone)]
pub struct Forward {
    /// The index of the upstream in the plan.
    pub upstream: usize,
    /// The value of `Host`.
    pub host: Host,
    /// Whether `X-Forwarded-For`, `-Proto` and `-Host` are sent.
    pub x_forwarded: bool,
    /// Whether `Forwarded` (RFC 7239) is sent.
    pub forwarded: bool,
    /// The name that `Via` gets in both directions; `None` leaves it out.
    pub via: Option<String>,
    /// Whether a request's body is collected before the upstream is asked.
    pub buffer_requests: bool,
    /// Whether the upstream gets the path in its normal form instead of as the client sent it.
    pub normal_path: bool,
    /// Whether `Upgrade` is passed on, and the connection becomes a tunnel where the upstream agrees.
    pub upgrade: bool,
}

/// The value of `Host` that an upstream gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// The client's.
    Kept,
    /// The server's address.
    Upstream,
    /// This one.
    Set(String),
}

impl Upstream {
    /// An upstream of these servers, with everything else as usual.
    pub fn new(name: &str, servers: Vec<Server>) -> Upstream {
        Upstream {
            name: name.to_owned(),
            servers,
            protocol: Protocol::Http1,
            balance: Balance::RoundRobin,
            idle_max: 256,
            idle_time_max: Duration::from_secs(60),
            connections_max: 4096,
            queue_max: 4096,
            queue_time_max: Duration::from_secs(10),
            connect_time_max: Duration::from_secs(5),
            send_time_max: Duration::from_secs(30),
            read_time_max: Duration::from_secs(60),
            tunnel_time_max: Duration::from_secs(3600),
            retries_max: 2,
            retry_budget: 0.2,
            passive: Passive {
                failures_max: 3,
                window: Duration::from_secs(10),
                down_time: Duration::from_secs(10),
            },
            active: None,
            slow_start: Duration::ZERO,
            send_proxy_protocol: None,
        }
    }
}

impl Upstream {
    /// Checks that the settings are compatible.
    ///
    /// # Errors
    /// The incompatible settings, and what to do.
    pub fn check(&self) -> Result<(), String> {
        let has_tls = |server: &Server| server.tls.is_some();
        let wrong = match self.protocol {
            Protocol::Http1 => return Ok(()),
            Protocol::H2 { .. } if !self.servers.iter().all(has_tls) => {
                "protocol h2 is over TLS: servers must be https://; without TLS use h2c"
            }
            Protocol::H2c { .. } if self.servers.iter().any(has_tls) => {
                "protocol h2c is without TLS: servers cannot be https://; with TLS use h2"
            }
            // A PROXY header names a single client.
            _ if self.send_proxy_protocol.is_some() => {
                "send-proxy needs protocol http/1.1: with HTTP/2 many clients share a connection"
            }
            _ => return Ok(()),
        };
        Err(wrong.to_owned())
    }
}

impl Server {
    /// A plain server with the weight 1.
    pub fn new(address: Address) -> Server {
        Server { address, weight: 1, backup: false, tls: None }
    }
}

impl Forward {
    /// To this upstream, with everything else as usual.
    pub fn to(upstream: usize) -> Forward {
        Forward {
            upstream,
            host: Host::Kept,
            x_forwarded: true,
            forwarded: false,
            via: None,
            buffer_requests: false,
            normal_path: false,
            upgrade: true,
        }
    }
}
