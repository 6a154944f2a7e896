//! The server's role: what an application says to requests, what must come of it, and what comes of it.

use flatout_wire::Status;
use flatout_wire::h1::{Length, Next, Piece, Server, Trailers, Wants, write_status_line};
use flatout_wire::head::HeadLimits;

use super::text::{self, Delimited, Read, Request};
use super::{Announced, Source, cuts, in_chunks};

/// Small, so that short inputs reach them.
const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 300, target_bytes_max: 60, fields_max: 8 };
const PLAIN_LIMITS: text::Limits =
    text::Limits { head: LIMITS.head_bytes_max, target: LIMITS.target_bytes_max, fields: LIMITS.fields_max };

const HINTS: &[u8] = b"Link: </a>\r\n";
const TRAILERS: &[u8] = b"X-End: 1\r\n";

/// What the application does with one request.
#[derive(Debug, Clone)]
pub(crate) struct Act {
    /// Says 100 to who waits for it.
    pub(crate) proceeds: bool,
    /// Says 103.
    pub(crate) informs: bool,
    /// Responds when so many bytes of the body have come, or it is whole.
    pub(crate) answer_at: usize,
    /// Reads on before it ends a response that began before the request was whole.
    pub(crate) ends_late: bool,
    /// Reads no more once it responds.
    pub(crate) gives_up: bool,
    /// Speaks another protocol, if the request is whole and of HTTP/1.1.
    pub(crate) switches: bool,
    /// Takes the body at once if it lies there whole.
    pub(crate) takes_whole: bool,
    pub(crate) status: u16,
    pub(crate) announced: Announced,
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) close: bool,
    pub(crate) trailers: bool,
}

impl Act {
    pub(crate) fn read(source: &mut Source<'_>) -> Act {
        let flags = source.byte();
        let is = |bit: u8| flags >> bit & 1 == 1;
        let answer_at = source.choice(&[usize::MAX, 0, 1, 2, 3, 5, 8, 13, usize::MAX]);
        let status = source.choice(&[200, 404, 204, 304, 200, 299, 500, 205]);
        let announced = source.choice(&[Announced::Known, Announced::Unknown, Announced::Declared]);
        let rare = source.byte();
        Act {
            proceeds: is(0),
            informs: is(1),
            answer_at,
            ends_late: is(2),
            gives_up: rare & 15 == 15,
            switches: rare >> 4 == 15,
            takes_whole: is(3) && answer_at == usize::MAX,
            status,
            announced,
            pieces: source.pieces(),
            close: is(4) && is(5) && is(7),
            trailers: is(6),
        }
    }

    fn status(&self) -> Status {
        Status::from_code(self.status).expect("a status")
    }

    fn length(&self) -> Length {
        let bytes = self.pieces.concat().len() as u64;
        match self.announced {
            Announced::Known => Length::Known(bytes),
            Announced::Declared => Length::Declared(bytes),
            Announced::Unknown => Length::Unknown,
        }
    }

    fn trailers(&self) -> &'static [u8] {
        if self.trailers { TRAILERS } else { b"" }
    }
}

/// A request as the application saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Where in the input it begins.
    pub(crate) at: usize,
    pub(crate) method: Vec<u8>,
    pub(crate) target: Vec<u8>,
    /// What came of its body before the application lost interest.
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Trailers,
}

/// How a conversation stands at the end of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Between requests, or within a head.
    Idle,
    /// Within a body.
    Busy,
    Closed,
    /// Another protocol begins here.
    Switched(usize),
    /// Of the oracle alone: what the input ends with goes on, or is faulty already.
    Open,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Talk {
    pub(crate) seen: Vec<Seen>,
    pub(crate) written: Vec<u8>,
    pub(crate) end: End,
}

/// Asserts that the machine does with `input`, cut as `seed` says, what the oracle says of it.
pub(crate) fn check(input: &[u8], acts: &[Act], seed: u32) {
    let expected = expected(input, acts);
    let mut found = converse(input, acts, seed);
    if expected.end == End::Open {
        let is_longer = found.written.starts_with(&expected.written);
        assert!(is_longer, "written {:?}\nby the oracle {:?}", found.written, expected.written);
        found.written = expected.written.clone();
        found.end = End::Open;
    }
    assert!(
        found == expected,
        "cut by {seed}: {input:?}\n{acts:?}\nfound {}\nexpected {}",
        shown(&found),
        shown(&expected),
        input = String::from_utf8_lossy(input),
    );
}

fn shown(talk: &Talk) -> String {
    format!("{:?} {:?} {:?}", talk.end, String::from_utf8_lossy(&talk.written), talk.seen)
}

// The oracle.

/// What becomes of the body of a request.
enum Fate {
    /// It ends here.
    Whole(usize, Trailers),
    Short,
    Open,
    Faulty,
}

/// What must come of `input`: all of it is known, and nothing is remembered but where the next request begins.
pub(crate) fn expected(input: &[u8], acts: &[Act]) -> Talk {
    let mut talk = Talk { seen: Vec::new(), written: Vec::new(), end: End::Idle };
    let mut at = 0;
    for act in acts.iter().cycle() {
        let (request, bytes) = match text::request(&input[at..], PLAIN_LIMITS) {
            Read::Whole(request, bytes) => (request, bytes),
            Read::Open => {
                talk.end = if at == input.len() { End::Idle } else { End::Open };
                return talk;
            }
            Read::Faulty => {
                talk.written.extend(REFUSED);
                talk.end = End::Closed;
                return talk;
            }
        };
        let (data, fate) = body(input, at + bytes, request.body);
        match exchange(&mut talk, at, &request, &data, fate, act) {
            Ok(next) => at = next,
            Err(end) => {
                talk.end = end;
                return talk;
            }
        }
    }
    talk
}

const REFUSED: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

fn body(input: &[u8], at: usize, delimited: Delimited) -> (Vec<u8>, Fate) {
    let rest = &input[at..];
    match delimited {
        Delimited::NotAtAll | Delimited::Length(0) => (Vec::new(), Fate::Whole(at, Vec::new())),
        Delimited::Length(length) => {
            match usize::try_from(length).ok().filter(|length| *length <= rest.len()) {
                Some(length) => (rest[..length].to_vec(), Fate::Whole(at + length, Vec::new())),
                None => (rest.to_vec(), Fate::Short),
            }
        }
        Delimited::Chunked => match text::chunked(rest) {
            (data, Read::Whole(trailers, bytes)) => (data, Fate::Whole(at + bytes, trailers)),
            (data, Read::Open) => (data, Fate::Open),
            (data, Read::Faulty) => (data, Fate::Faulty),
        },
    }
}

/// One request and its response: where the next one begins, or how it all ends.
fn exchange(
    talk: &mut Talk,
    at: usize,
    request: &Request,
    data: &[u8],
    fate: Fate,
    act: &Act,
) -> Result<usize, End> {
    let has_body = !matches!(request.body, Delimited::NotAtAll | Delimited::Length(0));
    let (method, target) = (request.method.clone(), request.target.clone());
    let mut seen = Seen { at, method, target, body: data.to_vec(), trailers: Vec::new() };
    let is_asked_for_100 = request.expects && act.proceeds;
    if is_asked_for_100 {
        talk.written.extend(b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    if act.informs && request.is_11 {
        talk.written.extend([b"HTTP/1.1 103 Early Hints\r\n", HINTS, b"\r\n"].concat());
    }

    if has_body && data.len() >= act.answer_at {
        // Before the request is whole. Who waits for 100 and has sent nothing may send the body yet, or never.
        let is_unclear = request.expects && !is_asked_for_100 && act.answer_at == 0;
        let keeps = respond(talk, request, act, act.gives_up || is_unclear);
        let reads_on = act.ends_late && !act.gives_up;
        if !reads_on {
            seen.body.truncate(act.answer_at);
        } else if let Fate::Whole(_, trailers) = &fate {
            seen.trailers = trailers.clone();
        }
        talk.seen.push(seen);
        if !reads_on || matches!(fate, Fate::Whole(..) | Fate::Faulty) {
            finish(talk, request, act);
        }
        return match fate {
            _ if !keeps && !reads_on => Err(End::Closed),
            Fate::Whole(next, _) if keeps => Ok(next),
            Fate::Whole(..) | Fate::Faulty => Err(End::Closed),
            Fate::Short => Err(End::Busy),
            Fate::Open => Err(End::Open),
        };
    }

    if let Fate::Whole(_, trailers) = &fate {
        seen.trailers = trailers.clone();
    }
    talk.seen.push(seen);
    match fate {
        Fate::Short => Err(End::Busy),
        Fate::Open => Err(End::Open),
        Fate::Faulty => {
            // HEAD is refused without a body, and the refusal has none; so it is the same.
            talk.written.extend(REFUSED);
            Err(End::Closed)
        }
        Fate::Whole(next, _) if act.switches && !act.gives_up && request.is_11 => {
            talk.written
                .extend(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n");
            Err(End::Switched(next))
        }
        Fate::Whole(next, _) => {
            let keeps = respond(talk, request, act, act.gives_up);
            finish(talk, request, act);
            if keeps { Ok(next) } else { Err(End::Closed) }
        }
    }
}

/// Whether something stands behind the head of the response, whatever the head says.
fn has_content(request: &Request, act: &Act) -> bool {
    let is_tunnel = request.method == b"CONNECT" && act.status / 100 == 2;
    request.method != b"HEAD" && !matches!(act.status, 204 | 304) && !is_tunnel
}

/// The head of the response, and whether the connection stays.
fn respond(talk: &mut Talk, request: &Request, act: &Act, is_last: bool) -> bool {
    let is_delimited_by_close =
        act.announced == Announced::Unknown && !request.is_11 && has_content(request, act);
    let is_connect = request.method == b"CONNECT";
    let keeps = request.keep_alive && !is_connect && !act.close && !is_last && !is_delimited_by_close;
    let framing = match (act.announced, act.status) {
        (Announced::Known | Announced::Unknown, 304) | (_, 204) => String::new(),
        (_, 200..=299) if is_connect => String::new(),
        (Announced::Unknown, _) if !request.is_11 => String::new(),
        (Announced::Unknown, _) => "Transfer-Encoding: chunked\r\n".to_owned(),
        _ => format!("Content-Length: {}\r\n", act.pieces.concat().len()),
    };
    let connection = match (keeps, request.is_11) {
        (true, true) => "",
        (true, false) => "Connection: keep-alive\r\n",
        (false, _) => "Connection: close\r\n",
    };
    let reason = act.status().reason();
    let head = format!("HTTP/1.1 {} {reason}\r\nServer: x\r\n{framing}{connection}\r\n", act.status);
    talk.written.extend(head.bytes());
    keeps
}

/// The body of the response. That it is written at once hides nothing: what is written is looked at in whole.
fn finish(talk: &mut Talk, request: &Request, act: &Act) {
    if !has_content(request, act) {
        return;
    }
    if act.announced == Announced::Unknown && request.is_11 {
        talk.written.extend(in_chunks(&act.pieces, act.trailers()));
    } else {
        talk.written.extend(act.pieces.concat());
    }
}

// The driver.

/// An application and its machine.
struct Driver<'a> {
    server: Server,
    acts: &'a [Act],
    talk: Talk,
    body_bytes: usize,
    /// The request in hand is of HTTP/1.1.
    is_11: bool,
    sends_body: bool,
}

/// What comes of `input`, cut as `seed` says.
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

    /// Goes one step; `None` where it takes more bytes. The machine must say so without a change of state.
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
        self.is_11 = head.version == flatout_wire::Version::Http11;
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

    /// Begins the response, and ends it unless the application reads on. `at` is where the input goes on.
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
            Next::Skip => Wants::Body,
            Next::Close => Wants::Nothing,
        };
        assert_eq!(self.server.wants(), wants);
    }
}
