//! WebSockets on streams of HTTP/2 (RFC 8441), over real sockets.

#[path = "support/frames.rs"]
mod frames;
mod support;

use std::io::Read;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use flatout_engine::websocket::{Message, Socket, SocketHandlers, WebSocketPlan, upgrade};
use flatout_engine::{Body, Carrier, Limits, Reply, Request, Response, Service, Worker};
use flatout_wire::Status;
use flatout_wire::h2::{Code, Limits as MachineLimits, StreamId};
use flatout_wire::websocket::{Opcode, UpgradeOffer, close_payload};
use frames::{frame, frames};
use support::Running;
use support::h2::H2Client;

/// Bytes that a handler may leave unsent.
const UNSENT_BYTES_MAX: usize = 1 << 20;

struct Sockets {
    worker: Worker,
    gone: Sender<()>,
}

struct Bell(Sender<()>);

impl Drop for Bell {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

impl Service for Sockets {
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let bell = Bell(self.gone.clone());
        let plan = WebSocketPlan {
            unsent_bytes_full: 64 << 10,
            unsent_bytes_max: UNSENT_BYTES_MAX,
            ..WebSocketPlan::default()
        };
        match request.path {
            b"/page" => drop(response.set_body(Body::Static(b"a page"))),
            b"/403" => drop(response.set_status(Status::FORBIDDEN)),
            b"/switch" => drop(response.set_status(Status::SWITCHING_PROTOCOLS)),
            b"/later" => {
                return Reply::Later(Box::pin(async {
                    tokio::task::yield_now().await;
                    let mut response = Response::new();
                    response.set_body(Body::Static(b"a page"));
                    response
                }));
            }
            b"/dropped" => {
                response.set_status(Status::SWITCHING_PROTOCOLS);
                response.set_body(Body::Take(Box::new(|_| Box::pin(std::future::ready(())))));
            }
            b"/socket" => {
                response.set_status(Status::SWITCHING_PROTOCOLS);
                response.set_body(Body::Take(Box::new(|taken| Box::pin(repeat(taken.carrier)))));
            }
            path => {
                let is_flood = path == b"/flood";
                let handler = move |socket: &Socket, message: Message<'_>| {
                    let _bell = &bell;
                    match message {
                        Message::Text("bye") => socket.close(4000, "goodbye"),
                        message if is_flood => (0..100).for_each(|_| socket.send(message)),
                        message => socket.send(message),
                    }
                };
                let asked = UpgradeOffer::of(&request.head).expect("a request for a WebSocket");
                upgrade(asked, &plan, &self.worker, SocketHandlers::new(handler), response);
            }
        }
        Reply::Now
    }
}

/// Repeats bytes, by code that needs a socket.
async fn repeat(carrier: Carrier) {
    let socket = std::os::unix::net::UnixStream::from(carrier.into_socket().unwrap());
    let mut socket = tokio::net::UnixStream::from_std(socket).unwrap();
    let (mut from, mut to) = socket.split();
    tokio::io::copy(&mut from, &mut to).await.unwrap();
}

fn serving(limits: Limits) -> (Running, Receiver<()>) {
    let (gone, heard) = channel();
    let running = Running::serving(limits, move |worker| {
        Box::new(Sockets { worker: worker.clone(), gone: gone.clone() })
    });
    (running, heard)
}

fn opened(client: &mut H2Client, path: &str) -> StreamId {
    let stream = client.websocket(path, &[]);
    client.until(|client| client.got[&stream].status != 0);
    assert_eq!(client.got[&stream].status, 200, "{path}");
    stream
}

#[test]
fn messages_flow_both_ways_during_requests() {
    let (running, gone) = serving(Limits::default());
    let mut client = H2Client::new(running.connect());
    let streams: Vec<_> = (0..50).map(|_| opened(&mut client, "/echo")).collect();
    let got = &client.got[&streams[0]];
    assert_eq!((got.field("upgrade"), got.field("sec-websocket-accept")), (None, None));
    let long = "x".repeat(300_000);
    for (number, stream) in streams.iter().enumerate() {
        client.say(*stream, &frame(Opcode::Text, format!("{number}").as_bytes()));
        client.say(*stream, &frame(Opcode::Text, if number == 7 { long.as_bytes() } else { b"short" }));
    }
    let page = client.get("/page");
    assert_eq!(client.finish(page).body, b"a page");
    for (number, stream) in streams.iter().enumerate() {
        client.until(|client| frames(&client.got[stream].body).len() == 2);
        let expected = if number == 7 { &long } else { "short" };
        assert!(frames(&client.got[stream].body) == [&number.to_string(), expected]);
    }
    // Each side ends one.
    client.say(streams[0], &frame(Opcode::Text, b"bye"));
    client.until(|client| client.got[&streams[0]].is_over);
    assert_eq!(frames(&client.got[&streams[0]].body)[2..], ["close 4000"]);
    client.say(streams[1], &frame(Opcode::Close, &close_payload(1000, "")));
    client.until(|client| client.got[&streams[1]].is_over);
    assert_eq!(frames(&client.got[&streams[1]].body)[2..], ["close 1000"]);
    assert_eq!(client.got[&streams[1]].reset, None);
    // One is reset, and one is at its end without a word: both are gone at once.
    gone.try_iter().for_each(drop);
    client.machine.release(streams[2], &mut client.out);
    client.send();
    gone.recv_timeout(Duration::from_secs(30)).expect("a handler that is dropped");
    client.end(streams[3]);
    assert!(client.finish(streams[3]).is_over);
    // The connection and its other streams continue.
    client.say(streams[4], &frame(Opcode::Text, b"still here"));
    client.until(|client| frames(&client.got[&streams[4]].body).len() == 3);
}

#[test]
fn takeover_can_use_stream_as_socket() {
    let (running, _gone) = serving(Limits::default());
    let mut client = H2Client::new(running.connect());
    let stream = opened(&mut client, "/socket");
    let much: Vec<u8> = (0..2_000_000u32).map(|at| (at % 251) as u8).collect();
    client.say(stream, &much);
    client.end(stream);
    // The service reads to the end; data that it writes afterwards still arrives.
    let got = client.finish(stream);
    assert!(got.is_over && got.reset.is_none() && got.body == much, "{} bytes", got.body.len());
}

#[test]
fn requests_without_a_websocket_service_are_refused() {
    let (running, _gone) = serving(Limits::default());
    let mut client = H2Client::new(running.connect());
    for (path, status) in [("/page", 501), ("/later", 501), ("/switch", 501), ("/403", 403), ("/..%2f", 400)]
    {
        let stream = client.websocket(path, &[]);
        let got = client.finish(stream);
        assert_eq!((got.status, got.is_over), (status, true), "{path}");
    }
    let stream = client.websocket("/dropped", &[]);
    let got = client.finish(stream);
    assert_eq!((got.status, got.is_over, got.body), (200, true, Vec::new()));
    // The version is that of RFC 6455.
    let stream = client.websocket("/echo", &[("sec-websocket-version", "8")]);
    assert_eq!(client.finish(stream).status, 426);
    let stream = client.get("/page");
    assert_eq!(client.finish(stream).status, 200);
}

#[test]
fn extended_connect_is_offered_only_if_enabled() {
    for is_on in [true, false] {
        let (running, _gone) = serving(Limits { http2_websockets: is_on, ..Limits::default() });
        let mut client = H2Client::new(running.connect());
        let stream = client.get("/page");
        client.finish(stream);
        assert_eq!(client.machine.can_connect_protocol(), is_on);
    }
}

/// A slow side costs at most windows and named limits, and does not affect other streams.
#[test]
fn backpressure_applies_in_both_directions() {
    let (running, gone) = serving(Limits { rate_min_bytes_per_s: 0, ..Limits::default() });
    let limits = MachineLimits { stream_window: 1000, streams_max: 1000, ..MachineLimits::default() };
    let mut client = H2Client::with(running.connect(), limits);
    client.consumes = false;
    // The echo has no window, so the server stops reading, and the client's window closes too.
    let stream = opened(&mut client, "/echo");
    (0..400).for_each(|_| client.say(stream, &frame(Opcode::Binary, &[7; 1000])));
    client.until(|client| client.got[&stream].body.len() == 1000);
    let page = client.get("/page");
    assert_eq!(client.finish(page).body, b"a page");
    let taken = 400 * 1008 - client.unsent_bytes(stream);
    assert!((60_000..300_000).contains(&taken), "{taken} bytes were taken");
    // A handler that keeps sending loses its client.
    gone.try_iter().for_each(drop);
    let stream = opened(&mut client, "/flood");
    client.say(stream, &frame(Opcode::Binary, &[7; 20_000]));
    client.send();
    gone.recv_timeout(Duration::from_secs(30)).expect("a handler that is dropped");
    let page = client.get("/page");
    assert_eq!(client.finish(page).body, b"a page");
}

#[test]
fn drain_closes_websockets() {
    let (mut running, _gone) = serving(Limits::default());
    let mut client = H2Client::new(running.connect());
    let streams = [opened(&mut client, "/echo"), opened(&mut client, "/echo")];
    running.handle.drain();
    for stream in streams {
        client.until(|client| client.got[&stream].is_over);
        assert_eq!(frames(&client.got[&stream].body), ["close 1001"]);
    }
    client.close();
    assert_eq!(client.goaways, [(i32::MAX as u32, Code::NO_ERROR), (3, Code::NO_ERROR)]);
    running.wait();
    assert_eq!(client.socket.read(&mut [0]).unwrap_or(0), 0);
}
