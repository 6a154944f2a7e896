//! Asks an admin listener to do something, such as to reload, or whether its server is serving.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use flatout_engine::Address;
use flatout_wire::answer;

/// How long the state of the server may take: whoever asks checks it every few seconds.
const HEALTH_TIME_MAX: Duration = Duration::from_secs(5);

/// How long it may take: a reload scans folders and opens what is new.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Bytes of the response: the preview of a page has a picture.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// Calls the action at `path` on the admin listener at `address`, with `body`: returns its message, of success or
/// failure.
///
/// # Errors
/// There is no listener, it is not an admin listener, or the server ended before it responded.
pub fn ask(address: &Address, path: &str, body: &[u8]) -> io::Result<Result<String, String>> {
    ask_within(address, path, body, TIME_MAX)
}

/// The same, for an action that may take longer.
///
/// # Errors
/// See [`ask`].
pub fn ask_within(
    address: &Address,
    path: &str,
    body: &[u8],
    time_max: Duration,
) -> io::Result<Result<String, String>> {
    let (code, text) = request(address, "POST", path, body, time_max)?;
    match code {
        200 => Ok(Ok(text)),
        409 => Ok(Err(text)),
        404 | 405 => Ok(Err(format!("this server does not support {path}"))),
        _ => Err(not_an_admin_listener()),
    }
}

/// Whether the server is serving: its state as text, `Err` if load balancers should not use it.
///
/// # Errors
/// See [`ask`].
pub fn health(address: &Address) -> io::Result<Result<String, String>> {
    let (code, text) = request(address, "GET", "/health", b"", HEALTH_TIME_MAX)?;
    match code {
        200 => Ok(Ok(text)),
        503 => Ok(Err(text)),
        _ => Err(not_an_admin_listener()),
    }
}

/// The status code and the text of a response.
fn request(
    address: &Address,
    method: &str,
    path: &str,
    body: &[u8],
    time_max: Duration,
) -> io::Result<(u16, String)> {
    let bytes = match address {
        Address::Tcp(tcp) => {
            let stream = TcpStream::connect_timeout(tcp, time_max.min(TIME_MAX))?;
            stream.set_read_timeout(Some(time_max))?;
            exchange(stream, &tcp.to_string(), method, path, body)?
        }
        Address::Unix(socket) => {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(time_max))?;
            exchange(stream, "localhost", method, path, body)?
        }
    };
    if bytes.is_empty() {
        let why = "the server has ended before it responded; see its log";
        return Err(io::Error::new(ErrorKind::UnexpectedEof, why));
    }
    let head = answer::parse(&bytes, false, flatout_engine::HEAD_BYTES_MAX_CEILING);
    let head = head.ok().flatten().ok_or_else(not_an_admin_listener)?;
    let body = bytes.get(head.head_bytes..).unwrap_or_default();
    Ok((head.status.code(), String::from_utf8_lossy(body).trim().to_owned()))
}

fn not_an_admin_listener() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the server at this address is not an admin listener")
}

fn exchange(
    mut stream: impl Read + Write,
    host: &str,
    method: &str,
    path: &str,
    body: &[u8],
) -> io::Result<Vec<u8>> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let mut bytes = Vec::new();
    let sent = stream.write_all(&[head.as_bytes(), body].concat());
    match sent.and_then(|()| stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)) {
        Ok(_) => Ok(bytes),
        // The server has ended.
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Ok(bytes),
        Err(error) => Err(error),
    }
}
