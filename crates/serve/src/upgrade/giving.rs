//! The old process: starts the successor, and hands its state over.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flatout_engine::{Address, Handle, Inherited};
use flatout_lane::passing::{DESCRIPTORS_MAX, Passing};
use flatout_lane::process::notify_replaced_by;

use super::VARIABLE;
use super::format::{Channel, FORMAT, LISTED_BYTES, LISTED_MAX, Note, PARCELS_MAX, PUSH_FORMAT, listed};
use super::forwarding::forward_all;
use super::link::{Link, Lost};
use crate::cache::Cache;
use crate::live::Live;
use crate::push::{Hub, Parcel};

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

/// The parts of the process to be replaced.
pub struct Former {
    /// The server.
    pub server: Handle,
    /// Its admin listener, if it has one.
    pub admin: Option<Handle>,
    /// Its channels.
    pub hub: Hub,
    /// The served configuration.
    pub live: Live,
}

/// The process that replaces this one; killed when dropped, unless it has taken over.
pub(super) struct Successor {
    child: Child,
    pub(super) link: Link,
    /// It understands `Note::Invalidated`.
    takes_invalidated: bool,
    has_succeeded: bool,
    /// It publishes.
    is_committed: bool,
}

/// Why moving failed, with the subscribers of the current batch and their worker.
struct Broken {
    why: Lost,
    worker: usize,
    parcels: Vec<Parcel>,
}

/// Starts the successor with this command, hands everything over to it, and drains this server. Returns what
/// happened, as text; `announce` is called with the same before the server can end. Takes a while: do not
/// call it on a worker's thread.
///
/// # Errors
/// Why this process continues unchanged, in words. The successor was killed.
pub fn replace(former: &Former, command: Command, announce: impl FnOnce(&str)) -> Result<String, String> {
    let successor =
        start(command).map_err(|error| format!("the new process could not be started: {error}"))?;
    hand_over(former, successor, announce)
}

fn start(mut command: Command) -> io::Result<Successor> {
    let (ours, theirs) = Passing::pair()?;
    command.env(VARIABLE, FORMAT.to_string()).stdin(Stdio::from(OwnedFd::from(theirs)));
    // The command holds the other end too, and is dropped here, so that a close by the new process is noticed.
    Ok(Successor::new(command.spawn()?, ours))
}

/// Hands everything over to a newly started process.
pub(super) fn hand_over(
    former: &Former,
    mut successor: Successor,
    announce: impl FnOnce(&str),
) -> Result<String, String> {
    let moves = successor.prepare(&listeners(former)?)?;
    // Before the successor stores anything.
    let invalidated = former.live.opened().cache.as_ref().map(Cache::pass_on);
    let moved = match moves {
        true => successor.move_channels(&former.hub)?,
        false => {
            let started = successor.start().and_then(|()| successor.link.send(&Note::Done, &[]));
            started.map_err(|lost| format!("the new process did not start: {lost}"))?;
            0
        }
    };
    let pid = successor.child.id();
    successor.has_succeeded = true;
    notify_replaced_by(pid);
    let [events, websockets, _] = former.hub.counted().subscribers;
    let stay = events + websockets;
    let invalidated = invalidated.filter(|_| successor.takes_invalidated);
    forward_all(successor, moves.then(|| former.hub.clone()), invalidated);
    let said = format!(
        "process {pid} has taken over; {moved} subscribers were handed over, {stay} were asked to reconnect"
    );
    announce(&said);
    // The successor waits for the folder of the cache. From now on, this process stores responses in memory
    // only.
    former.live.leave();
    // First the one by which this was asked for: it ends with the server.
    former.admin.iter().for_each(Handle::drain);
    former.server.drain();
    Ok(said)
}

/// All listeners, and whether they belong to the admin listener.
fn listeners(former: &Former) -> Result<Vec<(bool, Inherited)>, String> {
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
fn as_asked(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}

impl Successor {
    pub(super) fn new(child: Child, passing: Passing) -> Successor {
        let link = Link::new(passing);
        Successor { child, link, takes_invalidated: false, has_succeeded: false, is_committed: false }
    }

    /// Hands the listeners over and waits until the successor is ready. Returns whether channels move.
    fn prepare(&mut self, listeners: &[(bool, Inherited)]) -> Result<bool, String> {
        let silent = |lost: Lost| format!("the new program did not take over: {lost}");
        self.link.set_patience(Some(HELLO_TIME_MAX)).map_err(silent)?;
        let push_format = match self.link.receive().map_err(silent)?.0 {
            Note::Hello { format: FORMAT, push_format } => push_format,
            Note::Hello { format, .. } => {
                return Err(format!(
                    "the new program uses the handover format {format}, this one {FORMAT}; use a restart"
                ));
            }
            Note::Refused(why) => return Err(why.into_owned()),
            _ => return Err(silent(Lost::Malformed)),
        };
        self.link.set_patience(Some(READY_TIME_MAX)).map_err(silent)?;
        for (is_admin, listener) in listeners {
            let asked = listener.asked.as_ref().map(|address| Cow::Owned(as_asked(address)));
            let note = Note::Listener { is_admin: *is_admin, asked, is_secure: listener.is_secure };
            let sockets: Vec<_> = listener.sockets.iter().map(AsFd::as_fd).collect();
            self.link.send(&note, &sockets).map_err(silent)?;
        }
        self.link.send(&Note::Open, &[]).map_err(silent)?;
        match self.link.receive().map_err(|lost| format!("the new process did not become ready: {lost}"))?.0 {
            Note::Ready { takes_push, takes_invalidated } => {
                self.takes_invalidated = takes_invalidated;
                Ok(takes_push && push_format == PUSH_FORMAT)
            }
            Note::Refused(why) => Err(why.into_owned()),
            _ => Err(silent(Lost::Malformed)),
        }
    }

    /// Makes the successor serve.
    fn start(&mut self) -> Result<(), Lost> {
        self.link.set_patience(Some(STEP_TIME_MAX))?;
        self.link.send(&Note::Start, &[])?;
        match self.link.receive()?.0 {
            Note::Serving => Ok(()),
            _ => Err(Lost::Malformed),
        }
    }

    /// Moves channels and subscribers; returns how many. Publishes wait during the move.
    fn move_channels(&mut self, hub: &Hub) -> Result<usize, String> {
        // The new process already receives messages of other servers. Earlier ones must have arrived here.
        hub.sync(SYNC_TIME_MAX);
        let began = Instant::now();
        hub.freeze();
        let moved = match self.send_channels(hub).and_then(|()| self.start()) {
            Ok(()) => self.move_subscribers(hub, began),
            Err(why) => Err(Broken { why, worker: 0, parcels: Vec::new() }),
        };
        moved.map_err(|Broken { why, worker, parcels }| {
            // Kill it before sending to subscribers that it may have received: only one process may send to them.
            self.kill();
            if !parcels.is_empty() {
                hub.adopt(worker, parcels);
            }
            if self.is_committed {
                hub.skip();
            }
            hub.thaw();
            format!("the new process failed, and this one continues: {why}")
        })
    }

    fn send_channels(&mut self, hub: &Hub) -> Result<(), Lost> {
        self.link.set_patience(Some(STEP_TIME_MAX))?;
        let snapshot = hub.snapshot();
        self.link.send(&Note::Tip(snapshot.tip), &[])?;
        self.link.send(&Note::Heard(hub.heard()), &[])?;
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

    fn move_subscribers(&mut self, hub: &Hub, began: Instant) -> Result<usize, Broken> {
        let mut moved = 0;
        let broken = |why| Broken { why, worker: 0, parcels: Vec::new() };
        'workers: for worker in 0..hub.workers_count() {
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
                        hub.wait_held(Duration::ZERO).into_iter().for_each(|held| self.forward(hub, held));
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
    fn pass(&mut self, hub: &Hub, worker: usize, parcels: Vec<Parcel>) -> Result<bool, Broken> {
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
            Err(why) => Err(Broken { why, worker, parcels }),
        }
    }

    fn offer(&mut self, parcels: &[Parcel]) -> Result<bool, Lost> {
        let note = Note::Batch(parcels.iter().map(|parcel| Cow::Borrowed(&parcel.about)).collect());
        let sockets: Vec<_> = parcels.iter().map(|parcel| parcel.socket.as_fd()).collect();
        self.link.send(&note, &sockets)?;
        match self.link.receive()?.0 {
            Note::Got => Ok(true),
            Note::Full => Ok(false),
            _ => Err(Lost::Malformed),
        }
    }

    fn commit(&mut self) -> Result<(), Lost> {
        // Even if the note may not have arrived.
        self.is_committed = true;
        self.link.send(&Note::Commit, &[])
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.has_succeeded {
            self.kill();
        }
    }
}
