//! A client and a server, joined: each receives what the other sends, however the bytes are split and the
//! turns are ordered.

use std::collections::BTreeMap;

use flatout_wire::h1::Trailers;
use flatout_wire::h2::hpack::{encode_field, encode_method, encode_path, encode_status};
use flatout_wire::h2::{Asking, Code, Connection, Event, Limits, Room, StreamId};
use flatout_wire::{Method, Status};

use super::Source;

/// Exchanges of one script.
const EXCHANGES_MAX: usize = 12;

/// Fillings of the smallest window that a body may need: each takes a turn.
const WINDOWS_MAX: usize = 100;

/// Maximum number of turns after the end of a script until everything has ended: exchanges one after the other, each with two
/// bodies of that many windows, and as many turns again for all the rest.
const TURNS_MAX: usize = 2 * EXCHANGES_MAX * 2 * WINDOWS_MAX;

/// One message as it is said and heard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Message {
    start: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
    is_over: bool,
}

/// The plan of an exchange.
#[derive(Debug, Clone)]
struct Exchange {
    is_head: bool,
    asks_body: usize,
    asks_trailers: bool,
    says_length: bool,
    fields: u8,
    answer_body: usize,
    answer_trailers: bool,
    answer_status: u16,
    interims: u8,
    priority: u8,
    /// The client resets it during the response.
    cancel: bool,
}

impl Exchange {
    /// With bodies of at most `bytes_max` bytes.
    fn read(source: &mut Source<'_>, bytes_max: usize) -> Exchange {
        let sizes = [0, 1, 5, 100, 4000, 20_000, 70_000];
        let bits = source.byte();
        let is_head = bits & 7 == 7;
        Exchange {
            is_head,
            asks_body: if is_head { 0 } else { source.choice(&sizes).min(bytes_max) },
            asks_trailers: bits & 8 != 0,
            says_length: bits & 16 != 0,
            fields: source.byte(),
            answer_body: source.choice(&sizes).min(bytes_max),
            answer_trailers: bits & 32 != 0,
            answer_status: source.choice(&[200, 404, 204, 304, 299]),
            interims: source.byte() % 3,
            priority: source.byte(),
            cancel: bits & 0xc0 == 0xc0,
        }
    }

    fn request(&self, number: usize) -> Message {
        let method = match (self.is_head, self.asks_body) {
            (true, _) => "HEAD",
            (false, 0) => "GET",
            _ => "PUT",
        };
        let mut fields = vec![("host".to_owned(), "example.org".to_owned())];
        for at in 0..self.fields % 4 {
            fields.push((format!("x-{at}"), "v".repeat(usize::from(self.fields) * usize::from(at + 1))));
        }
        if self.fields & 64 != 0 {
            fields.push(("priority".to_owned(), format!("u={}, i", self.priority % 8)));
        }
        if self.says_length && self.asks_body > 0 {
            fields.push(("content-length".to_owned(), self.asks_body.to_string()));
        }
        let start = format!("{method} /{number}?{}", "q".repeat(usize::from(self.priority)));
        let has_trailers = self.asks_trailers && self.asks_body > 0;
        Message {
            start,
            fields,
            body: body(number, self.asks_body),
            trailers: trailers(has_trailers),
            is_over: true,
        }
    }

    fn answer(&self, number: usize) -> Message {
        let is_bodyless = self.is_head || matches!(self.answer_status, 204 | 304);
        let body = if is_bodyless { Vec::new() } else { body(number + 1, self.answer_body) };
        let fields = vec![("server".to_owned(), "s".to_owned()), ("x-answer".to_owned(), number.to_string())];
        let has_trailers = self.answer_trailers && !is_bodyless;
        let start = self.answer_status.to_string();
        Message { start, fields, body, trailers: trailers(has_trailers), is_over: true }
    }
}

fn body(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (seed * 31 + at * 7) as u8).collect()
}

fn trailers(has: bool) -> Vec<(String, String)> {
    if has { vec![("x-sum".to_owned(), "7".to_owned())] } else { Vec::new() }
}

/// The rest of a message to send.
struct Sending {
    body: Vec<u8>,
    at: usize,
    trailers: Vec<(String, String)>,
}

/// One side: its state machine, its output, and the messages received and to send.
struct Side {
    machine: Connection,
    out: Vec<u8>,
    /// Received bytes that were not used yet.
    held: Vec<u8>,
    sending: BTreeMap<StreamId, Sending>,
    heard: BTreeMap<StreamId, Message>,
    resets: BTreeMap<StreamId, Code>,
    /// Content that was received and not yet credited.
    unconsumed: Vec<(StreamId, usize)>,
    interims: BTreeMap<StreamId, u8>,
}

impl Side {
    fn new(machine: Connection, out: Vec<u8>) -> Side {
        Side {
            machine,
            out,
            held: Vec::new(),
            sending: BTreeMap::new(),
            heard: BTreeMap::new(),
            resets: BTreeMap::new(),
            unconsumed: Vec::new(),
            interims: BTreeMap::new(),
        }
    }

    /// Processes the received bytes. Returns the requests to respond to.
    fn listen(&mut self, room: &mut Room) -> Vec<StreamId> {
        let (mut at, mut asked) = (0, Vec::new());
        loop {
            let (used, event) = self
                .machine
                .receive(&self.held[at..], room, &mut self.out)
                .expect("no fault between friends");
            at += used;
            match event {
                Event::NeedMore => break,
                Event::Handled | Event::Room { .. } => {}
                Event::GoAway { .. } => panic!("nobody leaves"),
                Event::Refused { fault, .. } => panic!("{fault:?}"),
                Event::Request { stream, head, is_whole, .. } => {
                    let name = String::from_utf8_lossy(head.method_name()).into_owned();
                    let start = format!("{name} {}", String::from_utf8_lossy(head.target()));
                    let message = Message { start, fields: owned(head.fields()), ..Message::default() };
                    self.heard.insert(stream, Message { is_over: is_whole, ..message });
                    asked.push(stream);
                }
                Event::Interim { stream, .. } => *self.interims.entry(stream).or_default() += 1,
                Event::Answer { stream, head, is_whole } => {
                    let (start, fields) = (head.status.code().to_string(), owned(head.fields()));
                    let message = Message { start, fields, is_over: is_whole, ..Message::default() };
                    self.heard.insert(stream, message);
                }
                Event::Data { stream, bytes } => {
                    self.heard.get_mut(&stream).expect("a head came").body.extend(bytes);
                    self.unconsumed.push((stream, bytes.len()));
                }
                Event::End { stream, trailers } => {
                    let message = self.heard.get_mut(&stream).expect("a head came");
                    assert!(!std::mem::replace(&mut message.is_over, true));
                    message.trailers = text(trailers);
                }
                Event::Reset { stream, code } => {
                    self.resets.insert(stream, code);
                    self.sending.remove(&stream);
                    self.machine.release(stream, &mut self.out);
                }
            }
        }
        self.held.drain(..at);
        asked
    }

    /// Sends up to `frames` frames of content.
    fn speak(&mut self, frames: usize) {
        for _ in 0..frames {
            let Some(stream) = self.machine.next_turn() else { return };
            let sending = self.sending.get_mut(&stream).expect("who waits has something");
            let left = sending.body.len() - sending.at;
            let bytes = left.min(self.machine.room(stream));
            assert!(bytes > 0 || left == 0, "it was chosen without room");
            let ends = bytes == left && sending.trailers.is_empty();
            let at = sending.at;
            assert!(self.machine.content(stream, bytes, left - bytes, ends, &mut self.out));
            self.out.extend(&sending.body[at..at + bytes]);
            sending.at += bytes;
            if bytes == left {
                if !ends {
                    let lines = std::mem::take(&mut sending.trailers);
                    assert!(self.machine.trailers(stream, |block| encode(&lines, block), &mut self.out));
                }
                self.sending.remove(&stream);
            }
        }
    }

    fn wait_to_send(&mut self, stream: StreamId, body: Vec<u8>, trailers: Vec<(String, String)>) {
        self.sending.insert(stream, Sending { body, at: 0, trailers });
        self.machine.set_waiting(stream, true);
    }

    fn consume(&mut self, count: usize) {
        let count = count.min(self.unconsumed.len());
        for (stream, bytes) in self.unconsumed.drain(..count) {
            self.machine.consumed(stream, bytes, &mut self.out);
        }
    }
}

fn owned<'b>(fields: impl Iterator<Item = (&'b [u8], &'b [u8])>) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    fields.map(|(name, value)| (text(name), text(value))).collect()
}

fn text(trailers: Trailers) -> Vec<(String, String)> {
    owned(trailers.iter().map(|(name, value)| (&name[..], &value[..])))
}

fn encode(fields: &[(String, String)], block: &mut Vec<u8>) {
    for (name, value) in fields {
        encode_field(name.as_bytes(), value.as_bytes(), block);
    }
}

/// Plays a script. Everything sent must be received, unless it was cancelled; both sides must end without
/// streams.
pub(crate) fn play(script: &[u8]) {
    let mut source = Source(script);
    let windows = [1, 10, 1000, 65_535, 1 << 20];
    let limits = |source: &mut Source<'_>| Limits {
        streams_max: u32::from(source.choice(&[1u8, 2, 5, 100])),
        stream_window: source.choice(&windows),
        connection_window: source.choice(&[65_535, 1 << 20]),
        // Windows of one byte cause many small frames here.
        idle_frames_max: 1 << 30,
        ..Limits::default()
    };
    let (mut client_out, mut server_out) = (Vec::new(), Vec::new());
    let client_limits = Limits { streams_max: 100, ..limits(&mut source) };
    let server_limits = limits(&mut source);
    let window = client_limits.stream_window.min(server_limits.stream_window) as usize;
    let machine = Connection::client(client_limits, &mut client_out);
    let mut client = Side::new(machine, client_out);
    let machine = Connection::server(server_limits, &mut server_out);
    let mut server = Side::new(machine, server_out);
    let count = usize::from(source.byte()) % EXCHANGES_MAX;
    let exchanges: Vec<Exchange> =
        (0..count).map(|_| Exchange::read(&mut source, window * WINDOWS_MAX)).collect();
    let mut play = Play { exchanges, asked: Vec::new(), next: 0, room: Room::default() };
    while !source.is_empty() {
        let size = usize::from(source.byte()) * 97 + 1;
        play.turn(&mut client, &mut server, source.byte(), size);
    }
    for _ in 0..TURNS_MAX {
        for choice in [0, 1, 2, 3, 4, 5, 6] {
            play.turn(&mut client, &mut server, choice, 1 << 20);
        }
        if play.is_over(&client, &server) {
            break;
        }
    }
    play.check(&mut client, &mut server);
}

struct Play {
    exchanges: Vec<Exchange>,
    /// The stream of each exchange that was begun.
    asked: Vec<StreamId>,
    next: usize,
    room: Room,
}

impl Play {
    /// Executes one step of the client or the server.
    fn turn(&mut self, client: &mut Side, server: &mut Side, choice: u8, size: usize) {
        match choice % 7 {
            0 => self.ask(client),
            1 => client.speak(size / 97 + 1),
            2 => {
                carry(&mut client.out, &mut server.held, size);
                for stream in server.listen(&mut self.room) {
                    self.respond(server, stream);
                }
            }
            3 => server.speak(size / 97 + 1),
            4 => {
                carry(&mut server.out, &mut client.held, size);
                assert!(client.listen(&mut self.room).is_empty());
                self.cancel(client);
            }
            5 => {
                server.consume(size);
                self.release(server);
            }
            _ => {
                client.consume(size);
                self.release(client);
            }
        }
    }

    fn ask(&mut self, client: &mut Side) {
        let Some(exchange) = self.exchanges.get(self.next) else { return };
        let message = exchange.request(self.next);
        let asking = Asking {
            is_whole: message.body.is_empty(),
            is_head: exchange.is_head,
            is_connect: false,
            length: exchange.says_length.then_some(exchange.asks_body as u64),
        };
        let (method, target) = message.start.split_once(' ').expect("two words");
        let encode_all = |block: &mut Vec<u8>| {
            encode_method(Method::from_token(method.as_bytes()), method.as_bytes(), block);
            encode_field(b":scheme", b"https", block);
            encode_path(target.as_bytes(), block);
            encode_field(b":authority", b"example.org", block);
            encode(&message.fields[1..], block);
        };
        let Some(stream) = client.machine.ask(asking, encode_all, &mut client.out) else { return };
        self.next += 1;
        self.asked.push(stream);
        if !message.body.is_empty() {
            client.wait_to_send(stream, message.body, message.trailers);
        }
    }

    fn number(&self, stream: StreamId) -> usize {
        self.asked.iter().position(|&asked| asked == stream).expect("it was asked")
    }

    fn respond(&self, server: &mut Side, stream: StreamId) {
        let number = self.number(stream);
        let exchange = &self.exchanges[number];
        let message = exchange.answer(number);
        for _ in 0..exchange.interims {
            server.machine.inform(stream, |block| encode_status(Status::EARLY_HINTS, block), &mut server.out);
        }
        let status = Status::from_code(exchange.answer_status).expect("a status");
        let ends = message.body.is_empty() && message.trailers.is_empty();
        let encode_all = |block: &mut Vec<u8>| {
            encode_status(status, block);
            encode(&message.fields, block);
        };
        if server.machine.respond(stream, None, ends, encode_all, &mut server.out) {
            server.wait_to_send(stream, message.body, message.trailers);
        }
    }

    fn cancel(&self, client: &mut Side) {
        for (number, &stream) in self.asked.iter().enumerate() {
            let is_halfway = client.heard.get(&stream).is_some_and(|message| !message.body.is_empty());
            if self.exchanges[number].cancel && is_halfway && client.machine.is_open(stream) {
                client.machine.release(stream, &mut client.out);
                client.sending.remove(&stream);
            }
        }
    }

    /// Releases streams that have ended.
    fn release(&self, side: &mut Side) {
        let held: Vec<StreamId> = side.machine.held_streams().collect();
        for stream in held {
            let is_heard = side.heard.get(&stream).is_some_and(|message| message.is_over);
            if is_heard && !side.sending.contains_key(&stream) {
                side.machine.release(stream, &mut side.out);
            }
        }
    }

    fn is_over(&self, client: &Side, server: &Side) -> bool {
        let is_quiet =
            |side: &Side| side.out.is_empty() && side.held.is_empty() && side.unconsumed.is_empty();
        self.next == self.exchanges.len()
            && is_quiet(client)
            && is_quiet(server)
            && client.machine.is_idle()
            && server.machine.is_idle()
    }

    fn check(&self, client: &mut Side, server: &mut Side) {
        let streams = (client.machine.streams_count(), server.machine.streams_count());
        assert!(self.is_over(client, server), "{streams:?} {:?}", self.exchanges);
        for (number, stream) in self.asked.iter().enumerate() {
            let exchange = &self.exchanges[number];
            // A server that has refused a stream has not looked at it.
            if client.resets.get(stream) == Some(&Code::REFUSED_STREAM) {
                assert!(!server.heard.contains_key(stream));
                continue;
            }
            let was_cancelled = exchange.cancel && client.resets.is_empty();
            let (asked, answered) = (exchange.request(number), exchange.answer(number));
            let (heard, got) = (&server.heard[stream], &client.heard[stream]);
            assert_eq!((&heard.start, &heard.fields), (&asked.start, &asked.fields), "{exchange:?}");
            assert_eq!((&got.start, &got.fields), (&answered.start, &answered.fields), "{exchange:?}");
            assert!(asked.body.starts_with(&heard.body) && answered.body.starts_with(&got.body));
            assert_eq!(client.interims.get(stream).copied().unwrap_or(0), exchange.interims);
            if got.is_over {
                assert_eq!(*got, answered, "{exchange:?}");
            } else {
                assert!(was_cancelled || exchange.cancel, "{exchange:?}");
            }
            if heard.is_over {
                assert_eq!(*heard, asked, "{exchange:?}");
            }
        }
        for side in [client, server] {
            side.machine.rest();
            assert!(side.machine.memory_bytes() < 16 << 10, "{}", side.machine.memory_bytes());
        }
    }
}

fn carry(from: &mut Vec<u8>, to: &mut Vec<u8>, bytes: usize) {
    let bytes = bytes.min(from.len());
    to.extend(from.drain(..bytes));
}
