//! A server with channels.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use flatout_engine::{Address, Server, start};
use flatout_proxy::{Proxy, Resolver, Watch};
use flatout_push::{History, Hub, Kind, Limits, Plan, Publication};
use flatout_server::live::{Live, Opened};
use flatout_site::plan::{Action, Host, PathMatch, Route, Site};
use flatout_site::{self as site, Sites};

/// A server with channels under `/live`, logs, and `/quotes`, latest values; it ends with its test.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) hub: Hub,
    pub(crate) live: Live,
    pub(crate) log: Plan,
    pub(crate) quotes: Plan,
    pub(crate) server: Option<Server>,
}

pub(crate) fn sites(log: &Plan, quotes: &Plan) -> Sites {
    let route =
        |plan: &Plan| Route::new(PathMatch::prefix(&plan.prefix), Action::Push(Box::new(plan.clone())));
    let text = Action::Respond { status: 200, content_type: String::new(), body: Default::default() };
    let routes = vec![route(log), route(quotes), Route::new(PathMatch::prefix("/"), text)];
    let site = Site { hosts: vec![Host::Any], routes, ..Site::default() };
    site::open(&site::Plan { sites: vec![site.into()], ..site::Plan::default() }).unwrap()
}

impl Running {
    pub(crate) fn new(workers: usize, change: impl FnOnce(&mut Plan)) -> Running {
        let mut log = Plan { publish_token: Some("secret".to_owned()), ..Plan::default() };
        change(&mut log);
        let history = History { kind: Kind::Latest, count: 10_000, ..History::default() };
        let quotes = Plan { prefix: "/quotes".to_owned(), history, ..log.clone() };
        let hub = Hub::new(Limits::default());
        let proxy = Proxy::open(Vec::new(), &Resolver::System).unwrap();
        let live = Live::new(Opened {
            sites: sites(&log, &quotes),
            proxy,
            hub: hub.clone(),
            cache: None,
            prerender: None,
        });
        let plan = flatout_engine::Plan {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            workers: Some(workers),
            ..flatout_engine::Plan::default()
        };
        let served = live.clone();
        let server = start(plan, move |worker| served.service(&worker, Watch::default())).unwrap();
        let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
        Running { address, hub, live, log, quotes, server: Some(server) }
    }

    pub(crate) fn publish(&self, channel: &str, text: &str) -> String {
        self.hub.publish(channel, text.to_owned(), &self.log).unwrap()
    }

    pub(crate) fn quote(&self, key: &str, value: &str) {
        let publication =
            Publication { key: Some(key.into()), is_json: true, ..Publication::from(value.to_owned()) };
        self.hub.publish("quotes", publication, &self.quotes).unwrap();
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Waits until a channel has so many subscribers.
    pub(crate) fn has(&self, channel: &str, count: u32) {
        let began = Instant::now();
        while self.hub.subscribers("", channel) != count {
            assert!(began.elapsed() < Duration::from_secs(60), "{}", self.hub.subscribers("", channel));
            std::thread::yield_now();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.handle().stop();
            server.wait().unwrap();
        }
    }
}
