//! What a renderer has done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How a request to the renderer has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenderOutcome {
    /// HTML of a finished page.
    Rendered,
    /// HTML of a page at its deadline.
    Late,
    /// The page has gone to another URL.
    Moved,
    /// No page: a redirect, an error, or another kind of content, passed on as it is.
    Plain,
    /// The page as it is, because there was no room.
    Overload,
    /// The page as it is, because its client or its site has used its budget.
    Budget,
    /// The page as it is, because no browser starts.
    NoBrowser,
    /// The page as it is, because it has crashed, hung, or was too large.
    Failed,
    /// Nothing could be fetched from the site.
    Error,
}

impl RenderOutcome {
    /// All of them.
    pub const ALL: [RenderOutcome; 9] = [
        RenderOutcome::Rendered,
        RenderOutcome::Late,
        RenderOutcome::Moved,
        RenderOutcome::Plain,
        RenderOutcome::Overload,
        RenderOutcome::Budget,
        RenderOutcome::NoBrowser,
        RenderOutcome::Failed,
        RenderOutcome::Error,
    ];

    /// Whether the page came as it is although it should have been rendered.
    pub fn is_skipped(self) -> bool {
        use RenderOutcome::{Budget, Failed, NoBrowser, Overload};
        matches!(self, Budget | Failed | NoBrowser | Overload)
    }

    /// Its name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            RenderOutcome::Rendered => "rendered",
            RenderOutcome::Late => "late",
            RenderOutcome::Moved => "moved",
            RenderOutcome::Plain => "plain",
            RenderOutcome::Overload => "overload",
            RenderOutcome::Budget => "budget",
            RenderOutcome::NoBrowser => "no_browser",
            RenderOutcome::Failed => "failed",
            RenderOutcome::Error => "error",
        }
    }
}

/// The counters of a renderer.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) outcomes: [AtomicU64; RenderOutcome::ALL.len()],
    pub(crate) active: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) browsers: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) refused: AtomicU64,
    fetch_us: AtomicU64,
    wait_us: AtomicU64,
    page_us: AtomicU64,
    pub(crate) memory_bytes: AtomicU64,
    pub(crate) killed: AtomicU64,
    pub(crate) warming: AtomicU64,
    pub(crate) warmed: AtomicU64,
    pub(crate) refreshed: AtomicU64,
    pub(crate) for_clients: AtomicU64,
    pub(crate) paused: AtomicU64,
    limits: Mutex<String>,
}

/// A part of a render's time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RenderPhase {
    /// The document, from the site.
    Fetch,
    /// For a page of a browser.
    Wait,
    /// In the browser.
    Page,
}

/// What a renderer has done since it was started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Requests by outcome, in the order of [`RenderOutcome::ALL`].
    pub outcomes: [u64; RenderOutcome::ALL.len()],
    /// Pages that are open.
    pub active: u64,
    /// Requests that wait for a page.
    pub waiting: u64,
    /// Browsers started.
    pub browsers: u64,
    /// Requests of pages, and those that were refused.
    pub requests: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Time spent fetching documents.
    pub fetch_time: Duration,
    /// Time spent waiting for a page.
    pub wait_time: Duration,
    /// Time spent in pages.
    pub page_time: Duration,
    /// Memory of open pages, in bytes.
    pub memory_bytes: u64,
    /// Pages killed because of their memory.
    pub killed: u64,
    /// Pages of warm-ups that are to come.
    pub warming: u64,
    /// Pages of warm-ups that have been requested.
    pub warmed: u64,
    /// Pages that were rendered again before they expired.
    pub refreshed: u64,
    /// Warm-ups and refreshes that wait for the quiet hours.
    pub paused: u64,
    /// Requests to the renderer that a client has caused.
    pub for_clients: u64,
    /// The limits for all pages of the last browser together, in words, or why there are none; empty before the first browser.
    pub limits: String,
}

impl Figures {
    /// Requests with this outcome.
    pub fn outcome(&self, outcome: RenderOutcome) -> u64 {
        let at = RenderOutcome::ALL.iter().position(|other| *other == outcome);
        at.and_then(|at| self.outcomes.get(at)).copied().unwrap_or_default()
    }
}

impl Counters {
    pub(crate) fn add(&self, outcome: RenderOutcome) {
        let at = RenderOutcome::ALL.iter().position(|other| *other == outcome).unwrap_or_default();
        if let Some(counter) = self.outcomes.get(at) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_limits(&self, limits: &str) {
        limits.clone_into(&mut self.limits.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn spend(&self, phase: RenderPhase, time: Duration) {
        let counter = match phase {
            RenderPhase::Fetch => &self.fetch_us,
            RenderPhase::Wait => &self.wait_us,
            RenderPhase::Page => &self.page_us,
        };
        counter.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn figures(&self) -> Figures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let time = |counter: &AtomicU64| Duration::from_micros(of(counter));
        Figures {
            outcomes: self.outcomes.each_ref().map(of),
            active: of(&self.active),
            waiting: of(&self.waiting),
            browsers: of(&self.browsers),
            requests: of(&self.requests),
            refused: of(&self.refused),
            fetch_time: time(&self.fetch_us),
            wait_time: time(&self.wait_us),
            page_time: time(&self.page_us),
            memory_bytes: of(&self.memory_bytes),
            killed: of(&self.killed),
            warming: of(&self.warming),
            warmed: of(&self.warmed),
            refreshed: of(&self.refreshed),
            paused: of(&self.paused),
            for_clients: of(&self.for_clients),
            limits: self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// Counts one while it exists.
pub(crate) struct Gauge<'a>(&'a AtomicU64);

impl<'a> Gauge<'a> {
    pub(crate) fn enter(counter: &'a AtomicU64) -> Gauge<'a> {
        counter.fetch_add(1, Ordering::Relaxed);
        Gauge(counter)
    }
}

impl Drop for Gauge<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
