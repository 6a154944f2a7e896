//! Clients that send `Expect: 100-continue`: they get 100 when an upstream takes them, or when all rules
//! of a site have let the request pass.

#[path = "../../engine/tests/support/h2.rs"]
#[allow(dead_code, reason = "it has more than this needs")]
mod h2_client;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use flatout_engine::{Address, Plan, Server, start};
use flatout_proxy::{self as proxy, BufferRequests, Forward, Proxy, Resolver, Upstream, Watch};
use flatout_push::{self as push, Hub};
use flatout_server::live::{Live, Opened};
use flatout_site as site;
use flatout_site::plan::{
    Action, BasicAuth, BodyLimit, Cors, ForwardAuth, Host, Origins, PathMatch, Route, Rules, Site, Template,
    User,
};
use flatout_wire::Method;
use h2_client::{Got, H2Client};
use support::{Running, answering, one, read_request, read_until, rest, upstream};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn post(bytes: usize) -> String {
    format!("POST / HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {bytes}\r\n\r\n")
}

#[test]
fn continue_is_sent_when_the_upstream_accepts_the_body() {
    let (address, asked) = answering(OK);
    let proxy = Running::to(one(address));
    let mut stream = proxy.connect();
    // The second and third request use a kept connection to the upstream.
    for bytes in [3, 3, 100_000] {
        stream.write_all(post(bytes).as_bytes()).unwrap();
        assert_eq!(read_until(&mut stream, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n", "{bytes} bytes");
        stream.write_all(&vec![b'x'; bytes]).unwrap();
        assert!(read_until(&mut stream, "hello").starts_with("HTTP/1.1 200 OK"), "{bytes} bytes");
        let request = asked.recv().unwrap();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(!head.contains("Expect") && body.len() == bytes, "{head}");
    }
}

#[test]
fn continue_is_not_sent_if_no_upstream_accepts_the_body() {
    // Nobody listens there any more.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Running::to(one(address));
    let mut stream = proxy.connect();
    stream.write_all(post(3).as_bytes()).unwrap();
    let answer = rest(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("\r\nConnection: close\r\n"), "{answer}");
}

/// Routes `/{guard}/{action}`, behind which a body is wanted. All but `/server/…` have a limit of 1000 bytes.
struct Sites {
    address: SocketAddr,
    server: Option<Server>,
}

const GUARDS: [&str; 4] = ["open", "server", "password", "authority"];

impl Sites {
    fn new() -> Sites {
        let (app, _) = answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        let authority = upstream(|_, mut stream| {
            while let Some(request) = read_request(&mut stream) {
                let status = if request.contains("good") { "200 OK" } else { "401 Unauthorized" };
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        });
        let named = |name: &str, address| {
            Upstream::new(name, vec![proxy::Server::new(proxy::Address::Socket(address))])
        };
        let upstreams = vec![named("app", app), named("authority", authority)];
        let mut routes = Vec::new();
        for guard in GUARDS {
            let cors = Cors {
                origins: Origins::Any,
                methods: Vec::new(),
                headers: Vec::new(),
                expose: Vec::new(),
                credentials: false,
                age_max: None,
            };
            let mut rules = Rules { cors: Some(cors), ..Rules::default() };
            rules.body = BodyLimit { bytes_max: (guard != "server").then_some(1000) };
            if guard == "password" {
                let user = User { name: "ann".to_owned(), hash: bcrypt::hash("secret", 4).unwrap() };
                rules.basic_auth =
                    Some(BasicAuth { realm: "inside".to_owned(), users: vec![user], user_file: None });
            }
            if guard == "authority" {
                rules.forward_auth = Some(ForwardAuth {
                    upstream: 1,
                    target: Template::text("/check"),
                    request_fields: vec!["X-Token".to_owned()],
                    response_fields: Vec::new(),
                    sign_in: None,
                });
            }
            let buffered = Forward { buffer_requests: BufferRequests::All, ..Forward::to(0) };
            let channels = push::Plan {
                prefix: format!("/{guard}/push"),
                publish_token: Some("secret".to_owned()),
                ..push::Plan::default()
            };
            let text =
                Action::Respond { status: 200, content_type: String::new(), body: Template::text("text") };
            for (name, action) in [
                ("pulled", Action::Proxy(Forward::to(0))),
                ("buffered", Action::Proxy(buffered)),
                ("push", Action::Push(Box::new(channels))),
                ("text", text),
            ] {
                let path = PathMatch::prefix(&format!("/{guard}/{name}"));
                routes.push(Route { rules: rules.clone(), ..Route::new(path, action) });
            }
        }
        let site = Site { hosts: vec![Host::Any], routes, ..Site::default() };
        let plan =
            site::Plan { upstreams: upstreams.clone(), sites: vec![site.into()], ..site::Plan::default() };
        let proxy = Proxy::open(upstreams, &Resolver::System).unwrap();
        let hub = Hub::new(push::Limits::default());
        let live =
            Live::new(Opened { sites: site::open(&plan).unwrap(), proxy, hub, cache: None, prerender: None });
        let plan = Plan { listen: vec!["127.0.0.1:0".parse().unwrap()], workers: Some(1), ..Plan::default() };
        let server = start(plan, move |worker| live.service(&worker, Watch::default())).unwrap();
        let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
        Sites { address, server: Some(server) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Interim responses, status, and whether a page of another origin may read the response. The body is sent after 100, or
    /// at once where `fields` do not expect that.
    fn ask(&self, is_h2: bool, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Got {
        let mut socket = self.connect();
        let waits = fields.iter().any(|(name, _)| *name == "expect");
        if is_h2 {
            let mut client = H2Client::new(socket);
            let stream = client.upload(Method::Post, path, fields);
            client.until(|client| {
                let got = &client.got[&stream];
                !waits || !got.interims.is_empty() || got.is_over
            });
            if !client.got[&stream].is_over {
                client.say(stream, body);
                client.end(stream);
                client.until(|client| client.got[&stream].is_over);
            }
            return client.got[&stream].clone();
        }
        let is_open = !fields.iter().any(|(name, _)| *name == "content-length");
        let mut head = format!("POST {path} HTTP/1.1\r\nHost: t\r\n");
        fields.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        head += if is_open { "Transfer-Encoding: chunked\r\n\r\n" } else { "\r\n" };
        let mut sent = body.to_vec();
        if is_open {
            sent = [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n0\r\n\r\n"].concat();
        }
        socket.write_all(head.as_bytes()).unwrap();
        let mut got = Got::default();
        if !waits {
            socket.write_all(&sent).unwrap();
        }
        loop {
            let head = read_until(&mut socket, "\r\n\r\n");
            let status = head[9..12].parse().unwrap();
            if status == 100 {
                got.interims.push(status);
                socket.write_all(&sent).unwrap();
                continue;
            }
            got.status = status;
            let fields = head.lines().filter_map(|line| line.split_once(": "));
            got.fields = fields.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
            got.body = vec![0; got.field("content-length").unwrap().parse().unwrap()];
            socket.read_exact(&mut got.body).unwrap();
            return got;
        }
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.handle().stop();
            server.wait().unwrap();
        }
    }
}

/// Guards and the fields with which they let a request pass; what they are without, and with wrong ones.
type Credentials = (&'static str, (&'static str, &'static str), (&'static str, &'static str));

const CREDENTIALS: [Credentials; 2] = [
    ("password", ("authorization", "Basic YW5uOnNlY3JldA=="), ("authorization", "Basic YW5uOndyb25n")),
    ("authority", ("x-token", "good"), ("x-token", "bad")),
];

/// Of a publisher.
const TOKEN: (&str, &str) = ("authorization", "Bearer secret");

const EXPECT: (&str, &str) = ("expect", "100-continue");

/// An origin, for which each response says that it may read it.
const ORIGIN: (&str, &str) = ("origin", "https://app.example.org");

#[test]
fn a_client_that_waits_is_refused_before_it_sends_its_body() {
    let sites = Sites::new();
    for is_h2 in [false, true] {
        let refused = |path: &str, length: &str, field: (&str, &str), status: u16| {
            let fields = [EXPECT, ORIGIN, ("content-length", length), field];
            let got = sites.ask(is_h2, path, &fields, b"");
            let place = format!("{path} of {length} bytes with {field:?}, HTTP/2: {is_h2}");
            assert_eq!((got.status, &got.interims[..]), (status, &[][..]), "{place}: {got:?}");
            assert_eq!(got.field("access-control-allow-origin"), Some("*"), "{place}: {got:?}");
        };
        for action in ["pulled", "buffered", "push/a"] {
            for (guard, right, wrong) in CREDENTIALS {
                let path = format!("/{guard}/{action}");
                refused(&path, "5", wrong, 401);
                refused(&path, "5", ("x-other", "1"), 401);
                refused(&path, "1001", wrong, 401);
                refused(&path, "1001", right, 413);
                refused(&path, "100000000", right, 413);
            }
            refused(&format!("/open/{action}"), "1001", TOKEN, 413);
            refused(&format!("/server/{action}"), "100000000", TOKEN, 413);
        }
        refused("/open/push/a", "5", ("authorization", "Bearer wrong"), 401);
        refused("/authority/push/a", "5", ("x-token", "good"), 401);
        refused("/open/text", "1001", TOKEN, 413);
        refused("/server/text", "100000000", TOKEN, 413);
        refused("/open/text", "5", TOKEN, 200);
    }
}

#[test]
fn continue_is_sent_once() {
    let sites = Sites::new();
    for is_h2 in [false, true] {
        for length in [Some("5"), None] {
            let asked = |path: &str, field: (&str, &str), more: (&str, &str)| {
                let mut fields = vec![EXPECT, field, more];
                fields.extend(length.map(|length| ("content-length", length)));
                let got = sites.ask(is_h2, path, &fields, b"hello");
                let place = format!("{path} of {length:?} bytes, HTTP/2: {is_h2}");
                assert_eq!((got.status, &got.interims[..]), (200, &[100][..]), "{place}: {got:?}");
            };
            for action in ["pulled", "buffered"] {
                asked(&format!("/open/{action}"), TOKEN, ORIGIN);
                for (guard, right, _) in CREDENTIALS {
                    asked(&format!("/{guard}/{action}"), right, ORIGIN);
                }
            }
            asked("/open/push/a", TOKEN, ORIGIN);
            asked("/authority/push/a", TOKEN, ("x-token", "good"));
        }
    }
}

#[test]
fn a_body_that_turns_out_too_large_is_refused_as_a_declared_one() {
    let sites = Sites::new();
    for is_h2 in [false, true] {
        for action in ["pulled", "buffered", "push/a"] {
            let path = format!("/open/{action}");
            let declared =
                sites.ask(is_h2, &path, &[TOKEN, ORIGIN, ("content-length", "2000")], &[b'x'; 2000]);
            let open = sites.ask(is_h2, &path, &[TOKEN, ORIGIN], &[b'x'; 2000]);
            let waiting = sites.ask(is_h2, &path, &[TOKEN, ORIGIN, EXPECT], &[b'x'; 2000]);
            assert_eq!(waiting.interims, [100], "{path}, HTTP/2: {is_h2}");
            for got in [declared.clone(), open, waiting] {
                assert_eq!(got.status, 413, "{path}, HTTP/2: {is_h2}: {got:?}");
                assert_eq!(got.field("access-control-allow-origin"), Some("*"), "{path}: {got:?}");
                // Of a body that it passes on while it arrives, the proxy says so in its own words.
                assert!(action == "pulled" || got.body == declared.body, "{path}: {got:?}");
            }
        }
    }
}
