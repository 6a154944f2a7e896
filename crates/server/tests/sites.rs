//! Sites behind a real server: requests that wait, and responses by key.

#[path = "../../engine/tests/support/h2.rs"]
#[allow(dead_code, reason = "it has more than this needs")]
mod h2_client;

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatout_engine::{
    Address, BodyPlan, ExchangeKey, Lane, Plan, Reply, Request, RequestBody, Response, Server, start,
};
use flatout_proxy as proxy;
use flatout_site::plan::{
    Action, BasicAuth, Concurrency, ConcurrencyUse, FieldChange, FieldRule, Host, Limited, PathMatch, Route,
    Rules, Site, Template, User, When,
};
use flatout_site::{self as site, AuthDecision, AuthQuery, Finish, Forwarded, Forwarding, ResponseOrigin};
use flatout_wire::{Head, Method};
use h2_client::H2Client;

/// Responds by key, a little later, with the target and the body of the request. `/held` waits for `/free`; `/lost`
/// is dropped.
struct Later {
    lane: Lane,
    held: RefCell<Vec<(ExchangeKey, Rc<dyn Finish>)>>,
    seen: Sender<String>,
}

impl Forwarding for Later {
    fn body(&self, _: &proxy::Forward, _: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
        BodyPlan::Whole { bytes_max }
    }

    fn forward(&self, request: Request<'_>, what: Forwarded<'_>, _: &mut Response) -> Reply {
        let (key, lane, finish) = (request.park(), self.lane.clone(), what.finish);
        self.seen.send(String::from_utf8(what.target.to_vec()).unwrap()).unwrap();
        let mut response = Response::new();
        response.buffer().extend_from_slice(what.target);
        if let RequestBody::Whole { bytes, .. } = request.body {
            response.buffer().extend_from_slice(bytes);
        }
        match request.path {
            b"/held" => {
                self.held.borrow_mut().push((key, finish));
                return Reply::Parked;
            }
            b"/lost" => return Reply::Parked,
            b"/free" => {
                for (key, finish) in self.held.take() {
                    let mut response = Response::new();
                    finish.finish(&mut response, ResponseOrigin::Upstream);
                    lane.answer(key, response);
                }
            }
            _ => {}
        }
        tokio::task::spawn_local(async move {
            tokio::task::yield_now().await;
            finish.finish(&mut response, ResponseOrigin::Upstream);
            lane.answer(key, response);
        });
        Reply::Parked
    }

    fn ask(&self, _: AuthQuery<'_>, _: tokio::sync::oneshot::Sender<AuthDecision>) {}
}

struct Running {
    address: SocketAddr,
    server: Option<Server>,
    seen: Receiver<String>,
}

impl Running {
    fn new(rules: Rules, concurrency: Vec<Concurrency>) -> Running {
        let server = proxy::Server::new(proxy::Address::Socket(SocketAddr::from(([127, 0, 0, 1], 1))));
        let route =
            Route { rules, ..Route::new(PathMatch::prefix("/"), Action::Proxy(proxy::Forward::to(0))) };
        let free = Route::new(PathMatch::Exact("/free".to_owned()), Action::Proxy(proxy::Forward::to(0)));
        let site = Site { hosts: vec![Host::Any], routes: vec![route, free], ..Site::default() };
        let plan = site::Plan {
            upstreams: vec![proxy::Upstream::new("one", vec![server])],
            concurrency,
            sites: vec![site.into()],
            ..site::Plan::default()
        };
        let sites = site::open(&plan).unwrap();
        let (sender, seen) = channel();
        let plan = Plan { listen: vec!["127.0.0.1:0".parse().unwrap()], workers: Some(1), ..Plan::default() };
        let server = start(plan, move |worker| {
            let seen = sender.clone();
            sites.service(Rc::new(Later { lane: worker.lane, held: RefCell::default(), seen }))
        });
        let server = server.unwrap();
        let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
        Running { address, server: Some(server), seen }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// The next request that the upstream gets.
    fn sees(&self) -> String {
        self.seen.recv_timeout(Duration::from_secs(30)).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let server = self.server.take().unwrap();
        server.handle().stop();
        server.wait().unwrap();
    }
}

/// Sends a request and reads its response: head and body.
fn ask(stream: &mut TcpStream, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    read(stream)
}

fn read(stream: &mut TcpStream) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")
}

const RIGHT: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";

fn password() -> Rules {
    let hash = bcrypt::hash("secret", 4).unwrap();
    let user = User { name: "ann".to_owned(), hash };
    let said = FieldRule {
        name: "X-Rule".to_owned(),
        change: FieldChange::Set(Template::text("applied")),
        when: When::Always,
    };
    Rules {
        basic_auth: Some(BasicAuth { realm: "a".to_owned(), users: vec![user], user_file: None }),
        response_fields: vec![said],
        ..Rules::default()
    }
}

fn few() -> (Rules, Vec<Concurrency>) {
    let few = Concurrency {
        name: "few".to_owned(),
        key: Limited::Everyone,
        requests_max: 1,
        queue_max: 1,
        queue_time_max: Duration::from_secs(30),
        keys_max: 1,
        status: 503,
    };
    (
        Rules { concurrency: vec![ConcurrencyUse { limit: 0, is_dry_run: false }], ..Rules::default() },
        vec![few],
    )
}

#[test]
fn a_request_goes_on_when_its_password_was_checked() {
    let running = Running::new(password(), Vec::new());
    let mut stream = running.connect();
    // The first waits for a thread, the second is remembered; both have a body, and the connection stays open.
    for at in 0..2 {
        let text = format!("POST /a?{at} HTTP/1.1\r\nHost: a\r\n{RIGHT}Content-Length: 5\r\n\r\n=body");
        let (head, body) = ask(&mut stream, &text);
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("X-Rule: applied\r\n"), "{head}");
        assert_eq!(body, format!("/a?{at}=body"));
    }
    let (head, _) = ask(&mut stream, &get("/"));
    assert!(head.starts_with("HTTP/1.1 401 ") && head.contains("X-Rule: applied\r\n"), "{head}");
}

#[test]
fn streams_of_one_connection_wait_for_one_check() {
    let rules = password();
    let running = Running::new(rules, Vec::new());
    let mut client = H2Client::new(running.connect());
    let mut ask = |credentials: &[&str]| -> Vec<u16> {
        let streams: Vec<_> = credentials
            .iter()
            .map(|it| client.ask(Method::Get, "/a", &[("authorization", &format!("Basic {it}"))], None))
            .collect();
        streams.into_iter().map(|stream| client.finish(stream).status).collect()
    };
    // `ann:secret`, as a browser sends it with all requests of a page.
    assert_eq!(ask(&["YW5uOnNlY3JldA=="; 60]), [200; 60]);
    assert_eq!(ask(&["YW5uOndyb25n"; 60]), [401; 60], "ann:wrong");
    // Always another password: two are checked, and the others are refused at once.
    let guesses: Vec<String> = (10..70).map(|at| STANDARD.encode(format!("ann:guess-{at}"))).collect();
    let guesses: Vec<&str> = guesses.iter().map(String::as_str).collect();
    let statuses = ask(&guesses);
    assert!(statuses.iter().all(|status| matches!(status, 401 | 503)), "{statuses:?}");
    assert!(statuses.contains(&401) && statuses.contains(&503), "{statuses:?}");
    assert_eq!(ask(&["YW5uOnNlY3JldA=="; 3]), [200; 3], "it is still remembered");
}

#[test]
fn a_request_that_waits_and_is_forgotten_gets_502() {
    let running = Running::new(password(), Vec::new());
    let text = format!("GET /lost HTTP/1.1\r\nHost: a\r\n{RIGHT}\r\n");
    let (head, _) = ask(&mut running.connect(), &text);
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
}

#[test]
fn a_place_goes_from_connection_to_connection() {
    let (rules, limits) = few();
    let running = Running::new(rules, limits);
    let (mut first, mut second, mut third) = (running.connect(), running.connect(), running.connect());
    first.write_all(get("/held").as_bytes()).unwrap();
    assert_eq!(running.sees(), "/held");
    second.write_all(get("/second").as_bytes()).unwrap();
    // Sent after the second request, and so read after it or in the same turn.
    let (refused, _) = ask(&mut third, &get("/third"));
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert_eq!(ask(&mut third, &get("/free")).1, "/free");
    assert!(read(&mut first).0.starts_with("HTTP/1.1 200 "));
    assert_eq!(read(&mut second).1, "/second");
}

#[test]
fn a_client_that_goes_away_gives_its_place_back() {
    let (rules, limits) = few();
    let running = Running::new(rules, limits);
    let mut first = running.connect();
    first.write_all(get("/held").as_bytes()).unwrap();
    assert_eq!(running.sees(), "/held");
    // It waits and disconnects; the server may notice before or after a permit is free.
    let mut gone = running.connect();
    gone.write_all(get("/gone").as_bytes()).unwrap();
    drop(gone);
    assert_eq!(ask(&mut running.connect(), &get("/free")).1, "/free");
    // The first client disconnects during its request.
    drop(first);
    for at in 0..3 {
        let target = format!("/next?{at}");
        assert_eq!(ask(&mut running.connect(), &get(&target)).1, target);
    }
}
