//! Whether a crawler is who it claims to be: the name of its address by reverse DNS belongs to its operator, and leads back to the address.
//!
//! ```text
//! worker ── address: in the table? ── no ──> queue ──> a thread: name of the address, addresses of the name ──> table
//! ```
//!
//! Workers never wait: until an address was checked, its crawler is not verified.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::crawlers::{CRAWLERS, crawler_index};

/// Addresses whose result is known. Beyond that all those are forgotten that were not verified.
const ADDRESSES_MAX: usize = 20_000;

/// Addresses that wait for a check. Further ones are checked at a later request.
const QUEUE_MAX: usize = 256;

/// Threads that wait for DNS.
const THREADS: usize = 4;

/// How long a result is used: of a check that has succeeded, of one that has not, and of one without a response of DNS.
const VERIFIED_TIME: Duration = Duration::from_secs(24 * 3600);
const FORGED_TIME: Duration = Duration::from_secs(3600);
const FAILED_TIME: Duration = Duration::from_secs(60);

/// What is known about the identity of a crawler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verification {
    /// Its address belongs to its operator.
    Verified,
    /// It does not.
    Forged,
    /// Not checked yet, or DNS does not respond.
    Unknown,
    /// Its operator publishes no names.
    Unverifiable,
}

impl Verification {
    /// Those that a check has as its result.
    pub const RESULTS: [Verification; 3] =
        [Verification::Verified, Verification::Forged, Verification::Unknown];

    /// Its name in conditions, variables and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Verification::Verified => "verified",
            Verification::Forged => "forged",
            Verification::Unknown => "unknown",
            Verification::Unverifiable => "unverifiable",
        }
    }
}

/// Asks DNS.
pub trait Dns: Send + Sync + 'static {
    /// The name of an address; `None` if it has none.
    ///
    /// # Errors
    /// No server responds.
    fn name_of(&self, address: IpAddr) -> Result<Option<String>, String>;

    /// The addresses of a name; none if it does not exist.
    ///
    /// # Errors
    /// No server responds.
    fn addresses_of(&self, name: &str) -> Result<Vec<IpAddr>, String>;
}

/// Verifies crawlers, and remembers the results.
pub struct Verifier {
    shared: Arc<CheckResults>,
    queue: SyncSender<Check>,
}

struct CheckResults {
    table: Mutex<HashMap<IpAddr, Checked>>,
    /// By crawler, in the order of [`Verification::RESULTS`].
    counts: Vec<[AtomicU64; 3]>,
}

/// An address, and who claims to have it.
struct Check {
    address: IpAddr,
    index: usize,
}

/// What is known of an address.
struct Checked {
    /// Its confirmed name, in lower case; empty: it has none.
    name: String,
    /// Whether that is final.
    is_known: bool,
    until: Instant,
}

impl Verifier {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(dns: impl Dns) -> std::io::Result<Verifier> {
        let (queue, checks) = sync_channel(QUEUE_MAX);
        let counts = CRAWLERS.iter().map(|_| Default::default()).collect();
        let shared = Arc::new(CheckResults { table: Mutex::default(), counts });
        let (checks, dns) = (Arc::new(Mutex::new(checks)), Arc::new(dns));
        for _ in 0..THREADS {
            let (shared, checks, dns) = (shared.clone(), checks.clone(), dns.clone());
            let thread = std::thread::Builder::new().name("flatout-verify".to_owned());
            thread.spawn(move || shared.run(&checks, &*dns))?;
        }
        Ok(Verifier { shared, queue })
    }

    /// What is known about the crawler that has sent this `User-Agent` from this address; `None` if it is none. An address that is not
    /// known is checked in the background.
    ///
    /// Cost: a lock for a search in a table; the search for the crawler.
    pub fn verification(&self, user_agent: &[u8], address: Option<IpAddr>) -> Option<Verification> {
        let index = crawler_index(user_agent)?;
        let domains = CRAWLERS.get(index).map_or("", |crawler| crawler.domains);
        if domains.is_empty() {
            return Some(Verification::Unverifiable);
        }
        let Some(address) = address.map(|address| address.to_canonical()) else {
            return Some(Verification::Unknown);
        };
        let mut table = self.shared.table();
        let now = Instant::now();
        match table.get(&address) {
            Some(checked) if checked.until > now && !checked.is_known => Some(Verification::Unknown),
            Some(checked) if checked.until > now => Some(match is_of(&checked.name, domains) {
                true => Verification::Verified,
                false => Verification::Forged,
            }),
            _ => {
                // Whoever does not find room in the queue comes again.
                if self.queue.try_send(Check { address, index }).is_ok() {
                    let until = now + FAILED_TIME;
                    make_room(&mut table, now);
                    table.insert(address, Checked { name: String::new(), is_known: false, until });
                }
                Some(Verification::Unknown)
            }
        }
    }

    /// The results of all checks so far, by the name of the crawler; those without are left out.
    pub fn counts(&self) -> Vec<(&'static str, Verification, u64)> {
        let of = |(at, counts): (usize, &[AtomicU64; 3])| {
            let name = CRAWLERS.get(at).map_or("", |crawler| crawler.name);
            let counts = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            Verification::RESULTS.into_iter().zip(counts).map(move |(result, count)| (name, result, count))
        };
        self.shared.counts.iter().enumerate().flat_map(of).filter(|(_, _, count)| *count > 0).collect()
    }
}

impl CheckResults {
    fn table(&self) -> MutexGuard<'_, HashMap<IpAddr, Checked>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, checks: &Mutex<Receiver<Check>>, dns: &impl Dns) {
        loop {
            let next = checks.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Check { address, index }) = next else { return };
            let name = confirmed_name(dns, address);
            let domains = CRAWLERS.get(index).map_or("", |crawler| crawler.domains);
            let (result, time) = match &name {
                Ok(name) if is_of(name, domains) => (Verification::Verified, VERIFIED_TIME),
                Ok(_) => (Verification::Forged, FORGED_TIME),
                Err(_) => (Verification::Unknown, FAILED_TIME),
            };
            let at = Verification::RESULTS.iter().position(|it| *it == result);
            if let Some(count) = at.and_then(|at| self.counts.get(index)?.get(at)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            let (is_known, now) = (name.is_ok(), Instant::now());
            let checked = Checked { name: name.unwrap_or_default(), is_known, until: now + time };
            let mut table = self.table();
            make_room(&mut table, now);
            table.insert(address, checked);
        }
    }
}

/// Forgets addresses before there are too many: first those whose time is over and those that belong to no crawler.
fn make_room(table: &mut HashMap<IpAddr, Checked>, now: Instant) {
    if table.len() >= ADDRESSES_MAX {
        table.retain(|_, checked| checked.until > now && !checked.name.is_empty());
    }
    if table.len() >= ADDRESSES_MAX {
        table.clear();
    }
}

/// The name of an address that belongs to a crawler of the list and leads back to the address; empty if there is none.
fn confirmed_name(dns: &impl Dns, address: IpAddr) -> Result<String, String> {
    let name = dns.name_of(address)?.unwrap_or_default().to_ascii_lowercase();
    let name = name.trim_end_matches('.');
    // Names of others are not resolved: whoever claims to be a crawler would choose them.
    if !CRAWLERS.iter().any(|crawler| is_of(name, crawler.domains)) {
        return Ok(String::new());
    }
    let addresses = dns.addresses_of(name)?;
    let leads_back = addresses.iter().any(|found| found.to_canonical() == address);
    Ok(if leads_back { name.to_owned() } else { String::new() })
}

/// Whether a name is one of these domains, or below one.
fn is_of(name: &str, domains: &str) -> bool {
    let is_below =
        |domain: &str| name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    !name.is_empty() && domains.split(',').any(|domain| !domain.is_empty() && is_below(domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOGLE: &[u8] = b"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)";

    /// Names and their addresses. Names that end with `.down` have no server.
    struct Records(Vec<(&'static str, &'static str, &'static str)>);

    impl Dns for Records {
        fn name_of(&self, address: IpAddr) -> Result<Option<String>, String> {
            let found = self.0.iter().find(|(of, ..)| of.parse::<IpAddr>().unwrap() == address);
            match found {
                Some((_, "down", _)) => Err("timed out".to_owned()),
                found => Ok(found.map(|(_, name, _)| (*name).to_owned())),
            }
        }

        fn addresses_of(&self, name: &str) -> Result<Vec<IpAddr>, String> {
            let name = name.to_ascii_lowercase();
            let found =
                self.0.iter().filter(|(_, of, _)| of.trim_end_matches('.').to_ascii_lowercase() == name);
            Ok(found.map(|(.., address)| address.parse().unwrap()).collect())
        }
    }

    fn verified(verifier: &Verifier, agent: &[u8], address: &str) -> Verification {
        let address = Some(address.parse().unwrap());
        let begun = Instant::now();
        let before: u64 = verifier.counts().iter().map(|(.., count)| count).sum();
        let first = verifier.verification(agent, address).unwrap();
        if first != Verification::Unknown {
            return first;
        }
        while verifier.counts().iter().map(|(.., count)| count).sum::<u64>() == before {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing was checked");
            std::thread::yield_now();
        }
        // The result is counted just before it is stored.
        loop {
            let found = verifier.verification(agent, address).unwrap();
            let is_failed = verifier.counts().iter().any(|(_, result, _)| *result == Verification::Unknown);
            if found != Verification::Unknown || is_failed {
                return found;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing was stored");
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_address_needs_a_name_of_the_operator_that_leads_back() {
        let records = Records(vec![
            ("66.249.66.1", "crawl-66-249-66-1.googlebot.com.", "66.249.66.1"),
            ("2001:db8::1", "Crawl.GoogleBot.com", "2001:db8::1"),
            ("192.0.2.1", "evil.example", "192.0.2.1"),
            ("192.0.2.2", "fake.googlebot.com", "192.0.2.99"),
            ("192.0.2.3", "notgooglebot.com", "192.0.2.3"),
            ("192.0.2.4", "msnbot-1.search.msn.com", "192.0.2.4"),
        ]);
        let verifier = Verifier::start(records).unwrap();
        for (address, expected) in [
            ("66.249.66.1", Verification::Verified),
            ("::ffff:66.249.66.1", Verification::Verified),
            ("2001:db8::1", Verification::Verified),
            ("192.0.2.1", Verification::Forged),
            ("192.0.2.2", Verification::Forged),
            ("192.0.2.3", Verification::Forged),
            ("192.0.2.4", Verification::Forged),
            ("192.0.2.5", Verification::Forged),
        ] {
            assert_eq!(verified(&verifier, GOOGLE, address), expected, "{address}");
        }
        assert_eq!(verified(&verifier, b"bingbot/2.0", "192.0.2.4"), Verification::Verified);
        let address = Some("192.0.2.1".parse().unwrap());
        assert_eq!(verifier.verification(b"Slackbot 1.0", address), Some(Verification::Unverifiable));
        assert_eq!(verifier.verification(b"Mozilla/5.0 (X11; Linux)", address), None);
        assert_eq!(verifier.verification(GOOGLE, None), Some(Verification::Unknown));
        assert!(
            verifier.counts().contains(&("Googlebot", Verification::Verified, 2)),
            "{:?}",
            verifier.counts()
        );
    }

    #[test]
    fn without_dns_a_crawler_is_not_verified() {
        let verifier = Verifier::start(Records(vec![("192.0.2.9", "down", "192.0.2.9")])).unwrap();
        assert_eq!(verified(&verifier, GOOGLE, "192.0.2.9"), Verification::Unknown);
        assert_eq!(verifier.counts(), [("Googlebot", Verification::Unknown, 1)]);
    }

    #[test]
    fn a_full_table_forgets_forged_addresses() {
        let now = Instant::now();
        let entry = |name: &str| Checked { name: name.to_owned(), is_known: true, until: now + FORGED_TIME };
        let mut table: HashMap<IpAddr, Checked> = (0..ADDRESSES_MAX as u32)
            .map(|at| (IpAddr::V4(at.into()), entry(if at == 7 { "a.googlebot.com" } else { "" })))
            .collect();
        make_room(&mut table, now);
        assert_eq!(table.keys().copied().collect::<Vec<_>>(), [IpAddr::V4(7.into())]);
    }
}
