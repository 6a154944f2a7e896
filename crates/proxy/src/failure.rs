//! Why a proxied request ends without the complete response of a server: for each reason one status, one text for the
//! client, one label in metrics, and one line in the log.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use flatout_engine::{BodyFault, Severity, report};
use flatout_wire::Status;

/// Lines about failures that a process logs in a second. Further ones are counted.
const LINES_PER_S_MAX: u32 = 5;

/// The most of a request's target that is logged.
const TARGET_BYTES_MAX: usize = 200;

/// Why a proxied request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No server of the upstream is up, or none has an address.
    NoServer,
    /// The upstream has no servers, or all of them are leaving.
    Empty,
    /// The queue for a connection is full.
    QueueFull,
    /// It was in this queue for `queue-time`.
    QueueTime,
    /// There is no connection to the server.
    NotConnected,
    /// There was none within `connect-time`.
    ConnectTime,
    /// The server does not use HTTP/2, but should.
    NoHttp2,
    /// The server has closed the connection before the end of its response.
    Closed,
    /// The server's response is malformed.
    Malformed,
    /// The server has reset the stream of the request.
    Reset,
    /// The server refuses the stream, again and again.
    Refused,
    /// The server has accepted nothing of the request for `send-time`.
    SendTime,
    /// The server has sent nothing for `read-time`.
    ReadTime,
    /// The request has taken `request-time`.
    RequestTime,
    /// The client has sent nothing of its body for `read-time`.
    BodyTime,
    /// The framing of the client's body is malformed.
    BadBody,
    /// The client's body is larger than allowed.
    LargeBody,
    /// The request cannot be sent as parameters, over FastCGI, SCGI or uwsgi.
    BadParameters,
    /// Its path names no script of the application.
    NoScript,
    /// There is no room, or no working disk, for its body, or the disk has not given it back for `read-time`.
    BodyStorage,
}

impl Failure {
    /// All of them.
    pub const ALL: [Failure; 20] = [
        Failure::NoServer,
        Failure::Empty,
        Failure::QueueFull,
        Failure::QueueTime,
        Failure::NotConnected,
        Failure::ConnectTime,
        Failure::NoHttp2,
        Failure::Closed,
        Failure::Malformed,
        Failure::Reset,
        Failure::Refused,
        Failure::SendTime,
        Failure::ReadTime,
        Failure::RequestTime,
        Failure::BodyTime,
        Failure::BadBody,
        Failure::LargeBody,
        Failure::BadParameters,
        Failure::NoScript,
        Failure::BodyStorage,
    ];

    /// Its label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Failure::NoServer => "no_server",
            Failure::Empty => "empty",
            Failure::QueueFull => "queue_full",
            Failure::QueueTime => "queue_time",
            Failure::NotConnected => "not_connected",
            Failure::ConnectTime => "connect_time",
            Failure::NoHttp2 => "no_http2",
            Failure::Closed => "closed",
            Failure::Malformed => "malformed",
            Failure::Reset => "reset",
            Failure::Refused => "refused",
            Failure::SendTime => "send_time",
            Failure::ReadTime => "read_time",
            Failure::RequestTime => "request_time",
            Failure::BodyTime => "body_time",
            Failure::BadBody => "bad_body",
            Failure::LargeBody => "large_body",
            Failure::BadParameters => "bad_parameters",
            Failure::NoScript => "no_script",
            Failure::BodyStorage => "body_storage",
        }
    }

    /// The status of the response, unless the server's has started.
    pub(crate) fn status(self) -> Status {
        match self {
            Failure::NoServer
            | Failure::NotConnected
            | Failure::NoHttp2
            | Failure::Closed
            | Failure::Malformed
            | Failure::BadParameters
            | Failure::Reset
            | Failure::Refused => Status::BAD_GATEWAY,
            Failure::Empty | Failure::QueueFull | Failure::QueueTime | Failure::BodyStorage => {
                Status::SERVICE_UNAVAILABLE
            }
            Failure::ConnectTime | Failure::SendTime | Failure::ReadTime | Failure::RequestTime => {
                Status::GATEWAY_TIMEOUT
            }
            Failure::BodyTime => Status::REQUEST_TIMEOUT,
            Failure::BadBody => Status::BAD_REQUEST,
            Failure::LargeBody => Status::CONTENT_TOO_LARGE,
            Failure::NoScript => Status::NOT_FOUND,
        }
    }

    /// The text of this response. It does not name the server: that is nobody else's business.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Failure::NoServer => "no server of the upstream is up",
            Failure::Empty => "the upstream has no servers",
            Failure::QueueFull => "too many requests are waiting for the upstream",
            Failure::QueueTime => "the request waited too long for a connection to the upstream",
            Failure::NotConnected => "cannot connect to the upstream",
            Failure::ConnectTime => "cannot connect to the upstream in time",
            Failure::NoHttp2 => "the upstream does not use HTTP/2",
            Failure::Closed => "the upstream closed the connection before the end of its response",
            Failure::Malformed => "the upstream sent no valid response",
            Failure::Reset => "the upstream reset the stream of the request",
            Failure::Refused => "the upstream refused the request without processing it",
            Failure::SendTime => "the upstream did not accept the request in time",
            Failure::ReadTime => "the upstream did not respond in time",
            Failure::RequestTime => "the request took too long",
            Failure::BodyTime => "the request body was not sent in time",
            Failure::BadBody => "the request body is malformed",
            Failure::LargeBody => "the request body is too large",
            Failure::BadParameters => "the request cannot be sent in the protocol of the upstream",
            Failure::NoScript => "there is no such script",
            Failure::BodyStorage => "the request body cannot be stored",
        }
    }

    /// The client or the configuration is the reason, not a server.
    fn is_warning(self) -> bool {
        matches!(
            self,
            Failure::RequestTime
                | Failure::BodyTime
                | Failure::BadBody
                | Failure::LargeBody
                | Failure::BadParameters
                | Failure::NoScript
        )
    }

    /// Logs it. `server` is the address of the server, if one was chosen; `detail` says more than the text.
    #[cold]
    pub(crate) fn log(
        self,
        upstream: &str,
        server: Option<&str>,
        request: Option<RequestLine<'_>>,
        detail: Option<&str>,
    ) {
        static THROTTLE: Throttle = Throttle::new();
        let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let Some(left_out) = THROTTLE.admit(unix_seconds) else { return };
        let line = Line { failure: self, upstream, server, request, detail };
        let severity = if self.is_warning() { Severity::Warning } else { Severity::Error };
        match left_out {
            0 => report(severity, format_args!("{line}")),
            more => report(severity, format_args!("{line} ({more} lines before it were left out)")),
        }
    }
}

impl From<BodyFault> for Failure {
    fn from(fault: BodyFault) -> Failure {
        match fault {
            BodyFault::TooLarge => Failure::LargeBody,
            _ => Failure::BadBody,
        }
    }
}

/// The text of an error without its number, as in `connection refused`.
pub(crate) fn error_text(error: &io::Error) -> String {
    match (error.get_ref(), error.raw_os_error()) {
        (Some(inner), _) => inner.to_string(),
        (None, Some(_)) => {
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            text.to_lowercase()
        }
        (None, None) => error.to_string(),
    }
}

/// A request, for the log.
#[derive(Clone, Copy)]
pub(crate) struct RequestLine<'a> {
    /// The head as it was sent.
    pub(crate) head: &'a [u8],
    pub(crate) peer: Option<SocketAddr>,
    /// Attempts at it, with this one.
    pub(crate) attempt: u32,
}

/// A line of the log.
struct Line<'a> {
    failure: Failure,
    upstream: &'a str,
    server: Option<&'a str>,
    request: Option<RequestLine<'a>>,
    detail: Option<&'a str>,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { failure, upstream, server, request, detail } = self;
        write!(f, "upstream {upstream}: ")?;
        match (failure, server) {
            (Failure::NotConnected, Some(server)) => write!(f, "cannot connect to {server}")?,
            (Failure::ConnectTime, Some(server)) => write!(f, "cannot connect to {server} in time")?,
            (failure, Some(server)) => write!(f, "{server}: {}", failure.text())?,
            (failure, None) => f.write_str(failure.text())?,
        }
        if let Some(detail) = detail {
            write!(f, ": {detail}")?;
        }
        if let Some(RequestLine { head, peer, attempt }) = request {
            let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
            // The query may hold secrets.
            let end = line.iter().position(|&byte| byte == b'?').or(line.iter().rposition(|&it| it == b' '));
            let request = line.get(..end.unwrap_or(0).min(TARGET_BYTES_MAX)).unwrap_or_default();
            write!(f, "; request {}", request.escape_ascii())?;
            if let Some(peer) = peer {
                write!(f, " of {peer}")?;
            }
            if *attempt > 1 {
                write!(f, ", attempt {attempt}")?;
            }
        }
        Ok(())
    }
}

/// Limits the lines of a log.
pub(crate) struct Throttle(Mutex<Window>);

struct Window {
    second: u64,
    lines: u32,
    left_out: u64,
}

impl Throttle {
    pub(crate) const fn new() -> Throttle {
        Throttle(Mutex::new(Window { second: 0, lines: 0, left_out: 0 }))
    }

    /// Whether a line may be logged now.
    pub(crate) fn admit_now(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        self.admit(now).is_some()
    }

    /// Whether a line may be logged in this second: then, how many were left out since the last one.
    fn admit(&self, second: u64) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if window.second != second {
            (window.second, window.lines) = (second, 0);
        }
        if window.lines >= LINES_PER_S_MAX {
            window.left_out += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_few_lines_and_the_next_says_how_many_were_left_out() {
        let throttle = Throttle::new();
        for _ in 0..LINES_PER_S_MAX {
            assert_eq!(throttle.admit(7), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(throttle.admit(7), None);
        }
        assert_eq!(throttle.admit(8), Some(1000));
        assert_eq!(throttle.admit(8), Some(0));
    }

    #[test]
    fn each_failure_has_its_own_text_and_label() {
        for (at, one) in Failure::ALL.iter().enumerate() {
            assert_eq!(*one as usize, at, "`ALL` is in order");
            for other in &Failure::ALL[at + 1..] {
                assert_ne!((one.text(), one.label()), (other.text(), other.label()));
                assert!(one.text() != other.text() && one.label() != other.label(), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_line_names_the_server_and_the_reason() {
        let refused = io::Error::from_raw_os_error(111);
        let line = Line {
            failure: Failure::NotConnected,
            upstream: "api",
            server: Some("127.0.0.1:26011"),
            request: None,
            detail: Some(&error_text(&refused)),
        };
        assert_eq!(line.to_string(), "upstream api: cannot connect to 127.0.0.1:26011: connection refused");
        let line = Line { failure: Failure::ReadTime, server: Some("unix:/run/app"), detail: None, ..line };
        assert_eq!(line.to_string(), "upstream api: unix:/run/app: the upstream did not respond in time");
        let request = RequestLine { head: b"GET /a?key=secret HTTP/1.1\r\n\r\n", peer: None, attempt: 2 };
        let line = Line { request: Some(request), ..line };
        assert!(line.to_string().ends_with("in time; request GET /a, attempt 2"), "{line}");
    }
}
