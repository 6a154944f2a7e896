//! An HTTP/2 client for tests: the state machine of `wire` as a client, over a blocking socket.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use flatout_wire::Method;
use flatout_wire::h2::hpack::{encode_field, encode_method, encode_path};
use flatout_wire::h2::{Asking, Code, Connection, Event, Limits, Room, StreamId};

/// The response to one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) interims: Vec<u16>,
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    pub(crate) is_over: bool,
    pub(crate) reset: Option<Code>,
}

impl Got {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(this, _)| this == name).map(|(_, value)| value.as_str())
    }
}

/// One connection.
pub(crate) struct H2Client {
    pub(crate) socket: TcpStream,
    pub(crate) machine: Connection,
    pub(crate) out: Vec<u8>,
    /// Whether flow-control credit is returned as content arrives.
    pub(crate) consumes: bool,
    room: Room,
    held: Vec<u8>,
    pub(crate) got: BTreeMap<StreamId, Got>,
    sending: BTreeMap<StreamId, Vec<u8>>,
    /// Streams that do not end behind what is sent now: WebSockets.
    tunnels: BTreeSet<StreamId>,
    /// The server's GOAWAYs.
    pub(crate) goaways: Vec<(u32, Code)>,
    pub(crate) is_closed: bool,
}

impl H2Client {
    pub(crate) fn new(socket: TcpStream) -> H2Client {
        H2Client::with(socket, Limits { streams_max: 1000, ..Limits::default() })
    }

    pub(crate) fn with(socket: TcpStream, limits: Limits) -> H2Client {
        let mut out = Vec::new();
        let machine = Connection::client(limits, &mut out);
        H2Client {
            socket,
            machine,
            out,
            consumes: true,
            room: Room::default(),
            held: Vec::new(),
            got: BTreeMap::new(),
            sending: BTreeMap::new(),
            tunnels: BTreeSet::new(),
            goaways: Vec::new(),
            is_closed: false,
        }
    }

    /// Starts a request; nothing is sent yet.
    pub(crate) fn ask(
        &mut self,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> StreamId {
        let asking =
            Asking { is_whole: body.is_none(), is_head: method == Method::Head, ..Asking::default() };
        let encode = |block: &mut Vec<u8>| {
            encode_method(method, method.name().as_bytes(), block);
            encode_field(b":scheme", b"http", block);
            encode_path(path.as_bytes(), block);
            encode_field(b":authority", b"t", block);
            fields.iter().for_each(|(name, value)| encode_field(name.as_bytes(), value.as_bytes(), block));
        };
        let stream = self
            .machine
            .ask(asking, encode, &mut self.out)
            .unwrap_or_else(|| panic!("no stream: GOAWAY {:?}, is_closed {}", self.goaways, self.is_closed));
        self.got.insert(stream, Got::default());
        if let Some(body) = body {
            self.sending.insert(stream, body.to_vec());
            self.machine.set_waiting(stream, true);
        }
        stream
    }

    /// Starts a request whose body is sent with `say` and `end`.
    pub(crate) fn begin(&mut self, method: Method, path: &str, fields: &[(&str, &str)]) -> StreamId {
        let stream = self.ask(method, path, fields, Some(b""));
        self.tunnels.insert(stream);
        stream
    }

    /// Begins a WebSocket (RFC 8441), once the server has offered that.
    pub(crate) fn websocket(&mut self, path: &str, fields: &[(&str, &str)]) -> StreamId {
        self.until(|client| client.machine.can_connect_protocol());
        let asking = Asking { is_connect: true, ..Asking::default() };
        let encode = |block: &mut Vec<u8>| {
            let pseudo = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http")];
            let named = [(":path", path), (":authority", "t"), ("sec-websocket-version", "13")];
            let all = pseudo.iter().chain(&named).chain(fields);
            all.for_each(|(name, value)| encode_field(name.as_bytes(), value.as_bytes(), block));
        };
        let stream = self.machine.ask(asking, encode, &mut self.out).expect("a stream");
        self.got.insert(stream, Got::default());
        self.tunnels.insert(stream);
        stream
    }

    /// Starts a request whose body is sent later; [`H2Client::end`] ends it.
    pub(crate) fn upload(&mut self, method: Method, path: &str, fields: &[(&str, &str)]) -> StreamId {
        let stream = self.ask(method, path, fields, Some(b""));
        self.tunnels.insert(stream);
        stream
    }

    /// Sends on a stream that stays open, as far as its window goes.
    pub(crate) fn say(&mut self, stream: StreamId, bytes: &[u8]) {
        self.sending.entry(stream).or_default().extend_from_slice(bytes);
        self.machine.set_waiting(stream, true);
    }

    /// Ends such a stream behind what was said.
    pub(crate) fn end(&mut self, stream: StreamId) {
        self.tunnels.remove(&stream);
        self.say(stream, b"");
    }

    /// What waits for the server's window.
    pub(crate) fn unsent_bytes(&self, stream: StreamId) -> usize {
        self.sending.get(&stream).map_or(0, Vec::len)
    }

    pub(crate) fn get(&mut self, path: &str) -> StreamId {
        self.ask(Method::Get, path, &[], None)
    }

    /// Sends pending bytes, and as much of the bodies as the windows allow.
    pub(crate) fn send(&mut self) {
        while let Some(stream) = self.machine.next_turn() {
            let Some(body) = self.sending.get_mut(&stream) else { break };
            let bytes = body.len().min(self.machine.room(stream));
            let left = body.len() - bytes;
            let goes_on = self.tunnels.contains(&stream);
            if bytes > 0 || !goes_on {
                assert!(self.machine.content(stream, bytes, left, left == 0 && !goes_on, &mut self.out));
            }
            self.out.extend(body.drain(..bytes));
            if left == 0 {
                self.sending.remove(&stream);
                self.machine.set_waiting(stream, false);
            }
        }
        let _ = self.socket.write_all(&self.out);
        self.out.clear();
    }

    /// Sends, and receives once.
    pub(crate) fn turn(&mut self) {
        self.send();
        let mut buffer = [0; 65_536];
        match self.socket.read(&mut buffer) {
            Ok(0) => self.is_closed = true,
            Ok(count) => self.held.extend(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => self.is_closed = true,
            Err(error) => panic!("{error}; {:?}", self.got),
        }
        self.hear();
    }

    fn hear(&mut self) {
        let mut at = 0;
        loop {
            let received = self.machine.receive(&self.held[at..], &mut self.room, &mut self.out);
            let (used, event) = received.expect("a server without fault");
            at += used;
            match event {
                Event::NeedMore => break,
                Event::Interim { stream, head } => {
                    self.got.entry(stream).or_default().interims.push(head.status.code());
                }
                Event::Answer { stream, head, is_whole } => {
                    let got = self.got.entry(stream).or_default();
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    got.status = head.status.code();
                    got.fields = head.fields().map(|(name, value)| (text(name), text(value))).collect();
                    got.is_over = is_whole;
                    if is_whole {
                        self.over(stream);
                    }
                }
                Event::Data { stream, bytes } => {
                    let count = bytes.len();
                    self.got.entry(stream).or_default().body.extend(bytes);
                    if self.consumes {
                        self.machine.consumed(stream, count, &mut self.out);
                    }
                }
                Event::End { stream, trailers } => {
                    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
                    let got = self.got.entry(stream).or_default();
                    got.trailers =
                        trailers.into_iter().map(|(name, value)| (text(name), text(value))).collect();
                    got.is_over = true;
                    self.over(stream);
                }
                Event::Reset { stream, code } => {
                    self.got.entry(stream).or_default().reset = Some(code);
                    self.over(stream);
                }
                Event::GoAway { last, code } => self.goaways.push((last.number(), code)),
                _ => {}
            }
        }
        self.held.drain(..at);
    }

    fn over(&mut self, stream: StreamId) {
        // The body of its request may still be sent.
        if !self.tunnels.contains(&stream) {
            self.sending.remove(&stream);
            self.machine.release(stream, &mut self.out);
        }
    }

    /// Continues until `is_done`.
    pub(crate) fn until(&mut self, is_done: impl Fn(&H2Client) -> bool) {
        while !is_done(self) {
            assert!(!self.is_closed, "the server has closed: {:?} {:?}", self.goaways, self.got);
            self.turn();
        }
    }

    /// Continues until a request is over, one way or another.
    pub(crate) fn finish(&mut self, stream: StreamId) -> Got {
        self.until(|client| client.got[&stream].is_over || client.got[&stream].reset.is_some());
        self.send();
        self.got[&stream].clone()
    }

    /// Continues until the server has closed.
    pub(crate) fn close(&mut self) {
        while !self.is_closed {
            self.turn();
        }
    }
}
