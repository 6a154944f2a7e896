//! Channels over HTTP/2: many subscribers on streams of one connection, by every transport.

#[path = "support/channels.rs"]
#[allow(dead_code, reason = "it has more than this needs")]
mod channels;
#[path = "../../engine/tests/support/frames.rs"]
mod frames;
#[path = "../../engine/tests/support/h2.rs"]
#[allow(dead_code, reason = "it has more than this needs")]
mod h2;

use std::time::{Duration, Instant};

use channels::Running;
use flatout_wire::h2::{Code, Limits, StreamId};
use flatout_wire::websocket::Opcode;
use frames::{frame, frames};
use h2::H2Client;

/// Streams of one connection.
const STREAMS: usize = 100;

fn connect(server: &Running) -> H2Client {
    H2Client::new(server.connect())
}

/// A subscriber of events, once it is one.
fn events(client: &mut H2Client, channel: &str) -> StreamId {
    let stream = client.get(&format!("/live/{channel}"));
    client.until(|client| client.got[&stream].body.ends_with(b"\n\n"));
    let got = &client.got[&stream];
    assert_eq!((got.status, got.field("content-type")), (200, Some("text/event-stream")));
    assert!(got.body.starts_with(b"retry: "));
    stream
}

/// The text received by a subscriber of events, after the first line.
fn text_of(client: &H2Client, stream: StreamId) -> String {
    let text = String::from_utf8(client.got[&stream].body.clone()).unwrap();
    text.split_once("\n\n").map(|(_, rest)| rest.to_owned()).unwrap_or_default()
}

fn websocket(client: &mut H2Client, channel: &str) -> StreamId {
    let stream = client.websocket(&format!("/live/{channel}"), &[]);
    client.until(|client| client.got[&stream].status == 200);
    stream
}

/// The received messages, pings and close frames.
fn received(client: &H2Client, stream: StreamId) -> Vec<String> {
    frames(&client.got[&stream].body)
}

#[test]
fn one_connection_carries_subscribers_of_all_transports() {
    let server = Running::new(1, |_| ());
    let mut client = connect(&server);
    let all_events: Vec<_> = (0..STREAMS).map(|_| events(&mut client, "score")).collect();
    let polls: Vec<_> = (0..10).map(|_| client.get("/live/score?poll=1")).collect();
    let sockets: Vec<_> = (0..10).map(|_| websocket(&mut client, "score")).collect();
    server.has("score", STREAMS as u32 + 20);
    let mut expected = String::new();
    for text in ["one", "two", &"x".repeat(50_000)] {
        let id = server.publish("score", text);
        expected.push_str(&format!("id: {id}\ndata: {text}\n\n"));
        for stream in &all_events {
            client.until(|client| text_of(client, *stream).len() >= expected.len());
            assert!(text_of(&client, *stream) == expected, "{}", text_of(&client, *stream));
        }
        for stream in &sockets {
            client.until(|client| received(client, *stream).last().is_some_and(|last| last.contains(text)));
        }
    }
    for stream in polls {
        let got = client.finish(stream);
        assert!(String::from_utf8_lossy(&got.body).contains("\"data\":\"one\""));
    }
    assert_eq!(received(&client, sockets[0]).len(), 3);
    // Frames of clients are handled.
    client.say(sockets[0], &frame(Opcode::Ping, b"x"));
    client.until(|client| received(client, sockets[0]).last().is_some_and(|last| last == "pong"));
    client.say(sockets[1], &frame(Opcode::Close, &[3, 232]));
    client.until(|client| client.got[&sockets[1]].is_over);
    assert_eq!(received(&client, sockets[1]).last().unwrap(), "close 1000");
    // The stream ends as its client expects it, and is not reset.
    assert_eq!(client.got[&sockets[1]].reset, None);
    server.has("score", STREAMS as u32 + 9);
    // A stream that its client resets frees its subscriber at once, and others stay.
    for stream in all_events.iter().skip(1).chain(&sockets[2..]) {
        client.machine.release(*stream, &mut client.out);
    }
    client.send();
    server.has("score", 2);
    server.publish("score", "last");
    client.until(|client| text_of(client, all_events[0]).ends_with("data: last\n\n"));
    drop(client);
    server.has("score", 0);
}

/// For a client that opens no window only the position is stored: it does not block others, and misses no
/// message of the history.
#[test]
fn a_stream_without_window_does_not_block_others() {
    let server = Running::new(1, |plan| plan.history.count = 1000);
    let mut client = H2Client::with(server.connect(), Limits { stream_window: 1000, ..Limits::default() });
    client.consumes = false;
    let slow = events(&mut client, "a");
    let mut quick = connect(&server);
    let others: Vec<_> = (0..10).map(|_| events(&mut quick, "a")).collect();
    let text = "x".repeat(10_000);
    for number in 0..100 {
        server.publish("a", &format!("{number} {text}"));
        for stream in &others {
            quick.until(|quick| text_of(quick, *stream).ends_with(&format!("data: {number} {text}\n\n")));
        }
    }
    assert_eq!(server.hub.subscribers("", "a"), 11);
    client.until(|client| client.got[&slow].body.len() == 1000);
    let bytes = client.got[&slow].body.len();
    client.machine.consumed(slow, bytes, &mut client.out);
    client.consumes = true;
    client.until(|client| text_of(client, slow).ends_with(&format!("data: 99 {text}\n\n")));
    let received_text = text_of(&client, slow);
    assert_eq!(received_text.matches("data: ").count(), 100);
    // One that stays so is dropped, as over HTTP/1.
    let server = Running::new(1, |plan| plan.lag_max = 50);
    let mut client = H2Client::with(server.connect(), Limits { stream_window: 1000, ..Limits::default() });
    client.consumes = false;
    events(&mut client, "a");
    let (mut published, began) = (0, Instant::now());
    while server.hub.subscribers("", "a") == 1 {
        server.publish("a", &text);
        published += 1;
        assert!(began.elapsed() < Duration::from_secs(30), "{published}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(published > 50, "{published}");
}

#[test]
fn heartbeats_are_sent_on_streams() {
    let server = Running::new(1, |plan| plan.heartbeat = Duration::from_secs(1));
    let mut client = connect(&server);
    let (one, other) = (events(&mut client, "a"), websocket(&mut client, "a"));
    client.until(|client| text_of(client, one).ends_with(":\n\n"));
    client.until(|client| received(client, other).contains(&"ping".to_owned()));
    // A client that does not respond is closed after one more heartbeat.
    client.until(|client| client.got[&other].is_over);
    server.has("a", 1);
    client.until(|client| text_of(client, one).matches(":\n\n").count() > 2);
}

/// Draining ends each stream with a reconnect delay, and sends GOAWAY in two steps.
#[test]
fn draining_ends_streams_with_code_1012() {
    let mut server = Running::new(1, |_| ());
    let mut client = connect(&server);
    let (one, other) = (events(&mut client, "a"), websocket(&mut client, "a"));
    let poll = client.get("/live/a?poll=1");
    client.send();
    server.has("a", 3);
    let Some(running) = server.server.take() else { panic!("it runs") };
    running.handle().drain();
    client.until(|client| [one, other, poll].iter().all(|stream| client.got[stream].is_over));
    assert!(text_of(&client, one).starts_with("event: end\ndata: {\"code\":1012,"));
    assert_eq!(received(&client, other), ["close 1012"]);
    assert_eq!(client.got[&poll].status, 204);
    client.close();
    assert_eq!(client.goaways, [(i32::MAX as u32, Code::NO_ERROR), (5, Code::NO_ERROR)]);
    running.wait().unwrap();
}
