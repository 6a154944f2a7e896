//! An application that follows a script, and its state machine.

use flatout_wire::h1::{Length, Next, Piece, Server, Wants, write_status_line};
use flatout_wire::{Status, Version};

use super::super::cuts;
use super::{Act, End, HINTS, LIMITS, Seen, Talk};

/// An application and its machine.
struct Driver<'a> {
    server: Server,
    acts: &'a [Act],
    talk: Talk,
    body_bytes: usize,
    /// The current request uses HTTP/1.1.
    is_11: bool,
    sends_body: bool,
}

/// The result of `input`, split as `seed` says.
pub(crate) fn converse(input: &[u8], acts: &[Act], seed: u32) -> Talk {
    let talk = Talk { seen: Vec::new(), written: Vec::new(), end: End::Idle };
    let server = Server::default();
    let mut driver = Driver { server, acts, talk, body_bytes: 0, is_11: true, sends_body: false };
    let mut at = 0;
    for end in cuts(input.len(), seed) {
        while let Some(used) = driver.step(at, &input[at..end]) {
            at += used;
            assert!(at <= end, "more was used than there was");
        }
    }
    let server = &driver.server;
    driver.talk.end = match driver.talk.end {
        switched @ End::Switched(_) => switched,
        _ if server.is_idle() => End::Idle,
        _ if server.wants() == Wants::Nothing => End::Closed,
        _ => End::Busy,
    };
    driver.talk
}

impl Driver<'_> {
    fn act(&self) -> Act {
        self.acts[(self.talk.seen.len() - 1) % self.acts.len()].clone()
    }

    /// Takes one step; `None` if it needs more bytes. The state machine must report this without a change of state.
    fn step(&mut self, at: usize, bytes: &[u8]) -> Option<usize> {
        match self.server.wants() {
            Wants::Head => self.head(at, bytes),
            Wants::Body => self.body(bytes),
            Wants::Answer if self.server.is_responding() => {
                self.end();
                Some(0)
            }
            Wants::Answer => {
                self.answer(at);
                Some(0)
            }
            Wants::Nothing => None,
        }
    }

    fn head(&mut self, at: usize, bytes: &[u8]) -> Option<usize> {
        let mut fields = Vec::new();
        let head = match self.server.head(bytes, &mut fields, &LIMITS) {
            Ok(Some(head)) => head,
            Ok(None) => {
                assert!(self.server.is_idle());
                return None;
            }
            Err(_) => {
                self.refuse();
                return Some(0);
            }
        };
        let (method, target) = (head.method_name().to_vec(), head.target().to_vec());
        self.talk.seen.push(Seen { at, method, target, ..Seen::default() });
        self.is_11 = head.version == Version::Http11;
        self.body_bytes = 0;
        let mut used = head.len();
        let act = self.act();
        if act.proceeds {
            self.server.proceed(&mut self.talk.written);
        }
        if act.informs {
            let is_written = self.server.inform(Status::EARLY_HINTS, HINTS, &mut self.talk.written);
            assert_eq!(is_written, self.is_11);
        }
        if act.takes_whole
            && let Some(body) = self.server.whole_body(&bytes[used..])
        {
            self.seen().body = body.to_vec();
            used += body.len();
        }
        if act.answer_at == 0 && self.server.wants() == Wants::Body {
            self.answer(at + used);
        }
        Some(used)
    }

    fn seen(&mut self) -> &mut Seen {
        self.talk.seen.last_mut().expect("a request")
    }

    fn body(&mut self, bytes: &[u8]) -> Option<usize> {
        let is_skipping = !self.server.owes_response() && !self.server.is_responding();
        let owes = self.server.owes_response();
        let act = self.act();
        let mut trailers = Vec::new();
        let (used, piece) = match self.server.body(bytes, &mut trailers) {
            Ok(stepped) => stepped,
            Err(_) => {
                if owes {
                    self.refuse();
                } else {
                    assert!(self.server.is_responding() || self.server.wants() == Wants::Nothing);
                }
                return Some(0);
            }
        };
        match piece {
            Piece::Data(data) => {
                assert!(!is_skipping && !data.is_empty() && data.len() <= used);
                self.body_bytes += data.len();
                self.seen().body.extend(data);
                if owes && self.body_bytes >= act.answer_at {
                    self.answer(0);
                }
                Some(used)
            }
            Piece::NeedMore => {
                assert_eq!(used, bytes.len());
                (used > 0).then_some(used)
            }
            Piece::End => {
                assert_ne!(self.server.wants(), Wants::Body);
                if is_skipping {
                    assert!(trailers.is_empty() && self.server.is_idle());
                } else {
                    self.seen().trailers = trailers;
                }
                Some(used)
            }
        }
    }

    fn refuse(&mut self) {
        assert!(self.server.owes_response());
        write_status_line(Status::BAD_REQUEST, &mut self.talk.written);
        self.server.respond(Status::BAD_REQUEST, Length::Known(0), false, &mut self.talk.written);
        assert_eq!(self.server.end(b"", &mut self.talk.written), Ok(Next::Close));
    }

    /// Starts the response, and ends it unless the application continues to read. `at` is the position in the input.
    fn answer(&mut self, at: usize) {
        let act = self.act();
        let is_whole = self.server.wants() == Wants::Answer;
        if is_whole && act.switches && !act.gives_up && self.is_11 {
            write_status_line(Status::SWITCHING_PROTOCOLS, &mut self.talk.written);
            self.talk.written.extend(b"Upgrade: x\r\n");
            self.server.switch(Status::SWITCHING_PROTOCOLS, &mut self.talk.written);
            self.talk.end = End::Switched(at);
            return;
        }
        if act.gives_up {
            self.server.give_up();
        }
        write_status_line(act.status(), &mut self.talk.written);
        self.talk.written.extend(b"Server: x\r\n");
        self.sends_body = self.server.respond(act.status(), act.length(), act.close, &mut self.talk.written);
        if !is_whole && act.ends_late && !act.gives_up {
            return;
        }
        self.end();
        if !is_whole {
            self.seen().body.truncate(act.answer_at);
        }
    }

    /// The body of the response, and its end.
    fn end(&mut self) {
        let act = self.act();
        for piece in act.pieces.iter().filter(|_| self.sends_body) {
            let behind = self.server.data(piece.len(), &mut self.talk.written).expect("as long as announced");
            self.talk.written.extend(piece);
            self.talk.written.extend(behind);
        }
        let next = self.server.end(act.trailers(), &mut self.talk.written).expect("as long as announced");
        let wants = match next {
            Next::Request => Wants::Head,
            Next::Body | Next::Skip => Wants::Body,
            Next::Close => Wants::Nothing,
        };
        assert_eq!(self.server.wants(), wants);
    }
}
