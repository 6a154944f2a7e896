//! No spelling of a path evades a rule.

use proptest::prelude::*;

use super::super::plan::{
    Access, ErrorPage, Page, PageSource, PathPolicy, Peers, Rewrite, RewriteFrom, RouteEntry, Then, Verdict,
};
use super::*;
use flatout_gateway::Forward;

fn denied(mut route: Route) -> Route {
    route.rules.access = vec![Access { verdict: Verdict::Deny, peers: Peers::All }];
    route
}

/// Everything goes to one upstream, but `/admin` is denied by this kind of path.
fn guarded(admin: PathMatch) -> TestClient {
    let action = Action::Proxy(proxy::Forward::to(0));
    TestClient::new(&plan_of(vec![denied(Route::new(admin, action)), to_upstream("/")]))
}

/// The kinds of paths that a rule for `/admin` and what is below it can be written with.
fn kinds() -> [PathMatch; 4] {
    let regex = PathMatch::Regex { pattern: "^/admin(/.*)?$".to_owned(), ignore_case: false };
    let starts = PathMatch::Prefix { path: "/admin".to_owned(), segments: false, before_patterns: true };
    [PathMatch::prefix("/admin"), starts, regex, PathMatch::Glob("/admin**".to_owned())]
}

/// How applications read a path: each of these readings is used by some framework.
fn places(target: &str) -> Vec<String> {
    let path = target.split('?').next().unwrap();
    let path = match path.strip_prefix("http://a.example") {
        Some("") => "/",
        Some(path) => path,
        None => path,
    };
    let decode = |text: &str| {
        let bytes = flatout_wire::target::decode_component(text.as_bytes(), false);
        bytes.map_or(text.to_owned(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    let resolve = |text: &str, merges: bool| {
        let mut kept: Vec<&str> = Vec::new();
        for segment in text.trim_start_matches('/').split('/') {
            match segment {
                "." => {}
                "" if merges => {}
                ".." => drop(kept.pop()),
                segment => kept.push(segment),
            }
        }
        format!("/{}", kept.join("/"))
    };
    let cut = |text: &str| {
        let segments: Vec<&str> = text.split('/').map(|segment| segment.split(';').next().unwrap()).collect();
        segments.join("/")
    };
    let back = |text: &str| text.replace('\\', "/");
    let mut all = Vec::new();
    for decodings in 0..=2 {
        let decoded = (0..decodings).fold(path.to_owned(), |text, _| decode(&text));
        for cuts in [false, true] {
            for backs in [false, true] {
                let text = if backs { back(&decoded) } else { decoded.clone() };
                let text = if cuts { cut(&text) } else { text };
                all.extend([text.clone(), resolve(&text, false), resolve(&text, true)]);
                // Some decode after they have resolved, and resolve again.
                all.push(resolve(&decode(&resolve(&text, true)), true));
            }
        }
    }
    all
}

fn is_admin(place: &str) -> bool {
    let place = format!("/{}", place.trim_start_matches('/'));
    place == "/admin" || place.starts_with("/admin/")
}

/// For any target, either the denied route responds, or the request is refused, or the upstream's target is not below
/// the denied path, however it is read.
fn holds(client: &TestClient, target: &str) -> Result<(), String> {
    client.fake.sent.borrow_mut().clear();
    let answer = client.get(target);
    match answer.status {
        400 | 403 => Ok(()),
        200 => {
            let sent = client.last_sent();
            match places(&sent.target).into_iter().find(|place| is_admin(place)) {
                Some(place) => {
                    Err(format!("{target}: the upstream gets {}, and may read {place}", sent.target))
                }
                None => Ok(()),
            }
        }
        other => Err(format!("{target}: {other}")),
    }
}

#[test]
fn no_known_trick_leads_around_a_denied_path() {
    let tricks = [
        "/admin",
        "/admin/",
        "/admin/x?y",
        "/admin/..%2f",
        "/admin/..%2Fadmin",
        "/x/..%2fadmin",
        "/x/..%2Fadmin",
        "/x%2f..%2fadmin",
        "//admin",
        "///admin//x",
        "/a;/../admin",
        "/a;x=1/../admin",
        "/admin;x",
        "/admin;x=1/y",
        "/admin%3bx",
        "/;/admin",
        "/x/..;/admin",
        "/x/..;y=1/admin",
        "/..;/admin",
        "/%2e%2e/admin",
        "/%2e/admin",
        "/x/%2e%2E/admin",
        "/x/%2E./admin",
        "/./admin",
        "/x/../admin",
        "/x/y/../../admin",
        "/admin/../x",
        "/admin/../../x",
        "/admin/.",
        "/admin/..",
        "/admin%00",
        "/admin%00/x",
        "/admin%0a",
        "/admin%2e",
        "/admin%2f",
        "/admin%2Fx",
        "/%61dmin",
        "/%61%64%6d%69%6e",
        "/%2561dmin",
        "/x/%252e%252e/admin",
        "/x/%252e%252e%252fadmin",
        "/x/..%252fadmin",
        "/%25%36%31dmin",
        "/\\admin",
        "/x\\..\\admin",
        "/x%5c..%5cadmin",
        "/x/..%5Cadmin",
        "/%5cadmin",
        "/x/..%255cadmin",
        "/%2fadmin",
        "/%2F%2fadmin",
        "/.;/admin",
        "/admin/%2e%2e;/x",
        "/x;%2f..%2fadmin",
        "/admin;/../x",
        "/%61dmin;/../x",
        "/x%3b/../admin",
        "/%252f%61dmin%252f%2E%2e",
        "/;%252fx///%2561dmin",
        "/;%252f2f%2f%2561dmin",
        "/.%5c%2f%2561dmin%2f%2f%2E%2e",
    ];
    for admin in kinds() {
        let client = guarded(admin.clone());
        for trick in tricks {
            for target in
                [trick.to_owned(), format!("http://a.example{trick}"), format!("{trick}?/../public")]
            {
                // The head parser refuses these earlier.
                if parses(&target) {
                    holds(&client, &target).unwrap_or_else(|error| panic!("{admin:?}: {error}"));
                }
            }
        }
    }
}

fn parses(target: &str) -> bool {
    let head = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n");
    parse(head.as_bytes(), &mut Vec::new(), &HeadLimits::default()).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_generated_path_leads_around_a_denied_path(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "/", "/", "/", "admin", "admin", "..", ".", "%2e", "%2E%2e", "%2f", "%2F", "%5c", "%25", "%252f", "%252e",
                "%255C", "%3b", "%253b", ";", ";x", "x", "%61dmin", "%2561dmin", "\\", "%00", "//", "/../", "..;", "2f",
            ]),
            0..9,
        ),
        kind in 0..4usize,
        is_absolute in any::<bool>(),
    ) {
        let authority = if is_absolute { "http://a.example" } else { "" };
        let target = format!("{authority}/{}", pieces.concat());
        if parses(&target) {
            ASKERS.with(|askers| holds(&askers[kind], &target)).map_err(TestCaseError::fail)?;
        }
    }
}

thread_local! {
    static ASKERS: [TestClient; 4] = kinds().map(guarded);
}

#[test]
fn harmless_escapes_are_forwarded_unchanged() {
    let client = guarded(PathMatch::prefix("/admin"));
    for target in [
        "/@scope%2fname",
        "/@scope%2Fname/-/name-1.0.0.tgz",
        "/api/v4/projects/group%2Fproject/repository/files/lib%2Fa.rb/raw?ref=main",
        "/files/a;v=1",
        "/100%25",
        "/a%20b/%E2%82%AC",
        "/a%5cb",
        "/search/%3Fq",
        "/~user//x/../y",
        "/static/../img/a.png",
    ] {
        let answer = client.get(target);
        assert_eq!((answer.status, client.last_sent().target.as_str()), (200, target));
    }
    // An absolute target, as sent to a proxy.
    client.get("http://a.example/a//b?c=//d");
    assert_eq!(client.last_sent().target, "/a//b?c=//d");
    client.get("http://a.example?x");
    assert_eq!(client.last_sent().target, "/?x");
}

#[test]
fn the_normal_form_is_sent_where_another_reading_would_go_elsewhere() {
    let client = guarded(PathMatch::prefix("/admin"));
    for (target, sent) in [
        ("/admin/../x", "/x"),
        ("//admin/../y?z=1", "/y?z=1"),
        ("/admin/%2e%2e/x y".replace(' ', "%20").as_str(), "/x%20y"),
    ] {
        assert_eq!((client.get(target).status, client.last_sent().target.as_str()), (200, sent), "{target}");
    }
    for target in ["/admin/..%2fx", "/x/..%2fadmin", "/admin;x", "/%2561dmin", "/..%2f"] {
        let answer = client.get(target);
        assert_eq!(answer.status, 400, "{target}");
        assert!(answer.body.contains("the path is ambiguous"), "{answer:?}");
    }
}

/// An upstream gets the path of such a request from a route that the path has not chosen.
#[test]
fn no_reading_evades_the_rules_of_a_path_by_another_route() {
    let reroute = |to: plan::Reroute| Action::Reroute(to);
    let at = |text: &str| plan::Reroute::Path(template(text));
    let named = || Route { name: "@app".to_owned(), entry: RouteEntry::Named, ..to_upstream("/") };
    let regex = |pattern: &str| PathMatch::Regex { pattern: pattern.to_owned(), ignore_case: false };
    let page = |to: plan::Reroute| {
        let source = PageSource::Route { to, keeps_status: false };
        let page = Page { content_type: String::new(), source };
        ErrorPage { statuses: vec![404..=404], page, status: None, of_upstreams: false }
    };
    let nothing = |path: &str, to: plan::Reroute| {
        let mut route = Route::new(
            PathMatch::prefix(path),
            Action::Respond { status: 404, content_type: String::new(), body: template("") },
        );
        route.rules.error_pages = vec![page(to)];
        route
    };
    let of_name = || plan::Reroute::Named("@app".to_owned());
    let admin = || denied(to_upstream("/admin"));
    let mut without_route = plan_of(vec![admin(), named()]);
    without_route.sites[0].rules.error_pages = vec![page(of_name())];
    let to_app = Route::new(regex("^/f/(.*)$"), reroute(at("/app/$1")));
    let inner = |path: &str| denied(to_upstream(path));
    for (name, prefix, plan) in [
        ("the page of a 404", "", plan_of(vec![nothing("/", of_name()), named(), admin()])),
        ("no route", "", without_route),
        ("reroute", "/f", plan_of(vec![to_app.clone(), to_upstream("/app/"), inner("/app/admin")])),
        (
            "reroute, then the page of a 404",
            "/f",
            plan_of(vec![to_app, nothing("/app/", of_name()), named(), inner("/app/admin")]),
        ),
    ] {
        let client = TestClient::new(&plan);
        for path in ["/x", "/x/y%20z", "/x;y", "/x%2Fy"] {
            assert_eq!(client.get(&format!("{prefix}{path}")).status, 200, "{name} {path}");
        }
        for path in ["/x/..;/admin/secret", "/x%2F..%2Fadmin/secret", "/admin;x/secret", "/%2561dmin/secret"]
        {
            let answer = client.get(&format!("{prefix}{path}"));
            assert_eq!(answer.status, 400, "{name} {path} {:?}", client.fake.sent.borrow().last());
            assert!(answer.body.contains("the path is ambiguous"), "{answer:?}");
        }
    }
}

#[test]
fn the_normal_form_is_sent_where_it_is_asked_for() {
    let forward = proxy::Forward { normal_path: true, ..proxy::Forward::to(0) };
    let client = TestClient::new(&plan_of(vec![Route::new(PathMatch::prefix("/"), Action::Proxy(forward))]));
    for (target, sent) in
        [("/a/../b?c", "/b?c"), ("/%61b%2fc%20d", "/ab%2Fc%20d"), ("//a", "/a"), ("/plain", "/plain")]
    {
        assert_eq!((client.get(target).status, client.last_sent().target.as_str()), (200, sent), "{target}");
    }
}

#[test]
fn a_strict_route_refuses_ambiguous_paths() {
    let mut route = to_upstream("/");
    route.paths = PathPolicy::Strict;
    let client = TestClient::new(&plan_of(vec![route]));
    for target in ["/a/../b", "/a%2fb", "/a%5cb", "/%252e%252e/"] {
        assert_eq!(client.get(target).status, 400, "{target}");
    }
    for target in ["/a%20b", "/plain", "//a"] {
        assert_eq!((client.get(target).status, client.last_sent().target.as_str()), (200, target));
    }
}

#[test]
fn rewrites_do_not_escape_their_prefix() {
    let mut route = to_upstream("/api/");
    route.rewrites = vec![Rewrite {
        from: RewriteFrom::Prefix("/api/".to_owned()),
        to: template("/"),
        then: Then::Next,
        when: Vec::new(),
    }];
    let client = TestClient::new(&plan_of(vec![route]));
    assert_eq!((client.get("/api/x%2fy?z").status, client.last_sent().target.as_str()), (200, "/x%2Fy?z"));
    for target in ["/api/..%2fx", "/api/..;/x", "/api/%252e%252e/x"] {
        assert_eq!(client.get(target).status, 400, "{target}");
    }
    assert_eq!(client.get("/api/../x").status, 404);
}

/// The folder of `files` and `try-files` may be at another path than `/`; the rest of the route sees the whole one.
#[test]
fn folders_are_at_their_path() {
    let folder =
        Folder::new("files-at", &[("a.txt", "a"), ("sub/index.html", "sub"), ("app/a.txt", "inner")]);
    let at = |path: &str, action: Action| Route {
        files_at: "/app".to_owned(),
        ..Route::new(
            PathMatch::Prefix { path: path.to_owned(), segments: false, before_patterns: false },
            action,
        )
    };
    let files = at("/app", Action::Files(0));
    let mut plan = plan_of(vec![files]);
    plan.folders.push(folder.plan());
    let client = TestClient::new(&plan);
    for (target, status, body) in [
        ("/app/a.txt", 200, "a"),
        ("/app/sub/", 200, "sub"),
        ("/app/app/a.txt", 200, "inner"),
        ("/app/%61.txt", 200, "a"),
    ] {
        let answer = client.get(target);
        assert_eq!((answer.status, answer.body.as_str()), (status, body), "{target}");
    }
    for target in ["/app/none", "/appa.txt", "/application/a.txt", "/app..txt"] {
        assert_eq!(client.get(target).status, 404, "{target}");
    }
    for (target, location) in [("/app?q", "/app/?q"), ("/app/sub", "/app/sub/")] {
        let answer = client.get(target);
        let expected = format!("Location: {location}\r\n");
        assert!(answer.status == 301 && answer.fields.contains(&expected), "{target} {answer:?}");
    }
    for (method, status) in [("HEAD", 301), ("POST", 405), ("OPTIONS", 204)] {
        assert_eq!(client.ask(method, "/app", "").status, status, "{method}");
    }
    let mut tried = at("/app", Action::Proxy(Forward::to(0)));
    tried.try_files = Some(0);
    let mut plan = plan_of(vec![tried]);
    plan.folders.push(folder.plan());
    let client = TestClient::new(&plan);
    assert_eq!(client.get("/app/a.txt").body, "a");
    client.get("/app/x?q");
    assert_eq!(client.last_sent().target, "/app/x?q");
}

#[test]
fn files_are_found_by_the_path_that_rules_saw() {
    let folder = Folder::new(
        "paths",
        &[("a b/100%.txt", "percent"), ("admin/x.txt", "secret"), ("evil.example/i", "")],
    );
    let files = |path: PathMatch| Route::new(path, Action::Files(0));
    let mut plan = plan_of(vec![denied(files(PathMatch::prefix("/admin"))), files(PathMatch::prefix("/"))]);
    plan.folders.push(folder.plan());
    let client = TestClient::new(&plan);
    assert_eq!(client.get("/a%20b/100%25.txt").body, "percent");
    assert_eq!(client.get("//a%20b//100%25.txt").body, "percent", "slashes are merged, as nginx does");
    for target in ["/admin/x.txt", "//admin/x.txt", "/admin//x.txt", "/%61dmin/x.txt"] {
        assert_eq!(client.get(target).status, 403, "{target}");
    }
    for target in ["/x/../admin/x.txt", "/x%2f..%2fadmin/x.txt", "/./admin/x.txt"] {
        assert!(matches!(client.get(target).status, 400 | 403), "{target}");
    }
    let answer = client.get("//evil.example");
    assert_eq!(answer.status, 301);
    assert!(
        answer.fields.contains("Location: /evil.example/\r\n"),
        "no redirect to another host: {answer:?}"
    );
}
