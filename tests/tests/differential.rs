//! Sends random requests through `flatout serve` to gunicorn, nginx and hyper: each must report what was sent; if a
//! request was damaged on the way, all three must report the same.

use std::convert::Infallible;
use std::net::{Shutdown, SocketAddr};
use std::process::Command;

use flatout_tests::peers::{Peer, free_port};
use flatout_tests::{Answer, Folder, Server, answers, program, read_to_close};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// The number of connections with requests, intact and damaged.
const CASES: u32 = 300;

/// The fields that the upstreams report, sorted by name.
const REPORTED: [&str; 7] = ["accept", "cookie", "host", "via", "x-a", "x-b", "x-forwarded-for"];

/// Reports the request: method and target, the fields, an empty line, and the decoded body.
const GUNICORN: &str = r#"
REPORTED = ["accept", "cookie", "host", "via", "x-a", "x-b", "x-forwarded-for"]

def app(environ, start_response):
    body = environ["wsgi.input"].read()
    lines = [environ["REQUEST_METHOD"] + " " + environ["RAW_URI"]]
    for name in REPORTED:
        key = "HTTP_" + name.upper().replace("-", "_")
        if key in environ:
            lines.append(name + ": " + environ[key])
    report = ("\n".join(lines) + "\n\n").encode("latin-1") + body
    start_response("200 OK", [("X-Report", "1"), ("Content-Length", str(len(report)))])
    return [report]
"#;

/// nginx forwards to a hyper, which reports the request.
const NGINX: &str = r#"
    ignore_invalid_headers off;
    underscores_in_headers on;
    client_max_body_size 0;
    access_log off;
    server {
        listen 127.0.0.1:PORT;
        location / {
            proxy_pass http://127.0.0.1:BEHIND;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
        }
    }
"#;

/// The servers behind flatout, in the order of the test.
const NAMES: [&str; 3] = ["gunicorn", "nginx", "hyper"];

/// The report of hyper, in the same form as the others'.
async fn report(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let mut lines = format!("{} {}", request.method(), request.uri()).into_bytes();
    for name in REPORTED {
        let values: Vec<&[u8]> =
            request.headers().get_all(name).iter().map(|value| value.as_bytes()).collect();
        if !values.is_empty() {
            lines.extend_from_slice(format!("\n{name}: ").as_bytes());
            lines.extend_from_slice(&values.join(&b","[..]));
        }
    }
    lines.extend_from_slice(b"\n\n");
    lines.extend_from_slice(&request.into_body().collect().await?.to_bytes());
    let mut response = Response::new(Full::from(lines));
    response.headers_mut().insert("x-report", hyper::header::HeaderValue::from_static("1"));
    Ok(response)
}

/// A hyper server on its own thread, which ends with the test's process.
fn hyper_server() -> SocketAddr {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listener = std::net::TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || -> Infallible {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(hyper_util::rt::TokioIo::new(stream), service_fn(report));
                tokio::spawn(async {
                    // A connection that ends early is a test case, and checked there.
                    let _ = connection.await;
                });
            }
        })
    });
    address
}

/// flatout in front of one of them.
fn proxy(to: SocketAddr) -> Server {
    let folder = Folder::new();
    folder.write("site.kdl", format!("workers 1\nhalf-close on\nproxy \"http://{to}\"\n"));
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).args(["--listen", "127.0.0.1:0"]);
    Server::start(command)
}

/// All responses to these bytes.
fn send(server: &Server, bytes: &[u8]) -> Vec<Answer> {
    let mut stream = server.connect();
    // If the start is refused, the server may close before the end is sent.
    let _ = std::io::Write::write_all(&mut stream, bytes);
    let _ = stream.shutdown(Shutdown::Write);
    answers(&read_to_close(&mut stream), false)
}

#[derive(Debug, Clone)]
struct Sent {
    method: &'static str,
    target: String,
    fields: Vec<(&'static str, String)>,
    body: Option<Vec<u8>>,
    /// The size of the body's chunks; 0 sends a length instead.
    chunk: usize,
}

impl Sent {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\nHost: t\r\n", self.method, self.target).into_bytes();
        for (name, value) in &self.fields {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        match &self.body {
            None => bytes.extend_from_slice(b"\r\n"),
            Some(body) if self.chunk == 0 => {
                bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
                bytes.extend_from_slice(body);
            }
            Some(body) => {
                bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                for chunk in body.chunks(self.chunk) {
                    bytes.extend_from_slice(format!("{:x};n=1\r\n", chunk.len()).as_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\nX-A: trailer\r\n\r\n");
            }
        }
        bytes
    }

    /// The expected report of an upstream.
    fn report(&self) -> Vec<u8> {
        let mut fields = self.fields.clone();
        fields.extend([("host", "t".to_owned()), ("x-forwarded-for", "127.0.0.1".to_owned())]);
        fields.sort();
        let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        let mut report = format!("{} {}\n{lines}\n", self.method, self.target).into_bytes();
        report.extend_from_slice(self.body.as_deref().unwrap_or_default());
        report
    }
}

fn sent() -> impl Strategy<Value = Sent> {
    let fields = proptest::collection::btree_map(
        select(vec!["accept", "cookie", "x-a", "x-b"]),
        "[!-~]([ -~]{0,20}[!-~])?",
        0..4,
    );
    let body = prop_oneof![
        3 => Just(None),
        2 => proptest::collection::vec(any::<u8>(), 0..600).prop_map(Some),
        1 => Just(Some(b"GET /hidden HTTP/1.1\r\nHost: t\r\n\r\n".to_vec())),
    ];
    (
        select(vec!["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]),
        "/([a-z0-9][a-z0-9.~!$&'()*+,;=:@_-]{0,7}(/%2[Ff]|/[a-z]{1,4}|%20)?)?(\\?[a-z=&/+]{0,8}(%2[bB])?)?",
        fields,
        body,
        prop_oneof![Just(0usize), 1usize..300],
    )
        .prop_map(|(method, target, fields, body, chunk)| Sent {
            method,
            target,
            fields: fields.into_iter().collect(),
            body,
            chunk,
        })
}

/// A random damage and its position.
fn damage() -> impl Strategy<Value = (Index, String)> {
    let what = prop_oneof![
        select(vec![
            "\r\n",
            "\n",
            "\r",
            " ",
            "\t",
            "\0",
            ":",
            ",",
            "%2f",
            "%00",
            "/../",
            "//",
            "0\r\n\r\n",
            "\r\nContent-Length: 5",
            "\r\nContent-Length: 0",
            "\r\nTransfer-Encoding: chunked",
            "\r\nTransfer-Encoding: identity",
            "\r\nConnection: close, X-A",
            "\r\nConnection: X-B",
            "\r\nExpect: 100-continue",
            "\r\nHost: u",
            "\r\nX-A: second",
            "\r\n folded",
            "\r\n\r\nGET /hidden HTTP/1.1\r\nHost: t\r\n\r\n",
        ])
        .prop_map(str::to_owned),
        "[ -~]{1,3}",
    ];
    (any::<Index>(), what)
}

/// A report in gunicorn's form, with the method in upper case, and a single slash at the start of the target.
fn as_gunicorn(report: &[u8]) -> Vec<u8> {
    let mut report = report.to_vec();
    let start = report.iter().position(|byte| *byte == b' ').map_or(0, |space| space + 1);
    report[..start].make_ascii_uppercase();
    while report.get(start..start + 2) == Some(b"//") {
        report.remove(start);
    }
    report
}

/// The reports of the requests up to the first that an upstream refused itself, and whether there was one.
fn reports(answers: &[Answer]) -> (Vec<Vec<u8>>, bool) {
    let reported = answers.iter().take_while(|answer| answer.field("x-report").is_some());
    let reported: Vec<Vec<u8>> = reported.map(|answer| as_gunicorn(&answer.body)).collect();
    let is_short = reported.len() < answers.len();
    (reported, is_short)
}

/// The same reports with one name in place of the upstream's address: a damaged request may be one of HTTP/1.0 without `Host`, which is
/// sent with the address of its upstream.
fn without_address((reports, is_short): (Vec<Vec<u8>>, bool), upstream: SocketAddr) -> (Vec<Vec<u8>>, bool) {
    let host = format!("\nhost: {upstream}\n");
    let named =
        |report: Vec<u8>| match report.windows(host.len()).position(|window| window == host.as_bytes()) {
            Some(at) => [&report[..at], b"\nhost: upstream\n", &report[at + host.len()..]].concat(),
            None => report,
        };
    (reports.into_iter().map(named).collect(), is_short)
}

/// `GET / HTTP/1.0`, as in a damaged request.
#[test]
fn reports_of_requests_without_host_are_the_same_for_all_upstreams() {
    let report = |address: &str| format!("GET /\nhost: {address}\nx-a: b\n\n").into_bytes();
    let seen = |address: &str| without_address((vec![report(address)], false), address.parse().unwrap());
    assert_eq!(seen("127.0.0.1:40675"), seen("127.0.0.1:3861"));
    let other = without_address((vec![report("t")], false), "127.0.0.1:1".parse().unwrap());
    assert_eq!(other.0, [report("t")]);
}

#[test]
fn three_servers_parse_every_request_the_same() {
    let (python, conf) = (Folder::new(), Folder::new());
    let Some(gunicorn) = Peer::gunicorn(&python, GUNICORN) else { return };
    let hyper = hyper_server();
    let Some(nginx) = Peer::nginx(&conf, &NGINX.replace("BEHIND", &hyper.port().to_string())) else { return };
    let upstreams = [gunicorn.address(), nginx.address(), hyper];
    let servers = upstreams.map(proxy);
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };

    proptest!(config.clone(), |(requests in proptest::collection::vec(sent(), 1..5))| {
        let bytes: Vec<u8> = requests.iter().flat_map(Sent::bytes).collect();
        for (name, server) in NAMES.iter().zip(&servers) {
            let answers = send(server, &bytes);
            let (reports, is_short) = reports(&answers);
            prop_assert!(!is_short && reports.len() == requests.len(), "{name}: {answers:?}");
            for (request, report) in requests.iter().zip(reports) {
                let expected = request.report();
                prop_assert!(
                    report == expected,
                    "{name} received {} instead of {}",
                    String::from_utf8_lossy(&report),
                    String::from_utf8_lossy(&expected)
                );
            }
        }
    });

    proptest!(config, |(requests in proptest::collection::vec(sent(), 1..4), at in damage())| {
        let mut bytes: Vec<u8> = requests.iter().flat_map(Sent::bytes).collect();
        let (index, what) = at;
        let index = index.index(bytes.len());
        bytes.splice(index..index, what.bytes());
        let answers = servers.each_ref().map(|server| send(server, &bytes));
        let seen: Vec<_> =
            answers.iter().zip(upstreams).map(|(answers, to)| without_address(reports(answers), to)).collect();
        for (reports, is_short) in &seen {
            let (others, others_are_short) = &seen[2];
            let both = reports.len().min(others.len());
            prop_assert_eq!(&reports[..both], &others[..both]);
            // One may have more reports only if the other upstream refused a forwarded request.
            prop_assert!(reports.len() >= others.len() || *is_short, "{:?}", answers);
            prop_assert!(reports.len() <= others.len() || *others_are_short, "{:?}", answers);
        }
    });
}
