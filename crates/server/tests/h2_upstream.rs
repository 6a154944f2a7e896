//! HTTP/2 upstreams: many requests over few connections.

mod support;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::Limits;
use flatout_proxy::{Forward, Protocol, Upstream};
use h2::Reason;
use h2::server::Builder;
use http::{HeaderMap, Response};
use support::h2::{ReceivedRequest, ask, begin, client, read, read_content, request, respond, serving};
use support::{Running, body_of, get, last, read_until, rest};
use tokio::sync::{Notify, Semaphore};

const BIG_BYTES: usize = 3 << 20;

fn big() -> Vec<u8> {
    (0..BIG_BYTES).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Responds with the request's body, piece by piece.
async fn echo(received: ReceivedRequest) {
    let ReceivedRequest { request, mut respond, .. } = received;
    let mut content = request.into_body();
    let mut stream = begin(&mut respond, Response::new(()));
    while let Some(Ok(piece)) = content.data().await {
        content.flow_control().release_capacity(piece.len()).unwrap();
        stream.send_data(piece, false).unwrap();
    }
    match content.trailers().await {
        Ok(Some(trailers)) => stream.send_trailers(trailers).unwrap(),
        _ => stream.send_data(Bytes::new(), true).unwrap(),
    }
}

async fn say_path(mut received: ReceivedRequest) {
    let path = received.request.uri().path().to_owned();
    respond(&mut received.respond, 200, path);
}

#[test]
fn a_hundred_requests_share_a_connection() {
    // No response is sent before all requests have arrived.
    let (came, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let upstream = serving(Builder::new(), None, move |received| {
        let (came, gate) = (came.clone(), gate.clone());
        async move {
            if came.fetch_add(1, Ordering::SeqCst) + 1 == 100 {
                gate.add_permits(100);
            }
            let _permit = gate.acquire().await.unwrap();
            say_path(received).await;
        }
    });
    let proxy = Running::to(upstream.upstream());
    let bodies = client(proxy.address, async |send| {
        let tasks: Vec<_> = (0..100)
            .map(|number| {
                let send = send.clone();
                tokio::task::spawn_local(async move {
                    ask(&send, request("GET", &format!("/{number}")), None).await.body
                })
            })
            .collect();
        let mut bodies = Vec::new();
        for task in tasks {
            bodies.push(String::from_utf8(task.await.unwrap()).unwrap());
        }
        bodies
    });
    assert_eq!(bodies, (0..100).map(|number| format!("/{number}")).collect::<Vec<_>>());
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn clients_of_http1_share_a_connection_too() {
    let upstream = serving(Builder::new(), None, say_path);
    let proxy = Running::to(upstream.upstream());
    for round in 0..5 {
        let mut clients: Vec<_> = (0..20).map(|_| proxy.connect()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(last(&format!("/{round}-{number}")).as_bytes()).unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let response = rest(client);
            assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
            assert_eq!(body_of(&response), format!("/{round}-{number}"));
        }
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn end_to_end_fields_reach_the_upstream() {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = heads.clone();
    let upstream = serving(Builder::new(), None, move |mut received| {
        kept.lock().unwrap().push((received.request.uri().clone(), received.request.headers().clone()));
        async move { respond(&mut received.respond, 200, "ok") }
    });
    let proxy = Running::to(upstream.upstream());
    proxy.all(
        "GET /a%2fb?q HTTP/1.1\r\nHost: h.example\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n\
         TE: trailers\r\ngrpc-timeout: 5S\r\nCookie: a=b\r\n\r\n",
    );
    client(proxy.address, async |send| {
        let mut head = request("POST", "/p");
        head.headers_mut().insert("te", "trailers".parse().unwrap());
        head.headers_mut().insert("grpc-timeout", "7S".parse().unwrap());
        ask(&send, head, Some(b"abc".to_vec())).await
    });
    let heads = heads.lock().unwrap();
    let (uri, fields) = &heads[0];
    assert_eq!(uri.to_string(), "http://h.example/a%2fb?q");
    for (name, value) in
        [("te", "trailers"), ("grpc-timeout", "5S"), ("cookie", "a=b"), ("x-forwarded-proto", "http")]
    {
        assert_eq!(fields[name], value);
    }
    let gone =
        ["connection", "x-hop", "keep-alive", "host", "upgrade", "transfer-encoding", "content-length"];
    assert!(gone.iter().all(|name| !fields.contains_key(*name)), "{fields:?}");
    let (uri, fields) = &heads[1];
    assert_eq!((uri.to_string().as_str(), &fields["grpc-timeout"]), ("http://t/p", &"7S".parse().unwrap()));
    assert_eq!(fields["te"], "trailers");
}

#[test]
fn bodies_are_larger_than_windows_both_ways() {
    let upstream = serving(Builder::new(), None, echo);
    let proxy = Running::to(upstream.upstream());
    client(proxy.address, async |send| {
        let got = ask(&send, request("POST", "/"), Some(big())).await;
        assert!(got.status == 200 && got.body == big(), "{} {}", got.status, got.body.len());
    });
    // The response starts before the request has ended, so one thread writes and another reads.
    let mut reading = proxy.connect();
    let mut writing = reading.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let head =
            format!("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {BIG_BYTES}\r\n\r\n");
        writing.write_all(head.as_bytes()).unwrap();
        writing.write_all(&big()).unwrap();
    });
    let mut bytes = Vec::new();
    reading.read_to_end(&mut bytes).unwrap();
    writer.join().unwrap();
    let at = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let body = unchunked(&bytes[at..]);
    assert!(body == big(), "{} bytes", body.len());
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn the_last_piece_of_a_body_ends_it() {
    let (came, ends) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
    let (arrived, seen) = (came.clone(), ends.clone());
    let upstream = serving(Builder::new(), None, move |received| {
        let (arrived, seen) = (arrived.clone(), seen.clone());
        async move {
            let ReceivedRequest { request, respond: mut asked, .. } = received;
            arrived.notify_one();
            let mut content = request.into_body();
            while let Some(Ok(piece)) = content.data().await {
                if !piece.is_empty() {
                    seen.lock().unwrap().push((piece, content.is_end_stream()));
                }
            }
            respond(&mut asked, 200, "done");
        }
    });
    let proxy = Running::to(upstream.upstream());
    let status = client(proxy.address, async |send| {
        let mut send = send.clone();
        let (response, mut body) = send.send_request(request("POST", "/"), false).unwrap();
        // The body is not there when its request is sent.
        came.notified().await;
        body.send_data(Bytes::from_static(b"Hello"), true).unwrap();
        response.await.unwrap().status()
    });
    assert_eq!(status, 200);
    assert_eq!(*ends.lock().unwrap(), [(Bytes::from_static(b"Hello"), true)]);
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 4 + size..];
    }
}

#[test]
fn a_client_that_takes_nothing_holds_up_only_itself() {
    let upstream = serving(Builder::new(), None, |mut received: ReceivedRequest| async move {
        match received.request.uri().path() {
            "/big" => {
                // As much as the windows allow, from the start.
                let mut stream = begin(&mut received.respond, Response::new(()));
                stream.send_data(vec![7; 16 << 20].into(), true).unwrap();
                let _ = std::future::poll_fn(|context| stream.poll_reset(context)).await;
            }
            _ => say_path(received).await,
        }
    });
    let proxy = Running::to(Upstream { connections_max: 1, ..upstream.upstream() });
    let mut slow: Vec<_> = (0..8).map(|_| proxy.connect()).collect();
    for stream in &mut slow {
        stream.write_all(last("/big").as_bytes()).unwrap();
        // The response has started.
        stream.read_exact(&mut [0; 12]).unwrap();
    }
    for number in 0..50 {
        let path = format!("/{number}");
        assert_eq!(body_of(&proxy.all(last(&path))), path);
    }
    // All at once: one that waits for its turn takes nothing for too long.
    std::thread::scope(|scope| {
        for mut stream in slow {
            scope.spawn(move || {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).unwrap();
                assert_eq!(bytes.iter().filter(|&&byte| byte == 7).count(), 16 << 20);
            });
        }
    });
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn unread_bytes_of_a_departed_client_are_returned_to_the_window() {
    // Less than the window of a stream; all clients together leave more than the window of the connection behind.
    const SENT_BYTES: usize = 20 << 10;
    let sent = Arc::new(Notify::new());
    let tell = sent.clone();
    let upstream = serving(Builder::new(), None, move |mut received: ReceivedRequest| {
        let tell = tell.clone();
        async move {
            let mut stream = begin(&mut received.respond, Response::new(()));
            let mut bytes = 0;
            while bytes < SENT_BYTES {
                stream.reserve_capacity(4 << 10);
                let Some(Ok(room)) = std::future::poll_fn(|context| stream.poll_capacity(context)).await
                else {
                    return;
                };
                bytes += room;
                stream.send_data(vec![7; room].into(), false).unwrap();
            }
            tell.notify_one();
            let _ = std::future::poll_fn(|context| stream.poll_reset(context)).await;
        }
    });
    let protocol = Protocol::H2c { streams_max: 1 };
    let proxy = Running::to(Upstream { protocol, connections_max: 1, ..upstream.upstream() });
    for _ in 0..16 {
        let mut leaving = proxy.connect();
        leaving.write_all(&h2_request_with_small_windows()).unwrap();
        let waiting = async { tokio::time::timeout(Duration::from_secs(30), sent.notified()).await };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(waiting).expect("as much is sent as to the first client");
    }
    assert_eq!(upstream.connections(), 1);
}

/// An HTTP/2 request by a client that never opens a window.
fn h2_request_with_small_windows() -> Vec<u8> {
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let head = [0x82, 0x86, 0x84, 1, 1, b't'];
    [&flatout_wire::h2::PREFACE[..], &settings, &[0, 0, head.len() as u8, 1, 5, 0, 0, 0, 1], &head].concat()
}

/// Requests by a client of HTTP/2 that opens no window, each for a response without end.
fn h2_requests_with_small_windows(count: u32) -> Vec<u8> {
    let mut bytes = h2_request_with_small_windows();
    for number in 1..count {
        let head = [0x82, 0x86, 0x84, 1, 1, b't'];
        bytes.extend([0, 0, head.len() as u8, 1, 5]);
        bytes.extend((2 * number + 1).to_be_bytes());
        bytes.extend(head);
    }
    bytes
}

#[test]
fn a_client_connection_that_takes_nothing_has_one_budget() {
    const BUDGET_BYTES: usize = 4 << 20;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let upstream = serving(Builder::new(), None, move |mut received: ReceivedRequest| {
        let sent = counted.clone();
        async move {
            if received.request.uri().path() == "/ping" {
                return say_path(received).await;
            }
            let mut stream = begin(&mut received.respond, Response::new(()));
            loop {
                stream.reserve_capacity(16 << 10);
                let Some(Ok(room)) = std::future::poll_fn(|context| stream.poll_capacity(context)).await
                else {
                    return;
                };
                sent.fetch_add(room, Ordering::SeqCst);
                stream.send_data(vec![7; room].into(), false).unwrap();
            }
        }
    });
    // Buffered responses have their own limits.
    let forward = Forward { buffer_response_bytes: 0, ..Forward::to(0) };
    let proxy = Running::with(upstream.upstream(), forward, Limits::default());
    let until_nothing_is_sent = || {
        let mut quiet = 0;
        while quiet < 50 {
            let before = sent.load(Ordering::SeqCst);
            assert!(body_of(&proxy.all(last("/ping"))).contains("/ping"));
            quiet = if sent.load(Ordering::SeqCst) == before { quiet + 1 } else { 0 };
        }
        sent.swap(0, Ordering::SeqCst)
    };
    let mut stalled = proxy.connect();
    stalled.write_all(&h2_requests_with_small_windows(100)).unwrap();
    let h2_bytes = until_nothing_is_sent();
    assert!(h2_bytes > 100 << 10, "the responses have begun: {h2_bytes}");
    assert!(h2_bytes <= BUDGET_BYTES, "{h2_bytes} bytes wait for one client");
    // The same with a client of HTTP/1; both sockets of its connection take some megabytes.
    let mut plain = proxy.connect();
    plain.write_all(get("/").as_bytes()).unwrap();
    plain.read_exact(&mut [0; 12]).unwrap();
    let plain_bytes = until_nothing_is_sent();
    assert!(plain_bytes <= 4 * BUDGET_BYTES, "{plain_bytes} bytes wait for one client and in its sockets");
}

#[test]
fn many_small_pieces_are_no_attack() {
    let upstream = serving(Builder::new(), None, |mut received: ReceivedRequest| async move {
        let mut stream = begin(&mut received.respond, Response::new(()));
        (0..5_000).for_each(|_| stream.send_data("piece".into(), false).unwrap());
        stream.send_data(Bytes::new(), true).unwrap();
    });
    let proxy = Running::to(upstream.upstream());
    client(proxy.address, async |send| {
        let got = ask(&send, request("GET", "/"), None).await;
        assert_eq!((got.body.len(), got.is_cut), (25_000, false));
    });
}

#[test]
fn trailers_go_both_ways() {
    let upstream = serving(Builder::new(), None, |mut received: ReceivedRequest| async move {
        match received.request.uri().path() {
            // A gRPC response with nothing but trailers.
            "/only" => {
                let head = Response::builder().header("grpc-status", "5").body(()).unwrap();
                received.respond.send_response(head, true).unwrap();
            }
            "/late" => {
                let mut stream = begin(&mut received.respond, Response::new(()));
                stream.send_data("first".into(), false).unwrap();
                tokio::task::yield_now().await;
                let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
                stream.send_trailers(trailers).unwrap();
            }
            _ => echo(received).await,
        }
    });
    let chunked = "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n0\r\nX-User: root\r\nX-Sum: 6\r\nX-Other: 1\r\n\r\n";
    let proxy = Running::to(upstream.upstream());
    let response = proxy.all(chunked);
    assert!(response.starts_with("HTTP/1.1 200 ") && response.contains("abc"), "{response}");
    assert!(!response.to_lowercase().contains("x-sum"), "those of requests are dropped: {response}");
    drop(proxy);
    let forward = Forward { request_trailers: vec!["x-sum".to_owned()], ..Forward::to(0) };
    let proxy = Running::with(upstream.upstream(), forward, Limits::default());
    client(proxy.address, async |send| {
        let mut send = send.ready().await.unwrap();
        let (response, mut stream) = send.send_request(request("POST", "/"), false).unwrap();
        stream.send_data("abc".into(), false).unwrap();
        let named = HeaderMap::from_iter([("x-sum".parse().unwrap(), "6".parse().unwrap())]);
        let mut trailers = named.clone();
        trailers.insert("x-user", "root".parse().unwrap());
        stream.send_trailers(trailers).unwrap();
        let got = read(response.await.unwrap()).await;
        assert_eq!((got.body.as_slice(), got.trailers), (&b"abc"[..], Some(named)));
        let only = ask(&send, request("POST", "/only"), Some(b"x".to_vec())).await;
        assert_eq!(
            (only.status, &only.fields["grpc-status"], only.body.len()),
            (200, &"5".parse().unwrap(), 0)
        );
        let late = ask(&send, request("POST", "/late"), Some(b"x".to_vec())).await;
        assert_eq!(
            (late.body.as_slice(), late.trailers.unwrap()["grpc-status"].as_bytes()),
            (&b"first"[..], &b"0"[..])
        );
    });
    let response = proxy.all(chunked);
    assert!(response.ends_with("3\r\nabc\r\n0\r\nx-sum: 6\r\n\r\n"), "{response}");
}

#[test]
fn responses_without_content_have_none() {
    let upstream = serving(Builder::new(), None, |mut received: ReceivedRequest| async move {
        let (status, length) = match received.request.uri().path() {
            "/204" => (204, None),
            "/304" => (304, Some("77")),
            _ => (200, Some("33")),
        };
        let mut head = Response::builder().status(status);
        if let Some(length) = length {
            head = head.header("content-length", length);
        }
        received.respond.send_response(head.body(()).unwrap(), true).unwrap();
    });
    let proxy = Running::to(upstream.upstream());
    for (method, path, begins, length) in [
        ("HEAD", "/", "HTTP/1.1 200 OK", Some("Content-Length: 33\r\n")),
        ("GET", "/204", "HTTP/1.1 204 No Content", None),
        ("GET", "/304", "HTTP/1.1 304 Not Modified", Some("Content-Length: 77\r\n")),
    ] {
        let response = proxy.all(format!("{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
        assert!(response.starts_with(begins) && body_of(&response).is_empty(), "{response}");
        assert_eq!(length.is_some(), response.contains("Content-Length"), "{response}");
        assert!(length.is_none_or(|length| response.contains(length)), "{response}");
        client(proxy.address, async |send| {
            let got = ask(&send, request(method, path), None).await;
            assert!(
                begins.contains(&got.status.to_string()) && got.body.is_empty() && !got.is_cut,
                "{got:?}"
            );
        });
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn interim_responses_are_passed_on() {
    let upstream = serving(Builder::new(), None, |mut received: ReceivedRequest| async move {
        let hints = Response::builder().status(103).header("link", "</a>").body(()).unwrap();
        received.respond.send_informational(hints).unwrap();
        respond(&mut received.respond, 200, "after");
    });
    let proxy = Running::to(upstream.upstream());
    let response = proxy.all(last("/"));
    assert!(
        response.starts_with("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n"),
        "{response}"
    );
}

#[test]
fn a_reset_is_a_bad_gateway_or_cuts_the_response() {
    let upstream = serving(Builder::new(), None, |mut received: ReceivedRequest| async move {
        match received.request.uri().path() {
            "/at-once" => received.respond.send_reset(Reason::INTERNAL_ERROR),
            "/later" => {
                let mut stream = begin(&mut received.respond, Response::new(()));
                stream.send_data("some".into(), false).unwrap();
                stream.reserve_capacity(1);
                let _ = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                stream.send_reset(Reason::INTERNAL_ERROR);
            }
            _ => say_path(received).await,
        }
    });
    let proxy = Running::to(upstream.upstream());
    client(proxy.address, async |send| {
        let other = ask(&send, request("GET", "/before"), None);
        assert_eq!(ask(&send, request("GET", "/at-once"), None).await.status, 502);
        assert_eq!(other.await.status, 200);
        assert_eq!(ask(&send, request("POST", "/at-once"), Some(b"x".to_vec())).await.status, 502);
        let later = ask(&send, request("GET", "/later"), None).await;
        assert!(later.status == 200 && later.is_cut, "{later:?}");
        assert_eq!(ask(&send, request("GET", "/after"), None).await.status, 200);
    });
    assert_eq!(upstream.connections(), 1, "the others go on");
}

#[test]
fn refused_streams_are_retried_for_every_method() {
    let count = Arc::new(AtomicUsize::new(0));
    let upstream = serving(Builder::new(), None, move |mut received: ReceivedRequest| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        async move {
            if number < 3 {
                // Read some of its content, which has to be sent again.
                let _ = received.request.body_mut().data().await;
                return received.respond.send_reset(Reason::REFUSED_STREAM);
            }
            let (body, _) = read_content(received.request.body_mut()).await.unwrap();
            respond(&mut received.respond, 200, body);
        }
    });
    let proxy = Running::to(Upstream { retries_max: 0, ..upstream.upstream() });
    client(proxy.address, async |send| {
        let got = ask(&send, request("POST", "/"), Some(b"once".to_vec())).await;
        assert_eq!((got.status, got.body.as_slice()), (200, &b"once"[..]));
    });
    // A server that always refuses is not asked forever.
    let upstream = serving(Builder::new(), None, move |mut received: ReceivedRequest| async move {
        received.respond.send_reset(Reason::REFUSED_STREAM);
    });
    let proxy = Running::to(upstream.upstream());
    let response = proxy.all(last("/"));
    assert!(response.starts_with("HTTP/1.1 502"), "{response}");
}

#[test]
fn goaway_loses_no_request() {
    let upstream = serving(Builder::new(), Some(7), echo);
    let proxy = Running::to(Upstream { retries_max: 0, ..upstream.upstream() });
    client(proxy.address, async |send| {
        for round in 0..10 {
            let tasks: Vec<_> = (0..50)
                .map(|number| {
                    let send = send.clone();
                    tokio::task::spawn_local(async move {
                        let body = format!("{round}-{number}");
                        let got = ask(&send, request("POST", "/"), Some(body.clone().into_bytes())).await;
                        assert_eq!((got.status, String::from_utf8(got.body).unwrap()), (200, body));
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        }
    });
    assert!(upstream.connections() >= 10, "{}", upstream.connections());
}

#[test]
fn a_server_that_takes_few_streams_gets_few() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (busy, seen) = (now.clone(), most.clone());
    let mut builder = Builder::new();
    builder.max_concurrent_streams(2);
    let upstream = serving(builder, None, move |received| {
        let (busy, seen) = (busy.clone(), seen.clone());
        async move {
            seen.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            busy.fetch_sub(1, Ordering::SeqCst);
            say_path(received).await;
        }
    });
    let proxy = Running::to(Upstream { connections_max: 1, ..upstream.upstream() });
    client(proxy.address, async |send| {
        let tasks: Vec<_> = (0..60)
            .map(|number| {
                let send = send.clone();
                tokio::task::spawn_local(async move {
                    ask(&send, request("GET", &format!("/{number}")), None).await.status
                })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), 200);
        }
    });
    assert_eq!((upstream.connections(), most.load(Ordering::SeqCst) <= 2), (1, true));
}

#[test]
fn a_client_that_goes_away_resets_its_stream_only() {
    let gone = Arc::new(Mutex::new(None));
    let told = Arc::new(Notify::new());
    let (kept, tell) = (gone.clone(), told.clone());
    let upstream = serving(Builder::new(), None, move |mut received: ReceivedRequest| {
        let (kept, tell) = (kept.clone(), tell.clone());
        async move {
            match received.request.uri().path() {
                "/endless" => {
                    let mut stream = begin(&mut received.respond, Response::new(()));
                    stream.send_data("x".into(), false).unwrap();
                    let reason = std::future::poll_fn(|context| stream.poll_reset(context)).await;
                    *kept.lock().unwrap() = reason.ok();
                    tell.notify_one();
                }
                "/wait" => {
                    tell.notified().await;
                    respond(&mut received.respond, 200, "still here");
                }
                _ => say_path(received).await,
            }
        }
    });
    let proxy = Running::to(upstream.upstream());
    let mut waiting = proxy.connect();
    waiting.write_all(last("/wait").as_bytes()).unwrap();
    let mut leaving = proxy.connect();
    leaving.write_all(get("/endless").as_bytes()).unwrap();
    leaving.read_exact(&mut [0; 12]).unwrap();
    drop(leaving);
    assert_eq!(body_of(&rest(&mut waiting)), "still here");
    assert_eq!(*gone.lock().unwrap(), Some(Reason::CANCEL));
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_silent_server_times_out() {
    let upstream = serving(Builder::new(), None, |received: ReceivedRequest| async move {
        if received.request.uri().path() == "/silent" {
            std::future::pending::<()>().await;
        }
        say_path(received).await;
    });
    // The other requests are served within that, also on a slow machine.
    let plan = Upstream { read_time_max: Duration::from_secs(4), retries_max: 0, ..upstream.upstream() };
    let proxy = Running::to(plan);
    let mut silent = proxy.connect();
    silent.write_all(last("/silent").as_bytes()).unwrap();
    assert_eq!(body_of(&proxy.all(last("/other"))), "/other");
    let response = rest(&mut silent);
    assert!(response.starts_with("HTTP/1.1 504"), "{response}");
    assert_eq!(body_of(&proxy.all(last("/again"))), "/again");
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn the_stream_limit_is_configurable() {
    let gate = Arc::new(Semaphore::new(0));
    let (opened, came) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
    let upstream = serving(Builder::new(), None, move |received| {
        let (gate, came) = (gate.clone(), came.clone());
        async move {
            if came.fetch_add(1, Ordering::SeqCst) + 1 == 9 {
                gate.add_permits(9);
            }
            let _permit = gate.acquire().await.unwrap();
            say_path(received).await;
        }
    });
    let proxy = Running::to(Upstream { protocol: Protocol::H2c { streams_max: 3 }, ..upstream.upstream() });
    let mut clients: Vec<_> = (0..9).map(|_| proxy.connect()).collect();
    clients.iter_mut().for_each(|client| client.write_all(last("/x").as_bytes()).unwrap());
    clients.iter_mut().for_each(|client| assert_eq!(body_of(&rest(client)), "/x"));
    assert_eq!(upstream.connections(), 3);
    drop(opened);
}

/// An upstream that sends many small frames at once does not make as many chunks of them.
#[test]
fn small_frames_are_forwarded_in_few_writes() {
    const FRAMES: usize = 1000;
    let go = Arc::new(Notify::new());
    let waits = go.clone();
    let upstream = serving(Builder::new(), None, move |mut received| {
        let go = waits.clone();
        async move {
            let mut stream = begin(&mut received.respond, Response::new(()));
            stream.send_data(Bytes::from_static(b"first"), false).unwrap();
            go.notified().await;
            for _ in 0..FRAMES {
                stream.send_data(Bytes::from_static(b"ten bytes."), false).unwrap();
            }
            go.notified().await;
            stream.send_data(Bytes::new(), true).unwrap();
        }
    });
    let proxy = Running::to(upstream.upstream());
    let mut client = proxy.connect();
    client.write_all(get("/").as_bytes()).unwrap();
    read_until(&mut client, "first\r\n");
    go.notify_one();
    let (mut chunks, mut body) = (0, String::new());
    while body.len() < FRAMES * 10 {
        let size = read_until(&mut client, "\r\n");
        let mut chunk = vec![0; usize::from_str_radix(size.trim_end(), 16).unwrap() + 2];
        client.read_exact(&mut chunk).unwrap();
        body.push_str(str::from_utf8(&chunk).unwrap().trim_end());
        chunks += 1;
    }
    assert_eq!(body, "ten bytes.".repeat(FRAMES));
    assert!(chunks < FRAMES / 10, "{chunks} chunks");
    go.notify_one();
    assert_eq!(read_until(&mut client, "0\r\n\r\n"), "0\r\n\r\n");
}
