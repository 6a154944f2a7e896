//! Snapshots of upstreams, as a server reports them.

use flatout_proxy::{ServerFigures, ServerState, UpstreamFigures};

/// A snapshot of an upstream.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UpstreamSnapshot {
    /// Its name in the plan.
    pub name: String,
    /// Its counters.
    pub figures: UpstreamFigures,
    /// Its servers.
    pub servers: Vec<ServerSnapshot>,
}

/// A snapshot of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSnapshot {
    /// Its address.
    pub address: String,
    /// Its state.
    pub state: ServerState,
    /// Its counters.
    pub figures: ServerFigures,
}
