//! Escaped slashes in parameters.

mod socket;

use flatout::test::Client;
use flatout::{App, Context, Path, Problem, Status};
use socket::{ask, get, serve};

fn app() -> App {
    let path = |context: &mut Context<'_>| match context.header("x-path") {
        Some(_) => Err(Problem::new(Status::FORBIDDEN).detail(context.path().to_owned())),
        None => Ok(()),
    };
    App::new()
        .before(path)
        .get("/packages/{name}", |Path(name): Path<String>| format!("package {name}"))
        .get("/files/{project}/{*file}", |Path((project, file)): Path<(String, String)>| {
            format!("{file} of {project}")
        })
        .get("/100%", || "percent")
}

#[test]
fn a_parameter_has_slashes_where_the_application_lets_them_through() {
    let client = Client::new(app().escaped_slashes()).unwrap();
    for (target, expected) in [
        ("/packages/plain", "package plain"),
        ("/packages/@scope%2fname", "package @scope/name"),
        ("/packages/a%252Fb", "package a%2Fb"),
        ("/packages/100%25", "package 100%"),
        ("/packages/a%5cb", "package a\\b"),
        ("/packages/..%2f..%2fetc", "package ../../etc"),
        ("/packages//x/../caf%c3%a9", "package café"),
        ("/files/group%2Fproject/lib/a%2fb.rs", "lib/a/b.rs of group/project"),
        ("/100%25", "percent"),
    ] {
        assert_eq!(client.get(target).send().text(), expected, "{target}");
    }
    let seen = client.get("/x/../packages/a%2fb").header("X-Path", "1").send();
    assert!(seen.text().contains("/packages/a%2Fb"), "middleware sees segments: {}", seen.text());
}

#[test]
fn encoded_slashes_are_refused_by_default() {
    let strict = serve(app());
    for target in ["/packages/@scope%2fname", "/x/../packages/a"] {
        assert!(ask(&strict, &get(target)).starts_with("HTTP/1.1 400 "), "{target}");
    }
    let open = serve(app().escaped_slashes());
    assert!(ask(&open, &get("/packages/@scope%2fname")).ends_with("package @scope/name"));
    assert!(ask(&open, &get("/..")).starts_with("HTTP/1.1 400 "));
}
