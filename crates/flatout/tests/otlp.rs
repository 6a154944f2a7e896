//! Spans arrive at a collector.

mod socket;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use flatout::{App, Otlp};
use socket::{ask, serve};
use tracing_subscriber::layer::SubscriberExt;

/// A collector that accepts everything and passes it to the test.
fn collector() -> (String, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, bodies) = channel();
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| take(stream, &sender)));
    (address, bodies)
}

fn take(mut stream: TcpStream, sender: &Sender<Vec<u8>>) {
    stream.set_read_timeout(Some(socket::TIME_MAX)).unwrap();
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let Ok(count @ 1..) = stream.read(&mut piece) else { return };
        received.extend_from_slice(&piece[..count]);
        let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap();
        let length: usize = length.trim().parse().unwrap();
        if received.len() < end + 4 + length {
            continue;
        }
        assert!(head.starts_with("post /v1/traces "), "{head}");
        let _ = sender.send(received.split_off(end + 4));
        let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let _ = stream.write_all(answer.as_bytes());
        return;
    }
}

#[test]
fn spans_of_requests_arrive_with_the_clients_trace() {
    let (address, bodies) = collector();
    let otlp = Otlp::to(&address, "the-shop").unwrap();
    // This program has a single test: workers are separate threads, which only the global subscriber reaches.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(otlp.layer())).unwrap();
    let stopped = otlp.clone();
    let app = App::new()
        .with(Otlp::middleware())
        .get("/items/{id}", async || {
            tokio::task::yield_now().await;
            "item"
        })
        .on_stop(async move || stopped.stop());
    let server = serve(app);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request = format!(
        "GET /items/7?a=b HTTP/1.1\r\nHost: t\r\ntraceparent: 00-{trace}-00f067aa0ba902b7-01\r\nConnection: close\r\n\r\n"
    );
    assert!(ask(&server, &request).ends_with("item"));
    drop(server);
    let sent: Vec<u8> = bodies.try_iter().flatten().collect();
    let has = |wanted: &[u8]| sent.windows(wanted.len()).any(|window| window == wanted);
    for wanted in
        ["the-shop", "GET /items/{id}", "http.route", "url.path", "/items/7", "http.response.status_code"]
    {
        assert!(has(wanted.as_bytes()), "{wanted}: {}", String::from_utf8_lossy(&sent));
    }
    let id: Vec<u8> =
        (0..trace.len()).step_by(2).map(|at| u8::from_str_radix(&trace[at..at + 2], 16).unwrap()).collect();
    assert!(has(&id), "the trace is the client's");
}

#[test]
fn invalid_addresses_are_refused() {
    assert!(Otlp::to("not an address", "x").is_err());
}
