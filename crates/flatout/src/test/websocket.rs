//! WebSockets as a browser opens them (RFC 6455), over a socket.

use std::io::{BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::net::TcpStream;

use flatout_wire::websocket::{
    Close, MessageKind, MessageLimits, Opcode, Reader, ReaderEvent, Role, accept_key, close_payload,
    write_frame,
};

use super::{Answer, Client};
use crate::Message;

/// The key of every handshake: tests need no random one.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// The mask of every frame: there is no proxy to protect from a test.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// Limits on the server's messages.
const LIMITS: MessageLimits = MessageLimits { message_bytes_max: 64 << 20, fragments_max: 1 << 20 };

/// The code of a connection that ended without a close frame; it is never sent.
const ABNORMAL: u16 = 1006;

/// The code of a close frame without a code.
const NO_CODE: u16 = 1005;

/// An open WebSocket; see [`Call::websocket`](super::Call::websocket).
///
/// ```
/// use flatout::test::{Client, ServerMessage};
/// use flatout::{App, Message};
///
/// let app = App::new().websocket("/echo", |socket, message| {
///     socket.send(message);
///     socket.close(4000, "once");
/// });
/// let client = Client::over_socket(app)?;
/// let mut socket = client.get("/echo").websocket();
/// socket.send(Message::Text("hello"));
/// assert_eq!(socket.receive(), ServerMessage::Text("hello".to_owned()));
/// assert_eq!(socket.receive(), ServerMessage::Closed(4000, "once".to_owned()));
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct WebSocket<'c> {
    stream: BufReader<TcpStream>,
    reader: Reader,
    /// Received bytes that were not read yet.
    bytes: Vec<u8>,
    /// The server stops when its client is dropped.
    client: PhantomData<&'c Client>,
}

/// A message as received.
///
/// ```
/// use flatout::test::{Client, ServerMessage};
/// use flatout::{App, Message};
///
/// let app = App::new().websocket("/sum", |socket, message| {
///     if let Message::Binary(bytes) = message {
///         socket.send(Message::Binary(&[bytes.iter().sum()]));
///     }
/// });
/// let client = Client::over_socket(app)?;
/// let mut socket = client.get("/sum").websocket();
/// socket.send(Message::Binary(&[1, 2, 3]));
/// assert_eq!(socket.receive(), ServerMessage::Binary(vec![6]));
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerMessage {
    /// UTF-8.
    Text(String),
    /// Any bytes.
    Binary(Vec<u8>),
    /// The server has closed the connection, with this code and reason: 1005 without a code, 1006 without a close
    /// frame.
    Closed(u16, String),
}

/// A step of receiving a message.
enum ReceiveStep {
    More,
    Piece(MessageKind, Vec<u8>, bool),
    Ping(Vec<u8>),
    Nothing,
    Closed(u16, String),
}

/// The header fields of a WebSocket request.
pub(super) fn fields() -> String {
    format!(
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
    )
}

impl WebSocket<'_> {
    /// From the connection and the response of the handshake.
    pub(super) fn new(stream: BufReader<TcpStream>, answer: &Answer) -> Self {
        let status = answer.status().code();
        assert!(status == 101, "expected a WebSocket, got status {status}");
        let accepted = answer.header("sec-websocket-accept");
        assert_eq!(accepted, Some(&*accept_key(KEY.as_bytes())), "the server has not read the key");
        let reader = Reader::new(Role::Client, false);
        WebSocket { stream, reader, bytes: Vec::new(), client: PhantomData }
    }

    /// Sends a message.
    ///
    /// # Panics
    /// If the connection has ended.
    pub fn send(&mut self, message: Message<'_>) {
        match message {
            Message::Text(text) => self.write(Opcode::Text, text.as_bytes()),
            Message::Binary(bytes) => self.write(Opcode::Binary, bytes),
        }
        .expect("the connection is open");
    }

    /// Waits for the next message. Responds to pings automatically.
    ///
    /// # Panics
    /// If none comes in time, or the server breaks the protocol.
    pub fn receive(&mut self) -> ServerMessage {
        let mut message = Vec::new();
        loop {
            match self.step() {
                ReceiveStep::More => {
                    if !self.fill() {
                        return ServerMessage::Closed(ABNORMAL, String::new());
                    }
                }
                ReceiveStep::Piece(kind, piece, is_last) => {
                    message.extend_from_slice(&piece);
                    match kind {
                        _ if !is_last => {}
                        MessageKind::Text => {
                            return ServerMessage::Text(String::from_utf8(message).expect("a text is UTF-8"));
                        }
                        MessageKind::Binary => return ServerMessage::Binary(message),
                    }
                }
                ReceiveStep::Ping(payload) => {
                    // If the connection is closed, the next read reports it.
                    let _ = self.write(Opcode::Pong, &payload);
                }
                ReceiveStep::Nothing => {}
                ReceiveStep::Closed(code, reason) => return ServerMessage::Closed(code, reason),
            }
        }
    }

    /// Sends a close frame with this code, and waits until the server has closed too. Messages that arrive in between
    /// are discarded.
    ///
    /// ```
    /// use flatout::test::{Client, ServerMessage};
    ///
    /// let client = Client::over_socket(flatout::App::new().websocket("/", |_, _| ()))?;
    /// assert_eq!(client.get("/").websocket().close(1000), ServerMessage::Closed(1000, String::new()));
    /// # Ok::<(), flatout::Error>(())
    /// ```
    ///
    /// # Panics
    /// As [`WebSocket::send`] and [`WebSocket::receive`].
    pub fn close(mut self, code: u16) -> ServerMessage {
        self.write(Opcode::Close, &close_payload(code, "")).expect("the connection is open");
        loop {
            match self.receive() {
                ServerMessage::Text(_) | ServerMessage::Binary(_) => {}
                closed => return closed,
            }
        }
    }

    fn step(&mut self) -> ReceiveStep {
        let (used, step) = match self.reader.step(&mut self.bytes, &LIMITS) {
            Ok((used, ReaderEvent::NeedMore)) => (used, ReceiveStep::More),
            Ok((used, ReaderEvent::Data { kind, bytes, is_last, .. })) => {
                (used, ReceiveStep::Piece(kind, bytes.to_vec(), is_last))
            }
            Ok((used, ReaderEvent::Ping(payload))) => (used, ReceiveStep::Ping(payload.to_vec())),
            Ok((used, ReaderEvent::Pong(_))) => (used, ReceiveStep::Nothing),
            Ok((used, ReaderEvent::Close(Close { code, reason }))) => {
                (used, ReceiveStep::Closed(code.unwrap_or(NO_CODE), reason.to_owned()))
            }
            Err(fault) => panic!("the server broke the protocol: {}", fault.reason()),
        };
        self.bytes.drain(..used);
        step
    }

    /// Receives more bytes; `false` at the end of the connection.
    fn fill(&mut self) -> bool {
        let piece = match self.stream.fill_buf() {
            Ok(piece) => piece,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return false,
            Err(error) => panic!("no message within the time limit: {error}"),
        };
        let bytes = piece.len();
        self.bytes.extend_from_slice(piece);
        self.stream.consume(bytes);
        bytes > 0
    }

    fn write(&mut self, opcode: Opcode, payload: &[u8]) -> std::io::Result<()> {
        let mut frame = Vec::new();
        write_frame(opcode, false, payload, Some(MASK), &mut frame);
        self.stream.get_mut().write_all(&frame)
    }
}
