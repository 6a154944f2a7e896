//! The server's side of a conversation.

use super::incoming::{Incoming, Piece, Trailers};
use super::outgoing::{Length, Misfit, Outgoing};
use crate::chunk::ChunkFault;
use crate::head::{self, Field, HeadLimits};
use crate::{Framing, Head, Method, Status, Version};

/// Bytes of an unread request body that are skipped for the sake of the next request; over it the conversation ends.
pub const DISCARD_BYTES_MAX: u32 = 256 << 10;

/// One connection's conversation, as its server has it: 24 bytes.
#[derive(Debug, Default)]
pub struct Server {
    state: State,
}

/// Where the conversation is. Calls move it so (`!`: a fault; the refusal that follows, if a response is still owed, is
/// the last answer):
///
/// | state | head | body | respond | data | end | switch | give_up |
/// |---|---|---|---|---|---|---|---|
/// | Idle | Idle, Receiving, Awaiting, !Awaiting | | | | | | Awaiting |
/// | Receiving | | Receiving, Awaiting, !Awaiting | Both, Responding | | | | Awaiting |
/// | Awaiting | | | Responding | | | Switched | Awaiting |
/// | Both | | Both, Responding, !Responding | | Both, !Closed | Idle, Skipping, Closed, !Closed | | Responding |
/// | Responding | | | | Responding, !Closed | Idle, Closed, !Closed | | Responding |
/// | Skipping | | Skipping, Idle, !Closed | | | | | Closed |
/// | Closed | | | | !Closed | !Closed | | Closed |
/// | Switched | | | | | | | Switched |
///
/// `whole_body` takes Receiving to Awaiting, `close` any state to Closed; `proceed` and `inform` leave the state.
#[derive(Debug, Default)]
enum State {
    /// No request is in hand.
    #[default]
    Idle,
    /// A request's head was handed out; its body comes.
    Receiving { body: Incoming, asked: Asked },
    /// The request is whole, and waits for its response.
    Awaiting { asked: Asked },
    /// The response has begun, and the request's body still comes.
    Both(Box<Both>),
    /// The response has begun, and the request is whole.
    Responding { body: Outgoing, asked: Asked },
    /// The response is over; what is left of the request's body is skipped, for the sake of the next request.
    Skipping { body: Incoming, bytes_left: u32 },
    /// The last response was said: nothing more is read as HTTP.
    Closed,
    /// What follows is another protocol.
    Switched,
}

/// A request that is received while its response is sent: rare, and kept apart so that a state is small.
#[derive(Debug)]
struct Both {
    incoming: Incoming,
    outgoing: Outgoing,
    asked: Asked,
}

/// What must be known of a request to answer it, when the request itself may be gone.
#[derive(Debug, Clone, Copy)]
struct Asked {
    version: Version,
    is_head: bool,
    is_connect: bool,
    keep_alive: bool,
    /// The client waits for `100 Continue`, and nobody has said it.
    waits: bool,
}

/// What the conversation wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// The head of a request: [`Server::head`].
    Head,
    /// More of a request's body: [`Server::body`].
    Body,
    /// A response, or more of it.
    Answer,
    /// Nothing: it is over.
    Nothing,
}

/// What follows a response that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next request.
    Request,
    /// The rest of this request's body, to be skipped, and then the next request.
    Skip,
    /// The end of the connection.
    Close,
}

/// Why a request is not served: the status and one line that answer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: Status,
    /// One line for the client's developer, without anything of what was sent.
    pub reason: &'static str,
}

impl From<head::Fault> for Refusal {
    fn from(fault: head::Fault) -> Refusal {
        Refusal { status: fault.status(), reason: fault.reason() }
    }
}

impl From<ChunkFault> for Refusal {
    fn from(fault: ChunkFault) -> Refusal {
        Refusal { status: fault.status(), reason: fault.reason() }
    }
}

impl Asked {
    #[inline]
    fn of(head: &Head<'_>) -> Asked {
        Asked {
            version: head.version,
            is_head: head.method == Method::Head,
            is_connect: head.method == Method::Connect,
            // A refused CONNECT leaves unclear what follows (RFC 9931): close.
            keep_alive: head.keep_alive && head.method != Method::Connect,
            waits: head.expects_continue,
        }
    }

    /// For what was no request, or is not read to its end.
    fn last(self) -> Asked {
        Asked { keep_alive: false, waits: false, ..self }
    }

    /// Of what was no request, so that nothing is known of who sent it: what it is answered must suit HTTP/1.0 as well.
    const NONE: Asked = Asked {
        version: Version::Http10,
        is_head: false,
        is_connect: false,
        keep_alive: false,
        waits: false,
    };
}

impl Server {
    /// What it wants next.
    #[inline]
    pub fn wants(&self) -> Wants {
        match self.state {
            State::Idle => Wants::Head,
            State::Receiving { .. } | State::Both(_) | State::Skipping { .. } => Wants::Body,
            State::Awaiting { .. } | State::Responding { .. } => Wants::Answer,
            State::Closed | State::Switched => Wants::Nothing,
        }
    }

    /// Whether a response was asked for and has not begun.
    #[inline]
    pub fn owes_response(&self) -> bool {
        matches!(self.state, State::Receiving { .. } | State::Awaiting { .. })
    }

    /// Whether a response has begun and is not over.
    pub fn is_responding(&self) -> bool {
        matches!(self.state, State::Responding { .. } | State::Both(_))
    }

    /// Whether no request is in hand.
    #[inline]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Reads the head of a request from the start of `bytes`, where [`Wants::Head`] is what it wants. `Ok(None)` means
    /// that the head goes on: call again with the same bytes and more. Costs what [`head::parse`] costs.
    ///
    /// # Errors
    /// What is wrong with it. The refusal is to be answered, and will be the last response.
    #[inline]
    pub fn head<'b>(
        &mut self,
        bytes: &'b [u8],
        fields: &'b mut Vec<Field>,
        limits: &HeadLimits,
    ) -> Result<Option<Head<'b>>, Refusal> {
        if !self.is_idle() {
            self.misused("a head");
            return Ok(None);
        }
        match head::parse(bytes, fields, limits) {
            Ok(Some(head)) => {
                let asked = Asked::of(&head);
                self.state = match head.framing {
                    Framing::None => State::Awaiting { asked },
                    Framing::Length(length) => State::Receiving { body: Incoming::Length(length), asked },
                    Framing::Chunked => State::Receiving { body: Incoming::chunked(), asked },
                };
                Ok(Some(head))
            }
            Ok(None) => Ok(None),
            Err(fault) => {
                self.state = State::Awaiting { asked: Asked::NONE };
                Err(fault.into())
            }
        }
    }

    /// The whole body (or what [`Server::body`] has left of it), if it lies at the start of `bytes` as it is: the request
    /// is whole then.
    #[inline]
    pub fn whole_body<'b>(&mut self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let State::Receiving { body: Incoming::Length(length), asked } = &self.state else { return None };
        let body = bytes.get(..usize::try_from(*length).ok()?)?;
        self.state = State::Awaiting { asked: Asked { waits: false, ..*asked } };
        Some(body)
    }

    /// Takes bytes of a request's body, where [`Wants::Body`] is what it wants: how many were used, and what they are.
    /// What is skipped is not handed out; with [`Piece::End`] the request is whole, and the trailer fields of a
    /// chunked body come in `trailers`.
    ///
    /// # Errors
    /// What is wrong with it. If no response has begun ([`Server::owes_response`]), the refusal is to be answered; in
    /// any case the response is the last.
    pub fn body<'b>(
        &mut self,
        bytes: &'b [u8],
        trailers: &mut Trailers,
    ) -> Result<(usize, Piece<'b>), Refusal> {
        match &mut self.state {
            State::Receiving { body, asked } => {
                let stepped = body.step(bytes);
                asked.waits &= bytes.is_empty();
                let asked = *asked;
                match stepped {
                    Ok((_, Piece::End)) => {
                        *trailers = body.take_trailers();
                        self.state = State::Awaiting { asked };
                    }
                    Ok(_) => {}
                    Err(_) => self.state = State::Awaiting { asked: asked.last() },
                }
                Ok(stepped?)
            }
            State::Both(both) => {
                let stepped = both.incoming.step(bytes);
                let (body, asked) = (both.outgoing, both.asked);
                match stepped {
                    Ok((_, Piece::End)) => {
                        *trailers = both.incoming.take_trailers();
                        self.state = State::Responding { body, asked };
                    }
                    Ok(_) => {}
                    Err(_) => self.state = State::Responding { body, asked: asked.last() },
                }
                Ok(stepped?)
            }
            State::Skipping { .. } => self.skip(bytes),
            _ => {
                self.misused("a body");
                Ok((bytes.len(), Piece::NeedMore))
            }
        }
    }

    /// Uses all bytes up to the end of the body: who is told to bring more must not have any left.
    fn skip<'b>(&mut self, bytes: &'b [u8]) -> Result<(usize, Piece<'b>), Refusal> {
        let State::Skipping { body, bytes_left } = &mut self.state else {
            return Ok((bytes.len(), Piece::NeedMore));
        };
        let mut at = 0;
        loop {
            let (used, piece) = match body.step(&bytes[at..]) {
                Ok(stepped) => stepped,
                Err(fault) => {
                    self.state = State::Closed;
                    return Err(fault.into());
                }
            };
            at += used;
            // The end of a chunked body counts as well: what comes of it must not hang on how the bytes were cut.
            let Some(left) = bytes_left.checked_sub(u32::try_from(used).unwrap_or(u32::MAX)) else {
                self.state = State::Closed;
                return Err(TOO_LARGE);
            };
            *bytes_left = left;
            match piece {
                Piece::Data(_) => {}
                Piece::NeedMore => return Ok((at, Piece::NeedMore)),
                Piece::End => {
                    self.state = State::Idle;
                    return Ok((at, Piece::End));
                }
            }
        }
    }

    /// Bytes of the request's body that are still to come, where its framing says so.
    pub fn length_left(&self) -> Option<u64> {
        match &self.state {
            State::Receiving { body, .. } | State::Skipping { body, .. } => body.length_left(),
            State::Both(both) => both.incoming.length_left(),
            _ => Some(0),
        }
    }

    /// Nothing more of this request is read: it is too large, or too slow. Its response is the last.
    pub fn give_up(&mut self) {
        self.state = match std::mem::take(&mut self.state) {
            State::Receiving { asked, .. } | State::Awaiting { asked } => {
                State::Awaiting { asked: asked.last() }
            }
            State::Both(both) => State::Responding { body: both.outgoing, asked: both.asked.last() },
            State::Responding { body, asked } => State::Responding { body, asked: asked.last() },
            // Part of a head has come, and its rest is not waited for.
            State::Idle => State::Awaiting { asked: Asked::NONE },
            State::Skipping { .. } | State::Closed => State::Closed,
            State::Switched => State::Switched,
        };
    }

    /// Writes `100 Continue` if the client waits for it.
    pub fn proceed(&mut self, out: &mut Vec<u8>) {
        if let State::Receiving { asked, .. } = &mut self.state
            && std::mem::take(&mut asked.waits)
        {
            out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
    }

    /// Writes an interim response, such as 103; `fields` are whole field lines. Returns whether it was written: HTTP/1.0
    /// has none, and behind the start of the response there is no place for one. 100 is for [`Server::proceed`] to say, and
    /// 101 for [`Server::switch`].
    pub fn inform(&self, status: Status, fields: &[u8], out: &mut Vec<u8>) -> bool {
        debug_assert!((102..200).contains(&status.code()), "{status:?} is no interim response");
        let (State::Receiving { asked, .. } | State::Awaiting { asked }) = &self.state else { return false };
        if asked.version == Version::Http10 || !(102..200).contains(&status.code()) {
            return false;
        }
        write_status_line(status, out);
        out.extend_from_slice(fields);
        out.extend_from_slice(b"\r\n");
        true
    }

    /// Begins the response: writes the field lines that frame it, behind status line and fields that stand in `out`
    /// already, and ends the head. `close` makes it the last. Returns whether the body is to be sent at all: behind HEAD,
    /// 204 and 304, and 2xx to CONNECT, nothing follows, whatever the head says.
    #[inline]
    pub fn respond(&mut self, status: Status, length: Length, close: bool, out: &mut Vec<u8>) -> bool {
        debug_assert!(status.code() >= 200, "{status:?} is no response");
        let (mut asked, incoming) = match std::mem::take(&mut self.state) {
            State::Awaiting { asked } => (asked, None),
            // Its last byte was handed out, its end not yet: nothing of it is to come.
            State::Receiving { body, asked } if body.is_whole() => (asked, None),
            State::Receiving { body, asked } => (asked, Some(body)),
            other => {
                self.state = other;
                self.misused("a response");
                return false;
            }
        };
        let framed = Outgoing::of(length, asked.version);
        // What a client takes for a tunnel has no framing, and no body.
        let is_tunnel = asked.is_connect && (200..300).contains(&status.code());
        let is_bodyless = status.is_bodyless() || is_tunnel;
        let follows = !asked.is_head && !is_bodyless;
        // A client that waits for 100 may send its body behind another status, or not: what comes next is unclear. Behind
        // 1xx it waits for a response that does not come.
        let until_close = follows && framed == Outgoing::UntilClose;
        asked.keep_alive &= !(close || asked.waits || until_close || status.code() < 200);
        if !is_bodyless || (matches!(length, Length::Declared(_)) && status == Status::NOT_MODIFIED) {
            framed.write_field(out);
        }
        end_head(asked, out);
        let outgoing = if follows { framed } else { Outgoing::None };
        self.state = match incoming {
            None => State::Responding { body: outgoing, asked },
            Some(incoming) => State::Both(Box::new(Both { incoming, outgoing, asked })),
        };
        follows
    }

    /// Writes what stands before `bytes` bytes of the response's body, and returns what stands behind them.
    ///
    /// # Errors
    /// The body would become longer than its head said, or none follows ([`Server::respond`] has said so). Nothing is to
    /// be sent of it, the conversation is over, and the connection is to be cut.
    #[inline]
    pub fn data(&mut self, bytes: usize, out: &mut Vec<u8>) -> Result<&'static [u8], Misfit> {
        let written = match &mut self.state {
            State::Responding { body, .. } => body.data(bytes, out),
            State::Both(both) => both.outgoing.data(bytes, out),
            State::Closed => Err(Misfit),
            _ => {
                self.misused("data");
                Err(Misfit)
            }
        };
        if written.is_err() {
            self.state = State::Closed;
        }
        written
    }

    /// Ends the response; `trailers` are whole field lines.
    ///
    /// # Errors
    /// The body is shorter than its head said, or the conversation was over before. The connection is to be cut, so that
    /// the client sees it.
    #[inline]
    pub fn end(&mut self, trailers: &[u8], out: &mut Vec<u8>) -> Result<Next, Misfit> {
        let (state, next) = match std::mem::replace(&mut self.state, State::Closed) {
            State::Responding { body, asked } => {
                body.end(trailers, out)?;
                match asked.keep_alive {
                    true => (State::Idle, Next::Request),
                    false => (State::Closed, Next::Close),
                }
            }
            State::Both(both) => {
                both.outgoing.end(trailers, out)?;
                match both.asked.keep_alive {
                    true if both.incoming.is_whole() => (State::Idle, Next::Request),
                    true => {
                        let skipping = State::Skipping { body: both.incoming, bytes_left: DISCARD_BYTES_MAX };
                        (skipping, Next::Skip)
                    }
                    false => (State::Closed, Next::Close),
                }
            }
            State::Closed => return Err(Misfit),
            other => {
                self.state = other;
                self.misused("the end of a response");
                return Err(Misfit);
            }
        };
        self.state = state;
        Ok(next)
    }

    /// Ends the head of a response behind which another protocol is spoken: 101, or 2xx to CONNECT. The request must be
    /// whole: what is left of its body would be taken for the other protocol. A client of HTTP/1.0 must not be sent 101.
    pub fn switch(&mut self, status: Status, out: &mut Vec<u8>) {
        let State::Awaiting { asked } = self.state else {
            // The head has to end somehow: this way the client expects nothing behind it.
            end_head(Asked::NONE, out);
            return self.misused("a switch");
        };
        // An upgrade says so itself; after a 2xx to CONNECT there is nothing to say.
        if status == Status::SWITCHING_PROTOCOLS {
            debug_assert!(asked.version == Version::Http11, "101 for HTTP/1.0");
            out.extend_from_slice(b"Connection: Upgrade\r\n");
        }
        out.extend_from_slice(b"\r\n");
        self.state = State::Switched;
    }

    /// What the state does not allow: a defect of the caller.
    #[cold]
    fn misused(&mut self, call: &str) {
        debug_assert!(false, "{call} in {:?}", self.state);
        self.state = State::Closed;
    }

    /// Nothing more is said.
    pub fn close(&mut self) {
        self.state = State::Closed;
    }
}

/// A body over a limit.
pub(crate) const TOO_LARGE: Refusal =
    Refusal { status: Status::CONTENT_TOO_LARGE, reason: "the request body is too large" };

/// Writes `HTTP/1.1 200 OK` and CRLF.
#[inline]
pub fn write_status_line(status: Status, out: &mut Vec<u8>) {
    match status.line() {
        Some(line) => out.extend_from_slice(line),
        None => out.extend_from_slice(format!("HTTP/1.1 {} \r\n", status.code()).as_bytes()),
    }
}

/// Says whether the connection stays, where the version's default says otherwise, and ends the head.
#[inline]
fn end_head(asked: Asked, out: &mut Vec<u8>) {
    match (asked.version, asked.keep_alive) {
        (Version::Http11, true) => out.extend_from_slice(b"\r\n"),
        (Version::Http10, true) => out.extend_from_slice(b"Connection: keep-alive\r\n\r\n"),
        (_, false) => out.extend_from_slice(b"Connection: close\r\n\r\n"),
    }
}
