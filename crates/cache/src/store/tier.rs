//! The tier on disk. A process that this one replaces may still use its folder; the tier starts when the
//! folder is free.

use std::hash::BuildHasher;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use flatout_engine::{Severity, bug, report, say};
use flatout_lane::clock;

use super::Store;
use crate::disk::{Disk, OfferResult, WriteId};
use crate::key::{Key, KeyBuf};
use crate::plan::DiskPlan;
use crate::purge::{Purge, PurgeScope};

/// The interval of attempts to open a folder that another process uses.
const TRY_PERIOD: Duration = Duration::from_millis(100);

/// How long a purge waits for a folder that another process still uses, so that the purge is on disk when it
/// returns.
const PURGE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Maximum number of purges and keys kept for a folder until it is free. Above it, the whole folder is
/// purged.
const MISSED_MAX: usize = 1024;

/// How often a full queue is tried again when the entries in memory are written to a new folder.
const KEEP_PERIOD: Duration = Duration::from_millis(10);

/// The folder, once it is open.
#[derive(Default)]
pub(super) struct Tier {
    disk: OnceLock<Disk>,
    /// Set while a folder is configured but not open.
    missing: Mutex<Option<PendingFolder>>,
    /// Held while the folder is opened, which may take as long as the disk does.
    opening: Mutex<()>,
    has_come: Condvar,
}

/// A folder that cannot be used yet, and the purges to apply when it is opened.
struct PendingFolder {
    plan: DiskPlan,
    purges: Vec<Purge>,
    /// Invalidated keys.
    forgotten: Vec<KeyBuf>,
    /// Another process uses it. The thread that retries ends when this is dropped.
    trying: Option<Sender<()>>,
}

impl PendingFolder {
    fn of(plan: &DiskPlan) -> PendingFolder {
        PendingFolder { plan: plan.clone(), purges: Vec::new(), forgotten: Vec::new(), trying: None }
    }

    fn purge(&mut self, purge: &Purge) {
        self.make_room();
        self.purges.push(purge.clone());
    }

    fn forget(&mut self, key: &Key<'_>) {
        self.make_room();
        self.forgotten.push(key.to_buf());
    }

    fn make_room(&mut self) {
        if self.purges.len() + self.forgotten.len() >= MISSED_MAX {
            self.forgotten.clear();
            self.purges = vec![Purge { scope: PurgeScope::All, is_soft: false }];
        }
    }
}

impl Store {
    /// The tier on disk, if it is open.
    pub(crate) fn disk(&self) -> Option<&Disk> {
        self.tier.disk.get().filter(|disk| !disk.is_closed())
    }

    /// Whether there is a folder, or will be.
    pub(super) fn has_folder(&self) -> bool {
        self.disk().is_some() || self.missing().is_some()
    }

    /// Opens a folder with the size in the plan. If another process uses it, a thread waits for it. Other
    /// errors are reported, and the next call tries again.
    pub(crate) fn use_folder(self: &Arc<Store>, plan: &DiskPlan) {
        if let Some(disk) = self.tier.disk.get() {
            return disk.resize(plan.bytes_max);
        }
        let opened = match self.open_disk(plan, clock::unix_milliseconds()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.try_again(&plan.dir),
            opened => opened,
        };
        if let Err(error) = opened {
            cannot_use(&plan.dir, &error);
        }
    }

    /// Opens the tier on disk. Its entries count as used now.
    ///
    /// # Errors
    /// The folder cannot be used; [`ErrorKind::WouldBlock`] if another process uses it.
    pub(crate) fn open_disk(&self, plan: &DiskPlan, now_ms: u64) -> io::Result<()> {
        self.missing().get_or_insert_with(|| PendingFolder::of(plan)).plan.clone_from(plan);
        self.take_folder(now_ms)
    }

    /// Starts the thread that opens the folder when it is free, unless it is already running.
    fn try_again(self: &Arc<Store>, dir: &Path) -> io::Result<()> {
        #[cfg(feature = "simulation")]
        if clock::simulated::is_set() {
            self.try_later(dir);
            return Ok(());
        }
        let mut missing = self.missing();
        let Some(missing) = missing.as_mut().filter(|missing| missing.trying.is_none()) else {
            return Ok(());
        };
        let (ends, ended) = channel();
        let (store, of_thread) = (Arc::downgrade(self), dir.to_owned());
        std::thread::Builder::new().name("flatout-folder".to_owned()).spawn(move || {
            while ended.recv_timeout(TRY_PERIOD) == Err(RecvTimeoutError::Timeout) {
                let Some(store) = store.upgrade() else { return };
                match store.take_folder(clock::unix_milliseconds()) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(error) => cannot_use(&of_thread, &error),
                    Ok(()) => say(format_args!(
                        "the cache's folder `{}` is free and is used from now on",
                        of_thread.display()
                    )),
                }
                return store.stop_trying();
            }
        })?;
        missing.trying = Some(ends);
        say(format_args!(
            "another process uses the cache's folder `{}`; responses are kept in memory only until it is free",
            dir.display()
        ));
        Ok(())
    }

    /// The same as a job of the simulator's disk. The former server has left the folder by then.
    #[cfg(feature = "simulation")]
    fn try_later(self: &Arc<Store>, dir: &Path) {
        let (store, dir) = (Arc::downgrade(self), dir.to_owned());
        flatout_lane::jobs::defer_surely(move || {
            let taken = store.upgrade().map(|store| store.take_folder(clock::unix_milliseconds()));
            if let Some(Err(error)) = taken {
                cannot_use(&dir, &error);
            }
        });
    }

    fn stop_trying(&self) {
        if let Some(missing) = self.missing().as_mut() {
            missing.trying = None;
        }
        self.tier.has_come.notify_all();
    }

    /// Opens the configured folder, unless it is open.
    fn take_folder(&self, now_ms: u64) -> io::Result<()> {
        let opening = self.tier.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(plan) = self.missing().as_ref().map(|missing| missing.plan.clone()) else { return Ok(()) };
        let (hashes, of_slots) = (self.hashes.clone(), self.hashes.clone());
        let hash = Box::new(move |bytes: &[u8]| hashes.hash_one(bytes));
        let slot = Box::new(move |hash: u64, selected: &[u8]| of_slots.hash_one((hash, selected)));
        // Without the lock of `missing`, which requests take that invalidate entries.
        let disk = Disk::open(&plan, now_ms, hash, slot)?;
        let mut missing = self.missing();
        // Meanwhile `leave_folder` may have been called.
        let Some(missed) = missing.take() else { return Ok(()) };
        disk.resize(missed.plan.bytes_max);
        // Applied before anything is read, so that entries purged meanwhile are not served.
        for purge in &missed.purges {
            disk.begin_purge(purge);
        }
        for key in &missed.forgotten {
            disk.forget(&self.key_of(key));
        }
        if self.tier.disk.set(disk).is_err() {
            bug!("the cache's folder was opened twice");
        }
        drop(missing);
        // Queueing the entries may take as long as the disk does.
        drop(opening);
        self.tier.has_come.notify_all();
        self.keep_all();
        Ok(())
    }

    /// Writes the entries in memory to disk too: the disk may have older ones.
    fn keep_all(&self) {
        let Some(disk) = self.disk() else { return };
        let slots: Vec<u64> = self.table.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            while self.keep_again(disk, slot) == OfferResult::Full {
                // There is only one thread, and nobody else makes room.
                #[cfg(feature = "simulation")]
                if clock::simulated::is_set() {
                    break;
                }
                std::thread::sleep(KEEP_PERIOD);
            }
        }
    }

    /// Queues the entry in a slot for the disk, under the locks of `admit_at`.
    fn keep_again(&self, disk: &Disk, slot: u64) -> OfferResult {
        let _log = self.purges.read().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = self.table.peek(&slot).filter(|entry| !entry.is_encoding()) else {
            return OfferResult::Queued;
        };
        self.with_key_of(&entry, |key| {
            let _change = self.stripe(key.hash);
            match entry.is_live() {
                true => disk.offer(&entry, self.slots_on_disk(&entry, key.hash, slot)),
                false => OfferResult::Queued,
            }
        })
    }

    /// Writes the queue and frees the folder for another process. New entries are stored in memory only.
    pub(crate) fn leave_folder(&self) {
        *self.missing() = None;
        self.tier.has_come.notify_all();
        if let Some(disk) = self.tier.disk.get() {
            disk.close();
        }
    }

    /// Applies a purge to the disk, without writing it. Returns the order of the mark, if the disk is open.
    pub(super) fn mark_on_disk(&self, purge: &Purge) -> Option<WriteId> {
        self.tell_disk(|disk| disk.mark(purge), |missed| missed.purge(purge))
    }

    /// Writes purges that were applied to the disk.
    pub(super) fn purge_disk(&self, purges: &[Purge]) {
        let missing = self.missing();
        let is_tried =
            |missing: &mut Option<PendingFolder>| missing.as_ref().is_some_and(|it| it.trying.is_some());
        let waited = self.tier.has_come.wait_timeout_while(missing, PURGE_WAIT_MAX, is_tried);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        // Also if they were applied when the folder was opened: this waits until they are written.
        if let Some(disk) = self.disk() {
            disk.purge(purges);
        }
    }

    /// Invalidates a key on disk. Does not wait for the disk: it is called under the lock of the key's stripe.
    pub(super) fn forget_on_disk(&self, key: &Key<'_>) {
        self.tell_disk(|disk| disk.forget(key), |missed| missed.forget(key));
    }

    /// Calls `tell` with the disk if it is open, otherwise `note`.
    fn tell_disk<T>(
        &self,
        tell: impl FnOnce(&Disk) -> T,
        note: impl FnOnce(&mut PendingFolder),
    ) -> Option<T> {
        if self.tier.disk.get().is_none()
            && let Some(missed) = self.missing().as_mut()
        {
            note(missed);
            return None;
        }
        // Also if it was opened just now.
        self.disk().map(tell)
    }

    fn missing(&self) -> MutexGuard<'_, Option<PendingFolder>> {
        // Each change under the lock leaves consistent data.
        self.tier.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cannot_use(dir: &Path, error: &io::Error) {
    let dir = dir.display();
    report(
        Severity::Warning,
        format_args!("the cache's folder `{dir}` cannot be used: {error}; responses are kept in memory only"),
    );
}
