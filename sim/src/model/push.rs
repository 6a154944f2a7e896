//! What subscribers of channels must get: each message once, in the order of publication, or a gap event if messages are lost.

use std::sync::LazyLock;
use std::time::Duration;

use crate::scene::Scene;

/// The server measures ages in ticks.
const AGE_SLACK_NS: u64 = 500_000_000;

/// Channels of a run.
pub(crate) const CHANNELS: usize = 3;

/// Keys of latest values in a channel: each as many as it needs.
pub(crate) const KEYS: usize = 3;

/// The key of the message with this number.
pub(crate) fn key_name(number: usize) -> String {
    format!("key-{}", number % KEYS)
}

/// Where channels are.
pub(crate) const CHANNELS_PATH: &str = "/channels";

pub(crate) fn channel_name(channel: usize) -> String {
    format!("channel-{channel}")
}

/// A published message.
#[derive(Debug, Clone)]
struct Published {
    channel: usize,
    /// The message's id, which the server returns when it publishes. It is not known for messages of another server.
    id: Option<String>,
    /// It was published at this time at the earliest, and at the latest.
    at_ns: u64,
    until_ns: u64,
    /// It comes from another server, and never arrived.
    is_lost: bool,
    /// Its publisher does not know whether it was published.
    is_unsure: bool,
}

/// All messages, in their order.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    published: Vec<Published>,
    /// Of each channel the latest value of each key is kept, and nothing else.
    is_latest: bool,
    /// How many messages of each channel are kept, and how long.
    history: usize,
    age_ns: u64,
    /// Messages that had been published at the last upgrade.
    upgraded: usize,
    /// The last messages that are on their way to the server over HTTP: so many.
    in_flight: usize,
    /// The texts of messages that were published at the server, in their order; `None`: not all are known.
    own: Option<Vec<String>>,
    /// Nothing is published any more.
    pub(crate) has_ended: bool,
}

/// What a subscriber has got so far.
#[derive(Debug, Clone)]
pub(crate) struct Position {
    pub(crate) channels: Vec<usize>,
    /// All messages before this one, of all channels, were received or are not for it. `None`: those after a moment that is not known
    /// exactly.
    next: Option<usize>,
    /// That moment is between these two, as numbers of messages.
    from: usize,
    to: usize,
    /// When it got its last gap event.
    lost_at_ns: Option<u64>,
}

impl Channels {
    pub(crate) fn of(scene: &Scene) -> Channels {
        let (history, age) = scene.channels.map_or((0, Duration::ZERO), |it| (it.history, it.age));
        let is_latest = scene.channels.is_some_and(|channels| channels.is_latest);
        Channels {
            is_latest,
            history,
            age_ns: age.as_nanos() as u64,
            own: Some(Vec::new()),
            ..Channels::default()
        }
    }

    /// The text of the next message.
    pub(crate) fn next_text(&self, random: &mut fastrand::Rng) -> String {
        self.next_text_behind(0, random)
    }

    /// The text of the message behind so many others.
    pub(crate) fn next_text_behind(&self, others: usize, random: &mut fastrand::Rng) -> String {
        let length = match random.u8(..8) {
            0 => TEXT_BYTES_MAX,
            1 => random.usize(..4_000),
            _ => random.usize(..60),
        };
        text(self.published.len() + others, length)
    }

    /// A message was published.
    pub(crate) fn publish(&mut self, channel: usize, id: Option<String>, now_ns: u64) {
        let (at_ns, until_ns) = (now_ns, now_ns);
        self.published.push(Published { channel, id, at_ns, until_ns, is_lost: false, is_unsure: false });
    }

    /// A message was published at the server itself.
    pub(crate) fn note_own(&mut self, text: &str) {
        self.own.iter_mut().for_each(|own| own.push(text.to_owned()));
    }

    /// Nobody knows whether some messages were published at the server.
    pub(crate) fn forget_own(&mut self) {
        self.own = None;
    }

    /// The texts of messages that were published at the server, if all are known.
    pub(crate) fn own(&self) -> Option<&[String]> {
        self.own.as_deref()
    }

    /// Messages to these channels are sent to the server over HTTP. Nothing else is published until [`Channels::arrive`].
    pub(crate) fn send(&mut self, channels: impl Iterator<Item = usize>, now_ns: u64) {
        let before = self.published.len();
        channels.for_each(|channel| self.publish(channel, None, now_ns));
        self.in_flight = self.published.len() - before;
    }

    /// They were published under these ids. `None`: nobody knows.
    pub(crate) fn arrive(&mut self, ids: Option<Vec<String>>, now_ns: u64) {
        let first = self.surely_published();
        self.in_flight = 0;
        let is_unsure = ids.is_none();
        let mut ids = ids.into_iter().flatten();
        for message in &mut self.published[first..] {
            (message.id, message.until_ns, message.is_unsure) = (ids.next(), now_ns, is_unsure);
        }
    }

    /// The number of messages that are not on their way.
    fn surely_published(&self) -> usize {
        self.published.len() - self.in_flight
    }

    /// The server has noticed that a message of another server was lost.
    pub(crate) fn publish_lost(&mut self, channel: usize, now_ns: u64) {
        let (at_ns, until_ns) = (now_ns, now_ns);
        self.published.push(Published {
            channel,
            id: None,
            at_ns,
            until_ns,
            is_lost: true,
            is_unsure: false,
        });
    }

    /// A subscriber is about to ask.
    pub(crate) fn ask(&self, channels: Vec<usize>) -> Position {
        let (from, to) = (self.surely_published(), self.published.len());
        Position { channels, next: None, from, to, lost_at_ns: None }
    }

    /// A subscriber of latest values is about to ask for those that there are, and for all changes.
    pub(crate) fn ask_current(&self, channels: Vec<usize>) -> Position {
        Position { next: Some(0), from: 0, to: 0, ..self.ask(channels) }
    }

    /// The number of the next message.
    pub(crate) fn next_number(&self) -> usize {
        self.published.len()
    }

    /// Whether a later message has replaced this one.
    fn is_replaced(&self, at: usize) -> bool {
        let channel = self.published[at].channel;
        let mut later = self.published.iter().enumerate().skip(at + 1);
        self.is_latest
            && later.any(|(other, message)| message.channel == channel && (other - at).is_multiple_of(KEYS))
    }

    /// A new subscriber has the head of its response: it gets what is published from now on.
    pub(crate) fn joined(&self, position: &mut Position) {
        position.to = self.published.len();
    }

    /// Another server takes over. The former one does not get the messages from now on.
    pub(crate) fn upgrade(&mut self) {
        self.upgraded = self.surely_published();
    }

    /// The former server may have given a new subscriber its position, which is before messages of the new server.
    pub(crate) fn joined_former(&self, position: &mut Position) {
        position.from = position.from.min(self.upgraded);
    }

    /// It has joined at this time at the latest: after some of the messages of that moment.
    pub(crate) fn joined_until(&self, position: &mut Position, at_ns: u64) {
        position.to = self.published.partition_point(|message| message.at_ns <= at_ns).max(position.to);
    }

    /// A subscriber has got a message.
    pub(crate) fn received(&self, position: &mut Position, id: &str, got: &str) -> Result<(), String> {
        let number = got.strip_prefix("message ").and_then(|rest| rest.split_once(' ')?.0.parse().ok());
        let at = number.filter(|at: &usize| {
            let message = self.published.get(*at);
            message.is_some_and(|it| !it.is_lost && it.id.as_ref().is_none_or(|known| known == id))
        });
        let at = at.ok_or_else(|| format!("a subscriber got message {id}, which nobody published"))?;
        if got != text(at, got.len()) {
            return Err(format!("a subscriber got message {at} with other data"));
        }
        if !position.channels.contains(&self.published[at].channel) {
            return Err(format!("a subscriber got message {at} of a channel that it does not have"));
        }
        let first = position.next.unwrap_or(position.from);
        if at < first {
            return Err(format!("a subscriber got message {at} again, or after message {}", first - 1));
        }
        let surely = position.next.unwrap_or(position.to);
        let is_lost =
            |message: &Published| !message.is_unsure && position.channels.contains(&message.channel);
        let lost = (surely..at).find(|lost| is_lost(&self.published[*lost]) && !self.is_replaced(*lost));
        if let Some(lost) = lost {
            // One gap event covers all channels of the subscriber.
            let Some(lost_at_ns) = position.lost_at_ns else {
                return Err(format!("a subscriber got message {at}, but not message {lost}"));
            };
            if !self.may_be_lost(lost, lost_at_ns) {
                return Err(format!(
                    "a subscriber got message {at}, but not message {lost}, which was still in its channel at the last gap event"
                ));
            }
        }
        position.next = Some(at + 1);
        Ok(())
    }

    /// A subscriber has got a gap event.
    pub(crate) fn lose(&self, position: &mut Position, now_ns: u64) {
        position.lost_at_ns = Some(now_ns);
    }

    /// Whether a channel may have dropped a message by now: the message is too old, or there are enough newer ones.
    fn may_be_lost(&self, at: usize, now_ns: u64) -> bool {
        let lost = &self.published[at];
        if lost.is_lost {
            return lost.at_ns <= now_ns;
        }
        let behind = self.published[at + 1..].iter().filter(|other| other.channel == lost.channel).count();
        behind >= self.history || now_ns + AGE_SLACK_NS >= lost.at_ns + self.age_ns
    }

    /// The first message that a subscriber surely gets and has not got, and when it was published.
    pub(crate) fn awaited(&self, position: &Position) -> Option<(usize, u64)> {
        let first = position.next.unwrap_or(position.to);
        let is_lost = |at: usize| {
            let is_in_gap = position.lost_at_ns.is_some_and(|lost_ns| self.may_be_lost(at, lost_ns));
            is_in_gap || self.published[at].is_lost || self.is_replaced(at)
        };
        let sure = &self.published[..self.surely_published()];
        let mut rest = sure.iter().enumerate().skip(first).filter(|(_, message)| !message.is_unsure);
        let (at, message) =
            rest.find(|(at, message)| position.channels.contains(&message.channel) && !is_lost(*at))?;
        Some((at, message.until_ns))
    }
}

/// The longest message.
const TEXT_BYTES_MAX: usize = 60_000;

/// After so many characters the digits of messages repeat.
const DIGITS_PERIOD: usize = 50;

/// The digits of all messages: each begins at one of the first characters.
static DIGITS: LazyLock<String> = LazyLock::new(|| {
    let digit = |at: usize| match at % DIGITS_PERIOD {
        // Lines are sent one by one.
        0 => '\n',
        other => char::from(b'0' + (other * 7 % 10) as u8),
    };
    (0..DIGITS_PERIOD + TEXT_BYTES_MAX).map(digit).collect()
});

/// The data of a message: its number, and digits that follow from it.
fn text(number: usize, length: usize) -> String {
    let begin = format!("message {number} ");
    let rest = length.saturating_sub(begin.len()).min(TEXT_BYTES_MAX);
    begin + &DIGITS[number % DIGITS_PERIOD..][..rest]
}
