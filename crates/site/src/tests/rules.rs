//! Tests each rule in a plan, from the client's and the upstream's side.

use std::time::Duration;

use super::super::plan::{
    Access, AddressFrom, Cors, ErrorPage, FieldChange, FieldRule, Host, Hsts, Limited, Maintenance, Map,
    Origins, Page, PageSource, PathPolicy, Peers, Rate, RateUse, Rewrite, RewriteFrom, Rules, Then, Trust,
    Variable, Verdict, When, WhenBlock,
};
use super::*;
use flatout_engine::Announced;
use flatout_observe::observed::NO_SITE;

fn page(text: &str) -> Page {
    Page { content_type: "text/html".to_owned(), source: PageSource::Text(text.to_owned()) }
}

fn field(name: &str, change: FieldChange) -> FieldRule {
    FieldRule { name: name.to_owned(), change, when: When::Always }
}

fn with_rules(rules: Rules) -> TestClient {
    TestClient::new(&plan_of(vec![Route { rules, ..to_upstream("/") }]))
}

fn access(verdict: Verdict, peers: &str) -> Access {
    Access { verdict, peers: peers.parse().unwrap() }
}

#[test]
fn host_selects_its_site() {
    let mut plan = plan_of(vec![respond(PathMatch::prefix("/"), "first")]);
    plan.sites[0].hosts = vec![Host::Exact("a.example".to_owned())];
    let client = TestClient::new(&plan);
    assert_eq!(client.get("/").body, "first");
    assert_eq!(client.get("http://a.example:80/").body, "first");
    let answer = client.get("http://b.example/");
    assert_eq!((answer.status, answer.body.as_str()), (421, "no site for host `b.example`\n"));
}

#[test]
fn requests_without_a_route_get_404_405_or_501() {
    let mut one = respond(PathMatch::Exact("/one".to_owned()), "one");
    one.methods = vec!["GET".to_owned(), "POST".to_owned()];
    let client = TestClient::new(&plan_of(vec![one]));
    assert_eq!(client.ask("HEAD", "/one", "").status, 200);
    assert_eq!(client.get("/two").status, 404);
    let answer = client.ask("DELETE", "/one", "");
    assert_eq!(answer.status, 405);
    assert!(answer.fields.contains("Allow: GET, HEAD, POST\r\n"), "{answer:?}");
    assert_eq!(client.ask("TRACE", "/one", "").status, 405);
    assert_eq!(client.ask("OPTIONS", "*", "").status, 204);
    let (_, response) = client.reply(None, "CONNECT b.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n");
    assert!(response.status() == Status::METHOD_NOT_ALLOWED && response.closes());
}

#[test]
fn redirects_and_responses_are_filled_in() {
    let redirect = |path: &str, to: &str| {
        let action = Action::Redirect { status: 308, to: template(to) };
        Route::new(PathMatch::prefix(path), action)
    };
    let named = PathMatch::Regex { pattern: "^/user/(?P<name>[^/]+)$".to_owned(), ignore_case: false };
    let body = Template::parse("hello $name", |name| Some(Variable::NamedCapture(name.to_owned()))).unwrap();
    let action = Action::Respond { status: 418, content_type: "text/plain".to_owned(), body };
    let client = TestClient::new(&plan_of(vec![
        redirect("/to-https", "https://$host$request_uri"),
        redirect("/here", "$uri/"),
        redirect("/raw", "$request_uri"),
        redirect("/cdn", "//cdn.example$uri"),
        Route { paths: PathPolicy::Forward, ..Route::new(named, action) },
    ]));
    for (target, location) in [
        ("/to-https/a%20b?c=d", "https://a.example/to-https/a%20b?c=d"),
        ("http://A.example/to-https", "https://a.example/to-https"),
        ("/here/a%20%E2%82%AC", "/here/a%20%E2%82%AC/"),
        // A location that starts with two slashes would be another host.
        ("//here/x", "/here/x/"),
        ("//raw/x", "/raw/x"),
        ("/cdn/x", "//cdn.example/cdn/x"),
    ] {
        let answer = client.get(target);
        assert_eq!((answer.status, answer.fields), (308, format!("Location: {location}\r\n")), "{target}");
    }
    assert_eq!(client.get("/user/ann").body, "hello ann");
    assert_eq!(client.get("/user/ann").status, 418);
    assert_eq!(client.get("/user/a%2Fb").body, "hello a%2Fb");
}

#[test]
fn rewrites_change_the_target_and_may_choose_another_route() {
    let rewrite = |from: &str, to: &str, then| {
        let from = RewriteFrom::Regex { pattern: from.to_owned(), ignore_case: false };
        Rewrite { from, to: template(to), then, when: Vec::new() }
    };
    let mut first = to_upstream("/old");
    first.rewrites = vec![rewrite("^/old/(.*)$", "/new/$1?from=old", Then::Route)];
    let second = Route { action: Action::Proxy(proxy::Forward::to(1)), ..to_upstream("/new") };
    let mut circle = to_upstream("/circle");
    circle.rewrites = vec![rewrite("^(/circle.*)$", "${1}x", Then::Route)];
    circle.path = PathMatch::Prefix { path: "/circle".to_owned(), segments: false, before_patterns: false };
    let mut plan = plan_of(vec![first, second, circle]);
    plan.sites[0].rewrites = vec![rewrite("^/v1(/.*)$", "$1", Then::Next)];
    let client = TestClient::new(&plan);
    for (target, upstream, sent) in [
        ("/new/x?y=1", 1, "/new/x?y=1"),
        ("/old/x%20y?z=1", 1, "/new/x%20y?from=old&z=1"),
        ("/v1/new/a", 1, "/new/a"),
        ("/v1/old/a", 1, "/new/a?from=old"),
    ] {
        assert_eq!(client.get(target).status, 200, "{target}");
        let last = client.last_sent();
        assert_eq!((last.upstream, last.target.as_str()), (upstream, sent), "{target}");
    }
    assert_eq!(client.get("/circle").status, 500);
}

#[test]
fn lists_of_addresses_are_asked_for_the_client() {
    let rules = Rules {
        access: vec![access(Verdict::Allow, "10.0.0.0/8"), access(Verdict::Deny, "all")],
        ..Rules::default()
    };
    let client = with_rules(rules.clone());
    assert_eq!(client.ask_from(Some("10.1.2.3"), "GET", "/", "").status, 200);
    assert_eq!(client.ask_from(Some("::ffff:10.1.2.3"), "GET", "/", "").status, 200);
    assert_eq!(client.ask_from(Some("192.0.2.1"), "GET", "/", "").status, 403);
    assert_eq!(client.ask_from(None, "GET", "/", "").status, 403);
    // Only trusted proxies are believed.
    let told = "X-Forwarded-For: 10.1.2.3\r\n";
    assert_eq!(client.ask_from(Some("192.0.2.1"), "GET", "/", told).status, 403);
    let mut plan = plan_of(vec![Route { rules, ..to_upstream("/") }]);
    plan.sites[0].trust =
        Trust { proxies: vec!["192.0.2.0/24".parse().unwrap()], from: AddressFrom::XForwardedFor };
    let client = TestClient::new(&plan);
    assert_eq!(client.ask_from(Some("192.0.2.1"), "GET", "/", told).status, 200);
    assert_eq!(client.last_sent().client.address, Some([10, 1, 2, 3].into()));
    assert!(client.last_sent().client.is_from_proxy);
    assert_eq!(client.ask_from(Some("10.0.0.1"), "GET", "/", "X-Forwarded-For: 192.0.2.9\r\n").status, 200);
    assert_eq!(
        client.ask_from(Some("192.0.2.1"), "GET", "/", "X-Forwarded-For: 203.0.113.1\r\n").status,
        403
    );
}

#[test]
fn maintenance_page_is_sent_except_to_allowed_clients() {
    let maintenance = Maintenance {
        page: page("back soon"),
        retry_after: Some(Duration::from_secs(120)),
        except: vec![Peers::Unix],
    };
    let client = with_rules(Rules { maintenance: Some(maintenance), ..Rules::default() });
    let answer = client.get("/");
    assert_eq!((answer.status, answer.body.as_str()), (503, "back soon"));
    assert!(answer.fields.contains("Retry-After: 120\r\n"), "{answer:?}");
    assert_eq!(client.ask_from(None, "GET", "/", "").status, 200);
}

#[test]
fn rates_are_enforced_and_reported() {
    let rate = |name: &str, key, requests| Rate {
        name: name.to_owned(),
        key,
        requests,
        window: Duration::from_secs(3600),
        keys_max: 1024,
    };
    let used =
        |rate, burst, fields| RateUse { rate, burst, delay: None, status: 429, fields, is_dry_run: false };
    let mut plan = plan_of(vec![
        Route { rules: Rules { rates: vec![used(0, 2, true)], ..Rules::default() }, ..to_upstream("/") },
        Route { rules: Rules { rates: vec![used(1, 0, false)], ..Rules::default() }, ..to_upstream("/key") },
    ]);
    plan.rates = vec![
        rate("by-address", Limited::Client { ipv6_bits: 64 }, 60),
        rate("by-key", Limited::Text(template("$http_x_api_key")), 1),
    ];
    let client = TestClient::new(&plan);
    let first = client.get("/");
    assert_eq!(first.status, 200);
    assert!(
        first.fields.contains(
            "RateLimit-Policy: \"by-address\";q=60;w=3600\r\nRateLimit: \"by-address\";r=2;t=60\r\n"
        ),
        "{first:?}"
    );
    assert_eq!((client.get("/").status, client.get("/").status), (200, 200));
    let refused = client.get("/");
    assert_eq!((refused.status, refused.body.as_str()), (429, "Too Many Requests\n"));
    assert!(refused.fields.contains("RateLimit: \"by-address\";r=0;t=60\r\n"), "{refused:?}");
    assert!(refused.fields.contains("Retry-After: 60\r\n"), "{refused:?}");
    assert_eq!(client.ask_from(Some("192.0.2.2"), "GET", "/", "").status, 200, "others are not held to it");
    // Addresses in the same /64 are one client.
    for at in 1..=3 {
        assert_eq!(client.ask_from(Some(&format!("2001:db8::{at}")), "GET", "/", "").status, 200);
    }
    assert_eq!(client.ask_from(Some("2001:db8::4"), "GET", "/", "").status, 429);
    assert_eq!(client.ask_from(Some("2001:db8:0:1::1"), "GET", "/", "").status, 200);
    // Another worker uses the same counters.
    let other = TestClient {
        service: client.sites.service(client.fake.clone()),
        fake: client.fake.clone(),
        sites: client.sites.clone(),
    };
    assert_eq!(other.get("/").status, 429);
    // By key; requests without a key are counted together.
    let key = |key: &str| client.ask("GET", "/key", &format!("X-Api-Key: {key}\r\n"));
    assert_eq!((key("a").status, key("b").status, key("a").status), (200, 200, 429));
    assert!(!key("a").fields.contains("RateLimit"));
    assert_eq!((client.get("/key").status, client.get("/key").status), (200, 429));
    assert_eq!((key("").status, key("c").status), (429, 200));
}

#[test]
fn preflights_are_answered_and_responses_shared() {
    let cors = Cors {
        origins: Origins::These(vec!["https://app.example".to_owned()]),
        methods: vec!["PUT".to_owned()],
        headers: vec!["*".to_owned()],
        expose: Vec::new(),
        credentials: true,
        age_max: None,
    };
    let route = Route {
        methods: vec!["GET".to_owned(), "PUT".to_owned()],
        rules: Rules { cors: Some(cors), ..Rules::default() },
        ..to_upstream("/")
    };
    let client = TestClient::new(&plan_of(vec![route]));
    let fields = "Origin: https://app.example\r\nAccess-Control-Request-Method: PUT\r\n\
                  Access-Control-Request-Headers: x-one\r\n";
    let answer = client.ask("OPTIONS", "/a", fields);
    assert_eq!(answer.status, 204);
    assert!(answer.fields.contains("Access-Control-Allow-Headers: x-one\r\n"), "{answer:?}");
    assert!(answer.fields.contains("Access-Control-Allow-Origin: https://app.example\r\n"), "{answer:?}");
    assert!(client.fake.sent.borrow().is_empty(), "nobody else was asked");
    assert_eq!(client.ask("OPTIONS", "/a", "").status, 405);
    let answer = client.ask("PUT", "/a", "Origin: https://app.example\r\n");
    assert!(
        answer.fields.contains("X-Upstream: yes\r\nVary: Origin\r\nAccess-Control-Allow-Origin:"),
        "{answer:?}"
    );
}

#[test]
fn fields_of_both_directions_are_changed() {
    let set = |text: &str| FieldChange::Set(template(text));
    let mut route = Route {
        rules: Rules {
            request_fields: vec![
                field("X-Real-IP", set("$remote_addr")),
                field(
                    "X-Kind",
                    FieldChange::Set(Template::parse("$kind", |_| Some(Variable::Map(0))).unwrap()),
                ),
                field("Cookie", FieldChange::Remove),
            ],
            response_fields: vec![
                field("X-Upstream", FieldChange::Remove),
                field("X-Frame-Options", set("DENY")),
                field("X-Asked", set("$request_uri")),
            ],
            ..Rules::default()
        },
        ..to_upstream("/")
    };
    let kinds = Map {
        name: "kind".to_owned(),
        source: template("$arg_kind"),
        cases: vec![(plan::MapKey::Exact("b".to_owned()), template("blue"))],
        default: template("none"),
        file: None,
        proxies: None,
    };
    let mut plan = plan_of(vec![route.clone()]);
    plan.maps = vec![kinds.clone()];
    let client = TestClient::new(&plan);
    let answer = client.ask(
        "GET",
        "/?kind=B",
        "X-Real-IP: 1.1.1.1\r\nx_real_ip: 2.2.2.2\r\ncookie: a\r\nAccept: b\r\n",
    );
    assert_eq!(answer.fields, "X-Frame-Options: DENY\r\nX-Asked: /?kind=B\r\n");
    let sent = client.last_sent();
    assert_eq!(sent.lines, "X-Real-IP: 192.0.2.1\r\nX-Kind: blue\r\n");
    assert_eq!(sent.kept, ["Accept"], "neither name leads a false address to a CGI");
    // Also where a rule of the route refuses.
    route.rules.access = vec![access(Verdict::Deny, "all")];
    let mut plan = plan_of(vec![route]);
    plan.maps = vec![kinds];
    let answer = TestClient::new(&plan).get("/");
    assert_eq!(answer.status, 403);
    assert!(answer.fields.contains("X-Frame-Options: DENY\r\n"), "{answer:?}");
}

#[test]
fn maps_of_the_response_are_for_rules_of_responses() {
    let of_response = |text: &str| Template::parse(text, |_| Some(Variable::ResponseMap(0))).unwrap();
    let regex = |pattern: &str| plan::MapKey::Regex { pattern: pattern.to_owned(), ignore_case: true };
    let frames = Map {
        name: "frames".to_owned(),
        source: template("$status $sent_http_x_upstream"),
        cases: vec![
            (plan::MapKey::Exact("200 yes".to_owned()), template("DENY")),
            (regex("^(4..) "), template("refused $1")),
        ],
        default: Template::default(),
        file: None,
        proxies: None,
    };
    let route = Route {
        rules: Rules {
            response_fields: vec![
                field("X-Frame-Options", FieldChange::Set(of_response("$frames"))),
                field("X-Both", FieldChange::Set(of_response("$request_method $frames"))),
            ],
            ..Rules::default()
        },
        ..to_upstream("/")
    };
    let mut plan = plan_of(vec![route.clone()]);
    plan.maps = vec![frames.clone()];
    let answer = TestClient::new(&plan).get("/");
    assert!(answer.fields.ends_with("X-Frame-Options: DENY\r\nX-Both: GET DENY\r\n"), "{answer:?}");
    let mut refused = route.clone();
    refused.rules.access = vec![access(Verdict::Deny, "all")];
    plan.sites[0].routes = vec![refused];
    let answer = TestClient::new(&plan).get("/");
    assert!(answer.fields.contains("X-Frame-Options: refused 403\r\n"), "{answer:?}");
    // A request does not know it yet.
    let mut early = route.clone();
    early.rules.request_fields = vec![field("X-Early", FieldChange::Set(of_response("$frames")))];
    plan.sites[0].routes = vec![early];
    let fault = crate::check(&plan).unwrap_err();
    assert!(fault.to_string().contains("only response-header has those"), "{fault}");
    // And the map does not know the request.
    plan.sites[0].routes = vec![route];
    plan.maps[0].source = template("$status $request_method");
    let fault = crate::check(&plan).unwrap_err();
    assert!(
        fault.to_string().contains("map 1") && fault.to_string().contains("no other variables"),
        "{fault}"
    );
}

#[test]
fn error_pages_replace_errors() {
    let error_page = |statuses, text: &str, of_upstreams| ErrorPage {
        statuses: vec![statuses],
        page: page(text),
        status: None,
        of_upstreams,
    };
    let rules = Rules {
        access: vec![access(Verdict::Deny, "10.0.0.0/8")],
        error_pages: vec![error_page(403..=403, "go away", false), error_page(500..=599, "sorry", true)],
        ..Rules::default()
    };
    let mut plan = plan_of(vec![Route { rules: rules.clone(), ..to_upstream("/a") }]);
    plan.sites[0].rules =
        Rules { error_pages: vec![error_page(404..=404, "nothing here", false)], ..Rules::default() };
    let client = TestClient::new(&plan);
    let answer = client.ask_from(Some("10.0.0.1"), "GET", "/a", "");
    assert_eq!((answer.status, answer.body.as_str()), (403, "go away"));
    assert_eq!(answer.fields, "Content-Type: text/html\r\n");
    assert_eq!(client.ask("GET", "/a", "X-Status: 502\r\n").body, "sorry");
    assert_eq!(client.ask("GET", "/a", "X-Status: 403\r\n").body, "upstream");
    assert_eq!((client.get("/b").status, client.get("/b").body.as_str()), (404, "nothing here"));
}

#[test]
fn bodies_above_the_routes_limit_are_refused() {
    let mut route = to_upstream("/");
    route.rules.body.bytes_max = Some(10);
    let client = TestClient::new(&plan_of(vec![route]));
    let plan = |fields: &str| {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let mut spans = Vec::new();
        let head = parse(head.as_bytes(), &mut spans, &HeadLimits::default()).unwrap().unwrap();
        client.service.prepare(&head, b"/", 0).body
    };
    assert_eq!(plan("Content-Length: 10"), BodyPlan::Whole { bytes_max: Some(10) });
    // Collected after the other rules: these clients may not have to send it, or their bodies have no declared length.
    assert_eq!(plan("Transfer-Encoding: chunked"), BodyPlan::Stream { bytes_max: Some(10) });
    assert_eq!(plan("Content-Length: 10\r\nExpect: 100-continue"), BodyPlan::Stream { bytes_max: Some(10) });
    // The route responds itself, with its own pages.
    assert_eq!(plan("Content-Length: 11"), BodyPlan::Refused);
    assert_eq!(client.ask("POST", "/", "Content-Length: 11\r\n").status, 413);
}

#[test]
fn files_are_tried_before_the_upstream() {
    let folder = Folder::new("try", &[("a.txt", "file"), ("404.html", "own page")]);
    let mut plan = plan_of(vec![
        Route { try_files: Some(0), ..to_upstream("/") },
        Route::new(PathMatch::prefix("/only"), Action::Files(0)),
    ]);
    plan.folders.push(folder.plan());
    let client = TestClient::new(&plan);
    assert_eq!(client.get("/a.txt").body, "file");
    assert_eq!(client.get("/b.txt").body, "upstream");
    assert_eq!(client.ask("POST", "/a.txt", "").body, "upstream");
    assert!(!client.get("/b.txt").fields.contains("Content-Type"), "nothing of the 404 is left");
    let answer = client.get("/only/b.txt");
    assert_eq!((answer.status, answer.body.as_str()), (404, "own page"));
}

/// As in nginx: what is in the folder is not for the upstream.
#[test]
fn found_files_may_be_final() {
    let folder = Folder::new("final", &[("a.txt", "file"), ("sub/b.txt", "below")]);
    let mut plan = plan_of(vec![Route { try_files: Some(0), try_files_final: true, ..to_upstream("/") }]);
    plan.folders.push(folder.plan());
    let client = TestClient::new(&plan);
    for (method, path, status) in [
        ("GET", "/a.txt", 200),
        ("HEAD", "/a.txt", 200),
        ("POST", "/a.txt", 405),
        ("OPTIONS", "/a.txt", 204),
        ("GET", "/", 403),
        ("GET", "/sub/", 403),
        ("PUT", "/sub/", 405),
        ("GET", "/sub", 301),
    ] {
        assert_eq!(client.ask(method, path, "").status, status, "{method} {path}");
    }
    for (method, path) in
        [("GET", "/a.txt/"), ("GET", "/b.txt"), ("POST", "/b.txt"), ("OPTIONS", "/none/"), ("PUT", "/none/x")]
    {
        assert_eq!(client.ask(method, path, "").body, "upstream", "{method} {path}");
    }
}

#[test]
fn responses_note_their_site() {
    let mut plan = plan_of(vec![respond(PathMatch::prefix("/a"), "")]);
    plan.sites[0].hosts = vec![Host::Exact("other.example".to_owned())];
    let second = plan_of(vec![respond(PathMatch::prefix("/a"), ""), to_upstream("/b")]).sites.remove(0);
    let hosts = vec![Host::Exact("a.example".to_owned())];
    plan.sites.push(Site { number: 7, hosts, ..Site::clone(&second) }.into());
    let client = TestClient::new(&plan);
    for (target, site) in [("/a", 7), ("/b", 7), ("/c", 7), ("http://b.example/", NO_SITE)] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let (_, response) = client.reply(None, &head);
        assert_eq!(response.note(), u64::from(site), "{target}");
    }
}

#[test]
fn hsts_is_sent_over_https() {
    let hsts = Hsts { max_age: Duration::from_secs(60), subdomains: true, preload: true };
    let rules = Rules { hsts: Some(hsts), ..Rules::default() };
    let own = field("Strict-Transport-Security", FieldChange::Set(template("max-age=1")));
    let with_own = Rules { response_fields: vec![own], ..rules.clone() };
    let mut plan =
        plan_of(vec![Route { rules, ..to_upstream("/") }, Route { rules: with_own, ..to_upstream("/own") }]);
    // The trusted proxy says whether the client uses HTTPS.
    plan.sites[0].trust.proxies = vec![Peers::All];
    let client = TestClient::new(&plan);
    let line = "Strict-Transport-Security: max-age=60; includeSubDomains; preload\r\n";
    for (target, sent, expected) in [
        ("/", "X-Forwarded-Proto: https\r\n", line),
        ("/", "X-Forwarded-Proto: http\r\n", ""),
        ("/", "", ""),
        ("/own", "X-Forwarded-Proto: https\r\n", "Strict-Transport-Security: max-age=1\r\n"),
    ] {
        let fields = client.ask("GET", target, sent).fields;
        assert_eq!(fields.replace("X-Upstream: yes\r\n", ""), expected, "{target} {sent}");
    }
}

#[test]
fn a_route_may_trust_other_proxies_than_its_site() {
    let trust = |text: &str| {
        let proxies = vec![text.parse().unwrap()];
        Trust { proxies, from: AddressFrom::Header("X-Client".to_owned()) }
    };
    let mut own = respond(PathMatch::prefix("/own"), "$remote_addr");
    own.rules.trust = Some(trust("192.0.2.0/24"));
    own.rules.access = vec![access(Verdict::Deny, "203.0.113.0/24")];
    let mut when =
        WhenBlock { conditions: vec![condition("remote in ['198.51.100.0/24']")], rules: Rules::default() };
    when.rules.response_fields = vec![field("X-Inner", FieldChange::Set(template("yes")))];
    own.rules.when = vec![when];
    let mut plan = plan_of(vec![own, respond(PathMatch::prefix("/"), "$remote_addr")]);
    plan.sites[0].trust = trust("10.0.0.0/8");
    let client = TestClient::new(&plan);
    let ask = |peer: &str, path: &str, field: &str| {
        client.ask_from(Some(peer), "GET", path, &format!("X-Client: {field}\r\n"))
    };
    assert_eq!(ask("192.0.2.1", "/own", "198.51.100.1").body, "198.51.100.1");
    assert_eq!(ask("192.0.2.1", "/", "198.51.100.1").body, "192.0.2.1");
    assert_eq!(ask("10.0.0.1", "/own", "198.51.100.1").body, "10.0.0.1");
    assert_eq!(ask("10.0.0.1", "/", "198.51.100.1").body, "198.51.100.1");
    // Its rules are about its clients.
    assert_eq!(ask("192.0.2.1", "/own", "203.0.113.1").status, 403);
    assert_eq!(ask("10.0.0.1", "/own", "203.0.113.1").status, 200);
    assert!(ask("192.0.2.1", "/own", "198.51.100.1").fields.contains("X-Inner: yes"));
    assert!(!ask("10.0.0.1", "/own", "198.51.100.1").fields.contains("X-Inner"));
}

/// A listener takes the client from a PROXY header if one of its sites trusts the peer. The others do not.
#[test]
fn a_site_believes_only_the_peers_that_it_trusts() {
    let site = |host: &str, trusted: &str| {
        let mut route = respond(PathMatch::prefix("/"), "$remote_addr");
        route.rules.access = vec![access(Verdict::Allow, "192.0.2.1"), access(Verdict::Deny, "all")];
        let proxies = trusted.split_terminator(' ').map(|text| text.parse().unwrap()).collect();
        let trust = Trust { proxies, from: AddressFrom::ProxyProtocol };
        let hosts = vec![plan::Host::Exact(host.to_owned())];
        Site { name: host.to_owned(), hosts, trust, routes: vec![route], ..Site::default() }
    };
    let mut plan = plan_of(Vec::new());
    plan.sites =
        [site("a", "10.0.0.0/8 unix"), site("b", ""), site("c", "10.0.0.1")].map(Into::into).to_vec();
    let client = TestClient::new(&plan);
    let status = |host: &str, peer: Option<&str>| {
        let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let mut spans = Vec::new();
        let head = parse(text.as_bytes(), &mut spans, &HeadLimits::default()).unwrap().unwrap();
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 1);
        let source = Some(address("192.0.2.1"));
        let announced = Rc::new(Announced { source, target: None, peer: peer.map(address) });
        let mut request = Request::detached_behind(Some(&announced), head, b"/", RequestBody::NONE);
        request.peer = source;
        let mut response = Response::new();
        assert!(matches!(client.service.call(request, &mut response), Reply::Now));
        response.status().code()
    };
    for (host, peer, expected) in [
        ("a", Some("10.9.9.9"), 200),
        ("b", Some("10.9.9.9"), 403),
        ("c", Some("10.9.9.9"), 403),
        ("c", Some("10.0.0.1"), 200),
        ("a", None, 200),
        ("c", None, 403),
    ] {
        assert_eq!(status(host, peer), expected, "{host} {peer:?}");
    }
}

#[test]
fn a_client_stays_the_same_at_the_next_route() {
    let trust = |text: &str| {
        let proxies = vec![text.parse().unwrap()];
        Trust { proxies, from: AddressFrom::Header("X-Client".to_owned()) }
    };
    let mut first = Route {
        action: Action::Reroute(plan::Reroute::Path(template("/inner"))),
        ..respond(PathMatch::prefix("/first"), "")
    };
    first.rules.trust = Some(trust("10.0.0.0/8"));
    let mut inner = respond(PathMatch::prefix("/inner"), "$remote_addr");
    inner.rules.access = vec![access(Verdict::Allow, "10.0.0.0/8"), access(Verdict::Deny, "all")];
    let mut plan = plan_of(vec![first, inner]);
    let ask = |client: &TestClient, path: &str| {
        client.ask_from(Some("10.0.0.1"), "GET", path, "X-Client: 203.0.113.5\r\n").status
    };
    let client = TestClient::new(&plan);
    assert_eq!(ask(&client, "/inner"), 200);
    assert_eq!(ask(&client, "/first"), 403, "the balancer is not the client");
    // Also if the next route trusts others.
    plan.sites[0].routes[1].rules.trust = Some(trust("192.0.2.0/24"));
    assert_eq!(ask(&TestClient::new(&plan), "/first"), 403);
}
