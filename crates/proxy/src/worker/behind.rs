//! Finds clients that are slower than their upstream. Their responses are spooled; those of others go on directly, through
//! pipes where that is possible, and cost nothing more.

use std::time::Duration;

use flatout_engine::GuestKey;
use flatout_lane::clock;
use flatout_wire::h2::StreamId;

use crate::connection::{ConnectionProtocol, UpstreamConnection};
use crate::receiver::Receiver;
use crate::request::job::{Job, Pulled};
use crate::spool::SpoolSetup;
use crate::spool::pace::Pace;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// How often responses that have waited for their client are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Connections with responses that had to wait for their client.
#[derive(Default)]
pub(crate) struct BehindList {
    entries: Vec<BehindEntry>,
    /// A task looks at them.
    is_watched: bool,
}

struct BehindEntry {
    at: usize,
    guest: GuestKey,
    /// Requests that the connection had carried.
    uses: u32,
    pace: Pace,
}

/// Whether the rest of a request's response may be spooled. Not while the client still sends: its exchange has one guest, and the
/// upstream's connection pulls from it.
fn may_spool(job: &Job) -> bool {
    let has_request = matches!(job.pulled, Pulled::Not | Pulled::Whole);
    job.spool_bytes_max > 0 && job.is_answered && has_request && job.receiver.is_direct()
}

impl ProxyWorker {
    /// A response waits for its client.
    #[cold]
    pub(crate) fn wait_for_client(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.find(at) else { return };
        let is_wanted = match &connection.protocol {
            ConnectionProtocol::Http1 | ConnectionProtocol::Cgi(_) => {
                connection.job.as_deref().is_some_and(may_spool)
            }
            ConnectionProtocol::Http2(_) => true,
            ConnectionProtocol::Switching | ConnectionProtocol::Tunnel(_) => false,
        };
        if !is_wanted || std::mem::replace(&mut connection.is_behind, true) {
            return;
        }
        let (guest, uses) = (connection.guest, connection.uses);
        state.behind.entries.push(BehindEntry { at, guest, uses, pace: Pace::default() });
        if !std::mem::replace(&mut state.behind.is_watched, true)
            && let Some(me) = self.owner()
        {
            tokio::task::spawn_local(async move {
                loop {
                    clock::sleep(LOOK).await;
                    if !me.with_state(|state| me.look_behind(state)) {
                        return;
                    }
                }
            });
        }
    }

    /// Looks at all of them. Returns whether any are left.
    fn look_behind(&self, state: &mut State) -> bool {
        let mut entries = std::mem::take(&mut state.behind.entries);
        entries.retain_mut(|entry| {
            if !state.is_still(entry.at, entry.guest) {
                return false;
            }
            let stays = self.look_at(state, entry);
            if !stays && let Some(connection) = state.table.find(entry.at) {
                connection.is_behind &= connection.guest != entry.guest;
            }
            stays
        });
        // Some may have come meanwhile.
        state.behind.entries.append(&mut entries);
        state.behind.is_watched = !state.behind.entries.is_empty();
        state.behind.is_watched
    }

    /// Returns whether it is to be looked at again.
    fn look_at(&self, state: &mut State, entry: &mut BehindEntry) -> bool {
        let Some(connection) = state.table.known(entry.at) else { return false };
        if connection.session().is_some() {
            return self.look_at_streams(state, entry.at);
        }
        let Some(job) = connection.job.as_deref().filter(|job| may_spool(job)) else { return false };
        if job.receiver.has_room(&self.lane) {
            return false;
        }
        if std::mem::replace(&mut entry.uses, connection.uses) != connection.uses {
            entry.pace = Pace::default();
        }
        if !entry.pace.is_slow(connection.forwarded_bytes) || !self.spool.has_memory(4) {
            return true;
        }
        self.spool_response(connection);
        self.pump(state, entry.at);
        false
    }

    fn spool_response(&self, connection: &mut UpstreamConnection) {
        if let Some(job) = &mut connection.job {
            self.begin_spool(connection.guest, job.spool_bytes_max, &mut job.receiver);
        }
    }

    fn begin_spool(&self, upstream: GuestKey, file_bytes_max: u64, receiver: &mut Receiver) {
        let ProxyWorker { lane, mailbox, spool: store, .. } = self;
        receiver.spool(&SpoolSetup { lane, mailbox, store, upstream, file_bytes_max });
    }

    /// The same for the streams of an HTTP/2 connection.
    fn look_at_streams(&self, state: &mut State, at: usize) -> bool {
        let Some((session, guest, _)) = state.table.known(at).and_then(|connection| connection.h2()) else {
            return false;
        };
        let (mut slow, mut stays) = (Vec::<StreamId>::new(), false);
        for entry in &mut session.streams {
            let stream = &mut *entry.stream;
            if stream.is_over || !stream.is_starved() || !may_spool(&stream.job) {
                stream.pace = Pace::default();
            } else if stream.pace.is_slow(stream.forwarded_bytes) && self.spool.has_memory(4) {
                self.begin_spool(guest, stream.job.spool_bytes_max, &mut stream.job.receiver);
                entry.exchange = None;
                session.has_spools = true;
                slow.push(entry.id);
            } else {
                stays = true;
            }
        }
        if !slow.is_empty() {
            slow.into_iter().for_each(|id| self.release_held(state, at, Some(id)));
            self.pump_h2(state, at);
        }
        stays
    }
}
