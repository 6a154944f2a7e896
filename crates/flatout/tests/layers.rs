//! Layers of tower and tower-http around handlers, unchanged.

mod socket;

use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flatout::test::Client;
use flatout::{
    App, Attachment, Extension, Headers, Path, Response, State, Status, Streamed, Streaming, engine,
};
use http::{HeaderName, HeaderValue};
use http_body_util::BodyExt;
use socket::{ask, connect, get, serve};
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::request_id::{MakeRequestId, PropagateRequestIdLayer, RequestId, SetRequestIdLayer};
use tower_http::set_header::SetRequestHeaderLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

fn client(app: App) -> Client {
    Client::new(app).unwrap()
}

#[test]
fn a_time_limit() {
    let limit = TimeoutLayer::with_status_code(http::StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(500));
    let app = App::new()
        .layer(limit)
        .get("/sync", || "sync")
        .get("/slow", async || std::future::pending::<()>().await)
        .get("/waits", async || {
            tokio::time::sleep(Duration::from_millis(1)).await;
            "waits"
        });
    let client = client(app);
    assert_eq!(client.get("/sync").send().text(), "sync");
    assert_eq!(client.get("/waits").send().text(), "waits");
    assert_eq!(client.get("/slow").send().status(), Status::GATEWAY_TIMEOUT);
}

#[test]
fn cors() {
    let origin = HeaderValue::from_static("https://a.example");
    let client = client(App::new().layer(CorsLayer::new().allow_origin(origin)).put("/", || "put"));
    let preflight = client.call("OPTIONS", "/").header("Origin", "https://a.example");
    let preflight = preflight.header("Access-Control-Request-Method", "PUT").send();
    assert_eq!(preflight.header("Access-Control-Allow-Origin"), Some("https://a.example"));
    let answer = client.call("PUT", "/").header("Origin", "https://a.example").send();
    assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("https://a.example"));
    assert_eq!(answer.text(), "put");
}

#[test]
fn compression_of_memory_streams_and_files() {
    let text = "all work and no play ".repeat(500);
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("layers");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("a.txt"), &text).unwrap();
    let (whole, pieces) = (text.clone(), text.clone());
    let file = move || {
        let file = std::fs::File::open(folder.join("a.txt")).unwrap();
        let metadata = file.metadata().unwrap();
        let range = engine::FileRange {
            file: Arc::new(file),
            offset: 0,
            bytes: metadata.len(),
            modified: metadata.modified().unwrap(),
            witness: None,
        };
        let mut response = Response::new();
        response.header("Content-Type", "text/plain").set_body(engine::Body::File(range));
        response
    };
    let app = App::new()
        .layer(CompressionLayer::new())
        .get("/whole", move || whole.clone())
        .get("/stream", move || {
            let pieces: Vec<_> = pieces.as_bytes().chunks(100).map(Bytes::copy_from_slice).collect();
            let stream = futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>));
            ([("Content-Type", "text/plain")], Streaming(stream))
        })
        .get("/file", file);
    let client = client(app);
    for path in ["/whole", "/stream", "/file"] {
        let plain = client.get(path).send();
        assert_eq!((plain.text(), plain.header("Content-Encoding")), (&*text, None), "{path}");
        let packed = client.get(path).header("Accept-Encoding", "gzip").send();
        assert_eq!(packed.header("Content-Encoding"), Some("gzip"), "{path}");
        let mut out = String::new();
        flate2::read::GzDecoder::new(packed.bytes()).read_to_string(&mut out).unwrap();
        assert_eq!(out, text, "{path}");
    }
}

#[derive(Clone, Default)]
struct Counting(Arc<Mutex<u32>>);

impl MakeRequestId for Counting {
    fn make_request_id<B>(&mut self, _: &http::Request<B>) -> Option<RequestId> {
        let mut count = self.0.lock().unwrap();
        *count += 1;
        Some(RequestId::new(HeaderValue::from(*count)))
    }
}

#[test]
fn request_ids_are_set_seen_by_handlers_and_propagated() {
    let name = HeaderName::from_static("x-request-id");
    let app = App::new()
        .layer(SetRequestIdLayer::new(name.clone(), Counting::default()))
        .layer(PropagateRequestIdLayer::new(name))
        .get("/field", |Headers(headers): Headers| headers["x-request-id"].to_str().unwrap().to_owned())
        .get("/extension", |Extension(id): Extension<RequestId>| {
            id.header_value().to_str().unwrap().to_owned()
        });
    let client = client(app);
    for (path, id) in [("/field", "1"), ("/extension", "2")] {
        let answer = client.get(path).send();
        assert_eq!((answer.text(), answer.header("X-Request-Id")), (id, Some(id)));
    }
    assert_eq!(client.get("/field").header("X-Request-Id", "mine").send().text(), "mine");
}

#[test]
fn traces_have_request_and_response() {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);
    struct Visitor<'s>(&'s mut String);
    impl tracing::field::Visit for Visitor<'_> {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            self.0.push_str(&format!("{}={value:?} ", field.name()));
        }
    }
    impl tracing::Subscriber for Lines {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, attributes: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            let mut line = String::new();
            attributes.record(&mut Visitor(&mut line));
            self.0.lock().unwrap().push(line);
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut line = String::new();
            event.record(&mut Visitor(&mut line));
            self.0.lock().unwrap().push(line);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    let lines = Lines::default();
    let app = App::new().layer(TraceLayer::new_for_http()).get("/traced", || "yes");
    tracing::subscriber::with_default(lines.clone(), || {
        assert_eq!(client(app).get("/traced").send().text(), "yes");
    });
    let heard = lines.0.lock().unwrap().join("\n");
    assert!(heard.contains("uri=/traced") && heard.contains("status=200"), "{heard}");
}

#[test]
fn limits_on_bodies_and_on_requests_in_flight() {
    let app = App::new().layer(RequestBodyLimitLayer::new(4)).post("/whole", |body: String| body).post(
        "/stream",
        async |Streamed(body): Streamed| match body.collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(_) => Err(Status::BAD_REQUEST),
        },
    );
    let client = client(app);
    for path in ["/whole", "/stream"] {
        assert_eq!(client.post(path).body("abcd").send().text(), "abcd", "{path}");
        assert_eq!(client.post(path).body("abcde").send().status(), Status::CONTENT_TOO_LARGE, "{path}");
    }

    // One request at a time; further ones get 503 at once.
    let busy = tower::ServiceBuilder::new().load_shed().concurrency_limit(1).into_inner();
    let (enter, entered) = std::sync::mpsc::channel();
    let release = Arc::new(tokio::sync::Notify::new());
    let app = App::new().layer(busy).state(release.clone()).get(
        "/",
        async move |State(wait): State<Arc<tokio::sync::Notify>>| {
            let _ = enter.send(());
            wait.notified().await;
            "done"
        },
    );
    let server = serve(app);
    let mut first = connect(&server);
    std::io::Write::write_all(&mut first, get("/").as_bytes()).unwrap();
    entered.recv_timeout(socket::TIME_MAX).unwrap();
    assert!(ask(&server, &get("/")).starts_with("HTTP/1.1 503 "));
    release.notify_one();
    let mut answer = String::new();
    first.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("done"), "{answer}");
}

#[test]
fn details_missing_from_http_types_are_preserved() {
    let field = SetRequestHeaderLayer::overriding(
        HeaderName::from_static("x-layer"),
        HeaderValue::from_static("was here"),
    );
    let inner = App::new()
        .layer(field)
        .get("/items/{id}", |Path(id): Path<u32>, Headers(headers): Headers| {
            format!("{id} {}", headers["x-layer"].to_str().unwrap())
        })
        .get("/extras", || {
            let mut response = Response::new();
            response.header("Content-Type", "text/plain").hint("Link", "</a>").trailer("X-Sum", "7").close();
            response.buffer().extend_from_slice(b"body");
            response
        })
        .get("/attached", || Attachment("a.txt", "attached"));
    let app = App::new()
        .nest("/in", inner)
        .get("/out", |Headers(headers): Headers| headers.contains_key("x-layer").to_string());
    let server = serve(app);
    assert!(ask(&server, &get("/in/items/7")).ends_with("7 was here"));
    // Only around its own part of the application.
    assert!(ask(&server, &get("/out")).ends_with("false"));
    let extras = ask(&server, "GET /in/extras HTTP/1.1\r\nHost: t\r\n\r\n");
    assert!(extras.starts_with("HTTP/1.1 103 "), "{extras}");
    assert!(extras.contains("\r\nX-Sum: 7\r\n") && extras.contains("Connection: close"), "{extras}");
    assert!(ask(&server, &get("/in/attached")).contains("filename"));
    let head = ask(&server, &get("/in/items/7").replace("GET", "HEAD"));
    assert!(head.contains("Content-Length: 10\r\n") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn a_layer_that_answers_by_itself_needs_no_handler() {
    #[derive(Clone)]
    struct Closed;
    impl<S> tower_layer::Layer<S> for Closed {
        type Service = Closed;
        fn layer(&self, _: S) -> Closed {
            Closed
        }
    }
    impl tower_service::Service<http::Request<flatout::Body>> for Closed {
        type Response = http::Response<String>;
        type Error = std::io::Error;
        type Future = std::future::Ready<Result<http::Response<String>, std::io::Error>>;
        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: http::Request<flatout::Body>) -> Self::Future {
            std::future::ready(match request.uri().path() {
                "/fails" => Err(std::io::Error::other("overloaded")),
                path => Ok(http::Response::new(format!("closed: {path}"))),
            })
        }
    }
    let client = client(App::new().layer(Closed).get("/a b", || "never").get("/fails", || "never"));
    let answer = client.get("/a%20b").send();
    assert_eq!(answer.text(), "closed: /a%20b");
    assert_eq!(client.get("/fails").send().status(), Status::SERVICE_UNAVAILABLE);
}

/// A layer that makes two bytes of each, as one that decompresses.
fn doubled(
    request: http::Request<flatout::Body>,
) -> http::Request<impl http_body::Body<Data = Bytes, Error = engine::BoxError>> {
    request.map(|body| {
        body.map_frame(|frame| frame.map_data(|data| data.iter().flat_map(|byte| [*byte, *byte]).collect()))
    })
}

#[test]
fn the_limit_of_a_route_applies_to_a_body_that_a_layer_expands() {
    let app = || {
        App::new()
            .layer(tower::util::MapRequestLayer::new(doubled))
            .body_limit(1000)
            .post("/whole", |body: String| body)
            .post("/stream", async |Streamed(body): Streamed| match body.collect().await {
                Ok(body) => Ok(body.to_bytes()),
                Err(engine::BodyFault::TooLarge) => Err(Status::CONTENT_TOO_LARGE),
                Err(_) => Err(Status::BAD_REQUEST),
            })
    };
    for client in [client(app()), Client::over_socket(app()).unwrap()] {
        for path in ["/whole", "/stream"] {
            assert_eq!(client.post(path).body("x".repeat(500)).send().text(), "x".repeat(1000), "{path}");
            let refused = client.post(path).body("x".repeat(501)).send();
            assert_eq!(refused.status(), Status::CONTENT_TOO_LARGE, "{path}");
        }
    }
}

/// Far more than the server has memory for: 32 MiB through a server that collects at most 1 MiB.
#[test]
fn a_wrapped_body_is_streamed() {
    let app = App::new()
        .layer(RequestBodyLimitLayer::new(1 << 30))
        .limits(|limits| {
            limits.bodies_memory_max = 1 << 20;
            limits.body_bytes_max = 1 << 30;
        })
        .post("/stream", async |Streamed(mut body): Streamed| {
            let mut bytes = 0;
            while let Some(Ok(frame)) = body.frame().await {
                bytes += frame.data_ref().map_or(0, Bytes::len);
            }
            bytes.to_string()
        });
    let client = Client::over_socket(app).unwrap();
    assert_eq!(client.post("/stream").body(vec![b'x'; 32 << 20]).send().text(), (32 << 20).to_string());
}
