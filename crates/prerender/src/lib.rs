//! Pages for crawlers: who gets them, and the browser that draws them.
//!
//! ```text
//! site ── crawler(User-Agent), wants_page(..) ──> a crawler that wants a page: its request goes to the cache
//! cache ── what is not stored ──> proxy ── Unix socket ──> service: the page, from the site ──> pool ──> a page of a browser
//! page ── each request of it, paused ──> walls: the site's own socket, or an allowed origin ──> HTML
//! ```
//!
//! To the cache and the proxy the renderer is an upstream. Without features this crate recognises crawlers and has the renderer's settings.
#![forbid(unsafe_code)]
// The data path: data from a client, a page or a plan must not crash a worker or the renderer.
#![warn(clippy::unwrap_used, clippy::expect_used)]

#[cfg(feature = "browser")]
mod browser;
#[cfg(feature = "browser")]
mod budget;
mod counts;
mod crawlers;
mod eligible;
#[cfg(feature = "browser")]
mod figures;
mod origins;
#[cfg(feature = "browser")]
mod page;
mod plan;
#[cfg(feature = "browser")]
mod pool;
#[cfg(feature = "browser")]
mod preview;
#[cfg(feature = "browser")]
mod refresh;
#[cfg(feature = "browser")]
mod renderer;
#[cfg(feature = "browser")]
mod service;
mod verify;
#[cfg(feature = "browser")]
mod walls;
#[cfg(feature = "browser")]
mod warm;

pub use counts::{count_request, requests_by_crawler};
pub use crawlers::{Crawler, CrawlerKind, crawler};
pub use eligible::wants_page;
#[cfg(feature = "browser")]
pub use figures::{Figures, RenderOutcome};
pub use origins::AllowedOrigin;
pub use plan::{PAGE_MEMORY_BYTES_MIN, PAGES_MAX, Plan, QUEUE_MAX, QuietHours, REFRESH_MAX, RenderRate};
#[cfg(feature = "browser")]
pub use preview::PreviewPlan;
#[cfg(feature = "browser")]
pub use refresh::WARM_AGENT;
#[cfg(feature = "browser")]
pub use renderer::{Renderer, SiteSockets};
pub use verify::{Dns, Verification, Verifier};
#[cfg(feature = "browser")]
pub use warm::{WARM_PAGES_MAX, WarmPlan};
