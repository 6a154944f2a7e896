//! Both ends of an upgrade in one process, for the simulator.
//!
//! Each end waits for the other, and both wait for workers, which the simulator steps on its own thread. So they have threads, with the
//! simulator's time. While they run, nothing else happens, and a worker that has nothing to do stays as it is: a run can be repeated.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};

use flatout_cache::KeyBuf;
use flatout_lane::clock;
use flatout_lane::descriptors::SeqpacketSocket;

use super::format::FORMAT;
use super::predecessor::{Predecessor, SuccessorProcess};
use super::successor::Successor;
use crate::live::Live;
use crate::upstream_state;

/// The end of the server that is replaced.
pub struct HandingOver {
    thread: JoinHandle<Result<(usize, Invalidated), String>>,
    former: Arc<Predecessor>,
}

/// The keys that the cache of a server invalidates after the server was replaced. In a server that is not simulated, a thread sends them to its
/// successor.
pub struct Invalidated(Option<Receiver<KeyBuf>>);

impl Invalidated {
    /// Passes those that there are on to the successor.
    pub fn pass_on(&self, successor: &Live) {
        let keys = self.0.iter().flat_map(Receiver::try_iter);
        keys.for_each(|key| successor.opened().cache.iter().for_each(|cache| cache.invalidate(&key)));
    }
}

/// The end of its successor, until it has the listeners.
pub struct Arriving(JoinHandle<Result<Successor, String>>);

/// Begins to hand a server over.
///
/// # Errors
/// The system has no sockets left.
pub fn hand_over(former: Predecessor) -> io::Result<(HandingOver, Arriving)> {
    let (ours, theirs) = SeqpacketSocket::pair()?;
    let (now_ns, former) = (clock::nanoseconds(), Arc::new(former));
    let given = former.clone();
    let thread = thread::spawn(move || {
        clock::simulated::set(Some(now_ns));
        let given = SuccessorProcess::new(None, ours).give_all(&given);
        given.map(|given| (given.moved, Invalidated(given.invalidated)))
    });
    let arriving = thread::spawn(move || {
        clock::simulated::set(Some(now_ns));
        Successor::of(theirs, OsStr::new(&FORMAT.to_string()))
    });
    Ok((HandingOver { thread, former }, Arriving(arriving)))
}

/// Applies what operators have changed of the former server's upstreams, when its channels were taken.
pub fn take_upstreams(successor: &mut Successor, live: &Live) {
    upstream_state::take_over(&live.opened().proxy, &successor.changed_upstreams(), false);
}

impl HandingOver {
    /// Whether everything was handed over, or it has failed.
    pub fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until it is done, and drains the server. Returns how many subscribers were moved, and what the server invalidates from now on.
    ///
    /// # Errors
    /// Why the server goes on.
    pub fn finish(self) -> Result<(usize, Invalidated), String> {
        let moved = self.thread.join().map_err(|_| "a panic while a server is handed over".to_owned())??;
        self.former.leave();
        Ok(moved)
    }
}

impl Arriving {
    /// Whether it has the listeners, or has failed.
    pub fn is_done(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until it has the listeners.
    ///
    /// # Errors
    /// The other end misbehaves.
    pub fn finish(self) -> Result<Successor, String> {
        self.0.join().map_err(|_| "a panic while a server takes over".to_owned())?
    }
}
