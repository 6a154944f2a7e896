//! Receiving requests.

#[cfg(doc)]
use super::Wants;
use super::{DISCARD_BYTES_MAX, Next, Refusal, RequestSummary, Server, ServerState};
use crate::h1::incoming::{Incoming, Piece, Trailers};
use crate::head::{self, Field, HeadLimits};
use crate::{Framing, Head};

impl Server {
    /// Parses the head of a request at the start of `bytes`, in the state [`Wants::Head`]. `Ok(None)` means that the
    /// head is incomplete: call again with the same bytes and more. Costs as much as [`head::parse`].
    ///
    /// # Errors
    /// What is wrong with it. The refusal has to be sent, and will be the last response.
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
                let asked = RequestSummary::of(&head);
                self.state = match head.framing {
                    Framing::None => ServerState::Awaiting { asked },
                    Framing::Length(length) => {
                        ServerState::Receiving { body: Incoming::Length(length), asked, is_kept: false }
                    }
                    Framing::Chunked => {
                        ServerState::Receiving { body: Incoming::chunked(), asked, is_kept: false }
                    }
                };
                Ok(Some(head))
            }
            Ok(None) => Ok(None),
            Err(fault) => {
                self.state = ServerState::Awaiting { asked: RequestSummary::NONE };
                Err(fault.into())
            }
        }
    }

    /// The whole body (or the rest of it), if it is at the start of `bytes` unencoded: the request is then complete.
    #[inline]
    pub fn whole_body<'b>(&mut self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let ServerState::Receiving { body: Incoming::Length(length), asked, .. } = &self.state else {
            return None;
        };
        let body = bytes.get(..usize::try_from(*length).ok()?)?;
        self.state = ServerState::Awaiting { asked: RequestSummary { waits: false, ..*asked } };
        Some(body)
    }

    /// Consumes bytes of a request's body, in the state [`Wants::Body`]. Returns how many, and the result. Skipped
    /// bytes are not returned; with [`Piece::End`] the request is complete, and the trailer fields of a chunked body
    /// are in `trailers`.
    ///
    /// # Errors
    /// What is wrong with it. If no response has started ([`Server::owes_response`]), the refusal has to be sent; in
    /// any case the response is the last.
    pub fn body<'b>(
        &mut self,
        bytes: &'b [u8],
        trailers: &mut Trailers,
    ) -> Result<(usize, Piece<'b>), Refusal> {
        match &mut self.state {
            ServerState::Receiving { body, asked, .. } => {
                let stepped = body.step(bytes);
                asked.waits &= bytes.is_empty();
                let asked = *asked;
                match stepped {
                    Ok((_, Piece::End)) => {
                        *trailers = body.take_trailers();
                        self.state = ServerState::Awaiting { asked };
                    }
                    Ok(_) => {}
                    Err(_) => self.state = ServerState::Awaiting { asked: asked.last() },
                }
                Ok(stepped?)
            }
            ServerState::Both(both) => {
                let stepped = both.incoming.step(bytes);
                let (body, asked) = (both.outgoing, both.asked);
                match stepped {
                    Ok((_, Piece::End)) => {
                        *trailers = both.incoming.take_trailers();
                        self.state = ServerState::Responding { body, asked };
                    }
                    Ok(_) => {}
                    Err(_) => self.state = ServerState::Responding { body, asked: asked.last() },
                }
                Ok(stepped?)
            }
            ServerState::Reading { body, keep_alive } => {
                let (stepped, keep_alive) = (body.step(bytes), *keep_alive);
                match stepped {
                    Ok((_, Piece::End)) => {
                        *trailers = body.take_trailers();
                        self.state = if keep_alive { ServerState::Idle } else { ServerState::Closed };
                    }
                    Ok(_) => {}
                    Err(_) => self.state = ServerState::Closed,
                }
                Ok(stepped?)
            }
            ServerState::Skipping { .. } => self.skip(bytes),
            _ => {
                self.misused("a body");
                Ok((bytes.len(), Piece::NeedMore))
            }
        }
    }

    /// Keeps the body of this request for its reader: the end of the response does not end it. A client that still waits
    /// for 100 then may never send its body, so that one is not kept.
    pub fn keep_body(&mut self) {
        if let ServerState::Receiving { is_kept, .. } = &mut self.state {
            *is_kept = true;
        }
    }

    /// The rest of a kept body is not wanted any more, after the response has ended. Returns what follows.
    pub fn skip_rest(&mut self) -> Next {
        match std::mem::replace(&mut self.state, ServerState::Closed) {
            ServerState::Reading { body, keep_alive: true } => {
                self.state = ServerState::Skipping { body, bytes_left: DISCARD_BYTES_MAX };
                Next::Skip
            }
            ServerState::Reading { keep_alive: false, .. } => Next::Close,
            other => {
                self.state = other;
                self.misused("the rest of a body");
                Next::Close
            }
        }
    }

    /// Consumes all bytes up to the end of the body, since the caller must have none left when it is asked for more.
    fn skip<'b>(&mut self, bytes: &'b [u8]) -> Result<(usize, Piece<'b>), Refusal> {
        let ServerState::Skipping { body, bytes_left } = &mut self.state else {
            return Ok((bytes.len(), Piece::NeedMore));
        };
        let mut at = 0;
        loop {
            let (used, piece) = match body.step(&bytes[at..]) {
                Ok(stepped) => stepped,
                Err(fault) => {
                    self.state = ServerState::Closed;
                    return Err(fault.into());
                }
            };
            at += used;
            // The end of a chunked body counts as well: the result must not depend on how the bytes were split.
            let Some(left) = bytes_left.checked_sub(u32::try_from(used).unwrap_or(u32::MAX)) else {
                self.state = ServerState::Closed;
                return Err(Refusal::BODY_TOO_LARGE);
            };
            *bytes_left = left;
            match piece {
                Piece::Data(_) => {}
                Piece::NeedMore => return Ok((at, Piece::NeedMore)),
                Piece::End => {
                    self.state = ServerState::Idle;
                    return Ok((at, Piece::End));
                }
            }
        }
    }

    /// This many bytes of the request's body have passed by unseen, at most [those remaining](Server::length_left):
    /// its end is still read.
    pub fn passed(&mut self, bytes: u64) {
        let body = match &mut self.state {
            ServerState::Receiving { body, asked, .. } => {
                asked.waits = false;
                body
            }
            ServerState::Both(both) => &mut both.incoming,
            ServerState::Reading { body, .. } => body,
            _ => return self.misused("bytes that went by"),
        };
        if !body.pass(bytes) {
            self.misused("bytes that went by");
        }
    }

    /// Remaining bytes of the request's body, if its framing has a length.
    pub fn length_left(&self) -> Option<u64> {
        match &self.state {
            ServerState::Receiving { body, .. }
            | ServerState::Reading { body, .. }
            | ServerState::Skipping { body, .. } => body.length_left(),
            ServerState::Both(both) => both.incoming.length_left(),
            _ => Some(0),
        }
    }
}
