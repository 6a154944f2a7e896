//! The ejection of a server that stands out from its siblings, and its return.

use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use flatout_lane::clock;

use super::LiveServer;
use super::marks::EJECTED;
use crate::plan::Outliers;
use crate::select::outliers::{OutlierReason, pause};
use crate::select::tally::{Sample, Tally, sum};

/// What is known of a server for comparisons with its siblings.
#[derive(Default)]
pub(super) struct Standing {
    /// One for each worker.
    tallies: Vec<Weak<Tally>>,
    /// What they had counted at the last comparison.
    compared: Sample,
    /// Why it is out, and until when.
    out: Option<(OutlierReason, u64)>,
    /// Ejections in a row.
    row: u32,
    /// Until when it has to stay in to end the row.
    proves_until_ns: u64,
    counts: EjectionCounts,
}

/// How often a server was ejected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EjectionCounts {
    /// Because of its errors.
    pub errors: u64,
    /// Because of its times.
    pub time: u64,
}

impl LiveServer {
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is out as long as another one, whose ejections count for it. Workers count anew.
    pub(super) fn stands_like(&self, other: &LiveServer) {
        let standing = {
            let Standing { out, row, proves_until_ns, counts, .. } = *other.standing();
            Standing { out, row, proves_until_ns, counts, ..Standing::default() }
        };
        *self.standing() = standing;
    }

    /// Counts what a worker sees of it.
    pub(crate) fn new_tally(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        let mut standing = self.standing();
        standing.tallies.retain(|tally| tally.strong_count() > 0);
        standing.tallies.push(Arc::downgrade(&tally));
        tally
    }

    /// What was seen since the last call.
    pub(crate) fn next_sample(&self) -> Sample {
        let mut standing = self.standing();
        let tallies: Vec<Arc<Tally>> = standing.tallies.iter().filter_map(Weak::upgrade).collect();
        let now = sum(&tallies);
        now.since(std::mem::replace(&mut standing.compared, now))
    }

    /// Ejects it. Returns for how long.
    pub(crate) fn eject(&self, reason: OutlierReason, plan: &Outliers) -> std::time::Duration {
        let mut standing = self.standing();
        let now_ns = clock::nanoseconds();
        if now_ns > standing.proves_until_ns {
            standing.row = 0;
        }
        standing.row += 1;
        let pause = pause(plan, standing.row);
        let until_ns = now_ns + pause.as_nanos() as u64;
        standing.out = Some((reason, until_ns));
        standing.proves_until_ns = until_ns + pause.as_nanos() as u64;
        match reason {
            OutlierReason::Errors { .. } => standing.counts.errors += 1,
            OutlierReason::Time { .. } => standing.counts.time += 1,
        }
        self.set_closed(EJECTED, true);
        pause
    }

    /// Lets it in again, if its pause is over. Returns whether it was.
    pub(crate) fn return_after_pause(&self) -> bool {
        let is_over = self.standing().out.is_some_and(|(_, until_ns)| clock::nanoseconds() >= until_ns);
        is_over && self.readmit()
    }

    /// Lets it in again. Returns whether it was out.
    pub(crate) fn readmit(&self) -> bool {
        self.standing().out = None;
        let was_out = self.set_closed(EJECTED, false);
        if was_out {
            self.recovers();
        }
        was_out
    }

    /// Why it is out.
    pub(crate) fn ejection(&self) -> Option<OutlierReason> {
        self.standing().out.map(|(reason, _)| reason)
    }

    /// How often it was ejected.
    pub(crate) fn ejection_counts(&self) -> EjectionCounts {
        self.standing().counts
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::{Address, Server, Upstream};
    use crate::server::ServerState;

    fn server() -> LiveServer {
        let plan = Server::new(Address::Socket("127.0.0.1:1".parse().unwrap()));
        LiveServer::new(plan.clone(), &Upstream::new("t", vec![plan])).unwrap()
    }

    const REASON: OutlierReason = OutlierReason::Time { times: 3.0 };

    #[test]
    fn samples_are_those_of_all_workers_since_the_last_one() {
        let server = server();
        let tallies = [server.new_tally(), server.new_tally()];
        tallies.iter().for_each(|tally| tally.failed());
        assert_eq!((server.next_sample().errors, server.next_sample().errors), (2, 0));
        let [one, other] = tallies;
        one.failed();
        drop(other);
        assert_eq!(server.next_sample(), Sample::default(), "a worker has ended");
        one.failed();
        assert_eq!(server.next_sample().errors, 1);
    }

    #[test]
    fn an_ejected_server_returns_after_its_pause() {
        let server = server();
        let plan = Outliers { pause: Duration::from_millis(20), ..Outliers::default() };
        assert_eq!(server.eject(REASON, &plan), Duration::from_millis(20));
        assert!(!server.is_up() && server.may_serve_last() && !server.is_leaving());
        assert_eq!((server.state(Duration::ZERO), server.ejection()), (ServerState::Ejected, Some(REASON)));
        assert!(!server.return_after_pause());
        std::thread::sleep(Duration::from_millis(25));
        assert!(server.return_after_pause() && server.is_up() && !server.return_after_pause());
        assert_eq!(server.ejection(), None);
        assert_eq!(server.eject(REASON, &plan), Duration::from_millis(40), "again soon");
        assert_eq!(server.ejection_counts(), EjectionCounts { errors: 0, time: 2 });
        server.readmit();
        std::thread::sleep(Duration::from_millis(90));
        assert_eq!(server.eject(REASON, &plan), Duration::from_millis(20), "after a good while");
    }
}
