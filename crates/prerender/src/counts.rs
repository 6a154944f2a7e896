//! Requests of crawlers on routes with rendered pages, by crawler and by page. They are counted for the whole process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::crawlers::{CRAWLERS, Crawler, crawler_index};

/// Pages whose requests are counted. Beyond that all counts are halved, and pages without any are forgotten.
const PAGES_MAX: usize = 10_000;

/// The longest URL that is counted, in bytes.
const URL_BYTES_MAX: usize = 2048;

/// By index in the list; the last one is for all who are not in it.
static REQUESTS: LazyLock<Vec<AtomicU64>> =
    LazyLock::new(|| (0..=CRAWLERS.len()).map(|_| AtomicU64::new(0)).collect());

/// Whether requests are counted by page.
static COUNTS_PAGES: AtomicBool = AtomicBool::new(false);

static PAGES: LazyLock<Mutex<PageCounts>> = LazyLock::new(Mutex::default);

/// Counts a request on a route with rendered pages, whether its page is in the cache or not. `url` writes the URL of the page, and is
/// only called if requests are counted by page.
///
/// Cost: an atomic addition, and the search for the crawler; with counts by page, also a lock.
pub fn count_request(user_agent: Option<&[u8]>, url: impl FnOnce(&mut Vec<u8>)) {
    let index = user_agent.and_then(crawler_index).unwrap_or(CRAWLERS.len());
    if let Some(count) = REQUESTS.get(index) {
        count.fetch_add(1, Ordering::Relaxed);
    }
    if COUNTS_PAGES.load(Ordering::Relaxed) {
        let mut text = Vec::new();
        url(&mut text);
        PAGES.lock().unwrap_or_else(PoisonError::into_inner).add(&text);
    }
}

/// The requests of each crawler since the start, those with the most first; `None`: of all who are none of the list.
pub fn requests_by_crawler() -> Vec<(Option<Crawler>, u64)> {
    let counts = REQUESTS
        .iter()
        .enumerate()
        .map(|(at, count)| (CRAWLERS.get(at).copied(), count.load(Ordering::Relaxed)));
    let mut counts: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

/// Counts requests by page from now on, or no more.
#[cfg(feature = "browser")]
pub(crate) fn count_pages(counts: bool) {
    COUNTS_PAGES.store(counts, Ordering::Relaxed);
    if !counts {
        *PAGES.lock().unwrap_or_else(PoisonError::into_inner) = PageCounts::default();
    }
}

/// The most used pages, as URLs with their counts, which are halved: a page that is used no more disappears.
#[cfg(feature = "browser")]
pub(crate) fn most_used(limit: usize) -> HashMap<Vec<u8>, u32> {
    PAGES.lock().unwrap_or_else(PoisonError::into_inner).top(limit)
}

/// Halves the count of a page that is rendered again.
#[cfg(feature = "browser")]
pub(crate) fn halve(url: &[u8]) {
    PAGES.lock().unwrap_or_else(PoisonError::into_inner).halve(url);
}

/// Requests by URL.
#[derive(Default)]
struct PageCounts(HashMap<Vec<u8>, u32>);

impl PageCounts {
    fn add(&mut self, url: &[u8]) {
        if url.len() > URL_BYTES_MAX {
            return;
        }
        if let Some(count) = self.0.get_mut(url) {
            *count = count.saturating_add(1);
            return;
        }
        if self.0.len() >= PAGES_MAX {
            self.0.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
        }
        if self.0.len() < PAGES_MAX {
            self.0.insert(url.to_owned(), 1);
        }
    }

    #[cfg(any(feature = "browser", test))]
    fn top(&self, limit: usize) -> HashMap<Vec<u8>, u32> {
        let mut all: Vec<(&Vec<u8>, u32)> = self.0.iter().map(|(url, count)| (url, *count)).collect();
        all.sort_unstable_by_key(|(url, count)| (std::cmp::Reverse(*count), *url));
        all.into_iter().take(limit).map(|(url, count)| (url.clone(), count)).collect()
    }

    #[cfg(any(feature = "browser", test))]
    fn halve(&mut self, url: &[u8]) {
        if let Some(count) = self.0.get_mut(url) {
            *count /= 2;
            if *count == 0 {
                self.0.remove(url);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_up_to_a_limit() {
        let mut counts = PageCounts::default();
        for _ in 0..3 {
            counts.add(b"http://t/often");
        }
        for page in 0..PAGES_MAX + 10 {
            counts.add(format!("http://t/{page}").as_bytes());
        }
        counts.add(&vec![b'x'; URL_BYTES_MAX + 1]);
        assert!(counts.0.len() <= PAGES_MAX, "{}", counts.0.len());
        assert!(counts.0.contains_key(&b"http://t/often"[..]), "a page with many requests stays");
        assert!(!counts.0.contains_key(&b"http://t/0"[..]), "one with a single request goes");
    }

    #[test]
    fn the_most_used_pages_come_first_and_disappear_without_use() {
        let mut counts = PageCounts::default();
        for (url, count) in [("a", 5), ("b", 9), ("c", 1)] {
            (0..count).for_each(|_| counts.add(url.as_bytes()));
        }
        let top = counts.top(2);
        assert_eq!((top.get(&b"a"[..]), top.get(&b"b"[..]), top.len()), (Some(&5), Some(&9), 2));
        (0..4).for_each(|_| counts.halve(b"b"));
        assert!(!counts.top(3).contains_key(&b"b"[..]));
    }

    #[test]
    fn requests_are_counted_by_crawler() {
        let count = |name: &str| {
            let counts = requests_by_crawler();
            let found = counts.iter().find(|(crawler, _)| crawler.map_or("", |crawler| crawler.name) == name);
            found.map_or(0, |(_, count)| *count)
        };
        let (before, others) = (count("archive.org_bot"), count(""));
        count_request(Some(b"Mozilla/5.0 (compatible; archive.org_bot)"), |_| {});
        count_request(Some(b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0)"), |_| {});
        count_request(None, |_| {});
        assert_eq!((count("archive.org_bot") - before, count("") - others), (1, 2));
    }
}
