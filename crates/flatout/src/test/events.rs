//! Server-Sent Events as a browser reads them.

/// An event as received.
///
/// ```
/// use flatout::test::{Client, ServerEvent};
/// use flatout::{App, Event, Sse};
///
/// let app = App::new().get("/", || Sse::new(futures_util::stream::iter([Event::data("hello").event("greeting")])));
/// let expected = ServerEvent { event: Some("greeting".to_owned()), data: "hello".to_owned(), ..ServerEvent::default() };
/// assert_eq!(Client::new(app)?.get("/").events(1), [expected]);
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerEvent {
    /// Its type; the default is `message`.
    pub event: Option<String>,
    /// Its data, lines joined.
    pub data: String,
    /// The last identifier so far.
    pub id: Option<String>,
    /// How long to wait before reconnecting, in milliseconds.
    pub retry_ms: Option<u64>,
}

/// Reads a stream of events.
pub(super) struct EventReader {
    wanted: usize,
    line: Vec<u8>,
    next: ServerEvent,
    has_data: bool,
    events: Vec<ServerEvent>,
}

impl EventReader {
    pub(super) fn new(wanted: usize) -> EventReader {
        EventReader {
            wanted,
            line: Vec::new(),
            next: ServerEvent::default(),
            has_data: false,
            events: Vec::new(),
        }
    }

    /// Adds a piece of the stream. Returns whether it has enough.
    pub(super) fn take(&mut self, piece: &[u8]) -> bool {
        for &byte in piece {
            match byte {
                b'\n' => self.end_line(),
                byte => self.line.push(byte),
            }
        }
        self.events.len() >= self.wanted
    }

    pub(super) fn events(mut self) -> Vec<ServerEvent> {
        self.events.truncate(self.wanted);
        self.events
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
        if line.is_empty() {
            return self.end_event();
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.next.data.push('\n');
                }
                self.next.data.push_str(value);
            }
            "event" => self.next.event = Some(value.to_owned()),
            "id" => self.next.id = Some(value.to_owned()),
            "retry" => self.next.retry_ms = value.parse().ok(),
            // A comment, or nothing that is known.
            _ => {}
        }
    }

    fn end_event(&mut self) {
        let id = self.next.id.clone();
        let event = std::mem::replace(&mut self.next, ServerEvent { id, ..ServerEvent::default() });
        if std::mem::take(&mut self.has_data) {
            self.events.push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_they_come() {
        let text =
            b": hello\n\nid: 1\ndata: a\ndata:b\n\nevent: x\r\ndata: c\r\nretry: 5\r\n\r\nevent: lost\n\n";
        for size in [1, 3, text.len()] {
            let mut reader = EventReader::new(5);
            assert!(!text.chunks(size).any(|piece| reader.take(piece)));
            let events = reader.events();
            let first =
                ServerEvent { data: "a\nb".to_owned(), id: Some("1".to_owned()), ..Default::default() };
            assert_eq!(events[0], first);
            assert_eq!((events[1].event.as_deref(), events[1].retry_ms), (Some("x"), Some(5)));
            assert_eq!((events[1].id.as_deref(), events.len()), (Some("1"), 2));
        }
    }
}
