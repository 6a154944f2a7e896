//! A message, encoded once for each transport, when first needed.

use std::fmt::Write;
use std::sync::OnceLock;

use bytes::Bytes;
use flatout_engine::websocket::compress;
use flatout_wire::websocket::{Opcode, write_frame, write_header};

/// Shorter messages are sent to WebSockets uncompressed: compression would save nothing.
const COMPRESSED_BYTES_MIN: usize = 128;

/// A message to publish.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Publication {
    /// UTF-8.
    pub data: Bytes,
    /// Whether it is JSON, to be embedded as such. This is not checked.
    pub is_json: bool,
    /// The event type, for clients that listen for one type.
    pub event: Option<Box<str>>,
    /// The key, in a channel of latest values.
    pub key: Option<Box<str>>,
}

/// The memory of a message besides its data: the table entry, ids, names, the headers of its encodings.
const MESSAGE_BYTES: usize = size_of::<Message>() + 512;

impl Publication {
    /// Its memory as a message: its data, also as JSON, as an event, compressed, and as a latest value.
    pub(super) fn bytes(&self) -> usize {
        MESSAGE_BYTES + 5 * self.data.len()
    }
}

impl<T: Into<Bytes>> From<T> for Publication {
    fn from(data: T) -> Publication {
        Publication { data: data.into(), ..Publication::default() }
    }
}

/// The format in which a subscriber gets its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Server-Sent Events.
    Events,
    /// The same with the channel's name as the event type, for subscribers of several channels.
    NamedEvents,
    /// WebSocket.
    Frames,
    /// WebSocket, compressed.
    PackedFrames,
    /// Long poll: JSON, without the text between messages.
    Json,
}

/// How many formats there are.
pub(super) const FORMATS_COUNT: usize = Format::Json as usize + 1;

/// A message of a channel.
#[derive(Debug)]
pub struct Message {
    /// Its position in this process.
    pub id: u64,
    /// Seconds since 1970.
    pub published_at: u32,
    /// What was published.
    pub publication: Publication,
    /// Its identity on other servers.
    pub mark: Option<Mark>,
    json: OnceLock<Bytes>,
    events: OnceLock<Bytes>,
    packed: OnceLock<Bytes>,
    member: OnceLock<Member>,
}

/// A latest value as a member of a JSON object, `"key":value`, for requests of many keys.
#[derive(Debug)]
struct Member {
    bytes: Bytes,
    value_at: usize,
}

/// Identifies a message on all servers of a bus: the server that published it, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// The server that published it.
    pub origin: u64,
    /// Its number there.
    pub number: u64,
    /// It was delayed on its way to this server: other servers may have it in another position.
    pub is_late: bool,
}

/// The id of a message for clients: the process, and its sequence number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) epoch: u64,
    pub(super) id: u64,
}

/// A position, as sent to clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    pub(super) id: Id,
    pub(super) mark: Option<Mark>,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.mark {
            Some(Mark { origin, number, .. }) => {
                write!(f, "{}.{}", self.id, Id { epoch: origin, id: number })
            }
            None => write!(f, "{}", self.id),
        }
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}-{}", self.epoch, self.id)
    }
}

impl Id {
    pub(super) fn parse(text: &str) -> Option<Id> {
        let (epoch, id) = text.split_once('-')?;
        // `parse` would accept a sign.
        let is_plain = id.bytes().all(|byte| byte.is_ascii_digit()) && !epoch.starts_with('+');
        is_plain
            .then(|| Some(Id { epoch: u64::from_str_radix(epoch, 16).ok()?, id: id.parse().ok()? }))
            .flatten()
    }
}

impl Message {
    /// A message that was not encoded yet.
    pub fn new(id: u64, published_at: u32, publication: Publication) -> Message {
        Message {
            id,
            published_at,
            publication,
            mark: None,
            json: OnceLock::new(),
            events: OnceLock::new(),
            packed: OnceLock::new(),
            member: OnceLock::new(),
        }
    }

    /// Sets its identity on other servers.
    pub fn marked(mut self, mark: Option<Mark>) -> Message {
        self.mark = mark;
        self
    }

    /// Its memory, including all encodings.
    pub(super) fn bytes(&self) -> usize {
        self.publication.bytes()
    }

    /// Its data.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.publication.data).unwrap_or_default()
    }

    /// Its id for clients: the id on this server, and its identity on other servers.
    pub(super) fn name(&self, epoch: u64) -> Name {
        Name { id: Id { epoch, id: self.id }, mark: self.mark }
    }

    /// Appends it in this format.
    pub(super) fn write(&self, format: Format, channel: &str, epoch: u64, out: &mut Vec<u8>) {
        match format {
            Format::Events => out.extend_from_slice(self.events.get_or_init(|| {
                let mut text = String::new();
                self.write_event(self.publication.event.as_deref(), epoch, &mut text);
                text.into()
            })),
            Format::NamedEvents => {
                let mut text = String::new();
                match self.publication.event.as_deref() {
                    Some(event) => self.write_event(Some(&format!("{channel}:{event}")), epoch, &mut text),
                    None => self.write_event(Some(channel), epoch, &mut text),
                }
                out.extend_from_slice(text.as_bytes());
            }
            Format::Frames => {
                let json = self.json(channel, epoch);
                write_header(Opcode::Text, false, json.len(), None, out);
                out.extend_from_slice(json);
            }
            Format::PackedFrames => {
                out.extend_from_slice(self.packed.get_or_init(|| packed(self.json(channel, epoch))));
            }
            Format::Json => out.extend_from_slice(self.json(channel, epoch)),
        }
    }

    fn write_event(&self, event: Option<&str>, epoch: u64, out: &mut String) {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "id: {}", self.name(epoch));
        if let Some(event) = event {
            let _ = writeln!(out, "event: {event}");
        }
        // A parser of event streams accepts all three as line ends.
        for line in self.text().replace("\r\n", "\n").split(['\n', '\r']) {
            out.push_str("data: ");
            out.push_str(line);
            out.push('\n');
        }
        out.push('\n');
    }

    fn json(&self, channel: &str, epoch: u64) -> &Bytes {
        self.json.get_or_init(|| {
            let mut text = format!("{{\"id\":\"{}\",\"channel\":{}", self.name(epoch), quoted(channel));
            for (name, value) in [("event", &self.publication.event), ("key", &self.publication.key)] {
                if let Some(value) = value {
                    let _ = write!(text, ",\"{name}\":{}", quoted(value));
                }
            }
            let _ = write!(text, ",\"data\":{}}}", self.value());
            text.into()
        })
    }

    /// Its data as JSON.
    fn value(&self) -> std::borrow::Cow<'_, str> {
        match self.publication.is_json {
            true => self.text().into(),
            false => quoted(self.text()).into(),
        }
    }

    /// Its key and its data as a member of a JSON object.
    pub(super) fn as_member(&self) -> &[u8] {
        &self.member().bytes
    }

    /// Its data as JSON, taken from [`Message::as_member`].
    pub(super) fn as_value(&self) -> &[u8] {
        let Member { bytes, value_at } = self.member();
        bytes.get(*value_at..).unwrap_or_default()
    }

    fn member(&self) -> &Member {
        self.member.get_or_init(|| {
            let mut text = quoted(self.publication.key.as_deref().unwrap_or_default());
            text.push(':');
            let value_at = text.len();
            text.push_str(&self.value());
            Member { bytes: text.into(), value_at }
        })
    }
}

/// A string as JSON.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn packed(json: &[u8]) -> Bytes {
    let (mut out, mut packed) = (Vec::new(), Vec::new());
    let is_packed = json.len() >= COMPRESSED_BYTES_MIN && compress(json, &mut packed);
    write_frame(Opcode::Text, is_packed, if is_packed { &packed } else { json }, None, &mut out);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(publication: Publication, format: Format) -> String {
        let mut out = Vec::new();
        Message::new(7, 0, publication).write(format, "a", 255, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn every_transport_has_its_form() {
        let text = Publication { event: Some("goal".into()), ..Publication::from("1:0\r\n2:0") };
        assert_eq!(written(text.clone(), Format::Events), "id: ff-7\nevent: goal\ndata: 1:0\ndata: 2:0\n\n");
        assert_eq!(
            written(text.clone(), Format::NamedEvents),
            "id: ff-7\nevent: a:goal\ndata: 1:0\ndata: 2:0\n\n"
        );
        assert_eq!(
            written(text, Format::Json),
            r#"{"id":"ff-7","channel":"a","event":"goal","data":"1:0\r\n2:0"}"#
        );
        let json = Publication { is_json: true, key: Some("k\"".into()), ..Publication::from("{\"p\":1}") };
        assert_eq!(written(json, Format::Json), r#"{"id":"ff-7","channel":"a","key":"k\"","data":{"p":1}}"#);
        let mut frame = Vec::new();
        Message::new(7, 0, Publication::from("x")).write(Format::Frames, "a", 255, &mut frame);
        assert_eq!(frame[..2], [0x81, (frame.len() - 2) as u8]);
    }

    #[test]
    fn a_latest_value_is_encoded_once() {
        let publication = Publication { key: Some("a\"b".into()), ..Publication::from("1:0") };
        let message = Message::new(1, 0, publication);
        assert_eq!(message.as_member(), b"\"a\\\"b\":\"1:0\"");
        assert_eq!(message.as_value(), b"\"1:0\"");
        assert_eq!(message.as_member().as_ptr(), message.as_member().as_ptr());
    }

    #[test]
    fn messages_of_a_bus_have_an_id_for_all_servers() {
        let mark = Some(Mark { origin: 16, number: 3, is_late: false });
        let message = Message { mark, ..Message::new(7, 0, Publication::from("x")) };
        assert_eq!(message.name(255).to_string(), "ff-7.10-3");
    }

    #[test]
    fn ids_are_read_back_and_nothing_else_is() {
        let id = Id { epoch: 0x19a8_0001, id: 42 };
        assert_eq!(Id::parse(&id.to_string()), Some(id));
        for text in ["", "1", "1-", "-1", "x-1", "1--1", "1-+1", "+1-1", "1-99999999999999999999"] {
            assert_eq!(Id::parse(text), None, "{text}");
        }
    }
}
