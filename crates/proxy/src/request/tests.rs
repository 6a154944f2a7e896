//! Heads as upstreams get them.

use std::net::IpAddr;
use std::rc::Rc;

use flatout_engine::Response;
use flatout_gateway::{AuthQuery, Client, Edits, Finish, Forward, Forwarded, Host, ResponseOrigin};
use flatout_wire::head::{HeadLimits, parse};

use super::auth_query::write_auth_query;
use super::head::write_head;
use super::trailers::{passed_trailers, request_trailers};
use super::upgrade::was_asked;

struct Nothing;

impl Finish for Nothing {
    fn finish(&self, _: &mut Response, _: ResponseOrigin) {}
}

fn written(request: &str, forward: &Forward, client: Client) -> String {
    written_without(&[b"x-left-out"], request, forward, client)
}

fn written_without(left_out: &[&[u8]], request: &str, forward: &Forward, client: Client) -> String {
    let mut fields = Vec::new();
    let head = parse(request.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
    let edits =
        Edits { dropped: &["x-dropped".to_owned()], left_out, lines: b"X-User: 7\r\n", ..Edits::default() };
    let what =
        Forwarded { forward, target: b"/a%2fb?q=1", client, edits, finish: Rc::new(Nothing), caching: None };
    let mut out = Vec::new();
    write_head(&head, &what, Some([192, 0, 2, 7].into()), &mut out);
    String::from_utf8(out).unwrap()
}

const STRANGER: Client = Client {
    address: Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7))),
    is_https: false,
    is_early: false,
    is_from_proxy: false,
};

#[test]
fn hop_by_hop_fields_are_not_forwarded() {
    let request = "GET http://example.org/x HTTP/1.1\r\nHost: other\r\nConnection: keep-alive, X-Secret\r\n\
                   x-secret: 1\r\nKeep-Alive: 5\r\nTE: gzip, trailers\r\nProxy-Authorization: x\r\n\
                   Accept: */*\r\nX-Dropped: 1\r\nX_Left_Out: 1\r\nX-Forwarded-For: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\n\
                   X-Forwarded-Proto: https\r\nX-Forwarded-Port: 1\r\nX_Forwarded_Proto: https\r\n\r\n";
    assert_eq!(
        written(request, &Forward::to(0), STRANGER),
        "GET /a%2fb?q=1 HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nConnection: TE\r\nTE: trailers\r\n\
         X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: example.org\r\n\
         X-User: 7\r\n"
    );
}

#[test]
fn a_trusted_proxy_is_believed() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\n\
                   X-Forwarded-Port: 1\r\n\r\n";
    let forward =
        Forward { forwarded: true, host: Host::Upstream, via: Some("flatout".to_owned()), ..Forward::to(0) };
    let client =
        Client { address: Some([1, 1, 1, 1].into()), is_https: true, is_early: false, is_from_proxy: true };
    assert_eq!(
        written(request, &forward, client),
        "GET /a%2fb?q=1 HTTP/1.1\r\nX-Forwarded-Port: 1\r\n\
         X-Forwarded-For: 1.1.1.1, 192.0.2.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: a\r\n\
         Forwarded: for=1.1.1.1, for=192.0.2.7;proto=https;host=\"a\"\r\nVia: 1.1 flatout\r\nX-User: 7\r\n"
    );
}

#[test]
fn dropped_fields_of_a_trusted_proxy_are_replaced() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Host: b\r\n\
                   Forwarded: for=1.1.1.1;host=b\r\n\r\n";
    let forward = Forward { forwarded: true, ..Forward::to(0) };
    let client = Client { address: Some([1, 1, 1, 1].into()), is_from_proxy: true, ..STRANGER };
    let left_out: &[&[u8]] = &[b"x-forwarded-host", b"forwarded"];
    assert_eq!(
        written_without(left_out, request, &forward, client),
        "GET /a%2fb?q=1 HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1, 192.0.2.7\r\nX-Forwarded-Proto: http\r\n\
         X-Forwarded-Host: a\r\nForwarded: for=1.1.1.1;proto=http;host=\"a\"\r\nX-User: 7\r\n"
    );
    let written = written_without(&[b"x-forwarded-for"], request, &Forward::to(0), client);
    assert!(written.contains("\r\nX-Forwarded-For: 1.1.1.1\r\n"), "{written}");
}

#[test]
fn early_data_is_forwarded_once() {
    let early = Client { is_early: true, ..STRANGER };
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert!(!written(request, &Forward::to(0), STRANGER).contains("Early-Data"));
    assert_eq!(written(request, &Forward::to(0), early).matches("\r\nEarly-Data: 1\r\n").count(), 1);
    let trusted = Client { is_from_proxy: true, ..STRANGER };
    for (said, client, times) in [
        ("early-data: 1\r\n", STRANGER, 0),
        ("early-data: 1\r\nConnection: early-data\r\n", trusted, 1),
        ("early-data: 1\r\n", early, 1),
        ("early-data: 1\r\n", trusted, 1),
        ("early-data: 0\r\n", STRANGER, 0),
        ("early-data: 0\r\n", trusted, 0),
        ("Early-Data: 0\r\n", early, 1),
        ("Early-Data: 0\r\n", Client { is_early: true, ..trusted }, 1),
        ("Early-Data: 0\r\nConnection: Early-Data\r\n", early, 1),
    ] {
        let said = format!("GET / HTTP/1.1\r\nHost: a\r\n{said}\r\n");
        let written = written(&said, &Forward::to(0), client).to_lowercase();
        assert_eq!(written.matches("\r\nearly-data: 1\r\n").count(), times, "{said}{written}");
        assert_eq!(written.matches("early-data").count(), times, "{said}{written}");
    }
}

#[test]
fn fields_with_underscores_are_dropped_unless_the_route_forwards_them() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nX_User: 1\r\n_: 2\r\nX-A: 3\r\n\r\n";
    let without = written(request, &Forward::to(0), STRANGER);
    assert!(!without.contains('_') && without.contains("X-A: 3\r\n"), "{without}");
    let with = written(request, &Forward { underscores: true, ..Forward::to(0) }, STRANGER);
    assert!(with.contains("X_User: 1\r\n_: 2\r\n"), "{with}");
}

#[test]
fn a_request_without_a_host_gets_the_servers_own() {
    let request = "GET / HTTP/1.0\r\nX-A: 1\r\n\r\n";
    let written = written(request, &Forward::to(0), STRANGER);
    assert!(!written.to_lowercase().contains("host"), "it is written when the server is known: {written}");
}

#[test]
fn an_auth_service_gets_no_claims_of_the_client() {
    let request = "GET /a?b HTTP/1.1\r\nHost: a\r\nX-Original-URL: /open\r\nX-Original-Method: GET\r\n\
                   x_original_uri: /open\r\nX-Rewrite-URL: /open\r\nX-Forwarded-Uri: /open\r\n\
                   X-Forwarded-Method: GET\r\nX-HTTP-Method-Override: GET\r\nX-Real-IP: 127.0.0.1\r\n\
                   Connection: Upgrade, X-Hop, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\nX-Hop: 1\r\n\
                   Cookie: c\r\n\r\n";
    let mut fields = Vec::new();
    let head = parse(request.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
    for request_fields in
        [vec![], vec!["x-original-url".to_owned(), "Cookie".to_owned(), "upgrade".to_owned()]]
    {
        let query = AuthQuery {
            upstream: 0,
            request_fields: &request_fields,
            response_fields: &[],
            target: b"/auth",
            head: &head,
            client: STRANGER,
        };
        let mut out = Vec::new();
        write_auth_query(&query, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "GET /auth HTTP/1.1\r\nHost: a\r\nCookie: c\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\n\
             X-Forwarded-Host: a\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /a?b\r\n\
             X-Original-Method: GET\r\nX-Original-URL: http://a/a?b\r\n"
        );
    }
}

#[test]
fn only_listed_protocols_are_forwarded() {
    let both = Forward { upgrade: vec!["websocket".to_owned(), "echo".to_owned()], ..Forward::to(0) };
    let off = Forward { upgrade: Vec::new(), ..Forward::to(0) };
    let any = Forward { upgrade: vec![Forward::ANY_UPGRADE.to_owned()], ..Forward::to(0) };
    for (fields, forward, forwarded) in [
        ("Connection: Upgrade\r\nUpgrade: websocket", Forward::to(0), Some("websocket")),
        ("Connection: Upgrade\r\nUpgrade: WebSocket", Forward::to(0), Some("WebSocket")),
        ("Connection: Upgrade\r\nUpgrade: h2c, websocket", Forward::to(0), Some("websocket")),
        ("Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket", Forward::to(0), Some("websocket")),
        ("Connection: upgrade\r\nUpgrade: echo,h2c,websocket", both.clone(), Some("echo, websocket")),
        ("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA", both.clone(), None),
        ("Upgrade: h2c\r\nHTTP2-Settings: AA", both.clone(), None),
        ("Connection: Upgrade\r\nUpgrade: TLS/1.0, HTTP/1.1", both.clone(), None),
        ("Connection: Upgrade\r\nUpgrade: websocketx", both, None),
        ("Connection: Upgrade\r\nUpgrade: websocket", off, None),
        (
            "Connection: Upgrade\r\nUpgrade: tcp, H2C, HTTP/2.0, TLS/1.3, websocket",
            any.clone(),
            Some("tcp, websocket"),
        ),
        ("Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: http", any.clone(), None),
        ("Connection: Upgrade\r\nUpgrade: \"a b\", , (", any, None),
        ("Connection: close\r\nUpgrade: websocket", Forward::to(0), None),
        ("Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3", Forward::to(0), None),
        ("Connection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked", Forward::to(0), None),
    ] {
        let request = format!("GET /ws HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let written = written(&request, &forward, STRANGER);
        let lower = written.to_lowercase();
        assert!(!lower.contains("http2-settings"), "{written}");
        match forwarded {
            Some(protocols) => {
                let lines = format!("Connection: upgrade\r\nUpgrade: {protocols}\r\n");
                assert!(written.contains(&lines), "{fields}: {written}");
                assert!(was_asked(written.as_bytes(), [&b"websocket"[..]].into_iter()), "{written}");
            }
            None => {
                assert!(!lower.contains("upgrade"), "{fields}: {written}");
                assert!(!was_asked(written.as_bytes(), [&b"websocket"[..]].into_iter()), "{written}");
            }
        }
        assert!(!was_asked(written.as_bytes(), [&b"h2c"[..]].into_iter()), "{written}");
        assert!(!was_asked(written.as_bytes(), [&b"websocket, h2c"[..]].into_iter()), "{written}");
        assert!(!was_asked(written.as_bytes(), std::iter::empty()), "{written}");
    }
}

#[test]
fn named_trailers_pass_unless_a_rule_is_about_them() {
    let names = [
        "x-sum",
        "x-dropped",
        "x-left-out",
        "x-user",
        "x_user",
        "x-kept",
        "x-forwarded-for",
        "host",
        "cookie",
    ];
    let forward = Forward { request_trailers: names.map(str::to_owned).to_vec(), ..Forward::to(0) };
    let mut fields = Vec::new();
    let request = "POST / HTTP/1.1\r\nHost: a\r\nConnection: X-Kept\r\n\r\n";
    let head = parse(request.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
    let (dropped, set) = (["x-dropped".to_owned()], b"X-Other: 1\r\nX-User: ann\r\n");
    let edits = Edits { dropped: &dropped, left_out: &[b"x-left-out"], lines: set, ..Edits::default() };
    let what = Forwarded {
        forward: &forward,
        target: b"/",
        client: STRANGER,
        edits,
        finish: Rc::new(Nothing),
        caching: None,
    };
    let passed = passed_trailers(&head, &what);
    // The application may read `x_user` as `x-user`.
    assert_eq!(passed, ["x-sum"]);
    let field = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    let trailers =
        [field("X-Sum", "6"), field("X-User", "root"), field("X-Dropped", "1"), field("Host", "b")];
    assert_eq!(request_trailers(&trailers, &passed), b"X-Sum: 6\r\n");
    assert_eq!(request_trailers(&trailers, &[]), b"");
}
