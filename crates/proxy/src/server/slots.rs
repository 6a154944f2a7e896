//! The limit of requests in progress at a server, over all workers and reloads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::LiveServer;

/// One of the requests that a server may have in progress. Dropping it makes room for another.
#[derive(Debug)]
pub(crate) struct ServerSlot(Arc<AtomicU32>);

/// The server has as many requests in progress as it may have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoSlot;

impl LiveServer {
    /// Whether a request may be added, as far as is known now. Costs one comparison without a limit.
    #[inline]
    pub(crate) fn has_slot(&self) -> bool {
        let most = self.plan.requests_max;
        most == 0 || self.in_progress.load(Ordering::Relaxed) < most
    }

    /// Counts a request for as long as the slot lives; `None` for a server without a limit, at no cost.
    ///
    /// # Errors
    /// The limit is reached, perhaps by another worker just now.
    #[inline]
    pub(crate) fn take_slot(&self) -> Result<Option<ServerSlot>, NoSlot> {
        match self.plan.requests_max {
            0 => Ok(None),
            most => self.take_one_of(most).map(Some),
        }
    }

    #[cold]
    fn take_one_of(&self, most: u32) -> Result<ServerSlot, NoSlot> {
        let added = |count: u32| (count < most).then_some(count + 1);
        match self.in_progress.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added) {
            Ok(_) => Ok(ServerSlot(self.in_progress.clone())),
            Err(_) => Err(NoSlot),
        }
    }

    /// It is the same server as `former` with other settings: what is in progress there counts here too.
    pub(super) fn counting_with(mut self, former: &LiveServer) -> LiveServer {
        self.in_progress = former.in_progress.clone();
        self
    }
}

impl Drop for ServerSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;

    fn server(requests_max: u32) -> LiveServer {
        let address = plan::Address::Socket("127.0.0.1:1".parse().unwrap());
        let plan = plan::Server { requests_max, ..plan::Server::new(address) };
        LiveServer::new(plan.clone(), &plan::Upstream::new("t", vec![plan])).unwrap()
    }

    #[test]
    fn a_limit_counts_requests_in_progress() {
        let limited = server(2);
        let first = limited.take_slot().unwrap();
        let second = limited.take_slot().unwrap();
        assert!(first.is_some() && !limited.has_slot());
        assert_eq!(limited.take_slot().unwrap_err(), NoSlot);
        drop(second);
        assert!(limited.has_slot() && limited.take_slot().unwrap().is_some());
    }

    #[test]
    fn other_settings_of_a_server_keep_the_count() {
        let before = server(1);
        let slot = before.take_slot().unwrap();
        let after = server(2).counting_with(&before);
        let another = after.take_slot().unwrap();
        assert!(another.is_some() && !after.has_slot());
        drop((slot, another));
        assert!(before.has_slot() && after.has_slot());
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let free = server(0);
        assert!(free.take_slot().unwrap().is_none() && free.has_slot());
    }

    #[test]
    fn workers_together_never_exceed_a_limit() {
        let limited = Arc::new(server(3));
        let most = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        if let Ok(slot) = limited.take_slot() {
                            most.fetch_max(limited.in_progress.load(Ordering::Relaxed), Ordering::Relaxed);
                            drop(slot);
                        }
                    }
                });
            }
        });
        assert!(most.load(Ordering::Relaxed) <= 3);
        assert_eq!(limited.in_progress.load(Ordering::Relaxed), 0);
    }
}
