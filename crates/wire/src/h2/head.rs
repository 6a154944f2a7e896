//! Builds a head in HTTP/1 form from the fields of a block.
//!
//! ```text
//! :method: GET, :path: /a, :authority: b    ──>   GET /a HTTP/2.0        one text, and a table of its fields:
//! :scheme: https                                  host: b                what services, proxy and logs read
//! accept: */*                                     accept: */*            as a Head, without knowing the version
//! cookie: c, cookie: d                            cookie: c; d
//!
//! :method: CONNECT, :protocol: websocket   ──>   GET /a HTTP/2.0        with Connection: Upgrade, Upgrade: websocket
//! ```
//!
//! A request for a WebSocket (RFC 8441) gets the form that it has in HTTP/1, so that routes, rules and upstreams see one kind of
//! WebSocket. Its two fields cannot come from a client: HTTP/2 forbids them.
//!
//! The result is also valid in HTTP/1 (the tests parse it again with [`head::parse`]), so that nothing can be
//! smuggled when it is forwarded: no CR or LF, no second length, no `transfer-encoding`, one host.

use super::hpack::{Decoded, FieldKind, Sink};
use crate::chunk::is_forbidden_trailer;
use crate::field::Field;
use crate::framing::content_length;
use crate::h1::Trailers;
use crate::head::{self, HeadLimits};
use crate::{Framing, Head, Method, Status};

/// Buffers for building heads, which the caller keeps for all its connections.
#[derive(Debug, Default)]
pub struct Room {
    text: Vec<u8>,
    /// Pseudo-header fields as lines, until the first other field.
    pseudo: Vec<u8>,
    /// Parts of the cookie, joined.
    cookie: Vec<u8>,
    fields: Vec<Field>,
}

/// Memory that a [`Room`] keeps.
const ROOM_BYTES_KEPT: usize = 64 << 10;

/// An error in the fields of a block that could be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// Not valid HTTP/2: the stream is reset (RFC 9113 section 8.1.1).
    Malformed,
    /// A request that is not served: it gets an error response.
    Refused(head::Fault),
}

/// The head of a request, with its HTTP/2 properties.
#[derive(Debug, Clone, Copy)]
pub(super) struct H2Request<'b> {
    pub(super) head: Head<'b>,
    /// The declared length of the content.
    pub(super) length: Option<u64>,
    /// An extended CONNECT that asks for a WebSocket.
    pub(super) is_websocket: bool,
    pub(super) priority: Option<&'b [u8]>,
}

/// The head of a response.
#[derive(Debug, Clone, Copy)]
pub struct AnswerHead<'b> {
    /// The status.
    pub status: Status,
    /// `Content-Length`, if there is one.
    pub length: Option<u64>,
    text: &'b [u8],
    fields: &'b [Field],
}

impl<'b> AnswerHead<'b> {
    /// The fields in their order.
    pub fn fields(&self) -> impl Iterator<Item = (&'b [u8], &'b [u8])> + use<'b> {
        let text = self.text;
        self.fields.iter().map(move |field| (field.name(text), field.value(text)))
    }

    /// The fields as HTTP/1 lines, and their positions.
    pub fn lines(&self) -> (&'b [u8], &'b [Field]) {
        (self.text, self.fields)
    }

    /// The value of the first field of this name, which is in lower case.
    pub fn field(&self, name: &str) -> Option<&'b [u8]> {
        self.fields().find(|(this, _)| *this == name.as_bytes()).map(|(_, value)| value)
    }
}

/// Builds a head.
pub(super) struct Builder<'r> {
    room: &'r mut Room,
    limits: HeadLimits,
    kind: HeadKind,
    /// Only pseudo-header fields so far.
    is_pseudo: bool,
    flaw: Option<Flaw>,
    line: Option<head::RequestLine>,
    method: Option<Span>,
    scheme: Option<Span>,
    authority: Option<Span>,
    path: Option<Span>,
    protocol: Option<Span>,
    status: Option<Status>,
    host: Option<Field>,
    priority: Option<Field>,
    length: Option<u64>,
    expects_continue: bool,
}

/// The kind of block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadKind {
    Request,
    Answer,
    Trailers,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    at: usize,
    bytes: usize,
}

impl Sink for Builder<'_> {
    #[inline]
    fn text(&mut self) -> &mut Vec<u8> {
        match self.is_pseudo {
            true => &mut self.room.pseudo,
            false => &mut self.room.text,
        }
    }

    #[inline]
    fn field(&mut self, field: Decoded) {
        if !field.has_good_value || matches!(field.kind, FieldKind::Malformed | FieldKind::Connection) {
            return self.flawed(Flaw::Malformed);
        }
        if field.kind.is_pseudo() {
            return self.pseudo(field);
        }
        let field = match self.is_pseudo {
            true => self.first_field(field),
            false => field,
        };
        match field.kind {
            FieldKind::Plain => self.push(field),
            _ => self.known(field),
        }
    }
}

impl<'r> Builder<'r> {
    pub(super) fn new(room: &'r mut Room, kind: HeadKind, limits: HeadLimits) -> Builder<'r> {
        room.text.clear();
        room.pseudo.clear();
        room.cookie.clear();
        room.fields.clear();
        if room.text.capacity() > ROOM_BYTES_KEPT {
            *room = Room::default();
        }
        Builder {
            room,
            limits,
            kind,
            is_pseudo: true,
            flaw: None,
            line: None,
            method: None,
            scheme: None,
            authority: None,
            path: None,
            protocol: None,
            status: None,
            host: None,
            priority: None,
            length: None,
            expects_continue: false,
        }
    }

    /// The first flaw counts.
    fn flawed(&mut self, flaw: Flaw) {
        self.flaw.get_or_insert(flaw);
    }

    fn pseudo(&mut self, field: Decoded) {
        let Decoded { at, name_bytes, value_bytes, kind, .. } = field;
        // After other fields, or in trailers.
        if !self.is_pseudo || self.kind == HeadKind::Trailers {
            return self.flawed(Flaw::Malformed);
        }
        let span = Span { at: at + name_bytes + 2, bytes: value_bytes };
        let place = match (kind, self.kind) {
            (FieldKind::Method, HeadKind::Request) => &mut self.method,
            (FieldKind::Scheme, HeadKind::Request) => &mut self.scheme,
            (FieldKind::Authority, HeadKind::Request) => &mut self.authority,
            (FieldKind::Path, HeadKind::Request) => &mut self.path,
            (FieldKind::Protocol, HeadKind::Request) => &mut self.protocol,
            (FieldKind::Status, HeadKind::Answer) => {
                let status = status(value(&self.room.pseudo, span));
                if status.is_none() || self.status.is_some() {
                    return self.flawed(Flaw::Malformed);
                }
                self.status = status;
                return;
            }
            _ => return self.flawed(Flaw::Malformed),
        };
        if place.replace(span).is_some() {
            self.flawed(Flaw::Malformed);
        }
    }

    /// After the pseudo-header fields: writes the request line, and moves the field after it.
    fn first_field(&mut self, field: Decoded) -> Decoded {
        self.end_pseudo();
        let Room { text, pseudo, .. } = &mut *self.room;
        let at = text.len();
        text.extend_from_slice(pseudo.get(field.at..).unwrap_or_default());
        Decoded { at, ..field }
    }

    fn end_pseudo(&mut self) {
        if std::mem::take(&mut self.is_pseudo) && self.kind == HeadKind::Request && self.flaw.is_none() {
            match self.request_line() {
                Ok(line) => self.line = Some(line),
                Err(flaw) => self.flawed(flaw),
            }
        }
    }

    /// RFC 9113 section 8.3.1, 8.5; RFC 8441 section 4.
    fn request_line(&mut self) -> Result<head::RequestLine, Flaw> {
        let Room { text, pseudo, fields, .. } = &mut *self.room;
        let span = |span: Option<Span>| span.map(|span| value(pseudo, span));
        let method = span(self.method).ok_or(Flaw::Malformed)?;
        let authority = span(self.authority);
        let is_connect = Method::from_token(method) == Method::Connect;
        let protocol = span(self.protocol);
        let target = match (is_connect, span(self.scheme), span(self.path), protocol) {
            (true, None, None, None) => authority.ok_or(Flaw::Malformed)?,
            (true, Some(scheme), Some(path), Some(_)) | (false, Some(scheme), Some(path), None)
                if is_scheme(scheme) && matches!(path.first(), Some(b'/' | b'*')) =>
            {
                path
            }
            _ => return Err(Flaw::Malformed),
        };
        if (protocol.is_some() && (target.first() != Some(&b'/') || authority.is_none()))
            || (target.first() == Some(&b'*') && (target.len() > 1 || method != b"OPTIONS"))
        {
            return Err(Flaw::Malformed);
        }
        // 400, as over HTTP/1.
        if authority.is_some_and(|authority| !head::is_authority(authority)) {
            return Err(Flaw::Refused(head::Fault::Host));
        }
        let is_websocket = match protocol {
            Some(protocol) if !protocol.eq_ignore_ascii_case(b"websocket") => {
                return Err(Flaw::Refused(head::Fault::Protocol));
            }
            protocol => protocol.is_some(),
        };
        let method = if is_websocket { &b"GET"[..] } else { method };
        for part in [method, b" ", target, b" HTTP/2.0\r\n"] {
            text.extend_from_slice(part);
        }
        let line = head::line_of_h2(text, &self.limits).map_err(|fault| match fault {
            head::Fault::TargetTooLong => Flaw::Refused(fault),
            _ => Flaw::Malformed,
        })?;
        if let Some(authority) = authority {
            let host = Field::at(text.len(), 4, authority.len());
            for part in [b"host: ", authority, b"\r\n"] {
                text.extend_from_slice(part);
            }
            fields.push(host);
            self.host = Some(host);
        }
        if is_websocket {
            for (name, value) in [("connection", "Upgrade"), ("upgrade", "websocket")] {
                fields.push(Field::at(text.len(), name.len(), value.len()));
                for part in [name, ": ", value, "\r\n"] {
                    text.extend_from_slice(part.as_bytes());
                }
            }
        }
        Ok(line)
    }

    #[inline]
    fn push(&mut self, field: Decoded) {
        self.room.fields.push(Field::at(field.at, field.name_bytes, field.value_bytes));
    }

    /// A field with a meaning for the message.
    fn known(&mut self, field: Decoded) {
        let Decoded { at, name_bytes, value_bytes, kind, .. } = field;
        let value = value(&self.room.text, Span { at: at + name_bytes + 2, bytes: value_bytes });
        match (kind, self.kind) {
            (FieldKind::Host, HeadKind::Request) => {
                if let Some(host) = self.host {
                    // Two equal hosts count as one.
                    if !host.value(&self.room.text).eq_ignore_ascii_case(value) {
                        self.flawed(Flaw::Refused(head::Fault::Host));
                    }
                    return self.room.text.truncate(at);
                }
                if !head::is_authority(value) {
                    return self.flawed(Flaw::Refused(head::Fault::Host));
                }
                self.host = Some(Field::at(at, name_bytes, value_bytes));
            }
            (FieldKind::Cookie, HeadKind::Request) => {
                // An empty part would add white space at an end, which is not part of the value.
                if !value.is_empty() {
                    let cookie = &mut self.room.cookie;
                    cookie.extend_from_slice(if cookie.is_empty() { b"cookie: " } else { b"; " });
                    cookie.extend_from_slice(value);
                }
                return self.room.text.truncate(at);
            }
            (FieldKind::ContentLength, HeadKind::Request | HeadKind::Answer) => match content_length(value) {
                Ok(length) if self.length.is_none() => self.length = Some(length),
                _ => return self.flawed(Flaw::Malformed),
            },
            (FieldKind::Te, HeadKind::Request) if !value.eq_ignore_ascii_case(b"trailers") => {
                return self.flawed(Flaw::Malformed);
            }
            (FieldKind::Expect, HeadKind::Request) => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    self.flawed(Flaw::Refused(head::Fault::Expectation));
                }
                self.expects_continue = true;
            }
            (FieldKind::Priority, _) => self.priority = Some(Field::at(at, name_bytes, value_bytes)),
            _ => {}
        }
        self.push(field);
    }

    /// The head of a request. `is_whole`: there is no content; `is_complete`: all its fields were passed to the
    /// builder.
    pub(super) fn request(mut self, is_whole: bool, is_complete: bool) -> Result<H2Request<'r>, Flaw> {
        self.end_pseudo();
        if let Some(flaw @ Flaw::Malformed) = self.flaw {
            return Err(flaw);
        }
        if !is_complete {
            return Err(Flaw::Refused(head::Fault::HeadTooLong));
        }
        if let Some(flaw) = self.flaw {
            return Err(flaw);
        }
        let line = self.line.ok_or(Flaw::Malformed)?;
        self.end_text();
        let is_websocket = self.protocol.is_some();
        let Builder { room, host, length, priority, expects_continue, .. } = self;
        let room: &'r Room = room;
        let framing = match (is_whole, length) {
            // What follows is not the content of a request (RFC 9110 section 9.3.6).
            _ if is_websocket && length.is_some() => return Err(Flaw::Malformed),
            _ if is_websocket => Framing::None,
            (true, Some(1..)) => return Err(Flaw::Malformed),
            (true, _) => Framing::None,
            (false, Some(length @ 1..)) => Framing::Length(length),
            (false, Some(0)) => Framing::None,
            (false, None) => Framing::Chunked,
        };
        let head = head::of_h2(&room.text, &room.fields, line, host, framing, expects_continue);
        if head.authority().is_empty() {
            return Err(Flaw::Refused(head::Fault::Host));
        }
        let priority = priority.map(|field| field.value(&room.text));
        Ok(H2Request { head, length, is_websocket, priority })
    }

    /// Joins the parts of the cookie (RFC 9113 section 8.2.3), and ends the text.
    fn end_text(&mut self) {
        let Room { text, cookie, fields, .. } = &mut *self.room;
        if !cookie.is_empty() {
            let name_bytes = "cookie".len();
            fields.push(Field::at(text.len(), name_bytes, cookie.len() - name_bytes - 2));
            text.extend_from_slice(cookie);
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"\r\n");
    }

    /// The head of a response.
    pub(super) fn answer(mut self, is_complete: bool) -> Result<AnswerHead<'r>, Flaw> {
        self.end_pseudo();
        if self.flaw.is_some() || !is_complete {
            return Err(Flaw::Malformed);
        }
        let status = self.status.ok_or(Flaw::Malformed)?;
        let Builder { room, length, .. } = self;
        let room: &'r Room = room;
        Ok(AnswerHead { status, length, text: &room.text, fields: &room.fields })
    }

    /// Trailer fields.
    pub(super) fn trailers(mut self, is_complete: bool) -> Result<Trailers, Flaw> {
        self.end_pseudo();
        let room = &*self.room;
        let trailers: Trailers = room
            .fields
            .iter()
            .map(|field| (field.name(&room.text).to_vec(), field.value(&room.text).to_vec()))
            .collect();
        let is_forbidden = trailers.iter().any(|(name, _)| is_forbidden_trailer(name));
        match self.flaw.is_some() || !is_complete || is_forbidden {
            true => Err(Flaw::Malformed),
            false => Ok(trailers),
        }
    }
}

fn value(text: &[u8], span: Span) -> &[u8] {
    text.get(span.at..span.at + span.bytes).unwrap_or_default()
}

fn status(text: &[u8]) -> Option<Status> {
    let digits: &[u8; 3] = text.try_into().ok().filter(|_| text.iter().all(u8::is_ascii_digit))?;
    Status::from_code(digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0')))
}

/// RFC 3986 section 3.1.
fn is_scheme(text: &[u8]) -> bool {
    let is_rest = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    text.first().is_some_and(u8::is_ascii_alphabetic) && text.iter().all(is_rest)
}
