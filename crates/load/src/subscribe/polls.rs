//! The responses of a long poll: JSON arrays in which each object is a message.
//!
//! Only nesting and strings are tracked. Whether the rest is valid JSON does not matter here.

use super::{ReceivedMessages, Tracks, append};

/// A subscriber's parser state.
#[derive(Debug, Default)]
pub(super) struct Polls {
    /// Open brackets and braces; the array is the first.
    depth: u32,
    is_in_string: bool,
    is_escaped: bool,
    /// The current object.
    text: Vec<u8>,
}

impl Polls {
    /// Consumes bytes of the body, in any pieces.
    pub(super) fn take(&mut self, bytes: &[u8], tracks: &mut Tracks, received: &mut ReceivedMessages) {
        let mut from = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            let was = self.depth;
            self.step(byte);
            match (was, self.depth) {
                (1, 2) => from = at,
                (2, 1) => {
                    append(&mut self.text, &bytes[from..=at]);
                    tracks.note_object(&std::mem::take(&mut self.text), received);
                }
                _ => {}
            }
        }
        if self.depth > 1 {
            append(&mut self.text, &bytes[from..]);
        }
    }

    fn step(&mut self, byte: u8) {
        if self.is_in_string {
            self.is_in_string = byte != b'"' || self.is_escaped;
            self.is_escaped = byte == b'\\' && !self.is_escaped;
            return;
        }
        match byte {
            b'"' => self.is_in_string = true,
            b'[' | b'{' => self.depth = self.depth.saturating_add(1),
            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

impl Tracks {
    /// The position comes from the response's head, not from its messages.
    fn note_object(&mut self, text: &[u8], received: &mut ReceivedMessages) {
        let position = std::mem::take(&mut self.position);
        self.note_json(text, received);
        self.position = position;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::received;
    use super::super::{Sequence, Transport};

    #[test]
    fn messages_are_the_same_in_any_pieces() {
        let first =
            br#"[{"gap":true},{"id":"a-1","data":{"seq":1,"at":[1700000000123]}},{"data":"}\"{[","x":"\\"}]"#;
        let second = br#"[{"id":"a-3","data":{"seq":3}}]"#;
        let ns = 1_700_000_000_123_000_000;
        for piece in 1..first.len() {
            let (received, subscriber) = received(Transport::LongPoll, &[first, b"", second], piece);
            assert_eq!(received.messages, [Some(ns), None, None], "{piece}");
            assert_eq!(received.sequence, Sequence { missed: 1, repeated: 0, gaps: 1 }, "{piece}");
            assert_eq!(subscriber.tracks.position, b"a-9");
        }
    }
}
