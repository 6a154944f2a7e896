//! What changes in a worker's part of the proxy.

use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{GuestKey, bug};
use flatout_wire::field::Field;
use flatout_wire::h2::Room;

use crate::connection::h2::windows::Windows;
use crate::failure::Failure;
use crate::pool::{Group, Pool, Table};
use crate::receiver::{PendingDecisions, Receiver};
use crate::request::job::Job;
use crate::server::LiveServer;
use crate::table::{FixedTable, ServerId, UpstreamId};
use crate::watch::ServerCounts;
use crate::worker::behind::BehindList;

/// Bytes of a head buffer that are kept for reuse.
const HEAD_BYTES_KEPT: usize = 4 << 10;

/// Bytes of a body that are kept with them, until they are used again.
const BODY_BYTES_KEPT: usize = 16 << 10;

/// Unused request objects that are kept for reuse.
const JOBS_KEPT: usize = 64;

/// The mutable part.
pub(crate) struct State {
    pub(crate) table: Table,
    /// One for each upstream.
    pub(crate) groups: FixedTable<Group>,
    /// The fields of the current response head.
    pub(crate) fields: Vec<Field>,
    /// What is being encoded.
    pub(crate) scratch: Vec<u8>,
    /// Scratch space in which HTTP/2 heads are assembled.
    pub(crate) room: Room,
    /// Results for rules, to be delivered.
    pub(crate) decisions: PendingDecisions,
    /// Finished requests, kept for their memory.
    #[expect(clippy::vec_box, reason = "they come and go in their boxes")]
    pub(crate) spare: Vec<Box<Job>>,
    /// Windows of HTTP/2 upstreams beyond the first, by the client's connection.
    pub(crate) windows: Windows,
    /// A task ends requests that take too long.
    pub(crate) is_timing: bool,
    /// Connections whose clients may be slow.
    pub(crate) behind: BehindList,
}

impl State {
    /// The counters of a server.
    #[inline]
    pub(crate) fn counts_of(&self, server_id: ServerId) -> &ServerCounts {
        &self.groups.at(server_id.upstream).pools.at(server_id.server).counts
    }

    /// The connections to a server.
    #[inline]
    pub(crate) fn pool(&mut self, server_id: ServerId) -> &mut Pool {
        self.groups.at_mut(server_id.upstream).pools.at_mut(server_id.server)
    }

    /// A server.
    #[inline]
    pub(crate) fn server(&self, server_id: ServerId) -> Option<&Arc<LiveServer>> {
        let server = self.groups.at(server_id.upstream).shares.server(server_id.server);
        if server.is_none() {
            bug!("no server at {server_id:?}");
        }
        server
    }

    /// Assigns a request to a connection, and counts it for the server.
    pub(crate) fn give_job(&mut self, at: usize, job: Box<Job>) {
        let Some(connection) = self.table.known(at) else { return };
        connection.job = Some(job);
        let server_id = connection.server_id;
        self.count_in(server_id);
    }

    /// A request was assigned to a server.
    #[inline]
    pub(crate) fn count_in(&mut self, server_id: ServerId) {
        let group = self.groups.at_mut(server_id.upstream);
        group.shares.begin(server_id.server);
        group.pools.at(server_id.server).counts.up(|counts| &counts.active);
    }

    /// Counts that a request has left a server.
    #[inline]
    pub(crate) fn count_out(&mut self, server_id: ServerId) {
        let group = self.groups.at_mut(server_id.upstream);
        group.shares.end(server_id.server);
        group.pools.at(server_id.server).counts.down(|counts| &counts.active);
    }

    /// Counts a request of an upstream that has ended for this reason.
    pub(crate) fn count_ended(&self, upstream: UpstreamId, failure: Failure) {
        self.groups.at(upstream).counts.ended(failure);
    }

    /// Takes a connection's request, which is no longer counted.
    pub(crate) fn take_job(&mut self, at: usize) -> Option<Box<Job>> {
        let connection = self.table.find(at)?;
        let job = connection.job.take()?;
        let server_id = connection.server_id;
        self.count_out(server_id);
        Some(job)
    }

    /// Ends a request, and keeps its memory for another.
    pub(crate) fn end_job(&mut self, mut job: Box<Job>) {
        // This releases what its route holds for it.
        job.receiver = Receiver::nobody();
        (job.stored, job.collected, job.slot) = (None, None, None);
        if job.body.len() > BODY_BYTES_KEPT {
            job.body = Bytes::new();
        }
        if self.spare.len() < JOBS_KEPT && job.head.capacity() <= HEAD_BYTES_KEPT {
            self.spare.push(job);
        }
    }
}

impl State {
    /// Whether this entry is still the same connection.
    pub(crate) fn is_still(&mut self, at: usize, guest: GuestKey) -> bool {
        self.table.find(at).is_some_and(|connection| connection.guest == guest)
    }
}
