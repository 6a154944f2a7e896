//! A subscriber, and a worker's list of the subscribers of one channel.
//!
//! An idle subscriber consists of its entry here, its guest in the lane, the permit that counts its connection, and
//! four bytes in its channel's list. Everything else is created on demand.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{ConnectionPermit, GuestKey, bug};
use flatout_lane::slab::{Key, Slab};
use flatout_wire::websocket::Reader;

use super::message::{FORMATS_COUNT, Format, Message};
use super::plan::Plan;
use super::token::Expiry;

/// A connection that receives messages.
pub(super) struct Subscriber {
    pub(super) guest: GuestKey,
    pub(super) _seat: ConnectionPermit,
    /// The channel, or the first of several.
    pub(super) channel: u32,
    /// Its position in that channel's list.
    pub(super) at: u32,
    pub(super) more: Option<Box<More>>,
    /// When its token expires.
    pub(super) expiry: Expiry,
    pub(super) format: Format,
    pub(super) was_pinged: bool,
    /// It has its client's own socket, so that it can move to another process.
    pub(super) is_direct: bool,
    /// It has left its channels, and gets what is said to it last.
    pub(super) is_leaving: bool,
}

/// An idle subscriber must be small: with its slot it takes 56 bytes.
const _: () = assert!(size_of::<Subscriber>() <= 48);

/// The state that only some subscribers have.
#[derive(Default)]
pub(super) struct More {
    /// The other channels, and its positions in their lists.
    pub(super) others: Vec<(u32, u32)>,
    /// Set if it does not take part in the walks.
    pub(super) late: Option<Late>,
    /// The address for the per-address limit.
    pub(super) address: Option<IpAddr>,
    /// The partial input of its WebSocket.
    pub(super) input: Option<(Reader, Vec<u8>)>,
}

/// The position of a subscriber outside the walks.
#[derive(Default)]
pub(super) struct Late {
    /// All messages up to this id were sent, or are in `rest`.
    pub(super) cursor: u64,
    /// The unsent rest of a message.
    pub(super) rest: Bytes,
    /// Messages missed since its socket was full.
    pub(super) behind: u32,
    pub(super) is_blocked: bool,
    /// It was blocked at its last heartbeat.
    pub(super) was_blocked: bool,
}

/// A worker's state of one channel.
pub(super) struct Local {
    pub(super) plan: Arc<Plan>,
    /// Subscribers.
    pub(super) list: Vec<Key>,
    pub(super) pollers: std::collections::HashSet<Key>,
    /// All messages up to this id were delivered, or are being delivered.
    pub(super) sent: u64,
    pub(super) walk: Option<Walk>,
    /// It is queued for delivery.
    pub(super) is_queued: bool,
}

/// A delivery to all subscribers, from the end of the list to its start: new subscribers are appended, so the walk
/// does not visit them.
pub(super) struct Walk {
    pub(super) name: std::sync::Arc<str>,
    pub(super) messages: Vec<std::sync::Arc<Message>>,
    /// All messages up to this id were delivered before.
    pub(super) from: u64,
    pub(super) has_gap: bool,
    /// The subscribers before this position have not been visited yet.
    pub(super) at: usize,
    pub(super) began_ns: u64,
    /// By [`Format`].
    pub(super) blobs: [Option<Blob>; FORMATS_COUNT],
}

/// Messages encoded for one transport, and the end of each.
#[derive(Clone)]
pub(super) struct Blob {
    pub(super) bytes: Bytes,
    pub(super) ends: Rc<[(u64, usize)]>,
}

impl Blob {
    /// The rest of the message in which `sent` bytes end, and the last id that is complete including it.
    pub(super) fn rest(&self, sent: usize, before: u64) -> (Bytes, u64) {
        let at = self.ends.partition_point(|(_, end)| *end <= sent);
        let begins = at.checked_sub(1).and_then(|at| self.ends.get(at));
        match (begins, self.ends.get(at)) {
            // Complete messages: there is no rest.
            (Some((id, end)), _) if *end == sent => (Bytes::new(), *id),
            (_, Some((id, end))) if sent > 0 => (self.bytes.slice(sent..*end), *id),
            _ => (Bytes::new(), before),
        }
    }

    /// The same, for a subscriber that keeps the rest. A single message is shared by all of them; of several, the rest is
    /// copied, so that it does not keep the others in memory.
    pub(super) fn rest_to_keep(&self, sent: usize, before: u64) -> (Bytes, u64) {
        let (rest, id) = self.rest(sent, before);
        match self.ends.len() {
            1 => (rest, id),
            _ => (Bytes::copy_from_slice(&rest), id),
        }
    }
}

impl Local {
    pub(super) fn new(plan: Arc<Plan>, sent: u64) -> Local {
        Local { plan, list: Vec::new(), pollers: Default::default(), sent, walk: None, is_queued: false }
    }

    pub(super) fn is_unused(&self) -> bool {
        self.list.is_empty() && self.pollers.is_empty()
    }

    /// The long polls that wait, which are not listed any more. Their order is that of their keys: the same events must
    /// have the same results, and the order of a set differs from one to the next.
    pub(super) fn take_pollers(&mut self) -> Vec<Key> {
        let mut pollers: Vec<Key> = self.pollers.drain().collect();
        pollers.sort_unstable_by_key(|poller| poller.to_u64());
        pollers
    }

    /// The last id that the subscriber at this position has, if it takes part in walks.
    pub(super) fn reached(&self, at: u32) -> u64 {
        match &self.walk {
            Some(walk) if !self.was_visited(at) => walk.from,
            _ => self.sent,
        }
    }

    /// Whether the walk has passed this position, or there is no walk.
    pub(super) fn was_visited(&self, at: u32) -> bool {
        self.walk.as_ref().is_none_or(|walk| at as usize >= walk.at)
    }
}

impl Subscriber {
    pub(super) fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    pub(super) fn late(&mut self) -> Option<&mut Late> {
        self.more.as_mut()?.late.as_mut()
    }

    /// Whether it has several channels.
    pub(super) fn has_several(&self) -> bool {
        self.more.as_ref().is_some_and(|more| !more.others.is_empty())
    }

    /// Its channels, and its positions in their lists.
    pub(super) fn places(&self) -> Vec<(u32, u32)> {
        let others = self.more.iter().flat_map(|more| more.others.iter().copied());
        std::iter::once((self.channel, self.at)).chain(others).collect()
    }

    fn moved(&mut self, channel: u32, at: u32) {
        if self.channel == channel {
            self.at = at;
        } else if let Some(more) = &mut self.more
            && let Some((_, place)) = more.others.iter_mut().find(|(other, _)| *other == channel)
        {
            *place = at;
        } else {
            bug!("a subscriber is in the list of channel {channel}, which it does not have");
        }
    }
}

/// Removes the subscriber at this position from a list. A visited subscriber is not moved to a position that is still
/// to be visited.
pub(super) fn take_out(channel: u32, local: &mut Local, at: u32, subscribers: &mut Slab<Subscriber>) {
    let mut at = at as usize;
    if let Some(walk) = &mut local.walk
        && at < walk.at
    {
        walk.at -= 1;
        move_to(channel, &mut local.list, walk.at, at, subscribers);
        at = walk.at;
    }
    let last = local.list.len().saturating_sub(1);
    move_to(channel, &mut local.list, last, at, subscribers);
    local.list.truncate(last);
}

fn move_to(channel: u32, list: &mut [Key], from: usize, to: usize, subscribers: &mut Slab<Subscriber>) {
    if from == to {
        return;
    }
    let (Some(key), true) = (list.get(from).copied(), to < list.len()) else {
        return bug!("place {from} or {to} is not among the {} subscribers of channel {channel}", list.len());
    };
    list[to] = key;
    match subscribers.get_mut(key) {
        Some(subscriber) => subscriber.moved(channel, to as u32),
        None => bug!("a subscriber that has ended is in the list of channel {channel}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_full_keeps_to_the_ends_of_messages() {
        let blob = Blob { bytes: Bytes::from_static(b"aaabbbbcc"), ends: [(5, 3), (7, 7), (9, 9)].into() };
        for (sent, rest, id) in [(0, "", 4), (1, "aa", 5), (3, "", 5), (4, "bbb", 7), (7, "", 7), (8, "c", 9)]
        {
            assert_eq!(blob.rest(sent, 4), (Bytes::from(rest), id), "{sent}");
        }
    }

    #[test]
    fn polls_of_a_channel_are_due_in_the_order_of_their_keys() {
        let mut local = Local::new(Default::default(), 0);
        let keys: Vec<Key> = (1..100).map(Key::from_u64).collect();
        local.pollers.extend(keys.iter().rev().copied());
        assert_eq!(local.take_pollers(), keys);
        assert!(local.is_unused());
    }

    #[test]
    fn slow_subscribers_share_a_single_message() {
        let one = Blob { bytes: Bytes::from_static(b"aaa"), ends: [(5, 3)].into() };
        let several = Blob { bytes: Bytes::from_static(b"aaabbbb"), ends: [(5, 3), (7, 7)].into() };
        for (blob, is_shared) in [(one, true), (several, false)] {
            let (rest, id) = blob.rest_to_keep(1, 4);
            assert_eq!((&rest[..], id), (&b"aa"[..], 5));
            assert_eq!(rest.as_ptr() == blob.bytes[1..].as_ptr(), is_shared);
        }
    }
}
