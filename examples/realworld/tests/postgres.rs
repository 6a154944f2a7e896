//! A PostgreSQL server that is not there, dies, comes back, is slow, and clients that go away.

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use flatout::test::Client;
use realworld::db::Source;
use serde_json::json;
use support::postgres::Postgres;
use support::{TIME_MAX, by, errors, expect, key, user, wait_ready};

/// A 503 is sent at once, not after a timeout.
const CLEAR_TIME_MAX: Duration = Duration::from_secs(5);

fn check_unavailable(client: &Client, token: &str) {
    let began = Instant::now();
    let answers = [
        client.get("/api/tags").send(),
        by(client.get("/api/user"), token).send(),
        client.post("/api/users/login").json(&json!({"user": {"email": "a@b", "password": "x"}})).send(),
        by(client.post("/api/articles"), token)
            .json(&json!({"article": {"title": "t", "description": "d", "body": "b"}}))
            .send(),
    ];
    for answer in answers {
        assert_eq!(errors(&answer, 503), ["database"]);
        assert_eq!(answer.header("Retry-After"), Some("1"));
    }
    assert!(began.elapsed() < CLEAR_TIME_MAX, "{:?}", began.elapsed());
    assert_eq!(client.get("/healthz").send().text(), "ok");
}

#[test]
fn a_server_that_comes_goes_and_comes_back() {
    let mut postgres = Postgres::new();
    let client = support::client(&support::place(&postgres));
    check_unavailable(&client, &key().sign(1));
    postgres.start();
    wait_ready(&client);
    let token = user(&client, "ada");
    support::article(&client, &token, "kept", &["t"]);
    for _ in 0..3 {
        postgres.kill();
        check_unavailable(&client, &token);
        postgres.start();
        wait_ready(&client);
        expect(&by(client.get("/api/user"), &token).send(), 200);
        // A transaction finds its way back too.
        let change = json!({"article": {"tagList": ["a", "b"]}});
        let began = Instant::now();
        while by(client.put("/api/articles/kept"), &token).json(&change).send().status().code() != 200 {
            assert!(began.elapsed() < TIME_MAX);
        }
    }
    // One worker: one connection for statements, one for transactions.
    assert_eq!(
        postgres.ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'realworld'"),
        "2"
    );
}

/// Locks a table, so that readers and writers wait.
struct Locked(Child);

impl Locked {
    fn new(postgres: &Postgres, table: &str) -> Locked {
        let sql = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)");
        let url = postgres.url();
        let child = std::process::Command::new("psql")
            .args(["-q", "-d", &url, "-c", &sql])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let held = format!(
            "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted AND relation = '{table}'::regclass"
        );
        let began = Instant::now();
        while postgres.ask(&held) == "0" {
            assert!(began.elapsed() < TIME_MAX);
        }
        Locked(child)
    }

    fn release(mut self, postgres: &Postgres) {
        postgres.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()");
        self.0.wait().unwrap();
    }
}

#[test]
fn slow_statements_are_ended_and_others_go_on() {
    let mut postgres = Postgres::new();
    postgres.start();
    let source = Source::with_limit(&support::place(&postgres), Duration::from_millis(300)).unwrap();
    let client = Client::over_socket(realworld::app(Arc::new(source), key())).unwrap();
    wait_ready(&client);
    let token = user(&client, "ada");
    let locked = Locked::new(&postgres, "article_tags");
    let began = Instant::now();
    assert_eq!(errors(&client.get("/api/tags").send(), 503), ["database"]);
    let asked = json!({"article": {"title": "t", "description": "d", "body": "b"}});
    assert_eq!(errors(&by(client.post("/api/articles"), &token).json(&asked).send(), 503), ["database"]);
    assert!(began.elapsed() < CLEAR_TIME_MAX, "{:?}", began.elapsed());
    // Requests that do not need the table are served, and nothing of the transaction was executed.
    expect(&by(client.get("/api/user"), &token).send(), 200);
    assert_eq!(postgres.ask("SELECT count(*) FROM articles"), "0");
    locked.release(&postgres);
    expect(&client.get("/api/tags").send(), 200);
    expect(&by(client.post("/api/articles"), &token).json(&asked).send(), 201);
}

/// The application on its own port, with the user `ada`, for concurrent clients.
struct Served {
    address: String,
    server: flatout::Server,
}

impl Served {
    fn new(postgres: &Postgres) -> Served {
        let app = realworld::app(Arc::new(Source::new(&support::place(postgres)).unwrap()), key());
        let server = app.listen("127.0.0.1:0").workers(1).start().unwrap();
        let address = server.addresses()[0].to_string().trim_start_matches("http://").to_owned();
        let served = Served { address, server };
        let register = json!({"user": {"username": "ada", "email": "a@b", "password": "password"}});
        let began = Instant::now();
        while !served.whole(&post("/api/users", "", register.clone())).contains("HTTP/1.1 201") {
            assert!(began.elapsed() < TIME_MAX);
            std::thread::sleep(Duration::from_millis(20));
        }
        served
    }

    fn ask(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(TIME_MAX)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn whole(&self, request: &str) -> String {
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut self.ask(request), &mut answer).unwrap();
        answer
    }
}

fn post(path: &str, token: &str, body: serde_json::Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: application/json\r\n{token}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A request from ada to create an article with a tag: a transaction.
fn create(title: &str) -> String {
    let token = format!("Authorization: Token {}\r\n", key().sign(1));
    let article = json!({"title": title, "description": "d", "body": "b", "tagList": ["x"]});
    post("/api/articles", &token, json!({ "article": article }))
}

/// Nothing is half done, no transaction is open, and the worker has its two connections.
fn check_nothing_is_left(postgres: &Postgres) {
    let halves = "SELECT count(*) FROM articles a WHERE NOT EXISTS (SELECT 1 FROM article_tags t WHERE t.article_id = a.id)";
    assert_eq!(postgres.ask(halves), "0");
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    assert_eq!(postgres.ask(open), "0");
    assert_eq!(
        postgres.ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'realworld'"),
        "2"
    );
}

#[test]
fn a_server_that_dies_under_load_is_reported_and_used_again() {
    let mut postgres = Postgres::new();
    postgres.start();
    let served = Served::new(&postgres);
    let (is_over, done, refused) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let load = |client: u32| {
        for number in 0.. {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            let request = match number % 2 {
                0 => "GET /api/articles HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n".to_owned(),
                _ => create(&format!("t {client} {number}")),
            };
            // If the request hangs, the read times out without a status.
            match served.whole(&request).split(' ').nth(1) {
                Some("200" | "201") => done.fetch_add(1, Ordering::Relaxed),
                Some("503") => refused.fetch_add(1, Ordering::Relaxed),
                other => panic!("status {other:?}"),
            };
        }
    };
    let wait_for_more = |count: &AtomicU32| {
        let (before, began) = (count.load(Ordering::Relaxed), Instant::now());
        while count.load(Ordering::Relaxed) < before + 20 {
            assert!(began.elapsed() < TIME_MAX);
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    std::thread::scope(|scope| {
        let _ends_the_load = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        for client in 0..8 {
            scope.spawn(move || load(client));
        }
        for _ in 0..3 {
            wait_for_more(&done);
            postgres.kill();
            wait_for_more(&refused);
            postgres.start();
            wait_for_more(&done);
        }
    });
    assert!(served.whole(&create("the last")).contains("HTTP/1.1 201"));
    check_nothing_is_left(&postgres);
    served.server.handle().drain();
    served.server.wait().unwrap();
}

/// Runs also when a check fails: the threads of a scope are joined.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn clients_that_go_away_leave_no_transaction_behind() {
    let mut postgres = Postgres::new();
    postgres.start();
    let served = Served::new(&postgres);
    let locked = Locked::new(&postgres, "article_tags");
    let began = Instant::now();
    for number in 0..10 {
        let stream = served.ask(&create(&format!("t {number}")));
        if number == 0 {
            // In the middle of the first one's transaction.
            while postgres.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "0"
            {
                assert!(began.elapsed() < TIME_MAX);
            }
        }
        drop(stream);
    }
    locked.release(&postgres);
    // Each was done or not, and the connection is free for the next.
    let answer = served.whole(&create("t 11"));
    assert!(answer.contains("HTTP/1.1 201"), "{answer}");
    check_nothing_is_left(&postgres);
    served.server.handle().drain();
    served.server.wait().unwrap();
}
