//! The connections of a worker to its upstreams, and the requests that wait for one.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::connection::UpstreamConnection;
use crate::request::job::Job;
use crate::select::balance::Shares;
use crate::select::budget::Budget;
use crate::watch::{ServerCounts, UpstreamCounts};

/// A worker's state for one upstream.
pub(crate) struct Group {
    pub(crate) shares: Shares,
    pub(crate) budget: Budget,
    /// One for each server.
    pub(crate) pools: Vec<Pool>,
    /// Requests that wait for a connection, the oldest at the front.
    pub(crate) queue: VecDeque<Box<Job>>,
    pub(crate) counts: UpstreamCounts,
    /// A task checks it for requests that have waited too long.
    pub(crate) is_watched: bool,
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

    pub(crate) fn get(&mut self, at: usize) -> Option<&mut UpstreamConnection> {
        self.entries.get_mut(at)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<Box<UpstreamConnection>> {
        let connection = self.entries.get_mut(at)?.take()?;
        self.free.push(at);
        Some(connection)
    }
}

impl Group {
    /// The counters of a server.
    #[inline]
    pub(crate) fn counts_of(&self, server: usize) -> &ServerCounts {
        const NOBODYS: &ServerCounts = &ServerCounts(None);
        self.pools.get(server).map_or(NOBODYS, |pool| &pool.counts)
    }
}

impl Group {
    /// An HTTP/2 connection to a server that has room for a request.
    pub(crate) fn shared_connection(&self, server: usize) -> Option<usize> {
        let pool = self.pools.get(server)?;
        pool.shared.first().or(pool.idle.last()).copied()
    }
}
