//! Mistakes of an application that are reported when it starts.

use std::collections::HashMap;

use flatout::test::Client;
use flatout::{
    App, Context, Error, Extract, Json, Local, Method, Path, Problem, Query, RouteCheck, State, blocking,
};
use serde::Deserialize;

/// What the author reads.
fn refused(app: App) -> String {
    match Client::new(app) {
        Err(error @ Error::Route(_)) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it starts"),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only its shape matters")]
struct Comment {
    article: String,
    number: u32,
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "only its shape matters")]
struct Page {
    name: String,
    #[serde(default)]
    language: String,
    version: Option<u8>,
}

#[test]
fn patterns_that_no_path_matches_are_refused() {
    for (pattern, part) in [
        ("items", "route `GET items`: no path matches it, because paths start with a slash: write `/items`"),
        ("/items/:id", "`:id` is not a parameter here: write `{id}`"),
        ("/items?page={page}", "no path contains a query: write `/items`"),
        ("/items//all", "empty segment"),
        ("/items/*", "`*` is not a parameter here: write `{*rest}`"),
        ("/items/{id", "each `{` needs a name and a `}`"),
        ("/items/{}", "each `{` needs a name and a `}`"),
        ("/items/{a}{b}", "a segment has one parameter at most"),
        ("/{*rest}/all", "`{*…}` takes the rest of the path, so it has to be the last"),
    ] {
        let message = refused(App::new().get(pattern, || "never"));
        assert!(message.contains(part), "{message}");
    }
    let nested = App::new().get("/items", || "never");
    assert!(refused(App::new().nest("api", nested)).contains("write `/api/items`"));
    let with_fallback = App::new().fallback(|| "never");
    assert!(refused(App::new().nest("api", with_fallback)).contains("the fallback of `api/`"));
    let nested = App::new().get("/", || "here");
    assert_eq!(Client::new(App::new().nest("/api", nested)).unwrap().get("/api").send().text(), "here");
}

#[test]
fn patterns_that_match_the_same_paths_are_refused() {
    let message = refused(App::new().get("/{a}", || "never").get("/{b}", || "never"));
    assert_eq!(
        message,
        "route `/{b}` matches the same paths as `/{a}`: use the same names for the parameters"
    );
    let fallback = || App::new().fallback(|| "never");
    let message = refused(App::new().nest("/{a}", fallback()).nest("/{b}", fallback()));
    assert_eq!(
        message,
        "the fallback of `/{b}/` matches the same paths as `/{a}`: use the same names for the parameters"
    );
}

#[test]
fn two_values_of_one_type_are_refused() {
    let refused = |app: App| Client::new(app).err().expect("it does not start").to_string();
    let message = refused(App::new().state(1_u8).state(2_u8).get("/", || "never"));
    assert_eq!(message, "`.state` has two values of the type `u8`: give one of them a type of its own");
    let message = refused(App::new().local(Vec::<u8>::new).local(Vec::<u8>::new).get("/", || "never"));
    assert!(message.starts_with("`.local` has two values of the type `alloc::vec::Vec<u8>`"), "{message}");
    let inner = App::new().state(2_u8).get("/", |State(number): State<u8>| number.to_string());
    let client = Client::new(App::new().state(1_u8).nest("/in", inner)).unwrap();
    assert_eq!(client.get("/in").send().text(), "2");
}

#[test]
fn two_arguments_that_take_the_body_are_refused() {
    let both = |Json(_): Json<u32>, _: Method, _: String| "never";
    for app in [
        App::new().post("/", both),
        App::new().post("/", async |Json(_): Json<u32>, _: Method, _: String| "never"),
        App::new().post("/", blocking(both)),
        App::new().post("/", |_: Option<Json<u32>>, _: String| "never"),
    ] {
        let message = refused(app);
        assert!(
            message.contains("Json<u32>") && message.contains("String` both take the request body"),
            "{message}"
        );
    }
    let one = App::new().post("/", |_: Method, text: String| text);
    assert_eq!(Client::new(one).unwrap().post("/").body("hello").send().text(), "hello");
}

#[test]
fn parameters_that_do_not_fit_the_route_are_refused() {
    let message = refused(App::new().get("/sum/{a}", |Path((a, b)): Path<(u8, u8)>| format!("{a}{b}")));
    assert_eq!(message, "route `GET /sum/{a}`: `Path<(u8, u8)>` wants 2 parameters, but the route has `a`");
    let message = refused(App::new().get("/all", async |Path(id): Path<u32>| id.to_string()));
    assert_eq!(message, "route `GET /all`: `Path<u32>` wants 1 parameter, but the route has none");
    let message = refused(App::new().get("/{a}/{b}", blocking(|Path(name): Path<String>| name)));
    assert!(message.ends_with("wants 1 parameter, but the route has `a`, `b`"), "{message}");
    let message = refused(App::new().get("/{article}/{id}", |_: Path<Comment>| "never"));
    assert!(message.contains("Comment>` has no field for `id`, only `article`, `number`"), "{message}");
    let message = refused(App::new().get("/{article}", |_: Path<Comment>| "never"));
    assert!(
        message.contains("Comment>` wants a parameter `number`, but the route has `article`"),
        "{message}"
    );
}

#[test]
fn parameters_that_fit_are_not_refused() {
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Side {
        Left,
    }
    let nested = App::new().get("/{b}", |Path((a, b)): Path<(String, u8)>| format!("{a}{b}"));
    let app = App::new()
        .get("/pages/{name}/{extra}", |Path(page): Path<Page>| format!("{} {:?}", page.name, page.version))
        .get("/map/{a}/{b}", |Path(all): Path<HashMap<String, String>>| all.len().to_string())
        .get("/list/{a}/{b}/{c}", |Path(all): Path<Vec<String>>| all.concat())
        .get("/side/{side}", |Path(Side::Left): Path<Side>| "left")
        .get("/number/{n}", |Path(n): Path<std::num::NonZeroU8>| n.to_string())
        .get("/address/{a}", |Path(a): Path<std::net::Ipv4Addr>| a.to_string())
        .get("/either", |path: Option<Path<u8>>| path.is_some().to_string())
        .get("/braces/{{a}}/{b}", |Path(b): Path<String>| b)
        .nest("/outer/{a}", nested);
    let client = Client::new(app).unwrap();
    for (path, expected) in [
        ("/pages/home/html", "home None"),
        ("/map/1/2", "2"),
        ("/list/1/2/3", "123"),
        ("/side/left", "left"),
        ("/number/7", "7"),
        ("/address/10.0.0.1", "10.0.0.1"),
        ("/either", "false"),
        ("/outer/x/7", "x7"),
    ] {
        assert_eq!(client.get(path).send().text(), expected, "{path}");
    }
}

struct Settings;

/// An extractor of an author, which uses another.
struct Configured;

impl Extract for Configured {
    fn extract(context: &mut Context<'_>) -> Result<Configured, Problem> {
        State::<Settings>::extract(context).map(|_| Configured)
    }

    fn check(route: &RouteCheck<'_>) -> Result<(), String> {
        State::<Settings>::check(route)
    }
}

#[test]
fn missing_values_are_named_for_all_routes() {
    let message = refused(
        App::new()
            .get("/a", |_: State<Settings>| "never")
            .get("/b", async |_: Local<Vec<u8>>| "never")
            .post("/c", |_: Configured| "never")
            .fallback(|_: State<u8>| "never"),
    );
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 3, "{message}");
    assert!(lines[0].starts_with("route `GET /a`: `State<"), "{message}");
    assert!(lines[0].contains("Settings>` is missing: add `.state(value)`"), "{message}");
    assert!(
        lines[1].contains("`Local<alloc::vec::Vec<u8>>` is missing: add `.local(|| value)`"),
        "{message}"
    );
    assert!(lines[2].starts_with("route `POST /c`: "), "{message}");
    assert!(refused(App::new().fallback(|_: State<u8>| "never")).contains("`State<u8>` is missing"));
    // Values of an inner application are not the outer one's.
    let inner = App::new().state(Settings).get("/inner", |_: State<Settings>| "found");
    let outer = App::new().state(7_u8).get("/outer", |_: State<Settings>| "never").nest("/in", inner);
    assert_eq!(refused(outer).lines().count(), 1);
    let inner = App::new().get("/inner", |State(number): State<u8>, _: Local<Vec<u8>>| number.to_string());
    let app = App::new().state(7_u8).local(Vec::<u8>::new).nest("/in", inner);
    assert_eq!(Client::new(app).unwrap().get("/in/inner").send().text(), "7");
}

#[test]
fn a_query_error_names_its_parameter() {
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "only refused")]
    struct Search {
        page: u32,
        #[serde(default)]
        tag: Vec<u8>,
    }
    let app = App::new().get("/", |_: Query<Search>| "never");
    let client = Client::new(app).unwrap();
    for (query, expected) in [
        ("page=two", "the query: `page`: expected a whole number, of digits only"),
        ("page=1&tag=1&tag=x", "the query: `tag[1]`: expected a whole number, of digits only"),
        ("page=1&page=2", "the query: `page`: given more than once"),
        ("page=99999999999", "the query: `page`: the number is too large"),
        ("page=", "the query: `page`: expected a whole number, got nothing"),
        ("", "the query: missing field `page`"),
    ] {
        let problem: serde_json::Value = client.get(&format!("/?{query}")).send().json();
        assert_eq!(problem["detail"], expected, "{query}");
    }
}
