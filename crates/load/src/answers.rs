//! Parses the responses of one connection, without copying them.
//!
//! A complete head is parsed in place. Most servers send the same head thousands of times, so a thread remembers the
//! last one: identical bytes have the same meaning, and comparing costs a tenth of parsing. A body is counted and, if
//! one is expected, compared, never kept.

use std::borrow::Cow;

use flatout_wire::answer::{self, Answer, ResponseFault};
use flatout_wire::h1::{AnswerEvent, Client, ClientFault, Piece, Sent, Trailers};

use crate::plan::Expect;
use crate::subscribe::{ReceivedMessages, Subscriber, Transport};
use crate::tally::ErrorKind;

/// The parser state of one connection. Owns memory only within an incomplete head or a chunked body.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    client: Client,
    status: u16,
    body_fits: bool,
    body_at: u64,
    /// The start of an incomplete head.
    partial: Vec<u8>,
    /// The connection has become a WebSocket.
    is_switched: bool,
    subscriber: Option<Box<Subscriber>>,
}

/// A complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Its error, if any.
    pub(crate) error: Option<ErrorKind>,
    /// Whether the connection can take the next request.
    pub(crate) keep_alive: bool,
}

/// What a thread knows about the responses it expects.
pub(crate) struct Expected<'p> {
    expect: &'p Expect,
    head_bytes_max: usize,
    /// What subscribers have received; `None` if connections are not subscribers.
    pub(crate) heard: Option<ReceivedMessages>,
    last_head: Vec<u8>,
    last_answer: Option<(Answer, bool)>,
}

impl<'p> Expected<'p> {
    pub(crate) fn new(
        expect: &'p Expect,
        head_bytes_max: usize,
        heard: Option<ReceivedMessages>,
    ) -> Expected<'p> {
        Expected { expect, head_bytes_max, heard, last_head: Vec::new(), last_answer: None }
    }

    /// Parses a head at the start of `bytes`. A head ends at its first empty line, so bytes that start with a known
    /// head have exactly that head.
    #[inline]
    fn head(&mut self, bytes: &[u8], to_head: bool) -> Result<Option<Answer>, ResponseFault> {
        if let Some((answer, to)) = self.last_answer
            && to == to_head
            && bytes.starts_with(&self.last_head)
        {
            return Ok(Some(answer));
        }
        let found = answer::parse(bytes, to_head, self.head_bytes_max)?;
        if let Some(answer) = found {
            self.last_head.clear();
            self.last_head.extend_from_slice(&bytes[..answer.head_bytes]);
            self.last_answer = Some((answer, to_head));
        }
        Ok(found)
    }

    /// Whether these bytes of a body, at this offset, are the expected ones.
    pub(crate) fn fits(&self, at: u64, bytes: &[u8]) -> bool {
        let Some(body) = &self.expect.body else { return true };
        let rest = usize::try_from(at).ok().and_then(|at| body.get(at..)).unwrap_or_default();
        rest.starts_with(bytes)
    }

    /// The error of a complete response, if any, from its status and its body.
    #[inline]
    pub(crate) fn judge(&self, status: u16, body_fits: bool, body_bytes: u64) -> Option<ErrorKind> {
        let fits = match &self.expect.body {
            Some(body) => body_fits && body_bytes == body.len() as u64,
            None => true,
        };
        match (self.is_good(status), fits) {
            (false, _) => Some(ErrorKind::BadStatus),
            (true, false) => Some(ErrorKind::UnexpectedBody),
            (true, true) => None,
        }
    }

    fn is_good(&self, status: u16) -> bool {
        match self.expect.status {
            Some(expected) => status == expected,
            None => (200..400).contains(&status),
        }
    }
}

impl Reader {
    /// This many identical requests were sent.
    #[inline]
    pub(crate) fn sent(&mut self, sent: Sent, count: u32) {
        self.client.sent(sent, count);
    }

    /// Consumes bytes until a response is complete or they run out. Returns how many were consumed, and the response.
    ///
    /// # Errors
    /// The response is invalid. The connection is not usable afterwards.
    #[inline]
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        expected: &mut Expected<'_>,
    ) -> Result<(usize, Option<Answered>), ErrorKind> {
        let mut at = 0;
        if !self.client.is_in_body() {
            match self.take_head(bytes, expected)? {
                (taken, true) => at = taken,
                (taken, false) => return Ok((taken, None)),
            }
        }
        if let Some(body) = self.client.whole_body(&bytes[at..]) {
            self.note_body(body, expected);
            return Ok((at + body.len(), Some(self.end(expected))));
        }
        loop {
            let (taken, piece) = self.client.body(&bytes[at..], &mut Trailers::new()).map_err(kind)?;
            at += taken;
            match piece {
                Piece::Data(data) => self.note_body(data, expected),
                Piece::NeedMore => return Ok((at, None)),
                Piece::End => return Ok((at, Some(self.end(expected)))),
            }
        }
    }

    /// The server has closed its side. Returns the response that ends with the connection, if any.
    ///
    /// # Errors
    /// The response is incomplete.
    pub(crate) fn close(&mut self, expected: &Expected<'_>) -> Result<Answered, ErrorKind> {
        let cut = if self.client.is_in_body() { ErrorKind::ShortBody } else { ErrorKind::Closed };
        match self.client.finish() {
            Ok(true) => Ok(self.end(expected)),
            Ok(false) | Err(_) => Err(cut),
        }
    }

    /// The status of the last response.
    #[inline]
    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Whether a body has started and not ended; a WebSocket counts too.
    pub(crate) fn is_in_body(&self) -> bool {
        self.client.is_in_body() || self.is_switched
    }

    /// Whether the connection has become a WebSocket.
    #[inline]
    pub(crate) fn is_switched(&self) -> bool {
        self.is_switched
    }

    /// Consumes bytes of a WebSocket.
    ///
    /// # Errors
    /// The WebSocket has ended.
    pub(crate) fn frames(&mut self, bytes: &mut [u8], expected: &mut Expected<'_>) -> Result<(), ErrorKind> {
        match (&mut self.subscriber, &mut expected.heard) {
            (Some(subscriber), Some(heard)) => subscriber.frames(bytes, heard),
            _ => Err(ErrorKind::Malformed),
        }
    }

    /// The request as this connection sends it: a returning subscriber resumes at its position.
    #[inline]
    pub(crate) fn resume<'b>(&self, request: &'b [u8]) -> Cow<'b, [u8]> {
        match &self.subscriber {
            Some(subscriber) => subscriber.resume(request),
            None => request.into(),
        }
    }

    /// Resets the state for a new connection; a subscriber keeps its position.
    pub(crate) fn reset(&mut self) {
        let mut subscriber = self.subscriber.take();
        if let Some(subscriber) = &mut subscriber {
            subscriber.cut();
        }
        *self = Reader { subscriber, ..Reader::default() };
    }

    /// Returns how many bytes were consumed, and whether a body follows.
    #[inline]
    fn take_head(&mut self, bytes: &[u8], expected: &mut Expected<'_>) -> Result<(usize, bool), ErrorKind> {
        let mut at = 0;
        loop {
            let before = self.partial.len();
            if before > 0 {
                self.partial.extend_from_slice(&bytes[at..]);
            }
            let whole = if before > 0 { &self.partial } else { &bytes[at..] };
            let event =
                self.client.head(whole, |bytes, to_head| expected.head(bytes, to_head)).map_err(kind)?;
            match event {
                AnswerEvent::Head(answer) => {
                    if let Some(heard) = &expected.heard {
                        if heard.transport() == Transport::WebSocket {
                            return Err(ErrorKind::BadStatus);
                        }
                        self.subscriber(heard.transport()).begin(&expected.last_head);
                    }
                    self.status = answer.status.code();
                    self.body_fits = true;
                    self.body_at = 0;
                    if before > 0 {
                        self.partial = Vec::new();
                    }
                    return Ok((at + answer.head_bytes - before, true));
                }
                AnswerEvent::Interim(answer) => {
                    at += answer.head_bytes - before;
                    self.partial = Vec::new();
                    if at == bytes.len() {
                        return Ok((at, false));
                    }
                }
                AnswerEvent::NeedMore => {
                    if before == 0 {
                        self.partial.extend_from_slice(&bytes[at..]);
                    }
                    return Ok((bytes.len(), false));
                }
                AnswerEvent::Switch(answer) => {
                    let Some(heard) = &expected.heard else { return Err(ErrorKind::BadStatus) };
                    if !heard.is_accepted(&expected.last_head) {
                        return Err(ErrorKind::Malformed);
                    }
                    self.subscriber(heard.transport());
                    self.is_switched = true;
                    self.partial = Vec::new();
                    return Ok((at + answer.head_bytes - before, false));
                }
            }
        }
    }

    fn subscriber(&mut self, transport: Transport) -> &mut Subscriber {
        self.subscriber.get_or_insert_with(|| Box::new(Subscriber::new(transport)))
    }

    #[inline]
    fn note_body(&mut self, bytes: &[u8], expected: &mut Expected<'_>) {
        if expected.heard.is_some() || expected.expect.body.is_some() {
            self.look_at_body(bytes, expected);
        }
        self.body_at += bytes.len() as u64;
    }

    #[inline(never)]
    fn look_at_body(&mut self, bytes: &[u8], expected: &mut Expected<'_>) {
        if let (Some(subscriber), Some(heard)) = (&mut self.subscriber, &mut expected.heard) {
            subscriber.body(bytes, heard);
        }
        self.body_fits &= expected.fits(self.body_at, bytes);
    }

    #[inline]
    fn end(&mut self, expected: &Expected<'_>) -> Answered {
        let error = expected.judge(self.status, self.body_fits, self.body_at);
        Answered { error, keep_alive: !self.client.is_closed() }
    }
}

/// The error kind of a fault, unless the server has closed.
fn kind(fault: ClientFault) -> ErrorKind {
    match fault {
        ClientFault::Switch => ErrorKind::BadStatus,
        _ => ErrorKind::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The responses in `text`, read in pieces of `piece` bytes, and the result of closing.
    fn read(text: &str, piece: usize, expect: &Expect) -> (Vec<Answered>, Result<(), ErrorKind>) {
        let mut expected = Expected::new(expect, 1 << 10, None);
        let mut reader = Reader::default();
        reader.sent(Sent::default(), u32::MAX);
        let mut found = Vec::new();
        for piece in text.as_bytes().chunks(piece) {
            let mut rest = piece;
            while !rest.is_empty() {
                match reader.take(rest, &mut expected) {
                    Ok((taken, answered)) => {
                        found.extend(answered);
                        rest = &rest[taken..];
                    }
                    Err(kind) => return (found, Err(kind)),
                }
            }
        }
        match reader.close(&expected) {
            Ok(answered) => found.push(answered),
            Err(kind) => return (found, Err(kind)),
        }
        (found, Ok(()))
    }

    const GOOD: Answered = Answered { error: None, keep_alive: true };
    const SIZED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n";
    const EMPTY: &str = "HTTP/1.1 204 No Content\r\n\r\n";
    const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n";

    #[test]
    fn answers_are_the_same_in_any_pieces() {
        let text = [SIZED, SIZED, INTERIM, CHUNKED, EMPTY, INTERIM, INTERIM, SIZED].concat();
        for piece in 1..text.len() {
            let (found, end) = read(&text, piece, &Expect::default());
            assert_eq!((found, end), (vec![GOOD; 5], Err(ErrorKind::Closed)), "pieces of {piece}");
        }
    }

    #[test]
    fn bodies_are_compared_in_any_pieces() {
        let expect = Expect { status: Some(200), body: Some(b"hello".to_vec()) };
        let other = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhell";
        for piece in 1..other.len() {
            let (found, _) = read(other, piece, &expect);
            let errors: Vec<_> = found.iter().map(|answered| answered.error).collect();
            assert_eq!(errors, [None, Some(ErrorKind::UnexpectedBody)], "pieces of {piece}");
            assert_eq!(read(CHUNKED, piece, &expect).0, [GOOD]);
        }
        assert_eq!(read(EMPTY, 99, &expect).0[0].error, Some(ErrorKind::BadStatus));
    }

    #[test]
    fn ends_of_the_connection_are_distinguished() {
        let end = |text: &str| read(text, 7, &Expect::default());
        assert_eq!(end(&SIZED[..20]).1, Err(ErrorKind::Closed));
        assert_eq!(end(&SIZED[..SIZED.len() - 1]).1, Err(ErrorKind::ShortBody));
        assert_eq!(end(&CHUNKED[..CHUNKED.len() - 2]).1, Err(ErrorKind::ShortBody));
        let (found, end) = end("HTTP/1.1 200 OK\r\n\r\nuntil the end");
        assert_eq!((found, end), (vec![Answered { error: None, keep_alive: false }], Ok(())));
    }

    #[test]
    fn invalid_responses_are_malformed() {
        for text in [
            "220 smtp.example.org ESMTP\r\n".to_owned(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n".to_owned(),
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n".to_owned(),
            format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(2 << 10)),
            "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(3) + "garbage",
        ] {
            assert_eq!(read(&text, 11, &Expect::default()).1, Err(ErrorKind::Malformed), "{text}");
        }
        let upgrade = "HTTP/1.1 101 Switching Protocols\r\n\r\n";
        assert_eq!(read(upgrade, 9, &Expect::default()).1, Err(ErrorKind::BadStatus));
    }
}
