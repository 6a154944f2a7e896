//! Channels over real sockets: all transports, reconnecting subscribers, slow subscribers.

#[path = "../../engine/tests/support/attempts.rs"]
mod attempts;
#[path = "support/channels.rs"]
mod channels;
#[path = "../../engine/tests/support/client.rs"]
#[allow(dead_code, reason = "it has more than this needs")]
mod client;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use channels::{Running, sites};
use client::read_until;
use flatout_proxy::{Proxy, Resolver};
use flatout_push::Line;
use flatout_server::live::Opened;
use flatout_wire::websocket::{Opcode, Reader, ReaderEvent, Role, write_frame};

impl Running {
    /// Sends a request with these fields and reads the head of its response.
    fn ask(&self, request: &str, fields: &str) -> (String, TcpStream) {
        let mut stream = self.connect();
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: t\r\n{fields}\r\n").as_bytes()).unwrap();
        (read_until(&mut stream, "\r\n\r\n"), stream)
    }

    /// Head and body of a response that ends with its connection.
    fn all(&self, request: &str, fields: &str, body: &str) -> String {
        let mut stream = self.connect();
        let length =
            if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let request =
            format!("{request} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{fields}{length}\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Subscribes to events, and returns once subscribed.
    fn events(&self, channel: &str, fields: &str) -> TcpStream {
        let (head, mut stream) = self.ask(&format!("GET /live/{channel}"), fields);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/event-stream"), "{head}");
        let first = read_until(&mut stream, "\n\n");
        assert!(first.starts_with("retry: "), "{first}");
        stream
    }

    fn websocket(&self, target: &str, fields: &str) -> WebSocket {
        let fields = format!(
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{fields}"
        );
        let (head, stream) = self.ask(&format!("GET {target}"), &fields);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let may_compress = head.contains("permessage-deflate");
        WebSocket { stream, reader: Reader::new(Role::Client, may_compress), held: Vec::new() }
    }
}

/// A client's end.
struct WebSocket {
    stream: TcpStream,
    reader: Reader,
    held: Vec<u8>,
}

impl WebSocket {
    /// The next frame, as text: messages as they are, others in angle brackets. `None` at the end.
    fn next(&mut self) -> Option<String> {
        let mut text = Vec::new();
        loop {
            let (used, event) =
                self.reader.step(&mut self.held, &flatout_wire::websocket::MessageLimits::default()).unwrap();
            let whole = match event {
                ReaderEvent::NeedMore => None,
                ReaderEvent::Data { bytes, is_compressed, is_last, .. } => {
                    text.extend_from_slice(bytes);
                    is_last.then(|| {
                        let mut plain = Vec::new();
                        if is_compressed {
                            flatout_engine::websocket::decompress(&text, 1 << 20, &mut plain).unwrap();
                            return format!("packed {}", String::from_utf8_lossy(&plain));
                        }
                        String::from_utf8_lossy(&text).into_owned()
                    })
                }
                ReaderEvent::Ping(_) => Some("<ping>".to_owned()),
                ReaderEvent::Pong(payload) => Some(format!("<pong {}>", String::from_utf8_lossy(payload))),
                ReaderEvent::Close(close) => {
                    Some(format!("<close {} {}>", close.code.unwrap_or(0), close.reason))
                }
            };
            self.held.drain(..used);
            if whole.is_some() {
                return whole;
            }
            if used == 0 || self.held.is_empty() {
                let mut piece = [0; 4096];
                let count = self.stream.read(&mut piece).unwrap();
                if count == 0 {
                    return None;
                }
                self.held.extend_from_slice(&piece[..count]);
            }
        }
    }

    fn say(&mut self, opcode: Opcode, payload: &[u8]) {
        let mut frame = Vec::new();
        write_frame(opcode, false, payload, Some([1, 2, 3, 4]), &mut frame);
        self.stream.write_all(&frame).unwrap();
    }
}

#[test]
fn all_transports_get_published_messages() {
    let server = Running::new(2, |_| ());
    let mut events = server.events("score", "");
    let mut websocket = server.websocket("/live/score", "");
    let mut packed = server.websocket("/live/score", "Sec-WebSocket-Extensions: permessage-deflate\r\n");
    let mut poll = server.connect();
    poll.write_all(b"GET /live/score?poll=1 HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    server.has("score", 4);
    let text = format!("line 1\nline 2 {}", "x".repeat(300));
    let id = server.publish("score", &text);
    let lines = text.replace('\n', "\ndata: ");
    assert_eq!(read_until(&mut events, "\n\n"), format!("id: {id}\ndata: {lines}\n\n"));
    let json =
        format!("{{\"id\":\"{id}\",\"channel\":\"score\",\"data\":\"{}\"}}", text.replace('\n', "\\n"));
    assert_eq!(websocket.next().unwrap(), json);
    assert_eq!(packed.next().unwrap(), format!("packed {json}"));
    let answer = read_until(&mut poll, "]");
    assert!(answer.contains(&format!("\r\nLast-Event-ID: {id}\r\n")), "{answer}");
    assert!(answer.ends_with(&format!("\r\n\r\n[{json}]")), "{answer}");
    // The connection continues after a poll.
    server.has("score", 3);
    poll.write_all(format!("GET /live/score?poll=1&since={id} HTTP/1.1\r\nHost: t\r\n\r\n").as_bytes())
        .unwrap();
    server.has("score", 4);
    let id = server.publish("score", "next");
    assert!(read_until(&mut poll, "]").contains("\"data\":\"next\""));
    websocket.say(Opcode::Ping, b"hello");
    assert_eq!(
        websocket.next().unwrap(),
        format!("{{\"id\":\"{id}\",\"channel\":\"score\",\"data\":\"next\"}}")
    );
    assert_eq!(websocket.next().unwrap(), "<pong hello>");
    websocket.say(Opcode::Close, &[3, 232]);
    assert_eq!(websocket.next().unwrap(), "<close 1000 >");
    assert_eq!(websocket.next(), None);
    drop(events);
    server.has("score", 1);
    drop(packed);
    server.has("score", 0);
}

#[test]
fn invalid_frames_end_the_connection_with_their_code() {
    let server = Running::new(1, |_| ());
    for (bytes, code) in [
        (&[0x81, 0x01, b'x'][..], 1002),
        (&[0xf1, 0x80, 0, 0, 0, 0], 1002),
        (&[0x89, 0xfe, 0, 126], 1002),
        (&[0x81, 0x81, 0, 0, 0, 0, 0xff], 1007),
        (&[0x82, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], 1009),
    ] {
        let mut websocket = server.websocket("/live/a", "");
        websocket.stream.write_all(bytes).unwrap();
        let said = websocket.next().unwrap();
        assert!(said.starts_with(&format!("<close {code} ")), "{said} {bytes:x?}");
        assert_eq!(websocket.next(), None);
    }
    server.has("a", 0);
}

#[test]
fn reconnecting_subscribers_get_each_message_once() {
    const MESSAGES: usize = 10_000;
    let server = Running::new(2, |plan| plan.history.count = 2 * MESSAGES);
    let expected: Vec<String> = (0..MESSAGES).map(|n| format!("message {n}")).collect();
    std::thread::scope(|scope| {
        let mut last = server.publish("a", "before the first");
        scope.spawn(|| {
            for (n, text) in expected.iter().enumerate() {
                server.publish(if n % 3 == 0 { "b" } else { "a" }, text);
                if n % 100 == 0 {
                    // Let other threads run.
                    std::thread::yield_now();
                }
            }
        });
        let mut got: Vec<String> = Vec::new();
        let mut round = 0;
        while got.len() < MESSAGES {
            round += 1;
            let mut stream = server.events("a,b", &format!("Last-Event-ID: {last}\r\n"));
            let until = (got.len() + 700).min(MESSAGES);
            while got.len() < until {
                let event = read_until(&mut stream, "\n\n");
                let line =
                    |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
                last = line("id: ");
                assert!(["a", "b"].contains(&line("event: ").as_str()), "{event}");
                got.push(line("data: "));
            }
            if round % 4 == 0 {
                // A reload keeps subscribers connected, and new ones find the same channels.
                let proxy = Proxy::open(Vec::new(), &Resolver::System).unwrap();
                let sites = sites(&server.log, &server.quotes);
                server.live.replace(Opened {
                    sites,
                    proxy,
                    hub: server.hub.clone(),
                    cache: None,
                    prerender: None,
                });
            }
        }
        assert!(round > 10, "{round}");
        assert!(got == expected, "{:?}", got.iter().zip(&expected).find(|(got, expected)| got != expected));
    });
}

#[test]
fn a_gap_is_reported() {
    let server = Running::new(1, |_| ());
    let mut stream = server.events("a", "Last-Event-ID: 123-5\r\n");
    assert!(read_until(&mut stream, "\n\n").starts_with("event: gap\ndata: {\"gap\":true,"));
    server.has("a", 1);
    server.publish("a", "x");
    assert!(read_until(&mut stream, "\n\n").ends_with("data: x\n\n"));
    let mut websocket = server.websocket("/live/a?since=123-5", "");
    assert!(websocket.next().unwrap().starts_with("{\"gap\":true,"));
    assert!(websocket.next().unwrap().contains("\"data\":\"x\""));
    let polled = server.all("GET /live/a?poll=1&since=123-5", "", "");
    assert!(polled.contains("[{\"gap\":true},{\"id\""), "{polled}");
}

#[test]
fn a_slow_reader_of_a_log_is_dropped_with_a_reason() {
    let server = Running::new(1, |plan| plan.lag_max = 50);
    let mut slow = server.events("a", "");
    let mut quick = server.events("a", "");
    server.has("a", 2);
    let text = "x".repeat(60_000);
    let mut published = 0;
    while server.hub.subscribers("", "a") == 2 {
        server.publish("a", &text);
        published += 1;
        // On a slow machine there may be a heartbeat before it.
        while !read_until(&mut quick, "\n\n").ends_with("x\n\n") {}
        assert!(published < 5_000);
    }
    assert!(published > 50, "{published}");
    let mut rest = String::new();
    slow.read_to_string(&mut rest).unwrap();
    let end = "event: end\ndata: {\"code\":1013,\"reason\":\"too far behind\"}\n\n";
    assert!(rest.ends_with(&format!("x\n\n{end}")), "{}", &rest[rest.len().saturating_sub(200)..]);
    assert_eq!(server.hub.subscribers("", "a"), 1);
}

#[test]
fn a_slow_reader_of_quotes_gets_the_newest_of_each() {
    let server = Running::new(1, |_| ());
    let (head, mut slow) = server.ask("GET /quotes/quotes", "");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    server.has("quotes", 1);
    let filler = "y".repeat(2_000);
    for n in 0..20_000 {
        server.quote(&format!("k{}", n % 10), &format!("[{n},\"{filler}\"]"));
    }
    let mut seen = Vec::new();
    let mut newest = [0; 10];
    while newest.iter().any(|n| *n < 19_990) {
        let event = read_until(&mut slow, "\n\n");
        let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: [")) else { continue };
        let n: usize = data.split_once(',').unwrap().0.parse().unwrap();
        assert!(newest[n % 10] <= n, "older values do not come behind newer ones");
        newest[n % 10] = n;
        seen.push(n);
    }
    // The data in the kernel's buffers was sent in order; the rest was skipped.
    assert!(seen.len() < 15_000, "{}", seen.len());
    assert_eq!(server.hub.subscribers("", "quotes"), 1);
}

/// What a page of another origin gets must say so, or its browser withholds it: also what comes later.
#[test]
fn polls_of_listed_origins_may_be_read_whenever_they_are_answered() {
    let server = Running::new(1, |plan| {
        plan.origins = vec!["https://a.test".to_owned()];
        plan.poll_time = Duration::from_secs(1);
    });
    let origin = "Origin: https://a.test\r\n";
    let is_readable = |answer: &str| {
        let of_origin = answer.matches("\r\nAccess-Control-Allow-Origin: https://a.test\r\n").count();
        let position = answer.matches("\r\nAccess-Control-Expose-Headers: Last-Event-ID\r\n").count();
        assert_eq!((of_origin, position), (1, 1), "{answer}");
    };
    let late = server.all("GET /live/a?poll=1", origin, "");
    assert!(late.starts_with("HTTP/1.1 204 "), "{late}");
    is_readable(&late);
    let (mut waiting, count) = (server.connect(), server.hub.subscribers("", "a"));
    let request = format!("GET /live/a?poll=1 HTTP/1.1\r\nHost: t\r\n{origin}\r\n");
    waiting.write_all(request.as_bytes()).unwrap();
    server.has("a", count + 1);
    server.publish("a", "1");
    is_readable(&read_until(&mut waiting, "]"));
    is_readable(&server.all("GET /live/a?poll=1&since=all", origin, ""));
    assert!(!server.all("GET /live/a?poll=1&since=all", "", "").contains("Access-Control"));
}

#[test]
fn latest_values_are_polled() {
    let server = Running::new(2, |_| ());
    server.quote("a", "{\"price\":1}");
    server.quote("b", "2");
    server.quote("a", "{\"price\":3}");
    let answer = server.all("GET /quotes/quotes?keys=b,a,none", "", "");
    assert!(answer.ends_with("\r\n\r\n{\"b\":2,\"a\":{\"price\":3}}"), "{answer}");
    let tag = answer.lines().find_map(|line| line.strip_prefix("ETag: ")).unwrap();
    let fields = format!("If-None-Match: {tag}\r\n");
    assert!(server.all("GET /quotes/quotes?keys=b,a,none", &fields, "").starts_with("HTTP/1.1 304 "));
    server.quote("b", "4");
    assert!(
        server
            .all("GET /quotes/quotes?keys=b,a,none", &fields, "")
            .ends_with("{\"b\":4,\"a\":{\"price\":3}}")
    );
}

#[test]
fn latest_values_are_a_line_for_each_key_if_that_is_wanted() {
    let line = Line::parse("var q_{key}={value};", None).unwrap();
    let server = Running::new(1, |plan| plan.keys_line = Some(line));
    server.quote("a", "{\"price\":1}");
    server.quote("b", "\"text\"");
    let answer = server.all("GET /quotes/quotes?keys=b,none,a", "", "");
    assert!(answer.contains("\r\nContent-Type: text/javascript; charset=utf-8\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nvar q_b=\"text\";\nvar q_a={\"price\":1};\n"), "{answer}");
    let tag = answer.lines().find_map(|line| line.strip_prefix("ETag: ")).unwrap();
    let fields = format!("If-None-Match: {tag}\r\n");
    assert!(server.all("GET /quotes/quotes?keys=b,a", &fields, "").starts_with("HTTP/1.1 304 "));
}

#[test]
fn publishing_over_http_needs_the_token() {
    let server = Running::new(1, |plan| plan.message_bytes_max = 1000);
    let mut events = server.events("a", "");
    server.has("a", 1);
    let token = "Authorization: Bearer secret\r\n";
    for (fields, body, status) in [
        ("", "x", 401),
        ("Authorization: Bearer wrong\r\n", "x", 401),
        ("Authorization: Basic secret\r\n", "x", 401),
        ("Authorization: Bearer secret\r\nContent-Type: application/json\r\n", "{", 400),
        (token, &"x".repeat(1001), 413),
    ] {
        let answer = server.all("POST /live/a", fields, body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    assert!(server.all("POST /live/a?event=goal", token, "1:0").contains("{\"id\":\""));
    assert!(read_until(&mut events, "\n\n").ends_with("event: goal\ndata: 1:0\n\n"));
    let batch = r#"[{"channel":"a","data":{"z":1,"a":[ 2 ]}},{"channel":"a","data":"text","event":"e"}]"#;
    let answer = server.all("POST /live", token, batch);
    assert!(answer.contains("{\"ids\":[\""), "{answer}");
    assert!(read_until(&mut events, "\n\n").ends_with("data: {\"z\":1,\"a\":[ 2 ]}\n\n"));
    assert!(read_until(&mut events, "\n\n").ends_with("event: e\ndata: text\n\n"));
    let bad = server.all("POST /live", token, r#"[{"channel":"a","data":1},{"channel":"a:b","data":2}]"#);
    assert!(bad.starts_with("HTTP/1.1 400 ") && bad.contains("X-Published: 1\r\n"), "{bad}");
    let presence = server.all("GET /live/a,b?presence=1", "", "");
    assert!(presence.ends_with("{\"a\":1,\"b\":0}"), "{presence}");
}

#[test]
fn joining_has_limits() {
    let server = Running::new(1, |plan| {
        plan.subscribers_max = Some(2);
        plan.per_address_max = Some(3);
    });
    let _first = server.events("a", "");
    let _second = server.events("a", "");
    assert!(server.ask("GET /live/a", "").0.starts_with("HTTP/1.1 503 "));
    let third = server.events("b", "");
    assert!(server.ask("GET /live/c", "").0.starts_with("HTTP/1.1 429 "));
    drop(third);
    server.has("b", 0);
    let _fourth = server.events("b", "");
    assert!(
        server.ask("GET /live/a", "Origin: https://elsewhere.example\r\n").0.starts_with("HTTP/1.1 403 ")
    );
    assert!(server.ask("GET /live/a:b", "").0.starts_with("HTTP/1.1 400 "));
    assert!(server.ask("GET /live", "").0.starts_with("HTTP/1.1 404 "));
    assert!(server.ask("PUT /live/a", "").0.starts_with("HTTP/1.1 405 "));
    assert!(server.ask("GET /other", "").0.starts_with("HTTP/1.1 200 "));
}

#[test]
fn those_that_are_gone_are_noticed() {
    attempts::attempts(a_polite_client_and_a_silent_one);
}

fn a_polite_client_and_a_silent_one() {
    let server = Running::new(1, |plan| plan.heartbeat = Duration::from_secs(1));
    let mut events = server.events("a", "");
    let mut silent = server.websocket("/live/a", "");
    let mut polite = server.websocket("/live/a", "");
    server.has("a", 3);
    assert_eq!(read_until(&mut events, "\n\n"), ":\n\n");
    assert_eq!(silent.next().unwrap(), "<ping>");
    for _ in 0..4 {
        assert_eq!(polite.next().unwrap(), "<ping>");
        polite.say(Opcode::Pong, b"");
    }
    assert_eq!(silent.next(), None);
    server.has("a", 2);
}

#[test]
fn draining_notifies_subscribers() {
    let mut server = Running::new(2, |_| ());
    let mut events = server.events("a", "");
    let mut websocket = server.websocket("/live/a", "");
    let mut poll = server.connect();
    poll.write_all(b"GET /live/a?poll=1 HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    server.has("a", 3);
    let began = Instant::now();
    let running = server.server.take().unwrap();
    running.handle().drain();
    assert!(read_until(&mut events, "\n\n").starts_with("event: end\ndata: {\"code\":1012,"));
    assert_eq!(websocket.next().unwrap(), "<close 1012 the server is restarting>");
    assert!(read_until(&mut poll, "\r\n\r\n").starts_with("HTTP/1.1 204 "));
    running.wait().unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Subscribers join and leave while a channel's list is walked; the others get each message once.
#[test]
fn joining_and_leaving_does_not_disturb_others() {
    const SUBSCRIBERS: usize = 300;
    const MESSAGES: usize = 200;
    let server = Running::new(1, |_| ());
    let mut streams: Vec<TcpStream> = (0..SUBSCRIBERS).map(|_| server.events("a", "")).collect();
    server.has("a", SUBSCRIBERS as u32);
    let mut at = 7;
    for n in 0..MESSAGES {
        server.publish("a", &n.to_string());
        // A different one each time.
        at = (at * 31 + 17) % streams.len();
        drop(streams.swap_remove(at));
        if n % 2 == 0 {
            streams.push(server.events("a", ""));
        }
    }
    for stream in &mut streams {
        let mut next = None;
        while next != Some(MESSAGES) {
            let event = read_until(stream, "\n\n");
            let n: usize =
                event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().parse().unwrap();
            assert!(next.is_none_or(|next| next == n), "{next:?} {n}");
            next = Some(n + 1);
        }
    }
    server.has("a", streams.len() as u32);
}
