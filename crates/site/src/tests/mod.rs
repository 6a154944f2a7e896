//! Whole plans without a server: what the client gets, and what an upstream would get.

mod conditions;
mod faults;
mod paths;
mod repeats;
mod rules;
mod suspension;
mod unchanged;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use flatout_engine::{BodyPlan, Reply, Request, RequestBody, Response, Service};
use flatout_wire::head::{HeadLimits, parse};
use flatout_wire::target::forward_path;
use flatout_wire::{Head, Status};

use super::plan::{Action, Condition, PathMatch, Plan, Route, Site, Template, Variable, Vocabulary};
use super::{
    AuthDecision, AuthQuery, Client, Finish, Forwarded, Forwarding, ResponseOrigin, Sites, open, plan,
};
use flatout_files as files;
use flatout_proxy as proxy;

/// What an upstream would get.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent {
    upstream: usize,
    target: String,
    path: String,
    lines: String,
    client: Client,
    /// The request's fields that it gets.
    kept: Vec<String>,
    /// The key of its response in the cache.
    key: Option<String>,
}

/// A fake proxy: responds to everything at once.
#[derive(Default)]
struct Fake {
    sent: RefCell<Vec<Sent>>,
    asked: RefCell<Vec<String>>,
    /// Holds requests in progress at `/held…` until it is cleared.
    held: RefCell<Vec<Rc<dyn Finish>>>,
}

impl Forwarding for Fake {
    fn body(&self, _: &proxy::Forward, _: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
        BodyPlan::Whole { bytes_max }
    }

    /// `X-Status` of the request is the status of the response, and `X-Challenge` its challenge.
    fn forward(&self, request: Request<'_>, what: Forwarded<'_>, response: &mut Response) -> Reply {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let kept = request.head.fields().filter(|(name, _)| !what.edits.drops(name));
        self.sent.borrow_mut().push(Sent {
            upstream: what.forward.upstream,
            target: text(what.target),
            path: text(request.path),
            lines: text(what.edits.lines),
            client: what.client,
            kept: kept.map(|(name, _)| text(name)).filter(|name| name != "Host").collect(),
            key: what.caching.as_ref().and_then(|caching| caching.key).map(text),
        });
        let status = request.head.field("x-status").map(|value| text(value).parse().unwrap());
        response.set_status(Status::from_code(status.unwrap_or(200)).unwrap());
        if let Some(challenge) = request.head.field("x-challenge") {
            response.header("WWW-Authenticate", challenge);
        }
        response.header("X-Upstream", "yes").buffer().extend_from_slice(b"upstream");
        if request.path.starts_with(b"/abandoned") {
            // Nobody responds, and the rules are dropped.
            return Reply::Parked;
        }
        what.finish.finish(response, ResponseOrigin::Upstream);
        if request.path.starts_with(b"/held") {
            self.held.borrow_mut().push(what.finish);
        }
        Reply::Now
    }

    /// `X-Token: good` is allowed; without a token the auth service is out of order.
    fn ask(&self, query: AuthQuery<'_>, then: tokio::sync::oneshot::Sender<AuthDecision>) {
        self.asked.borrow_mut().push(String::from_utf8_lossy(query.target).into_owned());
        match query.head.field("x-token") {
            Some(b"good") => {
                let wanted = query.response_fields.iter().filter(|name| name.eq_ignore_ascii_case("x-user"));
                let fields = wanted.map(|_| ("X-User".to_owned(), b"ann".to_vec())).take(1);
                drop(then.send(AuthDecision::Allowed(fields.collect())));
            }
            Some(b"none") => {
                let mut response = Response::with_status(Status::UNAUTHORIZED);
                response.buffer().extend_from_slice(b"secret of the service");
                drop(then.send(AuthDecision::Refused(Box::new(response))));
            }
            Some(_) => {
                let mut response = Response::with_status(Status::FOUND);
                response.header("Location", "https://login.example.org/");
                drop(then.send(AuthDecision::Refused(Box::new(response))));
            }
            None => drop(then),
        }
    }
}

/// A service of a plan, and its fake proxy.
struct TestClient {
    service: Box<dyn Service>,
    fake: Rc<Fake>,
    sites: Sites,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct TestResponse {
    status: u16,
    fields: String,
    body: String,
}

impl TestClient {
    fn new(plan: &Plan) -> TestClient {
        let sites = open(plan).unwrap();
        let fake = Rc::<Fake>::default();
        TestClient { service: sites.service(fake.clone()), fake, sites }
    }

    /// Sends a request with a method, a target and more field lines.
    fn ask(&self, method: &str, target: &str, fields: &str) -> TestResponse {
        self.ask_from(Some("192.0.2.1"), method, target, fields)
    }

    fn get(&self, target: &str) -> TestResponse {
        self.ask("GET", target, "")
    }

    fn ask_from(&self, peer: Option<&str>, method: &str, target: &str, fields: &str) -> TestResponse {
        let head = format!("{method} {target} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n");
        match self.reply(peer, &head) {
            (Reply::Now, response) => answer(&response),
            (Reply::Later(future), _) => answer(&runtime().block_on(future)),
            _ => panic!("expected Reply::Now or Reply::Later"),
        }
    }

    fn reply(&self, peer: Option<&str>, head: &str) -> (Reply, Response) {
        let mut spans = Vec::new();
        let head = parse(head.as_bytes(), &mut spans, &HeadLimits::default()).unwrap().unwrap();
        let mut response = Response::new();
        let mut scratch = Vec::new();
        // What the engine does before it calls.
        let is_path = head.path().starts_with(b"/");
        let path = if is_path { forward_path(head.path(), &mut scratch) } else { Ok(head.path()) };
        let Ok(path) = path else {
            response.set_status(Status::BAD_REQUEST);
            return (Reply::Now, response);
        };
        let mut request = Request::detached(head, path, RequestBody::NONE);
        request.peer = peer.map(|peer| SocketAddr::new(peer.parse().unwrap(), 1));
        (self.service.call(request, &mut response), response)
    }

    fn last_sent(&self) -> Sent {
        self.fake.sent.borrow().last().unwrap().clone()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

fn answer(response: &Response) -> TestResponse {
    let mut fields = Vec::new();
    response.write_fields(&mut fields);
    TestResponse {
        status: response.status().code(),
        fields: String::from_utf8(fields).unwrap(),
        body: String::from_utf8_lossy(response.body_bytes().unwrap_or_default()).into_owned(),
    }
}

/// A plan with these routes for all hosts, two upstreams, and no folder.
fn plan_of(routes: Vec<Route>) -> Plan {
    let address = |port| proxy::Address::Socket(SocketAddr::from(([127, 0, 0, 1], port)));
    let upstream = |name, port| proxy::Upstream::new(name, vec![proxy::Server::new(address(port))]);
    let site = Site { name: "a".to_owned(), hosts: vec![plan::Host::Any], routes, ..Site::default() };
    Plan {
        upstreams: vec![upstream("one", 1), upstream("two", 2)],
        sites: vec![site.into()],
        ..Plan::default()
    }
}

fn to_upstream(path: &str) -> Route {
    Route::new(PathMatch::prefix(path), Action::Proxy(proxy::Forward::to(0)))
}

fn respond(path: PathMatch, text: &str) -> Route {
    let body = template(text);
    Route::new(path, Action::Respond { status: 200, content_type: "text/plain".to_owned(), body })
}

fn template(text: &str) -> Template {
    Template::parse(text, |_| None).unwrap()
}

/// A condition; `$sN` and `$mN` are the variable and the map of that index.
fn condition(text: &str) -> Condition {
    Condition::parse(text, &Vocabulary { other: &of_file, others: &[] }).unwrap()
}

fn of_file(name: &str) -> Option<Variable> {
    let at = |prefix: char| name.strip_prefix(prefix)?.parse().ok();
    at('s').map(Variable::Set).or_else(|| at('m').map(Variable::Map))
}

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Folder {
        let path = std::env::temp_dir().join(format!("flatout-site-{name}-{}", std::process::id()));
        for (file, text) in files {
            let file = path.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        Folder(path)
    }

    fn plan(&self) -> files::Plan {
        files::Plan { root: self.0.clone(), watch: files::Watch::Off, ..files::Plan::default() }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
