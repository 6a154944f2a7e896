//! Removes responses that are not requested any more (`inactive`) from both tiers, on a separate thread.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use flatout_engine::say;
use flatout_lane::clock;

use super::plan::seconds;
use super::store::Store;
use flatout_compress::give_way;

/// Sweeps per inactive time: a response stays for at most one sweep longer.
const SWEEPS: u32 = 8;

/// The shortest and the longest time between two sweeps. Each sweep visits every response.
const PERIOD_MIN: Duration = Duration::from_secs(1);
const PERIOD_MAX: Duration = Duration::from_secs(60);

/// The thread; it ends when this is dropped.
pub(super) struct Sweeper {
    inactive: Duration,
    _ends: Sender<()>,
}

impl Store {
    /// From now on removes responses that are not requested for this time; `None` keeps them.
    pub(super) fn sweep_inactive(self: &Arc<Store>, inactive: Option<Duration>) {
        let mut sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
        if sweeper.as_ref().map(|sweeper| sweeper.inactive) == inactive {
            return;
        }
        let started = inactive.map(|inactive| Sweeper::start(self, inactive)).transpose();
        *sweeper = started.unwrap_or_else(|error| {
            say(format_args!("inactive responses are not removed from the cache: {error}"));
            None
        });
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
