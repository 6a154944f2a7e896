//! The messages that a worker gets for its subscribers.

use std::sync::Arc;

use super::message::Message;

/// The result of [`Hub::fetch`](crate::Hub::fetch).
#[derive(Debug, Default)]
pub struct Fetched {
    /// With the channels' names, in order of ids.
    pub messages: Vec<(Arc<str>, Arc<Message>)>,
    /// All messages up to this id are included.
    pub up_to: u64,
    /// Messages before the first of them are lost.
    pub has_gap: bool,
    /// More messages follow.
    pub has_more: bool,
}

impl Fetched {
    /// Ends before the first of these ids at which messages are missing, or begins there with a gap.
    pub(super) fn end_at_hole(&mut self, mut holes: Vec<u64>) {
        let first = self.messages.iter().map(|(_, message)| message.id).min().unwrap_or(u64::MAX);
        holes.retain(|hole| {
            self.has_gap |= *hole < first;
            *hole > first
        });
        if let Some(hole) = holes.into_iter().min() {
            self.up_to = self.up_to.min(hole - 1);
            self.has_more = true;
        }
    }

    /// Sorts them, and keeps as many as the limit allows.
    pub(super) fn bound(&mut self, bytes_max: usize) {
        let up_to = self.up_to;
        self.messages.retain(|(_, message)| message.id <= up_to);
        self.messages.sort_unstable_by_key(|(_, message)| message.id);
        let mut bytes = 0;
        let fits = self.messages.iter().take_while(|(_, message)| {
            bytes += message.publication.data.len();
            bytes <= bytes_max
        });
        let count = fits.count().max(1);
        if count < self.messages.len() {
            self.messages.truncate(count);
            self.up_to = self.messages.last().map_or(up_to, |(_, message)| message.id);
            self.has_more = true;
        }
    }
}
