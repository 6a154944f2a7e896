//! Snapshots of upstreams and of the renderer, as a server reports them.

use std::time::Duration;

use flatout_proxy::{ServerFigures, ServerState, UpstreamFigures};

use crate::frame::CrawlerRequests;

/// A snapshot of the renderer of pages, with counts since the start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RendererSnapshot {
    /// Requests of crawlers.
    pub requests: u64,
    /// Those that have come to the renderer.
    pub misses: u64,
    /// Pages rendered.
    pub rendered: u64,
    /// Requests that got the page as it is, because it was not rendered.
    pub skipped: u64,
    /// Time spent in pages.
    pub page_time: Duration,
    /// Pages that are being rendered.
    pub active: u64,
    /// Requests that wait for a page.
    pub waiting: u64,
    /// Memory of pages.
    pub memory_bytes: u64,
    /// Pages of warm-ups that are to come.
    pub warming: u64,
    /// All crawlers that have sent a request, those with the most first.
    pub crawlers: Vec<CrawlerRequests>,
}

/// A snapshot of an upstream.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UpstreamSnapshot {
    /// Its name in the plan.
    pub name: String,
    /// Its counters.
    pub figures: UpstreamFigures,
    /// Its servers.
    pub servers: Vec<ServerSnapshot>,
}

/// A snapshot of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSnapshot {
    /// Its address.
    pub address: String,
    /// Its state.
    pub state: ServerState,
    /// Its counters.
    pub figures: ServerFigures,
}
