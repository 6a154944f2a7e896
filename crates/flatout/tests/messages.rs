//! WebSockets with a plain function, tested with another implementation's client.

#[path = "../../engine/tests/support/attempts.rs"]
mod attempts;
mod socket;

use std::time::Duration;

use flatout::{App, Message as Sent, WebSocketPlan};
use futures_util::{SinkExt, StreamExt};
use socket::{Served, TIME_MAX, ask, serve};
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

fn echo(plan: WebSocketPlan) -> Served {
    serve(
        App::new()
            .get("/own", || "own")
            .websocket_with("/echo", plan, |socket, message| socket.send(message))
            .websocket("/panics", |_, _| panic!("as the test wants it"))
            .websocket("/bye", |socket, message| {
                socket.send(message);
                socket.close(4001, "enough");
                socket.send(Sent::Text("nobody hears this"));
            }),
    )
}

fn run<T>(task: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIME_MAX, task).await.unwrap() })
}

async fn open(server: &Served, path: &str) -> WebSocketStream<tokio::net::TcpStream> {
    let stream = tokio::net::TcpStream::connect(&server.address).await.unwrap();
    client_async(format!("ws://t{path}"), stream).await.unwrap().0
}

/// Code and reason of the server's Close frame; `None` if the connection ended without one.
async fn end(socket: &mut WebSocketStream<tokio::net::TcpStream>) -> Option<(u16, String)> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Close(Some(frame)))) => {
                return Some((frame.code.into(), frame.reason.to_string()));
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return None,
        }
    }
}

#[test]
fn messages_are_echoed_whole_and_in_pieces() {
    let server = echo(WebSocketPlan::default());
    run(async {
        let mut socket = open(&server, "/echo").await;
        for message in [
            Message::text("hello"),
            Message::text(""),
            Message::binary(vec![0, 255, 1]),
            Message::binary(vec![7; 900_000]),
        ] {
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        for (payload, opcode, is_last) in
            [("κόσ", Data::Text, false), ("", Data::Continue, false), ("με", Data::Continue, true)]
        {
            socket.send(Message::Ping("between".into())).await.unwrap();
            let frame = Frame::message(payload.to_owned(), OpCode::Data(opcode), is_last);
            socket.send(Message::Frame(frame)).await.unwrap();
        }
        for _ in 0..3 {
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::Pong("between".into()));
        }
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("κόσμε"));
        socket.close(None).await.unwrap();
        while socket.next().await.is_some_and(|message| message.is_ok()) {}
    });
    assert!(ask(&server, &socket::get("/own")).ends_with("own"));
}

#[test]
fn the_server_ends_connections_with_a_code() {
    let mut plan = WebSocketPlan::default();
    plan.limits.message_bytes_max = 1000;
    let server = echo(plan);
    run(async {
        let mut socket = open(&server, "/bye").await;
        socket.send(Message::text("a")).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("a"));
        assert_eq!(end(&mut socket).await, Some((4001, "enough".to_owned())));
        let mut socket = open(&server, "/echo").await;
        socket.send(Message::binary(vec![0; 1001])).await.unwrap();
        assert_eq!(end(&mut socket).await, Some((1009, "message too large".to_owned())));
        let mut socket = open(&server, "/echo").await;
        let bad = Frame::message(vec![0xff], OpCode::Data(Data::Text), true);
        socket.send(Message::Frame(bad)).await.unwrap();
        assert_eq!(end(&mut socket).await, Some((1007, "invalid UTF-8".to_owned())));
        // A panic ends its own connection only.
        let mut other = open(&server, "/echo").await;
        let mut socket = open(&server, "/panics").await;
        socket.send(Message::text("a")).await.unwrap();
        assert_eq!(end(&mut socket).await, None);
        other.send(Message::text("still here")).await.unwrap();
        assert_eq!(other.next().await.unwrap().unwrap(), Message::text("still here"));
    });
}

#[test]
fn a_client_that_reads_nothing_is_not_read_either() {
    let server = echo(WebSocketPlan { unsent_bytes_full: 64 << 10, ..WebSocketPlan::default() });
    run(async {
        let socket = open(&server, "/echo").await;
        let (mut write, mut read) = socket.split();
        let sent = async {
            for n in 0..200 {
                write.send(Message::binary(vec![n; 100_000])).await.unwrap();
            }
        };
        // Its sending is blocked until it reads, and nothing is lost.
        tokio::pin!(sent);
        assert!(tokio::time::timeout(Duration::from_millis(500), &mut sent).await.is_err());
        let got = async {
            for n in 0..200 {
                assert_eq!(read.next().await.unwrap().unwrap(), Message::binary(vec![n; 100_000]));
            }
        };
        tokio::join!(sent, got);
    });
}

#[test]
fn silent_clients_are_pinged_and_then_disconnected() {
    // Its client has a second for each response.
    attempts::attempts(a_polite_client_and_a_silent_one);
}

fn a_polite_client_and_a_silent_one() {
    let server = echo(WebSocketPlan { heartbeat: Duration::from_secs(1), ..WebSocketPlan::default() });
    run(async {
        let mut polite = open(&server, "/echo").await;
        for _ in 0..3 {
            assert_eq!(polite.next().await.unwrap().unwrap(), Message::Ping("".into()));
        }
        // This client does not read its pings, so it sends no pongs.
        let mut silent = open(&server, "/echo").await.into_inner();
        let mut bytes = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut silent, &mut bytes).await.unwrap();
        assert_eq!(bytes, [0x89, 0]);
    });
}

#[test]
fn invalid_websocket_requests_are_refused() {
    let server = echo(WebSocketPlan::default());
    assert!(ask(&server, &socket::get("/echo")).starts_with("HTTP/1.1 426 "));
    let handshake = "GET /echo HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n";
    let refused = ask(&server, &format!("{handshake}Sec-WebSocket-Version: 8\r\n\r\n"));
    assert!(
        refused.starts_with("HTTP/1.1 426 ") && refused.contains("Sec-WebSocket-Version: 13\r\n"),
        "{refused}"
    );
    let refused =
        ask(&server, &format!("{handshake}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n"));
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
}

#[test]
fn draining_closes_websockets() {
    let mut served = echo(WebSocketPlan::default());
    let server = served.server.take().unwrap();
    run(async {
        let mut socket = open(&served, "/echo").await;
        socket.send(Message::text("a")).await.unwrap();
        socket.next().await.unwrap().unwrap();
        server.handle().drain();
        assert_eq!(end(&mut socket).await, Some((1001, "the server is restarting".to_owned())));
        assert!(matches!(
            socket.next().await,
            None | Some(Err(Error::ConnectionClosed | Error::AlreadyClosed))
        ));
    });
    server.wait().unwrap();
}
