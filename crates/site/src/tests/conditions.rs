//! Rules and routes under conditions, and variables.

use super::super::plan::{
    Access, Cached, Concurrency, ConcurrencyUse, ErrorPage, Expires, ExpiresFrom, FieldChange, FieldRule,
    Limited, Map, MapKey, Page, PageSource, Peers, Rate, RateUse, Reroute, Rewrite, RewriteFrom, RouteEntry,
    Rules, SetValue, SetVariable, Then, Validity, Verdict, When, WhenBlock,
};
use super::*;

fn block(conditions: &[&str], rules: Rules) -> WhenBlock {
    WhenBlock { conditions: conditions.iter().map(|text| condition(text)).collect(), rules }
}

fn adds(name: &str, value: &str) -> FieldRule {
    let value = Template::parse(value, of_file).unwrap();
    FieldRule { change: FieldChange::Set(value), name: name.to_owned(), when: When::Always }
}

fn set(value: &str, when: &[&str], before: Option<usize>) -> SetVariable {
    SetVariable {
        name: "s".to_owned(),
        value: SetValue::Text(Template::parse(value, of_file).unwrap()),
        when: when.iter().map(|text| condition(text)).collect(),
        before,
    }
}

fn when(route: Route, conditions: &[&str]) -> Route {
    Route { when: conditions.iter().map(|text| condition(text)).collect(), ..route }
}

fn body(client: &TestClient, method: &str, target: &str, fields: &str) -> String {
    let response = client.ask(method, target, fields);
    format!("{} {}", response.status, response.body.trim_end())
}

#[test]
fn a_route_is_chosen_if_its_condition_is_true() {
    let client = TestClient::new(&plan_of(vec![
        when(respond(PathMatch::prefix("/a"), "mobile"), &["header['user-agent'].contains('Mobile')"]),
        Route { methods: vec!["GET".to_owned()], ..respond(PathMatch::prefix("/a"), "desktop") },
        when(respond(PathMatch::Exact("/a/x".to_owned()), "inside"), &["remote in ['10.0.0.0/8']"]),
        when(
            respond(
                PathMatch::Regex { pattern: "^/a/([0-9]+)$".to_owned(), ignore_case: false },
                "number $1",
            ),
            &["int($1) > 100"],
        ),
        respond(PathMatch::prefix("/"), "rest"),
    ]));
    for (method, target, fields, expected) in [
        ("GET", "/a", "User-Agent: Mobile Safari\r\n", "200 mobile"),
        ("GET", "/a", "", "200 desktop"),
        ("HEAD", "/a", "", "200 desktop"),
        ("POST", "/a", "User-Agent: Mobile Safari\r\n", "200 mobile"),
        ("POST", "/a", "", "405 Method Not Allowed"),
        ("GET", "/a/x", "", "200 desktop"),
        ("GET", "/a/101", "", "200 number 101"),
        ("GET", "/a/7", "", "200 desktop"),
        ("GET", "/b", "", "200 rest"),
    ] {
        assert_eq!(body(&client, method, target, fields), expected, "{method} {target} {fields}");
    }
    assert_eq!(client.ask_from(Some("10.1.1.1"), "GET", "/a/x", "").body, "inside");
}

#[test]
fn actions_before_paths_and_internal_routes() {
    let mut plan = plan_of(vec![
        Route {
            entry: RouteEntry::BeforePaths,
            ..when(respond(PathMatch::prefix("/"), "moved"), &["arg.old == '1'"])
        },
        Route { entry: RouteEntry::Internal, ..respond(PathMatch::prefix("/inner"), "inner") },
        respond(PathMatch::prefix("/"), "$uri"),
    ]);
    plan.sites[0].routes[2].rewrites.push(Rewrite {
        from: RewriteFrom::Prefix("/out/".to_owned()),
        to: template("/inner/"),
        then: Then::Route,
        when: vec![condition("path.startsWith('/out/')"), condition("method == 'GET'")],
    });
    let client = TestClient::new(&plan);
    for (target, expected) in [
        ("/inner?old=1", "200 moved"),
        ("/inner", "404 Not Found"),
        ("/out/x", "200 inner"),
        ("/x", "200 /x"),
    ] {
        assert_eq!(body(&client, "GET", target, ""), expected, "{target}");
    }
    assert_eq!(body(&client, "POST", "/out/x", ""), "200 /out/x");
}

#[test]
fn rules_under_conditions_are_added() {
    let deny = |text: &str| Access { verdict: Verdict::Deny, peers: text.parse().unwrap() };
    let allow = Access { verdict: Verdict::Allow, peers: Peers::All };
    let mut route = to_upstream("/");
    route.rules = Rules {
        access: vec![deny("192.0.2.9")],
        request_fields: vec![adds("X-Always", "1")],
        response_fields: vec![adds("X-Base", "b")],
        cache: Some(Cached::default()),
        when: vec![
            block(&["header['x-key'] == 'let me in'"], Rules { access: vec![allow], ..Rules::default() }),
            block(
                &["method == 'POST'", "arg.debug != ''"],
                Rules {
                    request_fields: vec![adds("X-Debug", "$arg_debug")],
                    response_fields: vec![adds("X-Base", "$request_method")],
                    ..Rules::default()
                },
            ),
            block(
                &["status >= 500 && method == 'POST'"],
                Rules {
                    response_fields: vec![adds("X-Failed", "$status $http_x_status $uri")],
                    ..Rules::default()
                },
            ),
        ],
        ..Rules::default()
    };
    let client = TestClient::new(&plan_of(vec![route]));
    let denied = client.ask_from(Some("192.0.2.9"), "GET", "/", "");
    assert_eq!(denied.status, 403);
    let allowed = client.ask_from(Some("192.0.2.9"), "GET", "/", "X-Key: let me in\r\n");
    assert_eq!((allowed.status, allowed.fields.contains("X-Base: b")), (200, true));
    assert_eq!(client.last_sent().lines, "X-Always: 1\r\n");
    let debugged = client.ask("POST", "/?debug=on", "X-Debug: forged\r\n");
    assert!(
        debugged.fields.contains("X-Base: POST") && !debugged.fields.contains("X-Failed"),
        "{debugged:?}"
    );
    let sent = client.last_sent();
    assert_eq!(sent.lines, "X-Always: 1\r\nX-Debug: on\r\n");
    assert!(!sent.kept.contains(&"X-Debug".to_owned()));
    let failed = client.ask("POST", "/a%20b", "X-Status: 503\r\n");
    assert!(failed.fields.contains("X-Failed: 503 503 /a b"), "{failed:?}");
    assert!(!client.ask("GET", "/", "X-Status: 503\r\n").fields.contains("X-Failed"));
}

/// Adds limits for all clients together: one request an hour, and one at a time.
fn add_limits(queue_max: u32, plan: &mut Plan) {
    plan.rates.push(Rate {
        name: "posts".to_owned(),
        key: Limited::Everyone,
        requests: 1,
        window: std::time::Duration::from_secs(3600),
        keys_max: 16,
    });
    plan.concurrency.push(Concurrency {
        name: "held".to_owned(),
        key: Limited::Everyone,
        requests_max: 1,
        queue_max,
        queue_time_max: std::time::Duration::from_secs(1),
        keys_max: 16,
        status: 503,
    });
}

#[test]
fn limits_that_are_dry_runs_report_their_verdicts() {
    let mut plan = plan_of(vec![to_upstream("/"), to_upstream("/dry"), to_upstream("/none")]);
    add_limits(10, &mut plan);
    let shown = |name: &str, text: &str| FieldRule {
        name: name.to_owned(),
        change: FieldChange::Set(template(text)),
        when: When::Always,
    };
    let shown = vec![shown("X-Rate", "$limit_req_status."), shown("X-Count", "$limit_conn_status.")];
    for (route, is_dry_run) in [(0, false), (1, true)] {
        let rules = &mut plan.sites[0].routes[route].rules;
        rules.rates =
            vec![RateUse { rate: 0, burst: 1, delay: Some(0), status: 429, fields: false, is_dry_run }];
        rules.concurrency = vec![ConcurrencyUse { limit: 0, is_dry_run }];
    }
    plan.sites[0].routes.iter_mut().for_each(|route| route.rules.response_fields = shown.clone());
    let client = TestClient::new(&plan);
    let statuses = |path: &str| {
        let answer = client.get(path);
        let field = |name: &str| {
            let line = answer.fields.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.unwrap_or_default().to_owned()
        };
        (answer.status, field("X-Rate"), field("X-Count"))
    };
    let expected = |status: u16, rate: &str, count: &str| (status, rate.to_owned(), count.to_owned());
    assert_eq!(statuses("/held"), expected(200, "PASSED.", "PASSED."));
    assert_eq!(statuses("/dry"), expected(200, "DELAYED_DRY_RUN.", "REJECTED_DRY_RUN."));
    assert_eq!(statuses("/dry"), expected(200, "REJECTED_DRY_RUN.", "REJECTED_DRY_RUN."));
    assert_eq!(statuses("/b"), expected(429, "REJECTED.", "."));
    assert_eq!(statuses("/none"), expected(200, ".", "."));
    client.fake.held.borrow_mut().clear();
    assert_eq!(statuses("/dry"), expected(200, "REJECTED_DRY_RUN.", "PASSED."));
}

/// A request that continues elsewhere is counted by the limits of the first of its routes that has got to count it.
#[test]
fn limits_of_another_route_count_a_request_once() {
    // Dry runs have limits of their own.
    let rate = |burst, fields, is_dry_run: bool| RateUse {
        rate: is_dry_run.into(),
        burst,
        delay: None,
        status: 429,
        fields,
        is_dry_run,
    };
    let rated = |is_dry_run| Rules { rates: vec![rate(0, false, is_dry_run)], ..Rules::default() };
    let gated = |is_dry_run: bool| Rules {
        concurrency: vec![ConcurrencyUse { limit: is_dry_run.into(), is_dry_run }],
        ..Rules::default()
    };
    let closed = |rules: Rules| {
        let mut route = to_upstream("/");
        route.rules = rules;
        route.rules.access = vec![Access { verdict: Verdict::Deny, peers: Peers::All }];
        route.rules.error_pages = vec![page_from(400..=499, "@app", false)];
        route
    };
    let on = |rules: Rules| Route { rules, ..reroute(PathMatch::prefix("/"), "@app") };
    let app = |rules: Rules| named("@app", Route { rules, ..to_upstream("/") });
    for (name, first, second, expected) in [
        ("refused before rates", closed(rated(false)), app(rated(false)), [200, 429]),
        ("refused before limits", closed(gated(false)), app(gated(false)), [200, 503]),
        ("a dry run of a rate", on(rated(true)), app(rated(false)), [200, 429]),
        ("a dry run of a limit", on(gated(true)), app(gated(false)), [200, 503]),
        ("a dry run behind a rate", on(rated(false)), app(rated(true)), [200, 429]),
        ("counted once", on(gated(false)), app(gated(false)), [200, 503]),
        ("no limit", on(Rules::default()), app(rated(false)), [200, 429]),
    ] {
        let mut plan = plan_of(vec![first, second]);
        [add_limits, add_limits].iter().for_each(|add| add(0, &mut plan));
        let client = TestClient::new(&plan);
        assert_eq!([client.get("/held").status, client.get("/held").status], expected, "{name}");
    }
    // A dry run counts it once too.
    let dry = || Rules { rates: vec![rate(5, true, true)], ..Rules::default() };
    let mut plan = plan_of(vec![on(dry()), app(dry())]);
    [add_limits, add_limits].iter().for_each(|add| add(0, &mut plan));
    let answer = TestClient::new(&plan).get("/");
    assert!(answer.fields.contains("r=5") && !answer.fields.contains("r=4"), "{answer:?}");
}

#[test]
fn the_page_of_a_refused_request_does_not_wait() {
    let rate =
        |rate, burst, delay| RateUse { rate, burst, delay, status: 429, fields: false, is_dry_run: false };
    let mut route = to_upstream("/");
    route.rules.rates = vec![rate(0, 9, Some(0)), rate(1, 0, None)];
    route.rules.error_pages = vec![page_from(429..=429, "@page", true)];
    let mut plan = plan_of(vec![route, named("@page", respond(PathMatch::prefix("/"), "too many"))]);
    [add_limits, add_limits].iter().for_each(|add| add(0, &mut plan));
    let client = TestClient::new(&plan);
    assert_eq!(client.get("/").status, 200);
    let (Reply::Now, response) = client.reply(Some("192.0.2.1"), "GET / HTTP/1.1\r\nHost: a\r\n\r\n") else {
        panic!("it waits")
    };
    assert_eq!((answer(&response).status, answer(&response).body.as_str()), (429, "too many"));
}

#[test]
fn limits_under_conditions_count_only_their_requests() {
    let mut plan = plan_of(vec![to_upstream("/")]);
    add_limits(0, &mut plan);
    let rate = RateUse { rate: 0, burst: 0, delay: None, status: 429, fields: true, is_dry_run: false };
    plan.sites[0].routes[0].rules.when = vec![
        block(&["method == 'POST'"], Rules { rates: vec![rate], ..Rules::default() }),
        block(
            &["path.startsWith('/held')"],
            Rules { concurrency: vec![ConcurrencyUse { limit: 0, is_dry_run: false }], ..Rules::default() },
        ),
    ];
    let client = TestClient::new(&plan);
    assert_eq!([client.get("/").status, client.get("/").status], [200, 200]);
    let first = client.ask("POST", "/", "");
    assert!(first.status == 200 && first.fields.contains("RateLimit-Policy"), "{first:?}");
    assert_eq!((client.ask("POST", "/", "").status, client.get("/").status), (429, 200));
    assert_eq!(client.get("/held").status, 200);
    assert_eq!((client.get("/held").status, client.get("/other").status), (503, 200));
}

#[test]
fn variables_have_the_last_value_whose_condition_is_true() {
    // As the usual way to write `and` in nginx.
    let mut plan = plan_of(vec![respond(PathMatch::prefix("/"), "")]);
    plan.sets = vec![
        set("", &[], None),
        set("P", &["method == 'POST'"], Some(0)),
        set("${s1}C", &["has(cookie.c)"], Some(1)),
        set("$s2$s2", &[], None),
    ];
    let body_of = Template::parse("[$s2] [$s3] $request_id", of_file).unwrap();
    plan.sites[0].routes[0].action =
        Action::Respond { status: 200, content_type: "text/plain".to_owned(), body: body_of };
    plan.sites[0].routes.insert(0, when(respond(PathMatch::prefix("/"), "both"), &["$s2 == 'PC'"]));
    let client = TestClient::new(&plan);
    assert_eq!(body(&client, "POST", "/", "Cookie: c=1\r\n"), "200 both");
    let texts = [("GET", "", "[] []"), ("POST", "", "[P] [PP]"), ("GET", "Cookie: c=1\r\n", "[C] [CC]")];
    for (method, fields, expected) in texts {
        let response = client.ask(method, "/", fields);
        assert!(response.body.starts_with(expected), "{method} {fields}: {}", response.body);
        assert_eq!(response.body.rsplit(' ').next().unwrap().len(), 32);
    }
    plan.sets[1].before = Some(3);
    let Err(later) = super::super::check(&plan) else { panic!("it uses a later one") };
    assert!(later.reason.contains("a later variable"), "{later}");
}

#[test]
fn a_condition_on_the_response_is_refused_where_there_is_none() {
    let mut plan = plan_of(vec![when(to_upstream("/"), &["status == 404"])]);
    let fault = super::super::check(&plan).unwrap_err();
    assert!(fault.reason.contains("`status == 404` depends on the response"), "{fault}");
    plan.sites[0].routes[0].when.clear();
    let deny = Access { verdict: Verdict::Deny, peers: Peers::All };
    plan.sites[0].routes[0].rules.when =
        vec![block(&["status == 404"], Rules { access: vec![deny], ..Rules::default() })];
    assert!(super::super::check(&plan).unwrap_err().reason.contains("only response-header"));
    plan.sites[0].routes[0].rules.when.clear();
    plan.sets = vec![set("$status", &[], None)];
    assert!(super::super::check(&plan).is_err());
}

#[test]
fn another_reading_of_a_path_cannot_evade_a_rule_under_a_condition() {
    let deny = Access { verdict: Verdict::Deny, peers: Peers::All };
    let mut route = to_upstream("/");
    route.rules.when =
        vec![block(&["path.startsWith('/admin')"], Rules { access: vec![deny], ..Rules::default() })];
    let client = TestClient::new(&plan_of(vec![route]));
    assert_eq!((client.get("/admin/x").status, client.get("/open").status), (403, 200));
    // An application may take the first for /admin.
    for target in ["/%2e/admin", "/x/..%2Fadmin", "/x;/../admin", "/x%2f..%2Fadmin"] {
        let response = client.get(target);
        let is_safe = response.status == 400
            || response.status == 403
            || (response.status == 200 && !client.last_sent().target.contains(".."));
        assert!(is_safe, "{target}: {response:?} {:?}", client.last_sent());
    }
}

#[test]
fn a_route_that_depends_on_the_connection_streams_bodies() {
    let mut limited = to_upstream("/");
    limited.rules.body.bytes_max = Some(10);
    let plan =
        plan_of(vec![when(respond(PathMatch::prefix("/"), "no"), &["remote in ['10.0.0.0/8']"]), limited]);
    let client = TestClient::new(&plan);
    let mut spans = Vec::new();
    let head = b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\n";
    let head = parse(head, &mut spans, &HeadLimits::default()).unwrap().unwrap();
    assert_eq!(client.service.prepare(&head, b"/", 0).body, BodyPlan::Stream { bytes_max: Some(10) });
    let plan =
        plan_of(vec![when(respond(PathMatch::prefix("/"), "no"), &["has(header.x)"]), to_upstream("/")]);
    let client = TestClient::new(&plan);
    assert_eq!(client.service.prepare(&head, b"/", 0).body, BodyPlan::Whole { bytes_max: None });
}

#[test]
fn maps_have_keys_of_all_kinds() {
    let map = |source: &str, cases: &[(&str, &str)], kind| {
        let cases = cases.iter().map(|(from, to)| (MapKey::parse(from, kind).unwrap(), template(to)));
        Map {
            name: "m".to_owned(),
            source: template(source),
            cases: cases.collect(),
            default: template("none"),
            file: None,
            proxies: None,
        }
    };
    use super::super::plan::MapKind::{Address, Number, Share, Text};
    let texts = [
        ("example.org", "exact"),
        ("*.example.org", "below"),
        ("*.a.example.org", "deeper"),
        ("www.*", "www"),
        ("~^(?i)api([0-9]+)", "api $1"),
        ("\\~x", "tilde"),
    ];
    let mut plan = plan_of(vec![respond(PathMatch::prefix("/"), "")]);
    plan.maps = vec![
        map("$arg_host", &texts, Text),
        map(
            "$remote_addr",
            &[("192.0.2.0/24", "net"), ("192.0.2.128/25", "half"), ("2001:db8::/32", "six")],
            Address,
        ),
        map("$arg_n", &[("1..9", "digit"), ("10", "ten")], Number),
        map("$arg_n", &[("50%", "a"), ("50%", "b")], Share),
    ];
    let body_of = Template::parse("$m0|$m1|$m2|$m3", of_file).unwrap();
    plan.sites[0].routes[0].action =
        Action::Respond { status: 200, content_type: "text/plain".to_owned(), body: body_of };
    let client = TestClient::new(&plan);
    let mut shares = [0, 0];
    for (host, expected) in [
        ("Example.ORG", "exact"),
        ("x.example.org", "below"),
        ("b.a.example.org", "deeper"),
        ("www.example.net", "www"),
        ("API42", "api 42"),
        ("~x", "tilde"),
        ("", "none"),
    ] {
        let response = client.get(&format!("/?host={host}"));
        assert!(response.body.starts_with(&format!("{expected}|net|none|")), "{host}: {}", response.body);
    }
    for n in 0..200 {
        let response = client.ask_from(Some("192.0.2.200"), "GET", &format!("/?n={n}"), "");
        let parts: Vec<&str> = response.body.split('|').collect();
        let number = match n {
            1..=9 => "digit",
            10 => "ten",
            _ => "none",
        };
        assert_eq!((parts[1], parts[2]), ("half", number), "{n}");
        shares[usize::from(parts[3] == "b")] += 1;
    }
    assert!(shares[0] > 60 && shares[1] > 60, "{shares:?}");
}

#[test]
fn proxies_of_a_map_name_the_address() {
    use super::super::plan::{MapKind, MapProxies};
    let case = |net: &str, to: &str| (MapKey::parse(net, MapKind::Address).unwrap(), template(to));
    let map = |is_recursive: bool| Map {
        name: "m".to_owned(),
        source: template("$remote_addr"),
        cases: vec![case("10.0.0.0/8", "inside"), case("198.51.100.0/24", "there")],
        default: template("none"),
        file: None,
        proxies: Some(MapProxies {
            peers: vec!["192.0.2.0/24".parse().unwrap(), "10.0.0.0/8".parse().unwrap()],
            is_recursive,
        }),
    };
    let mut plan = plan_of(vec![respond(PathMatch::prefix("/"), "")]);
    plan.maps = vec![map(false), map(true)];
    let body = Template::parse("$m0|$m1", of_file).unwrap();
    plan.sites[0].routes[0].action =
        Action::Respond { status: 200, content_type: "text/plain".to_owned(), body };
    let client = TestClient::new(&plan);
    for (peer, fields, expected) in [
        ("192.0.2.1", "X-Forwarded-For: 198.51.100.7, 10.0.0.1\r\n", "inside|there"),
        ("192.0.2.1", "X-Forwarded-For: 198.51.100.7\r\n", "there|there"),
        ("192.0.2.1", "", "none|none"),
        ("203.0.113.1", "X-Forwarded-For: 198.51.100.7\r\n", "none|none"),
    ] {
        assert_eq!(client.ask_from(Some(peer), "GET", "/", fields).body, expected, "{peer} {fields}");
    }
}

fn reroute(path: PathMatch, to: &str) -> Route {
    let to = match to.strip_prefix('@') {
        Some(_) => Reroute::Named(to.to_owned()),
        None => Reroute::Path(template(to)),
    };
    Route::new(path, Action::Reroute(to))
}

fn named(name: &str, route: Route) -> Route {
    Route { name: name.to_owned(), entry: RouteEntry::Named, ..route }
}

fn page_from(statuses: std::ops::RangeInclusive<u16>, to: &str, keeps_status: bool) -> ErrorPage {
    let to = match to.strip_prefix('@') {
        Some(_) => Reroute::Named(to.to_owned()),
        None => Reroute::Path(template(to)),
    };
    let source = PageSource::Route { to, keeps_status };
    let page = Page { content_type: String::new(), source };
    ErrorPage { statuses: vec![statuses], page, status: None, of_upstreams: true }
}

/// The page that an upstream makes for an error is judged by its own status: it is no error of the upstream.
#[test]
fn the_page_of_an_upstream_is_not_replaced_by_another() {
    let mut closed = respond(PathMatch::prefix("/x"), "secret");
    closed.rules.access = vec![Access { verdict: Verdict::Deny, peers: Peers::All }];
    closed.rules.error_pages = vec![page_from(403..=403, "@app", true)];
    let source = PageSource::Text("static".to_owned());
    let page = Page { content_type: "text/plain".to_owned(), source };
    let mut app = named("@app", to_upstream("/"));
    app.rules.error_pages =
        vec![ErrorPage { statuses: vec![403..=403, 500..=599], page, status: None, of_upstreams: true }];
    let client = TestClient::new(&plan_of(vec![closed, app]));
    assert_eq!(body(&client, "GET", "/x", ""), "403 upstream");
    assert_eq!(body(&client, "GET", "/x", "X-Status: 500\r\n"), "500 static");
}

#[test]
fn requests_continue_at_other_routes_with_their_rules() {
    let folder = Folder::new("reroute", &[("a.txt", "a file"), ("error.html", "sorry")]);
    let mut app = named("@app", to_upstream("/"));
    app.rules.request_fields = vec![adds("X-App", "$uri")];
    let mut secret = respond(PathMatch::prefix("/secret"), "secret");
    secret.rules.access = vec![Access { verdict: Verdict::Deny, peers: Peers::All }];
    let mut files = reroute(PathMatch::prefix("/"), "@app");
    files.try_files = Some(0);
    let mut plan = plan_of(vec![
        files,
        app,
        secret,
        reroute(PathMatch::prefix("/php"), "/index?$args&from=$uri"),
        respond(PathMatch::Exact("/index".to_owned()), "$uri?$args"),
        reroute(PathMatch::prefix("/loop"), "/loop"),
        reroute(PathMatch::prefix("/hidden"), "/secret"),
    ]);
    plan.folders.push(folder.plan());
    let client = TestClient::new(&plan);
    for (method, target, expected) in [
        ("GET", "/a.txt", "200 a file"),
        ("GET", "/b.txt?q=1", "200 upstream"),
        ("GET", "/php/x?q=1", "200 /index?q=1&from=/php/x"),
        ("GET", "/loop", "500 Internal Server Error"),
        ("GET", "/hidden", "403 Forbidden"),
    ] {
        assert_eq!(body(&client, method, target, ""), expected, "{method} {target}");
    }
    let sent = client.last_sent();
    assert_eq!((sent.target.as_str(), sent.lines.as_str()), ("/b.txt?q=1", "X-App: /b.txt\r\n"));
    assert_eq!(body(&client, "POST", "/a.txt", ""), "200 upstream");
    // Another reading of the path by the application must not lead to the route that is denied.
    let ambiguous = client.get("/x/..%2Fsecret");
    assert_eq!(ambiguous.status, 400, "{ambiguous:?}");
    plan.sites[0].routes[0] = reroute(PathMatch::prefix("/"), "@none");
    assert!(super::super::check(&plan).unwrap_err().reason.contains("no route `@none`"));
}

#[test]
fn pages_of_errors_come_from_routes() {
    let folder = Folder::new("error-route", &[("a.txt", "a file"), ("error.html", "sorry")]);
    let mut files = Route::new(PathMatch::prefix("/"), Action::Files(0));
    files.rules.error_pages =
        vec![page_from(404..=404, "@app", false), page_from(405..=405, "/error.html", true)];
    let mut kept = respond(PathMatch::prefix("/closed"), "no");
    kept.rules.access = vec![Access { verdict: Verdict::Deny, peers: Peers::All }];
    kept.rules.error_pages = vec![page_from(403..=403, "/error.html", true)];
    let mut missing = respond(PathMatch::prefix("/missing"), "no");
    missing.rules.access.clone_from(&kept.rules.access);
    missing.rules.error_pages = vec![page_from(400..=599, "/nowhere", true)];
    let mut proxied = to_upstream("/api");
    proxied.rules.error_pages =
        vec![page_from(502..=502, "/error.html", true), page_from(500..=500, "@app", true)];
    let mut other = respond(PathMatch::prefix("/other"), "no");
    other.rules.access.clone_from(&kept.rules.access);
    other.rules.error_pages = vec![page_from(403..=403, "@app", true)];
    let mut plan = plan_of(vec![files, named("@app", to_upstream("/")), kept, missing, proxied, other]);
    plan.folders.push(folder.plan());
    let client = TestClient::new(&plan);
    for (method, target, fields, expected) in [
        ("GET", "/nothing", "", "200 upstream"),
        ("GET", "/nothing", "X-Status: 503\r\n", "503 upstream"),
        // A page of an upstream has the status of the error, unless it is an error itself.
        ("GET", "/other", "", "403 upstream"),
        ("GET", "/other", "X-Status: 503\r\n", "503 upstream"),
        ("GET", "/closed", "Range: bytes=0-1\r\nIf-None-Match: *\r\n", "403 sorry"),
        ("POST", "/closed", "", "403 sorry"),
        ("GET", "/missing", "", "404 Not Found"),
        ("GET", "/api", "", "200 upstream"),
        ("GET", "/api", "X-Status: 502\r\n", "502 sorry"),
        // Its route would have to wait for an upstream.
        ("GET", "/api", "X-Status: 500\r\n", "500 upstream"),
    ] {
        assert_eq!(body(&client, method, target, fields), expected, "{method} {target} {fields}");
    }
}

#[test]
fn pages_may_take_the_place_of_redirects() {
    let to = template("https://a.test/first");
    let mut moved = Route::new(PathMatch::prefix("/moved"), Action::Redirect { status: 302, to: to.clone() });
    moved.rules.error_pages = vec![page_from(302..=302, "/page?$arg_a", true)];
    let mut text = Route::new(PathMatch::prefix("/text"), Action::Redirect { status: 302, to });
    text.rules.error_pages = vec![ErrorPage {
        statuses: vec![300..=399],
        page: Page { content_type: "text/plain".to_owned(), source: PageSource::Text("moved".to_owned()) },
        status: None,
        of_upstreams: false,
    }];
    let page = Route::new(
        PathMatch::prefix("/page"),
        Action::Redirect { status: 303, to: template("https://a.test/second?$args") },
    );
    let client = TestClient::new(&plan_of(vec![moved, text, page]));
    let response = client.get("/moved?a=1");
    assert_eq!((response.status, &*response.fields), (303, "Location: https://a.test/second?1\r\n"));
    let response = client.get("/text");
    assert_eq!((response.status, &*response.body), (302, "moved"));
    assert!(response.fields.contains("Location: https://a.test/first\r\n"), "{}", response.fields);
}

#[test]
fn the_name_of_an_upstream_may_have_variables() {
    let mut route = to_upstream("/");
    route.upstream_name = Some(template("http://$arg_to"));
    let client = TestClient::new(&plan_of(vec![route]));
    for (to, status, upstream) in
        [("one", 200, 0), ("two", 200, 1), ("169.254.169.254", 502, 1), ("", 502, 1)]
    {
        assert_eq!(client.get(&format!("/?to={to}")).status, status, "{to}");
        assert_eq!(client.last_sent().upstream, upstream, "{to}");
    }
}

#[test]
fn expiry_and_fields_of_upstreams_are_changed() {
    let mut route = to_upstream("/");
    route.rules.expires = Some(Expires::Fixed(Validity::Seconds(60, ExpiresFrom::Now)));
    let client = TestClient::new(&plan_of(vec![route]));
    let fields = client.get("/").fields;
    assert!(fields.contains("Cache-Control: max-age=60\r\nExpires: "), "{fields}");
    assert!(!client.ask("GET", "/", "X-Status: 404\r\n").fields.contains("Expires"));
}

#[test]
fn expiry_may_be_a_text_with_variables() {
    let mut route = to_upstream("/");
    let text = Template::parse("$arg_e", |_| None).unwrap();
    route.rules.expires = Some(Expires::Text(text, ExpiresFrom::Now));
    let client = TestClient::new(&plan_of(vec![route]));
    for (text, expected) in [
        ("60", Some("Cache-Control: max-age=60\r\nExpires: ")),
        ("never", Some("Cache-Control: no-cache\r\nExpires: Thu, 01 Jan 1970")),
        ("off", None),
        ("bad", None),
        ("", None),
    ] {
        let fields = client.get(&format!("/?e={text}")).fields;
        match expected {
            Some(expected) => assert!(fields.contains(expected), "{text}: {fields}"),
            None => assert!(!fields.contains("Expires"), "{text}: {fields}"),
        }
    }
}

#[test]
fn expiry_under_conditions_comes_before_fields_and_once() {
    let expires = |seconds| Some(Expires::Fixed(Validity::Seconds(seconds, ExpiresFrom::Now)));
    let of_block =
        |seconds, fields| Rules { expires: expires(seconds), response_fields: fields, ..Rules::default() };
    let mut route = to_upstream("/");
    route.rules.expires = expires(60);
    route.rules.when = vec![
        // Whether a block is in force does not depend on what it, or one before it, does.
        block(&["response_header['expires'] == '' && status == 200"], of_block(30, vec![adds("X-A", "1")])),
        block(&["response_header['expires'] == '' && arg.b == '1'"], of_block(10, vec![adds("X-B", "1")])),
    ];
    let client = TestClient::new(&plan_of(vec![route.clone()]));
    for (target, age, added) in [("/", 30, &["X-A"][..]), ("/?b=1", 10, &["X-A", "X-B"])] {
        let fields = client.get(target).fields;
        assert!(fields.contains(&format!("Cache-Control: max-age={age}\r\n")), "{target}: {fields}");
        assert!(added.iter().all(|name| fields.contains(name)), "{target}: {fields}");
    }
    assert!(client.ask("GET", "/", "X-Status: 201\r\n").fields.contains("Cache-Control: max-age=60\r\n"));
    // A rule for the field has the last word, as without conditions.
    route.rules.response_fields = vec![adds("Cache-Control", "private")];
    let fields = TestClient::new(&plan_of(vec![route])).get("/?b=1").fields;
    assert!(fields.contains("Cache-Control: private\r\n") && fields.contains("Expires: "), "{fields}");
    assert!(!fields.contains("max-age"), "{fields}");
}
