//! The old process: starts the successor, and hands its state over.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use flatout_engine::{Address, Handle, Inherited};
use flatout_lane::cpu::with_own_cpus;
use flatout_lane::descriptors::{DESCRIPTORS_MAX, SeqpacketSocket};
use flatout_lane::process::{Ending, notify_replaced_by, signal_process};

use super::VARIABLE;
use super::format::{
    Channel, FORMAT, LISTED_BYTES, LISTED_MAX, Note, PARCELS_MAX, PUSH_FORMAT, Unsent, listed,
};
use super::forward::forward_all;
use super::link::{Link, LinkError};
use crate::live::Live;
use crate::upstream_state;
use flatout_bus::Relay;
use flatout_cache::{Cache, KeyBuf};
use flatout_push::{Hub, Parcel};

/// How long the channels may wait for what other servers have sent.
const SYNC_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a program may take to report as a successor: until then it only reads its arguments.
const HELLO_TIME_MAX: Duration = Duration::from_secs(10);

/// How long the successor may take to open what it serves.
const READY_TIME_MAX: Duration = Duration::from_secs(40);

/// How long any other step may take; after that the successor is killed, and this process continues.
const STEP_TIME_MAX: Duration = Duration::from_secs(5);

/// How long publishes wait at most before the successor publishes, even if some subscribers have not moved yet.
const COMMIT_TIME: Duration = Duration::from_millis(1500);

/// How often a worker's table is searched for subscribers that could not move before, or are new.
const ROUNDS_MAX: usize = 4;

/// Why the upgrade was abandoned, if the server got a signal to stop meanwhile.
const GIVEN_UP: &str = "the server was told to stop, so the upgrade was given up";

/// The parts of the process to be replaced.
pub struct Predecessor {
    /// The server.
    pub server: Handle,
    /// Its admin listener, if it has one.
    pub admin: Option<Handle>,
    /// Its channels.
    pub hub: Hub,
    /// What connects them to other servers, if there is a bus.
    pub relay: Option<Arc<Relay>>,
    /// The served configuration.
    pub live: Live,
}

/// The process that has taken over.
#[derive(Debug)]
pub struct Takeover {
    /// Its id.
    pub pid: u32,
    /// What happened, as text.
    pub message: String,
}

impl Predecessor {
    /// Whether the server is to end.
    fn is_stopping(&self) -> bool {
        *self.server.draining().borrow()
    }

    /// Another process serves from now on: drains.
    pub(super) fn leave(&self) {
        // The successor waits for the folder of the cache. From now on, this process stores responses in memory
        // only.
        self.live.leave();
        // First the one by which this was asked for: it ends with the server.
        self.admin.iter().for_each(Handle::drain);
        self.server.drain_for_successor();
    }
}

/// What moves besides the listeners.
#[derive(Debug, Clone, Copy)]
struct Moves {
    /// Channels and their subscribers.
    channels: bool,
    /// The number of this process on the bus, and what the bus has not carried.
    outbox: bool,
}

/// The process that replaces this one; killed when dropped, unless it has taken over.
pub(super) struct SuccessorProcess {
    /// `None`: it is simulated in this process.
    child: Option<Child>,
    pub(super) link: Link,
    /// It understands `Note::Invalidated`.
    takes_invalidated: bool,
    /// It understands `Note::Upstream`.
    takes_upstreams: bool,
    has_succeeded: bool,
    /// It publishes.
    is_committed: bool,
}

/// What was handed over.
pub(super) struct HandedOver {
    /// How many subscribers.
    pub(super) moved: usize,
    /// Channels, or what the bus has not carried.
    has_moves: bool,
    /// Keys that the cache invalidates from now on, if there is one.
    pub(super) invalidated: Option<Receiver<KeyBuf>>,
}

/// Why moving failed, with the subscribers of the current batch and their worker.
struct MoveFailure {
    why: LinkError,
    worker: usize,
    parcels: Vec<Parcel>,
}

/// Starts the successor with this command, hands everything over to it, and drains this server. `announce` is called
/// with the message before the server can end. Takes a while: do not call it on a worker's thread.
///
/// If this server begins to drain before the successor serves, the upgrade is given up. After that, the successor is
/// told to end too.
///
/// # Errors
/// Why this process continues unchanged, in words. The successor was killed.
pub fn replace(
    former: &Predecessor,
    command: Command,
    announce: impl FnOnce(&str),
) -> Result<Takeover, String> {
    let successor =
        start(command).map_err(|error| format!("the new process could not be started: {error}"))?;
    hand_over(former, successor, announce).map_err(|why| match former.is_stopping() {
        // It may be the cause of any failure.
        true => GIVEN_UP.to_owned(),
        false => why,
    })
}

fn start(mut command: Command) -> io::Result<SuccessorProcess> {
    let (ours, theirs) = SeqpacketSocket::pair()?;
    command.env(VARIABLE, FORMAT.to_string()).stdin(Stdio::from(OwnedFd::from(theirs)));
    // The command holds the other end too, and is dropped here, so that a close by the new process is noticed.
    Ok(SuccessorProcess::new(Some(with_own_cpus(&mut command).spawn()?), ours))
}

/// Hands everything over to a newly started process.
pub(super) fn hand_over(
    former: &Predecessor,
    mut successor: SuccessorProcess,
    announce: impl FnOnce(&str),
) -> Result<Takeover, String> {
    let HandedOver { moved, has_moves, invalidated } = successor.give_all(former)?;
    let pid = successor.child.as_ref().map_or(0, Child::id);
    notify_replaced_by(pid);
    let [events, websockets, _] = former.hub.counted().subscribers;
    let stay = events + websockets;
    let invalidated = invalidated.filter(|_| successor.takes_invalidated);
    forward_all(successor, has_moves.then(|| former.hub.clone()), invalidated);
    let mut message = format!(
        "process {pid} has taken over; {moved} subscribers were handed over, {stay} were asked to reconnect"
    );
    if former.is_stopping() {
        // The signal was meant for the service, and it came before anybody could know of the new process.
        let ended = signal_process(pid, Ending::Asked);
        message.push_str(&match ended {
            Ok(()) => "; this server was stopped meanwhile, so the new process stops too".to_owned(),
            Err(error) => {
                format!("; this server was stopped meanwhile, but the new process was not: {error}")
            }
        });
    }
    announce(&message);
    former.leave();
    Ok(Takeover { pid, message })
}

/// All listeners, and whether they belong to the admin listener.
fn listeners(former: &Predecessor) -> Result<Vec<(bool, Inherited)>, String> {
    let mut found = Vec::new();
    for (is_admin, handle) in former.admin.iter().map(|admin| (true, admin)).chain([(false, &former.server)])
    {
        let inherited = handle.inherited().map_err(|error| error.to_string())?;
        found.extend(inherited.into_iter().map(|listener| (is_admin, listener)));
    }
    match found.iter().all(|(_, listener)| listener.sockets.len() <= DESCRIPTORS_MAX) {
        true => Ok(found),
        false => Err(format!("more than {DESCRIPTORS_MAX} workers; use a restart")),
    }
}

/// An address as it is parsed.
fn as_configured(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}

impl SuccessorProcess {
    pub(super) fn new(child: Option<Child>, passing: SeqpacketSocket) -> SuccessorProcess {
        let link = Link::new(passing);
        SuccessorProcess {
            child,
            link,
            takes_invalidated: false,
            takes_upstreams: false,
            has_succeeded: false,
            is_committed: false,
        }
    }

    /// Hands over all that moves before this server drains. From then on the successor serves.
    pub(super) fn give_all(&mut self, former: &Predecessor) -> Result<HandedOver, String> {
        let moves = self.prepare(former, &listeners(former)?)?;
        // Before the successor stores anything.
        let invalidated = former.live.opened().cache.as_ref().map(Cache::pass_on);
        let has_moves = moves.channels || moves.outbox;
        let moved = match has_moves {
            true => self.move_channels(former, moves)?,
            false => {
                let started = self.start(former).and_then(|()| self.link.send(&Note::Done, &[]));
                started.map_err(|lost| format!("the new process did not start: {lost}"))?;
                0
            }
        };
        self.has_succeeded = true;
        Ok(HandedOver { moved, has_moves, invalidated })
    }

    /// Hands the listeners over and waits until the successor is ready. Returns what else moves.
    fn prepare(&mut self, former: &Predecessor, listeners: &[(bool, Inherited)]) -> Result<Moves, String> {
        let silent = |lost: LinkError| format!("the new program did not take over: {lost}");
        self.link.set_patience(Some(HELLO_TIME_MAX)).map_err(silent)?;
        let hello = self.link.receive_unless(|| former.is_stopping(), HELLO_TIME_MAX);
        let push_format = match hello.map_err(silent)? {
            Note::Hello { format: FORMAT, push_format } => push_format,
            Note::Hello { format, .. } => {
                return Err(format!(
                    "the new program uses the handover format {format}, this one {FORMAT}; use a restart"
                ));
            }
            Note::Refused(why) => return Err(why.into_owned()),
            _ => return Err(silent(LinkError::Malformed)),
        };
        self.link.set_patience(Some(READY_TIME_MAX)).map_err(silent)?;
        for (is_admin, listener) in listeners {
            let asked = listener.asked.as_ref().map(|address| Cow::Owned(as_configured(address)));
            let note = Note::Listener { is_admin: *is_admin, asked, is_secure: listener.is_secure };
            let sockets: Vec<_> = listener.sockets.iter().map(AsFd::as_fd).collect();
            self.link.send(&note, &sockets).map_err(silent)?;
        }
        self.link.send(&Note::Open, &[]).map_err(silent)?;
        let ready = self.link.receive_unless(|| former.is_stopping(), READY_TIME_MAX);
        match ready.map_err(|lost| format!("the new process did not become ready: {lost}"))? {
            Note::Ready { takes_push, takes_invalidated, takes_upstreams, bus } => {
                self.takes_invalidated = takes_invalidated;
                self.takes_upstreams = takes_upstreams;
                let is_known = push_format == PUSH_FORMAT;
                let own = former.relay.as_deref().and_then(Relay::bus_name).unwrap_or_default();
                let is_same = bus.is_some_and(|bus| flatout_bus::is_same(&own, &bus));
                Ok(Moves { channels: takes_push && is_known, outbox: is_same && is_known })
            }
            Note::Refused(why) => Err(why.into_owned()),
            _ => Err(silent(LinkError::Malformed)),
        }
    }

    /// Makes the successor serve.
    fn start(&mut self, former: &Predecessor) -> Result<(), LinkError> {
        if former.is_stopping() {
            return Err(LinkError::Stopping);
        }
        self.link.set_patience(Some(STEP_TIME_MAX))?;
        if self.takes_upstreams {
            for changed in upstream_state::changed(&former.live.opened().proxy) {
                self.link.send(&Note::Upstream(Cow::Owned(changed)), &[])?;
            }
        }
        self.link.send(&Note::Start, &[])?;
        match self.link.receive()?.0 {
            Note::Serving => Ok(()),
            _ => Err(LinkError::Malformed),
        }
    }

    /// Moves channels and subscribers, and what the bus has not carried; returns how many subscribers. Publishes wait during the
    /// move.
    fn move_channels(&mut self, former: &Predecessor, moves: Moves) -> Result<usize, String> {
        let hub = &former.hub;
        let relay = former.relay.as_deref().filter(|_| moves.outbox);
        // The new process already receives messages of other servers. Earlier ones must have arrived here.
        hub.sync(SYNC_TIME_MAX);
        let began = Instant::now();
        hub.freeze();
        let sent = relay.map_or(Ok(()), |relay| self.send_outbox(relay));
        let sent = sent.and_then(|()| if moves.channels { self.send_channels(hub, moves) } else { Ok(()) });
        let moved = match sent.and_then(|()| self.start(former)) {
            Ok(()) => self.move_subscribers(hub, began, moves),
            Err(why) => Err(MoveFailure { why, worker: 0, parcels: Vec::new() }),
        };
        if let (Ok(_), Some(relay)) = (&moved, relay) {
            relay.retire();
        }
        moved.map_err(|MoveFailure { why, worker, parcels }| {
            // Kill it before sending to subscribers that it may have received: only one process may send to them.
            self.kill();
            if !parcels.is_empty() {
                hub.adopt(worker, parcels);
            }
            if self.is_committed {
                hub.skip();
            }
            if let Some(relay) = relay {
                relay.thaw(self.is_committed);
            }
            hub.thaw();
            format!("the new process failed, and this one continues: {why}")
        })
    }

    fn send_outbox(&mut self, relay: &Relay) -> Result<(), LinkError> {
        self.link.set_patience(Some(STEP_TIME_MAX))?;
        let (identity, outbox) = relay.freeze();
        self.link.send(&Note::Identity(identity), &[])?;
        let (mut some, mut bytes) = (Vec::new(), 0);
        for unsent in outbox.iter().filter_map(Unsent::of) {
            bytes += unsent.text.len();
            some.push(unsent);
            if some.len() == LISTED_MAX || bytes >= LISTED_BYTES {
                self.link.send(&Note::Outbox(std::mem::take(&mut some)), &[])?;
                bytes = 0;
            }
        }
        self.link.send(&Note::Outbox(some), &[])
    }

    fn send_channels(&mut self, hub: &Hub, moves: Moves) -> Result<(), LinkError> {
        self.link.set_patience(Some(STEP_TIME_MAX))?;
        let snapshot = hub.snapshot(moves.outbox);
        self.link.send(&Note::Tip(snapshot.tip), &[])?;
        self.link.send(&Note::Heard(hub.sequences()), &[])?;
        for some in snapshot.channels.chunks(LISTED_MAX) {
            self.link.send(&Note::Channels(some.iter().map(Channel::of).collect()), &[])?;
        }
        let (mut some, mut bytes) = (Vec::new(), 0);
        for message in listed(&snapshot.channels) {
            bytes += message.data.text.len();
            some.push(message);
            if some.len() == LISTED_MAX || bytes >= LISTED_BYTES {
                self.link.send(&Note::Messages(std::mem::take(&mut some)), &[])?;
                bytes = 0;
            }
        }
        self.link.send(&Note::Messages(some), &[])
    }

    fn move_subscribers(&mut self, hub: &Hub, began: Instant, moves: Moves) -> Result<usize, MoveFailure> {
        let mut moved = 0;
        let broken = |why| MoveFailure { why, worker: 0, parcels: Vec::new() };
        let workers_count = if moves.channels { hub.workers_count() } else { 0 };
        'workers: for worker in 0..workers_count {
            for _ in 0..ROUNDS_MAX {
                let mut moved_in_round = 0;
                loop {
                    let Some(given) = hub.give(worker, PARCELS_MAX) else { continue 'workers };
                    let (count, is_round) = (given.parcels.len(), given.is_round);
                    if count > 0 && !self.pass(hub, worker, given.parcels)? {
                        break 'workers;
                    }
                    moved_in_round += count;
                    if !self.is_committed && began.elapsed() >= COMMIT_TIME {
                        self.commit().map_err(broken)?;
                    }
                    if self.is_committed {
                        hub.wait_publishes(Duration::ZERO)
                            .into_iter()
                            .for_each(|waiting| self.forward(hub, waiting));
                    }
                    if is_round {
                        break;
                    }
                }
                moved += moved_in_round;
                if moved_in_round == 0 {
                    break;
                }
            }
        }
        if !self.is_committed {
            self.commit().map_err(broken)?;
        }
        self.link.send(&Note::Done, &[]).map_err(broken)?;
        Ok(moved)
    }

    /// Passes some subscribers on. Returns whether the successor had room for them.
    fn pass(&mut self, hub: &Hub, worker: usize, parcels: Vec<Parcel>) -> Result<bool, MoveFailure> {
        let passed = self.offer(&parcels).and_then(|is_taken| match is_taken {
            // From here on they belong to it. If this note does not reach it, it has none of them.
            true => self.link.send(&Note::Yours, &[]).map(|()| true),
            false => Ok(false),
        });
        match passed {
            Ok(true) => Ok(true),
            Ok(false) => {
                hub.adopt(worker, parcels);
                Ok(false)
            }
            Err(why) => Err(MoveFailure { why, worker, parcels }),
        }
    }

    fn offer(&mut self, parcels: &[Parcel]) -> Result<bool, LinkError> {
        let note = Note::Batch(parcels.iter().map(|parcel| Cow::Borrowed(&parcel.about)).collect());
        let sockets: Vec<_> = parcels.iter().map(|parcel| parcel.socket.as_fd()).collect();
        self.link.send(&note, &sockets)?;
        match self.link.receive()?.0 {
            Note::Got => Ok(true),
            Note::Full => Ok(false),
            _ => Err(LinkError::Malformed),
        }
    }

    fn commit(&mut self) -> Result<(), LinkError> {
        // Even if the note may not have arrived.
        self.is_committed = true;
        self.link.send(&Note::Commit, &[])
    }

    fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for SuccessorProcess {
    fn drop(&mut self) {
        if !self.has_succeeded {
            self.kill();
        }
    }
}
