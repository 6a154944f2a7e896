//! What a site, the cache and the proxy exchange about a request: plain types, and the two traits between them.
//!
//! ```text
//! site ── Forwarded (target, client, edits, caching) ──> Forwarding: the cache, or the proxy
//! site <── Finish::finish(response) ──────────────────── Forwarding
//! ```
//!
//! A site knows neither who stores nor who carries; the cache and the proxy know no routes.
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod auth;
mod cache;
mod client;
mod edits;
mod finish;
mod forward;
mod parked;
pub mod private;

pub use auth::{AuthDecision, AuthQuery};
pub use cache::{Caching, Ignored, Rules, Validity};
pub use client::Client;
pub use edits::{Edits, PARAM, is_alike};
pub use finish::{Finish, Redirection, ResponseOrigin, Stored};
pub use forward::{BufferRequests, Forward, Forwarded, Forwarding, Host, Mirror, TrustedFields};
pub use parked::{Abandoned, complete, signalling};
