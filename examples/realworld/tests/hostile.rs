//! Attacks that must fail: forged tokens, SQL in every value, passwords in logs.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use flatout::test::Client;
use realworld::token::{Key, now_s};
use serde_json::json;
use support::postgres::Postgres;
use support::{article, by, errors, expect, in_memory, key, user, wait_ready};

#[test]
fn forged_and_old_tokens_are_refused() {
    let client = in_memory();
    let token = user(&client, "ada");
    let claims = token.split('.').nth(1).unwrap().to_owned();
    let none = |header: &str, signature: &str| format!("{}.{claims}.{signature}", BASE64.encode(header));
    for forged in [
        none(r#"{"alg":"none","typ":"JWT"}"#, ""),
        none(r#"{"alg":"None"}"#, token.rsplit('.').next().unwrap()),
        none(r#"{"alg":"HS512","typ":"JWT"}"#, token.rsplit('.').next().unwrap()),
        Key::new(b"another key").sign(1),
        key().sign_until(1, now_s()),
        key().sign_until(1, 0),
        token[..token.len() - 1].to_owned(),
        "null".to_owned(),
        "x".repeat(8000),
    ] {
        for (method, path) in [("GET", "/api/user"), ("GET", "/api/articles"), ("GET", "/api/profiles/ada")] {
            assert_eq!(errors(&by(client.call(method, path), &forged).send(), 401), ["token"], "{forged}");
        }
    }
    for field in ["Token", "Basic YTpi", "", "Token ", "Digest x"] {
        let answer = client.get("/api/user").header("Authorization", field).send();
        assert_eq!(errors(&answer, 401), ["token"], "{field}");
    }
    expect(&client.get("/api/user").header("Authorization", &format!("Bearer {token}")).send(), 200);
}

#[test]
fn sql_is_text_on_sqlite() {
    injections(&in_memory());
}

#[test]
fn sql_is_text_on_postgresql() {
    let mut postgres = Postgres::new();
    postgres.start();
    let client = support::client(&support::place(&postgres));
    wait_ready(&client);
    injections(&client);
    assert_eq!(postgres.ask("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"), "7");
}

/// Every place where a client's text ends in a statement.
fn injections(client: &Client) {
    let ada = user(client, "ada");
    let _ = user(client, "eve");
    let made = article(client, &ada, "the one", &["t"]);
    for sql in [
        "' OR '1'='1",
        "'; DROP TABLE users; --",
        "\" OR \"\"=\"",
        "x' UNION SELECT id, password, email FROM users --",
        "$1",
        "?1; DELETE FROM articles",
        "\\'; SELECT pg_sleep(10); --",
        "%' OR 1=1 --",
        "' || (SELECT password FROM users LIMIT 1) || '",
    ] {
        let escaped: String = sql.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let login = json!({"user": {"email": sql, "password": sql}});
        assert_eq!(errors(&client.post("/api/users/login").json(&login).send(), 401), ["credentials"]);
        let list = |query: String| expect(&client.get(&query).send(), 200)["articlesCount"].clone();
        for name in ["tag", "author", "favorited"] {
            assert_eq!(list(format!("/api/articles?{name}={escaped}")), 0, "{name}: {sql}");
        }
        for name in ["limit", "offset"] {
            expect(&client.get(&format!("/api/articles?{name}={escaped}")).send(), 422);
        }
        for (method, path) in [
            ("GET", format!("/api/profiles/{escaped}")),
            ("POST", format!("/api/profiles/{escaped}/follow")),
            ("DELETE", format!("/api/profiles/{escaped}/follow")),
            ("GET", format!("/api/articles/{escaped}")),
            ("PUT", format!("/api/articles/{escaped}")),
            ("DELETE", format!("/api/articles/{escaped}")),
            ("POST", format!("/api/articles/{escaped}/favorite")),
            ("DELETE", format!("/api/articles/{escaped}/favorite")),
            ("GET", format!("/api/articles/{escaped}/comments")),
            ("POST", format!("/api/articles/{escaped}/comments")),
            ("DELETE", format!("/api/articles/the-one/comments/{escaped}")),
        ] {
            let call =
                by(client.call(method, &path), &ada).json(&json!({"article": {}, "comment": {"body": sql}}));
            let status = call.send().status().code();
            // A path with an encoded slash or backslash reaches no handler.
            assert!(status == 404 || (status == 400 && sql.contains('\\')), "{method} {path}: {status}");
        }
        // Stored values are returned unchanged.
        let change = json!({"user": {"bio": sql, "image": sql}});
        assert_eq!(expect(&by(client.put("/api/user"), &ada).json(&change).send(), 200)["user"]["bio"], sql);
        let texts = json!({"article": {"description": sql, "body": sql, "tagList": [sql]}});
        let changed = expect(&by(client.put("/api/articles/the-one"), &ada).json(&texts).send(), 200);
        assert_eq!(
            (&changed["article"]["body"], &changed["article"]["tagList"][0]),
            (&json!(sql), &json!(sql))
        );
        assert_eq!(list(format!("/api/articles?tag={escaped}")), 1);
        let named = json!({"article": {"title": sql, "description": sql, "body": sql, "tagList": [sql]}});
        let stored =
            expect(&by(client.post("/api/articles"), &ada).json(&named).send(), 201)["article"].clone();
        assert_eq!((&stored["title"], &stored["tagList"][0]), (&json!(sql), &json!(sql)));
        let path = format!("/api/articles/{}", stored["slug"].as_str().unwrap());
        expect(&by(client.delete(&path), &ada).send(), 204);
        let fed = by(client.get(&format!("/api/articles/feed?limit={escaped}&offset={escaped}")), &ada);
        expect(&fed.send(), 422);
        let comment = json!({"comment": {"body": sql}});
        let said = by(client.post("/api/articles/the-one/comments"), &ada).json(&comment).send();
        assert_eq!(expect(&said, 201)["comment"]["body"], sql);
        let (email, password) = (format!("{sql}@x"), format!("password {sql}"));
        let registered = json!({"user": {"username": sql, "email": email, "password": password}});
        assert_eq!(expect(&client.post("/api/users").json(&registered).send(), 201)["user"]["username"], sql);
    }
    let now = expect(&client.get("/api/articles/the-one").send(), 200);
    assert_eq!(now["article"]["createdAt"], made["createdAt"]);
}

#[test]
fn bodies_have_limits_and_odd_ones_are_refused() {
    let client = in_memory();
    let token = user(&client, "ada");
    let post = |body: Vec<u8>| {
        by(client.post("/api/articles"), &token).header("Content-Type", "application/json").body(body).send()
    };
    assert_eq!(post(vec![b'x'; 2 << 20]).status().code(), 413);
    assert_eq!(errors(&post(b"[".repeat(100_000)), 422), ["body"]);
    assert_eq!(errors(&post(b"\xff\xfe".to_vec()), 400), ["body"]);
    let long = json!({"article": {"title": "x".repeat(300), "description": "d", "body": "b"}});
    assert_eq!(errors(&by(client.post("/api/articles"), &token).json(&long).send(), 422), ["title"]);
    for (method, path, status) in
        [("GET", "/api/nothing", 404), ("PATCH", "/api/user", 405), ("GET", "/api/articles/x/y/z", 404)]
    {
        assert_eq!(client.call(method, path).send().status().code(), status, "{method} {path}");
    }
}

#[test]
fn the_program_never_prints_a_password() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_realworld"))
        .args(["--listen", "127.0.0.1:0", "--workers", "1", "--database", ":memory:"])
        .env("JWT_SECRET", "a secret that nobody reads")
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.rsplit("http://").next().unwrap().trim().trim_end_matches('/').to_owned();
    let ask = |method: &str, path: &str, token: &str, body: serde_json::Value| {
        use std::io::Write;
        let body = body.to_string();
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Authorization: Token {token}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let secret = "hunter2-is-secret";
    let token = key().sign(1);
    let mut answers = String::new();
    for (method, path, body) in [
        ("POST", "/api/users/login", json!({"user": {"email": "a@b", "password": secret}})),
        ("POST", "/api/users/login", json!({"user": {"email": "a@b", "password": [secret]}})),
        ("POST", "/api/users/login", json!({"user": secret})),
        ("POST", "/api/users", json!({"user": {"password": secret}})),
        ("PUT", "/api/user", json!({"user": {"password": secret}})),
    ] {
        answers += &ask(method, path, &token, body);
    }
    // Without a token: registration is for those who have none.
    let registered = json!({"user": {"username": "ada", "email": "a@b", "password": secret}});
    answers += &ask("POST", "/api/users", "", registered);
    assert!(answers.contains("HTTP/1.1 201 "), "{answers}");
    let pid = child.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    for text in [&answers, &line, &rest] {
        assert!(!text.contains(secret) && !text.contains("argon2"), "{text}");
    }
}
