//! The bus inside one process, for tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use bytes::Bytes;

use super::{Bus, BusState, Counted, Joined, Parcel, Relay};
use flatout_engine::bug;

/// Maximum number of parcels queued for one member.
const WAITING_MAX: usize = 16 << 10;

/// How often [`Relay::tick`] is called.
const TICK_TIME: Duration = Duration::from_millis(250);

/// A bus; clones share it.
#[derive(Clone, Default)]
pub(super) struct Local(Arc<Mutex<Vec<SyncSender<Bytes>>>>);

/// The end of one member.
pub(super) struct LocalMember {
    bus: Local,
    at: usize,
    receiver: Mutex<Option<Receiver<Bytes>>>,
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Local {
    /// Adds a member.
    pub(super) fn seat(&self) -> Arc<LocalMember> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let mut members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        members.push(sender);
        Arc::new(LocalMember {
            bus: self.clone(),
            at: members.len() - 1,
            receiver: Mutex::new(Some(receiver)),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        })
    }
}

impl LocalMember {
    /// Calls the member on a separate thread for as long as it exists.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(&self, member: Weak<Relay>) -> io::Result<()> {
        let Some(receiver) = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            bug!("a member of the local bus is started twice");
            return Ok(());
        };
        thread::Builder::new()
            .name("flatout-bus".to_owned())
            .spawn(move || serve(&receiver, &member))
            .map(drop)
    }
}

impl Bus for LocalMember {
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
            state: BusState::Joined,
            sent: self.sent.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            ..Counted::default()
        }
    }
}

fn serve(receiver: &Receiver<Bytes>, member: &Weak<Relay>) {
    use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
    let Some(first) = member.upgrade() else { return };
    first.joined(Joined::AtOnce);
    drop(first);
    let mut tick_at = Instant::now();
    loop {
        let received = receiver.recv_timeout(TICK_TIME);
        let Some(member) = member.upgrade() else { return };
        match received {
            Ok(bytes) => drop(member.receive(&bytes, Duration::ZERO)),
            Err(Disconnected) => return,
            Err(Timeout) => {}
        }
        // Also where parcels come without a pause.
        if tick_at.elapsed() >= TICK_TIME {
            tick_at = Instant::now();
            member.tick();
        }
    }
}
