//! Health checks: periodic requests to each server, each over its own connection.

use std::io;

use flatout_engine::say;
use flatout_lane::connect::Remote;
use flatout_wire::h1::{AnswerEvent, Client, Piece, Sent};
use flatout_wire::{Method, answer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::health_h2;
use super::secure::Secure;
use crate::plan::{Active, HealthCheck, Protocol};
use crate::server::{LiveServer, ServerMode};

/// The head of a response must fit in this many bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Bytes of a body that are looked at.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;

/// Checks a server periodically, for ever, and records its state.
pub(crate) async fn watch(name: &str, protocol: Protocol, server: &LiveServer, active: &Active) {
    // The state from before a reload is kept.
    let mut count = Count { is_up: server.is_checked_up(), row: 0 };
    let mut ticks = interval(active.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if server.mode() == ServerMode::SetDown {
            continue;
        }
        let asked = match timeout(active.time_max, ask(server, &active.check, protocol)).await {
            Ok(Ok(found)) => active.check.judge(&found),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no response within {:?}", active.time_max)),
        };
        if count.note(asked.is_ok(), active) {
            server.set_healthy(count.is_up);
            match &asked {
                Ok(()) => say(format_args!("upstream {name}: server {} is up", server.name)),
                Err(why) => say(format_args!("upstream {name}: server {} is down: {why}", server.name)),
            }
        }
    }
}

/// The state of a server, and the number of results in a row that contradict it.
struct Count {
    is_up: bool,
    /// Results in a row that contradict it.
    row: u32,
}

impl Count {
    /// Counts a result. Returns whether it has changed the state.
    fn note(&mut self, is_good: bool, active: &Active) -> bool {
        if is_good == self.is_up {
            self.row = 0;
            return false;
        }
        self.row += 1;
        let changes = self.row >= if self.is_up { active.fall } else { active.rise };
        if changes {
            *self = Count { is_up: is_good, row: 0 };
        }
        changes
    }
}

async fn ask(server: &LiveServer, check: &HealthCheck, protocol: Protocol) -> io::Result<CheckResponse> {
    let remote = server.remote().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let mut wire = match (&*remote, server.is_secure()) {
        (Remote::Tcp(address), false) => Wire::Tcp(TcpStream::connect(address).await?),
        (Remote::Unix(socket), false) => Wire::Unix(UnixStream::connect(socket).await?),
        (Remote::Tcp(address), true) => {
            let socket = TcpStream::connect(address).await?.into_std()?.into();
            Wire::Secure(Box::new(Secure::open(server, socket).await?))
        }
        (Remote::Unix(socket), true) => {
            let socket = UnixStream::connect(socket).await?.into_std()?.into();
            Wire::Secure(Box::new(Secure::open(server, socket).await?))
        }
    };
    match (check, protocol) {
        (HealthCheck::Tcp, _) => Ok(CheckResponse::default()),
        (
            HealthCheck::Http { path, body, .. },
            Protocol::Http1 | Protocol::FastCgi | Protocol::Scgi | Protocol::Uwsgi,
        ) => get(wire, &server.name, path, !body.is_empty()).await,
        (HealthCheck::Http { path, body, .. }, _) => {
            let asked = health_h2::HealthQuery::Get { path, wants_body: !body.is_empty() };
            health_h2::ask(&mut wire, &server.name, asked, server.is_secure()).await
        }
        (HealthCheck::Grpc { service }, _) => {
            health_h2::ask(
                &mut wire,
                &server.name,
                health_h2::HealthQuery::Grpc { service },
                server.is_secure(),
            )
            .await
        }
    }
}

/// A connection of any kind.
pub(crate) enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
    Secure(Box<Secure>),
}

impl Wire {
    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Wire::Tcp(stream) => stream.write_all(bytes).await,
            Wire::Unix(stream) => stream.write_all(bytes).await,
            Wire::Secure(secure) => secure.write_all(bytes).await,
        }
    }

    pub(crate) async fn read(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => stream.read_buf(into).await,
            Wire::Unix(stream) => stream.read_buf(into).await,
            Wire::Secure(secure) => secure.read(into).await,
        }
    }
}

/// Gets a path over HTTP/1. The body is received as far as `wants_body` needs it.
async fn get(mut stream: Wire, host: &str, path: &str, wants_body: bool) -> io::Result<CheckResponse> {
    let mut machine = Client::default();
    let mut out = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: flatout-health-check\r\nConnection: close\r\n"
    )
    .into_bytes();
    machine.request(Sent::of(Method::Get, false), None, &mut out);
    stream.write_all(&out).await?;
    let mut found = CheckResponse::default();
    let mut bytes = Vec::new();
    loop {
        let is_ended = stream.read(&mut bytes).await? == 0;
        while found.status == 0 {
            match machine.head(&bytes, |bytes, to_head| answer::parse(bytes, to_head, HEAD_BYTES_MAX)) {
                Ok(AnswerEvent::Head(answer)) => {
                    found.status = answer.status.code();
                    bytes.drain(..answer.head_bytes);
                }
                Ok(AnswerEvent::Interim(answer)) => drop(bytes.drain(..answer.head_bytes)),
                Ok(AnswerEvent::NeedMore) if is_ended => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(AnswerEvent::NeedMore) => break,
                Ok(AnswerEvent::Switch(_)) => return Err(invalid("another protocol")),
                Err(fault) => return Err(invalid(&format!("{fault:?}"))),
            }
        }
        if found.status != 0 && !wants_body {
            return Ok(found);
        }
        while found.status != 0 && machine.is_in_body() {
            let mut trailers = Vec::new();
            let (used, piece) =
                machine.body(&bytes, &mut trailers).map_err(|fault| invalid(&format!("{fault:?}")))?;
            let is_more = match piece {
                Piece::Data(data) => found.take(data),
                Piece::End => false,
                Piece::NeedMore => break,
            };
            bytes.drain(..used);
            if !is_more {
                return Ok(found);
            }
        }
        if found.status != 0 && !machine.is_in_body() {
            return Ok(found);
        }
        if is_ended {
            // A body without a length ends with the connection.
            return match machine.finish() {
                Ok(true) => Ok(found),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
    }
}

pub(super) fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// What a health check got.
#[derive(Debug, Default)]
pub(super) struct CheckResponse {
    pub(super) status: u16,
    /// The first bytes of the body.
    pub(super) body: Vec<u8>,
    /// The status of a gRPC call; `None` if it was not sent.
    pub(super) grpc_status: Option<u32>,
}

impl CheckResponse {
    /// Keeps a piece of the body. Returns whether more is wanted.
    pub(super) fn take(&mut self, data: &[u8]) -> bool {
        let room = BODY_BYTES_MAX.saturating_sub(self.body.len());
        self.body.extend_from_slice(data.get(..room).unwrap_or(data));
        self.body.len() < BODY_BYTES_MAX
    }
}

impl HealthCheck {
    /// Whether a response is good; if not, why.
    fn judge(&self, found: &CheckResponse) -> Result<(), String> {
        match self {
            HealthCheck::Tcp => Ok(()),
            HealthCheck::Http { statuses, .. }
                if !statuses.iter().any(|range| range.contains(&found.status)) =>
            {
                Err(format!("status {}", found.status))
            }
            HealthCheck::Http { body, .. } => {
                let text = body.as_bytes();
                let has_text = text.is_empty() || found.body.windows(text.len()).any(|part| part == text);
                has_text.then_some(()).ok_or_else(|| format!("the body has no `{body}`"))
            }
            HealthCheck::Grpc { .. } if found.status != 200 => Err(format!("status {}", found.status)),
            HealthCheck::Grpc { .. } => match (found.grpc_status, serving_status(&found.body)) {
                (Some(0), Some(SERVING)) => Ok(()),
                (Some(0), Some(2)) => Err("it is not serving".to_owned()),
                (Some(0), Some(3)) => Err("it does not know the service".to_owned()),
                (Some(0), Some(status)) => Err(format!("serving status {status}")),
                (Some(0), None) => Err("a malformed response".to_owned()),
                (Some(12), _) => Err("it has no grpc.health.v1.Health".to_owned()),
                (Some(status), _) => Err(format!("gRPC status {status}")),
                (None, _) => Err("no gRPC status".to_owned()),
            },
        }
    }
}

/// The value of a healthy server in `HealthCheckResponse`.
const SERVING: u64 = 1;

/// The `status` of a message `HealthCheckResponse`, whose fields are all numbers; a missing one is 0.
fn serving_status(body: &[u8]) -> Option<u64> {
    let (&[0, a, b, c, d], message) = body.split_first_chunk()? else { return None };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    let mut message = message.get(..length)?;
    let mut status = 0;
    while !message.is_empty() {
        let (tag, rest) = varint(message)?;
        let (value, rest) = varint(rest)?;
        match tag {
            STATUS_TAG => status = value,
            tag if tag & 7 == 0 => {}
            _ => return None,
        }
        message = rest;
    }
    Some(status)
}

/// The tag of the field 1, a varint.
const STATUS_TAG: u64 = 1 << 3;

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(at as u32 * 7)?;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(at + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn state_changes_after_answers_in_a_row() {
        let active = Active {
            check: HealthCheck::http("/", 200..=299),
            interval: Duration::from_secs(1),
            time_max: Duration::from_secs(1),
            rise: 2,
            fall: 3,
        };
        let mut count = Count { is_up: true, row: 0 };
        let states: Vec<bool> = [false, false, true, false, false, false, true, false, true, true]
            .map(|is_good| {
                count.note(is_good, &active);
                count.is_up
            })
            .into();
        assert_eq!(states, [true, true, true, true, true, false, false, false, false, true]);
    }

    #[test]
    fn bodies_and_sets_of_statuses_decide() {
        let check = HealthCheck::Http {
            path: "/".to_owned(),
            statuses: vec![200..=299, 404..=404],
            body: "ready".to_owned(),
        };
        for (status, body, expected) in [
            (200, "it is ready", Ok(())),
            (404, "ready", Ok(())),
            (403, "ready", Err("status 403".to_owned())),
            (200, "starting", Err("the body has no `ready`".to_owned())),
            (200, "", Err("the body has no `ready`".to_owned())),
        ] {
            let found = CheckResponse { status, body: body.into(), grpc_status: None };
            assert_eq!(check.judge(&found), expected, "{status} {body}");
        }
        let mut long = CheckResponse::default();
        assert!(long.take(&[0; 10]) && !long.take(&[0; BODY_BYTES_MAX]));
        assert_eq!(long.body.len(), BODY_BYTES_MAX);
    }

    #[test]
    fn statuses_of_grpc_decide() {
        let check = HealthCheck::Grpc { service: String::new() };
        let message = |bytes: &[u8]| [&[0, 0, 0, 0, bytes.len() as u8], bytes].concat();
        for (status, grpc_status, body, is_good) in [
            (200, Some(0), message(&[8, 1]), true),
            (200, Some(0), message(&[8, 2]), false),
            (200, Some(0), message(&[8, 3]), false),
            (200, Some(0), message(&[]), false),
            (200, Some(0), message(&[16, 5, 8, 1]), true),
            // Malformed: compressed, cut, endless, another type.
            (200, Some(0), [&[1][..], &message(&[8, 1])[1..]].concat(), false),
            (200, Some(0), message(&[8, 1])[..6].to_vec(), false),
            (200, Some(0), message(&[8, 0x80]), false),
            (200, Some(0), message(&[0xff; 12]), false),
            (200, Some(0), message(&[10, 1]), false),
            (200, Some(0), vec![0, 0xff, 0xff, 0xff, 0xff, 8, 1], false),
            (200, Some(12), Vec::new(), false),
            (200, None, message(&[8, 1]), false),
            (503, Some(0), message(&[8, 1]), false),
        ] {
            let found = CheckResponse { status, body: body.clone(), grpc_status };
            assert_eq!(check.judge(&found).is_ok(), is_good, "{body:?} {:?}", check.judge(&found));
        }
    }
}
