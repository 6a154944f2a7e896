//! One request on its own connection.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use flatout_wire::answer::parse_fields;
use flatout_wire::h1::{AnswerEvent, Client, Piece, Sent, Trailers};
use rustls::{ClientConnection, StreamOwned};

use super::answer::Answer;
use super::{Ask, Bounds, Server};

/// Limits of a head: bytes and fields.
const HEAD_BYTES_MAX: usize = 48 << 10;
const FIELDS_MAX: usize = 256;

/// A connection.
pub(super) trait Stream: Read + Write {
    fn limit(&self, time: Duration) -> std::io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Stream for UnixStream {
    fn limit(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl<S: Stream> Stream for StreamOwned<ClientConnection, S> {
    fn limit(&self, time: Duration) -> std::io::Result<()> {
        self.sock.limit(time)
    }
}

/// Sends a request. Returns the response, or why there is none.
pub(super) fn ask(server: &Server, ask: &Ask, bounds: &Bounds) -> Result<Answer, String> {
    let begun = Instant::now();
    let mut stream = server.connect(&ask.host, bounds.answer_time_max).map_err(|error| error.to_string())?;
    let fields: String = ask.fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    // Each of these once.
    let usual: String = [("User-Agent", "flatout-import"), ("Accept", "*/*")]
        .iter()
        .filter(|(name, _)| !ask.fields.iter().any(|(own, _)| own.eq_ignore_ascii_case(name)))
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let head = format!(
        "{} {} HTTP/1.1\r\nHost: {}\r\n{usual}{fields}Connection: close\r\n\r\n",
        ask.method, ask.target, ask.host
    );
    let mut client = Client::default();
    client.sent(Sent { is_head: ask.method == "HEAD", ..Sent::default() }, 1);
    stream.limit(bounds.answer_time_max).map_err(|error| error.to_string())?;
    stream.write_all(head.as_bytes()).map_err(|error| error.to_string())?;
    let mut reading = Reading { client, bytes: Vec::new(), answer: None, is_whole: false };
    let mut piece = vec![0; 64 << 10];
    while !reading.is_whole {
        if begun.elapsed() > bounds.answer_time_max {
            return Err(format!("no complete response in {:?}", bounds.answer_time_max));
        }
        let count = match stream.read(&mut piece) {
            Ok(count) => count,
            // A server that closes without a response does not end TLS, or may not have read all.
            Err(error) if [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&error.kind()) => 0,
            Err(error) => return Err(error.to_string()),
        };
        if count == 0 {
            return reading.end();
        }
        reading.bytes.extend_from_slice(&piece[..count]);
        reading.go_on(bounds.body_bytes_max)?;
    }
    let mut answer = reading.answer.ok_or_else(|| "no response".to_owned())?;
    answer.end();
    Ok(answer)
}

struct Reading {
    client: Client,
    /// Bytes that are not parsed yet.
    bytes: Vec<u8>,
    answer: Option<Answer>,
    is_whole: bool,
}

impl Reading {
    fn go_on(&mut self, body_bytes_max: usize) -> Result<(), String> {
        while self.answer.is_none() {
            let mut fields = Vec::new();
            let event = self.client.head(&self.bytes, |bytes, to_head| {
                parse_fields(bytes, to_head, HEAD_BYTES_MAX, FIELDS_MAX, &mut fields)
            });
            match event.map_err(|fault| format!("malformed response: {fault:?}"))? {
                AnswerEvent::NeedMore => return Ok(()),
                AnswerEvent::Interim(interim) => drop(self.bytes.drain(..interim.head_bytes)),
                AnswerEvent::Switch(_) => return Err("it switched protocols".to_owned()),
                AnswerEvent::Head(head) => {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    let fields = fields.iter().map(|field| {
                        (text(field.name(&self.bytes)).to_ascii_lowercase(), text(field.value(&self.bytes)))
                    });
                    self.answer = Some(Answer::new(head.status.code(), fields.collect()));
                    self.bytes.drain(..head.head_bytes);
                }
            }
        }
        let Some(answer) = &mut self.answer else { return Ok(()) };
        let mut at = 0;
        loop {
            let taken = self.client.body(&self.bytes[at..], &mut Trailers::new());
            let (used, piece) = taken.map_err(|fault| format!("malformed body: {fault:?}"))?;
            at += used;
            match piece {
                Piece::Data(data) => answer.take(data, body_bytes_max),
                Piece::NeedMore => break,
                Piece::End => {
                    self.is_whole = true;
                    break;
                }
            }
        }
        self.bytes.drain(..at);
        Ok(())
    }

    /// The server has closed.
    fn end(mut self) -> Result<Answer, String> {
        match (self.client.finish(), self.answer) {
            (Ok(true), Some(mut answer)) => {
                answer.end();
                Ok(answer)
            }
            (_, Some(_)) => Err("the response is incomplete".to_owned()),
            _ => Err("the connection was closed without a response".to_owned()),
        }
    }
}
