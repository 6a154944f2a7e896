//! Objects that are wrong, absurd or malicious: each is reported, and no other object suffers.

use super::ingresses::{CLASS, annotated, notes};
use super::*;

const A: &str = "default/a:8080";
const TO_A: &str = "backendRefs: [{name: a, port: 8080}]";

/// A route for `good.test`, which is served whatever else there is.
fn beside_good(text: &str) -> Translation {
    let good = route("good", &format!("hostnames: [good.test]\nrules: [{{{TO_A}}}]"));
    let translation = with_base(&format!("{good}{text}"));
    assert_eq!(translation.of_route("good", "Accepted"), "True Accepted", "{text}");
    assert_eq!(translation.response("http://good.test/"), A, "{text}");
    translation
}

/// Rules of an HTTPRoute for `bad.test` that are refused.
#[test]
fn rules_with_values_that_no_response_could_have_are_refused() {
    let redirect = |text: &str| format!("filters: [{{type: RequestRedirect, requestRedirect: {{{text}}}}}]");
    let rewrite = |text: &str| format!("filters: [{{type: URLRewrite, urlRewrite: {{{text}}}}}]\n  {TO_A}");
    let fields = |kind: &str, text: &str| {
        let field = format!("{}{}", kind[..1].to_lowercase(), &kind[1..]);
        format!("filters: [{{type: {kind}, {field}: {{{text}}}}}]\n  {TO_A}")
    };
    let matches = |text: &str| format!("matches: [{{{text}}}]\n  {TO_A}");
    for rule in [
        redirect(r#"hostname: "a\r\nb""#),
        redirect("hostname: 'a b'"),
        redirect("hostname: 'a/b'"),
        redirect("scheme: javascript"),
        redirect("statusCode: 200"),
        redirect(r#"path: {type: ReplaceFullPath, replaceFullPath: "/a\r\nSet-Cookie: x"}"#),
        rewrite(r#"hostname: "a\r\nb""#),
        rewrite("hostname: 'a b'"),
        rewrite(r#"path: {type: ReplaceFullPath, replaceFullPath: "/a\n"}"#),
        fields("RequestHeaderModifier", r#"set: [{name: a, value: "x\r\ny"}]"#),
        fields("ResponseHeaderModifier", r#"add: [{name: a, value: "x\ny"}]"#),
        fields("ResponseHeaderModifier", r#"set: [{name: "a\r\nb", value: x}]"#),
        fields("RequestHeaderModifier", "remove: ['a b']"),
        fields("RequestHeaderModifier", "set: [{name: '', value: x}]"),
        matches("headers: [{name: a, type: RegularExpression, value: 'a)|(?:.*'}]"),
        matches("headers: [{name: a, type: RegularExpression, value: '(a{1000}){1000}'}]"),
        matches("queryParams: [{name: a, type: RegularExpression, value: '('}]"),
        matches("queryParams: [{name: a, type: Glob, value: x}]"),
        matches(r#"path: {type: Exact, value: "/a\u0000b"}"#),
        matches("path: {type: RegularExpression, value: '/(?<=a)'}"),
        matches("path: {type: RegularExpression, value: '/((((((a{99}){99}){99}){99}){99}){99})'}"),
        matches("path: {type: PathPrefix, value: 'no-slash'}"),
        format!("timeouts: {{request: '10'}}\n  {TO_A}"),
        format!("timeouts: {{request: 1d}}\n  {TO_A}"),
        format!("timeouts: {{backendRequest: '-1s'}}\n  {TO_A}"),
        format!("retry: {{attempts: 1000000}}\n  {TO_A}"),
    ] {
        let translation = beside_good(&route("bad", &format!("hostnames: [bad.test]\nrules:\n- {rule}")));
        assert_eq!(translation.of_route("bad", "Accepted"), "False UnsupportedValue", "{rule}");
        assert!(translation.routes("bad.test").is_empty(), "{rule}");
    }
}

/// Values that are odd, but that have a meaning.
#[test]
fn odd_values_are_served() {
    for (rule, request, expected) in [
        (
            format!("matches: [{{headers: [{{name: a, type: RegularExpression, value: 'x|y'}}]}}]\n  {TO_A}"),
            "http://bad.test/ a=y",
            A,
        ),
        (
            format!("matches: [{{headers: [{{name: a, type: RegularExpression, value: 'x|y'}}]}}]\n  {TO_A}"),
            "http://bad.test/ a=xy",
            "404",
        ),
        (format!("matches: [{{headers: [{{name: A, value: ''}}]}}]\n  {TO_A}"), "http://bad.test/", "404"),
        (
            format!("matches: [{{queryParams: [{{name: 'a b', value: x}}]}}]\n  {TO_A}"),
            "http://bad.test/",
            "404",
        ),
        (
            format!("matches: [{{path: {{type: Exact, value: '/a b'}}}}]\n  {TO_A}"),
            "http://bad.test/a%20b",
            A,
        ),
        (format!("matches: [{{path: {{value: '/ä'}}}}]\n  {TO_A}"), "http://bad.test/%C3%A4/x", A),
        (format!("matches: [{{method: '\" || true'}}]\n  {TO_A}"), "http://bad.test/", "404"),
        (
            format!("timeouts: {{request: 99999h}}\n  {TO_A}"),
            "http://bad.test/",
            "default/a:8080?request=359996400000ms",
        ),
        (
            "backendRefs: [{name: a, port: 8080, weight: 4294967295}, {name: b, port: 8080, weight: 0}]"
                .to_owned(),
            "http://bad.test/",
            A,
        ),
        (
            "backendRefs: [{name: a, port: 8080}, {name: a, port: 8080}, {name: a, port: 8080}]".to_owned(),
            "http://bad.test/",
            A,
        ),
        ("backendRefs: [{name: '', port: 8080}]".to_owned(), "http://bad.test/", "500"),
        ("backendRefs: [{name: ../../etc, port: 8080}]".to_owned(), "http://bad.test/", "500"),
    ] {
        let translation = beside_good(&route("bad", &format!("hostnames: [bad.test]\nrules:\n- {rule}")));
        assert_eq!(translation.response(request), expected, "{rule}");
    }
}

/// Objects that are not read at all: the reason has their name.
#[test]
fn malformed_objects_are_refused_by_name() {
    let route = |spec: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: bad}}\nspec: {spec}"
        )
    };
    for text in [
        route("text"),
        route("{rules: 7}"),
        route("{rules: [{backendRefs: {name: a}}]}"),
        route("{rules: [{backendRefs: [{name: a, port: 70000}]}]}"),
        route("{rules: [{backendRefs: [{name: a, port: http}]}]}"),
        route("{rules: [{backendRefs: [{name: a, port: 80, weight: -1}]}]}"),
        route("{rules: [{matches: [{path: /x}]}]}"),
        route("{rules: [{matches: [{headers: {a: b}}]}]}"),
        route("{parentRefs: [gw]}"),
        route("{parentRefs: [{name: gw, port: -80}]}"),
        route("{hostnames: a.test}"),
        route("{hostnames: [{name: a.test}]}"),
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: bad}\nspec: {listeners: [{port: eighty}]}".to_owned(),
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: bad}\nspec: {rules: [{http: {paths: /}}]}".to_owned(),
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: bad, annotations: {a: 1}}\nspec: {}".to_owned(),
        "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: 99999}]}".to_owned(),
        "apiVersion: v1\nkind: Secret\nmetadata: {name: bad}\ndata: [x]".to_owned(),
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: bad}\nendpoints: [10.0.0.1]".to_owned(),
    ] {
        let mut known = objects(BASE);
        let before = known.count();
        let why = known.insert(yaml::objects(&text).unwrap().remove(0)).unwrap_err();
        assert!(why.contains("bad"), "{text}: {why}");
        assert_eq!(known.count(), before, "{text}");
    }
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: bad}\ndata: hidden";
    let why = objects(BASE).insert(yaml::objects(secret).unwrap().remove(0)).unwrap_err();
    assert!(why.contains("Secret default/bad") && !why.contains("hidden"), "{why}");
    for nameless in ["apiVersion: v1\nkind: Service\n", "apiVersion: v1\nkind: Service\nmetadata: {name: ''}"]
    {
        assert!(objects(BASE).insert(yaml::objects(nameless).unwrap().remove(0)).is_err(), "{nameless}");
    }
}

/// Ingresses with values of annotations that are absurd: they are served, or they are closed and say why.
#[test]
fn absurd_annotations_are_served_or_closed() {
    let hosts = |count: usize| (0..count).map(|at| format!("h{at}.test")).collect::<Vec<_>>().join(",");
    let nets = (0..3000).map(|at| format!("10.{}.{}.0/24", at / 250, at % 250)).collect::<Vec<_>>().join(",");
    let many = hosts(500);
    for (annotations, expected, note) in [
        (&[("limit-rps", "4294967295"), ("limit-burst-multiplier", "1000")][..], A, ""),
        (&[("limit-rps", "4294967296")], "500", "need a number"),
        (&[("limit-rps", "1.5")], "500", "need a number"),
        (&[("proxy-read-timeout", "4294967295")], A, ""),
        (&[("proxy-read-timeout", "99999999999")], "500", "need a number"),
        (&[("proxy-connect-timeout", "0")], A, ""),
        (&[("proxy-body-size", "4294967295g")], A, ""),
        (&[("canary-weight", "18446744073709551616")], "500", "need a number"),
        (&[("enable-cors", "true"), ("cors-max-age", "4294967295")], A, ""),
        (&[("enable-cors", "true"), ("cors-allow-headers", "a b, c")], "500", "not served"),
        (&[("enable-cors", "true"), ("cors-allow-methods", "G ET")], "500", "not served"),
        (&[("enable-cors", "true"), ("cors-allow-origin", "not an origin")], "500", "not served"),
        (&[("enable-cors", "true"), ("cors-expose-headers", "x y")], "500", "not served"),
        (&[("whitelist-source-range", &nets)], A, ""),
        (&[("whitelist-source-range", "10.0.0.0/8,,")], A, ""),
        (&[("whitelist-source-range", "everybody")], "500", "not served"),
        (&[("whitelist-source-range", "")], A, ""),
        (&[("server-alias", &many)], A, ""),
        (&[("server-alias", "a..b, *, c.test")], A, "got the host name"),
        (&[("rewrite-target", "/$99")], "default/a:8080 /9", ""),
        (&[("rewrite-target", "/$nothing")], "500", "not served"),
        (&[("rewrite-target", "http://evil.test/")], "500", "begins with `/`"),
        (&[("affinity", "cookie"), ("session-cookie-name", "a;b")], "500", "RFC 6265"),
        (&[("auth-type", "basic"), ("auth-secret", "elsewhere/users")], "500", "another namespace"),
        (&[("auth-type", "basic"), ("auth-secret", "../../etc/passwd")], "500", "another namespace"),
        (&[("auth-type", "basic"), ("auth-secret", "broken")], "500", "not Base64"),
        (&[("auth-type", "basic"), ("auth-secret", "empty")], "500", "has no users"),
        (&[("auth-type", "basic"), ("auth-secret", "odd")], "500", "not served"),
        (&[("auth-url", "file:///etc/passwd")], "500", "need a URL"),
        (&[("auth-url", "http://169.254.169.254/latest")], "500", "name a Service"),
        (&[("canary-by-header", "a b"), ("canary", "true")], "404", "of which this is a canary"),
    ] {
        let text = format!(
            "{CLASS}---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: i, annotations: {{{}}}}}\nspec:\n  \
             ingressClassName: flatout\n  rules: [{{host: bad.test, http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: \
             {{name: a, port: {{number: 8080}}}}}}}}]}}}}]\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: broken}}\n\
             data: {{auth: '***'}}\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: empty}}\nstringData: {{auth: ''}}\n\
             ---\napiVersion: v1\nkind: Secret\nmetadata: {{name: odd}}\nstringData: {{auth: 'me:plain text'}}\n",
            annotated(annotations)
        );
        let shown = &format!("{annotations:?}")[..60.min(format!("{annotations:?}").len())];
        let translation = beside_good(&text);
        let response = translation.response("http://bad.test/x");
        let response = response.split('?').next().unwrap_or_default();
        assert_eq!(response, expected, "{shown}");
        let notes = notes(&translation);
        match note {
            "" => assert_eq!(notes, [""; 0], "{shown}"),
            note => assert!(notes.iter().any(|it| it.contains(note)), "{shown}: {notes:?}"),
        }
    }
}

/// Mistakes that only the site layer finds: one object with many of them does not take a check of the plan for each.
#[test]
fn many_mistakes_of_one_object_are_found_in_a_few_steps() {
    let path = |at: usize| {
        format!(
            "{{path: /p{at}, pathType: Prefix, backend: {{service: {{name: a, port: {{number: 8080}}}}}}}}"
        )
    };
    let paths: Vec<String> = (0..4000).map(path).collect();
    let ingress = |annotations: &[(&str, &str)]| {
        format!(
            "{CLASS}---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: i, annotations: {{{}}}}}\nspec:\n  \
             ingressClassName: flatout\n  rules: [{{host: bad.test, http: {{paths: [{}]}}}}]\n---\napiVersion: v1\nkind: Secret\n\
             metadata: {{name: odd}}\nstringData: {{auth: 'me:plain text'}}\n",
            annotated(annotations),
            paths.join(", ")
        )
    };
    for annotations in [
        &[("enable-cors", "true"), ("cors-allow-origin", "not an origin")][..],
        &[("auth-type", "basic"), ("auth-secret", "odd")],
    ] {
        let begin = std::time::Instant::now();
        let translation = beside_good(&ingress(annotations));
        assert!(begin.elapsed() < std::time::Duration::from_secs(60), "{:?}", begin.elapsed());
        for request in ["http://bad.test/p0", "http://bad.test/p3999/x"] {
            assert_eq!(translation.response(request), "500", "{annotations:?}");
        }
        assert!(notes(&translation).iter().any(|it| it.contains("not served")), "{annotations:?}");
    }
}

/// Sizes far above what an API server lets through: the objects beside them are served.
#[test]
fn absurd_sizes_leave_the_others() {
    let many =
        |count: usize, one: &dyn Fn(usize) -> String| (0..count).map(one).collect::<Vec<_>>().join(", ");
    let paths = many(5000, &|at| {
        format!(
            "{{path: /p{at}, pathType: Prefix, backend: {{service: {{name: a, port: {{number: 8080}}}}}}}}"
        )
    });
    let ingress = format!(
        "{CLASS}---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: i}}\nspec:\n  ingressClassName: flatout\n  \
         rules: [{{host: bad.test, http: {{paths: [{paths}]}}}}]\n"
    );
    let rules = many(5000, &|at| format!("{{matches: [{{path: {{value: /p{at}}}}}], {TO_A}}}"));
    let parents = many(100, &|at| format!("{{name: gw{at}}}"));
    let fields = many(5000, &|at| format!("{{name: f{at}, value: v}}"));
    let names = many(3000, &|at| format!("h{at}.bad.test"));
    for (text, request, expected) in [
        (ingress, "http://bad.test/p1", A),
        (route("bad", &format!("hostnames: [bad.test]\nrules: [{rules}]")), "http://bad.test/p1", A),
        (
            route("bad", &format!("hostnames: [bad.test]\nrules: [{{{TO_A}}}]"))
                .replace("[{name: gw}]", &format!("[{parents}, {{name: gw}}]")),
            "http://bad.test/",
            "404",
        ),
        (
            route(
                "bad",
                &format!("hostnames: [bad.test]\nrules: [{{matches: [{{headers: [{fields}]}}], {TO_A}}}]"),
            ),
            "http://bad.test/",
            "404",
        ),
        (route("bad", &format!("hostnames: [{names}]\nrules: [{{{TO_A}}}]")), "http://h7.bad.test/", A),
        (
            route(
                "bad",
                &format!(
                    "hostnames: [bad.test]\nrules: [{{matches: [{{path: {{value: '/{}'}}}}], {TO_A}}}]",
                    "x".repeat(100_000)
                ),
            ),
            "http://bad.test/",
            "404",
        ),
        (
            route("bad", &format!("hostnames: ['{}.test']\nrules: [{{{TO_A}}}]", "x".repeat(300))),
            "http://bad.test/",
            "404",
        ),
    ] {
        let translation = beside_good(&text);
        assert_eq!(translation.response(request), expected, "{}", &text[..300]);
    }
}

/// Of several routes for one host name, the newest are left out if they are too many.
#[test]
fn a_host_name_has_a_largest_number_of_routes() {
    let of = |name: &str, year: u16, prefix: &str, count: usize| {
        let one = |at: usize| format!("{{matches: [{{path: {{value: /{prefix}{at}}}}}], {TO_A}}}");
        let rules = (0..count).map(one).collect::<Vec<_>>().join(", ");
        route(name, &format!("hostnames: [bad.test]\nrules: [{rules}]"))
            .replace("generation: 3", &format!("generation: 3, creationTimestamp: '{year}-01-01T00:00:00Z'"))
    };
    let text = of("new", 2026, "n", 3000) + &of("old", 2020, "o", 3000);
    let translation = beside_good(&text);
    for (request, expected) in [
        ("http://bad.test/o0", A),
        ("http://bad.test/o2999", A),
        ("http://bad.test/n0", A),
        ("http://bad.test/n2999", "404"),
    ] {
        assert_eq!(translation.response(request), expected, "{request}");
    }
    assert_eq!(translation.of_route("old", "Accepted"), "True Accepted");
    assert_eq!(translation.of_route("old", "PartiallyInvalid"), "none");
    assert_eq!(translation.of_route("new", "PartiallyInvalid"), "True UnsupportedValue");
}

/// An Ingress for `bad.test` with so many paths, made in a year.
fn ingress_with_paths(
    (name, year): (&str, u16),
    annotations: &[(&str, &str)],
    (prefix, count): (&str, usize),
) -> String {
    let path = |at: usize| {
        format!(
            "{{path: /{prefix}{at}, pathType: Prefix, backend: {{service: {{name: a, port: {{number: 8080}}}}}}}}"
        )
    };
    let mut paths: Vec<String> = (1..count).map(path).collect();
    paths.push(path(0).replace(&format!("/{prefix}0,"), &format!("/{},", prefix.trim_end_matches('/'))));
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, creationTimestamp: \
         '{year}-01-01T00:00:00Z', annotations: {{{}}}}}\nspec:\n  ingressClassName: flatout\n  rules: [{{host: bad.test, http: \
         {{paths: [{}]}}}}]\n",
        annotated(annotations),
        paths.join(", ")
    )
}

/// If a host name has too many routes, requests of a protected Ingress do not go to a shorter path.
#[test]
fn protected_routes_above_the_largest_number_are_not_opened() {
    let access = ("whitelist-source-range", "10.0.0.0/8");
    let mistake = ("whitelist-source-range", "10.0.0.0/33");
    // The open one has the root. One of its paths goes for each of the protected ones.
    let text = CLASS.to_owned()
        + &ingress_with_paths(("open", 2020), &[], ("", 4000))
        + &ingress_with_paths(("protected", 2021), &[access], ("p/", 1000));
    let translation = beside_good(&text);
    for path in ["/p", "/p/1", "/p/999"] {
        let name = format!("Ingress/default/protected{path}");
        let route = translation.routes("bad.test").iter().find(|it| it.name == name).unwrap();
        assert!(!route.rules.access.is_empty(), "{path}");
    }
    assert_eq!(translation.response("http://bad.test/1"), A);
    // Too many closed ones: none of the open one is left.
    let text = CLASS.to_owned()
        + &ingress_with_paths(("open", 2020), &[], ("", 100))
        + &ingress_with_paths(("closed", 2021), &[mistake], ("p/", 4500));
    let translation = beside_good(&text);
    for request in ["http://bad.test/p/4499", "http://bad.test/p/1", "http://bad.test/1", "http://bad.test/"]
    {
        assert!(["404", "500"].contains(&translation.response(request).as_str()), "{request}");
    }
}

/// The oldest object wins, also among Ingresses and HTTPRoutes.
#[test]
fn ages_of_ingresses_and_routes_are_compared() {
    let route_of = |year: u16| {
        route("r", "hostnames: [bad.test]\nrules: [{backendRefs: [{name: b, port: 8080}]}]")
            .replace("generation: 3", &format!("generation: 3, creationTimestamp: '{year}-01-01T00:00:00Z'"))
    };
    for (of_ingress, of_route, expected) in [(2021, 2022, A), (2022, 2021, "default/b:8080")] {
        let text =
            format!("{CLASS}{}{}", ingress_with_paths(("i", of_ingress), &[], ("", 1)), route_of(of_route));
        // An older Ingress and an older HTTPRoute of another host, so that places in each list differ.
        for other in [
            route("o", "hostnames: [o.test]\nrules: [{backendRefs: [{name: b, port: 8080}]}]")
                .replace("generation: 3", "generation: 3, creationTimestamp: '2001-01-01T00:00:00Z'"),
            ingress_with_paths(("o", 2001), &[], ("", 1)).replace("bad.test", "o.test"),
        ] {
            let translation = with_base(&(text.clone() + &other));
            assert_eq!(translation.response("http://bad.test/"), expected, "{other}");
        }
    }
}

/// Endpoints above the limit of an upstream are left out; odd addresses are ignored.
#[test]
fn endpoints_are_limited_and_checked() {
    let slice = |addresses: &str, kind: &str| {
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: a-2, labels: {{kubernetes.io/service-name: a}}}}\n\
             addressType: {kind}\nports: [{{name: web, port: 3000}}]\nendpoints: [{addresses}]\n"
        )
    };
    let many: Vec<String> =
        (0..3000).map(|at| format!("{{addresses: [10.9.{}.{}]}}", at / 250, at % 250)).collect();
    for (text, count) in [
        (slice(&many.join(", "), "IPv4"), flatout_proxy::SERVERS_MAX),
        (slice("{addresses: [not-an-address]}, {addresses: []}, {addresses: [10.9.9.9]}", "IPv4"), 3),
        (slice("{addresses: [pod.example.org]}", "FQDN"), 2),
        (slice("{addresses: ['fd00::1']}, {addresses: ['fd00::1']}", "IPv6"), 3),
        (slice("{addresses: [10.9.9.9], conditions: {ready: null}}", "IPv4"), 3),
        (slice("{addresses: [10.9.9.9], conditions: null}", "IPv4"), 3),
        (slice("{addresses: [10.1.0.1]}", "IPv4"), 2),
    ] {
        let translation = beside_good(&text);
        assert_eq!(translation.upstream(A).servers.len(), count, "{}", &text[..200]);
    }
}

/// The oldest object wins, whatever the clocks that wrote the times were set to.
#[test]
fn times_of_skewed_clocks_have_an_order() {
    let of = |name: &str, time: &str, service: &str| {
        let spec =
            format!("hostnames: [bad.test]\nrules: [{{backendRefs: [{{name: {service}, port: 8080}}]}}]");
        route(name, &spec).replace("generation: 3", &format!("generation: 3, creationTimestamp: {time}"))
    };
    for (one, other, first) in [
        ("'2026-01-01T00:00:00Z'", "'2026-01-01T00:00:01Z'", A),
        ("'2099-01-01T00:00:00Z'", "'2026-01-01T00:00:00Z'", "default/b:8080"),
        ("'1970-01-01T00:00:00Z'", "'2026-01-01T00:00:00Z'", A),
        ("'2099-01-01T00:00:00Z'", "'2099-01-01T00:00:00Z'", A),
        ("''", "'1970-01-01T00:00:00Z'", A),
        ("'9999-12-31T23:59:59Z'", "''", "default/b:8080"),
        ("yesterday", "'2026-01-01T00:00:00Z'", "default/b:8080"),
    ] {
        let translation = beside_good(&(of("one", one, "a") + &of("two", other, "b")));
        assert_eq!(translation.response("http://bad.test/"), first, "{one} {other}");
        let (winner, loser) = if first == A { ("one", "two") } else { ("two", "one") };
        assert_eq!(translation.of_route(winner, "flatout.dev/Conflicted"), "none", "{one} {other}");
        assert_eq!(
            translation.of_route(loser, "flatout.dev/Conflicted"),
            "True OlderObject",
            "{one} {other}"
        );
    }
}
