//! Subscribers: connections on which a server pushes messages, by Server-Sent Events, WebSocket or long poll.
//!
//! ```text
//! bytes ── events | frames | polls ──> one message's text ── message::read ──> send time, number ──> ReceivedMessages
//! ```
//!
//! A message has a send time if its data contains a run of 13, 16 or 19 digits: milliseconds, microseconds or
//! nanoseconds since 1970, which no other common number looks like. Both sides must use the same clock. It has a
//! number if its data contains `"seq": N`; the numbers that a subscriber receives must be consecutive.
//!
//! A subscriber whose connection has ended reconnects and sends the id of its last message, as browsers do.

mod events;
mod frames;
mod message;
mod polls;

use std::borrow::Cow;
use std::ops::AddAssign;

use flatout_trial::Random;
use flatout_wire::websocket::{KEY_BYTES, Opcode, accept_key, write_frame};

use self::events::Events;
use self::frames::Frames;
use self::message::{Data, read};
use self::polls::Polls;
use crate::request::Request;
use crate::tally::ErrorKind;

/// How subscribers receive messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Server-Sent Events: one endless response.
    Events,
    /// WebSocket, one message each.
    WebSocket,
    /// Long poll: each response is a JSON array of messages, and the next request sends its `Last-Event-ID`.
    LongPoll,
}

/// Missing and repeated messages, by their numbers and by the server's own reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Numbers that were skipped.
    pub missed: u64,
    /// Numbers that were repeated or late.
    pub repeated: u64,
    /// Gaps that the server reported: an event named `gap`, or a message `{"gap": true}`.
    pub gaps: u64,
}

/// A message's send time, in nanoseconds since 1970.
pub(crate) type Message = Option<u64>;

/// What all subscribers of one thread have received.
pub(crate) struct ReceivedMessages {
    transport: Transport,
    /// Received messages that are not counted yet.
    pub(crate) messages: Vec<Message>,
    pub(crate) sequence: Sequence,
    /// What to send back on the current connection.
    pub(crate) reply: Vec<u8>,
    /// The last message: the same one is sent to many subscribers.
    last_data: Vec<u8>,
    last_read: Data,
    accept: String,
    random: Random,
}

/// One subscriber, across all its connections.
#[derive(Debug)]
pub(crate) struct Subscriber {
    input: Input,
    tracks: Tracks,
}

/// The position of a subscriber.
#[derive(Debug, Default)]
struct Tracks {
    /// The id of the last message.
    position: Vec<u8>,
    /// Its number.
    number: Option<u64>,
}

#[derive(Debug)]
enum Input {
    Events(Events),
    Frames(Frames),
    Polls(Polls),
}

/// Bytes of a message that are examined.
const TEXT_BYTES_MAX: usize = 4096;

/// Longest id that is sent back.
const POSITION_BYTES_MAX: usize = 128;

/// The key of every handshake. RFC 6455 wants a random one so that caches cannot respond, but there is no cache here.
const KEY: &str = "ZmxhdG91dC1iZW5jaC0xNg==";

const _: () = assert!(KEY.len() == KEY_BYTES);

impl Transport {
    /// Its display name.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Events => "Server-Sent Events",
            Transport::WebSocket => "WebSocket",
            Transport::LongPoll => "long poll",
        }
    }

    /// The requests with the header fields of this transport.
    pub(crate) fn requests(self, requests: &[Request]) -> Vec<Request> {
        let fields: &[(&str, &str)] = match self {
            Transport::Events => &[("Accept", "text/event-stream")],
            Transport::WebSocket => &[
                ("Connection", "Upgrade"),
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Version", "13"),
                ("Sec-WebSocket-Key", KEY),
            ],
            Transport::LongPoll => &[],
        };
        let mut requests = requests.to_vec();
        for request in &mut requests {
            for (name, value) in fields {
                if !request.fields.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
                    request.fields.push(((*name).to_owned(), (*value).to_owned()));
                }
            }
        }
        requests
    }
}

impl AddAssign for Sequence {
    fn add_assign(&mut self, other: Sequence) {
        self.missed += other.missed;
        self.repeated += other.repeated;
        self.gaps += other.gaps;
    }
}

impl ReceivedMessages {
    pub(crate) fn new(transport: Transport, seed: u64) -> ReceivedMessages {
        ReceivedMessages {
            transport,
            messages: Vec::new(),
            sequence: Sequence::default(),
            reply: Vec::new(),
            last_data: Vec::new(),
            last_read: Data::default(),
            accept: accept_key(KEY.as_bytes()),
            random: Random::new(seed),
        }
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether this response head accepts our handshake.
    pub(crate) fn is_accepted(&self, head: &[u8]) -> bool {
        field(head, b"sec-websocket-accept").is_some_and(|value| value == self.accept.as_bytes())
    }

    fn read(&mut self, data: &[u8]) -> Data {
        if self.last_data != data {
            self.last_data.clear();
            self.last_data.extend_from_slice(data);
            self.last_read = read(data);
        }
        self.last_read
    }

    /// Responds to a ping; if several came at once, only to the last one.
    fn pong(&mut self, payload: &[u8]) {
        let key = (self.random.below(1 << 32) as u32).to_ne_bytes();
        self.reply.clear();
        write_frame(Opcode::Pong, false, payload, Some(key), &mut self.reply);
    }
}

impl Tracks {
    fn set_position(&mut self, id: &[u8]) {
        if id.len() <= POSITION_BYTES_MAX && id.iter().all(u8::is_ascii_graphic) {
            self.position.clear();
            self.position.extend_from_slice(id);
        }
    }

    /// A message is complete.
    fn note(&mut self, data: Data, received: &mut ReceivedMessages) {
        if let Some(number) = data.number {
            match self.number {
                Some(last) if number <= last => received.sequence.repeated += 1,
                last => {
                    received.sequence.missed += last.map_or(0, |last| number - last - 1);
                    self.number = Some(number);
                }
            }
        }
        received.messages.push(data.sent_ns);
    }

    /// A message in JSON, as WebSocket and long poll send it.
    fn note_json(&mut self, text: &[u8], received: &mut ReceivedMessages) {
        if text.starts_with(b"{\"gap\":true") {
            received.sequence.gaps += 1;
            return;
        }
        if let Some(rest) = text.strip_prefix(b"{\"id\":\"") {
            self.set_position(rest.split(|&byte| byte == b'"').next().unwrap_or_default());
        }
        // The rest of a message is the same for all subscribers.
        let data = received.read(text);
        self.note(data, received);
    }
}

impl Subscriber {
    pub(crate) fn new(transport: Transport) -> Subscriber {
        Subscriber { input: Input::new(transport), tracks: Tracks::default() }
    }

    /// A response starts.
    pub(crate) fn begin(&mut self, head: &[u8]) {
        if let Input::Polls(polls) = &mut self.input {
            *polls = Polls::default();
            if let Some(id) = field(head, b"last-event-id") {
                self.tracks.set_position(id);
            }
        }
    }

    /// Consumes a piece of a response's body.
    pub(crate) fn body(&mut self, bytes: &[u8], received: &mut ReceivedMessages) {
        match &mut self.input {
            Input::Events(events) => events.take(bytes, &mut self.tracks, received),
            Input::Polls(polls) => polls.take(bytes, &mut self.tracks, received),
            Input::Frames(_) => {}
        }
    }

    /// Consumes bytes that follow the handshake.
    ///
    /// # Errors
    /// Invalid frames, or a close frame.
    pub(crate) fn frames(
        &mut self,
        bytes: &mut [u8],
        received: &mut ReceivedMessages,
    ) -> Result<(), ErrorKind> {
        match &mut self.input {
            Input::Frames(frames) => frames.take(bytes, &mut self.tracks, received),
            Input::Events(_) | Input::Polls(_) => Err(ErrorKind::Malformed),
        }
    }

    /// The connection has ended.
    pub(crate) fn cut(&mut self) {
        self.input = match self.input {
            Input::Events(_) => Input::new(Transport::Events),
            Input::Frames(_) => Input::new(Transport::WebSocket),
            Input::Polls(_) => Input::new(Transport::LongPoll),
        };
    }

    /// The request that resumes after the last received message.
    pub(crate) fn resume<'b>(&self, request: &'b [u8]) -> Cow<'b, [u8]> {
        let end = request.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let (Some(end), false) = (end, self.tracks.position.is_empty()) else { return request.into() };
        let (head, rest) = request.split_at(end + 2);
        [head, b"Last-Event-ID: ", &self.tracks.position, b"\r\n", rest].concat().into()
    }
}

impl Input {
    fn new(transport: Transport) -> Input {
        match transport {
            Transport::Events => Input::Events(Events::default()),
            Transport::WebSocket => Input::Frames(Frames::default()),
            Transport::LongPoll => Input::Polls(Polls::default()),
        }
    }
}

/// Appends bytes to a text, up to its limit.
fn append(text: &mut Vec<u8>, bytes: &[u8]) {
    let room = TEXT_BYTES_MAX.saturating_sub(text.len());
    text.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

/// The value of a field in a parsed head; its name in lower case.
fn field<'h>(head: &'h [u8], name: &[u8]) -> Option<&'h [u8]> {
    head.split(|&byte| byte == b'\n').find_map(|line| {
        let (this, value) = line.split_at_checked(name.len())?;
        let value = value.strip_prefix(b":")?;
        this.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a subscriber reads from these bodies, in pieces of this size.
    pub(super) fn received(
        transport: Transport,
        bodies: &[&[u8]],
        piece: usize,
    ) -> (ReceivedMessages, Subscriber) {
        let (mut received, mut subscriber) =
            (ReceivedMessages::new(transport, 1), Subscriber::new(transport));
        for body in bodies {
            subscriber.begin(b"HTTP/1.1 200 OK\r\nLast-Event-Id: a-9\r\n\r\n");
            for piece in body.chunks(piece) {
                match transport {
                    Transport::WebSocket => subscriber.frames(&mut piece.to_vec(), &mut received).unwrap(),
                    Transport::Events | Transport::LongPoll => subscriber.body(piece, &mut received),
                }
            }
        }
        (received, subscriber)
    }

    #[test]
    fn numbers_reveal_missing_messages() {
        let (mut received, mut tracks) = (ReceivedMessages::new(Transport::Events, 1), Tracks::default());
        for number in [5, 6, 9, 9, 7, 10] {
            tracks.note(Data { number: Some(number), sent_ns: None }, &mut received);
        }
        tracks.note(Data::default(), &mut received);
        // 7 and 8 are skipped; 9 is repeated, and 7 is late.
        assert_eq!(received.sequence, Sequence { missed: 2, repeated: 2, gaps: 0 });
        assert_eq!(received.messages.len(), 7);
    }

    #[test]
    fn reconnecting_subscribers_send_their_position() {
        let (_, mut subscriber) = received(Transport::Events, &[b"id: x-7\ndata: a\n\n"], 99);
        subscriber.cut();
        let request = b"POST / HTTP/1.1\r\nHost: h\r\n\r\n\r\n\r\nbody";
        let expected = b"POST / HTTP/1.1\r\nHost: h\r\nLast-Event-ID: x-7\r\n\r\n\r\n\r\nbody";
        assert_eq!(subscriber.resume(request), &expected[..]);
        let (_, fresh) = received(Transport::Events, &[b"data: a\n\n", b"id: bad id\ndata: a\n\n"], 99);
        assert_eq!(fresh.resume(request), &request[..]);
    }

    #[test]
    fn the_accept_key_of_a_handshake_is_checked() {
        let received = ReceivedMessages::new(Transport::WebSocket, 1);
        let head = format!("HTTP/1.1 101 x\r\nSEC-WebSocket-Accept: {}\r\n\r\n", accept_key(KEY.as_bytes()));
        assert!(received.is_accepted(head.as_bytes()));
        assert!(!received.is_accepted(head.replace("Accept: ", "Accept: x").as_bytes()));
    }
}
