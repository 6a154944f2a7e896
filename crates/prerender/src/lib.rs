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

mod crawlers;
mod eligible;

pub use crawlers::{Crawler, CrawlerKind, crawler};
pub use eligible::wants_page;
