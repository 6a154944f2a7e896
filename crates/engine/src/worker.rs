//! One worker: a thread, its lane, and its turn.
//!
//! ```text
//! tokio (current thread) ── the lane is readable ──> turn: take all events, serve each to completion, yield
//!                        ├─ mailbox: drain, resume a body, end
//!                        ├─ sweep:   deadlines, eight slices a second
//!                        └─ tasks:   responses and bodies that take time
//! ```

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll as TaskPoll, Waker};

use flatout_lane::clock::{self, Ticks};
use flatout_lane::poll::{EVENTS_MAX, Poll, Ready};
use flatout_lane::slab::{Key, Slab};
use flatout_lane::socket::{self, Accepted};
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::{LocalSet, spawn_local, yield_now};

use crate::connection::Connection;
use crate::plan::Limits;
use crate::response::{Taken, Takeover};
use crate::service::Service;
use crate::serving::{Fate, Serving};
use crate::shared::{Shared, Stats};
use crate::streaming::QUEUE_BYTES_MAX;

/// Connections accepted from one listener before those that exist have their turn.
const ACCEPTS_PER_TURN: usize = 64;

/// Turns that the lane takes while there are events, before other tasks of the worker have theirs.
const TURNS_MAX: usize = 8;

/// The sweep looks at one slice of the table every [`clock::TICK`], so at each connection once a second.
const SWEEP_SLICES: usize = 8;

/// Tokens of listeners count down from the top; keys of connections stay far below.
const LISTENER_TOKENS: u64 = u64::MAX - 1024;

/// What other threads, and tasks of this one, tell a worker. At most one `Resume` waits for each connection.
pub(crate) enum Message {
    /// Stop accepting; finish what was begun, until the deadline.
    Drain(std::time::Duration),
    /// Close everything now.
    Stop,
    /// The reader of this connection's request body has caught up.
    Resume(Key),
}

/// What a worker is made of.
pub(crate) struct Setup {
    pub(crate) listeners: Vec<OwnedFd>,
    pub(crate) limits: Limits,
    pub(crate) server_name: Option<String>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) mailbox: (UnboundedSender<Message>, UnboundedReceiver<Message>),
}

/// A worker's state, visited by its tasks one at a time.
pub(crate) struct Worker {
    poll: Poll,
    listeners: Vec<OwnedFd>,
    paused: bool,
    connections: Slab<Connection>,
    taken_count: usize,
    serving: Serving,
    again: Vec<Key>,
    accept_again: bool,
    /// Wakes the lane's loop for what no event tells.
    wake: Option<Waker>,
    shared: Arc<Shared>,
    stats: Arc<Stats>,
    requests_max: u32,
    drain_deadline: Option<Ticks>,
    sweep_slice: usize,
    ended: bool,
}

/// Runs a worker on this thread until it has drained or was stopped.
pub(crate) fn run(setup: Setup, make: impl FnOnce() -> Box<dyn Service>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let local = LocalSet::new();
    let (mailbox_sender, mailbox) = setup.mailbox;
    local.block_on(&runtime, async move {
        let poll = Poll::new()?;
        let watched = poll.watched()?;
        let service = make();
        let worker = Rc::new_cyclic(|me| {
            RefCell::new(Worker {
                poll,
                listeners: setup.listeners,
                paused: true,
                connections: Slab::new(),
                taken_count: 0,
                requests_max: setup.limits.requests_per_connection_max.unwrap_or(u32::MAX),
                serving: Serving::new(
                    service,
                    setup.limits,
                    setup.server_name.as_deref(),
                    me.clone(),
                    mailbox_sender,
                ),
                again: Vec::new(),
                accept_again: false,
                wake: None,
                shared: setup.shared,
                stats: setup.stats,
                drain_deadline: None,
                sweep_slice: 0,
                ended: false,
            })
        });
        worker.borrow_mut().start_accepting()?;
        spawn_local(read_mailbox(worker.clone(), mailbox));
        spawn_local(sweep(worker.clone()));
        run_lane(&worker, &watched).await
    })
}

/// The lane's own loop: the only place that waits for connections.
///
/// Under load the next requests arrive while the last are answered. To look for them at once costs one system call;
/// to go through the runtime's own wait costs two, its timers and its clock. So a busy lane is looked at again.
async fn run_lane(worker: &RefCell<Worker>, watched: &AsyncFd<OwnedFd>) -> io::Result<()> {
    loop {
        let mut guard = match poll_fn(|context| worker.borrow_mut().poll_work(watched, context)).await? {
            Work::Ended => return Ok(()),
            Work::Again => {
                worker.borrow_mut().turn_again();
                yield_now().await;
                continue;
            }
            Work::Events(guard) => guard,
        };
        let mut taken = worker.borrow_mut().turn()?;
        for _ in 1..TURNS_MAX {
            if taken == 0 {
                break;
            }
            taken = worker.borrow_mut().turn()?;
        }
        // A lane that is always full must not keep those waiting that had more to do.
        if worker.borrow().has_more() {
            worker.borrow_mut().turn_again();
        }
        if taken < EVENTS_MAX {
            guard.clear_ready();
        } else {
            yield_now().await;
        }
    }
}

/// What the lane's loop has to do next.
enum Work<'a> {
    /// There are events to take.
    Events(AsyncFdReadyGuard<'a, OwnedFd>),
    /// Some connection had more to do than fitted its turn.
    Again,
    /// Nothing any more.
    Ended,
}

async fn read_mailbox(worker: Rc<RefCell<Worker>>, mut mailbox: UnboundedReceiver<Message>) {
    while let Some(message) = mailbox.recv().await {
        let mut worker = worker.borrow_mut();
        match message {
            Message::Drain(time_max) => worker.drain(clock::ticks(time_max)),
            Message::Stop => worker.end(),
            Message::Resume(key) => {
                worker.with(key, |serving, connection| serving.read_on(key, connection));
            }
        }
    }
}

async fn sweep(worker: Rc<RefCell<Worker>>) {
    let mut interval = tokio::time::interval(clock::TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        worker.borrow_mut().sweep();
    }
}

impl Worker {
    /// Takes the events that are there and serves each to completion.
    fn turn(&mut self) -> io::Result<usize> {
        let taken = self.poll.take()?;
        self.serving.tick();
        for index in 0..taken {
            let Some(ready) = self.poll.event(index) else { break };
            if ready.token > LISTENER_TOKENS {
                self.accept((u64::MAX - ready.token) as usize);
            } else {
                self.connection_ready(ready);
            }
        }
        self.stats.requests.store(self.serving.requests_count, Ordering::Relaxed);
        Ok(taken)
    }

    /// What the lane's loop has to do next; it is woken when there is something.
    fn poll_work<'a>(
        &mut self,
        watched: &'a AsyncFd<OwnedFd>,
        context: &mut Context<'_>,
    ) -> TaskPoll<io::Result<Work<'a>>> {
        if self.ended {
            return TaskPoll::Ready(Ok(Work::Ended));
        }
        // Events first: those who had their turn wait behind those who had none.
        if let TaskPoll::Ready(guard) = watched.poll_read_ready(context) {
            return TaskPoll::Ready(guard.map(Work::Events));
        }
        if self.has_more() {
            return TaskPoll::Ready(Ok(Work::Again));
        }
        if !self.wake.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            self.wake = Some(context.waker().clone());
        }
        TaskPoll::Pending
    }

    /// Whether some had more to do than fitted their turn.
    fn has_more(&self) -> bool {
        self.accept_again || !self.again.is_empty()
    }

    fn wake_lane(&self) {
        if let Some(waker) = &self.wake {
            waker.wake_by_ref();
        }
    }

    /// Serves those that had more to do than fits one turn.
    fn turn_again(&mut self) {
        self.serving.tick();
        if std::mem::take(&mut self.accept_again) {
            for index in 0..self.listeners.len() {
                self.accept(index);
            }
        }
        for key in std::mem::take(&mut self.again) {
            self.with(key, |serving, connection| match serving.writable(key, connection) {
                Fate::Keep => serving.resume(key, connection),
                fate => fate,
            });
        }
    }

    #[inline]
    fn connection_ready(&mut self, ready: Ready) {
        let key = Key::from_u64(ready.token);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let mut fate = Fate::Keep;
        if ready.hung_up() {
            fate = Fate::Close;
        } else {
            if ready.readable() {
                connection.readable = true;
                connection.read_closed |= ready.read_closed();
            }
            if ready.writable() && connection.work.is_some() {
                fate = self.serving.writable(key, connection);
            }
            if matches!(fate, Fate::Keep) {
                fate = self.serving.pump(key, connection);
            }
        }
        self.apply(key, fate);
    }

    /// Does something to a connection. Returns whether it lived.
    pub(crate) fn with(&mut self, key: Key, act: impl FnOnce(&mut Serving, &mut Connection) -> Fate) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let fate = act(&mut self.serving, connection);
        self.apply(key, fate);
        true
    }

    /// Ready once the queue of this connection's answer has room, or the connection is gone.
    pub(crate) fn poll_room(&mut self, key: Key, context: &mut Context<'_>) -> TaskPoll<()> {
        let Some(exchange) = self.connections.get_mut(key).and_then(Connection::exchange) else {
            return TaskPoll::Ready(());
        };
        if exchange.queue.bytes() < QUEUE_BYTES_MAX {
            return TaskPoll::Ready(());
        }
        exchange.room = Some(context.waker().clone());
        TaskPoll::Pending
    }

    #[inline]
    fn apply(&mut self, key: Key, fate: Fate) {
        match fate {
            Fate::Keep => {}
            Fate::Again => {
                self.again.push(key);
                self.wake_lane();
            }
            Fate::Close => self.close(key),
            Fate::Take(takeover) => self.take(key, takeover),
        }
    }

    fn close(&mut self, key: Key) {
        if let Some(connection) = self.connections.remove(key) {
            self.shared.release(connection.peer);
            drop(connection);
            self.connection_ended();
        }
    }

    fn connection_ended(&mut self) {
        if self.drain_deadline.is_some() {
            self.end_if_drained();
        } else if self.paused {
            self.resume_accepting();
        }
    }

    /// Lets a connection leave the lane; it still counts until its task ends.
    fn take(&mut self, key: Key, takeover: Takeover) {
        let Some(connection) = self.connections.remove(key) else { return };
        // Closing would end the watch, but the socket stays open.
        let _ = self.poll.remove(connection.socket.as_fd());
        let peer = connection.peer;
        let taken = Taken { socket: connection.socket, read: connection.held.into(), peer };
        self.taken_count += 1;
        let leaving = Leaving { worker: self.serving.worker.clone(), peer };
        spawn_local(async move {
            let _leaving = leaving;
            takeover(taken).await;
        });
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.get(index) else { return };
            if self.paused {
                return;
            }
            if !self.shared.has_room() {
                return self.pause_accepting();
            }
            match socket::accept(listener.as_fd()) {
                Accepted::Connection(socket, peer) => self.admit(socket, peer),
                Accepted::Empty => return,
                Accepted::Aborted => {}
                Accepted::Exhausted(error) => {
                    self.shared.complain(&error);
                    return self.pause_accepting();
                }
            }
        }
        // More may wait, and of that nobody tells: the outer set hears of a listener that becomes ready, not of one
        // that still is.
        self.accept_again = true;
        self.wake_lane();
    }

    fn admit(&mut self, socket: OwnedFd, peer: Option<SocketAddr>) {
        if !self.shared.admit(peer) {
            return;
        }
        let deadline = self.serving.idle_deadline();
        let key = self.connections.insert(Connection::new(socket, peer, deadline, self.requests_max));
        let Some(connection) = self.connections.get_mut(key) else { return };
        if self.poll.add_connection(connection.socket.as_fd(), key.to_u64()).is_err() {
            // ENOMEM or ENOSPC (epoll(7): max_user_watches): this connection cannot be served.
            self.close(key);
        }
    }

    fn start_accepting(&mut self) -> io::Result<()> {
        self.paused = false;
        for (index, listener) in self.listeners.iter().enumerate() {
            self.poll.add_listener(listener.as_fd(), u64::MAX - index as u64)?;
        }
        Ok(())
    }

    /// Leaves new connections in the kernel's backlog, until one ends or the next sweep looks again.
    fn pause_accepting(&mut self) {
        self.paused = true;
        for listener in &self.listeners {
            let _ = self.poll.remove(listener.as_fd());
        }
    }

    fn resume_accepting(&mut self) {
        if self.paused && self.shared.has_room() && self.start_accepting().is_err() {
            self.pause_accepting();
        }
    }

    /// Ends what is overdue in one slice of the table.
    fn sweep(&mut self) {
        self.serving.tick();
        let now = self.serving.now.ticks;
        let slots = self.connections.slots();
        let slice = self.sweep_slice;
        self.sweep_slice = (slice + 1) % SWEEP_SLICES;
        for slot in slots * slice / SWEEP_SLICES..slots * (slice + 1) / SWEEP_SLICES {
            let due = self.connections.slot(slot).filter(|(_, connection)| connection.deadline <= now);
            if let Some((key, _)) = due {
                self.with(key, |serving, connection| serving.expire(key, connection));
            }
        }
        if self.drain_deadline.is_some_and(|deadline| deadline <= now) {
            self.end();
        }
        self.resume_accepting();
        self.stats.connections.store(self.connections.len() + self.taken_count, Ordering::Relaxed);
    }

    /// Stops accepting, closes what is idle, and lets the rest finish.
    fn drain(&mut self, time_max: Ticks) {
        if self.drain_deadline.is_some() {
            return;
        }
        self.serving.tick();
        // Those that the kernel has accepted for us would be reset with the listener: they are served.
        self.accept_again = true;
        while std::mem::take(&mut self.accept_again) {
            for index in 0..self.listeners.len() {
                self.accept(index);
            }
        }
        self.pause_accepting();
        self.paused = false;
        self.listeners.clear();
        self.drain_deadline = Some(self.serving.now.ticks + time_max);
        self.serving.draining = true;
        for slot in 0..self.connections.slots() {
            let Some((key, _)) = self.connections.slot(slot) else { continue };
            self.with(key, |serving, connection| {
                // A request may have come whose event was not taken yet.
                connection.readable = true;
                match serving.pump(key, connection) {
                    Fate::Keep if connection.is_idle() => Fate::Close,
                    fate => fate,
                }
            });
        }
        self.end_if_drained();
    }

    fn end_if_drained(&mut self) {
        if self.connections.is_empty() && self.taken_count == 0 {
            self.end();
        }
    }

    fn end(&mut self) {
        self.ended = true;
        self.wake_lane();
    }
}

/// Counts a connection out that has left the lane, when its task ends: also by a panic.
struct Leaving {
    worker: Weak<RefCell<Worker>>,
    peer: Option<SocketAddr>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let Some(worker) = self.worker.upgrade() else { return };
        // While the worker itself is being visited only its own end drops tasks, and then nobody counts any more.
        let Ok(mut worker) = worker.try_borrow_mut() else { return };
        worker.taken_count -= 1;
        worker.shared.release(self.peer);
        worker.connection_ended();
    }
}
