//! The connections of a worker to its upstreams, and the requests that wait for one.

use std::collections::VecDeque;
use std::rc::Rc;

use flatout_engine::bug;

use crate::connection::UpstreamConnection;
use crate::request::job::Job;
use crate::select::balance::Shares;
use crate::select::budget::Budget;
use crate::table::FixedTable;
use crate::watch::{ServerCounts, UpstreamCounts};

/// A worker's state for one upstream.
pub(crate) struct Group {
    /// Its servers, in the places that `pools` has too.
    pub(crate) shares: Shares,
    pub(crate) budget: Budget,
    /// One for each server.
    pub(crate) pools: FixedTable<Pool>,
    /// Requests that wait for a connection, the oldest at the front.
    pub(crate) queue: VecDeque<Box<Job>>,
    pub(crate) counts: UpstreamCounts,
    /// A task checks it for requests that have waited too long.
    pub(crate) is_watched: bool,
    /// The changes of the upstream's servers that `shares` has.
    pub(crate) changes_count: u64,
    /// If requests name its servers: one entry for each place of `shares`.
    pub(crate) named: Vec<NamedPlace>,
}

/// What a worker knows of a server that requests name.
pub(crate) struct NamedPlace {
    /// When a request last named it.
    pub(crate) used_ns: u64,
    pub(crate) lookup: NameState,
}

/// The addresses of a server that requests name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameState {
    /// The server is named by an IP address.
    Fixed,
    /// They are being looked up.
    Pending,
    /// They are valid until this time; 0: they are not known.
    Until(u64),
}

/// Connections to one server.
pub(crate) struct Pool {
    /// The server's address, for logs.
    pub(crate) address: Rc<str>,
    pub(crate) counts: ServerCounts,
    /// Idle connections that can carry a request, the one used last at the end.
    pub(crate) idle: Vec<usize>,
    /// HTTP/2 connections that carry requests and have room for more.
    pub(crate) shared: Vec<usize>,
    /// Open connections in all.
    pub(crate) open: usize,
}

/// The connections, by index; the index is a guest's tag.
#[derive(Default)]
pub(crate) struct Table {
    entries: Vec<Option<Box<UpstreamConnection>>>,
    free: Vec<usize>,
}

impl Table {
    /// The index that the next connection gets.
    pub(crate) fn next(&self) -> usize {
        self.free.last().copied().unwrap_or(self.entries.len())
    }

    pub(crate) fn insert(&mut self, connection: UpstreamConnection) -> usize {
        let connection = Some(Box::new(connection));
        match self.free.pop() {
            Some(at) => {
                if let Some(entry) = self.entries.get_mut(at) {
                    *entry = connection;
                }
                at
            }
            None => {
                self.entries.push(connection);
                self.entries.len() - 1
            }
        }
    }

    /// All indices are below this.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The connection at an index, which may be gone: the index comes from an event, or something has happened since it
    /// was looked up.
    #[inline]
    pub(crate) fn find(&mut self, at: usize) -> Option<&mut UpstreamConnection> {
        self.entries.get_mut(at)?.as_deref_mut()
    }

    /// The connection at an index that was just looked up, or is in a list of open connections. A missing one is reported
    /// as a bug.
    #[inline]
    pub(crate) fn known(&mut self, at: usize) -> Option<&mut UpstreamConnection> {
        let found = self.entries.get_mut(at).and_then(|entry| entry.as_deref_mut());
        if found.is_none() {
            bug!("connection {at} is missing");
        }
        found
    }

    /// Removes the connection at an index, which may be gone.
    pub(crate) fn remove(&mut self, at: usize) -> Option<Box<UpstreamConnection>> {
        let connection = self.entries.get_mut(at)?.take()?;
        self.free.push(at);
        Some(connection)
    }
}

impl Pool {
    /// No connections.
    pub(crate) fn new(address: Rc<str>, counts: ServerCounts) -> Pool {
        Pool { address, counts, idle: Vec::new(), shared: Vec::new(), open: 0 }
    }

    /// A connection is closed, or leaves.
    pub(crate) fn forget(&mut self, at: usize) {
        self.open = self.open.saturating_sub(1);
        self.counts.down(|counts| &counts.open);
        self.unlist(at);
    }

    /// A connection gets no more requests.
    pub(crate) fn unlist(&mut self, at: usize) {
        self.shared.retain(|&shared| shared != at);
        let idle = self.idle.len();
        self.idle.retain(|&idle| idle != at);
        if self.idle.len() < idle {
            self.counts.down(|counts| &counts.idle);
        }
    }
}

impl Group {
    /// Nothing to any server, within the limits that it gets.
    pub(crate) fn new(
        (shares, changes_count): (Shares, u64),
        budget: Budget,
        pools: Vec<Pool>,
        counts: UpstreamCounts,
    ) -> Group {
        let pools = FixedTable::new(pools, Pool::new("".into(), ServerCounts::default()));
        Group {
            shares,
            budget,
            pools,
            queue: VecDeque::new(),
            counts,
            is_watched: false,
            changes_count,
            named: Vec::new(),
        }
    }

    /// An HTTP/2 connection to a server that has room for a request.
    pub(crate) fn shared_connection(&self, server: usize) -> Option<usize> {
        let pool = self.pools.at(server);
        pool.shared.first().or(pool.idle.last()).copied()
    }
}
