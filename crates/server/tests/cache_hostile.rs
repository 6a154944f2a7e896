//! The cache with upstreams that lie and clients that disconnect.

mod support;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flatout_cache::{Rules, Validity};
use flatout_observe::metrics::{Source, Value};
use flatout_proxy::Forward;
use support::cached::{Cached, is, numbering};
use support::{body_of, one, read_request, rest, upstream};

#[test]
fn bytes_beyond_the_length_are_not_a_response() {
    let address = upstream(|_, mut stream| {
        while read_request(&mut stream).is_some() {
            let poison = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 4\r\n\r\nevil";
            let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 3\r\n\r\n";
            if stream.write_all(format!("{head}yes{poison}").as_bytes()).is_err() {
                return;
            }
        }
    });
    let server = Cached::of(one(address));
    for at in 0..20 {
        for expected in ["MISS", "HIT"] {
            let answer = server.get(&format!("/{at}"), "");
            assert!(is(&answer, expected) && body_of(&answer) == "yes", "{answer}");
        }
    }
}

#[test]
fn a_client_that_leaves_spoils_nothing_for_the_next_one() {
    const HALF: usize = 50_000;
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 100000\r\n\r\n";
            let is_sent =
                stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b'x'; HALF])).is_ok();
            let _ = may_go_on.lock().unwrap().recv();
            if !is_sent || stream.write_all(&vec![b'y'; HALF]).is_err() {
                return;
            }
        }
    });
    let server = Cached::of(one(address));
    for at in 0..5 {
        let path = format!("/{at}");
        let mut leaves = server.send(&format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
        leaves.read_exact(&mut [0; 1000]).unwrap();
        drop(leaves);
        // This client arrives while the upstream waits, and stays.
        let mut stays = server.send(&format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
        go_on.send(()).unwrap();
        // For a second request, if the first one was cancelled.
        go_on.send(()).unwrap();
        let answer = rest(&mut stays);
        let body = body_of(&answer);
        assert_eq!((body.len(), body.matches('x').count()), (2 * HALF, HALF), "{path}");
        assert!(is(&server.get(&path, ""), "HIT"));
    }
}

#[test]
fn responses_that_vary_by_everything_are_not_shared() {
    let (address, asked) = numbering("Cache-Control: max-age=60\r\nVary: *\r\n");
    let server = Cached::of(one(address));
    for _ in 0..5 {
        assert!(is(&server.get("/", ""), "MISS"));
    }
    assert_eq!(asked.try_iter().count(), 5);

    // The response repeats the request's value of each field.
    const NAMES: [&str; 8] = ["Accept", "Cookie", "X-A", "X-B", "X-C", "X-D", "X-E", "User-Agent"];
    let address = upstream(|_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let of = |name: &&str| {
                request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or("-")
            };
            let body = NAMES.iter().map(of).collect::<Vec<_>>().join(",");
            let head = format!("Vary: {}\r\nVary: Accept\r\nCache-Control: max-age=60", NAMES.join(" , "));
            let length = body.len();
            if write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}").is_err()
            {
                return;
            }
        }
    });
    let server = Cached::of(one(address));
    for expected in ["MISS", "HIT"] {
        for at in 0..100usize {
            // Two fields of the eight, in any order.
            let (first, second) = (at % 8, (at / 8) % 8);
            let values = |index: usize| match index {
                _ if index == first => format!("one{at}"),
                _ if index == second => format!("two{at}"),
                _ => "-".to_owned(),
            };
            let mut fields: Vec<String> = (0..8)
                .filter(|&index| values(index) != "-")
                .map(|index| format!("{}: {}\r\n", NAMES[index], values(index)))
                .collect();
            if expected == "HIT" {
                fields.reverse();
            }
            let answer = server.get("/", &fields.concat());
            let body: Vec<String> = (0..8).map(values).collect();
            assert_eq!(body_of(&answer), body.join(","), "{fields:?}");
            assert!(is(&answer, expected), "{answer}");
        }
    }
}

/// Responses with unreliable ends or framing are not stored, and no client takes them for complete.
#[test]
fn responses_with_a_wrong_length_are_not_stored() {
    const GOOD: &str = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 4\r\n\r\ngood";
    for (lie, is_begun) in [
        ("Content-Length: 10\r\n\r\nshort", true),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", true),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n0\r\n", true),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nlonger\r\n0\r\n\r\n", true),
        ("Transfer-Encoding: chunked\r\n\r\nfive\r\nshort\r\n0\r\n\r\n", true),
        ("Content-Length: 4\r\nContent-Length: 5\r\n\r\nshort", false),
        ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n0\r\n\r\n", false),
        ("Content-Length: -1\r\n\r\nshort", false),
        ("Transfer-Encoding: gzip\r\n\r\nshort", false),
    ] {
        let count = AtomicUsize::new(0);
        let address = upstream(move |_, mut stream| {
            while read_request(&mut stream).is_some() {
                if count.fetch_add(1, Ordering::SeqCst) > 0 {
                    stream.write_all(GOOD.as_bytes()).unwrap();
                    continue;
                }
                let _ = stream
                    .write_all(format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n{lie}").as_bytes());
                return;
            }
        });
        let server = Cached::of(one(address));
        // With a length that is not reached, or without the last chunk, a client sees that it is not whole.
        let got = server.get("/", "");
        let is_whole =
            got.starts_with("HTTP/1.1 200 ") && (got.ends_with("0\r\n\r\n") || body_of(&got).len() == 4);
        assert!(!is_whole && (is_begun || got.starts_with("HTTP/1.1 502 ")), "{lie:?}: {got}");
        assert_eq!(server.cache.figures().memory_entries, 0, "{lie:?}");
        for expected in ["MISS", "HIT"] {
            let got = server.get("/", "");
            assert!(is(&got, expected) && body_of(&got) == "good", "{lie:?}: {got}");
        }
    }
}

/// Whether a response is stored depends on its fields, not on the look of its path.
#[test]
fn a_path_suffix_does_not_make_a_response_public() {
    let paths = [
        "/account/x.css",
        "/account;x.css",
        "/account%2fx.css",
        "/account%0ax.css",
        "/account.js?x.png",
        "/x.css%00",
    ];
    let is_stored_by_rule = Rules::fresh(Duration::from_secs(60));
    for (head, rules) in [
        ("", Rules::default()),
        ("Cache-Control: private\r\n", is_stored_by_rule.clone()),
        ("Cache-Control: no-store\r\n", is_stored_by_rule.clone()),
        ("Cache-Control: max-age=60\r\nSet-Cookie: user=7\r\n", is_stored_by_rule.clone()),
        ("Vary: *\r\n", is_stored_by_rule.clone()),
    ] {
        let (address, _asked) = numbering(head);
        let server = Cached::with(one(address), rules, 1 << 20);
        for path in paths {
            // The second client must not get what the first one was served.
            let [mine, theirs] = ["Cookie: user=7\r\n", ""].map(|cookie| server.get(path, cookie));
            let is_refused = mine.starts_with("HTTP/1.1 400 ") && theirs.starts_with("HTTP/1.1 400 ");
            assert!(is_refused || body_of(&mine) != body_of(&theirs), "{head:?} {path}: {theirs}");
        }
        assert_eq!(server.cache.figures().memory_entries, 0, "{head:?}");
    }
    // With credentials, a rule is not enough either.
    let (address, _asked) = numbering("");
    let server = Cached::with(one(address), is_stored_by_rule, 1 << 20);
    assert!(is(&server.get("/account/x.css", "Authorization: Basic YTpi\r\n"), "MISS"));
    assert!(is(&server.get("/account/x.css", ""), "MISS"));
}

/// Request fields are part of the key, or are not forwarded to the upstream, or prevent storing the response.
#[test]
fn request_fields_cannot_poison_the_cache() {
    let (address, asked) = numbering("Cache-Control: max-age=60\r\n");
    let server = Cached::of(one(address));
    let poison = |request: &str| {
        let answer = server.ask(request);
        (answer, asked.try_iter().last().unwrap_or_default())
    };
    // The target names another host than the field: the key and the upstream have the target's.
    let (_, seen) = poison("GET http://evil/ HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert!(!seen.contains("Host: t\r\n"), "{seen}");
    // A body in a GET may change the response: it is forwarded, and the response is not stored.
    let fat = "GET / HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nConnection: close\r\n\r\nevil";
    for _ in 0..2 {
        assert!(is(&poison(fat).0, "BYPASS"));
    }
    let (got, _) = poison("GET / HTTP/1.1\r\nHost: t\r\nHost: evil\r\nConnection: close\r\n\r\n");
    assert!(got.starts_with("HTTP/1.1 400 "), "{got}");
    // A range, a condition and a method that only some applications look at.
    let (got, seen) = poison(
        "GET / HTTP/1.1\r\nHost: t\r\nIf-None-Match: *\r\nX-Method-Override: DELETE\r\nConnection: close\r\n\r\n",
    );
    assert!(!seen.contains("If-None-Match") && !seen.contains("DELETE"), "{seen}");
    assert!(is(&got, "MISS") && got.starts_with("HTTP/1.1 304 "), "{got}");
    let good = server.get("/", "");
    assert!(
        is(&good, "HIT") && good.starts_with("HTTP/1.1 200 ") && body_of(&good).starts_with("body "),
        "{good}"
    );
    // Names of fields of the connection do not take others out of the request that the key or the upstream needs.
    let (_, seen) = poison("GET /b HTTP/1.1\r\nHost: t\r\nConnection: close, Host, X-A\r\nX-A: 1\r\n\r\n");
    assert!(seen.contains("\r\nHost: ") && !seen.contains("X-A"), "{seen}");
    // The same target in another spelling is another key.
    for target in ["/%62", "/B", "/b?", "/b/", "//b"] {
        assert!(!is(&server.get(target, ""), "HIT"), "{target}");
    }
}

/// Fields named in `Connection` are not forwarded, but variants are selected by the request as the client sent it.
#[test]
fn fields_that_connection_removes_do_not_select_a_variant() {
    let address = upstream(|_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let language = request.lines().find_map(|line| line.strip_prefix("Accept-Language: "));
            let body = language.unwrap_or("en");
            let head =
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nVary: Accept-Language\r\nContent-Length: 2";
            if stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).is_err() {
                return;
            }
        }
    });
    let server = Cached::of(one(address));
    for (at, options) in
        ["Accept-Language", "close , x,accept-language", "TE, Accept-Language"].iter().enumerate()
    {
        let path = format!("/{at}");
        let poison = format!("Accept-Language: de\r\nConnection: {options}\r\n");
        let got = server.get(&path, &poison);
        assert!(is(&got, "BYPASS") && body_of(&got) == "en", "{got}");
        let got = server.get(&path, "Accept-Language: de\r\n");
        assert!(is(&got, "MISS") && body_of(&got) == "de", "{got}");
        let got = server.get(&path, &poison);
        assert!(is(&got, "BYPASS") && body_of(&got) == "en", "{got}");
    }
    // These options remove no field that is otherwise forwarded.
    let usual = "Accept-Language: de\r\nConnection: keep-alive, TE, Host, X-None\r\nTE: trailers\r\nKeep-Alive: 1\r\n";
    assert!(is(&server.get("/0", usual), "HIT"));
}

/// An application may build its links of the host that it sees, so it sees the one of the key.
#[test]
fn the_upstream_gets_the_host_of_the_key() {
    let (address, asked) = numbering("Cache-Control: max-age=60\r\n");
    let forward = Forward { x_forwarded: true, forwarded: true, ..Forward::to(0) };
    let server = Cached::forwarding(one(address), forward);
    let get = |target: &str, host: &str| {
        server.ask(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
    };
    for (target, host, expected) in [
        ("/a", "T.example", Some("t.example")),
        ("/a", "t.example", None),
        ("/a", "T.EXAMPLE:80", None),
        ("/a", "t.example.", None),
        ("/a", "t.example.:0080", None),
        ("/a", "t.example:", None),
        ("/a", "T.example:8080", Some("t.example:8080")),
        ("/a", "t.example.:8080", None),
        ("/a", "t.example:443", Some("t.example:443")),
        ("/a", "[::1]:80", Some("[::1]")),
        ("/A", "t.example", Some("t.example")),
        ("/a?", "t.example", Some("t.example")),
        ("/%61", "t.example", Some("t.example")),
        ("/a?b=%41", "t.example", Some("t.example")),
        ("/a?b=A", "t.example", Some("t.example")),
    ] {
        let answer = get(target, host);
        let status = if expected.is_some() { "MISS" } else { "HIT" };
        assert!(is(&answer, status), "{target} {host}: {answer}");
        let seen = asked.try_iter().last();
        assert_eq!(seen.is_some(), expected.is_some(), "{target} {host}");
        let (Some(seen), Some(expected)) = (seen, expected) else { continue };
        assert!(seen.starts_with(&format!("GET {target} HTTP/1.1\r\n")), "{seen}");
        for line in [format!("Host: {expected}"), format!("X-Forwarded-Host: {expected}")] {
            assert!(seen.contains(&format!("\r\n{line}\r\n")), "{line}\n{seen}");
        }
        assert!(seen.contains(&format!(";host=\"{expected}\"\r\n")), "{seen}");
    }
    // Requests that are not stored have the same host.
    for lines in ["Cache-Control: no-store\r\n", "Content-Length: 1\r\n"] {
        server.ask(&format!("POST /p HTTP/1.1\r\nHost: T.:80\r\nConnection: close\r\n{lines}\r\nx"));
        assert!(asked.try_iter().last().unwrap().contains("\r\nHost: t\r\n"));
    }
    assert_eq!(server.purge("hard url http://t.EXAMPLE.:80/a"), 1);
    assert_eq!(server.purge("hard url http://t.example:8080/a"), 1);
}

/// `$host` has no port, but the upstream sees it.
#[test]
fn a_custom_key_includes_the_port() {
    let (address, asked) = numbering("Cache-Control: max-age=60\r\n");
    let server = Cached::with_key(one(address), b"t/a");
    for (host, expected, seen) in [
        ("t", "MISS", Some("t")),
        ("T.:80", "HIT", None),
        ("t:1234", "MISS", Some("t:1234")),
        ("t.:1234", "HIT", None),
        ("t", "HIT", None),
    ] {
        let got = server.ask(&format!("GET /a HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
        assert!(is(&got, expected), "{host}: {got}");
        let request = asked.try_iter().last();
        assert_eq!(request.is_some(), seen.is_some(), "{host}");
        if let (Some(request), Some(seen)) = (request, seen) {
            assert!(request.contains(&format!("\r\nHost: {seen}\r\n")), "{request}");
        }
    }
}

/// A client says `Early-Data: 1` to make the upstream refuse a URL for all (RFC 8470).
#[test]
fn early_data_does_not_change_stored_responses() {
    let address = upstream(|_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let is_early = request.to_ascii_lowercase().contains("\r\nearly-data: 1\r\n");
            let (status, body) = match (is_early, request.starts_with("GET /special")) {
                (true, true) => ("200 OK", "ask again"),
                (true, false) => ("425 Too Early", "too early"),
                (false, _) => ("200 OK", "welcome :)"),
            };
            let head = format!("HTTP/1.1 {status}\r\nCache-Control: public, max-age=60\r\nContent-Length: ");
            if stream.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).is_err() {
                return;
            }
        }
    });
    let valid = vec![Validity { statuses: vec![200..=599], time: Duration::from_secs(60) }];
    let rules = Rules { valid, slice_bytes: Some(4096), ..Rules::default() };
    let server = Cached::with(one(address), rules, 1 << 20);
    for path in ["/plain", "/special"] {
        for lines in ["Early-Data: 1\r\n", "Early-Data: 1\r\nRange: bytes=0-3\r\n"] {
            assert!(is(&server.get(path, lines), "MISS"));
        }
        let got = server.get(path, "");
        assert!(is(&got, "MISS") && body_of(&got) == "welcome :)", "{got}");
        // What is stored answers it, as it is safe.
        assert!(is(&server.get(path, "Early-Data: 1\r\n"), "HIT"));
    }
}

/// The upstream sends slowly, and readers leave early: those that stay get the whole response, and its memory
/// is released.
#[test]
fn a_slow_response_is_stored_after_its_readers_have_left() {
    const PARTS: usize = 12;
    let (send, may_send) = channel::<()>();
    let may_send = Mutex::new(may_send);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            counted.fetch_add(1, Ordering::SeqCst);
            let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 12000\r\n\r\n";
            let mut is_sent = stream.write_all(head.as_bytes()).is_ok();
            for part in 0..PARTS {
                // Without the sender, everything at once.
                let _ = may_send.lock().unwrap().recv();
                is_sent &= stream.write_all(&[b'a' + part as u8; 1000]).is_ok();
            }
            if !is_sent {
                return;
            }
        }
    });
    let server = Cached::of(one(address));
    let request = "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let mut stays = server.send(request);
    send.send(()).unwrap();
    stays.read_exact(&mut [0; 1]).unwrap();
    for _ in 1..PARTS / 2 {
        let mut leaves = server.send(request);
        send.send(()).unwrap();
        leaves.read_exact(&mut [0; 300]).unwrap();
        drop(leaves);
    }
    drop(send);
    let body = body_of(&rest(&mut stays)).to_owned();
    assert_eq!(body.len(), PARTS * 1000);
    assert!(
        body.bytes().rev().step_by(1000).zip((b'a'..b'a' + PARTS as u8).rev()).all(|(got, sent)| got == sent)
    );
    let again = server.get("/", "");
    assert!(is(&again, "HIT") && body_of(&again) == body);
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

fn stored(server: &Cached) -> u64 {
    let mut families = Vec::new();
    server.cache.collect(&mut families);
    let family = families.iter().find(|family| family.name == "flatout_cache_stored").unwrap();
    match family.samples[0].value {
        Value::Count(count) => count,
        _ => 0,
    }
}

/// Clients ask for large responses and do not read them: what they keep in memory counts as long as they are there.
#[test]
fn clients_that_do_not_read_cannot_fill_the_memory() {
    // More than the buffers of a connection.
    const BODY_BYTES: usize = 16_000_000;
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            let head = format!(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
            );
            if stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(&vec![b'x'; BODY_BYTES]))
                .is_err()
            {
                return;
            }
        }
    });
    // Room for four such bodies that are on their way.
    let server = Cached::with(one(address), Rules::default(), 256 << 20);
    let deadline = Instant::now() + Duration::from_secs(30);
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let mut idle = Vec::new();
    for at in 0..4 {
        idle.push(server.send(&format!("GET /{at} HTTP/1.1\r\nHost: t\r\n\r\n")));
        until("it is stored", &|| stored(&server) == at + 1);
    }
    for _ in 0..2 {
        let other = server.get("/other", "");
        assert!(is(&other, "MISS") && body_of(&other).len() == BODY_BYTES);
    }
    drop(idle);
    let number = AtomicUsize::new(0);
    until("there is room again", &|| {
        let path = format!("/new/{}", number.fetch_add(1, Ordering::SeqCst));
        server.get(&path, "");
        is(&server.get(&path, ""), "HIT")
    });
}
