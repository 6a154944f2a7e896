//! Responses that nobody wants any more: their connections are closed, however much would follow.

mod support;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use flatout_cache::Rules;
use flatout_engine::Limits;
use flatout_proxy::{Forward, Mirror};
use support::cached::Cached;
use support::{Running, last, one, read_request, read_until, upstream};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an upstream sends if nobody stops it.
const MOST_BYTES: usize = 256 << 20;

/// An upstream whose first requests, so many, get a short response; to others it sends `head` and then content without end. It
/// reports how much of that was taken.
fn endless(short_count: usize, head: &'static str) -> (SocketAddr, Receiver<usize>) {
    let (sender, taken) = channel();
    let sender = Mutex::new(sender);
    let address = upstream(move |number, mut stream| {
        if read_request(&mut stream).is_none() {
            return;
        }
        if number < short_count {
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nshort");
            return;
        }
        let piece = vec![b'x'; 256 << 10];
        let mut bytes = 0;
        let mut sent = stream.write_all(head.as_bytes());
        while sent.is_ok() && bytes < MOST_BYTES {
            sent = stream.write_all(&piece);
            bytes += piece.len();
        }
        let _ = sender.lock().unwrap().send(bytes);
    });
    (address, taken)
}

#[test]
fn a_response_that_is_too_large_for_the_cache_ends_with_its_client() {
    let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n\r\n";
    let (address, taken) = endless(0, head);
    let server = Cached::of(one(address));
    let mut client = server.send(&last("/"));
    read_until(&mut client, "\r\n\r\n");
    client.read_exact(&mut [0; 1 << 20]).unwrap();
    drop(client);
    assert!(taken.recv_timeout(PATIENCE).unwrap() < MOST_BYTES);
}

#[test]
fn a_response_to_a_copy_ends_at_its_limit() {
    let lengths = ["Content-Length: 1000000000\r\n", ""];
    for length in lengths {
        let head = format!("HTTP/1.1 200 OK\r\n{length}\r\n");
        let (address, taken) = endless(1, head.leak());
        let mirrors = vec![Mirror { upstream: 0, numerator: 1, denominator: 1 }];
        let forward = Forward { mirrors, ..Forward::to(0) };
        let proxy = Running::with(one(address), forward, Limits::default());
        assert!(proxy.all(last("/")).ends_with("short"));
        assert!(taken.recv_timeout(PATIENCE).unwrap() < MOST_BYTES, "{length}");
    }
}

#[test]
fn a_slice_that_is_longer_than_it_says_ends_there() {
    for length in ["Content-Length: 1000000000\r\n", ""] {
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"1\"\r\nCache-Control: max-age=60\r\n\
             Content-Range: bytes 0-262143/1000000\r\n{length}\r\n"
        );
        let (address, taken) = endless(0, head.leak());
        // More than one read.
        let rules = Rules { slice_bytes: Some(256 << 10), ..Rules::default() };
        let server = Cached::with(one(address), rules, 64 << 20);
        let got = server.get("/", "Range: bytes=0-9\r\n");
        assert!(got.starts_with("HTTP/1.1 502 "), "{length}: {got}");
        assert!(taken.recv_timeout(PATIENCE).unwrap() < MOST_BYTES, "{length}");
    }
}
