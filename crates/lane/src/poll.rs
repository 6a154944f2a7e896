//! Readiness: an epoll set whose descriptor can itself be watched by another one.
//!
//! ```text
//! tokio's epoll ── AsyncFd ──> Poll's epoll ──> sockets, edge-triggered
//! ```
//!
//! There the set is only ever asked with a timeout of 0; waiting is the outer one's work. A thread that does nothing
//! but its connections needs no outer set: it calls [`Poll::wait`].

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Events taken at a time. A full batch means that there may be more.
pub const EVENTS_MAX: usize = 256;

/// From here on a wait may be late by the millisecond that `epoll_wait` rounds up to.
pub const COARSE_WAIT_MIN: Duration = Duration::from_millis(50);

/// No wait is longer: milliseconds have to fit 31 bits.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// An epoll set.
pub struct Poll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

/// What happened to one descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    /// What [`Poll::add_connection`] or [`Poll::add_listener`] was given.
    pub token: u64,
    flags: EventFlags,
}

impl Ready {
    /// There is something to read: bytes, or the end of what the peer sends.
    #[inline]
    pub fn readable(self) -> bool {
        self.flags.intersects(EventFlags::IN | EventFlags::RDHUP)
    }

    /// The peer has closed its side: after the bytes that are there, reads find the end.
    #[inline]
    pub fn read_closed(self) -> bool {
        self.flags.contains(EventFlags::RDHUP)
    }

    /// The send buffer has room.
    #[inline]
    pub fn writable(self) -> bool {
        self.flags.contains(EventFlags::OUT)
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
        Ok(Poll { epoll: epoll::create(CreateFlags::CLOEXEC)?, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Registers the set with the runtime of this thread: readable while there are events to take.
    /// It is a second descriptor of the same set, so that the set itself stays free to be changed.
    pub fn watched(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let copy = self.epoll.try_clone()?;
        // SAFETY: the `AsyncFd` owns the descriptor and deregisters it before it is closed; nobody else has it.
        unsafe { AsyncFd::register_with_interest(copy, Interest::READABLE) }
            .map_err(|error| error.into_parts().1)
    }

    /// Watches a connection, edge-triggered, for both directions, for as long as it is open: no other call
    /// is paid for it. Closing the descriptor ends the watch.
    pub fn add_connection(&self, socket: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token), flags)?)
    }

    /// Watches a listener, level-triggered. A listener that several sets watch wakes only one of them.
    pub fn add_listener(&self, socket: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token), flags)?)
    }

    /// Ends the watch of a descriptor that stays open.
    pub fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Takes up to [`EVENTS_MAX`] events that are there now, without waiting, and returns how many.
    /// Costs one system call.
    #[inline]
    pub fn take(&mut self) -> io::Result<usize> {
        self.take_within(Timespec { tv_sec: 0, tv_nsec: 0 })
    }

    /// Waits until there are events, `timeout` is over or a signal comes, and takes the events as
    /// [`Poll::take`] does. Costs one system call; with a timeout under [`COARSE_WAIT_MIN`] two more when nothing
    /// is there yet, because `epoll_wait` counts in whole milliseconds.
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
        match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&time)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(0),
            Ok(_) => self.take(),
            Err(error) => Err(error.into()),
        }
    }

    #[inline]
    fn take_within(&mut self, timeout: Timespec) -> io::Result<usize> {
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(count) => Ok(count),
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// The `index`th of the events taken last.
    #[inline]
    pub fn event(&self, index: usize) -> Option<Ready> {
        let event = *self.events.get(index)?;
        let (data, flags) = (event.data, event.flags);
        Some(Ready { token: data.u64(), flags })
    }
}
