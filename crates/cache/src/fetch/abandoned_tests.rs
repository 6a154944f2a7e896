//! Requests whose fetch is dropped without a response, in a real server.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{Address, Handle, Plan, Reply, Request, Response, Server, Service, Worker, start};
use flatout_gateway::{Caching, Client, Edits, Finish, Forward, Forwarded, ResponseOrigin, Rules};
use flatout_proxy::{ParkedClient, Proxy, Resolver};
use flatout_wire::cache::RequestDirectives;

use super::Fetch;
use super::fill::{Fill, FillRequest};
use super::flight::Flight;
use super::waiting_request::WaitHistory;
use crate::key::KeyBuf;
use crate::policy::{CacheFields, RequestConditions};
use crate::status::{CacheOutcome, CacheStatus};
use crate::store::{FlightRole, Store};
use crate::worker::{CacheWorker, Lookup};

/// Adds a field to each response.
struct Rule;

impl Finish for Rule {
    fn finish(&self, response: &mut Response, _: ResponseOrigin) {
        response.header("X-Rule", "applied");
    }
}

/// `/leader` waits for a fill that is dropped. `/follower` waits for a fetch that the next `/drop` drops.
struct Dropping {
    worker: Rc<CacheWorker>,
    fill: RefCell<Option<Fill>>,
    rules: Arc<Rules>,
    count: Cell<u32>,
}

impl Dropping {
    fn fill(&self, flight: Arc<Flight>, client: Option<ParkedClient>) -> Fill {
        let request = FillRequest {
            key: key(),
            rules: self.rules.clone(),
            head: b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            directives: RequestDirectives::default(),
            conditions: RequestConditions { has_conditions: false, has_range: false },
            is_authorized: false,
            has_authorization_key: false,
            asked_ms: 0,
            cache_status: CacheStatus::of(CacheOutcome::Miss),
        };
        Fill::new(self.worker.clone(), flight, None, client, request)
    }

    fn follow(&self, request: &Request<'_>, flight: Arc<Flight>) -> Reply {
        let key = key();
        let rules = Caching {
            rules: &self.rules,
            key: None,
            space: b"",
            names_authorization: false,
            repeats: false,
            is_bypassed: false,
            is_refreshed: false,
            is_unstored: false,
        };
        let lookup = Lookup {
            key: self.worker.store.key_of(&key),
            rules,
            cache_fields: CacheFields::at(&request.head),
            directives: RequestDirectives::default(),
            now_ms: 0,
            waited: WaitHistory::default(),
        };
        let forwarded = Forwarded {
            forward: &Forward::to(0),
            target: b"/",
            client: Client { address: None, is_https: false, is_early: false, is_from_proxy: false },
            edits: Edits::default(),
            finish: Rc::new(Rule),
            caching: Some(rules),
        };
        let cache_status = CacheStatus::of(CacheOutcome::Miss);
        self.worker.follow(request, &forwarded, &lookup, Fetch { flight, stale: None, cache_status })
    }
}

impl Service for Dropping {
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let key = key();
        let key = self.worker.store.key_of(&key);
        if request.path == b"/drop" {
            self.fill.take();
            response.header("X-Count", self.count.get().to_string());
            return Reply::Now;
        }
        let FlightRole::Leads(flight) = self.worker.store.join(&key, key.hash, None) else {
            panic!("the flight before has not ended")
        };
        self.count.set(self.count.get() + 1);
        if request.path == b"/leader" {
            let client = ParkedClient { exchange: request.park(), finish: Rc::new(Rule) };
            drop(self.fill(flight, Some(client)));
            return Reply::Parked;
        }
        let reply = self.follow(&request, flight.clone());
        self.fill.replace(Some(self.fill(flight, None)));
        reply
    }
}

fn key() -> KeyBuf {
    KeyBuf { bytes: b"http://a/".to_vec(), url_ends: 9, is_custom: false }
}

/// A server that stops with its test.
struct Running {
    handle: Handle,
    server: Option<Server>,
}

impl Running {
    fn new() -> Running {
        let make = |worker: Worker| -> Box<dyn Service> {
            let proxy = Proxy::open(Vec::new(), &Resolver::default()).unwrap();
            let worker = CacheWorker::new(&worker, Arc::new(Store::new(1 << 20)), proxy.worker(&worker));
            let rules = Arc::new(Rules::default());
            Box::new(Dropping { worker, fill: RefCell::default(), rules, count: Cell::new(0) })
        };
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let server = start(Plan { listen, workers: Some(1), ..Plan::default() }, make).unwrap();
        Running { handle: server.handle(), server: Some(server) }
    }

    fn send(&self, path: &str) -> TcpStream {
        let Some(Address::Tcp(address)) = self.handle.addresses().first().cloned() else {
            panic!("no address")
        };
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        stream
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        self.server.take().map(Server::wait).unwrap().unwrap();
    }
}

fn response(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_dropped_fill_answers_its_client_with_502() {
    let running = Running::new();
    for _ in 0..2 {
        let text = response(running.send("/leader"));
        assert!(text.starts_with("HTTP/1.1 502 ") && text.contains("X-Rule: applied\r\n"), "{text}");
    }
}

#[test]
fn a_dropped_fill_answers_its_followers_with_502() {
    let running = Running::new();
    let follower = running.send("/follower");
    // The fill is dropped once the follower is known.
    while !response(running.send("/drop")).contains("X-Count: 1\r\n") {}
    let text = response(follower);
    assert!(text.starts_with("HTTP/1.1 502 ") && text.contains("X-Rule: applied\r\n"), "{text}");
}
