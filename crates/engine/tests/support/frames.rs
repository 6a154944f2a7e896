//! Frames of a WebSocket's client.

use flatout_wire::websocket::{Opcode, Reader, ReaderEvent, Role, write_frame};

pub(crate) fn frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(opcode, false, payload, Some([1, 2, 3, 4]), &mut out);
    out
}

/// The complete messages in these bytes; pings and close frames as `ping` and `close CODE`.
pub(crate) fn frames(bytes: &[u8]) -> Vec<String> {
    let (mut bytes, mut at, mut said) = (bytes.to_vec(), 0, Vec::new());
    let (mut reader, mut message) = (Reader::new(Role::Client, false), String::new());
    loop {
        let (used, event) = reader.step(&mut bytes[at..], &Default::default()).unwrap();
        at += used;
        match event {
            ReaderEvent::NeedMore => return said,
            ReaderEvent::Data { bytes, is_last, .. } => {
                message.push_str(str::from_utf8(bytes).unwrap());
                if is_last {
                    said.push(std::mem::take(&mut message));
                }
            }
            ReaderEvent::Ping(_) => said.push("ping".to_owned()),
            ReaderEvent::Pong(_) => said.push("pong".to_owned()),
            ReaderEvent::Close(close) => said.push(format!("close {}", close.code.unwrap_or(0))),
        }
    }
}
