//! What the engine does not know of a request, its site and its upstream: the service stores it in the worker's
//! [`Notes`], under the number that it passes to [`Response::set_note`](flatout_engine::Response::set_note).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// Sites with their own number; all later ones share the last number.
pub(crate) const SITES_MAX: usize = 1 << SITE_BITS;

/// The number for responses that belong to no site.
pub const NO_SITE: u16 = 0;

/// The numbers of sites in notes, logs and metrics. A name keeps its number for the lifetime of the process, across
/// reloads. Clones share the numbers.
#[derive(Debug, Clone)]
pub struct Sites(Arc<Mutex<SiteNames>>);

/// The names of sites in the order of their numbers, and the numbers by name: a reload asks for all of them.
#[derive(Debug)]
struct SiteNames {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Default for Sites {
    fn default() -> Sites {
        Sites::single("none")
    }
}

impl Sites {
    /// With this name for responses of no site, for a server without other sites.
    pub fn single(name: &str) -> Sites {
        let first = SiteNames { names: vec![name.to_owned()], numbers: HashMap::new() };
        Sites(Arc::new(Mutex::new(first)))
    }

    /// The number of a site.
    pub fn number(&self, name: &str) -> u16 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = state.numbers.get(name).copied().unwrap_or_else(|| {
            let number = state.names.len();
            if number == SITES_MAX {
                return number - 1;
            }
            state.names.push(name.to_owned());
            state.numbers.insert(name.to_owned(), number);
            number
        });
        u16::try_from(number).unwrap_or(NO_SITE)
    }

    /// The names of all sites, in the order of their numbers.
    pub fn names(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).names.clone()
    }
}

/// Notes that a worker keeps at a time, one for each response in progress. Beyond that the oldest is dropped, and its
/// log line has `-` for the upstream.
const NOTES_MAX: usize = 16 << 10;

/// The parts of a note, from the lowest bit: the site's number, the logs, the outcome of a cache, the key of the kept entry.
const SITE_BITS: u32 = 16;
const LOGS_BITS: u32 = 10;
const CACHE_BITS: u32 = 4;

/// Bits below the outcome of a cache.
const CACHE_AT: u32 = SITE_BITS + LOGS_BITS;

/// Bits below the key of the kept entry.
const KEY_AT: u32 = CACHE_AT + CACHE_BITS;

/// Keys are counted within their bits.
const KEYS: u64 = u64::MAX >> KEY_AT;

/// Routes with logs of their own, at most: two numbers stand for the other values of [`RequestLogs`].
pub const ROUTE_LOGS_MAX: usize = (1 << LOGS_BITS) - 2;

/// The logs that a request is written to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RequestLogs {
    /// Those of the server and of its site.
    #[default]
    Usual,
    /// None.
    None,
    /// Those of the routes with this number, below [`ROUTE_LOGS_MAX`], alone.
    Route(u16),
}

impl RequestLogs {
    fn bits(self) -> u64 {
        let number = match self {
            RequestLogs::Usual => 0,
            RequestLogs::None => 1,
            RequestLogs::Route(number) => 2 + u64::from(number),
        };
        (number & ((1 << LOGS_BITS) - 1)) << SITE_BITS
    }

    fn of(note: u64) -> RequestLogs {
        match (note >> SITE_BITS) as u16 & ((1 << LOGS_BITS) - 1) {
            0 => RequestLogs::Usual,
            1 => RequestLogs::None,
            number => RequestLogs::Route(number - 2),
        }
    }
}

/// Names of a cache's outcomes, as nginx logs them. The first one is for requests that no cache has seen.
const CACHE_NAMES: [&str; 8] = ["", "HIT", "MISS", "STALE", "UPDATING", "REVALIDATED", "BYPASS", "EXPIRED"];

/// What one worker's services note of their requests.
#[derive(Debug, Default)]
pub struct Notes {
    wants_upstreams: Cell<bool>,
    kept: RefCell<Vec<(u64, Upstream)>>,
    count: Cell<u64>,
}

/// The upstream attempts of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// The servers that were tried, in order. All but the last failed.
    pub attempts: Vec<Attempt>,
}

/// One attempt at a server, and how long it took. Times are nanoseconds from the start of the attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The server's address, as it is logged.
    pub address: Rc<str>,
    /// The status of its response; 0 if there was none.
    pub status: u16,
    /// Until there was a connection.
    pub connect_ns: Option<u64>,
    /// Until the head of its response was read.
    pub head_ns: Option<u64>,
    /// Until its response was complete.
    pub response_ns: Option<u64>,
}

impl Notes {
    /// `wants_upstreams`: whether upstream attempts are noted.
    pub fn new(wants_upstreams: bool) -> Notes {
        Notes { wants_upstreams: Cell::new(wants_upstreams), ..Notes::default() }
    }

    /// Whether upstream attempts have to be noted.
    #[inline]
    pub fn wants_upstreams(&self) -> bool {
        self.wants_upstreams.get()
    }

    /// From now on, upstream attempts are noted: a rule for responses shows them.
    pub fn want_upstreams(&self) {
        self.wants_upstreams.set(true);
    }

    /// The note of a response of this site, without an upstream.
    #[inline]
    pub fn site(site: u16) -> u64 {
        u64::from(site)
    }

    /// The site of a note.
    #[inline]
    pub(crate) fn site_of(note: u64) -> u16 {
        (note & ((1 << SITE_BITS) - 1)) as u16
    }

    /// The same note with the site and the logs of a request.
    #[inline]
    pub fn routed(note: u64, site: u16, logs: RequestLogs) -> u64 {
        note >> CACHE_AT << CACHE_AT | Notes::site(site) | logs.bits()
    }

    /// The logs that the request of a note is written to.
    #[inline]
    pub(crate) fn logs(note: u64) -> RequestLogs {
        RequestLogs::of(note)
    }

    /// A note with the outcome of a cache, by its number: hit, miss, stale, updating, revalidated, bypass, expired.
    #[inline]
    pub fn cached(note: u64, outcome: u8) -> u64 {
        let bits = (u64::from(outcome) + 1) & ((1 << CACHE_BITS) - 1);
        note & !(((1 << CACHE_BITS) - 1) << CACHE_AT) | bits << CACHE_AT
    }

    /// The name of a cache's outcome in a note; `None` if no cache has seen the request.
    pub(crate) fn cache_name(note: u64) -> Option<&'static str> {
        let at = (note >> CACHE_AT) as usize & ((1 << CACHE_BITS) - 1);
        CACHE_NAMES.get(at).copied().filter(|name| !name.is_empty())
    }

    /// The note of a response that came from an upstream.
    pub fn upstream(&self, site: u16, upstream: Upstream) -> u64 {
        // No key is 0.
        let count = (self.count.get() % KEYS) + 1;
        self.count.set(count);
        let mut kept = self.kept.borrow_mut();
        match kept.get_mut(count as usize % NOTES_MAX) {
            Some(place) => *place = (count, upstream),
            None => {
                if kept.is_empty() {
                    // Keys start at 1.
                    kept.push((0, upstream.clone()));
                }
                kept.push((count, upstream));
            }
        }
        count << KEY_AT | Notes::site(site)
    }

    /// Changes a note, if it is still kept.
    pub fn update(&self, note: u64, change: impl FnOnce(&mut Upstream)) {
        let count = note >> KEY_AT;
        if let Some((kept, upstream)) = self.kept.borrow_mut().get_mut(count as usize % NOTES_MAX)
            && *kept == count
            && count != 0
        {
            change(upstream);
        }
    }

    /// Calls `act` with the attempts that were noted for a response: none if it has no upstream.
    pub fn attempts<T>(&self, note: u64, act: impl FnOnce(&[Attempt]) -> T) -> T {
        self.with(note, |_, upstream| act(upstream.map_or(&[][..], |upstream| &upstream.attempts)))
    }

    /// Calls `act` with the site and the upstream of a note.
    #[inline]
    pub(crate) fn with<T>(&self, note: u64, act: impl FnOnce(u16, Option<&Upstream>) -> T) -> T {
        let (site, count) = (Notes::site_of(note), note >> KEY_AT);
        if count == 0 {
            return act(site, None);
        }
        let kept = self.kept.borrow();
        let found = kept.get(count as usize % NOTES_MAX).filter(|(this, _)| *this == count);
        act(site, found.map(|(_, upstream)| upstream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(status: u16) -> Upstream {
        let attempt =
            Attempt { address: "unix:/a".into(), status, connect_ns: None, head_ns: None, response_ns: None };
        Upstream { attempts: vec![attempt] }
    }

    #[test]
    fn a_note_keeps_the_logs_of_its_request() {
        assert_eq!(Notes::logs(Notes::site(9)), RequestLogs::Usual);
        let last = ROUTE_LOGS_MAX as u16 - 1;
        for logs in [RequestLogs::Usual, RequestLogs::None, RequestLogs::Route(0), RequestLogs::Route(last)] {
            let notes = Notes::new(true);
            let note = Notes::cached(notes.upstream(3, upstream(200)), 0);
            let note = Notes::routed(Notes::routed(note, 2, RequestLogs::Route(last)), u16::MAX, logs);
            assert_eq!(Notes::logs(note), logs);
            assert_eq!(notes.with(note, |site, found| (site, found.is_some())), (u16::MAX, true));
            assert_eq!(Notes::cache_name(note), Some("HIT"));
        }
    }

    #[test]
    fn a_site_keeps_its_number() {
        let sites = Sites::default();
        assert_eq!(sites.names(), ["none"]);
        assert_eq!((sites.number("a"), sites.number("b"), sites.number("a")), (1, 2, 1));
        assert_eq!(sites.names(), ["none", "a", "b"]);
        for at in 0..2 * SITES_MAX {
            sites.number(&at.to_string());
        }
        assert_eq!((sites.names().len(), sites.number("one more")), (SITES_MAX, u16::MAX));
        assert_eq!(sites.number("a"), 1);
        assert_eq!(Sites::single("x").names(), ["x"]);
    }

    #[test]
    fn notes_are_found_until_they_are_forgotten() {
        let notes = Notes::default();
        let first = notes.upstream(3, upstream(200));
        notes.update(first, |upstream| upstream.attempts[0].response_ns = Some(7));
        let found = notes.with(first, |site, upstream| (site, upstream.cloned()));
        assert_eq!((found.0, found.1.unwrap().attempts[0].response_ns), (3, Some(7)));
        assert_eq!(notes.with(Notes::site(9), |site, upstream| (site, upstream.is_none())), (9, true));
        assert_eq!(notes.with(0, |site, upstream| (site, upstream.is_none())), (0, true));
        assert_eq!((Notes::cache_name(first), Notes::cache_name(0)), (None, None));
        let (hit, expired) = (Notes::cached(first, 0), Notes::cached(Notes::cached(7, 1), 6));
        assert_eq!((Notes::cache_name(hit), Notes::cache_name(expired)), (Some("HIT"), Some("EXPIRED")));
        assert_eq!(notes.with(hit, |site, upstream| (site, upstream.is_some())), (3, true));
        assert_eq!(notes.attempts(hit, |attempts| attempts.len()), 1);
        assert_eq!(notes.attempts(0, |attempts| attempts.len()), 0);
        for status in 0..NOTES_MAX as u16 {
            let note = notes.upstream(1, upstream(status));
            assert_eq!(
                notes.with(note, |_, upstream| upstream.map(|found| found.attempts[0].status)),
                Some(status)
            );
        }
        assert!(notes.with(first, |_, upstream| upstream.is_none()), "its place is another's");
        notes.update(first, |_| panic!("it is forgotten"));
        assert_eq!(notes.kept.borrow().len(), NOTES_MAX);
    }
}
