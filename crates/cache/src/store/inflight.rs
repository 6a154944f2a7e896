//! Collapsed requests: one request to the upstream for all clients that miss together.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use foldhash::fast::RandomState;

use super::{STRIPES, Store};
use crate::entry::Entry;
use crate::fetch::flight::Flight;
use crate::key::Key;

/// Maximum number of flights of one stripe. Above it, requests go to the upstream without collapsing.
const FLIGHTS_MAX: usize = 4096;

/// How long requests for a key are not collapsed after its response could not be stored.
pub(super) const PASS_TIME_MS: u64 = 10_000;

/// Requests in progress, by slot.
pub(super) type Flights = HashMap<u64, Arc<Flight>, RandomState>;

/// How a request gets its response.
pub(crate) enum FlightRole {
    /// From an entry that was stored meanwhile.
    Here(Arc<Entry>),
    /// The caller sends the request to the upstream, for all.
    Leads(Arc<Flight>),
    /// The caller waits for the request of another one.
    Follows(Arc<Flight>),
    /// The caller sends the request for itself only: a limit of flights or followers is reached.
    Alone,
}

impl Store {
    pub(super) fn stripe(&self, hash: u64) -> MutexGuard<'_, Flights> {
        let at = (hash >> 32) as usize % STRIPES;
        // Each change under the lock leaves consistent data.
        self.stripes[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the flight of this slot, or starts it. `seen` is the entry found before.
    pub(crate) fn join(&self, key: &Key<'_>, slot: u64, seen: Option<&Arc<Entry>>) -> FlightRole {
        let moment = self.moment();
        let mut flights = self.stripe(slot);
        // A response that was requested from the upstream before a purge is served only to clients that asked
        // before it too.
        let is_outdated = |flight: &Flight| {
            flight.asked.purges < moment.purges
                || self.invalidated.get(&key.hash).is_some_and(|number| number >= flight.asked.invalidations)
        };
        if let Some(flight) = flights.get(&slot).filter(|flight| !is_outdated(flight)) {
            return match flight.has_room_for_one() {
                true => FlightRole::Follows(flight.clone()),
                false => FlightRole::Alone,
            };
        }
        // It may have been stored between the lookup and the lock.
        if let Some(entry) = self.at(slot, key).filter(|entry| !entry.is_manifest())
            && self.is_current(key, slot, &entry)
            && seen.is_none_or(|seen| !Arc::ptr_eq(seen, &entry))
        {
            return FlightRole::Here(entry);
        }
        if flights.len() >= FLIGHTS_MAX {
            return FlightRole::Alone;
        }
        let flight = Arc::new(Flight::new(slot, moment));
        flights.insert(slot, flight.clone());
        FlightRole::Leads(flight)
    }

    /// Removes a flight, so that no further request joins it.
    pub(crate) fn land(&self, flight: &Arc<Flight>) {
        let mut flights = self.stripe(flight.slot);
        if flights.get(&flight.slot).is_some_and(|known| Arc::ptr_eq(known, flight)) {
            flights.remove(&flight.slot);
        }
    }

    /// Records that the response of this slot was not stored: the next requests for it are not collapsed.
    pub(crate) fn pass(&self, slot: u64, now_ms: u64) {
        self.passes.insert(slot, now_ms + PASS_TIME_MS);
    }

    pub(crate) fn is_passed(&self, slot: u64, now_ms: u64) -> bool {
        self.passes.get(&slot).is_some_and(|until| now_ms < until)
    }

    /// Counts a request for a key that is not stored. Returns whether there were enough to store it.
    pub(crate) fn is_used_enough(&self, hash: u64, uses_min: u32) -> bool {
        if uses_min <= 1 {
            return true;
        }
        let uses = self.uses.get(&hash).unwrap_or(0) + 1;
        self.uses.insert(hash, uses);
        uses >= uses_min
    }
}
