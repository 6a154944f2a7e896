//! What is counted of a bus.

use crate::metrics::Family;

/// How a bus is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    /// It was not joined yet.
    #[default]
    Joining,
    /// Parcels come and go.
    Joined,
    /// It was lost, and is tried again.
    Away,
}

impl State {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            State::Joining => "joining",
            State::Joined => "joined",
            State::Away => "away",
        }
    }
}

/// What was counted, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// How the bus is.
    pub state: State,
    /// Messages and purges that the bus has carried for this server.
    pub sent: u64,
    /// Messages and purges of other servers.
    pub received: u64,
    /// Those of this server that wait to be carried.
    pub queued: u64,
    /// Those of this server that were dropped: too many waited, or they were too large.
    pub dropped: u64,
    /// How often the bus was lost.
    pub lost: u64,
    /// How often messages or purges of other servers did not arrive.
    pub missed: u64,
    /// What arrived and could not be used.
    pub refused: u64,
}

impl Counted {
    pub(super) fn collect(&self, into: &mut Vec<Family>) {
        let is_joined = u64::from(self.state == State::Joined);
        let figures = [
            Family::gauge("flatout_bus_joined", "1 while the bus to other servers is joined", is_joined),
            Family::gauge("flatout_bus_queued", "Messages and purges that wait for the bus", self.queued),
            Family::counter("flatout_bus_sent", "Messages and purges that the bus has carried", self.sent),
            Family::counter("flatout_bus_received", "Messages and purges of other servers", self.received),
            Family::counter(
                "flatout_bus_dropped",
                "Messages and purges not sent because too many waited or they were too large",
                self.dropped,
            ),
            Family::counter("flatout_bus_lost", "How often the bus was lost", self.lost),
            Family::counter(
                "flatout_bus_missed",
                "How often messages or purges of other servers did not arrive",
                self.missed,
            ),
            Family::counter(
                "flatout_bus_refused",
                "Messages and purges of other servers that could not be used",
                self.refused,
            ),
        ];
        into.extend(figures);
    }
}
