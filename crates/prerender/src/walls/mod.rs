//! What pages may fetch. The browser has no network: each of its requests comes here, and we fetch what is allowed.
//!
//! ```text
//! chromium ── Fetch.requestPaused ──> judge ── own origin ──────> the site's own socket, never its DNS name
//!                                           ├─ allowed origin ──> its addresses, each checked, then connected to
//!                                           ├─ a picture ───────> one transparent pixel
//!                                           └─ all others ──────> refused
//! ```

mod addresses;
mod fetch;
mod judge;

pub(crate) use fetch::{FetchFault, Fetched, Fetcher, MARK, PageRequest, RequestTarget};
pub(crate) use judge::{PageOrigin, PausedRequest, Ruling, judge};
