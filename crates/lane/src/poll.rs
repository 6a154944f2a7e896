//! Readiness: an epoll set that can itself be watched by another one.
//!
//! ```text
//! tokio's epoll ── AsyncFd ──> Poll's epoll ──> sockets, edge-triggered
//! ```
//!
//! In that case the set is only polled with a timeout of 0; waiting is done by the outer one. A thread that handles
//! nothing but its connections needs no outer set: it calls [`Poll::wait`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::slab::Key;

/// Events taken at a time. After a full batch there may be more.
pub const EVENTS_MAX: usize = 256;

/// From this length on, a wait may be late by the millisecond that `epoll_wait` rounds up to.
pub const COARSE_WAIT_MIN: Duration = Duration::from_millis(50);

/// The longest wait: its milliseconds have to fit 31 bits.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Packets that one busy poll takes from the card at most: what the kernel allows without CAP_NET_ADMIN.
const BUSY_POLL_PACKETS: u16 = 64;

/// How many events are taken at a time, for the simulator: what follows is as if it had happened during the turn.
#[cfg(feature = "simulation")]
pub mod simulated {
    use std::cell::Cell;

    thread_local! {
        static EVENTS_MAX: Cell<usize> = const { Cell::new(super::EVENTS_MAX) };
    }

    /// Sets it for sets that this thread makes from now on, at most [`super::EVENTS_MAX`].
    pub fn set_events_max(events_max: usize) {
        EVENTS_MAX.set(events_max.clamp(1, super::EVENTS_MAX));
    }

    pub(super) fn events_max() -> usize {
        EVENTS_MAX.get()
    }
}

/// An epoll set, and the last events that were taken from it.
pub struct Poll {
    set: Set,
    events: Vec<Event>,
}

/// The interest list of an epoll set; clones refer to the same set, on the same thread.
#[derive(Debug, Clone)]
pub struct Set(Rc<OwnedFd>);

/// Identifies a descriptor in a set: its kind in the top bits of epoll's 64, its key in the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// The listener with this index.
    Listener(u32),
    /// An accepted connection.
    Client(Key),
    /// A connection that belongs to a service.
    Guest(Key),
    /// A wake-up by other threads ([`Wake`]).
    Wake,
}

impl Token {
    const LISTENER: u64 = 1;
    const GUEST: u64 = 2;
    const WAKE: u64 = 3;

    /// As epoll stores it.
    #[inline]
    pub fn to_u64(self) -> u64 {
        match self {
            Token::Client(key) => key.to_u64(),
            Token::Listener(index) => Token::LISTENER << Key::BITS | u64::from(index),
            Token::Guest(key) => Token::GUEST << Key::BITS | key.to_u64(),
            Token::Wake => Token::WAKE << Key::BITS,
        }
    }

    /// Converts back from [`Token::to_u64`].
    #[inline]
    pub fn from_u64(bits: u64) -> Token {
        let key = bits & ((1 << Key::BITS) - 1);
        match bits >> Key::BITS {
            Token::LISTENER => Token::Listener(key as u32),
            Token::GUEST => Token::Guest(Key::from_u64(key)),
            Token::WAKE => Token::Wake,
            _ => Token::Client(Key::from_u64(key)),
        }
    }
}

/// Makes a set readable from another thread (`eventfd(2)`).
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// Without a pending wake-up.
    pub fn new() -> io::Result<Wake> {
        Ok(Wake(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Wakes the waiter on the set that watches it. Costs one system call.
    pub fn wake(&self) {
        // The only error is a full counter, and then it is already readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears the wake-up.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The events of one descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    /// The token that the descriptor was added with.
    pub token: u64,
    flags: EventFlags,
}

impl Ready {
    /// The peer's end of stream, reported by a layer above the socket.
    pub fn end(token: u64) -> Ready {
        Ready { token, flags: EventFlags::IN | EventFlags::RDHUP }
    }

    /// Something to read, of which a layer above sockets knows.
    pub fn to_read(token: u64) -> Ready {
        Ready { token, flags: EventFlags::IN }
    }

    /// Room to send, of which a layer above sockets knows.
    pub fn to_write(token: u64) -> Ready {
        Ready { token, flags: EventFlags::OUT }
    }

    /// The end in both directions, of which a layer above sockets knows.
    pub fn gone(token: u64) -> Ready {
        Ready { token, flags: EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::HUP }
    }

    /// The same, with room to send and something to read.
    pub fn and_all(self) -> Ready {
        Ready { flags: self.flags | EventFlags::IN | EventFlags::OUT, ..self }
    }

    /// Readable: bytes, or the peer's end of stream.
    #[inline]
    pub fn readable(self) -> bool {
        self.flags.intersects(EventFlags::IN | EventFlags::RDHUP)
    }

    /// The peer has closed its side: after the available bytes, reads return the end.
    #[inline]
    pub fn read_closed(self) -> bool {
        self.flags.contains(EventFlags::RDHUP)
    }

    /// The send buffer has room.
    #[inline]
    pub fn writable(self) -> bool {
        self.flags.contains(EventFlags::OUT)
    }

    /// The connection was reset, or closed by the kernel.
    #[inline]
    pub fn broken(self) -> bool {
        self.flags.contains(EventFlags::ERR)
    }

    /// The peer is gone in both directions: reset, or closed after we closed.
    #[inline]
    pub fn hung_up(self) -> bool {
        self.flags.intersects(EventFlags::HUP | EventFlags::ERR)
    }
}

impl Poll {
    /// An empty set.
    pub fn new() -> io::Result<Poll> {
        let set = Set(Rc::new(epoll::create(CreateFlags::CLOEXEC)?));
        #[cfg(feature = "simulation")]
        let events = Vec::with_capacity(simulated::events_max());
        #[cfg(not(feature = "simulation"))]
        let events = Vec::with_capacity(EVENTS_MAX);
        Ok(Poll { set, events })
    }

    /// The set.
    pub fn set(&self) -> &Set {
        &self.set
    }

    /// Lets [`Poll::wait`] poll the card that the set's sockets receive from for up to `time` before the thread sleeps (Linux
    /// 6.9). Sockets without a card, as over loopback, are not polled for. `prefer_busy_poll` lets the card's interrupts
    /// be held back meanwhile (`irq-suspend-timeout` of the kernel's napi.rst).
    ///
    /// # Errors
    /// A kernel that cannot, or one whose busy polling is not compiled in (CONFIG_NET_RX_BUSY_POLL).
    pub fn set_busy_poll(&self, time: Duration) -> io::Result<()> {
        let params = libc::epoll_params {
            busy_poll_usecs: u32::try_from(time.as_micros()).unwrap_or(u32::MAX),
            busy_poll_budget: BUSY_POLL_PACKETS,
            prefer_busy_poll: 1,
            __pad: 0,
        };
        // SAFETY: the request reads one `epoll_params`, which outlives the call, and the descriptor is an open epoll set.
        match unsafe { libc::ioctl(self.set.0.as_raw_fd(), libc::EPIOCSPARAMS, &raw const params) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Registers the set with the runtime of this thread: readable while there are events. It is a duplicated
    /// descriptor of the same set, so that the set itself can still be changed.
    pub fn watched(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let copy = self.set.0.try_clone()?;
        // SAFETY: the `AsyncFd` owns the descriptor and deregisters it before it is closed; nobody else has it.
        unsafe { AsyncFd::register_with_interest(copy, Interest::READABLE) }
            .map_err(|error| error.into_parts().1)
    }

    /// As [`Set::add_connection`].
    pub fn add_connection(&self, socket: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.set.add_connection(socket, token)
    }

    /// Takes up to [`EVENTS_MAX`] available events without waiting, and returns how many. Costs one system call.
    #[inline]
    pub fn take(&mut self) -> io::Result<usize> {
        self.take_within(Timespec { tv_sec: 0, tv_nsec: 0 })
    }

    /// Waits until there are events, `timeout` has passed or a signal arrives, and takes the events like
    /// [`Poll::take`]. Costs one system call; with a timeout below [`COARSE_WAIT_MIN`] two more if there are no
    /// events yet, because `epoll_wait` counts in whole milliseconds.
    #[inline]
    pub fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        let time = Timespec {
            tv_sec: timeout.as_secs().min(WAIT_MAX.as_secs()) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        if timeout >= COARSE_WAIT_MIN {
            return self.take_within(time);
        }
        let count = self.take()?;
        if count > 0 || timeout.is_zero() {
            return Ok(count);
        }
        match poll(&mut [PollFd::new(&*self.set.0, PollFlags::IN)], Some(&time)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(0),
            Ok(_) => self.take(),
            Err(error) => Err(error.into()),
        }
    }

    #[inline]
    fn take_within(&mut self, timeout: Timespec) -> io::Result<usize> {
        self.events.clear();
        match epoll::wait(&*self.set.0, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(count) => Ok(count),
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Event number `index` of those taken last.
    #[inline]
    pub fn event(&self, index: usize) -> Option<Ready> {
        let event = *self.events.get(index)?;
        let (data, flags) = (event.data, event.flags);
        Some(Ready { token: data.u64(), flags })
    }
}

/// For a set that watches this one.
#[cfg(feature = "simulation")]
impl AsFd for Set {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Set {
    /// Watches a connection, edge-triggered, for both directions, while it is open: no other call is needed. Closing
    /// the descriptor ends the watch.
    pub fn add_connection(&self, socket: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&*self.0, socket, EventData::new_u64(token), flags)?)
    }

    /// Watches a listener, level-triggered. If several sets watch a listener, only one of them is woken.
    pub fn add_listener(&self, socket: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        Ok(epoll::add(&*self.0, socket, EventData::new_u64(token), flags)?)
    }

    /// Watches a [`Wake`], level-triggered.
    pub fn add_wake(&self, wake: &Wake, token: u64) -> io::Result<()> {
        Ok(epoll::add(&*self.0, wake, EventData::new_u64(token), EventFlags::IN)?)
    }

    /// Stops watching a descriptor that stays open.
    pub fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&*self.0, socket)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    #[test]
    fn tokens_are_read_back() {
        let mut slab = Slab::new();
        let key = slab.insert(());
        for token in [Token::Client(key), Token::Guest(key), Token::Listener(7), Token::Wake] {
            assert_eq!(Token::from_u64(token.to_u64()), token);
        }
    }

    #[test]
    fn another_thread_wakes_a_set() {
        let mut poll = Poll::new().unwrap();
        let wake = Wake::new().unwrap();
        poll.set().add_wake(&wake, Token::Wake.to_u64()).unwrap();
        assert_eq!(poll.take().unwrap(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| wake.wake());
            assert_eq!(poll.wait(Duration::from_secs(10)).unwrap(), 1);
        });
        assert_eq!(Token::from_u64(poll.event(0).unwrap().token), Token::Wake);
        wake.clear();
        assert_eq!(poll.take().unwrap(), 0);
    }
}
