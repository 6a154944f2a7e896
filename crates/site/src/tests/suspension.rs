//! Rules that make a request wait: passwords, auth services, concurrency limits.

use std::time::Duration;

use super::super::passwords::tests::bcrypt_of;
use super::super::plan::{
    BasicAuth, Cached, Concurrency, ConcurrencyUse, ErrorPage, FieldChange, FieldRule, ForwardAuth, Limited,
    Page, PageSource, Rules, SetValue, SetVariable, User, Variable, WhenBlock,
};
use super::*;

fn basic(password: &str) -> BasicAuth {
    let user = User { name: "ann".to_owned(), hash: bcrypt_of(password) };
    BasicAuth { realm: "inside".to_owned(), users: vec![user], user_file: None }
}

/// `ann:secret` and `ann:wrong`.
const RIGHT: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
const WRONG: &str = "Authorization: Basic YW5uOndyb25n\r\n";

/// Without the challenge no browser asks for a password.
#[test]
fn the_page_of_a_401_keeps_its_challenge() {
    let to = plan::Reroute::Path(Template::text("/help"));
    let source = PageSource::Route { to, keeps_status: true };
    let page = Page { content_type: String::new(), source };
    let error_page = ErrorPage { statuses: vec![401..=401], page, status: None, of_upstreams: true };
    let with = |basic_auth| Rules { basic_auth, error_pages: vec![error_page.clone()], ..Rules::default() };
    let own = Route { rules: with(Some(basic("secret"))), ..to_upstream("/own") };
    let other = Route { rules: with(None), ..to_upstream("/other") };
    let help = respond(plan::PathMatch::prefix("/help"), "how to log in");
    // The page may be at one more route.
    let to = plan::Reroute::Path(Template::text("/on"));
    let source = PageSource::Route { to, keeps_status: true };
    let page = Page { content_type: String::new(), source };
    let rules = Rules {
        basic_auth: Some(basic("secret")),
        error_pages: vec![ErrorPage { page, ..error_page.clone() }],
        ..Rules::default()
    };
    let twice = Route { rules, ..to_upstream("/twice") };
    let to = plan::Reroute::Path(Template::text("/help"));
    let on = Route::new(PathMatch::prefix("/on"), Action::Reroute(to));
    let client = TestClient::new(&plan_of(vec![own, other, help, twice, on]));
    let challenged = "X-Status: 401\r\nX-Challenge: Basic realm=\"theirs\"\r\n";
    for (path, fields, expected) in
        [("/own", "", "inside"), ("/twice", "", "inside"), ("/other", challenged, "theirs")]
    {
        let response = client.ask("GET", path, fields);
        assert_eq!((response.status, response.body.as_str()), (401, "how to log in"), "{path}");
        assert_eq!(
            response.fields.to_ascii_lowercase().matches("www-authenticate: ").count(),
            1,
            "{response:?}"
        );
        assert!(response.fields.contains(expected), "{response:?}");
    }
    assert!(!client.get("/help").fields.contains("authenticate"));
}

#[test]
fn basic_auth_challenges_and_checks_on_another_thread() {
    let page = Page { content_type: "text/html".to_owned(), source: PageSource::Text("log in".to_owned()) };
    let error_page = ErrorPage { statuses: vec![401..=401], page, status: None, of_upstreams: false };
    let rules = Rules {
        basic_auth: Some(basic("secret")),
        request_fields: vec![super::super::plan::FieldRule {
            name: "X-User".to_owned(),
            change: super::super::plan::FieldChange::Set(Template(vec![plan::Piece::Variable(
                Variable::User,
            )])),
            when: Default::default(),
        }],
        error_pages: vec![error_page],
        ..Rules::default()
    };
    let client = TestClient::new(&plan_of(vec![Route { rules, ..to_upstream("/") }]));
    let answer = client.get("/");
    assert_eq!((answer.status, answer.body.as_str()), (401, "log in"));
    assert!(
        answer.fields.contains("WWW-Authenticate: Basic realm=\"inside\", charset=\"UTF-8\"\r\n"),
        "{answer:?}"
    );
    let wrong = client.ask("GET", "/", WRONG);
    assert_eq!(wrong.status, 401);
    assert!(wrong.fields.contains("WWW-Authenticate"), "{wrong:?}");
    assert!(client.fake.sent.borrow().is_empty());
    // The first check waits for a thread; then the password is remembered, here and on every other worker.
    let head = format!("GET /a HTTP/1.1\r\nHost: a.example\r\n{RIGHT}\r\n");
    let (Reply::Later(future), _) = client.reply(None, &head) else { panic!("it does not wait") };
    assert_eq!(answer_of(runtime().block_on(future)), 200);
    assert_eq!(client.last_sent().lines, "X-User: ann\r\n");
    let other = client.sites.service(client.fake.clone());
    let other = TestClient { service: other, fake: client.fake.clone(), sites: client.sites.clone() };
    for client in [&client, &other] {
        let (Reply::Now, response) = client.reply(None, &head) else { panic!("it waits again") };
        assert_eq!(response.status(), Status::OK);
        assert_eq!(client.last_sent().lines, "X-User: ann\r\n");
    }
    assert_eq!(client.ask("GET", "/", WRONG).status, 401);
}

fn answer_of(response: Response) -> u16 {
    response.status().code()
}

#[test]
fn passwords_are_checked_before_paths() {
    let mut plan = plan_of(vec![respond(PathMatch::Exact("/a".to_owned()), "a")]);
    plan.sites[0].rules.basic_auth = Some(basic("secret"));
    let client = TestClient::new(&plan);
    assert_eq!(client.get("/nothing").status, 401);
    assert_eq!(client.ask("GET", "/nothing", RIGHT).status, 404);
}

#[test]
fn a_body_is_kept_while_a_request_waits() {
    struct Bodies(RefCell<Vec<Vec<u8>>>);
    impl Forwarding for Bodies {
        fn body(&self, _: &proxy::Forward, _: &Head<'_>, bytes_max: Option<u64>) -> BodyPlan {
            BodyPlan::Whole { bytes_max }
        }
        fn forward(&self, request: Request<'_>, _: Forwarded<'_>, _: &mut Response) -> Reply {
            let RequestBody::Whole { bytes, trailers } = request.body else { panic!("it was whole") };
            assert_eq!(trailers, [(b"a".to_vec(), b"b".to_vec())]);
            assert_eq!(request.head.target(), b"/a?b");
            self.0.borrow_mut().push(bytes.to_vec());
            Reply::Now
        }
        fn ask(&self, _: AuthQuery<'_>, _: tokio::sync::oneshot::Sender<AuthDecision>) {}
    }
    let rules = Rules { basic_auth: Some(basic("secret")), ..Rules::default() };
    let sites = open(&plan_of(vec![Route { rules, ..to_upstream("/") }])).unwrap();
    let bodies = Rc::new(Bodies(RefCell::default()));
    let service = sites.service(bodies.clone());
    let text = format!("POST /a?b HTTP/1.1\r\nHost: a\r\n{RIGHT}Content-Length: 4\r\n\r\n");
    let future = {
        let mut spans = Vec::new();
        let head = parse(text.as_bytes(), &mut spans, &HeadLimits::default()).unwrap().unwrap();
        let bytes = b"body".to_vec();
        let trailers = [(b"a".to_vec(), b"b".to_vec())];
        let body = RequestBody::Whole { bytes: &bytes, trailers: &trailers };
        let request = Request::detached(head, b"/a", body);
        let Reply::Later(future) = service.call(request, &mut Response::new()) else {
            panic!("it does not wait")
        };
        future
    };
    runtime().block_on(future);
    assert_eq!(*bodies.0.borrow(), [b"body".to_vec()]);
}

#[test]
fn a_route_of_the_site_decides() {
    let mut deciding = respond(PathMatch::Exact("/auth".to_owned()), "secret");
    deciding.entry = crate::plan::RouteEntry::Internal;
    deciding.rules.access =
        vec![crate::plan::Access { verdict: crate::plan::Verdict::Deny, peers: crate::plan::Peers::All }];
    let status = |status: u16, name: &str| {
        let mut route = respond(PathMatch::Exact("/auth".to_owned()), "secret");
        route.action =
            Action::Respond { status, content_type: "text/plain".to_owned(), body: template("secret") };
        route.entry = crate::plan::RouteEntry::Internal;
        route.when = vec![condition(&format!("header['x-token'] == '{name}'"))];
        route
    };
    let rules = Rules { auth_route: Some(crate::plan::Reroute::Path(template("/auth"))), ..Rules::default() };
    let plan = plan_of(vec![
        Route { rules, ..to_upstream("/") },
        status(401, "bad"),
        status(403, "worse"),
        status(302, "other"),
        Route {
            when: vec![condition("header['x-token'] == 'upstream'")],
            path: PathMatch::Exact("/auth".to_owned()),
            ..to_upstream("/auth")
        },
        deciding,
    ]);
    let client = TestClient::new(&plan);
    for (token, expected) in [("good", 200), ("bad", 401), ("worse", 403), ("other", 500), ("upstream", 500)]
    {
        let answer = client.ask("POST", "/a", &format!("X-Token: {token}\r\n"));
        assert_eq!(answer.status, expected, "{token} {answer:?}");
        assert!(!answer.body.contains("secret"), "{answer:?}");
    }
    assert_eq!(client.fake.sent.borrow().len(), 1, "only what was allowed");
    assert_eq!(client.get("/auth").status, 404);
}

#[test]
fn the_auth_service_decides() {
    let authority = ForwardAuth {
        upstream: 1,
        target: template("/check?of=$request_uri"),
        request_fields: Vec::new(),
        response_fields: vec!["X-User".to_owned()],
        sign_in: None,
    };
    let rules = Rules { forward_auth: Some(authority), ..Rules::default() };
    let client = TestClient::new(&plan_of(vec![Route { rules, ..to_upstream("/") }]));
    let good = client.ask(
        "GET",
        "/a b".replace(' ', "%20").as_str(),
        "X-Token: good\r\nX-User: root\r\nx_user: root\r\n",
    );
    assert_eq!(good.status, 200);
    assert_eq!(*client.fake.asked.borrow(), ["/check?of=/a%20b"]);
    assert_eq!(client.last_sent().lines, "X-User: ann\r\n");
    assert_eq!(client.last_sent().kept, ["X-Token"], "who the client says that it is does not count");
    let bad = client.ask("GET", "/", "X-Token: bad\r\n");
    assert_eq!(bad.status, 302);
    assert!(bad.fields.contains("Location: https://login.example.org/\r\n"), "{bad:?}");
    assert_eq!(client.get("/").status, 502, "an authority that cannot be asked lets nobody in");
    assert_eq!(client.fake.sent.borrow().len(), 1);
}

fn service() -> ForwardAuth {
    ForwardAuth {
        upstream: 1,
        target: template("/check"),
        request_fields: Vec::new(),
        response_fields: Vec::new(),
        sign_in: None,
    }
}

fn sets(name: &str, value: &str) -> FieldRule {
    let value = Template::parse(value, of_file).unwrap();
    FieldRule { change: FieldChange::Set(value), name: name.to_owned(), when: Default::default() }
}

fn block(text: &str, rules: Rules) -> WhenBlock {
    WhenBlock { conditions: vec![condition(text)], rules }
}

fn variable(value: SetValue) -> SetVariable {
    SetVariable { name: "s".to_owned(), value, when: Vec::new(), before: None }
}

/// A response that is stored for one user must not be sent to another.
#[test]
fn fields_of_the_auth_service_are_known_wherever_they_are_used() {
    let of_field = || Rules { forward_auth: Some(service()), ..Rules::default() };
    let cached = |key: &str| {
        let key = Some(Template::parse(key, of_file).unwrap());
        Rules { cache: Some(Cached { key, ..Cached::default() }), ..of_field() }
    };
    let in_block = |text: &str| Rules {
        when: vec![block(text, Rules { request_fields: vec![sets("X-In", "yes")], ..Rules::default() })],
        ..of_field()
    };
    let vocabulary = plan::Vocabulary { other: &of_file, others: &[] };
    let set = plan::Expression::parse("$auth_http_x_user + '!'", &vocabulary).unwrap();
    for (rules, sets, lines, key) in [
        (cached("$uri|$auth_http_x_user"), vec![], "", Some("/|ann")),
        (in_block("$auth_http_x_user == 'ann'"), vec![], "X-In: yes\r\n", None),
        (cached("$s0"), vec![variable(SetValue::Expression(set))], "", Some("ann!")),
    ] {
        let mut plan = plan_of(vec![Route { rules, ..to_upstream("/") }]);
        plan.sets = sets;
        let client = TestClient::new(&plan);
        assert_eq!(client.ask("GET", "/", "X-Token: good\r\n").status, 200);
        let sent = client.last_sent();
        assert_eq!((sent.lines.as_str(), sent.key.as_deref()), (lines, key));
    }
}

/// A value may be used, by a condition, before the password is checked.
#[test]
fn values_that_depend_on_the_user_are_made_again_when_it_is_known() {
    let early =
        block("$s0 == 'nobody'", Rules { request_fields: vec![sets("X-In", "yes")], ..Rules::default() });
    let rules = |basic_auth| Rules {
        basic_auth,
        request_fields: vec![sets("X-Who", "$s0")],
        when: vec![early.clone()],
        ..Rules::default()
    };
    let to = plan::Reroute::Path(template("/open"));
    let mut plan = plan_of(vec![
        Route { rules: rules(Some(basic("secret"))), ..to_upstream("/") },
        Route { rules: rules(None), ..to_upstream("/open") },
        Route {
            rules: rules(Some(basic("secret"))),
            ..Route::new(PathMatch::prefix("/to"), Action::Reroute(to))
        },
    ]);
    plan.sets = vec![variable(SetValue::Text(template("$remote_user")))];
    let client = TestClient::new(&plan);
    for (path, lines) in [("/", "X-Who: ann\r\n"), ("/open", ""), ("/to", "")] {
        assert_eq!(client.ask("GET", path, RIGHT).status, 200);
        assert_eq!(client.last_sent().lines, lines, "{path}");
    }
}

/// Lists of addresses under a condition about the user.
#[test]
fn users_are_denied_and_allowed_when_they_are_known() {
    let all = |verdict| Rules {
        access: vec![plan::Access { verdict, peers: plan::Peers::All }],
        ..Rules::default()
    };
    let (deny, allow) = (all(plan::Verdict::Deny), all(plan::Verdict::Allow));
    let user = |condition: &str, inner: &Rules, around: &Rules| Rules {
        basic_auth: Some(basic("secret")),
        when: vec![block(condition, inner.clone())],
        ..around.clone()
    };
    let none = Rules::default();
    let any = |rules| Rules { satisfies_any: true, ..rules };
    let of_service = Rules {
        forward_auth: Some(service()),
        when: vec![block("$auth_http_x_user == 'ann'", deny.clone())],
        ..Rules::default()
    };
    let nobody = Rules { when: vec![block("user != 'ann'", deny.clone())], ..Rules::default() };
    let with = |path, rules| Route { rules, ..to_upstream(path) };
    let client = TestClient::new(&plan_of(vec![
        with("/not-ann", user("user == 'ann'", &deny, &none)),
        with("/only-ann", user("user != 'ann'", &deny, &none)),
        with("/ann-allowed", user("user == 'ann'", &allow, &deny)),
        with("/bob-allowed", user("user == 'bob'", &allow, &deny)),
        with("/any", any(user("user == 'ann'", &deny, &deny))),
        with("/service", of_service),
        with("/nobody", nobody),
    ]));
    const GOOD: &str = "X-Token: good\r\n";
    for (path, fields, status) in [
        ("/not-ann", "", 401),
        ("/not-ann", WRONG, 401),
        ("/not-ann", RIGHT, 403),
        ("/only-ann", "", 401),
        ("/only-ann", RIGHT, 200),
        ("/ann-allowed", "", 401),
        ("/ann-allowed", RIGHT, 200),
        ("/bob-allowed", RIGHT, 403),
        ("/any", "", 401),
        ("/any", RIGHT, 403),
        ("/service", GOOD, 403),
        ("/nobody", RIGHT, 403),
    ] {
        // The first time it waits for the check of its password.
        for round in 0..2 {
            assert_eq!(client.ask("GET", path, fields).status, status, "{path} {fields} {round}");
        }
    }
}

#[test]
fn users_are_counted_when_they_are_known() {
    let used = |rate, delay| plan::RateUse {
        rate,
        burst: if delay { 9 } else { 0 },
        delay: delay.then_some(0),
        status: 429,
        fields: true,
        is_dry_run: false,
    };
    let limited = |rate, delay| Rules { rates: vec![used(rate, delay)], ..Rules::default() };
    let of = |basic_auth, rules| Rules { basic_auth, ..rules };
    let in_block = Rules { when: vec![block("user == 'ann'", limited(0, false))], ..Rules::default() };
    let with = |path, rules| Route { rules, ..to_upstream(path) };
    let mut plan = plan_of(vec![
        with("/block", of(Some(basic("secret")), in_block)),
        with("/key", of(Some(basic("secret")), limited(1, false))),
        with("/delay", of(Some(basic("secret")), limited(2, true))),
    ]);
    let rate = |name: &str, key: &str, requests| plan::Rate {
        name: name.to_owned(),
        key: Limited::Text(template(key)),
        requests,
        window: Duration::from_secs(60),
        keys_max: 16,
    };
    plan.rates = vec![rate("a", "$host", 1), rate("b", "$remote_user", 1), rate("c", "$remote_user", 60_000)];
    let client = TestClient::new(&plan);
    for (path, second) in [("/block", 429), ("/key", 429), ("/delay", 200)] {
        for (fields, status) in [("", 401), (WRONG, 401), (RIGHT, 200), (RIGHT, second), ("", 401)] {
            let response = client.ask("GET", path, fields);
            assert_eq!(response.status, status, "{path} {fields} {response:?}");
            assert_eq!(response.fields.contains("RateLimit: "), fields == RIGHT, "{response:?}");
        }
    }
}

#[test]
fn clients_that_the_auth_service_does_not_know_sign_in() {
    let authority = ForwardAuth {
        upstream: 1,
        target: template("/check"),
        request_fields: Vec::new(),
        response_fields: Vec::new(),
        sign_in: Some(template("https://login.example.org/?rd=$scheme://$http_host$escaped_request_uri")),
    };
    let rules = Rules { forward_auth: Some(authority), ..Rules::default() };
    let client = TestClient::new(&plan_of(vec![Route { rules, ..to_upstream("/") }]));
    let unknown = client.ask("GET", "/a%20b?c=d&e", "X-Token: none\r\n");
    assert_eq!(unknown.status, 302);
    let location = "Location: https://login.example.org/?rd=http://a.example%2Fa%2520b%3Fc%3Dd%26e\r\n";
    assert!(unknown.fields.contains(location), "{unknown:?}");
    assert!(!unknown.body.contains("secret"), "{unknown:?}");
    let refused = client.ask("GET", "/", "X-Token: bad\r\n");
    assert!(refused.fields.contains("Location: https://login.example.org/\r\n"), "only 401: {refused:?}");
    assert_eq!(client.fake.sent.borrow().len(), 0);
}

fn limited(queue_max: u32, queue_time_max: Duration) -> TestClient {
    let rules =
        Rules { concurrency: vec![ConcurrencyUse { limit: 0, is_dry_run: false }], ..Rules::default() };
    let mut plan = plan_of(vec![Route { rules, ..to_upstream("/") }]);
    plan.concurrency.push(Concurrency {
        name: "few".to_owned(),
        key: Limited::Client { ipv6_bits: 64 },
        requests_max: 1,
        queue_max,
        queue_time_max,
        keys_max: 16,
        status: 503,
    });
    TestClient::new(&plan)
}

#[test]
fn requests_queue_for_a_permit() {
    let client = limited(1, Duration::from_secs(10));
    assert_eq!(client.get("/held").status, 200);
    let (Reply::Later(waiting), _) = client.reply(Some("192.0.2.1"), "GET /b HTTP/1.1\r\nHost: a\r\n\r\n")
    else {
        panic!("it does not wait")
    };
    let full = client.get("/c");
    assert_eq!(full.status, 503);
    assert!(full.fields.contains("Retry-After: 1\r\n"), "{full:?}");
    assert_eq!(
        client.ask_from(Some("192.0.2.2"), "GET", "/d", "").status,
        200,
        "others have room of their own"
    );
    assert_eq!(client.last_sent().target, "/d");
    // The request in progress ends, and the next one continues.
    client.fake.held.borrow_mut().clear();
    assert_eq!(answer_of(runtime().block_on(waiting)), 200);
    assert_eq!(client.last_sent().target, "/b");
    // A request that ends at once holds no permit.
    assert_eq!((client.get("/e").status, client.get("/f").status), (200, 200));
}

/// A file is sent after its response was made, and a client may take long for it.
#[test]
fn a_body_that_is_sent_holds_its_permit() {
    let big = "x".repeat(1 << 20);
    let folder = Folder::new("held", &[("big.txt", &big), ("small.txt", "small")]);
    let mut files = Route::new(PathMatch::prefix("/"), Action::Files(0));
    files.rules.concurrency = vec![ConcurrencyUse { limit: 0, is_dry_run: false }];
    let mut plan = plan_of(vec![files]);
    plan.folders.push(folder.plan());
    plan.concurrency.push(Concurrency {
        name: "few".to_owned(),
        key: Limited::Everyone,
        requests_max: 1,
        queue_max: 0,
        queue_time_max: Duration::from_secs(10),
        keys_max: 16,
        status: 503,
    });
    let client = TestClient::new(&plan);
    let get = || client.reply(None, "GET /big.txt HTTP/1.1\r\nHost: a\r\n\r\n").1;
    let mut first = get();
    assert_eq!((first.status(), client.get("/small.txt").status), (Status::OK, 503));
    let body = first.take_body();
    drop(first);
    assert_eq!(client.get("/small.txt").status, 503);
    // It was sent, or its client has left.
    drop(body);
    assert_eq!((client.get("/small.txt").status, client.get("/small.txt").status), (200, 200));
    assert_eq!(get().status(), Status::OK);
}

#[test]
fn time_in_the_queue_is_limited() {
    let client = limited(1, Duration::from_millis(1));
    assert_eq!(client.get("/held").status, 200);
    assert_eq!(client.get("/late").status, 503);
    // It has left the queue.
    assert_eq!(client.get("/later").status, 503);
    client.fake.held.borrow_mut().clear();
    assert_eq!(client.get("/again").status, 200);
}

#[test]
fn a_disconnected_client_leaves_the_queue() {
    let client = limited(1, Duration::from_secs(10));
    assert_eq!(client.get("/held").status, 200);
    let waiting = client.reply(Some("192.0.2.1"), "GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    drop(waiting);
    client.fake.held.borrow_mut().clear();
    assert_eq!(client.get("/c").status, 200);
    assert_eq!(client.fake.sent.borrow().iter().filter(|sent| sent.target == "/b").count(), 0);
}

#[test]
fn an_abandoned_request_that_was_suspended_gets_502() {
    let client = limited(1, Duration::from_secs(10));
    assert_eq!(client.get("/held").status, 200);
    let (Reply::Later(waiting), _) =
        client.reply(Some("192.0.2.1"), "GET /abandoned HTTP/1.1\r\nHost: a\r\n\r\n")
    else {
        panic!("it does not wait")
    };
    client.fake.held.borrow_mut().clear();
    assert_eq!(answer_of(runtime().block_on(waiting)), 502);
    assert_eq!(client.get("/b").status, 200, "its permit is free");
}

#[test]
fn one_of_address_password_and_auth_service_is_enough() {
    let access = vec![
        plan::Access { verdict: plan::Verdict::Allow, peers: "10.0.0.0/8".parse().unwrap() },
        plan::Access { verdict: plan::Verdict::Deny, peers: plan::Peers::All },
    ];
    let service = ForwardAuth {
        upstream: 1,
        target: template("/check"),
        request_fields: Vec::new(),
        response_fields: Vec::new(),
        sign_in: None,
    };
    let rules = |basic_auth, forward_auth| Rules {
        access: access.clone(),
        basic_auth,
        forward_auth,
        satisfies_any: true,
        ..Rules::default()
    };
    let with = |path, rules| Route { rules, ..to_upstream(path) };
    let client = TestClient::new(&plan_of(vec![
        with("/password", rules(Some(basic("secret")), None)),
        with("/service", rules(None, Some(service.clone()))),
        with("/both", rules(Some(basic("secret")), Some(service))),
        with("/address", rules(None, None)),
    ]));
    const GOOD: &str = "X-Token: good\r\n";
    const BAD: &str = "X-Token: bad\r\n";
    for (path, peer, fields, status) in [
        ("/password", "10.0.0.1", String::new(), 200),
        ("/password", "192.0.2.1", String::new(), 401),
        ("/password", "192.0.2.1", RIGHT.to_owned(), 200),
        ("/password", "192.0.2.1", WRONG.to_owned(), 401),
        ("/service", "10.0.0.1", BAD.to_owned(), 200),
        ("/service", "192.0.2.1", GOOD.to_owned(), 200),
        ("/service", "192.0.2.1", BAD.to_owned(), 302),
        ("/both", "192.0.2.1", format!("{WRONG}{GOOD}"), 200),
        ("/both", "192.0.2.1", format!("{RIGHT}{BAD}"), 200),
        ("/both", "192.0.2.1", format!("{WRONG}{BAD}"), 302),
        ("/both", "192.0.2.1", GOOD.to_owned(), 200),
        ("/address", "10.0.0.1", String::new(), 200),
        ("/address", "192.0.2.1", String::new(), 403),
    ] {
        let response = client.ask_from(Some(peer), "GET", path, &fields);
        assert_eq!(response.status, status, "{path} {peer} {fields}");
    }
}
