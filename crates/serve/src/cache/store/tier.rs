//! The tier on disk, from when its folder is free: a process that this one replaces may still have it.

use std::hash::BuildHasher;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use flatout_engine::say;
use flatout_lane::clock;

use super::Store;
use crate::cache::disk::{Disk, Offered};
use crate::cache::key::Key;
use crate::cache::plan::DiskPlan;
use crate::cache::purge::{Purge, What};

/// How often a folder that another process uses is tried again.
const TRY_PERIOD: Duration = Duration::from_millis(100);

/// How long a purge waits for a folder that is about to be free, so that it is on disk when it returns.
const PURGE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Purges and keys that are kept for a folder until it is free. Beyond that, all that is in it is purged.
const MISSED_MAX: usize = 1024;

/// How long to wait until the writer has written some of what was in memory before it had a folder.
const KEEP_PERIOD: Duration = Duration::from_millis(10);

/// The folder, once it can be used.
#[derive(Default)]
pub(super) struct Tier {
    disk: OnceLock<Disk>,
    /// Set as long as there should be a disk, and is none.
    missing: Mutex<Option<Missing>>,
    /// Held while the folder is opened, which may take as long as the disk does.
    opening: Mutex<()>,
    has_come: Condvar,
}

/// A folder that cannot be used, and what it has to learn before it is.
struct Missing {
    plan: DiskPlan,
    purges: Vec<Purge>,
    /// Keys, where their URLs end, and whether they are the operator's.
    forgotten: Vec<(Vec<u8>, usize, bool)>,
    /// Another process has it. The thread that tries again ends when this is dropped.
    trying: Option<Sender<()>>,
}

impl Missing {
    fn of(plan: &DiskPlan) -> Missing {
        Missing { plan: plan.clone(), purges: Vec::new(), forgotten: Vec::new(), trying: None }
    }

    fn purge(&mut self, purge: &Purge) {
        self.make_room();
        self.purges.push(purge.clone());
    }

    fn forget(&mut self, key: &Key<'_>) {
        self.make_room();
        self.forgotten.push(([key.url, key.rest].concat(), key.url.len(), key.is_custom));
    }

    fn make_room(&mut self) {
        if self.purges.len() + self.forgotten.len() >= MISSED_MAX {
            self.forgotten.clear();
            self.purges = vec![Purge { what: What::All, is_soft: false }];
        }
    }
}

impl Store {
    /// What is on disk, if that can be used.
    pub(in crate::cache) fn disk(&self) -> Option<&Disk> {
        self.tier.disk.get().filter(|disk| !disk.is_closed())
    }

    /// Whether there is a folder, or will be.
    pub(super) fn has_folder(&self) -> bool {
        self.disk().is_some() || self.missing().is_some()
    }

    /// Uses a folder, with the size of the plan. If another process has it, a thread waits for it. If it cannot be used, that is
    /// reported, and tried again the next time.
    pub(in crate::cache) fn use_folder(self: &Arc<Store>, plan: &DiskPlan) {
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

    /// Opens the tier on disk. What is there counts as asked for now.
    ///
    /// # Errors
    /// The folder cannot be used; [`ErrorKind::WouldBlock`] if another process has it.
    pub(in crate::cache) fn open_disk(&self, plan: &DiskPlan, now_ms: u64) -> io::Result<()> {
        self.missing().get_or_insert_with(|| Missing::of(plan)).plan.clone_from(plan);
        self.take_folder(now_ms)
    }

    /// Starts the thread that opens the folder when it is free, unless there is one.
    fn try_again(self: &Arc<Store>, dir: &Path) -> io::Result<()> {
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

    fn stop_trying(&self) {
        if let Some(missing) = self.missing().as_mut() {
            missing.trying = None;
        }
        self.tier.has_come.notify_all();
    }

    /// Opens the folder that is missing, if one is.
    fn take_folder(&self, now_ms: u64) -> io::Result<()> {
        let _opening = self.tier.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(plan) = self.missing().as_ref().map(|missing| missing.plan.clone()) else { return Ok(()) };
        let (hashes, of_slots) = (self.hashes.clone(), self.hashes.clone());
        let hash = Box::new(move |bytes: &[u8]| hashes.hash_one(bytes));
        let slot = Box::new(move |hash: u64, selected: &[u8]| of_slots.hash_one((hash, selected)));
        // Without the lock of what is missing: requests that invalidate something take it.
        let disk = Disk::open(&plan, now_ms, hash, slot)?;
        let mut missing = self.missing();
        // It may have been left meanwhile.
        let Some(missed) = missing.take() else { return Ok(()) };
        disk.resize(missed.plan.bytes_max);
        // Before anything is read: nothing that was purged meanwhile comes back.
        for purge in &missed.purges {
            disk.begin_purge(purge);
        }
        for (bytes, url_ends, is_custom) in &missed.forgotten {
            disk.forget(&Key::of(bytes, *url_ends, *is_custom, |bytes| self.hash(bytes)));
        }
        // Whoever sets it holds the lock.
        let _ = self.tier.disk.set(disk);
        drop(missing);
        self.tier.has_come.notify_all();
        self.keep_all();
        Ok(())
    }

    /// Has what is in memory written to disk too: what is there may be older.
    fn keep_all(&self) {
        let Some(disk) = self.disk() else { return };
        let slots: Vec<u64> = self.table.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            while self.keep_again(disk, slot) == Offered::Full {
                std::thread::sleep(KEEP_PERIOD);
            }
        }
    }

    /// Has what is in a slot written to disk, under the locks of `admit_at`.
    fn keep_again(&self, disk: &Disk, slot: u64) -> Offered {
        let _log = self.purges.read().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = self.table.peek(&slot).filter(|entry| !entry.is_form()) else {
            return Offered::Taken;
        };
        self.with_key_of(&entry, |key| {
            let _change = self.stripe(key.hash);
            match entry.is_live() {
                true => disk.offer(&entry, self.slots_on_disk(&entry, key.hash, slot)),
                false => Offered::Taken,
            }
        })
    }

    /// Frees the folder for another process, with all that waits to be written. What is stored from now on is in memory only.
    pub(in crate::cache) fn leave_folder(&self) {
        *self.missing() = None;
        self.tier.has_come.notify_all();
        if let Some(disk) = self.tier.disk.get() {
            disk.close();
        }
    }

    /// Has a purge apply to what is on disk. It is not on disk itself yet.
    pub(super) fn mark_on_disk(&self, purge: &Purge) {
        self.tell_disk(|disk| disk.mark(purge), |missed| missed.purge(purge));
    }

    /// Purges on disk too, once that was marked.
    pub(super) fn purge_disk(&self, purge: &Purge) {
        let missing = self.missing();
        let is_tried = |missing: &mut Option<Missing>| missing.as_ref().is_some_and(|it| it.trying.is_some());
        let waited = self.tier.has_come.wait_timeout_while(missing, PURGE_WAIT_MAX, is_tried);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        // Also if it has learned of it just now: this waits until the purge is written.
        if let Some(disk) = self.disk() {
            disk.purge(purge);
        }
    }

    /// Forgets a key on disk too. This does not wait for the disk, and is called under the lock of the key's stripe.
    pub(super) fn forget_on_disk(&self, key: &Key<'_>) {
        self.tell_disk(|disk| disk.forget(key), |missed| missed.forget(key));
    }

    /// Has the disk, or what will be told to it once it is there, learn of something.
    fn tell_disk(&self, tell: impl Fn(&Disk), note: impl FnOnce(&mut Missing)) {
        if self.tier.disk.get().is_none()
            && let Some(missed) = self.missing().as_mut()
        {
            return note(missed);
        }
        // Also if it has come just now.
        self.disk().into_iter().for_each(tell);
    }

    fn missing(&self) -> MutexGuard<'_, Option<Missing>> {
        // Every change in the lock leaves it whole.
        self.tier.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cannot_use(dir: &Path, error: &io::Error) {
    let dir = dir.display();
    say(format_args!(
        "the cache's folder `{dir}` cannot be used: {error}; responses are kept in memory only"
    ));
}
