//! Applications inside of applications.

use std::sync::atomic::{AtomicU32, Ordering};

use flatout::test::Client;
use flatout::{App, Local, Path, State, Status};

fn client(app: App) -> Client {
    Client::new(app).unwrap()
}

fn text(client: &Client, target: &str) -> String {
    client.get(target).send().text().to_owned()
}

#[test]
fn states_of_inner_applications_stay_their_own() {
    let name = |State(name): State<&'static str>| *name;
    let both = |State(name): State<&'static str>, State(number): State<u32>| format!("{} {}", *name, *number);
    let innermost = App::new().state("innermost").get("/", both);
    let inner = App::new().state("inner").state(2_u32).get("/", both).nest("/more", innermost);
    let plain = App::new().get("/", name);
    let outer = App::new().nest("/inner", inner).nest("/plain", plain).state("outer").get("/", name);
    let client = client(outer);
    for (path, expected) in
        [("/", "outer"), ("/plain", "outer"), ("/inner", "inner 2"), ("/inner/more", "innermost 2")]
    {
        assert_eq!(text(&client, path), expected, "{path}");
    }
}

#[test]
fn locals_of_inner_applications_stay_their_own_and_are_made_once() {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let make = |name: &'static str| {
        move || {
            MADE.fetch_add(1, Ordering::Relaxed);
            name
        }
    };
    let name = |Local(name): Local<&'static str>| *name;
    let inner = App::new().local(make("inner")).get("/", name).get("/again", name);
    let plain = App::new().get("/", name);
    let client =
        client(App::new().local(make("outer")).get("/", name).nest("/in", inner).nest("/plain", plain));
    for (path, expected) in [("/", "outer"), ("/in", "inner"), ("/in/again", "inner"), ("/plain", "outer")] {
        assert_eq!(text(&client, path), expected, "{path}");
    }
    assert_eq!(MADE.load(Ordering::Relaxed), 2);
}

#[test]
fn middleware_finds_the_state_of_its_own_application() {
    let note = |context: &mut flatout::Context<'_>| match context.state::<&'static str>() {
        Some(name) if *name == "refuses" => Err(Status::FORBIDDEN),
        _ => Ok(()),
    };
    let inner = App::new().state("refuses").get("/", || "inner");
    let outer = client(App::new().state("lets pass").before(note).nest("/in", inner));
    assert_eq!(text(&outer, "/in"), "inner");
    let inner = App::new().state("refuses").before(note).get("/", || "inner");
    let outer = client(App::new().state("lets pass").nest("/in", inner));
    assert_eq!(outer.get("/in").send().status(), Status::FORBIDDEN);
}

#[test]
fn a_nested_fallback_answers_below_its_prefix() {
    let api = App::new()
        .get("/", || "api")
        .get("/items", || "items")
        .nest("/deep", App::new().get("/x", || "x").fallback(|| "deep fallback"))
        .nest("/none", App::new().get("/x", || "x"))
        .fallback(|| "api fallback")
        .before(|context| if context.path().ends_with("/secret") { Err(Status::FORBIDDEN) } else { Ok(()) })
        .after(|_, response| {
            response.header("Api", "yes");
        });
    let user = App::new().get("/", || "user").fallback(|Path(id): Path<u32>| format!("nothing of {id}"));
    let client = client(
        App::new().get("/", || "root").nest("/api", api).nest("/users/{id}", user).fallback(|| "outer"),
    );
    for (path, expected) in [
        ("/api", "api"),
        ("/api/", "api fallback"),
        ("/api/nothing/at/all", "api fallback"),
        ("/api/deep", "deep fallback"),
        ("/api/deep/x", "x"),
        ("/api/deep/x/y", "deep fallback"),
        ("/api/none/y", "api fallback"),
        ("/apiary", "outer"),
        ("/users/7", "user"),
        ("/users/7/x/y", "nothing of 7"),
        ("/users", "outer"),
        ("/elsewhere", "outer"),
    ] {
        assert_eq!(text(&client, path), expected, "{path}");
    }
    let answer = client.get("/api/nothing").send();
    assert_eq!(answer.header("Api"), Some("yes"));
    assert_eq!(client.get("/api/secret").send().status(), Status::FORBIDDEN);
    assert_eq!(client.get("/elsewhere").send().header("Api"), None);
    // A path that has a route does not go to the fallback, whatever the method.
    assert_eq!(client.post("/api/items").send().status(), Status::METHOD_NOT_ALLOWED);
    let many = format!("/{}", "a/".repeat(2000));
    assert_eq!(text(&client, &many), "outer");
}

#[test]
fn an_application_without_a_prefix_keeps_its_paths_and_its_surroundings() {
    let inner = || {
        App::new()
            .state("inner")
            .get("/", |State(name): State<&'static str>| *name)
            .get("/items/{id}", |Path(id): Path<u32>| format!("item {id}"))
            .after(|_, response| {
                response.header("Inner", "yes");
            })
    };
    for app in [App::new().merge(inner()), App::new().nest("/", inner()), App::new().nest("", inner())] {
        let client = client(app.state("outer").get("/own", |State(name): State<&'static str>| *name));
        assert_eq!(text(&client, "/"), "inner");
        assert_eq!(text(&client, "/items/7"), "item 7");
        assert_eq!(text(&client, "/own"), "outer");
        assert_eq!(client.get("/items/7").send().header("Inner"), Some("yes"));
        assert_eq!(client.get("/own").send().header("Inner"), None);
        // A 404 belongs to the outer application.
        assert_eq!(client.get("/none").send().header("Inner"), None);
    }
    let Err(error) = Client::new(App::new().get("/", || "own").merge(inner())) else { panic!("no error") };
    assert!(error.to_string().contains("`/`"), "{error}");
}

#[test]
fn fallbacks_at_the_root_and_twice() {
    let nested = || App::new().state("inner").fallback(|State(name): State<&'static str>| *name);
    assert_eq!(text(&client(App::new().nest("/", nested())), "/x"), "inner");
    for app in [
        App::new().fallback(|| "own").nest("/", nested()),
        App::new().nest("/", nested()).fallback(|| "own"),
        App::new().fallback(|| "former").fallback(|| "own"),
    ] {
        assert_eq!(text(&client(app), "/x"), "own");
    }
    for prefix in ["/", "/a"] {
        let Err(error) = Client::new(App::new().nest(prefix, nested()).nest(prefix, nested())) else {
            panic!("no error")
        };
        assert!(error.to_string().contains("the fallback has two handlers"), "{error}");
    }
}
