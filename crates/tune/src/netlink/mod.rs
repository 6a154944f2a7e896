//! Netlink messages, which consist of attributes. One file per family; the encoding is here, the socket is in
//! `socket.rs`, and tests replace it with recorded replies.
//!
//! ```text
//! request   [length kind flags sequence port] body          a header of 16 bytes, then the family's own
//! answer    one message | many and DONE | ERROR             in one datagram or several
//! body      [the family's fixed head] [length kind value]*  attributes, each padded to 4 bytes
//! ```
//!
//! An attribute's value may be a list of attributes. Numbers are in native byte order, nftables' in network byte
//! order.

pub(crate) mod audit;
pub(crate) mod diag;
pub(crate) mod ethtool;
#[cfg(test)]
pub(crate) mod fake;
mod generic;
pub(crate) mod napi;
pub(crate) mod nftables;
pub(crate) mod qdisc;
mod socket;

pub(crate) use socket::talk;

use rustix::io::Errno;

/// The part of the kernel that a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Devices and their qdiscs.
    Route,
    /// The audit subsystem.
    Audit,
    /// Packet filters.
    Netfilter,
    /// Families with a name instead of a number, such as `ethtool`.
    Generic,
    /// Sockets (`sock_diag`).
    SocketDiagnosis,
}

/// Flags of a request.
pub(crate) const REQUEST: u16 = 0x1;
pub(crate) const ACK: u16 = 0x4;
pub(crate) const DUMP: u16 = 0x300;
pub(crate) const REPLACE: u16 = 0x100;
pub(crate) const CREATE: u16 = 0x400;

/// Flags of a reply.
pub(crate) const MULTI: u16 = 0x2;
pub(crate) const INTERRUPTED: u16 = 0x10;

/// Kinds of messages that every family has.
const NOOP: u16 = 1;
pub(crate) const ERROR: u16 = 2;
pub(crate) const DONE: u16 = 3;
const KINDS_OF_OUR_OWN_MIN: u16 = 16;

const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
const ALIGN: usize = 4;

/// Flags in the kind of an attribute.
const NESTED: u16 = 0x8000;
const KIND_MASK: u16 = 0x3fff;

/// Each request has its own socket, so one number is enough.
const SEQUENCE: u32 = 1;

/// Longest value of an attribute: its length has 16 bits and includes the header.
const VALUE_BYTES_MAX: usize = u16::MAX as usize - ATTRIBUTE_HEADER_BYTES;

/// Longest complete reply: a hundred thousand nftables rules.
pub(crate) const ANSWER_BYTES_MAX: usize = 32 << 20;

/// A request, or in a test a message of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    flags: u16,
}

/// A message of a reply, without its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: u16,
    pub(crate) body: Vec<u8>,
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The kernel refuses.
    Refused(Errno),
    /// The list changed while it was read.
    Interrupted,
    /// The reply is not what was requested, or there was none.
    Broken(String),
}

/// Attributes being written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<u8>);

/// Parsed attributes: kinds and values.
pub(crate) type List<'m> = Vec<(u16, &'m [u8])>;

/// The reply to one request, assembled from its datagrams.
pub(crate) struct Answer {
    /// Whether it ends with an end marker; otherwise with its first message, unless that is one of several.
    has_end: bool,
    messages: Vec<Message>,
    bytes: usize,
    is_interrupted: bool,
    end: Option<Result<(), Fault>>,
}

impl Request {
    /// A message of a kind, with the fixed head of its family and attributes.
    pub(crate) fn new(kind: u16, flags: u16, head: &[u8], attributes: &Attributes) -> Request {
        let length = HEADER_BYTES + aligned(head.len()) + attributes.0.len();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend((length as u32).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(SEQUENCE.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(head);
        bytes.resize(HEADER_BYTES + aligned(head.len()), 0);
        bytes.extend(&attributes.0);
        Request { bytes, flags }
    }

    /// A request from its bytes.
    #[cfg(test)]
    pub(crate) fn of(bytes: &[u8]) -> Request {
        Request { bytes: bytes.to_vec(), flags: u16::from_ne_bytes(bytes[6..8].try_into().unwrap()) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Attributes {
    pub(crate) fn new() -> Attributes {
        Attributes::default()
    }

    /// Adds an attribute with any value. One that is too long for an attribute is truncated, and the kernel refuses
    /// it.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Attributes {
        let value = &value[..value.len().min(VALUE_BYTES_MAX)];
        self.0.extend(((ATTRIBUTE_HEADER_BYTES + value.len()) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(aligned(self.0.len()), 0);
        self
    }

    pub(crate) fn with_number(self, kind: u16, value: u32) -> Attributes {
        self.with(kind, &value.to_ne_bytes())
    }

    pub(crate) fn with_text(self, kind: u16, text: &str) -> Attributes {
        self.with(kind, &[text.as_bytes(), &[0]].concat())
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn with_nested(self, kind: u16, inner: &Attributes) -> Attributes {
        self.with(kind | NESTED, &inner.0)
    }
}

impl Answer {
    /// A reply that is expected.
    pub(crate) fn to(request: &Request) -> Answer {
        // Some lists do not mark their messages as parts of several.
        let has_end = request.flags & ACK != 0 || request.flags & DUMP == DUMP;
        Answer { has_end, messages: Vec::new(), bytes: 0, is_interrupted: false, end: None }
    }

    /// Processes a datagram. Returns whether the reply is complete, or can never be.
    pub(crate) fn take(&mut self, datagram: &[u8]) -> bool {
        self.bytes += datagram.len();
        let taken = match self.bytes > ANSWER_BYTES_MAX {
            true => Err(Fault::Broken(format!("the reply is longer than {ANSWER_BYTES_MAX} bytes"))),
            false => self.messages_of(datagram),
        };
        if let Err(fault) = taken {
            self.end = Some(Err(fault));
        }
        self.end.is_some()
    }

    /// Its messages.
    pub(crate) fn whole(self) -> Result<Vec<Message>, Fault> {
        match self.end {
            None => Err(Fault::Broken("the reply has no end".to_owned())),
            Some(Ok(())) if self.is_interrupted => Err(Fault::Interrupted),
            Some(end) => end.map(|()| self.messages),
        }
    }

    fn messages_of(&mut self, mut rest: &[u8]) -> Result<(), Fault> {
        while !rest.is_empty() && self.end.is_none() {
            let length = number(rest.get(..4).ok_or_else(cut)?).ok_or_else(cut)? as usize;
            let message = rest.get(..length).filter(|_| length >= HEADER_BYTES).ok_or_else(cut)?;
            let (header, body) = message.split_at(HEADER_BYTES);
            let short = |at: usize| number(&header[at..at + 2]).unwrap_or(0) as u16;
            let (kind, flags) = (short(4), short(6));
            if number(&header[8..12]) != Some(u64::from(SEQUENCE)) {
                return Err(Fault::Broken("the reply belongs to another request".to_owned()));
            }
            self.is_interrupted |= flags & INTERRUPTED != 0;
            self.message(kind, flags, body)?;
            rest = rest.get(aligned(length)..).unwrap_or_default();
        }
        Ok(())
    }

    fn message(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<(), Fault> {
        match kind {
            NOOP => {}
            ERROR | DONE => {
                // The end of a list may lack its number.
                let code = if kind == DONE && body.is_empty() { &[0; 4] } else { body };
                let code = code.first_chunk().map(|code| i32::from_ne_bytes(*code)).ok_or_else(cut)?;
                let end = if code == 0 { Ok(()) } else { Err(Fault::Refused(errno(code))) };
                self.end = Some(end);
            }
            kind if kind < KINDS_OF_OUR_OWN_MIN => {
                return Err(Fault::Broken(format!("got a message of kind {kind} instead of a reply")));
            }
            kind => {
                self.messages.push(Message { kind, body: body.to_vec() });
                if !self.has_end && flags & MULTI == 0 {
                    self.end = Some(Ok(()));
                }
            }
        }
        Ok(())
    }
}

impl Message {
    /// Splits the fixed head of a family from the attributes after it.
    pub(crate) fn split(&self, head_bytes: usize) -> Result<(&[u8], List<'_>), Fault> {
        let (head, rest) = self.body.split_at_checked(head_bytes).ok_or_else(cut)?;
        let rest = rest.get(aligned(head_bytes) - head_bytes..).unwrap_or_default();
        Ok((head, attributes(rest)?))
    }
}

impl Fault {
    /// The meaning of a socket error.
    pub(crate) fn of(error: &std::io::Error) -> Fault {
        match error.raw_os_error() {
            Some(code) => Fault::Refused(Errno::from_raw_os_error(code)),
            None => Fault::Broken(error.to_string()),
        }
    }

    /// As a message; `what` was requested.
    pub(crate) fn describe(&self, what: &str) -> String {
        match self {
            // In the network namespace of a container, audit refuses as if nobody listened.
            Fault::Refused(Errno::PERM | Errno::ACCESS | Errno::CONNREFUSED) => {
                format!("{what} is not allowed: run as root, outside a container")
            }
            Fault::Refused(Errno::OPNOTSUPP) => {
                format!("{what}: the driver or the kernel does not support it")
            }
            Fault::Refused(errno) => format!("{what}: {errno}"),
            Fault::Interrupted => format!("{what}: it keeps changing while it is read"),
            Fault::Broken(reason) => format!("{what}: {reason}"),
        }
    }

    /// Whether this kernel lacks the feature.
    pub(crate) fn is_absent(&self) -> bool {
        let absent = [Errno::OPNOTSUPP, Errno::PROTONOSUPPORT, Errno::AFNOSUPPORT];
        matches!(self, Fault::Refused(errno) if absent.contains(errno))
    }
}

/// Parses a list of attributes.
pub(crate) fn attributes(mut rest: &[u8]) -> Result<List<'_>, Fault> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let header = rest.get(..ATTRIBUTE_HEADER_BYTES).ok_or_else(cut)?;
        let length = number(&header[..2]).ok_or_else(cut)? as usize;
        let kind = number(&header[2..]).ok_or_else(cut)? as u16;
        found.push((kind & KIND_MASK, rest.get(ATTRIBUTE_HEADER_BYTES..length).ok_or_else(cut)?));
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Ok(found)
}

/// The value of the first attribute of a kind.
pub(crate) fn find<'v>(attributes: &[(u16, &'v [u8])], kind: u16) -> Option<&'v [u8]> {
    attributes.iter().find(|(found, _)| *found == kind).map(|(_, value)| *value)
}

/// A number of 1, 2, 4 or 8 bytes.
pub(crate) fn number(value: &[u8]) -> Option<u64> {
    match value.len() {
        1 => Some(u64::from(value[0])),
        2 => Some(u64::from(u16::from_ne_bytes(value.try_into().ok()?))),
        4 => Some(u64::from(u32::from_ne_bytes(value.try_into().ok()?))),
        8 => Some(u64::from_ne_bytes(value.try_into().ok()?)),
        _ => None,
    }
}

/// A number of 4 bytes in network byte order.
pub(crate) fn network_number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.try_into().ok()?))
}

/// A zero-terminated text.
pub(crate) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

pub(crate) fn cut() -> Fault {
    Fault::Broken("the reply is truncated".to_owned())
}

fn aligned(length: usize) -> usize {
    length.div_ceil(ALIGN) * ALIGN
}

/// The kernel reports error numbers as negative.
fn errno(code: i32) -> Errno {
    const ERRNO_MAX: i32 = 4095;
    match code.checked_neg() {
        Some(code @ 1..=ERRNO_MAX) => Errno::from_raw_os_error(code),
        _ => Errno::PROTO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        Request::new(kind, flags, body, &Attributes::new()).bytes
    }

    fn answer(flags: u16, datagrams: &[&[u8]]) -> Result<Vec<Message>, Fault> {
        let mut answer = Answer::to(&Request::new(20, flags, &[], &Attributes::new()));
        let _ = datagrams.iter().any(|datagram| answer.take(datagram));
        answer.whole()
    }

    #[test]
    fn an_answer_ends_where_its_kind_ends() {
        let (one, part) = (message(30, 0, b"abcd"), message(30, MULTI, b"abcd"));
        let (done, no) = (message(DONE, MULTI, &[0; 4]), message(ERROR, 0, &(-95_i32).to_ne_bytes()));
        let acknowledged = message(ERROR, 0, &[0; 4]);
        let expected = Message { kind: 30, body: b"abcd".to_vec() };
        assert_eq!(answer(REQUEST, &[&one]), Ok(vec![expected.clone()]));
        for part in [&part, &one] {
            let rest = [&part[..], &done].concat();
            assert_eq!(answer(DUMP, &[part, &rest]), Ok(vec![expected.clone(); 2]));
        }
        // Audit ends a list without a number.
        assert_eq!(answer(REQUEST, &[&message(DONE, 0, &[])]), Ok(vec![]));
        assert_eq!(answer(ACK, &[&acknowledged]), Ok(vec![]));
        assert_eq!(answer(ACK, &[&one, &acknowledged]).map(|all| all.len()), Ok(1));
        assert_eq!(answer(ACK, &[&no]), Err(Fault::Refused(Errno::OPNOTSUPP)));
        for open in [answer(ACK, &[&one]), answer(DUMP, &[&part]), answer(REQUEST, &[])] {
            assert!(matches!(open, Err(Fault::Broken(_))), "{open:?}");
        }
    }

    #[test]
    fn invalid_replies_are_reported() {
        let interrupted = message(DONE, MULTI | INTERRUPTED, &[0; 4]);
        assert_eq!(answer(DUMP, &[&interrupted]), Err(Fault::Interrupted));
        let mut other = message(30, 0, &[]);
        other[8] = 7;
        for wrong in [other, message(4, 0, &[]), message(ERROR, 0, &[]), vec![0; 16], vec![0xff; 64]] {
            assert!(matches!(answer(REQUEST, &[&wrong]), Err(Fault::Broken(_))), "{wrong:?}");
        }
        for code in [i32::MIN, 1, -5000] {
            let no = message(ERROR, 0, &code.to_ne_bytes());
            assert_eq!(answer(REQUEST, &[&no]), Err(Fault::Refused(Errno::PROTO)));
        }
        let endless = message(30, MULTI, &vec![0; ANSWER_BYTES_MAX]);
        assert!(matches!(answer(DUMP, &[&endless]), Err(Fault::Broken(reason)) if reason.contains("longer")));
    }

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let inner = Attributes::new().with_number(1, 7).with_text(2, "eth0");
        let written = Attributes::new().with_nested(5, &inner).with(6, &[1]).with(7, &[]);
        let read = attributes(&written.0).unwrap();
        let nested = attributes(find(&read, 5).unwrap()).unwrap();
        assert_eq!(find(&nested, 1).and_then(number), Some(7));
        assert_eq!(find(&nested, 2).map(text).as_deref(), Some("eth0"));
        assert_eq!((find(&read, 6), find(&read, 7), find(&read, 8)), (Some(&[1][..]), Some(&[][..]), None));
        // A value that is too long for an attribute is truncated, and the list stays valid.
        let long = Attributes::new().with(1, &vec![0; 70_000]).with(2, &[1]);
        assert_eq!(attributes(&long.0).unwrap().len(), 2);
    }

    /// Truncated anywhere, or with any byte changed: an error or other values, never a panic.
    #[test]
    fn attributes_of_any_bytes_are_survived() {
        let inner = Attributes::new().with_number(1, 7).with_text(2, "eth0");
        let whole = Attributes::new().with_nested(5, &inner).with(6, &[1, 2, 3]).0;
        for end in 0..whole.len() {
            let _ = attributes(&whole[..end]);
            for byte in [0, 1, 3, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[end] = byte;
                let _ = attributes(&bytes);
            }
        }
        assert!(attributes(&[3, 0, 0, 0]).is_err() && attributes(&[9, 0, 0, 0]).is_err());
        assert!(attributes(&[0]).is_err());
    }
}
