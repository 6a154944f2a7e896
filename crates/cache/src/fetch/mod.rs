//! Requests to the upstream, and the requests that wait for them.
//!
//! ```text
//! leader ── proxy ──> upstream ── fill ──> Flight: outcome, chunks ──> leader's client, followers
//!                                  │ stored: an entry in the store
//!                                  │ 304, or an error: revalidate
//!                                  └ for one client only: followers go through bypass, each alone
//! ```

#[cfg(test)]
mod abandoned_tests;
pub(crate) mod bypass;
mod disk_read;
mod fill;
pub(crate) mod flight;
mod follower;
mod leader;
mod revalidate;
mod storage;
pub(crate) mod waiting_request;

use std::sync::Arc;

use flatout_engine::{Reply, Response};
use flatout_gateway::{Finish, ResponseOrigin};
use flatout_wire::Status;

use crate::entry::Entry;
use crate::respond;
use crate::status::CacheStatus;
use flight::Flight;

/// What a request that is not served from the cache is sent for, or waits for.
pub(crate) struct Fetch {
    pub(crate) flight: Arc<Flight>,
    /// The entry that was found, if it has to be revalidated.
    pub(crate) stale: Option<Arc<Entry>>,
    pub(crate) cache_status: CacheStatus,
}

/// The response to a request that cannot be sent to its upstream.
pub(crate) fn bad_gateway(finish: &dyn Finish, response: &mut Response) -> Reply {
    respond::refuse(Status::BAD_GATEWAY, None, response);
    finish.finish(response, ResponseOrigin::Here);
    Reply::Now
}
