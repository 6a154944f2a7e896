//! Figures of all workers of a server, for a response of one of them.

use std::future::Future;

use tokio::sync::oneshot;

use super::Lane;
use crate::exchange::mailbox::{Mail, Mailbox};
use crate::server::WorkerFigures;

impl Lane {
    /// The figures of each worker, which each counts in its next turn. One that has ended is left out.
    pub fn figures_of_workers(&self) -> impl Future<Output = Vec<WorkerFigures>> + 'static {
        let ask = |mailbox: &Mailbox| {
            let (sender, reply) = oneshot::channel();
            mailbox.post(Mail::Figures(sender));
            reply
        };
        let replies: Vec<_> = self.0.workers.iter().map(ask).collect();
        async move {
            let mut all = Vec::with_capacity(replies.len());
            for reply in replies {
                all.extend(reply.await.ok());
            }
            all
        }
    }
}
