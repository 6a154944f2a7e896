//! What the cache makes of upstreams that lie and clients that leave.

mod support;

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use support::cached::{Cached, is, numbering};
use support::{body_of, one, read_request, rest, upstream};

#[test]
fn what_an_upstream_sends_beyond_its_length_is_nobodys_response() {
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
        // It comes while the upstream waits, and stays.
        let mut stays = server.send(&format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
        go_on.send(()).unwrap();
        // For a request of its own, if the first one's was given up.
        go_on.send(()).unwrap();
        let answer = rest(&mut stays);
        let body = body_of(&answer);
        assert_eq!((body.len(), body.matches('x').count()), (2 * HALF, HALF), "{path}");
        assert!(is(&server.get(&path, ""), "HIT"));
    }
}

#[test]
fn what_varies_by_everything_is_kept_apart() {
    let (address, asked) = numbering("Cache-Control: max-age=60\r\nVary: *\r\n");
    let server = Cached::of(one(address));
    for _ in 0..5 {
        assert!(is(&server.get("/", ""), "MISS"));
    }
    assert_eq!(asked.try_iter().count(), 5);

    // The response says what the request had of each field.
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
