//! The bus to other servers, if one is configured.

use std::sync::Arc;
use std::time::Duration;

use flatout_bus::{Bus, BusState, Nats, Outcome, Plan, Relay};
use flatout_cache::{Purge, PurgeScope};
use flatout_engine::say;
use flatout_push::Hub;

use crate::Failure;
use crate::live::Live;

/// How long a process that replaces another one waits for the bus. Messages published meanwhile must reach
/// one of the two.
const JOIN_TIME_MAX: Duration = Duration::from_secs(2);

/// How long a purge waits for the bus to carry it.
const PURGE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a process waits at its end for the bus to carry its messages.
const END_TIME_MAX: Duration = Duration::from_millis(500);

/// Shares messages and purges with other servers. Clones share it.
#[derive(Clone)]
pub(crate) struct BusRuntime {
    pub(crate) relay: Arc<Relay>,
    nats: Arc<Nats>,
    live: Live,
}

impl BusRuntime {
    /// Joins the bus in the background, and retries if it cannot be reached.
    pub(crate) fn begin(plan: Plan, hub: &Hub, live: &Live) -> Result<BusRuntime, Failure> {
        let purged = live.clone();
        // This also runs on the thread of the bus, which must not wait for the disk.
        let purging =
            move |purge: &Purge| purged.opened().cache.as_ref().map(|cache| cache.purge_soon(purge));
        let relay = Relay::new(hub, Box::new(purging));
        let nats = Nats::new(plan);
        relay.connect(nats.clone());
        let started = nats.start(Arc::downgrade(&relay));
        started.map_err(|error| Failure::Run(format!("cannot start the thread of the bus: {error}")))?;
        Ok(BusRuntime { relay, nats, live: live.clone() })
    }

    /// Waits until it has joined, for a limited time.
    pub(crate) fn wait_joined(&self) {
        self.nats.wait_joined(JOIN_TIME_MAX);
    }

    /// Purges this server and all others. Returns a message with the result.
    ///
    /// # Errors
    /// Another process takes the place of this one: nothing was sent.
    pub(crate) fn purge(&self, purge: &Purge) -> Result<String, String> {
        let (count, receipt) = self.relay.purge(purge).map_err(|refused| refused.to_string())?;
        if let Some(cache) = &self.live.opened().cache {
            cache.wait_for_purges();
        }
        let here = count
            .map_or_else(|| "no responses are stored here".to_owned(), |count| purge_message(purge, count));
        let outcome = self.nats.wait_carried(receipt, PURGE_TIME_MAX);
        let is_joined = self.nats.counted().state == BusState::Joined;
        let there = match outcome {
            Outcome::Carried => "sent to the other servers",
            Outcome::Dropped => {
                "not sent, the bus has no room for it; other servers mark everything stale when they detect the loss"
            }
            Outcome::Waits if is_joined => "the bus has not confirmed it yet; it is sent again until it does",
            Outcome::Waits => {
                "the bus is disconnected; other servers get it when it is joined again, unless this server ends before"
            }
        };
        Ok(format!("{here}; {there}"))
    }

    /// Called at the end of the process.
    pub(crate) fn close(&self) {
        if self.nats.wait_all(END_TIME_MAX) {
            self.relay.leave();
            self.nats.sync(END_TIME_MAX);
            return;
        }
        let queued = self.nats.counted().queued;
        say(format_args!(
            "the bus has not confirmed {queued} messages and purges; the other servers may not get them"
        ));
    }
}

/// Closes when it is dropped, so that a process that fails to start also announces its end.
pub(crate) struct Closing(pub(super) BusRuntime);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A message with the number of responses purged here.
pub(crate) fn purge_message(purge: &Purge, count: usize) -> String {
    let how = if purge.is_soft { "marked stale" } else { "purged" };
    match (count, &purge.scope) {
        (0, PurgeScope::Url(url)) => {
            format!("{how} 0 stored responses: none is stored for {url} (scheme, host and port count)")
        }
        (1, _) => format!("{how} 1 stored response"),
        _ => format!("{how} {count} stored responses"),
    }
}
