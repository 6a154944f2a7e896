//! From the transport to the state machine, and from its events to the service.

use super::{bodies, deadlines, output, requests, responses};
use flatout_lane::limit;
use flatout_lane::slab::Key;
use flatout_lane::socket::Moved;
use flatout_wire::h2::Event;

use super::Session;
use super::requests::H2Request;
use crate::bug;
use crate::connection::Connection;
use crate::service::Outcome;
use crate::serving::{Fate, OUT_BYTES_PER_SEND, READ_BYTES, Refusal, Serving};

/// Reads from one connection before others get their turn.
const READS_PER_TURN: usize = 8;

/// Events of one connection after which the clock is checked.
const EVENTS_PER_LOOK: usize = limit::looks(16);

/// The result of receiving.
enum Received {
    /// There was nothing to take.
    Nothing,
    /// Something; there may be more.
    Some,
    /// The client is gone.
    Gone,
}

/// Switches the connection to HTTP/2: its first bytes are the start of the preface, or the client has selected
/// `h2` by ALPN. The received bytes, `at..end` of the read buffer, are held and parsed again as HTTP/2.
#[cold]
pub(crate) fn begin(serving: &mut Serving, connection: &mut Connection, at: usize, end: usize) -> Fate {
    serving.hold(connection, at, end);
    // The machine's first frames are queued, and sent with the first visit.
    let mut first = Vec::new();
    let session =
        Session::new(&serving.limits, serving.bounds.head, connection.peer, serving.now.ticks, &mut first);
    connection.machine.close();
    connection.work().h2 = Some(Box::new(session));
    connection.work().queue.push(crate::output::Piece::Bytes(first.into()));
    connection.deadline = serving.now.ticks + serving.bounds.head_ticks;
    // Not handled at once: the read buffer may hold requests of other connections in this turn.
    Fate::Again
}

/// Reads, serves and sends, as far as possible.
pub(crate) fn visit(serving: &mut Serving, key: Key, connection: &mut Connection) -> Fate {
    if connection.lingering.is_some() {
        return serving.discard_input(connection);
    }
    with_session(serving, connection, |serving, connection, session| {
        let fate = run_session(serving, key, connection, session);
        deadlines::set_deadline(serving, connection, session);
        fate
    })
}

/// Calls `act` with the session, which is taken out of its connection meanwhile.
pub(super) fn with_session(
    serving: &mut Serving,
    connection: &mut Connection,
    act: impl FnOnce(&mut Serving, &mut Connection, &mut Session) -> Fate,
) -> Fate {
    let Some(mut session) = connection.take_session() else {
        bug!("a connection is served as HTTP/2 that has no session");
        return Fate::Close(Outcome::Failed);
    };
    let fate = act(serving, connection, &mut session);
    match connection.lingering {
        // The last response was sent: what still arrives is discarded.
        Some(_) => deadlines::end_streams(serving, &mut session, Outcome::ClientGone),
        None => connection.work().h2 = Some(session),
    }
    fate
}

pub(super) fn run_session(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    session: &mut Session,
) -> Fate {
    if connection.is_sending() {
        // It continues when the socket has room.
        return Fate::Keep;
    }
    for _ in 0..READS_PER_TURN {
        let records_at = serving.records.len();
        let received = receive(serving, key, connection, session);
        if matches!(received, Received::Gone) {
            return Fate::Close(Outcome::ClientGone);
        }
        // A new connection may still begin.
        if serving.draining && session.machine.has_begun() {
            session.machine.leave(serving.output.bytes());
        }
        output::frame_content(serving, connection, session);
        let had_output = !serving.output.is_empty();
        match output::send_visit(serving, key, connection, session, records_at) {
            Fate::Keep => {}
            fate => return fate,
        }
        if connection.is_sending() || connection.lingering.is_some() {
            return Fate::Keep;
        }
        if matches!(received, Received::Nothing) && !had_output {
            return Fate::Keep;
        }
        if serving.is_over_budget() {
            break;
        }
    }
    Fate::Again
}

/// Receives from the socket, as long as the output is not too large.
fn receive(serving: &mut Serving, key: Key, connection: &mut Connection, session: &mut Session) -> Received {
    let held = serving.take_held(connection);
    let mut end = held;
    if connection.readable && held < READ_BYTES {
        let room = limit::room(serving.read.get_mut(held..).unwrap_or_default());
        let room_bytes = room.len();
        match connection.transport.receive(room) {
            Moved::Bytes(0) | Moved::Broken => return Received::Gone,
            Moved::Bytes(read) => {
                connection.readable =
                    read == room_bytes || connection.read_closed || connection.transport.holds_end();
                end += read;
            }
            Moved::WouldBlock => connection.readable = false,
        }
    }
    if end == 0 {
        return Received::Nothing;
    }
    // Events borrow the bytes, and heads the room: both are moved out while the service is called.
    let (read, mut room) = (std::mem::take(&mut serving.read), std::mem::take(&mut serving.room));
    let mut at = 0;
    for count in 1usize.. {
        let bytes = read.get(at..end).unwrap_or_default();
        match session.machine.receive(bytes, &mut room, serving.output.bytes()) {
            // GOAWAY reports the error; the rest is discarded.
            Err(_) => {
                at = end;
                break;
            }
            Ok((used, Event::NeedMore)) => {
                at += used;
                break;
            }
            Ok((used, event)) => {
                at += used;
                serve_event(serving, key, connection, session, event);
            }
        }
        // Only while bytes are left. The last bytes may have more events, such as the end of a request, and no other call fetches these.
        let is_enough = serving.output.len() >= OUT_BYTES_PER_SEND
            || (count % EVENTS_PER_LOOK == 0 && serving.is_over_budget());
        if at < end && is_enough {
            break;
        }
    }
    (serving.read, serving.room) = (read, room);
    serving.hold(connection, at, end);
    // A part of a frame may be the last before the client's end, which has no event of its own.
    if at > 0 || (end > held && connection.readable) { Received::Some } else { Received::Nothing }
}

fn serve_event(
    serving: &mut Serving,
    key: Key,
    connection: &mut Connection,
    session: &mut Session,
    event: Event<'_>,
) {
    match event {
        Event::Request { stream, head, is_whole, is_websocket } => {
            let request = H2Request { head: &head, is_whole, is_websocket };
            requests::request(serving, key, connection, session, stream, request);
        }
        Event::Refused { stream, fault } => {
            let record = requests::refused_record(serving, connection);
            requests::refuse(serving, session, stream, Refusal::from(fault), record);
        }
        Event::Data { stream, bytes } => bodies::receive_body(serving, session, stream, bytes),
        Event::End { stream, trailers } => {
            bodies::end_body(serving, key, connection, session, stream, trailers)
        }
        // If the response was complete, a reset only ends the request's body.
        Event::Reset { stream, .. } => responses::end_stream(serving, session, stream, Outcome::ClientGone),
        Event::Handled
        | Event::NeedMore
        | Event::Room { .. }
        | Event::GoAway { .. }
        | Event::Interim { .. }
        | Event::Answer { .. } => {}
    }
}
