//! The format of a parcel: a line of JSON, followed by the data of the message as published.
//!
//! This is version 2 of messages: a channel has a group. Version 1 is `message` instead of `published`, without a group. A server of
//! one version refuses the messages of the other, counts and reports them, and its subscribers get gaps. Purges and
//! heartbeats are the same in both.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use flatout_lane::clock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use flatout_push::{ChannelName, History, Kind, Publication};

/// The first line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Head<'h> {
    /// The process that sent it.
    pub(super) origin: u64,
    /// Its sequence number in its topic.
    pub(super) number: u64,
    #[serde(borrow, flatten)]
    pub(super) what: ParcelKind<'h>,
}

/// The kind of a parcel.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ParcelKind<'h> {
    /// A message; its data follows.
    #[serde(borrow)]
    Published(About<'h>),
    /// A message of version 1, which is not read.
    Message(Unread),
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

/// Metadata that are not read.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Unread {}

/// The metadata of a message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct About<'h> {
    #[serde(borrow)]
    group: Cow<'h, str>,
    #[serde(borrow)]
    channel: Cow<'h, str>,
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
    pub(super) fn of(channel: ChannelName<'h>, publication: &'h Publication, history: &History) -> About<'h> {
        About {
            group: Cow::Borrowed(channel.group),
            channel: Cow::Borrowed(channel.name),
            event: publication.event.as_deref().map(Cow::Borrowed),
            key: publication.key.as_deref().map(Cow::Borrowed),
            is_json: publication.is_json,
            is_latest: history.kind == Kind::Latest,
            count: history.count,
            age_ms: u64::try_from(history.age.as_millis()).unwrap_or(u64::MAX),
            at_ms: clock::unix_milliseconds(),
        }
    }

    pub(super) fn channel(&self) -> ChannelName<'_> {
        ChannelName { group: &self.group, name: &self.channel }
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

/// The longest encoded name of a group in a place. A longer one is replaced by its hash.
const GROUP_PLACE_BYTES_MAX: usize = 200;

/// The place of a channel: two words.
pub(super) fn channel_place(channel: ChannelName<'_>) -> String {
    let group = place(channel.group);
    let group = match group.len() <= GROUP_PLACE_BYTES_MAX {
        true => group,
        false => Sha256::digest(channel.group).iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    format!("{group}.{}", place(channel.name))
}

/// Whether this is a place.
pub fn is_place(text: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_=".contains(&byte))
    };
    text.is_empty() || text.split('.').all(is_word)
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
            let channel = ChannelName { group: "a.example/live", name: "NBA.1" };
            let what = ParcelKind::Published(About::of(channel, &publication, &history));
            let bytes = Head { origin: u64::MAX, number: 3, what }.encode(data);
            let (head, data) = decode(&bytes).unwrap();
            let ParcelKind::Published(about) = &head.what else { panic!("{head:?}") };
            assert_eq!((head.origin, head.number, about.channel()), (u64::MAX, 3, channel));
            assert_eq!((about.history(), about.publication(data)), (history, Some(publication)));
        }
    }

    #[test]
    fn messages_of_version_1_are_recognized() {
        let bytes = Bytes::from_static(
            b"{\"origin\":1,\"number\":2,\"message\":{\"channel\":\"a\",\"count\":9,\"age_ms\":9}}\nx",
        );
        let (head, _) = decode(&bytes).unwrap();
        assert_eq!((head.origin, head.number, head.what), (1, 2, ParcelKind::Message(Unread {})));
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
        assert!(decode(&bytes).is_none_or(|(head, _)| head.what == ParcelKind::Purge("hard all".into())));
        let lies = About::of(
            ChannelName { group: "", name: "a" },
            &Publication { is_json: true, ..Publication::from("{") },
            &History::default(),
        )
        .publication("{".into());
        assert_eq!(lies, None, "what is not JSON is not embedded as such");
    }

    #[test]
    fn places_are_encoded_as_one_word() {
        assert_eq!(place(""), "=");
        assert_eq!(place("NBA.1-a_b=/~é"), "NBA=2E1-a_b=3D=2F=7E=C3=A9");
        let of = |group: &str| channel_place(ChannelName { group, name: "a.1" });
        assert_eq!((of(""), of("* /live")), ("=.a=2E1".to_owned(), "=2A=20=2Flive.a=2E1".to_owned()));
        let (one, other) = (of(&"/x".repeat(500)), of(&"/x".repeat(501)));
        assert!(one != other && one.len() < 100 && is_place(&one), "{one}");
        assert!(is_place("") && ["a..b", "a b", ".a", ">", "a.*"].iter().all(|text| !is_place(text)));
    }
}
