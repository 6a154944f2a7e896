//! Who asks the upstream: one request for all that miss together.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use foldhash::fast::RandomState;

use super::{STRIPES, Store};
use crate::cache::entry::Entry;
use crate::cache::flight::Flight;
use crate::cache::key::Key;

/// Flights of one stripe; over it requests go to the upstream without sharing.
const FLIGHTS_MAX: usize = 4096;

/// How long requests for a key whose response was not stored do not wait for each other.
pub(super) const PASS_TIME_MS: u64 = 10_000;

/// What is under way, by slot.
pub(super) type Flights = HashMap<u64, Arc<Flight>, RandomState>;

/// Who fetches a response.
pub(in crate::cache) enum Joined {
    /// It has been stored meanwhile.
    Here(Arc<Entry>),
    /// The caller.
    Leads(Arc<Flight>),
    /// Another request, which the caller waits for.
    Follows(Arc<Flight>),
    /// The caller, for itself only: there are too many flights.
    Alone,
}

impl Store {
    pub(super) fn stripe(&self, hash: u64) -> MutexGuard<'_, Flights> {
        let at = (hash >> 32) as usize % STRIPES;
        // Every change in the lock is a single step.
        self.stripes[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins those that wait for the response of this slot, or leads them. `seen` is the entry that was found before.
    pub(in crate::cache) fn join(&self, key: &Key<'_>, slot: u64, seen: Option<&Arc<Entry>>) -> Joined {
        let moment = self.moment();
        let mut flights = self.stripe(slot);
        // A response that was requested before a purge is served only to those who asked before it too.
        let is_outdated = |flight: &Flight| {
            flight.asked.purges < moment.purges
                || self.invalidated.get(&key.hash).is_some_and(|number| number >= flight.asked.invalidations)
        };
        if let Some(flight) = flights.get(&slot).filter(|flight| !is_outdated(flight)) {
            return match flight.has_room_for_one() {
                true => Joined::Follows(flight.clone()),
                false => Joined::Alone,
            };
        }
        // Somebody may have brought it between the look and the lock.
        if let Some(entry) = self.at(slot, key).filter(|entry| !entry.is_manifest())
            && seen.is_none_or(|seen| !Arc::ptr_eq(seen, &entry))
        {
            return Joined::Here(entry);
        }
        if flights.len() >= FLIGHTS_MAX {
            return Joined::Alone;
        }
        let flight = Arc::new(Flight::new(slot, moment));
        flights.insert(slot, flight.clone());
        Joined::Leads(flight)
    }

    /// Nobody joins this flight any more.
    pub(in crate::cache) fn land(&self, flight: &Arc<Flight>) {
        let mut flights = self.stripe(flight.slot);
        if flights.get(&flight.slot).is_some_and(|known| Arc::ptr_eq(known, flight)) {
            flights.remove(&flight.slot);
        }
    }

    /// The response of this slot was not stored: those who ask for it next do not wait for each other.
    pub(in crate::cache) fn pass(&self, slot: u64, now_ms: u64) {
        self.passes.insert(slot, now_ms + PASS_TIME_MS);
    }

    pub(in crate::cache) fn is_passed(&self, slot: u64, now_ms: u64) -> bool {
        self.passes.get(&slot).is_some_and(|until| now_ms < until)
    }

    /// Counts a use of a key that is not stored; whether there were enough.
    pub(in crate::cache) fn is_used_enough(&self, hash: u64, uses_min: u32) -> bool {
        if uses_min <= 1 {
            return true;
        }
        let uses = self.uses.get(&hash).unwrap_or(0) + 1;
        self.uses.insert(hash, uses);
        uses >= uses_min
    }
}
