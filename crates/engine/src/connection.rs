//! One connection: what the worker keeps of it from turn to turn.
//!
//! An idle connection is this entry and nothing else: no buffer, no task. Its state is what it holds:
//!
//! ```text
//! held empty, no work      idle
//! held bytes, no work      part of a head has come
//! work                     a request is being read or answered; held bytes are what came behind it
//! lingering                answered for the last time; what still comes is thrown away
//! ```

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::task::Waker;

use flatout_lane::clock::Ticks;
use tokio::task::AbortHandle;

use crate::incoming::Incoming;
use crate::output::{Asked, Queue, StreamCoding};
use crate::response::Takeover;

/// A connection in the lane.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    /// When to look at it again.
    pub(crate) deadline: Ticks,
    /// Requests that it may still send.
    pub(crate) requests_left: u32,
    /// The socket may have bytes: an edge came, and no read has come up short since.
    pub(crate) readable: bool,
    /// The peer has closed its side; reads go on until they say so.
    pub(crate) read_closed: bool,
    /// Bytes still thrown away before it is closed.
    pub(crate) lingering: Option<u32>,
    pub(crate) peer: Option<SocketAddr>,
    /// Bytes that were read and not yet consumed; no allocation while empty.
    pub(crate) held: Vec<u8>,
    pub(crate) work: Option<Box<Work>>,
}

/// An idle connection must cost next to nothing: the entry, with its slot, stays below this.
pub(crate) const CONNECTION_BYTES_MAX: usize = 112;
const _: () = assert!(size_of::<Connection>() <= CONNECTION_BYTES_MAX);

/// A request in hand.
#[derive(Default)]
pub(crate) struct Work {
    /// Its body, until that is whole.
    pub(crate) incoming: Option<Incoming>,
    /// Its answer, from the call of the service until the last byte is sent.
    pub(crate) exchange: Option<Exchange>,
    /// Bytes moved between us and the kernel, either way, since the rate was last judged.
    pub(crate) moved_bytes: u64,
    /// Bytes that the peer had still to take when the rate was last judged; `None` before the first time.
    pub(crate) unacknowledged_bytes: Option<u64>,
}

/// An answer that could not be finished in one go.
pub(crate) struct Exchange {
    pub(crate) asked: Asked,
    pub(crate) queue: Queue,
    pub(crate) making: Making,
    /// The task that makes the rest of it; ends with the connection.
    pub(crate) task: Option<AbortHandle>,
    /// Wakes a body that waits for room in the queue.
    pub(crate) room: Option<Waker>,
}

/// What an answer still lacks besides the sending of its queue.
pub(crate) enum Making {
    /// All of it.
    Response,
    /// More of its body.
    Stream(StreamCoding, After),
    /// Nothing.
    Done(After),
}

/// What comes when an answer is sent.
pub(crate) enum After {
    Next,
    Close,
    Take(Takeover),
}

impl After {
    pub(crate) fn of(keep_alive: bool) -> After {
        if keep_alive { After::Next } else { After::Close }
    }
}

impl Connection {
    pub(crate) fn new(
        socket: OwnedFd,
        peer: Option<SocketAddr>,
        deadline: Ticks,
        requests: u32,
    ) -> Connection {
        Connection {
            socket,
            deadline,
            requests_left: requests,
            readable: false,
            read_closed: false,
            lingering: None,
            peer,
            held: Vec::new(),
            work: None,
        }
    }

    #[inline]
    pub(crate) fn incoming(&mut self) -> Option<&mut Incoming> {
        self.work.as_mut()?.incoming.as_mut()
    }

    #[inline]
    pub(crate) fn exchange(&mut self) -> Option<&mut Exchange> {
        self.work.as_mut()?.exchange.as_mut()
    }

    /// Starts or continues the work on a request.
    pub(crate) fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }

    /// Whether bytes from the socket could be used now.
    #[inline]
    pub(crate) fn wants_input(&mut self) -> bool {
        match &self.work {
            None => true,
            Some(work) => match &work.incoming {
                Some(incoming) => !incoming.is_paused() && !work.is_blocked(),
                None => work.exchange.is_none(),
            },
        }
    }

    /// Whether nothing was read that is not answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.work.is_none() && self.held.is_empty() && self.lingering.is_none()
    }
}

impl Work {
    /// Whether a body waits behind the answer of the request before it: that must be sent first, for what the body's
    /// request is answered must not come into its midst.
    pub(crate) fn is_blocked(&self) -> bool {
        self.exchange.is_some() && self.incoming.as_ref().is_some_and(Incoming::is_awaited)
    }
}

impl Exchange {
    pub(crate) fn new(asked: Asked, making: Making) -> Exchange {
        Exchange { asked, queue: Queue::default(), making, task: None, room: None }
    }

    /// Wakes a body that waited for room.
    pub(crate) fn wake_body(&mut self) {
        if let Some(waker) = self.room.take() {
            waker.wake();
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}
