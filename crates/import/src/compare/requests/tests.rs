//! Requests of configurations.

use flatout_config::Source;

use super::{Ask, Vocabulary};
use crate::nginx::{FILE, parse};

const CONF: &str = r#"http {
    map $http_x_kind $kind { default 0; ~^(one|two)$ 1; "" 2; }
    server {
        server_name a.example www.a.example ~^(?<zone>de|en)\.b\.example$;
        error_page 404 /errors/404.html;
        if ($arg_debug = on) { return 403; }
        if ($http_user_agent ~* (bot|crawl)) { return 403; }
        if ($cookie_session) { return 204; }
        rewrite ^/old/(.*)$ /new/$1 last;
        location = /exact { add_header X-Kind $kind; add_header X-Time $msec; return 204; }
        location /api/ { if ($request_method = OPTIONS) { return 204; } if ($http_x_key = "k 1") { return 201; } if ($arg_v = 2) { return 202; } expires 1h; }
        location ^~ /static/ { alias /srv/static/; location ~ \.(png|jpg)$ { expires 1d; } }
        location ~ ^/(?!public)x { proxy_set_header X-Zone $http_x_zone; proxy_pass http://a; }
    }
    server { server_name *.c.example; location @named { return 200; } }
}"#;

fn vocabulary(text: &str) -> Vocabulary {
    let source = Source::new("nginx.conf", text.as_bytes().to_vec(), &FILE).unwrap();
    let mut vocabulary = Vocabulary::default();
    vocabulary.add_nginx(&parse(&source, "nginx.conf").unwrap());
    vocabulary
}

#[test]
fn names_in_conditions_are_requested() {
    let asks = vocabulary(CONF).requests("usual.example", 2000);
    let has = |host: &str, target: &str| asks.iter().any(|ask| ask.host == host && ask.target == target);
    for (host, target) in [
        ("a.example", "/exact"),
        ("a.example", "/static/"),
        ("a.example", "/static/nothing-is-here"),
        ("a.example", "/index.png"),
        ("a.example", "/old/a"),
        ("a.example", "/x"),
        ("a.example", "/errors/404.html"),
        ("a.example", "/errors/404.html?debug=on"),
        ("a.example", "//exact"),
        ("www.a.example", "/errors/404.html"),
        ("de.b.example", "/errors/404.html"),
        ("any.c.example", "/"),
        ("unknown.example", "/errors/404.html"),
    ] {
        assert!(has(host, target), "{host}{target}");
    }
    let has_field = |name: &str, value: &str| {
        asks.iter().any(|ask| ask.fields.iter().any(|(known, text)| known == name && text == value))
    };
    for (name, value) in [
        ("user-agent", "bot"),
        ("user-agent", "crawl"),
        ("Cookie", "session=1"),
        ("x-kind", "two"),
        ("x-zone", "some-value"),
        ("Range", "bytes=1-4"),
    ] {
        assert!(has_field(name, value), "{name}: {value}");
    }
    assert!(
        asks.iter()
            .all(|ask| ask.target.starts_with('/') && ask.target.bytes().all(|byte| byte.is_ascii_graphic()))
    );
    assert!(asks.iter().all(|ask| ["GET", "HEAD", "OPTIONS"].contains(&&*ask.method)));
    // Conditions of a location are requested there, before all else but the paths.
    let first: Vec<&Ask> = asks.iter().skip_while(|ask| ask.fields.is_empty()).take(60).collect();
    let has_test = |method: &str, target: &str, field: Option<(&str, &str)>| {
        first.iter().any(|ask| {
            let known = ask.fields.first().map(|(name, value)| (name.as_str(), value.as_str()));
            (ask.method.as_str(), ask.target.as_str(), known) == (method, target, field)
        })
    };
    assert!(has_test("OPTIONS", "/api/", None));
    assert!(has_test("GET", "/api/", Some(("x-key", "k 1"))));
    assert!(has_test("GET", "/api/?v=2", None));
    assert!(has_test("OPTIONS", "/", Some(("Origin", "https://another.example"))));
    assert_eq!(vocabulary(CONF).set_fields(), ["x-kind", "expires"]);
    assert_eq!(asks, vocabulary(CONF).requests("usual.example", 2000));
}

#[test]
fn small_configurations_have_enough_requests_and_large_ones_a_limit() {
    assert_eq!(vocabulary("http { server { return 204; } }").requests("a.example", 300).len(), 300);
    let location = |at: usize| format!("location /{at}/ {{ return 204; }}");
    let many: String = (0..1000).map(location).collect();
    let case = |at: usize| format!("/{at} {at};");
    let cases: String = (0..5000).map(case).collect();
    let text = format!("http {{ map $uri $x {{ {cases} }} server {{ {many} }} }}");
    assert_eq!(vocabulary(&text).requests("a.example", 1000).len(), 1000);
    for text in ["http { }", "http { server { location { } if ( ) { } if ($) { } rewrite; } }"] {
        let asks = vocabulary(text).requests("a.example", 10);
        assert!(asks.iter().all(|ask| ask.host.ends_with("a.example") || !ask.host.is_empty()), "{text}");
    }
}

/// Clients resolve dots before they send a request.
#[test]
fn paths_have_no_dots() {
    let asks = vocabulary(
        "http { server { location /. { } location ~ ^/\\.\\./a { } location /a/%2e%2e/ { } location /.b { } } }",
    )
    .requests("a.example", 2000);
    let has = |target: &str| asks.iter().any(|ask| ask.target == target);
    assert!(has("/.b") && !has("/.") && !has("/../a") && !has("/a/%2e%2e/"), "{asks:?}");
}

#[test]
fn hosts_have_one_port_and_addresses_no_dot() {
    let spellings = |host: &str| super::spellings_of_host(host);
    assert_eq!(spellings("a.example"), ["A.EXAMPLE", "a.example:8080", "a.example."]);
    assert_eq!(spellings("a.example:81"), ["A.EXAMPLE:81", "a.example:8080", "a.example."]);
    assert_eq!(spellings("127.0.0.1:81"), ["127.0.0.1:81", "127.0.0.1:8080"]);
    assert_eq!(spellings("[::1]:81"), ["[::1]:81", "[::1]:8080"]);
    assert_eq!(spellings("[::1]"), ["[::1]", "[::1]:8080"]);
}
