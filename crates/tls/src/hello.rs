//! Reads the name in a ClientHello before a handshake, so that the server can decide who gets the connection before anything is sent.
//!
//! ```text
//! records (type 22) ── their fragments joined ──> ClientHello ── extension 0 (server_name) ──> name
//! ```
//!
//! Nothing else of the message is judged: that is for whoever gets the connection.
//!
//! # Source
//! RFC 8446, sections 4.1.2 and 5.1; RFC 6066, section 3.

/// Bytes of a ClientHello with its record headers; a larger one is refused. Browsers send about 2 KiB, with post-quantum key shares.
pub const HELLO_BYTES_MAX: usize = 16 << 10;

/// The type of handshake records, and the bytes of a record's header: type, version, length.
const HANDSHAKE: u8 = 22;
const RECORD_HEADER_BYTES: usize = 5;

/// The largest content of a record without encryption (RFC 8446, section 5.1).
const RECORD_BYTES_MAX: usize = 1 << 14;

/// The type of a ClientHello, and the bytes of a handshake message's header: type, length.
const CLIENT_HELLO: u8 = 1;
const MESSAGE_HEADER_BYTES: usize = 4;

/// Version and random bytes of a ClientHello.
const FIXED_BYTES: usize = 2 + 32;

/// The type of the extension with the name, and of a host name in it.
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// The longest DNS name in bytes.
const NAME_BYTES_MAX: usize = 253;

/// What the first bytes of a connection are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hello {
    /// The start of a ClientHello: more has to arrive.
    Incomplete,
    /// A ClientHello for this name in lower case; `None` if it has none.
    Complete(Option<String>),
}

/// Why the first bytes of a connection are no ClientHello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HelloFault {
    /// It does not start as TLS does.
    NoTls,
    /// It is larger than [`HELLO_BYTES_MAX`].
    TooLarge,
    /// A length or the name in it is invalid.
    Malformed,
}

impl HelloFault {
    /// The reason, for a log.
    pub fn reason(self) -> &'static str {
        match self {
            HelloFault::NoTls => "it does not start with a TLS ClientHello",
            HelloFault::TooLarge => "its ClientHello is larger than 16 KiB",
            HelloFault::Malformed => "its ClientHello is malformed",
        }
    }
}

/// Reads the name in a ClientHello. `bytes` are all that was received so far. Costs a copy of the message once it is complete, and a
/// few comparisons before that.
///
/// # Errors
/// They are no ClientHello, whatever follows.
pub fn read_hello(bytes: &[u8]) -> Result<Hello, HelloFault> {
    let mut message: Vec<u8> = Vec::new();
    let mut rest = bytes;
    loop {
        let Some((fragment, behind)) = record(rest, bytes.len())? else { return Ok(Hello::Incomplete) };
        if message.is_empty() && fragment.first() != Some(&CLIENT_HELLO) {
            return Err(HelloFault::NoTls);
        }
        // Usually it is the only one.
        message.extend_from_slice(fragment);
        if let Some(length) = message_bytes(&message) {
            if length > HELLO_BYTES_MAX {
                return Err(HelloFault::TooLarge);
            }
            if let Some(whole) = message.get(MESSAGE_HEADER_BYTES..MESSAGE_HEADER_BYTES + length) {
                return name(whole).map(Hello::Complete).ok_or(HelloFault::Malformed);
            }
        }
        rest = behind;
    }
}

/// The content of a record, and what follows it.
type Record<'b> = (&'b [u8], &'b [u8]);

/// The content of the first record, and what follows it; `None` if it is incomplete. `received` is the count of all bytes.
fn record(bytes: &[u8], received: usize) -> Result<Option<Record<'_>>, HelloFault> {
    let starts_well = |at: usize, wanted: u8| bytes.get(at).is_none_or(|byte| *byte == wanted);
    if !starts_well(0, HANDSHAKE) || !starts_well(1, 3) {
        return Err(HelloFault::NoTls);
    }
    let incomplete = || match received >= HELLO_BYTES_MAX {
        true => Err(HelloFault::TooLarge),
        false => Ok(None),
    };
    let [_, _, _, high, low, content @ ..] = bytes else { return incomplete() };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    // An empty one only costs time (RFC 8446, section 5.1).
    if length == 0 || length > RECORD_BYTES_MAX {
        return Err(HelloFault::Malformed);
    }
    match content.split_at_checked(length) {
        Some(parts) => Ok(Some(parts)),
        // What is too large is not waited for.
        None if received - bytes.len() + RECORD_HEADER_BYTES + length > HELLO_BYTES_MAX => {
            Err(HelloFault::TooLarge)
        }
        None => incomplete(),
    }
}

/// The length of a handshake message, without its header.
fn message_bytes(message: &[u8]) -> Option<usize> {
    let [_, high, middle, low, ..] = message else { return None };
    Some(u32::from_be_bytes([0, *high, *middle, *low]) as usize)
}

/// The name in a ClientHello; `None` if it is malformed.
fn name(hello: &[u8]) -> Option<Option<String>> {
    let mut rest = hello.get(FIXED_BYTES..)?;
    // The session id, the cipher suites, the compression methods.
    vector(&mut rest, 1)?;
    vector(&mut rest, 2)?;
    vector(&mut rest, 1)?;
    if rest.is_empty() {
        // TLS 1.0 knew no extensions.
        return Some(None);
    }
    let mut extensions = vector(&mut rest, 2)?;
    while !extensions.is_empty() {
        let kind = number(&mut extensions, 2)?;
        let content = vector(&mut extensions, 2)?;
        if kind == usize::from(SERVER_NAME) {
            return host_name(content).map(Some);
        }
    }
    Some(None)
}

/// The host name in the extension; `None` if it is malformed.
fn host_name(mut content: &[u8]) -> Option<String> {
    let mut names = vector(&mut content, 2)?;
    let kind = number(&mut names, 1)?;
    let name = vector(&mut names, 2)?;
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    let is_valid = kind == usize::from(HOST_NAME)
        && (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.iter().all(is_of_name);
    let text = is_valid.then(|| std::str::from_utf8(name).ok()).flatten()?;
    Some(text.to_ascii_lowercase())
}

/// Takes a number of this many bytes.
fn number(rest: &mut &[u8], bytes: usize) -> Option<usize> {
    let (digits, behind) = rest.split_at_checked(bytes)?;
    *rest = behind;
    Some(digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)))
}

/// Takes what follows a length of this many bytes.
fn vector<'b>(rest: &mut &'b [u8], length_bytes: usize) -> Option<&'b [u8]> {
    let length = number(rest, length_bytes)?;
    let (content, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello message with these extensions.
    fn message(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut body = [[3u8; 2].as_slice(), &[7; 32], &[0], &[0, 2, 0x13, 0x01], &[1, 0]].concat();
        let list: Vec<u8> = extensions
            .iter()
            .flat_map(|(kind, content)| {
                [&kind.to_be_bytes()[..], &(content.len() as u16).to_be_bytes(), content].concat()
            })
            .collect();
        body.extend_from_slice(&(list.len() as u16).to_be_bytes());
        body.extend_from_slice(&list);
        [&[1, 0], &(body.len() as u16).to_be_bytes()[..], &body].concat()
    }

    fn named(name: &[u8]) -> Vec<u8> {
        let length = name.len() as u16;
        let entry = [&[0][..], &length.to_be_bytes(), name].concat();
        message(&[(10, vec![0, 2, 0, 29]), (0, [&(length + 3).to_be_bytes()[..], &entry].concat())])
    }

    /// Its records, each with at most this many bytes.
    fn records(message: &[u8], bytes: usize) -> Vec<u8> {
        let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
        message.chunks(bytes).flat_map(record).collect()
    }

    #[test]
    fn names_are_read_however_they_are_cut() {
        let expected = Ok(Hello::Complete(Some("db.example.org".to_owned())));
        for bytes in [16_384, 100, 40, 7, 4, 1] {
            let sent = records(&named(b"db.Example.ORG"), bytes);
            assert_eq!(read_hello(&sent), expected, "records of {bytes}");
            for end in 0..sent.len() {
                assert_eq!(
                    read_hello(&sent[..end]),
                    Ok(Hello::Incomplete),
                    "records of {bytes}, {end} bytes"
                );
            }
            // What follows is not looked at.
            assert_eq!(read_hello(&[&sent[..], b"\x14garbage"].concat()), expected);
        }
    }

    #[test]
    fn a_hello_may_have_no_name() {
        let none = Ok(Hello::Complete(None));
        assert_eq!(read_hello(&records(&message(&[]), 100)), none);
        assert_eq!(read_hello(&records(&message(&[(10, vec![0, 0])]), 100)), none);
        // Without extensions at all.
        let body = [[3u8; 2].as_slice(), &[7; 32], &[0], &[0, 2, 0, 5], &[1, 0]].concat();
        let old = [&[1, 0, 0, body.len() as u8][..], &body].concat();
        assert_eq!(read_hello(&records(&old, 100)), none);
    }

    #[test]
    fn other_bytes_are_refused_at_once() {
        for (bytes, fault) in [
            (&b"GET / HTTP/1.1\r\n"[..], HelloFault::NoTls),
            (b"P", HelloFault::NoTls),
            (&[22, 2], HelloFault::NoTls),
            (&[21, 3, 3, 0, 2, 2, 40], HelloFault::NoTls),
            (&[22, 3, 1, 0, 1, 2], HelloFault::NoTls),
            (&[22, 3, 1, 0, 0], HelloFault::Malformed),
            (&[22, 3, 1, 0x40, 1], HelloFault::Malformed),
            (&[22, 3, 1, 0x40, 0], HelloFault::TooLarge),
            (&[22, 3, 1, 0, 4, 1, 0, 0x40, 1], HelloFault::TooLarge),
        ] {
            assert_eq!(read_hello(bytes), Err(fault), "{bytes:?}");
        }
        // Many small records that never end.
        let endless = records(&[&[1, 0, 0x3f, 0xff][..], &[0; 5000]].concat(), 1);
        assert_eq!(read_hello(&endless[..HELLO_BYTES_MAX]), Err(HelloFault::TooLarge));
    }

    #[test]
    fn invalid_names_and_lengths_are_refused() {
        for name in [&b""[..], b"a b", b"a\0b", b"b\xc3\xbccher.test", b"a:443", &[b'a'; 254]] {
            let sent = records(&named(name), 16_384);
            assert_eq!(read_hello(&sent), Err(HelloFault::Malformed), "{name:?}");
        }
        // One length of a whole message is changed: never a panic, and never another name.
        let whole = named(b"a.test");
        for at in MESSAGE_HEADER_BYTES..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                let _ = read_hello(&records(&changed, 16_384));
            }
        }
    }
}
