//! The proxy between clients and scripted upstreams.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use flatout_engine::Limits;
use flatout_proxy::{Address, BufferRequests, Forward, Mirror, Passive, Server, Upstream};
use support::{
    Running, answering, body_of, get, last, one, read_request, read_until, recording, rest, upstream,
};

const OK: &str =
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-From: upstream\r\nDate: then\r\nServer: them\r\n\r\nhello";

#[test]
fn requests_are_passed_on_over_kept_connections() {
    let (address, asked) = answering(OK);
    let proxy = Running::to(one(address));
    let mut stream = proxy.connect();
    for path in ["/a?b=c", "/%2f/../x", "/last"] {
        stream.write_all(get(path).as_bytes()).unwrap();
        let answer = read_until(&mut stream, "hello");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(answer.matches("Date: ").count(), 1, "{answer}");
        for line in ["X-From: upstream\r\n", "Date: then\r\n", "Server: them\r\n", "Content-Length: 5\r\n"] {
            assert!(answer.contains(line), "{answer}");
        }
    }
    let asked: Vec<String> = asked.try_iter().collect();
    assert_eq!(asked.len(), 3);
    assert!(asked[0].starts_with("GET /a?b=c HTTP/1.1\r\nHost: t\r\n"), "{}", asked[0]);
    assert!(asked[0].contains("X-Forwarded-For: 127.0.0.1\r\n"), "{}", asked[0]);
}

#[test]
fn bodies_go_both_ways_in_every_framing() {
    // Echoes requests in the same framing.
    let address = upstream(|_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            let framing = head
                .lines()
                .find(|line| line.starts_with("Content-Length") || line.starts_with("Transfer-Encoding"))
                .unwrap();
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{body}").as_bytes()).unwrap();
        }
    });
    let proxy = Running::to(one(address));
    for bytes in [0, 1, 5_000, 16_384, 16_385, 70_000, 300_000, 2_000_000] {
        let body: String = (0..bytes).map(|at| char::from(b'a' + (at * 7 % 25) as u8)).collect();
        let mut stream = proxy.connect();
        let head =
            format!("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n");
        let (mut writer, sent) = (stream.try_clone().unwrap(), head + &body);
        let sender = std::thread::spawn(move || writer.write_all(sent.as_bytes()).unwrap());
        let answer = rest(&mut stream);
        sender.join().unwrap();
        assert!(answer.contains(&format!("Content-Length: {bytes}\r\n")), "{bytes} {}", &answer[..200]);
        assert!(body_of(&answer) == body, "{bytes}");
    }
    let answer = proxy.all(
        "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\r\n\
         3\r\nabc\r\n4\r\ndefg\r\n0\r\nX-Sum: 7\r\nTransfer-Encoding: no\r\n\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 400 ") || !answer.contains("Transfer-Encoding: no"), "{answer}");
    let trailers = "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\r\n\
                    3\r\nabc\r\n0\r\nX-Sum: 7\r\nX-User: root\r\n\r\n";
    let answer = proxy.all(trailers);
    assert!(answer.ends_with("3\r\nabc\r\n0\r\n\r\n"), "trailers of requests are dropped: {answer}");
    let forward = Forward { request_trailers: vec!["x-sum".to_owned()], ..Forward::to(0) };
    let proxy = Running::with(one(address), forward, Limits::default());
    let answer = proxy.all(trailers);
    assert!(answer.ends_with("3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n"), "but not those of the route: {answer}");
    let answer = proxy.all(
        "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\r\n\
         3\r\nabc\r\n4\r\ndefg\r\n0\r\nX-Sum: 7\r\n\r\n",
    );
    assert!(answer.contains("\r\nTransfer-Encoding: chunked\r\n"), "{answer}");
    assert!(
        answer.contains("3\r\nabc\r\n4\r\ndefg\r\n") && answer.ends_with("0\r\nX-Sum: 7\r\n\r\n"),
        "{answer}"
    );
}

#[test]
fn responses_delimited_by_the_connection_are_complete() {
    let address = upstream(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
        for _ in 0..30 {
            stream.write_all(&[b'x'; 100_000]).unwrap();
        }
    });
    let answer = Running::to(one(address)).all(last("/"));
    assert!(answer.contains("Transfer-Encoding: chunked\r\n"), "{}", &answer[..200]);
    assert!(answer.ends_with("0\r\n\r\n"));
    assert_eq!(body_of(&answer).matches('x').count(), 3_000_000);
}

#[test]
fn heads_without_bodies_keep_their_length() {
    let (address, _asked) = answering("HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n");
    let answer = Running::to(one(address)).all("HEAD / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert!(answer.contains("Content-Length: 1234\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    let (address, _asked) =
        answering("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 99\r\n\r\n");
    let proxy = Running::to(one(address));
    let answer = proxy.all(get("/") + &last("/"));
    assert_eq!(answer.matches("304 Not Modified").count(), 2, "{answer}");
    let (address, _asked) = answering("HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n");
    let answer = Running::to(one(address)).all(get("/") + &last("/"));
    assert!(answer.matches("204 No Content").count() == 2 && !answer.contains("Content-Length"), "{answer}");
}

#[test]
fn interim_responses_are_passed_on() {
    let (address, asked) = answering(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: x\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    );
    let answer = Running::to(one(address)).all(
        "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    );
    assert!(answer.contains("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK"), "{answer}");
    assert!(answer.matches("100 Continue").count() <= 1, "{answer}");
    assert!(!asked.recv().unwrap().contains("Expect"), "we have told the client to go on");
}

#[test]
fn a_malformed_response_is_502_and_its_connection_not_used_again() {
    for bad in [
        "SSH-2.0-OpenSSH_9\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "",
    ] {
        let address = upstream(move |_, mut stream| {
            read_request(&mut stream);
            let _ = stream.write_all(bad.as_bytes());
            let _ = stream.shutdown(Shutdown::Write);
        });
        let proxy = Running::to(one(address));
        let answer = proxy.all(get("/") + &last("/"));
        assert_eq!(answer.matches("HTTP/1.1 502 Bad Gateway").count(), 2, "{bad:?}: {answer}");
    }
    // Endless heads and endless interim responses.
    for endless in ["X-A: b\r\n", "HTTP/1.1 103 Early Hints\r\n\r\n"] {
        let address = upstream(move |_, mut stream| {
            read_request(&mut stream);
            let first = if endless.starts_with('H') { "" } else { "HTTP/1.1 200 OK\r\n" };
            let _ = stream.write_all(first.as_bytes());
            while stream.write_all(endless.repeat(100).as_bytes()).is_ok() {}
        });
        let answer = Running::to(one(address)).all(last("/"));
        assert!(answer.contains("HTTP/1.1 502 Bad Gateway"), "{}", &answer[..answer.len().min(300)]);
    }
}

#[test]
fn stray_bytes_after_a_response_are_discarded() {
    let (address, _asked) = answering(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
    );
    let proxy = Running::to(one(address));
    for _ in 0..5 {
        let answer = proxy.all(get("/a") + &last("/b"));
        assert!(!answer.contains("evil") && answer.matches("\r\n\r\nok").count() == 2, "{answer}");
    }
}

#[test]
fn a_truncated_response_is_not_reported_as_complete() {
    for cut in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
    ] {
        let address = upstream(move |_, mut stream| {
            read_request(&mut stream);
            let _ = stream.write_all(cut.as_bytes());
        });
        let proxy = Running::to(one(address));
        let mut stream = proxy.connect();
        stream.write_all((get("/") + &get("/second")).as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let is_cut = !answer.ends_with("0\r\n\r\n") && answer.matches("HTTP/1.1").count() == 1;
        assert!(is_cut, "{cut:?}: {answer}");
    }
}

#[test]
fn an_unreachable_server_is_logged_and_another_one_used() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let answer = Running::to(one(gone)).all(last("/"));
    assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
    let (address, _asked) = answering(OK);
    let servers = [gone, address].map(|address| Server::new(Address::Socket(address)));
    let proxy = Running::to(Upstream::new("t", servers.into()));
    for _ in 0..20 {
        // Reconnecting is safe for every method.
        let answer =
            proxy.all("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[test]
fn connections_that_were_closed_while_idle_cost_no_request() {
    // Closes each connection after its first response, without announcing it.
    let (closing, closed) = std::sync::mpsc::channel();
    let address = upstream(move |_, mut stream| {
        read_request(&mut stream);
        stream.write_all(OK.as_bytes()).unwrap();
        drop(stream);
        let _ = closing.send(());
    });
    let proxy = Running::to(one(address));
    let mut stream = proxy.connect();
    let mut closes = 0;
    for number in 0..200 {
        let request = match number % 2 {
            0 => get("/"),
            _ => {
                // A request that must not be repeated can be lost to a simultaneous close.
                while closes < number {
                    closed.recv_timeout(Duration::from_secs(30)).unwrap();
                    closes += 1;
                }
                "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\nx".to_owned()
            }
        };
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_until(&mut stream, "\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{number}: {answer}");
        read_until(&mut stream, "hello");
    }
}

#[test]
fn long_bodies_are_not_copied_although_they_are_collected() {
    for (bytes, copies) in [(64 << 10, 1), ((64 << 10) + 1, 0)] {
        let (address, asked) = recording();
        let mirrors = vec![Mirror { upstream: 0, numerator: 1, denominator: 1 }];
        let forward = Forward { mirrors, buffer_requests: BufferRequests::All, ..Forward::to(0) };
        let proxy = Running::with(one(address), forward, Limits::default());
        let head =
            format!("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n");
        assert!(proxy.all(head + &"x".repeat(bytes)).ends_with("ok"));
        for _ in 0..5 {
            proxy.all(last("/"));
        }
        let count = || {
            let asked = asked.lock().unwrap();
            let is_post = |request: &&String| request.starts_with("POST ");
            (asked.iter().filter(is_post).count(), asked.len())
        };
        let began = Instant::now();
        while count().1 < 11 + copies {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", count());
            std::thread::yield_now();
        }
        assert_eq!(count(), (1 + copies, 11 + copies), "{bytes} bytes");
    }
}

#[test]
fn unsafe_requests_are_not_retried() {
    let (address, count) = {
        let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = count.clone();
        let address = upstream(move |_, mut stream| {
            if read_request(&mut stream).is_some() {
                counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        });
        (address, count)
    };
    let proxy = Running::to(one(address));
    let answer = proxy.all("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 1);
    let answer = proxy.all(last("/"));
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 1 + 3, "GET is asked again, twice");
}

#[test]
fn a_slow_server_times_out() {
    let address = upstream(|_, mut stream| {
        read_request(&mut stream);
        std::thread::sleep(Duration::from_secs(20));
    });
    let plan = Upstream { read_time_max: Duration::from_millis(500), retries_max: 0, ..one(address) };
    let began = Instant::now();
    let answer = Running::to(plan).all(last("/"));
    assert!(answer.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(10));
    // In the middle of a body.
    let address = upstream(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc").unwrap();
        std::thread::sleep(Duration::from_secs(20));
    });
    // What comes first is there in time, also on a slow machine.
    let plan = Upstream { read_time_max: Duration::from_secs(4), ..one(address) };
    let proxy = Running::to(plan);
    let mut stream = proxy.connect();
    stream.write_all(last("/").as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.ends_with(b"abc"));
}

#[test]
fn a_client_that_leaves_ends_the_upstreams_request() {
    let (sender, ended) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let address = upstream(move |_, mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
        while stream.write_all(&[b'x'; 10_000]).is_ok() {}
        let _ = sender.lock().unwrap().send(());
    });
    let proxy = Running::to(one(address));
    let mut stream = proxy.connect();
    stream.write_all(get("/").as_bytes()).unwrap();
    read_until(&mut stream, "\r\n\r\n");
    drop(stream);
    ended.recv_timeout(Duration::from_secs(30)).expect("the upstream's connection is closed");
}

#[test]
fn a_response_before_the_request_was_read_ends_it() {
    // Closing with unread bytes resets the connection, which may destroy the response: it is kept open until that was read.
    let (read, was_read) = std::sync::mpsc::channel::<()>();
    let was_read = std::sync::Mutex::new(was_read);
    let address = upstream(move |_, mut stream| {
        read_until(&mut stream, "\r\n\r\n");
        stream
            .write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
            .unwrap();
        let _ = was_read.lock().unwrap().recv_timeout(Duration::from_secs(30));
    });
    let proxy = Running::to(one(address));
    let mut stream = proxy.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 50000000\r\n\r\n").unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for _ in 0..500 {
            if writer.write_all(&[b'x'; 100_000]).is_err() {
                return;
            }
        }
    });
    let answer = read_until(&mut stream, "\r\n\r\nbig");
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    read.send(()).unwrap();
    drop(stream);
    sender.join().unwrap();
}

/// An upstream that reports each request, and responds once it is let.
fn held() -> (SocketAddr, Receiver<()>, Sender<()>) {
    let ((came, comes), (go, goes)) = (channel(), channel());
    let both = Mutex::new((came, goes));
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            let (came, goes) = &*both.lock().unwrap();
            let _ = came.send(());
            let _ = goes.recv_timeout(Duration::from_secs(60));
            if stream.write_all(OK.as_bytes()).is_err() {
                return;
            }
        }
    });
    (address, comes, go)
}

#[test]
fn requests_wait_in_a_queue_of_a_size() {
    let (address, _comes, go) = held();
    let queue_time_max = Duration::from_secs(60);
    let plan = Upstream { connections_max: 1, queue_max: 3, queue_time_max, ..one(address) };
    let proxy = Running::to(plan);
    // One is served and three wait: one of five is refused at once, and it is the first that gets a response.
    let (sender, answers) = channel();
    for _ in 0..5 {
        let (mut stream, sender) = (proxy.connect(), sender.clone());
        std::thread::spawn(move || {
            stream.write_all(last("/").as_bytes()).unwrap();
            sender.send(rest(&mut stream)).unwrap();
        });
    }
    let next = || answers.recv_timeout(Duration::from_secs(60)).unwrap();
    let answer = next();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: 1\r\n"), "{answer}");
    for _ in 0..4 {
        go.send(()).unwrap();
        assert!(next().starts_with("HTTP/1.1 200 "));
    }
}

#[test]
fn requests_wait_in_a_queue_for_a_time() {
    let (address, comes, go) = held();
    let queue_time_max = Duration::from_millis(900);
    let plan = Upstream { connections_max: 1, queue_max: 3, queue_time_max, ..one(address) };
    let proxy = Running::to(plan);
    let mut first = proxy.connect();
    first.write_all(last("/").as_bytes()).unwrap();
    comes.recv_timeout(Duration::from_secs(30)).unwrap();
    let began = Instant::now();
    let answer = proxy.all(last("/"));
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!((Duration::from_millis(800)..Duration::from_secs(15)).contains(&began.elapsed()));
    go.send(()).unwrap();
    assert!(rest(&mut first).starts_with("HTTP/1.1 200 "));
}

/// A proxy that forwards the protocol `echo` too.
fn tunnels(address: SocketAddr) -> Running {
    let upgrade = vec!["websocket".to_owned(), "echo".to_owned()];
    Running::with(one(address), Forward { upgrade, ..Forward::to(0) }, Limits::default())
}

#[test]
fn an_unrequested_protocol_switch_gets_502_and_a_closed_connection() {
    // What the client asks for, what the upstream sees of it, and what it switches to.
    for (asked, seen, chosen) in [
        (
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
            None,
            "Upgrade: h2c\r\n",
        ),
        ("Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n", Some("websocket"), "Upgrade: h2c\r\n"),
        ("Connection: Upgrade\r\nUpgrade: websocket\r\n", Some("websocket"), ""),
        ("Connection: Upgrade\r\nUpgrade: websocket\r\n", Some("websocket"), "Upgrade: websocket, h2c\r\n"),
        ("Connection: Upgrade\r\nUpgrade: tls/1.3\r\n", None, "Upgrade: tls/1.3\r\n"),
        ("Upgrade: websocket\r\n", None, "Upgrade: websocket\r\n"),
        ("Connection: Upgrade\r\nUpgrade: echo\r\nContent-Length: 3\r\n", None, "Upgrade: echo\r\n"),
    ] {
        let (sender, requests) = channel();
        let sender = Mutex::new(sender);
        let address = upstream(move |_, mut stream| {
            let Some(request) = read_request(&mut stream) else { return };
            let _ = sender.lock().unwrap().send(request);
            let head = format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n{chosen}\r\n");
            let _ = stream.write_all(head.as_bytes());
            // Nothing that follows in the connection may get here.
            let mut more = Vec::new();
            let _ = stream.read_to_end(&mut more);
            let _ = sender.lock().unwrap().send(String::from_utf8_lossy(&more).into_owned());
        });
        let body = if asked.contains("Length") { "abc" } else { "" };
        let answer = tunnels(address)
            .all(format!("GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{asked}\r\n{body}"));
        assert!(answer.starts_with("HTTP/1.1 502 "), "{asked}: {answer}");
        assert!(!answer.contains("101"), "{asked}: {answer}");
        let request = requests.recv_timeout(Duration::from_secs(60)).unwrap().to_lowercase();
        match seen {
            Some(protocol) => assert!(request.contains(&format!("upgrade: {protocol}\r\n")), "{request}"),
            None => assert!(!request.contains("upgrade"), "{request}"),
        }
        assert!(!request.contains("http2-settings") && !request.contains("h2c"), "{request}");
        let more = requests.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(more.is_empty() || more == "abc", "{asked}: {more}");
    }
}

#[test]
fn a_tunnel_carries_bytes_both_ways() {
    let address = upstream(|_, mut stream| {
        let request = read_request(&mut stream).unwrap();
        assert!(request.contains("Connection: upgrade\r\nUpgrade: echo\r\n"), "{request}");
        stream
            .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-A: b\r\n\r\nfirst")
            .unwrap();
        let mut buffer = vec![0; 100_000];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            stream.write_all(&buffer[..count]).unwrap();
        }
        let _ = stream.write_all(b"end");
    });
    let proxy = tunnels(address);
    let mut stream = proxy.connect();
    let head = "GET /echo HTTP/1.1\r\nHost: t\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\n";
    stream.write_all((head.to_owned() + "early").as_bytes()).unwrap();
    let answer = read_until(&mut stream, "\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{answer}");
    assert!(answer.contains("Upgrade: echo\r\n") && answer.contains("Connection: upgrade\r\n"), "{answer}");
    assert!(answer.contains("X-A: b\r\n"), "{answer}");
    assert_eq!(read_until(&mut stream, "firstearly"), "firstearly");
    let body: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let (mut writer, sent) = (stream.try_clone().unwrap(), body.clone());
    let sender = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    sender.join().unwrap();
    assert!(back.ends_with(b"end") && back[..body.len()] == body[..], "{}", back.len());
    // Without the upstream's agreement there is no tunnel.
    let (address, _asked) = answering(OK);
    let answer = tunnels(address).all(head.replace("keep-alive, ", "close, "));
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[test]
fn tunnels_count_and_end_with_their_ends() {
    let address = upstream(|_, mut stream| {
        read_request(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n\r\n").unwrap();
        let _ = stream.read(&mut [0; 1]);
    });
    let proxy = tunnels(address);
    let head = "GET / HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    let mut streams: Vec<_> = (0..20).map(|_| proxy.connect()).collect();
    for stream in &mut streams {
        stream.write_all(head.as_bytes()).unwrap();
        read_until(stream, "\r\n\r\n");
    }
    let has = |count: usize| {
        let began = Instant::now();
        while proxy.handle.figures().connections != count {
            assert!(began.elapsed() < Duration::from_secs(30), "{:?}", proxy.handle.figures());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    has(20);
    drop(streams);
    has(0);
}

#[test]
fn a_half_closed_tunnel_is_closed_when_its_client_disconnects() {
    let has_left = Arc::new(Barrier::new(2));
    let seen = has_left.clone();
    let address = upstream(move |_, mut stream| {
        read_request(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n\r\n").unwrap();
        // It reads to the end, and keeps its side open. The client's kernel resets what is sent to it now.
        let _ = stream.read(&mut [0; 1]);
        seen.wait();
        stream.write_all(b"x").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    });
    let proxy = tunnels(address);
    let mut stream = proxy.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
    read_until(&mut stream, "\r\n\r\n");
    stream.shutdown(Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(proxy.handle.figures().connections, 1);
    drop(stream);
    has_left.wait();
    let began = Instant::now();
    while proxy.handle.figures().connections > 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", proxy.handle.figures());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_that_dies_and_comes_back_loses_nothing_that_a_retry_could_save() {
    let (good, _asked) = answering(OK);
    // Every third connection is reset during a response.
    let bad = upstream(|number, mut stream| {
        while read_request(&mut stream).is_some() {
            if number % 3 == 1 {
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                return;
            }
            if stream.write_all(OK.as_bytes()).is_err() {
                return;
            }
        }
    });
    let servers = [good, bad].map(|address| Server::new(Address::Socket(address)));
    let passive =
        Passive { failures_max: 1, window: Duration::from_secs(1), down_time: Duration::from_millis(20) };
    let plan = Upstream { passive, idle_max: 0, ..Upstream::new("t", servers.into()) };
    let proxy = Running::to(plan);
    let mut stream = proxy.connect();
    for number in 0..300 {
        stream.write_all(get("/").as_bytes()).unwrap();
        let answer = read_until(&mut stream, "\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{number}: {answer}");
        read_until(&mut stream, "hello");
    }
}

#[test]
fn a_slow_reader_holds_its_upstream_back() {
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = sent.clone();
    let address = upstream(move |_, mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let chunk = format!("{:x}\r\n{}\r\n", 10_000, "x".repeat(10_000));
        for _ in 0..10_000 {
            if stream.write_all(chunk.as_bytes()).is_err() {
                return;
            }
            counted.fetch_add(10_000, std::sync::atomic::Ordering::SeqCst);
        }
    });
    let proxy = Running::with(one(address), Forward::to(0), Limits::default());
    let mut stream = proxy.connect();
    stream.write_all(get("/").as_bytes()).unwrap();
    read_until(&mut stream, "\r\n\r\n");
    std::thread::sleep(Duration::from_millis(500));
    let before = sent.load(std::sync::atomic::Ordering::SeqCst);
    assert!(before < 40 << 20, "{before} bytes were read for a client that takes none");
    let mut buffer = vec![0; 1 << 20];
    let mut read = 0;
    while read < before + (5 << 20) {
        read += stream.read(&mut buffer).unwrap();
    }
}
