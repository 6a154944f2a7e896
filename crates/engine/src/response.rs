//! A response under construction.
//!
//! The worker keeps one and hands it to every call, so that an answer made in the lane allocates nothing: its
//! field lines and its body buffer keep their capacity from request to request. The engine adds `Server`, `Date`,
//! `Content-Length` or `Transfer-Encoding`, and `Connection` when it writes the head.

use std::fs::File;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use flatout_wire::Status;
use flatout_wire::field::{is_field_value, is_token};

/// Any error of a body that is produced while it is sent.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Any body that is produced while it is sent.
pub type BoxBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = BoxError>>>;

/// Status, fields and body of an answer.
pub struct Response {
    status: Status,
    fields: Vec<u8>,
    buffer: Vec<u8>,
    pub(crate) body: Body,
    pub(crate) close: bool,
    pub(crate) has_date: bool,
    pub(crate) has_server: bool,
}

/// What follows the head.
#[derive(Default)]
pub enum Body {
    /// Nothing, `Content-Length: 0`.
    #[default]
    Empty,
    /// What was written to [`Response::buffer`].
    Buffered,
    /// Bytes that live as long as the program.
    Static(&'static [u8]),
    /// Bytes that somebody else keeps too; large ones are sent from where they lie.
    Shared(Bytes),
    /// A range of a file, sent by the kernel.
    File(FileRange),
    /// Several pieces one after another.
    Parts(Vec<Part>),
    /// Produced while it is sent, chunked unless its size hint is exact. An error cuts the connection, so that
    /// the client sees a short body and never a clean end.
    Stream(BoxBody),
    /// What follows is not HTTP: the socket leaves the lane once the head is sent (WebSocket, tunnels).
    Take(Takeover),
}

/// A piece of [`Body::Parts`].
pub enum Part {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A range of a file.
    File(FileRange),
}

/// `bytes` bytes of a file from `offset` on. A file that turns out shorter cuts the connection, and so does one that
/// was written to meanwhile: no client takes halves of two versions for one.
#[derive(Debug, Clone)]
pub struct FileRange {
    /// The open file.
    pub file: Arc<File>,
    /// Where the range begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// When the version that was promised was last written to; looked at once more before the last bytes are sent.
    pub modified: SystemTime,
}

impl FileRange {
    /// Whether the file is still the version that was promised. Costs one system call.
    pub(crate) fn is_current(&self) -> bool {
        self.file.metadata().and_then(|metadata| metadata.modified()).is_ok_and(|now| now == self.modified)
    }
}

/// Runs a connection that has left HTTP, on the worker's runtime.
pub type Takeover = Box<dyn FnOnce(Taken) -> Pin<Box<dyn Future<Output = ()>>>>;

/// A connection that has left the lane.
pub struct Taken {
    /// The socket, non-blocking.
    pub socket: OwnedFd,
    /// What the client sent after its request head.
    pub read: Bytes,
    /// The client's address; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
}

impl Response {
    /// An empty response with status 200.
    pub fn new() -> Response {
        Response {
            status: Status::OK,
            fields: Vec::new(),
            buffer: Vec::new(),
            body: Body::Empty,
            close: false,
            has_date: false,
            has_server: false,
        }
    }

    /// An empty response with this status.
    pub fn with_status(status: Status) -> Response {
        let mut response = Response::new();
        response.status = status;
        response
    }

    /// The status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Sets the status.
    #[inline]
    pub fn set_status(&mut self, status: Status) -> &mut Self {
        self.status = status;
        self
    }

    /// Adds a field line. `Content-Length` and `Transfer-Encoding` are the engine's and left out;
    /// `Connection: close` closes after the answer, other connection options are left out.
    ///
    /// A name that is no token, or a value with a control byte, would let its author's data split the
    /// response: such a field turns the response into an empty 500.
    pub fn header(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Self {
        let (name, value) = (name.as_bytes(), value.as_ref());
        if !is_token(name) || !is_field_value(value) {
            self.reset();
            self.status = Status::INTERNAL_SERVER_ERROR;
            return self;
        }
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"date") => self.has_date = true,
            6 if name.eq_ignore_ascii_case(b"server") => self.has_server = true,
            10 if name.eq_ignore_ascii_case(b"connection") => {
                let mut options = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
                self.close |= options.any(|option| option.eq_ignore_ascii_case(b"close"));
                return self;
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => return self,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => return self,
            _ => {}
        }
        for part in [name, b": ", value, b"\r\n"] {
            self.fields.extend_from_slice(part);
        }
        self
    }

    /// Adds whole field lines, each ended by CRLF, encoded beforehand. They are trusted: none of those that the
    /// engine writes itself, and no control byte.
    #[inline]
    pub fn encoded_fields(&mut self, lines: &[u8]) -> &mut Self {
        debug_assert!(lines.is_empty() || lines.ends_with(b"\r\n"));
        self.fields.extend_from_slice(lines);
        self
    }

    /// The field lines so far, each ended by CRLF.
    pub fn fields(&self) -> &[u8] {
        &self.fields
    }

    /// Removes all fields of this name. Costs a pass over the fields.
    pub fn remove_header(&mut self, name: &str) -> &mut Self {
        let mut kept = Vec::with_capacity(self.fields.len());
        for line in self.fields.split_inclusive(|&byte| byte == b'\n') {
            let end = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
            if !line[..end].eq_ignore_ascii_case(name.as_bytes()) {
                kept.extend_from_slice(line);
            }
        }
        self.fields = kept;
        self
    }

    /// The buffer for a body that is written now; what is in it is the body ([`Body::Buffered`]).
    #[inline]
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.body = Body::Buffered;
        &mut self.buffer
    }

    /// Sets the body.
    #[inline]
    pub fn set_body(&mut self, body: Body) -> &mut Self {
        self.body = body;
        self
    }

    /// The body.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// The bytes of a body that is in memory; `None` for the other kinds.
    pub fn body_bytes(&self) -> Option<&[u8]> {
        match &self.body {
            Body::Empty => Some(&[]),
            Body::Buffered => Some(&self.buffer),
            Body::Static(bytes) => Some(bytes),
            Body::Shared(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Takes the body out, leaving none.
    pub fn take_body(&mut self) -> Body {
        match std::mem::take(&mut self.body) {
            Body::Buffered => Body::Shared(std::mem::take(&mut self.buffer).into()),
            body => body,
        }
    }

    /// Closes the connection after this answer.
    pub fn close(&mut self) -> &mut Self {
        self.close = true;
        self
    }

    /// Empties it for the next request; capacity is kept.
    #[inline]
    pub fn reset(&mut self) {
        self.status = Status::OK;
        self.fields.clear();
        self.buffer.clear();
        self.body = Body::Empty;
        self.close = false;
        self.has_date = false;
        self.has_server = false;
    }
}

impl Default for Response {
    fn default() -> Self {
        Response::new()
    }
}
