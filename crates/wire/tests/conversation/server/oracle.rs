//! The expected result of requests: the only state is the start of the next one.

use flatout_wire::h1::Trailers;

use super::super::text::{self, Delimited, Read, Request};
use super::super::{Announced, in_chunks};
use super::{Act, End, HINTS, LIMITS, Seen, Talk};

const PLAIN_LIMITS: text::Limits =
    text::Limits { head: LIMITS.head_bytes_max, target: LIMITS.target_bytes_max, fields: LIMITS.fields_max };

/// What happens to the body of a request.
enum Fate {
    /// It ends here.
    Whole(usize, Trailers),
    Short,
    Open,
    Faulty,
}

/// The expected result of `input`: all of it is available, and the only state is the start of the next request.
pub(crate) fn expected(input: &[u8], acts: &[Act]) -> Talk {
    let mut talk = Talk { seen: Vec::new(), written: Vec::new(), end: End::Idle };
    let mut at = 0;
    for act in acts.iter().cycle() {
        let (request, bytes) = match text::request(&input[at..], PLAIN_LIMITS) {
            Read::Whole(request, bytes) => (request, bytes),
            Read::Open => {
                talk.end = if at == input.len() { End::Idle } else { End::Open };
                return talk;
            }
            Read::Faulty => {
                talk.written.extend(REFUSED);
                talk.end = End::Closed;
                return talk;
            }
        };
        let (data, fate) = body(input, at + bytes, request.body);
        match exchange(&mut talk, at, &request, &data, fate, act) {
            Ok(next) => at = next,
            Err(end) => {
                talk.end = end;
                return talk;
            }
        }
    }
    talk
}

const REFUSED: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

fn body(input: &[u8], at: usize, delimited: Delimited) -> (Vec<u8>, Fate) {
    let rest = &input[at..];
    match delimited {
        Delimited::NotAtAll | Delimited::Length(0) => (Vec::new(), Fate::Whole(at, Vec::new())),
        Delimited::Length(length) => {
            match usize::try_from(length).ok().filter(|length| *length <= rest.len()) {
                Some(length) => (rest[..length].to_vec(), Fate::Whole(at + length, Vec::new())),
                None => (rest.to_vec(), Fate::Short),
            }
        }
        Delimited::Chunked => match text::chunked(rest) {
            (data, Read::Whole(trailers, bytes)) => (data, Fate::Whole(at + bytes, trailers)),
            (data, Read::Open) => (data, Fate::Open),
            (data, Read::Faulty) => (data, Fate::Faulty),
        },
    }
}

/// One request and its response. Returns the start of the next one, or the end.
fn exchange(
    talk: &mut Talk,
    at: usize,
    request: &Request,
    data: &[u8],
    fate: Fate,
    act: &Act,
) -> Result<usize, End> {
    let has_body = !matches!(request.body, Delimited::NotAtAll | Delimited::Length(0));
    let (method, target) = (request.method.clone(), request.target.clone());
    let mut seen = Seen { at, method, target, body: data.to_vec(), trailers: Vec::new() };
    let is_asked_for_100 = request.expects && act.proceeds;
    if is_asked_for_100 {
        talk.written.extend(b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    if act.informs && request.is_11 {
        talk.written.extend([b"HTTP/1.1 103 Early Hints\r\n", HINTS, b"\r\n"].concat());
    }

    if has_body && data.len() >= act.answer_at {
        // Before the request is complete. A client that waits for 100 and has sent nothing may still send the body,
        // or never.
        let is_unclear = request.expects && !is_asked_for_100 && act.answer_at == 0;
        let keeps = respond(talk, request, act, act.gives_up || is_unclear);
        let reads_on = act.ends_late && !act.gives_up;
        if !reads_on {
            seen.body.truncate(act.answer_at);
        } else if let Fate::Whole(_, trailers) = &fate {
            seen.trailers = trailers.clone();
        }
        talk.seen.push(seen);
        if !reads_on || matches!(fate, Fate::Whole(..) | Fate::Faulty) {
            finish(talk, request, act);
        }
        return match fate {
            _ if !keeps && !reads_on => Err(End::Closed),
            Fate::Whole(next, _) if keeps => Ok(next),
            Fate::Whole(..) | Fate::Faulty => Err(End::Closed),
            Fate::Short => Err(End::Busy),
            Fate::Open => Err(End::Open),
        };
    }

    if let Fate::Whole(_, trailers) = &fate {
        seen.trailers = trailers.clone();
    }
    talk.seen.push(seen);
    match fate {
        Fate::Short => Err(End::Busy),
        Fate::Open => Err(End::Open),
        Fate::Faulty => {
            // HEAD is refused without a body, and the refusal has none, so it is the same.
            talk.written.extend(REFUSED);
            Err(End::Closed)
        }
        Fate::Whole(next, _) if act.switches && !act.gives_up && request.is_11 => {
            talk.written
                .extend(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n");
            Err(End::Switched(next))
        }
        Fate::Whole(next, _) => {
            let keeps = respond(talk, request, act, act.gives_up);
            finish(talk, request, act);
            if keeps { Ok(next) } else { Err(End::Closed) }
        }
    }
}

/// Whether a body follows the head of the response, whatever the head says.
fn has_content(request: &Request, act: &Act) -> bool {
    let is_tunnel = request.method == b"CONNECT" && act.status / 100 == 2;
    request.method != b"HEAD" && !matches!(act.status, 204 | 304) && !is_tunnel
}

/// The head of the response, and whether the connection stays open.
fn respond(talk: &mut Talk, request: &Request, act: &Act, is_last: bool) -> bool {
    let is_delimited_by_close =
        act.announced == Announced::Unknown && !request.is_11 && has_content(request, act);
    let is_connect = request.method == b"CONNECT";
    let keeps = request.keep_alive && !is_connect && !act.close && !is_last && !is_delimited_by_close;
    let framing = match (act.announced, act.status) {
        (Announced::Known | Announced::Unknown, 304) | (_, 204) => String::new(),
        (_, 200..=299) if is_connect => String::new(),
        (Announced::Unknown, _) if !request.is_11 => String::new(),
        (Announced::Unknown, _) => "Transfer-Encoding: chunked\r\n".to_owned(),
        _ => format!("Content-Length: {}\r\n", act.pieces.concat().len()),
    };
    let connection = match (keeps, request.is_11) {
        (true, true) => "",
        (true, false) => "Connection: keep-alive\r\n",
        (false, _) => "Connection: close\r\n",
    };
    let reason = act.status().reason();
    let head = format!("HTTP/1.1 {} {reason}\r\nServer: x\r\n{framing}{connection}\r\n", act.status);
    talk.written.extend(head.bytes());
    keeps
}

/// The body of the response. Writing it at once hides nothing: the whole output is compared.
fn finish(talk: &mut Talk, request: &Request, act: &Act) {
    if !has_content(request, act) {
        return;
    }
    if act.announced == Announced::Unknown && request.is_11 {
        talk.written.extend(in_chunks(&act.pieces, act.trailers()));
    } else {
        talk.written.extend(act.pieces.concat());
    }
}
