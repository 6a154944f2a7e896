//! A client that follows a script, and its state machine.

use flatout_wire::answer;
use flatout_wire::h1::{AnswerEvent, Client, ClientFault, Piece, Trailers};

use super::super::cuts;
use super::{Ask, End, Event, HEAD_BYTES_MAX, TRAILERS, Talk, When};

struct Driver<'a> {
    client: Client,
    asks: std::slice::Iter<'a, Ask>,
    /// The current request, and whether its body is still to be sent.
    asked: Option<(&'a Ask, bool)>,
    talk: Talk,
    /// The end, once it is reached.
    end: Option<End>,
}

/// The result of `input`, split as `seed` says.
pub(crate) fn converse(input: &[u8], asks: &[Ask], seed: u32) -> Talk {
    let talk = Talk { events: Vec::new(), written: Vec::new(), end: End::Idle };
    let mut driver = Driver { client: Client::default(), asks: asks.iter(), asked: None, talk, end: None };
    let mut at = 0;
    driver.ask();
    for end in cuts(input.len(), seed) {
        while let Some(used) = driver.step(at, &input[at..end]) {
            at += used;
            assert!(at <= end, "more was used than there was");
        }
    }
    driver.talk.end = match driver.end {
        Some(end) => end,
        None => driver.finish(),
    };
    driver.talk
}

impl Driver<'_> {
    /// Sends the next request, if any.
    fn ask(&mut self) {
        assert!(self.client.is_idle());
        let Some(ask) = self.asks.next() else { return };
        if ask.pipelined > 0 {
            self.client.sent(ask.sent, ask.pipelined);
            self.asked = Some((ask, false));
            return;
        }
        self.talk.written.extend(b"A / HTTP/1.1\r\n");
        self.client.request(ask.sent, ask.length(), &mut self.talk.written);
        self.asked = Some((ask, !ask.is_head_only()));
        self.send(When::AtOnce);
    }

    /// Sends the body, if it is due now.
    fn send(&mut self, now: When) {
        let Some((ask, owes @ true)) = &mut self.asked else { return };
        if ask.when != now {
            return;
        }
        *owes = false;
        for piece in &ask.pieces {
            let behind = self.client.data(piece.len(), &mut self.talk.written).expect("as long as announced");
            self.talk.written.extend(piece);
            self.talk.written.extend(behind);
        }
        self.client.end(TRAILERS, &mut self.talk.written).expect("as long as announced");
    }

    /// Takes one step; `None` if it needs more bytes, or has ended.
    fn step(&mut self, at: usize, bytes: &[u8]) -> Option<usize> {
        if self.end.is_some() || (self.client.is_idle() && bytes.is_empty()) {
            return None;
        }
        if self.client.is_in_body() { self.body(bytes) } else { self.head(at, bytes) }
    }

    fn head(&mut self, at: usize, bytes: &[u8]) -> Option<usize> {
        let answered =
            self.client.head(bytes, |bytes, to_head| answer::parse(bytes, to_head, HEAD_BYTES_MAX));
        match answered {
            Ok(AnswerEvent::NeedMore) => None,
            Ok(AnswerEvent::Interim(answer)) => {
                self.talk.events.push(Event::Interim(answer.status.code()));
                self.send(When::OnInterim);
                Some(answer.head_bytes)
            }
            Ok(AnswerEvent::Head(answer)) => {
                let (code, body, trailers) = (answer.status.code(), Vec::new(), Vec::new());
                self.talk.events.push(Event::Response { code, body, trailers, is_whole: false });
                self.send(When::OnHead);
                Some(answer.head_bytes)
            }
            Ok(AnswerEvent::Switch(answer)) => {
                self.end = Some(End::Switched(at + answer.head_bytes));
                None
            }
            Err(fault) => self.fail(fault),
        }
    }

    fn body(&mut self, bytes: &[u8]) -> Option<usize> {
        let Some(Event::Response { body, trailers, is_whole, .. }) = self.talk.events.last_mut() else {
            panic!("a body without a head")
        };
        if self.asked.is_some_and(|(ask, _)| ask.takes_whole)
            && let Some(whole) = self.client.whole_body(bytes)
        {
            body.extend(whole);
            *is_whole = true;
            return self.next(whole.len());
        }
        let mut found = Trailers::new();
        let (used, piece) = match self.client.body(bytes, &mut found) {
            Ok(stepped) => stepped,
            Err(fault) => return self.fail(fault),
        };
        match piece {
            Piece::Data(data) => {
                assert!(!data.is_empty() && data.len() <= used);
                body.extend(data);
                Some(used)
            }
            Piece::NeedMore => {
                assert_eq!(used, bytes.len());
                (used > 0).then_some(used)
            }
            Piece::End => {
                (*trailers, *is_whole) = (found, true);
                self.next(used)
            }
        }
    }

    /// The response is complete, with the last `used` bytes.
    fn next(&mut self, used: usize) -> Option<usize> {
        assert!(!self.client.is_in_body());
        if self.client.is_closed() {
            self.end = Some(End::Closed);
        } else if self.client.is_idle() {
            self.ask();
        }
        Some(used)
    }

    fn fail(&mut self, fault: ClientFault) -> Option<usize> {
        assert!(self.client.is_closed());
        self.end = Some(end_of(fault));
        None
    }

    fn finish(&mut self) -> End {
        let was_idle = self.client.is_idle();
        let end = match self.client.finish() {
            Ok(false) => {
                assert!(was_idle);
                End::Idle
            }
            Ok(true) => {
                if let Some(Event::Response { is_whole, .. }) = self.talk.events.last_mut() {
                    *is_whole = true;
                }
                End::UntilClose
            }
            Err(fault) => end_of(fault),
        };
        assert!(self.client.is_closed());
        end
    }
}

fn end_of(fault: ClientFault) -> End {
    match fault {
        ClientFault::Head(_) | ClientFault::Chunk(_) => End::Malformed,
        ClientFault::Interims => End::Interims,
        ClientFault::Switch => End::BadSwitch,
        ClientFault::Cut => End::Cut,
        ClientFault::Silent => End::Silent,
        ClientFault::Unasked => End::Unasked,
    }
}
