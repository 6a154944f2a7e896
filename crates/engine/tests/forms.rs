//! The two forms of a path, and requests that continue after they were parked.

mod support;

use flatout_engine::{Limits, OwnedRequest, Reply, Request, Response, Service, Worker};

use flatout_wire::target::PathForm;
use support::{Running, body_of, last};

/// Responds with the path that it sees; for `/later` after the request was parked and continued.
struct Paths {
    form: PathForm,
    worker: Worker,
}

impl Service for Paths {
    fn path_form(&self) -> PathForm {
        self.form
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        if request.path != b"/later" {
            response.buffer().extend_from_slice(request.path);
            return Reply::Now;
        }
        let (key, owned) = (request.park(), OwnedRequest::of(request));
        assert_eq!(owned.origin.key(), key);
        let lane = self.worker.lane.clone();
        tokio::task::spawn_local(async move {
            let resumed = owned.resume(|request| {
                assert_eq!((request.park(), request.path), (key, &b"/later"[..]));
                let mut response = Response::new();
                response.buffer().extend_from_slice(request.head.target());
                lane.answer(request.park(), response);
            });
            assert!(resumed.is_some());
        });
        Reply::Parked
    }
}

fn server(form: PathForm) -> Running {
    Running::serving(Limits::default(), move |worker| Box::new(Paths { form, worker }))
}

#[test]
fn service_selects_path_form() {
    let (strict, forward) = (server(PathForm::Strict), server(PathForm::Forward));
    for (target, strictly, forwarded) in [
        ("/plain?a=//..", Some("/plain"), Some("/plain")),
        ("//a", Some("//a"), Some("/a")),
        ("/a/../b", None, Some("/b")),
        ("/@a%2fb", None, Some("/@a%2Fb")),
        ("/a%20b", Some("/a b"), Some("/a b")),
        ("/..", None, None),
        ("/a%00", None, None),
        ("http://t", Some("/"), Some("/")),
        ("http://t//a/./b", None, Some("/a/b")),
    ] {
        for (server, expected) in [(&strict, strictly), (&forward, forwarded)] {
            let answer = server.all(last(target));
            match expected {
                Some(path) => assert_eq!(body_of(&answer), path, "{target}"),
                None => assert!(answer.starts_with("HTTP/1.1 400 "), "{target}: {answer}"),
            }
        }
    }
    let asterisk = "OPTIONS * HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    assert_eq!(body_of(&forward.all(asterisk)), "*");
}

#[test]
fn collected_body_keeps_path_form() {
    let forward = server(PathForm::Forward);
    let mut stream = forward.connect();
    use std::io::Write;
    stream
        .write_all(b"POST /a/../b HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 2\r\n\r\n")
        .unwrap();
    stream.write_all(b"ab").unwrap();
    assert_eq!(body_of(&support::rest(&mut stream)), "/b");
}

#[test]
fn parked_request_keeps_its_path() {
    assert_eq!(body_of(&server(PathForm::Strict).all(last("/later?x=1"))), "/later?x=1");
}
