//! The expected result of a server's bytes: the only state is the start of the next response.

use flatout_wire::h1::INTERIM_ANSWERS_MAX;

use super::super::text::{self, Delimited, Read};
use super::super::{Announced, in_chunks};
use super::{Ask, End, Event, HEAD_BYTES_MAX, TRAILERS, Talk, When};

/// The expected result of `input`, after which the server closes.
pub(crate) fn expected(input: &[u8], asks: &[Ask]) -> Talk {
    let mut talk = Talk { events: Vec::new(), written: Vec::new(), end: End::Idle };
    let mut at = 0;
    for ask in asks {
        let mut is_sent = ask.is_head_only();
        write_head(ask, &mut talk.written);
        if ask.when == When::AtOnce && !is_sent {
            write_body(ask, &mut talk.written);
            is_sent = true;
        }
        let count = ask.pipelined.max(1);
        for index in 0..count {
            match response(input, at, ask, &mut is_sent, index + 1 == count, &mut talk) {
                Ok(next) => at = next,
                Err(end) => {
                    talk.end = end;
                    return talk;
                }
            }
        }
    }
    talk.end = if at == input.len() { End::Idle } else { End::Unasked };
    talk
}

/// One response at `at`, with preceding interim ones. Returns the start of the next one, or the end.
fn response(
    input: &[u8],
    mut at: usize,
    ask: &Ask,
    is_sent: &mut bool,
    is_last: bool,
    talk: &mut Talk,
) -> Result<usize, End> {
    let mut interims = 0;
    let head = loop {
        let (head, bytes) = match text::response(&input[at..], HEAD_BYTES_MAX) {
            Read::Whole(head, bytes) => (head, bytes),
            Read::Open if at < input.len() => return Err(End::Open),
            Read::Open if interims > 0 => return Err(End::Cut),
            Read::Open => return Err(End::Silent),
            Read::Faulty => return Err(End::Malformed),
        };
        at += bytes;
        let tunnels = ask.sent.is_connect && head.code / 100 == 2;
        if head.code == 101 || tunnels {
            let is_fine = *is_sent && is_last && (tunnels || ask.sent.is_upgrade);
            return Err(if is_fine { End::Switched(at) } else { End::BadSwitch });
        }
        if head.code >= 200 {
            break head;
        }
        interims += 1;
        if interims > INTERIM_ANSWERS_MAX {
            return Err(End::Interims);
        }
        talk.events.push(Event::Interim(head.code));
        if ask.when == When::OnInterim && !*is_sent {
            write_body(ask, &mut talk.written);
            *is_sent = true;
        }
    };
    if ask.when == When::OnHead && !*is_sent {
        write_body(ask, &mut talk.written);
        *is_sent = true;
    }
    let rest = &input[at..];
    let is_empty = ask.sent.is_head || matches!(head.code, 204 | 304);
    let (body, fate) = match head.body {
        _ if is_empty => (Vec::new(), Ok((0, Vec::new()))),
        Delimited::NotAtAll => (rest.to_vec(), Err(End::UntilClose)),
        Delimited::Length(length) => {
            match usize::try_from(length).ok().filter(|length| *length <= rest.len()) {
                Some(length) => (rest[..length].to_vec(), Ok((length, Vec::new()))),
                None => (rest.to_vec(), Err(End::Cut)),
            }
        }
        Delimited::Chunked => match text::chunked(rest) {
            (data, Read::Whole(trailers, bytes)) => (data, Ok((bytes, trailers))),
            // After a complete head and nothing else, nothing can be invalid.
            (data, Read::Open) => (data, Err(if rest.is_empty() { End::Cut } else { End::Open })),
            (data, Read::Faulty) => (data, Err(End::Malformed)),
        },
    };
    let (is_whole, trailers) = match &fate {
        Ok((_, trailers)) => (true, trailers.clone()),
        Err(end) => (*end == End::UntilClose, Vec::new()),
    };
    talk.events.push(Event::Response { code: head.code, body, trailers, is_whole });
    let (bytes, _) = fate?;
    if head.keep_alive && *is_sent { Ok(at + bytes) } else { Err(End::Closed) }
}

fn write_head(ask: &Ask, written: &mut Vec<u8>) {
    if ask.pipelined > 0 {
        return;
    }
    written.extend(b"A / HTTP/1.1\r\n");
    match ask.announced {
        None => {}
        Some(Announced::Unknown) => written.extend(b"Transfer-Encoding: chunked\r\n"),
        Some(_) => written.extend(format!("Content-Length: {}\r\n", ask.pieces.concat().len()).bytes()),
    }
    written.extend(b"\r\n");
}

fn write_body(ask: &Ask, written: &mut Vec<u8>) {
    match ask.announced {
        Some(Announced::Unknown) => written.extend(in_chunks(&ask.pieces, TRAILERS)),
        _ => written.extend(ask.pieces.concat()),
    }
}
