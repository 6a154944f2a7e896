//! The client's role: requests, the expected result of a server's bytes, and the actual one.

mod driver;
mod oracle;

use flatout_wire::h1::{Length, Sent, Trailers};

use super::{Announced, Source};
use driver::converse;
pub(crate) use oracle::expected;

/// Small, so that short inputs reach the limit.
const HEAD_BYTES_MAX: usize = 300;

const TRAILERS: &[u8] = b"X-End: 1\r\n";

/// When the body of a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    AtOnce,
    /// After the first interim response.
    OnInterim,
    /// When the response has started.
    OnHead,
    Never,
}

/// One request, or several equal ones.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) sent: Sent,
    /// This many, encoded in advance; 0: one, written by the state machine.
    pub(crate) pipelined: u32,
    pub(crate) announced: Option<Announced>,
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) when: When,
    /// Takes a body at once if it is complete.
    pub(crate) takes_whole: bool,
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
            takes_whole: source.byte() & 1 == 1,
        }
    }

    /// As declared to the state machine.
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

/// The state when the server has closed after the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All requests have their responses.
    Idle,
    /// The last response ends with the connection.
    UntilClose,
    /// A response has ended, and was the last.
    Closed,
    /// Another protocol starts here.
    Switched(usize),
    Silent,
    Cut,
    Interims,
    BadSwitch,
    Unasked,
    Malformed,
    /// Only in the oracle: [`End::Cut`] or [`End::Malformed`].
    Open,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Talk {
    pub(crate) events: Vec<Event>,
    pub(crate) written: Vec<u8>,
    pub(crate) end: End,
}

/// Asserts that the state machine treats `input`, split as `seed` says, like the oracle.
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
