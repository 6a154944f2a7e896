//! Evidence from a short load of the unchanged server for and against changes: rungs that cannot matter are skipped, with their reason.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use flatout_load::{self as load, ErrorKind, Target};

use crate::variants::{CACHE, COMPRESSION, UPSTREAM_KEEPALIVE};

/// What was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// Responses under load, and how many of them had another body than the first; `None` if it was not seen.
    pub(crate) bodies: Option<(u64, u64)>,
    /// The first response.
    pub(crate) response: Option<Response>,
    /// Whether the server behind the proxy closes a connection after each response; `None` if it was not seen.
    pub(crate) upstream_closes: Option<bool>,
}

/// One response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Fields, with their names in lower case.
    fields: Vec<(String, String)>,
    /// Its body, if its length is known and it was complete.
    pub(crate) body: Option<Vec<u8>>,
}

/// How long the load for evidence lasts.
pub(crate) const SEEN_TIME: Duration = Duration::from_millis(500);

/// How long a response may take, from its request to its end.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(5);

/// Bytes of a response that are looked at.
const RESPONSE_BYTES_MAX: usize = 4 << 20;

/// A response this small fits in one packet, compressed or not.
const COMPRESSED_BYTES_MIN: usize = 256;

impl Evidence {
    /// Why a rung cannot matter, or must not be tried.
    pub(crate) fn against(&self, rung: &str, request: &[(String, String)]) -> Option<String> {
        match rung {
            CACHE => self.against_cache(request),
            COMPRESSION => self.against_compression(request),
            UPSTREAM_KEEPALIVE if self.upstream_closes == Some(true) => Some(
                "the server behind closes each connection (`Connection: close` in its response)".to_owned(),
            ),
            _ => None,
        }
    }

    /// What speaks for a rung, to be shown with its result.
    pub(crate) fn in_favour(&self, rung: &str) -> Option<String> {
        match (rung, self.bodies, &self.response) {
            (CACHE, Some((seen, different)), _) => {
                Some(format!("{} of {seen} responses under load were identical", seen - different))
            }
            (COMPRESSION, _, Some(Response { body: Some(body), .. })) => {
                Some(format!("a response of {} bytes is not compressed", body.len()))
            }
            _ => None,
        }
    }

    fn against_cache(&self, request: &[(String, String)]) -> Option<String> {
        let has = |name: &str| request.iter().any(|(field, _)| field.eq_ignore_ascii_case(name));
        if has("authorization") || has("cookie") {
            return Some("requests with credentials or cookies have responses of their own".to_owned());
        }
        if let Some((seen, different @ 1..)) = self.bodies {
            return Some(format!("{different} of {seen} responses under load differed from the first"));
        }
        let response = self.response.as_ref()?;
        if response.field("set-cookie").is_some() {
            return Some("responses set a cookie".to_owned());
        }
        let control = response.field("cache-control").unwrap_or_default().to_ascii_lowercase();
        let forbidden = ["no-store", "private", "no-cache"].into_iter().find(|word| control.contains(word));
        forbidden.map(|word| format!("responses say `Cache-Control: {word}`"))
    }

    fn against_compression(&self, request: &[(String, String)]) -> Option<String> {
        let accepts = |(name, value): &(String, String)| {
            name.eq_ignore_ascii_case("accept-encoding") && value.to_ascii_lowercase().contains("gzip")
        };
        if !request.iter().any(accepts) {
            return Some(
                "the load accepts no compressed responses (--header 'Accept-Encoding: gzip')".to_owned(),
            );
        }
        let response = self.response.as_ref()?;
        if let Some(encoding) = response.field("content-encoding") {
            return Some(format!("responses are compressed already ({encoding})"));
        }
        let size = response.body.as_ref()?.len();
        (size < COMPRESSED_BYTES_MIN)
            .then(|| format!("a response has {size} bytes: too few to become cheaper"))
    }
}

impl Response {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Whether the connection ends with it.
    fn closes(&self) -> bool {
        self.field("connection").is_some_and(|value| value.to_ascii_lowercase().contains("close"))
    }

    /// Parses a head and the body that follows.
    fn parse(bytes: &[u8]) -> Option<Response> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]);
        let mut lines = head.split("\r\n");
        let start = lines.next()?.strip_prefix("HTTP/1.")?;
        let status = start.get(2..5)?.parse().ok()?;
        let field = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        };
        let mut response = Response { status, fields: lines.filter_map(field).collect(), body: None };
        let length = response.field("content-length").and_then(|length| length.parse::<usize>().ok());
        let body = &bytes[end + 4..];
        response.body = length.filter(|length| *length == body.len()).map(|_| body.to_vec());
        Some(response)
    }
}

/// The first response to a request of the load, whose connection is closed afterwards.
pub(crate) fn fetch(target: &Target, plan: &load::Plan) -> Option<Response> {
    let stream = connect(&target.remote).ok()?;
    let request = plan.requests.first()?;
    let bytes = exchange(stream, &head(&request.path, &request.host, &request.fields, true)).ok()?;
    Response::parse(&bytes)
}

/// Whether the server behind a proxy closes its connection after a response. A relative path is looked up in the folders in which
/// these processes run.
pub(crate) fn upstream_closes(server: &str, pids: &[u32], target: &Target) -> Option<bool> {
    let request = head(&target.path, &target.host, &[], false);
    let responses = match server.strip_prefix("unix:") {
        Some(path) => {
            let folders = pids.iter().map(|pid| PathBuf::from(format!("/proc/{pid}/cwd")));
            let streams = folders.filter_map(|folder| UnixStream::connect(folder.join(path)).ok());
            streams.map(|stream| first_head(stream, &request)).next()?
        }
        None => {
            let address = if server.contains(':') { server.to_owned() } else { format!("{server}:80") };
            let address = address.to_socket_addrs().ok()?.next()?;
            first_head(tcp(&address).ok()?, &request)
        }
    };
    Response::parse(&responses.ok()?)
        .filter(|response| response.status < 500)
        .map(|response| response.closes())
}

/// How many of the responses under load had another body than this one.
pub(crate) fn compare_bodies(outcome: &load::Outcome) -> (u64, u64) {
    (outcome.requests, outcome.errors.of(ErrorKind::UnexpectedBody))
}

fn head(path: &str, host: &str, fields: &[(String, String)], is_last: bool) -> String {
    let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let close = if is_last { "Connection: close\r\n" } else { "" };
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}{close}\r\n")
}

trait Stream: Read + Write {
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Stream for Box<dyn Stream> {
    fn limit(&self, time: Duration) -> io::Result<()> {
        (**self).limit(time)
    }
}

impl Stream for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

impl Stream for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

fn tcp(address: &SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(address, RESPONSE_TIME_MAX)
}

fn connect(remote: &load::Remote) -> io::Result<Box<dyn Stream>> {
    Ok(match remote {
        load::Remote::Tcp(address) => Box::new(tcp(address)?),
        load::Remote::Unix(path) => Box::new(UnixStream::connect(path)?),
    })
}

/// The whole response, up to the end of its connection.
fn exchange(stream: Box<dyn Stream>, request: &str) -> io::Result<Vec<u8>> {
    receive(stream, request, RESPONSE_TIME_MAX, |_| false)
}

/// The bytes of a response up to the end of its head at least.
fn first_head(stream: impl Stream, request: &str) -> io::Result<Vec<u8>> {
    receive(stream, request, RESPONSE_TIME_MAX, |new| new.windows(4).any(|window| window == b"\r\n\r\n"))
}

/// Bytes of a response until they are enough, or its connection ends. `is_enough` gets what is new, and the three bytes before it.
///
/// # Errors
/// Also if all of it takes longer than `time_max`: a stream of events never ends.
fn receive(
    mut stream: impl Stream,
    request: &str,
    time_max: Duration,
    is_enough: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + time_max;
    stream.write_all(request.as_bytes())?;
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    while bytes.len() < RESPONSE_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.limit(left)?;
        let count = match stream.read(&mut buffer) {
            // With a time limit, the kernel does not repeat a call after a signal.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        let new_at = bytes.len().saturating_sub(3);
        bytes.extend_from_slice(&buffer[..count]);
        if count == 0 || is_enough(&bytes[new_at..]) {
            break;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;

    use super::*;

    fn seen(head: &str, bodies: Option<(u64, u64)>) -> Evidence {
        let response = Response::parse(format!("HTTP/1.1 200 OK\r\n{head}\r\n").as_bytes());
        Evidence { bodies, response, upstream_closes: None }
    }

    fn accepting() -> Vec<(String, String)> {
        vec![("Accept-Encoding".to_owned(), "br, gzip".to_owned())]
    }

    #[test]
    fn responses_that_differ_are_not_cached() {
        let same = seen("X: 1\r\n", Some((900, 0)));
        assert_eq!(same.against(CACHE, &[]), None);
        assert_eq!(same.in_favour(CACHE).unwrap(), "900 of 900 responses under load were identical");
        for (evidence, expected) in [
            (seen("", Some((900, 3))), "3 of 900 responses"),
            (seen("Set-Cookie: a=b\r\n", Some((900, 0))), "set a cookie"),
            (seen("Cache-Control: max-age=3, Private\r\n", None), "`Cache-Control: private`"),
        ] {
            let why = evidence.against(CACHE, &[]).unwrap();
            assert!(why.contains(expected), "{why}");
        }
        let login = [("Authorization".to_owned(), "Basic x".to_owned())];
        assert!(same.against(CACHE, &login).is_some());
    }

    #[test]
    fn compression_needs_a_client_and_a_response_for_it() {
        let large = format!("Content-Length: 300\r\n\r\n{}", "x".repeat(298));
        let large = seen(&large, None);
        assert_eq!(large.response.as_ref().unwrap().body.as_ref().map(Vec::len), Some(300));
        assert_eq!(large.against(COMPRESSION, &accepting()), None);
        assert!(large.against(COMPRESSION, &[]).unwrap().contains("accepts no compressed"));
        let small = seen("Content-Length: 2\r\n\r\n", None);
        assert!(small.against(COMPRESSION, &accepting()).unwrap().contains("2 bytes"));
        let done = seen("Content-Encoding: br\r\n", None);
        assert!(done.against(COMPRESSION, &accepting()).unwrap().contains("already (br)"));
    }

    #[test]
    fn a_response_that_never_ends_is_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut events, _) = listener.accept().unwrap();
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        let time_max = Duration::from_millis(300);
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while is_over.recv_timeout(time_max / 10) == Err(RecvTimeoutError::Timeout) {
                    let _ = events.write_all(b"data: x\n\n");
                }
            });
            assert!(receive(stream, "GET / HTTP/1.1\r\n\r\n", time_max, |_| false).is_err());
            drop(over);
        });
        assert!(began.elapsed() >= time_max);
    }

    #[test]
    fn an_upstream_that_closes_is_seen() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", Some(true)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Some(false)),
            ("HTTP/1.1 502 x\r\nConnection: close\r\n\r\n", None),
            ("nonsense", None),
        ] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let target = Target::parse_plain(&format!("http://{address}/")).unwrap();
            let closes = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let _ = stream.read(&mut [0; 4096]);
                    stream.write_all(answer.as_bytes()).unwrap();
                });
                upstream_closes(&address, &[], &target)
            });
            assert_eq!(closes, expected, "{answer}");
        }
        let closing = Evidence { upstream_closes: Some(true), ..Evidence::default() };
        assert!(closing.against(UPSTREAM_KEEPALIVE, &[]).is_some());
        assert_eq!(Evidence::default().against(UPSTREAM_KEEPALIVE, &[]), None);
    }
}
