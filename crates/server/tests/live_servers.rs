//! Servers that come, go, are drained and weighted while an upstream is in use.

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flatout_engine::{self as engine, Limits};
use flatout_proxy::{
    self as proxy, Balance, Forward, Key, Proxy, Resolver, ServerMode, ServerState, Upstream, Watch,
};
use flatout_push::Hub;
use flatout_server::live::{Live, Opened};
use flatout_site::plan::{Action, Host, PathMatch, Route, Site};
use flatout_site::{self as site};
use support::cached::Cached;
use support::{Running, get, h2, last, read_request, read_until, upstream};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that responds with its port. It responds to `/slow` when told to, and echoes after an upgrade.
struct Backend {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    open: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    /// A slow request has arrived.
    arrived: Receiver<()>,
    release: Sender<()>,
}

impl Backend {
    fn start() -> Backend {
        let (requests, open, connections) = (
            Arc::<Mutex<Vec<String>>>::default(),
            Arc::<AtomicUsize>::default(),
            Arc::<AtomicUsize>::default(),
        );
        let (arrive, arrived) = channel();
        let (release, released) = channel::<()>();
        let (arrive, released) = (Mutex::new(arrive), Mutex::new(released));
        let (recorded, opened, counted) = (requests.clone(), open.clone(), connections.clone());
        let address = upstream(move |_, mut stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            opened.fetch_add(1, Ordering::SeqCst);
            let port = stream.local_addr().unwrap().port();
            while let Some(request) = read_request(&mut stream) {
                let (is_slow, is_upgrade) = (request.contains(" /slow"), request.contains("Upgrade: echo"));
                recorded.lock().unwrap().push(request);
                if is_slow {
                    let _ = arrive.lock().unwrap().send(());
                    let _ = released.lock().unwrap().recv();
                }
                if is_upgrade {
                    echo(&mut stream);
                    break;
                }
                let body = format!("port {port}");
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                if stream.write_all(format!("{head}{body}").as_bytes()).is_err() {
                    break;
                }
            }
            opened.fetch_sub(1, Ordering::SeqCst);
        });
        Backend { address, requests, open, connections, arrived, release }
    }

    fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    fn name(&self) -> String {
        format!("port {}", self.address.port())
    }
}

fn echo(stream: &mut TcpStream) {
    let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    stream.write_all(head).unwrap();
    let mut buffer = [0; 100];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

fn server(backend: &Backend) -> proxy::Server {
    proxy::Server::new(proxy::Address::Socket(backend.address))
}

fn at(backend: &Backend) -> proxy::Address {
    proxy::Address::Socket(backend.address)
}

fn among(backends: &[&Backend]) -> Upstream {
    Upstream::new("t", backends.iter().map(|backend| server(backend)).collect())
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// A request in progress, whose response comes when it is released.
fn slow(running: &Running, method: &str) -> JoinHandle<String> {
    let mut stream = running.connect();
    let request =
        format!("{method} /slow HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    })
}

#[test]
fn servers_are_added_and_removed_beside_connections_of_others() {
    let [first, second] = [Backend::start(), Backend::start()];
    let running = Running::to(among(&[&first]));
    assert!(running.all(last("/")).ends_with(&first.name()));
    let changes = running.proxy.set_servers("t", &[server(&first), server(&second)]).unwrap();
    assert_eq!((changes.added.len(), changes.removed.len()), (1, 0));
    until("the new server gets requests", || running.all(last("/")).ends_with(&second.name()));
    for _ in 0..10 {
        assert!(running.all(last("/")).starts_with("HTTP/1.1 200 "));
    }
    assert!(first.count() >= 5 && second.count() >= 5);
    assert_eq!(first.connections.load(Ordering::SeqCst), 1, "its connection was not touched");

    let changes = running.proxy.set_servers("t", &[server(&second)]).unwrap();
    assert_eq!(changes.removed, [first.address.to_string()]);
    until("its idle connection is closed", || first.open.load(Ordering::SeqCst) == 0);
    let count = first.count();
    for _ in 0..5 {
        assert!(running.all(last("/")).ends_with(&second.name()));
    }
    assert_eq!((first.count(), second.connections.load(Ordering::SeqCst)), (count, 1));

    running.proxy.set_servers("t", &[]).unwrap();
    assert!(running.all(last("/")).starts_with("HTTP/1.1 503 "), "nobody is left");
    for _ in 0..50 {
        running.proxy.set_servers("t", &[server(&first)]).unwrap();
        running.proxy.set_servers("t", &[]).unwrap();
    }
    running.proxy.set_servers("t", &[server(&first)]).unwrap();
    until("a server that comes back gets requests", || running.all(last("/")).ends_with(&first.name()));
    let many =
        (1..=1023u16).map(|port| proxy::Server::new(proxy::Address::Socket(([127, 9, 9, 9], port).into())));
    let many: Vec<proxy::Server> = [server(&first)].into_iter().chain(many).collect();
    running.proxy.set_servers("t", &many).unwrap();
    running.proxy.set_servers("t", &many[..1]).unwrap();
    assert!(running.all(last("/")).ends_with(&first.name()));
    let too_many = [&many[..], &many[..]].concat();
    assert!(running.proxy.set_servers("t", &too_many).unwrap_err().contains("at most 1024"));
    assert!(running.proxy.set_servers("u", &[]).unwrap_err().contains("there are t"));
    assert!(running.proxy.set_servers("t", &[server(&first), server(&first)]).unwrap_err().contains("twice"));
}

#[test]
fn a_server_that_drains_finishes_its_requests() {
    let [first, second] = [Backend::start(), Backend::start()];
    let running = Running::to(among(&[&first]));
    let in_progress = slow(&running, "POST");
    first.arrived.recv_timeout(PATIENCE).unwrap();
    running.proxy.set_servers("t", &[server(&first), server(&second)]).unwrap();
    assert_eq!(running.proxy.set_mode("t", &at(&first), ServerMode::Draining), Ok(ServerMode::Serving));
    assert_eq!(running.proxy.set_mode("t", &at(&first), ServerMode::Draining), Ok(ServerMode::Draining));
    for _ in 0..10 {
        assert!(running.all(last("/")).ends_with(&second.name()));
    }
    let state = running.proxy.state("t").unwrap();
    assert_eq!(state.servers[0].state, ServerState::Draining);
    assert_eq!((first.count(), first.open.load(Ordering::SeqCst)), (1, 1));
    first.release.send(()).unwrap();
    assert!(in_progress.join().unwrap().ends_with(&first.name()));
    until("its connection is closed", || first.open.load(Ordering::SeqCst) == 0);
    let figures = || running.figures.server("t", &first.address.to_string());
    until("nothing is counted as open", || figures().open == 0 && figures().active == 0);

    running.proxy.set_mode("t", &at(&first), ServerMode::Serving).unwrap();
    until("it gets requests again", || running.all(last("/")).ends_with(&first.name()));
    let unknown = running.proxy.set_mode(
        "t",
        &"127.0.0.1:1".parse::<proxy::Server>().unwrap().address,
        ServerMode::Draining,
    );
    assert!(unknown.unwrap_err().contains("it has 127.0.0.1:"));
}

#[test]
fn requests_of_a_server_that_is_set_down_go_to_others_if_that_is_safe() {
    let [first, second] = [Backend::start(), Backend::start()];
    let running = Running::to(among(&[&first]));
    let (get, post) = (slow(&running, "GET"), slow(&running, "POST"));
    (0..2).for_each(|_| first.arrived.recv_timeout(PATIENCE).unwrap());
    (0..2).for_each(|_| second.release.send(()).unwrap());
    running.proxy.set_servers("t", &[server(&first), server(&second)]).unwrap();
    running.proxy.set_mode("t", &at(&first), ServerMode::SetDown).unwrap();
    assert!(get.join().unwrap().ends_with(&second.name()), "the other server was asked");
    assert!(post.join().unwrap().starts_with("HTTP/1.1 502 "), "it may have been processed");
    assert_eq!(running.proxy.state("t").unwrap().servers[0].state, ServerState::SetDown);
    let figures = || running.figures.server("t", &first.address.to_string());
    until("nothing is counted as open", || figures().open == 0 && figures().active == 0);
}

#[test]
fn two_operators_change_the_same_server_at_once() {
    let (first, second) = (Backend::start(), Backend::start());
    let running = Running::to(among(&[&first, &second]));
    let servers = [server(&first), server(&second)];
    let address = at(&first);
    std::thread::scope(|scope| {
        for mode in [ServerMode::Draining, ServerMode::Serving, ServerMode::SetDown] {
            let (proxy, address) = (running.proxy.clone(), &address);
            scope.spawn(move || {
                for weight in 1..200 {
                    proxy.set_mode("t", address, mode).unwrap();
                    proxy.set_weight("t", address, weight).unwrap();
                }
            });
        }
        for _ in 0..50 {
            assert!(running.all(last("/")).starts_with("HTTP/1.1 200"), "the other one serves");
            running.proxy.set_servers("t", &servers).unwrap();
        }
    });
    running.proxy.set_mode("t", &address, ServerMode::Serving).unwrap();
    let state = running.proxy.state("t").unwrap();
    assert_eq!((state.servers.len(), state.servers[0].mode), (2, ServerMode::Serving));
    until("both serve", || {
        running.all(last("/"));
        [&first, &second].iter().all(|backend| !backend.requests.lock().unwrap().is_empty())
    });
}

#[test]
fn tunnels_outlive_a_drain_and_a_removal() {
    let [first, second] = [Backend::start(), Backend::start()];
    let forward = Forward { upgrade: vec!["echo".to_owned()], ..Forward::to(0) };
    let running = Running::with(among(&[&first]), forward, Limits::default());
    let mut tunnel = running.connect();
    tunnel.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        tunnel.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    let mut echoes = |text: &[u8]| {
        tunnel.write_all(text).unwrap();
        let mut echo = vec![0; text.len()];
        tunnel.read_exact(&mut echo).is_ok() && echo == text
    };
    running.proxy.set_servers("t", &[server(&first), server(&second)]).unwrap();
    running.proxy.set_mode("t", &at(&first), ServerMode::Draining).unwrap();
    assert!(running.all(last("/")).ends_with(&second.name()) && echoes(b"drained"));
    running.proxy.set_servers("t", &[server(&second)]).unwrap();
    assert!(running.all(last("/")).ends_with(&second.name()) && echoes(b"removed"));
    // The place of the removed server is in use, so that this one gets another.
    running.proxy.set_servers("t", &[server(&second), server(&first)]).unwrap();
    until("it gets requests again", || running.all(last("/")).ends_with(&first.name()));
    assert!(echoes(b"back"));
    drop(tunnel);
    until("only one connection is left", || first.open.load(Ordering::SeqCst) <= 1);
}

#[test]
fn requests_in_the_queue_go_to_a_server_that_is_added() {
    let [first, second] = [Backend::start(), Backend::start()];
    let running = Running::to(Upstream {
        connections_max: 1,
        balance: Balance::LeastConnections,
        queue_time_max: PATIENCE,
        ..among(&[&first])
    });
    let in_progress = slow(&running, "GET");
    first.arrived.recv_timeout(PATIENCE).unwrap();
    let mut queued = running.connect();
    queued.write_all(last("/").as_ref()).unwrap();
    until("the request waits", || running.figures.upstream("t").queued == 1);
    running.proxy.set_servers("t", &[server(&first), server(&second)]).unwrap();
    let mut text = String::new();
    queued.read_to_string(&mut text).unwrap();
    assert!(text.ends_with(&second.name()), "{text}");
    first.release.send(()).unwrap();
    assert!(in_progress.join().unwrap().ends_with(&first.name()));
}

#[test]
fn weights_change_shares_at_once() {
    let [first, second] = [Backend::start(), Backend::start()];
    let running = Running::to(among(&[&first, &second]));
    assert_eq!(running.proxy.set_weight("t", &at(&second), 3), Ok(1));
    let (from, until_now) = ((first.count(), second.count()), 40);
    for _ in 0..until_now {
        running.all(last("/"));
    }
    let more = (first.count() - from.0, second.count() - from.1);
    assert_eq!(more, (10, 30));
}

#[test]
fn keys_and_cookies_stay_at_servers_that_stay() {
    let backends = [Backend::start(), Backend::start(), Backend::start()];
    let all: Vec<&Backend> = backends.iter().collect();
    let ask = |running: &Running, key: usize| {
        let text = running.all(last(&format!("/{key}")));
        text.rsplit("\r\n").next().unwrap_or_default().to_owned()
    };
    let running = Running::to(Upstream { balance: Balance::Hash(Key::Path), ..among(&all) });
    let before: BTreeMap<usize, String> = (0..60).map(|key| (key, ask(&running, key))).collect();
    running.proxy.set_mode("t", &at(all[1]), ServerMode::Draining).unwrap();
    for (key, was) in &before {
        let is = ask(&running, *key);
        assert!(is == *was || *was == all[1].name(), "only keys of the drained server move");
        assert_ne!(is, all[1].name());
    }
    running.proxy.set_mode("t", &at(all[1]), ServerMode::Serving).unwrap();
    until("its keys come back", || before.iter().all(|(key, was)| ask(&running, *key) == *was));

    let running =
        Running::to(Upstream { balance: Balance::Sticky { cookie: "s".to_owned() }, ..among(&all[..2]) });
    let with = |cookie: &str| {
        running.all(format!("GET / HTTP/1.1\r\nHost: t\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"))
    };
    let cookie_of = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("Set-Cookie: "))?;
        Some(line.split(';').next().unwrap_or_default().to_owned())
    };
    let text = with("");
    let cookie = cookie_of(&text).expect("a cookie");
    let of = |text: &str| all.iter().position(|backend| text.ends_with(&backend.name())).expect("a server");
    let own = of(&text);
    running.proxy.set_servers("t", &[server(all[2]), server(all[1]), server(all[0])]).unwrap();
    for _ in 0..6 {
        let text = with(&cookie);
        assert!(of(&text) == own && cookie_of(&text).is_none(), "{text}");
    }
    running.proxy.set_mode("t", &at(all[own]), ServerMode::Draining).unwrap();
    let text = with(&cookie);
    assert!(of(&text) != own && cookie_of(&text).is_some_and(|other| other != cookie), "{text}");
}

#[test]
fn health_checks_and_names_follow_servers_that_are_added() {
    let [first, second] = [Backend::start(), Backend::start()];
    let bad = upstream(|_, mut stream| {
        while read_request(&mut stream).is_some() {
            let _ = stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let active = proxy::Active {
        check: proxy::HealthCheck::http("/health", 200..=299),
        interval: Duration::from_millis(100),
        time_max: Duration::from_secs(10),
        rise: 1,
        fall: 2,
    };
    let running = Running::to(Upstream { active: Some(active), ..among(&[&first]) });
    let bad = proxy::Server::new(proxy::Address::Socket(bad));
    running.proxy.set_servers("t", &[server(&first), bad.clone()]).unwrap();
    let state = || running.proxy.state("t").unwrap().servers[1].state;
    until("the bad server is found to be down", || state() == ServerState::Down);
    running.proxy.set_servers("t", &[server(&first)]).unwrap();

    // No request goes to a name before it has an address.
    let named = proxy::Address::Name("localhost".to_owned(), second.address.port());
    running.proxy.set_servers("t", &[server(&first), proxy::Server::new(named)]).unwrap();
    until("the named server gets requests", || {
        let text = running.all(last("/"));
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        text.ends_with(&second.name())
    });
}

#[test]
fn streams_of_a_server_that_drains_are_finished() {
    let (arrive, arrived) = channel();
    let (release, released) = tokio::sync::mpsc::unbounded_channel::<()>();
    let released = Arc::new(tokio::sync::Mutex::new(released));
    let first = h2::serving(::h2::server::Builder::new(), None, move |mut it| {
        let (arrive, released) = (arrive.clone(), released.clone());
        async move {
            if it.request.uri().path() == "/slow" {
                arrive.send(()).unwrap();
                released.lock().await.recv().await;
            }
            h2::respond(&mut it.respond, 200, "first");
        }
    });
    let second = h2::serving(::h2::server::Builder::new(), None, |mut it| async move {
        h2::respond(&mut it.respond, 200, "second");
    });
    let of = |address| proxy::Server::new(proxy::Address::Socket(address));
    let running = Running::to(first.upstream());
    let in_progress = slow(&running, "POST");
    arrived.recv_timeout(PATIENCE).unwrap();
    running.proxy.set_servers("t", &[of(first.address), of(second.address)]).unwrap();
    running.proxy.set_mode("t", &proxy::Address::Socket(first.address), ServerMode::Draining).unwrap();
    for _ in 0..10 {
        assert!(running.all(last("/")).ends_with("second"));
    }
    release.send(()).unwrap();
    assert!(in_progress.join().unwrap().ends_with("first"));
    let figures = || running.figures.server("t", &first.address.to_string());
    until("its connection is closed", || figures().open == 0 && figures().active == 0);
    running.proxy.set_mode("t", &proxy::Address::Socket(first.address), ServerMode::Serving).unwrap();
    until("it gets requests again", || running.all(last("/")).ends_with("first"));
    assert_eq!(first.connections(), 2);
    running.proxy.set_mode("t", &proxy::Address::Socket(first.address), ServerMode::SetDown).unwrap();
    until("its idle connection is closed", || figures().open == 0);
}

#[test]
fn a_response_under_way_from_a_server_that_drains_is_stored() {
    let (arrive, arrived) = channel();
    let (release, released) = channel::<()>();
    let (arrive, released) = (Mutex::new(arrive), Mutex::new(released));
    let first = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            let head = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: 10\r\n\r\nfirst";
            stream.write_all(head).unwrap();
            arrive.lock().unwrap().send(()).unwrap();
            let _ = released.lock().unwrap().recv();
            stream.write_all(b" part").unwrap();
        }
    });
    let second = Backend::start();
    let first = proxy::Server::new(proxy::Address::Socket(first));
    let cached = Cached::of(Upstream::new("t", vec![first.clone()]));
    let fills = cached.send("GET /a HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    arrived.recv_timeout(PATIENCE).unwrap();
    let waits = cached.send("GET /a HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    cached.proxy.set_servers("t", &[first.clone(), server(&second)]).unwrap();
    cached.proxy.set_mode("t", &first.address, ServerMode::Draining).unwrap();
    assert!(cached.get("/b", "").ends_with(&second.name()));
    release.send(()).unwrap();
    for mut stream in [fills, waits] {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("first part"), "{text}");
    }
    assert!(cached.get("/a", "").ends_with("first part"), "it is stored");
    assert_eq!(second.count(), 1);
}

/// What is served with this proxy to the upstream of `plan`.
fn opened(proxy: &Proxy, plan: &Upstream) -> Opened {
    let route = Route::new(PathMatch::prefix("/"), Action::Proxy(Forward::to(0)));
    let site = Site { hosts: vec![Host::Any], routes: vec![route], ..Site::default() };
    let plan =
        site::Plan { upstreams: vec![plan.clone()], sites: vec![site.into()], ..site::Plan::default() };
    let sites = site::open(&plan).unwrap();
    let hub = Hub::new(flatout_push::Limits::default());
    Opened { sites, proxy: proxy.clone(), hub, cache: None, prerender: None }
}

/// Reads a response whose body is a name of a backend.
fn read_name(stream: &mut TcpStream) -> String {
    let head = read_until(stream, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

#[test]
fn requests_that_began_before_a_reload_reach_servers_that_were_added_later() {
    let [first, second] = [Backend::start(), Backend::start()];
    let upstream = among(&[&first]);
    let before = Proxy::open(vec![upstream.clone()], &Resolver::System).unwrap();
    let live = Live::new(opened(&before, &upstream));
    let plan = engine::Plan {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        workers: Some(1),
        ..engine::Plan::default()
    };
    let served = live.clone();
    let server = engine::start(plan, move |worker| served.service(&worker, Watch::default())).unwrap();
    let Some(engine::Address::Tcp(address)) = server.addresses().first().cloned() else {
        panic!("no address")
    };
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let ask = |stream: &mut TcpStream| {
        stream.write_all(get("/").as_bytes()).unwrap();
        read_name(stream)
    };
    let (mut upload, mut other) = (connect(), connect());
    assert_eq!([ask(&mut upload), ask(&mut other)], [first.name(), first.name()]);
    upload.write_all(b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nfirst").unwrap();
    assert_eq!(ask(&mut other), first.name());

    // The body of the upload is not complete.
    let after = Proxy::open_after(vec![upstream.clone()], &Resolver::System, Some(&before)).unwrap();
    live.replace(opened(&after, &upstream));
    drop(before);
    assert_eq!(ask(&mut other), first.name());
    after.set_servers("t", &[self::server(&second)]).unwrap();
    until("the new server gets requests", || ask(&mut other) == second.name());
    upload.write_all(b" last").unwrap();
    assert_eq!(read_name(&mut upload), second.name());
    assert!(second.requests.lock().unwrap().iter().any(|request| request.ends_with("first last")));
    server.handle().stop();
    server.wait().unwrap();
}
