//! What subscribers of channels must get: each message once, in the order in which they were published, or the word that some are lost.

use std::sync::LazyLock;

/// Channels of a run.
pub(crate) const CHANNELS: usize = 3;

/// Where channels are.
pub(crate) const CHANNELS_PATH: &str = "/channels";

pub(crate) fn channel_name(channel: usize) -> String {
    format!("channel-{channel}")
}

/// A published message.
#[derive(Debug, Clone)]
struct Published {
    channel: usize,
    /// The server's name for it.
    id: String,
    at_ns: u64,
}

/// All messages, in their order.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    published: Vec<Published>,
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
}

impl Channels {
    /// The text of the next message.
    pub(crate) fn next_text(&self, random: &mut fastrand::Rng) -> String {
        let length = match random.u8(..8) {
            0 => TEXT_BYTES_MAX,
            1 => random.usize(..4_000),
            _ => random.usize(..60),
        };
        text(self.published.len(), length)
    }

    /// A message was published.
    pub(crate) fn publish(&mut self, channel: usize, id: String, now_ns: u64) {
        self.published.push(Published { channel, id, at_ns: now_ns });
    }

    /// A subscriber is about to ask.
    pub(crate) fn ask(&self, channels: Vec<usize>) -> Position {
        let count = self.published.len();
        Position { channels, next: None, from: count, to: count }
    }

    /// A new subscriber has the head of its response: it gets what is published from now on.
    pub(crate) fn joined(&self, position: &mut Position) {
        position.to = self.published.len();
    }

    /// It has joined at this time at the latest: after some of the messages of that moment.
    pub(crate) fn joined_until(&self, position: &mut Position, at_ns: u64) {
        position.to = self.published.partition_point(|message| message.at_ns <= at_ns).max(position.to);
    }

    /// A subscriber has got a message, after the word that some are lost if `has_gap`.
    pub(crate) fn received(
        &self,
        position: &mut Position,
        id: &str,
        got: &str,
        has_gap: bool,
        history: usize,
    ) -> Result<(), String> {
        let at = self.published.iter().position(|message| message.id == id);
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
        let lost = (surely..at).find(|lost| position.channels.contains(&self.published[*lost].channel));
        if let Some(lost) = lost {
            let channel = self.published[lost].channel;
            let behind =
                self.published[lost + 1..].iter().filter(|message| message.channel == channel).count();
            if !has_gap {
                return Err(format!("a subscriber got message {at}, but not message {lost}"));
            }
            if behind < history {
                return Err(format!(
                    "a subscriber was told that message {lost} is lost, but there are only {behind} newer ones in its channel"
                ));
            }
        }
        position.next = Some(at + 1);
        Ok(())
    }

    /// The first message that a subscriber surely gets and has not got, and when it was published.
    pub(crate) fn awaited(&self, position: &Position) -> Option<(usize, u64)> {
        let first = position.next.unwrap_or(position.to);
        let mut rest = self.published.iter().enumerate().skip(first);
        let (at, message) = rest.find(|(_, message)| position.channels.contains(&message.channel))?;
        Some((at, message.at_ns))
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
