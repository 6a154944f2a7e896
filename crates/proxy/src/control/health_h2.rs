//! Health checks over HTTP/2, also by gRPC.

use std::io;

use flatout_wire::h1::Length;
use flatout_wire::h2::{Asking, Connection, Event, Limits, Room, StreamId};

use super::health::{CheckResponse, Wire, invalid};
use crate::connection::h2::head::encode_head;

/// What is asked.
#[derive(Clone, Copy)]
pub(super) enum HealthQuery<'a> {
    /// A GET of this path.
    Get { path: &'a str, wants_body: bool },
    /// `grpc.health.v1.Health/Check` about a service.
    Grpc { service: &'a str },
}

impl HealthQuery<'_> {
    fn head(self, host: &str) -> String {
        let agent = "User-Agent: flatout-health-check";
        match self {
            HealthQuery::Get { path, .. } => format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{agent}\r\n"),
            HealthQuery::Grpc { .. } => format!(
                "POST /grpc.health.v1.Health/Check HTTP/1.1\r\nHost: {host}\r\n{agent}\r\n\
                 content-type: application/grpc\r\nTE: trailers\r\nConnection: TE\r\n"
            ),
        }
    }

    /// The message of a call: its head of five bytes, and the service in field 1.
    fn body(self) -> Option<Vec<u8>> {
        let HealthQuery::Grpc { service } = self else { return None };
        let mut message = Vec::new();
        if !service.is_empty() {
            // The name is at most 127 bytes long: its length is a varint of one byte.
            message.extend_from_slice(&[10, service.len() as u8]);
            message.extend_from_slice(service.as_bytes());
        }
        let mut body = vec![0, 0, 0, 0, message.len() as u8];
        body.extend_from_slice(&message);
        Some(body)
    }

    fn wants_body(self) -> bool {
        matches!(self, HealthQuery::Get { wants_body: true, .. } | HealthQuery::Grpc { .. })
    }
}

/// Asks a server, and returns what it responds.
pub(super) async fn ask(
    stream: &mut Wire,
    host: &str,
    asked: HealthQuery<'_>,
    is_https: bool,
) -> io::Result<CheckResponse> {
    let (mut out, mut room, mut bytes) = (Vec::new(), Room::default(), Vec::new());
    let mut machine = Connection::client(Limits::default(), &mut out);
    let (head, body) = (asked.head(host), asked.body());
    let length = body.as_ref().map(|body| body.len() as u64);
    let asking = Asking { is_whole: body.is_none(), length, ..Asking::default() };
    let encode =
        |block: &mut Vec<u8>| encode_head(head.as_bytes(), None, length.map(Length::Known), is_https, block);
    let id = machine.ask(asking, encode, &mut out).ok_or_else(|| invalid("no stream"))?;
    if let Some(body) = body {
        send_all(&mut machine, id, &body, &mut out)?;
    }
    let mut found = CheckResponse::default();
    loop {
        stream.write_all(&out).await?;
        out.clear();
        if stream.read(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            let received = machine.receive(rest, &mut room, &mut out);
            let (taken, event) = received.map_err(|fault| invalid(fault.reason))?;
            used += taken;
            let mut consumed = 0;
            match event {
                Event::NeedMore => break,
                Event::Answer { head, is_whole, .. } => {
                    found.status = head.status.code();
                    let fields = head.fields();
                    note_grpc_status(fields, &mut found);
                    if is_whole || !asked.wants_body() {
                        return Ok(found);
                    }
                }
                Event::Data { bytes, .. } => {
                    consumed = bytes.len();
                    if !found.take(bytes) {
                        return Ok(found);
                    }
                }
                Event::End { trailers, .. } => {
                    let fields = trailers.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
                    note_grpc_status(fields, &mut found);
                    return Ok(found);
                }
                Event::Reset { code, .. } => return Err(invalid(&format!("the stream was reset: {code:?}"))),
                _ => {}
            }
            if consumed > 0 {
                machine.consumed(id, consumed, &mut out);
            }
        }
        bytes.drain(..used);
    }
}

/// Sends a body that fits in the first window of a stream.
fn send_all(machine: &mut Connection, id: StreamId, body: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    if !machine.content(id, body.len(), 0, true, out) {
        return Err(invalid("no room for the request"));
    }
    out.extend_from_slice(body);
    Ok(())
}

fn note_grpc_status<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>, found: &mut CheckResponse) {
    for (_, value) in fields.filter(|(name, _)| name.eq_ignore_ascii_case(b"grpc-status")) {
        found.grpc_status = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    }
}
