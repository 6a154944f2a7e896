//! Connections that mounted services take over: axum's WebSocket, with real clients; and WebSockets over HTTP/2.

#[path = "../../engine/tests/support/h2.rs"]
#[allow(dead_code, reason = "it has more than this needs")]
mod h2;
mod socket;

use std::io::{Read, Write};
use std::net::TcpStream;

use axum::Extension;
use axum::extract::ws::{Message as Sent, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::{any, get};
use flatout::{App, Peer, Shutdown};
use flatout_wire::websocket::{Opcode, write_frame};
use futures_util::{SinkExt, StreamExt};
use socket::{Served, TIME_MAX, ask, connect, serve};
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if matches!(message, Sent::Text(_) | Sent::Binary(_)) && socket.send(message).await.is_err() {
            return;
        }
    }
}

/// Closes with a message when the server shuts down.
async fn polite(mut socket: WebSocket, mut shutdown: Shutdown) {
    shutdown.begun().await;
    let _ = socket.send(Sent::Text("goodbye".into())).await;
    let _ = socket.send(Sent::Close(None)).await;
}

fn app() -> App {
    let refused = async |Extension(_): Extension<Peer>, _: WebSocketUpgrade| http::StatusCode::FORBIDDEN;
    let panics = async |_: WebSocketUpgrade| -> Response { panic!("as the test wants it") };
    let panics_later =
        async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(async |_| panic!("as the test wants it"));
    let router = axum::Router::new()
        .route("/echo", any(async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo)))
        .route(
            "/polite",
            any(async |upgrade: WebSocketUpgrade, Extension(shutdown): Extension<Shutdown>| {
                upgrade.on_upgrade(move |socket| polite(socket, shutdown))
            }),
        )
        .route("/refused", get(refused))
        .route("/panics", get(panics))
        .route("/panics-later", get(panics_later))
        .route("/plain", get(async || "plain"));
    App::new().get("/own", || "own").mount("/ws", router)
}

fn handshake(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n\r\n",
        generate_key()
    )
}

fn run<T>(task: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIME_MAX, task).await.unwrap() })
}

async fn open(server: &Served, path: &str) -> Result<WebSocketStream<tokio::net::TcpStream>, Error> {
    let stream = tokio::net::TcpStream::connect(&server.address).await.unwrap();
    client_async(format!("ws://t{path}"), stream).await.map(|(socket, _)| socket)
}

/// Reads a response's head, and the bytes received after it.
fn read_head(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let behind = bytes.split_off(at + 4);
            return (String::from_utf8(bytes).unwrap(), behind);
        }
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the connection ended inside of a head");
        bytes.extend_from_slice(&piece[..count]);
    }
}

#[test]
fn messages_are_echoed() {
    let server = serve(app());
    run(async {
        let mut socket = open(&server, "/ws/echo").await.unwrap();
        for text in ["a".to_owned(), "b".repeat(300_000)] {
            socket.send(Message::text(text.clone())).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::text(text));
        }
        socket.close(None).await.unwrap();
        while socket.next().await.is_some_and(|message| message.is_ok()) {}
    });
    // The connection is counted until it has ended, and not longer.
    assert!(ask(&server, &socket::get("/own")).ends_with("own"));
}

#[test]
fn websockets_work_over_unix_sockets() {
    let path = format!("{}/websocket.sock", env!("CARGO_TARGET_TMPDIR"));
    let server = app().listen(&format!("unix:{path}")).workers(1).start().unwrap();
    run(async {
        let stream = tokio::net::UnixStream::connect(&path).await.unwrap();
        let (mut socket, _) = client_async("ws://t/ws/echo", stream).await.unwrap();
        socket.send(Message::text("a")).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("a"));
    });
    server.handle().drain();
    server.wait().unwrap();
}

#[test]
fn a_frame_in_the_packet_of_the_head_is_not_lost() {
    let server = serve(app());
    let mut stream = connect(&server);
    let mut packet = handshake("/ws/echo").into_bytes();
    // A masked text frame, "hi", with the mask 0 (RFC 6455 section 5.2).
    packet.extend_from_slice(&[0x81, 0x82, 0, 0, 0, 0, b'h', b'i']);
    stream.write_all(&packet).unwrap();
    let (head, behind) = read_head(&mut stream);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    run(async {
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let mut socket = WebSocketStream::from_partially_read(stream, behind, Role::Client, None).await;
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hi"));
    });
}

#[test]
fn an_upgrade_behind_other_requests_of_its_connection_works() {
    let server = serve(app());
    let mut stream = connect(&server);
    let first = "GET /own HTTP/1.1\r\nHost: t\r\n\r\n";
    stream.write_all(format!("{first}{}", handshake("/ws/echo")).as_bytes()).unwrap();
    let (own, mut behind) = read_head(&mut stream);
    assert!(own.starts_with("HTTP/1.1 200 "), "{own}");
    let mut piece = [0; 4096];
    while !behind.ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0);
        behind.extend_from_slice(&piece[..count]);
    }
    assert!(behind.starts_with(b"ownHTTP/1.1 101 "), "{}", String::from_utf8_lossy(&behind));
}

#[test]
fn a_refused_upgrade_is_answered_and_the_connection_closed() {
    let server = serve(app());
    for (request, status) in [
        (handshake("/ws/refused"), "403"),
        (handshake("/ws/echo").replace("Version: 13", "Version: 12"), "400"),
        (handshake("/ws/nothing"), "404"),
        (handshake("/ws/plain"), "200"),
    ] {
        let answer = ask(&server, &format!("{request}{}", socket::get("/own")));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert!(answer.to_ascii_lowercase().contains("connection: close\r\n"), "{answer}");
    }
}

#[test]
fn ordinary_requests_stay_in_the_lane() {
    let server = serve(app());
    for request in [
        handshake("/ws/plain").replace("Upgrade: websocket", "Upgrade: h2c"),
        handshake("/ws/plain").replace("keep-alive, Upgrade", "keep-alive"),
        handshake("/ws/plain").replace("Upgrade: websocket\r\n", ""),
        handshake("/own"),
    ] {
        let answer = ask(&server, &format!("{request}{}", socket::get("/own")));
        assert_eq!(answer.matches("HTTP/1.1 200 OK\r\nServer: flatout\r\n").count(), 2, "{answer}");
    }
}

#[test]
fn a_panic_costs_one_connection() {
    let server = serve(app());
    assert_eq!(ask(&server, &handshake("/ws/panics")), "");
    run(async {
        let mut socket = open(&server, "/ws/panics-later").await.unwrap();
        assert!(socket.next().await.is_none_or(|message| message.is_err()));
        let mut other = open(&server, "/ws/echo").await.unwrap();
        other.send(Message::text("still here")).await.unwrap();
        assert_eq!(other.next().await.unwrap().unwrap(), Message::text("still here"));
    });
    assert!(ask(&server, &socket::get("/own")).ends_with("own"));
}

#[test]
fn draining_ends_them() {
    let mut served = serve(app());
    let server = served.server.take().unwrap();
    run(async {
        let mut silent = open(&served, "/ws/echo").await.unwrap();
        let mut polite = open(&served, "/ws/polite").await.unwrap();
        server.handle().drain();
        assert_eq!(polite.next().await.unwrap().unwrap(), Message::text("goodbye"));
        assert!(matches!(polite.next().await, Some(Ok(Message::Close(_)))));
        // A handler that ignores the drain finds its client disconnected.
        while silent.next().await.is_some_and(|message| message.is_ok()) {}
    });
    server.wait().unwrap();
}

#[test]
fn middleware_before_a_mounted_service_can_refuse() {
    let inner = app().before(|_| Err::<(), _>(flatout::Status::UNAUTHORIZED));
    let server = serve(inner);
    let answer = ask(&server, &handshake("/ws/echo").replace("keep-alive, ", "close, "));
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

#[test]
fn middleware_and_layers_let_them_pass() {
    let pass = async |next: flatout::middleware::Next| next.run().await;
    let server =
        serve(App::new().around(pass).with(flatout::middleware::RequestIds::new()).nest("/in", app()));
    run(async {
        let mut socket = open(&server, "/in/ws/echo").await.unwrap();
        socket.send(Message::text("hello")).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hello"));
    });
    let waits = async |next: flatout::middleware::Next| {
        tokio::task::yield_now().await;
        next.run().await
    };
    for app in [app().around(waits), app().layer(tower_http::trace::TraceLayer::new_for_http())] {
        let server = serve(app);
        run(async {
            let mut socket = open(&server, "/ws/echo").await.unwrap();
            socket.send(Message::text("hello")).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hello"));
        });
        assert!(ask(&server, &socket::get("/ws/plain")).ends_with("plain"));
    }
}

/// RFC 8441: a WebSocket of the application itself is a stream of its client's connection. Where a mounted service would need a whole
/// connection, it is not offered, so that browsers open one.
#[test]
fn websockets_work_over_http2() {
    let own = || App::new().websocket("/echo", |socket, message| socket.send(message));
    let served = serve(own());
    let mut client = h2::H2Client::new(connect(&served));
    let stream = client.websocket("/echo", &[]);
    let mut frame = Vec::new();
    write_frame(Opcode::Text, false, b"hello", Some([1, 2, 3, 4]), &mut frame);
    client.say(stream, &frame);
    client.until(|client| client.got[&stream].body == b"\x81\x05hello");
    assert_eq!(client.got[&stream].status, 200);
    let served = serve(own().nest("/nested", app()));
    let mut client = h2::H2Client::new(connect(&served));
    let stream = client.get("/nested/own");
    assert_eq!(client.finish(stream).body, b"own");
    assert!(!client.machine.can_connect_protocol());
}
