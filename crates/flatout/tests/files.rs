//! Folders beside handlers.

mod socket;

use std::path::PathBuf;

use flatout::test::Client;
use flatout::{App, Files, Status};
use socket::{ask, get, serve};

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(folder.join("sub")).unwrap();
    std::fs::write(folder.join("index.html"), "the index").unwrap();
    std::fs::write(folder.join("a b.txt"), "a file").unwrap();
    std::fs::write(folder.join("sub/index.html"), "below").unwrap();
    folder
}

#[test]
fn files_answer_where_no_route_does() {
    let folder = folder("files");
    let inner = App::new().get("/time", || "now").files("/docs", folder.clone());
    let app = App::new()
        .get("/api/{id}", || "api")
        .post("/sub/x", || "posted")
        .files("/", folder.clone())
        .files("/static", Files::folder(&folder).cache_control("max-age=60"))
        .nest("/in/{tenant}", inner);
    let client = Client::new(app).unwrap();
    for (path, text) in [
        ("/", "the index"),
        ("/a%20b.txt", "a file"),
        ("/sub/", "below"),
        ("/api/7", "api"),
        ("/static/", "the index"),
        ("/static/a%20b.txt", "a file"),
        ("/in/me/time", "now"),
        ("/in/me/docs/sub/", "below"),
    ] {
        assert_eq!(client.get(path).send().text(), text, "{path}");
    }
    assert_eq!(client.get("/static/").send().header("Cache-Control"), Some("max-age=60"));
    for (path, location) in [
        ("/static", "/static/"),
        ("/sub?a=b", "/sub/?a=b"),
        ("/static/sub", "/static/sub/"),
        ("/in/x/docs", "/in/x/docs/"),
    ] {
        let answer = client.get(path).send();
        assert_eq!((answer.status(), answer.header("Location")), (Status::MOVED_PERMANENTLY, Some(location)));
    }
    for path in ["/nothing", "/static/nothing", "/staticnothing", "/in/me/nothing"] {
        assert_eq!(client.get(path).send().status().code() / 100, 4, "{path}");
    }
    // A pattern that has a route is the route's, whatever the method.
    assert_eq!(client.get("/sub/x").send().status(), Status::METHOD_NOT_ALLOWED);
    assert_eq!(client.post("/static/").body("x").send().status(), Status::METHOD_NOT_ALLOWED);
}

#[test]
fn files_leave_by_a_socket_behind_middleware_and_with_ranges() {
    let folder = folder("files-socket");
    std::fs::write(folder.join("large.bin"), "0123456789".repeat(100_000)).unwrap();
    let app = App::new()
        .after(|_, response| {
            response.header("X-After", "yes");
        })
        .files("/", Files::folder(folder).listing());
    let server = serve(app);
    let range = get("/large.bin").replace("Host", "Range: bytes=999990-\r\nHost");
    let answer = ask(&server, &range);
    assert!(answer.starts_with("HTTP/1.1 206 ") && answer.ends_with("\r\n\r\n0123456789"), "{answer}");
    assert!(answer.contains("X-After: yes"), "{answer}");
    assert_eq!(ask(&server, &get("/large.bin")).split_once("\r\n\r\n").unwrap().1.len(), 1_000_000);
}

#[test]
fn a_missing_folder_is_reported_at_startup() {
    let Err(error) = Client::new(App::new().files("/", "/no/such/folder")) else { panic!("it has started") };
    assert!(error.to_string().contains("/no/such/folder"), "{error}");
}
