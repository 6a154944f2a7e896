//! Pages that are rendered again before they expire: the most used ones, one after the other.
//!
//! A route with a refresh lets the cache store its pages for a shorter time than they may be used, and serve them beyond it while they
//! are rendered again. A request at that moment is all that a refresh takes: no crawler waits, and none gets an expired page.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use tokio::time::{Instant, sleep};

use crate::counts;
use crate::figures::{Counters, Gauge};
use crate::plan::{Plan, QuietHours, RenderRate};
use crate::walls::{Fetcher, PageOrigin, PageRequest, RequestTarget};

/// The crawler that a page is rendered for that nobody waits for, unless the operator names another.
pub const WARM_AGENT: &str = "Googlebot/2.1 (flatout-prerender)";

/// Pages whose time is known.
const PAGES_MAX: usize = 20_000;

/// How often is examined which pages are due, and whether the quiet hours have begun.
const PERIOD: Duration = Duration::from_secs(1);

/// A rendered page.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RenderedPage {
    /// The site's own socket.
    pub(crate) socket: PathBuf,
    pub(crate) is_https: bool,
    pub(crate) authority: String,
    pub(crate) target: String,
}

impl RenderedPage {
    fn origin(&self) -> PageOrigin {
        PageOrigin { is_https: self.is_https, authority: self.authority.clone() }
    }

    fn url(&self) -> Vec<u8> {
        self.origin().url(&self.target).into_bytes()
    }
}

/// When pages are rendered that nobody waits for, and which ones.
#[derive(Default)]
pub(crate) struct Background {
    settings: Mutex<BackgroundSettings>,
    /// When each page is due.
    due: Mutex<HashMap<RenderedPage, Instant>>,
}

#[derive(Default, Clone, Copy)]
struct BackgroundSettings {
    quiet: Option<QuietHours>,
    rate: Option<RenderRate>,
    refresh: usize,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Background {
    pub(crate) fn change(&self, plan: &Plan) {
        let Plan { quiet, warm_rate: rate, refresh, .. } = *plan;
        *lock(&self.settings) = BackgroundSettings { quiet, rate, refresh };
        counts::count_pages(refresh > 0);
        if refresh == 0 {
            lock(&self.due).clear();
        }
    }

    /// A page was rendered, and is stored with this `Cache-Control`.
    pub(crate) fn rendered(&self, page: RenderedPage, lifetime: &str) {
        if lock(&self.settings).refresh == 0 {
            return;
        }
        let seconds: Option<u64> =
            lifetime.strip_prefix("max-age=").and_then(|rest| rest.split(',').next()?.parse().ok());
        // Whole seconds: it must have passed in the cache.
        let Some(time) = seconds.map(|seconds| Duration::from_secs(seconds.saturating_add(1))) else {
            return;
        };
        let mut due = lock(&self.due);
        if let Some(at) = Instant::now().checked_add(time)
            && (due.len() < PAGES_MAX || due.contains_key(&page))
        {
            due.insert(page, at);
        }
    }

    /// The pages that are due and among the most used ones, those with the most requests first. All that are due are forgotten: they
    /// come back when they are rendered.
    fn take(&self, now: Instant, used: &HashMap<Vec<u8>, u32>) -> Vec<RenderedPage> {
        let mut taken = Vec::new();
        lock(&self.due).retain(|page, at| {
            let is_due = *at <= now;
            if let Some(count) = used.get(&page.url()).filter(|_| is_due) {
                taken.push((*count, page.clone()));
            }
            !is_due
        });
        taken.sort_by(|(one, page), (other, next)| other.cmp(one).then_with(|| page.cmp(next)));
        taken.into_iter().map(|(_, page)| page).collect()
    }

    /// Waits until a page may be rendered that nobody waits for.
    pub(crate) async fn turn(&self, counters: &Counters) {
        if self.is_allowed() {
            return;
        }
        let _paused = Gauge::enter(&counters.paused);
        while !self.is_allowed() {
            sleep(PERIOD).await;
        }
    }

    fn is_allowed(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        lock(&self.settings).quiet.is_none_or(|quiet| quiet.has(now))
    }

    /// Waits between two pages.
    pub(crate) async fn pause(&self) {
        let rate = lock(&self.settings).rate;
        if let Some(RenderRate { pages, window }) = rate {
            sleep(window / pages.max(1)).await;
        }
    }

    /// Renders pages again, until the renderer ends.
    pub(crate) async fn run(self: Arc<Background>, counters: Arc<Counters>) {
        loop {
            sleep(PERIOD).await;
            let BackgroundSettings { refresh, .. } = *lock(&self.settings);
            if refresh == 0 || lock(&self.due).is_empty() {
                continue;
            }
            self.turn(&counters).await;
            for page in self.take(Instant::now(), &counts::most_used(refresh)) {
                self.turn(&counters).await;
                counts::halve(&page.url());
                let agent = HeaderValue::from_static(WARM_AGENT);
                let fetcher = Fetcher::new(page.socket.clone(), page.origin(), None, agent);
                let (to, fields) = (RequestTarget::Own { target: page.target }, HeaderMap::new());
                let request = PageRequest { to, method: Method::GET, fields, body: Bytes::new() };
                if fetcher.fetch_unmarked(request).await.is_ok() {
                    counters.refreshed.fetch_add(1, Ordering::Relaxed);
                }
                self.pause().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(target: &str) -> RenderedPage {
        let authority = "a.test".to_owned();
        RenderedPage { socket: "/s".into(), is_https: true, authority, target: target.to_owned() }
    }

    #[test]
    fn pages_that_are_due_come_in_the_order_of_their_use() {
        let background = Background::default();
        lock(&background.settings).refresh = 3;
        for target in ["/a", "/b", "/c", "/unused"] {
            background.rendered(page(target), "max-age=90, stale-while-revalidate=10");
        }
        background.rendered(page("/later"), "max-age=900");
        background.rendered(page("/odd"), "no-store");
        let used = [("/a", 2), ("/b", 7), ("/c", 2), ("/later", 99)];
        let used = used.map(|(target, count)| (page(target).url(), count)).into_iter().collect();
        let now = Instant::now();
        assert_eq!(background.take(now + Duration::from_secs(80), &used), []);
        let due = now + Duration::from_secs(92);
        assert_eq!(background.take(due, &used), [page("/b"), page("/a"), page("/c")]);
        assert_eq!(background.take(due, &used), [], "they come back when they are rendered");
        assert_eq!(lock(&background.due).len(), 1);
    }

    #[test]
    fn without_a_refresh_nothing_is_remembered() {
        let background = Background::default();
        background.rendered(page("/a"), "max-age=90");
        assert!(lock(&background.due).is_empty());
    }
}
