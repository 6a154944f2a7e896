//! What the engine does not know of a request, its site and its upstream: the service stores it in the worker's
//! [`Notes`], under the number that it passes to [`Response::set_note`](flatout_engine::Response::set_note).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use crate::log::Scope;

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

/// Bytes of texts of requests that a worker keeps for its logs. Beyond that the oldest ones are dropped, and their log lines have `-` in
/// their place.
const TEXTS_BYTES_MAX: usize = 16 << 20;

/// What an entry of these texts takes besides them, about.
const TEXT_BYTES: usize = 64;

/// The parts of a note, from the lowest bit: the site's number, the logs, those of them that leave it out, the outcome of a cache, the
/// key of the kept entry.
const SITE_BITS: u32 = 16;
const LOGS_BITS: u32 = 10;
const CACHE_BITS: u32 = 4;

/// Conditions of logs, at most, that apply to one request: each has a bit.
pub const LOG_CONDITIONS_MAX: usize = 6;

/// Bits below those of logs that leave a request out.
const SKIPS_AT: u32 = SITE_BITS + LOGS_BITS;

/// Bits below the outcome of a cache.
const CACHE_AT: u32 = SKIPS_AT + LOG_CONDITIONS_MAX as u32;

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
    wanted: Vec<WantedTexts>,
    kept: RefCell<Vec<(u64, NoteEntry)>>,
    /// The texts of requests in progress, by the key of their note.
    texts: RefCell<BTreeMap<u64, LoggedTexts>>,
    /// The bytes of all of them.
    texts_bytes: Cell<usize>,
    count: Cell<u64>,
}

/// What is kept of a note.
#[derive(Debug)]
enum NoteEntry {
    Upstream(Upstream),
    /// What the note of this key has.
    Same(u64),
}

/// The texts of requests that a log has in its lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WantedTexts {
    /// The requests.
    pub(crate) scope: Scope,
    /// Their bodies.
    pub(crate) has_body: bool,
    /// Variables of the service.
    pub(crate) names: Vec<Arc<str>>,
}

/// Texts of a request that only its service knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedTexts {
    /// Its body.
    pub body: Option<Vec<u8>>,
    /// The values of the service's variables; one that is not among them has none.
    pub named: Vec<(Arc<str>, Vec<u8>)>,
}

impl LoggedTexts {
    fn bytes(&self) -> usize {
        let named = self.named.iter().map(|(_, value)| TEXT_BYTES + value.len());
        TEXT_BYTES + self.body.as_ref().map_or(0, Vec::len) + named.sum::<usize>()
    }
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

    /// The same, and these texts are noted.
    pub(crate) fn of_logs(wants_upstreams: bool, wanted: Vec<WantedTexts>) -> Notes {
        Notes { wanted, ..Notes::new(wants_upstreams) }
    }

    /// Whether a log has the bodies of requests of this site with these logs.
    #[inline]
    pub fn wants_body(&self, site: u16, logs: RequestLogs) -> bool {
        self.wanted.iter().any(|wanted| wanted.has_body && wanted.scope.has(site, logs))
    }

    /// Variables of the service that logs have of requests of this site with these logs.
    pub fn wanted_names(&self, site: u16, logs: RequestLogs) -> Vec<Arc<str>> {
        let wanted = self.wanted.iter().filter(|wanted| wanted.scope.has(site, logs));
        let mut names: Vec<Arc<str>> = wanted.flat_map(|wanted| wanted.names.iter().cloned()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether any log has variables of the service.
    pub fn wants_names(&self) -> bool {
        self.wanted.iter().any(|wanted| !wanted.names.is_empty())
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

    /// The same note with the site and the logs of a request. Those of a bit in `skips` leave it out.
    #[inline]
    pub fn routed(note: u64, site: u16, logs: RequestLogs, skips: u8) -> u64 {
        let skips = u64::from(skips) & ((1 << LOG_CONDITIONS_MAX) - 1);
        note >> CACHE_AT << CACHE_AT | Notes::site(site) | logs.bits() | skips << SKIPS_AT
    }

    /// The conditional logs that leave the request of a note out, a bit for each.
    #[inline]
    pub(crate) fn skips(note: u64) -> u8 {
        (note >> SKIPS_AT) as u8 & ((1 << LOG_CONDITIONS_MAX) - 1)
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
        self.keep(NoteEntry::Upstream(upstream)) << KEY_AT | Notes::site(site)
    }

    /// A note with these texts of its request, until its line is written. Several requests may have had one note before.
    pub fn with_texts(&self, note: u64, texts: LoggedTexts) -> u64 {
        let former = note >> KEY_AT;
        let key = self.keep(NoteEntry::Same(former));
        let mut all = self.texts.borrow_mut();
        let mut bytes = self.texts_bytes.get() + texts.bytes();
        all.insert(key, texts);
        while bytes > TEXTS_BYTES_MAX
            && let Some((_, oldest)) = all.pop_first()
        {
            bytes -= oldest.bytes();
        }
        self.texts_bytes.set(bytes);
        note & ((1 << KEY_AT) - 1) | key << KEY_AT
    }

    /// Takes the texts of a request that has ended.
    #[inline]
    pub(crate) fn take_texts(&self, note: u64) -> Option<LoggedTexts> {
        if self.texts_bytes.get() == 0 {
            return None;
        }
        let texts = self.texts.borrow_mut().remove(&(note >> KEY_AT))?;
        self.texts_bytes.set(self.texts_bytes.get() - texts.bytes());
        Some(texts)
    }

    /// Keeps an entry, and returns its key.
    fn keep(&self, entry: NoteEntry) -> u64 {
        // No key is 0.
        let count = (self.count.get() % KEYS) + 1;
        self.count.set(count);
        let mut kept = self.kept.borrow_mut();
        let at = count as usize % NOTES_MAX;
        while kept.len() <= at {
            kept.push((0, NoteEntry::Same(0)));
        }
        if let Some(place) = kept.get_mut(at) {
            *place = (count, entry);
        }
        count
    }

    /// Changes a note, if it is still kept.
    pub fn update(&self, note: u64, change: impl FnOnce(&mut Upstream)) {
        let count = note >> KEY_AT;
        if let Some((kept, NoteEntry::Upstream(upstream))) =
            self.kept.borrow_mut().get_mut(count as usize % NOTES_MAX)
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
        let find = |count: u64| {
            let found = kept.get(count as usize % NOTES_MAX).filter(|(this, _)| *this == count && count != 0);
            found.map(|(_, entry)| entry)
        };
        let entry = match find(count) {
            Some(NoteEntry::Same(former)) => find(*former),
            entry => entry,
        };
        match entry {
            Some(NoteEntry::Upstream(upstream)) => act(site, Some(upstream)),
            Some(NoteEntry::Same(_)) | None => act(site, None),
        }
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
            let note = Notes::routed(Notes::routed(note, 2, RequestLogs::Route(last), 63), u16::MAX, logs, 5);
            assert_eq!((Notes::logs(note), Notes::skips(note)), (logs, 5));
            assert_eq!(Notes::skips(Notes::routed(note, 1, logs, 0)), 0);
            assert_eq!(notes.with(note, |site, found| (site, found.is_some())), (u16::MAX, true));
            assert_eq!(Notes::cache_name(note), Some("HIT"));
        }
    }

    #[test]
    fn texts_are_kept_until_their_lines_are_written() {
        let names = |all: &[&str]| all.iter().map(|name| Arc::from(*name)).collect::<Vec<Arc<str>>>();
        let wanted = |scope, has_body, all: &[&str]| WantedTexts { scope, has_body, names: names(all) };
        let of = [wanted(Scope::Site(3), true, &["b", "a"]), wanted(Scope::Route(1), false, &["a", "a"])];
        let notes = Notes::of_logs(true, of.to_vec());
        assert!(notes.wants_body(3, RequestLogs::Usual) && !notes.wants_body(3, RequestLogs::Route(1)));
        assert!(!notes.wants_body(4, RequestLogs::Usual) && !notes.wants_body(3, RequestLogs::None));
        assert_eq!(notes.wanted_names(3, RequestLogs::Usual), names(&["a", "b"]));
        assert_eq!(notes.wanted_names(9, RequestLogs::Route(1)), names(&["a"]));
        assert!(notes.wants_names() && !Notes::default().wants_names());
        assert!(
            Notes::of_logs(false, vec![wanted(Scope::Server, true, &[])]).wants_body(4, RequestLogs::Usual)
        );
        let body = |text: &[u8]| LoggedTexts { body: Some(text.to_vec()), named: Vec::new() };
        // Requests that share the response of an upstream have their own texts.
        let shared = notes.upstream(3, upstream(200));
        let [one, two] = [&b"one"[..], b"two"].map(|text| notes.with_texts(shared, body(text)));
        notes.update(shared, |upstream| upstream.attempts[0].response_ns = Some(7));
        for note in [one, two] {
            let found = notes.with(note, |site, upstream| (site, upstream.cloned()));
            assert_eq!((found.0, found.1.unwrap().attempts[0].response_ns), (3, Some(7)));
        }
        let local = Notes::routed(notes.with_texts(Notes::site(5), body(b"x")), 6, RequestLogs::None, 63);
        assert_eq!(notes.with(local, |site, upstream| (site, upstream.is_none())), (6, true));
        assert_eq!((notes.take_texts(0), notes.take_texts(two)), (None, Some(body(b"two"))));
        assert_eq!((notes.take_texts(two), notes.take_texts(local)), (None, Some(body(b"x"))));
        assert_eq!((notes.take_texts(one), notes.texts_bytes.get()), (Some(body(b"one")), 0));
        // The limit is that of all together.
        let large = body(&vec![b'a'; TEXTS_BYTES_MAX / 2 - TEXT_BYTES]);
        let all = [1, 2, 3].map(|site| notes.with_texts(Notes::site(site), large.clone()));
        assert_eq!(all.map(|note| notes.take_texts(note).is_some()), [false, true, true]);
        assert_eq!(notes.take_texts(notes.with_texts(0, body(&vec![b'a'; TEXTS_BYTES_MAX + 1]))), None);
        assert_eq!(notes.texts_bytes.get(), 0);
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
