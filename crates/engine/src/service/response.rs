//! A response under construction.
//!
//! The worker keeps one and passes it to every call, so that a response made in the lane allocates nothing: its field
//! lines and its body buffer keep their capacity between requests. The engine adds `Server`, `Date`, `Content-Length`
//! or `Transfer-Encoding`, and `Connection` when it writes the head.

use std::num::NonZeroU64;

use flatout_wire::Status;
use flatout_wire::field::{Field, Lines, is_field_value, is_token, write_line};
use flatout_wire::h2::hpack::encode_lines;

use super::body::{Body, BoxBody, Filter, FilterChain};

/// Status, fields and body of a response.
///
/// ```
/// use flatout_engine::Response;
/// use flatout_wire::Status;
///
/// let mut response = Response::with_status(Status::CREATED);
/// response.header("Location", "/items/7").header("Link", "</style.css>; rel=preload");
/// response.buffer().extend_from_slice(b"made");
/// assert_eq!(response.field("location"), Some(&b"/items/7"[..]));
/// assert_eq!(response.field_all("link").count(), 1);
/// assert_eq!((response.status().code(), response.body_bytes()), (201, Some(&b"made"[..])));
/// response.remove_header("Link").trailer("X-Checksum", "7").set_status(Status::OK);
/// assert_eq!(response.fields().count(), 1);
/// ```
pub struct Response {
    status: Status,
    /// Consecutive field lines, each ending in CRLF.
    block: Vec<u8>,
    /// Their positions in it.
    lines: Vec<Line>,
    buffer: Vec<u8>,
    body: Body,
    declared_length: Option<u64>,
    filter: Option<Box<dyn Filter>>,
    rate_limit: Option<SendRate>,
    /// It has a filter, or had one that its exchange has now.
    is_filtered: bool,
    trailers: Vec<u8>,
    hints: Vec<u8>,
    note: u64,
    close: bool,
    has_date: bool,
    has_server: bool,
    /// Lines were removed, so the block contains more than its lines.
    has_holes: bool,
    /// It has a declared length, a filter, a limited rate, trailers or hints.
    has_extras: bool,
}

/// A limit of the rate at which a response is sent.
///
/// The bytes of a response over HTTP/1 include its head and the framing of its body; over HTTP/2, only its content counts. Bytes are counted
/// before they are encrypted. Each eighth of a second, an eighth of the rate is added to what may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendRate {
    /// Bytes per second.
    pub bytes_per_s: NonZeroU64,
    /// Bytes at its start that are sent without a limit.
    pub after_bytes: u64,
}

impl SendRate {
    /// A limit; `None` for a rate of 0, which stands for no limit.
    pub fn new(bytes_per_s: u64, after_bytes: u64) -> Option<SendRate> {
        NonZeroU64::new(bytes_per_s).map(|bytes_per_s| SendRate { bytes_per_s, after_bytes })
    }
}

/// What an exchange does to a body that is pushed.
pub(crate) struct PushedRules {
    pub(crate) filter: Option<Box<dyn Filter>>,
    /// Trailer fields that precede those of the body, as complete lines.
    pub(crate) trailers: Vec<u8>,
}

/// A line of the block, or several lines that were encoded in advance.
#[derive(Debug, Clone, Copy)]
struct Line {
    at: u32,
    bytes: u32,
}

impl Response {
    /// An empty response with status 200.
    pub fn new() -> Response {
        Response {
            status: Status::OK,
            block: Vec::new(),
            lines: Vec::new(),
            buffer: Vec::new(),
            body: Body::Empty,
            declared_length: None,
            filter: None,
            rate_limit: None,
            is_filtered: false,
            trailers: Vec::new(),
            hints: Vec::new(),
            note: 0,
            close: false,
            has_date: false,
            has_server: false,
            has_holes: false,
            has_extras: false,
        }
    }

    /// An empty response with this status.
    pub fn with_status(status: Status) -> Response {
        let mut response = Response::new();
        response.status = status;
        response
    }

    /// The status.
    #[inline]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Sets the status.
    #[inline]
    pub fn set_status(&mut self, status: Status) -> &mut Self {
        self.status = status;
        self
    }

    /// The status to send if nothing takes the connection over: a client takes 1xx for an interim response, and waits for
    /// another one.
    #[inline]
    pub(crate) fn final_status(&self) -> Status {
        if self.status.code() < 200 { Status::INTERNAL_SERVER_ERROR } else { self.status }
    }

    /// Adds a field line. `Content-Length` and `Transfer-Encoding` are written by the engine and ignored here (see
    /// [`Response::declare_length`]); `Connection: close` closes after the response, other connection options are
    /// ignored.
    ///
    /// A name that is not a token, or a value with a control byte, could split the response: such a field turns the
    /// response into an empty 500.
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
        let at = self.block.len();
        write_line(name, value, &mut self.block);
        self.note_lines(at);
        self
    }

    /// Reserves room for this many field lines with this many bytes in all.
    pub fn reserve_fields(&mut self, lines: usize, bytes: usize) {
        self.block.reserve(bytes);
        self.lines.reserve(lines);
    }

    /// Adds a parsed field of a response from elsewhere: trusted to have no control bytes, and not to be a framing or
    /// connection-specific field.
    pub fn parsed_field(&mut self, name: &[u8], value: &[u8]) -> &mut Self {
        match name.len() {
            4 => self.has_date |= name.eq_ignore_ascii_case(b"date"),
            6 => self.has_server |= name.eq_ignore_ascii_case(b"server"),
            _ => {}
        }
        let at = self.block.len();
        write_line(name, value, &mut self.block);
        self.note_lines(at);
        self
    }

    /// The same with fields of a head that was parsed from `bytes`.
    pub fn parsed_fields(&mut self, bytes: &[u8], fields: impl Iterator<Item = Field>) -> &mut Self {
        let at = self.block.len();
        let mut lines = Lines::new(bytes, &mut self.block);
        for field in fields {
            let name = field.name(bytes);
            match name.len() {
                4 => self.has_date |= name.eq_ignore_ascii_case(b"date"),
                6 => self.has_server |= name.eq_ignore_ascii_case(b"server"),
                _ => {}
            }
            lines.write(field);
        }
        drop(lines);
        self.note_lines(at);
        self
    }

    /// Adds complete field lines, encoded in advance, each ending in CRLF. They are trusted to have no control bytes,
    /// and none of the fields that the engine writes itself.
    #[inline]
    pub fn encoded_fields(&mut self, lines: &[u8]) -> &mut Self {
        debug_assert!(lines.is_empty() || lines.ends_with(b"\r\n"));
        let at = self.block.len();
        self.block.extend_from_slice(lines);
        self.note_lines(at);
        self
    }

    /// The same for lines that may include `Date` and `Server`, as the arguments say.
    #[inline]
    pub fn encoded_head(&mut self, lines: &[u8], has_date: bool, has_server: bool) -> &mut Self {
        self.has_date |= has_date;
        self.has_server |= has_server;
        self.encoded_fields(lines)
    }

    /// Adds complete field lines that `write` appends to its argument; trusted in the same way. Nothing is copied or
    /// allocated.
    #[inline]
    pub fn write_lines(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        let at = self.block.len();
        write(&mut self.block);
        self.note_lines(at);
        self
    }

    #[inline]
    fn note_lines(&mut self, at: usize) {
        let bytes = self.block.len() - at;
        self.lines.push(Line { at: at as u32, bytes: bytes as u32 });
    }

    /// The field lines so far: name and value of each.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.lines
            .iter()
            .flat_map(|line| self.span(line).split_inclusive(|&byte| byte == b'\n'))
            .map(split_line)
    }

    /// The value of the first field with this name, ignoring case.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields().find(|(this, _)| this.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }

    /// The values of all fields with this name, ignoring case.
    pub fn field_all<'n>(&'n self, name: &'n str) -> impl Iterator<Item = &'n [u8]> {
        let is_it = move |(this, _): &(&[u8], &[u8])| this.eq_ignore_ascii_case(name.as_bytes());
        self.fields().filter(is_it).map(|(_, value)| value)
    }

    /// Writes the field lines, each ending in CRLF.
    #[inline]
    pub fn write_fields(&self, out: &mut Vec<u8>) {
        if !self.has_holes {
            return out.extend_from_slice(&self.block);
        }
        for line in &self.lines {
            out.extend_from_slice(self.span(line));
        }
    }

    /// Writes the fields for HTTP/2.
    #[inline]
    pub(crate) fn encode_fields(&self, out: &mut Vec<u8>) {
        if !self.has_holes {
            return encode_lines(&self.block, out);
        }
        self.lines.iter().for_each(|line| encode_lines(self.span(line), out));
    }

    /// Removes all fields with this name. After its own `Date` or `Server` is removed, the response gets the
    /// engine's. Costs a pass over the fields.
    pub fn remove_header(&mut self, name: &str) -> &mut Self {
        match () {
            () if name.eq_ignore_ascii_case("date") => self.has_date = false,
            () if name.eq_ignore_ascii_case("server") => self.has_server = false,
            () => {}
        }
        let mut kept = Vec::with_capacity(self.lines.len());
        for run in &self.lines {
            let mut at = run.at;
            for line in self.span(run).split_inclusive(|&byte| byte == b'\n') {
                let (this, _) = split_line(line);
                if !this.eq_ignore_ascii_case(name.as_bytes()) {
                    kept.push(Line { at, bytes: line.len() as u32 });
                }
                at += line.len() as u32;
            }
        }
        self.lines = kept;
        self.has_holes = true;
        self
    }

    fn span(&self, line: &Line) -> &[u8] {
        self.block.get(line.at as usize..(line.at + line.bytes) as usize).unwrap_or_default()
    }

    /// Declares a length that differs from the length of this response's body: the length that GET would have, in a
    /// response to HEAD or with 304; or the exact length of a body that is streamed or pushed.
    pub fn declare_length(&mut self, bytes: u64) -> &mut Self {
        self.declared_length = Some(bytes);
        self.has_extras = true;
        self
    }

    /// The declared length.
    pub fn declared_length(&self) -> Option<u64> {
        self.declared_length
    }

    /// Filters a body that is streamed or pushed, after a filter that was set before; a declared length, and that of the stream, is then ignored. Other bodies are sent
    /// unchanged.
    pub fn set_filter(&mut self, filter: Box<dyn Filter>) -> &mut Self {
        self.declared_length = None;
        self.filter = Some(match self.filter.take() {
            Some(first) => Box::new(FilterChain { first, second: filter }),
            None => filter,
        });
        self.is_filtered = true;
        self.has_extras = true;
        self
    }

    /// Limits the rate at which it is sent, or with `None` does not limit it. A connection or stream that leaves HTTP with it
    /// ([`Body::Take`]) is not limited.
    pub fn set_rate_limit(&mut self, limit: Option<SendRate>) -> &mut Self {
        self.rate_limit = limit;
        self.has_extras |= limit.is_some();
        self
    }

    /// The limit of its rate.
    #[inline]
    pub fn rate_limit(&self) -> Option<SendRate> {
        if self.has_extras { self.rate_limit } else { None }
    }

    /// The length of a streamed body, if that is known before it is sent.
    pub(crate) fn length_of_stream(&self, body: &BoxBody) -> Option<u64> {
        if self.is_filtered { None } else { body.size_hint().exact().or(self.declared_length) }
    }

    /// Takes what its exchange does to a body that is pushed.
    #[inline]
    pub(crate) fn take_pushed_rules(&mut self) -> Option<Box<PushedRules>> {
        if self.has_extras { self.take_pushed_rules_of_extras() } else { None }
    }

    #[cold]
    fn take_pushed_rules_of_extras(&mut self) -> Option<Box<PushedRules>> {
        let rules = PushedRules { filter: self.filter.take(), trailers: self.trailers.clone() };
        (rules.filter.is_some() || !rules.trailers.is_empty()).then(|| Box::new(rules))
    }

    /// Adds a trailer field, sent after a chunked body; every body becomes chunked. After a body that is streamed or pushed, it precedes
    /// the trailer fields of that body. It is not sent to HTTP/1.0 clients. Invalid fields are ignored.
    pub fn trailer(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Self {
        if is_token(name.as_bytes()) && is_field_value(value.as_ref()) {
            write_line(name.as_bytes(), value.as_ref(), &mut self.trailers);
            self.has_extras = true;
        }
        self
    }

    /// The trailer fields, as complete lines.
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Adds a field to the interim response 103 (Early Hints, RFC 8297) that is sent before this one. To send one
    /// while the response is still being made, see [`Lane::inform`](crate::Lane::inform).
    pub fn hint(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Self {
        if is_token(name.as_bytes()) && is_field_value(value.as_ref()) {
            write_line(name.as_bytes(), value.as_ref(), &mut self.hints);
            self.has_extras = true;
        }
        self
    }

    /// The fields of the interim response, as complete lines.
    pub fn hints(&self) -> &[u8] {
        &self.hints
    }

    /// A number for the service's own use, returned when the exchange has ended
    /// ([`Ended::note`](crate::Ended::note)). If the response comes later ([`Reply::Parked`](crate::Reply::Parked),
    /// [`Reply::Later`](crate::Reply::Later)), it is returned if the client leaves before.
    pub fn set_note(&mut self, note: u64) -> &mut Self {
        self.note = note;
        self
    }

    /// Takes the note of a request whose response comes later.
    pub(crate) fn take_note(&mut self) -> u64 {
        std::mem::take(&mut self.note)
    }

    /// The number set by [`Response::set_note`], or 0.
    pub fn note(&self) -> u64 {
        self.note
    }

    /// The buffer of a body that is written now; its content becomes the body ([`Body::Buffered`]).
    #[inline]
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.replace_body(Body::Buffered);
        &mut self.buffer
    }

    /// Sets the body.
    #[inline]
    pub fn set_body(&mut self, body: Body) -> &mut Self {
        self.replace_body(body);
        self
    }

    /// Replaces the body. The usual kinds need no drop; `forget` lets the compiler omit it.
    #[inline]
    fn replace_body(&mut self, body: Body) {
        let former = std::mem::replace(&mut self.body, body);
        match former {
            Body::Empty | Body::Buffered | Body::Static(_) => std::mem::forget(former),
            former => drop(former),
        }
    }

    /// Whether it is only a head and a body in memory.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        let in_memory = matches!(self.body, Body::Empty | Body::Buffered | Body::Static(_) | Body::Shared(_));
        in_memory && self.trailers.is_empty() && self.hints.is_empty()
    }

    /// The body.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// The bytes of a body in memory; `None` for the other kinds.
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

    /// Closes the connection after this response.
    pub fn close(&mut self) -> &mut Self {
        self.close = true;
        self
    }

    /// Whether the connection closes after this response.
    #[inline]
    pub fn closes(&self) -> bool {
        self.close
    }

    /// Whether it has its own `Server` and `Date` fields.
    #[inline]
    pub(crate) fn own_prelude(&self) -> (bool, bool) {
        (self.has_server, self.has_date)
    }

    /// Clears it for the next request; capacity is kept, up to a limit.
    #[inline]
    pub fn reset(&mut self) {
        self.status = Status::OK;
        self.block.clear();
        self.lines.clear();
        self.buffer.clear();
        self.replace_body(Body::Empty);
        self.note = 0;
        self.close = false;
        self.has_date = false;
        self.has_server = false;
        self.has_holes = false;
        if self.has_extras || self.buffer.capacity() > BUFFER_BYTES_KEPT {
            self.reset_extras();
        }
    }

    #[cold]
    fn reset_extras(&mut self) {
        self.declared_length = None;
        self.filter = None;
        self.rate_limit = None;
        self.is_filtered = false;
        self.trailers.clear();
        self.hints.clear();
        self.has_extras = false;
        if self.buffer.capacity() > BUFFER_BYTES_KEPT {
            self.buffer = Vec::new();
        }
    }
}

/// Capacity of a body buffer that is kept for the next response.
pub(crate) const BUFFER_BYTES_KEPT: usize = 64 << 10;

/// Name and value of a line, without white space around the value.
fn split_line(line: &[u8]) -> (&[u8], &[u8]) {
    let at = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
    let (name, value) = line.split_at(at);
    (name, value.get(1..).unwrap_or_default().trim_ascii())
}

impl Default for Response {
    fn default() -> Self {
        Response::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(response: &Response) -> String {
        let mut out = Vec::new();
        response.write_fields(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_are_found_and_removed() {
        let mut response = Response::new();
        response.header("A", "1").encoded_fields(b"B: 2\r\nC:3 \r\n").header("a", "4");
        let fields: Vec<(&[u8], &[u8])> = response.fields().collect();
        assert_eq!(fields, [(&b"A"[..], &b"1"[..]), (b"B", b"2"), (b"C", b"3"), (b"a", b"4")]);
        assert_eq!(response.field("c"), Some(&b"3"[..]));
        response.remove_header("A").header("D", "5");
        assert_eq!(lines(&response), "B: 2\r\nC:3 \r\nD: 5\r\n");
        response.remove_header("b").remove_header("d");
        assert_eq!(lines(&response), "C:3 \r\n");
    }

    #[test]
    fn default_date_is_the_engines() {
        let mut response = Response::new();
        response.header("Date", "then").header("Server", "me");
        assert_eq!(response.own_prelude(), (true, true));
        response.remove_header("DATE").remove_header("server");
        assert_eq!(response.own_prelude(), (false, false));
    }
}
