//! Middleware as authors use it: order, async functions, and what is built in.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatout::middleware::{
    BasicAuth, BasicUser, BearerAuth, Cors, Inner, Middleware, Next, PanicPage, RateLimit, RequestId,
    RequestIds, Timeout,
};
use flatout::test::{Answer, Client};
use flatout::{
    App, Context, Extension, ExtractAsync, Headers, Json, Method, Path, Problem, Response, Status, Streamed,
    engine,
};
use http_body_util::BodyExt;

fn client(app: App) -> Client {
    Client::new(app).unwrap()
}

/// Which middleware ran, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap()).join(" ")
    }
}

struct Named(&'static str, Log);

impl Middleware for Named {
    fn call<'a>(
        &self,
        inner: Inner<'a>,
        context: &mut Context<'a>,
        response: &mut Response,
    ) -> engine::Reply {
        let Named(name, log) = self;
        log.note(format!("{name}>"));
        let (name, log) = (*name, log.clone());
        inner.call_then(context, response, move |_| log.note(format!("<{name}")))
    }
}

fn noting(app: App, name: &'static str, log: &Log) -> App {
    let (around, before, after) = (log.clone(), log.clone(), log.clone());
    app.with(Named(name, log.clone()))
        .before(move |_| {
            before.note(format!("{name}-before"));
            Ok::<(), Problem>(())
        })
        .after(move |_, _| after.note(format!("{name}-after")))
        .around(async move |next: Next| {
            around.note(format!("{name}-around>"));
            let response = next.run().await;
            around.note(format!("<{name}-around"));
            response
        })
}

#[test]
fn middleware_runs_in_the_documented_order() {
    let log = Log::default();
    let inner = noting(App::new(), "inner", &log).get("/sync", || "sync").get("/waits", async || {
        tokio::task::yield_now().await;
        "waits"
    });
    let client = client(noting(App::new(), "outer", &log).get("/own", || "own").nest("/in", inner));
    let both = "outer> outer-around> outer-before inner> inner-around> inner-before \
                inner-after <inner-around <inner outer-after <outer-around <outer";
    for path in ["/in/sync", "/in/waits"] {
        client.get(path).send();
        assert_eq!(log.take(), both, "{path}");
    }
    let own = "outer> outer-around> outer-before outer-after <outer-around <outer";
    for (method, path, status) in [
        ("GET", "/own", 200),
        ("GET", "/nothing", 404),
        ("DELETE", "/own", 405),
        ("OPTIONS", "/own", 204),
        ("BREW", "/own", 501),
    ] {
        assert_eq!(client.call(method, path).send().status().code(), status);
        assert_eq!(log.take(), own, "{method} {path}");
    }
    assert_eq!(client.call("DELETE", "/in/sync").send().header("Allow"), Some("GET, HEAD, OPTIONS"));
    assert_eq!(log.take(), both);
}

#[test]
fn a_check_that_fails_is_seen_by_all_that_comes_after() {
    let log = Log::default();
    let (first, second) = (log.clone(), log.clone());
    let inner = App::new().after(move |_, _| first.note("inner")).get("/", || "never");
    let outer = App::new()
        .before(|_| Err::<(), _>(Status::FORBIDDEN))
        .after(move |_, _| second.note("outer"))
        .nest("/in", inner);
    assert_eq!(client(outer).get("/in").send().status(), Status::FORBIDDEN);
    assert_eq!(log.take(), "inner outer");
}

struct User(String);

impl ExtractAsync for User {
    fn extract_async(context: &mut Context<'_>) -> impl Future<Output = Result<User, Problem>> + use<> {
        let name = context.header("x-user").map(|name| String::from_utf8_lossy(name).into_owned());
        async move {
            tokio::task::yield_now().await;
            name.map(User).ok_or(Problem::new(Status::UNAUTHORIZED))
        }
    }
}

/// A handler that uses the request after its turn: the path, its parameters, the query, fields, the body.
fn echo(app: App) -> App {
    #[derive(serde::Deserialize)]
    struct Page {
        page: u8,
    }
    app.get("/items/{id}", |Path(id): Path<u32>, flatout::Query(page): flatout::Query<Page>| {
        format!("{id} {}", page.page)
    })
    .post("/whole", |Headers(headers): Headers, Json(body): Json<Vec<u8>>| {
        format!("{:?} {body:?}", headers["x-user"])
    })
    .post("/stream", async |Streamed(body): Streamed| body.collect().await.unwrap().to_bytes())
    .post("/waits", async |body: String| {
        tokio::task::yield_now().await;
        body
    })
    .get("/extension", |Extension(name): Extension<String>| name)
    .fallback(|| (Status::NOT_FOUND, "nothing"))
}

fn check_echo(client: &Client) {
    let call = |method, path| client.call(method, path).header("X-User", "ada");
    assert_eq!(call("GET", "/items/7?page=3").send().text(), "7 3");
    assert_eq!(call("POST", "/whole").json(&[1, 2]).send().text(), "\"ada\" [1, 2]");
    assert_eq!(call("POST", "/stream").body("pieces").send().text(), "pieces");
    assert_eq!(call("POST", "/waits").body("later").send().text(), "later");
    assert_eq!(call("GET", "/extension").send().text(), "ada");
    assert_eq!(call("GET", "/else").send().text(), "nothing");
    assert_eq!(call("PUT", "/whole").send().header("Allow"), Some("POST, OPTIONS"));
}

#[test]
fn a_function_that_waits_first_has_the_whole_request_for_its_handler() {
    // With an argument that waits, and with its own wait.
    let app = App::new().around(async |User(name): User, mut next: Next| {
        next.extensions_mut().insert(name);
        next.run().await
    });
    let waits = client(echo(app));
    check_echo(&waits);
    assert_eq!(waits.get("/items/7").send().status(), Status::UNAUTHORIZED);
    let app = App::new().around(async |Headers(headers): Headers, mut next: Next| {
        tokio::time::sleep(Duration::from_millis(1)).await;
        next.extensions_mut().insert(headers["x-user"].to_str().unwrap().to_owned());
        let response = next.run().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        response
    });
    check_echo(&client(echo(app)));
}

#[test]
fn a_function_that_does_not_wait_and_several_in_a_row_do_too() {
    let pass = async |next: Next| {
        let response = next.run().await;
        tokio::task::yield_now().await;
        response
    };
    let app = App::new()
        .around(pass)
        .around(async |Headers(headers): Headers, mut next: Next| {
            next.extensions_mut().insert(headers["x-user"].to_str().unwrap().to_owned());
            next.run().await
        })
        .around(async |_: User, next: Next| next.run().await)
        .around(pass);
    check_echo(&client(echo(app)));
}

#[test]
fn a_function_may_answer_by_itself_change_the_response_or_run_its_handler_elsewhere() {
    let calls = Rc::new(Cell::new(0));
    assert_eq!(calls.get(), 0);
    let app = App::new()
        .around(async |method: Method, next: Next| match method {
            Method::Delete => Err(Problem::new(Status::FORBIDDEN)),
            _ => Ok(next.run().await),
        })
        .around(async |next: Next| {
            // Polled by another task than the function's.
            let task = tokio::task::spawn_local(next.run());
            task.await.map_err(|_| Status::INTERNAL_SERVER_ERROR)
        })
        .around(async |next: Next| {
            // Polled by its own executor, which polls it only when it was woken.
            let (mut response, ()) = tokio::join!(next.run(), tokio::task::yield_now());
            response.header("X-Joined", "yes");
            response
        })
        .get("/", || "sync")
        .delete("/", || "never")
        .get("/waits", async || {
            tokio::time::sleep(Duration::from_millis(1)).await;
            "waits"
        });
    let client = client(app);
    for (path, text) in [("/", "sync"), ("/waits", "waits")] {
        let answer = client.get(path).send();
        assert_eq!((answer.text(), answer.header("X-Joined")), (text, Some("yes")));
    }
    assert_eq!(client.call("DELETE", "/").send().status(), Status::FORBIDDEN);
}

#[test]
fn a_handler_that_waits_too_long_is_dropped() {
    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = dropped.clone();
    let app = App::new()
        .with(Timeout::new(Duration::from_millis(5)).status(Status::GATEWAY_TIMEOUT))
        .get("/sync", || "sync")
        .get("/slow", async move || {
            let _dropped = Dropped(count.clone());
            std::future::pending::<()>().await;
        });
    let client = client(app);
    assert_eq!(client.get("/sync").send().text(), "sync");
    assert_eq!(client.get("/slow").send().status(), Status::GATEWAY_TIMEOUT);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn preflights_are_answered_before_anything_else_runs() {
    let cors = Cors::new().origins(["https://a.example"]).credentials().expose(&["X-Total"]);
    let app = App::new()
        .with(cors)
        .before(|context| match context.header("authorization") {
            Some(_) => Ok(()),
            None => Err(Problem::new(Status::UNAUTHORIZED)),
        })
        .get("/", || "data")
        .put("/", || "put");
    let client = client(app);
    let preflight = |origin| {
        client
            .call("OPTIONS", "/")
            .header("Origin", origin)
            .header("Access-Control-Request-Method", "PUT")
            .header("Access-Control-Request-Headers", "authorization")
            .send()
    };
    let field = |answer: &Answer, name: &str| answer.header(name).map(str::to_owned);
    let allowed = preflight("https://a.example");
    assert_eq!(allowed.status(), Status::NO_CONTENT);
    for (name, value) in [
        ("Access-Control-Allow-Origin", "https://a.example"),
        ("Access-Control-Allow-Credentials", "true"),
        ("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE"),
        ("Access-Control-Allow-Headers", "authorization"),
        ("Access-Control-Max-Age", "600"),
        ("Vary", "Origin"),
    ] {
        assert_eq!(field(&allowed, name).as_deref(), Some(value), "{name}");
    }
    let refused = preflight("https://b.example");
    assert_eq!(
        (refused.status(), field(&refused, "Access-Control-Allow-Origin")),
        (Status::NO_CONTENT, None)
    );
    assert_eq!(field(&refused, "Access-Control-Allow-Methods"), None);
    // Scripts can read error responses too.
    let answer = client.get("/").header("Origin", "https://a.example").send();
    assert_eq!(answer.status(), Status::UNAUTHORIZED);
    assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("https://a.example"));
    assert_eq!(answer.header("Access-Control-Expose-Headers"), Some("X-Total"));
    // Without the preflight's fields, OPTIONS is not a preflight.
    assert_eq!(client.call("OPTIONS", "/").send().status(), Status::UNAUTHORIZED);

    let open = self::client(App::new().with(Cors::new().any_origin()).get("/", || "data"));
    let answer = open.get("/").header("Origin", "null").send();
    assert_eq!((answer.header("Access-Control-Allow-Origin"), answer.header("Vary")), (Some("*"), None));
}

#[test]
fn mistakes_are_found_when_the_application_starts() {
    for (app, part) in [
        (App::new().with(Cors::new().any_origin().credentials()), "list of origins"),
        (App::new().with(Cors::new().origins(["https://a.example/"])), "https://a.example/"),
        (App::new().with(Cors::new().origins(["*"])), "`*`"),
        (App::new().with(RateLimit::per_second(0.0)), "rate"),
        (App::new().with(RateLimit::per_second(-1.0)), "rate"),
        (App::new().with(RateLimit::per_second(f64::NAN)), "rate"),
        (App::new().with(RateLimit::per_second(1.0).burst(0)), "burst"),
        (App::new().with(BasicAuth::users("a\"b", [("a", "b")])), "realm"),
    ] {
        let Err(error) = Client::new(App::new().nest("/in", app)) else { panic!("{part}") };
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn requests_have_names() {
    let app = App::new()
        .with(RequestIds::new())
        .get("/", |id: RequestId| id.to_string())
        .get("/fails", || Problem::new(Status::CONFLICT));
    let client = client(app);
    let (first, second) = (client.get("/").send(), client.get("/").send());
    assert_eq!(first.header("X-Request-Id"), Some(first.text()));
    assert_eq!(first.text().len(), 32);
    assert_ne!(first.text(), second.text());
    assert_eq!(client.get("/").header("X-Request-Id", "abc-1").send().text(), "abc-1");
    for wrong in ["a b", "<script>", &"x".repeat(65), ""] {
        let answer = client.get("/").header("X-Request-Id", wrong).send();
        assert_eq!(answer.text().len(), 32, "{wrong}");
    }
    assert!(client.get("/fails").send().header("X-Request-Id").is_some());
    assert!(client.get("/nothing").send().header("X-Request-Id").is_some());
    let without = self::client(App::new().get("/", |id: RequestId| id.to_string()));
    assert_eq!(without.get("/").send().status(), Status::INTERNAL_SERVER_ERROR);
}

#[test]
fn panics_have_a_page_and_end_their_connection() {
    fn broken() -> &'static str {
        panic!("the secret of {}", "ada")
    }
    let seen = Log::default();
    let log = seen.clone();
    let page = PanicPage::new(move |message| {
        log.note(message);
        (Status::BAD_GATEWAY, "sorry")
    });
    let app = App::new().with(RequestIds::new()).with(page).get("/sync", broken).get("/waits", async || {
        tokio::task::yield_now().await;
        broken()
    });
    let client = client(app);
    for path in ["/sync", "/waits"] {
        let answer = client.get(path).send();
        assert_eq!((answer.status(), answer.text()), (Status::BAD_GATEWAY, "sorry"));
        assert!(answer.header("X-Request-Id").is_some());
        assert_eq!(seen.take(), "the secret of ada");
    }
}

#[test]
fn passwords_and_tokens_are_required() {
    let app = App::new()
        .with(BasicAuth::users("office", [("ada", "love:lace"), ("bob", "")]))
        .get("/", |Extension(BasicUser(name)): Extension<BasicUser>| name);
    let basic = client(app);
    let missing = basic.get("/").send();
    assert_eq!(missing.status(), Status::UNAUTHORIZED);
    assert_eq!(missing.header("WWW-Authenticate"), Some("Basic realm=\"office\", charset=\"UTF-8\""));
    let answer = |value: &str| basic.get("/").header("Authorization", value).send();
    assert_eq!(answer("Basic YWRhOmxvdmU6bGFjZQ==").text(), "ada");
    assert_eq!(answer("basic   Ym9iOg==").text(), "bob");
    for wrong in [
        "Basic YWRhOmxvdmU6bGFj",
        "Basic",
        "Basic =",
        "Bearer YWRhOmxvdmU6bGFjZQ==",
        "Basic YWRh",
        "Basic /////w==",
    ] {
        assert_eq!(answer(wrong).status(), Status::UNAUTHORIZED, "{wrong}");
    }

    let app = App::new()
        .with(BearerAuth::new(|token, context| match token {
            "t1" => {
                context.extensions_mut().insert("ada".to_owned());
                Ok(())
            }
            "late" => Err(Problem::new(Status::SERVICE_UNAVAILABLE)),
            _ => Err(Problem::new(Status::UNAUTHORIZED)),
        }))
        .get("/", |Extension(name): Extension<String>| name);
    let bearer = client(app);
    let answer = |value: &str| bearer.get("/").header("Authorization", value).send();
    assert_eq!(answer("Bearer t1").text(), "ada");
    assert_eq!(answer("Bearer late").status(), Status::SERVICE_UNAVAILABLE);
    let wrong = answer("Bearer t2");
    assert_eq!(wrong.header("WWW-Authenticate"), Some("Bearer error=\"invalid_token\""));
    assert_eq!(bearer.get("/").send().header("WWW-Authenticate"), Some("Bearer"));
}

#[test]
fn rate_limited_clients_get_retry_after() {
    let limit = RateLimit::per_minute(1.0).burst(3).by(|context| context.header("x-key").map(<[u8]>::to_vec));
    let client = client(App::new().with(limit).get("/", || "in"));
    let ask = |key| client.get("/").header("X-Key", key).send();
    for _ in 0..3 {
        assert_eq!(ask("a").status(), Status::OK);
    }
    let refused = ask("a");
    assert_eq!(refused.status(), Status::TOO_MANY_REQUESTS);
    let wait: u64 = refused.header("Retry-After").unwrap().parse().unwrap();
    assert!((55..=60).contains(&wait), "{wait}");
    assert_eq!(ask("b").status(), Status::OK);
    // A client without a key is not limited.
    assert!((0..10).all(|_| client.get("/").send().status() == Status::OK));
}

#[cfg(feature = "compression")]
#[test]
fn text_is_compressed_if_the_client_accepts_it() {
    use std::io::Read;

    use flatout::middleware::Compression;

    let text = |bytes: usize| "all work and no play ".repeat(bytes / 21 + 1)[..bytes].to_owned();
    let app = App::new()
        .with(Compression::new())
        .get("/{bytes}", move |Path(bytes): Path<usize>| ([("ETag", "\"v1\"")], text(bytes)))
        .get("/waits/{bytes}", async move |Path(bytes): Path<usize>| {
            tokio::task::yield_now().await;
            text(bytes)
        })
        .get("/image", || ([("Content-Type", "image/png")], vec![b'x'; 5000]))
        .get("/encoded", || ([("Content-Encoding", "br")], "x".repeat(5000)))
        .get("/kept", || ([("Cache-Control", "private, no-transform")], "x".repeat(5000)));
    let client = client(app);
    let ask = |path: &str| client.get(path).header("Accept-Encoding", "gzip, br").send();
    let unpacked = |answer: &Answer| {
        assert_eq!(answer.header("Content-Encoding"), Some("gzip"));
        let mut out = String::new();
        flate2::read::GzDecoder::new(answer.bytes()).read_to_string(&mut out).unwrap();
        out
    };
    for path in ["/5000", "/waits/5000", "/200000", "/waits/200000"] {
        let answer = ask(path);
        let bytes: usize = path.rsplit('/').next().unwrap().parse().unwrap();
        assert_eq!(unpacked(&answer), text(bytes), "{path}");
        assert!(answer.bytes().len() < bytes / 5);
        assert_eq!(answer.header("Vary"), Some("Accept-Encoding"));
    }
    assert_eq!(ask("/5000").header("ETag"), Some("W/\"v1\""));
    let plain = client.get("/5000").send();
    assert_eq!((plain.text(), plain.header("Vary")), (&*text(5000), Some("Accept-Encoding")));
    assert_eq!(plain.header("ETag"), Some("\"v1\""));
    let refused = client.get("/5000").header("Accept-Encoding", "gzip;q=0.2, identity").send();
    assert_eq!(refused.header("Content-Encoding"), None);
    for path in ["/100", "/image", "/kept", "/9000000"] {
        assert_eq!(ask(path).header("Content-Encoding"), None, "{path}");
    }
    assert_eq!(ask("/encoded").header("Content-Encoding"), Some("br"));
}

#[cfg(feature = "compression")]
#[test]
fn vary_names_a_field_once() {
    use flatout::middleware::Compression;
    let text = "all work and no play ".repeat(100);
    let page = move || ([("Content-Type", "text/plain"), ("Vary", "Origin, accept-encoding")], text.clone());
    let inner = App::new().with(Compression::new()).get("/", page);
    let client = Client::new(App::new().with(Compression::new()).nest("/in", inner)).unwrap();
    let answer = client.get("/in").header("Accept-Encoding", "gzip").send();
    assert_eq!(answer.header("Content-Encoding"), Some("gzip"));
    assert_eq!(answer.all("Vary").collect::<Vec<_>>(), ["Origin, accept-encoding"]);
}
