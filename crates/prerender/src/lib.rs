//! Pages for crawlers: who gets them, and the browser that draws them.
//!
//! ```text
//! site ── crawler(User-Agent), wants_page(..) ──> a crawler, and a page: the request goes to the renderer
//! ```
//!
//! Without features this crate only recognises crawlers, and depends on nothing.
#![forbid(unsafe_code)]
// The data path: data from a client, a page or a plan must not crash a worker or the renderer.
#![warn(clippy::unwrap_used, clippy::expect_used)]

#[cfg(feature = "browser")]
mod browser;
mod crawlers;
mod eligible;
#[cfg(feature = "browser")]
mod figures;
#[cfg(feature = "browser")]
mod page;
#[cfg(feature = "browser")]
mod plan;
#[cfg(feature = "browser")]
mod pool;
#[cfg(feature = "browser")]
mod renderer;
#[cfg(feature = "browser")]
mod service;
#[cfg(feature = "browser")]
mod walls;

pub use crawlers::{Crawler, CrawlerKind, crawler};
pub use eligible::wants_page;
#[cfg(feature = "browser")]
pub use figures::{Figures, RenderOutcome};
#[cfg(feature = "browser")]
pub use plan::{PAGE_MEMORY_BYTES_MIN, PAGES_MAX, Plan, QUEUE_MAX};
#[cfg(feature = "browser")]
pub use renderer::{Renderer, SiteSockets};
#[cfg(feature = "browser")]
pub use walls::AllowedOrigin;
