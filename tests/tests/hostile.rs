//! All listed attacks on framing and the request line, on the real binary: the exact status, then the end of the
//! connection. Each attack is followed by a second request, as in smuggling, which must never be answered.

use flatout_tests::{Folder, Server, answers, read_to_close};
use std::io::Write;

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n";

/// A small site; it ends with its test.
fn site() -> (Folder, Server) {
    let folder = Folder::new();
    folder.write("index.html", "home");
    folder.write("smuggled", "smuggled");
    let server = Server::site(&folder.0, &["--workers", "1"]);
    (folder, server)
}

fn refused(server: &Server, attack: impl AsRef<[u8]>, status: u16) {
    let attack = attack.as_ref();
    let shown = String::from_utf8_lossy(attack).into_owned();
    let answers = server.exchange([attack, SMUGGLED.as_bytes()].concat());
    assert_eq!(answers.len(), 1, "{shown:?} was answered {answers:?}");
    assert_eq!(answers[0].status, status, "{shown:?}");
    assert_eq!(answers[0].field("connection"), Some("close"), "{shown:?}");
}

fn post(lines: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: t\r\n{lines}\r\n{body}")
}

#[test]
fn lengths_that_two_parsers_could_read_in_two_ways() {
    let (_folder, server) = site();
    for (lines, status) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", 400),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", 400),
        ("Content-Length: 5, 6\r\n", 400),
        ("Content-Length: 5,5\r\n", 400),
        ("Content-Length: +5\r\n", 400),
        ("Content-Length: -5\r\n", 400),
        ("Content-Length: 5 \u{b}\r\n", 400),
        ("Content-Length: 1 2\r\n", 400),
        ("Content-Length: 0x5\r\n", 400),
        ("Content-Length: 5a\r\n", 400),
        ("Content-Length: \u{664}\r\n", 400),
        ("Content-Length:\r\n", 400),
        ("Content-Length: \"5\"\r\n", 400),
        ("Content-Length: 99999999999999999999999\r\n", 413),
        ("Content-Length: 9223372036854775809\r\n", 413),
        ("Content-Length: 9000000\r\n", 413),
    ] {
        refused(&server, post(lines, "hello"), status);
    }
}

#[test]
fn codings_that_are_not_exactly_chunked_once() {
    let (_folder, server) = site();
    for (lines, status) in [
        ("Transfer-Encoding: xchunked\r\n", 501),
        ("Transfer-Encoding: identity\r\n", 501),
        ("Transfer-Encoding: gzip\r\n", 501),
        ("Transfer-Encoding: chunked, identity\r\n", 400),
        ("Transfer-Encoding: identity, chunked\r\n", 400),
        ("Transfer-Encoding: chunked, chunked\r\n", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", 400),
        ("Transfer-Encoding: \"chunked\"\r\n", 400),
        ("Transfer-Encoding: \u{b}chunked\r\n", 400),
        ("Transfer-Encoding: chunked\u{b}\r\n", 400),
        ("Transfer-Encoding: chunked;q=1\r\n", 400),
        ("Transfer-Encoding:\r\n", 400),
        ("Transfer-Encoding : chunked\r\n", 400),
        ("Transfer-Encoding\r\n : chunked\r\n", 400),
    ] {
        refused(&server, post(lines, "0\r\n\r\n"), status);
    }
    refused(&server, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
}

#[test]
fn field_lines_and_line_ends() {
    let (_folder, server) = site();
    for line in [
        "A : b\r\n",
        "A\t: b\r\n",
        " A: b\r\n",
        "\tA: b\r\n",
        "A: b\r\n c\r\n",
        "A: b\r\n\tc\r\n",
        "A\r\n",
        ": b\r\n",
        "A: b\rC: d\r\n",
        "A: b\nC: d\r\n",
        "A: b\0c\r\n",
        "A: b\u{1}c\r\n",
        "A: b\u{7f}\r\n",
        "A\u{e9}: b\r\n",
        "A b: c\r\n",
        "A[: b\r\n",
        "A: b\r\r\n",
    ] {
        refused(&server, format!("GET / HTTP/1.1\r\nHost: t\r\n{line}\r\n"), 400);
    }
    refused(&server, "GET / HTTP/1.1\nHost: t\n\n", 400);
    refused(&server, "GET / HTTP/1.1\r\nHost: t\r\n\n", 400);
    refused(&server, "GET / HTTP/1.1\r\nHost: t\nContent-Length: 5\r\n\r\n", 400);
    let high = [&b"GET / HTTP/1.1\r\nHost: t\r\nA: \xff\x80\r\nConnection: close\r\n\r\n"[..]].concat();
    assert_eq!(server.exchange(high)[0].status, 200, "values may hold bytes over 127");
}

#[test]
fn chunks() {
    let (_folder, server) = site();
    for body in [
        "+5\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5_\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "00000000000000005\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\n",
        "g\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5;a\rb\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhelloXX0\r\n\r\n",
        "5\r\nhello\r\n0\r\nBad\r\n\r\n",
        "0\r\nA : b\r\n\r\n",
        "0\r\n folded: b\r\n\r\n",
        "0\r\nA: b\nC: d\r\n\r\n",
        "0\r\nContent-Length: 5\r\n\r\n",
        "0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        refused(&server, post("Transfer-Encoding: chunked\r\n", body), 400);
    }
    let many = format!("0\r\n{}\r\n", "A: b\r\n".repeat(200));
    refused(&server, post("Transfer-Encoding: chunked\r\n", &many), 431);
}

#[test]
fn request_lines() {
    let (_folder, server) = site();
    for (line, status) in [
        ("GET  / HTTP/1.1", 400),
        ("GET /  HTTP/1.1", 400),
        ("GET\t/ HTTP/1.1", 400),
        (" GET / HTTP/1.1", 400),
        ("GET / HTTP/1.1 ", 400),
        ("GET /", 400),
        ("GET / ", 400),
        ("GET / HTTP/1.2", 400),
        ("GET / HTTP/1.10", 400),
        ("GET / HTTP/2.0", 505),
        ("GET / HTTP/0.9", 505),
        ("GET / http/1.1", 400),
        ("GET / HTTP/1,1", 400),
        ("G\u{e9}T / HTTP/1.1", 400),
        ("GET@ / HTTP/1.1", 400),
        ("GET x HTTP/1.1", 400),
        ("GET * HTTP/1.1", 400),
        ("GET ftp://t/ HTTP/1.1", 400),
        ("GET http:///x HTTP/1.1", 400),
        ("GET http://a b/ HTTP/1.1", 400),
        ("GET /% HTTP/1.1", 400),
        ("GET /%4 HTTP/1.1", 400),
        ("GET /%zz HTTP/1.1", 400),
        ("GET /?a=%z HTTP/1.1", 400),
        ("GET /a\\b HTTP/1.1", 400),
        ("GET /a#b HTTP/1.1", 400),
        ("GET /.. HTTP/1.1", 400),
        ("GET /../etc/passwd HTTP/1.1", 400),
        ("GET /%2e%2e/etc/passwd HTTP/1.1", 400),
        ("GET /%252e%252e/etc/passwd HTTP/1.1", 400),
        ("GET /..%2fetc/passwd HTTP/1.1", 400),
        ("GET /%00 HTTP/1.1", 400),
        ("GET /index.html%00.css HTTP/1.1", 400),
        ("GET /a%0a.css HTTP/1.1", 400),
        ("GET /a%5cb HTTP/1.1", 400),
        ("CONNECT / HTTP/1.1", 400),
    ] {
        refused(&server, format!("{line}\r\nHost: t\r\n\r\n"), status);
    }
    refused(&server, "CONNECT t:80 HTTP/1.1\r\nHost: t:80\r\n\r\n", 405);
    refused(&server, "\n\nGET / HTTP/1.1\r\nHost: t\r\n\r\n", 400);
    refused(&server, [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], 400);
}

#[test]
fn hosts() {
    let (_folder, server) = site();
    for lines in [
        "",
        "Host: t\r\nHost: t\r\n",
        "Host: t\r\nhost: u\r\n",
        "Host:\r\n",
        "Host: a b\r\n",
        "Host: a/b\r\n",
        "Host: a,b\r\n\r\n",
        "Host: u@t\r\n",
        "Host: t:x\r\n",
        "Host: t:99999999\r\n",
        "Host: [::1\r\n",
        "Host: [x]\r\n",
        "Host: t\\\r\n",
    ] {
        if lines.contains("a,b") {
            continue; // A comma is a sub-delimiter: allowed in a registered name (RFC 3986).
        }
        refused(&server, format!("GET / HTTP/1.1\r\n{lines}\r\n"), 400);
    }
    let other = server.one("GET http://u/ HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert_eq!(other.text(), "home", "the authority of an absolute target replaces Host");
}

#[test]
fn limits() {
    let (_folder, server) = site();
    refused(&server, format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "a".repeat(8192)), 414);
    refused(&server, format!("GET / HTTP/1.1\r\nHost: t\r\nA: {}\r\n\r\n", "b".repeat(17000)), 431);
    refused(&server, format!("GET / HTTP/1.1\r\nHost: t\r\n{}\r\n", "A: b\r\n".repeat(100)), 431);
    refused(&server, format!("GET / HTTP/1.1\r\nHost: t\r\nA: {}", "b".repeat(70_000)), 431);
    let fits = format!(
        "GET /?{} HTTP/1.1\r\nHost: t\r\n{}Connection: close\r\n\r\n",
        "q".repeat(8190),
        "A: b\r\n".repeat(98)
    );
    assert_eq!(server.exchange(fits)[0].status, 200);
}

#[test]
fn expectations_and_upgrades() {
    let (_folder, server) = site();
    refused(&server, post("Expect: 200-ok\r\nContent-Length: 5\r\n", "hello"), 417);
    let h2c = "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n";
    let answer = server.get("/", &format!("{h2c}Connection: Upgrade, HTTP2-Settings\r\n"));
    assert_eq!((answer.status, answer.text()), (200, "home".to_owned()), "h2c is ignored");
}

#[test]
fn bytes_after_the_last_request_are_not_parsed() {
    let (_folder, server) = site();
    let last = ["GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", "GET / HTTP/1.0\r\n\r\n"];
    for last in last {
        assert_eq!(server.exchange([last, SMUGGLED].concat()).len(), 1, "{last}");
    }
}

#[test]
fn bodies_of_get_and_head_are_consumed_by_their_framing() {
    let (_folder, server) = site();
    let inner = SMUGGLED;
    let length = inner.len();
    let end = "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let get = format!("GET / HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{inner}{end}");
    let answers_to_get = server.exchange(get);
    assert_eq!(answers_to_get.len(), 2);
    assert!(answers_to_get.iter().all(|answer| answer.text() == "home"));
    let chunked = format!(
        "GET / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n{inner}\r\n0\r\n\r\n{end}"
    );
    assert_eq!(server.exchange(chunked).len(), 2);
    let head =
        format!("HEAD / HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{inner}");
    let mut stream = server.connect();
    stream.write_all(head.as_bytes()).unwrap();
    let found = answers(&read_to_close(&mut stream), true);
    assert_eq!((found.len(), found[0].field("content-length")), (1, Some("4")));
}

#[test]
fn methods() {
    let (_folder, server) = site();
    for (method, status) in [("DELETE", 405), ("PUT", 405), ("TRACE", 405), ("BREW", 501), ("get", 501)] {
        let answer = server.one(&format!("{method} / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
        assert_eq!(answer.status, status, "{method}");
        assert_eq!(answer.field("allow").is_some(), status == 405);
    }
    for target in ["/", "*"] {
        let answer =
            server.one(&format!("OPTIONS {target} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
        assert_eq!((answer.status, answer.field("allow")), (204, Some("GET, HEAD, OPTIONS")));
    }
}

#[test]
fn pipelines_are_answered_in_order_however_they_are_cut() {
    let (_folder, server) = site();
    let request = "GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n";
    let last = "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    for count in [1, 2, 16, 100] {
        assert_eq!(server.exchange(request.repeat(count) + last).len(), count + 1);
    }
    let bytes = (request.repeat(2) + last).into_bytes();
    for cut in 1..bytes.len() {
        let mut stream = server.connect();
        stream.write_all(&bytes[..cut]).unwrap();
        std::thread::yield_now();
        stream.write_all(&bytes[cut..]).unwrap();
        let found = answers(&read_to_close(&mut stream), false);
        let texts: Vec<String> = found.iter().map(|answer| answer.text()).collect();
        assert_eq!(texts, ["smuggled", "smuggled", "home"], "cut at {cut}");
    }
}
