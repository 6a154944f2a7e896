//! The response cache between clients and scripted upstreams.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use flatout_cache::{DiskPlan, Plan, Rules, Validity};
use flatout_proxy::Forward;
use support::cached::{Cached, is, numbering};
use support::{answering, body_of, h2, last, one, read_request, read_until, rest, upstream};

#[test]
fn a_fresh_response_is_served_from_the_cache() {
    let (address, asked) =
        numbering("Cache-Control: max-age=60\r\nETag: \"a\"\r\nX-Cache-Status: theirs\r\n");
    let server = Cached::of(one(address));
    let first = server.get("/a?b", "");
    assert!(is(&first, "MISS") && body_of(&first) == "body 0000", "{first}");
    assert!(first.contains("Cache-Status: flatout; fwd=uri-miss; fwd-status=200; stored\r\n"), "{first}");
    assert!(!first.contains("theirs"), "{first}");
    for _ in 0..20 {
        let again = server.get("/a?b", "");
        assert!(is(&again, "HIT") && body_of(&again) == "body 0000", "{again}");
        assert!(again.contains("\r\nAge: ") && again.contains("Cache-Status: flatout; hit; ttl="), "{again}");
        assert_eq!(again.matches("\r\nDate: ").count(), 1, "{again}");
    }
    assert!(is(&server.get("/a?c", ""), "MISS"), "another query is another response");
    let other_host = "GET /a?b HTTP/1.1\r\nHost: u\r\nConnection: close\r\n\r\n";
    assert!(is(&server.ask(other_host), "MISS"), "another host is another response");
    let same_host = "GET /a?b HTTP/1.1\r\nHost: T\r\nConnection: close\r\n\r\n";
    assert!(is(&server.ask(same_host), "HIT"), "case does not count in names of hosts");
    assert_eq!(asked.try_iter().count(), 3);
}

#[test]
fn conditional_requests_get_304() {
    let (address, asked) = numbering("Cache-Control: max-age=60\r\nETag: \"a\"\r\n");
    let server = Cached::of(one(address));
    // The cache requests the complete response, whatever its client has.
    let first = server.get("/", "If-None-Match: \"a\"\r\n");
    assert!(first.starts_with("HTTP/1.1 304 ") && is(&first, "MISS"), "{first}");
    let asked = asked.try_iter().next().unwrap();
    assert!(!asked.contains("If-None-Match"), "{asked}");
    let hit = server.get("/", "If-None-Match: \"a\"\r\n");
    assert!(hit.starts_with("HTTP/1.1 304 ") && hit.contains("ETag: \"a\"\r\n") && is(&hit, "HIT"), "{hit}");
    let part = server.get("/", "Range: bytes=5-\r\n");
    assert!(part.starts_with("HTTP/1.1 206 ") && body_of(&part) == "0000", "{part}");
    assert!(part.contains("Content-Range: bytes 5-8/9\r\n"), "{part}");
    assert!(server.get("/", "Range: bytes=9-\r\n").starts_with("HTTP/1.1 416 "));
    assert_eq!(body_of(&server.get("/", "Range: bytes=5-\r\nIf-Range: \"b\"\r\n")), "body 0000");
    let head = server.ask("HEAD / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert!(
        is(&head, "HIT") && head.contains("Content-Length: 9\r\n") && body_of(&head).is_empty(),
        "{head}"
    );
}

#[test]
fn private_responses_are_not_shared() {
    for head in [
        "Cache-Control: private, max-age=60\r\n",
        "Cache-Control: no-store\r\n",
        "Cache-Control: max-age=60\r\nSet-Cookie: a=b\r\n",
        "Cache-Control: max-age=60\r\nVary: *\r\n",
        "",
    ] {
        let (address, _asked) = numbering(head);
        let server = Cached::of(one(address));
        for number in 0..3 {
            assert_eq!(body_of(&server.get("/", "")), format!("body {number:04}"), "{head}");
        }
    }
    let (address, _asked) = numbering("Cache-Control: max-age=60\r\n");
    let server = Cached::of(one(address));
    for number in 0..2 {
        assert_eq!(body_of(&server.get("/", "Authorization: x\r\n")), format!("body {number:04}"));
    }
    assert!(is(&server.get("/", ""), "MISS") && is(&server.get("/", ""), "HIT"));
}

#[test]
fn variants_are_kept_apart() {
    let (address, asked) = numbering("Cache-Control: max-age=60\r\nVary: X-Kind\r\n");
    let server = Cached::of(one(address));
    for (round, status) in [(0, "MISS"), (1, "HIT"), (2, "HIT")] {
        for kind in 0..3 {
            let answer = server.get("/", &format!("X-Kind: {kind}\r\n"));
            assert!(is(&answer, status), "{round} {answer}");
            assert_eq!(body_of(&answer), format!("body {kind:04}"));
        }
    }
    assert_eq!(asked.try_iter().count(), 3);
}

/// The usual path responds the first two times; it leaves an entry that serves the others.
#[test]
fn a_repeated_head_gets_the_response_stored_now() {
    let (address, asked) = numbering("Cache-Control: max-age=60\r\nVary: X-Kind\r\n");
    let server = Cached::of(one(address));
    // One connection, and therefore one worker.
    let mut stream = server.send("");
    let mut ask = |method: &str, kind: &str| {
        let request = format!("{method} / HTTP/1.1\r\nHost: t\r\nX-Kind: {kind}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let head = read_until(&mut stream, "\r\n\r\n");
        let mut body = vec![0; if method == "HEAD" { 0 } else { 9 }];
        stream.read_exact(&mut body).unwrap();
        head + std::str::from_utf8(&body).unwrap()
    };
    let without_age = |answer: &str| {
        let lines = answer.lines().filter(|line| !line.starts_with("Age: ") && !line.contains("; ttl="));
        lines.collect::<Vec<_>>().join("\n")
    };
    let mut ask_often = |method: &str, kind: &str, first: &str, body: &str| {
        let got = ask(method, kind);
        assert!(is(&got, first) && body_of(&got) == body, "{got}");
        let usual = ask(method, kind);
        for _ in 0..5 {
            let again = ask(method, kind);
            assert!(is(&again, "HIT") && body_of(&again) == body, "{again}");
            assert!(
                again.contains("\r\nAge: ") && again.contains("Cache-Status: flatout; hit; ttl="),
                "{again}"
            );
            assert_eq!(without_age(&again), without_age(&usual));
        }
    };
    ask_often("GET", "a", "MISS", "body 0000");
    ask_often("GET", "b", "MISS", "body 0001");
    ask_often("HEAD", "a", "HIT", "");
    ask_often("GET", "a", "HIT", "body 0000");
    assert_eq!(server.purge("hard all"), 2);
    ask_often("GET", "a", "MISS", "body 0002");
    assert_eq!(server.purge("soft all"), 1);
    ask_often("GET", "a", "EXPIRED", "body 0003");
    assert_eq!(asked.try_iter().count(), 4);
}

#[test]
fn a_herd_makes_one_request() {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            counted.fetch_add(1, Ordering::SeqCst);
            // The first half of the body is sent after all clients have sent their requests.
            let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 200000\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&[b'a'; 100_000]).unwrap();
            released.lock().unwrap().recv().unwrap();
            stream.write_all(&[b'b'; 100_000]).unwrap();
        }
    });
    let server = Cached::of(one(address));
    let mut streams: Vec<TcpStream> = (0..100).map(|_| server.send(&last("/"))).collect();
    // All of them get the first half before the upstream sends the second: no client waits for the end.
    let mut begun: Vec<Vec<u8>> = Vec::new();
    for stream in &mut streams {
        let mut bytes = vec![0; 50_000];
        stream.read_exact(&mut bytes).unwrap();
        begun.push(bytes);
    }
    release.send(()).unwrap();
    for (stream, bytes) in streams.iter_mut().zip(begun) {
        let answer = String::from_utf8(bytes).unwrap() + &rest(stream);
        let body = body_of(&answer);
        assert_eq!((body.matches('a').count(), body.matches('b').count()), (100_000, 100_000));
    }
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert!(is(&server.get("/", ""), "HIT"));
}

#[test]
fn a_herd_is_not_served_one_after_another() {
    // The upstream responds only once all requests have arrived, so none may wait for another.
    let barrier = Arc::new(Barrier::new(20));
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            barrier.wait();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 2\r\n\r\nok")
                .unwrap();
        }
    });
    let (first, _) = answering("HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 2\r\n\r\nok");
    drop(Cached::of(one(first)));
    let server = Cached::of(one(address));
    // The first one leads; its response is for one client only, so all the others are forwarded at once. The barrier opens when all 20
    // have arrived, so they must not wait for the leader's response.
    let authorized =
        |_| server.send("GET / HTTP/1.1\r\nHost: t\r\nAuthorization: x\r\nConnection: close\r\n\r\n");
    let mut streams: Vec<TcpStream> = (0..20).map(authorized).collect();
    for stream in &mut streams {
        assert_eq!(body_of(&rest(stream)), "ok");
    }
}

#[test]
fn followers_of_a_private_response_fetch_at_once() {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let (tell, told): (Sender<()>, _) = channel();
    let tell = Mutex::new(tell);
    let barrier = Arc::new(Barrier::new(9));
    let count = AtomicUsize::new(0);
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            match count.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    tell.lock().unwrap().send(()).unwrap();
                    released.lock().unwrap().recv().unwrap();
                }
                // Served one after another, they would never reach the barrier together.
                _ => drop(barrier.wait()),
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nCache-Control: private\r\nContent-Length: 2\r\n\r\nok")
                .unwrap();
        }
    });
    let server = Cached::of(one(address));
    let mut streams = vec![server.send(&last("/"))];
    told.recv().unwrap();
    streams.extend((0..9).map(|_| server.send(&last("/"))));
    // The metrics show when all of them wait for the first.
    while collapsed(&server) < 9 {
        std::thread::yield_now();
    }
    release.send(()).unwrap();
    for stream in &mut streams {
        assert_eq!(body_of(&rest(stream)), "ok");
    }
}

/// Requests for other variants wait for the first response, which has the first `Vary`. Then one request is sent for each variant.
#[test]
fn a_herd_makes_one_request_for_each_variant() {
    const KINDS: usize = 3;
    const EACH: usize = 10;
    for is_begun in [false, true] {
        let (release, released) = channel::<()>();
        let (tell, told) = channel::<()>();
        let (tell, released) = (Mutex::new(tell), Mutex::new(released));
        let counts: Arc<[AtomicUsize; KINDS]> = Arc::default();
        let counted = counts.clone();
        let address = upstream(move |_, mut stream| {
            while let Some(request) = read_request(&mut stream) {
                let kind = request.lines().find_map(|line| line.strip_prefix("X-Kind: ")).unwrap();
                let kind: usize = kind.parse().unwrap();
                counted[kind].fetch_add(1, Ordering::SeqCst);
                let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nVary: X-Kind\r\nContent-Length: 5\r\n\r\nkind";
                let mut send = |text: &str| stream.write_all(text.as_bytes()).unwrap();
                if kind > 0 {
                    send(&format!("{head}{kind}"));
                    continue;
                }
                tell.lock().unwrap().send(()).unwrap();
                released.lock().unwrap().recv().unwrap();
                send(head);
                if is_begun {
                    released.lock().unwrap().recv().unwrap();
                }
                send("0");
            }
        });
        let server = Cached::of(one(address));
        let ask = |kind: usize| {
            server.send(&format!("GET / HTTP/1.1\r\nHost: t\r\nX-Kind: {kind}\r\nConnection: close\r\n\r\n"))
        };
        let mut first = ask(0);
        told.recv().unwrap();
        let mut others: Vec<(usize, TcpStream)> =
            (0..KINDS * EACH).map(|at| (at % KINDS, ask(at % KINDS))).collect();
        await_collapsed(&server, KINDS * EACH);
        release.send(()).unwrap();
        // The body of the first variant is still arriving, or it is stored.
        others.sort_by_key(|(kind, _)| std::cmp::Reverse(*kind));
        for (kind, stream) in &mut others {
            if *kind == 0 && is_begun {
                let _ = release.send(());
            }
            let answer = rest(stream);
            assert_eq!(body_of(&answer), format!("kind{kind}"), "{answer}");
        }
        assert_eq!(body_of(&rest(&mut first)), "kind0");
        let counts: Vec<usize> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        assert_eq!(counts, [1; KINDS], "{is_begun}");
        for kind in 0..KINDS {
            assert!(is(&server.get("/", &format!("X-Kind: {kind}\r\n")), "HIT"));
        }
    }
}

/// Entries on disk that are not in the page cache are read by another thread. If one is stale, one request validates it for all clients.
#[test]
fn a_herd_makes_one_request_for_a_stale_response_on_disk() {
    const HERD: usize = 20;
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let (tell, asked) = channel();
    let tell = Mutex::new(tell);
    let address = upstream(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let is_known = request.contains("If-None-Match: \"a\"\r\n");
            tell.lock().unwrap().send(request).unwrap();
            let response = match is_known {
                true => {
                    released.lock().unwrap().recv().unwrap();
                    "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n"
                }
                false => {
                    "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok"
                }
            };
            stream.write_all(response.as_bytes()).unwrap();
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let server = || {
        let disk = DiskPlan { dir: dir.path().to_owned(), bytes_max: 16 << 20 };
        let plan = Plan { memory_bytes: 4 << 20, disk: Some(disk), ..Plan::default() };
        Cached::with_plan(one(address), Rules::default(), plan)
    };
    let first = server();
    for path in ["/stale", "/too", "/fresh"] {
        assert!(is(&first.get(path, ""), "MISS"));
    }
    for path in ["/stale", "/too"] {
        assert_eq!(first.purge(&format!("soft url http://t{path}")), 1);
    }
    drop(first);
    let server = server();
    let began = std::time::Instant::now();
    while server.cache.figures().disk.is_none_or(|(entries, _)| entries < 3) {
        assert!(began.elapsed() < Duration::from_secs(20), "the folder was not read");
        std::thread::yield_now();
    }
    // Reading the index has put the files into the page cache.
    for file in std::fs::read_dir(&dir).unwrap() {
        let file = std::fs::File::open(file.unwrap().path()).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
    asked.try_iter().for_each(drop);
    assert!(server.get("/stale", "Cache-Control: only-if-cached\r\n").starts_with("HTTP/1.1 504 "));
    let fresh = server.get("/fresh", "");
    assert!(is(&fresh, "HIT") && body_of(&fresh) == "ok", "{fresh}");
    let mut streams: Vec<TcpStream> = (0..HERD).map(|_| server.send(&last("/too"))).collect();
    // One waits for the upstream, and all the others for it.
    await_collapsed(&server, HERD - 1);
    release.send(()).unwrap();
    // A second request to the upstream would fail.
    drop(release);
    for stream in &mut streams {
        let answer = rest(stream);
        assert!(answer.starts_with("HTTP/1.1 200 ") && body_of(&answer) == "ok", "{answer}");
    }
    assert_eq!(asked.try_iter().count(), 1);
}

/// The time of the rule is for failures of the connection, not for statuses that it does not name.
#[test]
fn a_request_that_waits_gets_the_error_where_only_the_first_one_takes_stale_responses() {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let (tell, told): (Sender<()>, _) = channel();
    let tell = Mutex::new(tell);
    let count = AtomicUsize::new(0);
    let address = upstream(move |_, mut stream| {
        if read_request(&mut stream).is_none() {
            return;
        }
        let response = match count.fetch_add(1, Ordering::SeqCst) {
            0 => "HTTP/1.1 200 OK\r\nCache-Control: max-age=1\r\nContent-Length: 2\r\n\r\nok",
            _ => {
                tell.lock().unwrap().send(()).unwrap();
                released.lock().unwrap().recv().unwrap();
                "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
            }
        };
        stream.write_all(response.as_bytes()).unwrap();
    });
    let server = Cached::of(one(address));
    assert!(is(&server.get("/", ""), "MISS"));
    // These do not reach the upstream.
    while is(&server.get("/", "Cache-Control: only-if-cached\r\n"), "HIT") {
        std::thread::yield_now();
    }
    let lenient =
        "GET / HTTP/1.1\r\nHost: t\r\nCache-Control: stale-if-error=60\r\nConnection: close\r\n\r\n";
    let mut first = server.send(lenient);
    // Sooner the other request could be the first.
    told.recv().unwrap();
    let mut other = server.send(&last("/"));
    await_collapsed(&server, 1);
    release.send(()).unwrap();
    assert!(is(&rest(&mut first), "STALE"));
    let refused = rest(&mut other);
    assert!(refused.starts_with("HTTP/1.1 500 "), "{refused}");
}

fn await_collapsed(server: &Cached, count: usize) {
    let began = std::time::Instant::now();
    while collapsed(server) < count as u64 {
        assert!(began.elapsed() < Duration::from_secs(20), "{} wait", collapsed(server));
        std::thread::yield_now();
    }
}

fn collapsed(server: &Cached) -> u64 {
    let mut families = Vec::new();
    flatout_observe::metrics::Source::collect(&server.cache, &mut families);
    let family = families.iter().find(|family| family.name == "flatout_cache_collapsed").unwrap();
    match family.samples[0].value {
        flatout_observe::metrics::Value::Count(count) => count,
        _ => 0,
    }
}

#[test]
fn incomplete_responses_are_not_stored() {
    let count = AtomicUsize::new(0);
    let address = upstream(move |_, mut stream| {
        if read_request(&mut stream).is_none() {
            return;
        }
        let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 100000\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let whole = count.fetch_add(1, Ordering::SeqCst) > 0;
        stream.write_all(&vec![b'x'; if whole { 100_000 } else { 60_000 }]).unwrap();
    });
    let server = Cached::of(one(address));
    let cut = server.get("/", "");
    assert!(body_of(&cut).len() < 100_000);
    let whole = server.get("/", "");
    assert!(is(&whole, "MISS") && body_of(&whole).len() == 100_000);
    assert!(is(&server.get("/", ""), "HIT"));
}

#[test]
fn a_large_response_passes_through() {
    let address = upstream(|_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let mut send = |bytes: &[u8]| stream.write_all(bytes).unwrap();
            send(b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n");
            match request.starts_with("GET /known") {
                true => {
                    send(b"Content-Length: 1000000\r\n\r\n");
                    send(&vec![b'x'; 1_000_000]);
                }
                false => {
                    send(b"Transfer-Encoding: chunked\r\n\r\n");
                    for _ in 0..10 {
                        send(b"186a0\r\n");
                        send(&vec![b'x'; 100_000]);
                        send(b"\r\n");
                    }
                    send(b"0\r\n\r\n");
                }
            }
        }
    });
    // Entries of at most 64 KiB.
    let server = Cached::with(one(address), Rules::default(), 1 << 20);
    for path in ["/known", "/unknown"] {
        for _ in 0..2 {
            let answer = server.get(path, "");
            assert!(is(&answer, "MISS"), "{}", &answer[..300]);
            assert_eq!(body_of(&answer).matches('x').count(), 1_000_000, "{path}");
        }
    }
}

#[test]
fn a_stale_response_is_validated() {
    let count = AtomicUsize::new(0);
    let (sender, asked) = channel();
    let sender = Mutex::new(sender);
    let address = upstream(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let is_known = request.contains("If-None-Match: \"a\"\r\n");
            sender.lock().unwrap().send(request).unwrap();
            let response = match (is_known, count.fetch_add(1, Ordering::SeqCst)) {
                (true, 1) => {
                    "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nX-New: 1\r\nCache-Control: no-cache\r\n\r\n"
                }
                _ => {
                    "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nCache-Control: no-cache\r\nX-Old: 1\r\nContent-Length: 2\r\n\r\nok"
                }
            };
            stream.write_all(response.as_bytes()).unwrap();
        }
    });
    let server = Cached::of(one(address));
    assert!(is(&server.get("/", ""), "MISS"));
    let again = server.get("/", "");
    assert!(is(&again, "REVALIDATED") && body_of(&again) == "ok", "{again}");
    assert!(again.contains("X-New: 1\r\n") && again.contains("X-Old: 1\r\n"), "{again}");
    assert!(again.contains("Cache-Status: flatout; fwd=stale; fwd-status=304;"), "{again}");
    let new = server.get("/", "");
    assert!(is(&new, "EXPIRED") && body_of(&new) == "ok", "{new}");
    assert_eq!(asked.try_iter().filter(|request| request.contains("If-None-Match")).count(), 2);
}

#[test]
fn a_304_that_forbids_storing_reaches_its_client() {
    let address = upstream(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let response = match request.contains("If-None-Match: \"a\"\r\n") {
                true => {
                    "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nAge: 7\r\nCache-Control: private\r\n\r\n"
                }
                false => {
                    "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nCache-Control: public, no-cache\r\nX-Old: 1\r\nContent-Length: 2\r\n\r\nok"
                }
            };
            stream.write_all(response.as_bytes()).unwrap();
        }
    });
    let server = Cached::of(one(address));
    assert!(is(&server.get("/", ""), "MISS"));
    let again = server.get("/", "");
    assert!(is(&again, "REVALIDATED") && body_of(&again) == "ok", "{again}");
    assert!(again.contains("Cache-Control: private\r\n") && !again.contains("public"), "{again}");
    assert!(again.contains("X-Old: 1\r\n") && again.contains("Age: 7\r\n"), "{again}");
    assert!(is(&server.get("/", ""), "MISS"));
}

#[test]
fn a_stale_response_stands_in_for_an_upstream_that_fails() {
    let count = AtomicUsize::new(0);
    let address = upstream(move |_, mut stream| {
        if read_request(&mut stream).is_none() {
            return;
        }
        let response = match count.fetch_add(1, Ordering::SeqCst) {
            0 => {
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=0, stale-if-error=60\r\nContent-Length: 2\r\n\r\nok"
            }
            1 => "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 3\r\n\r\nbad",
            // Other requests get no response.
            _ => return,
        };
        stream.write_all(response.as_bytes()).unwrap();
    });
    let server = Cached::of(one(address));
    assert!(is(&server.get("/", ""), "MISS"));
    for _ in 0..2 {
        let stale = server.get("/", "");
        assert!(is(&stale, "STALE") && body_of(&stale) == "ok", "{stale}");
    }
    assert!(server.get("/", "Cache-Control: no-cache\r\n").starts_with("HTTP/1.1 502 "));
    assert!(server.get("/other", "").starts_with("HTTP/1.1 502 "));
    assert!(server.get("/other", "Cache-Control: only-if-cached\r\n").starts_with("HTTP/1.1 504 "));
}

#[test]
fn a_stale_response_is_served_while_it_is_refreshed() {
    let (address, asked) = numbering("Cache-Control: max-age=0, stale-while-revalidate=60\r\n");
    let server = Cached::of(one(address));
    assert!(is(&server.get("/", ""), "MISS"));
    let stale = server.get("/", "");
    assert!(is(&stale, "STALE") && body_of(&stale) == "body 0000", "{stale}");
    assert_eq!(
        asked.recv_timeout(Duration::from_secs(30)).is_ok(),
        asked.recv_timeout(Duration::from_secs(30)).is_ok()
    );
    // The request behind it has arrived by now, or will soon.
    while body_of(&server.get("/", "")) == "body 0000" {
        std::thread::yield_now();
    }
}

/// The response says nothing about it; a rule does.
#[test]
fn a_rule_has_stale_responses_served_while_they_are_refreshed() {
    let (address, asked) = numbering("Cache-Control: max-age=5\r\nAge: 6\r\n");
    let rules = Rules { updating_time: Duration::from_secs(60), ..Rules::default() };
    let server = Cached::with(one(address), rules, 1 << 20);
    assert!(is(&server.get("/", ""), "MISS"));
    let stale = server.get("/", "");
    assert!(is(&stale, "STALE") && body_of(&stale) == "body 0000", "{stale}");
    for _ in 0..2 {
        asked.recv_timeout(Duration::from_secs(30)).unwrap();
    }
    while body_of(&server.get("/", "")) == "body 0000" {
        std::thread::yield_now();
    }
}

#[test]
fn a_stale_response_stands_in_for_the_statuses_of_a_rule() {
    let answers = || {
        let count = AtomicUsize::new(0);
        upstream(move |_, mut stream| {
            if read_request(&mut stream).is_none() {
                return;
            }
            let response = match count.fetch_add(1, Ordering::SeqCst) {
                0 => "HTTP/1.1 200 OK\r\nCache-Control: max-age=5\r\nAge: 6\r\nContent-Length: 2\r\n\r\nok",
                1 => "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n",
                _ => "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
            };
            stream.write_all(response.as_bytes()).unwrap();
        })
    };
    let rules = Rules { stale_statuses: vec![429..=429], ..Rules::default() };
    let server = Cached::with(one(answers()), rules, 1 << 20);
    assert!(is(&server.get("/", ""), "MISS"));
    let stale = server.get("/", "");
    assert!(is(&stale, "STALE") && body_of(&stale) == "ok", "{stale}");
    assert!(server.get("/", "").starts_with("HTTP/1.1 500 "), "no rule names it");
    let server = Cached::of(one(answers()));
    assert!(is(&server.get("/", ""), "MISS"));
    assert!(server.get("/", "").starts_with("HTTP/1.1 429 "), "without the rule");
}

#[test]
fn a_refreshed_response_replaces_the_stored_one() {
    let (address, asked) = numbering("Cache-Control: max-age=60\r\nETag: \"a\"\r\n");
    let server = Cached::of(one(address));
    let refresh = "X-Refresh: 1\r\n";
    for (fields, status, body) in [
        ("", "MISS", "body 0000"),
        ("", "HIT", "body 0000"),
        (refresh, "BYPASS", "body 0001"),
        ("", "HIT", "body 0001"),
        // Not stored: it is a part.
        ("X-Refresh: 1\r\nRange: bytes=0-\r\n", "BYPASS", "body 0002"),
        ("", "HIT", "body 0001"),
        ("X-Refresh: 1\r\nCache-Control: no-store\r\n", "BYPASS", "body 0003"),
        ("", "HIT", "body 0001"),
    ] {
        let response = server.get("/", fields);
        assert!(is(&response, status) && body_of(&response) == body, "{fields}: {response}");
    }
    // The upstream must respond with the whole, whatever the cache has.
    assert!(asked.try_iter().all(|head| !head.contains("If-None-Match")));
    let known = server.get("/", "X-Refresh: 1\r\nIf-None-Match: \"a\"\r\n");
    assert!(known.starts_with("HTTP/1.1 304 ") && is(&known, "BYPASS"), "{known}");
    assert_eq!(body_of(&server.get("/", "")), "body 0004");
}

#[test]
fn unsafe_requests_invalidate() {
    let (address, _asked) =
        numbering("Cache-Control: max-age=60\r\nLocation: /moved\r\nContent-Location: http://u/far\r\n");
    let server = Cached::of(one(address));
    for path in ["/", "/moved", "/other"] {
        assert!(is(&server.get(path, ""), "MISS") && is(&server.get(path, ""), "HIT"), "{path}");
    }
    let post = server.ask("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert!(is(&post, "BYPASS") && post.contains("fwd=method"), "{post}");
    for (path, status) in [("/", "MISS"), ("/moved", "MISS"), ("/other", "HIT")] {
        assert!(is(&server.get(path, ""), status), "{path}");
    }
}

#[test]
fn a_purge_is_seen_by_all_when_it_returns() {
    let (address, _asked) = numbering("Cache-Control: max-age=60\r\nCache-Tag: red, blue\r\nETag: \"a\"\r\n");
    let server = Cached::of(one(address));
    let fill = || {
        for path in ["/a/1", "/a/2", "/b"] {
            server.get(path, "");
            for _ in 0..4 {
                assert!(is(&server.get(path, ""), "HIT"), "{path}");
            }
        }
    };
    for (text, count, gone) in [
        ("hard url http://t/a/1", 1, &["/a/1"][..]),
        ("hard prefix http://T/a/", 2, &["/a/1", "/a/2"]),
        ("hard tag blue", 3, &["/a/1", "/a/2", "/b"]),
        ("hard all", 3, &["/a/1", "/a/2", "/b"]),
    ] {
        fill();
        assert_eq!(server.purge(text), count, "{text}");
        for path in ["/a/1", "/a/2", "/b"] {
            let expected = if gone.contains(&path) { "MISS" } else { "HIT" };
            assert!(is(&server.get(path, ""), expected), "{text} {path}");
        }
    }
    fill();
    assert_eq!(server.purge("soft url http://t/b"), 1);
    assert!(is(&server.get("/b", ""), "EXPIRED"));
}

#[test]
fn purges_under_load_leave_nothing_old() {
    no_purge_leaves_anything_old(Plan { memory_bytes: 4 << 20, ..Plan::default() });
}

/// Each response is written while it is purged, and read again.
#[test]
fn purges_under_load_leave_no_old_response_on_disk() {
    let dir = std::env::temp_dir().join(format!("flatout-purges-{}", std::process::id()));
    let disk = DiskPlan { dir: dir.clone(), bytes_max: 16 << 20 };
    no_purge_leaves_anything_old(Plan { memory_bytes: 1 << 20, disk: Some(disk), ..Plan::default() });
    std::fs::remove_dir_all(dir).unwrap();
}

fn no_purge_leaves_anything_old(plan: Plan) {
    // The upstream's version grows before each purge: a response that is asked for after the purge has that version at least.
    let version = Arc::new(AtomicUsize::new(0));
    let of_upstream = version.clone();
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            let body = format!("{:08}", of_upstream.load(Ordering::SeqCst)).repeat(5000);
            let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nCache-Tag: all\r\nContent-Length: 40000\r\n\r\n";
            if stream.write_all(format!("{head}{body}").as_bytes()).is_err() {
                return;
            }
        }
    });
    let server = Cached::with_plan(one(address), Rules::default(), plan);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let paths: Vec<String> = (0..40).map(|at| format!("/{at}")).collect();
    std::thread::scope(|scope| {
        for first in 0..4 {
            let (server, paths, is_over) = (&server, &paths, &is_over);
            scope.spawn(move || {
                for path in paths.iter().cycle().skip(first * 10) {
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    server.get(path, "");
                }
            });
        }
        let stale = (1..100).find_map(|at| {
            version.store(at, Ordering::SeqCst);
            let path = &paths[at % paths.len()];
            server.purge(&match at % 4 {
                0 => format!("hard url http://t{path}"),
                1 => format!("soft prefix http://t{path}"),
                2 => "hard tag all".to_owned(),
                _ => "hard all".to_owned(),
            });
            let got = server.get(path, "");
            let got: usize = body_of(&got)[..8].parse().unwrap();
            (got < at).then_some((got, at))
        });
        // Before anything can fail: the scope waits for its threads.
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(stale, None, "a version, and the one that was purged before");
    });
}

#[test]
fn requests_do_not_change_responses_of_other_clients() {
    let (address, asked) = numbering("Cache-Control: max-age=60\r\n");
    let server = Cached::of(one(address));
    let evil = "X-Forwarded-Host: evil\r\nX-Original-URL: /evil\r\nX_Rewrite_Url: /evil\r\nX-HTTP-Method-Override: POST\r\n\
                X-Forwarded-Prefix: /evil\r\nX_Forwarded_Proto: evil\r\nX-Host: evil\r\nForwarded: host=evil\r\n";
    assert!(is(&server.get("/", evil), "MISS"));
    let request = asked.recv().unwrap();
    assert!(!request.contains("evil") && !request.contains("Override"), "{request}");
    // Paths that an application may read as the same are different here, and each gets its own response.
    for path in
        ["/account", "/account;x.css", "/account/x.css", "/account%2fx.css", "/account%0ax.css", "//account"]
    {
        assert!(!is(&server.get(path, ""), "HIT"), "{path}");
    }
}

/// A trusted proxy may forward these fields as its clients sent them.
#[test]
fn fields_of_a_trusted_proxy_cannot_poison_the_cache() {
    for forwarded in [false, true] {
        let (address, asked) = numbering("Cache-Control: max-age=60\r\n");
        let server = Cached::behind_proxy(one(address), Forward { forwarded, ..Forward::to(0) });
        let evil =
            "X-Forwarded-Host: evil\r\nForwarded: for=192.0.2.1;host=evil\r\nX-Forwarded-For: 192.0.2.1\r\n";
        assert!(is(&server.get("/", evil), "MISS"));
        let request = asked.recv().unwrap();
        assert!(!request.contains("evil") && request.contains("\r\nX-Forwarded-Host: t\r\n"), "{request}");
        assert!(request.contains("\r\nX-Forwarded-For: 192.0.2.1, "), "{request}");
        assert_eq!(request.contains("\r\nForwarded: for="), forwarded, "{request}");
        assert!(is(&server.get("/", ""), "HIT"));
    }
}

#[test]
fn requests_over_http_2_share_variants_and_conditions_with_others() {
    let (address, asked) = numbering("Cache-Control: max-age=60\r\nVary: X-Kind\r\nETag: \"a\"\r\n");
    let server = Cached::of(one(address));
    let get = |kind: &str, lines: &[(&str, &str)]| {
        let mut request = h2::request("GET", "/");
        request.headers_mut().insert("x-kind", kind.parse().unwrap());
        for (name, value) in lines {
            request.headers_mut().insert(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        let got = h2::client(server.address, async |send| h2::ask(&send, request, None).await);
        let status = got.fields["x-cache-status"].to_str().unwrap().to_owned();
        (got.status, status, String::from_utf8(got.body).unwrap())
    };
    assert_eq!(get("1", &[]), (200, "MISS".to_owned(), "body 0000".to_owned()));
    assert_eq!(get("1", &[]), (200, "HIT".to_owned(), "body 0000".to_owned()));
    assert!(is(&server.get("/", "X-Kind: 1\r\n"), "HIT"));
    assert_eq!(get("2", &[("if-none-match", "\"a\"")]), (304, "MISS".to_owned(), String::new()));
    assert!(is(&server.get("/", "X-Kind: 2\r\n"), "HIT"));
    assert_eq!(
        get("1", &[("cache-control", "no-cache")]),
        (200, "EXPIRED".to_owned(), "body 0002".to_owned())
    );
    assert_eq!(asked.try_iter().count(), 3);
}

#[test]
fn inactive_responses_are_removed() {
    let (address, _asked) = numbering("Cache-Control: max-age=60\r\n");
    let plan = Plan { memory_bytes: 4 << 20, inactive: Some(Duration::from_secs(4)), ..Plan::default() };
    let server = Cached::with_plan(one(address), Rules::default(), plan);
    assert!(is(&server.get("/", ""), "MISS") && server.cache.figures().memory_entries == 1);
    while server.cache.figures().memory_entries > 0 {
        std::thread::yield_now();
    }
    assert!(is(&server.get("/", ""), "MISS"), "also by the worker that has served it");
}

#[test]
fn one_clients_fault_is_not_stored() {
    let (address, _asked) =
        answering("HTTP/1.1 400 Bad Request\r\nCache-Control: max-age=60\r\nContent-Length: 3\r\n\r\nbad");
    let server = Cached::of(one(address));
    assert!(is(&server.get("/", "X-Evil: 1\r\n"), "MISS") && is(&server.get("/", ""), "MISS"));
    // Unless a rule names the status.
    let valid = vec![Validity { statuses: vec![400..=400], time: Duration::from_secs(60) }];
    let server = Cached::with(one(address), Rules { valid, ..Rules::default() }, 1 << 20);
    assert!(is(&server.get("/", ""), "MISS") && is(&server.get("/", ""), "HIT"));
}

/// Many other responses are stored meanwhile: those that clients request all the time stay.
#[test]
fn hot_responses_are_not_evicted() {
    const BODY: usize = 8 << 10;
    const COLD: usize = 600;
    // The store hears of every 32nd.
    const HITS: usize = 8;
    let hot_count = Arc::new(AtomicUsize::new(0));
    let counted = hot_count.clone();
    let address = upstream(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let is_hot = request.starts_with("GET /hot");
            counted.fetch_add(usize::from(is_hot), Ordering::SeqCst);
            let vary = if request.starts_with("GET /hot/vary") { "Vary: X-Variant\r\n" } else { "" };
            let head = format!(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\n{vary}Content-Length: {BODY}\r\n\r\n"
            );
            if stream.write_all(&[head.into_bytes(), vec![b'x'; BODY]].concat()).is_err() {
                return;
            }
        }
    });
    for (path, lines) in [("/hot/plain", ""), ("/hot/vary", ""), ("/hot/vary", "X-Variant: 2\r\n")] {
        // An odd number of hits must not matter.
        for hits_before in [4, 5] {
            hot_count.store(0, Ordering::SeqCst);
            let server = Cached::with(one(address), Rules::default(), 1 << 20);
            let mut stream = server.send("");
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut get = |path: &str, lines: &str| {
                let head = format!("GET {path} HTTP/1.1\r\nHost: t\r\n{lines}\r\n");
                stream.write_all(head.as_bytes()).unwrap();
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
                }
                reader.read_exact(&mut vec![0; BODY]).unwrap();
            };
            get(path, "");
            for _ in 0..hits_before {
                get(path, lines);
            }
            for cold in 0..COLD {
                // Those that were requested twice count as much as the hot one, unless the store hears of its hits.
                get(&format!("/cold/{cold}"), "");
                get(&format!("/cold/{cold}"), "");
                for hit in 0..HITS {
                    // Another head each time, as of browsers with their cookies.
                    get(path, &format!("{lines}X-Number: {cold}.{hit}\r\n"));
                }
            }
            let expected = if lines.is_empty() { 1 } else { 2 };
            assert_eq!(hot_count.load(Ordering::SeqCst), expected, "{path} {lines} after {hits_before} hits");
        }
    }
}

#[test]
fn rules_apply_to_responses_without_cache_control() {
    let (address, _asked) = numbering("");
    let valid = vec![Validity { statuses: vec![200..=200], time: Duration::from_secs(60) }];
    let rules = Rules { valid, uses_min: 2, ..Rules::default() };
    let server = Cached::with(one(address), rules, 1 << 20);
    for status in ["MISS", "MISS", "HIT"] {
        assert!(is(&server.get("/", ""), status));
    }
}
