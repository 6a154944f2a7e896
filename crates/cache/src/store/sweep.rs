//! Removes responses that are not requested any more (`inactive`) from both tiers, on a separate thread.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use flatout_lane::clock;

use super::Store;
use crate::entry;
use crate::plan::seconds;
use flatout_compress::give_way;

/// Sweeps per inactive time: a response stays for at most one sweep longer.
const SWEEPS: u32 = 8;

/// The shortest and the longest time between two sweeps. Each sweep visits every response.
const PERIOD_MIN: Duration = Duration::from_secs(1);
const PERIOD_MAX: Duration = Duration::from_secs(60);

/// The thread; it ends when this is dropped.
pub(crate) struct Sweeper {
    inactive: Duration,
    _ends: Sender<()>,
}

impl Store {
    /// From now on removes responses that are not requested for this time; `None` keeps them.
    pub(crate) fn sweep_inactive(self: &Arc<Store>, inactive: Option<Duration>) {
        let mut sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
        if sweeper.as_ref().map(|sweeper| sweeper.inactive) == inactive {
            return;
        }
        let started = inactive.map(|inactive| Sweeper::start(self, inactive)).transpose();
        *sweeper = started.unwrap_or_else(|error| {
            flatout_engine::report(
                flatout_engine::Severity::Warning,
                format_args!("inactive responses are not removed from the cache: {error}"),
            );
            None
        });
    }

    /// Removes entries that were not requested in `inactive_s` seconds. Each sweep reports uses in memory to
    /// the disk, so entries on disk stay for one more period. Examines all entries. Returns the number of
    /// removed entries.
    pub(crate) fn sweep(&self, now_ms: u64, inactive_s: u32, period_s: u32) -> usize {
        let now_s = entry::seconds(now_ms);
        let mut count = 0;
        for (slot, entry) in self.table.iter().filter(|(_, entry)| !entry.is_encoding()) {
            let is_inactive = now_s.saturating_sub(entry.used_s()) > inactive_s;
            if is_inactive {
                self.remove(slot, &entry);
                count += 1;
            }
            let Some(disk) = self.disk() else { continue };
            let at = match entry.selected().is_empty() {
                true => [slot; 2],
                false => self.with_key_of(&entry, |key| self.slots_on_disk(&entry, key.hash, slot).at),
            };
            match is_inactive {
                true => disk.remove(at),
                false => disk.used(at, entry.used_s()),
            }
        }
        if let Some(disk) = self.disk() {
            count += disk.sweep(now_s, inactive_s.saturating_add(period_s));
        }
        self.tally.inactive(count);
        count
    }
}

impl Sweeper {
    /// # Errors
    /// A thread that cannot be started.
    fn start(store: &Arc<Store>, inactive: Duration) -> io::Result<Sweeper> {
        let (ends, ended) = channel();
        let store: Weak<Store> = Arc::downgrade(store);
        let period = (inactive / SWEEPS).clamp(PERIOD_MIN, PERIOD_MAX);
        std::thread::Builder::new().name("flatout-sweep".to_owned()).spawn(move || {
            give_way();
            while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                let Some(store) = store.upgrade() else { return };
                store.sweep(clock::unix_milliseconds(), seconds(inactive), seconds(period));
            }
        })?;
        Ok(Sweeper { inactive, _ends: ends })
    }
}
