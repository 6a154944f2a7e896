//! Reads a response from disk on another thread, while its requests wait.

use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{Reply, Request};

use crate::fetch::Fetch;
use crate::fetch::flight::{Flight, Outcome};
use crate::status::{CacheOutcome, CacheStatus};
use crate::store::Store;
use crate::worker::{CacheWorker, Lookup};
use flatout_gateway::Forwarded;

impl CacheWorker {
    /// Reads an entry from disk on another thread. After that, the request goes through the cache again.
    pub(crate) fn read_from_disk_slowly(
        self: &Rc<Self>,
        request: Request<'_>,
        forwarded: Forwarded<'_>,
        lookup: &Lookup<'_>,
        flight: Arc<Flight>,
        slot: u64,
    ) -> Reply {
        let reading = DiskRead { store: self.store.clone(), flight: flight.clone() };
        let (key, now_ms) = (lookup.key.to_buf(), lookup.now_ms);
        let read = move || {
            let DiskRead { store, flight } = &reading;
            let is_there =
                store.read_from_disk_slowly(&store.key_of(&key), slot, now_ms, flight.asked).is_some();
            store.land(flight);
            flight.settle(Outcome::Loaded(is_there));
        };
        begin(read);
        let cache_status = CacheStatus::forwarded(CacheOutcome::Miss, "uri-miss");
        self.follow(&request, &forwarded, lookup, Fetch { flight, stale: None, cache_status })
    }
}

fn begin(read: impl FnOnce() + Send + 'static) {
    #[cfg(feature = "simulation")]
    if flatout_lane::clock::simulated::is_set() {
        flatout_lane::jobs::defer_surely(read);
        return;
    }
    tokio::task::spawn_blocking(read);
}

/// A read from disk that requests wait for. Dropping it ends the read, also after a panic or if the runtime shuts down before the read
/// runs: otherwise the requests would wait forever.
struct DiskRead {
    store: Arc<Store>,
    flight: Arc<Flight>,
}

impl Drop for DiskRead {
    fn drop(&mut self) {
        self.store.land(&self.flight);
        // If it has an outcome, that stays.
        self.flight.settle(Outcome::Loaded(false));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::key::Key;
    use crate::store::FlightRole;

    #[test]
    fn a_read_that_does_not_run_releases_the_requests_that_wait_for_it() {
        let store = Arc::new(Store::new(1 << 20));
        let bytes = b"http://a/";
        let key = Key::of(bytes, bytes.len(), false, |bytes| store.hash(bytes));
        let FlightRole::Leads(flight) = store.join(&key, key.hash, None) else { panic!("another one leads") };
        let reading = DiskRead { store: store.clone(), flight: flight.clone() };
        let read = move || drop(reading);
        let mut context = Context::from_waker(Waker::noop());
        let mut outcome = pin!(flight.outcome());
        assert!(outcome.as_mut().poll(&mut context).is_pending());
        drop(read);
        assert!(matches!(outcome.poll(&mut context), Poll::Ready(Outcome::Loaded(false))));
        assert!(matches!(store.join(&key, key.hash, None), FlightRole::Leads(_)), "nobody else waits for it");
    }
}
