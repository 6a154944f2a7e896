//! From a [`Response`] to bytes on the socket.
//!
//! ```text
//! encode ──> Output { bytes: head body head body …, cuts: (position, large piece) }
//!                 │ all of it small: one send            │ else
//!                 └──────> socket <── drain ── Queue of pieces ──> what the socket did not take stays queued
//! ```

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use bytes::Bytes;
use flatout_lane::socket::{self, Moved};
use flatout_wire::{Head, Method, Status, Version};

use crate::response::{Body, FileRange, Part, Response};

/// Bodies up to this size are copied behind their head; larger ones are sent from where they lie.
const COPY_BYTES_MAX: usize = 4 << 10;

/// Pieces handed to the kernel with one call.
const SLICES_MAX: usize = 32;

/// Bytes of one file sent before other connections have their turn.
const FILE_BYTES_PER_TURN: u64 = 2 << 20;

/// What must be known of a request to encode its answer, when the request itself may be gone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) version: Version,
    pub(crate) is_head: bool,
    pub(crate) keep_alive: bool,
}

impl Asked {
    #[inline]
    pub(crate) fn of(head: &Head<'_>) -> Asked {
        Asked {
            version: head.version,
            is_head: head.method == Method::Head,
            // A refused CONNECT leaves unclear what follows (RFC 9931): close.
            keep_alive: head.keep_alive && head.method != Method::Connect,
        }
    }

    /// For an answer to what was no request: it is always the last.
    pub(crate) fn unknown() -> Asked {
        Asked { version: Version::Http11, is_head: false, keep_alive: false }
    }
}

/// What follows once the encoded bytes are sent.
pub(crate) enum Follow {
    /// The next request.
    Next,
    /// The end of the connection.
    Close,
    /// More of the body, and then the next request (`true`) or the end.
    Stream(crate::response::BoxBody, StreamCoding, bool),
    /// Something that is not HTTP.
    Take(crate::response::Takeover),
}

/// How the pieces of a streamed body are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamCoding {
    /// Exactly so many bytes are left.
    Length(u64),
    /// In chunks.
    Chunked,
    /// As they are, until the connection closes: HTTP/1.0.
    UntilClose,
}

/// Answers of one turn of one connection, encoded.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    cuts: Vec<(usize, Piece)>,
    cut_bytes: u64,
}

/// A place in an [`Output`].
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    bytes: usize,
    cuts: usize,
    cut_bytes: u64,
}

/// A piece of what is to be sent.
pub(crate) enum Piece {
    Bytes(Bytes),
    File(FileRange),
}

/// What a socket has not taken yet.
#[derive(Default)]
pub(crate) struct Queue {
    pieces: VecDeque<Piece>,
    bytes: u64,
}

/// The lines that stand in every answer, made anew once a second.
pub(crate) struct Prelude {
    server: Vec<u8>,
    lines: Vec<u8>,
    unix_seconds: u64,
}

impl Prelude {
    pub(crate) fn new(server_name: Option<&str>) -> Prelude {
        let server = server_name.map_or_else(Vec::new, |name| format!("Server: {name}\r\n").into_bytes());
        Prelude { server, lines: Vec::new(), unix_seconds: u64::MAX }
    }

    /// Follows the clock; formats only when the second has changed.
    #[inline]
    pub(crate) fn follow(&mut self, unix_seconds: u64) {
        if self.unix_seconds != unix_seconds {
            self.unix_seconds = unix_seconds;
            self.lines.clear();
            self.lines.extend_from_slice(&self.server);
            self.lines.extend_from_slice(b"Date: ");
            self.lines.extend_from_slice(&flatout_wire::date::format(unix_seconds));
            self.lines.extend_from_slice(b"\r\n");
        }
    }

    #[inline]
    fn write(&self, response: &Response, out: &mut Vec<u8>) {
        match (response.has_server, response.has_date) {
            (false, false) => out.extend_from_slice(&self.lines),
            (true, false) => out.extend_from_slice(&self.lines[self.server.len()..]),
            (false, true) => out.extend_from_slice(&self.server),
            (true, true) => {}
        }
    }
}

impl Output {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.cuts.is_empty()
    }

    /// Bytes of all answers so far, those that are not copied too.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64 + self.cut_bytes
    }

    /// How far it is made, to come [back to](Output::back_to).
    #[inline]
    pub(crate) fn mark(&self) -> Mark {
        Mark { bytes: self.bytes.len(), cuts: self.cuts.len(), cut_bytes: self.cut_bytes }
    }

    /// Takes back what was made since.
    pub(crate) fn back_to(&mut self, mark: Mark) {
        self.bytes.truncate(mark.bytes);
        self.cuts.truncate(mark.cuts);
        self.cut_bytes = mark.cut_bytes;
    }

    fn cut(&mut self, piece: Piece) {
        self.cut_bytes += piece.bytes();
        self.cuts.push((self.bytes.len(), piece));
    }

    /// Adds an interim answer or anything else that is encoded already.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds the answer; `response` is left to be reset.
    #[inline]
    pub(crate) fn encode(&mut self, response: &mut Response, asked: Asked, prelude: &Prelude) -> Follow {
        let status = response.status();
        let out = &mut self.bytes;
        match status.line() {
            Some(line) => out.extend_from_slice(line),
            None => out.extend_from_slice(format!("HTTP/1.1 {} \r\n", status.code()).as_bytes()),
        }
        prelude.write(response, out);
        out.extend_from_slice(response.fields());
        let body = match &response.body {
            Body::Empty | Body::Buffered | Body::Static(_) | Body::Shared(_) => None,
            _ => Some(std::mem::take(&mut response.body)),
        };
        match body {
            None => self.encode_memory(response, asked),
            Some(body) => self.encode_other(response, body, asked),
        }
    }

    #[inline]
    fn encode_memory(&mut self, response: &mut Response, asked: Asked) -> Follow {
        let bytes = response.body_bytes().unwrap_or_default();
        let keep_alive = asked.keep_alive && !response.close;
        let bodyless = response.status().is_bodyless();
        let out = &mut self.bytes;
        if !bodyless {
            content_length(bytes.len() as u64, out);
        }
        end_head(asked, keep_alive, out);
        if !asked.is_head && !bodyless {
            if bytes.len() <= COPY_BYTES_MAX {
                out.extend_from_slice(bytes);
            } else {
                let large = match response.take_body() {
                    Body::Shared(bytes) => bytes,
                    Body::Static(bytes) => Bytes::from_static(bytes),
                    _ => Bytes::new(),
                };
                self.cut(Piece::Bytes(large));
            }
        }
        if keep_alive { Follow::Next } else { Follow::Close }
    }

    fn encode_other(&mut self, response: &mut Response, body: Body, asked: Asked) -> Follow {
        let keep_alive = asked.keep_alive && !response.close;
        match body {
            Body::File(range) => {
                self.encode_parts(vec![Part::File(range)], response.status(), asked, keep_alive)
            }
            Body::Parts(parts) => self.encode_parts(parts, response.status(), asked, keep_alive),
            Body::Stream(body) => self.encode_stream(body, response.status(), asked, keep_alive),
            Body::Take(takeover) => {
                // An upgrade says so itself; after a 2xx to CONNECT there is nothing to say.
                if response.status() == Status::SWITCHING_PROTOCOLS {
                    self.bytes.extend_from_slice(b"Connection: Upgrade\r\n");
                }
                self.bytes.extend_from_slice(b"\r\n");
                Follow::Take(takeover)
            }
            Body::Empty | Body::Buffered | Body::Static(_) | Body::Shared(_) => Follow::Close,
        }
    }

    fn encode_parts(&mut self, parts: Vec<Part>, status: Status, asked: Asked, keep_alive: bool) -> Follow {
        let bytes = |part: &Part| match part {
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::File(range) => range.bytes,
        };
        if !status.is_bodyless() {
            content_length(parts.iter().map(bytes).sum(), &mut self.bytes);
        }
        end_head(asked, keep_alive, &mut self.bytes);
        if !asked.is_head && !status.is_bodyless() {
            for part in parts.into_iter().filter(|part| bytes(part) > 0) {
                let piece = match part {
                    Part::Bytes(bytes) => Piece::Bytes(bytes),
                    Part::File(range) => Piece::File(range),
                };
                self.cut(piece);
            }
        }
        if keep_alive { Follow::Next } else { Follow::Close }
    }

    fn encode_stream(
        &mut self,
        body: crate::response::BoxBody,
        status: Status,
        asked: Asked,
        keep_alive: bool,
    ) -> Follow {
        let coding = match body.size_hint().exact() {
            Some(length) => StreamCoding::Length(length),
            None if asked.version == Version::Http10 => StreamCoding::UntilClose,
            None => StreamCoding::Chunked,
        };
        let keep_alive = keep_alive && coding != StreamCoding::UntilClose;
        if !status.is_bodyless() {
            match coding {
                StreamCoding::Length(length) => content_length(length, &mut self.bytes),
                StreamCoding::Chunked => self.bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
                StreamCoding::UntilClose => {}
            }
        }
        end_head(asked, keep_alive, &mut self.bytes);
        if asked.is_head || status.is_bodyless() {
            return if keep_alive { Follow::Next } else { Follow::Close };
        }
        Follow::Stream(body, coding, keep_alive)
    }

    /// Sends what was encoded, behind what `queue` still holds; what the socket does not take is queued.
    /// Costs one system call where it all is small and fits.
    #[inline]
    pub(crate) fn flush(&mut self, socket: BorrowedFd<'_>, queue: &mut Queue) -> Drained {
        if self.cuts.is_empty() && queue.is_empty() {
            let drained = match socket::send(socket, &self.bytes) {
                Moved::Bytes(sent) if sent == self.bytes.len() => Drained::All,
                Moved::Bytes(sent) => {
                    queue.push_bytes(Bytes::copy_from_slice(&self.bytes[sent..]));
                    Drained::Full
                }
                Moved::WouldBlock => {
                    queue.push_bytes(Bytes::copy_from_slice(&self.bytes));
                    Drained::Full
                }
                Moved::Broken => Drained::Broken,
            };
            self.bytes.clear();
            return drained;
        }
        self.move_to(queue);
        queue.drain(socket)
    }

    /// Queues what was encoded without sending it.
    fn move_to(&mut self, queue: &mut Queue) {
        let mut at = 0;
        self.cut_bytes = 0;
        for (position, piece) in self.cuts.drain(..) {
            if at < position {
                queue.push_bytes(Bytes::copy_from_slice(&self.bytes[at..position]));
            }
            at = position;
            queue.push(piece);
        }
        if at < self.bytes.len() {
            queue.push_bytes(Bytes::copy_from_slice(&self.bytes[at..]));
        }
        self.bytes.clear();
    }
}

/// How far a queue got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// All was sent.
    All,
    /// The socket takes no more; it will say when it does.
    Full,
    /// It was this connection's turn long enough; the socket may take more.
    Yield,
    /// The connection is broken, or a file is not what was promised any more.
    Broken,
}

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn push_bytes(&mut self, bytes: Bytes) {
        self.push(Piece::Bytes(bytes));
    }

    fn push(&mut self, piece: Piece) {
        let bytes = piece.bytes();
        if bytes > 0 {
            self.bytes += bytes;
            self.pieces.push_back(piece);
        }
    }

    /// Sends as much as the socket takes.
    pub(crate) fn drain(&mut self, socket: BorrowedFd<'_>) -> Drained {
        let mut file_bytes_left = FILE_BYTES_PER_TURN;
        while let Some(piece) = self.pieces.front_mut() {
            let (moved, wanted) = match piece {
                Piece::File(_) if file_bytes_left == 0 => return Drained::Yield,
                Piece::File(range) => {
                    let wanted = range.bytes.min(file_bytes_left);
                    if wanted == range.bytes && !range.is_current() {
                        return Drained::Broken;
                    }
                    let moved = socket::send_file(socket, &range.file, range.offset, wanted);
                    if let Moved::Bytes(sent) = moved {
                        file_bytes_left -= sent as u64;
                    }
                    (moved, wanted)
                }
                Piece::Bytes(_) => self.send_memory(socket),
            };
            match moved {
                Moved::Bytes(0) | Moved::Broken => return Drained::Broken,
                Moved::WouldBlock => return Drained::Full,
                Moved::Bytes(sent) => {
                    self.advance(sent as u64);
                    // A file may be sent in part because its pages come slowly: ask again. Memory may not.
                    if (sent as u64) < wanted && matches!(self.pieces.front(), Some(Piece::Bytes(_))) {
                        return Drained::Full;
                    }
                }
            }
        }
        Drained::All
    }

    fn send_memory(&self, socket: BorrowedFd<'_>) -> (Moved, u64) {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        let mut wanted = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            let Piece::Bytes(bytes) = piece else { break };
            *slice = IoSlice::new(bytes);
            wanted += bytes.len() as u64;
            count += 1;
        }
        let more = self.pieces.len() > count;
        (socket::send_slices(socket, &slices[..count], more), wanted)
    }

    fn advance(&mut self, sent: u64) {
        self.bytes -= sent;
        let mut left = sent;
        while left > 0 {
            let Some(piece) = self.pieces.front_mut() else { return };
            if piece.bytes() > left {
                piece.advance(left);
                return;
            }
            left -= piece.bytes();
            self.pieces.pop_front();
        }
    }
}

impl Piece {
    fn bytes(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File(range) => range.bytes,
        }
    }

    fn advance(&mut self, sent: u64) {
        match self {
            Piece::Bytes(bytes) => bytes::Buf::advance(bytes, sent as usize),
            Piece::File(range) => {
                range.offset += sent;
                range.bytes -= sent;
            }
        }
    }
}

#[inline]
fn content_length(length: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"Content-Length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Says whether the connection stays, where the version's default says otherwise, and ends the head.
#[inline]
fn end_head(asked: Asked, keep_alive: bool, out: &mut Vec<u8>) {
    match (asked.version, keep_alive) {
        (Version::Http11, true) => out.extend_from_slice(b"\r\n"),
        (Version::Http10, true) => out.extend_from_slice(b"Connection: keep-alive\r\n\r\n"),
        (_, false) => out.extend_from_slice(b"Connection: close\r\n\r\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Asked = Asked { version: Version::Http11, is_head: false, keep_alive: true };

    fn encoded(response: &mut Response, asked: Asked) -> String {
        let mut prelude = Prelude::new(Some("t"));
        prelude.follow(784_111_777);
        let mut output = Output::default();
        output.encode(response, asked, &prelude);
        String::from_utf8(output.bytes).unwrap()
    }

    #[test]
    fn a_small_answer() {
        let mut response = Response::new();
        response.header("Content-Type", "text/plain").buffer().extend_from_slice(b"hi");
        let expected = "HTTP/1.1 200 OK\r\nServer: t\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                        Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n";
        assert_eq!(encoded(&mut response, KEPT), format!("{expected}hi"));
        assert_eq!(encoded(&mut response, Asked { is_head: true, ..KEPT }), expected);
    }

    #[test]
    fn connection_is_said_where_it_differs_from_the_default() {
        for (version, keep_alive, line) in [
            (Version::Http10, true, Some("Connection: keep-alive")),
            (Version::Http10, false, Some("Connection: close")),
            (Version::Http11, true, None),
            (Version::Http11, false, Some("Connection: close")),
        ] {
            let head = encoded(&mut Response::new(), Asked { version, keep_alive, is_head: false });
            assert_eq!(head.lines().find(|line| line.starts_with("Connection")), line);
        }
    }

    #[test]
    fn answers_without_a_body_have_no_length() {
        for status in [Status::NO_CONTENT, Status::NOT_MODIFIED] {
            let mut response = Response::with_status(status);
            response.set_body(Body::Static(b"never sent"));
            let head = encoded(&mut response, KEPT);
            assert!(!head.contains("Content-Length") && head.ends_with("\r\n\r\n"), "{head}");
        }
    }

    #[test]
    fn a_field_cannot_split_the_answer() {
        let mut response = Response::new();
        response.header("X", "a\r\nSet-Cookie: b");
        assert_eq!(response.status(), Status::INTERNAL_SERVER_ERROR);
        assert!(!encoded(&mut response, KEPT).contains("Cookie"));
    }

    #[test]
    fn the_engines_own_fields_stay_its_own() {
        let mut response = Response::new();
        response
            .header("content-length", "99")
            .header("Transfer-Encoding", "x")
            .header("Connection", "close");
        response.header("Date", "then").header("Server", "me");
        let head = encoded(&mut response, KEPT);
        assert_eq!(
            head,
            "HTTP/1.1 200 OK\r\nDate: then\r\nServer: me\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
}
