//! What a server sends to the subscriber of channels, over each transport.
//!
//! ```text
//! Server-Sent Events   a response without an end, of events
//! WebSocket            101, then frames, each with a message as JSON
//! long poll            a whole response for each request, with an array of such messages
//! ```

use serde_json::Value;

use crate::message::{Decoder, Framing, Head, Start};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Events,
    Socket,
    Poll,
}

/// An event that a subscriber receives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SubscriberEvent {
    /// It is a subscriber from now on.
    Joined,
    Message {
        id: String,
        data: String,
    },
    /// Some messages are lost.
    Gap,
    /// The subscription ends, for this reason.
    End(u16),
    /// A long poll has its response, with the position for the next one, which has to be on another connection if this one `closes`.
    Polled {
        position: String,
        closes: bool,
    },
    /// The server wants this back in a pong.
    Ping(Vec<u8>),
}

/// What has been received, and is no whole event yet.
pub(crate) struct Inbox {
    transport: Transport,
    pub(crate) input: Vec<u8>,
    head: Option<Head>,
    body: Option<Decoder>,
    stream: Vec<u8>,
    /// Bytes of the stream in which no event ends.
    searched: usize,
}

/// The key of a handshake and what must come back (RFC 6455, section 1.3).
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

impl Transport {
    /// The request of a subscriber that has this position and this token, with an unwanted body of this length.
    pub(crate) fn request(
        self,
        path: &str,
        (position, token): (Option<&str>, &str),
        body_length: usize,
    ) -> Vec<u8> {
        // Pages cannot set fields of WebSockets: the token is in the query.
        let (query, authorization) = match self {
            Transport::Poll => ("?poll=1".to_owned(), format!("Authorization: Bearer {token}\r\n")),
            Transport::Events => (String::new(), format!("Authorization: Bearer {token}\r\n")),
            Transport::Socket => (format!("?token={token}"), String::new()),
        };
        let mut head = format!("GET {path}{query} HTTP/1.1\r\nHost: a.test\r\n{authorization}");
        if self == Transport::Socket {
            head += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
            head += &format!("Sec-WebSocket-Key: {KEY}\r\n");
        }
        if let Some(position) = position {
            head += &format!("Last-Event-ID: {position}\r\n");
        }
        if body_length > 0 {
            head += &format!("Content-Length: {body_length}\r\n");
        }
        let mut request = (head + "\r\n").into_bytes();
        request.resize(request.len() + body_length, b'x');
        request
    }
}

impl Inbox {
    pub(crate) fn new(transport: Transport) -> Inbox {
        Inbox { transport, input: Vec::new(), head: None, body: None, stream: Vec::new(), searched: 0 }
    }

    /// Takes whole events from what has come.
    pub(crate) fn take(&mut self) -> Result<Vec<SubscriberEvent>, String> {
        let mut found = Vec::new();
        if self.head.is_none() {
            let Some((head, length)) = Head::response(&self.input)? else { return Ok(found) };
            self.input.drain(..length);
            self.begin(&head, &mut found)?;
            self.head = Some(head);
        }
        match &mut self.body {
            Some(decoder) => decoder.take(&mut self.input)?,
            None => self.stream.append(&mut self.input),
        }
        match (self.transport, &mut self.body) {
            (Transport::Events, Some(decoder)) => {
                self.stream.append(&mut decoder.body);
                take_events(&mut self.stream, &mut self.searched, &mut found)?;
            }
            (Transport::Poll, Some(decoder)) if decoder.is_complete => {
                let body = std::mem::take(&mut decoder.body);
                self.end_poll(&body, &mut found)?;
            }
            (Transport::Socket, _) => take_frames(&mut self.stream, &mut found)?,
            _ => {}
        }
        Ok(found)
    }

    fn begin(&mut self, head: &Head, found: &mut Vec<SubscriberEvent>) -> Result<(), String> {
        let Start::Response { status } = head.start else { return Err("no response".to_owned()) };
        match (self.transport, status) {
            (Transport::Events, 200) => {
                self.body = Some(Decoder::new(head.framing(Framing::Close)?));
                found.push(SubscriberEvent::Joined);
            }
            (Transport::Poll, 200) => self.body = Some(Decoder::new(head.framing(Framing::Close)?)),
            (Transport::Poll, 204) => self.body = Some(Decoder::new(Framing::None)),
            (Transport::Socket, 101) => {
                let accept = head.field("sec-websocket-accept");
                if accept != Some(ACCEPT) {
                    return Err(format!("Sec-WebSocket-Accept is {accept:?}"));
                }
                found.push(SubscriberEvent::Joined);
            }
            // 403: its token is wrong. 408: it paused in the middle of its request. 503: the server drains.
            (_, 403 | 408 | 503) => found.push(SubscriberEvent::End(status)),
            (transport, status) => return Err(format!("{status} for a subscriber by {transport:?}")),
        }
        Ok(())
    }

    fn end_poll(&mut self, body: &[u8], found: &mut Vec<SubscriberEvent>) -> Result<(), String> {
        let head = self.head.take();
        self.body = None;
        let position = head.as_ref().and_then(|head| head.field("last-event-id"));
        let position = position.ok_or("a long poll has a response without a position")?.to_owned();
        if !body.is_empty() {
            match serde_json::from_slice(body) {
                Ok(Value::Array(all)) => {
                    for one in &all {
                        found.push(of_json(one)?);
                    }
                }
                _ => return Err(format!("a long poll got {:.100}", String::from_utf8_lossy(body))),
            }
        }
        let closes = head.and_then(|head| Some(head.field("connection")?.eq_ignore_ascii_case("close")));
        found.push(SubscriberEvent::Polled { position, closes: closes == Some(true) });
        Ok(())
    }
}

fn of_json(value: &Value) -> Result<SubscriberEvent, String> {
    if value["gap"] == true {
        return Ok(SubscriberEvent::Gap);
    }
    match (value["id"].as_str(), value["data"].as_str()) {
        (Some(id), Some(data)) => Ok(SubscriberEvent::Message { id: id.to_owned(), data: data.to_owned() }),
        _ => Err(format!("a message without id or data: {:.100}", value.to_string())),
    }
}

/// Takes whole events from the front of a stream, by the rules of the HTML standard for `text/event-stream`. In its first `searched` bytes no
/// event ends.
fn take_events(
    stream: &mut Vec<u8>,
    searched: &mut usize,
    found: &mut Vec<SubscriberEvent>,
) -> Result<(), String> {
    while let Some(end) = stream[*searched..].windows(2).position(|two| two == b"\n\n") {
        let end = std::mem::take(searched) + end;
        let block = String::from_utf8(stream.drain(..end + 2).collect());
        let block = block.map_err(|_| "an event that is no text")?;
        let (mut id, mut event, mut lines) = (None, None, Vec::new());
        for line in block.lines() {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match name {
                "id" => id = Some(value.to_owned()),
                "event" => event = Some(value),
                "data" => lines.push(value),
                // A comment, or when to come back.
                "" | "retry" => {}
                other => return Err(format!("a line of an event with the name {other:?}")),
            }
        }
        let data = lines.join("\n");
        match (event, id) {
            _ if lines.is_empty() => {}
            (Some("gap"), _) => found.push(SubscriberEvent::Gap),
            (Some("end"), None) => {
                let end: Value = serde_json::from_str(&data).map_err(|error| error.to_string())?;
                found.push(SubscriberEvent::End(end["code"].as_u64().unwrap_or(0) as u16));
            }
            (_, Some(id)) => found.push(SubscriberEvent::Message { id, data }),
            (event, None) => return Err(format!("an event {event:?} without an id: {data:.100}")),
        }
    }
    // A line feed at the end may be the first of two.
    *searched = stream.len().saturating_sub(1);
    Ok(())
}

/// Takes whole frames (RFC 6455, section 5.2). The server sends each message in one.
fn take_frames(stream: &mut Vec<u8>, found: &mut Vec<SubscriberEvent>) -> Result<(), String> {
    loop {
        let [first, second, ..] = stream[..] else { return Ok(()) };
        let (extra, is_masked) = (second & 0x7f, second & 0x80 != 0);
        let length_bytes = match extra {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let Some(length) = stream.get(2..2 + length_bytes) else { return Ok(()) };
        let length = match length_bytes {
            0 => extra.into(),
            _ => length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        };
        let begin = 2 + length_bytes;
        let Some(payload) = stream.get(begin..begin + length) else { return Ok(()) };
        if is_masked || first & 0xf0 != 0x80 {
            return Err(format!("a frame of a WebSocket that begins with {first:#x} {second:#x}"));
        }
        found.push(match (first & 0xf, payload) {
            (1, payload) => of_json(&serde_json::from_slice(payload).map_err(|error| error.to_string())?)?,
            (8, [high, low, ..]) => SubscriberEvent::End(u16::from_be_bytes([*high, *low])),
            (9, payload) => SubscriberEvent::Ping(payload.to_vec()),
            (other, _) => return Err(format!("a frame of a WebSocket of the kind {other}")),
        });
        stream.drain(..begin + length);
    }
}

/// A client's frame: its mask is all zeros, which is allowed, if not wise.
pub(crate) fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    // What clients send here is shorter than 126 bytes.
    let mut out = vec![0x80 | opcode, 0x80 | payload.len() as u8, 0, 0, 0, 0];
    out.extend_from_slice(payload);
    out
}

/// Opcodes.
pub(crate) const PONG: u8 = 10;
pub(crate) const CLOSE: u8 = 8;
