//! Responses over real sockets.

mod socket;

use std::time::Duration;

use flatout::{App, EarlyHints, Json, Respond, Response};
use socket::{ask, get, serve};

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
