//! Subscribers that move to another process, and those that come from one.
//!
//! A subscriber that moves leaves its channels as if it had ended, but its socket stays open. In the new process it
//! joins them as a reconnecting subscriber with a known position, and gets missed messages from the history, which
//! has moved before.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
#[cfg(feature = "simulation")]
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use flatout_engine::{ExchangeKey, bug};
use flatout_lane::slab::{Cursor, Key};
use serde::{Deserialize, Serialize};

use super::hub::Hub;
use super::message::Format;
use super::plan::{History, Kind, Plan};
use super::token::Expiry;
use super::waiting_publishes::Batch;
use super::worker::{NewConnection, StartPosition, Ticket, WorkerChannels, WorkerState};

/// The limit for the unsent rest of a moving subscriber's message. One with more does not move.
pub const REST_BYTES_MAX: usize = 256 << 10;

/// How long a worker may take to select some subscribers: a turn, and more on a busy host.
const GIVE_TIME_MAX: Duration = Duration::from_secs(5);

/// A worker's task during a move.
pub(super) enum Task {
    /// A waiting publish is finished.
    Answer(ExchangeKey, Batch),
    /// Select at most this many subscribers.
    Give(usize, Sender<SubscriberBatch>),
    /// Serve these.
    Adopt(Vec<Parcel>),
    /// End the subscribers of channels that were removed.
    EndRemoved,
}

/// Some of a worker's subscribers, removed from it.
pub struct SubscriberBatch {
    /// The subscribers.
    pub parcels: Vec<Parcel>,
    /// These were the last of its table; new subscribers are found in the next pass.
    pub is_round: bool,
}

/// A subscriber between two processes.
pub struct Parcel {
    /// Its connection.
    pub socket: OwnedFd,
    /// Everything else about it.
    pub about: About,
}

/// The state of a subscriber except its socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    pub(crate) transport: Transport,
    pub(crate) channels: Vec<String>,
    /// All messages up to this id were sent, or are in `rest`.
    pub(crate) cursor: u64,
    /// The unsent rest of a message, in base64.
    pub(crate) rest: String,
    /// The address for the per-address limit.
    pub(crate) address: Option<IpAddr>,
    /// When its token expires.
    pub(crate) expiry: Expiry,
    pub(crate) terms: Terms,
}

/// [`Format`] without polls, which are requests and do not move. Messages are compressed independently, so there is
/// no compressor state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    Events,
    NamedEvents,
    Frames,
    PackedFrames,
}

/// The part of a plan that concerns an existing subscriber.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Terms {
    /// The group of its channels.
    pub(crate) group: String,
    pub(crate) is_latest: bool,
    pub(crate) count: usize,
    pub(crate) age_ms: u64,
    pub(crate) lag_max: u32,
    pub(crate) heartbeat_ms: u64,
}

impl Terms {
    fn of(plan: &Plan) -> Terms {
        let History { kind, count, age } = plan.history;
        Terms {
            group: plan.group.clone(),
            is_latest: kind == Kind::Latest,
            count,
            age_ms: age.as_millis() as u64,
            lag_max: plan.lag_max,
            heartbeat_ms: plan.heartbeat.as_millis() as u64,
        }
    }

    fn plan(&self) -> Plan {
        let kind = if self.is_latest { Kind::Latest } else { Kind::Log };
        Plan {
            group: self.group.clone(),
            history: History { kind, count: self.count, age: Duration::from_millis(self.age_ms) },
            lag_max: self.lag_max,
            heartbeat: Duration::from_millis(self.heartbeat_ms),
            // It had its place before: it is counted, but never refused.
            per_address_max: Some(u32::MAX),
            // Not known here.
            message_bytes_max: usize::MAX,
            ..Plan::default()
        }
    }
}

impl Transport {
    fn of(format: Format) -> Option<Transport> {
        match format {
            Format::Events => Some(Transport::Events),
            Format::NamedEvents => Some(Transport::NamedEvents),
            Format::Frames => Some(Transport::Frames),
            Format::PackedFrames => Some(Transport::PackedFrames),
            Format::Json => None,
        }
    }

    fn format(self) -> Format {
        match self {
            Transport::Events => Format::Events,
            Transport::NamedEvents => Format::NamedEvents,
            Transport::Frames => Format::Frames,
            Transport::PackedFrames => Format::PackedFrames,
        }
    }
}

impl Hub {
    /// Selects some of a worker's subscribers. `None`: the worker has ended, or does not reply.
    pub fn give(&self, worker: usize, count_max: usize) -> Option<SubscriberBatch> {
        let (sender, receiver) = channel();
        self.post(worker, Task::Give(count_max, sender));
        let given = receiver.recv_timeout(GIVE_TIME_MAX).ok();
        #[cfg(feature = "simulation")]
        self.wait_for_rest();
        given
    }

    /// The workers of a simulation have nothing to do.
    #[cfg(feature = "simulation")]
    pub fn note_rest(&self) {
        self.0.rests.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until workers have done all that followed from what was given: how far they have come with it when the next ones are selected
    /// would depend on threads.
    #[cfg(feature = "simulation")]
    fn wait_for_rest(&self) {
        let before = self.0.rests.load(Ordering::Acquire);
        while flatout_lane::clock::simulated::is_set() && self.0.rests.load(Ordering::Acquire) == before {
            std::thread::yield_now();
        }
    }

    /// Assigns these subscribers to a worker.
    pub fn adopt(&self, worker: usize, parcels: Vec<Parcel>) {
        self.post(worker, Task::Adopt(parcels));
    }

    /// The number of workers with channels.
    pub fn workers_count(&self) -> usize {
        self.lock().workers.len()
    }
}

impl WorkerChannels {
    /// Does this worker's tasks.
    pub(super) fn do_tasks(&self) {
        for task in self.hub.tasks(self.worker) {
            match task {
                Task::Answer(key, batch) => self.answer_publish(key, batch),
                Task::Give(count_max, to) => {
                    let selected = self.give(&mut self.state.borrow_mut(), count_max);
                    if let Err(refused) = to.send(selected) {
                        // The receiver no longer waits for them.
                        refused.0.parcels.into_iter().for_each(|parcel| self.adopt(parcel));
                    }
                }
                Task::Adopt(parcels) => parcels.into_iter().for_each(|parcel| self.adopt(parcel)),
                Task::EndRemoved => self.end_removed(),
            }
        }
    }

    fn give(&self, state: &mut WorkerState, count_max: usize) -> SubscriberBatch {
        let mut parcels = Vec::new();
        while parcels.len() < count_max {
            let Some((key, _)) = state.give_from.next(&state.subscribers) else {
                state.give_from = Cursor::default();
                return SubscriberBatch { parcels, is_round: true };
            };
            parcels.extend(self.take_out(state, key));
        }
        SubscriberBatch { parcels, is_round: false }
    }

    /// Removes a subscriber from this process, if it can move.
    fn take_out(&self, state: &mut WorkerState, key: Key) -> Option<Parcel> {
        let subscriber = state.subscribers.get_mut(key)?;
        let transport = Transport::of(subscriber.format)?;
        // One in the middle of its own frame may be ready in a later pass.
        let has_input = subscriber.more.as_ref().is_some_and(|more| more.input.is_some());
        if subscriber.is_leaving || !subscriber.is_direct || has_input {
            return None;
        }
        let (guest, expiry) = (subscriber.guest, subscriber.expiry);
        let address = subscriber.more.as_ref().and_then(|more| more.address);
        let (cursor, rest) = self.position(state, key)?;
        let subscriber = state.subscribers.get_mut(key)?;
        if rest.len() > REST_BYTES_MAX {
            return None;
        }
        let channels = self.hub.names(subscriber.places().into_iter().map(|(channel, _)| channel));
        let terms = Terms::of(&state.locals.get(&subscriber.channel)?.plan);
        let about = About {
            transport,
            channels: channels.iter().map(|name| name.to_string()).collect(),
            cursor,
            rest: encoded(&rest),
            address,
            expiry,
            terms,
        };
        let socket = self.lane.take(guest)?;
        self.end(state, key);
        Some(Parcel { socket, about })
    }

    /// A subscriber's position, and the rest of its current message.
    fn position(&self, state: &mut WorkerState, key: Key) -> Option<(u64, Vec<u8>)> {
        let subscriber = state.subscribers.get_mut(key)?;
        let (channel, at) = (subscriber.channel, subscriber.at);
        if let Some(late) = subscriber.late() {
            return Some((late.cursor, late.rest.to_vec()));
        }
        let local = state.locals.get(&channel);
        if local.is_none() {
            bug!("channel {channel} was dropped while it had a subscriber");
        }
        local.map(|local| (local.reached(at), Vec::new()))
    }

    /// Serves a subscriber that was served by another process before, or that could not move.
    fn adopt(&self, parcel: Parcel) {
        let Parcel { socket, about } = parcel;
        // Nearly all have the same plan.
        let known = self.state.borrow().adopted.clone().filter(|plan| Terms::of(plan) == about.terms);
        let plan = known.unwrap_or_else(|| {
            let plan = Arc::new(about.terms.plan());
            self.state.borrow_mut().adopted = Some(plan.clone());
            plan
        });
        let Some(rest) = decoded(&about.rest) else {
            return bug!("a subscriber of another process was not checked by `is_sound`");
        };
        // If there is no room, its connection ends, and it reconnects by itself.
        let Ok((channels, tip)) = self.hub.join(self.worker, &about.channels, &plan, about.address) else {
            return;
        };
        let ticket = Ticket::new(&self.hub, self.worker, channels, about.address, tip);
        let format = about.transport.format();
        let cursor = about.cursor.min(tip);
        let beginning = StartPosition { ticket, plan, format, cursor, has_gap: false, expiry: about.expiry };
        let seat = self.lane.connection_permit();
        let entered = self.enter(
            beginning,
            NewConnection { carrier: socket.into(), seat, is_direct: true, first: rest, read: b"" },
        );
        self.end_if_draining(entered);
    }
}

/// Whether a subscriber with these terms is valid; checks input from another process.
pub fn is_sound(about: &About) -> bool {
    let is_one = about.channels.len() == 1;
    let needs_one = matches!(about.transport, Transport::Events);
    let is_new = |at: usize, name: &String| !about.channels.iter().take(at).any(|other| other == name);
    let names =
        about.channels.iter().enumerate().all(|(at, name)| super::plan::is_name(name) && is_new(at, name));
    let rest = decoded(&about.rest).is_some_and(|rest| rest.len() <= REST_BYTES_MAX);
    (is_one || !needs_one)
        && (1..=super::plan::CHANNELS_PER_SUBSCRIBER_MAX).contains(&about.channels.len())
        && names
        && rest
        && about.terms.heartbeat_ms > 0
        && about.terms.group.len() <= super::plan::GROUP_BYTES_MAX
}

pub(crate) fn encoded(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

pub(crate) fn decoded(text: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}
