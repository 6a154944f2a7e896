//! The client's side of a conversation.

use super::event::{AnswerEvent, ClientFault, Sent};
use super::incoming::{Incoming, Piece, Trailers};
use super::outgoing::{Length, Misfit, Outgoing};
use crate::answer::{self, Answer, Framing};
use crate::{Status, Version};

/// Interim responses (1xx) to one request; over it the server is broken.
pub const INTERIM_ANSWERS_MAX: u8 = 32;

/// One connection's conversation, as its client has it.
#[derive(Debug, Default)]
pub struct Client {
    state: State,
}

/// Where the conversation is. Calls move it so (`!`: a fault):
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
/// `whole_body` takes Receiving where `body` takes it to at its end.
#[derive(Debug, Default)]
enum State {
    /// No request is in hand: the connection may be used again.
    #[default]
    Idle,
    /// The request's head was written; its body follows. No response has begun.
    Sending { body: Outgoing, sent: Sent, heard: Heard },
    /// The request was wholly sent, `behind` more alike behind it, and no response has begun.
    Awaiting { sent: Sent, heard: Heard, behind: u32 },
    /// A response comes before the request was wholly sent.
    Both(Box<Both>),
    /// A response comes, and the request was wholly sent.
    Receiving { body: Incoming, keep_alive: bool, sent: Sent, behind: u32 },
    /// Of no use any more.
    Closed,
    /// What follows is another protocol.
    Switched,
}

/// What has come in response to a request before the response.
#[derive(Debug, Clone, Copy, Default)]
struct Heard {
    interims: u8,
    /// The start of a head.
    part: bool,
}

/// A response that is received while its request is sent: rare, and kept apart so that a state is small.
#[derive(Debug)]
struct Both {
    outgoing: Outgoing,
    incoming: Incoming,
    keep_alive: bool,
    sent: Sent,
}

impl Client {
    /// Whether a request can be sent, and no response is to come.
    #[inline]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Whether a response's body is coming.
    #[inline]
    pub fn is_in_body(&self) -> bool {
        matches!(self.state, State::Receiving { .. } | State::Both(_))
    }

    /// Whether the conversation has ended.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Begins a request: writes the field line that frames it, behind request line and fields that stand in `out`
    /// already, and ends the head. `None` sends no body and no field (GET).
    pub fn request(&mut self, sent: Sent, body: Option<Length>, out: &mut Vec<u8>) {
        let outgoing = body.map_or(Outgoing::None, |length| Outgoing::of(length, Version::Http11));
        outgoing.write_field(out);
        out.extend_from_slice(b"\r\n");
        if !self.is_idle() {
            return self.misused("a request");
        }
        let heard = Heard::default();
        self.state = match outgoing {
            Outgoing::None | Outgoing::Length(0) => State::Awaiting { sent, heard, behind: 0 },
            body => State::Sending { body, sent, heard },
        };
    }

    /// `count` equal requests were sent completely, from bytes that were encoded in advance; at least one.
    #[inline]
    pub fn sent(&mut self, sent: Sent, count: u32) {
        if !self.is_idle() || count == 0 {
            return self.misused("requests");
        }
        self.state = State::Awaiting { sent, heard: Heard::default(), behind: count - 1 };
    }

    /// Writes what stands before `bytes` bytes of the request's body, and returns what stands behind them.
    ///
    /// # Errors
    /// The body would become longer than its head said, or the response has ended before it: nothing is to be sent of it,
    /// and the connection is of no use any more.
    pub fn data(&mut self, bytes: usize, out: &mut Vec<u8>) -> Result<&'static [u8], Misfit> {
        let written = match &mut self.state {
            State::Sending { body, .. } => body.data(bytes, out),
            State::Both(both) => both.outgoing.data(bytes, out),
            // Of a request without a body, or behind its end.
            State::Awaiting { .. } if bytes == 0 => Ok(&b""[..]),
            State::Awaiting { .. } | State::Closed => Err(Misfit),
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

    /// Ends the request's body; `trailers` are whole field lines.
    ///
    /// # Errors
    /// The body is shorter than its head said, or the response has ended before it: nothing is to be sent of it, and the
    /// connection is of no use any more.
    pub fn end(&mut self, trailers: &[u8], out: &mut Vec<u8>) -> Result<(), Misfit> {
        self.state = match std::mem::replace(&mut self.state, State::Closed) {
            State::Sending { body, sent, heard } => {
                body.end(trailers, out)?;
                State::Awaiting { sent, heard, behind: 0 }
            }
            State::Both(both) => {
                both.outgoing.end(trailers, out)?;
                let Both { incoming, keep_alive, sent, .. } = *both;
                State::Receiving { body: incoming, keep_alive, sent, behind: 0 }
            }
            // Without a body there is nothing to end.
            other @ State::Awaiting { .. } => other,
            State::Closed => return Err(Misfit),
            other => {
                self.state = other;
                self.misused("the end of a request");
                return Err(Misfit);
            }
        };
        Ok(())
    }

    /// Reads the head of a response from the start of `bytes` with `parse`: [`answer::parse`], [`answer::parse_fields`],
    /// or what remembers the last one. It needs to know whether the request was HEAD.
    ///
    /// # Errors
    /// Why the response is of no use.
    #[inline]
    pub fn head(
        &mut self,
        bytes: &[u8],
        parse: impl FnOnce(&[u8], bool) -> Result<Option<Answer>, answer::Fault>,
    ) -> Result<AnswerEvent, ClientFault> {
        let (sent, heard, is_last) = match &mut self.state {
            State::Awaiting { sent, heard, behind } => (*sent, heard, *behind == 0),
            State::Sending { sent, heard, .. } => (*sent, heard, false),
            // A server may say what it likes: behind its responses, or without having been asked.
            State::Idle | State::Closed => return Err(self.fail(ClientFault::Unasked)),
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
            // Whose turn it is to speak which protocol would be unclear if anything of HTTP were still to be sent.
            if !is_last || !(tunnels || sent.is_upgrade) {
                return Err(self.fail(ClientFault::Switch));
            }
            self.state = State::Switched;
            return Ok(AnswerEvent::Switch(answer));
        }
        *heard = Heard { interims: heard.interims + 1, part: false };
        if heard.interims > INTERIM_ANSWERS_MAX {
            return Err(self.fail(ClientFault::Interims));
        }
        Ok(AnswerEvent::Interim(answer))
    }

    #[inline]
    fn begin(&mut self, answer: &Answer, sent: Sent) {
        let body = match answer.framing {
            Framing::Length(length) => Incoming::Length(length),
            Framing::Chunked => Incoming::chunked(),
            Framing::UntilClose => Incoming::UntilClose,
        };
        let keep_alive = answer.keep_alive;
        self.state = match &self.state {
            State::Awaiting { behind, .. } => State::Receiving { body, keep_alive, sent, behind: *behind },
            State::Sending { body: outgoing, .. } => {
                State::Both(Box::new(Both { outgoing: *outgoing, incoming: body, keep_alive, sent }))
            }
            _ => State::Closed,
        };
    }

    /// The whole body (or what [`Client::body`] has left of it), if its length is known and it lies at the start of `bytes`:
    /// the response is whole then.
    #[inline]
    pub fn whole_body<'b>(&mut self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let State::Receiving { body: Incoming::Length(length), keep_alive, sent, behind } = &self.state
        else {
            return None;
        };
        let body = bytes.get(..usize::try_from(*length).ok()?)?;
        self.state = after(*keep_alive, *sent, *behind);
        Some(body)
    }

    /// Takes bytes of a response's body: how many were used, and what they are. With [`Piece::End`] the response is whole,
    /// and the trailer fields of a chunked body come in `trailers`. Whether the connection can be used again is then
    /// [`Client::is_idle`]; if the request was not wholly sent, it cannot.
    ///
    /// # Errors
    /// Why the response is of no use.
    #[inline]
    pub fn body<'b>(
        &mut self,
        bytes: &'b [u8],
        trailers: &mut Trailers,
    ) -> Result<(usize, Piece<'b>), ClientFault> {
        let incoming = match &mut self.state {
            State::Receiving { body, .. } => body,
            State::Both(both) => &mut both.incoming,
            _ => {
                self.misused("a body");
                return Err(ClientFault::Unasked);
            }
        };
        match incoming.step(bytes) {
            Ok((used, Piece::End)) => {
                *trailers = incoming.take_trailers();
                self.state = match &self.state {
                    State::Receiving { keep_alive, sent, behind, .. } => after(*keep_alive, *sent, *behind),
                    // The request was not wholly sent.
                    _ => State::Closed,
                };
                Ok((used, Piece::End))
            }
            Ok(stepped) => Ok(stepped),
            Err(fault) => Err(self.fail(ClientFault::Chunk(fault))),
        }
    }

    /// How many of the bytes that come next are the response's body, whatever they are, and may [go by](Client::passed) unseen:
    /// 0 within chunks, and where no body is coming.
    pub fn plain_bytes(&self) -> u64 {
        match &self.state {
            State::Receiving { body, .. } => body.plain_bytes(),
            State::Both(both) => both.incoming.plain_bytes(),
            _ => 0,
        }
    }

    /// So many bytes of the response's body went by unseen. Its end is still read with [`Client::body`].
    pub fn passed(&mut self, bytes: u64) {
        let body = match &mut self.state {
            State::Receiving { body, .. } => body,
            State::Both(both) => &mut both.incoming,
            _ => return self.misused("bytes that went by"),
        };
        if !body.pass(bytes) {
            self.misused("bytes that went by");
        }
    }

    /// The server has closed its side. Returns whether that ends a response: one whose end is the end of the connection,
    /// or one whose last byte was handed out and whose end was not yet asked for.
    ///
    /// # Errors
    /// [`ClientFault::Cut`] or [`ClientFault::Silent`], where a response was to come.
    pub fn finish(&mut self) -> Result<bool, ClientFault> {
        let ends = |body: &Incoming| match body.is_whole() || matches!(body, Incoming::UntilClose) {
            true => Ok(true),
            false => Err(ClientFault::Cut),
        };
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Receiving { body, .. } => ends(&body),
            State::Both(both) => ends(&both.incoming),
            State::Idle | State::Closed | State::Switched => Ok(false),
            State::Sending { heard, .. } | State::Awaiting { heard, .. } => {
                Err(if heard.part || heard.interims > 0 { ClientFault::Cut } else { ClientFault::Silent })
            }
        }
    }

    fn fail(&mut self, fault: ClientFault) -> ClientFault {
        self.state = State::Closed;
        fault
    }

    /// What the state does not allow: a defect of the caller.
    #[cold]
    fn misused(&mut self, call: &str) {
        debug_assert!(false, "{call} in {:?}", self.state);
        self.state = State::Closed;
    }
}

/// The state behind a response, if the request was wholly sent.
#[inline]
fn after(keep_alive: bool, sent: Sent, behind: u32) -> State {
    match (keep_alive, behind) {
        (false, _) => State::Closed,
        (true, 0) => State::Idle,
        (true, behind) => State::Awaiting { sent, heard: Heard::default(), behind: behind - 1 },
    }
}
