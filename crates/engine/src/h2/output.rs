//! Sends content as windows, priorities and the socket allow, and other encoded output.

use super::{deadlines, responses};
use bytes::Buf;
use flatout_lane::slab::Key;
use flatout_wire::h2::StreamId;
use flatout_wire::h2::hpack::encode_lines;

use super::Session;
use crate::connection::Connection;
use crate::output::{Drained, Piece};
use crate::service::Outcome;
use crate::serving::{Fate, OUT_BYTES_PER_SEND, Serving};

/// Frames content of streams in turn, until windows or the output are full.
pub(super) fn frame_content(serving: &mut Serving, connection: &mut Connection, session: &mut Session) {
    if connection.is_sending() {
        return;
    }
    session.release_held_back(serving.now.ticks);
    while serving.output.len() < OUT_BYTES_PER_SEND
        && let Some(id) = session.machine.next_turn()
    {
        frame_stream(serving, session, id);
    }
}

/// Frames content of a stream: what waits in several pieces goes into one frame.
fn frame_stream(serving: &mut Serving, session: &mut Session, id: StreamId) {
    let room = session.machine.room(id);
    let Some(stream) = session.stream(id) else { return session.machine.set_waiting(id, false) };
    let mut bytes = stream.content_bytes.min(room as u64);
    if let Some(pace) = &mut stream.pace
        && bytes > 0
    {
        bytes = bytes.min(pace.bytes(serving.now.ticks));
        if bytes == 0 {
            session.held_back_at = Some(serving.now.ticks);
            return session.machine.set_waiting(id, false);
        }
    }
    let left = stream.content_bytes - bytes;
    let ends = left == 0 && stream.end.as_ref().is_some_and(Vec::is_empty);
    if bytes == 0 && !ends {
        return end_of_content(serving, session, id);
    }
    let before = serving.output.len();
    let waiting = usize::try_from(left).unwrap_or(usize::MAX);
    if !session.machine.content(id, bytes as usize, waiting, ends, serving.output.bytes()) {
        // It does not match the declared length: the stream was reset.
        return responses::end_stream(serving, session, id, Outcome::Failed);
    }
    let framing_bytes = serving.output.len() - before;
    session.content_bytes += bytes;
    if let Some(stream) = session.stream(id) {
        stream.content_bytes -= bytes;
        if let Some(pace) = &mut stream.pace {
            pace.spend(bytes);
        }
        stream.has_moved = true;
        let mut missing = bytes;
        while missing > 0
            && let Some(piece) = take_front(stream, missing)
        {
            missing = missing.saturating_sub(piece.bytes());
            serving.output.add_piece(piece);
        }
        if let Some(record) = &mut stream.record {
            record.ended.sent_bytes += serving.output.len() - before;
            record.ended.sent_head_bytes = record.ended.sent_head_bytes.saturating_add(framing_bytes as u32);
        }
    }
    if ends {
        if !session.stays_open(id) {
            responses::end_stream(serving, session, id, Outcome::Sent);
        }
    } else if left == 0 {
        end_of_content(serving, session, id);
    }
}

/// All available content of a stream was framed: it waits for more, or ends with trailers.
pub(super) fn end_of_content(serving: &mut Serving, session: &mut Session, id: StreamId) {
    let trailers = session.stream(id).and_then(|stream| stream.end.take());
    match trailers {
        None => session.machine.set_waiting(id, false),
        Some(lines) => {
            let encode = |block: &mut Vec<u8>| encode_lines(&lines, block);
            let has_ended = match lines.is_empty() {
                true => session.machine.content(id, 0, 0, true, serving.output.bytes()),
                false => session.machine.trailers(id, encode, serving.output.bytes()),
            };
            let outcome = if has_ended { Outcome::Sent } else { Outcome::Failed };
            if !(has_ended && session.stays_open(id)) {
                responses::end_stream(serving, session, id, outcome);
            }
        }
    }
}

/// Sends the output of a visit, and continues.
pub(super) fn send_visit(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    session: &mut Session,
    records_at: usize,
) -> Fate {
    let was_sending = connection.is_sending();
    let drained = match serving.output.is_empty() {
        true => {
            serving.note_complete(connection, records_at, Drained::All);
            Drained::All
        }
        false => serving.flush(key, connection, records_at),
    };
    if drained == Drained::Broken {
        return Fate::Close(Outcome::ClientGone);
    }
    note_room(serving, session);
    if session.held_back_at.is_some() {
        serving.hold_back(key, connection.work());
    }
    if !connection.is_sending() && session.machine.is_done() {
        // After a connection error, some streams may be left.
        deadlines::end_streams(serving, session, Outcome::ClientGone);
        return serving.finish(connection);
    }
    // While bytes waited for the socket, no content was framed; that they went now is no event for it.
    let has_room_again = was_sending && !connection.is_sending() && session.machine.is_stalled();
    if drained == Drained::Yield || has_room_again { Fate::Again } else { Fate::Keep }
}

/// Sends at once what was given to an exchange.
pub(super) fn send_now(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    session: &mut Session,
    records_at: usize,
) -> Fate {
    loop {
        frame_content(serving, connection, session);
        let was_full = serving.output.len() >= OUT_BYTES_PER_SEND;
        match send_visit(serving, key, connection, session, records_at) {
            Fate::Keep if was_full && !connection.is_sending() && connection.lingering.is_none() => {}
            fate => return fate,
        }
        if serving.is_over_budget() {
            return Fate::Again;
        }
    }
}

/// Updates how much of each exchange waits, and notifies producers that wait for room.
fn note_room(serving: &mut Serving, session: &mut Session) {
    for (_, stream) in &mut session.streams {
        if std::mem::take(&mut stream.has_moved)
            && let Some(key) = stream.exchange
        {
            serving.note_unsent_of(key, stream.unsent_bytes());
        }
    }
}

/// What waits first: a piece, or the first `bytes` bytes of it.
fn take_front(stream: &mut super::Stream, bytes: u64) -> Option<Piece> {
    let piece = stream.content.front_mut()?;
    if piece.bytes() <= bytes {
        return stream.content.pop_front();
    }
    match piece {
        Piece::Bytes(whole) => Some(Piece::Bytes(whole.split_to((bytes as usize).min(whole.remaining())))),
        Piece::File(range) => {
            let mut part = range.clone();
            part.bytes = bytes;
            range.offset += bytes;
            range.bytes -= bytes;
            Some(Piece::File(part))
        }
        // They are read when they are queued.
        Piece::Pipe(_) => stream.content.pop_front(),
    }
}
