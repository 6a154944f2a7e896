//! Answers out of the bytes of one connection, without copying them.
//!
//! A head that came whole is read where it lies. Most servers send the same head thousands of times, so a thread
//! remembers the last one: where the bytes are the same the meaning is too, and comparing costs a tenth of parsing.
//! A body is counted and, if one is expected, compared, never kept.

use flatout_wire::answer::{self, Answer, Framing};
use flatout_wire::chunk::{ChunkLimits, Decoder, Event};

use crate::events::{Events, Message};
use crate::plan::Expect;
use crate::tally::ErrorKind;

/// Where one connection is in its answers. Owns memory only within a cut head or a chunked body.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    place: Place,
    status: u16,
    keep_alive: bool,
    body_fits: bool,
    body_at: u64,
    /// The start of a head that did not come whole.
    partial: Vec<u8>,
    events: Option<Box<Events>>,
}

#[derive(Debug, Default)]
enum Place {
    #[default]
    Head,
    Body {
        left: u64,
    },
    Chunks(Box<Decoder>),
    UntilClose,
}

/// A whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answered {
    /// What is wrong with it, if anything is.
    pub(crate) error: Option<ErrorKind>,
    /// Whether the connection can take the next request.
    pub(crate) keep_alive: bool,
}

/// What a thread knows about the answers it waits for.
pub(crate) struct Expected<'p> {
    expect: &'p Expect,
    head_bytes_max: usize,
    /// Messages of event streams that have come; none where bodies are no event streams.
    pub(crate) messages: Option<Vec<Message>>,
    last_head: Vec<u8>,
    last_answer: Option<(Answer, bool)>,
}

impl<'p> Expected<'p> {
    pub(crate) fn new(expect: &'p Expect, head_bytes_max: usize, events: bool) -> Expected<'p> {
        let messages = events.then(Vec::new);
        Expected { expect, head_bytes_max, messages, last_head: Vec::new(), last_answer: None }
    }

    /// Reads a head from the start of `bytes`. A head ends at its first empty line, so bytes that begin with a whole
    /// head are known by that head alone.
    #[inline]
    fn head(&mut self, bytes: &[u8], to_head: bool) -> Result<Option<Answer>, ErrorKind> {
        if let Some((answer, to)) = self.last_answer
            && to == to_head
            && bytes.starts_with(&self.last_head)
        {
            return Ok(Some(answer));
        }
        let found = answer::parse(bytes, to_head, self.head_bytes_max).map_err(|_| ErrorKind::Malformed)?;
        if let Some(answer) = found {
            self.last_head.clear();
            self.last_head.extend_from_slice(&bytes[..answer.head_bytes]);
            self.last_answer = Some((answer, to_head));
        }
        Ok(found)
    }

    fn is_good(&self, status: u16) -> bool {
        match self.expect.status {
            Some(expected) => status == expected,
            None => (200..400).contains(&status),
        }
    }
}

impl Reader {
    /// Takes bytes until an answer is whole or they end: how many were taken, and the answer. `to_head` says that it
    /// answers HEAD.
    ///
    /// # Errors
    /// What the answer is instead of whole. The connection is of no use afterwards.
    #[inline]
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        to_head: bool,
        expected: &mut Expected<'_>,
    ) -> Result<(usize, Option<Answered>), ErrorKind> {
        let mut at = 0;
        loop {
            match &mut self.place {
                Place::Head => match self.take_head(&bytes[at..], to_head, expected)? {
                    (taken, true) => at += taken,
                    (taken, false) => return Ok((at + taken, None)),
                },
                Place::Body { left } => {
                    let here = bytes.len() - at;
                    let taken = usize::try_from(*left).map_or(here, |left| left.min(here));
                    *left -= taken as u64;
                    let is_whole = *left == 0;
                    self.note_body(&bytes[at..at + taken], expected);
                    return Ok((at + taken, is_whole.then(|| self.end(expected))));
                }
                Place::Chunks(decoder) => {
                    let (taken, event) = decoder.step(&bytes[at..]).map_err(|_| ErrorKind::Malformed)?;
                    at += taken;
                    match event {
                        Event::Data(data) => self.note_body(data, expected),
                        Event::NeedMore => return Ok((at, None)),
                        Event::End => return Ok((at, Some(self.end(expected)))),
                    }
                }
                Place::UntilClose => {
                    self.note_body(&bytes[at..], expected);
                    return Ok((bytes.len(), None));
                }
            }
        }
    }

    /// The server has closed its side: the answer that ends there.
    ///
    /// # Errors
    /// What the answer is instead of whole.
    pub(crate) fn close(&mut self, expected: &Expected<'_>) -> Result<Answered, ErrorKind> {
        match self.place {
            Place::Head => Err(ErrorKind::Closed),
            Place::Body { .. } | Place::Chunks(_) => Err(ErrorKind::ShortBody),
            Place::UntilClose => Ok(self.end(expected)),
        }
    }

    /// The status of the last answer.
    #[inline]
    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Whether a body has begun and not ended.
    pub(crate) fn is_in_body(&self) -> bool {
        !matches!(self.place, Place::Head)
    }

    /// Forgets everything, for a new connection.
    pub(crate) fn reset(&mut self) {
        *self = Reader::default();
    }

    /// How many bytes were taken, and whether a body follows now.
    #[inline]
    fn take_head(
        &mut self,
        bytes: &[u8],
        to_head: bool,
        expected: &mut Expected<'_>,
    ) -> Result<(usize, bool), ErrorKind> {
        let before = self.partial.len();
        let found = if before == 0 {
            expected.head(bytes, to_head)?
        } else {
            self.partial.extend_from_slice(bytes);
            expected.head(&self.partial, to_head)?
        };
        let Some(answer) = found else {
            if before == 0 {
                self.partial.extend_from_slice(bytes);
            }
            return Ok((bytes.len(), false));
        };
        // An interim answer, such as 100 or 103, is followed by the real one; 101 is one that nobody asked for.
        let code = answer.status.code();
        if code == 101 {
            return Err(ErrorKind::BadStatus);
        }
        if before > 0 {
            self.partial = Vec::new();
        }
        let taken = answer.head_bytes - before;
        if code >= 200 {
            self.begin_body(&answer);
        }
        Ok((taken, code >= 200 || taken < bytes.len()))
    }

    #[inline]
    fn begin_body(&mut self, answer: &Answer) {
        self.status = answer.status.code();
        self.keep_alive = answer.keep_alive;
        self.body_fits = true;
        self.body_at = 0;
        self.place = match answer.framing {
            Framing::Length(left) => Place::Body { left },
            Framing::Chunked => Place::Chunks(Box::new(Decoder::new(ChunkLimits::default()))),
            Framing::UntilClose => Place::UntilClose,
        };
    }

    #[inline]
    fn note_body(&mut self, bytes: &[u8], expected: &mut Expected<'_>) {
        if let Some(messages) = &mut expected.messages {
            self.events.get_or_insert_default().take(bytes, messages);
        }
        if let Some(body) = &expected.expect.body {
            let rest = usize::try_from(self.body_at).ok().and_then(|at| body.get(at..)).unwrap_or_default();
            self.body_fits &= rest.starts_with(bytes);
        }
        self.body_at += bytes.len() as u64;
    }

    #[inline]
    fn end(&mut self, expected: &Expected<'_>) -> Answered {
        self.place = Place::Head;
        let fits = match &expected.expect.body {
            Some(body) => self.body_fits && self.body_at == body.len() as u64,
            None => true,
        };
        let error = match (expected.is_good(self.status), fits) {
            (false, _) => Some(ErrorKind::BadStatus),
            (true, false) => Some(ErrorKind::UnexpectedBody),
            (true, true) => None,
        };
        Answered { error, keep_alive: self.keep_alive }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers in `text`, read in pieces of `piece` bytes, and what the end of the connection came to.
    fn read(text: &str, piece: usize, expect: &Expect) -> (Vec<Answered>, Result<(), ErrorKind>) {
        let mut expected = Expected::new(expect, 1 << 10, false);
        let mut reader = Reader::default();
        let mut found = Vec::new();
        for piece in text.as_bytes().chunks(piece) {
            let mut rest = piece;
            while !rest.is_empty() {
                match reader.take(rest, false, &mut expected) {
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
    fn ends_of_the_connection_are_told_apart() {
        let end = |text: &str| read(text, 7, &Expect::default());
        assert_eq!(end(&SIZED[..20]).1, Err(ErrorKind::Closed));
        assert_eq!(end(&SIZED[..SIZED.len() - 1]).1, Err(ErrorKind::ShortBody));
        assert_eq!(end(&CHUNKED[..CHUNKED.len() - 2]).1, Err(ErrorKind::ShortBody));
        let (found, end) = end("HTTP/1.1 200 OK\r\n\r\nuntil the end");
        assert_eq!((found, end), (vec![Answered { error: None, keep_alive: false }], Ok(())));
    }

    #[test]
    fn what_is_no_answer_is_malformed() {
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
