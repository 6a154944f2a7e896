//! The server's role: how an application responds, the expected result, and the actual one.

mod driver;
mod oracle;

use flatout_wire::Status;
use flatout_wire::h1::{Length, Trailers};
use flatout_wire::head::HeadLimits;

use super::{Announced, Source};
use driver::converse;
pub(crate) use oracle::expected;

/// Small, so that short inputs reach the limits.
const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 300, target_bytes_max: 60, fields_max: 8 };

const HINTS: &[u8] = b"Link: </a>\r\n";
const TRAILERS: &[u8] = b"X-End: 1\r\n";

/// How the application handles one request.
#[derive(Debug, Clone)]
pub(crate) struct Act {
    /// Sends 100 to a client that waits for it.
    pub(crate) proceeds: bool,
    /// Sends 103.
    pub(crate) informs: bool,
    /// Responds when this many bytes of the body have arrived, or it is complete.
    pub(crate) answer_at: usize,
    /// If the response started before the request was complete, reads on before ending it.
    pub(crate) ends_late: bool,
    /// Reads no more once it responds.
    pub(crate) gives_up: bool,
    /// Switches to another protocol, if the request is complete and uses HTTP/1.1.
    pub(crate) switches: bool,
    /// Takes the body at once if it is complete.
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

/// A request as the application received it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Where it starts in the input.
    pub(crate) at: usize,
    pub(crate) method: Vec<u8>,
    pub(crate) target: Vec<u8>,
    /// The part of its body that the application read.
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Trailers,
}

/// The state at the end of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Between requests, or within a head.
    Idle,
    /// Within a body.
    Busy,
    Closed,
    /// Another protocol starts here.
    Switched(usize),
    /// Only in the oracle: the end of the input is incomplete, or already invalid.
    Open,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Talk {
    pub(crate) seen: Vec<Seen>,
    pub(crate) written: Vec<u8>,
    pub(crate) end: End,
}

/// Asserts that the state machine treats `input`, split as `seed` says, like the oracle.
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
