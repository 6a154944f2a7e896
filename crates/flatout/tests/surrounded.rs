//! Every feature of a handler, without middleware, in a layer, behind middleware that waits, and in both; over HTTP/1 and
//! HTTP/2.

#[path = "../../engine/tests/support/h2.rs"]
#[allow(dead_code, reason = "each test uses a part of it")]
mod h2;
mod socket;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use flatout::push::Publisher;
use flatout::{App, EarlyHints, Headers, Peer, Problem, Shutdown, Status, Streamed, middleware::Next};
use flatout_wire::Method;
use h2::H2Client;
use http_body_util::BodyExt;
use socket::{Served, TIME_MAX, connect, serve};
use tower_http::limit::RequestBodyLimitLayer;

/// What surrounds a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Around {
    Nothing,
    Layer,
    Waiting,
    Both,
}

const ALL: [Around; 4] = [Around::Nothing, Around::Layer, Around::Waiting, Around::Both];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

impl Around {
    fn surround(self, app: App) -> App {
        let app = if matches!(self, Around::Layer | Around::Both) {
            // It wraps the body.
            app.layer(RequestBodyLimitLayer::new(1 << 30))
        } else {
            app
        };
        if matches!(self, Around::Waiting | Around::Both) {
            return app.around(async |next: Next| {
                tokio::time::sleep(Duration::from_millis(2)).await;
                next.run().await
            });
        }
        app
    }
}

/// Calls `test` with a server of each kind, and each version.
fn everywhere(app: impl Fn() -> App, test: impl Fn(&Served, Version, &str)) {
    for around in ALL {
        let server = serve(around.surround(app()));
        for version in [Version::Http1, Version::Http2] {
            test(&server, version, &format!("{around:?}, {version:?}"));
        }
    }
}

/// A response.
#[derive(Debug, Default)]
struct Answer {
    interims: Vec<u16>,
    status: u16,
    fields: Vec<(String, String)>,
    body: String,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(this, _)| this == name).map(|(_, value)| value.as_str())
    }
}

fn ask(
    server: &Served,
    version: Version,
    method: Method,
    path: &str,
    fields: &[(&str, &str)],
    body: Option<&[u8]>,
) -> Answer {
    let mut stream = connect(server);
    if version == Version::Http2 {
        let mut client = H2Client::new(stream);
        let stream = client.ask(method, path, fields, body);
        let got = client.finish(stream);
        let body = String::from_utf8(got.body).unwrap();
        return Answer { interims: got.interims, status: got.status, fields: got.fields, body };
    }
    let mut head = format!("{} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n", method.name());
    fields.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    let is_chunked = fields.iter().any(|(name, _)| *name == "transfer-encoding");
    if let Some(body) = body.filter(|_| !is_chunked) {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    let mut sent = head.into_bytes();
    sent.extend_from_slice(b"\r\n");
    match body {
        Some(body) if is_chunked => {
            sent.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
            sent.extend_from_slice(body);
            sent.extend_from_slice(b"\r\n0\r\nx-end: 1\r\n\r\n");
        }
        body => sent.extend_from_slice(body.unwrap_or_default()),
    }
    // A server that refuses a body may close before all of it was sent.
    let _ = stream.write_all(&sent);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    parsed(&String::from_utf8(answer).unwrap())
}

fn parsed(text: &str) -> Answer {
    let mut answer = Answer::default();
    let mut rest = text;
    while let Some((head, behind)) = rest.split_once("\r\n\r\n") {
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap();
        rest = behind;
        if status < 200 {
            answer.interims.push(status);
            continue;
        }
        let field =
            |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        answer = Answer {
            status,
            fields: lines.filter_map(field).collect(),
            body: behind.to_owned(),
            interims: answer.interims,
        };
        break;
    }
    answer
}

#[test]
fn early_hints_are_sent() {
    let page = async |hints: EarlyHints| {
        hints.send(&[("Link", "</a.css>")]);
        tokio::time::sleep(Duration::from_millis(2)).await;
        "page"
    };
    everywhere(
        || App::new().get("/", page),
        |server, version, place| {
            let answer = ask(server, version, Method::Get, "/", &[], None);
            assert_eq!((&answer.interims[..], answer.status), (&[103][..], 200), "{place}");
        },
    );
}

#[test]
fn long_polls_get_the_next_message() {
    let publisher = Publisher::new();
    everywhere(
        || App::new().push("/live/{channel}", &publisher),
        |server, version, place| {
            let channel = format!("c{}", publisher.publish("ids", "1").unwrap().len() + place.len());
            let first = publisher.publish(&channel, "before").unwrap();
            std::thread::scope(|scope| {
                let path = format!("/live/{channel}?poll=1");
                let fields = [("last-event-id", first.as_str())];
                let waiting = scope.spawn(move || ask(server, version, Method::Get, &path, &fields, None));
                // Whether it waits already or finds the message, it gets it.
                publisher.publish(&channel, "after").unwrap();
                let answer = waiting.join().unwrap();
                assert!(answer.status == 200 && answer.body.contains("after"), "{place}: {answer:?}");
            });
        },
    );
}

#[test]
fn proxied_requests_reach_their_server() {
    let upstream = serve(App::new().post("/echo", |body: String| body).body_limit(8 << 20));
    let to = format!("http://{}", upstream.address);
    let (small, large) = (vec![b'x'; 100], vec![b'y'; 1 << 20]);
    everywhere(
        || App::new().proxy("/", to.as_str()),
        |server, version, place| {
            for body in [&small, &large] {
                let answer = ask(server, version, Method::Post, "/echo", &[], Some(body));
                assert_eq!(answer.status, 200, "{place}: {answer:?}");
                assert_eq!(answer.body.len(), body.len(), "{place}");
            }
        },
    );
}

#[test]
fn bodies_are_streamed_with_their_trailers() {
    let (sender, frames): (Sender<usize>, Receiver<usize>) = channel();
    let app = || {
        let sender = sender.clone();
        App::new().post("/", async move |Streamed(mut body): Streamed| {
            let mut trailers = 0;
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|_| Problem::new(Status::BAD_REQUEST))?;
                trailers += frame.trailers_ref().map_or(0, |fields| fields.len());
                let _ = sender.send(frame.data_ref().map_or(0, |data| data.len()));
            }
            Ok::<_, Problem>(format!("{trailers} trailers"))
        })
    };
    everywhere(app, |server, version, place| {
        // The handler has the first half before the second is sent.
        if version == Version::Http1 {
            let mut stream = connect(server);
            let head =
                "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all((head.to_owned() + "2\r\nhe\r\n").as_bytes()).unwrap();
            assert_eq!(frames.recv_timeout(TIME_MAX), Ok(2), "{place}");
            stream.write_all(b"3\r\nllo\r\n0\r\nX-End: 1\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("1 trailers"), "{place}: {answer}");
        } else {
            let mut client = H2Client::new(connect(server));
            let stream = client.upload(Method::Post, "/", &[]);
            client.say(stream, b"he");
            client.send();
            // Nothing is sent before the server's settings have come.
            while client.unsent_bytes(stream) > 0 {
                client.turn();
                client.send();
            }
            assert_eq!(frames.recv_timeout(TIME_MAX), Ok(2), "{place}");
            client.say(stream, b"llo");
            client.end(stream);
            assert_eq!(client.finish(stream).status, 200, "{place}");
        }
        while frames.try_recv().is_ok() {}
    });
}

/// A declared length and one that shows while the body arrives are refused alike, and middleware sees both.
#[test]
fn bodies_that_are_too_large_are_refused() {
    let app = || {
        App::new()
            .after(|_: &flatout::Answered<'_>, response: &mut flatout::Response| {
                response.header("X-Seen", "yes");
            })
            .body_limit(1000)
            .post("/whole", |body: String| body)
            .post("/stream", async |Streamed(body): Streamed| match body.collect().await {
                Ok(whole) => Ok(whole.to_bytes()),
                Err(fault) => Err(Problem::new(match fault {
                    engine::BodyFault::TooLarge => Status::CONTENT_TOO_LARGE,
                    _ => Status::BAD_REQUEST,
                })),
            })
    };
    use flatout::engine;
    everywhere(app, |server, version, place| {
        for path in ["/whole", "/stream"] {
            let body = vec![b'x'; 2000];
            let declared = match version {
                Version::Http1 => &[][..],
                Version::Http2 => &[("content-length", "2000")],
            };
            let open = match version {
                Version::Http1 => &[("transfer-encoding", "chunked")][..],
                Version::Http2 => &[],
            };
            let [declared, open] =
                [declared, open].map(|fields| ask(server, version, Method::Post, path, fields, Some(&body)));
            assert_eq!((declared.status, open.status), (413, 413), "{path} {place}");
            assert_eq!(
                (declared.field("x-seen"), open.field("x-seen")),
                (Some("yes"), Some("yes")),
                "{path} {place}"
            );
            assert_eq!(declared.body, open.body, "{path} {place}");
            let fits = ask(server, version, Method::Post, path, &[], Some(&body[..1000]));
            assert_eq!((fits.status, fits.body.len()), (200, 1000), "{path} {place}");
        }
    });
}

/// 100 comes when the body is wanted: a client that is refused before does not send it.
#[test]
fn a_client_that_waits_is_answered_before_it_sends_its_body() {
    let app = || {
        App::new()
            .before(|context| match context.header("authorization") {
                Some(_) => Ok(()),
                None => Err(Status::UNAUTHORIZED),
            })
            .post("/whole", |body: String| body)
            .post("/stream", async |Streamed(body): Streamed| match body.collect().await {
                Ok(whole) => Ok(whole.to_bytes()),
                Err(_) => Err(Status::BAD_REQUEST),
            })
    };
    everywhere(app, |server, version, place| {
        for path in ["/whole", "/stream"] {
            let expects = [("expect", "100-continue"), ("content-length", "5")];
            let authorized = [expects[0], expects[1], ("authorization", "x")];
            let large = [expects[0], ("content-length", "100000000"), ("authorization", "x")];
            if version == Version::Http1 {
                let begin = |fields: &[(&str, &str)]| {
                    let mut stream = connect(server);
                    let lines: String =
                        fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                    write!(stream, "POST {path} HTTP/1.1\r\nHost: t\r\n{lines}\r\n").unwrap();
                    stream
                };
                for (fields, status) in [(&expects[..], 401), (&large, 413)] {
                    let answer = parsed(&rest(&mut begin(fields)));
                    assert_eq!((answer.status, &answer.interims[..]), (status, &[][..]), "{path} {place}");
                }
                let mut stream = begin(&authorized);
                let mut interim = [0; 25];
                stream.read_exact(&mut interim).unwrap();
                assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n", "{path} {place}");
                stream.write_all(b"hello").unwrap();
                let mut answer = [0; 15];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"HTTP/1.1 200 OK", "{path} {place}");
            } else {
                let mut client = H2Client::new(connect(server));
                for (fields, status) in [(&expects[..], 401), (&large, 413)] {
                    let stream = client.upload(Method::Post, path, fields);
                    client.until(|client| client.got[&stream].is_over);
                    let got = &client.got[&stream];
                    assert_eq!((got.status, &got.interims[..]), (status, &[][..]), "{path} {place}");
                }
                let stream = client.upload(Method::Post, path, &authorized);
                client.until(|client| client.got[&stream].interims == [100]);
                client.say(stream, b"hello");
                client.end(stream);
                let got = client.finish(stream);
                assert_eq!((got.status, &got.body[..]), (200, &b"hello"[..]), "{path} {place}");
            }
        }
    });
}

/// The same without any middleware. A declared length is refused by the application, also where the server's own limit is
/// lower, and a client that waits is not asked for what nobody reads.
#[test]
fn a_client_that_waits_is_refused_without_middleware_too() {
    let app = || {
        App::new()
            .body_limit(1000)
            .post("/whole", |body: String| body)
            .post("/waiting", async |body: String| body)
            .post("/stream", async |Streamed(body): Streamed| match body.collect().await {
                Ok(whole) => Ok(whole.to_bytes()),
                Err(_) => Err(Status::CONTENT_TOO_LARGE),
            })
            .post("/none", || "unread")
    };
    everywhere(app, |server, version, place| {
        let chunked: &[(&str, &str)] =
            if version == Version::Http1 { &[("transfer-encoding", "chunked")] } else { &[] };
        let refused = ask(server, version, Method::Post, "/whole", chunked, Some(&[b'x'; 2000]));
        assert_eq!(refused.status, 413, "{place}");
        for (path, length, status) in [
            ("/whole", 1001, 413),
            ("/whole", 100_000_000, 413),
            ("/waiting", 1001, 413),
            ("/waiting", 100_000_000, 413),
            ("/stream", 1001, 413),
            ("/stream", 100_000_000, 413),
            ("/none", 5, 200),
            ("/whole", 5, 100),
            ("/waiting", 5, 100),
            ("/stream", 5, 100),
        ] {
            let length = length.to_string();
            let fields = [("expect", "100-continue"), ("content-length", length.as_str())];
            let wait = Wait { is_wanted: status == 100, fields: &fields };
            let answer = wait.ask(server, version, path);
            let place = format!("{path} of {length} bytes, {place}");
            if status == 100 {
                assert_eq!((answer.status, answer.body.as_str()), (200, "hello"), "{place}");
                assert_eq!(answer.interims, [100], "{place}");
                continue;
            }
            assert_eq!((answer.status, &answer.interims[..]), (status, &[][..]), "{place}");
            if status == 413 {
                assert_eq!(answer.body, refused.body, "{place}");
                assert_eq!(answer.field("content-type"), refused.field("content-type"), "{place}");
            }
        }
    });
}

/// A client that sends its body when it is asked to.
struct Wait<'w> {
    is_wanted: bool,
    fields: &'w [(&'w str, &'w str)],
}

impl Wait<'_> {
    fn ask(&self, server: &Served, version: Version, path: &str) -> Answer {
        let mut stream = connect(server);
        if version == Version::Http2 {
            let mut client = H2Client::new(stream);
            let stream = client.upload(Method::Post, path, self.fields);
            if self.is_wanted {
                client.until(|client| client.got[&stream].interims == [100]);
                client.say(stream, b"hello");
                client.end(stream);
            } else {
                client.until(|client| client.got[&stream].is_over);
            }
            let got = client.got[&stream].is_over.then(|| client.got[&stream].clone());
            let got = got.unwrap_or_else(|| client.finish(stream));
            let body = String::from_utf8(got.body).unwrap();
            return Answer { interims: got.interims, status: got.status, fields: got.fields, body };
        }
        let lines: String = self.fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        write!(stream, "POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{lines}\r\n").unwrap();
        if !self.is_wanted {
            return parsed(&rest(&mut stream));
        }
        let mut interim = [0; 25];
        stream.read_exact(&mut interim).unwrap();
        stream.write_all(b"hello").unwrap();
        parsed(&(String::from_utf8_lossy(&interim).into_owned() + &rest(&mut stream)))
    }
}

fn rest(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn handlers_see_client_and_fields() {
    let app = || {
        App::new().get("/{name}", async |Peer(peer): Peer, Headers(headers): Headers| {
            format!("{} {:?}", peer.is_some(), headers.get("x-field"))
        })
    };
    everywhere(app, |server, version, place| {
        let answer = ask(server, version, Method::Get, "/a", &[("x-field", "1")], None);
        assert_eq!(answer.body, "true Some(\"1\")", "{place}");
    });
}

/// Sends when it is dropped.
struct Guard(Sender<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[test]
fn a_handler_ends_with_its_client() {
    let (sender, dropped) = channel();
    let (began, begins) = channel();
    let app = || {
        let (sender, began) = (sender.clone(), began.clone());
        App::new().get("/", async move || {
            let _guard = Guard(sender.clone());
            let _ = began.send(());
            std::future::pending::<()>().await;
        })
    };
    everywhere(app, |server, version, place| {
        let mut stream = connect(server);
        match version {
            Version::Http1 => stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n").unwrap(),
            Version::Http2 => {
                let mut client = H2Client::new(stream.try_clone().unwrap());
                client.get("/");
                client.send();
            }
        }
        begins.recv_timeout(TIME_MAX).expect(place);
        let _ = stream.shutdown(std::net::Shutdown::Both);
        drop(stream);
        dropped.recv_timeout(TIME_MAX).expect(place);
    });
}

#[test]
fn a_handler_learns_of_a_drain() {
    let (began, begins) = channel();
    for around in ALL {
        for version in [Version::Http1, Version::Http2] {
            let began = began.clone();
            let app = App::new().get("/", async move |mut shutdown: Shutdown| {
                let _ = began.send(());
                shutdown.begun().await;
                "drained"
            });
            let server = serve(around.surround(app));
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| ask(&server, version, Method::Get, "/", &[], None));
                begins.recv_timeout(TIME_MAX).unwrap();
                server.server.as_ref().unwrap().handle().drain();
                assert_eq!(waiting.join().unwrap().body, "drained", "{around:?} {version:?}");
            });
        }
    }
}

/// A mounted router takes its connection over, wherever it is mounted. HTTP/2 has no such connections.
#[test]
fn websockets_of_a_mounted_router_are_opened() {
    use axum::extract::ws::WebSocketUpgrade;
    use axum::routing::any;
    let router = || {
        axum::Router::new().route(
            "/",
            any(async |upgrade: WebSocketUpgrade| {
                upgrade.on_upgrade(async |mut socket| {
                    while let Some(Ok(message)) = socket.recv().await {
                        if socket.send(message).await.is_err() {
                            return;
                        }
                    }
                })
            }),
        )
    };
    for around in ALL {
        let server = serve(around.surround(App::new().mount("/echo", router())));
        let mut stream = connect(&server);
        let handshake = "GET /echo HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        // A masked message with a key of zeros, together with the handshake.
        let message = b"\x81\x85\0\0\0\0hello";
        stream.write_all(&[handshake.as_bytes(), message].concat()).unwrap();
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        let head = String::from_utf8(answer).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 "), "{around:?}: {head}");
        let mut echo = [0; 7];
        stream.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"\x81\x05hello", "{around:?}");
    }
}
