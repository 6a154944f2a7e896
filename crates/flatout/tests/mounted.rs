//! Mounted services over real sockets, as clients see them.

mod socket;

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flatout::App;
use http_body::Frame;
use socket::{ask, get, serve};
use tower_http::services::ServeDir;

const TEXT: &str = "0123456789abcdefghij";

/// Declares `said` as its length in a field, or nothing, and sends `carried`.
fn streaming(said: &'static str, carried: &'static str) -> axum::Router {
    struct Pieces(Option<&'static str>);
    impl http_body::Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.take().map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
        }
    }
    let answer = async move || {
        let body = axum::body::Body::new(Pieces(Some(carried)));
        let builder = http::Response::builder();
        let builder = if said.is_empty() { builder } else { builder.header("Content-Length", said) };
        builder.body(body).unwrap()
    };
    axum::Router::new().route("/", axum::routing::get(answer))
}

fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(this, _)| this.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn files_of_tower_http_keep_their_lengths() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("mounted");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("a.txt"), TEXT).unwrap();
    let server = serve(App::new().mount("/files", ServeDir::new(folder)));
    let whole = ask(&server, &get("/files/a.txt"));
    assert_eq!((field(&whole, "content-length"), body(&whole)), (Some("20"), TEXT), "{whole}");
    assert_eq!(field(&whole, "transfer-encoding"), None, "{whole}");

    let head = ask(&server, &get("/files/a.txt").replace("GET", "HEAD"));
    assert_eq!((field(&head, "content-length"), body(&head)), (Some("20"), ""), "{head}");

    let range = get("/files/a.txt").replace("Host", "Range: bytes=5-9\r\nHost");
    let part = ask(&server, &range);
    assert!(part.starts_with("HTTP/1.1 206 "), "{part}");
    assert_eq!((field(&part, "content-length"), body(&part)), (Some("5"), "56789"), "{part}");
    assert_eq!(field(&part, "transfer-encoding"), None, "{part}");

    let modified = field(&whole, "last-modified").unwrap();
    let since = get("/files/a.txt").replace("Host", &format!("If-Modified-Since: {modified}\r\nHost"));
    let same = ask(&server, &since);
    assert!(same.starts_with("HTTP/1.1 304 ") && body(&same).is_empty(), "{same}");
    assert_ne!(field(&same, "content-length"), Some("0"), "{same}");
    assert_eq!(field(&same, "transfer-encoding"), None, "{same}");
}

#[test]
fn head_never_claims_that_get_would_be_empty() {
    let server =
        serve(App::new().mount("/known", streaming("20", TEXT)).mount("/unknown", streaming("", TEXT)));
    let known = ask(&server, &get("/known").replace("GET", "HEAD"));
    assert_eq!((field(&known, "content-length"), body(&known)), (Some("20"), ""), "{known}");
    let unknown = ask(&server, &get("/unknown").replace("GET", "HEAD"));
    assert_eq!((field(&unknown, "content-length"), body(&unknown)), (None, ""), "{unknown}");
}

#[test]
fn bodies_with_a_wrong_length_are_cut() {
    let app = App::new()
        .mount("/exact", streaming("20", TEXT))
        .mount("/short", streaming("30", TEXT))
        .mount("/long", streaming("10", TEXT))
        .mount("/odd", streaming("+20", TEXT));
    let server = serve(app);
    let twice = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n{}", get("/exact"));
    let exact = ask(&server, &twice("/exact"));
    assert_eq!(exact.matches("HTTP/1.1 200 ").count(), 2, "{exact}");
    for path in ["/short", "/long"] {
        // The next request on the connection is not served: its response would be read as the body.
        let cut = ask(&server, &twice(path));
        assert!(cut.matches("HTTP/1.1 ").count() <= 1, "{path}: {cut}");
        assert!(!cut.contains(&TEXT[10..]) || path == "/short", "{path}: {cut}");
    }
    let odd = ask(&server, &get("/odd"));
    assert_eq!(field(&odd, "transfer-encoding"), Some("chunked"), "{odd}");
}

#[test]
fn a_service_in_a_nested_application_sees_the_path_without_all_prefixes() {
    let path = || async |uri: http::Uri| uri.path().to_owned();
    let router = || axum::Router::new().fallback(axum::routing::any(path()));
    let inner = App::new().mount("/axum", router()).nest("/deep", App::new().mount("/", router()));
    let server = serve(App::new().nest("/in/{tenant}", inner));
    for (asked, seen) in [
        ("/in/a/axum", "/"),
        ("/in/a/axum/", "/"),
        ("/in/a/axum/axum/x", "/axum/x"),
        ("/in/a/deep", "/"),
        ("/in/a/deep/x/y", "/x/y"),
    ] {
        assert_eq!(body(&ask(&server, &get(asked))), seen, "{asked}");
    }
}

#[test]
fn responses_that_http_does_not_allow_are_repaired() {
    use axum::routing::get as route;
    use http::StatusCode;
    let router = axum::Router::new()
        .route("/unchanged", route(async || StatusCode::NOT_MODIFIED))
        .route("/unchanged-of", route(async || (StatusCode::NOT_MODIFIED, [("Content-Length", "7")])))
        .route("/interim", route(async || StatusCode::PROCESSING))
        .route("/upgrade", route(async || (StatusCode::UPGRADE_REQUIRED, [("Upgrade", "websocket")], "no")));
    let app = App::new().mount("/m", router).get("/interim", || flatout::Status::from_code(103));
    let server = serve(app);
    let unchanged = ask(&server, &get("/m/unchanged"));
    assert!(
        unchanged.starts_with("HTTP/1.1 304 ") && field(&unchanged, "content-length").is_none(),
        "{unchanged}"
    );
    assert_eq!(field(&ask(&server, &get("/m/unchanged-of")), "content-length"), Some("7"));
    for path in ["/m/interim", "/interim"] {
        let interim = ask(&server, &get(path));
        assert!(interim.starts_with("HTTP/1.1 500 "), "{path}: {interim}");
    }
    let upgrade = ask(&server, &get("/m/upgrade"));
    assert!(upgrade.starts_with("HTTP/1.1 426 ") && field(&upgrade, "upgrade").is_none(), "{upgrade}");
}
