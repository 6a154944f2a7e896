//! Responses over real sockets.

mod socket;

use std::io::{Error, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use flatout::test::Client;
use flatout::{
    App, Conditions, EarlyHints, Event, Json, LastEventId, Respond, Response, Shutdown, Sse, Streaming,
    Validators,
};
use futures_util::StreamExt;
use futures_util::stream::{self, iter, pending};
use socket::{ask, connect, get, serve};

#[test]
fn hints_come_before_the_response_that_is_still_made() {
    let page = async |hints: EarlyHints| {
        let sent = hints.send(&[("Link", "</a.css>"), ("Bad name", "x"), ("Bad-Value", "a\r\nb")]);
        tokio::time::sleep(Duration::from_millis(5)).await;
        format!("{sent}")
    };
    let server = serve(App::new().get("/", page).get("/at-once", async |hints: EarlyHints| {
        hints.send(&[("Link", "</a.css>")]);
        "at once"
    }));
    let answer = ask(&server, &get("/"));
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n";
    assert!(answer.starts_with(&format!("{hints}HTTP/1.1 200 ")) && answer.ends_with("true"), "{answer}");
    let old = ask(&server, "GET / HTTP/1.0\r\n\r\n");
    assert!(old.starts_with("HTTP/1.1 200 "), "{old}");
    assert!(ask(&server, &get("/at-once")).ends_with("at once"));
}

#[test]
fn hints_trailers_and_lengths_of_a_response_made_by_hand() {
    let by_hand = || {
        let mut response = Response::new();
        Json("x").respond(&mut response);
        response.hint("Link", "</a.css>").trailer("X-Sum", "7");
        response
    };
    let server = serve(App::new().get("/", by_hand));
    let answer = ask(&server, &get("/"));
    assert!(
        answer.starts_with("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 "),
        "{answer}"
    );
    assert!(answer.ends_with("\r\n\r\n3\r\n\"x\"\r\n0\r\nX-Sum: 7\r\n\r\n"), "{answer}");
}

#[test]
fn streams_are_sent_as_they_come_and_cut_where_they_fail() {
    let pieces = |fails: bool| {
        let last = if fails { Err(Error::other("no more")) } else { Ok(Bytes::from("c")) };
        Streaming(stream::once(async { Ok(Bytes::from("ab")) }).chain(iter([last])))
    };
    let server = serve(App::new().get("/good", move || pieces(false)).get("/bad", move || pieces(true)));
    assert!(ask(&server, &get("/good")).ends_with("2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"));
    let bad = ask(&server, &get("/bad"));
    assert!(!bad.contains("0\r\n\r\n"), "{bad}");
}

#[test]
fn events_have_their_fields_and_nothing_of_their_data_becomes_one() {
    let events = || {
        iter([
            Event::data("plain"),
            Event::data("a\r\nb\rid: 7\n\nevent: x").event("kind\nid: 8").id("9"),
            Event::json(&[1, 2]).unwrap().retry(Duration::from_millis(1500)).id("a\0b"),
            Event::comment("note\ndata: x"),
        ])
    };
    let client = Client::new(App::new().get("/", move || Sse::new(events()))).unwrap();
    let answer = client.get("/").send();
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert_eq!(
        answer.text(),
        "data: plain\n\n\
         id: 9\nevent: kind\ndata: a\ndata: b\ndata: id: 7\ndata: \ndata: event: x\n\n\
         retry: 1500\ndata: [1,2]\n\n\
         : note\n: data: x\n\n"
    );
}

#[test]
fn clients_resume_by_the_last_id_they_have_seen() {
    let numbers = |LastEventId(last): LastEventId| {
        let first = last.and_then(|last| last.parse().ok()).unwrap_or(0) + 1;
        Sse::new(iter((first..4).map(|at: u32| Event::data("x").id(at.to_string()))))
    };
    let client = Client::new(App::new().get("/", numbers)).unwrap();
    assert_eq!(client.get("/").send().text().matches("data").count(), 3);
    assert_eq!(client.get("/").header("Last-Event-ID", "2").send().text(), "id: 3\ndata: x\n\n");
}

#[test]
fn silent_event_streams_are_kept_alive_and_end_with_the_server() {
    let events =
        |shutdown: Shutdown| Sse::new(pending()).keep_alive(Some(Duration::from_millis(5))).until(shutdown);
    let mut served = serve(App::new().get("/", events));
    let server = served.server.take().unwrap();
    let mut stream = connect(&served);
    stream.write_all(get("/").as_bytes()).unwrap();
    let mut text = String::new();
    let mut piece = [0; 4096];
    while text.matches("3\r\n:\n\n\r\n").count() < 2 {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "{text}");
        text.push_str(std::str::from_utf8(&piece[..count]).unwrap());
    }
    server.handle().drain();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("0\r\n\r\n"), "{text}");
    server.wait().unwrap();
}

#[test]
fn clients_that_have_a_representation_get_304() {
    let changed = UNIX_EPOCH + Duration::from_millis(784_111_777_500);
    let made = Arc::new(AtomicU32::new(0));
    let count = made.clone();
    let page = move |conditions: Conditions| {
        conditions.respond(Validators::etag("v1").and_modified(changed), || {
            count.fetch_add(1, Ordering::Relaxed);
            "page"
        })
    };
    let dated = async move |conditions: Conditions| {
        tokio::task::yield_now().await;
        conditions.respond(Validators::modified(changed), || "dated")
    };
    let put = |conditions: Conditions| conditions.respond(Validators::etag("v1"), || "changed");
    let odd = |conditions: Conditions| conditions.respond(Validators::etag("a\"\r\nb"), || "odd");
    let missing = |conditions: Conditions| conditions.respond(Validators::etag("v1"), || None::<String>);
    let app =
        App::new().get("/", page).get("/dated", dated).put("/", put).get("/odd", odd).get("/none", missing);
    let server = serve(app);
    let ask_with = |method: &str, path: &str, line: &str| {
        ask(&server, &get(path).replace("GET", method).replace("Host", &format!("{line}\r\nHost")))
    };
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    let whole = ask(&server, &get("/"));
    assert!(
        whole.contains("ETag: \"v1\"\r\n") && whole.contains(&format!("Last-Modified: {DATE}\r\n")),
        "{whole}"
    );
    assert!(whole.ends_with("\r\n\r\npage"), "{whole}");
    for (method, path, line, status) in [
        ("GET", "/", "If-None-Match: \"v1\"", 304),
        ("HEAD", "/", "If-None-Match: \"v0\", W/\"v1\"", 304),
        ("GET", "/", "If-None-Match: \"v2\"", 200),
        // The tag takes precedence over the date.
        ("GET", "/", &format!("If-None-Match: \"v2\"\r\nIf-Modified-Since: {DATE}"), 200),
        ("GET", "/dated", &format!("If-Modified-Since: {DATE}"), 304),
        ("GET", "/dated", "If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT", 200),
        ("PUT", "/", "If-Match: \"v0\"", 412),
        ("PUT", "/", "If-Match: \"v1\"", 200),
        ("PUT", "/", "If-None-Match: *", 412),
        ("GET", "/odd", "If-None-Match: \"a\"", 200),
    ] {
        let answer = ask_with(method, path, line);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path} {line}: {answer}");
        if status == 304 {
            assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        }
    }
    // Not made for a 304: only for one complete response, and two of another tag.
    assert_eq!(made.load(Ordering::Relaxed), 3);
    assert!(!ask(&server, &get("/odd")).contains("ETag"));
    assert!(!ask(&server, &get("/none")).contains("ETag"));
}
