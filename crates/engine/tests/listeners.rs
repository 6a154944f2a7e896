//! Changes the listeners of a running server.

mod support;

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flatout_engine::{
    Address, BodyPlan, Handle, Limits, Listen, Plan, Prepared, ProxyHeader, Reply, Request, Response, Server,
    Service, start,
};
use flatout_wire::Head;
use support::{read_until, rest};

struct Hello;

impl Service for Hello {
    fn believes_proxy(&self, _: Option<SocketAddr>, _: u16) -> bool {
        true
    }

    fn prepare(&self, _: &Head<'_>, _: &[u8], _: u16) -> Prepared {
        BodyPlan::Whole { bytes_max: None }.into()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let peer = request.peer.map_or("unix".to_owned(), |peer| peer.ip().to_string());
        response.buffer().extend_from_slice(format!("[hello {peer}]").as_bytes());
        Reply::Now
    }
}

struct Running {
    server: Option<Server>,
    handle: Handle,
}

impl Running {
    fn new(plan: &Plan) -> Running {
        let server = start(plan.clone(), |_| Box::new(Hello)).unwrap();
        Running { handle: server.handle(), server: Some(server) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        self.server.take().unwrap().wait().unwrap();
    }
}

fn plan(listen: &[&str]) -> Plan {
    Plan {
        listen: listen.iter().map(|text| text.parse().unwrap()).collect(),
        workers: Some(2),
        ..Plan::default()
    }
}

fn tcp(address: &Address) -> SocketAddr {
    let Address::Tcp(address) = address else { panic!("{address} is no TCP address") };
    *address
}

fn hello(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(GET).unwrap();
    rest(&mut stream)
}

/// Waits until connections are refused.
fn until_refused(mut connect: impl FnMut() -> std::io::Result<()>) {
    let began = Instant::now();
    loop {
        match connect() {
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {
                return;
            }
            _ => assert!(began.elapsed() < Duration::from_secs(20), "still there"),
        }
    }
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
const GET_ON: &[u8] = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n";

#[test]
fn changed_listeners_keep_connections() {
    let running = Running::new(&plan(&["127.0.0.1:0", "127.0.0.2:0"]));
    let addresses = running.handle.addresses();
    let (stays, goes) = (tcp(&addresses[0]), tcp(&addresses[1]));
    let mut on = [stays, goes].map(|address| TcpStream::connect(address).unwrap());
    for stream in &mut on {
        stream.write_all(GET_ON).unwrap();
        read_until(stream, "[hello 127.0.0.1]");
    }
    let changed = running.handle.prepare(plan(&["127.0.0.1:0", "127.0.0.3:0"])).unwrap().commit();
    assert_eq!((changed.added.len(), changed.removed.len()), (1, 1));
    assert_eq!(tcp(&changed.removed[0]), goes);
    let comes = tcp(&changed.added[0]);
    assert_eq!(running.handle.addresses(), [Address::Tcp(stays), Address::Tcp(comes)]);
    assert!(hello(stays).contains("200 OK") && hello(comes).contains("200 OK"));
    until_refused(|| TcpStream::connect_timeout(&goes, Duration::from_secs(5)).map(drop));
    // Existing connections are still served.
    for stream in &mut on {
        stream.write_all(GET_ON).unwrap();
        read_until(stream, "[hello 127.0.0.1]");
    }
}

#[test]
fn failed_binds_change_nothing() {
    let running = Running::new(&plan(&["127.0.0.1:0"]));
    let before = running.handle.addresses();
    let foreign = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = std::env::temp_dir().join(format!("flatout-listening-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let unix = folder.join("socket");
    let unix_text = format!("unix:{}", unix.display());
    let taken = foreign.local_addr().unwrap().to_string();
    let refused = running.handle.prepare(plan(&[&unix_text, &taken])).err().unwrap().to_string();
    assert!(refused.contains(&format!("cannot listen on http://{taken}: ")), "{refused}");
    assert!(!unix.exists(), "what was bound before is undone");
    assert!(running.handle.prepare(plan(&[])).is_err());
    let wrong = Plan { limits: Limits { headers_max: 0, ..Limits::default() }, ..plan(&["127.0.0.1:0"]) };
    assert!(running.handle.prepare(wrong).is_err());
    drop(running.handle.prepare(plan(&["127.0.0.2:0"])).unwrap());
    assert_eq!(running.handle.addresses(), before);
    assert!(hello(tcp(&before[0])).contains("200 OK"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn unix_socket_files_follow_their_listeners() {
    let folder = std::env::temp_dir().join(format!("flatout-listening-unix-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    let text = format!("unix:{}", path.display());
    let running = Running::new(&plan(&["127.0.0.1:0"]));
    for _ in 0..2 {
        let changed = running.handle.prepare(plan(&["127.0.0.1:0", &text])).unwrap().commit();
        assert_eq!(changed.added, [text.parse().unwrap()]);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(GET_ON).unwrap();
        read_until(&mut stream, "[hello unix]");
        drop(running.handle.prepare(plan(&["127.0.0.1:0"])).unwrap().commit());
        assert!(!path.exists());
        stream.write_all(GET).unwrap();
        assert!(rest(&mut stream).ends_with("[hello unix]"));
    }
    // A socket file that belongs to another program by now is left alone.
    drop(running.handle.prepare(plan(&["127.0.0.1:0", &text])).unwrap().commit());
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "theirs").unwrap();
    drop(running.handle.prepare(plan(&["127.0.0.1:0"])).unwrap().commit());
    assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn released_address_can_be_bound_again() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let other = format!("127.0.0.1:{port}");
    let running = Running::new(&plan(&["127.0.0.1:0", &other]));
    let change = |listen: &[&str]| running.handle.prepare(plan(listen)).unwrap().commit();
    assert_eq!(change(&["127.0.0.1:0"]).removed.len(), 1);
    assert_eq!(change(&["127.0.0.1:0", &other]).added.len(), 1);
    assert!(hello(other.parse().unwrap()).contains("200 OK"));
}

/// An established connection is never reset, even if its listener is removed at that moment.
#[test]
fn removed_listener_serves_pending_connections() {
    let running = Running::new(&plan(&["127.0.0.1:0", "127.0.0.2:0"]));
    let goes = tcp(&running.handle.addresses()[1]);
    let (ends, served) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let Ok(mut stream) = TcpStream::connect_timeout(&goes, Duration::from_millis(300)) else {
                        return;
                    };
                    stream.write_all(GET).unwrap();
                    assert!(rest(&mut stream).contains("200 OK"));
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while served.load(Ordering::Relaxed) < 200 {
            std::thread::yield_now();
        }
        drop(running.handle.prepare(plan(&["127.0.0.1:0"])).unwrap().commit());
        until_refused(|| TcpStream::connect_timeout(&goes, Duration::from_secs(5)).map(drop));
        ends.store(true, Ordering::Relaxed);
    });
}

/// A request whose body is collected is parsed twice; its head was accepted within the former limits.
#[test]
fn stricter_limits_spare_requests_whose_bodies_arrive() {
    let plan = |limits| Plan { limits, workers: Some(1), ..plan(&["127.0.0.1:0"]) };
    let running = Running::new(&plan(Limits::default()));
    let address = tcp(&running.handle.addresses()[0]);
    let ask = |method: &str, fields: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        let target = "a".repeat(100);
        let head = format!("{method} /{target} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{fields}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let mut posts = ask("POST", "Content-Length: 4\r\nExpect: 100-continue\r\n");
    read_until(&mut posts, "HTTP/1.1 100 Continue\r\n\r\n");
    let limits = Limits { target_bytes_max: 50, ..Limits::default() };
    drop(running.handle.prepare(plan(limits)).unwrap().commit());
    let began = Instant::now();
    while !rest(&mut ask("GET", "")).starts_with("HTTP/1.1 414 ") {
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    posts.write_all(b"body").unwrap();
    let response = rest(&mut posts);
    assert!(response.contains("200 OK") && response.ends_with("[hello 127.0.0.1]"), "{response}");
}

#[test]
fn limits_and_proxy_protocol_can_change() {
    let running = Running::new(&plan(&["127.0.0.1:0"]));
    let address = tcp(&running.handle.addresses()[0]);
    let limits = Limits { target_bytes_max: 3, connections_max: Some(7), ..Limits::default() };
    let other = Plan {
        limits,
        server_name: Some("other".to_owned()),
        listen: vec![Listen { proxy_header: ProxyHeader::Trusted, .."127.0.0.1:0".parse().unwrap() }],
        ..plan(&["127.0.0.1:0"])
    };
    let changed = running.handle.prepare(other).unwrap().commit();
    assert!(changed.added.is_empty() && changed.removed.is_empty());
    let ask = |target: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!(
            "PROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\nGET {target} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
        );
        let _ = stream.write_all(request.as_bytes());
        rest(&mut stream)
    };
    // Each worker reads its own messages.
    let began = Instant::now();
    while !(0..20).all(|_| ask("/").contains("Server: other\r\n")) {
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    assert!(ask("/").ends_with("[hello 192.0.2.7]"));
    assert!(ask("/long").starts_with("HTTP/1.1 414 "));
}

#[test]
fn internal_listeners_accept_while_others_drain() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own");
    let own = Listen { is_internal: true, ..Address::Unix(path.clone()).into() };
    let listen = vec!["127.0.0.1:0".parse().unwrap(), own];
    let running = Running::new(&Plan { listen, workers: Some(1), ..Plan::default() });
    let addresses = running.handle.addresses();
    assert_eq!(addresses.len(), 1, "internal listeners are not listed: {addresses:?}");
    let mut slow = TcpStream::connect(tcp(&addresses[0])).unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
    running.handle.drain();
    until_refused(|| TcpStream::connect(tcp(&addresses[0])).map(drop));
    for _ in 0..3 {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(GET_ON).unwrap();
        let found = rest(&mut stream);
        assert!(found.contains("200 OK") && found.contains("Connection: close\r\n"), "{found}");
    }
    slow.write_all(b"st: t\r\n\r\n").unwrap();
    assert!(rest(&mut slow).ends_with("[hello 127.0.0.1]"));
    drop(slow);
    until_refused(|| UnixStream::connect(&path).map(drop));
}
