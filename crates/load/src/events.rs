//! Server-Sent Events as a subscriber sees them: where a message ends, and when it says it was sent.
//!
//! A message carries its send time if a run of 13, 16 or 19 digits stands in its data: milliseconds, microseconds or
//! nanoseconds since 1970, which no other number in common use looks like. The clocks of both sides must be one.

/// Bytes of a line that are looked at; what follows is passed over until the line ends.
const LINE_BYTES_MAX: usize = 4096;

/// Where one subscriber is in its stream.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The start of a line that did not come whole.
    line: Vec<u8>,
    has_data: bool,
    sent_ns: Option<u64>,
}

/// A whole message: when it says it was sent, in nanoseconds since 1970.
pub(crate) type Message = Option<u64>;

impl Events {
    /// Takes bytes of the stream, in any pieces, and adds the messages that end in them to `found`.
    pub(crate) fn take(&mut self, bytes: &[u8], found: &mut Vec<Message>) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let room = LINE_BYTES_MAX - self.line.len();
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                found.extend(self.end_line());
            }
        }
    }

    /// An empty line ends a message; one without data is none (HTML Standard, section 9.2.6).
    fn end_line(&mut self) -> Option<Message> {
        let line = self.line.trim_ascii_end();
        let is_empty = line.is_empty();
        if let Some(data) = line.strip_prefix(b"data:") {
            self.has_data = true;
            self.sent_ns = self.sent_ns.or_else(|| send_time(data));
        }
        self.line.clear();
        if !(is_empty && std::mem::take(&mut self.has_data)) {
            return None;
        }
        Some(self.sent_ns.take())
    }
}

fn send_time(data: &[u8]) -> Option<u64> {
    data.split(|byte| !byte.is_ascii_digit()).find_map(|digits| {
        let unit_ns = match digits.len() {
            13 => 1_000_000,
            16 => 1_000,
            19 => 1,
            _ => return None,
        };
        std::str::from_utf8(digits).ok()?.parse::<u64>().ok()?.checked_mul(unit_ns)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_the_same_in_any_pieces() {
        let stream = "retry: 10\n\n: comment 1700000000000\n\ndata: {\"at\":1700000000123}\nid: 1\n\ndata: a\r\ndata: \
                      1700000000123456789\r\n\r\ndata: none\n\nevent: x\ndata: 1700000000123456\n\ndata: cut";
        let ns = 1_700_000_000_123_000_000;
        for piece in 1..stream.len() {
            let (mut events, mut found) = (Events::default(), Vec::new());
            stream.as_bytes().chunks(piece).for_each(|piece| events.take(piece, &mut found));
            assert_eq!(found, [Some(ns), Some(ns + 456_789), None, Some(ns + 456_000)], "pieces of {piece}");
        }
    }

    #[test]
    fn endless_lines_cost_no_memory() {
        let (mut events, mut found) = (Events::default(), Vec::new());
        for _ in 0..100 {
            events.take(&[b'x'; 1000], &mut found);
        }
        assert!(events.line.len() <= LINE_BYTES_MAX && found.is_empty());
    }
}
