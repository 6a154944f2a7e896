//! Receives the responses of HTTP/2 connections.

use flatout_engine::{Moved, bug};
use flatout_lane::{clock, limit};
use flatout_wire::h2::StreamId;

use crate::connection::ConnectionProtocol;
use crate::connection::h2::frames::{FrameReader, ReceiveOutcome, reason, repay};
use crate::connection::h2::stream::StreamEnd;
use crate::connection::h2::{OUT_BYTES_MAX, Session};
use crate::connection::response::trailer_lines;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// Reads from one connection before others get their turn.
const READS_PER_CALL: usize = 8;

impl ProxyWorker {
    /// Receives from a server, and passes the content on to the clients. Streams that ended are left in
    /// [`Session::over`].
    pub(crate) fn receive_h2(&self, state: &mut State, at: usize) -> ReceiveOutcome {
        for _ in 0..READS_PER_CALL {
            let State { table, groups, decisions, room, .. } = &mut *state;
            let Some(connection) = table.known(at) else { return ReceiveOutcome::On };
            let ConnectionProtocol::Http2(session) = &mut connection.protocol else {
                bug!("{} has no HTTP/2 session", connection.address);
                return ReceiveOutcome::Ended;
            };
            if !connection.is_readable || session.is_gone || session.pending_bytes() > OUT_BYTES_MAX {
                return ReceiveOutcome::On;
            }
            let mut buffer = self.lane.buffer();
            let held = connection.held.len();
            let Some(into) = buffer.get_mut(held..).map(limit::room) else {
                bug!("{held} bytes of a frame are held, more than a buffer");
                return ReceiveOutcome::Ended;
            };
            let end = match self.lane.receive(connection.guest, into) {
                Moved::Bytes(0) | Moved::Broken => {
                    connection.is_readable = false;
                    return ReceiveOutcome::Ended;
                }
                Moved::Bytes(count) => {
                    connection.is_readable = count == into.len() || connection.is_read_closed;
                    held + count
                }
                Moved::WouldBlock => {
                    connection.is_readable = false;
                    return ReceiveOutcome::On;
                }
            };
            if let Some(start) = buffer.get_mut(..held) {
                start.copy_from_slice(&connection.held);
                connection.held.clear();
            }
            let upstream = self.upstreams.at(connection.server_id.upstream);
            let bytes = buffer.get(..end).unwrap_or_default();
            session.receipts += 1;
            let mut hearing = FrameReader {
                lane: &self.lane,
                guest: connection.guest,
                upstream,
                server: connection.server_id.server,
                watch: &self.watch,
                group: groups.at_mut(connection.server_id.upstream),
                decisions,
                now_ns: clock::nanoseconds(),
            };
            let heard = hearing.hear(session, bytes, room);
            hearing.answer_deferred(session);
            hearing.pass_joined(session);
            let is_behind = session.holding > 0 || std::mem::take(&mut session.is_starving);
            match heard {
                Ok(used) => connection.held.extend_from_slice(bytes.get(used..).unwrap_or_default()),
                Err(fault) => return ReceiveOutcome::Fault(reason(session.is_ready, fault, bytes)),
            }
            if !session.is_ready && session.machine.knows_peer() {
                return ReceiveOutcome::Opened;
            }
            if is_behind {
                self.wait_for_client(state, at);
            }
        }
        // The socket may have more, and no new edge would report it. Other connections go first, then this one again.
        if let Some((session, guest, _)) = state.table.known(at).and_then(|connection| connection.h2()) {
            self.schedule(session, guest);
        }
        ReceiveOutcome::On
    }

    /// Passes on held content of one stream or of all, if its client has room now.
    pub(crate) fn release_held(&self, state: &mut State, at: usize, only: Option<StreamId>) {
        let State { table, decisions, .. } = &mut *state;
        let Some((session, ..)) = table.known(at).and_then(|connection| connection.h2()) else { return };
        let ids: Vec<StreamId> = match only {
            Some(id) => vec![id],
            None => session.streams.iter().map(|entry| entry.id).collect(),
        };
        for id in ids {
            self.repay(session, id);
            let Some(stream) = session.live(id).filter(|stream| !stream.held.is_empty()) else { continue };
            if !stream.job.receiver.has_room(&self.lane) {
                continue;
            }
            let held = std::mem::take(&mut stream.held);
            stream.forwarded_bytes += held.len() as u64;
            let is_wanted = stream.job.receiver.push(&self.lane, held.into());
            let end = stream.end.take().filter(|_| is_wanted);
            match (is_wanted, &end) {
                (false, _) => stream.job.receiver.cut(&self.lane, decisions),
                (true, Some(trailers)) => {
                    stream.job.receiver.end(&self.lane, &trailer_lines(trailers), decisions)
                }
                (true, None) => stream.seen_ns = clock::nanoseconds(),
            }
            session.holding = session.holding.saturating_sub(1);
            self.repay(session, id);
            match (is_wanted, end) {
                (false, _) => session.end(id, StreamEnd::Unwanted),
                (true, Some(_)) => session.end(id, StreamEnd::Whole),
                (true, None) => {}
            }
        }
    }
}

impl ProxyWorker {
    fn repay(&self, session: &mut Session, id: StreamId) {
        repay(&self.lane, session, id);
    }
}
