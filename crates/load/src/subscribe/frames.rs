//! A WebSocket as a subscriber reads it.

use flatout_wire::websocket::{MessageLimits, Reader, ReaderEvent, Role};

use super::{ReceivedMessages, Tracks, append};
use crate::tally::ErrorKind;

/// A subscriber's parser state.
#[derive(Debug)]
pub(super) struct Frames {
    reader: Reader,
    /// The start of an incomplete frame head, or of a control frame.
    held: Vec<u8>,
    /// The start of an incomplete message.
    text: Vec<u8>,
}

impl Default for Frames {
    fn default() -> Self {
        // No compression is offered.
        Frames { reader: Reader::new(Role::Client, false), held: Vec::new(), text: Vec::new() }
    }
}

impl Frames {
    /// Consumes bytes of the connection, in any pieces.
    ///
    /// # Errors
    /// A close frame, or invalid frames.
    pub(super) fn take(
        &mut self,
        bytes: &mut [u8],
        tracks: &mut Tracks,
        received: &mut ReceivedMessages,
    ) -> Result<(), ErrorKind> {
        if self.held.is_empty() {
            let taken = self.read(bytes, tracks, received)?;
            self.held.extend_from_slice(bytes.get(taken..).unwrap_or_default());
            return Ok(());
        }
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(bytes);
        let taken = self.read(&mut held, tracks, received)?;
        self.held = held.get(taken..).unwrap_or_default().to_vec();
        Ok(())
    }

    /// Returns how many bytes were consumed: all but an incomplete frame head.
    fn read(
        &mut self,
        bytes: &mut [u8],
        tracks: &mut Tracks,
        received: &mut ReceivedMessages,
    ) -> Result<usize, ErrorKind> {
        let limits = MessageLimits::default();
        let mut at = 0;
        loop {
            let rest = bytes.get_mut(at..).unwrap_or_default();
            let (used, event) = self.reader.step(rest, &limits).map_err(|_| ErrorKind::Malformed)?;
            at += used;
            match event {
                ReaderEvent::NeedMore => return Ok(at),
                ReaderEvent::Data { bytes, is_last: true, .. } if self.text.is_empty() => {
                    tracks.note_json(bytes, received);
                }
                ReaderEvent::Data { bytes, is_last, .. } => {
                    append(&mut self.text, bytes);
                    if is_last {
                        tracks.note_json(&std::mem::take(&mut self.text), received);
                    }
                }
                ReaderEvent::Ping(payload) => received.pong(payload),
                ReaderEvent::Pong(_) => {}
                ReaderEvent::Close(_) => return Err(ErrorKind::Closed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::received;
    use super::super::{Sequence, TEXT_BYTES_MAX, Transport};
    use super::*;
    use flatout_wire::websocket::{Opcode, write_frame};

    fn frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_frame(opcode, false, payload, None, &mut out);
        out
    }

    #[test]
    fn messages_are_the_same_in_any_pieces() {
        let mut begun = frame(Opcode::Text, b"{\"id\":\"a-3\",\"data\":");
        begun[0] = 0x01;
        let stream = [
            frame(Opcode::Text, b"{\"id\":\"a-1\",\"data\":{\"at\":1700000000123,\"seq\":1}}"),
            frame(Opcode::Ping, b"p"),
            frame(Opcode::Text, b"{\"gap\":true,\"after\":\"a-1\"}"),
            begun,
            frame(Opcode::Pong, b""),
            frame(Opcode::Continuation, b"{\"seq\":3,\"at\":1700000000123456}}"),
            frame(Opcode::Text, &[b'x'; 300]),
        ]
        .concat();
        let ns = 1_700_000_000_123_000_000;
        for piece in 1..=stream.len() {
            let (received, subscriber) = received(Transport::WebSocket, &[&stream], piece);
            assert_eq!(received.messages, [Some(ns), Some(ns + 456_000), None], "{piece}");
            assert_eq!(received.sequence, Sequence { missed: 1, repeated: 0, gaps: 1 }, "{piece}");
            assert_eq!(subscriber.tracks.position, b"a-3");
            // A masked pong of one byte.
            assert_eq!(
                (received.reply.len(), received.reply[..2].to_vec()),
                (7, vec![0x8a, 0x81]),
                "{piece}"
            );
        }
    }

    #[test]
    fn invalid_frames_end_the_connection() {
        let mut received = ReceivedMessages::new(Transport::WebSocket, 1);
        let mut end = |bytes: &[u8]| {
            Frames::default().take(&mut bytes.to_vec(), &mut Tracks::default(), &mut received).unwrap_err()
        };
        assert_eq!(end(&frame(Opcode::Close, b"")), ErrorKind::Closed);
        assert_eq!(end(b"HTTP/1.1"), ErrorKind::Malformed);
    }

    #[test]
    fn endless_messages_cost_no_memory() {
        let (mut frames, mut tracks) = (Frames::default(), Tracks::default());
        let mut received = ReceivedMessages::new(Transport::WebSocket, 1);
        let mut piece = frame(Opcode::Text, &[b'x'; 1000]);
        piece[0] = 0x01;
        for _ in 0..100 {
            frames.take(&mut piece.clone(), &mut tracks, &mut received).unwrap();
            piece[0] = 0x00;
        }
        assert!(frames.text.len() <= TEXT_BYTES_MAX && frames.held.is_empty());
    }
}
