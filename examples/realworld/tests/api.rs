//! The specification, on both databases.

mod support;

use flatout::test::Client;
use serde_json::{Value, json};
use support::postgres::Postgres;
use support::{article, by, errors, expect, in_memory, user, wait_ready};

#[test]
fn the_api_on_sqlite_in_memory() {
    all(&in_memory());
}

#[test]
fn the_api_on_sqlite_in_a_file_that_outlives_the_server() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("conduit");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let place = realworld::db::Place::File(folder.join("conduit.db"));
    all(&support::client(&place));
    let again = support::client(&place);
    let profile = expect(&again.get("/api/profiles/ada").send(), 200);
    assert_eq!(profile["profile"]["username"], "ada");
}

#[test]
fn the_api_on_postgresql() {
    let mut postgres = Postgres::new();
    postgres.start();
    let client = support::client(&support::place(&postgres));
    wait_ready(&client);
    all(&client);
    // Another server finds the tables there.
    let again = support::client(&support::place(&postgres));
    wait_ready(&again);
    expect(&again.get("/api/profiles/ada").send(), 200);
}

fn all(client: &Client) {
    users(client);
    let ada = user(client, "ada");
    let bob = user(client, "bob");
    profiles(client, &ada, &bob);
    articles(client, &ada, &bob);
    lists(client, &ada, &bob);
    comments(client, &ada, &bob);
    unused_tokens(client);
}

fn users(client: &Client) {
    let register = |user: Value| client.post("/api/users").json(&json!({ "user": user })).send();
    let made = expect(
        &register(json!({"username": "jake", "email": "jake@jake.jake", "password": "jakejake"})),
        201,
    );
    let jake = &made["user"];
    assert_eq!((&jake["username"], &jake["email"]), (&json!("jake"), &json!("jake@jake.jake")));
    assert!(jake["bio"].is_null() && jake["image"].is_null() && jake.get("password").is_none());
    let token = jake["token"].as_str().unwrap();

    let taken = register(json!({"username": "jake", "email": "other@jake.jake", "password": "jakejake"}));
    assert_eq!(errors(&taken, 409), ["username"]);
    let taken = register(json!({"username": "other", "email": "jake@jake.jake", "password": "jakejake"}));
    assert_eq!(errors(&taken, 409), ["email"]);
    for (wrong, name) in [
        (json!({"email": "a@b", "password": "x"}), "username"),
        (json!({"username": " ", "email": "a@b", "password": "x"}), "username"),
        (json!({"username": "x", "password": "x"}), "email"),
        (json!({"username": "x", "email": "a@b", "password": ""}), "password"),
        (json!({"username": "x".repeat(256), "email": "a@b", "password": "x"}), "username"),
        (json!({"username": "x\u{0}", "email": "a@b", "password": "x"}), "username"),
        (json!({"username": "x", "email": "a@b", "password": "short7c"}), "password"),
        (json!({"username": "x", "email": "a@b", "password": "x".repeat(257)}), "password"),
        (json!({"username": 7, "email": "a@b", "password": "x"}), "body"),
        (json!("x"), "body"),
    ] {
        assert_eq!(errors(&register(wrong.clone()), 422), [name], "{wrong}");
    }
    assert_eq!(errors(&client.post("/api/users").json(&json!({})).send(), 422), ["body"]);
    let broken = client.post("/api/users").header("Content-Type", "application/json").body("{").send();
    assert_eq!(errors(&broken, 400), ["body"]);

    let login = |email: &str, password: &str| {
        let user = json!({"user": {"email": email, "password": password}});
        client.post("/api/users/login").json(&user).send()
    };
    assert_eq!(expect(&login("jake@jake.jake", "jakejake"), 200)["user"]["username"], "jake");
    assert_eq!(errors(&login("jake@jake.jake", "wrong"), 401), ["credentials"]);
    assert_eq!(errors(&login("nobody@jake.jake", "jakejake"), 401), ["credentials"]);
    assert_eq!(errors(&login("", "jakejake"), 422), ["email"]);
    assert_eq!(errors(&login("jake@jake.jake", ""), 422), ["password"]);

    assert_eq!(expect(&by(client.get("/api/user"), token).send(), 200)["user"]["email"], "jake@jake.jake");
    assert_eq!(errors(&client.get("/api/user").send(), 401), ["token"]);
    let update = |user: Value| by(client.put("/api/user"), token).json(&json!({ "user": user })).send();
    let changed = expect(&update(json!({"bio": "I skate", "image": "https://a.example/j.jpg"})), 200);
    assert_eq!((&changed["user"]["bio"], &changed["user"]["username"]), (&json!("I skate"), &json!("jake")));
    let kept = expect(&update(json!({"email": "jake2@jake.jake"})), 200);
    assert_eq!(
        (&kept["user"]["bio"], &kept["user"]["email"]),
        (&json!("I skate"), &json!("jake2@jake.jake"))
    );
    let gone = expect(&update(json!({"bio": null, "image": ""})), 200);
    assert!(gone["user"]["bio"].is_null() && gone["user"]["image"].is_null());
    for password in
        [json!("short7c"), json!("sieben\u{1d11e}"), json!(""), json!(null), json!("x".repeat(257))]
    {
        assert_eq!(errors(&update(json!({ "password": password })), 422), ["password"]);
    }
    for password in ["bonjour1", &"\u{1d11e}".repeat(64), "a new one"] {
        expect(&update(json!({ "password": password })), 200);
    }
    assert_eq!(errors(&login("jake2@jake.jake", "jakejake"), 401), ["credentials"]);
    expect(&login("jake2@jake.jake", "a new one"), 200);
    assert_eq!(errors(&update(json!({"username": null})), 422), ["username"]);
    assert_eq!(errors(&update(json!({"email": ""})), 422), ["email"]);
    assert_eq!(errors(&client.put("/api/user").json(&json!({"user": {}})).send(), 401), ["token"]);
}

fn profiles(client: &Client, ada: &str, bob: &str) {
    let profile = |call| expect(&call, 200)["profile"].clone();
    let anonymous = profile(client.get("/api/profiles/bob").send());
    assert_eq!(anonymous, json!({"username": "bob", "bio": null, "image": null, "following": false}));
    for _ in 0..2 {
        let followed = profile(by(client.post("/api/profiles/bob/follow"), ada).send());
        assert_eq!(followed["following"], true);
    }
    assert_eq!(profile(by(client.get("/api/profiles/bob"), ada).send())["following"], true);
    assert_eq!(profile(by(client.get("/api/profiles/ada"), bob).send())["following"], false);
    for _ in 0..2 {
        let left = profile(by(client.delete("/api/profiles/bob/follow"), ada).send());
        assert_eq!(left["following"], false);
    }
    for path in ["/api/profiles/nobody", "/api/profiles/%00"] {
        let status = client.get(path).send().status().code();
        assert!(matches!(status, 400 | 404), "{path}: {status}");
    }
    assert_eq!(errors(&by(client.post("/api/profiles/nobody/follow"), ada).send(), 404), ["profile"]);
    assert_eq!(errors(&client.post("/api/profiles/bob/follow").send(), 401), ["token"]);
}

fn articles(client: &Client, ada: &str, bob: &str) {
    let made = article(client, ada, "How to train your dragon", &["training", "dragons", "training"]);
    assert_eq!(made["slug"], "how-to-train-your-dragon");
    assert_eq!(made["tagList"], json!(["dragons", "training"]));
    assert_eq!((&made["favorited"], &made["favoritesCount"]), (&json!(false), &json!(0)));
    assert_eq!((&made["body"], &made["author"]["username"]), (&json!("text"), &json!("ada")));
    assert_eq!(made["createdAt"], made["updatedAt"]);
    let create =
        |article: Value| by(client.post("/api/articles"), ada).json(&json!({ "article": article })).send();
    for (wrong, name) in [
        (json!({"description": "d", "body": "b"}), "title"),
        (json!({"title": "", "description": "d", "body": "b"}), "title"),
        (json!({"title": "t", "body": "b"}), "description"),
        (json!({"title": "t", "description": "d"}), "body"),
        (json!({"title": "t", "description": "d", "body": "b\u{0}"}), "body"),
        (json!({"title": "t", "description": "d", "body": "b", "tagList": [""]}), "tagList"),
        (json!({"title": "t", "description": "d", "body": "b", "tagList": vec!["x"; 51]}), "tagList"),
    ] {
        assert_eq!(errors(&create(wrong.clone()), 422), [name], "{wrong}");
    }
    twice(client, ada, bob, &made["slug"]);
    assert_eq!(errors(&client.post("/api/articles").json(&json!({})).send(), 401), ["token"]);

    let path = "/api/articles/how-to-train-your-dragon";
    assert_eq!(expect(&client.get(path).send(), 200)["article"], made);
    assert_eq!(errors(&client.get("/api/articles/none").send(), 404), ["article"]);
    let favorite = |token: &str| expect(&by(client.post(&format!("{path}/favorite")), token).send(), 200);
    assert_eq!(favorite(bob)["article"]["favoritesCount"], 1);
    assert_eq!(favorite(bob)["article"]["favorited"], true);
    assert_eq!(favorite(ada)["article"]["favoritesCount"], 2);
    assert_eq!(expect(&client.get(path).send(), 200)["article"]["favorited"], false);
    let left = expect(&by(client.delete(&format!("{path}/favorite")), ada).send(), 200);
    assert_eq!(
        (&left["article"]["favorited"], &left["article"]["favoritesCount"]),
        (&json!(false), &json!(1))
    );

    let change = |token: &str, path: &str, article: Value| {
        by(client.put(path), token).json(&json!({ "article": article })).send()
    };
    assert_eq!(errors(&change(bob, path, json!({"body": "mine"})), 403), ["article"]);
    assert_eq!(errors(&change(ada, "/api/articles/none", json!({"body": "x"})), 404), ["article"]);
    assert_eq!(errors(&change(ada, path, json!({"title": ""})), 422), ["title"]);
    for name in ["title", "description", "body", "tagList"] {
        assert_eq!(errors(&change(ada, path, json!({name: null})), 422), [name]);
    }
    let changed = expect(&change(ada, path, json!({"body": "new", "tagList": ["other"]})), 200);
    let (before, after) = (made["updatedAt"].as_str().unwrap(), &changed["article"]["updatedAt"]);
    assert!(after.as_str().unwrap() > before && changed["article"]["createdAt"] == made["createdAt"]);
    assert_eq!(
        (&changed["article"]["body"], &changed["article"]["tagList"]),
        (&json!("new"), &json!(["other"]))
    );
    let moved = expect(&change(ada, path, json!({"title": "Did you train it?"})), 200);
    assert_eq!(
        (&moved["article"]["slug"], &moved["article"]["tagList"]),
        (&json!("did-you-train-it"), &json!(["other"]))
    );
    assert_eq!(errors(&client.get(path).send(), 404), ["article"]);
    let path = "/api/articles/did-you-train-it";
    assert_eq!(errors(&by(client.delete(path), bob).send(), 403), ["article"]);
    expect(&by(client.delete(path), ada).send(), 204);
    assert_eq!(errors(&by(client.delete(path), ada).send(), 404), ["article"]);
    assert_eq!(expect(&client.get("/api/tags").send(), 200)["tags"], json!([]));
}

/// Titles may be alike, slugs may not.
fn twice(client: &Client, ada: &str, bob: &str, slug: &Value) {
    let same = article(client, bob, "How to train: your DRAGON!", &["other"]);
    let (first, second) = (slug.as_str().unwrap(), same["slug"].as_str().unwrap());
    assert!(second.starts_with(&format!("{first}-")), "{second}");
    let path = format!("/api/articles/{second}");
    let change = |article: Value| by(client.put(&path), bob).json(&json!({ "article": article })).send();
    let title = json!({"title": "How to train your dragon?", "tagList": []});
    let kept = expect(&change(title), 200)["article"].clone();
    assert_eq!((&kept["slug"], &kept["tagList"]), (&same["slug"], &json!([])));
    assert_eq!(
        expect(&client.get(&format!("/api/articles/{first}")).send(), 200)["article"]["tagList"][0],
        "dragons"
    );
    expect(&by(client.delete(&path), bob).send(), 204);
    // Whose user is gone changes nothing of an article that has the slug.
    let asked = json!({"article": {"title": first, "description": "d", "body": "b", "tagList": ["ghost"]}});
    let ghost = support::key().sign(999_999);
    assert_eq!(errors(&by(client.post("/api/articles"), &ghost).json(&asked).send(), 401), ["token"]);
    let tags = expect(&by(client.get(&format!("/api/articles/{first}")), ada).send(), 200);
    assert_eq!(tags["article"]["tagList"], json!(["dragons", "training"]));
    assert_eq!(expect(&client.get("/api/tags").send(), 200)["tags"], json!(["dragons", "training"]));
}

fn lists(client: &Client, ada: &str, bob: &str) {
    for number in 1..=3 {
        article(client, ada, &format!("Ada {number}"), &["ada", "both"]);
    }
    article(client, bob, "Bob 1", &["both"]);
    by(client.post("/api/articles/ada-2/favorite"), bob).send();
    let list = |query: &str| {
        let page = expect(&client.get(&format!("/api/articles{query}")).send(), 200);
        let titles: Vec<String> = page["articles"]
            .as_array()
            .unwrap()
            .iter()
            .map(|a| a["title"].as_str().unwrap().to_owned())
            .collect();
        (titles.join(","), page["articlesCount"].as_i64().unwrap())
    };
    for (query, titles, count) in [
        ("", "Bob 1,Ada 3,Ada 2,Ada 1", 4),
        ("?author=ada", "Ada 3,Ada 2,Ada 1", 3),
        ("?tag=both&limit=2", "Bob 1,Ada 3", 4),
        ("?tag=both&limit=2&offset=3", "Ada 1", 4),
        ("?favorited=bob", "Ada 2", 1),
        ("?favorited=ada", "", 0),
        ("?tag=ada&author=bob", "", 0),
        ("?limit=100000&offset=9", "", 4),
    ] {
        assert_eq!(list(query), (titles.to_owned(), count), "{query}");
    }
    for query in ["?limit=0", "?limit=-1", "?offset=-1", "?limit=x", "?limit=99999999999999999999"] {
        expect(&client.get(&format!("/api/articles{query}")).send(), 422);
    }
    let page = expect(&by(client.get("/api/articles?author=ada"), bob).send(), 200);
    assert!(page["articles"][0].get("body").is_none() && page["articles"][1]["favorited"] == true);
    assert_eq!(expect(&client.get("/api/tags").send(), 200)["tags"], json!(["both", "ada"]));

    let feed = |token: &str| expect(&by(client.get("/api/articles/feed?limit=2"), token).send(), 200);
    assert_eq!(feed(bob)["articlesCount"], 0);
    by(client.post("/api/profiles/ada/follow"), bob).send();
    let fed = feed(bob);
    assert_eq!((&fed["articlesCount"], &fed["articles"][0]["title"]), (&json!(3), &json!("Ada 3")));
    assert_eq!(fed["articles"][0]["author"]["following"], true);
    assert_eq!(errors(&client.get("/api/articles/feed").send(), 401), ["token"]);
}

fn comments(client: &Client, ada: &str, bob: &str) {
    let path = "/api/articles/ada-1/comments";
    let comment = |token: &str, body: Value| {
        by(client.post(path), token).json(&json!({"comment": {"body": body}})).send()
    };
    let first = expect(&comment(bob, json!("first")), 201)["comment"].clone();
    assert_eq!((&first["body"], &first["author"]["username"]), (&json!("first"), &json!("bob")));
    let second = expect(&comment(ada, json!("second")), 201)["comment"].clone();
    assert_eq!(errors(&comment(bob, json!(" ")), 422), ["body"]);
    assert_eq!(errors(&client.post(path).json(&json!({"comment": {"body": "x"}})).send(), 401), ["token"]);
    let all = expect(&client.get(path).send(), 200)["comments"].clone();
    assert_eq!(all, json!([second, first]));
    assert_eq!(errors(&client.get("/api/articles/none/comments").send(), 404), ["article"]);
    let remove = |token: &str, id: &Value| by(client.delete(&format!("{path}/{id}")), token).send();
    assert_eq!(errors(&remove(ada, &first["id"]), 403), ["comment"]);
    assert_eq!(errors(&remove(bob, &json!(999_999)), 404), ["comment"]);
    assert_eq!(errors(&by(client.delete(&format!("{path}/x")), bob).send(), 404), ["comment"]);
    expect(&remove(bob, &first["id"]), 204);
    assert_eq!(errors(&remove(bob, &first["id"]), 404), ["comment"]);
    assert_eq!(expect(&client.get(path).send(), 200)["comments"].as_array().unwrap().len(), 1);
}

/// A token outlives its user, but is useless then.
fn unused_tokens(client: &Client) {
    let nobody = support::key().sign(999_999);
    assert_eq!(errors(&by(client.get("/api/user"), &nobody).send(), 401), ["token"]);
    let asked = json!({"article": {"title": "ghost", "description": "d", "body": "b"}});
    assert_eq!(errors(&by(client.post("/api/articles"), &nobody).json(&asked).send(), 401), ["token"]);
    let asked = json!({"comment": {"body": "b"}});
    assert_eq!(
        errors(&by(client.post("/api/articles/ada-1/comments"), &nobody).json(&asked).send(), 401),
        ["token"]
    );
    let favored = expect(&by(client.post("/api/articles/ada-1/favorite"), &nobody).send(), 200);
    assert_eq!(favored["article"]["favoritesCount"], 0);
}
