//! Whole HTTP/1 connections, in both roles: the state machine against the oracles of `conversation`, and against the
//! table.

mod conversation;

use conversation::client::{self, Ask};
use conversation::server::{self, Act};
use conversation::{SCRIPT_BYTES, Source, cuts};
use flatout_wire::h1::{
    AnswerEvent, Client, ClientFault, DISCARD_BYTES_MAX, INTERIM_ANSWERS_MAX, Length, Misfit, Next, Piece,
    Refusal, Sent, Server, Trailers, Wants,
};
use flatout_wire::head::HeadLimits;
use flatout_wire::{Status, answer};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn acts() -> impl Strategy<Value = Vec<Act>> {
    vec(vec(any::<u8>(), SCRIPT_BYTES), 1..5)
        .prop_map(|seeds| seeds.iter().map(|seed| Act::read(&mut Source(seed))).collect())
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    vec(vec(any::<u8>(), SCRIPT_BYTES), 1..5)
        .prop_map(|seeds| seeds.iter().map(|seed| Ask::read(&mut Source(seed))).collect())
}

/// A chunked body, mostly valid.
fn chunked() -> impl Strategy<Value = String> {
    let chunk = (
        "[a-z]{1,12}",
        prop_oneof![20 => Just(""), 4 => Just(";a=\"b\""), 1 => select(vec![" ", ";;", ";"])],
    )
        .prop_map(|(data, extension)| format!("{:x}{extension}\r\n{data}\r\n", data.len()));
    let trailers =
        prop_oneof![12 => Just(""), 4 => Just("A: b\r\n"), 1 => select(vec!["Host: a\r\n", "nocolon\r\n"])];
    (vec(chunk, 0..4), trailers)
        .prop_map(|(chunks, trailers)| format!("{}0\r\n{trailers}\r\n", chunks.concat()))
}

fn connection() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        12 => Just(""),
        1 => Just("Connection: close\r\n"),
        5 => Just("Connection: x, keep-alive\r\n"),
    ]
}

fn request() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        30 => select(vec!["GET / HTTP/1.1", "POST /a?b HTTP/1.1", "HEAD /a HTTP/1.1"]),
        8 => select(vec!["GET / HTTP/1.0", "POST /a HTTP/1.0", "HEAD / HTTP/1.0"]),
        1 => select(vec!["CONNECT a:1 HTTP/1.1", "OPTIONS * HTTP/1.1", "GET HTTP/1.1", "GET /%0 HTTP/1.1"]),
    ];
    let host = prop_oneof![60 => Just("Host: a\r\n"), 1 => select(vec!["", "Host: a b\r\n"])];
    let other = prop_oneof![30 => Just(""), 9 => Just("Expect: 100-continue\r\n"), 1 => Just("A : b\r\n")];
    let body = prop_oneof![
        20 => Just("\r\n".to_owned()),
        16 => "[a-z]{0,20}".prop_map(|body| format!("Content-Length: {}\r\n\r\n{body}", body.len())),
        16 => chunked().prop_map(|body| format!("Transfer-Encoding: chunked\r\n\r\n{body}")),
        2 => Just("Content-Length: 99\r\n\r\nnot all".to_owned()),
        1 => Just("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc".to_owned()),
    ];
    (line, host, connection(), other, body).prop_map(|(line, host, connection, other, body)| {
        format!("{line}\r\n{host}{connection}{other}{body}")
    })
}

fn response() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        30 => select(vec!["HTTP/1.1 200 OK", "HTTP/1.1 404", "HTTP/1.1 204 x", "HTTP/1.1 304 y"]),
        3 => Just("HTTP/1.0 200 OK"),
        1 => select(vec!["HTTP/1.1 99 OK", "HTTP/2.0 200 OK", "HTTP/1.1 299 \u{e9}"]),
    ];
    let interim = prop_oneof![
        40 => Just(""),
        8 => Just("HTTP/1.1 100 Continue\r\n\r\n"),
        5 => Just("HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n"),
        1 => Just("HTTP/1.1 101 Switching Protocols\r\n\r\n"),
    ];
    let body = prop_oneof![
        1 => Just("\r\n".to_owned()),
        1 => Just("\r\nuntil the end".to_owned()),
        1 => Just("Content-Length: 99\r\n\r\nnot all".to_owned()),
        9 => Just("Content-Length: 0\r\n\r\n".to_owned()),
        9 => "[a-z]{0,20}".prop_map(|body| format!("Content-Length: {}\r\n\r\n{body}", body.len())),
        9 => chunked().prop_map(|body| format!("Transfer-Encoding: chunked\r\n\r\n{body}")),
    ];
    (interim, line, connection(), body)
        .prop_map(|(interim, line, connection, body)| format!("{interim}{line}\r\n{connection}{body}"))
}

/// Several consecutive messages: complete, truncated, or corrupted in a few places.
fn stream(message: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![select(b"\r\n\t \0:;,05a\xff".to_vec()), any::<u8>()];
    let edits = prop_oneof![6 => Just(Vec::new()), 1 => vec((any::<Index>(), byte, 0..3u8), 1..3)];
    let end = prop_oneof![2 => Just(None), 1 => any::<Index>().prop_map(Some)];
    (vec(message, 0..6), edits, end).prop_map(|(messages, edits, end)| {
        let mut out = messages.concat().into_bytes();
        for (at, byte, kind) in edits {
            let at = at.index(out.len() + 1);
            match kind {
                0 => out.insert(at, byte),
                _ if at == out.len() => {}
                1 => out[at] = byte,
                _ => drop(out.remove(at)),
            }
        }
        out.truncate(end.map_or(out.len(), |end| end.index(out.len() + 1)));
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_server_does_as_the_oracle_says(input in stream(request()), acts in acts(), seed in any::<u32>()) {
        [0, 1, seed].into_iter().for_each(|seed| server::check(&input, &acts, seed));
    }

    #[test]
    fn the_client_does_as_the_oracle_says(input in stream(response()), asks in asks(), seed in any::<u32>()) {
        [0, 1, seed].into_iter().for_each(|seed| client::check(&input, &asks, seed));
    }

    #[test]
    fn arbitrary_bytes_are_no_surprise(input in vec(any::<u8>(), 0..200), acts in acts(), asks in asks()) {
        server::check(&input, &acts, 7);
        client::check(&input, &asks, 7);
    }
}

/// The return value of a call is checked elsewhere; here only the state counts.
fn ignore<T>(_: T) {}

/// The name of the state in a machine's debug output.
fn state(machine: &dyn std::fmt::Debug) -> String {
    let text = format!("{machine:?}");
    let name = text.split("state: ").nth(1).expect("a state");
    name.chars().take_while(char::is_ascii_alphabetic).collect()
}

/// A call, and how to make it.
type Call<M> = (&'static str, fn(&mut M));

/// Makes every call in every state. In `table` `!` marks a call that the state does not allow: it panics in tests,
/// and otherwise ends the connection.
fn check_table<M: std::fmt::Debug + std::panic::UnwindSafe>(
    enter: impl Fn(&str) -> M,
    calls: &[Call<M>],
    table: &[(&str, &str)],
) {
    for (from, row) in table {
        let row: Vec<_> = row.split_whitespace().collect();
        assert_eq!(row.len(), calls.len(), "{from}");
        for ((name, call), expected) in calls.iter().zip(row) {
            let mut machine = enter(from);
            assert_eq!(state(&machine), *from, "{from}");
            let found = std::panic::catch_unwind(move || {
                call(&mut machine);
                state(&machine)
            });
            match (expected, found) {
                ("!", Err(_)) if cfg!(debug_assertions) => {}
                ("!", Ok(to)) => {
                    assert!(!cfg!(debug_assertions) && to == "Closed", "{from}: {name} goes to {to}");
                }
                (expected, found) => assert_eq!(found.ok().as_deref(), Some(expected), "{from}: {name}"),
            }
        }
    }
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";

fn read_head(server: &mut Server, bytes: &[u8]) -> Result<bool, Refusal> {
    server.head(bytes, &mut Vec::new(), &HeadLimits::default()).map(|head| head.is_some())
}

/// A server that has parsed this head.
fn server_behind(head: &[u8]) -> Server {
    let mut server = Server::default();
    assert_eq!(read_head(&mut server, head), Ok(true));
    server
}

fn respond(server: &mut Server, length: Length) -> String {
    let mut out = Vec::new();
    server.respond(Status::OK, length, false, &mut out);
    String::from_utf8(out).unwrap()
}

fn server_in(state: &str) -> Server {
    let mut server = match state {
        "Idle" => Server::default(),
        "Receiving" | "Both" | "Reading" | "Skipping" => server_behind(POST),
        _ => server_behind(GET),
    };
    match state {
        "Both" | "Responding" => ignore(respond(&mut server, Length::Known(2))),
        "Reading" => {
            server.keep_body();
            respond(&mut server, Length::Known(0));
            assert_eq!(server.end(b"", &mut Vec::new()), Ok(Next::Body));
        }
        "Skipping" => {
            respond(&mut server, Length::Known(0));
            assert_eq!(server.end(b"", &mut Vec::new()), Ok(Next::Skip));
        }
        "Closed" => server.close(),
        "Switched" => server.switch(Status::SWITCHING_PROTOCOLS, &mut Vec::new()),
        _ => {}
    }
    server
}

/// A handler may read the body after its response, until it drops it.
#[test]
fn a_kept_body_is_read_after_its_response() {
    let ended = |head: &[u8], close: bool| {
        let mut server = server_behind(head);
        server.keep_body();
        let mut out = Vec::new();
        server.respond(Status::OK, Length::Known(0), close, &mut out);
        (server.end(b"", &mut out), server)
    };
    for (close, state) in [(false, Wants::Head), (true, Wants::Nothing)] {
        let (next, mut server) = ended(POST, close);
        assert_eq!((next, server.is_reading_on()), (Ok(Next::Body), true));
        assert_eq!(server.body(b"hel", &mut Vec::new()), Ok((3, Piece::Data(b"hel"))));
        assert_eq!(server.body(b"lo", &mut Vec::new()), Ok((2, Piece::Data(b"lo"))));
        assert_eq!(server.body(b"", &mut Vec::new()), Ok((0, Piece::End)));
        assert_eq!(server.wants(), state);
        let (_, mut dropped) = ended(POST, close);
        assert_eq!(dropped.skip_rest(), if close { Next::Close } else { Next::Skip });
    }
    // A client that was not told to send its body may never do so.
    let waits = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(ended(waits, false).0, Ok(Next::Close));
}

#[test]
fn the_server_follows_its_table() {
    let calls: &[Call<Server>] = &[
        ("a head", |server| ignore(read_head(server, GET))),
        ("a head before a body", |server| ignore(read_head(server, POST))),
        ("a part of a head", |server| ignore(read_head(server, &GET[..9]))),
        ("a bad head", |server| ignore(read_head(server, b"GET\r\n\r\n"))),
        ("a part of the body", |server| ignore(server.body(b"he", &mut Vec::new()))),
        ("the whole body", |server| {
            let _ = server.body(b"hello", &mut Vec::new());
            // Skipping ends with the last byte.
            if server.wants() == Wants::Body {
                assert_eq!(server.body(b"", &mut Vec::new()), Ok((0, Piece::End)));
            }
        }),
        ("the body where it lies", |server| ignore(server.whole_body(b"hello"))),
        ("a response", |server| ignore(respond(server, Length::Known(2)))),
        ("data", |server| ignore(server.data(2, &mut Vec::new()))),
        ("too much data", |server| ignore(server.data(3, &mut Vec::new()))),
        ("an early end", |server| ignore(server.end(b"", &mut Vec::new()))),
        ("data and the end", |server| {
            if server.data(2, &mut Vec::new()).is_ok() {
                server.end(b"", &mut Vec::new()).unwrap();
            }
        }),
        ("a switch", |server| server.switch(Status::SWITCHING_PROTOCOLS, &mut Vec::new())),
        ("giving up", Server::give_up),
        ("close", Server::close),
    ];
    // Reading calls, writing calls, ending calls.
    let table = [
        ("Idle", "Awaiting Receiving Idle Awaiting ! ! Idle  ! ! ! ! ! !  Awaiting Closed"),
        ("Receiving", "! ! ! ! Receiving Awaiting Awaiting  Both ! ! ! ! !  Awaiting Closed"),
        ("Awaiting", "! ! ! ! ! ! Awaiting  Responding ! ! ! ! Switched  Awaiting Closed"),
        ("Both", "! ! ! ! Both Responding Both  ! Both Closed Closed Skipping !  Responding Closed"),
        ("Responding", "! ! ! ! ! ! Responding  ! Responding Closed Closed Idle !  Responding Closed"),
        ("Reading", "! ! ! ! Reading Idle Reading  ! ! ! ! ! !  Closed Closed"),
        ("Skipping", "! ! ! ! Skipping Idle Skipping  ! ! ! ! ! !  Closed Closed"),
        ("Closed", "! ! ! ! ! ! Closed  ! Closed Closed Closed Closed !  Closed Closed"),
        ("Switched", "! ! ! ! ! ! Switched  ! ! ! ! ! !  Switched Closed"),
    ];
    check_table(server_in, calls, &table);
    assert!(size_of::<Server>() <= 24, "{}", size_of::<Server>());
}

fn read_answer(client: &mut Client, bytes: &[u8]) -> Result<AnswerEvent, ClientFault> {
    client.head(bytes, |bytes, to_head| answer::parse(bytes, to_head, 1 << 10))
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
const HINTS: &[u8] = b"HTTP/1.1 103 Early Hints\r\n\r\n";
const UPGRADED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\n\r\n";

fn client_in(state: &str) -> Client {
    let mut client = Client::default();
    let sent = Sent { is_upgrade: state == "Switched", ..Sent::default() };
    match state {
        "Idle" | "Closed" => {}
        "Sending" | "Both" => client.request(sent, Some(Length::Known(2)), &mut Vec::new()),
        _ => client.request(sent, None, &mut Vec::new()),
    }
    match state {
        "Both" | "Receiving" => assert!(matches!(read_answer(&mut client, OK), Ok(AnswerEvent::Head(_)))),
        "Closed" => assert_eq!(client.finish(), Ok(false)),
        "Switched" => assert!(matches!(read_answer(&mut client, UPGRADED), Ok(AnswerEvent::Switch(_)))),
        _ => {}
    }
    client
}

#[test]
fn the_client_follows_its_table() {
    let calls: &[Call<Client>] = &[
        ("a request", |client| client.request(Sent::default(), None, &mut Vec::new())),
        ("a request with a body", |client| {
            client.request(Sent::default(), Some(Length::Unknown), &mut Vec::new());
        }),
        ("requests", |client| client.sent(Sent::default(), 2)),
        ("data", |client| ignore(client.data(2, &mut Vec::new()))),
        ("too much data", |client| ignore(client.data(3, &mut Vec::new()))),
        ("the end", |client| ignore(client.end(b"", &mut Vec::new()))),
        ("data and the end", |client| {
            if client.data(2, &mut Vec::new()).is_ok() {
                client.end(b"", &mut Vec::new()).unwrap();
            }
        }),
        ("a response", |client| ignore(read_answer(client, OK))),
        ("an interim response", |client| ignore(read_answer(client, HINTS))),
        ("another protocol", |client| ignore(read_answer(client, UPGRADED))),
        ("a part of a head", |client| ignore(read_answer(client, &OK[..9]))),
        ("a bad head", |client| ignore(read_answer(client, b"220 smtp\r\n\r\n"))),
        ("a part of the body", |client| ignore(client.body(b"he", &mut Vec::new()))),
        ("the whole body", |client| {
            ignore(client.body(b"hello", &mut Vec::new()));
            ignore(client.body(b"", &mut Vec::new()));
        }),
        ("the body where it lies", |client| ignore(client.whole_body(b"hello"))),
        ("the server's end", |client| ignore(client.finish())),
    ];
    // Writing calls, reading calls, ending calls.
    let table = [
        ("Idle", "Awaiting Sending Awaiting ! ! ! !  Closed Closed Closed Closed Closed ! ! Idle  Closed"),
        (
            "Sending",
            "! ! ! Sending Closed Closed Awaiting  Both Sending Closed Sending Closed ! ! Sending  Closed",
        ),
        (
            "Awaiting",
            "! ! ! Closed Closed Awaiting Closed  Receiving Awaiting Closed Awaiting Closed ! ! Awaiting  Closed",
        ),
        ("Both", "! ! ! Both Closed Closed Receiving  ! ! ! ! ! Both Closed Both  Closed"),
        ("Receiving", "! ! ! ! ! ! !  ! ! ! ! ! Receiving Idle Idle  Closed"),
        (
            "Closed",
            "! ! ! Closed Closed Closed Closed  Closed Closed Closed Closed Closed ! ! Closed  Closed",
        ),
        ("Switched", "! ! ! ! ! ! !  ! ! ! ! ! ! ! Switched  Closed"),
    ];
    check_table(client_in, calls, &table);
    assert!(size_of::<Client>() <= 32, "{}", size_of::<Client>());
}

#[test]
fn wrong_body_lengths_are_errors() {
    for state in ["Both", "Responding"] {
        assert_eq!(server_in(state).data(3, &mut Vec::new()), Err(Misfit));
        let mut server = server_in(state);
        assert_eq!(server.data(1, &mut Vec::new()), Ok(&b""[..]));
        assert_eq!(server.end(b"", &mut Vec::new()), Err(Misfit));
        assert_eq!((server.wants(), server.end(b"", &mut Vec::new())), (Wants::Nothing, Err(Misfit)));
    }
    for state in ["Both", "Sending"] {
        assert_eq!(client_in(state).data(3, &mut Vec::new()), Err(Misfit));
        assert_eq!(client_in(state).end(b"", &mut Vec::new()), Err(Misfit));
    }
    assert_eq!(client_in("Awaiting").data(0, &mut Vec::new()), Ok(&b""[..]));
    // Nothing follows the head of a response to HEAD, whatever it says.
    let mut server = server_behind(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(respond(&mut server, Length::Known(2)), "Content-Length: 2\r\n\r\n");
    assert_eq!(server.end(b"", &mut Vec::new()), Ok(Next::Request));
}

#[test]
fn a_response_behind_the_last_byte_of_a_body_skips_nothing() {
    let mut server = server_behind(POST);
    assert_eq!(server.body(b"hello", &mut Vec::new()), Ok((5, Piece::Data(b"hello"))));
    respond(&mut server, Length::Known(0));
    assert_eq!((server.end(b"", &mut Vec::new()), server.is_idle()), (Ok(Next::Request), true));

    let mut server = server_behind(POST);
    respond(&mut server, Length::Known(0));
    assert_eq!(server.body(b"hello", &mut Vec::new()), Ok((5, Piece::Data(b"hello"))));
    assert_eq!((server.end(b"", &mut Vec::new()), server.is_idle()), (Ok(Next::Request), true));
}

/// Feeds `bytes` in pieces of `piece` bytes, and returns whether the next request can follow.
fn skips(head: &str, bytes: &[u8], piece: usize) -> bool {
    let mut server = server_behind(head.as_bytes());
    respond(&mut server, Length::Known(0));
    assert_eq!(server.end(b"", &mut Vec::new()), Ok(Next::Skip));
    for mut piece in bytes.chunks(piece) {
        while server.wants() == Wants::Body && !piece.is_empty() {
            match server.body(piece, &mut Vec::new()) {
                Ok((used, Piece::NeedMore)) => assert_eq!(used, piece.len()),
                Ok((_, Piece::End)) => {}
                Ok((_, Piece::Data(_))) => panic!("what is skipped is not handed out"),
                Err(refusal) => assert_eq!(refusal.status, Status::CONTENT_TOO_LARGE),
            }
            piece = b"";
        }
    }
    if server.wants() == Wants::Body {
        let _ = server.body(b"", &mut Vec::new());
    }
    assert_ne!(server.wants(), Wants::Body);
    server.is_idle()
}

#[test]
fn so_much_is_skipped_and_no_more() {
    let most = DISCARD_BYTES_MAX as usize;
    let chunk =
        |data: usize| [format!("{data:x}\r\n").as_bytes(), &vec![b'x'; data], b"\r\n0\r\n\r\n"].concat();
    let overhead = chunk(most - 20).len() - (most - 20);
    for piece in [1 << 20, 4096, 1000, 7] {
        for (bytes, expected) in [(most, true), (most + 1, false)] {
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {bytes}\r\n\r\n");
            assert_eq!(skips(&head, &vec![0; bytes], piece), expected, "{bytes} in pieces of {piece}");
            let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
            let chunks = chunk(bytes - overhead);
            assert_eq!(chunks.len(), bytes);
            assert_eq!(skips(head, &chunks, piece), expected, "{bytes} in chunks in pieces of {piece}");
        }
    }
}

#[test]
fn interim_responses_have_their_place() {
    let mut out = Vec::new();
    let mut server =
        server_behind(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert!(server.inform(Status::EARLY_HINTS, b"A: b\r\n", &mut out));
    server.proceed(&mut out);
    server.proceed(&mut out);
    assert_eq!(out, b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n");
    assert!(
        !respond(&mut server, Length::Known(0)).contains("close"),
        "who was told to send keeps its connection"
    );
    assert!(!server.inform(Status::EARLY_HINTS, b"", &mut out));

    // A client that has sent the body is not waiting; one that waits may or may not send it.
    let expects = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    for (bytes, closes) in [(&b""[..], true), (b"h", false)] {
        let mut server = server_behind(expects);
        let _ = server.body(bytes, &mut Vec::new());
        assert_eq!(respond(&mut server, Length::Known(0)).contains("Connection: close"), closes);
    }

    // Other statuses are not written as interim responses, nor taken for the final one.
    for status in [Status::CONTINUE, Status::SWITCHING_PROTOCOLS, Status::OK] {
        assert!(!server_behind(GET).inform(status, b"", &mut Vec::new()), "{status:?}");
    }
    let (mut server, mut out) = (server_behind(GET), Vec::new());
    assert!(!server.respond(Status::EARLY_HINTS, Length::Known(0), false, &mut out));
    assert_eq!(server.end(b"", &mut out), Ok(Next::Close));

    // HTTP/1.0 has none, and the response to an invalid request must suit HTTP/1.0.
    let mut out = Vec::new();
    assert!(!server_behind(b"GET / HTTP/1.0\r\n\r\n").inform(Status::EARLY_HINTS, b"", &mut out));
    let mut server = Server::default();
    assert!(read_head(&mut server, b"GET\r\n\r\n").is_err());
    assert!(!server.inform(Status::EARLY_HINTS, b"", &mut out) && out.is_empty());
    assert_eq!(respond(&mut server, Length::Unknown), "Connection: close\r\n\r\n");
}

#[test]
fn interim_responses_end() {
    let mut client = client_in("Awaiting");
    for _ in 0..INTERIM_ANSWERS_MAX {
        assert!(matches!(read_answer(&mut client, HINTS), Ok(AnswerEvent::Interim(_))));
    }
    assert_eq!(read_answer(&mut client, HINTS), Err(ClientFault::Interims));
    assert!(client.is_closed());
}

#[test]
fn empty_and_truncated_responses_are_distinguished() {
    assert_eq!(client_in("Awaiting").finish(), Err(ClientFault::Silent));
    assert_eq!(client_in("Sending").finish(), Err(ClientFault::Silent));
    for bytes in [&OK[..1], HINTS] {
        let mut client = client_in("Awaiting");
        read_answer(&mut client, bytes).unwrap();
        assert_eq!(client.finish(), Err(ClientFault::Cut));
    }
    let mut client = client_in("Receiving");
    assert_eq!(client.body(b"hello", &mut Vec::new()), Ok((5, Piece::Data(b"hello"))));
    assert_eq!(client.finish(), Ok(true), "nothing of it is missing");
    // Of two requests, the second got no interim response.
    let mut client = Client::default();
    client.sent(Sent::default(), 2);
    read_answer(&mut client, b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert_eq!(client.body(b"", &mut Vec::new()), Ok((0, Piece::End)));
    assert_eq!(client.finish(), Err(ClientFault::Silent));
}

#[test]
fn nothing_is_switched_while_requests_are_on_their_way() {
    let sent = Sent { is_upgrade: true, ..Sent::default() };
    let mut client = Client::default();
    client.request(sent, Some(Length::Unknown), &mut Vec::new());
    assert_eq!(read_answer(&mut client, UPGRADED), Err(ClientFault::Switch));
    let mut client = Client::default();
    client.sent(sent, 2);
    assert_eq!(read_answer(&mut client, UPGRADED), Err(ClientFault::Switch));
    let mut client = Client::default();
    client.sent(sent, 1);
    assert!(matches!(read_answer(&mut client, UPGRADED), Ok(AnswerEvent::Switch(_))));
}

#[test]
fn a_server_may_close_at_any_byte() {
    let text: &[&[u8]] = &[
        HINTS,
        OK,
        b"hello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"5\r\nhello\r\n0\r\nA: b\r\n\r\n",
        OK,
        b"hello",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    ];
    let text = text.concat();
    let scripts = [[0, 0, 0, 0, 0, 0], [0, 4, 0, 0, 0, 0], [0, 0, 2, 30, 2, 0], [0, 0, 1, 30, 4, 0]];
    let asks: Vec<_> = scripts.iter().map(|script| Ask::read(&mut Source(script))).collect();
    for end in 0..=text.len() {
        for start in 0..asks.len() {
            [0, 1, 5].into_iter().for_each(|seed| client::check(&text[..end], &asks[start..], seed));
        }
    }
}

/// The oracle agrees about everything that never happens: each kind of end must be frequent.
#[test]
fn the_grammars_reach_every_end() {
    use proptest::strategy::ValueTree;
    use std::collections::BTreeMap;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut ends = BTreeMap::<String, usize>::new();
    for _ in 0..2000 {
        let mut one = |tree: BoxedStrategy<Vec<u8>>| tree.new_tree(&mut runner).unwrap().current();
        let (requests, responses) = (one(stream(request()).boxed()), one(stream(response()).boxed()));
        let acts = acts().new_tree(&mut runner).unwrap().current();
        let asks = asks().new_tree(&mut runner).unwrap().current();
        let (server, client) = (server::expected(&requests, &acts), client::expected(&responses, &asks));
        for end in [format!("server {:?}", server.end), format!("client {:?}", client.end)] {
            *ends.entry(end.split('(').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
        *ends.entry("requests".to_owned()).or_default() += server.seen.len();
        *ends.entry("responses".to_owned()).or_default() += client.events.len();
    }
    for end in ["Idle", "Busy", "Closed", "Switched", "Open"].map(|end| format!("server {end}")) {
        assert!(ends.get(&end).is_some_and(|count| *count > 10), "{end}: {ends:?}");
    }
    // Ending by too many interim responses takes more of them than a generated stream has.
    for end in [
        "Idle",
        "UntilClose",
        "Closed",
        "Switched",
        "Silent",
        "Cut",
        "BadSwitch",
        "Unasked",
        "Malformed",
        "Open",
    ] {
        assert!(ends.get(&format!("client {end}")).is_some_and(|count| *count > 10), "{end}: {ends:?}");
    }
    assert!(ends["requests"] > 1500 && ends["responses"] > 1500, "{ends:?}");
}

/// Reads one request with a state machine, from the start of `bytes` split as `seed` says: its body, trailer fields,
/// and length.
fn read_request(server: &mut Server, bytes: &[u8], seed: u32) -> (Vec<u8>, Trailers, usize) {
    let (mut at, mut body, mut trailers) = (0, Vec::new(), Trailers::new());
    for end in cuts(bytes.len(), seed) {
        if server.is_idle() {
            let mut fields = Vec::new();
            let head = server.head(&bytes[at..end], &mut fields, &HeadLimits::default()).unwrap();
            at += head.map_or(0, |head| head.len());
        }
        while server.wants() == Wants::Body {
            match server.body(&bytes[at..end], &mut trailers).unwrap() {
                (used, Piece::Data(data)) => {
                    body.extend(data);
                    at += used;
                }
                (used, Piece::End) => at += used,
                (used, Piece::NeedMore) => {
                    at += used;
                    break;
                }
            }
        }
        if server.wants() == Wants::Answer {
            return (body, trailers, at);
        }
    }
    panic!("no request in {:?}", String::from_utf8_lossy(bytes))
}

/// Reads one response with a state machine: status, body, trailer fields, and length. If `closed`, the server has
/// closed after `bytes`.
fn read_response(
    client: &mut Client,
    bytes: &[u8],
    closed: bool,
    seed: u32,
) -> (Status, Vec<u8>, Trailers, usize) {
    let (mut at, mut body, mut trailers) = (0, Vec::new(), Trailers::new());
    let mut status = None;
    for end in cuts(bytes.len(), seed) {
        while status.is_none() {
            match read_answer(client, &bytes[at..end]).unwrap() {
                AnswerEvent::NeedMore => break,
                AnswerEvent::Interim(answer) => at += answer.head_bytes,
                AnswerEvent::Head(answer) => {
                    status = Some(answer.status);
                    at += answer.head_bytes;
                }
                AnswerEvent::Switch(_) => panic!("nobody asked for it"),
            }
        }
        while let (Some(status), true) = (status, client.is_in_body()) {
            match client.body(&bytes[at..end], &mut trailers).unwrap() {
                (used, Piece::Data(data)) => {
                    body.extend(data);
                    at += used;
                }
                (used, Piece::End) => return (status, body, trailers, at + used),
                (used, Piece::NeedMore) => {
                    at += used;
                    break;
                }
            }
        }
    }
    assert!(closed && client.finish() == Ok(true), "no response in {:?}", String::from_utf8_lossy(bytes));
    (status.expect("a response"), body, trailers, at)
}

/// A body to send, how its length is declared, and whether a trailer field follows if possible.
fn message() -> impl Strategy<Value = (Vec<Vec<u8>>, u8, bool)> {
    (vec(vec(any::<u8>(), 0..40), 0..4), 0..3u8, any::<bool>())
}

fn announced(pieces: &[Vec<u8>], how: u8) -> Length {
    let bytes = pieces.concat().len() as u64;
    [Length::Known(bytes), Length::Declared(bytes), Length::Unknown][usize::from(how)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// Each state machine reads what the other writes, while both keep the connection open.
    #[test]
    fn the_roles_understand_each_other(
        exchanges in vec((message(), message(), select(vec!["GET", "POST", "HEAD"]), select(vec![200, 204, 304, 404])), 1..5),
        (is_10, hints, seed) in (prop::bool::weighted(0.2), any::<bool>(), any::<u32>()),
    ) {
        const TRAILERS: &[u8] = b"X-End: 1 \r\n";
        let (mut client, mut server) = (Client::default(), Server::default());
        for ((asked, how, trails), (answered, how_back, trails_back), method, code) in exchanges {
            // HTTP/1.0 has no chunks; the state machine does not write HTTP/1.0 requests, so the head is written
            // here.
            let how = if is_10 { 0 } else { how };
            let version = if is_10 { "HTTP/1.0\r\nConnection: keep-alive" } else { "HTTP/1.1" };
            let mut up = format!("{method} / {version}\r\nHost: a\r\n").into_bytes();
            let sent = Sent { is_head: method == "HEAD", ..Sent::default() };
            let length = announced(&asked, how);
            client.request(sent, Some(length), &mut up);
            for piece in &asked {
                let behind = client.data(piece.len(), &mut up).unwrap();
                up.extend(piece);
                up.extend(behind);
            }
            let up_trailers = if trails { TRAILERS } else { b"" };
            client.end(up_trailers, &mut up).unwrap();
            up.extend(b"GET");
            let (body, trailers, taken) = read_request(&mut server, &up, seed);
            prop_assert_eq!((body, taken), (asked.concat(), up.len() - 3));
            prop_assert_eq!(trailers.len(), usize::from(trails && length == Length::Unknown));

            let mut down = Vec::new();
            let status = Status::from_code(code).unwrap();
            if hints {
                server.inform(Status::EARLY_HINTS, b"A: b\r\n", &mut down);
            }
            flatout_wire::h1::write_status_line(status, &mut down);
            let length = announced(&answered, how_back);
            let follows = server.respond(status, length, false, &mut down);
            for piece in answered.iter().filter(|_| follows) {
                let behind = server.data(piece.len(), &mut down).unwrap();
                down.extend(piece);
                down.extend(behind);
            }
            let down_trailers = if trails_back { TRAILERS } else { b"" };
            let next = server.end(down_trailers, &mut down).unwrap();
            if next == Next::Request {
                down.extend(b"HTTP");
            }
            let (found, body, trailers, taken) = read_response(&mut client, &down, next == Next::Close, seed);
            prop_assert_eq!(found, status);
            prop_assert_eq!(body, if follows { answered.concat() } else { Vec::new() });
            let has_trailers = trails_back && follows && !is_10 && length == Length::Unknown;
            prop_assert_eq!(trailers.len(), usize::from(has_trailers));
            prop_assert_eq!(client.is_idle(), next == Next::Request);
            if next != Next::Request {
                prop_assert!(client.is_closed() && server.wants() == Wants::Nothing);
                return Ok(());
            }
            prop_assert_eq!(taken, down.len() - 4);
        }
    }
}

#[test]
fn bytes_relayed_without_parsing_are_counted() {
    let (mut machine, mut fields, mut trailers) = (Server::default(), Vec::new(), Vec::new());
    let head = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n";
    assert!(machine.head(head, &mut fields, &HeadLimits::default()).unwrap().is_some());
    machine.passed(60);
    assert_eq!(machine.length_left(), Some(40));
    assert_eq!(machine.body(b"", &mut trailers), Ok((0, Piece::NeedMore)));
    machine.passed(40);
    assert_eq!(machine.body(b"next", &mut trailers), Ok((0, Piece::End)), "nothing behind it is taken");

    let mut client = Client::default();
    client.request(Sent::default(), None, &mut Vec::new());
    let parse = |bytes: &[u8], to_head| answer::parse(bytes, to_head, 1 << 10);
    let head = client.head(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", parse);
    assert!(matches!(head, Ok(AnswerEvent::Head(_))));
    assert_eq!(client.plain_bytes(), 100);
    client.passed(99);
    assert_eq!(client.body(b"xy", &mut trailers), Ok((1, Piece::Data(b"x"))));
    assert_eq!((client.plain_bytes(), client.is_idle()), (0, false));
    assert_eq!(client.body(b"y", &mut trailers), Ok((0, Piece::End)));
    assert!(client.is_idle());

    // Within chunks no byte certainly belongs to the data.
    client.request(Sent::default(), None, &mut Vec::new());
    let head = client.head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", parse);
    assert!(matches!(head, Ok(AnswerEvent::Head(_))));
    assert_eq!(client.plain_bytes(), 0);
}
