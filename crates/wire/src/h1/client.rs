//! The client's side of a connection.

use super::event::{AnswerEvent, ClientFault, Sent};
use super::incoming::{Incoming, Piece, Trailers};
use super::outgoing::{Length, Misfit, Outgoing};
use crate::answer::{self, Answer, ResponseFraming};
use crate::{Status, Version};

/// Interim responses (1xx) per request; a server that sends more is broken.
pub const INTERIM_ANSWERS_MAX: u8 = 32;

/// The state of one connection, for its client.
#[derive(Debug, Default)]
pub struct Client {
    state: ClientState,
}

/// The state of the connection. Calls change it like this (`!`: a fault):
///
/// | state | request | sent | data | end | head | body | finish |
/// |---|---|---|---|---|---|---|---|
/// | Idle | Sending, Awaiting | Awaiting | | | !Closed | | Closed |
/// | Sending | | | Sending, !Closed | Awaiting, !Closed | Sending, Both, !Closed | | !Closed |
/// | Awaiting | | | Awaiting, !Closed | Awaiting | Awaiting, Receiving, Switched, !Closed | | !Closed |
/// | Both | | | Both, !Closed | Receiving, !Closed | | Both, Closed, !Closed | Closed, !Closed |
/// | Receiving | | | | | | Receiving, Awaiting, Idle, Closed, !Closed | Closed, !Closed |
/// | Closed | | | !Closed | !Closed | !Closed | | Closed |
/// | Switched | | | | | | | Closed |
///
/// `whole_body` leads from Receiving to the state that `body` reaches at the end.
#[derive(Debug, Default)]
enum ClientState {
    /// No pending request: the connection can be reused.
    #[default]
    Idle,
    /// The request's head was written; its body follows. No response has started.
    Sending { body: Outgoing, sent: Sent, heard: ResponseStart },
    /// The request was completely sent, with `behind` equal ones after it, and no response has started.
    Awaiting { sent: Sent, heard: ResponseStart, behind: u32 },
    /// A response arrives before the request was completely sent.
    Both(Box<EarlyResponse>),
    /// A response arrives, and the request was completely sent.
    Receiving { body: Incoming, keep_alive: bool, sent: Sent, behind: u32 },
    /// No longer usable.
    Closed,
    /// Another protocol follows.
    Switched,
}

/// What was received before the final response.
#[derive(Debug, Clone, Copy, Default)]
struct ResponseStart {
    interims: u8,
    /// The start of a head.
    part: bool,
}

/// Receiving a response while the request is still being sent: rare, and boxed to keep the state small.
#[derive(Debug)]
struct EarlyResponse {
    outgoing: Outgoing,
    incoming: Incoming,
    keep_alive: bool,
    sent: Sent,
}

impl Client {
    /// Whether a request can be sent, and no response is pending.
    #[inline]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, ClientState::Idle)
    }

    /// Whether a response's body is being received.
    #[inline]
    pub fn is_in_body(&self) -> bool {
        matches!(self.state, ClientState::Receiving { .. } | ClientState::Both(_))
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, ClientState::Closed)
    }

    /// Starts a request: appends the framing field to the request line and fields that are already in `out`, and ends
    /// the head. `None` sends no body and no field (GET).
    pub fn request(&mut self, sent: Sent, body: Option<Length>, out: &mut Vec<u8>) {
        let outgoing = body.map_or(Outgoing::None, |length| Outgoing::of(length, Version::Http11));
        outgoing.write_field(out);
        out.extend_from_slice(b"\r\n");
        if !self.is_idle() {
            return self.misused("a request");
        }
        let heard = ResponseStart::default();
        self.state = match outgoing {
            Outgoing::None | Outgoing::Length(0) => ClientState::Awaiting { sent, heard, behind: 0 },
            body => ClientState::Sending { body, sent, heard },
        };
    }

    /// `count` equal requests were sent completely, from bytes that were encoded in advance; at least one.
    #[inline]
    pub fn sent(&mut self, sent: Sent, count: u32) {
        if !self.is_idle() || count == 0 {
            return self.misused("requests");
        }
        self.state = ClientState::Awaiting { sent, heard: ResponseStart::default(), behind: count - 1 };
    }

    /// Writes what precedes `bytes` bytes of the request's body, and returns what follows them.
    ///
    /// # Errors
    /// The body would become longer than its head declared, or the response has ended before it: none of it may be
    /// sent, and the connection is not usable any more.
    pub fn data(&mut self, bytes: usize, out: &mut Vec<u8>) -> Result<&'static [u8], Misfit> {
        let written = match &mut self.state {
            ClientState::Sending { body, .. } => body.data(bytes, out),
            ClientState::Both(both) => both.outgoing.data(bytes, out),
            // The request has no body, or it has ended.
            ClientState::Awaiting { .. } if bytes == 0 => Ok(&b""[..]),
            ClientState::Awaiting { .. } | ClientState::Closed => Err(Misfit),
            _ => {
                self.misused("data");
                Err(Misfit)
            }
        };
        if written.is_err() {
            self.state = ClientState::Closed;
        }
        written
    }

    /// Ends the request's body; `trailers` are complete field lines.
    ///
    /// # Errors
    /// The body is shorter than its head declared, or the response has ended before it: none of it may be sent, and
    /// the connection is not usable any more.
    pub fn end(&mut self, trailers: &[u8], out: &mut Vec<u8>) -> Result<(), Misfit> {
        self.state = match std::mem::replace(&mut self.state, ClientState::Closed) {
            ClientState::Sending { body, sent, heard } => {
                body.end(trailers, out)?;
                ClientState::Awaiting { sent, heard, behind: 0 }
            }
            ClientState::Both(both) => {
                both.outgoing.end(trailers, out)?;
                let EarlyResponse { incoming, keep_alive, sent, .. } = *both;
                ClientState::Receiving { body: incoming, keep_alive, sent, behind: 0 }
            }
            // Without a body there is nothing to end.
            other @ ClientState::Awaiting { .. } => other,
            ClientState::Closed => return Err(Misfit),
            other => {
                self.state = other;
                self.misused("the end of a request");
                return Err(Misfit);
            }
        };
        Ok(())
    }

    /// Parses the head of a response at the start of `bytes` with `parse`: [`answer::parse`],
    /// [`answer::parse_fields`], or a parser that remembers the last head. It needs to know whether the request was
    /// HEAD.
    ///
    /// # Errors
    /// Why the response is not usable.
    #[inline]
    pub fn head(
        &mut self,
        bytes: &[u8],
        parse: impl FnOnce(&[u8], bool) -> Result<Option<Answer>, answer::ResponseFault>,
    ) -> Result<AnswerEvent, ClientFault> {
        let (sent, heard, is_last) = match &mut self.state {
            ClientState::Awaiting { sent, heard, behind } => (*sent, heard, *behind == 0),
            ClientState::Sending { sent, heard, .. } => (*sent, heard, false),
            // The server sent something after its responses, or without a request.
            ClientState::Idle | ClientState::Closed => return Err(self.fail(ClientFault::Unasked)),
            _ => {
                self.misused("a head");
                return Err(ClientFault::Unasked);
            }
        };
        let answer = match parse(bytes, sent.is_head) {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                heard.part |= !bytes.is_empty();
                return Ok(AnswerEvent::NeedMore);
            }
            Err(fault) => return Err(self.fail(ClientFault::Head(fault))),
        };
        let code = answer.status.code();
        let tunnels = sent.is_connect && (200..300).contains(&code);
        if code >= 200 && !tunnels {
            self.begin(&answer, sent);
            return Ok(AnswerEvent::Head(answer));
        }
        if tunnels || answer.status == Status::SWITCHING_PROTOCOLS {
            // If any HTTP were still to be sent, it would be unclear which protocol it belongs to.
            if !is_last || !(tunnels || sent.is_upgrade) {
                return Err(self.fail(ClientFault::Switch));
            }
            self.state = ClientState::Switched;
            return Ok(AnswerEvent::Switch(answer));
        }
        *heard = ResponseStart { interims: heard.interims + 1, part: false };
        if heard.interims > INTERIM_ANSWERS_MAX {
            return Err(self.fail(ClientFault::Interims));
        }
        Ok(AnswerEvent::Interim(answer))
    }

    #[inline]
    fn begin(&mut self, answer: &Answer, sent: Sent) {
        let body = match answer.framing {
            ResponseFraming::Length(length) => Incoming::Length(length),
            ResponseFraming::Chunked => Incoming::chunked(),
            ResponseFraming::UntilClose => Incoming::UntilClose,
        };
        let keep_alive = answer.keep_alive;
        self.state = match &self.state {
            ClientState::Awaiting { behind, .. } => {
                ClientState::Receiving { body, keep_alive, sent, behind: *behind }
            }
            ClientState::Sending { body: outgoing, .. } => ClientState::Both(Box::new(EarlyResponse {
                outgoing: *outgoing,
                incoming: body,
                keep_alive,
                sent,
            })),
            _ => ClientState::Closed,
        };
    }

    /// The whole body (or the rest of it), if its length is known and it is at the start of `bytes`: the response is
    /// then complete.
    #[inline]
    pub fn whole_body<'b>(&mut self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let ClientState::Receiving { body: Incoming::Length(length), keep_alive, sent, behind } = &self.state
        else {
            return None;
        };
        let body = bytes.get(..usize::try_from(*length).ok()?)?;
        self.state = after(*keep_alive, *sent, *behind);
        Some(body)
    }

    /// Consumes bytes of a response's body. Returns how many, and the result. With [`Piece::End`] the response is
    /// complete, and the trailer fields of a chunked body are in `trailers`. [`Client::is_idle`] then says whether
    /// the connection can be reused; it cannot if the request was not completely sent.
    ///
    /// # Errors
    /// Why the response is not usable.
    #[inline]
    pub fn body<'b>(
        &mut self,
        bytes: &'b [u8],
        trailers: &mut Trailers,
    ) -> Result<(usize, Piece<'b>), ClientFault> {
        let incoming = match &mut self.state {
            ClientState::Receiving { body, .. } => body,
            ClientState::Both(both) => &mut both.incoming,
            _ => {
                self.misused("a body");
                return Err(ClientFault::Unasked);
            }
        };
        match incoming.step(bytes) {
            Ok((used, Piece::End)) => {
                *trailers = incoming.take_trailers();
                self.state = match &self.state {
                    ClientState::Receiving { keep_alive, sent, behind, .. } => {
                        after(*keep_alive, *sent, *behind)
                    }
                    // The request was not completely sent.
                    _ => ClientState::Closed,
                };
                Ok((used, Piece::End))
            }
            Ok(stepped) => Ok(stepped),
            Err(fault) => Err(self.fail(ClientFault::Chunk(fault))),
        }
    }

    /// How many of the next bytes certainly belong to the response's body, and may [pass by](Client::passed) unseen:
    /// 0 within chunks, and if no body is being received.
    pub fn plain_bytes(&self) -> u64 {
        match &self.state {
            ClientState::Receiving { body, .. } => body.plain_bytes(),
            ClientState::Both(both) => both.incoming.plain_bytes(),
            _ => 0,
        }
    }

    /// This many bytes of the response's body have passed by unseen. Its end is still read with [`Client::body`].
    pub fn passed(&mut self, bytes: u64) {
        let body = match &mut self.state {
            ClientState::Receiving { body, .. } => body,
            ClientState::Both(both) => &mut both.incoming,
            _ => return self.misused("bytes that went by"),
        };
        if !body.pass(bytes) {
            self.misused("bytes that went by");
        }
    }

    /// The server has closed its side. Returns whether that ends a response: one that is delimited by the end of the
    /// connection, or one whose last byte was returned and whose end was not yet requested.
    ///
    /// # Errors
    /// [`ClientFault::Cut`] or [`ClientFault::Silent`], if a response was pending.
    pub fn finish(&mut self) -> Result<bool, ClientFault> {
        let ends = |body: &Incoming| match body.is_whole() || matches!(body, Incoming::UntilClose) {
            true => Ok(true),
            false => Err(ClientFault::Cut),
        };
        match std::mem::replace(&mut self.state, ClientState::Closed) {
            ClientState::Receiving { body, .. } => ends(&body),
            ClientState::Both(both) => ends(&both.incoming),
            ClientState::Idle | ClientState::Closed | ClientState::Switched => Ok(false),
            ClientState::Sending { heard, .. } | ClientState::Awaiting { heard, .. } => {
                Err(if heard.part || heard.interims > 0 { ClientFault::Cut } else { ClientFault::Silent })
            }
        }
    }

    fn fail(&mut self, fault: ClientFault) -> ClientFault {
        self.state = ClientState::Closed;
        fault
    }

    /// A call that the state does not allow: a bug of the caller.
    #[cold]
    fn misused(&mut self, call: &str) {
        debug_assert!(false, "{call} in {:?}", self.state);
        self.state = ClientState::Closed;
    }
}

/// The state after a response, if the request was completely sent.
#[inline]
fn after(keep_alive: bool, sent: Sent, behind: u32) -> ClientState {
    match (keep_alive, behind) {
        (false, _) => ClientState::Closed,
        (true, 0) => ClientState::Idle,
        (true, behind) => ClientState::Awaiting { sent, heard: ResponseStart::default(), behind: behind - 1 },
    }
}
