//! Responses whose clients are slower than their upstreams.

#[path = "support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use flatout_proxy::{Forward, SpoolFigures, SpoolPlan};

use support::{Running, h2, one, read_request, read_until, upstream};

/// More than the sockets on the way take.
const BYTES: usize = 20 << 20;

/// How long something may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// The start of a body of which each part is recognised.
fn body(bytes: usize) -> &'static [u8] {
    static BODY: LazyLock<Vec<u8>> = LazyLock::new(|| {
        (0..BYTES as u32 / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
    });
    &BODY[..bytes]
}

/// An upstream that sends `head` and then what `write` writes, and reports when it is rid of it.
fn sending(
    head: &'static str,
    write: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
) -> (SocketAddr, Receiver<bool>) {
    let (sender, done): (Sender<bool>, _) = channel();
    let sender = Mutex::new(sender);
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            let sent = stream.write_all(head.as_bytes()).and_then(|()| write(&mut stream));
            let _ = sender.lock().unwrap().send(sent.is_ok());
            if sent.is_err() || !head.contains(':') {
                return;
            }
        }
    });
    (address, done)
}

fn by_length() -> (SocketAddr, Receiver<bool>) {
    sending("HTTP/1.1 200 OK\r\nContent-Length: 20971520\r\n\r\n", |stream| stream.write_all(body(BYTES)))
}

/// A folder of one test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("flatout-spool-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Files in it would have names.
        std::fs::remove_dir(&self.0).unwrap();
    }
}

fn spooling(address: SocketAddr, folder: &Folder) -> Running {
    let running = Running::to(one(address));
    running.proxy.set_spool(SpoolPlan { folder: Some(folder.0.clone()), ..SpoolPlan::default() });
    running
}

fn ask(running: &Running) -> TcpStream {
    let mut client = running.connect();
    client.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    client
}

fn bytes_after_head(client: &mut TcpStream) -> Vec<u8> {
    read_until(client, "\r\n\r\n");
    let mut bytes = Vec::new();
    let _ = client.read_to_end(&mut bytes);
    bytes
}

/// Waits until nothing is kept any more.
fn assert_empty(running: &Running) -> SpoolFigures {
    let until = Instant::now() + PATIENCE;
    loop {
        let figures = running.proxy.spooled();
        if (figures.now, figures.memory_bytes, figures.file_bytes) == (0, 0, 0) {
            return figures;
        }
        assert!(Instant::now() < until, "{figures:?}");
        std::thread::yield_now();
    }
}

#[test]
fn an_upstream_is_let_go_before_its_slow_client_has_read() {
    let folder = Folder::new();
    let (address, done) = by_length();
    let running = spooling(address, &folder);
    let mut client = ask(&running);
    assert_eq!(
        done.recv_timeout(PATIENCE),
        Ok(true),
        "the upstream has sent all, and the client read nothing"
    );
    let figures = running.proxy.spooled();
    assert!(figures.file_bytes > 0 && figures.now == 1, "{figures:?}");
    assert!(bytes_after_head(&mut client) == body(BYTES));
    assert_eq!(assert_empty(&running).responses, 1);
}

#[test]
fn the_connection_carries_the_next_request_meanwhile() {
    let folder = Folder::new();
    let (address, done) = by_length();
    let running = spooling(address, &folder);
    let (mut first, mut second) = (ask(&running), ask(&running));
    assert_eq!([done.recv_timeout(PATIENCE), done.recv_timeout(PATIENCE)], [Ok(true); 2]);
    let mut third = ask(&running);
    assert_eq!(done.recv_timeout(PATIENCE), Ok(true));
    for client in [&mut third, &mut first, &mut second] {
        assert!(bytes_after_head(client) == body(BYTES));
    }
    assert_empty(&running);
}

#[test]
fn chunks_and_trailers_arrive_as_they_were_sent() {
    let folder = Folder::new();
    let (address, done) = sending("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", |stream| {
        for (number, part) in body(BYTES).chunks(100_000).enumerate() {
            // Large and tiny ones in turn.
            let (tiny, large) = part.split_at(number % 7);
            for part in [tiny, large].into_iter().filter(|part| !part.is_empty()) {
                stream.write_all(format!("{:x}\r\n", part.len()).as_bytes())?;
                stream.write_all(part)?;
                stream.write_all(b"\r\n")?;
            }
        }
        stream.write_all(b"0\r\nX-Sum: 7\r\n\r\n")
    });
    let running = spooling(address, &folder);
    let mut client = ask(&running);
    assert_eq!(done.recv_timeout(PATIENCE), Ok(true));
    assert!(running.proxy.spooled().file_bytes > 0);
    let raw = bytes_after_head(&mut client);
    let (content, trailers) = unchunked(&raw);
    assert!(content == body(BYTES));
    assert_eq!(trailers, "X-Sum: 7\r\n\r\n");
    assert_empty(&running);
}

/// The content of a chunked body, and what follows the last chunk.
fn unchunked(mut raw: &[u8]) -> (Vec<u8>, String) {
    let mut content = Vec::new();
    loop {
        let line = raw.windows(2).position(|at| at == b"\r\n").unwrap();
        let length = usize::from_str_radix(std::str::from_utf8(&raw[..line]).unwrap(), 16).unwrap();
        raw = &raw[line + 2..];
        if length == 0 {
            return (content, String::from_utf8_lossy(raw).into_owned());
        }
        content.extend_from_slice(&raw[..length]);
        raw = &raw[length + 2..];
    }
}

#[test]
fn a_body_until_close_is_whole() {
    let folder = Folder::new();
    let (address, done) = sending("HTTP/1.1 200 OK\r\n\r\n", |stream| stream.write_all(body(BYTES)));
    let running = spooling(address, &folder);
    let mut client = ask(&running);
    assert_eq!(done.recv_timeout(PATIENCE), Ok(true));
    let (content, _) = unchunked(&bytes_after_head(&mut client));
    assert!(content == body(BYTES));
    assert_empty(&running);
}

#[test]
fn the_bytes_of_an_upstream_that_dies_arrive_before_the_cut() {
    let folder = Folder::new();
    let (address, done) = sending("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", |stream| {
        stream.write_all(body(BYTES))?;
        stream.shutdown(std::net::Shutdown::Both)
    });
    let running = spooling(address, &folder);
    let mut client = ask(&running);
    assert_eq!(done.recv_timeout(PATIENCE), Ok(true));
    assert!(bytes_after_head(&mut client) == body(BYTES), "all of it, and no more");
    assert_empty(&running);
}

#[test]
fn a_client_that_leaves_lets_its_upstream_go() {
    let folder = Folder::new();
    let (began, begun) = channel();
    let began = Mutex::new(began);
    let (address, done) = sending("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", move |stream| {
        stream.write_all(body(BYTES))?;
        let _ = began.lock().unwrap().send(());
        // Silent from now on: only a closed connection ends this.
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap_or(0), 0);
        Ok(())
    });
    let running = spooling(address, &folder);
    let client = ask(&running);
    begun.recv_timeout(PATIENCE).unwrap();
    assert!(running.proxy.spooled().now == 1);
    drop(client);
    assert_eq!(done.recv_timeout(PATIENCE), Ok(true), "the upstream's connection was closed");
    assert_empty(&running);
}

#[test]
fn content_that_the_client_has_read_makes_room_in_the_limit_of_the_file() {
    const TIMES: usize = 6;
    let folder = Folder::new();
    let (go, goes) = channel();
    let (rid, is_rid) = channel();
    let both = Mutex::new((goes, rid));
    let (address, _done) = sending("HTTP/1.1 200 OK\r\nContent-Length: 251658240\r\n\r\n", move |stream| {
        let (goes, rid) = &*both.lock().unwrap();
        for _ in 0..TIMES {
            let _ = goes.recv_timeout(PATIENCE);
            stream.write_all(body(BYTES))?;
            stream.write_all(body(BYTES))?;
            let _ = rid.send(());
        }
        Ok(())
    });
    let forward = Forward { buffer_response_bytes: 2 * BYTES as u64, ..Forward::to(0) };
    let running = Running::with(one(address), forward, Default::default());
    running.proxy.set_spool(SpoolPlan { folder: Some(folder.0.clone()), ..SpoolPlan::default() });
    let mut client = ask(&running);
    for time in 0..TIMES {
        go.send(()).unwrap();
        is_rid.recv_timeout(PATIENCE).expect("the upstream has sent all, and the client read nothing");
        assert!(running.proxy.spooled().file_bytes <= 2 * BYTES as u64, "{:?}", running.proxy.spooled());
        if time == 0 {
            read_until(&mut client, "\r\n\r\n");
        }
        for _ in 0..2 {
            let mut bytes = vec![0; BYTES];
            client.read_exact(&mut bytes).unwrap();
            assert!(bytes == body(BYTES));
        }
    }
    drop(client);
    assert_empty(&running);
}

#[test]
fn an_upstream_waits_at_every_limit_and_nothing_is_lost() {
    let gone = PathBuf::from("/nonexistent/flatout");
    let small = Folder::new();
    for plan in [
        SpoolPlan { folder: Some(gone), ..SpoolPlan::default() },
        SpoolPlan { folder: Some(small.0.clone()), bytes_max: 1 << 20, ..SpoolPlan::default() },
        SpoolPlan { memory_max: 100_000, ..SpoolPlan::default() },
        SpoolPlan { folder: Some(small.0.clone()), memory_max: 100_000, ..SpoolPlan::default() },
    ] {
        let (address, done) = by_length();
        let running = Running::to(one(address));
        running.proxy.set_spool(plan.clone());
        let mut client = ask(&running);
        let until = Instant::now() + PATIENCE;
        while running.proxy.spooled().now == 0 {
            assert!(Instant::now() < until, "{plan:?}");
            std::thread::yield_now();
        }
        assert!(bytes_after_head(&mut client) == body(BYTES), "{plan:?}");
        assert_eq!(done.recv_timeout(PATIENCE), Ok(true));
        let figures = assert_empty(&running);
        assert_eq!(figures.errors > 0, plan.folder.is_some_and(|folder| !folder.exists()), "{figures:?}");
    }
}

#[test]
fn events_grpc_and_unbuffered_responses_are_not_spooled() {
    for (line, forward, is_spooled) in [
        ("Content-Type: text/event-stream; charset=utf-8", Forward::to(0), false),
        ("Content-Type: application/grpc+proto", Forward::to(0), false),
        ("X-Accel-Buffering: no", Forward::to(0), false),
        ("X-Accel-Buffering: yes", Forward { buffer_response_bytes: 0, ..Forward::to(0) }, true),
        ("Content-Type: text/plain", Forward { buffer_response_bytes: 0, ..Forward::to(0) }, false),
        ("Content-Type: text/plain", Forward::to(0), true),
    ] {
        let (began, begun) = channel();
        let began = Mutex::new(began);
        let address = upstream(move |_, mut stream| {
            read_request(&mut stream).unwrap();
            let head = format!("HTTP/1.1 200 OK\r\n{line}\r\nContent-Length: {BYTES}\r\n\r\n");
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body(BYTES)));
            let _ = began.lock().unwrap().send(());
        });
        let folder = Folder::new();
        let running = Running::with(one(address), forward, Default::default());
        running.proxy.set_spool(SpoolPlan { folder: Some(folder.0.clone()), ..SpoolPlan::default() });
        let mut client = ask(&running);
        if is_spooled {
            begun.recv_timeout(PATIENCE).unwrap();
        }
        let head = read_until(&mut client, "\r\n\r\n");
        assert!(!head.to_ascii_lowercase().contains("x-accel"), "{head}");
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).unwrap();
        assert!(bytes == body(BYTES), "{line}");
        assert_eq!(running.proxy.spooled().responses, u64::from(is_spooled), "{line}");
    }
}

#[test]
fn a_small_response_needs_no_spool() {
    let folder = Folder::new();
    let (address, _done) = sending("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", |stream| {
        stream.write_all(body(100_000))
    });
    let running = spooling(address, &folder);
    assert!(bytes_after_head(&mut ask(&running)) == body(100_000));
    assert_eq!(running.proxy.spooled(), SpoolFigures::default());
}

#[test]
fn a_client_that_still_sends_is_not_spooled_until_it_has_sent_all() {
    let folder = Folder::new();
    let address = upstream(|_, mut stream| {
        read_until(&mut stream, "\r\n\r\n");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut sending = stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || sending.write_all(body(BYTES)));
        let mut received = vec![0; BYTES];
        stream.read_exact(&mut received).unwrap();
        assert!(received == body(BYTES));
        writer.join().unwrap().unwrap();
    });
    let running = spooling(address, &folder);
    let mut client = running.connect();
    write!(client, "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {BYTES}\r\n\r\n")
        .unwrap();
    client.write_all(body(BYTES)).unwrap();
    assert!(bytes_after_head(&mut client) == body(BYTES));
    assert_empty(&running);
}

/// An HTTP/2 upstream with the same body.
fn by_h2() -> (h2::Served, Receiver<bool>) {
    let (sender, done) = channel();
    let served = h2::serving(::h2::server::Builder::new(), None, move |mut received: h2::ReceivedRequest| {
        let sender = sender.clone();
        async move {
            let mut stream = h2::begin(&mut received.respond, http::Response::new(()));
            let mut left = body(BYTES);
            while !left.is_empty() {
                stream.reserve_capacity(left.len());
                let Some(Ok(room)) = std::future::poll_fn(|context| stream.poll_capacity(context)).await
                else {
                    break;
                };
                let (piece, rest) = left.split_at(room.min(left.len()));
                left = rest;
                if stream.send_data(bytes::Bytes::from_static(piece), left.is_empty()).is_err() {
                    break;
                }
            }
            let _ = sender.send(left.is_empty());
            if !left.is_empty() {
                return;
            }
            let _ = std::future::poll_fn(|context| stream.poll_reset(context)).await;
        }
    });
    (served, done)
}

#[test]
fn streams_of_an_http2_upstream_are_let_go_too() {
    let folder = Folder::new();
    let (served, done) = by_h2();
    let running = Running::to(served.upstream());
    running.proxy.set_spool(SpoolPlan { folder: Some(folder.0.clone()), ..SpoolPlan::default() });
    let mut clients = [ask(&running), ask(&running), ask(&running)];
    for _ in &clients {
        assert_eq!(done.recv_timeout(PATIENCE), Ok(true));
    }
    assert_eq!(running.proxy.spooled().now, 3);
    for client in &mut clients {
        let (content, _) = unchunked(&bytes_after_head(client));
        assert!(content == body(BYTES));
    }
    assert_empty(&running);
    assert_eq!(served.connections(), 1);
}

#[test]
fn a_client_of_http2_gets_its_spooled_response() {
    let folder = Folder::new();
    let (address, done) = by_length();
    let running = spooling(address, &folder);
    let content = h2::client(running.address, async |mut send: ::h2::client::SendRequest<bytes::Bytes>| {
        let (response, _) = send.send_request(h2::request("GET", "/"), true).unwrap();
        let mut content = response.await.unwrap().into_body();
        // No window is opened until the upstream is rid of it.
        let rid = tokio::task::spawn_blocking(move || done.recv_timeout(PATIENCE)).await.unwrap();
        assert_eq!(rid, Ok(true));
        let mut bytes = Vec::new();
        while let Some(data) = content.data().await {
            let data = data.unwrap();
            content.flow_control().release_capacity(data.len()).unwrap();
            bytes.extend_from_slice(&data);
        }
        bytes
    });
    assert!(content == body(BYTES));
    assert_empty(&running);
}
