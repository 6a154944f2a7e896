//! Health checks over HTTP/2.

use std::io;

use flatout_wire::h2::{Asking, Connection, Event, Limits, Room};

use super::health::Wire;
use crate::connection::h2::head::encode_head;

/// Requests `path`, and returns the status of the response.
pub(crate) async fn status(stream: &mut Wire, host: &str, path: &str, is_https: bool) -> io::Result<u16> {
    let (mut out, mut room, mut bytes) = (Vec::new(), Room::default(), Vec::new());
    let mut machine = Connection::client(Limits::default(), &mut out);
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: flatout-health-check\r\n");
    let asking = Asking { is_whole: true, ..Asking::default() };
    machine.ask(asking, |block| encode_head(head.as_bytes(), None, None, is_https, block), &mut out);
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
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
            let (taken, event) = received.map_err(|fault| invalid(fault.reason.to_owned()))?;
            used += taken;
            match event {
                Event::NeedMore => break,
                Event::Answer { head, .. } => return Ok(head.status.code()),
                Event::Reset { code, .. } => return Err(invalid(format!("the stream was reset: {code:?}"))),
                _ => {}
            }
        }
        bytes.drain(..used);
    }
}
