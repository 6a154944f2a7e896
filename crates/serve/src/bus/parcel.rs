//! The format of a parcel: a line of JSON, followed by the data of the message as published.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use flatout_lane::clock;
use serde::{Deserialize, Serialize};

use crate::push::{History, Kind, Publication};

/// The first line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Head<'h> {
    /// The process that sent it.
    pub(super) origin: u64,
    /// Its sequence number in its topic.
    pub(super) number: u64,
    #[serde(borrow, flatten)]
    pub(super) what: What<'h>,
}

/// The kind of a parcel.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What<'h> {
    /// A message; its data follows.
    #[serde(borrow)]
    Message(About<'h>),
    /// A purge, as text.
    Purge(Cow<'h, str>),
    /// A heartbeat: how many messages and purges the sender has sent. `asks`: others shall respond with
    /// theirs. `leaves`: the sender ends, and the bus has carried everything that it sent; `None` from a version
    /// that does not announce its end.
    Presence {
        messages: u64,
        purges: u64,
        asks: bool,
        #[serde(default)]
        leaves: Option<bool>,
    },
}

/// The metadata of a message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct About<'h> {
    #[serde(borrow)]
    pub(super) channel: Cow<'h, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    event: Option<Cow<'h, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'h, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_json: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_latest: bool,
    count: usize,
    age_ms: u64,
    /// The time of publication, in Unix milliseconds.
    #[serde(default)]
    pub(super) at_ms: u64,
}

impl<'h> About<'h> {
    pub(super) fn of(channel: &'h str, publication: &'h Publication, history: &History) -> About<'h> {
        About {
            channel: Cow::Borrowed(channel),
            event: publication.event.as_deref().map(Cow::Borrowed),
            key: publication.key.as_deref().map(Cow::Borrowed),
            is_json: publication.is_json,
            is_latest: history.kind == Kind::Latest,
            count: history.count,
            age_ms: u64::try_from(history.age.as_millis()).unwrap_or(u64::MAX),
            at_ms: clock::unix_milliseconds(),
        }
    }

    pub(super) fn history(&self) -> History {
        let kind = if self.is_latest { Kind::Latest } else { Kind::Log };
        History { kind, count: self.count, age: Duration::from_millis(self.age_ms) }
    }

    /// The message with this data. `None` if it is declared as JSON but is not valid JSON: such data is
    /// embedded unchanged.
    pub(super) fn publication(&self, data: Bytes) -> Option<Publication> {
        if self.is_json && serde_json::from_slice::<serde::de::IgnoredAny>(&data).is_err() {
            return None;
        }
        let boxed = |text: &Option<Cow<'_, str>>| text.as_deref().map(Into::into);
        let (event, key) = (boxed(&self.event), boxed(&self.key));
        Some(Publication { data, is_json: self.is_json, event, key })
    }
}

impl Head<'_> {
    /// The parcel with this data.
    pub(super) fn encode(&self, data: &[u8]) -> Bytes {
        // Strings and numbers can always be serialized.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes.extend_from_slice(data);
        bytes.into()
    }
}

/// Parses a parcel into its head and data. `None` if it is malformed.
pub(super) fn decode(bytes: &Bytes) -> Option<(Head<'_>, Bytes)> {
    let at = bytes.iter().position(|&byte| byte == b'\n')?;
    let head = serde_json::from_slice(bytes.get(..at)?).ok()?;
    Some((head, bytes.slice(at + 1..)))
}

/// Encodes a name as one word of a place: bytes other than letters, digits, `-` and `_` become `=` and two
/// hex digits.
pub(super) fn place(name: &str) -> String {
    if name.is_empty() {
        return "=".to_owned();
    }
    let mut place = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-_".contains(&byte) => place.push(char::from(byte)),
            byte => place.push_str(&format!("={byte:02X}")),
        }
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_encoding_and_decoding() {
        let history = History { kind: Kind::Latest, count: 7, age: Duration::from_secs(2) };
        for (data, is_json, event, key) in [
            (&b"a\nb"[..], false, None, None),
            (b"{\"p\":1}", true, Some("a \"b\""), Some("k\\n")),
            (b"", false, Some(""), None),
        ] {
            let publication = Publication {
                data: Bytes::copy_from_slice(data),
                is_json,
                event: event.map(Into::into),
                key: key.map(Into::into),
            };
            let what = What::Message(About::of("NBA.1", &publication, &history));
            let bytes = Head { origin: u64::MAX, number: 3, what }.encode(data);
            let (head, data) = decode(&bytes).unwrap();
            let What::Message(about) = &head.what else { panic!("{head:?}") };
            assert_eq!((head.origin, head.number, &*about.channel), (u64::MAX, 3, "NBA.1"));
            assert_eq!((about.history(), about.publication(data)), (history, Some(publication)));
        }
    }

    #[test]
    fn malformed_parcels_are_refused() {
        let long = format!("{}\n", "[".repeat(100_000));
        for text in [
            "",
            "\n",
            "{}\n",
            "x",
            "{\"origin\":1,\"number\":2}\n",
            "{\"origin\":-1,\"number\":2,\"purge\":\"a\"}\n",
            &long,
        ] {
            assert!(decode(&Bytes::copy_from_slice(text.as_bytes())).is_none(), "{text}");
        }
        let bytes = Bytes::from_static(b"{\"origin\":1,\"number\":2,\"purge\":\"hard all\",\"later\":[1]}\n");
        assert!(decode(&bytes).is_none_or(|(head, _)| head.what == What::Purge("hard all".into())));
        let lies =
            About::of("a", &Publication { is_json: true, ..Publication::from("{") }, &History::default())
                .publication("{".into());
        assert_eq!(lies, None, "what is not JSON is not embedded as such");
    }

    #[test]
    fn places_are_encoded_as_one_word() {
        assert_eq!(place(""), "=");
        assert_eq!(place("NBA.1-a_b=/~é"), "NBA=2E1-a_b=3D=2F=7E=C3=A9");
    }
}
