//! Routes beside each other: the responses to requests, by matches, precedence, filters, parents, host names and grants.

use super::conflicts::dated;
use super::status::gateway;
use super::*;

const A: &str = "default/a:8080";
const B: &str = "default/b:8080";
const TO_A: &str = "backendRefs: [{name: a, port: 8080}]";
const TO_B: &str = "backendRefs: [{name: b, port: 8080}]";

/// A route for `a.test` with rules in YAML, without brackets.
fn rules(name: &str, year: u16, rules: &str) -> String {
    dated(name, year, &format!("hostnames: [a.test]\nrules: [{rules}]"))
}

/// A rule with matches, which leads to a service.
fn rule(matches: &str, to: &str) -> String {
    format!("{{matches: [{matches}], {to}}}")
}

/// Which of two rules gets a request: in one route in both orders, and in two routes of which either is the older one.
#[test]
fn the_more_specific_match_wins_wherever_it_stands() {
    let path = |kind: &str, value: &str| format!("path: {{type: {kind}, value: '{value}'}}");
    let (exact, prefix, regex) =
        (|it| path("Exact", it), |it| path("PathPrefix", it), |it| path("RegularExpression", it));
    let field = |name: &str, value: &str| format!("{{name: {name}, value: {value}}}");
    let fields = |list: &str| format!("headers: [{list}]");
    let arguments = |list: &str| format!("queryParams: [{list}]");
    for (specific, general, requests) in [
        // Paths.
        (exact("/x"), prefix("/x"), &[("/x", A), ("/x/", B), ("/x/y", B)][..]),
        (exact("/x"), prefix("/"), &[("/x", A), ("/x/", B)]),
        (exact("/x/"), prefix("/x"), &[("/x/", A), ("/x", B)]),
        (prefix("/x/y"), prefix("/x"), &[("/x/y", A), ("/x/y/z", A), ("/x/yz", B), ("/x", B)]),
        (prefix("/x/y/"), prefix("/x"), &[("/x/y", A), ("/x/y/z", A), ("/x/yz", B)]),
        (prefix("/x"), prefix("/"), &[("/x", A), ("/X", B), ("/xy", B)]),
        (exact("/x"), regex("/x.*"), &[("/x", A), ("/xy", B)]),
        (regex("/x/[0-9]+"), prefix("/x"), &[("/x/7", A), ("/x/7/y", B), ("/x", B)]),
        (regex("/x[0-9]{1,3}"), regex("/x.*"), &[("/x7", A), ("/x7777", B)]),
        (regex("(?i)/x"), prefix("/"), &[("/X", A), ("/xy", B)]),
        (regex("/a|/b"), prefix("/"), &[("/a", A), ("/b", A), ("/ab", B)]),
        (regex("^/a$"), prefix("/"), &[("/a", A), ("/ab", B)]),
        (regex("/(?!admin)[a-z]+"), prefix("/"), &[("/user", A), ("/admin", B), ("/administrator", B)]),
        // A longer path comes before everything else.
        (
            prefix("/x/y"),
            format!("{}, method: GET, {}", prefix("/x"), fields(&field("h", "v"))),
            &[("/x/y h=v", A), ("/x h=v", B)],
        ),
        (exact("/x"), format!("{}, method: GET", prefix("/x")), &[("/x", A), ("/x/y", B)]),
        // Methods, then fields, then parameters.
        ("method: GET".to_owned(), prefix("/"), &[("/x", A)]),
        ("method: GET".to_owned(), fields(&field("h", "v")), &[("/x h=v", A)]),
        ("method: GET".to_owned(), arguments(&field("q", "v")), &[("/x?q=v", A)]),
        (fields(&field("h", "v")), prefix("/"), &[("/x h=v", A), ("/x h=w", B), ("/x", B)]),
        (
            fields(&format!("{}, {}", field("h", "v"), field("i", "w"))),
            fields(&field("h", "v")),
            &[("/x h=v i=w", A), ("/x h=v", B), ("/x i=w", "404")],
        ),
        (
            fields(&field("h", "v")),
            arguments(&format!("{}, {}", field("q", "v"), field("r", "w"))),
            &[("/x?q=v&r=w h=v", A), ("/x?q=v&r=w", B)],
        ),
        (arguments(&field("q", "v")), prefix("/"), &[("/x?q=v", A), ("/x?q=w", B), ("/x?Q=v", B), ("/x", B)]),
        (
            arguments(&format!("{}, {}", field("q", "v"), field("r", "w"))),
            arguments(&field("q", "v")),
            &[("/x?r=w&q=v", A), ("/x?q=v", B), ("/x?r=w", "404")],
        ),
        // Of several values, the first counts.
        (arguments(&field("q", "v")), prefix("/"), &[("/x?q=v&q=w", A), ("/x?q=w&q=v", B)]),
        // Names of fields ignore case, values do not.
        (fields(&field("X-Name", "v")), prefix("/"), &[("/x x-name=v", A), ("/x X-NAME=V", B)]),
        // Expressions match whole values, and nothing that is missing.
        (
            fields("{name: h, type: RegularExpression, value: 'v[0-9]'}"),
            prefix("/"),
            &[("/x h=v7", A), ("/x h=v77", B), ("/x h=av7", B)],
        ),
        (fields("{name: h, type: RegularExpression, value: '.*'}"), prefix("/"), &[("/x h=v", A), ("/x", B)]),
        (
            arguments("{name: q, type: RegularExpression, value: 'v?'}"),
            prefix("/"),
            &[("/x?q=", A), ("/x?q=v", A), ("/x?q", B), ("/x", B), ("/x?q=w", B)],
        ),
    ] {
        let (specific_rule, general_rule) =
            (rule(&format!("{{{specific}}}"), TO_A), rule(&format!("{{{general}}}"), TO_B));
        for text in [
            rules("one", 2020, &format!("{specific_rule}, {general_rule}")),
            rules("one", 2020, &format!("{general_rule}, {specific_rule}")),
            rules("one", 2020, &specific_rule) + &rules("two", 2021, &general_rule),
            rules("one", 2021, &specific_rule) + &rules("two", 2020, &general_rule),
        ] {
            let translation = with_base(&text);
            for (request, expected) in requests {
                let response = translation.response(&format!("http://a.test{request}"));
                assert_eq!(response, *expected, "{request}: {specific} before {general}");
            }
        }
    }
}

/// Equal matches: of one route the first, of several the oldest; the others get no requests, whatever their filters are.
#[test]
fn of_equal_matches_the_oldest_wins() {
    let redirect = "filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]";
    for (one, other, year, expected) in [
        (TO_A, TO_B, 2021, A),
        (TO_A, TO_B, 2019, B),
        (TO_A, redirect, 2021, A),
        (TO_A, redirect, 2019, "redirect 302 /x"),
        (redirect, TO_B, 2021, "redirect 302 /x"),
        ("backendRefs: []", TO_B, 2021, "500"),
        ("backendRefs: [{name: missing, port: 1}]", TO_B, 2021, "500"),
        (TO_A, "backendRefs: [{name: missing, port: 1}]", 2019, "500"),
        // A rule that is refused leaves its requests to the other route.
        ("filters: [{type: ExtensionRef}]", TO_B, 2021, B),
        ("timeouts: {request: soon}", TO_B, 2021, B),
    ] {
        for matches in [
            "{path: {value: /x}}",
            "{path: {type: Exact, value: /x}}, {method: PUT}",
            "{path: {type: RegularExpression, value: '/x'}}",
        ] {
            let text = rules("one", 2020, &rule(matches, one)) + &rules("two", year, &rule(matches, other));
            assert_eq!(
                with_base(&text).response("http://a.test/x"),
                expected,
                "{matches} {one} {other} {year}"
            );
        }
    }
    let both = format!("{}, {}", rule("{path: {value: /x}}", TO_A), rule("{path: {value: /x}}", TO_B));
    assert_eq!(
        with_base(&rules("one", 2020, &both)).response("http://a.test/x"),
        A,
        "of one route the first"
    );
}

/// Changes of paths by filters: the table of the standard, with prefixes at listeners and hosts that differ.
#[test]
fn paths_are_changed_as_the_standard_says() {
    for (prefix, replacement, request, expected) in [
        ("/foo", "/xyz", "/foo/bar", "/xyz/bar"),
        ("/foo", "/xyz/", "/foo/bar", "/xyz/bar"),
        ("/foo/", "/xyz", "/foo/bar", "/xyz/bar"),
        ("/foo/", "/xyz/", "/foo/bar", "/xyz/bar"),
        ("/foo", "/xyz", "/foo", "/xyz"),
        ("/foo/", "/xyz", "/foo", "/xyz"),
        ("/foo", "/xyz", "/foo/", "/xyz/"),
        ("/foo", "", "/foo/bar", "/bar"),
        ("/foo", "", "/foo/", "/"),
        ("/foo", "", "/foo", "/"),
        ("/foo", "/", "/foo/", "/"),
        ("/foo", "/", "/foo", "/"),
        ("/foo", "/", "/foo/bar?q=1", "/bar?q=1"),
        ("/", "/xyz", "/foo", "/xyz/foo"),
        ("/", "/xyz", "/", "/xyz/"),
        ("/", "/", "/foo", "/foo"),
    ] {
        let change = format!("path: {{type: ReplacePrefixMatch, replacePrefixMatch: '{replacement}'}}");
        let matched = format!("{{path: {{value: '{prefix}'}}}}");
        let rewritten =
            rule(&matched, &format!("filters: [{{type: URLRewrite, urlRewrite: {{{change}}}}}], {TO_A}"));
        let redirected =
            rule(&matched, &format!("filters: [{{type: RequestRedirect, requestRedirect: {{{change}}}}}]"));
        let to = if expected == request { A.to_owned() } else { format!("{A} {expected}") };
        let about = format!("{prefix} {replacement} {request}");
        let url = format!("http://a.test{request}");
        assert_eq!(with_base(&rules("r", 2020, &rewritten)).response(&url), to, "{about}");
        let (path, _) = expected.split_once('?').unwrap_or((expected, ""));
        assert_eq!(
            with_base(&rules("r", 2020, &redirected)).response(&url),
            format!("redirect 302 {path}"),
            "{about}"
        );
    }
}

/// Filters beside each other, of rules and of backends.
#[test]
fn filters_of_a_rule_are_combined() {
    let full = |to: &str| {
        format!(
            "{{type: URLRewrite, urlRewrite: {{path: {{type: ReplaceFullPath, replaceFullPath: {to}}}}}}}"
        )
    };
    let cors = "{type: CORS, cors: {allowOrigins: ['https://o.test']}}";
    let set =
        "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x, value: v}], remove: [z]}}";
    let add = "{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: x, value: v}]}}";
    let mirror = "{type: RequestMirror, requestMirror: {backendRef: {name: b, port: 8080}}}";
    let redirect = "{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 301}}";
    for (of_rule, of_backend, response, counts) in [
        (String::new(), String::new(), A, (0, 0, false, 0)),
        (set.to_owned(), add.to_owned(), A, (2, 1, false, 0)),
        (format!("{set}, {add}"), format!("{set}, {add}"), A, (4, 2, false, 0)),
        (format!("{cors}, {set}"), String::new(), A, (2, 0, true, 0)),
        (cors.to_owned(), cors.to_owned(), A, (0, 0, true, 0)),
        (mirror.to_owned(), mirror.to_owned(), A, (0, 0, false, 2)),
        (full("/y"), String::new(), "default/a:8080 /y", (0, 0, false, 0)),
        (
            format!("{}, {set}, {cors}, {mirror}", full("/y")),
            add.to_owned(),
            "default/a:8080 /y",
            (2, 1, true, 1),
        ),
        (redirect.to_owned(), String::new(), "redirect 301 /x", (0, 0, false, 0)),
        (format!("{redirect}, {add}, {cors}"), String::new(), "redirect 301 /x", (0, 1, true, 0)),
    ] {
        let backend = format!("backendRefs: [{{name: a, port: 8080, filters: [{of_backend}]}}]");
        let text =
            rules("r", 2020, &rule("{path: {value: /x}}", &format!("filters: [{of_rule}], {backend}")));
        let translation = with_base(&text);
        assert_eq!(translation.response("http://a.test/x"), response, "{of_rule} | {of_backend}");
        let route = &translation.routes("a.test")[0];
        let mirrors = if let Action::Proxy(forward) = &route.action { forward.mirrors.len() } else { 0 };
        let found = (
            route.rules.request_fields.len(),
            route.rules.response_fields.len(),
            route.rules.cors.is_some(),
            mirrors,
        );
        assert_eq!(found, counts, "{of_rule} | {of_backend}");
    }
}

/// Redirects name the scheme, host and port of the listener, unless the filter says otherwise.
#[test]
fn redirects_lead_to_the_host_of_the_filter() {
    use flatout_site::plan::Variable;
    for (filter, port, expected) in [
        ("", 80, "http://{Host}"),
        ("", 8080, "http://{Host}:8080"),
        ("scheme: https", 80, "https://{Host}"),
        ("scheme: HTTPS", 8080, "https://{Host}"),
        ("scheme: http", 8080, "http://{Host}"),
        ("scheme: https, port: 443", 80, "https://{Host}"),
        ("scheme: https, port: 8443", 80, "https://{Host}:8443"),
        ("port: 80", 8080, "http://{Host}"),
        ("port: 8080", 80, "http://{Host}:8080"),
        ("hostname: b.test", 80, "http://b.test"),
        ("hostname: b.test, port: 8081", 80, "http://b.test:8081"),
        ("hostname: b.test, scheme: https", 8080, "https://b.test"),
    ] {
        let base = gateway(&format!("  - {{name: web, port: {port}, protocol: HTTP}}"));
        let rule = format!("{{filters: [{{type: RequestRedirect, requestRedirect: {{{filter}}}}}]}}");
        let translation = translated(&format!("{base}\n{}", rules("r", 2020, &rule)));
        let route = &translation.site(&format!("10.0.0.1:{port}"), "a.test").routes[0];
        let Action::Redirect { status: 302, to } = &route.action else { panic!("{:?}", route.action) };
        let piece = |piece: &flatout_site::plan::Piece| match piece {
            flatout_site::plan::Piece::Text(text) => text.clone(),
            flatout_site::plan::Piece::Variable(Variable::Host) => "{Host}".to_owned(),
            flatout_site::plan::Piece::Variable(_) => String::new(),
        };
        assert_eq!(to.0.iter().map(piece).collect::<String>(), expected, "{filter} {port}");
    }
}

/// Listeners and routes with host names: which requests a route gets.
#[test]
fn routes_get_the_host_names_that_their_listener_has_too() {
    for (listener, names, requests) in [
        ("", "", &[("a.test", A), ("b.a.test", A), ("test", A)][..]),
        (
            "",
            "a.test",
            &[("a.test", A), ("A.TEST", A), ("a.test:80", A), ("b.a.test", "404"), ("b.test", "404")],
        ),
        ("", "'*.test'", &[("a.test", A), ("b.a.test", A), ("test", "404"), ("a.tests", "404")]),
        ("a.test", "", &[("a.test", A), ("b.test", "404")]),
        ("a.test", "a.test, b.test", &[("a.test", A), ("b.test", "404")]),
        ("a.test", "'*.test'", &[("a.test", A), ("b.test", "404")]),
        ("a.test", "b.test", &[("a.test", "404")]),
        ("'*.test'", "", &[("a.test", A), ("b.a.test", A), ("test", "404")]),
        ("'*.test'", "a.test", &[("a.test", A), ("b.test", "404")]),
        ("'*.test'", "'*.a.test'", &[("b.a.test", A), ("a.test", "404")]),
        ("'*.a.test'", "'*.test'", &[("b.a.test", A), ("b.test", "404"), ("a.test", "404")]),
        ("'*.a.test'", "a.test", &[("a.test", "404")]),
        ("a.test", "'A.Test'", &[("a.test", A)]),
        ("", "'a b', a.test", &[("a.test", A)]),
    ] {
        let hostname = if listener.is_empty() { String::new() } else { format!(", hostname: {listener}") };
        let base = gateway(&format!("  - {{name: web, port: 80, protocol: HTTP{hostname}}}"));
        let names = if names.is_empty() { String::new() } else { format!("hostnames: [{names}]\n") };
        let translation =
            translated(&format!("{base}\n{}", route("r", &format!("{names}rules: [{{{TO_A}}}]"))));
        for (host, expected) in requests {
            assert_eq!(
                translation.response(&format!("http://{host}/")),
                *expected,
                "{host}: {listener} {names}"
            );
        }
        let is_accepted = requests.iter().any(|(_, response)| *response == A);
        let expected = if is_accepted { "True Accepted" } else { "False NoMatchingListenerHostname" };
        assert_eq!(translation.of_route("r", "Accepted"), expected, "{listener} {names}");
    }
}

/// Parents of a route by name, section and port, at a gateway with three listeners and one of another namespace.
#[test]
fn parents_choose_listeners_by_section_and_port() {
    let base = gateway(
        "  - {name: one, port: 80, protocol: HTTP, hostname: one.test}\n  - {name: two, port: 80, protocol: HTTP, hostname: two.test, \
         allowedRoutes: {namespaces: {from: All}}}\n  - {name: three, port: 8080, protocol: HTTP}",
    );
    let names = ["http://one.test/", "http://two.test/", "http://three.test:8080/"];
    for (parents, served, accepted) in [
        ("{name: gw}", [true, true, true], &["True Accepted"][..]),
        ("{name: gw, sectionName: one}", [true, false, false], &["True Accepted"]),
        ("{name: gw, port: 80}", [true, true, false], &["True Accepted"]),
        ("{name: gw, port: 8080}", [false, false, true], &["True Accepted"]),
        ("{name: gw, sectionName: one, port: 80}", [true, false, false], &["True Accepted"]),
        ("{name: gw, sectionName: one, port: 8080}", [false; 3], &["False NoMatchingParent"]),
        ("{name: gw, sectionName: four}", [false; 3], &["False NoMatchingParent"]),
        ("{name: gw, sectionName: ''}", [false; 3], &["False NoMatchingParent"]),
        (
            "{name: gw, sectionName: one}, {name: gw, sectionName: three}",
            [true, false, true],
            &["True Accepted"; 2],
        ),
        (
            "{name: gw, sectionName: one}, {name: gw, sectionName: four}",
            [true, false, false],
            &["True Accepted", "False NoMatchingParent"],
        ),
        ("{name: gw}, {name: gw, port: 80}", [true, true, true], &["True Accepted"; 2]),
        ("{name: other}", [false; 3], &[]),
        ("{name: gw, namespace: default}", [true, true, true], &["True Accepted"]),
        ("{name: gw, namespace: elsewhere}", [false; 3], &[]),
        ("{name: gw, kind: Service, group: ''}", [false; 3], &[]),
        ("{name: gw, kind: Service}", [false; 3], &[]),
        ("{name: gw, group: example.org}", [false; 3], &[]),
        (
            "{name: gw, group: gateway.networking.k8s.io, kind: Gateway}",
            [true, true, true],
            &["True Accepted"],
        ),
    ] {
        let text =
            route("r", &format!("rules: [{{{TO_A}}}]")).replace("[{name: gw}]", &format!("[{parents}]"));
        let translation = translated(&format!("{base}\n{text}"));
        for (url, is_served) in names.iter().zip(served) {
            assert_eq!(translation.response(url), if is_served { A } else { "404" }, "{url} {parents}");
        }
        let update = translation.statuses.iter().find(|it| it.key.name == "r");
        let count = update.map_or(0, |it| it.status["parents"].as_array().unwrap().len());
        assert_eq!(count, accepted.len(), "{parents}");
        for (at, expected) in accepted.iter().enumerate() {
            let pointer = format!("/parents/{at}/conditions");
            assert_eq!(translation.condition("HTTPRoute", "r", &pointer, "Accepted"), *expected, "{parents}");
        }
    }
    // A route of another namespace attaches only where a listener allows it.
    let text = route("r", "rules: [{backendRefs: [{name: far, port: 8080}]}]")
        .replace("metadata: {name: r,", "metadata: {name: r, namespace: elsewhere,")
        .replace("[{name: gw}]", "[{name: gw, namespace: default}]");
    let translation = translated(&format!("{base}\n{text}"));
    for (url, expected) in names.iter().zip(["404", "elsewhere/far:8080", "404"]) {
        assert_eq!(translation.response(url), expected, "{url}");
    }
}

/// References of each kind of route to a Service of another namespace, and grants that fit or do not.
#[test]
fn grants_are_for_kinds_namespaces_and_names() {
    let grant = |group: &str, kind: &str, namespace: &str, to: &str, at: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {{name: g, namespace: {at}}}\n\
             spec: {{from: [{{group: {group}, kind: {kind}, namespace: {namespace}}}], to: [{to}]}}\n"
        )
    };
    let service = "{group: '', kind: Service}";
    let gateway_api = "gateway.networking.k8s.io";
    for kind in ["HTTPRoute", "GRPCRoute"] {
        let other = if kind == "HTTPRoute" { "GRPCRoute" } else { "HTTPRoute" };
        for (grant, is_granted) in [
            (String::new(), false),
            (grant(gateway_api, kind, "default", service, "elsewhere"), true),
            (grant(gateway_api, kind, "default", "{group: '', kind: Service, name: far}", "elsewhere"), true),
            (
                grant(gateway_api, kind, "default", "{group: '', kind: Service, name: near}", "elsewhere"),
                false,
            ),
            (
                grant(
                    gateway_api,
                    kind,
                    "default",
                    "{group: '', kind: Secret}, {group: '', kind: Service}",
                    "elsewhere",
                ),
                true,
            ),
            (grant(gateway_api, kind, "default", "{group: example.org, kind: Service}", "elsewhere"), false),
            (grant(gateway_api, kind, "default", service, "default"), false),
            (grant(gateway_api, kind, "elsewhere", service, "elsewhere"), false),
            (grant(gateway_api, other, "default", service, "elsewhere"), false),
            (grant("networking.k8s.io", kind, "default", service, "elsewhere"), false),
            (grant("''", kind, "default", service, "elsewhere"), false),
            (grant(gateway_api, kind, "'*'", service, "elsewhere"), false),
            (grant(gateway_api, kind, "default", "", "elsewhere"), false),
        ] {
            let far = "hostnames: [a.test]\nrules: [{backendRefs: [{name: far, port: 8080, namespace: elsewhere}]}]";
            let near = format!("hostnames: [b.test]\nrules: [{{{TO_A}}}]");
            let text = route("r", far).replace("HTTPRoute", kind) + &route("near", &near) + &grant;
            let translation = with_base(&text);
            let expected = match (is_granted, kind) {
                (false, _) => "500",
                (true, "GRPCRoute") => "elsewhere/far:8080?h2c",
                (true, _) => "elsewhere/far:8080",
            };
            assert_eq!(translation.response("http://a.test/x.Y/Z"), expected, "{kind} {grant}");
            assert_eq!(translation.response("http://b.test/"), A, "{kind} {grant}");
            let reason = if is_granted { "True ResolvedRefs" } else { "False RefNotPermitted" };
            let found = translation.condition(kind, "r", "/parents/0/conditions", "ResolvedRefs");
            assert_eq!(found, reason, "{kind} {grant}");
        }
    }
}

/// Services and methods of gRPC: which of two rules gets a request, in both orders.
#[test]
fn the_more_specific_method_of_grpc_wins() {
    let h2c = |name: &str| if name == "404" { name.to_owned() } else { format!("{name}?h2c") };
    for (specific, general, requests) in [
        (
            "method: {service: a.B, method: C}",
            "method: {service: a.B}",
            &[("/a.B/C", A), ("/a.B/D", B), ("/a.B/CC", B), ("/a.BB/C", "404")][..],
        ),
        ("method: {service: a.B}", "", &[("/a.B/C", A), ("/a.b/C", B), ("/a.B.C/D", B)]),
        ("method: {method: C}", "", &[("/a.B/C", A), ("/a.B/CC", B), ("/a/B/C", B)]),
        (
            "method: {type: RegularExpression, service: 'a[.].*', method: 'Get.*'}",
            "method: {service: a.B}",
            &[("/a.B/GetX", A), ("/a.B/Set", B), ("/b.B/GetX", "404")],
        ),
        (
            "method: {type: RegularExpression, method: 'C|D'}",
            "",
            &[("/a.B/C", A), ("/a.B/D", A), ("/a.B/CD", B)],
        ),
        ("headers: [{name: v, value: '2'}]", "", &[("/a.B/C v=2", A), ("/a.B/C v=1", B)]),
        (
            "method: {service: a.B, method: C}",
            "headers: [{name: v, value: '2'}]",
            &[("/a.B/C v=2", A), ("/a.B/D v=2", B), ("/a.B/D", "404")],
        ),
        (
            "method: {service: a.B, method: C}, headers: [{name: v, value: '2'}]",
            "method: {service: a.B, method: C}",
            &[("/a.B/C v=2", A), ("/a.B/C", B)],
        ),
    ] {
        let (one, two) = (rule(&format!("{{{specific}}}"), TO_A), rule(&format!("{{{general}}}"), TO_B));
        for both in [format!("{one}, {two}"), format!("{two}, {one}")] {
            let translation = with_base(&rules("r", 2020, &both).replace("HTTPRoute", "GRPCRoute"));
            for (request, expected) in requests {
                let response = translation.response(&format!("POST http://a.test{request}"));
                assert_eq!(response, h2c(expected), "{request}: {specific} before {general}");
            }
        }
    }
    for bad in [
        "method: {type: Glob, service: a}",
        "method: {type: RegularExpression, service: 'a)|(?:b'}",
        "method: {type: RegularExpression, method: '('}",
        "method: {service: 'a//b'}",
        "method: {service: '../x', method: z}",
        "headers: [{name: v, type: RegularExpression, value: '['}]",
    ] {
        let translation = with_base(
            &rules("r", 2020, &rule(&format!("{{{bad}}}"), TO_A)).replace("HTTPRoute", "GRPCRoute"),
        );
        let found = translation.condition("GRPCRoute", "r", "/parents/0/conditions", "Accepted");
        assert_eq!(found, "False UnsupportedValue", "{bad}");
    }
}
