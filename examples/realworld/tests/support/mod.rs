//! The application over a socket, on either database.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod postgres;

use std::sync::Arc;
use std::time::{Duration, Instant};

use flatout::test::{Answer, Call, Client};
use realworld::db::{Place, Source};
use realworld::token::Key;
use serde_json::{Value, json};

pub(crate) const SECRET: &[u8] = b"a secret of the tests";

/// A wait that only a broken program makes a test go through.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(30);

pub(crate) fn key() -> Key {
    Key::new(SECRET)
}

pub(crate) fn client(place: &Place) -> Client {
    let source = Arc::new(Source::new(place).unwrap());
    Client::over_socket(realworld::app(source, key())).unwrap()
}

pub(crate) fn place(postgres: &postgres::Postgres) -> Place {
    Place::Postgres(postgres.url())
}

pub(crate) fn in_memory() -> Client {
    client(&Place::Memory)
}

/// Waits until the database is there.
pub(crate) fn wait_ready(client: &Client) {
    let began = Instant::now();
    while client.get("/api/tags").send().status().code() != 200 {
        assert!(began.elapsed() < TIME_MAX, "the database is not there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A user of this name, and its token.
pub(crate) fn user(client: &Client, name: &str) -> String {
    let answer = client.post("/api/users").json(&json!({"user": {
        "username": name, "email": format!("{name}@example.com"), "password": format!("{name}-password"),
    }}));
    let answer = answer.send();
    assert_eq!(answer.status().code(), 201, "{}", answer.text());
    answer.json::<Value>()["user"]["token"].as_str().unwrap().to_owned()
}

pub(crate) fn by<'c>(call: Call<'c>, token: &str) -> Call<'c> {
    call.header("Authorization", &format!("Token {token}"))
}

pub(crate) fn article(client: &Client, token: &str, title: &str, tags: &[&str]) -> Value {
    let asked = json!({"article": {"title": title, "description": "about", "body": "text", "tagList": tags}});
    let answer = by(client.post("/api/articles"), token).json(&asked).send();
    expect(&answer, 201)["article"].clone()
}

pub(crate) fn expect(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status().code(), status, "{}", answer.text());
    if answer.text().is_empty() { Value::Null } else { answer.json() }
}

/// The names of the members with errors.
pub(crate) fn errors(answer: &Answer, status: u16) -> Vec<String> {
    let errors = expect(answer, status)["errors"].clone();
    assert_eq!(answer.header("content-type"), Some("application/json"));
    errors.as_object().expect("an object of errors").keys().cloned().collect()
}
