//! A server with a cache for one test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatout_cache::{Cache, Purge, Rules};
use flatout_engine::{
    Address, Body, Handle, Plan, Prepared, Reply, Request, Response, Server, Service, start,
};
use flatout_proxy::{Forward, Proxy, Resolver, Upstream};
use flatout_site::{Caching, Client, Edits, Finish, Forwarded, Forwarding, ResponseOrigin, Stored};
use flatout_wire::Head;
use flatout_wire::accept::Coding;
use flatout_wire::target::PathForm;

use super::{read_request, rest, upstream};

/// Caches everything.
struct All {
    forwarding: Rc<dyn Forwarding>,
    forward: Forward,
    rules: Arc<Rules>,
    /// Stored bodies are sent in gzip, if they are stored in that form.
    gzips: bool,
    /// All clients are trusted proxies.
    is_behind_proxy: bool,
    /// The operator's key.
    key: Option<&'static [u8]>,
}

struct Nothing;

struct Gzips;

impl Finish for Gzips {
    fn finish(&self, _: &mut Response, _: ResponseOrigin) {}

    fn finish_stored(&self, response: &mut Response, stored: &dyn Stored) {
        let form = response.body_bytes().and_then(|plain| stored.compressed(Coding::Gzip, plain));
        if let Some(form) = form {
            response.header("Content-Encoding", "gzip").set_body(Body::Shared(form));
        }
    }
}

impl Finish for Nothing {
    fn finish(&self, _: &mut Response, _: ResponseOrigin) {}
}

impl Service for All {
    fn prepare(&self, head: &Head<'_>, _: &[u8], _: u16) -> Prepared {
        self.forwarding.body(&self.forward, head, None).into()
    }

    fn path_form(&self) -> PathForm {
        PathForm::Forward
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        if self.forwarding.repeat(&request, response) {
            return Reply::Now;
        }
        let is_refreshed = request.head.field("x-refresh").is_some();
        let what = Forwarded {
            forward: &self.forward,
            target: request.head.target(),
            client: Client {
                address: None,
                is_https: false,
                is_early: false,
                is_from_proxy: self.is_behind_proxy,
            },
            edits: Edits::default(),
            finish: if self.gzips { Rc::new(Gzips) } else { Rc::new(Nothing) },
            caching: Some(Caching {
                rules: &self.rules,
                key: self.key,
                space: b"",
                names_authorization: false,
                repeats: !is_refreshed,
                is_bypassed: false,
                is_refreshed,
                is_unstored: false,
            }),
        };
        self.forwarding.forward(request, what, response)
    }
}

/// A server with a cache; it ends with its test.
pub(crate) struct Cached {
    pub(crate) address: SocketAddr,
    pub(crate) cache: Cache,
    pub(crate) proxy: Proxy,
    handle: Handle,
    server: Option<Server>,
}

impl Cached {
    pub(crate) fn of(upstream: Upstream) -> Cached {
        Cached::with(upstream, Rules::default(), 4 << 20)
    }

    pub(crate) fn with(upstream: Upstream, rules: Rules, memory_bytes: u64) -> Cached {
        let plan = flatout_cache::Plan { memory_bytes, ..Default::default() };
        Cached::with_plan(upstream, rules, plan)
    }

    pub(crate) fn with_plan(upstream: Upstream, rules: Rules, plan: flatout_cache::Plan) -> Cached {
        Cached::open(upstream, Forward::to(0), rules, plan, |_| {})
    }

    /// Believes its clients as trusted proxies.
    pub(crate) fn behind_proxy(upstream: Upstream, forward: Forward) -> Cached {
        let plan = flatout_cache::Plan { memory_bytes: 4 << 20, ..Default::default() };
        Cached::open(upstream, forward, Rules::default(), plan, |all| all.is_behind_proxy = true)
    }

    /// Forwards as `forward` says.
    pub(crate) fn forwarding(upstream: Upstream, forward: Forward) -> Cached {
        let plan = flatout_cache::Plan { memory_bytes: 4 << 20, ..Default::default() };
        Cached::open(upstream, forward, Rules::default(), plan, |_| {})
    }

    /// All requests have this key of an operator.
    pub(crate) fn with_key(upstream: Upstream, key: &'static [u8]) -> Cached {
        let plan = flatout_cache::Plan { memory_bytes: 4 << 20, ..Default::default() };
        Cached::open(upstream, Forward::to(0), Rules::default(), plan, move |all| all.key = Some(key))
    }

    /// Like `of`, but sends stored bodies in gzip, if they are stored in that form.
    pub(crate) fn that_gzips(upstream: Upstream) -> Cached {
        let plan = flatout_cache::Plan { memory_bytes: 4 << 20, ..Default::default() };
        Cached::open(upstream, Forward::to(0), Rules::default(), plan, |all| all.gzips = true)
    }

    fn open(
        upstream: Upstream,
        forward: Forward,
        rules: Rules,
        cache_plan: flatout_cache::Plan,
        change: impl Fn(&mut All) + Clone + Send + Sync + 'static,
    ) -> Cached {
        let plan = Plan { listen: vec!["127.0.0.1:0".parse().unwrap()], workers: Some(2), ..Plan::default() };
        let proxy = Proxy::open(vec![upstream], &Resolver::System).unwrap();
        let cache = Cache::open(cache_plan);
        let (shared, rules, opened) = (cache.clone(), Arc::new(rules), proxy.clone());
        let server = start(plan, move |worker| {
            let forwarding = shared.before(&worker, opened.worker(&worker));
            let (forward, rules) = (forward.clone(), rules.clone());
            let mut all = All { forwarding, forward, rules, gzips: false, is_behind_proxy: false, key: None };
            change(&mut all);
            Box::new(all)
        })
        .unwrap();
        let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
        Cached { address, cache, proxy, handle: server.handle(), server: Some(server) }
    }

    pub(crate) fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    pub(crate) fn ask(&self, request: &str) -> String {
        rest(&mut self.send(request))
    }

    pub(crate) fn get(&self, path: &str, lines: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{lines}\r\n"))
    }

    pub(crate) fn purge(&self, text: &str) -> usize {
        self.cache.purge(&Purge::from_text(text).unwrap())
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(server) = self.server.take() {
            server.wait().unwrap();
        }
    }
}

pub(crate) fn is(answer: &str, status: &str) -> bool {
    answer.contains(&format!("\r\nX-Cache-Status: {status}\r\n"))
}

/// An upstream that numbers its responses: `head` is the rest of the head, and the body contains the number.
pub(crate) fn numbering(head: &'static str) -> (SocketAddr, Receiver<String>) {
    let (sender, asked) = channel();
    let (sender, count) = (Mutex::new(sender), AtomicUsize::new(0));
    let address = upstream(move |_, mut stream| {
        let sender = sender.lock().unwrap().clone();
        while let Some(request) = read_request(&mut stream) {
            let number = count.fetch_add(1, Ordering::SeqCst);
            let body = if request.starts_with("HEAD") { String::new() } else { format!("body {number:04}") };
            let response = format!("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n{head}\r\n{body}");
            let _ = sender.send(request);
            if stream.write_all(response.as_bytes()).is_err() {
                return;
            }
        }
    });
    (address, asked)
}
