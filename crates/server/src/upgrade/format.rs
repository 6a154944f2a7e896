//! The messages between the two processes: JSON, one text for each note. Parsed as strictly as untrusted input.

use std::borrow::Cow;
use std::time::Duration;

use flatout_bus::{Identity, Parcel, Topic, is_place};
use flatout_lane::descriptors::DESCRIPTORS_MAX;
use flatout_push::{
    self, About, GROUP_BYTES_MAX, History, Kind, Mark, Message, Publication, REST_BYTES_MAX, Refused, Tip,
    is_name, is_sound,
};
use serde::{Deserialize, Serialize};

/// Changes with the notes up to `Ready`; if it differs, nothing moves.
pub(super) const FORMAT: u16 = 1;

/// Changes with the others: processes that differ in it pass their listeners on, and subscribers come back by themselves.
/// The same is true of what the bus has not carried: with another format, the old process has half a second for it.
pub(super) const PUSH_FORMAT: u16 = 4;

/// Bytes of a note.
pub(super) const NOTE_BYTES_MAX: usize = 64 << 20;

/// Subscribers in a batch.
pub(super) const PARCELS_MAX: usize = DESCRIPTORS_MAX;

/// A subscriber's bytes in a note besides the rest of its message: 64 channel names, and numbers.
const ABOUT_BYTES_MAX: usize = 16 << 10;

const _: () = assert!(PARCELS_MAX * (REST_BYTES_MAX * 4 / 3 + ABOUT_BYTES_MAX) <= NOTE_BYTES_MAX);

/// Channels or messages in a note, and bytes of messages after which the next note starts.
pub(super) const LISTED_MAX: usize = 256;
pub(super) const LISTED_BYTES: usize = 24 << 10;

/// The data limit of a message that can move. Escaping may make it six times as long.
pub(super) const DATA_BYTES_MAX: usize = 8 << 20;

const _: () = assert!(DATA_BYTES_MAX * 6 + LISTED_BYTES * 6 < NOTE_BYTES_MAX);

/// The limit for an address, a reason, or another line.
const LINE_BYTES_MAX: usize = 4 << 10;

/// A note.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Note<'n> {
    /// The successor has started.
    Hello { format: u16, push_format: u16 },
    /// A listener; its sockets are attached.
    Listener { is_admin: bool, asked: Option<Cow<'n, str>>, is_secure: bool },
    /// All listeners were sent: the successor opens what it serves.
    Open,
    /// The successor is ready.
    Ready {
        takes_push: bool,
        #[serde(default)]
        takes_invalidated: bool,
        #[serde(default)]
        takes_upstreams: bool,
        /// The name of its bus. It takes over the number and the outbox of a process on the same one.
        #[serde(default)]
        bus: Option<Cow<'n, str>>,
    },
    /// The successor refuses.
    Refused(Cow<'n, str>),
    /// The position of the messages.
    Tip(Tip),
    /// The last number of each server on the bus, and of the old process itself.
    Heard(Vec<(u64, u64)>),
    /// What other servers know the old process by.
    Identity(Identity),
    /// Some messages and purges that the bus has not carried yet.
    Outbox(Vec<Unsent<'n>>),
    /// Some channels. They are numbered in the order in which they come.
    Channels(Vec<Channel<'n>>),
    /// Some messages.
    Messages(Vec<Listed<'n>>),
    /// An upstream whose servers were changed while it ran, as in its state file.
    Upstream(Cow<'n, str>),
    /// All messages were sent: the successor starts serving.
    Start,
    /// The successor serves.
    Serving,
    /// Some subscribers; their sockets are attached.
    Batch(Vec<Cow<'n, About>>),
    /// The successor has received the batch.
    Got,
    /// It had no descriptors left for the batch.
    Full,
    /// The batch now belongs to the successor.
    Yours,
    /// The successor publishes from now on.
    Commit,
    /// There are no more subscribers.
    Done,
    /// A publish that the old process received.
    Publish {
        group: Cow<'n, str>,
        history: HistoryRecord,
        message_bytes_max: usize,
        entries: Vec<(Cow<'n, str>, Data<'n>)>,
    },
    /// A key that the old process has invalidated: URL and rest, the length of the URL, and whether it is a configured
    /// key.
    Invalidated { bytes: Vec<u8>, url_ends: usize, is_custom: bool },
    /// The result of the publish.
    Published { ids: Vec<String>, refused: Option<Refusal> },
}

/// A channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Channel<'n> {
    pub(super) group: Cow<'n, str>,
    pub(super) name: Cow<'n, str>,
    pub(super) history: HistoryRecord,
    pub(super) last_id: u64,
    pub(super) lost_id: u64,
    /// Where messages are missing within the history.
    pub(super) holes: Vec<u64>,
}

/// [`Parcel`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Unsent<'n> {
    is_purge: bool,
    number: u64,
    place: Cow<'n, str>,
    pub(super) text: Cow<'n, str>,
}

/// A message of the channel with this number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Listed<'n> {
    pub(super) channel: usize,
    pub(super) id: u64,
    /// By the clock since boot, which both processes share.
    pub(super) published_at: u32,
    /// What other servers call it.
    pub(super) mark: Option<Mark>,
    pub(super) data: Data<'n>,
}

/// The published data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Data<'n> {
    pub(super) text: Cow<'n, str>,
    pub(super) is_json: bool,
    pub(super) event: Option<Cow<'n, str>>,
    pub(super) key: Option<Cow<'n, str>>,
}

/// [`History`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct HistoryRecord {
    is_latest: bool,
    count: usize,
    age_ms: u64,
}

/// [`Refused`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Refusal {
    Name,
    Text,
    TooLarge,
    Full,
    Kind,
    Removed,
    Moving,
}

/// The note is malformed or invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

impl Note<'_> {
    pub(super) fn encode(&self) -> Result<Vec<u8>, Malformed> {
        serde_json::to_vec(self).map_err(|_| Malformed)
    }

    /// Parses a note that came with this many descriptors.
    pub(super) fn decode(bytes: &[u8], descriptors_count: usize) -> Result<Note<'static>, Malformed> {
        let note: Note<'static> = serde_json::from_slice(bytes).map_err(|_| Malformed)?;
        match note.is_sound(descriptors_count) {
            true => Ok(note),
            false => Err(Malformed),
        }
    }

    fn is_sound(&self, descriptors_count: usize) -> bool {
        let is_line =
            |text: &Option<Cow<'_, str>>| text.as_ref().is_none_or(|text| text.len() <= LINE_BYTES_MAX);
        let is_right_count = match self {
            Note::Batch(parcels) => descriptors_count == parcels.len(),
            Note::Listener { .. } => descriptors_count > 0,
            _ => descriptors_count == 0,
        };
        is_right_count
            && match self {
                Note::Listener { asked, .. } => is_line(asked),
                Note::Channels(channels) => {
                    let is_sound = |it: &Channel<'_>| is_name(&it.name) && it.group.len() <= GROUP_BYTES_MAX;
                    channels.len() <= LISTED_MAX && channels.iter().all(is_sound)
                }
                Note::Outbox(parcels) => {
                    parcels.len() <= LISTED_MAX && parcels.iter().all(|parcel| is_place(&parcel.place))
                }
                Note::Ready { bus, .. } => is_line(bus),
                Note::Messages(messages) => messages.len() <= LISTED_MAX,
                Note::Batch(parcels) => {
                    (1..=PARCELS_MAX).contains(&parcels.len()) && parcels.iter().all(|about| is_sound(about))
                }
                _ => true,
            }
    }
}

impl<'n> Data<'n> {
    pub(super) fn of(publication: &'n Publication) -> Data<'n> {
        Data {
            text: String::from_utf8_lossy(&publication.data),
            is_json: publication.is_json,
            event: publication.event.as_deref().map(Cow::Borrowed),
            key: publication.key.as_deref().map(Cow::Borrowed),
        }
    }

    pub(super) fn publication(self) -> Publication {
        Publication {
            data: self.text.into_owned().into(),
            is_json: self.is_json,
            event: self.event.map(|event| event.into()),
            key: self.key.map(|key| key.into()),
        }
    }
}

impl<'n> Unsent<'n> {
    /// `None` for what is not sent to other servers, and cannot be text.
    pub(super) fn of(parcel: &'n Parcel) -> Option<Unsent<'n>> {
        let is_purge = match parcel.topic {
            Topic::Push => false,
            Topic::Purge => true,
            Topic::Presence => return None,
        };
        let text = std::str::from_utf8(&parcel.bytes).ok()?;
        let (place, text) = (Cow::Borrowed(&*parcel.place), Cow::Borrowed(text));
        Some(Unsent { is_purge, number: parcel.number, place, text })
    }

    pub(super) fn parcel(self) -> Parcel {
        Parcel {
            topic: if self.is_purge { Topic::Purge } else { Topic::Push },
            number: self.number,
            place: self.place.into_owned(),
            bytes: self.text.into_owned().into(),
        }
    }
}

impl<'n> Channel<'n> {
    pub(super) fn of(channel: &'n flatout_push::ChannelSnapshot) -> Channel<'n> {
        Channel {
            group: Cow::Borrowed(&channel.group),
            name: Cow::Borrowed(&channel.name),
            history: HistoryRecord::of(channel.history),
            last_id: channel.last_id,
            holes: channel.holes.clone(),
            // A message too large to move is lost, with all before it.
            lost_id: unmoved(channel).max().unwrap_or(0).max(channel.lost_id),
        }
    }

    /// The channel, without messages.
    pub(super) fn channel(&self) -> flatout_push::ChannelSnapshot {
        flatout_push::ChannelSnapshot {
            group: (*self.group).into(),
            name: (*self.name).into(),
            history: self.history.history(),
            last_id: self.last_id,
            lost_id: self.lost_id,
            holes: self.holes.clone(),
            messages: Vec::new(),
        }
    }
}

/// Messages that are too large to move.
fn unmoved(channel: &flatout_push::ChannelSnapshot) -> impl Iterator<Item = u64> {
    let is_large = |message: &&std::sync::Arc<Message>| message.publication.data.len() > DATA_BYTES_MAX;
    channel.messages.iter().filter(is_large).map(|message| message.id)
}

/// The messages of these channels, each with its channel's number.
pub(super) fn listed(channels: &[flatout_push::ChannelSnapshot]) -> impl Iterator<Item = Listed<'_>> {
    channels.iter().enumerate().flat_map(|(number, channel)| {
        let lost_id = unmoved(channel).max().unwrap_or(0);
        let kept = channel.messages.iter().filter(move |message| message.id > lost_id);
        kept.map(move |message| Listed {
            channel: number,
            id: message.id,
            published_at: message.published_at,
            mark: message.mark,
            data: Data::of(&message.publication),
        })
    })
}

impl Listed<'_> {
    pub(super) fn message(self) -> Message {
        Message::new(self.id, self.published_at, self.data.publication()).marked(self.mark)
    }
}

impl HistoryRecord {
    pub(super) fn of(history: History) -> HistoryRecord {
        let History { kind, count, age } = history;
        HistoryRecord { is_latest: kind == Kind::Latest, count, age_ms: age.as_millis() as u64 }
    }

    pub(super) fn history(self) -> History {
        let kind = if self.is_latest { Kind::Latest } else { Kind::Log };
        History { kind, count: self.count, age: Duration::from_millis(self.age_ms) }
    }
}

impl Refusal {
    pub(super) fn of(refused: Refused) -> Refusal {
        match refused {
            Refused::Name => Refusal::Name,
            Refused::Text => Refusal::Text,
            Refused::TooLarge => Refusal::TooLarge,
            Refused::Full => Refusal::Full,
            Refused::Kind => Refusal::Kind,
            Refused::Removed => Refusal::Removed,
            Refused::Moving => Refusal::Moving,
        }
    }

    pub(super) fn refused(self) -> Refused {
        match self {
            Refusal::Name => Refused::Name,
            Refusal::Text => Refused::Text,
            Refusal::TooLarge => Refused::TooLarge,
            Refusal::Full => Refused::Full,
            Refusal::Kind => Refused::Kind,
            Refusal::Removed => Refused::Removed,
            Refusal::Moving => Refused::Moving,
        }
    }
}
