//! The plan of a server: addresses, workers, socket options, limits. Plain data, made by hand, by flags or by a
//! config file; checked once by [`Plan::check`] when the server starts.

use std::str::FromStr;
use std::time::Duration;

use flatout_tls::Acceptor;
use flatout_wire::h2::STREAMS_MAX_CEILING;
use flatout_wire::head::HeadLimits;

pub use crate::address::Address;

/// The plan of a server.
///
/// ```
/// use std::time::Duration;
/// use flatout_engine::{Limits, Plan};
///
/// let limits = Limits { body_bytes_max: 64 << 20, idle_time_max: Duration::from_secs(20), ..Limits::default() };
/// let plan = Plan { listen: vec!["[::]:8080".parse()?], workers: Some(2), limits, ..Plan::default() };
/// plan.check()?;
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where to listen. If systemd passes sockets (`LISTEN_FDS`), these take its place; a socket that has the address of
    /// a listener gets its properties, and so does one whose port a listener has for all addresses.
    pub listen: Vec<Listen>,
    /// TLS for the listeners that are not plain; `None`: all are.
    pub tls: Option<Acceptor>,
    /// Whether connections of other sockets from systemd start with a PROXY protocol header.
    pub handed_over_proxy_header: bool,
    /// Workers; `None` is one for every CPU that affinity and cgroup quota allow.
    pub workers: Option<usize>,
    /// The CPUs that the process runs on, which leaves the others to interrupts; `None`: all that it may use.
    pub cpus: Option<Vec<usize>>,
    /// How long a worker polls the network card for packets before it sleeps (Linux 6.9), up to [`BUSY_POLL_TIME_MAX`];
    /// `None`: it waits for interrupts.
    pub busy_poll: Option<Duration>,
    /// Options of the listening sockets, inherited by their connections.
    pub socket: SocketPlan,
    /// Limits.
    pub limits: Limits,
    /// As root: the user to become once everything is bound.
    pub user: Option<String>,
    /// The `Server` field's value; `None` sends none.
    pub server_name: Option<String>,
    /// How long requests in flight may take to finish after the first SIGTERM or SIGINT.
    pub drain_time_max: Duration,
    /// How long connections that have switched to another protocol (WebSockets of upstreams) may go on after another process has
    /// taken over.
    pub tunnel_drain_time_max: Duration,
    /// The name of worker threads, before their number.
    pub thread_name: &'static str,
    /// Whether each worker is pinned to its own CPU.
    pub pin: bool,
    /// Whether to take sockets passed by systemd. Only one server of a process may take them.
    pub takes_handed_over: bool,
}

/// A listener: its address, and how its connections start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub address: Address,
    /// Without TLS, also if the plan has an [`Acceptor`].
    pub is_plain: bool,
    /// Whether its connections start with a PROXY protocol header.
    pub proxy_header: ProxyHeader,
    /// The name in the ClientHello of its connections is read before TLS begins: the service decides whether a connection is passed on
    /// as it is ([`Service::route_tls`](crate::Service::route_tls)). Only for listeners that are not plain. Also without an [`Acceptor`]:
    /// then connections that are not passed on are refused.
    pub passes_tls: bool,
    /// For requests that the server itself sends, on which its other responses depend: it accepts connections while the server drains, as
    /// long as there are others, is not handed over to another process, and is not among the server's addresses. Its connections must
    /// not wait for the end of a drain.
    pub is_internal: bool,
    /// Its number, for services that respond differently at different addresses
    /// ([`Request::listener`](crate::Request::listener)). Several listeners may have the same one.
    pub number: u16,
}

impl From<Address> for Listen {
    /// A listener with TLS, if the plan has an [`Acceptor`].
    fn from(address: Address) -> Listen {
        Listen {
            address,
            is_plain: false,
            proxy_header: ProxyHeader::None,
            passes_tls: false,
            is_internal: false,
            number: 0,
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        text.parse().map(Address::into)
    }
}

/// Whether connections start with a PROXY protocol header, version 1 or 2. It is neither detected nor optional: a connection without
/// one is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyHeader {
    /// They do not.
    #[default]
    None,
    /// The client is the one in the header. A connection whose peer the service does not
    /// [trust](crate::Service::believes_proxy) is closed.
    Trusted,
    /// The client is the peer of the connection; services see what the header says ([`Request::announced`](crate::Request::announced)),
    /// which anybody may have written.
    Untrusted,
}

/// Time limit of a PROXY protocol header, from accepting the connection; then it is closed. The specification
/// requires at least three seconds, so that a lost packet can be retransmitted.
pub const PROXY_HEADER_TIME_MAX: Duration = Duration::from_secs(5);

/// Options of the listening sockets.
#[derive(Debug, Clone)]
pub struct SocketPlan {
    /// Connections per listener that the kernel keeps before they are accepted.
    pub backlog: u32,
    /// `TCP_NODELAY`: responses are sent at once.
    pub nodelay: bool,
    /// `TCP_DEFER_ACCEPT`: a connection is accepted when its first bytes have arrived, or after this time.
    pub defer_accept: Option<Duration>,
    /// `SO_KEEPALIVE`: a connection that has been silent for this long is probed, and is closed if its host does not
    /// reply.
    pub keepalive: Option<Duration>,
    /// `TCP_CONGESTION`: the algorithm's name, such as `reno`.
    pub congestion: Option<String>,
    /// Lets other processes of the same user listen on the same port (`SO_REUSEPORT`); otherwise a port in use is an
    /// error.
    pub share_port: bool,
    /// Whether the kernel gives a connection to the worker on whose CPU its packets arrive.
    pub locality: Locality,
    /// Who may connect to Unix sockets, as the mode of their files; `None` leaves it to the umask.
    pub unix_mode: Option<u32>,
}

/// When to attach the BPF program that selects a listener by CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Locality {
    /// If a NIC has a receive queue per worker, and no listener is on loopback only.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// The limits of a server. Each has a flag of the same name.
///
/// ```
/// use flatout_engine::{Limits, Plan};
///
/// // A head of this size does not fit the read buffer.
/// let limits = Limits { head_bytes_max: 1 << 20, ..Limits::default() };
/// assert!(Plan { limits, ..Plan::default() }.check().is_err());
/// ```
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request's head; above: 431.
    pub head_bytes_max: usize,
    /// Bytes of a request's target; above: 414.
    pub target_bytes_max: usize,
    /// Header fields of a request; above: 431.
    pub headers_max: usize,
    /// Bytes of a request's body, decoded; above: 413. A service may set another limit for a route.
    pub body_bytes_max: u64,
    /// Memory for the request bodies that are collected at the same time, in the whole server; above, they wait, and
    /// then get 503.
    pub bodies_memory_max: u64,
    /// Whether a client that closes its side still gets its response; otherwise the work for it is dropped.
    pub half_close: bool,
    /// Time limit of a head, from its first byte; above: 408.
    pub head_time_max: Duration,
    /// Time limit of a TLS handshake; then the connection is closed.
    pub handshake_time_max: Duration,
    /// A connection without a request is closed after this time.
    pub idle_time_max: Duration,
    /// The slowest rate at which a peer may send its request body (otherwise 408) or read its response (otherwise it
    /// is aborted), measured over `rate_window`; 0 allows any rate.
    pub rate_min_bytes_per_s: u64,
    /// The time over which a slow peer's rate is measured.
    pub rate_window: Duration,
    /// Connections of the whole server; above, new ones wait in the backlog. `None`: what the descriptor limit leaves
    /// after [`DESCRIPTORS_RESERVED`].
    pub connections_max: Option<usize>,
    /// Connections from one address (IPv6: one /64); above, they are closed at once. `None`: any number.
    pub connections_per_address_max: Option<usize>,
    /// Requests of one connection; the last response has `Connection: close`. `None`: any number.
    pub requests_per_connection_max: Option<u32>,
    /// Whether HTTP/2 is served to clients that start with it. With TLS, the acceptor's plan decides what clients are
    /// offered.
    pub http2: bool,
    /// Concurrent requests of one HTTP/2 connection; above, a stream is refused.
    pub streams_max: u32,
    /// Bytes of a request's body that an HTTP/2 client may send before any of them is taken; four times as many for all
    /// streams of its connection. With a round trip of 100 ms, an upload cannot exceed ten times this per second.
    pub stream_window_bytes: u32,
    /// Whether WebSockets over HTTP/2 (RFC 8441) are offered to clients. A service sees such a request as in
    /// HTTP/1, but without a key. Browsers use it if it is offered, so it must be off if the service does not
    /// support it.
    pub http2_websockets: bool,
}

/// Descriptors that connections leave free for files, logs and listeners.
pub const DESCRIPTORS_RESERVED: usize = 256;

/// The least of [`Limits::stream_window_bytes`], which is the default, and the most.
pub(crate) const STREAM_WINDOW_MIN: u32 = 64 << 10;
pub(crate) const STREAM_WINDOW_MAX: u32 = 16 << 20;

/// The largest configurable head: it must fit the worker's read buffer together with the start of another.
pub const HEAD_BYTES_MAX_CEILING: usize = 48 << 10;

/// The longest busy poll: a worker without requests takes its CPU for that long at each wake-up.
pub const BUSY_POLL_TIME_MAX: Duration = Duration::from_millis(1);

impl Default for Plan {
    fn default() -> Self {
        Plan {
            listen: Vec::new(),
            tls: None,
            handed_over_proxy_header: false,
            workers: None,
            cpus: None,
            busy_poll: None,
            socket: SocketPlan::default(),
            limits: Limits::default(),
            user: None,
            server_name: Some("flatout".to_owned()),
            drain_time_max: Duration::from_secs(30),
            tunnel_drain_time_max: Duration::from_secs(3600),
            thread_name: "flatout",
            pin: true,
            takes_handed_over: true,
        }
    }
}

impl Default for SocketPlan {
    fn default() -> Self {
        SocketPlan {
            backlog: 4096,
            nodelay: true,
            defer_accept: None,
            keepalive: Some(Duration::from_secs(60)),
            congestion: None,
            share_port: false,
            locality: Locality::Auto,
            unix_mode: None,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let head = HeadLimits::default();
        Limits {
            head_bytes_max: head.head_bytes_max,
            target_bytes_max: head.target_bytes_max,
            headers_max: head.fields_max,
            body_bytes_max: 8 << 20,
            bodies_memory_max: 256 << 20,
            half_close: false,
            head_time_max: Duration::from_secs(10),
            handshake_time_max: Duration::from_secs(10),
            idle_time_max: Duration::from_secs(60),
            rate_min_bytes_per_s: 256,
            rate_window: Duration::from_secs(10),
            connections_max: None,
            connections_per_address_max: None,
            requests_per_connection_max: None,
            http2: true,
            streams_max: 128,
            stream_window_bytes: STREAM_WINDOW_MIN,
            http2_websockets: true,
        }
    }
}

impl Plan {
    /// Reports what is invalid, for the person who configured it.
    pub fn check(&self) -> Result<(), String> {
        let limits = &self.limits;
        let rules = [
            (
                self.workers == Some(0),
                "workers: got 0, need at least 1; leave it out for one worker per CPU".to_owned(),
            ),
            (
                !(64..=HEAD_BYTES_MAX_CEILING).contains(&limits.head_bytes_max),
                format!("head bytes: got {}, allowed 64 to {HEAD_BYTES_MAX_CEILING}", limits.head_bytes_max),
            ),
            (limits.headers_max == 0, "headers: got 0, need at least 1 (Host)".to_owned()),
            (limits.target_bytes_max == 0, "uri bytes: got 0, need at least 1".to_owned()),
            (limits.bodies_memory_max == 0, "bodies memory: got 0, need at least 1".to_owned()),
            (limits.connections_max == Some(0), "connections: got 0, need at least 1".to_owned()),
            (
                limits.connections_per_address_max == Some(0),
                "connections per address: got 0, need at least 1".to_owned(),
            ),
            (
                limits.requests_per_connection_max == Some(0),
                "requests per connection: got 0, need at least 1".to_owned(),
            ),
            (
                !(1..=STREAMS_MAX_CEILING).contains(&limits.streams_max),
                format!("streams: got {}, allowed 1 to {STREAMS_MAX_CEILING}", limits.streams_max),
            ),
            (
                !(STREAM_WINDOW_MIN..=STREAM_WINDOW_MAX).contains(&limits.stream_window_bytes),
                format!(
                    "stream window: got {}, allowed {STREAM_WINDOW_MIN} to {STREAM_WINDOW_MAX}",
                    limits.stream_window_bytes
                ),
            ),
            (self.socket.backlog == 0, "backlog: got 0, need at least 1".to_owned()),
            (
                self.server_name.as_deref().is_some_and(|name| {
                    name.is_empty() || !flatout_wire::field::is_field_value(name.as_bytes())
                }),
                "server name: it must be a visible header value; leave it out to send none".to_owned(),
            ),
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, message)) => Err(message),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_plans_are_reported() {
        assert_eq!(Plan::default().check(), Ok(()));
        let broken = Plan { workers: Some(0), ..Plan::default() };
        assert!(broken.check().unwrap_err().contains("got 0"));
    }
}
