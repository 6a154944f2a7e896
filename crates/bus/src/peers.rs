//! Which other servers are on the bus, by their heartbeats. A server whose heartbeats stop without an announcement may have lost messages and
//! purges that it could not send.

use std::collections::HashMap;
use std::time::Duration;

use flatout_lane::clock::{self, Ticks};

/// Maximum number of servers; above it, the one that was silent for the longest is removed.
const ORIGINS_MAX: usize = 1024;

/// A server without a heartbeat for this time has crashed or is disconnected. Longer than it takes to detect a lost connection and to make a
/// new one.
pub(super) const SILENCE_TIME: Duration = Duration::from_secs(30);

/// How long a silent server is remembered, in case it is restarted.
const REMEMBERED_TIME: Duration = Duration::from_secs(3600);

/// The other servers.
#[derive(Debug, Default)]
pub(super) struct Peers {
    by_origin: HashMap<u64, Peer>,
}

#[derive(Debug, Clone, Copy)]
struct Peer {
    /// Its first heartbeat.
    since: Ticks,
    /// Its last heartbeat.
    heard_at: Ticks,
    /// When the next heartbeat is overdue.
    until: Ticks,
    /// It was overdue, and was reported.
    is_silent: bool,
}

impl Peers {
    /// Records a heartbeat. Returns whether messages or purges may be lost: a new server may be a silent one after a restart, and the
    /// restart has dropped everything that was not sent.
    pub(super) fn record_heartbeat(&mut self, origin: u64, now: Ticks) -> bool {
        let until = now + clock::ticks(SILENCE_TIME);
        let peer = Peer { since: now, heard_at: now, until, is_silent: false };
        if let Some(known) = self.by_origin.get_mut(&origin) {
            *known = Peer { since: known.since, ..peer };
            return false;
        }
        let count = self.by_origin.len();
        self.by_origin.retain(|_, other| !other.is_silent);
        let had_silent = self.by_origin.len() < count;
        if self.by_origin.len() >= ORIGINS_MAX {
            let oldest =
                self.by_origin.iter().min_by_key(|(_, other)| other.until).map(|(origin, _)| *origin);
            oldest.and_then(|origin| self.by_origin.remove(&origin));
        }
        self.by_origin.insert(origin, peer);
        had_silent
    }

    /// Whether heartbeats of this server are expected.
    pub(super) fn contains(&self, origin: u64) -> bool {
        self.by_origin.contains_key(&origin)
    }

    /// Records that a server ends, and that everything it sent was carried.
    pub(super) fn remove(&mut self, origin: u64) {
        self.by_origin.remove(&origin);
    }

    /// No heartbeat could be received until now: waits this long for those of all servers.
    pub(super) fn expect_within(&mut self, time: Duration, now: Ticks) {
        for other in self.by_origin.values_mut().filter(|other| !other.is_silent) {
            other.until = now + clock::ticks(time);
        }
    }

    /// Whether a server has become silent since the last call. It is remembered until it may have been restarted.
    pub(super) fn has_new_silent(&mut self, now: Ticks) -> bool {
        let mut has_new = false;
        let newest = self.by_origin.values().map(|other| other.since).max().unwrap_or_default();
        self.by_origin.retain(|_, other| {
            if other.is_silent {
                return now.saturating_sub(other.heard_at) < clock::ticks(REMEMBERED_TIME);
            }
            if now < other.until {
                return true;
            }
            (other.is_silent, has_new) = (true, true);
            // A server first heard after the last heartbeat of this one may be this one, restarted.
            newest <= other.heard_at
        });
        has_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence() -> Ticks {
        clock::ticks(SILENCE_TIME)
    }

    #[test]
    fn a_silent_server_is_reported_once() {
        let mut peers = Peers::default();
        assert!(
            !peers.record_heartbeat(1, 0) && !peers.record_heartbeat(2, 0) && !peers.record_heartbeat(3, 0)
        );
        peers.remove(1);
        assert!(!peers.record_heartbeat(2, 100) && !peers.has_new_silent(silence() - 1));
        assert!(peers.has_new_silent(silence()), "the third");
        assert!(!peers.has_new_silent(silence() + 99));
        assert!(
            !peers.record_heartbeat(3, silence() + 99),
            "it was disconnected, and its numbers reveal a loss"
        );
        assert!(peers.has_new_silent(silence() + 100), "the second");
    }

    #[test]
    fn a_new_server_may_be_a_silent_one_restarted() {
        let mut peers = Peers::default();
        assert!(!peers.record_heartbeat(1, 0) && !peers.record_heartbeat(2, 0));
        assert!(!peers.record_heartbeat(2, silence() - 1), "nobody is silent");
        assert!(peers.has_new_silent(silence()));
        assert!(!peers.record_heartbeat(2, silence()), "it was there before");
        assert!(peers.record_heartbeat(3, silence()), "the first may have been restarted");
        assert!(!peers.record_heartbeat(4, silence()), "reported before");
    }

    #[test]
    fn a_restart_before_the_silence_is_reported_once() {
        let mut peers = Peers::default();
        assert!(!peers.record_heartbeat(1, 0) && !peers.record_heartbeat(2, 100));
        assert!(peers.has_new_silent(silence()), "the first");
        assert!(!peers.record_heartbeat(3, silence()), "the second was the first one, restarted");
    }

    #[test]
    fn silent_servers_are_forgotten() {
        let remembered = clock::ticks(REMEMBERED_TIME);
        for (time, may_be_restarted) in [(remembered - 1, true), (remembered, false)] {
            let mut peers = Peers::default();
            peers.record_heartbeat(1, 0);
            assert!(peers.has_new_silent(silence()) && !peers.has_new_silent(time));
            assert_eq!(peers.record_heartbeat(2, time), may_be_restarted);
        }
    }

    #[test]
    fn time_without_a_connection_does_not_count() {
        let mut peers = Peers::default();
        peers.record_heartbeat(1, 0);
        peers.expect_within(Duration::from_secs(3), silence());
        let answered = silence() + clock::ticks(Duration::from_secs(3));
        assert!(!peers.has_new_silent(answered - 1) && peers.has_new_silent(answered));
        peers.expect_within(Duration::from_secs(3), answered);
        assert!(!peers.has_new_silent(2 * answered), "once");
    }

    #[test]
    fn the_number_of_servers_is_limited() {
        let mut peers = Peers::default();
        for origin in 0..10 * ORIGINS_MAX as u64 {
            peers.record_heartbeat(origin, origin as Ticks);
        }
        assert_eq!(peers.by_origin.len(), ORIGINS_MAX);
    }
}
