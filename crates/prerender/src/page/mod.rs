//! One page in a browser, from its first request to its HTML.
//!
//! ```text
//! open: a context of its own, a target, our scripts ──> navigate ──> requests, as they pause ── walls::judge ──> fetched or refused
//!     ──> no request in progress for a while, and the page is ready, or its deadline ──> serialize ──> close
//! ```

mod html;
mod inspect;
mod requests;
mod result;
mod session;
mod visit;

pub(crate) use inspect::{Inspected, PARTS};
#[cfg(test)]
pub(crate) use result::FailedRequest;
pub(crate) use result::{Document, PageFault, PageResult, Rendered, Times};
pub(crate) use visit::visit;
