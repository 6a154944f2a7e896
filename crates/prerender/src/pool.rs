//! Pages of a browser, shared by all who need one: a limited number at a time, a limited queue, and a new browser after some pages, or
//! when one does not respond.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};

use crate::browser::{Browser, BrowserPlan};
use crate::budget::Budgets;
use crate::figures::{Counters, Gauge, RenderPhase};
use crate::page::{Document, PageFault, PageResult, Times, visit};
use crate::plan::Plan;
use crate::walls::Fetcher;

/// How long no browser is started after one did not start. It doubles with each failure, up to the second value.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How often a page is rendered that lost its browser through no fault of its own.
const ATTEMPTS: u32 = 2;

/// Why a page was not rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RenderFault {
    /// The queue is full, or no page became free in time.
    Overload,
    /// No browser starts.
    NoBrowser,
    /// The page failed.
    Page(PageFault),
}

/// The pool of one plan.
pub(crate) struct Pool {
    plan: Plan,
    browsers: BrowserPlan,
    pages: Semaphore,
    slot: Mutex<BrowserSlot>,
    counters: Arc<Counters>,
    clients: Budgets<IpAddr>,
    /// By the site's own socket.
    sites: Budgets<PathBuf>,
}

/// The browser for the next page.
#[derive(Default)]
struct BrowserSlot {
    browser: Option<Arc<Browser>>,
    failures: u32,
    /// No browser is started before this.
    pause: Option<Instant>,
}

impl Pool {
    pub(crate) fn new(plan: Plan, dir: PathBuf, counters: Arc<Counters>) -> Pool {
        let browsers = BrowserPlan {
            program: plan.program.clone(),
            dir,
            pages: plan.pages,
            page_memory_bytes: plan.page_memory_bytes,
            has_sandbox: plan.has_sandbox,
        };
        Pool {
            pages: Semaphore::new(plan.pages),
            browsers,
            slot: Mutex::default(),
            counters,
            clients: Budgets::new(plan.client_budget),
            sites: Budgets::new(plan.site_budget),
            plan,
        }
    }

    /// Whether a render is within the budgets of its client, if that is known, and of its site.
    pub(crate) fn is_within_budget(&self, client: Option<IpAddr>, site: &Path) -> bool {
        let now = Instant::now();
        client.is_none_or(|client| self.clients.take(&client, now)) && self.sites.take(&site.to_owned(), now)
    }

    /// Renders a page.
    ///
    /// # Errors
    /// See [`RenderFault`].
    pub(crate) async fn render(
        &self,
        document: &Document,
        fetcher: impl Fn(&str) -> Arc<Fetcher>,
    ) -> Result<PageResult, RenderFault> {
        let begun = Instant::now();
        let permit = self.permit().await?;
        self.counters.spend(RenderPhase::Wait, begun.elapsed());
        let begun = Instant::now();
        let _active = Gauge::enter(&self.counters.active);
        let mut result = Err(PageFault::Browser);
        for _ in 0..ATTEMPTS {
            let browser = self.browser().await?;
            let fetcher = fetcher(&browser.user_agent);
            let times = Times { page: self.plan.page_time, idle: self.plan.idle_time };
            let (visited, is_good) =
                visit(&browser.devtools, document, fetcher, &self.plan.allow, times).await;
            self.count(&browser, &visited);
            result = visited;
            if !is_good {
                self.retire(&browser).await;
            }
            if result.as_ref().err() != Some(&PageFault::Browser) {
                break;
            }
        }
        self.counters.spend(RenderPhase::Page, begun.elapsed());
        drop(permit);
        result.map_err(RenderFault::Page)
    }

    /// A place for a page; those who wait are limited in number and time.
    async fn permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, RenderFault> {
        if let Ok(permit) = self.pages.try_acquire() {
            return Ok(permit);
        }
        let waiting = usize::try_from(self.counters.waiting.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        if waiting >= self.plan.queue {
            return Err(RenderFault::Overload);
        }
        let _waiting = Gauge::enter(&self.counters.waiting);
        match timeout(self.plan.page_time, self.pages.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(RenderFault::Overload),
        }
    }

    fn count(&self, browser: &Browser, visited: &Result<PageResult, PageFault>) {
        if let Ok(PageResult::Rendered(rendered)) = visited {
            self.counters.requests.fetch_add(rendered.requests.into(), Ordering::Relaxed);
            self.counters.refused.fetch_add(rendered.refused.into(), Ordering::Relaxed);
        }
        self.counters.memory_bytes.store(browser.memory.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.counters.killed.fetch_add(browser.memory.killed.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The browser for a page. Starts one if there is none, or if it has rendered enough pages: the old one ends with its last page.
    async fn browser(&self) -> Result<Arc<Browser>, RenderFault> {
        let mut slot = self.slot.lock().await;
        if let Some(browser) = &slot.browser {
            let pages = browser.pages.fetch_add(1, Ordering::Relaxed);
            if pages < self.plan.pages_per_browser && !browser.devtools.is_closed() {
                return Ok(browser.clone());
            }
            slot.browser = None;
        }
        if slot.pause.is_some_and(|pause| Instant::now() < pause) {
            return Err(RenderFault::NoBrowser);
        }
        match Browser::start(&self.browsers).await {
            Ok(browser) => {
                let browser = Arc::new(browser);
                browser.pages.store(1, Ordering::Relaxed);
                self.counters.browsers.fetch_add(1, Ordering::Relaxed);
                self.counters.set_limits(&browser.limits);
                *slot = BrowserSlot { browser: Some(browser.clone()), ..BrowserSlot::default() };
                Ok(browser)
            }
            Err(why) => {
                let pause = PAUSE.saturating_mul(1 << slot.failures.min(6)).min(PAUSE_MAX);
                (slot.pause, slot.failures) = (Some(Instant::now() + pause), slot.failures.saturating_add(1));
                report(&why);
                Err(RenderFault::NoBrowser)
            }
        }
    }

    /// The next page gets another browser.
    async fn retire(&self, browser: &Arc<Browser>) {
        let mut slot = self.slot.lock().await;
        if slot.browser.as_ref().is_some_and(|current| Arc::ptr_eq(current, browser)) {
            slot.browser = None;
        }
    }
}

/// Reports to the operator, once for each attempt to start a browser; these are limited by the pause.
#[allow(clippy::print_stderr, reason = "the renderer knows no log")]
fn report(why: &str) {
    eprintln!("flatout: prerender: {why}");
}
