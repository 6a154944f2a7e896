//! Upstreams and the renderer: snapshots, as a server reports them, and commands that change the servers of upstreams.

use std::time::Duration;

use flatout_proxy::{EjectionCounts, ServerFigures, ServerState, SourceStatus, UpstreamFigures};
use serde::{Deserialize, Serialize};

/// The path of the action that takes [`UpstreamCommand`] as JSON.
pub const UPSTREAM_PATH: &str = "/upstream";

/// A command about the servers of an upstream, as JSON:
/// `{"upstream":"app","action":"weight","server":"10.0.0.7:8000","weight":3,"by":"alice"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamCommand {
    /// The upstream; without it, `list` lists all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// Who wants it, for the log and for others who change the same server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// What to do.
    #[serde(flatten)]
    pub action: UpstreamAction,
}

/// What to do with the servers of an upstream. Servers are written as in a site file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum UpstreamAction {
    /// Lists servers, with their state.
    List,
    /// Adds a server.
    Add {
        /// The server.
        server: String,
        /// Its weight; 1 without it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        weight: Option<u32>,
        /// It gets requests only if no other server is up.
        #[serde(default)]
        backup: bool,
    },
    /// Removes a server: requests in progress are finished.
    Remove {
        /// The server.
        server: String,
    },
    /// A server gets no more requests; those in progress are finished.
    Drain {
        /// The server.
        server: String,
    },
    /// A server gets no more requests; those in progress are sent to another one if that is safe, or end.
    Down {
        /// The server.
        server: String,
    },
    /// A server that was drained or set down gets requests again.
    Up {
        /// The server.
        server: String,
    },
    /// Sets the weight of a server.
    Weight {
        /// The server.
        server: String,
        /// Its weight, from 1.
        weight: u32,
    },
    /// The servers are these from now on.
    Set {
        /// The servers.
        servers: Vec<String>,
    },
    /// Takes all changes of the upstream back.
    Undo,
}

use crate::frame::CrawlerRequests;

/// A snapshot of the renderer of pages, with counts since the start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RendererSnapshot {
    /// Requests of crawlers.
    pub requests: u64,
    /// Those that have come to the renderer.
    pub misses: u64,
    /// Pages rendered.
    pub rendered: u64,
    /// Requests that got the page as it is, because it was not rendered.
    pub skipped: u64,
    /// Time spent in pages.
    pub page_time: Duration,
    /// Pages that are being rendered.
    pub active: u64,
    /// Requests that wait for a page.
    pub waiting: u64,
    /// Memory of pages.
    pub memory_bytes: u64,
    /// Pages of warm-ups that are to come.
    pub warming: u64,
    /// All crawlers that have sent a request, those with the most first.
    pub crawlers: Vec<CrawlerRequests>,
}

/// A snapshot of an upstream.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UpstreamSnapshot {
    /// Its name in the plan.
    pub name: String,
    /// Its counters.
    pub figures: UpstreamFigures,
    /// Its servers.
    pub servers: Vec<ServerSnapshot>,
    /// Where further servers come from.
    pub sources: Vec<SourceStatus>,
}

/// A snapshot of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSnapshot {
    /// Its address.
    pub address: String,
    /// Its state.
    pub state: ServerState,
    /// Why it is in this state, if that is known.
    pub why: Option<String>,
    /// How often it paused because it stood out from its siblings.
    pub ejections: EjectionCounts,
    /// Health checks look at it.
    pub is_checked: bool,
    /// Its counters.
    pub figures: ServerFigures,
}
