//! Delivers messages to subscribers.
//!
//! ```text
//! walk: the list of a channel, in slices, the same bytes to each      catch up: one subscriber, out of the history
//!       └─ one whose socket is full, or that has several channels ──────^
//! ```

use bytes::Bytes;
use flatout_engine::{Moved, bug};
use flatout_lane::slab::Key;
use flatout_lane::{clock, limit};
use flatout_wire::websocket::{Opcode, write_frame};

use super::hub::Fetched;
use super::message::{Format, Id};
use super::plan::Kind;
use super::subscriber::{Blob, Late, Walk};
use super::worker::{WorkerChannels, WorkerState, is_websocket};

/// How long deliveries run before requests get their turn.
const WALK_NS_MAX: u64 = 1_000_000;

/// Subscribers visited between two reads of the clock. A simulation has few.
const VISITS_PER_LOOK: usize = if cfg!(feature = "simulation") { 1 } else { 32 };

/// Bytes fetched from the history at a time.
const FETCHED_BYTES_MAX: usize = 256 << 10;

/// Fetches for one subscriber before others get their turn.
const FETCHES_PER_CALL: usize = 4;

impl WorkerChannels {
    /// Continues deliveries, for at most one time slice.
    pub(super) fn walk(&self, state: &mut WorkerState) {
        let ends_ns = clock::nanoseconds() + WALK_NS_MAX;
        let mut delivered = 0;
        while let Some(channel) = state.walks.pop_front() {
            let is_over = self.walk_on(state, channel, &mut delivered);
            match state.locals.get_mut(&channel) {
                Some(local) if is_over => {
                    local.is_queued = false;
                    if local.is_unused() {
                        state.locals.remove(&channel);
                    }
                }
                Some(_) => state.walks.push_back(channel),
                None => bug!("channel {channel} was dropped while it was queued for delivery"),
            }
            if clock::is_over(ends_ns) {
                break;
            }
        }
        while !clock::is_over(ends_ns)
            && let Some(poller) = state.due.pop_front()
        {
            self.answer_poll(state, poller);
        }
        if delivered > 0 {
            self.hub.0.figures.delivered.add(delivered);
        }
        if !(state.walks.is_empty() && state.due.is_empty()) {
            self.schedule_tick();
        }
    }

    /// Visits some subscribers of a channel. Returns whether there is nothing left to deliver.
    fn walk_on(&self, state: &mut WorkerState, channel: u32, delivered: &mut u64) -> bool {
        // A channel is not dropped while it is queued; the caller reports it.
        let Some(local) = state.locals.get_mut(&channel) else { return true };
        if local.walk.is_none() {
            let fetched = self.hub.fetch(&[channel], local.sent, u64::MAX, limit::bytes(FETCHED_BYTES_MAX));
            let from = local.sent;
            local.sent = fetched.up_to.max(from);
            // A subscriber with several channels may wait for a channel that this worker has not examined.
            let has_news = !fetched.messages.is_empty() || fetched.has_gap;
            if !has_news {
                return true;
            }
            state.due.extend(local.take_pollers());
            local.walk = Some(Walk {
                name: fetched.messages.first().map_or_else(|| "".into(), |(name, _)| name.clone()),
                messages: fetched.messages.into_iter().map(|(_, message)| message).collect(),
                from,
                has_gap: fetched.has_gap && local.plan.history.kind == Kind::Log,
                at: local.list.len(),
                began_ns: clock::nanoseconds(),
                blobs: Default::default(),
            });
        }
        for _ in 0..VISITS_PER_LOOK {
            let walk = state.locals.get_mut(&channel).and_then(|local| local.walk.as_mut());
            let Some(walk) = walk else {
                bug!("the delivery of channel {channel} was dropped while it was in progress");
                return true;
            };
            let Some(at) = walk.at.checked_sub(1) else {
                let took_ms = (clock::nanoseconds() - walk.began_ns) / 1_000_000;
                self.hub.0.figures.lag_ms.store(took_ms, std::sync::atomic::Ordering::Relaxed);
                if let Some(local) = state.locals.get_mut(&channel) {
                    local.walk = None;
                }
                // If something was published meanwhile, the channel is listed again, or the next look finds it.
                return false;
            };
            walk.at = at;
            self.visit(state, channel, at, delivered);
        }
        false
    }

    /// Delivers the walk's messages to the subscriber at this place.
    fn visit(&self, state: &mut WorkerState, channel: u32, at: usize, delivered: &mut u64) {
        let WorkerState { locals, subscribers, .. } = state;
        let visited = locals.get_mut(&channel).and_then(|local| {
            let key = *local.list.get(at)?;
            Some((key, subscribers.get_mut(key)?, local.walk.as_mut()?, &local.plan))
        });
        let Some((key, subscriber, walk, plan)) = visited else {
            return bug!("place {at} of channel {channel} has no subscriber");
        };
        let count = walk.messages.len();
        if let Some(late) = subscriber.late() {
            if !late.is_blocked {
                return self.catch_up(state, key);
            }
            late.behind = late.behind.saturating_add(count as u32);
            self.hub.0.figures.delayed.add(count as u64);
            if plan.history.kind == Kind::Log && late.behind > plan.lag_max {
                self.hub.0.figures.dropped.add(1);
                self.disconnect(state, key, 1013, "too far behind");
            }
            return;
        }
        let blob = self.blob(walk, subscriber.format);
        match self.lane.send_shared(subscriber.guest, &blob.bytes) {
            Moved::Bytes(sent) if sent == blob.bytes.len() => *delivered += count as u64,
            Moved::Bytes(sent) => {
                let (rest, cursor) = blob.rest_to_keep(sent, walk.from);
                let late = Late { cursor, rest, is_blocked: true, ..Late::default() };
                subscriber.more().late = Some(late);
                // The socket accepted only a part, so an event will report when it has room.
                self.hub.0.figures.delayed.add(1);
            }
            Moved::WouldBlock => {
                let late =
                    Late { cursor: walk.from, is_blocked: true, behind: count as u32, ..Late::default() };
                subscriber.more().late = Some(late);
                self.hub.0.figures.delayed.add(count as u64);
            }
            Moved::Broken => self.end(state, key),
        }
    }

    /// The walk's messages, encoded once for each transport.
    fn blob(&self, walk: &mut Walk, format: Format) -> Blob {
        let Walk { name, messages, from, has_gap, blobs, .. } = walk;
        let blob = blobs[format as usize].get_or_insert_with(|| {
            let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(messages.len() + 1));
            if *has_gap {
                self.write_gap(format, *from, &mut bytes);
                ends.push((*from, bytes.len()));
            }
            for message in messages {
                message.write(format, name, self.hub.epoch(), &mut bytes);
                ends.push((message.id, bytes.len()));
            }
            Blob { bytes: bytes.into(), ends: ends.into() }
        });
        blob.clone()
    }

    /// Sends a subscriber the messages that it lacks, while its socket has room. One that has caught up joins the
    /// walk.
    pub(super) fn catch_up(&self, state: &mut WorkerState, key: Key) {
        for _ in 0..FETCHES_PER_CALL {
            match self.catch_up_once(state, key) {
                CatchUp::More => {}
                CatchUp::Up | CatchUp::Blocked => return,
                CatchUp::Broken => return self.end(state, key),
            }
        }
        if let Some(subscriber) = state.subscribers.get_mut(key) {
            self.lane.call_again(subscriber.guest);
        }
    }

    fn catch_up_once(&self, state: &mut WorkerState, key: Key) -> CatchUp {
        // It may have ended since it was called again.
        let Some(subscriber) = state.subscribers.get_mut(key) else { return CatchUp::Up };
        let (guest, format, channel, at) =
            (subscriber.guest, subscriber.format, subscriber.channel, subscriber.at);
        let (is_leaving, has_several) = (subscriber.is_leaving, subscriber.has_several());
        // One that has caught up takes part in the walks.
        let Some(more) = &mut subscriber.more else { return CatchUp::Up };
        let Some(late) = &mut more.late else { return CatchUp::Up };
        if late.is_blocked {
            return CatchUp::Blocked;
        }
        if !late.rest.is_empty() {
            match self.lane.send_shared(guest, &late.rest) {
                Moved::Bytes(sent) if sent == late.rest.len() => late.rest = Bytes::new(),
                Moved::Bytes(sent) => {
                    late.rest = late.rest.slice(sent..);
                    late.is_blocked = true;
                    return CatchUp::Blocked;
                }
                Moved::WouldBlock => {
                    late.is_blocked = true;
                    return CatchUp::Blocked;
                }
                Moved::Broken => return CatchUp::Broken,
            }
        }
        if is_leaving {
            // The closing frame was sent.
            return CatchUp::Broken;
        }
        late.behind = 0;
        late.was_blocked = false;
        let Some(local) = state.locals.get(&channel) else {
            bug!("channel {channel} was dropped while it had a subscriber");
            return CatchUp::Broken;
        };
        let is_log = local.plan.history.kind == Kind::Log;
        let fetched = if has_several {
            let channels: Vec<u32> =
                std::iter::once(channel).chain(more.others.iter().map(|(channel, _)| *channel)).collect();
            self.hub.fetch(&channels, late.cursor, u64::MAX, limit::bytes(FETCHED_BYTES_MAX))
        } else if late.cursor < local.sent {
            self.hub.fetch(&[channel], late.cursor, local.sent, limit::bytes(FETCHED_BYTES_MAX))
        } else {
            Fetched { up_to: late.cursor, ..Fetched::default() }
        };
        let has_gap = fetched.has_gap && is_log && late.cursor > 0;
        if fetched.messages.is_empty() && !has_gap {
            late.cursor = fetched.up_to.max(late.cursor);
            if !has_several && late.cursor == local.sent && local.was_visited(at) {
                more.late = None;
                if more.address.is_none() && more.input.is_none() {
                    subscriber.more = None;
                }
            }
            return CatchUp::Up;
        }
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(fetched.messages.len() + 1));
        if has_gap {
            self.write_gap(format, late.cursor, &mut bytes);
            ends.push((late.cursor, bytes.len()));
        }
        for (name, message) in &fetched.messages {
            message.write(format, name, self.hub.epoch(), &mut bytes);
            ends.push((message.id, bytes.len()));
        }
        let (length, before) = (bytes.len(), late.cursor);
        let moved = self.lane.send(guest, &bytes);
        match moved {
            Moved::Bytes(sent) if sent == length => {
                late.cursor = fetched.up_to;
                self.hub.0.figures.delivered.add(fetched.messages.len() as u64);
                CatchUp::More
            }
            Moved::Broken => CatchUp::Broken,
            Moved::Bytes(_) | Moved::WouldBlock => {
                let sent = if let Moved::Bytes(sent) = moved { sent } else { 0 };
                let blob = Blob { bytes: bytes.into(), ends: ends.into() };
                let (rest, cursor) = blob.rest(sent, before);
                // Copy the rest, so that it does not keep all fetched messages in memory.
                (late.rest, late.cursor, late.is_blocked) = (Bytes::copy_from_slice(&rest), cursor, true);
                CatchUp::Blocked
            }
        }
    }

    /// Reports that messages after `after` are lost.
    pub(super) fn send_gap(&self, state: &mut WorkerState, key: Key, after: u64) {
        let late = state.subscribers.get_mut(key).and_then(|it| Some((it.format, it.late()?)));
        let Some((format, late)) = late else {
            return bug!("a subscriber that begins with a gap takes part in the walks");
        };
        let mut rest = late.rest.to_vec();
        self.write_gap(format, after, &mut rest);
        late.rest = rest.into();
    }

    fn write_gap(&self, format: Format, after: u64, out: &mut Vec<u8>) {
        self.hub.0.figures.gaps.add(1);
        let id = Id { epoch: self.hub.epoch(), id: after };
        let json = format!("{{\"gap\":true,\"after\":\"{id}\"}}");
        match is_websocket(format) {
            true => write_frame(Opcode::Text, false, json.as_bytes(), None, out),
            false => out.extend_from_slice(format!("event: gap\ndata: {json}\n\n").as_bytes()),
        }
    }
}

/// The result of catching up.
enum CatchUp {
    /// There may be more.
    More,
    /// It has all messages.
    Up,
    /// Its socket is full.
    Blocked,
    /// Its connection is closed, or it got its last message.
    Broken,
}
