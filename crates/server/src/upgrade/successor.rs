//! The successor: takes over the state of the old process.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use flatout_engine::{Address, Inherited, bug, say};
use flatout_lane::descriptors::SeqpacketSocket;

use super::VARIABLE;
use super::format::{FORMAT, Note, PUSH_FORMAT, Refusal, Unsent};
use super::link::{Link, LinkError};
use crate::live::Live;
use flatout_bus::Relay;
use flatout_cache::KeyBuf;
use flatout_push::{About, Batch, ChannelName, Hub, Parcel};

/// How long the old process may take between two notes while nothing is served yet.
const STEP_TIME_MAX: Duration = Duration::from_secs(10);

/// How long the workers may take to start.
const WORKERS_TIME_MAX: Duration = Duration::from_secs(4);

/// Listeners of one server, and of its admin listener.
const LISTENERS_MAX: usize = 1024;

/// The limit for listed channels; the configuration sets how many fit.
const CHANNELS_MAX: usize = 16 << 20;

/// The limit for messages and purges that the bus has not carried; more than its queues hold.
const OUTBOX_MAX: usize = 1 << 20;

/// The limit for upstreams whose servers were changed.
const UPSTREAMS_MAX: usize = 1 << 16;

/// The owner of listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerOwner {
    /// The server's.
    Server,
    /// The admin listener's.
    Admin,
}

/// A process that replaces the one that started it.
pub struct Successor {
    link: Link,
    listeners: Vec<(ListenerOwner, Inherited)>,
    takes_push: bool,
    /// Upstreams whose servers were changed while the old process ran.
    upstreams: Vec<String>,
}

impl Successor {
    /// If this process was started as a successor: identifies itself, and receives the listeners.
    ///
    /// # Errors
    /// The old process misbehaved, or this one was started incorrectly; in words.
    pub fn from_environment() -> Result<Option<Successor>, String> {
        let Some(format) = std::env::var_os(VARIABLE) else { return Ok(None) };
        let passing =
            SeqpacketSocket::from_stdin().map_err(|error| format!("{VARIABLE} is set, but {error}"))?;
        Successor::of(passing, &format).map(Some)
    }

    /// The successor of the process at the other end, which uses this format.
    pub(super) fn of(passing: SeqpacketSocket, format: &OsStr) -> Result<Successor, String> {
        let mut successor = Successor {
            link: Link::new(passing),
            listeners: Vec::new(),
            takes_push: false,
            upstreams: Vec::new(),
        };
        let lost = |lost: LinkError| format!("the process to be replaced: {lost}");
        successor.link.set_patience(Some(STEP_TIME_MAX)).map_err(lost)?;
        successor.link.send(&Note::Hello { format: FORMAT, push_format: PUSH_FORMAT }, &[]).map_err(lost)?;
        if format.to_str() != Some(&FORMAT.to_string()) {
            // The old process gets the reason, and reports it to whoever requested the upgrade.
            return Err(format!(
                "the process to be replaced uses another handover format than {FORMAT}; use a restart"
            ));
        }
        successor.take_listeners().map_err(lost)?;
        Ok(successor)
    }

    fn take_listeners(&mut self) -> Result<(), LinkError> {
        loop {
            let (is_admin, asked, is_secure, sockets) = match self.link.receive()? {
                (Note::Open, _) => return Ok(()),
                (Note::Listener { is_admin, asked, is_secure }, sockets) => {
                    (is_admin, asked, is_secure, sockets)
                }
                _ => return Err(LinkError::Malformed),
            };
            let asked = asked.map(|address| address.parse::<Address>()).transpose();
            let asked = asked.map_err(|_| LinkError::Malformed)?;
            let whose = if is_admin { ListenerOwner::Admin } else { ListenerOwner::Server };
            if self.listeners.len() >= LISTENERS_MAX {
                return Err(LinkError::Malformed);
            }
            self.listeners.push((whose, Inherited { asked, is_secure, sockets }));
        }
    }

    /// The listeners; can be taken once.
    pub fn listeners(&mut self, whose: ListenerOwner) -> Vec<Inherited> {
        self.listeners.extract_if(.., |(of, _)| *of == whose).map(|(_, listener)| listener).collect()
    }

    /// Refuses to replace the old process, with a reason that is reported to whoever requested the upgrade.
    pub fn refuse(self, why: &str) {
        // If sending fails, the old process is no longer waiting.
        let _ = self.link.send(&Note::Refused(Cow::Borrowed(why)), &[]);
    }

    /// Suspends publishing until the channels were taken over: needed if messages of other servers can arrive
    /// before.
    pub fn await_channels(&self, hub: &Hub) {
        hub.await_channels();
    }

    /// Reports that everything is open, and takes over the channels, if any are served, and what the bus has not carried
    /// yet, if it is the same bus. Afterwards the workers may start.
    ///
    /// If the old process ends meanwhile, this one has all listeners and goes on with the channels that have arrived.
    ///
    /// # Errors
    /// The old process misbehaves; in words.
    pub fn take_channels(
        &mut self,
        hub: &Hub,
        relay: Option<&Relay>,
        takes_push: bool,
    ) -> Result<(), String> {
        self.takes_push = takes_push;
        match self.try_take_channels(hub, relay) {
            Err(LinkError::Gone) => {
                say(format_args!("the process to be replaced has ended; this one serves alone"));
                hub.thaw();
                hub.finish_handover();
                Ok(())
            }
            taken => taken.map_err(|lost| format!("the process to be replaced: {lost}")),
        }
    }

    fn try_take_channels(&mut self, hub: &Hub, relay: Option<&Relay>) -> Result<(), LinkError> {
        let bus = relay.and_then(Relay::bus_name).map(Cow::Owned);
        let takes_push = self.takes_push;
        let ready = Note::Ready { takes_push, takes_invalidated: true, takes_upstreams: true, bus };
        self.link.send(&ready, &[])?;
        let mut names: Vec<Option<(String, String)>> = Vec::new();
        let (mut identity, mut outbox) = (None, Vec::new());
        loop {
            let received = self.link.receive();
            if let (Err(LinkError::Gone), Some(identity), Some(relay)) = (&received, &identity, relay) {
                // Nobody else sends what the old process has not sent.
                relay.take_over(*identity, std::mem::take(&mut outbox));
            }
            match received?.0 {
                Note::Tip(tip) => hub.begin_at(tip),
                Note::Heard(heard) => hub.restore_sequences(heard),
                Note::Channels(channels) => {
                    if names.len() > CHANNELS_MAX {
                        return Err(LinkError::Malformed);
                    }
                    for channel in channels {
                        let has_room = hub.restore(&channel.channel());
                        let name = (channel.group.into_owned(), channel.name.into_owned());
                        names.push(Some(name).filter(|_| has_room));
                    }
                }
                Note::Messages(messages) => {
                    for message in messages {
                        let channel = names.get(message.channel).ok_or(LinkError::Malformed)?;
                        // Otherwise there was no room for the channel.
                        if let Some((group, name)) = channel {
                            hub.restore_message(ChannelName { group, name }, message.message());
                        }
                    }
                }
                Note::Identity(former) => identity = Some(former),
                Note::Outbox(parcels) => {
                    if outbox.len() > OUTBOX_MAX {
                        return Err(LinkError::Malformed);
                    }
                    outbox.extend(parcels.into_iter().map(Unsent::parcel));
                }
                Note::Upstream(changed) => {
                    if self.upstreams.len() >= UPSTREAMS_MAX {
                        return Err(LinkError::Malformed);
                    }
                    self.upstreams.push(changed.into_owned());
                }
                Note::Start => {
                    if let (Some(identity), Some(relay)) = (identity, relay) {
                        relay.take_over(identity, outbox);
                    }
                    // No channels were moved, so nothing is awaited.
                    if !hub.awaits_subscribers() {
                        hub.thaw();
                    }
                    return Ok(());
                }
                _ => return Err(LinkError::Malformed),
            }
        }
    }

    /// Upstreams whose servers were changed while the old process ran, each as in its state file. Known once the channels were
    /// taken.
    pub(crate) fn changed_upstreams(&mut self) -> Vec<String> {
        std::mem::take(&mut self.upstreams)
    }

    /// Call it once the workers serve: receives subscribers, and keys that the cache of `live` has to invalidate, on its
    /// own thread. `done` is called when all have arrived
    /// and this process can be replaced in turn.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn take_subscribers(
        self,
        (hub, live): (Hub, Live),
        workers_count: usize,
        done: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("flatout-succeed".to_owned());
        thread.spawn(move || self.follow((&hub, &live), workers_count, done)).map(drop)
    }

    fn follow(mut self, (hub, live): (&Hub, &Live), workers_count: usize, done: impl FnOnce()) {
        if self.takes_push && !hub.wait_workers(workers_count, WORKERS_TIME_MAX) {
            return self.refuse("the new process has workers that do not start");
        }
        let _ = self.link.set_patience(None).and_then(|()| self.link.send(&Note::Serving, &[]));
        let mut intake = SubscriberIntake { pending: Vec::new(), next_worker: 0, workers_count };
        let mut done = Some(done);
        let ended = loop {
            match self.receive_one((hub, live), &mut intake) {
                Ok(true) => done.take().into_iter().for_each(|done| done()),
                Ok(false) => {}
                Err(lost) => break lost,
            }
        };
        if let LinkError::Gone = ended {
            // The offered batch now belongs to this process.
            intake.adopt(hub);
        }
        hub.thaw();
        hub.finish_handover();
        done.take().into_iter().for_each(|done| done());
    }

    /// Handles the next note. Returns whether it was the last of the move.
    fn receive_one(
        &mut self,
        (hub, live): (&Hub, &Live),
        intake: &mut SubscriberIntake,
    ) -> Result<bool, LinkError> {
        let received = match self.link.receive() {
            Err(LinkError::NoRoom) => {
                self.link.send(&Note::Full, &[])?;
                return Ok(false);
            }
            received => received?,
        };
        match received {
            (Note::Batch(abouts), sockets) => {
                intake.pending = parcels(abouts, sockets);
                self.link.send(&Note::Got, &[])?;
            }
            (Note::Yours, _) => intake.adopt(hub),
            (Note::Commit, _) => hub.thaw(),
            (Note::Done, _) => {
                hub.finish_handover();
                return Ok(true);
            }
            (Note::Publish { group, history, message_bytes_max, entries }, _) => {
                let entries =
                    entries.into_iter().map(|(channel, data)| (channel.into_owned(), data.publication()));
                let mut batch = Batch {
                    entries: entries.collect(),
                    group: group.into_owned(),
                    history: history.history(),
                    message_bytes_max,
                    ..Batch::default()
                };
                hub.publish_batch(&mut batch);
                let refused = batch.refused.map(Refusal::of);
                self.link.send(&Note::Published { ids: batch.ids, refused }, &[])?;
            }
            (Note::Invalidated { bytes, url_ends, is_custom }, _) => {
                if let Some(cache) = &live.opened().cache {
                    cache.invalidate(&KeyBuf { bytes, url_ends, is_custom });
                }
            }
            _ => return Err(LinkError::Malformed),
        }
        Ok(false)
    }
}

/// Subscribers that were received.
struct SubscriberIntake {
    /// They belong to the old process until it sends `Yours`.
    pending: Vec<Parcel>,
    next_worker: usize,
    workers_count: usize,
}

impl SubscriberIntake {
    /// Distributes them to the workers.
    fn adopt(&mut self, hub: &Hub) {
        let mut dealt: Vec<Vec<Parcel>> = (0..self.workers_count).map(|_| Vec::new()).collect();
        for parcel in self.pending.drain(..) {
            self.next_worker = (self.next_worker + 1) % self.workers_count.max(1);
            match dealt.get_mut(self.next_worker) {
                Some(worker) => worker.push(parcel),
                None => bug!("subscribers were received without workers for them"),
            }
        }
        for (worker, parcels) in dealt.into_iter().enumerate().filter(|(_, parcels)| !parcels.is_empty()) {
            hub.adopt(worker, parcels);
        }
    }
}

fn parcels(abouts: Vec<Cow<'static, About>>, sockets: Vec<OwnedFd>) -> Vec<Parcel> {
    let both = abouts.into_iter().zip(sockets);
    both.map(|(about, socket)| Parcel { socket, about: about.into_owned() }).collect()
}
