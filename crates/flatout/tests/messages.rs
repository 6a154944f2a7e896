//! WebSockets with a plain function, tested with another implementation's client.

#[path = "../../engine/tests/support/attempts.rs"]
mod attempts;
mod socket;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatout::{
    App, Extension, MailboxFull, Message as Sent, Path, Problem, SocketSender, Status, UpgradeResponse,
    WebSocketPlan, WebSocketUpgrade,
};
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

/// Everyone in a room, on any worker, and what has happened.
#[derive(Default)]
struct Room {
    members: Mutex<Vec<SocketSender>>,
    events: Mutex<Vec<String>>,
}

impl Room {
    fn note(&self, event: String) {
        self.events.lock().unwrap().push(event);
    }

    fn tell(&self, text: &str) -> Result<(), MailboxFull> {
        self.members.lock().unwrap().iter().try_for_each(|member| member.send(Sent::Text(text)))
    }
}

/// Three workers, so that members of a room are on different ones.
fn rooms(room: &Arc<Room>) -> Served {
    let room = room.clone();
    let join =
        move |Path(name): Path<String>, Extension(user): Extension<String>, asked: WebSocketUpgrade| {
            if name == "closed" {
                return Err(Problem::new(Status::FORBIDDEN));
            }
            let (opened, closed, room) = (room.clone(), room.clone(), room.clone());
            let (who, gone) = (format!("{user}@{name}"), format!("{user}@{name}"));
            Ok::<UpgradeResponse, Problem>(
                asked
                    .on_open(move |socket| {
                        opened.members.lock().unwrap().push(socket.sender());
                        opened.note(format!("{who} opened"));
                        socket.send(Sent::Text("welcome"));
                    })
                    .on_close(move |socket, code| {
                        assert!(!socket.is_open());
                        closed.members.lock().unwrap().retain(SocketSender::is_open);
                        closed.note(format!("{gone} closed with {code:?}"));
                    })
                    .on_message(move |socket, message| match message {
                        Sent::Text("leave") => socket.close(4000, "as you wish"),
                        Sent::Text("panic") => panic!("as the test wants it"),
                        Sent::Text(text) => room.tell(&format!("{user}: {text}")).unwrap(),
                        Sent::Binary(bytes) => socket.send(Sent::Binary(bytes)),
                    }),
            )
        };
    let app = App::new()
        .before(|context| {
            let name = context.header("x-user").map(|name| String::from_utf8_lossy(name).into_owned());
            context.extensions_mut().insert(name.unwrap_or_default());
            Ok::<(), Status>(())
        })
        .get("/rooms/{name}", join);
    let server = app.listen("127.0.0.1:0").workers(3).start().unwrap();
    let flatout::engine::Address::Tcp(address) = server.addresses()[0].clone() else { panic!("no address") };
    Served { address: address.to_string(), server: Some(server) }
}

async fn join(server: &Served, user: &str) -> WebSocketStream<tokio::net::TcpStream> {
    use tokio_tungstenite::tungstenite::client::IntoClientRequest;
    let mut request = "ws://t/rooms/lobby".into_client_request().unwrap();
    request.headers_mut().insert("X-User", user.parse().unwrap());
    let stream = tokio::net::TcpStream::connect(&server.address).await.unwrap();
    let mut socket = client_async(request, stream).await.unwrap().0;
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("welcome"));
    socket
}

#[test]
fn a_message_reaches_sockets_of_all_workers() {
    let room = Arc::new(Room::default());
    let server = rooms(&room);
    run(async {
        let mut members = Vec::new();
        for number in 0..12 {
            members.push(join(&server, &format!("u{number}")).await);
        }
        members[3].send(Message::text("hello")).await.unwrap();
        for member in &mut members {
            assert_eq!(member.next().await.unwrap().unwrap(), Message::text("u3: hello"));
        }
        // From a thread that is no worker.
        std::thread::scope(|scope| {
            scope.spawn(|| room.tell("news").unwrap());
        });
        for member in &mut members {
            assert_eq!(member.next().await.unwrap().unwrap(), Message::text("news"));
        }
    });
    let opened = room.events.lock().unwrap().iter().filter(|event| event.ends_with("opened")).count();
    assert_eq!(opened, 12, "each was opened once");
}

#[test]
fn closings_are_reported_once_whoever_ends_the_connection() {
    let room = Arc::new(Room::default());
    let server = rooms(&room);
    let until = |count: usize| {
        let begun = std::time::Instant::now();
        while room.events.lock().unwrap().iter().filter(|event| event.contains("closed")).count() < count {
            assert!(begun.elapsed() < TIME_MAX, "{:?}", room.events.lock().unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    run(async {
        let mut by_server = join(&server, "a").await;
        by_server.send(Message::text("leave")).await.unwrap();
        assert_eq!(end(&mut by_server).await, Some((4000, "as you wish".to_owned())));
        until(1);
        let mut by_client = join(&server, "b").await;
        by_client.close(None).await.unwrap();
        until(2);
        drop(join(&server, "c").await);
        until(3);
        // From another thread, by its sender.
        let mut by_sender = join(&server, "d").await;
        let sender = room.members.lock().unwrap().last().cloned().unwrap();
        sender.close(4001, "closed for today").unwrap();
        assert_eq!(end(&mut by_sender).await, Some((4001, "closed for today".to_owned())));
        until(4);
        assert!(!sender.is_open());
        assert_eq!(sender.send(Sent::Text("nobody hears this")), Ok(()));
        let mut by_panic = join(&server, "e").await;
        by_panic.send(Message::text("panic")).await.unwrap();
        assert_eq!(end(&mut by_panic).await, None);
        until(5);
    });
    let events = room.events.lock().unwrap().clone();
    let closed: Vec<&String> = events.iter().filter(|event| event.contains("closed")).collect();
    assert_eq!(closed[0], "a@lobby closed with None");
    assert!(
        closed[1].starts_with("b@lobby closed with") && closed[2] == "c@lobby closed with None",
        "{closed:?}"
    );
    assert_eq!(closed[4], "e@lobby closed with None");
    assert_eq!((closed.len(), room.members.lock().unwrap().len()), (5, 0));
}

#[test]
fn other_requests_and_refusals_get_plain_responses() {
    let server = rooms(&Arc::default());
    let plain = ask(&server, &socket::get("/rooms/lobby"));
    assert!(plain.starts_with("HTTP/1.1 426 ") && plain.contains("Upgrade: websocket\r\n"), "{plain}");
    let refused = ask(
        &server,
        "GET /rooms/closed HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
}
