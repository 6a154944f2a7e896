//! Request bodies, sent as the windows and the socket allow.

use flatout_engine::{ExchangeKey, GuestKey, Lane, Pull};
use flatout_lane::clock;
use flatout_wire::h2::hpack::encode_lines;
use flatout_wire::h2::{Code, Connection, StreamId};

use crate::connection::h2::stream::{KEPT_BYTES_MAX, Stream, StreamEnd};
use crate::connection::h2::{OUT_BYTES_MAX, Session};
use crate::failure::Failure;
use crate::request::job::Pulled;
use crate::request::trailers::request_trailers;

/// The result of a stream's turn.
enum Turn {
    /// It may have more to send.
    GoesOn,
    /// It waits for its client or for a window, or has sent everything.
    Waits,
    Ended(StreamEnd),
}

/// What a body has next.
enum NextPiece {
    Content,
    /// Nothing yet.
    Later,
    /// Nothing but these trailer fields, encoded.
    End(Vec<u8>),
    Failed(Failure),
}

impl Session {
    /// Gives turns to streams whose body is read from a file: some of it may be there.
    pub(crate) fn resume_stored(&mut self) {
        self.has_stored = false;
        for at in 0..self.streams.len() {
            if let Some(entry) = self.streams.get(at).filter(|entry| entry.stream.job.stored.is_some()) {
                let id = entry.id;
                self.has_stored = true;
                self.give_turn(id);
            }
        }
    }

    /// Frames content of the streams that have some, in turn, one frame each.
    pub(crate) fn take_turns(&mut self, lane: &Lane, guest: GuestKey) {
        while self.pending_bytes() < OUT_BYTES_MAX
            && let Some(id) = self.turns.pop_front()
        {
            match self.take_turn(lane, guest, id) {
                Turn::GoesOn => {
                    self.turns.push_back(id);
                    continue;
                }
                Turn::Waits => {}
                Turn::Ended(over) => self.end(id, over),
            }
            if let Some(at) = self.find(id)
                && let Some(entry) = self.streams.get_mut(at)
            {
                entry.stream.has_turn = false;
            }
        }
    }

    fn take_turn(&mut self, lane: &Lane, guest: GuestKey, id: StreamId) -> Turn {
        let Session { machine, streams, out, .. } = self;
        let at = streams.binary_search_by_key(&id, |entry| entry.id);
        let Some(entry) = at.ok().and_then(|at| streams.get_mut(at)) else { return Turn::Waits };
        let stream = &mut *entry.stream;
        if stream.is_over || !machine.is_open(id) {
            return Turn::Waits;
        }
        if stream.rest.is_empty() {
            if !stream.is_pulling() {
                return Turn::Waits;
            }
            match stream.pull(lane, entry.exchange, guest) {
                NextPiece::Content => {}
                NextPiece::Later => return Turn::Waits,
                NextPiece::End(lines) => return end_of_body(machine, id, &lines, out),
                NextPiece::Failed(failure) => return Turn::Ended(StreamEnd::Ended(failure)),
            }
        }
        let room = machine.room(id).min(stream.rest.len());
        if room == 0 {
            return if stream.rest.is_empty() { Turn::GoesOn } else { Turn::Waits };
        }
        let piece = stream.rest.split_to(room);
        // An end that is known by now is sent with the last piece, not in a frame of its own.
        let next = match (stream.rest.is_empty(), stream.is_pulling()) {
            (false, _) => NextPiece::Content,
            (true, true) => stream.pull(lane, entry.exchange, guest),
            (true, false) => NextPiece::End(Vec::new()),
        };
        let ends = matches!(&next, NextPiece::End(lines) if lines.is_empty());
        if !machine.content(id, room, stream.rest.len(), ends, out) {
            return Turn::Ended(StreamEnd::Reset(Code::INTERNAL_ERROR));
        }
        out.extend_from_slice(&piece);
        match next {
            NextPiece::Content => Turn::GoesOn,
            NextPiece::Later => Turn::Waits,
            NextPiece::End(_) if ends => Turn::Waits,
            NextPiece::End(lines) => end_of_body(machine, id, &lines, out),
            NextPiece::Failed(failure) => Turn::Ended(StreamEnd::Ended(failure)),
        }
    }
}

/// Ends a body that has no more content.
fn end_of_body(machine: &mut Connection, id: StreamId, lines: &[u8], out: &mut Vec<u8>) -> Turn {
    let has_ended = match lines.is_empty() {
        true => machine.content(id, 0, 0, true, out),
        false => machine.trailers(id, |block| encode_lines(lines, block), out),
    };
    if has_ended { Turn::Waits } else { Turn::Ended(StreamEnd::Ended(Failure::BadBody)) }
}

impl Stream {
    /// Whether more of its body may come.
    fn is_pulling(&self) -> bool {
        matches!(self.job.pulled, Pulled::Waiting | Pulled::Begun)
    }

    /// Takes the next piece of the body, if it is there.
    fn pull(&mut self, lane: &Lane, exchange: Option<ExchangeKey>, guest: GuestKey) -> NextPiece {
        match self.job.pull(lane, exchange, guest) {
            Ok(Pull::Data(bytes)) => self.pulled(bytes),
            Ok(Pull::Pipe(mut pipe)) => match pipe.take_bytes() {
                Some(bytes) => self.pulled(bytes),
                None => return NextPiece::Failed(Failure::BadBody),
            },
            Ok(Pull::End(trailers)) => {
                self.job.pulled = Pulled::Whole;
                let lines = request_trailers(&trailers, &self.job.trailers);
                if !lines.is_empty() {
                    // A repeated request would lose them.
                    self.kept = None;
                }
                return NextPiece::End(lines);
            }
            // The engine has rejected the rest of the body, and with it the request.
            Ok(Pull::Fault(fault)) => return NextPiece::Failed(fault.into()),
            Ok(Pull::Later | Pull::Gone) => return NextPiece::Later,
            Err(failure) => return NextPiece::Failed(failure),
        }
        NextPiece::Content
    }

    /// Takes a pulled piece of the body.
    fn pulled(&mut self, bytes: bytes::Bytes) {
        self.job.pulled = Pulled::Begun;
        self.client_seen_ns = clock::nanoseconds();
        if let Some(kept) = &mut self.kept {
            match kept.len() + bytes.len() <= KEPT_BYTES_MAX {
                true => kept.extend_from_slice(&bytes),
                false => self.kept = None,
            }
        }
        self.rest = bytes;
    }
}
