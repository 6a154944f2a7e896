//! Requests that two servers could read differently: the upstream gets what the proxy understood, or nothing.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use flatout_engine::Limits;
use flatout_proxy::Forward;
use proptest::prelude::*;
use proptest::sample::select;
use support::{Running, one, recording};

/// A proxy that also serves clients that have closed their sending side.
fn proxy_to(address: std::net::SocketAddr) -> Running {
    Running::with(one(address), Forward::to(0), Limits { half_close: true, ..Limits::default() })
}

/// Sends bytes, and reads until the server closes or sends nothing more.
fn send(proxy: &Running, bytes: &[u8]) -> String {
    let mut stream: TcpStream = proxy.connect();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn hidden_requests_reach_no_upstream() {
    let (address, asked) = recording();
    let proxy = proxy_to(address);
    let hidden = "GET /hidden HTTP/1.1\r\nHost: t\r\n\r\n";
    let inner = hidden.len();
    for framing in [
        format!("Content-Length: {inner}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n".to_owned(),
        "Transfer-Encoding: xchunked\r\n\r\n".to_owned(),
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n".to_owned(),
        "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n".to_owned(),
        "X: x\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "Content-Length: 0\r\nContent-Length: 44\r\n\r\n".to_owned(),
        "Content-Length: 0, 44\r\n\r\n".to_owned(),
        "Content-Length: +0\r\n\r\n".to_owned(),
        "Content-Length: 0x0\r\n\r\n".to_owned(),
        "Content-Length : 0\r\n\r\n".to_owned(),
        "Content-Length: -1\r\n\r\n".to_owned(),
        " Content-Length: 0\r\n\r\n".to_owned(),
        "X: y\r\n Transfer-Encoding: chunked\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\n0;\n\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\n0\n\n".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\n-0\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabcXX0\r\n\r\n".to_owned(),
        "Expect: 200-ok\r\nContent-Length: 1\r\n\r\nx".to_owned(),
        "Host: other\r\n\r\n".to_owned(),
    ] {
        let answer = send(&proxy, format!("POST /seen HTTP/1.1\r\nHost: t\r\n{framing}{hidden}").as_bytes());
        let refused = answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 501 ");
        assert!(refused && answer.matches("HTTP/1.1 ").count() == 1, "{framing:?}: {answer}");
    }
    let asked = asked.lock().unwrap();
    assert!(asked.iter().all(|request| !request.contains("/hidden")), "{asked:?}");
}

#[test]
fn a_client_cannot_take_fields_away_that_others_need() {
    let (address, asked) = recording();
    let proxy = proxy_to(address);
    let named = "Connection: close, Host, Content-Length, X-Forwarded-For, Transfer-Encoding, Cookie, Via";
    let body = "abc";
    send(
        &proxy,
        format!("POST /a HTTP/1.1\r\nHost: t\r\n{named}\r\nContent-Length: 3\r\n\r\n{body}").as_bytes(),
    );
    let request = asked.lock().unwrap().pop().unwrap();
    for line in ["Host: t\r\n", "Content-Length: 3\r\n", "X-Forwarded-For: 127.0.0.1\r\n"] {
        assert!(request.contains(line), "{request}");
    }
    assert!(request.ends_with("\r\n\r\nabc"), "{request}");
}

#[test]
fn the_host_is_the_one_that_was_matched() {
    let (address, asked) = recording();
    let proxy = proxy_to(address);
    send(&proxy, b"GET http://inner/a?b HTTP/1.1\r\nHost: outer\r\n\r\n");
    let request = asked.lock().unwrap().pop().unwrap();
    assert!(request.contains("\r\nHost: inner\r\n") && !request.contains("outer"), "{request}");
    for bad in ["a b", "a\tb", "a/b", "a@b", "a?b", "[::1", "a,b", ""] {
        let answer = send(&proxy, format!("GET / HTTP/1.1\r\nHost: {bad}\r\n\r\n").as_bytes());
        let is_refused = answer.starts_with("HTTP/1.1 400 ");
        // A comma may stand in a name by RFC 3986.
        assert!(is_refused || bad == "a,b", "{bad:?}: {answer}");
    }
}

#[derive(Debug, Clone)]
struct Sent {
    method: &'static str,
    target: String,
    fields: Vec<(&'static str, String)>,
    body: Option<Vec<u8>>,
    chunks: usize,
}

impl Sent {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\nHost: t\r\n", self.method, self.target).into_bytes();
        for (name, value) in &self.fields {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        match &self.body {
            None => bytes.extend_from_slice(b"\r\n"),
            Some(body) if self.chunks == 0 => {
                bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
                bytes.extend_from_slice(body);
            }
            Some(body) => {
                bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                for chunk in body.chunks(self.chunks) {
                    bytes.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
            }
        }
        bytes
    }
}

fn sent() -> impl Strategy<Value = Sent> {
    let field = (
        select(vec![
            "X-A",
            "x-b",
            "Cookie",
            "Accept",
            "Via",
            "TE",
            "Keep-Alive",
            "Proxy-Connection",
            "Forwarded",
        ]),
        "[ -~]{0,20}",
    );
    let body = prop_oneof![
        3 => Just(None),
        2 => proptest::collection::vec(97u8..123, 1..2_000).prop_map(Some),
        1 => proptest::collection::vec(97u8..123, 16_000..40_000).prop_map(Some),
    ];
    (
        select(vec!["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"]),
        "/[a-z0-9/.%~!$&'()*+,;=:@-]{0,12}(\\?[a-z=&%+]{0,8})?",
        proptest::collection::vec(field, 0..5),
        body,
        prop_oneof![Just(0usize), 1usize..3_000],
    )
        .prop_map(|(method, target, fields, body, chunks)| {
            let fields = fields.into_iter().map(|(name, value)| (name, value.trim().to_owned())).collect();
            Sent { method, target, fields, body, chunks }
        })
}

/// Method, target and decoded body of a request that reached the upstream.
fn meaning(request: &str) -> (String, String, Vec<u8>) {
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let mut line = head.lines().next().unwrap().split(' ');
    let (method, target) = (line.next().unwrap().to_owned(), line.next().unwrap().to_owned());
    if !head.contains("Transfer-Encoding: chunked") {
        return (method, target, body.as_bytes().to_vec());
    }
    let (mut decoded, mut rest) = (Vec::new(), body);
    loop {
        let (size, behind) = rest.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (method, target, decoded);
        }
        decoded.extend_from_slice(&behind.as_bytes()[..size]);
        rest = &behind[size + 2..];
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn upstreams_get_the_parsed_request(requests in proptest::collection::vec(sent(), 1..6)) {
        let (address, asked) = recording();
        let proxy = proxy_to(address);
        let bytes: Vec<u8> = requests.iter().flat_map(Sent::bytes).collect();
        let answer = send(&proxy, &bytes);
        let asked = asked.lock().unwrap();
        let answered = answer.matches("HTTP/1.1 200 OK").count();
        prop_assert_eq!(asked.len(), answered, "{}", answer);
        for (request, seen) in requests.iter().zip(asked.iter()) {
            let (method, target, body) = meaning(seen);
            prop_assert_eq!((method.as_str(), &target), (request.method, &request.target));
            prop_assert!(body == request.body.clone().unwrap_or_default(), "{} bytes", body.len());
            for name in ["keep-alive:", "proxy-connection:", "forwarded:"] {
                prop_assert!(!seen.to_lowercase().contains(&format!("\r\n{name}")), "{}", seen);
            }
        }
        // Requests without a 200 were refused, which ends the connection.
        prop_assert!(answered == requests.len() || answer.contains("HTTP/1.1 400 "), "{}", answer);
    }
}
