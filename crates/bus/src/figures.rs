//! Counters of a bus.

use flatout_observe::metrics::Family;

/// The state of a bus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BusState {
    /// Not joined yet.
    #[default]
    Joining,
    /// Joined.
    Joined,
    /// Lost; it is being joined again.
    Away,
}

impl BusState {
    /// As text.
    pub fn name(self) -> &'static str {
        match self {
            BusState::Joining => "joining",
            BusState::Joined => "joined",
            BusState::Away => "away",
        }
    }
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// The state of the bus.
    pub state: BusState,
    /// Messages and purges of this server that the bus has carried.
    pub sent: u64,
    /// Messages and purges of other servers.
    pub received: u64,
    /// Messages and purges of this server in the queue.
    pub queued: u64,
    /// Messages and purges of this server that were dropped: the queue was full, or they were too large.
    pub dropped: u64,
    /// How often the bus was lost.
    pub lost: u64,
    /// How often messages or purges of other servers were lost.
    pub missed: u64,
    /// Parcels of other servers that were refused: malformed, or over a limit.
    pub refused: u64,
}

impl Counted {
    pub(super) fn collect(&self, into: &mut Vec<Family>) {
        let is_joined = u64::from(self.state == BusState::Joined);
        let figures = [
            Family::gauge("flatout_bus_joined", "1 if the bus to other servers is joined", is_joined),
            Family::gauge("flatout_bus_queued", "Messages and purges queued for the bus", self.queued),
            Family::counter("flatout_bus_sent", "Messages and purges carried by the bus", self.sent),
            Family::counter(
                "flatout_bus_received",
                "Messages and purges received from other servers",
                self.received,
            ),
            Family::counter(
                "flatout_bus_dropped",
                "Messages and purges dropped because the queue was full or they were too large",
                self.dropped,
            ),
            Family::counter("flatout_bus_lost", "Times the connection to the bus was lost", self.lost),
            Family::counter(
                "flatout_bus_missed",
                "Times messages or purges of other servers were lost",
                self.missed,
            ),
            Family::counter(
                "flatout_bus_refused",
                "Messages and purges of other servers that were refused",
                self.refused,
            ),
        ];
        into.extend(figures);
    }
}
