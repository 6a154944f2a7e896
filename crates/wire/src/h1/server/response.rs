//! Sending responses.

use super::{DISCARD_BYTES_MAX, Next, Overlap, RequestSummary, Server, ServerState};
use crate::h1::outgoing::{Length, Misfit, Outgoing, content_length_and_end};
use crate::{Status, Version};

impl Server {
    /// Writes `100 Continue` if the client waits for it.
    pub fn proceed(&mut self, out: &mut Vec<u8>) {
        if let ServerState::Receiving { asked, .. } = &mut self.state
            && std::mem::take(&mut asked.waits)
        {
            out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
    }

    /// Writes an interim response, such as 103; `fields` are complete field lines. Returns whether it was written:
    /// HTTP/1.0 has none, and after the start of the response it is too late. [`Server::proceed`] sends 100, and
    /// [`Server::switch`] 101.
    pub fn inform(&self, status: Status, fields: &[u8], out: &mut Vec<u8>) -> bool {
        let (ServerState::Receiving { asked, .. } | ServerState::Awaiting { asked }) = &self.state else {
            return false;
        };
        if asked.version == Version::Http10 || !(102..200).contains(&status.code()) {
            return false;
        }
        write_status_line(status, out);
        out.extend_from_slice(fields);
        out.extend_from_slice(b"\r\n");
        true
    }

    /// Starts the response: appends the framing fields to the status line and fields that are already in `out`, and
    /// ends the head. `close` makes it the last one. Returns whether to send the body: after HEAD, 204 and 304, and
    /// 2xx to CONNECT, nothing follows, whatever the head says. 1xx is not a final response, and ends the connection
    /// too.
    #[inline]
    pub fn respond(&mut self, status: Status, length: Length, close: bool, out: &mut Vec<u8>) -> bool {
        let (mut asked, incoming) = match std::mem::take(&mut self.state) {
            ServerState::Awaiting { asked } => (asked, None),
            // Its last byte was returned, but not its end: nothing of it remains.
            ServerState::Receiving { body, asked, .. } if body.is_whole() => (asked, None),
            ServerState::Receiving { body, asked, is_kept } => (asked, Some((body, is_kept))),
            other => {
                self.state = other;
                self.misused("a response");
                return false;
            }
        };
        let framed = Outgoing::of(length, asked.version);
        // A client takes this for a tunnel, without framing or body.
        let is_tunnel = asked.is_connect && (200..300).contains(&status.code());
        let is_bodyless = status.is_bodyless() || is_tunnel;
        let follows = !asked.is_head && !is_bodyless;
        // A client that waits for 100 may or may not send its body after another status: it is unclear what follows.
        // After 1xx it waits for a response that never comes.
        let until_close = follows && framed == Outgoing::UntilClose;
        asked.keep_alive &= !(close || asked.waits || until_close || status.code() < 200);
        if !is_bodyless || (matches!(length, Length::Declared(_)) && status == Status::NOT_MODIFIED) {
            framed.write_field(out);
        }
        end_head(asked, out);
        let outgoing = if follows { framed } else { Outgoing::None };
        self.state = match incoming {
            None => ServerState::Responding { body: outgoing, asked },
            Some((incoming, is_kept)) => {
                let is_kept = is_kept && !asked.waits;
                ServerState::Both(Box::new(Overlap { incoming, outgoing, asked, is_kept }))
            }
        };
        follows
    }

    /// Starts and ends a response whose body is in memory: the same as [`Server::respond`], [`Server::data`] and
    /// [`Server::end`] in order, for the usual request, at a third of the cost. Returns whether to send the body, all
    /// of its `bytes`, and what follows it.
    ///
    /// # Errors
    /// As these functions.
    #[inline]
    pub fn respond_whole(
        &mut self,
        status: Status,
        length: Length,
        bytes: usize,
        close: bool,
        out: &mut Vec<u8>,
    ) -> Result<(bool, Next), Misfit> {
        if let ServerState::Awaiting { asked } = self.state
            && let Length::Known(said) = length
            && said == bytes as u64
            && asked.version == Version::Http11
            && asked.keep_alive
            && !(close || asked.waits || status.is_bodyless())
        {
            content_length_and_end(said, out);
            self.state = ServerState::Idle;
            return Ok((!asked.is_head, Next::Request));
        }
        let follows = self.respond(status, length, close, out);
        if follows && bytes > 0 {
            // With a known length nothing follows the data, so the end can be written before it.
            self.data(bytes, out)?;
        }
        Ok((follows, self.end(b"", out)?))
    }

    /// Writes what precedes `bytes` bytes of the response's body, and returns what follows them.
    ///
    /// # Errors
    /// The body would become longer than its head declared, or there is none (see [`Server::respond`]). None of it
    /// may be sent, and the connection has to be closed.
    #[inline]
    pub fn data(&mut self, bytes: usize, out: &mut Vec<u8>) -> Result<&'static [u8], Misfit> {
        let written = match &mut self.state {
            ServerState::Responding { body, .. } => body.data(bytes, out),
            ServerState::Both(both) => both.outgoing.data(bytes, out),
            ServerState::Closed => Err(Misfit),
            _ => {
                self.misused("data");
                Err(Misfit)
            }
        };
        if written.is_err() {
            self.state = ServerState::Closed;
        }
        written
    }

    /// Ends the response; `trailers` are complete field lines.
    ///
    /// # Errors
    /// The body is shorter than its head declared, or the connection has already ended. It has to be aborted, so that
    /// the client notices.
    #[inline]
    pub fn end(&mut self, trailers: &[u8], out: &mut Vec<u8>) -> Result<Next, Misfit> {
        let (state, next) = match std::mem::replace(&mut self.state, ServerState::Closed) {
            ServerState::Responding { body, asked } => {
                body.end(trailers, out)?;
                match asked.keep_alive {
                    true => (ServerState::Idle, Next::Request),
                    false => (ServerState::Closed, Next::Close),
                }
            }
            ServerState::Both(both) => {
                both.outgoing.end(trailers, out)?;
                match both.asked.keep_alive {
                    true if both.incoming.is_whole() => (ServerState::Idle, Next::Request),
                    keep_alive if both.is_kept && !both.incoming.is_whole() => {
                        (ServerState::Reading { body: both.incoming, keep_alive }, Next::Body)
                    }
                    true => {
                        let skipping =
                            ServerState::Skipping { body: both.incoming, bytes_left: DISCARD_BYTES_MAX };
                        (skipping, Next::Skip)
                    }
                    false => (ServerState::Closed, Next::Close),
                }
            }
            ServerState::Closed => return Err(Misfit),
            other => {
                self.state = other;
                self.misused("the end of a response");
                return Err(Misfit);
            }
        };
        self.state = state;
        Ok(next)
    }

    /// Ends the head of a response after which another protocol is used: 101, or 2xx to CONNECT. After any other
    /// status, a body of unknown length follows, delimited by the end of the connection. The request must be
    /// complete: the rest of its body would be taken for the other protocol. A client of HTTP/1.0 must not be sent
    /// 101.
    pub fn switch(&mut self, status: Status, out: &mut Vec<u8>) {
        let ServerState::Awaiting { asked } = self.state else {
            // The head has to end somehow: with this the client expects nothing after it.
            end_head(RequestSummary::NONE, out);
            return self.misused("a switch");
        };
        // The upgrade has its own `Connection` field; 2xx to CONNECT needs none.
        if status == Status::SWITCHING_PROTOCOLS {
            debug_assert!(asked.version == Version::Http11, "101 for HTTP/1.0");
            out.extend_from_slice(b"Connection: Upgrade\r\n");
        } else if !asked.is_connect {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        out.extend_from_slice(b"\r\n");
        self.state = ServerState::Switched;
    }
}

/// Writes `HTTP/1.1 200 OK` and CRLF.
#[inline]
pub fn write_status_line(status: Status, out: &mut Vec<u8>) {
    match status.line() {
        Some(line) => out.extend_from_slice(line),
        None => out.extend_from_slice(format!("HTTP/1.1 {} \r\n", status.code()).as_bytes()),
    }
}

/// Writes the connection option if it differs from the version's default, and ends the head.
#[inline]
fn end_head(asked: RequestSummary, out: &mut Vec<u8>) {
    match (asked.version, asked.keep_alive) {
        (Version::Http10, true) => out.extend_from_slice(b"Connection: keep-alive\r\n\r\n"),
        (_, true) => out.extend_from_slice(b"\r\n"),
        (_, false) => out.extend_from_slice(b"Connection: close\r\n\r\n"),
    }
}
