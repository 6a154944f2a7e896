//! Upstreams with several servers: balancing, changing names, active health checks.

mod support;

use std::collections::HashMap;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flatout_engine::Limits;
use flatout_proxy::{
    Active, Address, Balance, Forward, HealthCheck, Host, Key, Passive, ProxyProtocol, Resolver, Server,
    ServerState, Upstream,
};
use support::{Running, body_of, last, read_request, rest, upstream};

/// A server that responds with its name as long as `is_well` is set.
fn named(name: &'static str, is_well: Arc<AtomicBool>) -> SocketAddr {
    upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            let status = if is_well.load(Ordering::SeqCst) { "200 OK" } else { "500 Internal Server Error" };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{name}", name.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    })
}

fn well() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(true))
}

fn three(balance: Balance) -> Upstream {
    let servers = ["a", "b", "c"].map(|name| Server::new(Address::Socket(named(name, well()))));
    Upstream { balance, ..Upstream::new("t", servers.into()) }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn requests_take_turns() {
    let proxy = Running::to(three(Balance::RoundRobin));
    let mut counts: HashMap<String, usize> = HashMap::new();
    for _ in 0..30 {
        *counts.entry(body_of(&proxy.all(last("/"))).to_owned()).or_default() += 1;
    }
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [10, 10, 10]);
}

/// A server that reports a request, and responds once it is let.
fn waiting(began: Sender<()>, ends: Receiver<()>) -> SocketAddr {
    let both = Mutex::new((began, ends));
    upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            let (began, ends) = &*both.lock().unwrap();
            began.send(()).unwrap();
            let _ = ends.recv_timeout(Duration::from_secs(60));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate");
        }
    })
}

#[test]
fn requests_do_not_wait_while_another_server_has_room() {
    for balance in [Balance::RoundRobin, Balance::Sticky { cookie: "at".to_owned() }] {
        let ((began, begins), (end, ends)) = (channel(), channel());
        let late = Server::new(Address::Socket(waiting(began, ends)));
        let free = Server::new(Address::Socket(named("free", well())));
        let plan = Upstream { balance, connections_max: 1, ..Upstream::new("t", vec![late, free]) };
        let proxy = Running::to(plan);
        let mut first = proxy.connect();
        first.write_all(last("/").as_bytes()).unwrap();
        begins.recv_timeout(Duration::from_secs(30)).unwrap();
        for _ in 0..6 {
            assert_eq!(body_of(&proxy.all(last("/"))), "free");
        }
        end.send(()).unwrap();
        assert_eq!(body_of(&rest(&mut first)), "late");
    }
}

#[test]
fn backups_get_no_requests_because_others_are_full() {
    let ((began, begins), (end, ends)) = (channel(), channel());
    let late = Server::new(Address::Socket(waiting(began, ends)));
    let backup = Server { backup: true, ..Server::new(Address::Socket(named("backup", well()))) };
    let proxy = Running::to(Upstream { connections_max: 1, ..Upstream::new("t", vec![late, backup]) });
    let send = || {
        let mut stream = proxy.connect();
        stream.write_all(last("/").as_bytes()).unwrap();
        stream
    };
    let mut first = send();
    begins.recv_timeout(Duration::from_secs(30)).unwrap();
    let mut second = send();
    end.send(()).unwrap();
    assert_eq!(body_of(&rest(&mut first)), "late");
    begins.recv_timeout(Duration::from_secs(30)).unwrap();
    end.send(()).unwrap();
    assert_eq!(body_of(&rest(&mut second)), "late", "it has waited");
}

#[test]
fn a_key_stays_with_its_server() {
    let proxy = Running::to(three(Balance::Hash(Key::Header("X-User".to_owned()))));
    let ask = |user: usize| {
        let request = format!("GET / HTTP/1.1\r\nHost: t\r\nX-User: {user}\r\nConnection: close\r\n\r\n");
        body_of(&proxy.all(request)).to_owned()
    };
    let first: Vec<String> = (0..30).map(ask).collect();
    let second: Vec<String> = (0..30).map(ask).collect();
    assert_eq!(first, second);
    assert!(["a", "b", "c"].iter().all(|name| first.iter().any(|it| it == name)), "{first:?}");
}

#[test]
fn a_cookie_keeps_a_client_with_its_server() {
    let proxy = Running::to(three(Balance::Sticky { cookie: "route".to_owned() }));
    let first = proxy.all(last("/"));
    let cookie = first.lines().find_map(|line| line.strip_prefix("Set-Cookie: ")).expect("a cookie");
    let pair = cookie.split(';').next().unwrap();
    assert!(pair.starts_with("route=") && cookie.contains("HttpOnly"), "{cookie}");
    for _ in 0..5 {
        let again = proxy
            .all(format!("GET / HTTP/1.1\r\nHost: t\r\nCookie: x=y; {pair}\r\nConnection: close\r\n\r\n"));
        assert_eq!(body_of(&again), body_of(&first));
        assert!(!again.contains("Set-Cookie"), "{again}");
    }
    let other = proxy.all("GET / HTTP/1.1\r\nHost: t\r\nCookie: route=made-up\r\nConnection: close\r\n\r\n");
    assert!(other.contains("Set-Cookie: route="), "{other}");
}

#[test]
fn a_server_that_is_not_well_gets_nothing() {
    let is_well = well();
    let servers = [named("sick", is_well.clone()), named("well", well())]
        .map(|address| Server::new(Address::Socket(address)));
    let active = Active {
        check: HealthCheck::http("/health", 200..=299),
        interval: Duration::from_millis(30),
        time_max: Duration::from_secs(10),
        rise: 2,
        fall: 2,
    };
    let proxy = Running::to(Upstream { active: Some(active), ..Upstream::new("t", servers.into()) });
    let sees = |name: &str| (0..6).any(|_| body_of(&proxy.all(last("/"))) == name);
    wait_until("both are asked", || sees("sick") && sees("well"));
    is_well.store(false, Ordering::SeqCst);
    wait_until("the sick one is left alone", || !sees("sick"));
    is_well.store(true, Ordering::SeqCst);
    wait_until("and is asked again when it is well", || sees("sick"));
}

#[test]
fn health_checks_look_at_bodies_and_connections() {
    // Two servers that respond alike, with another name in the body; chunked, and until the end of the connection.
    let chunked = upstream(|_, mut stream| {
        while read_request(&mut stream).is_some() {
            let answer =
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nrea\r\n6\r\ndy one\r\n0\r\n\r\n";
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    let until_end = upstream(|_, mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nready two");
    });
    let starting = named("starting", well());
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let check = |body: &str| HealthCheck::Http {
        path: "/health".to_owned(),
        statuses: vec![200..=200, 404..=404],
        body: body.to_owned(),
    };
    for (check, servers, bad) in [
        (check("ready"), vec![chunked, until_end, starting], vec![2]),
        (check("two"), vec![chunked, until_end], vec![0]),
        (HealthCheck::Tcp, vec![starting, nobody], vec![1]),
    ] {
        let active = Active {
            check,
            interval: Duration::from_millis(30),
            time_max: Duration::from_secs(10),
            rise: 1,
            fall: 1,
        };
        let servers = servers.into_iter().map(|address| Server::new(Address::Socket(address))).collect();
        let proxy = Running::to(Upstream { active: Some(active), ..Upstream::new("t", servers) });
        let down = || {
            let servers = proxy.proxy.state("t").unwrap().servers;
            let down = servers.iter().enumerate().filter(|(_, server)| server.state == ServerState::Down);
            down.map(|(at, _)| at).collect::<Vec<_>>()
        };
        wait_until("the bad one is down", || down() == bad);
    }
}

/// A name server that knows one name, with this TTL in seconds, and counts the queries.
fn name_server(address: Arc<Mutex<Ipv4Addr>>, seconds: u32, asked: Arc<AtomicUsize>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            let query = &buffer[..count];
            // The question ends with a zero label, its type and its class.
            let end = 12 + query[12..].iter().position(|&byte| byte == 0).unwrap() + 5;
            let is_a = query[end - 4..end - 2] == [0, 1];
            let mut answer = query[..2].to_vec();
            answer.extend_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
            answer.extend_from_slice(&query[12..end]);
            if is_a {
                asked.fetch_add(1, Ordering::SeqCst);
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
                answer.extend_from_slice(&seconds.to_be_bytes());
                answer.extend_from_slice(&[0, 4]);
                answer.extend_from_slice(&address.lock().unwrap().octets());
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    at
}

#[test]
fn names_are_resolved_again_after_their_ttl() {
    let port = named("first", well()).port();
    let second = std::net::TcpListener::bind(("127.0.0.2", port)).unwrap();
    std::thread::spawn(move || {
        for stream in second.incoming() {
            let Ok(mut stream) = stream else { return };
            read_request(&mut stream);
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecond");
        }
    });
    let address = Arc::new(Mutex::new(Ipv4Addr::new(127, 0, 0, 1)));
    let asked = Arc::new(AtomicUsize::new(0));
    let resolver = Resolver::Servers(vec![name_server(address.clone(), 1, asked.clone())]);
    let plan = Upstream::new("t", vec![Server::new(Address::Name("api.test".to_owned(), port))]);
    let plan = Upstream { idle_max: 0, ..plan };
    let proxy = Running::resolving(plan, Forward::to(0), Limits::default(), &resolver);
    assert_eq!(body_of(&proxy.all(last("/"))), "first");
    *address.lock().unwrap() = Ipv4Addr::new(127, 0, 0, 2);
    wait_until("the new address is used", || body_of(&proxy.all(last("/"))) == "second");
    assert!((2..40).contains(&asked.load(Ordering::SeqCst)), "{asked:?} questions");
}

#[test]
fn an_unknown_name_is_502() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let plan = Upstream::new("t", vec![Server::new(Address::Name("nobody.test".to_owned(), 80))]);
    let resolver = Resolver::Servers(vec![nobody]);
    let proxy = Running::resolving(plan, Forward::to(0), Limits::default(), &resolver);
    let answer = proxy.all(last("/"));
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

#[test]
fn upstreams_get_the_proxy_protocol_header() {
    let (address, asked) = support::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let plan = Upstream { send_proxy_protocol: Some(ProxyProtocol::V1), ..support::one(address) };
    let proxy = Running::to(plan);
    for _ in 0..2 {
        assert_eq!(body_of(&proxy.all(last("/"))), "ok");
        let request = asked.recv().unwrap();
        let (line, rest) = request.split_once("\r\n").unwrap();
        assert!(line.starts_with("PROXY TCP4 127.0.0.1 0.0.0.0 "), "{request}");
        assert!(rest.starts_with("GET / HTTP/1.1\r\n") && !rest.contains("PROXY"), "{request}");
    }
}

#[test]
fn an_upstream_on_a_unix_socket_may_close_behind_each_response() {
    let path = std::env::temp_dir().join(format!("flatout-upstream-{}", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut byte = [0];
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && std::io::Read::read(&mut stream, &mut byte).unwrap() > 0 {
                head.push(byte[0]);
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    });
    let proxy = Running::to(Upstream::new("t", vec![Server::new(Address::Unix(path.clone()))]));
    let mut stream = proxy.connect();
    for _ in 0..50 {
        stream.write_all(support::get("/").as_bytes()).unwrap();
        assert!(support::read_until(&mut stream, "\r\n\r\nok").starts_with("HTTP/1.1 200 OK\r\n"));
    }
    std::fs::remove_file(path).unwrap();
    // The server no longer listens.
    let gone = proxy.all(last("/"));
    assert!(gone.starts_with("HTTP/1.1 502 "), "{gone}");
}

#[test]
fn each_server_is_called_by_its_own_name() {
    let servers = [(); 2].map(|()| support::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"));
    let plan = servers.iter().map(|(address, _)| Server::new(Address::Socket(*address))).collect();
    let forward = Forward { host: Host::Upstream, ..Forward::to(0) };
    let proxy = Running::with(Upstream::new("t", plan), forward, Limits::default());
    for _ in 0..4 {
        assert_eq!(body_of(&proxy.all(last("/"))), "ok");
    }
    for (address, asked) in &servers {
        let requests: Vec<String> = asked.try_iter().collect();
        let host = format!("\r\nHost: {address}\r\n");
        assert!(
            requests.len() == 2 && requests.iter().all(|it| it.matches(&host).count() == 1),
            "{requests:?}"
        );
    }
}

#[test]
fn unresolved_servers_are_not_retried_forever() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = |at: usize| Server::new(Address::Name(format!("s{at}.test"), 80));
    let passive = Passive { failures_max: 0, window: Duration::ZERO, down_time: Duration::ZERO };
    let plan = Upstream { passive, ..Upstream::new("t", (0..70).map(server).collect()) };
    let resolver = Resolver::Servers(vec![nobody]);
    let proxy = Running::resolving(plan, Forward::to(0), Limits::default(), &resolver);
    assert!(proxy.all(last("/")).starts_with("HTTP/1.1 502 "));
}
