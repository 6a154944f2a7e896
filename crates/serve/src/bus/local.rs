//! The bus inside one process: for a single server, and for several in one program.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use std::{io, thread};

use bytes::Bytes;

use super::{Bus, Counted, Joined, Member, Parcel, State};

/// Maximum number of parcels queued for one member.
const WAITING_MAX: usize = 16 << 10;

/// How often [`Member::beat`] is called.
const BEAT: Duration = Duration::from_millis(250);

/// A bus; clones share it.
#[derive(Clone, Default)]
pub struct Local(Arc<Mutex<Vec<SyncSender<Bytes>>>>);

/// The end of one member.
pub struct Seat {
    bus: Local,
    at: usize,
    receiver: Mutex<Option<Receiver<Bytes>>>,
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Local {
    /// Adds a member.
    pub fn seat(&self) -> Arc<Seat> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let mut members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        members.push(sender);
        Arc::new(Seat {
            bus: self.clone(),
            at: members.len() - 1,
            receiver: Mutex::new(Some(receiver)),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        })
    }
}

impl Seat {
    /// Calls the member on a separate thread for as long as it exists.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(&self, member: Weak<dyn Member>) -> io::Result<()> {
        let Some(receiver) = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        thread::Builder::new()
            .name("flatout-bus".to_owned())
            .spawn(move || serve(&receiver, &member))
            .map(drop)
    }
}

impl Bus for Seat {
    fn send(&self, parcel: Parcel) {
        let members = self.bus.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.sent.fetch_add(1, Ordering::Relaxed);
        for (_, member) in members.iter().enumerate().filter(|(at, _)| *at != self.at) {
            if let Err(std::sync::mpsc::TrySendError::Full(_)) = member.try_send(parcel.bytes.clone()) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn counted(&self) -> Counted {
        Counted {
            state: State::Joined,
            sent: self.sent.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            ..Counted::default()
        }
    }
}

fn serve(receiver: &Receiver<Bytes>, member: &Weak<dyn Member>) {
    use std::sync::mpsc::RecvTimeoutError::Disconnected;
    let Some(first) = member.upgrade() else { return };
    first.joined(Joined::AtOnce);
    drop(first);
    loop {
        let received = receiver.recv_timeout(BEAT);
        let Some(member) = member.upgrade() else { return };
        match received {
            Ok(bytes) => drop(member.receive(&bytes, Duration::ZERO)),
            Err(Disconnected) => return,
            Err(_) => member.beat(),
        }
    }
}
