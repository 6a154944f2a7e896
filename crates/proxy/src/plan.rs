//! The settings of a proxied route and its upstream.

mod health;
mod named;
mod source;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use flatout_engine::tls::{Identity, SubjectName};
pub use flatout_wire::proxy_protocol::ProxyVersion as ProxyProtocol;

pub use health::{Active, HealthCheck, Outliers, Passive};
pub use named::{NamedHost, NamedServers};
pub use source::{ServerSource, SourcePlace};

/// A named group of servers that answer the same requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// Its name in the site file, in logs and in metrics.
    pub name: String,
    /// Its servers; at least one, unless it has sources, or requests name them.
    pub servers: Vec<Server>,
    /// Where further servers come from while it is in use.
    pub sources: Vec<ServerSource>,
    /// Requests name its servers: those that they may name. It then has no others.
    pub named: Option<NamedServers>,
    /// The protocol of its servers.
    pub protocol: Protocol,
    /// What requests over FastCGI, SCGI and uwsgi say.
    pub cgi: Cgi,
    /// How one of them is chosen.
    pub balance: Balance,
    /// Idle connections that a worker keeps to each server; 0 keeps none.
    pub idle_max: usize,
    /// How long an idle connection is kept.
    pub idle_time_max: Duration,
    /// Connections of one worker to each server; beyond that requests wait in the queue.
    pub connections_max: usize,
    /// Requests of one worker that wait for a connection; beyond that the response is 503.
    pub queue_max: usize,
    /// How long a request waits for a connection before the response is 503.
    pub queue_time_max: Duration,
    /// How long connecting may take.
    pub connect_time_max: Duration,
    /// How long a send may make no progress.
    pub send_time_max: Duration,
    /// How long the upstream may send nothing while a response is expected or in progress.
    pub read_time_max: Duration,
    /// How long a request may take as a whole, from its head to the end of the server's response; `None` is no limit.
    pub request_time_max: Option<Duration>,
    /// How long a tunnel (WebSocket) may be silent.
    pub tunnel_time_max: Duration,
    /// Further attempts of one request, if safe.
    pub retries_max: u32,
    /// What makes a request be sent again.
    pub retry_on: RetryOn,
    /// How long after its start a request may be sent again; `None` is no limit.
    pub retry_time_max: Option<Duration>,
    /// The limit of retries, as a share of recent requests.
    pub retry_budget: f64,
    /// When a server is considered down because of its responses.
    pub passive: Passive,
    /// Whether servers that stand out from their siblings pause.
    pub outliers: Option<Outliers>,
    /// Active health checks, if any.
    pub active: Option<Active>,
    /// How long a recovered server takes to get its full share; zero gives it at once.
    pub slow_start: Duration,
    /// The address of this machine from which connections are made; `None`: the system chooses it. Not for servers of the other family.
    pub source: Option<IpAddr>,
    /// The PROXY protocol header sent before the first request of a connection.
    pub send_proxy_protocol: Option<ProxyProtocol>,
    /// Where whoever changes its servers keeps the changes.
    pub state_file: Option<PathBuf>,
}

impl Upstream {
    /// Whether it differs in nothing but servers.
    pub fn is_alike(&self, other: &Upstream) -> bool {
        // A setting that is not named here would be forgotten by a controller's reloads.
        let Upstream {
            name,
            servers: _,
            sources,
            named,
            protocol,
            cgi,
            balance,
            idle_max,
            idle_time_max,
            connections_max,
            queue_max,
            queue_time_max,
            connect_time_max,
            send_time_max,
            read_time_max,
            request_time_max,
            tunnel_time_max,
            retries_max,
            retry_on,
            retry_time_max,
            retry_budget,
            passive,
            outliers,
            active,
            slow_start,
            source,
            send_proxy_protocol,
            state_file,
        } = self;
        (name, sources, named, protocol, cgi, balance, idle_max, idle_time_max)
            == (
                &other.name,
                &other.sources,
                &other.named,
                &other.protocol,
                &other.cgi,
                &other.balance,
                &other.idle_max,
                &other.idle_time_max,
            )
            && (connections_max, queue_max, queue_time_max, connect_time_max, send_time_max, read_time_max)
                == (
                    &other.connections_max,
                    &other.queue_max,
                    &other.queue_time_max,
                    &other.connect_time_max,
                    &other.send_time_max,
                    &other.read_time_max,
                )
            && (request_time_max, tunnel_time_max, retries_max, retry_on, retry_time_max, retry_budget)
                == (
                    &other.request_time_max,
                    &other.tunnel_time_max,
                    &other.retries_max,
                    &other.retry_on,
                    &other.retry_time_max,
                    &other.retry_budget,
                )
            && (passive, outliers, active, slow_start, source, send_proxy_protocol, state_file)
                == (
                    &other.passive,
                    &other.outliers,
                    &other.active,
                    &other.slow_start,
                    &other.source,
                    &other.send_proxy_protocol,
                    &other.state_file,
                )
    }
}

/// The protocol of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// One request at a time per connection.
    Http1,
    /// FastCGI (php-fpm), one request at a time per connection.
    FastCgi,
    /// SCGI, one request per connection.
    Scgi,
    /// uwsgi, one request per connection.
    Uwsgi,
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

    /// Its name in the site file.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http1 => "http/1.1",
            Protocol::FastCgi => "fastcgi",
            Protocol::Scgi => "scgi",
            Protocol::Uwsgi => "uwsgi",
            Protocol::H2c { .. } => "h2c",
            Protocol::H2 { .. } => "h2",
        }
    }

    /// Whether requests become parameters, whose bodies are complete before they are sent, and responses are those of CGI.
    pub fn is_cgi(self) -> bool {
        matches!(self, Protocol::FastCgi | Protocol::Scgi | Protocol::Uwsgi)
    }

    /// Concurrent requests per HTTP/2 connection; `None` for others.
    pub(crate) fn streams_max(self) -> Option<u32> {
        match self {
            Protocol::Http1 | Protocol::FastCgi | Protocol::Scgi | Protocol::Uwsgi => None,
            Protocol::H2c { streams_max } | Protocol::H2 { streams_max } => Some(streams_max),
        }
    }
}

/// What requests over FastCGI, SCGI and uwsgi say in their parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgi {
    /// The folder of the scripts, as the application sees it, without a slash at the end. FastCGI only: the others have one application
    /// for all paths.
    pub root: String,
    /// The path at which this folder is, without a slash at the end: names of scripts in it are what follows.
    pub at: String,
    /// The script of a folder.
    pub index: String,
    /// Whether the one in `root` gets all requests that name no script; otherwise they get 404.
    pub has_front: bool,
    /// Where a path is split: after the first segment that ends so; what follows is PATH_INFO. If it is empty, the whole path names
    /// the script.
    pub split: String,
    /// Parameters that are sent as they are, in place of those of the same name.
    pub params: Vec<(String, String)>,
}

impl Default for Cgi {
    fn default() -> Cgi {
        Cgi {
            root: String::new(),
            at: String::new(),
            index: "index.php".to_owned(),
            has_front: true,
            split: ".php".to_owned(),
            params: Vec::new(),
        }
    }
}

/// One server of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Where it listens.
    pub address: Address,
    /// Its weight relative to the others; at least 1.
    pub weight: u32,
    /// Whether it is used only if all non-backup servers are down.
    pub backup: bool,
    /// Requests and tunnels that it may have in progress at a time, over all workers; 0 is no limit. At its limit it is passed over as
    /// if it were down.
    pub requests_max: u32,
    /// TLS to it; `None` is plain.
    pub tls: Option<Tls>,
    /// Whether it gets no new requests, because its source says so.
    pub drain: bool,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A fixed address.
    Socket(SocketAddr),
    /// A name and a port; the name is looked up again when its TTL expires.
    Name(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// TLS to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The name for SNI that its certificate must have; `None` uses the name in the address.
    pub name: Option<String>,
    /// The names of which its certificate must have one, instead of that name; empty: that name.
    pub alternatives: Vec<SubjectName>,
    /// CA certificates to trust instead of the system's (PEM).
    pub authorities: Option<PathBuf>,
    /// Lists of certificates that these have revoked (PEM).
    pub revoked: Option<PathBuf>,
    /// Whether its certificate is checked.
    pub verify: bool,
    /// The client certificate, if the server requests one.
    pub certificate: Option<Identity>,
}

impl Default for Tls {
    /// Certificates are checked, with the system's CAs.
    fn default() -> Tls {
        Tls {
            name: None,
            alternatives: Vec::new(),
            authorities: None,
            revoked: None,
            verify: true,
            certificate: None,
        }
    }
}

/// How a server is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Balance {
    /// Weighted round robin.
    RoundRobin,
    /// The one with the fewest requests in progress for its weight.
    LeastConnections,
    /// The one with the least expected time: a moving average of its times to a response, for its requests in progress and its weight.
    LeastTime,
    /// The better of two chosen at random.
    TwoChoices,
    /// By consistent hash of a key, so that few keys move when a server is added or removed.
    Hash(Key),
    /// The one in a cookie, which the first response sets.
    Sticky {
        /// The cookie's name.
        cookie: String,
    },
}

/// The part of a request that is hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// The client's address.
    Client,
    /// The path in its normal form.
    Path,
    /// Path and query as they were sent.
    Target,
    /// The field of this name.
    Header(String),
    /// The cookie of this name.
    Cookie(String),
    /// The parameter of this name of the query, as it was sent.
    Argument(String),
}

/// What makes a request be sent again, if that is safe, and there are retries left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryOn {
    /// No connection, or one that breaks before the response.
    pub error: bool,
    /// No connection, progress or response in time.
    pub timeout: bool,
    /// A response that is malformed.
    pub invalid_response: bool,
    /// Requests that are not idempotent, such as POST, are repeated too, although a server may have processed them.
    pub non_idempotent: bool,
    /// Responses with these statuses, of 400 and above; they count as failures of the server. The last server's response
    /// goes to the client.
    pub statuses: Vec<u16>,
}

impl RetryOn {
    /// Nothing is repeated.
    pub fn none() -> RetryOn {
        RetryOn {
            error: false,
            timeout: false,
            invalid_response: false,
            non_idempotent: false,
            statuses: Vec::new(),
        }
    }
}

impl Default for RetryOn {
    /// Errors and timeouts.
    fn default() -> RetryOn {
        RetryOn { error: true, timeout: true, ..RetryOn::none() }
    }
}

impl Upstream {
    /// An upstream of these servers with default settings.
    pub fn new(name: &str, servers: Vec<Server>) -> Upstream {
        Upstream {
            name: name.to_owned(),
            servers,
            sources: Vec::new(),
            named: None,
            protocol: Protocol::Http1,
            cgi: Cgi::default(),
            balance: Balance::RoundRobin,
            idle_max: 256,
            idle_time_max: Duration::from_secs(60),
            connections_max: 4096,
            queue_max: 4096,
            queue_time_max: Duration::from_secs(10),
            connect_time_max: Duration::from_secs(5),
            send_time_max: Duration::from_secs(30),
            read_time_max: Duration::from_secs(60),
            request_time_max: None,
            tunnel_time_max: Duration::from_secs(3600),
            retries_max: 2,
            retry_on: RetryOn::default(),
            retry_time_max: None,
            retry_budget: 0.2,
            passive: Passive {
                failures_max: 3,
                window: Duration::from_secs(10),
                down_time: Duration::from_secs(10),
            },
            outliers: None,
            active: None,
            slow_start: Duration::ZERO,
            source: None,
            send_proxy_protocol: None,
            state_file: None,
        }
    }
}

impl Upstream {
    /// Whether responses of its servers are measured for a choice among them.
    pub(crate) fn is_measured(&self) -> bool {
        self.outliers.is_some() || self.balance == Balance::LeastTime
    }

    /// The settings of TLS to its servers: those of the first one that has it.
    pub fn tls_of_servers(&self) -> Option<Tls> {
        self.servers.iter().find_map(|server| server.tls.clone())
    }

    /// Checks that the settings are compatible.
    ///
    /// # Errors
    /// The incompatible settings, and what to do.
    pub fn check(&self) -> Result<(), String> {
        if self.named.is_some() {
            self.check_named()?;
        }
        let has_tls = |server: &Server| server.tls.is_some();
        let wrong = match self.protocol {
            protocol
                if protocol.streams_max().is_none()
                    && self
                        .active
                        .as_ref()
                        .is_some_and(|active| matches!(active.check, HealthCheck::Grpc { .. })) =>
            {
                "a health-check by gRPC needs protocol h2 or h2c"
            }
            Protocol::Http1 => return Ok(()),
            protocol if protocol.is_cgi() => return self.check_cgi(),
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

    /// The same for one whose servers are named by requests.
    fn check_named(&self) -> Result<(), String> {
        if !self.servers.is_empty() || !self.sources.is_empty() {
            return Err("with named-servers, requests name all servers: it can have no others".to_owned());
        }
        if self.active.is_some() || self.outliers.is_some() {
            return Err("servers that requests name are neither checked nor compared".to_owned());
        }
        if self.named.as_ref().is_some_and(|named| named.lookup_time_max > self.queue_time_max) {
            return Err(
                "requests wait in the queue for the lookup of a name: queue-time must be longer than \
                        its time="
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// The same for FastCGI, SCGI and uwsgi.
    fn check_cgi(&self) -> Result<(), String> {
        let name = self.protocol.name();
        if self.protocol == Protocol::FastCgi && self.cgi.root.is_empty() {
            return Err("protocol fastcgi needs fastcgi-root, the folder of the scripts".to_owned());
        }
        if self.protocol != Protocol::FastCgi && !self.cgi.root.is_empty() {
            return Err(format!("fastcgi-root is for protocol fastcgi, not for {name}"));
        }
        let has_tls = self.servers.iter().any(|server| server.tls.is_some());
        if has_tls && self.protocol != Protocol::Uwsgi {
            return Err(format!("protocol {name} is without TLS: servers cannot be https://"));
        }
        if self.send_proxy_protocol.is_some() {
            return Err(format!(
                "send-proxy is not possible with protocol {name}: REMOTE_ADDR has the client's address"
            ));
        }
        if self.active.as_ref().is_some_and(|active| active.check != HealthCheck::Tcp) {
            return Err(format!("with protocol {name}, only health-check tcp is possible"));
        }
        Ok(())
    }
}

impl Server {
    /// A plain server with the weight 1.
    pub fn new(address: Address) -> Server {
        Server { address, weight: 1, backup: false, requests_max: 0, tls: None, drain: false }
    }
}
