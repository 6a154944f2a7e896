use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use flatout_engine::{Address, Limits, Reply, Request, Response, Server, Service};
use flatout_wire::Status;

use super::*;
use flatout_observe::metrics::ServerSource;
use flatout_observe::observed::{Observers, Sites};

/// Responds with 200 or 500, depending on the path.
struct Site;

impl Service for Site {
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        if request.path == b"/broken" {
            response.set_status(Status::INTERNAL_SERVER_ERROR);
        }
        response.buffer().extend_from_slice(b"hello");
        Reply::Now
    }
}

/// A server and its admin listener on a loopback address.
struct Both {
    server: Option<Server>,
    admin: Option<Admin>,
    served: SocketAddr,
    address: SocketAddr,
}

impl Both {
    fn new(plan: Plan) -> Both {
        let bound = bind(Plan { listen: vec!["127.0.0.1:0".parse().unwrap()], ..plan }).unwrap();
        let metrics = Metrics::new(Sites::single("site"));
        let observers = Observers { logs: Vec::new(), metrics: Some(metrics.clone()) };
        let plan = flatout_engine::Plan {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            workers: Some(1),
            limits: Limits::default(),
            thread_name: "observed",
            ..flatout_engine::Plan::default()
        };
        let server = flatout_engine::start(plan, move |_| observers.wrap(|_| Box::new(Site))).unwrap();
        metrics.add(Arc::new(ServerSource::new(server.handle(), "observed")));
        let view = View {
            metrics,
            handle: server.handle(),
            thread_name: "observed".to_owned(),
            version: "1.2.3".to_owned(),
            upstreams: None,
            sites: Some(Arc::new(|| {
                let route =
                    Route { name: "/".to_owned(), action: "respond 200".to_owned(), rules: Vec::new() };
                vec![frame::Site {
                    name: "site".to_owned(),
                    hosts: vec!["*".to_owned()],
                    routes: vec![route],
                }]
            })),
            push: None,
            bus: None,
        };
        let admin = bound.start(view).unwrap();
        let tcp = |addresses: &[Address]| match addresses {
            [Address::Tcp(address)] => *address,
            other => panic!("{other:?}"),
        };
        let (served, address) = (tcp(server.addresses()), tcp(admin.addresses()));
        Both { server: Some(server), admin: Some(admin), served, address }
    }

    fn ask(&self, request: &str) -> String {
        ask(self.address, request)
    }

    fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.handle().stop();
            let _ = server.wait();
        }
        if let Some(admin) = self.admin.take() {
            admin.close();
        }
    }
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    String::from_utf8(all).unwrap()
}

#[test]
fn requests_are_counted_and_shown() {
    let both = Both::new(Plan::default());
    for path in ["/", "/", "/broken"] {
        ask(both.served, &format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
    }
    let text = both.get("/metrics");
    assert!(text.contains("Content-Type: application/openmetrics-text"), "{text}");
    for expected in [
        "flatout_requests_total{site=\"site\",status=\"2xx\"} 2\n",
        "flatout_requests_total{site=\"site\",status=\"5xx\"} 1\n",
        "flatout_requests_ended_total{site=\"site\",outcome=\"sent\"} 3\n",
        "flatout_request_duration_seconds_count{site=\"site\"} 3\n",
        "flatout_connections{worker=\"0\",state=\"idle\"} ",
        "flatout_connections_accepted_total{worker=\"0\"} 3\n",
        "flatout_proxy_headers_refused_total{worker=\"0\"} 0\n",
        "flatout_worker_cpu_seconds_total{worker=\"0\"} 0.",
        "process_open_fds ",
        "# EOF\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(both.get("/health").ends_with("\r\n\r\nserving\n"));
    let page = both.get("/");
    assert!(page.contains("text/html") && page.contains("Content-Security-Policy: default-src 'none'"));
    let status = both.get("/status");
    let (_, body) = status.split_once("\r\n\r\n").unwrap();
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(status["about"]["version"], "1.2.3");
    both.server.as_ref().unwrap().handle().drain();
    assert!(both.get("/health").starts_with("HTTP/1.1 503"));
}

#[test]
fn events_come_each_second() {
    let both = Both::new(Plan::default());
    let mut watch = Watch::connect(&Address::Tcp(both.address)).unwrap();
    let Event::Start(start) = watch.event().unwrap() else { panic!("no start") };
    assert_eq!(start.about.sites, ["site"]);
    ask(both.served, "GET /broken HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    let mut frames = Vec::new();
    while frames.len() < 2 {
        let Event::Frame(frame) = watch.event().unwrap() else { panic!("no frame") };
        assert_eq!((frame.state.as_str(), frame.workers.len()), ("serving", 1));
        frames.push(frame);
    }
    let sum = |of: fn(&Frame) -> f64| frames.iter().map(|frame| of(frame)).sum::<f64>();
    assert!(sum(|frame| frame.requests_per_s) > 0.5 && sum(|frame| frame.errors_per_s) > 0.5, "{frames:?}");
    assert_eq!(frames[1].requests, 1);
    let with_latency = frames.iter().find(|frame| frame.p50_us.is_some()).unwrap();
    assert!(with_latency.p99_us >= with_latency.p50_us && with_latency.cpu_us_per_request.is_some());
    // The kernel may attribute a thread's CPU time to the second after the request.
    assert!(sum(|frame| frame.cpus) > 0.0, "{frames:?}");
    // A new client gets the recent frames.
    let Event::Start(start) = Watch::connect(&Address::Tcp(both.address)).unwrap().event().unwrap() else {
        panic!("no start")
    };
    assert!(start.frames.len() >= 2);
}

/// A foreign name that resolves to this host, a page of another site, an unsafe method.
#[test]
fn only_the_operator_is_served() {
    let reload = Action {
        path: "/reload",
        run: Arc::new(|body| match body {
            b"" => Ok("reloaded".to_owned()),
            _ => Err("line 3: no such key".to_owned()),
        }),
    };
    let both = Both::new(Plan { actions: vec![reload], ..Plan::default() });
    let post = |fields: &str, body: &str| {
        both.ask(&format!(
            "POST /reload HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ))
    };
    assert!(post("", "").ends_with("\r\n\r\nreloaded\n"));
    assert!(
        post("Sec-Fetch-Site: same-origin\r\nOrigin: http://127.0.0.1\r\n", "").starts_with("HTTP/1.1 200")
    );
    let told = post("", "x");
    assert!(told.starts_with("HTTP/1.1 409") && told.ends_with("line 3: no such key\n"), "{told}");
    for fields in ["Sec-Fetch-Site: cross-site\r\n", "Origin: http://evil.example\r\n", "Origin: null\r\n"] {
        assert!(post(fields, "").starts_with("HTTP/1.1 403"), "{fields}");
    }
    assert!(both.get("/reload").starts_with("HTTP/1.1 405"));
    assert!(both.get("/nothing").starts_with("HTTP/1.1 404"));
    for (host, status) in
        [("evil.example", 421), ("127.0.0.1.evil.example", 421), ("[::1]:9", 200), ("localhost:9", 200)]
    {
        let answer = both.ask(&format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
    }
}

#[test]
fn public_access_must_be_enabled() {
    for (address, is_private) in [
        ("127.0.0.1:1", true),
        ("127.8.9.1:1", true),
        ("[::1]:1", true),
        ("[::ffff:127.0.0.1]:1", true),
        ("unix:/run/a.sock", true),
        ("0.0.0.0:1", false),
        ("[::]:1", false),
        ("192.168.1.1:1", false),
    ] {
        let plan = |public| Plan { listen: vec![address.parse().unwrap()], public, ..Plan::default() };
        assert_eq!(plan(false).check().is_ok(), is_private, "{address}");
        assert!(plan(true).check().is_ok());
    }
}

#[test]
fn a_unix_socket_is_its_owners() {
    let path = std::env::temp_dir().join(format!("flatout-admin-{}.sock", std::process::id()));
    let bound = bind(Plan { listen: vec![Address::Unix(path.clone())], ..Plan::default() }).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    drop(bound);
    std::fs::remove_file(path).unwrap();
}
