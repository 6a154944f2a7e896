//! WebSockets of clients over HTTP/2, passed on to an upstream over HTTP/1.1.

#[path = "../../engine/tests/support/h2.rs"]
#[allow(dead_code, reason = "it has more than this needs")]
mod h2_client;
mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use flatout_wire::websocket::accept_key;
use h2_client::H2Client;
use support::{Running, one, read_request, upstream};

/// Accepts a WebSocket with these fields for the request's key, and echoes all data.
fn repeating(accept: impl Fn(&str) -> String + Send + Sync + 'static) -> (SocketAddr, Receiver<String>) {
    let (sender, asked) = channel();
    let sender = std::sync::Mutex::new(sender);
    let address = upstream(move |_, mut stream: TcpStream| {
        let Some(request) = read_request(&mut stream) else { return };
        let key =
            request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap_or_default();
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Protocol: chat\r\n{}\r\nfirst",
            accept(key)
        );
        let _ = sender.lock().unwrap().send(request);
        stream.write_all(head.as_bytes()).unwrap();
        let mut buffer = vec![0; 100_000];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
        let _ = stream.write_all(b"end");
        let _ = stream.shutdown(Shutdown::Write);
    });
    (address, asked)
}

fn accepted(key: &str) -> String {
    format!("Sec-WebSocket-Accept: {}\r\n", accept_key(key.as_bytes()))
}

#[test]
fn a_websocket_reaches_an_upstream_of_http1() {
    let (address, asked) = repeating(accepted);
    let proxy = Running::to(one(address));
    let mut client = H2Client::new(proxy.connect());
    let fields = [("sec-websocket-protocol", "chat"), ("sec-websocket-key", "of no use"), ("x-a", "b")];
    let streams: Vec<_> = (0..3).map(|_| client.websocket("/chat?room=1", &fields)).collect();
    let body: Vec<u8> = (0..2_000_000u32).map(|at| (at % 251) as u8).collect();
    for stream in &streams {
        // Sent before there is a response: it waits for the tunnel.
        client.say(*stream, &body);
        client.end(*stream);
    }
    for stream in &streams {
        let got = client.finish(*stream);
        assert_eq!((got.status, got.is_over, got.reset), (200, true, None));
        assert_eq!(got.field("sec-websocket-protocol"), Some("chat"));
        for field in ["sec-websocket-accept", "upgrade", "connection"] {
            assert_eq!(got.field(field), None);
        }
        assert!(got.body == [b"first", &body[..], b"end"].concat(), "{}", got.body.len());
    }
    let requests: Vec<String> = asked.try_iter().collect();
    assert_eq!(requests.len(), 3);
    let key = |request: &String| request.split("Sec-WebSocket-Key: ").nth(1).unwrap()[..24].to_owned();
    for request in &requests {
        assert!(request.starts_with("GET /chat?room=1 HTTP/1.1\r\nHost: t\r\n"), "{request}");
        assert!(request.contains("\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"), "{request}");
        assert!(request.contains("\r\nsec-websocket-version: 13\r\n"), "{request}");
        assert_eq!(request.to_lowercase().matches("sec-websocket-key").count(), 1, "{request}");
    }
    assert_ne!(key(&requests[0]), key(&requests[1]));
}

#[test]
fn upstreams_without_a_valid_accept_field_are_refused() {
    for accept in ["", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"] {
        let (address, _asked) = repeating(move |_| accept.to_owned());
        let proxy = Running::to(one(address));
        let mut client = H2Client::new(proxy.connect());
        let stream = client.websocket("/", &[]);
        assert_eq!(client.finish(stream).status, 502, "{accept}");
    }
    // One that serves a page, and one that refuses.
    for (answer, status) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 501),
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", 403),
    ] {
        let (address, _asked) = support::answering(answer);
        let proxy = Running::to(one(address));
        let mut client = H2Client::new(proxy.connect());
        let stream = client.websocket("/", &[]);
        assert_eq!(client.finish(stream).status, status);
    }
}

/// The upstream's connection ends with the stream, and the stream with the upstream's connection.
#[test]
fn either_side_closes_the_tunnel() {
    let (sender, ended) = channel();
    let sender = std::sync::Mutex::new(sender);
    let address = upstream(move |_, mut stream| {
        let request = read_request(&mut stream).unwrap();
        let key = request.split("Sec-WebSocket-Key: ").nth(1).unwrap()[..24].to_owned();
        let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
        stream.write_all(format!("{head}{}\r\n", accepted(&key)).as_bytes()).unwrap();
        if request.starts_with("GET /stays") {
            let _ = stream.read_to_end(&mut Vec::new());
            let _ = sender.lock().unwrap().send(());
        }
    });
    let proxy = Running::to(one(address));
    let mut client = H2Client::new(proxy.connect());
    let stream = client.websocket("/goes", &[]);
    assert_eq!(client.finish(stream).status, 200);
    let stream = client.websocket("/stays", &[]);
    client.until(|client| client.got[&stream].status == 200);
    client.machine.release(stream, &mut client.out);
    client.send();
    ended.recv_timeout(std::time::Duration::from_secs(30)).expect("the upstream's end");
}

/// The client of the `h2` crate.
#[test]
fn the_h2_crate_can_open_a_websocket() {
    let (address, _asked) = repeating(accepted);
    let proxy = Running::to(one(address));
    support::h2::client(proxy.address, async |send| {
        let mut send = send.ready().await.unwrap();
        while !send.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        let request = http::Request::builder()
            .method(http::Method::CONNECT)
            .uri(format!("http://{}/chat", proxy.address))
            .extension(h2::ext::Protocol::from_static("websocket"))
            .header("sec-websocket-version", "13")
            .body(())
            .unwrap();
        let (response, mut stream) = send.send_request(request, false).unwrap();
        let mut response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        stream.send_data("hello".into(), true).unwrap();
        let (body, _) = support::h2::read_content(response.body_mut()).await.unwrap();
        assert_eq!(body, b"firsthelloend");
    });
}
