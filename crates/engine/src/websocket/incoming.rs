//! Input of one WebSocket: pieces become messages.

use flatout_wire::websocket::{FrameFault, MessageKind, MessageLimits, Reader, ReaderEvent, Role};

use super::deflate::decompress;
use super::socket::Message;

/// Memory of a message buffer that is kept for the next one.
const MESSAGE_BYTES_KEPT: usize = 4 << 10;

/// One connection's input.
pub(super) struct Incoming {
    reader: Reader,
    limits: MessageLimits,
    /// The start of a frame header or of a control frame.
    pub(super) held: Vec<u8>,
    /// The current message, if it comes in several pieces.
    message: Vec<u8>,
    /// The decompressed message.
    plain: Vec<u8>,
}

/// A parsed item.
pub(super) enum IncomingItem<'b> {
    Message(Message<'b>),
    Ping(&'b [u8]),
    Pong,
    /// The peer closes the connection, with this code.
    Close(Option<u16>),
}

impl Incoming {
    pub(super) fn new(limits: MessageLimits, may_compress: bool) -> Incoming {
        Incoming {
            reader: Reader::new(Role::Server, may_compress),
            limits,
            held: Vec::new(),
            message: Vec::new(),
            plain: Vec::new(),
        }
    }

    /// Parses everything complete in `bytes`, and holds the rest. `handle` returns whether to continue.
    pub(super) fn read(
        &mut self,
        bytes: &mut [u8],
        mut handle: impl FnMut(IncomingItem<'_>) -> bool,
    ) -> Result<(), FrameFault> {
        self.held.clear();
        let mut rest = bytes;
        loop {
            let (used, event) = self.reader.step(rest, &self.limits)?;
            let goes_on = match event {
                ReaderEvent::NeedMore => {
                    self.held.extend_from_slice(rest.get(used..).unwrap_or_default());
                    return Ok(());
                }
                ReaderEvent::Ping(payload) => handle(IncomingItem::Ping(payload)),
                ReaderEvent::Pong(_) => handle(IncomingItem::Pong),
                ReaderEvent::Close(close) => handle(IncomingItem::Close(close.code)),
                ReaderEvent::Data { kind, bytes, is_compressed, is_last } => {
                    if !is_last || !self.message.is_empty() {
                        self.message.extend_from_slice(bytes);
                    }
                    match is_last {
                        false => true,
                        true if self.message.is_empty() => {
                            whole(kind, is_compressed, bytes, &self.limits, &mut self.plain, &mut handle)?
                        }
                        true => {
                            let message = std::mem::take(&mut self.message);
                            let goes_on = whole(
                                kind,
                                is_compressed,
                                &message,
                                &self.limits,
                                &mut self.plain,
                                &mut handle,
                            );
                            self.keep(message);
                            goes_on?
                        }
                    }
                }
            };
            if self.plain.capacity() > MESSAGE_BYTES_KEPT {
                self.plain = Vec::new();
            }
            if !goes_on {
                return Ok(());
            }
            rest = rest.get_mut(used..).unwrap_or_default();
        }
    }

    fn keep(&mut self, mut message: Vec<u8>) {
        if message.capacity() <= MESSAGE_BYTES_KEPT {
            message.clear();
            self.message = message;
        }
    }
}

fn whole(
    kind: MessageKind,
    is_compressed: bool,
    message: &[u8],
    limits: &MessageLimits,
    plain: &mut Vec<u8>,
    handle: &mut impl FnMut(IncomingItem<'_>) -> bool,
) -> Result<bool, FrameFault> {
    let bytes = if is_compressed {
        plain.clear();
        decompress(message, limits.message_bytes_max, plain)?;
        plain
    } else {
        message
    };
    let message = match kind {
        MessageKind::Text => Message::Text(std::str::from_utf8(bytes).map_err(|_| FrameFault::Utf8)?),
        MessageKind::Binary => Message::Binary(bytes),
    };
    Ok(handle(IncomingItem::Message(message)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_wire::websocket::{Opcode, write_frame};

    #[test]
    fn fragmented_message_is_assembled() {
        let mut bytes = Vec::new();
        for (opcode, part) in [(Opcode::Text, "ab"), (Opcode::Continuation, "cd"), (Opcode::Continuation, "")]
        {
            write_frame(opcode, false, part.as_bytes(), Some([1, 2, 3, 4]), &mut bytes);
        }
        bytes[0] &= 0x7f;
        bytes[8] &= 0x7f;
        let mut incoming = Incoming::new(MessageLimits::default(), false);
        let mut received = Vec::new();
        for byte in bytes {
            let mut held = std::mem::take(&mut incoming.held);
            held.push(byte);
            let handle = |item: IncomingItem<'_>| {
                let IncomingItem::Message(Message::Text(text)) = item else { panic!("no text") };
                received.push(text.to_owned());
                true
            };
            incoming.read(&mut held, handle).unwrap();
        }
        assert_eq!(received, ["abcd"]);
    }
}
