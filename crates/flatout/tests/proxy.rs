//! Requests that another server responds to.

mod socket;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flatout::cache::{Cache, Plan, Purge, PurgeScope, Rules};
use flatout::proxy;
use flatout::test::Client;
use flatout::{App, ClientIp, Context, Headers, Host, Problem, Proxy, Status, Uri};
use socket::{ask, get, serve};

/// Responds with the request that it got.
fn upstream() -> App {
    App::new()
        .get("/slow", async || {
            tokio::time::sleep(std::time::Duration::from_secs(60)).await;
            "late"
        })
        .post("/size", |body: Vec<u8>| body.len().to_string())
        .fallback(|uri: Uri, Host(host): Host, Headers(headers): Headers, ClientIp(_): ClientIp| {
            let forwarded = headers.get("x-forwarded-for").map(|value| value.to_str().unwrap().to_owned());
            format!("{uri} {host} {}", forwarded.unwrap_or_default())
        })
}

fn address(server: &socket::Served) -> String {
    format!("http://{}", server.address)
}

#[test]
fn requests_without_a_route_are_forwarded() {
    let behind = serve(upstream());
    let inner = App::new().get("/own", || "inner").proxy("/old", &*address(&behind));
    let app = App::new()
        .get("/own", || "own")
        .proxy("/", &*address(&behind))
        .proxy(
            "/api",
            Proxy::to(&address(&behind)).forward(|forward| forward.host = proxy::Host::Set("set".to_owned())),
        )
        .nest("/in/{tenant}", inner);
    let front = serve(app);
    for (path, text) in [
        ("/own", "own".to_owned()),
        ("/elsewhere?a=%20b", "/elsewhere?a=%20b t 127.0.0.1".to_owned()),
        ("/", "/ t 127.0.0.1".to_owned()),
        ("/a%20b/%C3%BC", "/a%20b/%C3%BC t 127.0.0.1".to_owned()),
        ("/api/x", "/x set 127.0.0.1".to_owned()),
        ("/api", "/ set 127.0.0.1".to_owned()),
        ("/in/me/own", "inner".to_owned()),
        ("/in/me/old/x?y", "/x?y t 127.0.0.1".to_owned()),
    ] {
        let answer = ask(&front, &get(path));
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with(&format!("\r\n\r\n{text}")),
            "{path}: {answer}"
        );
    }
    // The client's own claims are replaced.
    let claimed = "GET /x HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: 1.1.1.1\r\nConnection: close\r\n\r\n";
    assert!(ask(&front, claimed).ends_with("/x t 127.0.0.1"));
}

#[test]
fn bodies_of_all_sizes_arrive() {
    let behind = serve(upstream().body_limit(8 << 20));
    let app = App::new().body_limit(4 << 20).proxy("/", &*address(&behind));
    let client = Client::over_socket(app).unwrap();
    for length in [0, 10, 100_000, 3 << 20] {
        let answer = client.post("/size").body(vec![b'x'; length]).send();
        assert_eq!((answer.status(), answer.text()), (Status::OK, &*length.to_string()), "{length}");
    }
    assert_eq!(client.post("/size").body(vec![b'x'; 5 << 20]).send().status(), Status::CONTENT_TOO_LARGE);
}

#[test]
fn errors_of_the_proxy_are_problem_details() {
    let dead = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let behind = serve(upstream());
    let quick = Proxy::to(&address(&behind))
        .upstream(|upstream| upstream.read_time_max = std::time::Duration::from_secs(2));
    let client = Client::over_socket(App::new().proxy("/dead", &*dead).proxy("/quick", quick)).unwrap();
    for (path, status) in [("/dead/x", Status::BAD_GATEWAY), ("/quick/slow", Status::GATEWAY_TIMEOUT)] {
        let answer = client.get(path).send();
        assert_eq!(answer.status(), status, "{path}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(client.get("/quick/fast").send().status(), Status::OK);
}

#[test]
fn middleware_may_refuse_and_may_wait() {
    let behind = serve(upstream());
    let refusing = App::new()
        .before(|context: &mut Context<'_>| match context.header("x-key") {
            Some(_) => Ok(()),
            None => Err(Problem::new(Status::UNAUTHORIZED)),
        })
        .proxy("/", &*address(&behind));
    let waiting = App::new()
        .around(async |next: flatout::middleware::Next| {
            tokio::task::yield_now().await;
            next.run().await
        })
        .proxy("/", &*address(&behind));
    let client =
        Client::over_socket(App::new().nest("/refusing", refusing).nest("/waiting", waiting)).unwrap();
    assert_eq!(client.get("/refusing/x").send().status(), Status::UNAUTHORIZED);
    assert_eq!(client.get("/refusing/x").header("X-Key", "1").send().status(), Status::OK);
    assert_eq!(client.get("/waiting/x").send().status(), Status::OK);
}

#[test]
fn an_invalid_server_is_reported_at_startup() {
    for server in ["ftp://a", "http://a/b", ""] {
        let Err(error) = Client::over_socket(App::new().proxy("/", server)) else { panic!("{server}") };
        assert!(error.to_string().contains("proxy: got"), "{error}");
    }
    // Without an upstream server.
    let client = Client::new(App::new().proxy("/", "127.0.0.1:1")).unwrap();
    assert_eq!(client.get("/").send().status(), Status::NOT_IMPLEMENTED);
}

#[test]
fn responses_are_kept_until_they_are_purged() {
    let count = Arc::new(AtomicU32::new(0));
    let asked = count.clone();
    let behind = serve(App::new().fallback(move || asked.fetch_add(1, Ordering::Relaxed).to_string()));
    let cache = Cache::open(Plan { memory_bytes: 8 << 20, ..Plan::default() });
    let kept = Proxy::to(&address(&behind)).cache(&cache, Rules::fresh(Duration::from_secs(3600)));
    let front = serve(App::new().get("/own", || "own").proxy("/", kept));
    let body = |path: &str| ask(&front, &get(path)).rsplit_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!(
        (body("/a"), body("/a"), body("/b"), body("/own")),
        ("0".into(), "0".into(), "1".into(), "own".into())
    );
    assert_eq!(cache.purge(&Purge { scope: PurgeScope::Url("http://t/a".to_owned()), is_soft: false }), 1);
    assert_eq!((body("/a"), body("/a"), body("/b")), ("2".into(), "2".into(), "1".into()));
    assert_eq!(count.load(Ordering::Relaxed), 3);
}

#[test]
fn proxies_of_an_application_share_its_cache() {
    let count = Arc::new(AtomicU32::new(0));
    let asked = count.clone();
    let behind = serve(
        App::new()
            .fallback(move |Host(host): Host| format!("{host} {}", asked.fetch_add(1, Ordering::Relaxed))),
    );
    let open = || Cache::open(Plan { memory_bytes: 8 << 20, ..Plan::default() });
    let (outer, own) = (open(), open());
    let hour = || Rules::fresh(Duration::from_secs(3600));
    let to = || Proxy::to(&address(&behind));
    let named = |name: &str| to().forward(|forward| forward.host = proxy::Host::Set(name.to_owned()));
    let inner = App::new().proxy("/", to());
    let other = App::new().cache(&own, hour()).proxy("/", to());
    let app = App::new()
        .proxy("/a", to())
        .proxy("/b", named("b"))
        .proxy("/c", to().forward(|forward| forward.host = proxy::Host::Upstream))
        .proxy("/both", to().and(&address(&behind)))
        .proxy("/own", to().cache(&own, hour()))
        .nest("/inner", inner)
        .nest("/other", other)
        .cache(&outer, hour());
    let front = serve(app);
    let body = |path: &str| ask(&front, &get(path)).rsplit_once("\r\n\r\n").unwrap().1.to_owned();
    let first = body("/a/x");
    assert_eq!(first, "t 0");
    // The same of the same server, through another proxy of the application or one nested in it.
    assert_eq!((body("/a/x"), body("/inner/x")), (first.clone(), first));
    // To the server these are other hosts.
    assert_eq!((body("/b/x"), body("/b/x")), ("b 1".to_owned(), "b 1".to_owned()));
    let third = body("/c/x");
    assert!(third.ends_with(" 2") && body("/c/x") == third, "{third}");
    // Each proxy with its own cache.
    assert_eq!((body("/own/x"), body("/other/x")), ("t 3".to_owned(), "t 3".to_owned()));
    assert_eq!(outer.purge(&Purge { scope: PurgeScope::All, is_soft: false }), 3);
    assert_eq!((body("/a/x"), body("/other/x")), ("t 4".to_owned(), "t 3".to_owned()));
    // Of two servers, the other may respond with something else.
    assert_eq!((body("/both/x"), body("/both/x")), ("t 5".to_owned(), "t 5".to_owned()));
}

/// In front of the application, TLS ends at another server.
#[test]
fn the_scheme_from_a_trusted_proxy_is_forwarded_and_in_the_key() {
    let behind = serve(App::new().fallback(|Headers(headers): Headers| {
        let said: Vec<&str> =
            headers.get_all("x-forwarded-proto").iter().flat_map(|it| it.to_str()).collect();
        said.join("|")
    }));
    let cache = Cache::open(Plan { memory_bytes: 8 << 20, ..Plan::default() });
    let kept = Proxy::to(&address(&behind)).cache(&cache, Rules::fresh(Duration::from_secs(3600)));
    let trusting = serve(App::new().trusted_proxies(&["127.0.0.1"]).proxy("/", kept));
    let body = |server: &socket::Served, lines: &str| {
        let request = format!("GET /a HTTP/1.1\r\nHost: t\r\n{lines}Connection: close\r\n\r\n");
        ask(server, &request).rsplit_once("\r\n\r\n").unwrap().1.to_owned()
    };
    for (lines, scheme) in [
        ("", "http"),
        ("X-Forwarded-Proto: https\r\n", "https"),
        ("X-Forwarded-Proto: http\r\nX-Forwarded-Proto: http , HTTPS\r\n", "https"),
        ("X-Forwarded-Proto: https, http\r\n", "http"),
        ("Forwarded: proto=https\r\n", "http"),
    ] {
        assert_eq!(body(&trusting, lines), scheme, "{lines}");
    }
    assert_eq!(cache.figures().memory_entries, 2);
    let purge = |url: &str| cache.purge(&Purge { scope: PurgeScope::Url(url.to_owned()), is_soft: false });
    assert_eq!((purge("https://t/a"), purge("http://t/a")), (1, 1));
    // Nobody else is believed.
    let plain = serve(App::new().proxy("/", &*address(&behind)));
    assert_eq!(body(&plain, "X-Forwarded-Proto: https\r\n"), "http");
}
