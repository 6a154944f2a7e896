//! The program under a mixed load for a while: its memory and its descriptors must not grow.
//!
//! Four seconds by default. `./x bench soak` does ten minutes, and writes bench/results/soak.md.

mod support;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::postgres::Postgres;

/// Requests per second in the long test, which checks growth, not speed.
const RATE: u32 = 200;

/// How much more memory there may be at the end than after the first third, beside a tenth: what allocators keep.
const GROWTH_BYTES_MAX: u64 = 2 << 20;

#[test]
fn memory_stays_flat_on_sqlite() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soak");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    soak("SQLite", folder.join("conduit.db").to_str().unwrap());
}

#[test]
fn memory_stays_flat_on_postgresql() {
    let mut postgres = Postgres::new();
    postgres.start();
    soak("PostgreSQL", &postgres.url());
}

fn duration() -> Duration {
    Duration::from_secs(std::env::var("SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4))
}

struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One moment: when, the anonymous memory, descriptors.
struct Sample(Duration, u64, usize);

fn soak(name: &str, database: &str) {
    let server = serve(database);
    let mut client = Client::new(&server.address);
    client.wait_ready();
    let token = client.register("soak", 201);
    let (length, began) = (duration(), Instant::now());
    let mut samples = Vec::new();
    let mut rounds = 0u32;
    while began.elapsed() < length {
        client.round(&token, rounds);
        rounds += 1;
        if began.elapsed() >= length * samples.len() as u32 / 30 {
            samples.push(sample(&server, began.elapsed()));
        }
        // At this rate on average, or less on a slow machine.
        let due = Duration::from_secs(1) * client.sent / RATE;
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
    samples.push(sample(&server, began.elapsed()));
    report(name, &samples, client.sent);
    let third = samples.len() / 3;
    let (settled, end) = (most(&samples[..=third]), most(&samples[samples.len() - third..]));
    let allowed = settled.0 + settled.0 / 10 + GROWTH_BYTES_MAX;
    assert!(end.0 <= allowed, "{name}: {} bytes after a third, {} at the end", settled.0, end.0);
    assert!(end.1 <= settled.1 + 2, "{name}: {} descriptors after a third, {} at the end", settled.1, end.1);
}

fn most(samples: &[Sample]) -> (u64, usize) {
    let of = samples.iter();
    (of.clone().map(|it| it.1).max().unwrap_or(0), of.map(|it| it.2).max().unwrap_or(0))
}

fn serve(database: &str) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_realworld"));
    command.args(["--listen", "127.0.0.1:0", "--workers", "2", "--database", database]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("http://") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it has ended");
    }
    let address = line.split("http://").nth(1).unwrap().split_whitespace().next().unwrap();
    let address = address.trim_end_matches('/').to_owned();
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    Server { child, address }
}

fn sample(server: &Server, at: Duration) -> Sample {
    let process = Path::new("/proc").join(server.child.id().to_string());
    let rollup = std::fs::read_to_string(process.join("smaps_rollup")).unwrap();
    let line = rollup.lines().find(|line| line.starts_with("Anonymous:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    Sample(at, kib << 10, std::fs::read_dir(process.join("fd")).unwrap().count())
}

fn report(name: &str, samples: &[Sample], sent: u32) {
    let Ok(path) = std::env::var("SOAK_REPORT") else { return };
    let mut text = format!(
        "\n## {name}: {sent} requests in {} s\n\n| s | MiB | descriptors |\n|---:|---:|---:|\n",
        duration().as_secs()
    );
    for Sample(at, bytes, descriptors) in samples {
        writeln!(text, "| {} | {:.1} | {descriptors} |", at.as_secs(), *bytes as f64 / f64::from(1 << 20))
            .unwrap();
    }
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// A connection that is kept for some requests.
struct Client {
    address: String,
    stream: Option<BufReader<TcpStream>>,
    sent: u32,
}

impl Client {
    fn new(address: &str) -> Client {
        Client { address: address.to_owned(), stream: None, sent: 0 }
    }

    fn wait_ready(&mut self) {
        let began = Instant::now();
        while self.call("GET", "/api/tags", "", None).0 != 200 {
            assert!(began.elapsed() < support::TIME_MAX, "the database is not there");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn register(&mut self, name: &str, status: u16) -> String {
        let user = json!({"user": {"username": name, "email": format!("{name}@example.com"), "password": "password"}});
        let (found, body) = self.call("POST", "/api/users", "", Some(user));
        assert_eq!(found, status, "{body}");
        body["user"]["token"].as_str().unwrap_or_default().to_owned()
    }

    /// Reads, writes, refused requests, and requests that are cut off. Written data is removed again.
    fn round(&mut self, token: &str, round: u32) {
        let article = json!({"article": {
            "title": format!("Round {round}"), "description": "d", "body": "text ".repeat(200), "tagList": ["soak", "x"],
        }});
        let (status, made) = self.call("POST", "/api/articles", token, Some(article));
        assert_eq!(status, 201, "{made}");
        let path = format!("/api/articles/{}", made["article"]["slug"].as_str().unwrap());
        let comment = json!({"comment": {"body": "a comment"}});
        for (method, path, token, body, expected) in [
            ("POST", format!("{path}/comments"), token, Some(comment), 201),
            ("POST", format!("{path}/favorite"), token, None, 200),
            ("GET", path.clone(), "", None, 200),
            ("GET", format!("{path}/comments"), token, None, 200),
            ("GET", "/api/articles?tag=soak&limit=5".to_owned(), "", None, 200),
            ("GET", "/api/articles/feed".to_owned(), token, None, 200),
            ("GET", "/api/articles/none".to_owned(), "", None, 404),
            ("GET", "/api/user".to_owned(), "forged.token.x", None, 401),
            ("POST", "/api/articles".to_owned(), token, Some(json!({"article": 7})), 422),
            ("PUT", path.clone(), token, Some(json!({"article": {"body": "new"}})), 200),
            ("DELETE", path.clone(), token, None, 204),
        ] {
            let (status, body) = self.call(method, &path, token, body);
            assert_eq!(status, expected, "{method} {path}: {body}");
        }
        if round.is_multiple_of(10) {
            self.register("soak", 409);
            // Gone before the response, and gone in the middle of a request.
            self.send("GET", "/api/articles", "", None);
            self.stream = None;
            let mut cut = TcpStream::connect(&self.address).unwrap();
            cut.write_all(b"POST /api/articles HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{").unwrap();
        }
    }

    fn send(&mut self, method: &str, path: &str, token: &str, body: Option<Value>) {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let token =
            if token.is_empty() { String::new() } else { format!("Authorization: Token {token}\r\n") };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: t\r\n{token}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let address = &self.address;
        let stream = self.stream.get_or_insert_with(|| BufReader::new(TcpStream::connect(address).unwrap()));
        stream.get_mut().write_all((head + &body).as_bytes()).unwrap();
        self.sent += 1;
    }

    fn call(&mut self, method: &str, path: &str, token: &str, body: Option<Value>) -> (u16, Value) {
        self.send(method, path, token, body);
        let stream = self.stream.as_mut().unwrap();
        let (mut status, mut length) = (0, 0);
        let mut line = String::new();
        while stream.read_line(&mut line).unwrap() > 2 {
            if let Some(text) = line.strip_prefix("HTTP/1.1 ") {
                status = text[..3].parse().unwrap();
            }
            if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = text.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }
}
