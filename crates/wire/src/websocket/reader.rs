//! Parses bytes into messages, piece by piece.

use std::ops::Range;

use super::close::Close;
use super::frame::{FrameHeader, Opcode, Role};
use super::mask::mask;
use super::utf8::Utf8;

/// The limits of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageLimits {
    /// Bytes of one message, as received.
    pub message_bytes_max: u64,
    /// Frames of one message: empty ones cost their sender almost nothing.
    pub fragments_max: u32,
}

impl Default for MessageLimits {
    fn default() -> Self {
        MessageLimits { message_bytes_max: 1 << 20, fragments_max: 16 << 10 }
    }
}

/// The type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// UTF-8 text.
    Text,
    /// Binary data.
    Binary,
}

/// The result of a [`Reader::step`].
#[derive(Debug, PartialEq, Eq)]
pub enum ReaderEvent<'b> {
    /// The rest is the start of a frame header or of a control frame: keep it, and pass it again with more bytes
    /// after it. It is at most 139 bytes.
    NeedMore,
    /// A piece of a message, unmasked; empty for an empty frame. Uncompressed text was validated so far.
    Data {
        /// The type of the message.
        kind: MessageKind,
        /// The piece.
        bytes: &'b mut [u8],
        /// Whether the message is compressed.
        is_compressed: bool,
        /// Whether it is the end of the message.
        is_last: bool,
    },
    /// Needs a pong with this payload.
    Ping(&'b [u8]),
    /// The response to a ping, or an unsolicited one.
    Pong(&'b [u8]),
    /// The peer closes the connection; nothing after it may be read.
    Close(Close<'b>),
}

/// A protocol violation. The connection is closed with [`FrameFault::code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameFault {
    /// Reserved bits without an extension that uses them.
    Reserved,
    /// An unknown opcode.
    Opcode,
    /// A client's frame is not masked.
    Unmasked,
    /// A server's frame is masked.
    Masked,
    /// A length that is not in its shortest form, or above 2^63.
    Length,
    /// A fragmented control frame.
    ControlFragmented,
    /// A control frame over 125 bytes.
    ControlTooLong,
    /// A continuation without a message.
    NotBegun,
    /// A message that starts inside another.
    NotEnded,
    /// A message over the limit.
    MessageTooLarge,
    /// A message in more frames than the limit.
    TooManyFragments,
    /// Text that is not UTF-8.
    Utf8,
    /// A close frame with an invalid code, or with half of one.
    Close,
    /// A compressed message that cannot be decompressed.
    Compressed,
}

impl FrameFault {
    /// The close code for it (RFC 6455 section 7.4.1).
    pub fn code(self) -> u16 {
        match self {
            FrameFault::Utf8 | FrameFault::Compressed => 1007,
            FrameFault::TooManyFragments => 1008,
            FrameFault::MessageTooLarge => 1009,
            _ => 1002,
        }
    }

    /// The reason, as text.
    pub fn reason(self) -> &'static str {
        match self {
            FrameFault::Reserved => "reserved bits are set",
            FrameFault::Opcode => "unknown opcode",
            FrameFault::Unmasked => "a client's frames have to be masked",
            FrameFault::Masked => "a server's frames must not be masked",
            FrameFault::Length => "malformed length",
            FrameFault::ControlFragmented => "fragmented control frame",
            FrameFault::ControlTooLong => "control frame over 125 bytes",
            FrameFault::NotBegun => "continuation without a message",
            FrameFault::NotEnded => "a message inside of another",
            FrameFault::MessageTooLarge => "message too large",
            FrameFault::TooManyFragments => "too many fragments",
            FrameFault::Utf8 => "invalid UTF-8",
            FrameFault::Close => "malformed close frame",
            FrameFault::Compressed => "malformed compression",
        }
    }
}

/// One direction of a connection: what the peer sends.
#[derive(Debug, Clone, Copy)]
pub struct Reader {
    /// Of the current frame.
    left_bytes: u64,
    mask: Option<[u8; 4]>,
    /// Position in the mask's four bytes.
    mask_at: u8,
    /// It is the last frame of its message.
    is_last: bool,
    role: Role,
    may_compress: bool,
    message: Option<Message>,
}

/// The current message.
#[derive(Debug, Clone, Copy)]
struct Message {
    kind: MessageKind,
    is_compressed: bool,
    bytes: u64,
    fragments: u32,
    utf8: Utf8,
}

impl Reader {
    /// For input of a server or a client. `may_compress`: compression was negotiated.
    pub fn new(role: Role, may_compress: bool) -> Reader {
        Reader { left_bytes: 0, mask: None, mask_at: 0, is_last: false, role, may_compress, message: None }
    }

    /// Whether it is between two messages: then a new reader is equivalent.
    pub fn is_idle(&self) -> bool {
        self.message.is_none() && self.left_bytes == 0
    }

    /// Consumes bytes. Returns how many, and the result. Payload is unmasked in place.
    ///
    /// # Errors
    /// See [`FrameFault`]. Nothing after it may be read.
    pub fn step<'b>(
        &mut self,
        bytes: &'b mut [u8],
        limits: &MessageLimits,
    ) -> Result<(usize, ReaderEvent<'b>), FrameFault> {
        if self.left_bytes > 0 {
            return self.data(bytes, 0);
        }
        let Some(header) = FrameHeader::parse(bytes, self.role, self.may_compress)? else {
            return Ok((0, ReaderEvent::NeedMore));
        };
        if header.opcode.is_control() {
            return control(&header, bytes);
        }
        self.begin(&header, limits)?;
        self.data(bytes, header.bytes)
    }

    /// The start of a message's frame.
    fn begin(&mut self, header: &FrameHeader, limits: &MessageLimits) -> Result<(), FrameFault> {
        let kind = match header.opcode {
            Opcode::Text => Some(MessageKind::Text),
            Opcode::Binary => Some(MessageKind::Binary),
            _ => None,
        };
        match (kind, &self.message) {
            (None, None) => return Err(FrameFault::NotBegun),
            (Some(_), Some(_)) => return Err(FrameFault::NotEnded),
            _ => {}
        }
        let message = self.message.get_or_insert(Message {
            kind: kind.unwrap_or(MessageKind::Binary),
            is_compressed: header.is_compressed,
            bytes: 0,
            fragments: 0,
            utf8: Utf8::default(),
        });
        message.bytes = message.bytes.saturating_add(header.payload_bytes);
        message.fragments = message.fragments.saturating_add(1);
        if message.bytes > limits.message_bytes_max {
            return Err(FrameFault::MessageTooLarge);
        }
        if message.fragments > limits.fragments_max {
            return Err(FrameFault::TooManyFragments);
        }
        self.left_bytes = header.payload_bytes;
        self.mask = header.mask;
        self.mask_at = 0;
        self.is_last = header.is_last;
        Ok(())
    }

    /// Payload that starts `at` bytes into the input.
    fn data<'b>(&mut self, bytes: &'b mut [u8], at: usize) -> Result<(usize, ReaderEvent<'b>), FrameFault> {
        let there = (bytes.len() - at) as u64;
        if there == 0 && self.left_bytes > 0 {
            return Ok((at, ReaderEvent::NeedMore));
        }
        let count = self.left_bytes.min(there) as usize;
        let piece = bytes.get_mut(at..at + count).unwrap_or_default();
        if let Some(key) = self.mask {
            mask(piece, key, usize::from(self.mask_at));
            self.mask_at = (usize::from(self.mask_at) + count) as u8 % 4;
        }
        self.left_bytes -= count as u64;
        let is_last = self.is_last && self.left_bytes == 0;
        let Some(message) = &mut self.message else { return Err(FrameFault::NotBegun) };
        let (kind, is_compressed) = (message.kind, message.is_compressed);
        if kind == MessageKind::Text && !is_compressed {
            message.utf8.check(piece).map_err(|_| FrameFault::Utf8)?;
            if is_last {
                message.utf8.finish().map_err(|_| FrameFault::Utf8)?;
            }
        }
        if is_last {
            self.message = None;
        }
        Ok((at + count, ReaderEvent::Data { kind, bytes: piece, is_compressed, is_last }))
    }
}

/// A control frame, which may come between the frames of a message.
fn control<'b>(header: &FrameHeader, bytes: &'b mut [u8]) -> Result<(usize, ReaderEvent<'b>), FrameFault> {
    let range: Range<usize> = header.bytes..header.bytes + header.payload_bytes as usize;
    let end = range.end;
    let Some(payload) = bytes.get_mut(range) else { return Ok((0, ReaderEvent::NeedMore)) };
    if let Some(key) = header.mask {
        mask(payload, key, 0);
    }
    let payload = &*payload;
    let event = match header.opcode {
        Opcode::Ping => ReaderEvent::Ping(payload),
        Opcode::Pong => ReaderEvent::Pong(payload),
        _ => ReaderEvent::Close(Close::parse(payload)?),
    };
    Ok((end, event))
}

#[cfg(test)]
mod tests {
    use super::super::frame::write_frame;
    use super::*;

    const KEY: Option<[u8; 4]> = Some([9, 8, 7, 6]);

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_frame(Opcode::Binary, false, payload, KEY, &mut out);
        out[0] = first;
        out
    }

    /// The result of reading these bytes in pieces of this size, as text.
    fn read(bytes: &[u8], piece: usize, limits: &MessageLimits) -> (String, Option<FrameFault>) {
        let mut reader = Reader::new(Role::Server, true);
        let (mut said, mut held) = (String::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            held.extend_from_slice(piece);
            let mut at = 0;
            loop {
                let (used, event) = match reader.step(&mut held[at..], limits) {
                    Ok(step) => step,
                    Err(fault) => return (said, Some(fault)),
                };
                at += used;
                match event {
                    ReaderEvent::NeedMore => break,
                    ReaderEvent::Data { bytes, is_last, .. } => {
                        said.push_str(&String::from_utf8_lossy(bytes));
                        if is_last {
                            said.push('.');
                        }
                    }
                    ReaderEvent::Ping(bytes) => said.push_str(&format!("<ping {}>", bytes.len())),
                    ReaderEvent::Pong(bytes) => said.push_str(&format!("<pong {}>", bytes.len())),
                    ReaderEvent::Close(close) => {
                        said.push_str(&format!("<close {:?} {}>", close.code, close.reason))
                    }
                }
            }
            held.drain(..at);
            assert!(held.len() < 139, "{}", held.len());
        }
        (said, None)
    }

    fn reads(bytes: &[u8]) -> (String, Option<FrameFault>) {
        let whole = read(bytes, usize::MAX, &MessageLimits::default());
        for piece in [1, 2, 3, 7, 100] {
            let cut = read(bytes, piece, &MessageLimits::default());
            assert_eq!(cut.1, whole.1, "{piece}");
            assert!(cut.1.is_some() || cut.0 == whole.0, "{piece}: {} {}", cut.0, whole.0);
        }
        whole
    }

    #[test]
    fn messages_come_through_in_any_pieces() {
        let bytes = [
            frame(0x81, b"hello"),
            frame(0x01, b"ab"),
            frame(0x89, b"ping"),
            frame(0x00, b""),
            frame(0x80, b"cd"),
            frame(0x82, &[b'x'; 300]),
            frame(0x8a, b""),
            frame(0x88, &[3, 232, b'o', b'k']),
        ];
        let (said, fault) = reads(&bytes.concat());
        assert_eq!(said, format!("hello.ab<ping 4>cd.{}.<pong 0><close Some(1000) ok>", "x".repeat(300)));
        assert_eq!(fault, None);
    }

    #[test]
    fn each_bad_input_has_its_close_code() {
        let cases: [(Vec<u8>, FrameFault, u16); 13] = [
            (vec![0x81, 0x05, b'h'], FrameFault::Unmasked, 1002),
            (frame(0xa1, b"x"), FrameFault::Reserved, 1002),
            (frame(0x91, b"x"), FrameFault::Reserved, 1002),
            (frame(0xc9, b"x"), FrameFault::Reserved, 1002),
            (frame(0x83, b"x"), FrameFault::Opcode, 1002),
            (frame(0x8f, b"x"), FrameFault::Opcode, 1002),
            (frame(0x89, &[0; 126]), FrameFault::ControlTooLong, 1002),
            (frame(0x09, b"x"), FrameFault::ControlFragmented, 1002),
            (frame(0x80, b"x"), FrameFault::NotBegun, 1002),
            ([frame(0x01, b"x"), frame(0x81, b"y")].concat(), FrameFault::NotEnded, 1002),
            (frame(0x81, b"a\xffb"), FrameFault::Utf8, 1007),
            ([frame(0x01, b"\xce"), frame(0x80, b"")].concat(), FrameFault::Utf8, 1007),
            (frame(0x88, &[0]), FrameFault::Close, 1002),
        ];
        for (bytes, fault, code) in cases {
            assert_eq!(reads(&bytes).1, Some(fault), "{bytes:x?}");
            assert_eq!(fault.code(), code);
            assert!(!fault.reason().is_empty());
        }
    }

    #[test]
    fn messages_have_limits() {
        let limits = MessageLimits { message_bytes_max: 10, fragments_max: 3 };
        let (said, fault) = read(&frame(0x82, &[b'x'; 10]), 1, &limits);
        assert_eq!((said.len(), fault), (11, None));
        assert_eq!(read(&frame(0x82, &[b'x'; 11]), 100, &limits).1, Some(FrameFault::MessageTooLarge));
        let two = [frame(0x02, &[b'x'; 6]), frame(0x80, &[b'x'; 5])].concat();
        assert_eq!(read(&two, 100, &limits).1, Some(FrameFault::MessageTooLarge));
        // The header states the length: the payload is not awaited.
        let huge = [0x82, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4];
        assert_eq!(read(&huge, 100, &limits).1, Some(FrameFault::MessageTooLarge));
        let endless = [frame(0x02, b""), frame(0x00, b""), frame(0x00, b""), frame(0x00, b"")].concat();
        assert_eq!(read(&endless, 100, &limits).1, Some(FrameFault::TooManyFragments));
    }

    #[test]
    fn a_text_is_checked_before_it_is_whole() {
        let mut bytes = frame(0x81, &[0xff; 50]);
        bytes.truncate(8);
        assert_eq!(reads(&bytes).1, Some(FrameFault::Utf8));
    }

    #[test]
    fn clients_read_unmasked_frames() {
        let mut reader = Reader::new(Role::Client, false);
        let mut out = Vec::new();
        write_frame(Opcode::Text, false, b"hi", None, &mut out);
        let (used, event) = reader.step(&mut out, &MessageLimits::default()).unwrap();
        assert_eq!(used, 4);
        assert!(matches!(event, ReaderEvent::Data { bytes, is_last: true, .. } if bytes == b"hi"));
        assert!(reader.is_idle());
        assert_eq!(reader.step(&mut [0x81, 0x80], &MessageLimits::default()), Err(FrameFault::Masked));
    }
}
