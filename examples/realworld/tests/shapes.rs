//! The documents of the specification: exactly its members, with its types and its formats.

mod support;

use serde_json::{Value, json};
use support::{article, by, errors, expect, in_memory, user};

const USER: [&str; 5] = ["bio", "email", "image", "token", "username"];
const PROFILE: [&str; 4] = ["bio", "following", "image", "username"];
const LISTED: [&str; 9] = [
    "author",
    "createdAt",
    "description",
    "favorited",
    "favoritesCount",
    "slug",
    "tagList",
    "title",
    "updatedAt",
];
const COMMENT: [&str; 5] = ["author", "body", "createdAt", "id", "updatedAt"];

/// The only member of a document, which has these members.
fn check<'v>(document: &'v Value, name: &str, members: &[&str]) -> &'v Value {
    let all = document.as_object().unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), [name]);
    check_members(&all[name], members);
    &all[name]
}

fn check_members(value: &Value, members: &[&str]) {
    let mut found: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    found.sort_unstable();
    assert_eq!(found, members, "{value}");
    for name in ["createdAt", "updatedAt"].iter().filter(|name| members.contains(name)) {
        let text = value[name].as_str().unwrap();
        let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000Z", "{text}");
    }
    if members.contains(&"author") {
        check_members(&value["author"], &PROFILE);
    }
}

#[test]
fn documents_have_the_members_of_the_specification() {
    let client = in_memory();
    let ada = user(&client, "ada");
    let bob = user(&client, "bob");
    let login = json!({"user": {"email": "ada@example.com", "password": "ada-password"}});
    let documents = [
        expect(&client.post("/api/users/login").json(&login).send(), 200),
        expect(&by(client.get("/api/user"), &ada).send(), 200),
        expect(&by(client.put("/api/user"), &ada).json(&json!({"user": {"bio": "x"}})).send(), 200),
    ];
    for document in &documents {
        check(document, "user", &USER);
    }
    check(&expect(&client.get("/api/profiles/ada").send(), 200), "profile", &PROFILE);
    check(&expect(&by(client.post("/api/profiles/ada/follow"), &bob).send(), 200), "profile", &PROFILE);

    let mut whole = LISTED.to_vec();
    whole.insert(1, "body");
    let made = article(&client, &ada, "Dragons", &["b", "a"]);
    check_members(&made, &whole);
    let path = "/api/articles/dragons";
    for document in [
        expect(&client.get(path).send(), 200),
        expect(&by(client.post(&format!("{path}/favorite")), &bob).send(), 200),
        expect(&by(client.delete(&format!("{path}/favorite")), &bob).send(), 200),
        expect(&by(client.put(path), &ada).json(&json!({"article": {"body": "new"}})).send(), 200),
    ] {
        let article = check(&document, "article", &whole);
        assert!(article["favorited"].is_boolean() && article["favoritesCount"].is_u64());
        assert_eq!(article["tagList"], json!(["a", "b"]));
    }
    for document in [
        expect(&client.get("/api/articles?limit=1&offset=0&tag=a&author=ada").send(), 200),
        expect(&by(client.get("/api/articles/feed"), &bob).send(), 200),
    ] {
        assert_eq!(document.as_object().unwrap().keys().collect::<Vec<_>>(), ["articles", "articlesCount"]);
        assert_eq!(
            (&document["articlesCount"], document["articles"].as_array().unwrap().len()),
            (&json!(1), 1)
        );
        check_members(&document["articles"][0], &LISTED);
    }

    let comments = format!("{path}/comments");
    let said = by(client.post(&comments), &bob).json(&json!({"comment": {"body": "first"}})).send();
    let said = expect(&said, 201);
    assert!(check(&said, "comment", &COMMENT)["id"].is_u64());
    check_members(&expect(&client.get(&comments).send(), 200)["comments"][0], &COMMENT);
    assert_eq!(expect(&client.get("/api/tags").send(), 200), json!({"tags": ["a", "b"]}));
    // Nothing has a body once it is removed.
    let id = &said["comment"]["id"];
    assert_eq!(expect(&by(client.delete(&format!("{comments}/{id}")), &bob).send(), 204), Value::Null);
    assert_eq!(expect(&by(client.delete(path), &ada).send(), 204), Value::Null);
}

#[test]
fn errors_have_a_list_of_messages_for_each_name() {
    let client = in_memory();
    let ada = user(&client, "ada");
    let bob = user(&client, "bob");
    article(&client, &ada, "Dragons", &[]);
    let taken = json!({"user": {"username": "ada", "email": "x@example.com", "password": "password"}});
    let wrong = json!({"user": {"email": "ada@example.com", "password": "password"}});
    let blank = json!({"article": {"title": "", "description": "d", "body": "b"}});
    for (answer, status, name, message) in [
        (client.get("/api/user").send(), 401, "token", "is missing"),
        (client.post("/api/users/login").json(&wrong).send(), 401, "credentials", "invalid"),
        (by(client.delete("/api/articles/dragons"), &bob).send(), 403, "article", "forbidden"),
        (client.get("/api/profiles/nobody").send(), 404, "profile", "not found"),
        (client.get("/api/articles/none").send(), 404, "article", "not found"),
        (client.post("/api/users").json(&taken).send(), 409, "username", "has already been taken"),
        (by(client.post("/api/articles"), &ada).json(&blank).send(), 422, "title", "can't be blank"),
    ] {
        assert_eq!(errors(&answer, status), [name]);
        assert_eq!(answer.json::<Value>()["errors"][name], json!([message]));
    }
}

#[test]
fn cross_origin_requests_are_allowed() {
    let client = in_memory();
    let preflight = client.call("OPTIONS", "/api/articles").header("Origin", "https://app.example");
    let preflight = preflight.header("Access-Control-Request-Method", "POST");
    let answer = preflight.header("Access-Control-Request-Headers", "authorization,content-type").send();
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    let allowed = answer.header("access-control-allow-headers").unwrap().to_ascii_lowercase();
    assert!(allowed.contains("authorization") && allowed.contains("content-type"), "{allowed}");
}
