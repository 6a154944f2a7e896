//! The client for the stream of frames, used by `flatout top`.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use flatout_engine::Address;
use flatout_wire::answer;

use super::frame::{Frame, Start};

/// The limit for the head of the response.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The limit for one event: a start with all its frames, for a server with many workers and upstreams.
const EVENT_BYTES_MAX: u64 = 64 << 20;

/// The timeout for connecting, and for each event, of which one is sent each second.
const TIME_MAX: Duration = Duration::from_secs(5);

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The recent past, sent once.
    Start(Box<Start>),
    /// One more second.
    Frame(Box<Frame>),
}

/// A stream of events of a server.
pub struct Watch {
    lines: BufReader<Box<dyn Read + Send>>,
}

impl Watch {
    /// Connects to an admin listener and asks for its events.
    ///
    /// # Errors
    /// There is no listener, or it is not an admin listener.
    pub fn connect(address: &Address) -> io::Result<Watch> {
        let (mut read, mut write, host): (Box<dyn Read + Send>, Box<dyn Write>, String) = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, TIME_MAX)?;
                stream.set_read_timeout(Some(TIME_MAX))?;
                (Box::new(stream.try_clone()?), Box::new(stream), address.to_string())
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(TIME_MAX))?;
                (Box::new(stream.try_clone()?), Box::new(stream), "localhost".to_owned())
            }
        };
        // With HTTP/1.0 events are sent unframed until the connection ends.
        write.write_all(format!("GET /events HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes())?;
        let rest = read_head(&mut read)?;
        Ok(Watch { lines: BufReader::new(Box::new(io::Cursor::new(rest).chain(read))) })
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// The server has ended, or sent something unexpected.
    pub fn event(&mut self) -> io::Result<Event> {
        let mut name = String::new();
        loop {
            let mut line = Vec::new();
            let read = (&mut self.lines).take(EVENT_BYTES_MAX).read_until(b'\n', &mut line)?;
            if read == 0 || line.pop() != Some(b'\n') {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server has stopped"));
            }
            if let Some(value) = line.strip_prefix(b"event: ") {
                name = String::from_utf8_lossy(value).into_owned();
            }
            if let Some(data) = line.strip_prefix(b"data: ") {
                return match name.as_str() {
                    "start" => serde_json::from_slice(data).map(|start| Event::Start(Box::new(start))),
                    _ => serde_json::from_slice(data).map(|frame| Event::Frame(Box::new(frame))),
                }
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error));
            }
        }
    }
}

/// Reads the head of the response: returns the bytes received after it.
fn read_head(stream: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let odd = |why: String| io::Error::new(ErrorKind::InvalidData, why);
    loop {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece)?;
        bytes.extend_from_slice(piece.get(..count).unwrap_or_default());
        match answer::parse(&bytes, false, HEAD_BYTES_MAX) {
            Ok(Some(head)) if head.status.code() == 200 => {
                return Ok(bytes.split_off(head.head_bytes));
            }
            Ok(Some(head)) => {
                return Err(odd(format!("not an admin listener: its response is {}", head.status.code())));
            }
            Ok(None) if count == 0 => {
                return Err(odd("not an admin listener: it sends no response".to_owned()));
            }
            Ok(None) => {}
            Err(_) => return Err(odd("not an admin listener: its response is not HTTP".to_owned())),
        }
    }
}
