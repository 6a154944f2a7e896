//! Plans on their way from a controller to its data planes, over TLS.
//!
//! ```text
//! data plane                                   controller
//!   Hello: formats, name, token ──────────────>  is it the leader? the token? a format that both know?
//!   <───────────────────────────── Welcome: the term of the leader; one from an earlier term is refused
//!   <───────────────────────────── Plan, Changes, Servers, Ping, or Goodbye with the reason
//!   Acknowledgement ──────────────────────────>  each message but Goodbye gets one, before the next one is sent
//! ```
//!
//! A message is its length in four bytes, and JSON. There is one at a time in each direction, so whoever is slow gets the newest state
//! next and never a queue of old ones.

pub(crate) mod acknowledge;
pub(crate) mod connector;
pub(crate) mod credentials;
pub(crate) mod follow;
pub(crate) mod keeper;
pub(crate) mod kept_plan;
pub(crate) mod kept_term;
pub(crate) mod plan_figures;
pub(crate) mod plan_server;
pub(crate) mod plane;
pub(crate) mod plane_session;
pub(crate) mod publish;
pub(crate) mod published;
pub(crate) mod socket;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data::{PlanChanges, ServerData};
use crate::leader::LeaderTerm;

/// Bytes of a message to a data plane: some 100,000 routes.
pub(crate) const PLAN_BYTES_MAX: usize = 128 << 20;

/// Bytes of a message from a data plane, which may not have shown its token yet.
pub(crate) const REPLY_BYTES_MAX: usize = 16 << 10;

/// If nothing has changed for this time, a controller asks whether the data plane is there.
pub(crate) const PING_TIME: Duration = Duration::from_secs(5);

/// A controller that sends nothing for this time counts as gone.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(15);

/// How long a data plane may take to apply a plan.
pub(crate) const APPLY_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a handshake, and the Hello after it, may take.
pub(crate) const HELLO_TIME_MAX: Duration = Duration::from_secs(5);

/// Characters of the name of a data plane, and of a reason; a longer one is cut.
pub(crate) const TEXT_CHARS_MAX: usize = 1024;

/// The first message, from a data plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The formats of plans that it knows.
    pub(crate) formats: Vec<u32>,
    /// Its name, for messages and statuses.
    pub(crate) name: String,
    /// What shows that it may have plans.
    pub(crate) token: String,
}

/// A message to a data plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    /// The first one, with the term of the controller; none if it has no Lease.
    Welcome { term: Option<LeaderTerm> },
    /// A whole plan, with its number.
    Plan { number: u64, plan: Value },
    /// What has changed since the plan of the number `since`, which this data plane has.
    Changes { number: u64, since: u64, changes: Box<PlanChanges> },
    /// The servers of some upstreams of that plan.
    Servers { number: u64, upstreams: BTreeMap<String, Vec<ServerData>> },
    /// Nothing has changed.
    Ping,
    /// The connection ends, for this reason.
    Goodbye { reason: String },
}

/// The result of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Acknowledgement {
    /// Why it was not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refusal: Option<String>,
    /// What is not served although it was applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
    /// The plan is served, and not on the disk yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_writing: bool,
}

/// The bytes of a message, with their length in front.
///
/// # Errors
/// It is too long.
pub(crate) fn frame(message: &impl Serialize, bytes_max: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, message).map_err(|error| format!("not JSON: {error}"))?;
    let length = bytes.len() - LENGTH_BYTES;
    match u32::try_from(length).ok().filter(|_| length <= bytes_max) {
        Some(length) => bytes[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes()),
        None => return Err(format!("a message of {length} bytes; allowed are {bytes_max}")),
    }
    Ok(bytes)
}

/// Bytes of a length.
const LENGTH_BYTES: usize = 4;

/// Sends a message.
///
/// # Errors
/// It is too long, or the connection ends.
pub(crate) fn send(to: &mut impl Write, message: &impl Serialize, bytes_max: usize) -> io::Result<()> {
    let bytes = frame(message, bytes_max).map_err(|why| io::Error::new(ErrorKind::InvalidData, why))?;
    to.write_all(&bytes)?;
    to.flush()
}

/// Receives a message. Memory is taken as it arrives, not as its length announces it.
///
/// # Errors
/// It is too long or malformed, or the connection ends before its end.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut impl Read, bytes_max: usize) -> io::Result<T> {
    let mut length = [0; LENGTH_BYTES];
    from.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    let wrong = |why: String| io::Error::new(ErrorKind::InvalidData, why);
    if length > bytes_max {
        return Err(wrong(format!("a message of {length} bytes; allowed are {bytes_max}")));
    }
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&bytes).map_err(|error| wrong(format!("a malformed message: {error}")))
}

/// A text of another process, for a log line: without control characters, and not too long.
pub(crate) fn shown(text: &str) -> String {
    let clean: String = text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
    match clean.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => clean.get(..end).unwrap_or_default().to_owned(),
        None => clean,
    }
}

/// An error of a connection in words: `error` alone says little of timeouts and ends.
pub(crate) fn connection_fault(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "nothing was received in time".to_owned(),
        ErrorKind::UnexpectedEof => "the connection has ended".to_owned(),
        _ => shown(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_received_as_they_were_sent() {
        let mut bytes = Vec::new();
        let all = [
            Message::Welcome { term: Some(LeaderTerm { lease: "a/b".to_owned(), number: 7 }) },
            Message::Plan { number: 3, plan: serde_json::json!({"format": 3}) },
            Message::Servers { number: 4, upstreams: BTreeMap::new() },
            Message::Ping,
            Message::Goodbye { reason: "an end".to_owned() },
        ];
        all.iter().for_each(|message| send(&mut bytes, message, PLAN_BYTES_MAX).unwrap());
        let mut rest = &bytes[..];
        for message in all {
            assert_eq!(receive::<Message>(&mut rest, PLAN_BYTES_MAX).unwrap(), message);
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn partial_long_and_malformed_messages_are_errors() {
        let mut bytes = Vec::new();
        send(&mut bytes, &Message::Ping, PLAN_BYTES_MAX).unwrap();
        for end in 0..bytes.len() {
            let error = receive::<Message>(&mut &bytes[..end], PLAN_BYTES_MAX).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{end}");
        }
        for bad in [
            &b"\xff\xff\xff\xff{}"[..],
            b"\0\0\0\x02{}",
            b"\0\0\0\x02{\"",
            b"\0\0\0\x00",
            b"\0\0\0\x10{\"unknown\":true}",
        ] {
            let error = receive::<Message>(&mut &bad[..], 100).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{bad:?}");
        }
        let long = Message::Goodbye { reason: "x".repeat(100) };
        assert!(send(&mut Vec::new(), &long, 100).is_err());
    }
}
