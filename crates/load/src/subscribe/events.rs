//! Server-Sent Events as a subscriber reads them: finds the end of each message.

use super::message::Data;
use super::{ReceivedMessages, Tracks, append};

/// A subscriber's parser state.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The start of an incomplete line.
    line: Vec<u8>,
    message: Begun,
}

/// The current message.
#[derive(Debug, Default)]
struct Begun {
    has_data: bool,
    is_gap: bool,
    data: Data,
    id: Vec<u8>,
}

impl Events {
    /// Consumes bytes of the stream, in any pieces.
    pub(super) fn take(&mut self, bytes: &[u8], tracks: &mut Tracks, received: &mut ReceivedMessages) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let is_whole = piece.ends_with(b"\n");
            if is_whole && self.line.is_empty() {
                self.message.line(piece, tracks, received);
                continue;
            }
            append(&mut self.line, piece);
            if is_whole {
                self.message.line(&self.line, tracks, received);
                self.line.clear();
            }
        }
    }
}

impl Begun {
    /// An empty line ends a message; a message without data does not count (HTML Standard, section 9.2.6).
    fn line(&mut self, line: &[u8], tracks: &mut Tracks, received: &mut ReceivedMessages) {
        let line = line.trim_ascii_end();
        if let Some(data) = line.strip_prefix(b"data:") {
            self.has_data = true;
            let found = received.read(data);
            self.data.sent_ns = self.data.sent_ns.or(found.sent_ns);
            self.data.number = self.data.number.or(found.number);
        } else if let Some(id) = line.strip_prefix(b"id:") {
            self.id.clear();
            append(&mut self.id, id.trim_ascii_start());
        } else if let Some(event) = line.strip_prefix(b"event:") {
            self.is_gap = event.trim_ascii_start() == b"gap";
        } else if line.is_empty() {
            self.end(tracks, received);
        }
    }

    fn end(&mut self, tracks: &mut Tracks, received: &mut ReceivedMessages) {
        if !self.id.is_empty() {
            tracks.set_position(&self.id);
            self.id.clear();
        }
        match (std::mem::take(&mut self.has_data), std::mem::take(&mut self.is_gap)) {
            (false, _) => {}
            (true, true) => received.sequence.gaps += 1,
            (true, false) => tracks.note(self.data, received),
        }
        self.data = Data::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::received;
    use super::super::{Sequence, TEXT_BYTES_MAX, Transport};
    use super::*;

    #[test]
    fn messages_are_the_same_in_any_pieces() {
        let stream = "retry: 10\n\n: comment 1700000000000\n\nid: a-1\ndata: {\"at\":1700000000123,\"seq\":1}\n\ndata: \
                      a\r\ndata: 1700000000123456789\r\n\r\ndata: none\n\nevent: gap\ndata: {\"after\":\"a-1\"}\n\nevent: \
                      x\nid: a-4\ndata: 1700000000123456 \"seq\": 4\n\nid: a-5\ndata: cut";
        let ns = 1_700_000_000_123_000_000;
        for piece in 1..stream.len() {
            let (received, subscriber) = received(Transport::Events, &[stream.as_bytes()], piece);
            assert_eq!(
                received.messages,
                [Some(ns), Some(ns + 456_789), None, Some(ns + 456_000)],
                "{piece}"
            );
            assert_eq!(received.sequence, Sequence { missed: 2, repeated: 0, gaps: 1 }, "{piece}");
            assert_eq!(subscriber.tracks.position, b"a-4");
        }
    }

    #[test]
    fn endless_lines_cost_no_memory() {
        let (mut events, mut tracks) = (Events::default(), Tracks::default());
        let mut received = ReceivedMessages::new(Transport::Events, 1);
        for _ in 0..100 {
            events.take(&[b'x'; 1000], &mut tracks, &mut received);
        }
        assert!(events.line.len() <= TEXT_BYTES_MAX && received.messages.is_empty());
    }
}
