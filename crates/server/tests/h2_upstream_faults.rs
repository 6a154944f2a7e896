//! Upstreams that should use HTTP/2 but do not, or violate it; and upstreams with TLS.

#[path = "../../engine/tests/support/secure.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod secure;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flatout_engine::{Address as Bound, Plan, Reply, Request, Response, Service, start};
use flatout_proxy::{Active, Address, HealthCheck, Protocol, Server, Tls, Upstream};
use flatout_wire::h2::PREFACE;
use h2::server::Builder;
use secure::Certified;
use support::h2::{ReceivedRequest, ask, client, h2c, request, respond, serving};
use support::{Running, answering, body_of, last, upstream};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// Kind, flags and stream of the next frame.
fn read_frame(stream: &mut TcpStream) -> Option<(u8, u8, u32)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload).ok()?;
    Some((head[3], head[4], u32::from_be_bytes(head[5..].try_into().unwrap())))
}

/// An upstream whose connections start correctly, and then send `answer` for each request, called with its stream and
/// the number of requests before it.
fn scripted(answer: impl Fn(u32, usize) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    let requests = AtomicUsize::new(0);
    upstream(move |_, mut stream| {
        let mut preface = [0; 24];
        if stream.read_exact(&mut preface).is_err() || preface[..] != PREFACE[..] {
            return;
        }
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        while let Some((kind, _, id)) = read_frame(&mut stream) {
            if kind == HEADERS {
                let bytes = answer(id, requests.fetch_add(1, Ordering::SeqCst));
                if bytes.is_empty() || stream.write_all(&bytes).is_err() {
                    return;
                }
            }
        }
    })
}

/// `:status: 200`, with END_STREAM and END_HEADERS.
fn ok(id: u32) -> Vec<u8> {
    frame(HEADERS, 5, id, &[0x88])
}

fn status(proxy: &Running, request: impl AsRef<[u8]>) -> String {
    proxy.all(request)[9..12].to_owned()
}

#[test]
fn a_server_that_speaks_http1_is_a_bad_gateway() {
    let (address, received) = answering("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    let proxy = Running::to(Upstream { retries_max: 0, ..h2c(address) });
    assert_eq!(status(&proxy, last("/secret")), "502");
    assert_eq!(received.recv().unwrap(), "PRI * HTTP/2.0\r\n\r\n", "it got no request");
}

#[test]
fn a_silent_server_times_out() {
    let address = upstream(|_, mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let plan = Upstream { connect_time_max: Duration::from_millis(300), retries_max: 0, ..h2c(address) };
    assert_eq!(status(&Running::to(plan), last("/")), "504");
}

/// An upstream that sends its SETTINGS only with its first response, as some simple servers do. Without `answers` it closes
/// at the first request instead.
fn late(answers: bool) -> (SocketAddr, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let address = upstream(move |_, mut stream| {
        stream.read_exact(&mut [0; 24]).unwrap();
        let mut settings = frame(SETTINGS, 0, 0, &[]);
        while let Some((kind, _, id)) = read_frame(&mut stream) {
            if kind == HEADERS {
                counted.fetch_add(1, Ordering::SeqCst);
                let bytes = [std::mem::take(&mut settings), ok(id)].concat();
                if !answers || stream.write_all(&bytes).is_err() {
                    return;
                }
            }
        }
    });
    (address, requests)
}

#[test]
fn a_server_whose_settings_are_late_gets_one_request_first() {
    let (address, requests) = late(true);
    let proxy = Running::to(h2c(address));
    client(proxy.address, async |send| {
        let tasks: Vec<_> = (0..20)
            .map(|number| {
                let send = send.clone();
                let (method, body) = match number % 2 {
                    0 => ("GET", None),
                    _ => ("POST", Some(b"some content".to_vec())),
                };
                tokio::task::spawn_local(async move { ask(&send, request(method, "/"), body).await.status })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), 200);
        }
    });
    assert_eq!(requests.load(Ordering::SeqCst), 20);
    assert_eq!(status(&proxy, last("/")), "200");
}

#[test]
fn a_request_that_was_sent_before_the_settings_may_have_been_processed() {
    let post = "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx";
    let (address, requests) = late(false);
    assert_eq!(status(&Running::to(h2c(address)), post), "502");
    assert_eq!(requests.load(Ordering::SeqCst), 1, "it was not repeated");
    let (address, requests) = late(false);
    assert_eq!(status(&Running::to(Upstream { retries_max: 2, ..h2c(address) }), last("/")), "502");
    assert_eq!(requests.load(Ordering::SeqCst), 3);
}

/// An interim response with a field of this length.
fn hints(id: u32, bytes: usize) -> Vec<u8> {
    let rest = bytes - 127;
    let length = [0x7f, rest as u8 | 0x80, (rest >> 7) as u8];
    let block = [&b"\x08\x03103\x0f\x1e"[..], &length, &vec![b'x'; bytes]].concat();
    frame(HEADERS, 4, id, &block)
}

#[test]
fn content_behind_large_interim_responses_is_not_lost() {
    let address = upstream(|_, mut stream| {
        stream.read_exact(&mut [0; 24]).unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        while let Some((kind, _, id)) = read_frame(&mut stream) {
            if kind == HEADERS {
                let hints: Vec<u8> = (0..3).flat_map(|_| hints(id, 12_000)).collect();
                let begun = [frame(HEADERS, 4, id, &[0x88]), frame(DATA, 0, id, b"first ")].concat();
                stream.write_all(&[hints, begun].concat()).unwrap();
                std::thread::sleep(Duration::from_millis(200));
                stream.write_all(&frame(DATA, 1, id, b"last")).unwrap();
            }
        }
    });
    let proxy = Running::to(h2c(address));
    client(proxy.address, async |send| {
        let got = ask(&send, request("GET", "/"), None).await;
        assert_eq!((got.status, &got.body[..], got.is_cut), (200, &b"first last"[..], false));
    });
}

#[test]
fn a_response_that_is_complete_by_its_length_may_end_with_a_reset() {
    for code in [0, 2, 8] {
        let address = scripted(move |id, _| {
            let head = frame(HEADERS, 4, id, b"\x88\x00\x0econtent-length\x015");
            let end = frame(RST_STREAM, 0, id, &[0, 0, 0, code]);
            [head, frame(DATA, 0, id, b"hello"), end].concat()
        });
        let got = Running::to(h2c(address)).all(last("/"));
        assert!(got.starts_with("HTTP/1.1 200 ") && body_of(&got) == "hello", "{code}: {got}");
    }
    // Without all of its content it is not complete.
    let address = scripted(|id, _| {
        let head = frame(HEADERS, 4, id, b"\x88\x00\x0econtent-length\x015");
        [head, frame(DATA, 0, id, b"hell"), frame(RST_STREAM, 0, id, &[0, 0, 0, 0])].concat()
    });
    assert!(!Running::to(h2c(address)).all(last("/")).contains("\r\n\r\nhello"));
}

#[test]
fn malformed_responses_reset_only_their_stream() {
    let address = scripted(|id, number| match number {
        // `Transfer-Encoding`, a name in capitals, no status, content shorter than declared.
        0 => frame(HEADERS, 5, id, b"\x88\x00\x11transfer-encoding\x07chunked"),
        1 => frame(HEADERS, 5, id, b"\x88\x00\x01A\x01b"),
        2 => frame(HEADERS, 5, id, b"\x00\x01a\x01b"),
        3 => frame(HEADERS, 5, id, b"\x88\x00\x0econtent-length\x017"),
        4 => frame(HEADERS, 5, id, b"\x88\x00\x01a\x04b\r\nc"),
        _ => ok(id),
    });
    let proxy = Running::to(h2c(address));
    for number in 0..5 {
        assert_eq!(status(&proxy, last("/")), "502", "{number}");
    }
    assert_eq!(status(&proxy, last("/")), "200", "over the same connection, or the count would be another");
}

#[test]
fn a_broken_connection_fails_only_its_own_requests() {
    // DATA on a stream that was never opened.
    let address = scripted(|id, number| match number {
        0 => frame(0, 0, 99, b"x"),
        _ => ok(id),
    });
    let proxy = Running::to(h2c(address));
    assert_eq!(status(&proxy, last("/")), "502");
    assert_eq!(status(&proxy, last("/")), "200", "another connection");
}

#[test]
fn only_safe_requests_are_retried_after_a_closed_connection() {
    let closing = || {
        scripted(|id, number| match number {
            0 => Vec::new(),
            _ => ok(id),
        })
    };
    assert_eq!(status(&Running::to(h2c(closing())), last("/")), "200");
    let post = "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx";
    assert_eq!(status(&Running::to(h2c(closing())), post), "502");
    // A request that GOAWAY reports as unprocessed is safe to repeat, whatever its method.
    let leaving = scripted(|id, number| match number {
        0 => frame(GOAWAY, 0, 0, &[0; 8]),
        _ => ok(id),
    });
    assert_eq!(status(&Running::to(Upstream { retries_max: 0, ..h2c(leaving) }), post), "200");
}

#[test]
fn requests_unprocessed_at_goaway_are_retried() {
    // Each connection ends after ten requests, whatever else is in flight.
    let address = upstream(|_, mut stream| {
        stream.read_exact(&mut [0; 24]).unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        let (mut ended, mut last) = (0, u32::MAX);
        while let Some((kind, flags, id)) = read_frame(&mut stream) {
            // The end of a request's content. Bodies need not end in the order of their heads: those up to the last stream
            // are served after the GOAWAY.
            if kind == 0 && flags & 1 != 0 && id <= last {
                ended += 1;
                let mut bytes = ok(id);
                if ended == 10 {
                    last = id;
                    bytes.extend(frame(GOAWAY, 0, 0, &[&id.to_be_bytes()[..], &[0; 4]].concat()));
                }
                if stream.write_all(&bytes).is_err() {
                    return;
                }
            }
        }
    });
    let proxy = Running::to(Upstream { retries_max: 0, ..h2c(address) });
    client(proxy.address, async |send| {
        let tasks: Vec<_> = (0..80)
            .map(|_| {
                let send = send.clone();
                tokio::task::spawn_local(async move {
                    ask(&send, request("POST", "/"), Some(b"some content".to_vec())).await.status
                })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), 200);
        }
    });
}

#[test]
fn a_server_with_a_stream_limit_of_zero_is_a_bad_gateway() {
    let address = upstream(|_, mut stream| {
        stream.write_all(&frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 0])).unwrap();
        drop(stream.read_to_end(&mut Vec::new()));
    });
    assert_eq!(status(&Running::to(h2c(address)), last("/")), "502");
}

#[test]
fn resets_without_end_end_the_connection() {
    let address = scripted(|id, _| frame(RST_STREAM, 0, id, &[0, 0, 0, 2]));
    let proxy = Running::to(h2c(address));
    for _ in 0..20 {
        assert_eq!(status(&proxy, last("/")), "502");
    }
}

#[test]
fn health_checks_use_the_protocol_of_the_server() {
    let is_well = Arc::new(AtomicBool::new(false));
    let told = is_well.clone();
    let served = serving(Builder::new(), None, move |mut received: ReceivedRequest| {
        let is_good = received.request.uri().path() != "/health" || told.load(Ordering::SeqCst);
        async move { respond(&mut received.respond, if is_good { 200 } else { 503 }, "x") }
    });
    let active = Active {
        check: HealthCheck::http("/health", 200..=299),
        interval: Duration::from_millis(30),
        time_max: Duration::from_secs(10),
        rise: 1,
        fall: 1,
    };
    let proxy = Running::to(Upstream { active: Some(active), ..served.upstream() });
    let wait_for = |expected: &str| {
        let began = Instant::now();
        while status(&proxy, last("/")) != expected {
            assert!(began.elapsed() < Duration::from_secs(30), "{expected}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for("502");
    is_well.store(true, Ordering::SeqCst);
    wait_for("200");
}

#[test]
fn health_checks_by_grpc_ask_about_a_service() {
    let is_serving = Arc::new(AtomicBool::new(false));
    let told = is_serving.clone();
    let served = serving(Builder::new(), None, move |mut received: ReceivedRequest| {
        let is_serving = told.load(Ordering::SeqCst);
        async move {
            if received.request.uri().path() != "/grpc.health.v1.Health/Check" {
                return respond(&mut received.respond, 200, "x");
            }
            let fields = received.request.headers();
            let is_call = received.request.method() == "POST"
                && fields["content-type"] == "application/grpc"
                && fields["te"] == "trailers";
            let message = received.request.into_body().data().await;
            let is_about_it =
                message.is_some_and(|data| data.is_ok_and(|data| *data == b"\0\0\0\0\x04\x0a\x02db"[..]));
            let head = http::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
            let Ok(mut stream) = received.respond.send_response(head, false) else { return };
            let status = if is_serving && is_call && is_about_it { 1 } else { 2 };
            let _ = stream.send_data(vec![0, 0, 0, 0, 2, 8, status].into(), false);
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let _ = stream.send_trailers(trailers);
        }
    });
    let active = Active {
        check: HealthCheck::Grpc { service: "db".to_owned() },
        interval: Duration::from_millis(30),
        time_max: Duration::from_secs(10),
        rise: 1,
        fall: 1,
    };
    let proxy = Running::to(Upstream { active: Some(active), ..served.upstream() });
    let wait_for = |expected: &str| {
        let began = Instant::now();
        while status(&proxy, last("/")) != expected {
            assert!(began.elapsed() < Duration::from_secs(30), "{expected}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for("502");
    is_serving.store(true, Ordering::SeqCst);
    wait_for("200");
}

/// Responds with the HTTP version of the request.
struct Says;

impl Service for Says {
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        response.buffer().extend_from_slice(format!("{:?}", request.head.version).as_bytes());
        Reply::Now
    }
}

fn over_tls(certified: &Certified, address: SocketAddr) -> Upstream {
    let tls = Tls {
        name: Some("localhost".to_owned()),
        authorities: Some(certified.path().join("cert.pem")),
        ..Tls::default()
    };
    let server = Server { tls: Some(tls), ..Server::new(Address::Socket(address)) };
    Upstream {
        protocol: Protocol::H2 { streams_max: Protocol::STREAMS_MAX },
        retries_max: 0,
        ..Upstream::new("t", vec![server])
    }
}

#[test]
fn over_tls_it_is_agreed_on() {
    let certified = Certified::new();
    let plan = Plan {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        workers: Some(1),
        tls: Some(certified.acceptor()),
        ..Plan::default()
    };
    let server = start(plan, |_| Box::new(Says)).unwrap();
    let Some(Bound::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
    let proxy = Running::to(over_tls(&certified, address));
    for _ in 0..3 {
        assert_eq!(body_of(&proxy.all(last("/"))), "Http2");
    }
    drop(proxy);
    server.handle().stop();
    server.wait().unwrap();
}

#[test]
fn a_server_that_does_not_agree_is_a_bad_gateway() {
    let certified = Certified::new();
    let config = {
        let chain = std::fs::read(certified.path().join("cert.pem")).unwrap();
        let key = std::fs::read(certified.path().join("key.pem")).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        use rustls::pki_types::pem::PemObject;
        let chain = rustls::pki_types::CertificateDer::from_pem_slice(&chain).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(&key).unwrap();
        Arc::new(builder.unwrap().with_no_client_auth().with_single_cert(vec![chain], key).unwrap())
    };
    let heard = Arc::new(AtomicUsize::new(0));
    let counted = heard.clone();
    let address = upstream(move |_, stream| {
        let session = rustls::ServerConnection::new(config.clone()).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        counted.fetch_add(bytes.len(), Ordering::SeqCst);
    });
    let proxy = Running::to(over_tls(&certified, address));
    assert_eq!(status(&proxy, last("/")), "502");
    assert_eq!(heard.load(Ordering::SeqCst), 0, "it got no request");
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let plain = || Server::new(Address::Socket("127.0.0.1:1".parse().unwrap()));
    let upstream = |protocol| Upstream { protocol, ..Upstream::new("t", vec![plain()]) };
    let streams_max = Protocol::STREAMS_MAX;
    assert!(upstream(Protocol::H2 { streams_max }).check().is_err());
    assert!(upstream(Protocol::H2c { streams_max }).check().is_ok());
    let certified = Certified::new();
    let secured = over_tls(&certified, "127.0.0.1:1".parse().unwrap());
    assert!(secured.check().is_ok());
    assert!(Upstream { protocol: Protocol::H2c { streams_max }, ..secured }.check().is_err());
    let version = Some(flatout_proxy::ProxyProtocol::V1);
    let named = Upstream { send_proxy_protocol: version, ..upstream(Protocol::H2c { streams_max }) };
    assert!(named.check().is_err());
}

#[test]
fn a_response_is_complete_at_its_length_although_the_stream_does_not_end() {
    // `:status: 200` and `content-length: 5`, without END_STREAM.
    let address = scripted(|id, _| {
        let head = frame(HEADERS, 4, id, &[0x88, 0x0f, 0x0d, 1, b'5']);
        [head, frame(0, 0, id, b"hello")].concat()
    });
    let plan = Upstream { read_time_max: Duration::from_millis(300), retries_max: 0, ..h2c(address) };
    let proxy = Running::to(plan);
    // The client's connection goes on with the next request.
    let both = proxy.all(format!("{}{}", support::get("/"), last("/")));
    assert_eq!(both.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{both}");
    assert_eq!(both.matches("\r\n\r\nhello").count(), 2, "{both}");
}
