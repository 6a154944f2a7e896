//! Compression of streamed responses over real connections.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatout_cache::{self as cache, Cache};
use flatout_compress::Compress;
use flatout_engine::{Address, Plan, Server, start};
use flatout_proxy::{Forward, Proxy, Resolver};
use flatout_site::plan::{Action, Host, PathMatch, Route, Rules, Site};
use flatout_site::{self as site, plan};
use support::{one, read_request, read_until, upstream};

/// A server that compresses an upstream's responses.
struct Running {
    address: SocketAddr,
    server: Option<Server>,
}

impl Running {
    fn to(upstream: SocketAddr) -> Running {
        Running::with(upstream, None)
    }

    /// The same with a cache.
    fn cached(upstream: SocketAddr, rules: cache::Rules) -> Running {
        Running::with(upstream, Some((Cache::open(cache::Plan::default()), rules)))
    }

    fn with(upstream: SocketAddr, cached: Option<(Cache, cache::Rules)>) -> Running {
        let (cache, of_cache) = cached.unzip();
        let rules = Rules {
            compress: Some(Compress::default()),
            cache: of_cache.map(|rules| plan::Cached { rules, ..Default::default() }),
            ..Rules::default()
        };
        let route = Route { rules, ..Route::new(PathMatch::prefix("/"), Action::Proxy(Forward::to(0))) };
        let site = Site { hosts: vec![Host::Any], routes: vec![route], ..Site::default() };
        let upstreams = vec![one(upstream)];
        let sites = site::open(&plan::Plan {
            sites: vec![site.into()],
            upstreams: upstreams.clone(),
            ..plan::Plan::default()
        });
        let sites = sites.unwrap();
        let proxy = Proxy::open(upstreams, &Resolver::System).unwrap();
        let plan = Plan { listen: vec!["127.0.0.1:0".parse().unwrap()], workers: Some(1), ..Plan::default() };
        let server = start(plan, move |worker| {
            let proxy_worker = proxy.worker(&worker);
            sites.service(match &cache {
                Some(cache) => cache.before(&worker, proxy_worker),
                None => proxy_worker,
            })
        })
        .unwrap();
        let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
        Running { address, server: Some(server) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Head and decoded body of the response to a `GET`, and whether it was complete.
    fn get(&self, fields: &str) -> (String, Vec<u8>, bool) {
        let mut stream = self.connect();
        stream.write_all(request("GET", fields).as_bytes()).unwrap();
        let head = read_until(&mut stream, "\r\n\r\n");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        match head.contains("Transfer-Encoding: chunked") {
            true => {
                let (body, is_whole) = dechunked(&rest);
                (head, body, is_whole)
            }
            false => {
                let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                let is_whole = length.is_some_and(|length| length.parse() == Ok(rest.len()));
                (head, rest, is_whole)
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.handle().stop();
            server.wait().unwrap();
        }
    }
}

fn request(method: &str, fields: &str) -> String {
    format!("{method} / HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n")
}

fn dechunked(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let count = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        rest = &rest[end + 2..];
        if count == 0 {
            return (body, true);
        }
        let Some(data) = rest.get(..count) else { break };
        body.extend_from_slice(data);
        rest = rest.get(count + 2..).unwrap_or_default();
    }
    (body, false)
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut text).unwrap();
    text
}

/// An upstream that sends the given pieces, and closes at the end.
fn telling() -> (SocketAddr, Sender<Vec<u8>>) {
    let (sender, pieces): (_, Receiver<Vec<u8>>) = channel();
    let pieces = Arc::new(Mutex::new(pieces));
    let address = upstream(move |_, mut stream| {
        read_request(&mut stream);
        while let Ok(piece) = pieces.lock().unwrap().recv() {
            stream.write_all(&piece).unwrap();
        }
    });
    (address, sender)
}

fn answering(response: Vec<u8>) -> SocketAddr {
    upstream(move |_, mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(&response);
    })
}

fn words(bytes: usize) -> Vec<u8> {
    b"a line of text, much like the one before it\n".iter().copied().cycle().take(bytes).collect()
}

#[test]
fn bodies_of_every_size_read_back() {
    for bytes in [1 << 10, 5_000, 64 << 10, 300 << 10, 3 << 20] {
        let text = words(bytes);
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nETag: \"v\"\r\nContent-Length: {bytes}\r\n\r\n"
        );
        let running = Running::to(answering([head.as_bytes(), &text].concat()));
        let (head, body, is_whole) = running.get("Accept-Encoding: gzip\r\n");
        assert!(is_whole, "{head}");
        assert!(head.contains("Content-Encoding: gzip\r\n") && head.contains("ETag: W/\"v\"\r\n"), "{head}");
        assert!(head.contains("Vary: Accept-Encoding\r\n"), "{head}");
        assert!(body.len() < bytes / 3, "{} of {bytes}", body.len());
        assert!(gunzip(&body) == text);
    }
}

#[test]
fn a_piece_arrives_before_the_next_is_sent() {
    let (address, tell) = telling();
    let running = Running::to(address);
    let mut stream = running.connect();
    stream.write_all(request("GET", "Accept-Encoding: gzip\r\n").as_bytes()).unwrap();
    tell.send(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
            .to_vec(),
    )
    .unwrap();
    read_until(&mut stream, "\r\n\r\n");
    let (mut came, mut said) = (Vec::new(), String::new());
    for number in 0..5 {
        let line = format!("{{\"number\":{number}}}\n");
        tell.send(format!("{:x}\r\n{line}\r\n", line.len()).into_bytes()).unwrap();
        said.push_str(&line);
        let mut text = String::new();
        while text != said {
            let mut piece = [0; 1024];
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "ended after {text}");
            came.extend_from_slice(&piece[..count]);
            text.clear();
            // The end has not been sent yet.
            let _ = flate2::read::GzDecoder::new(&dechunked(&came).0[..]).read_to_string(&mut text);
        }
    }
    tell.send(b"0\r\n\r\n".to_vec()).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    came.extend_from_slice(&rest);
    let (body, is_whole) = dechunked(&came);
    assert!(is_whole && gunzip(&body) == said.as_bytes());
}

#[test]
fn a_body_that_breaks_off_does_not_end_well() {
    let text = words(200 << 10);
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", text.len() + 1);
    let running = Running::to(answering([head.as_bytes(), &text].concat()));
    let (head, body, is_whole) = running.get("Accept-Encoding: gzip\r\n");
    assert!(head.contains("Content-Encoding: gzip") && !is_whole);
    let mut read = Vec::new();
    assert!(flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut read).is_err());
}

#[test]
fn uncompressed_responses_are_unchanged() {
    let text = words(100_000);
    let response = |fields: &str| {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n", text.len());
        [head.as_bytes(), &text].concat()
    };
    for (fields, accept, varies) in [
        ("Content-Type: text/plain\r\n", "", true),
        ("Content-Type: text/plain\r\n", "Accept-Encoding: identity\r\n", true),
        ("Content-Type: text/plain\r\n", "Accept-Encoding: compress, gzip;q=0\r\n", true),
        ("Content-Type: image/png\r\n", "Accept-Encoding: gzip\r\n", false),
        ("Content-Type: text/plain\r\nCache-Control: no-transform\r\n", "Accept-Encoding: gzip\r\n", false),
        ("Content-Type: text/plain\r\nContent-Encoding: br\r\n", "Accept-Encoding: gzip\r\n", false),
    ] {
        let running = Running::to(answering(response(fields)));
        let (head, body, is_whole) = running.get(accept);
        assert!(is_whole && body == text, "{fields}{accept}");
        assert!(!head.contains("Content-Encoding: gzip"), "{head}");
        assert_eq!(head.contains("Vary: Accept-Encoding"), varies, "{head}");
    }
}

#[test]
fn head_says_that_the_response_depends_on_the_coding() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5000\r\n\r\n";
    let running = Running::to(answering(head.to_vec()));
    let mut stream = running.connect();
    stream.write_all(request("HEAD", "Accept-Encoding: gzip\r\n").as_bytes()).unwrap();
    let mut head = String::new();
    stream.read_to_string(&mut head).unwrap();
    assert!(head.contains("Vary: Accept-Encoding\r\n") && !head.contains("Content-Encoding"), "{head}");
}

/// Responses to requests that missed together have streamed bodies.
#[test]
fn streamed_bodies_are_compressed_with_a_cache() {
    let text = words(40_000);
    let length = format!("Content-Length: {}\r\n", text.len());
    for framing in [&length[..], "Transfer-Encoding: chunked\r\n"] {
        let framed = |piece: &[u8]| match framing == length {
            true => piece.to_vec(),
            false => [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat(),
        };
        let (address, tell) = telling();
        let running = Running::cached(address, cache::Rules::default());
        let send = |accept: &str| {
            let mut stream = running.connect();
            stream.write_all(request("GET", accept).as_bytes()).unwrap();
            stream
        };
        let mut first = send("Accept-Encoding: gzip\r\n");
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCache-Control: max-age=60\r\n";
        tell.send(format!("{head}{framing}\r\n").into_bytes()).unwrap();
        tell.send(framed(&text[..10_000])).unwrap();
        let mut others = [send("Accept-Encoding: gzip\r\n"), send("")];
        let mut heads = vec![read_until(&mut first, "\r\n\r\n")];
        heads.extend(others.iter_mut().map(|stream| read_until(stream, "\r\n\r\n")));
        for (at, head) in heads.iter().enumerate() {
            assert!(head.contains("X-Cache-Status: MISS\r\n"), "{head}");
            assert!(head.contains("Vary: Accept-Encoding\r\n"), "{head}");
            assert_eq!(head.contains("Content-Encoding: gzip\r\n"), at < 2, "{head}");
        }
        tell.send(framed(&text[10_000..])).unwrap();
        tell.send(framed(b"")).unwrap();
        let mut rest = Vec::new();
        for stream in [&mut first, &mut others[0]] {
            rest.clear();
            stream.read_to_end(&mut rest).unwrap();
            let (body, is_whole) = dechunked(&rest);
            assert!(is_whole && gunzip(&body) == text);
        }
        let (head, body, is_whole) = running.get("Accept-Encoding: gzip\r\n");
        assert!(is_whole && gunzip(&body) == text && head.contains("X-Cache-Status: HIT"), "{head}");
    }
}

#[test]
fn a_response_made_of_slices_is_compressed() {
    let text = words(40_000);
    let whole = text.clone();
    let address = upstream(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let range = request.lines().find_map(|line| line.strip_prefix("Range: bytes=")).unwrap();
            let (first, last) = range.split_once('-').unwrap();
            let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
            let last = last.min(whole.len() - 1);
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Type: text/plain\r\nCache-Control: max-age=60\r\nETag: \"a\"\r\n\
                 Content-Range: bytes {first}-{last}/{}\r\nContent-Length: {}\r\n\r\n",
                whole.len(),
                last - first + 1
            );
            stream.write_all(&[head.as_bytes(), &whole[first..=last]].concat()).unwrap();
        }
    });
    let rules = cache::Rules { slice_bytes: Some(16 << 10), ..cache::Rules::default() };
    let running = Running::cached(address, rules);
    let accept = "Accept-Encoding: gzip\r\n";
    let (head, body, _) = running.get(&format!("{accept}Range: bytes=1-9\r\n"));
    assert!(head.starts_with("HTTP/1.1 206 ") && body == text[1..10], "{head}");
    let (head, body, is_whole) = running.get(accept);
    assert!(head.contains("Content-Encoding: gzip\r\n") && head.contains("ETag: W/\"a\"\r\n"), "{head}");
    assert!(is_whole && gunzip(&body) == text);
}
