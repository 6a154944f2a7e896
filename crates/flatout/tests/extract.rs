//! Arguments of handlers.

mod socket;

use std::borrow::Cow;
use std::collections::HashMap;

use flatout::test::Client;
use flatout::{App, ClientIp, Context, Extension, ExtractAsync, Form, Host, Path, Problem, Status, Uri};
use socket::{ask, get, serve};

fn client(app: App) -> Client {
    Client::new(app).unwrap()
}

const FORM: &str = "application/x-www-form-urlencoded";

#[derive(serde::Deserialize, serde::Serialize)]
struct Order {
    item: String,
    #[serde(default)]
    count: Vec<u32>,
}

#[test]
fn forms_come_from_the_body_or_the_query() {
    let echo = |order: Form<Order>| order;
    let client = client(App::new().get("/", echo).post("/", echo));
    let post = |body: &str| client.post("/").header("Content-Type", FORM).body(body).send();
    let answer = post("item=a+b%26c&count=1&count=2");
    assert_eq!((answer.text(), answer.header("content-type")), ("item=a+b%26c&count=1&count=2", Some(FORM)));
    assert_eq!(client.get("/?item=x&count=3").send().text(), "item=x&count=3");
    assert_eq!(post("count=1").status(), Status::UNPROCESSABLE_CONTENT);
    assert_eq!(post("item=a&count=many").status(), Status::UNPROCESSABLE_CONTENT);
    let typed = |kind: &str| client.post("/").header("Content-Type", kind).body("item=a").send().status();
    assert_eq!(typed("Application/X-WWW-Form-Urlencoded; charset=utf-8"), Status::OK);
    assert_eq!(typed("application/json"), Status::UNSUPPORTED_MEDIA_TYPE);
}

#[test]
fn a_form_with_a_million_keys_is_refused_before_it_is_read() {
    let count = |Form(all): Form<HashMap<String, String>>| all.len().to_string();
    let client = client(App::new().post("/", count).get("/", count));
    let form = |keys: usize| (0..keys).map(|key| format!("k{key}=v")).collect::<Vec<_>>().join("&");
    let post = |keys: usize| client.post("/").header("Content-Type", FORM).body(form(keys)).send();
    assert_eq!(post(1000).text(), "1000");
    for keys in [1001, 1_000_000] {
        assert_eq!(post(keys).status(), Status::CONTENT_TOO_LARGE);
    }
}

#[test]
fn text_targets_and_hosts() {
    let client = client(
        App::new()
            .post("/cow", |text: Cow<'static, str>| text)
            .get("/{*rest}", |uri: Uri, Host(host): Host| format!("{uri} at {host}")),
    );
    assert_eq!(client.post("/cow").body("text").send().text(), "text");
    assert_eq!(client.post("/cow").body(vec![0xff]).send().status(), Status::BAD_REQUEST);
    assert_eq!(client.get("/%61/b?c=%20").send().text(), "/%61/b?c=%20 at test");
    assert_eq!(client.get("http://other:81/b").send().text(), "http://other:81/b at other:81");
}

/// Made after a wait, of the header `User` and the state.
struct Account(String);

impl ExtractAsync for Account {
    fn extract_async(context: &mut Context<'_>) -> impl Future<Output = Result<Self, Problem>> + use<> {
        let name = context.header("user").map(|name| String::from_utf8_lossy(name).into_owned());
        let suffix = context.state::<&'static str>();
        async move {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            let name = name.ok_or_else(|| Problem::new(Status::UNAUTHORIZED))?;
            let suffix = suffix.ok_or_else(|| Problem::new(Status::INTERNAL_SERVER_ERROR))?;
            Ok(Account(format!("{name}{suffix}")))
        }
    }
}

#[test]
fn arguments_that_have_to_wait() {
    let app = App::new()
        .state("!")
        .post("/{id}", async |Path(id): Path<u32>, Account(name): Account, body: String| {
            format!("{id} {name} {body}")
        });
    let client = client(app);
    let call = |path: &str| client.post(path).header("User", "ada").body("text").send();
    assert_eq!(call("/7").text(), "7 ada! text");
    assert_eq!(call("/seven").status(), Status::BAD_REQUEST);
    assert_eq!(client.post("/7").body("text").send().status(), Status::UNAUTHORIZED);
}

#[derive(Clone)]
struct User(&'static str);

#[test]
fn extensions_reach_handlers_and_mounted_services() {
    let router = axum::Router::new()
        .route("/", axum::routing::get(async |axum::Extension(User(name)): axum::Extension<User>| name));
    let client = client(
        App::new()
            .before(|context| {
                if context.path() != "/nobody" {
                    context.extensions_mut().insert(User("ada"));
                }
                Ok::<(), Problem>(())
            })
            .get("/me", |Extension(User(name)): Extension<User>| name)
            .get("/nobody", |user: Extension<User>| user.0.0)
            .get("/maybe", |user: Option<Extension<User>>| format!("{}", user.is_some()))
            .mount("/axum", router),
    );
    assert_eq!(client.get("/me").send().text(), "ada");
    assert_eq!(client.get("/axum").send().text(), "ada");
    assert_eq!(client.get("/maybe").send().text(), "true");
    assert_eq!(client.get("/nobody").send().status(), Status::INTERNAL_SERVER_ERROR);
}

#[test]
fn forwarded_addresses_are_believed_of_trusted_proxies_alone() {
    let show = |ClientIp(ip): ClientIp| ip.unwrap().to_string();
    let forwarded = |path: &str| {
        get(path)
            .replace("Host", "X-Forwarded-For: 1.1.1.1, 203.0.113.9\r\nX-Forwarded-For: 10.0.0.1\r\nHost")
    };
    let inner = App::new().get("/", show);
    let other = App::new().trusted_proxies(&[]).get("/", show);
    let trusting = App::new().trusted_proxies(&["127.0.0.0/8", "10.0.0.0/8"]);
    let server = serve(trusting.get("/", show).nest("/in", inner).nest("/other", other));
    for path in ["/", "/in"] {
        assert!(ask(&server, &forwarded(path)).ends_with("\r\n203.0.113.9"), "{path}");
        assert!(ask(&server, &get(path)).ends_with("\r\n127.0.0.1"), "{path}");
    }
    assert!(ask(&server, &forwarded("/other")).ends_with("\r\n127.0.0.1"));
    let plain = serve(App::new().get("/", show));
    assert!(ask(&plain, &forwarded("/")).ends_with("\r\n127.0.0.1"));
    let Err(error) = App::new().trusted_proxies(&["10.0.0.0/99"]).start() else { panic!("no error") };
    assert!(error.to_string().contains("got `10.0.0.0/99`"), "{error}");
}
