//! Connects the channels and the cache of this process to a bus.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{bug, say};
use flatout_lane::clock::{self, Ticks};

use super::carrier::Carrier;
use super::holdback::HoldbackQueue;
use super::parcel::{About, Head, ParcelKind, decode};
use super::peers::{Peers, SILENCE_TIME};
use super::{Bus, Counted, Joined, Parcel, Receipt, Topic};
use flatout_cache::Purge;
use flatout_observe::metrics::{Family, Source};
use flatout_push::{Arrival, Hub, Incoming, Refused, SequenceTracker, Step};

/// The interval of a member's heartbeats, which have its last sequence numbers.
const PRESENCE_TIME: Duration = Duration::from_secs(5);

/// After rejoining: how long to wait for the heartbeats of the other members.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// Above this latency, a message may have another position in the order of other servers.
const LATE_TIME: Duration = Duration::from_secs(5);

/// Bits of a process's number: integers in JSON are exact up to 53 bits.
const ORIGIN_BITS: u32 = 53;

/// Purges this server's cache. Returns the number of purged responses; `None` if there is no cache.
pub type Purging = dyn Fn(&Purge) -> Option<usize> + Send + Sync;

/// This server as a member of a bus: its channels and its cache.
pub struct Relay {
    /// The number by which other servers know this process.
    origin: Arc<AtomicU64>,
    hub: Hub,
    purging: Box<Purging>,
    bus: OnceLock<Arc<dyn Bus>>,
    state: Mutex<RelayState>,
    missed: AtomicU64,
    refused: AtomicU64,
    /// Messages of version 1 were reported.
    has_reported_version: AtomicBool,
}

/// What other servers know a process by, and its last numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    origin: u64,
    messages: u64,
    purges: u64,
}

#[derive(Default)]
struct RelayState {
    /// The number of purges sent.
    purges: u64,
    /// The purges received from other servers.
    sequences: SequenceTracker,
    /// The other servers.
    peers: Peers,
    /// After the bus was joined: how long to wait for heartbeats of other servers.
    completes_at: Option<Ticks>,
    /// Another server has asked for a heartbeat.
    is_asked: bool,
    /// This server has sent its last heartbeat, or another process sends them.
    has_left: bool,
    /// Another process takes over this one's number: nothing more may be sent with it.
    is_frozen: bool,
    /// When this server last sent a heartbeat.
    presence_at: Ticks,
    /// When the bus was last connected.
    tick_at: Ticks,
    /// Messages held while the channels are frozen.
    holdback: HoldbackQueue,
}

impl Relay {
    /// A relay for these channels and this cache. It must be [connected](Relay::connect) to a bus.
    pub fn new(hub: &Hub, purging: Box<Purging>) -> Arc<Relay> {
        let random = RandomState::new().hash_one(clock::unix_nanoseconds());
        Arc::new(Relay {
            origin: Arc::new(AtomicU64::new(random >> (u64::BITS - ORIGIN_BITS))),
            hub: hub.clone(),
            purging,
            bus: OnceLock::new(),
            state: Mutex::default(),
            missed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            has_reported_version: AtomicBool::new(false),
        })
    }

    /// Sends messages and purges of this server over this bus from now on. Later calls have no effect.
    pub fn connect(&self, bus: Arc<dyn Bus>) {
        if self.bus.set(bus.clone()).is_ok() {
            if bus.keeps_messages() {
                self.hub.expect_holes();
            }
            self.hub.carry_by(Box::new(Carrier::new(self.origin.clone(), bus)));
        }
    }

    /// Purges the cache of this server and sends the purge to all others. Returns the number of responses
    /// purged on this server (`None` if it has no cache), and the receipt to wait for.
    ///
    /// # Errors
    /// Another process is taking the place of this one. The purge was not sent.
    pub fn purge(&self, purge: &Purge) -> Result<(Option<usize>, Receipt), Refused> {
        if self.lock().is_frozen {
            return Err(Refused::Moving);
        }
        let count = (self.purging)(purge);
        let mut state = self.lock();
        if state.is_frozen {
            return Err(Refused::Moving);
        }
        state.purges += 1;
        let number = state.purges;
        let what = ParcelKind::Purge(purge.to_text().into());
        let bytes = Head { origin: self.origin(), number, what }.encode(b"");
        // Sent under the lock, to keep the order of the numbers.
        self.send(Parcel { topic: Topic::Purge, number, place: String::new(), bytes });
        drop(state);
        Ok((count, Receipt { topic: Topic::Purge, number }))
    }

    /// The name of its bus.
    pub fn bus_name(&self) -> Option<String> {
        self.bus.get().map(|bus| bus.name())
    }

    /// Stops purges, and returns what the process that takes this one's place goes on with: its number, and what the bus has not
    /// carried yet. The channels must be frozen. This process still sends its outbox: other servers ignore what they get twice.
    pub fn freeze(&self) -> (Identity, Vec<Parcel>) {
        let mut state = self.lock();
        state.is_frozen = true;
        let identity = Identity { origin: self.origin(), messages: self.hub.carried(), purges: state.purges };
        drop(state);
        (identity, self.bus.get().map(|bus| bus.outbox()).unwrap_or_default())
    }

    /// The other process has failed, and this one continues. `has_sent`: the other one may have sent messages with this one's number.
    pub fn thaw(&self, has_sent: bool) {
        if has_sent {
            self.hub.skip_carried();
        }
        self.lock().is_frozen = false;
    }

    /// The other process sends everything from now on.
    pub fn retire(&self) {
        self.lock().has_left = true;
        if let Some(bus) = self.bus.get() {
            bus.clear_outbox();
        }
    }

    /// Goes on as the process that this one replaces. This process has sent no messages and purges yet.
    pub fn take_over(&self, identity: Identity, outbox: Vec<Parcel>) {
        let mut state = self.lock();
        self.origin.store(identity.origin, Ordering::Relaxed);
        state.purges = identity.purges;
        // Its own heartbeats will not come any more.
        state.peers.remove(identity.origin);
        drop(state);
        self.hub.restore_carried(identity.messages);
        outbox.into_iter().for_each(|parcel| self.send(parcel));
    }

    fn origin(&self) -> u64 {
        self.origin.load(Ordering::Relaxed)
    }

    /// Tells other servers that this one ends and that they have everything it sent. Call it once all was carried.
    /// If a server ends without it, the others assume that messages and purges were lost.
    pub fn leave(&self) {
        self.send_presence(false, true);
    }

    /// The state of the bus, and its counters.
    pub fn counted(&self) -> Counted {
        let counted = self.bus.get().map(|bus| bus.counted()).unwrap_or_default();
        Counted {
            missed: self.missed.load(Ordering::Relaxed),
            refused: counted.refused + self.refused.load(Ordering::Relaxed),
            ..counted
        }
    }

    fn send(&self, parcel: Parcel) {
        if let Some(bus) = self.bus.get() {
            bus.send(parcel);
        }
    }

    fn lock(&self) -> MutexGuard<'_, RelayState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the bus has a history, so that no message is lost.
    fn keeps_messages(&self) -> bool {
        self.bus.get().is_some_and(|bus| bus.keeps_messages())
    }

    fn take_message(
        &self,
        from: (u64, u64),
        about: &About<'_>,
        data: Bytes,
        (bytes, age): (&Bytes, Duration),
    ) {
        if !(self.release() && self.deliver(from, about, data, age)) {
            self.lock().holdback.push(bytes.clone(), age);
        }
    }

    /// Delivers a message to the channels. Returns `false` if they are frozen.
    fn deliver(&self, from: (u64, u64), about: &About<'_>, data: Bytes, age: Duration) -> bool {
        let Some(publication) = about.publication(data) else {
            self.refuse();
            return true;
        };
        let (origin, number) = from;
        if origin == self.origin() {
            // It was held before this process has taken the place of its sender, which has delivered it.
            return true;
        }
        let is_late = is_late(about, age);
        let (channel, history) = (about.channel(), about.history());
        let incoming = Incoming { origin, number, channel, publication, history, age, is_late };
        match self.hub.arrive(incoming) {
            Arrival::Accepted | Arrival::Repeated => {}
            Arrival::AcceptedAfterLoss => self.miss(),
            Arrival::Refused(Refused::Moving) => return false,
            Arrival::Impossible | Arrival::Refused(_) => self.refuse(),
        }
        true
    }

    /// A message of version 1. Its channel has no group, so it is of no channel of this server.
    fn take_unread(&self, origin: u64, number: u64) {
        if self.hub.lose_from(origin, number) == Arrival::AcceptedAfterLoss {
            self.miss();
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        if !self.has_reported_version.swap(true, Ordering::Relaxed) {
            say(format_args!(
                "the bus has messages of an earlier version of flatout, which this version does not deliver: subscribers get gaps; upgrade \
                 all servers of the group"
            ));
        }
    }

    fn take_purge(&self, origin: u64, number: u64, text: &str) {
        let step = self.lock().sequences.step(origin, number, clock::now().ticks);
        match step {
            Step::Next => {}
            Step::Repeated => return,
            Step::Impossible => return self.refuse(),
            Step::Missed => {
                self.miss();
                self.mark_cache_stale();
            }
        }
        match Purge::from_text(text) {
            Ok(purge) => {
                (self.purging)(&purge);
            }
            Err(_) => {
                self.refuse();
                self.mark_cache_stale();
            }
        }
    }

    fn take_presence(&self, origin: u64, (messages, purges): (u64, u64), asks: bool, leaves: Option<bool>) {
        let now = clock::now().ticks;
        // Held messages are counted when they are delivered. Messages of a history arrive on another
        // subscription, and possibly later than this.
        let is_known = !self.keeps_messages() && self.lock().holdback.is_empty();
        if is_known && self.hub.record_tip(origin, messages) == Some(true) {
            self.miss();
        }
        let mut state = self.lock();
        let has_missed = state.sequences.tip(origin, purges, now);
        state.is_asked |= asks;
        let has_lost = match leaves {
            Some(true) => {
                state.peers.remove(origin);
                false
            }
            // It does not announce its end, so that its silence means nothing.
            None => false,
            // It has just joined and has sent nothing. If it fails to start, nothing is lost. Its next heartbeat counts.
            Some(false) if asks && messages == 0 && purges == 0 && !state.peers.contains(origin) => false,
            Some(false) => state.peers.record_heartbeat(origin, now),
        };
        drop(state);
        if has_missed {
            self.miss();
            self.mark_cache_stale();
        }
        if has_lost {
            self.lose();
        }
    }

    /// A server may have ended with messages and purges that it could not send.
    fn lose(&self) {
        self.missed();
        self.mark_cache_stale();
    }

    /// Purges may have been lost, and it is unknown which: marks everything stale, so that it is validated
    /// before it is served.
    fn mark_cache_stale(&self) {
        (self.purging)(&Purge { scope: flatout_cache::PurgeScope::All, is_soft: true });
    }

    /// All running servers have been heard.
    pub(super) fn complete(&self) {
        self.lock().sequences.complete();
        self.hub.complete_sequences();
    }

    fn miss(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
    }

    fn refuse(&self) {
        if self.refused.fetch_add(1, Ordering::Relaxed) == 0 {
            say(format_args!("refused a message from the bus; see flatout_bus_refused_total"));
        }
    }

    fn send_presence(&self, asks: bool, leaves: bool) {
        // Read before sending: messages published meanwhile follow on the bus. Messages in a history are not counted: they
        // take another path, and may arrive later.
        let messages = if self.keeps_messages() { 0 } else { self.hub.carried() };
        let mut state = self.lock();
        if state.has_left {
            return;
        }
        state.has_left = leaves;
        state.presence_at = clock::now().ticks;
        let what = ParcelKind::Presence { messages, purges: state.purges, asks, leaves: Some(leaves) };
        let bytes = Head { origin: self.origin(), number: 0, what }.encode(b"");
        self.send(Parcel { topic: Topic::Presence, number: 0, place: String::new(), bytes });
    }

    /// Delivers the held messages. Returns whether none are left.
    fn release(&self) -> bool {
        loop {
            let Some(one) = self.lock().holdback.first() else { return true };
            let Some((head, data)) = decode(&one.bytes) else {
                bug!("a message was held that cannot be read");
                self.lock().holdback.pop();
                continue;
            };
            if let ParcelKind::Published(about) = &head.what
                && !self.deliver((head.origin, head.number), about, data, one.age())
            {
                return false;
            }
            self.lock().holdback.pop();
        }
    }
}

/// Whether a message was published long before the bus received it, which was `age` ago.
fn is_late(about: &About<'_>, age: Duration) -> bool {
    let sent_ms = clock::unix_milliseconds().saturating_sub(age.as_millis() as u64);
    sent_ms.abs_diff(about.at_ms) > LATE_TIME.as_millis() as u64
}

/// As a member of a bus: called on the thread of the bus, one call at a time.
impl Relay {
    /// A parcel has arrived; `age` is the time since it was sent. Parcels of one member arrive in the order
    /// in which they were sent. If the bus returns parcels to their sender and this is one of the member's
    /// own, returns its receipt.
    pub(crate) fn receive(&self, bytes: &Bytes, age: Duration) -> Option<Receipt> {
        let Some((head, data)) = decode(bytes) else {
            self.refuse();
            return None;
        };
        let Head { origin, number, what } = head;
        let is_own = origin == self.origin();
        let receipt = |topic| is_own.then_some(Receipt { topic, number });
        match what {
            ParcelKind::Published(about) if is_own => {
                if is_late(&about, age) {
                    self.hub.note_late();
                }
            }
            ParcelKind::Published(about) => self.take_message((origin, number), &about, data, (bytes, age)),
            ParcelKind::Message(_) => self.take_unread(origin, number),
            ParcelKind::Purge(_) if is_own => return receipt(Topic::Purge),
            ParcelKind::Purge(text) => self.take_purge(origin, number, &text),
            ParcelKind::Presence { .. } if is_own => return receipt(Topic::Presence),
            ParcelKind::Presence { messages, purges, asks, leaves } => {
                self.take_presence(origin, (messages, purges), asks, leaves);
            }
        }
        receipt(Topic::Push)
    }

    /// Messages were lost: the bus no longer has all that were sent while it was disconnected.
    pub(crate) fn missed(&self) {
        self.miss();
        self.hub.report_loss();
    }

    /// The bus was joined. Parcels that others sent before may be lost.
    pub(crate) fn joined(&self, how: Joined) {
        // Purges may have been missed, also while this process was not running and its cache was on disk.
        self.mark_cache_stale();
        if how == Joined::Late && !self.keeps_messages() {
            self.missed();
        }
        let now = clock::now().ticks;
        let mut state = self.lock();
        // Wait for the servers that were running when the connection was lost. Without a history, messages that they sent
        // meanwhile are lost; with one, only a server that ended may have lost some.
        let answer_time = if self.keeps_messages() { SILENCE_TIME } else { ANSWER_TIME };
        state.peers.expect_within(answer_time, now);
        state.completes_at = Some(now + clock::ticks(ANSWER_TIME));
        state.tick_at = now;
        drop(state);
        self.send_presence(true, false);
    }

    /// Called every 250 ms or more often.
    pub(crate) fn tick(&self) {
        let now = clock::now().ticks;
        self.release();
        let awaits_channels = self.hub.awaits_channels();
        let mut state = self.lock();
        let pause = now.saturating_sub(std::mem::replace(&mut state.tick_at, now));
        if pause >= clock::ticks(PRESENCE_TIME) {
            // This process was suspended: heartbeats have arrived that are not processed yet.
            state.peers.expect_within(SILENCE_TIME, now);
        }
        // After a heartbeat, other servers expect more of them; but this process may never begin to serve.
        let is_due = !awaits_channels
            && (std::mem::take(&mut state.is_asked)
                || now.saturating_sub(state.presence_at) >= clock::ticks(PRESENCE_TIME));
        let is_complete = state.completes_at.take_if(|at| now >= *at).is_some();
        let has_new_silent = state.peers.has_new_silent(now);
        drop(state);
        if is_complete {
            self.complete();
        }
        if has_new_silent {
            self.lose();
        }
        if is_due {
            self.send_presence(false, false);
        }
    }
}

impl Source for Relay {
    fn collect(&self, into: &mut Vec<Family>) {
        self.counted().collect(into);
    }
}
