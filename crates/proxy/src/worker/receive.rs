//! Receives the responses of HTTP/1 connections.

use bytes::Bytes;
use flatout_engine::{Moved, PIPE_BYTES, bug};
use flatout_lane::limit;
use flatout_wire::h1::Piece;

use crate::connection::UpstreamConnection;
use crate::connection::h1::{ReadOutcome, ResponseReader};
use crate::receiver::PendingDecisions;
use crate::worker::ProxyWorker;
use crate::worker::state::State;

/// From this size on, the rest of a body is received into its own memory, or goes through a pipe.
const PASSED_BYTES_MIN: usize = 64 << 10;

/// Reads of one connection before others get their turn.
const READS_PER_CALL: usize = 8;

impl ProxyWorker {
    /// Receives what a server has sent, while its client has room for it.
    pub(crate) fn receive(&self, state: &mut State, at: usize) {
        for _ in 0..READS_PER_CALL {
            let State { table, fields, groups, decisions, .. } = &mut *state;
            let Some(connection) = table.find(at) else { return };
            let Some(job) = &connection.job else {
                // Unexpected bytes, EOF, or a TLS record without data.
                if connection.is_readable && self.has_closed(connection) {
                    return self.close(state, at);
                }
                connection.is_readable = false;
                return;
            };
            if job.is_answered && !job.receiver.has_room(&self.lane) {
                return self.wait_for_client(state, at);
            }
            if !connection.is_readable && connection.held.is_empty() {
                return;
            }
            if job.is_answered
                && let Some(outcome) = self.pass(connection, decisions)
            {
                match outcome {
                    ReadOutcome::More if connection.is_readable => continue,
                    ReadOutcome::More => return,
                    outcome => return self.apply_outcome(state, at, outcome),
                }
            }
            let mut buffer = self.lane.buffer();
            let held = connection.held.len();
            let Some(room) = buffer.get_mut(held..).map(limit::room) else {
                bug!("{held} bytes of a response are held, more than a buffer");
                drop(buffer);
                return self.failed(state, at, None);
            };
            let received = if connection.is_readable {
                self.lane.receive(connection.guest, room)
            } else {
                Moved::WouldBlock
            };
            let end = match received {
                Moved::Bytes(0) if held == 0 => {
                    drop(buffer);
                    return self.ended(state, at);
                }
                // What the client had no room for comes before the end.
                Moved::Bytes(0) => {
                    connection.is_read_closed = true;
                    held
                }
                // A broken connection does not complete a response, not even one delimited by EOF.
                Moved::Broken => {
                    drop(buffer);
                    return self.broken(state, at);
                }
                Moved::Bytes(count) => {
                    connection.is_readable = count == room.len() || connection.is_read_closed;
                    held + count
                }
                Moved::WouldBlock => {
                    connection.is_readable = false;
                    if held == 0 {
                        return;
                    }
                    held
                }
            };
            if let Some(start) = buffer.get_mut(..held) {
                start.copy_from_slice(&connection.held);
                connection.held.clear();
            }
            let upstream = self.upstreams.at(connection.server_id.upstream);
            self.lane.set_deadline(connection.guest, Some(upstream.plan.read_time_max));
            let bytes = buffer.get(..end).unwrap_or_default();
            let guest = connection.guest;
            let watch = &self.watch;
            let group = groups.at_mut(connection.server_id.upstream);
            let (used, outcome) =
                ResponseReader { lane: &self.lane, guest, upstream, watch, fields, group, decisions }
                    .consume(connection, bytes);
            connection.held.extend_from_slice(bytes.get(used..).unwrap_or_default());
            let has_rest = used < end;
            drop(buffer);
            match outcome {
                ReadOutcome::More if received == Moved::WouldBlock => {
                    if has_rest {
                        self.wait_for_client(state, at);
                    }
                    return;
                }
                // It is the start of something whose rest will not come.
                ReadOutcome::More if received == Moved::Bytes(0) && used == 0 => {
                    return self.ended(state, at);
                }
                ReadOutcome::More => {}
                outcome => return self.apply_outcome(state, at, outcome),
            }
        }
        // There may be more data without another edge: let others run first, then call this one again.
        if let Some(connection) = state.table.known(at) {
            self.lane.call_again(connection.guest);
        }
    }

    /// Moves a large part of a response's body without looking at it. `None` if it has to be received into the lane's
    /// buffer.
    fn pass(
        &self,
        connection: &mut UpstreamConnection,
        decisions: &mut PendingDecisions,
    ) -> Option<ReadOutcome> {
        let plain = connection.machine.plain_bytes();
        if plain < limit::bytes(PASSED_BYTES_MIN) as u64 || !connection.held.is_empty() {
            return None;
        }
        let job = connection.job.as_mut()?;
        if job.receiver.is_rule() {
            return None;
        }
        let is_piped =
            connection.is_piped && job.receiver.exchange().is_some_and(|key| self.lane.takes_pipes(key));
        let most = usize::try_from(plain).map_or(PIPE_BYTES, |plain| plain.min(PIPE_BYTES));
        let moved = match is_piped {
            true => {
                let mut pipe = self.lane.pipe().ok()?;
                let moved = self.lane.fill_pipe(connection.guest, &mut pipe, most);
                if matches!(moved, Moved::Bytes(1..)) {
                    job.receiver.push_pipe(&self.lane, pipe);
                }
                moved
            }
            false => {
                let mut piece = vec![0; most];
                let moved = self.lane.receive(connection.guest, &mut piece);
                if let Moved::Bytes(count @ 1..) = moved {
                    connection.is_readable = count == most || connection.is_read_closed;
                    if !job.receiver.push(&self.lane, fitted(piece, count)) {
                        job.receiver.cut(&self.lane, decisions);
                        return Some(ReadOutcome::Replaced);
                    }
                }
                moved
            }
        };
        match moved {
            Moved::Broken => Some(ReadOutcome::Bad),
            Moved::Bytes(0) => match connection.machine.finish() {
                Ok(true) => {
                    job.receiver.end(&self.lane, b"", decisions);
                    Some(ReadOutcome::Whole)
                }
                Ok(false) | Err(_) => Some(ReadOutcome::Bad),
            },
            Moved::WouldBlock => {
                connection.is_readable = false;
                Some(ReadOutcome::More)
            }
            Moved::Bytes(count) => {
                let upstream = self.upstreams.at(connection.server_id.upstream);
                self.lane.set_deadline(connection.guest, Some(upstream.plan.read_time_max));
                connection.machine.passed(count as u64);
                connection.forwarded_bytes = connection.forwarded_bytes.wrapping_add(count as u64);
                if connection.machine.plain_bytes() > 0 {
                    return Some(ReadOutcome::More);
                }
                let end = connection.machine.body(&[], &mut Vec::new());
                let is_whole = matches!(end, Ok((_, Piece::End)));
                if is_whole {
                    job.receiver.end(&self.lane, b"", decisions);
                }
                Some(if is_whole { ReadOutcome::Whole } else { ReadOutcome::Bad })
            }
        }
    }

    /// Acts on the result of a read.
    pub(crate) fn apply_outcome(&self, state: &mut State, at: usize, outcome: ReadOutcome) {
        match outcome {
            ReadOutcome::More => {}
            ReadOutcome::Whole => self.complete(state, at),
            ReadOutcome::Bad => self.failed(state, at, None),
            ReadOutcome::Replaced => self.close(state, at),
            ReadOutcome::Switch(response) => self.switch(state, at, response),
            ReadOutcome::Rejected(status, is_whole) => self.rejected(state, at, status, is_whole),
        }
    }

    /// The server has closed its side (EOF).
    fn ended(&self, state: &mut State, at: usize) {
        let Some(connection) = state.table.known(at) else { return };
        connection.is_readable = false;
        connection.is_read_closed = true;
        let was_answered = connection.job.as_ref().is_some_and(|job| job.is_answered);
        match connection.machine.finish() {
            Ok(true) if was_answered => {
                if let Some(job) = &mut connection.job {
                    job.receiver.end(&self.lane, b"", &mut state.decisions);
                }
                self.complete(state, at);
            }
            _ => self.broken(state, at),
        }
    }
}

/// The first `count` bytes of a piece. A short piece is copied into its own memory, because queued data is counted by
/// its length.
fn fitted(mut piece: Vec<u8>, count: usize) -> Bytes {
    if count < piece.len() / 2 {
        return Bytes::copy_from_slice(piece.get(..count).unwrap_or_default());
    }
    piece.truncate(count);
    piece.into()
}
