//! A service's worker.

use tokio::sync::watch;

use super::lane::Lane;
use super::mailbox::Mailbox;

/// Which worker a service is made for.
#[derive(Clone)]
pub struct Worker {
    /// 0 to `count` − 1, in CPU order.
    pub index: usize,
    /// How many workers the server has.
    pub count: usize,
    /// Becomes `true` when draining begins.
    pub draining: watch::Receiver<bool>,
    /// The worker's lane, for responses by key and for guests.
    pub lane: Lane,
    /// Sends jobs to this worker from other threads.
    pub mailbox: Mailbox,
}
