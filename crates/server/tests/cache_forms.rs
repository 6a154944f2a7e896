//! Compressed forms of stored responses.

mod support;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use std::io::Write;
use support::cached::{Cached, is};
use support::{one, read_request, upstream};

/// The upstream's text in each version, which compresses well.
fn text(version: usize) -> String {
    format!("version {version}: all work and no play makes jack a dull boy\n").repeat(100)
}

/// The head of a response and its body, and whether that came in gzip.
fn get(server: &Cached) -> (String, Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let request = "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    server.send(request).read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|at| at == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let is_compressed = head.contains("\r\nContent-Encoding: gzip\r\n");
    (head, bytes[end..].to_vec(), is_compressed)
}

fn unpacked(body: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(body).read_to_string(&mut text).unwrap();
    text
}

/// Requests until a hit is compressed. All responses must have this version's text.
fn compressed(server: &Cached, version: usize) {
    let began = Instant::now();
    loop {
        let (head, body, is_compressed) = get(server);
        assert!(is(&head, "HIT"), "{head}");
        if is_compressed {
            assert_eq!(unpacked(&body), text(version));
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
            return;
        }
        assert_eq!(String::from_utf8(body).unwrap(), text(version));
        assert!(began.elapsed() < Duration::from_secs(20), "it was not compressed");
        std::thread::yield_now();
    }
}

#[test]
fn a_form_is_made_once_and_goes_with_its_response() {
    let version = Arc::new(AtomicUsize::new(1));
    let of_upstream = version.clone();
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            let body = text(of_upstream.load(Ordering::SeqCst));
            let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: ";
            if write!(stream, "{head}{}\r\n\r\n{body}", body.len()).is_err() {
                return;
            }
        }
    });
    let server = Cached::that_gzips(one(address));
    assert!(is(&get(&server).0, "MISS"));
    compressed(&server, 1);
    for _ in 0..20 {
        assert!(get(&server).2, "it is there for all workers");
    }
    for at in 2..20 {
        version.store(at, Ordering::SeqCst);
        // The form is not a separate response.
        assert_eq!(server.purge("hard url http://t/"), 1);
        let (head, body, is_compressed) = get(&server);
        assert!(is(&head, "MISS") && !is_compressed, "{head}");
        assert_eq!(String::from_utf8(body).unwrap(), text(at));
        compressed(&server, at);
    }
}

/// A response keeps its compressed forms when the upstream confirms it.
#[test]
fn forms_stay_with_a_confirmed_response() {
    let address = upstream(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let head = "Cache-Control: max-age=60\r\nETag: \"a\"\r\n";
            let body = text(1);
            let sent = match request.contains("If-None-Match: ") {
                true => write!(stream, "HTTP/1.1 304 Not Modified\r\n{head}\r\n"),
                false => {
                    write!(stream, "HTTP/1.1 200 OK\r\n{head}Content-Length: {}\r\n\r\n{body}", body.len())
                }
            };
            if sent.is_err() {
                return;
            }
        }
    });
    let server = Cached::that_gzips(one(address));
    assert!(is(&get(&server).0, "MISS"));
    compressed(&server, 1);
    for _ in 0..5 {
        assert!(is(&server.get("/", "Cache-Control: no-cache\r\n"), "REVALIDATED"));
        let (head, _, is_compressed) = get(&server);
        assert!(is(&head, "HIT") && is_compressed, "{head}");
    }
}
