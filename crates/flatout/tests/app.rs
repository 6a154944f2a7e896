//! The library as its users see it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use flatout::test::{Answer, Client};
use flatout::{
    App, HeaderMap, Headers, Html, Json, Local, Method, Path, Peer, Problem, Query, Redirect, Respond,
    Response, Shutdown, State, Status, Streamed,
};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

fn client(app: App) -> Client {
    Client::new(app).unwrap()
}

fn get(app: App, target: &str) -> Answer {
    client(app).get(target).send()
}

fn problem(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status().code(), status, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let value: Value = answer.json();
    assert_eq!(value["status"], status);
    value
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Item {
    id: u32,
    name: String,
}

#[test]
fn sync_and_async_handlers_send_the_same_responses() {
    let greeting = String::from("hello");
    let app = App::new()
        .get("/sync", || Json(json!({"a": 1})))
        .get("/async", async || Json(json!({"a": 1})))
        .get("/waits", async || {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            "waited"
        })
        .get("/captures/{name}", async move |Path(name): Path<String>| {
            tokio::task::yield_now().await;
            format!("{greeting} {name}")
        });
    let client = client(app);
    for path in ["/sync", "/async"] {
        let answer = client.get(path).send();
        assert_eq!(answer.header("Content-Type"), Some("application/json"));
        assert_eq!(answer.text(), r#"{"a":1}"#);
    }
    assert_eq!(client.get("/waits").send().text(), "waited");
    for _ in 0..2 {
        assert_eq!(client.get("/captures/ada").send().text(), "hello ada");
    }
}

#[test]
fn path_parameters_are_parsed_into_types() {
    #[derive(Deserialize)]
    struct Named {
        a: u8,
        b: String,
    }
    #[derive(Deserialize, Debug)]
    #[serde(rename_all = "lowercase")]
    enum Side {
        Left,
    }
    let app = App::new()
        .get("/one/{a}", |Path(a): Path<u32>| a.to_string())
        .get("/two/{a}/{b}", |Path((a, b)): Path<(i64, String)>| format!("{a} {b}"))
        .get("/named/{b}/{a}", |Path(Named { a, b }): Path<Named>| format!("{a} {b}"))
        .get("/side/{side}", |Path(side): Path<Side>| format!("{side:?}"))
        .get("/rest/{*rest}", |Path(rest): Path<String>| rest);
    let client = client(app);
    for (path, expected) in [
        ("/one/7", "7"),
        ("/two/-1/a%20b", "-1 a b"),
        ("/named/x/3", "3 x"),
        ("/side/left", "Left"),
        ("/rest/a/b/c", "a/b/c"),
    ] {
        assert_eq!(client.get(path).send().text(), expected);
    }
    let fault = problem(&client.get("/one/seven").send(), 400);
    assert_eq!(fault["detail"], "the path: `a`: got `seven`, expected a whole number from 0 to 4294967295");
    problem(&client.get("/named/x/300").send(), 400);
    problem(&client.get("/side/right").send(), 400);
    problem(&client.get("/one/%ff").send(), 400);
}

#[test]
fn queries_and_json_bodies_are_read_or_refused() {
    #[derive(Deserialize)]
    struct Page {
        page: u32,
        #[serde(default)]
        tag: Vec<String>,
    }
    let app = App::new()
        .get("/list", |Query(page): Query<Page>| format!("{} {:?}", page.page, page.tag))
        .post("/items", |Json(item): Json<Item>| (Status::CREATED, Json(item)));
    let client = client(app);
    assert_eq!(client.get("/list?page=2&tag=a&tag=b+c").send().text(), r#"2 ["a", "b c"]"#);
    problem(&client.get("/list").send(), 400);
    problem(&client.get("/list?page=x").send(), 400);

    let item = Item { id: 1, name: "x".to_owned() };
    let answer = client.post("/items").json(&item).send();
    assert_eq!((answer.status(), answer.json::<Item>()), (Status::CREATED, item));
    let post = |content_type, body: &str| {
        client.post("/items").header("Content-Type", content_type).body(body).send()
    };
    assert_eq!(
        post("application/vnd.x+json; charset=utf-8", r#"{"id":1,"name":"a"}"#).status(),
        Status::CREATED
    );
    problem(&post("text/plain", "{}"), 415);
    problem(&client.post("/items").send(), 415);
    problem(&post("application/json", r#"{"id":1"#), 400);
    let wrong_shape = problem(&post("application/json", r#"{"id":"one","name":"a"}"#), 422);
    assert!(wrong_shape["detail"].as_str().unwrap().contains("line 1 column"));
}

#[test]
fn bodies_come_raw_or_in_pieces() {
    let app = App::new()
        .post("/bytes", |body: Vec<u8>| body.len().to_string())
        .post("/text", |body: String| body)
        .post("/stream", async |Streamed(body): Streamed| body.collect().await.unwrap().to_bytes())
        .post("/maybe", |body: Option<Json<u8>>| body.is_some().to_string());
    let client = client(app);
    assert_eq!(client.post("/bytes").body("12345").send().text(), "5");
    assert_eq!(client.post("/text").body("text").send().text(), "text");
    problem(&client.post("/text").body(vec![0xff]).send(), 400);
    assert_eq!(client.post("/stream").body("pieces").send().text(), "pieces");
    assert_eq!(client.post("/stream").send().text(), "");
    assert_eq!(client.post("/maybe").body("x").send().text(), "false");
}

#[test]
fn other_arguments() {
    let app = App::new()
        .state(String::from("shared"))
        .local(|| Cell::new(0_u32))
        .get("/state", |State(text): State<String>| text.to_string())
        .get("/local", |Local(count): Local<Cell<u32>>| {
            count.set(count.get() + 1);
            count.get().to_string()
        })
        .get("/header", |Headers(headers): Headers| headers["x-a"].as_bytes().to_vec())
        .get("/host", |Headers(headers): Headers| headers["host"].as_bytes().to_vec())
        .get("/peer", |Peer(peer): Peer| format!("{peer:?}"))
        .get("/method", |method: Method| method.name())
        .get("/shutdown", async |mut shutdown: Shutdown| {
            shutdown.begun().await;
            "drained"
        });
    let client = client(app);
    assert_eq!(client.get("/state").send().text(), "shared");
    assert_eq!(client.get("/local").send().text(), "1");
    assert_eq!(client.get("/local").send().text(), "2");
    assert_eq!(client.get("/header").header("X-A", "b").send().text(), "b");
    assert_eq!(client.get("http://other:8/host").send().text(), "other:8", "it replaces Host");
    assert_eq!(client.get("/peer").send().text(), "None");
    assert_eq!(client.get("/method").send().text(), "GET");
    assert_eq!(client.call("HEAD", "/method").send().text(), "", "without the body");
    client.drain();
    assert_eq!(client.get("/shutdown").send().text(), "drained");
}

#[test]
fn methods_that_have_no_handler() {
    let app = || App::new().get("/a", || "a").post("/a", || "p").any("/any", |method: Method| method.name());
    let client = client(app());
    let head = client.call("HEAD", "/a").send();
    assert_eq!((head.status(), head.text()), (Status::OK, ""), "without the body");
    let options = client.call("OPTIONS", "/a").send();
    assert_eq!(
        (options.status(), options.header("Allow")),
        (Status::NO_CONTENT, Some("GET, HEAD, POST, OPTIONS"))
    );
    let refused = client.call("DELETE", "/a").send();
    problem(&refused, 405);
    assert_eq!(refused.header("Allow"), Some("GET, HEAD, POST, OPTIONS"));
    problem(&client.call("BREW", "/a").send(), 501);
    problem(&client.call("BREW", "/b").send(), 501);
    problem(&client.get("/b").send(), 404);
    assert_eq!(client.call("DELETE", "/any").send().text(), "DELETE");
    assert_eq!(client.call("OPTIONS", "*").send().status(), Status::NO_CONTENT);
    assert_eq!(get(app().fallback(|| "else"), "/b").text(), "else");
}

#[test]
fn replies() {
    let app = App::new()
        .get("/html", || Html("<p>"))
        .get("/redirect", || Redirect::to("/html"))
        .get("/nothing", || ())
        .get("/none", || None::<&str>)
        .get("/fields", || ([("Content-Type", "text/css"), ("X-A", "b")], "p {}"))
        .get("/all", || (Status::ACCEPTED, [("Content-Type", "text/css")], "p {}"))
        .get("/map", |headers: HeaderMap| headers.get("x-a").map(|value| value.as_bytes().to_vec()))
        .get("/split", || ([("X-A", "b\r\nSet-Cookie: c")], "x"))
        .get("/by-hand", || {
            let mut response = Response::with_status(Status::ACCEPTED);
            response.header("X-A", "b");
            response
        });
    let client = client(app);
    assert_eq!(client.get("/html").send().header("content-type"), Some("text/html; charset=utf-8"));
    let redirect = client.get("/redirect").send();
    assert_eq!((redirect.status(), redirect.header("location")), (Status::SEE_OTHER, Some("/html")));
    assert_eq!(client.get("/nothing").send().status(), Status::NO_CONTENT);
    problem(&client.get("/none").send(), 404);
    let fields = client.get("/fields").send();
    assert_eq!((fields.header("content-type"), fields.header("x-a")), (Some("text/css"), Some("b")));
    let all = client.get("/all").send();
    assert_eq!(
        (all.status(), all.header("content-type"), all.text()),
        (Status::ACCEPTED, Some("text/css"), "p {}")
    );
    assert_eq!(client.get("/map").header("X-A", "b").send().text(), "b");
    let split = client.get("/split").send();
    assert_eq!((split.status(), split.header("set-cookie")), (Status::INTERNAL_SERVER_ERROR, None));
    assert_eq!(client.get("/by-hand").send().status(), Status::ACCEPTED);
}

#[test]
fn custom_errors_become_responses() {
    enum Broken {
        Taken(&'static str),
    }
    impl Respond for Broken {
        fn respond(self, response: &mut Response) {
            let Broken::Taken(name) = self;
            let problem = Problem::new(Status::CONFLICT).kind("https://example.org/taken").title("taken");
            problem.member("name", name).header("Retry-After", "5").respond(response);
        }
    }
    let answer = get(App::new().get("/", || Err::<(), _>(Broken::Taken("ada"))), "/");
    let value = problem(&answer, 409);
    assert_eq!(
        value,
        json!({"type": "https://example.org/taken", "title": "taken", "status": 409, "name": "ada"})
    );
    assert_eq!(answer.header("retry-after"), Some("5"));
}

#[test]
fn middleware_runs_in_order_around_now_and_later() {
    let inner = App::new()
        .before(|context| match context.header("x-key") {
            Some(b"secret") => Ok(()),
            _ => Err(Problem::new(Status::UNAUTHORIZED)),
        })
        .after(|_, response| {
            response.header("X-Order", "inner");
        })
        .get("/", || "root")
        .get("/now", || "now")
        .get("/later", async || {
            tokio::task::yield_now().await;
            "later"
        });
    let app = App::new()
        .after(|answered, response| {
            response.header("X-Order", "outer").header("X-Path", answered.path);
        })
        .get("/open", || "open")
        .nest("/api/", inner);
    let client = client(app);
    assert_eq!(client.get("/open").send().header("x-path"), Some("/open"));
    assert_eq!(client.get("/api/now").send().status(), Status::UNAUTHORIZED);
    for (path, text) in [("/api", "root"), ("/api/now", "now"), ("/api/later", "later")] {
        let answer = client.get(path).header("X-Key", "secret").send();
        assert_eq!((answer.text(), answer.header("x-order")), (text, Some("inner")), "{path}");
        assert_eq!(answer.header("x-path"), Some(path));
    }
    assert_eq!(client.get("/nothing").send().header("x-order"), Some("outer"));
}

#[test]
fn conflicting_routes_are_reported() {
    for app in [
        App::new().get("/a", || "1").get("/a", || "2"),
        App::new().get("/{a}", || "1").get("/{b}", || "2"),
        App::new().get("/{a", || "1"),
    ] {
        let Err(error) = Client::new(app) else { panic!("no error") };
        assert!(error.to_string().starts_with("route `/"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
    let Err(error) = App::new().listen("nowhere").start() else { panic!("no error") };
    assert!(error.to_string().contains("got `nowhere`"), "{error}");
}

#[test]
fn an_axum_router_runs_unchanged() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    async fn item(
        axum::extract::Path(id): axum::extract::Path<u32>,
        axum::extract::Query(query): axum::extract::Query<std::collections::HashMap<String, String>>,
        axum::extract::State(prefix): axum::extract::State<&'static str>,
    ) -> axum::Json<Value> {
        CALLS.fetch_add(1, Ordering::Relaxed);
        axum::Json(json!({"id": id, "q": query.get("q"), "prefix": prefix}))
    }
    async fn echo(body: axum::body::Body) -> axum::body::Body {
        tokio::task::yield_now().await;
        body
    }
    let router = axum::Router::new()
        .route("/items/{id}", axum::routing::get(item))
        .route("/items", axum::routing::post(async |axum::Json(item): axum::Json<Item>| axum::Json(item)))
        .route("/echo", axum::routing::post(echo))
        .route("/", axum::routing::get(async || ([("x-a", "b")], "root")))
        .with_state("p");
    let client = client(App::new().get("/own", || "own").mount("/axum", router.clone()));
    let answer = client.get("/axum/items/7?q=x%20y").send();
    assert_eq!(answer.json::<Value>(), json!({"id": 7, "q": "x y", "prefix": "p"}));
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    let item = Item { id: 3, name: "n".to_owned() };
    assert_eq!(client.post("/axum/items").json(&item).send().json::<Item>(), item);
    let large = "x".repeat(300_000);
    assert_eq!(client.post("/axum/echo").body(large.clone()).send().text(), large);
    for path in ["/axum", "/axum/"] {
        let root = client.get(path).send();
        assert_eq!((root.text(), root.header("x-a")), ("root", Some("b")));
    }
    // One normal form: the service sees the path that was routed.
    for target in ["/%61xum/items/7", "/axum/%69tems/7", "http://other/axum/items/7"] {
        assert_eq!(client.get(target).send().json::<Value>()["id"], 7, "{target}");
    }
    assert_eq!(client.get("/axum/nothing").send().status(), Status::NOT_FOUND);
    assert_eq!(client.get("/own").send().text(), "own");
    assert_eq!(get(App::new().mount("/", router), "/items/1").status(), Status::OK);
}
