//! The plan of a measurement, as plain values.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use flatout_lane::connect::Remote;
use flatout_tls::Fault;
use flatout_wire::h2::STREAMS_MAX_CEILING;

use crate::handshakes::Security;
use crate::kernel_work::KernelWork;
use crate::pace::Pacing;
use crate::request::Request;
use crate::stages::{STAGES_MAX, Stage};
use crate::subscribe::Transport;

/// A complete plan. Made by hand or from flags; [`Plan::check`] reports what is wrong with it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The target of all connections.
    pub remote: Remote,
    /// How connections are encrypted; `None`: not at all.
    pub tls: Option<Security>,
    /// HTTP/2 with this many concurrent streams per connection; `None`: HTTP/1.1.
    pub streams: Option<usize>,
    /// The requests, picked by weight.
    pub requests: Vec<Request>,
    /// Threads, at most one per connection.
    pub threads: usize,
    /// Connections over all threads.
    pub connections: usize,
    /// The CPU of each thread, in turn; if empty, the scheduler decides.
    pub cpus: Vec<usize>,
    /// The counted time. In the closed loop, responses until its end count; in the open loop, requests that became
    /// due in it. After it, requests that are open are waited for.
    pub duration: Duration,
    /// Ends the counted time early, after this many responses or errors.
    pub requests_max: Option<u64>,
    /// Load before the counted time.
    pub warmup: Duration,
    /// How requests follow each other.
    pub pacing: Pacing,
    /// In the closed loop, whether each request is sent as soon as the response before it is read, instead of after those of several
    /// connections: requests that are sent together are cheaper for the server than those of clients that do not know each other.
    pub is_spread: bool,
    /// The rates of an open loop with [`Pacing::Staged`], one after the other; together they take the whole duration.
    pub stages: Vec<Stage>,
    /// Requests sent at once on a connection; the next follow after all their responses.
    pub pipeline: usize,
    /// A new connection for each request. In the closed loop, latency includes connecting.
    pub close: bool,
    /// Our source addresses, used in turn; if empty, the system decides. A source address has about 28 000 ports.
    pub sources: Vec<IpAddr>,
    /// Each connection is a subscriber and keeps reading. A message counts as a request, and its latency starts at
    /// the send time that it contains.
    pub subscribe: Option<Transport>,
    /// What a correct response is.
    pub expect: Expect,
    /// Time limit of connecting.
    pub connect_time_max: Duration,
    /// Time limit of a response, from sending its request.
    pub answer_time_max: Duration,
    /// Largest response head; at most 64 KiB.
    pub head_bytes_max: usize,
    /// The server's processes, for its CPU time; if empty, those that listen on the port.
    pub server_pids: Vec<u32>,
    /// The clock of the kernel's work for the server; without it, only the CPU time of processes is known.
    pub kernel_work: Option<Arc<KernelWork>>,
    /// Whether percentiles are reported during the run. This pauses each thread for about 40 µs every second.
    pub live: bool,
    /// The random seed: the same seed sends the same requests at the same times.
    pub seed: u64,
}

/// What a correct response is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expect {
    /// The status code; any of 200 to 399 without one.
    pub status: Option<u16>,
    /// The body, byte for byte.
    pub body: Option<Vec<u8>>,
}

/// An invalid field of a plan: the value, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongField {
    /// The field of [`Plan`].
    pub field: &'static str,
    /// The message.
    pub message: String,
}

/// Why nothing was measured.
#[derive(Debug)]
pub enum Error {
    /// The plan is invalid; the user must change it.
    Plan(String),
    /// The server cannot be reached; perhaps it is not running yet.
    Connect(Remote, io::Error),
    /// The TLS handshake failed, for example because the server's certificate is not trusted.
    Handshake(Remote, Fault),
    /// The server does not support HTTP/2, and how it shows this.
    NotHttp2(Remote, String),
    /// This machine refused a thread or an epoll set.
    System(io::Error),
}

/// A reasonable limit for any machine.
const THREADS_MAX: usize = 1024;

/// Pipelined requests: servers read no more at once.
const PIPELINE_MAX: usize = 1024;

/// Streams per connection: what our HTTP/2 state machine supports.
const STREAMS_MAX: usize = STREAMS_MAX_CEILING as usize;

/// Requests per second above which an interval is shorter than the clock's precision.
const RATE_MAX_PER_S: f64 = 1e8;

/// A longer measurement is a mistake in the unit.
const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Descriptors that are not connections: standard streams, epoll sets, /proc.
const DESCRIPTORS_RESERVED: u64 = 64;

impl Plan {
    /// One thread with ten connections for ten seconds in the closed loop.
    pub fn new(remote: Remote, requests: Vec<Request>) -> Plan {
        Plan {
            remote,
            tls: None,
            streams: None,
            requests,
            threads: 1,
            connections: 10,
            cpus: Vec::new(),
            duration: Duration::from_secs(10),
            requests_max: None,
            warmup: Duration::ZERO,
            pacing: Pacing::Closed,
            is_spread: false,
            stages: Vec::new(),
            pipeline: 1,
            close: false,
            sources: Vec::new(),
            subscribe: None,
            expect: Expect::default(),
            connect_time_max: Duration::from_secs(5),
            answer_time_max: Duration::from_secs(10),
            head_bytes_max: 16 << 10,
            server_pids: Vec::new(),
            kernel_work: None,
            live: false,
            seed: 1,
        }
    }

    /// # Errors
    /// The first invalid setting: its name, its value, the allowed values.
    pub fn check(&self) -> Result<(), WrongField> {
        within("threads", self.threads, 1, THREADS_MAX)?;
        within("connections", self.connections, self.threads, u32::MAX as usize)?;
        within("pipeline", self.pipeline, 1, PIPELINE_MAX)?;
        let fault = |field, message: String| Err(WrongField { field, message });
        let descriptors = flatout_lane::process::descriptor_limit().saturating_sub(DESCRIPTORS_RESERVED);
        if self.connections as u64 > descriptors {
            let got = self.connections;
            let limit = format!("the descriptor limit allows {descriptors}; raise it with ulimit -n");
            return fault("connections", format!("connections: got {got}, but {limit}"));
        }
        let need = "need more than 0 and at most 7 days";
        if self.duration.is_zero() || self.duration > DURATION_MAX {
            return fault("duration", format!("duration: got {:?}, {need}", self.duration));
        }
        if self.warmup > DURATION_MAX {
            return fault("warmup", format!("warm-up: got {:?}, need at most 7 days", self.warmup));
        }
        if self.requests_max == Some(0) {
            return fault("requests_max", "requests: got 0, need at least 1".to_owned());
        }
        for (field, time) in
            [("answer_time_max", self.answer_time_max), ("connect_time_max", self.connect_time_max)]
        {
            if time.is_zero() || time > DURATION_MAX {
                return fault(field, format!("timeout: got {time:?}, {need}"));
            }
        }
        if let Pacing::Open { per_s, .. } = self.pacing
            && !(per_s > 0.0 && per_s <= RATE_MAX_PER_S)
        {
            let need = format!("need more than 0 and at most {RATE_MAX_PER_S}");
            return fault("pacing", format!("rate: got {per_s}, {need}"));
        }
        if self.pacing != Pacing::Closed && self.pipeline > 1 {
            let why = "rate and pipeline cannot be combined: with a rate, each request has its own due time";
            return fault("pipeline", why.to_owned());
        }
        self.check_stages()?;
        if self.close && self.pipeline > 1 {
            let why = "a pipeline needs connections that stay open; leave out close or pipeline";
            return fault("pipeline", why.to_owned());
        }
        let is_plain = self.pacing == Pacing::Closed && self.pipeline == 1 && !self.close;
        if self.subscribe.is_some()
            && !(is_plain && self.requests_max.is_none() && self.expect.body.is_none())
        {
            let why = "subscribers read for the whole duration; leave out rate, requests, pipeline, close and the \
                       expected body";
            return fault("subscribe", why.to_owned());
        }
        self.check_streams()?;
        if self.requests.is_empty() {
            return fault("requests", "there is no request to send".to_owned());
        }
        let is_http2 = self.streams.is_some();
        let check = |request: &Request| request.check(is_http2).or_else(|message| fault("requests", message));
        self.requests.iter().try_for_each(check)
    }

    /// Stages need the pacing of that name and the other way round, and exclude some other settings.
    fn check_stages(&self) -> Result<(), WrongField> {
        let fault = |message: String| Err(WrongField { field: "stages", message });
        let is_staged = matches!(self.pacing, Pacing::Staged { .. });
        if !is_staged && self.stages.is_empty() {
            return Ok(());
        }
        if !is_staged || self.stages.is_empty() || self.stages.len() > STAGES_MAX {
            let count = self.stages.len();
            return fault(format!(
                "stages: got {count} and {:?}, need 1 to {STAGES_MAX} and staged pacing",
                self.pacing
            ));
        }
        let highest =
            self.stages.iter().map(|stage| stage.from_per_s.max(stage.to_per_s)).fold(0.0, f64::max);
        if !(highest > 0.0 && highest <= RATE_MAX_PER_S) {
            return fault(format!(
                "stages: got a highest rate of {highest}, need more than 0 and at most {RATE_MAX_PER_S}"
            ));
        }
        let total: Duration = self.stages.iter().map(|stage| stage.time).sum();
        if total != self.duration {
            return fault(format!("stages: they take {total:?}, and the duration is {:?}", self.duration));
        }
        if !self.warmup.is_zero() || self.requests_max.is_some() {
            return fault(
                "stages have their own times; leave out the warm-up and the number of requests".to_owned(),
            );
        }
        Ok(())
    }

    /// Which other settings HTTP/2 requires or excludes.
    fn check_streams(&self) -> Result<(), WrongField> {
        let Some(streams) = self.streams else { return Ok(()) };
        within("streams", streams, 1, STREAMS_MAX)?;
        let why = if self.pipeline > 1 {
            "HTTP/2 has streams instead of a pipeline; leave out pipeline"
        } else if self.subscribe.is_some() {
            "subscribers use HTTP/1.1; leave out http2"
        } else if self.close && streams > 1 {
            "a new connection for each request has one stream; leave out close or streams"
        } else {
            return Ok(());
        };
        Err(WrongField { field: "streams", message: why.to_owned() })
    }
}

impl From<WrongField> for String {
    fn from(fault: WrongField) -> String {
        fault.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Plan(message) => f.write_str(message),
            Error::Connect(remote, error) => {
                write!(f, "cannot connect to {remote}: {error}; is the server running there?")
            }
            Error::Handshake(remote, fault) if fault.is_certificate() => write!(
                f,
                "{remote} is not trusted: {fault}; give the file of its authority with --ca, its name with \
                 --tls-name, or skip the check with --insecure"
            ),
            Error::Handshake(remote, fault) => write!(f, "TLS with {remote} failed: {fault}"),
            Error::NotHttp2(remote, why) => {
                write!(f, "{remote} does not support HTTP/2: {why}; leave out --http2")
            }
            Error::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

fn within(field: &'static str, got: usize, min: usize, max: usize) -> Result<(), WrongField> {
    let message = || format!("{field}: got {got}, need {min} to {max}");
    if (min..=max).contains(&got) { Ok(()) } else { Err(WrongField { field, message: message() }) }
}
