//! The rules of TechEmpower's validation.

#[path = "../../realworld/tests/support/postgres.rs"]
mod postgres;

use std::collections::BTreeSet;

use flatout::test::{Answer, Client};
use postgres::Postgres;
use serde_json::Value;
use techempower::database::TABLES;

/// Every response has Server, Date, Content-Type and Content-Length.
fn check(answer: &Answer, content_type: &str) {
    assert_eq!(answer.status().code(), 200, "{}", answer.text());
    assert!(answer.header("server").is_some() && answer.header("date").is_some());
    assert_eq!(answer.header("content-type"), Some(content_type));
    assert_eq!(answer.header("content-length"), Some(&*answer.bytes().len().to_string()));
}

#[test]
fn json_and_plaintext() {
    let client = Client::over_socket(techempower::app(None)).unwrap();
    let json = client.get("/json").send();
    check(&json, "application/json");
    assert_eq!(json.text(), r#"{"message":"Hello, World!"}"#);
    let plain = client.get("/plaintext").send();
    check(&plain, "text/plain");
    assert_eq!(plain.text(), "Hello, World!");
}

#[test]
fn plaintext_is_pipelined() {
    use std::io::{Read, Write};
    let server = techempower::app(None).listen("127.0.0.1:0").workers(1).start().unwrap();
    let address = server.addresses()[0].to_string();
    let mut stream = std::net::TcpStream::connect(address.trim_start_matches("http://")).unwrap();
    let one = "GET /plaintext HTTP/1.1\r\nHost: t\r\n\r\n";
    let last = "GET /plaintext HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    stream.write_all((one.repeat(15) + last).as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("Hello, World!").count(), 16);
    server.handle().drain();
    server.wait().unwrap();
}

#[test]
fn what_needs_the_database() {
    let mut postgres = Postgres::new();
    postgres.start();
    postgres.ask(TABLES);
    let client = Client::over_socket(techempower::app(Some(postgres.url().parse().unwrap()))).unwrap();
    single(&client);
    for path in ["/queries?queries=", "/updates?queries=", "/cached-queries?count="] {
        several(&client, path);
    }
    updates(&client, &postgres);
    fortunes(&client);
    lost_connections(&client, &postgres);
}

/// Waiting requests fail, and the next request uses a new connection.
fn lost_connections(client: &Client, postgres: &Postgres) {
    for _ in 0..3 {
        postgres.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'");
        let mut statuses = Vec::new();
        while statuses.last() != Some(&200) {
            assert!(statuses.len() < 100, "{statuses:?}");
            statuses.push(client.get("/db").send().status().code());
        }
        assert!(statuses.iter().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
    }
}

fn is_world(world: &Value) -> bool {
    let keys: Vec<&String> = world.as_object().unwrap().keys().collect();
    let in_range = |key: &str| world[key].as_i64().is_some_and(|number| (1..=10_000).contains(&number));
    keys == ["id", "randomNumber"] && in_range("id") && in_range("randomNumber")
}

fn single(client: &Client) {
    let mut ids = BTreeSet::new();
    for _ in 0..20 {
        let answer = client.get("/db").send();
        check(&answer, "application/json");
        let world: Value = answer.json();
        assert!(is_world(&world), "{world}");
        ids.insert(world["id"].as_i64());
    }
    assert!(ids.len() > 10, "{ids:?}");
}

/// Anything that is not a number or is below 1 counts as 1; more than 500 counts as 500.
fn several(client: &Client, path: &str) {
    let cases = [
        ("2", 2),
        ("20", 20),
        ("0", 1),
        ("-7", 1),
        ("foo", 1),
        ("", 1),
        ("501", 500),
        ("99999999999999999999", 1),
        ("500", 500),
    ];
    for (count, expected) in cases {
        let answer = client.get(&format!("{path}{count}")).send();
        check(&answer, "application/json");
        let worlds: Vec<Value> = answer.json();
        assert_eq!(worlds.len(), expected, "{path}{count}");
        assert!(worlds.iter().all(is_world), "{worlds:?}");
    }
    let bare = path.split('?').next().unwrap();
    assert_eq!(client.get(bare).send().json::<Vec<Value>>().len(), 1);
    let ids: BTreeSet<i64> = client
        .get(&format!("{path}100"))
        .send()
        .json::<Vec<Value>>()
        .iter()
        .filter_map(|world| world["id"].as_i64())
        .collect();
    assert!(ids.len() > 90, "{path}: {ids:?}");
}

fn updates(client: &Client, postgres: &Postgres) {
    let sum = || postgres.ask("SELECT sum(randomnumber * id::bigint) FROM world");
    let before = sum();
    let worlds: Vec<Value> = client.get("/updates?queries=20").send().json();
    assert_ne!(sum(), before);
    let stored = |id: &Value| {
        let number = postgres.ask(&format!("SELECT randomnumber FROM world WHERE id = {id}"));
        number.parse::<i64>().unwrap()
    };
    let kept = worlds.iter().filter(|world| world["randomNumber"] == stored(&world["id"])).count();
    // A row may have been picked twice.
    assert!(kept >= 18, "{kept}");
    assert_eq!(client.get("/queries?queries=3").send().json::<Value>().as_array().map(Vec::len), Some(3));
}

fn fortunes(client: &Client) {
    let answer = client.get("/fortunes").send();
    check(&answer, "text/html; charset=utf-8");
    let html = answer.text();
    let rows: Vec<&str> = html.split("<tr><td>").skip(1).collect();
    assert_eq!(rows.len(), 13, "{html}");
    assert!(rows[1].starts_with("4</td><td>A bad random number generator: 1, 1"), "{html}");
    let added = "0</td><td>Additional fortune added at request time.</td>";
    assert!(rows.iter().any(|row| row.starts_with(added)), "{html}");
    assert!(!html.contains("<script>") && html.contains("フレームワークのベンチマーク"), "{html}");
    let escaped = ["&lt;script&gt;", "&#60;script&#62;"];
    assert!(escaped.iter().any(|text| html.contains(text)), "{html}");
    assert!(html.starts_with("<!DOCTYPE html><html><head><title>Fortunes</title></head><body><table>"));
    let mut sorted: Vec<&str> = rows.iter().map(|row| row.split("<td>").nth(1).unwrap()).collect();
    let shown = sorted.clone();
    sorted.sort();
    // `<` is sorted before it is escaped.
    assert_eq!(shown[1..], sorted.into_iter().filter(|row| *row != shown[0]).collect::<Vec<_>>());
}
