//! The client's role: what is asked, what must come of a server's bytes, and what comes of them.

use flatout_wire::answer;
use flatout_wire::h1::{
    AnswerEvent, Client, ClientFault, INTERIM_ANSWERS_MAX, Length, Piece, Sent, Trailers,
};

use super::text::{self, Delimited, Read};
use super::{Announced, Source, cuts, in_chunks};

/// Small, so that short inputs reach it.
const HEAD_BYTES_MAX: usize = 300;

const TRAILERS: &[u8] = b"X-End: 1\r\n";

/// When the body of a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    AtOnce,
    /// Behind the first interim response.
    OnInterim,
    /// When the response has begun.
    OnHead,
    Never,
}

/// One request, or some alike.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) sent: Sent,
    /// This many, encoded beforehand; none: one, written by the machine.
    pub(crate) pipelined: u32,
    pub(crate) announced: Option<Announced>,
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) when: When,
}

impl Ask {
    pub(crate) fn read(source: &mut Source<'_>) -> Ask {
        let [is_head, is_connect, is_upgrade] = source.choice(&[
            [false; 3],
            [false; 3],
            [false; 3],
            [true, false, false],
            [false, true, false],
            [false, false, true],
        ]);
        Ask {
            sent: Sent { is_head, is_connect, is_upgrade },
            pipelined: source.choice(&[0, 1, 0, 2, 3]),
            announced: source.choice(&[
                None,
                Some(Announced::Known),
                Some(Announced::Unknown),
                Some(Announced::Declared),
            ]),
            pieces: source.pieces(),
            when: source.choice(&[
                When::AtOnce,
                When::AtOnce,
                When::OnHead,
                When::OnInterim,
                When::OnHead,
                When::Never,
            ]),
        }
    }

    /// As it is announced to the machine.
    fn length(&self) -> Option<Length> {
        let bytes = self.pieces.concat().len() as u64;
        self.announced.map(|announced| match announced {
            Announced::Known => Length::Known(bytes),
            Announced::Declared => Length::Declared(bytes),
            Announced::Unknown => Length::Unknown,
        })
    }

    /// Whether the head is the whole request.
    fn is_head_only(&self) -> bool {
        self.pipelined > 0
            || self.announced.is_none()
            || (self.announced != Some(Announced::Unknown) && self.pieces.concat().is_empty())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Interim(u16),
    Response { code: u16, body: Vec<u8>, trailers: Trailers, is_whole: bool },
}

/// How a conversation stands when the server has closed behind the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All that was asked was answered.
    Idle,
    /// The last response ends with the connection.
    UntilClose,
    /// A response has ended, and was the last.
    Closed,
    /// Another protocol begins here.
    Switched(usize),
    Silent,
    Cut,
    Interims,
    BadSwitch,
    Unasked,
    Malformed,
    /// Of the oracle alone: [`End::Cut`] or [`End::Malformed`].
    Open,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Talk {
    pub(crate) events: Vec<Event>,
    pub(crate) written: Vec<u8>,
    pub(crate) end: End,
}

/// Asserts that the machine does with `input`, cut as `seed` says, what the oracle says of it.
pub(crate) fn check(input: &[u8], asks: &[Ask], seed: u32) {
    let expected = expected(input, asks);
    let mut found = converse(input, asks, seed);
    if expected.end == End::Open && matches!(found.end, End::Cut | End::Malformed) {
        found.end = End::Open;
    }
    assert!(
        found == expected,
        "cut by {seed}: {}\n{asks:?}\nfound {}\nexpected {}",
        String::from_utf8_lossy(input),
        shown(&found),
        shown(&expected),
    );
}

fn shown(talk: &Talk) -> String {
    format!("{:?} {:?} {:?}", talk.end, String::from_utf8_lossy(&talk.written), talk.events)
}

// The oracle.

/// What must come of `input`, behind which the server closes.
pub(crate) fn expected(input: &[u8], asks: &[Ask]) -> Talk {
    let mut talk = Talk { events: Vec::new(), written: Vec::new(), end: End::Idle };
    let mut at = 0;
    for ask in asks {
        let mut is_sent = ask.is_head_only();
        write_head(ask, &mut talk.written);
        if ask.when == When::AtOnce && !is_sent {
            write_body(ask, &mut talk.written);
            is_sent = true;
        }
        let count = ask.pipelined.max(1);
        for index in 0..count {
            match response(input, at, ask, &mut is_sent, index + 1 == count, &mut talk) {
                Ok(next) => at = next,
                Err(end) => {
                    talk.end = end;
                    return talk;
                }
            }
        }
    }
    talk.end = if at == input.len() { End::Idle } else { End::Unasked };
    talk
}

/// One response at `at`, interim ones before it: where the next one begins, or how it all ends.
fn response(
    input: &[u8],
    mut at: usize,
    ask: &Ask,
    is_sent: &mut bool,
    is_last: bool,
    talk: &mut Talk,
) -> Result<usize, End> {
    let mut interims = 0;
    let head = loop {
        let (head, bytes) = match text::response(&input[at..], HEAD_BYTES_MAX) {
            Read::Whole(head, bytes) => (head, bytes),
            Read::Open if at < input.len() => return Err(End::Open),
            Read::Open if interims > 0 => return Err(End::Cut),
            Read::Open => return Err(End::Silent),
            Read::Faulty => return Err(End::Malformed),
        };
        at += bytes;
        let tunnels = ask.sent.is_connect && head.code / 100 == 2;
        if head.code == 101 || tunnels {
            let is_fine = *is_sent && is_last && (tunnels || ask.sent.is_upgrade);
            return Err(if is_fine { End::Switched(at) } else { End::BadSwitch });
        }
        if head.code >= 200 {
            break head;
        }
        interims += 1;
        if interims > INTERIM_ANSWERS_MAX {
            return Err(End::Interims);
        }
        talk.events.push(Event::Interim(head.code));
        if ask.when == When::OnInterim && !*is_sent {
            write_body(ask, &mut talk.written);
            *is_sent = true;
        }
    };
    if ask.when == When::OnHead && !*is_sent {
        write_body(ask, &mut talk.written);
        *is_sent = true;
    }
    let rest = &input[at..];
    let is_empty = ask.sent.is_head || matches!(head.code, 204 | 304);
    let (body, fate) = match head.body {
        _ if is_empty => (Vec::new(), Ok((0, Vec::new()))),
        Delimited::NotAtAll => (rest.to_vec(), Err(End::UntilClose)),
        Delimited::Length(length) => {
            match usize::try_from(length).ok().filter(|length| *length <= rest.len()) {
                Some(length) => (rest[..length].to_vec(), Ok((length, Vec::new()))),
                None => (rest.to_vec(), Err(End::Cut)),
            }
        }
        Delimited::Chunked => match text::chunked(rest) {
            (data, Read::Whole(trailers, bytes)) => (data, Ok((bytes, trailers))),
            // Behind a whole head and nothing more there is nothing that could be faulty.
            (data, Read::Open) => (data, Err(if rest.is_empty() { End::Cut } else { End::Open })),
            (data, Read::Faulty) => (data, Err(End::Malformed)),
        },
    };
    let (is_whole, trailers) = match &fate {
        Ok((_, trailers)) => (true, trailers.clone()),
        Err(end) => (*end == End::UntilClose, Vec::new()),
    };
    talk.events.push(Event::Response { code: head.code, body, trailers, is_whole });
    let (bytes, _) = fate?;
    if head.keep_alive && *is_sent { Ok(at + bytes) } else { Err(End::Closed) }
}

fn write_head(ask: &Ask, written: &mut Vec<u8>) {
    if ask.pipelined > 0 {
        return;
    }
    written.extend(b"A / HTTP/1.1\r\n");
    match ask.announced {
        None => {}
        Some(Announced::Unknown) => written.extend(b"Transfer-Encoding: chunked\r\n"),
        Some(_) => written.extend(format!("Content-Length: {}\r\n", ask.pieces.concat().len()).bytes()),
    }
    written.extend(b"\r\n");
}

fn write_body(ask: &Ask, written: &mut Vec<u8>) {
    match ask.announced {
        Some(Announced::Unknown) => written.extend(in_chunks(&ask.pieces, TRAILERS)),
        _ => written.extend(ask.pieces.concat()),
    }
}

// The driver.

struct Driver<'a> {
    client: Client,
    asks: std::slice::Iter<'a, Ask>,
    /// What is being asked, and whether its body is still to be sent.
    asked: Option<(&'a Ask, bool)>,
    talk: Talk,
    /// How it has ended, once it has.
    end: Option<End>,
}

/// What comes of `input`, cut as `seed` says.
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
    /// Sends the next request, if there is one.
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

    /// Sends the body, if now is when.
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

    /// Goes one step; `None` where it takes more bytes, or none any more.
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
        let mut found = Trailers::new();
        let (used, piece) = match self.client.body(bytes, &mut found) {
            Ok(stepped) => stepped,
            Err(fault) => return self.fail(fault),
        };
        let Some(Event::Response { body, trailers, is_whole, .. }) = self.talk.events.last_mut() else {
            panic!("a body without a head")
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
                assert!(!self.client.is_in_body());
                if self.client.is_closed() {
                    self.end = Some(End::Closed);
                } else if self.client.is_idle() {
                    self.ask();
                }
                Some(used)
            }
        }
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
