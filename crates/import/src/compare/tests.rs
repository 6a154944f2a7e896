//! Servers with equal and with different responses.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::{Ask, Bounds, Compared, FIELDS, Policy, Server, compare};

/// A server that sends these bytes on each of `count` connections.
fn server(bytes: impl AsRef<[u8]> + Send + 'static, count: usize) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for _ in 0..count {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).unwrap_or(0) == 0 {
                    break;
                }
                head.push(byte[0]);
            }
            let _ = stream.write_all(bytes.as_ref());
        }
    });
    Server::Tcp(address.to_string())
}

fn get(target: &str) -> Ask {
    Ask { method: "GET".to_owned(), host: "a.test".to_owned(), target: target.to_owned(), fields: Vec::new() }
}

fn fields() -> Vec<String> {
    FIELDS.iter().map(|name| (*name).to_owned()).collect()
}

/// The differences between two responses.
fn differs(one: &'static str, other: &'static str) -> Vec<String> {
    let (one, other) = (server(one, 1), server(other, 1));
    let compared = compare(&one, &other, [get("/")], &fields(), &Bounds::default());
    assert_eq!(compared.asked, 1);
    compared.differences.into_iter().flat_map(|difference| difference.what).map(|(name, ..)| name).collect()
}

#[test]
fn differences_are_found() {
    let base = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 2\r\nServer: a\r\n\r\nok";
    for (other, expected) in [
        (base, &[][..]),
        (
            "HTTP/1.1 200 Fine\r\ncontent-type: text/html;charset=UTF-8\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            &[],
        ),
        ("HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\nok", &[]),
        (
            "HTTP/1.1 404 No\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 2\r\n\r\nok",
            &["status"],
        ),
        ("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok", &["content-type"]),
        (
            "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 2\r\n\r\nno",
            &["body"],
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 3\r\n\r\nok",
            &["response"],
        ),
        ("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nok", &[]),
        (
            "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=latin1\r\nContent-Length: 2\r\n\r\nok",
            &["content-type"],
        ),
        ("SSH-2.0\r\n", &["response"]),
        ("", &["response"]),
    ] {
        assert_eq!(differs(base, other), expected, "{other}");
    }
    let nginx = "HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\n<h1>404</h1>\r\n<hr><center>nginx/1.22.1</center>";
    let ours = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n\r\nNot Found\n";
    assert!(differs(nginx, ours).is_empty());
    // The same page, compressed, and with methods.
    let packed = "HTTP/1.1 405 Not Allowed\r\nServer: nginx\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\nxx";
    let plain = "HTTP/1.1 405 Not Allowed\r\nContent-Type: text/plain\r\nAllow: GET\r\n\r\nno\n";
    assert!(differs(packed, plain).is_empty());
    let named = "HTTP/1.1 204 No Content\r\nAllow: GET, HEAD, OPTIONS\r\n\r\n";
    let refused = "HTTP/1.1 405 Not Allowed\r\nContent-Type: text/html\r\n\r\n<hr><center>nginx</center>";
    assert!(differs(refused, named).is_empty() && !differs(named, refused).is_empty());
    let asked = "HTTP/1.1 200 OK\r\nWWW-Authenticate: Basic realm=\"a\"\r\nExpires: Thu, 01 Jan 1970 00:00:01 GMT\r\nContent-Length: 0\r\n\r\n";
    let charset = "HTTP/1.1 200 OK\r\nWWW-Authenticate: Basic realm=\"a\", charset=\"UTF-8\"\r\nContent-Length: 0\r\n\r\n";
    assert!(differs(asked, charset).is_empty());
    let here = "HTTP/1.1 301 Moved\r\nLocation: http://a.test:8080/b\r\nContent-Length: 0\r\n\r\n";
    assert!(differs(here, "HTTP/1.1 301 Moved\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n").is_empty());
    assert_eq!(
        differs(here, "HTTP/1.1 301 Moved\r\nLocation: https://a.test:8080/b\r\nContent-Length: 0\r\n\r\n"),
        ["location"]
    );
    assert_eq!(
        differs(here, "HTTP/1.1 301 Moved\r\nLocation: http://b.test/b\r\nContent-Length: 0\r\n\r\n"),
        ["location"]
    );
}

/// A text shows its first other line; dates may be a moment apart.
#[test]
fn differences_show_the_first_other_line() {
    let what = |one: &'static str, other: &'static str| {
        let fields = ["expires".to_owned()];
        let compared = compare(&server(one, 1), &server(other, 1), [get("/")], &fields, &Bounds::default());
        compared.differences.into_iter().flat_map(|difference| difference.what).collect::<Vec<_>>()
    };
    let of = |name: &str, one: &str, other: &str| vec![(name.to_owned(), one.to_owned(), other.to_owned())];
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na\nb\nc";
    assert_eq!(
        what(text, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na\nx\nc"),
        of("body", "line 2: b", "line 2: x")
    );
    assert_eq!(
        what(text, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na\nb"),
        of("body", "line 3: c", "2 lines")
    );
    let binary = what(text, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\x01");
    assert!(binary[0].1.starts_with("5 bytes, ") && binary[0].2.starts_with("1 bytes, "), "{binary:?}");
    let at = "HTTP/1.1 200 OK\r\nExpires: Thu, 01 Jan 2026 00:00:01 GMT\r\nContent-Length: 0\r\n\r\n";
    let later = "HTTP/1.1 200 OK\r\nExpires: Thu, 01 Jan 2026 00:00:02 GMT\r\nContent-Length: 0\r\n\r\n";
    let late = "HTTP/1.1 200 OK\r\nExpires: Thu, 01 Jan 2026 00:01:02 GMT\r\nContent-Length: 0\r\n\r\n";
    assert!(what(at, later).is_empty() && what(at, late).len() == 1);
}

/// Compares the responses to one request.
fn compared(target: &str, one: impl AsRef<[u8]> + Send + 'static, other: &'static str) -> Compared {
    compare(&server(one, 1), &server(other, 1), [get(target)], &fields(), &Bounds::default())
}

#[test]
fn encoded_bodies_are_compared_decoded() {
    let packed = |text: &str, length: usize| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(text.as_bytes()).unwrap();
        let mut bytes = encoder.finish().unwrap();
        bytes.truncate(length);
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", bytes.len());
        [head.as_bytes(), &bytes].concat()
    };
    // It has not become shorter.
    let plain = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext";
    assert!(compared("/", packed("text", 1000), plain).differences.is_empty());
    let differing = |bytes| {
        let what = compared("/", bytes, plain).differences.remove(0).what;
        what.into_iter().map(|(name, ..)| name).collect::<Vec<_>>()
    };
    assert_eq!(differing(packed("test", 1000)), ["content-encoding", "body"]);
    assert_eq!(differing(packed("text", 12)), ["content-encoding", "body"]);
    let long = "a".repeat(1000);
    let long_plain = format!("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{long}");
    assert_eq!(
        compared("/", packed(&long, 1000), long_plain.leak()).differences[0].what[0].0,
        "content-encoding"
    );
}

#[test]
fn differences_on_purpose_are_counted_apart() {
    const FILE: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nETag: \"6553f100-5\"\r\nContent-Length: 5\r\n\r\n<?php";
    const MADE: &str =
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 5\r\n\r\n<?php";
    const NONE: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno";
    const REFUSED: &str = "HTTP/1.1 403 Forbidden\r\nContent-Type: text/html\r\nContent-Length: 23\r\n\r\n<hr><center>nginx</cent>";
    for (target, one, other, policy) in [
        ("/a.php", FILE, NONE, Some(Policy::HiddenFile)),
        ("/a.ph%70?b", FILE, NONE, Some(Policy::HiddenFile)),
        ("/.git/a.txt", FILE, NONE, Some(Policy::HiddenFile)),
        // Its text would be shown, or an application is not asked.
        ("/a.php", NONE, FILE, None),
        ("/a.php", MADE, NONE, None),
        ("/a.txt", FILE, NONE, None),
        ("/a/", REFUSED, NONE, Some(Policy::FolderWithoutIndex)),
        ("/a", REFUSED, NONE, None),
        ("/a/", REFUSED, MADE, None),
    ] {
        let compared = compared(target, one, other);
        assert_eq!(compared.policies.first().map(|(_, policy)| *policy), policy, "{target}");
        assert_eq!(compared.differences.is_empty(), policy.is_some(), "{target}");
    }
    let repeats = |value: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{value}", value.len());
    let field = |name: &str| Ask { fields: vec![(name.to_owned(), "1".to_owned())], ..get("/") };
    for (name, count) in [("X-Forwarded-For", 1), ("X-Other", 0)] {
        let (one, other) = (server(repeats("with 1"), 1), server(repeats("without"), 1));
        let compared = compare(&one, &other, [field(name)], &fields(), &Bounds::default());
        assert_eq!((compared.policies.len(), compared.differences.len()), (count, 1 - count), "{name}");
    }
}

/// What is the same in other words: types of files and texts, and the path that an application gets.
#[test]
fn types_and_spellings_may_differ() {
    let response = |kind: &str, tag: &str, body: &str| {
        let text = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{tag}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        &*text.leak()
    };
    let tag = "ETag: W/\"6553f100-1\"\r\n";
    for (target, one, other, is_same) in [
        ("/a.md", response("application/octet-stream", tag, "a"), response("text/markdown", "", "a"), true),
        ("/a.md", response("application/octet-stream", "", "a"), response("text/markdown", "", "a"), false),
        ("/a.css", response("text/css", "", "a"), response("text/plain", "", "a"), true),
        ("/a.css", response("text/css", "", "a"), response("text/plain", "", "b"), false),
        ("/a.html", response("text/css", "", "a"), response("text/plain", "", "a"), false),
        ("//w%73?a", response("a/b", "", "GET //w%73?a"), response("a/b", "", "GET /ws?a"), true),
        ("//w%73?a", response("a/b", "", "GET //w%73?a"), response("a/b", "", "GET /wt?a"), false),
        ("/ws", response("a/b", "", "GET /ws"), response("a/b", "", "GET /wt"), false),
    ] {
        assert_eq!(compared(target, one, other).differences.is_empty(), is_same, "{target} {other}");
    }
    let missing =
        "HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 16\r\n\r\nFile not found.\n";
    let none = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nno";
    assert!(compared("/a.php", missing, none).differences.is_empty());
}

#[test]
fn the_comparison_is_bounded_and_read_only() {
    let same = "HTTP/1.1 204 No Content\r\n\r\n";
    let (one, other) = (server(same, 2), server(same, 2));
    let post = Ask { method: "POST".to_owned(), ..get("/") };
    let bounds = Bounds { requests_max: 2, ..Bounds::default() };
    let asks = [get("/a"), get("/a"), post, get("/b"), get("/c"), get("/d")];
    let compared = compare(&one, &other, asks, &fields(), &bounds);
    assert_eq!((compared.asked, compared.unsafe_count, compared.left_count), (2, 1, 2));
    assert!(compared.differences.is_empty());
}

#[test]
fn servers_are_named_by_address() {
    let host = |text: &str| Server::parse(text).map(|server| (server.host(), server.scheme()));
    assert_eq!(host("http://a/"), Ok(("a".to_owned(), "http://")));
    assert_eq!(host("http://[::1]:81"), Ok(("[::1]:81".to_owned(), "http://")));
    assert_eq!(host("https://a:443"), Ok(("a".to_owned(), "https://")));
    assert_eq!(host("https://a:8443/"), Ok(("a:8443".to_owned(), "https://")));
    assert!(matches!(Server::parse("unix:/a"), Ok(Server::Unix(path)) if path.ends_with("a")));
    for text in ["ftp://a", "a:80", "http://a/b", "https://a?b", "unix:", "http://"] {
        assert!(Server::parse(text).is_err(), "{text}");
    }
}
