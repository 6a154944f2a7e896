//! One worker's subscribers.
//!
//! Each is a guest of the lane: no task, no exchange, and no queue while it keeps up. A slow subscriber gets missed
//! messages from the history, so only its position is stored.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::{
    Carrier, ConnectionPermit, DetachedConnection, ExchangeKey, GuestEvent, GuestKey, Guests, Lane, Ready,
    bug, request_random, say,
};
use flatout_lane::clock;
use flatout_lane::poll::Wake;
use flatout_lane::slab::{Cursor, Key, Slab};
use flatout_wire::Status;
use flatout_wire::websocket::{Opcode, close_payload, write_frame};

use super::figures::Count;
use super::hub::{Hub, NotJoined};
use super::message::Format;
use super::plan::Plan;
use super::poll::Poller;
use super::serve::DelayedResponse;
use super::subscriber::{Late, Local, More, Subscriber, take_out};
use super::token::Expiry;

/// The tag of the guest through which other threads wake this worker.
const TICKER: u64 = u64::MAX;

/// The code of subscriptions whose channels were removed: going away (RFC 6455 section 7.4.1).
const CLOSE_REMOVED: u16 = 1001;

/// The same in words, also for long polls.
const REMOVED: &str = "these channels were removed";

/// The code of subscriptions whose token has expired: unauthorized, of the registry of close codes.
const CLOSE_EXPIRED: u16 = 3000;

/// The same in words.
pub(super) const TOKEN_EXPIRED: &str = "the token has expired";

/// A worker's part of all channels. All services of a worker share it.
pub struct WorkerChannels {
    pub(super) me: Weak<WorkerChannels>,
    pub(super) lane: Lane,
    pub(super) hub: Hub,
    pub(super) worker: usize,
    pub(super) ticker: Option<GuestKey>,
    /// Where its random times come from.
    random: [u64; 2],
    pub(super) state: RefCell<WorkerState>,
}

#[derive(Default)]
pub(super) struct WorkerState {
    pub(super) subscribers: Slab<Subscriber>,
    pub(super) locals: HashMap<u32, Local>,
    /// Channels with messages to deliver, each once.
    pub(super) walks: VecDeque<u32>,
    pub(super) pollers: Slab<Poller>,
    pub(super) pollers_by_exchange: HashMap<ExchangeKey, Key>,
    /// Long polls that can be answered.
    pub(super) due: VecDeque<Key>,
    random_count: u64,
    /// New subscribers would be disconnected at once.
    pub(super) is_draining: bool,
    /// Waiting publish requests, and the format of their responses.
    pub(super) delayed_responses: HashMap<ExchangeKey, DelayedResponse>,
    /// The position in the table where the next subscribers to move are searched.
    pub(super) give_from: Cursor,
    /// The plan of the subscriber that was adopted last from another process.
    pub(super) adopted: Option<Arc<Plan>>,
}

/// A reserved place among a channel's subscribers; released if the subscriber never arrives.
pub(super) struct Ticket {
    hub: Hub,
    worker: usize,
    pub(super) channels: Vec<u32>,
    pub(super) address: Option<IpAddr>,
    /// The last message id when it was reserved.
    pub(super) tip: u64,
    is_used: bool,
}

/// The start position of a subscriber.
pub(super) struct StartPosition {
    pub(super) ticket: Ticket,
    pub(super) plan: Arc<Plan>,
    pub(super) format: Format,
    /// It has all messages up to this id.
    pub(super) cursor: u64,
    /// It asked for messages that are not known.
    pub(super) has_gap: bool,
    /// When its token expires.
    pub(super) expiry: Expiry,
}

/// A connection that becomes a subscriber.
pub(super) struct NewConnection<'a> {
    pub(super) carrier: Carrier,
    pub(super) seat: ConnectionPermit,
    pub(super) is_direct: bool,
    /// Bytes sent before messages.
    pub(super) first: Vec<u8>,
    /// Bytes already received from the client.
    pub(super) read: &'a [u8],
}

impl Ticket {
    /// For a place reserved at the hub.
    pub(super) fn new(
        hub: &Hub,
        worker: usize,
        channels: Vec<u32>,
        address: Option<IpAddr>,
        tip: u64,
    ) -> Ticket {
        Ticket { hub: hub.clone(), worker, channels, address, tip, is_used: false }
    }
}

impl WorkerState {
    /// A channel on this worker, to be checked soon: something may have been published since the place was reserved.
    pub(super) fn local(&mut self, channel: u32, plan: &Arc<Plan>, tip: u64) -> &mut Local {
        let local = self.locals.entry(channel).or_insert_with(|| Local::new(plan.clone(), tip));
        // The former one may be left of another channel with this number, or of the same before a reload.
        if !Arc::ptr_eq(&local.plan, plan) {
            local.plan = plan.clone();
        }
        if !std::mem::replace(&mut local.is_queued, true) {
            self.walks.push_back(channel);
        }
        local
    }
}

impl WorkerChannels {
    /// This worker's part; made on its thread.
    pub fn new(hub: &Hub, lane: &Lane) -> Rc<WorkerChannels> {
        let wake = Wake::new().ok().map(Arc::new);
        let descriptor = wake.as_ref().and_then(|wake| wake.as_fd().try_clone_to_owned().ok());
        let number = wake.map_or(usize::MAX, |wake| hub.enroll(wake));
        let channels = Rc::new_cyclic(|me: &Weak<WorkerChannels>| WorkerChannels {
            me: me.clone(),
            lane: lane.clone(),
            hub: hub.clone(),
            worker: number,
            // The guest's owner is a weak reference: the lane must not keep them alive.
            ticker: descriptor
                .and_then(|descriptor| lane.register(descriptor, Rc::new(Ticker(me.clone())), TICKER).ok()),
            random: request_random(0),
            state: RefCell::default(),
        });
        if channels.ticker.is_none() {
            hub.remove_worker(number);
            say(format_args!("a worker has no descriptor for its channels: it refuses subscribers with 503"));
        }
        channels
    }

    /// Reserves a place for a subscriber.
    pub(super) fn reserve(
        &self,
        names: &[String],
        plan: &Plan,
        address: Option<IpAddr>,
    ) -> Result<Ticket, NotJoined> {
        if self.ticker.is_none() || self.state.borrow().is_draining {
            return Err(NotJoined::Full);
        }
        let address = address.filter(|_| plan.per_address_max.is_some());
        let (channels, tip) = self.hub.join(self.worker, names, plan, address)?;
        Ok(Ticket::new(&self.hub, self.worker, channels, address, tip))
    }

    /// A random number between `from` and twice that.
    pub(super) fn jittered(&self, from: Duration) -> Duration {
        let mut state = self.state.borrow_mut();
        state.random_count += 1;
        let mut hasher = DefaultHasher::new();
        (self.random, state.random_count).hash(&mut hasher);
        let random = hasher.finish() % 1000;
        from + from.mul_f64(random as f64 / 1000.0)
    }

    /// A connection that has left HTTP becomes a subscriber.
    pub(super) fn open(&self, beginning: StartPosition, taken: DetachedConnection) {
        let DetachedConnection { carrier, read, permit: seat, is_direct, .. } = taken;
        let first = match is_websocket(beginning.format) {
            true => Vec::new(),
            false => self.preamble(&beginning.plan),
        };
        let entered = self.enter(beginning, NewConnection { carrier, seat, is_direct, first, read: &read });
        self.end_if_draining(entered);
        self.end_if_removed(entered);
    }

    /// The same for a connection that may already have been a subscriber. Returns its key, unless it was closed.
    pub(super) fn enter(&self, beginning: StartPosition, arriving: NewConnection<'_>) -> Option<Key> {
        let (Some(me), Some(ticker)) = (self.me.upgrade(), self.ticker) else {
            bug!("a place was reserved at a worker that cannot serve channels");
            return None;
        };
        let StartPosition { mut ticket, plan, format, cursor, has_gap, expiry } = beginning;
        let NewConnection { carrier, seat, is_direct, first, read } = arriving;
        let heartbeat = self.jittered(plan.heartbeat / 2);
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some((&channel, others)) = ticket.channels.split_first() else {
            bug!("a subscriber without a channel");
            return None;
        };
        // The key is known only after insertion, and the guest needs the key as its tag.
        let slot = state.subscribers.insert(Subscriber {
            guest: ticker,
            _seat: seat,
            channel,
            at: 0,
            more: None,
            expiry,
            format,
            was_pinged: false,
            is_direct,
            is_leaving: false,
        });
        let Ok(guest) = self.lane.enter(carrier, me, slot.to_u64()) else {
            drop(state.subscribers.remove(slot));
            return None;
        };
        // A peer that is gone without a word does not acknowledge the next heartbeats.
        self.lane.give_up_after(guest, plan.heartbeat * 2);
        let mut more = More { address: ticket.address, ..More::default() };
        let (mut at, mut sent) = (0, u64::MAX);
        for (index, channel) in std::iter::once(&channel).chain(others).enumerate() {
            let local = state.local(*channel, &plan, ticket.tip);
            let place = local.list.len() as u32;
            local.list.push(slot);
            sent = local.sent;
            match index {
                0 => at = place,
                _ => more.others.push((*channel, place)),
            }
        }
        if !others.is_empty() || cursor != sent || has_gap || !first.is_empty() {
            let cursor = if has_gap { 0 } else { cursor };
            more.late = Some(Late { cursor, rest: first.into(), ..Late::default() });
        }
        if is_websocket(format) && !read.is_empty() {
            more.input = Some((super::input::reader(format), read.to_vec()));
        }
        let is_plain = more.late.is_none() && more.address.is_none() && more.input.is_none();
        match state.subscribers.get_mut(slot) {
            Some(subscriber) => {
                (subscriber.guest, subscriber.at) = (guest, at);
                subscriber.more = (!is_plain).then(|| Box::new(more));
            }
            None => bug!("a subscriber was removed while it was added"),
        }
        ticket.is_used = true;
        self.count_of(format).add(1);
        self.lane.set_deadline(guest, Some(expiry.within(heartbeat, clock::now().unix_seconds)));
        self.schedule_tick();
        if has_gap {
            self.send_gap(state, slot, cursor);
        }
        self.catch_up(state, slot);
        // Bytes after the request are processed with the next input, or now.
        if is_websocket(format) && !self.receive_input(state, slot) {
            self.end(state, slot);
        }
        Some(slot)
    }

    /// Continues deliveries in the next turn.
    pub(super) fn schedule_tick(&self) {
        if let Some(ticker) = self.ticker {
            self.lane.call_again(ticker);
        }
    }

    /// The start of a stream of events: the reconnect time, which varies between subscribers.
    fn preamble(&self, plan: &Plan) -> Vec<u8> {
        format!("retry: {}\n\n", self.jittered(plan.retry).as_millis()).into_bytes()
    }

    pub(super) fn count_of(&self, format: Format) -> &Count {
        let figures = &self.hub.0.figures;
        match format {
            Format::Events | Format::NamedEvents => &figures.events,
            Format::Frames | Format::PackedFrames => &figures.websockets,
            Format::Json => &figures.polls,
        }
    }

    /// Removes a subscriber from its channels; its connection stays open.
    fn leave(&self, state: &mut WorkerState, key: Key) {
        // It has ended, or has left already and gets its last message.
        let Some(subscriber) = state.subscribers.get_mut(key).filter(|it| !it.is_leaving) else { return };
        subscriber.is_leaving = true;
        let places = subscriber.places();
        let address = subscriber.more.as_ref().and_then(|more| more.address);
        self.count_of(subscriber.format).take(1);
        for (channel, at) in &places {
            // Other places of it may have moved meanwhile, but not this one: it has one in each list.
            let Some(local) = state.locals.get_mut(channel) else {
                bug!("channel {channel} was dropped while it had a subscriber");
                continue;
            };
            take_out(*channel, local, *at, &mut state.subscribers);
            if local.is_unused() && local.walk.is_none() && !local.is_queued {
                state.locals.remove(channel);
            }
        }
        self.hub.leave(self.worker, places.into_iter().map(|(channel, _)| channel), address);
    }

    /// Ends a subscriber's connection.
    pub(super) fn end(&self, state: &mut WorkerState, key: Key) {
        self.leave(state, key);
        if let Some(subscriber) = state.subscribers.remove(key) {
            self.lane.remove(subscriber.guest);
        }
    }

    /// Ends it with a message, sent after the one in progress.
    pub(super) fn disconnect(&self, state: &mut WorkerState, key: Key, code: u16, reason: &str) {
        // It has ended, or gets its last message already.
        let Some(subscriber) = state.subscribers.get_mut(key).filter(|it| !it.is_leaving) else { return };
        let format = subscriber.format;
        self.leave(state, key);
        let words = match is_websocket(format) {
            true => {
                let mut frame = Vec::new();
                write_frame(Opcode::Close, false, &close_payload(code, reason), None, &mut frame);
                frame
            }
            false => {
                format!("event: end\ndata: {{\"code\":{code},\"reason\":\"{reason}\"}}\n\n").into_bytes()
            }
        };
        let Some(subscriber) = state.subscribers.get_mut(key) else {
            return bug!("a subscriber has ended while it left its channels");
        };
        let late = subscriber.more().late.get_or_insert_default();
        late.rest = [&late.rest[..], &words].concat().into();
        if !late.is_blocked {
            self.catch_up(state, key);
        }
    }

    /// A subscriber that comes while the server drains has to reconnect: it is not notified of the drain, and gets no messages here.
    pub(super) fn end_if_draining(&self, entered: Option<Key>) {
        let mut state = self.state.borrow_mut();
        if let (Some(key), true) = (entered, state.is_draining) {
            self.disconnect(&mut state, key, 1012, "the server is restarting");
        }
    }

    /// Ends a subscriber whose route was removed between its request and now.
    fn end_if_removed(&self, entered: Option<Key>) {
        let Some(key) = entered.filter(|_| self.hub.has_removed()) else { return };
        let mut state = self.state.borrow_mut();
        let Some(subscriber) = state.subscribers.get_mut(key) else { return };
        let others = subscriber.more.iter().flat_map(|more| more.others.iter().map(|(channel, _)| *channel));
        if !self.hub.removed(others.chain([subscriber.channel])).is_empty() {
            self.disconnect(&mut state, key, CLOSE_REMOVED, REMOVED);
        }
    }

    /// Ends the subscribers of channels whose route was removed.
    pub(super) fn end_removed(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        // Polls that are due are not listed in their channels.
        let of_pollers = state.pollers.iter().flat_map(|(_, poller)| &poller.ticket.channels);
        let mut removed = self.hub.removed(state.locals.keys().chain(of_pollers).copied());
        removed.sort_unstable();
        removed.dedup();
        let locals = removed.iter().filter_map(|channel| state.locals.get(channel));
        let subscribers: Vec<Key> = locals.flat_map(|local| local.list.iter().copied()).collect();
        let has_removed =
            |ticket: &Ticket| ticket.channels.iter().any(|channel| removed.binary_search(channel).is_ok());
        let pollers = state.pollers.iter().filter(|(_, poller)| has_removed(&poller.ticket));
        let pollers: Vec<Key> = pollers.map(|(at, _)| at).collect();
        for key in subscribers {
            self.disconnect(state, key, CLOSE_REMOVED, REMOVED);
        }
        for key in pollers {
            self.refuse_poll(state, key, Status::NOT_FOUND, REMOVED);
        }
    }

    /// Sends bytes between messages. Skipped if the socket is full.
    pub(super) fn send_between(&self, state: &mut WorkerState, key: Key, bytes: &[u8]) {
        // An earlier frame of the same input may have ended it.
        let Some(subscriber) = state.subscribers.get_mut(key) else { return };
        let (channel, at, has_several) = (subscriber.channel, subscriber.at, subscriber.has_several());
        if let Some(late) = subscriber.late() {
            if late.is_blocked {
                return;
            }
            late.rest = [&late.rest[..], bytes].concat().into();
        } else {
            let Some(local) = state.locals.get(&channel) else {
                return bug!("channel {channel} was dropped while it had a subscriber");
            };
            if has_several {
                return bug!("a subscriber of several channels takes part in the walks");
            }
            let cursor = local.reached(at);
            subscriber.more().late = Some(Late { cursor, rest: bytes.to_vec().into(), ..Late::default() });
        }
        self.catch_up(state, key);
    }

    /// A heartbeat: makes a dead connection noticeable.
    fn heartbeat(&self, state: &mut WorkerState, key: Key) {
        // It may have ended in the same turn.
        let Some(subscriber) = state.subscribers.get_mut(key) else { return };
        let (guest, format) = (subscriber.guest, subscriber.format);
        let was_pinged = subscriber.was_pinged;
        let (is_leaving, expiry, channel) = (subscriber.is_leaving, subscriber.expiry, subscriber.channel);
        let heartbeat = state.locals.get(&channel).map(|local| local.plan.heartbeat);
        let now = clock::now().unix_seconds;
        if expiry.is_over(now) && !is_leaving {
            // If its socket has no room for the end until then, it ends without it.
            self.lane.set_deadline(guest, heartbeat);
            return self.disconnect(state, key, CLOSE_EXPIRED, TOKEN_EXPIRED);
        }
        let (is_blocked, was_blocked) = subscriber.late().map_or((false, false), |late| {
            (late.is_blocked, std::mem::replace(&mut late.was_blocked, late.is_blocked))
        });
        if is_leaving || was_pinged || (is_blocked && was_blocked) {
            return self.end(state, key);
        }
        subscriber.was_pinged = is_websocket(format) && !is_blocked;
        self.lane.set_deadline(guest, heartbeat.map(|heartbeat| expiry.within(heartbeat, now)));
        if !is_blocked {
            let beat: &[u8] = if is_websocket(format) { b"\x89\x00" } else { b":\n\n" };
            self.send_between(state, key, beat);
        }
    }

    fn socket_ready(&self, state: &mut WorkerState, key: Key, ready: Ready) {
        if ready.broken() || ready.hung_up() {
            return self.end(state, key);
        }
        if ready.readable() && !self.receive_input(state, key) {
            return self.end(state, key);
        }
        if ready.writable()
            && let Some(late) = state.subscribers.get_mut(key).and_then(Subscriber::late)
            && late.is_blocked
        {
            late.is_blocked = false;
            self.catch_up(state, key);
        }
    }

    /// An event of the worker's own guest.
    fn tick(&self, event: GuestEvent) {
        match event {
            GuestEvent::Socket(_) => {
                self.do_tasks();
                let listed = self.hub.listed(self.worker);
                let mut state = self.state.borrow_mut();
                let state = &mut *state;
                for channel in listed {
                    // Its last subscriber here may have left since it was listed.
                    if let Some(local) = state.locals.get_mut(&channel)
                        && !std::mem::replace(&mut local.is_queued, true)
                    {
                        state.walks.push_back(channel);
                    }
                }
                self.walk(state);
            }
            GuestEvent::Again => self.walk(&mut self.state.borrow_mut()),
            GuestEvent::Deadline => {
                self.end_polls(false);
                self.end_overdue_publishes();
            }
            GuestEvent::Draining => {
                self.state.borrow_mut().is_draining = true;
                self.end_polls(true);
            }
            GuestEvent::Gone(key) => {
                self.forget_poll(key);
                self.forget_publish(key);
            }
            GuestEvent::Room(_) | GuestEvent::Body(_) => {}
        }
    }
}

pub(super) fn is_websocket(format: Format) -> bool {
    matches!(format, Format::Frames | Format::PackedFrames)
}

impl Guests for WorkerChannels {
    fn ready(&self, _: GuestKey, tag: u64, event: GuestEvent) {
        let key = Key::from_u64(tag);
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        match event {
            GuestEvent::Socket(ready) => self.socket_ready(state, key, ready),
            GuestEvent::Again => self.catch_up(state, key),
            GuestEvent::Deadline => self.heartbeat(state, key),
            GuestEvent::Draining => self.disconnect(state, key, 1012, "the server is restarting"),
            GuestEvent::Room(_) | GuestEvent::Body(_) | GuestEvent::Gone(_) => {}
        }
    }
}

/// Wakes a worker's channels if they still exist.
struct Ticker(Weak<WorkerChannels>);

impl Guests for Ticker {
    fn ready(&self, _: GuestKey, _: u64, event: GuestEvent) {
        if let Some(channels) = self.0.upgrade() {
            channels.tick(event);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_used {
            let channels = std::mem::take(&mut self.channels);
            self.hub.leave(self.worker, channels, self.address);
        }
    }
}

impl Drop for WorkerChannels {
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        self.refuse_waiting(&mut state);
        let mut cursor = Cursor::default();
        while let Some((key, _)) = cursor.next(&state.subscribers) {
            let Some(subscriber) = state.subscribers.remove(key).filter(|it| !it.is_leaving) else {
                continue;
            };
            let address = subscriber.more.as_ref().and_then(|more| more.address);
            let channels = subscriber.places().into_iter().map(|(channel, _)| channel);
            self.hub.leave(self.worker, channels, address);
            self.count_of(subscriber.format).take(1);
        }
        self.hub.remove_worker(self.worker);
    }
}
