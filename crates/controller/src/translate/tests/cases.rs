//! Rules: matches and their order, filters, backends.

use std::time::Duration;

use flatout_gateway::Host as BackendHost;

use super::*;

const TO_A: &str = "backendRefs: [{name: a, port: 8080}]";

#[test]
fn endpoints_become_servers_of_an_upstream() {
    let translation = with_base(&route("r", &format!("rules:\n- {TO_A}")));
    let servers: Vec<String> =
        translation.upstream("default/a:8080").servers.iter().map(|it| it.address.to_string()).collect();
    assert_eq!(servers, ["10.1.0.1:3000", "10.1.0.2:3000"], "ready ones, in a fixed order");
    assert_eq!(translation.routes("any.example.org").len(), 1);
    assert_eq!(translation.routes("any.example.org")[0].path, PathMatch::prefix("/"));
}

#[test]
fn endpoints_that_end_serve_if_no_other_does() {
    let text =
        BASE.replace("ready: true", "ready: false").replace("conditions: {}}", "conditions: {ready: false}}");
    let translation = translated(&format!("{text}\n---\n{}", route("r", &format!("rules:\n- {TO_A}"))));
    let servers: Vec<String> =
        translation.upstream("default/a:8080").servers.iter().map(|it| it.address.to_string()).collect();
    assert_eq!(servers, ["10.1.0.3:3000"]);
}

#[test]
fn servers_of_changed_services_are_those_of_a_new_translation() {
    let to_b = TO_A.replace("name: a", "name: b");
    let rules = format!(
        "rules:\n- {TO_A}\n- matches: [{{path: {{value: /b}}}}]\n  timeouts: {{request: 2s}}\n  {to_b}"
    );
    let mut objects = objects(&format!("{BASE}\n---\n{}", route("r", &rules)));
    let before = translate(&objects, &settings());
    let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: b-1, labels: \
                 {kubernetes.io/service-name: b}}\nports: [{name: '', port: 4000}]\nendpoints: [{addresses: [10.9.9.9]}]";
    objects.insert(yaml::objects(slice).unwrap().remove(0)).unwrap();
    let services = BTreeSet::from([ObjectKey::new("default", "b")]);
    let changed = servers_of(&objects, &before.backends, &services);
    let after = translate(&objects, &settings());
    let [(at, servers)] = &changed[..] else { panic!("{changed:?}") };
    assert_eq!(after.sites.upstreams[*at].name, "default/b:8080?request=2000ms");
    assert_eq!(*servers, after.sites.upstreams[*at].servers);
    assert_ne!(*servers, before.sites.upstreams[*at].servers);
    assert!(servers_of(&objects, &before.backends, &BTreeSet::new()).is_empty());
}

#[test]
fn rules_with_the_same_service_and_settings_share_an_upstream() {
    let rules = "rules:\n- matches: [{path: {value: /x}}]\n  backendRefs: [{name: a, port: 8080}]\n\
                 - backendRefs: [{name: a, port: 8080}]\n- matches: [{path: {value: /y}}]\n  timeouts: {request: 2s}\n  \
                 backendRefs: [{name: a, port: 8080}]\n- backendRefs: [{name: a, port: 9090}]";
    let translation = with_base(&route("r", rules));
    let mut names: Vec<&str> = translation.sites.upstreams.iter().map(|it| it.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["default/a:8080", "default/a:8080?request=2000ms", "default/a:9090"]);
    let limited = translation.upstream("default/a:8080?request=2000ms");
    assert_eq!(limited.request_time_max, Some(Duration::from_secs(2)));
    assert!(translation.upstream("default/a:9090").servers.is_empty(), "no endpoint has this port");
}

#[test]
fn paths_are_matched_by_type() {
    for (given, expected) in [
        ("{value: /x}", PathMatch::prefix("/x")),
        ("{value: /x/}", PathMatch::prefix("/x")),
        ("{type: PathPrefix, value: /}", PathMatch::prefix("/")),
        ("{type: Exact, value: /x/}", PathMatch::Exact("/x/".to_owned())),
        (
            "{type: RegularExpression, value: '/v[0-9]+/.*'}",
            PathMatch::Regex { pattern: "^(?:/v[0-9]+/.*)$".to_owned(), ignore_case: false },
        ),
        (
            "{type: RegularExpression, value: '(?i)/a|/b'}",
            PathMatch::Regex { pattern: "^(?:(?i)/a|/b)$".to_owned(), ignore_case: false },
        ),
        (
            "{type: RegularExpression, value: '/(?!admin).*'}",
            PathMatch::Regex { pattern: "^/(?!admin).*$".to_owned(), ignore_case: false },
        ),
    ] {
        let rules = format!("rules:\n- matches: [{{path: {given}}}]\n  {TO_A}");
        let translation = with_base(&route("r", &rules));
        assert_eq!(translation.routes("h")[0].path, expected, "{given}");
    }
}

#[test]
fn paths_and_matches_that_no_request_could_have_are_refused_in_the_status() {
    for bad in [
        "path: {value: x}",
        "path: {value: /a//b}",
        "path: {type: Exact, value: /a/../b}",
        "path: {type: Glob, value: /a}",
        "path: {type: RegularExpression, value: '/('}",
        "path: {type: RegularExpression, value: '/(a{1000}){1000}'}",
        "path: {type: RegularExpression, value: '/a)|(?:.*'}",
        "path: {type: RegularExpression, value: '/a(?!b)|/c'}",
        "headers: [{type: RegularExpression, name: a, value: '['}]",
        "headers: [{type: Prefix, name: a, value: b}]",
    ] {
        let rules = format!("rules:\n- matches: [{{{bad}}}]\n  {TO_A}");
        let translation = with_base(&(route("r", &rules) + &route("s", &format!("rules:\n- {TO_A}"))));
        assert_eq!(translation.of_route("r", "Accepted"), "False UnsupportedValue", "{bad}");
        assert_eq!(translation.of_route("s", "Accepted"), "True Accepted", "{bad}");
        assert_eq!(translation.targets("h"), ["default/a:8080"], "{bad}");
    }
}

#[test]
fn a_rule_that_is_not_supported_leaves_the_others() {
    let rules = format!(
        "rules:\n- filters: [{{type: ExtensionRef}}]\n  {TO_A}\n- matches: [{{path: {{value: /x}}}}]\n  {TO_A}"
    );
    let translation = with_base(&route("r", &rules));
    assert_eq!(translation.of_route("r", "Accepted"), "True Accepted");
    assert_eq!(translation.of_route("r", "PartiallyInvalid"), "True UnsupportedValue");
    assert_eq!(translation.routes("h").len(), 1);
}

/// The conditions of routes for the same path, in the order in which they are tried.
fn order(text: &str) -> Vec<Vec<String>> {
    let translation = with_base(text);
    let conditions = |route: &Route| route.when.iter().map(|it| it.source().to_owned()).collect();
    translation.routes("h").iter().map(conditions).collect()
}

#[test]
fn the_most_specific_match_is_tried_first() {
    let rules = format!(
        "rules:\n- {TO_A}\n- matches: [{{headers: [{{name: One, value: '1'}}]}}]\n  {TO_A}\n\
         - matches: [{{queryParams: [{{name: q, value: x}}]}}]\n  {TO_A}\n- matches: [{{method: POST}}]\n  {TO_A}\n\
         - matches: [{{headers: [{{name: one, value: '1'}}, {{name: two, value: '2'}}]}}]\n  {TO_A}"
    );
    assert_eq!(
        order(&route("r", &rules)),
        [
            vec!["method == \"POST\""],
            vec!["header[\"one\"] == \"1\"", "header[\"two\"] == \"2\""],
            vec!["header[\"one\"] == \"1\""],
            vec!["query.matches(\"(^|&)q=\") && arg[\"q\"] == \"x\""],
            vec![],
        ]
    );
}

#[test]
fn values_cannot_leave_their_literal() {
    let rules =
        format!("rules:\n- matches: [{{headers: [{{name: a, value: '\" || true || \"\\'}}]}}]\n  {TO_A}");
    assert_eq!(order(&route("r", &rules)), [["header[\"a\"] == \"\\\" || true || \\\"\\\\\""]]);
}

#[test]
fn only_the_first_match_of_a_name_counts() {
    let rules = format!(
        "rules:\n- matches: [{{headers: [{{name: a, value: '1'}}, {{name: A, value: '2'}}]}}]\n  {TO_A}"
    );
    assert_eq!(order(&route("r", &rules)), [["header[\"a\"] == \"1\""]]);
}

#[test]
fn the_oldest_of_conflicting_routes_wins() {
    let of = |name: &str, time: &str, service: &str| {
        route(name, &format!("rules:\n- backendRefs: [{{name: {service}, port: 8080}}]"))
            .replace("generation: 3", &format!("creationTimestamp: '{time}'"))
    };
    let early = of("z", "2026-01-01T00:00:00Z", "b");
    let late = of("c", "2026-02-01T00:00:00Z", "a");
    let translation = with_base(&(late.clone() + &early));
    assert_eq!(translation.targets("h"), ["default/b:8080", "default/a:8080"]);
    let same = of("z", "2026-02-01T00:00:00Z", "b");
    assert_eq!(with_base(&(late + &same)).targets("h"), ["default/a:8080", "default/b:8080"], "then by name");
}

#[test]
fn backends_share_requests_by_weight() {
    let rules = "rules:\n- backendRefs:\n  - {name: a, port: 8080, weight: 1}\n  - {name: b, port: 8080, weight: 3}\n  \
                 - {name: a, port: 9090, weight: 0}\n  - {name: missing, port: 1, weight: 4}";
    let text = route("r", rules);
    let translation = with_base(&text);
    assert_eq!(translation.targets("h"), ["default/a:8080", "default/b:8080", "500"]);
    assert_eq!(order(&text), [vec!["random < 0.125000000"], vec!["random < 0.500000000"], vec![]]);
    assert_eq!(translation.of_route("r", "ResolvedRefs"), "False BackendNotFound");
}

#[test]
fn rules_without_a_backend_respond_500() {
    for (refs, reason) in [
        ("[]", "True ResolvedRefs"),
        ("[{name: a, port: 8080, weight: 0}]", "True ResolvedRefs"),
        ("[{name: missing, port: 8080}]", "False BackendNotFound"),
        ("[{name: a, port: 1}]", "False BackendNotFound"),
        ("[{name: a}]", "False BackendNotFound"),
        ("[{name: a, port: 8080, kind: Bucket}]", "False InvalidKind"),
        ("[{name: a, port: 8080, group: example.org}]", "False InvalidKind"),
        ("[{name: far, port: 8080, namespace: elsewhere}]", "False RefNotPermitted"),
    ] {
        let translation = with_base(&route("r", &format!("rules:\n- backendRefs: {refs}")));
        assert_eq!(translation.targets("h"), ["500"], "{refs}");
        assert_eq!(translation.of_route("r", "ResolvedRefs"), reason, "{refs}");
        assert_eq!(translation.of_route("r", "Accepted"), "True Accepted", "{refs}");
    }
}

#[test]
fn grants_allow_backends_of_other_namespaces() {
    let rules = "rules:\n- backendRefs: [{name: far, port: 8080, namespace: elsewhere}]";
    let grant = |from: &str, to: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\n\
             metadata: {{name: g, namespace: elsewhere}}\nspec: {{from: [{from}], to: [{to}]}}\n"
        )
    };
    let from = "{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: default}";
    let other = "{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: other}";
    for (from, to, target) in [
        (from, "{group: '', kind: Service}", "elsewhere/far:8080"),
        (from, "{group: '', kind: Service, name: far}", "elsewhere/far:8080"),
        (from, "{group: '', kind: Service, name: near}", "500"),
        (from, "{group: '', kind: Secret}", "500"),
        (other, "{group: '', kind: Service}", "500"),
    ] {
        let translation = with_base(&(route("r", rules) + &grant(from, to)));
        assert_eq!(translation.targets("h"), [target], "{from} {to}");
    }
}

#[test]
fn header_filters_of_rules_and_backends_are_applied() {
    let rules = "rules:\n- filters:\n  - type: RequestHeaderModifier\n    requestHeaderModifier: {set: [{name: X-A, value: $host}], \
                 remove: [X-B]}\n  - type: ResponseHeaderModifier\n    responseHeaderModifier: {add: [{name: X-C, value: c}]}\n  \
                 backendRefs:\n  - name: a\n    port: 8080\n    filters: [{type: RequestHeaderModifier, requestHeaderModifier: \
                 {add: [{name: X-D, value: d}]}}]";
    let translation = with_base(&route("r", rules));
    let rules = &translation.routes("h")[0].rules;
    let names: Vec<&str> = rules.request_fields.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["X-A", "X-B", "X-D"]);
    let FieldChange::Set(template) = &rules.request_fields[0].change else { panic!("not set") };
    assert_eq!(template.0, [flatout_site::plan::Piece::Text("$host".to_owned())], "no variable");
    assert_eq!(rules.response_fields.len(), 1);
}

/// The location of a redirect, with `{}` for parts of the request.
fn location(filter: &str, matched: &str) -> String {
    let rules = format!(
        "rules:\n- matches: [{{path: {{value: {matched}}}}}]\n  filters: [{{type: RequestRedirect, requestRedirect: {filter}}}]"
    );
    let translation = with_base(&route("r", &rules));
    let route = &translation.routes("h")[0];
    let Action::Redirect { status, to } = &route.action else { panic!("{route:?}") };
    let pieces = to.0.iter().map(|piece| match piece {
        flatout_site::plan::Piece::Text(text) => text.clone(),
        flatout_site::plan::Piece::Variable(variable) => format!("{{{variable:?}}}"),
    });
    let rewrites: Vec<String> =
        route.rewrites.iter().map(|it| format!("{:?} -> {:?}", it.from, it.to.0)).collect();
    format!("{status} {} {}", pieces.collect::<String>(), rewrites.join(", ")).trim_end().to_owned()
}

#[test]
fn redirects_keep_unnamed_parts() {
    const REST: &str = "{Path}{QuestionMark}{Query}";
    for (filter, expected) in [
        ("{hostname: example.org}", format!("302 http://example.org{REST}")),
        ("{scheme: https, statusCode: 301}", format!("301 https://{{Host}}{REST}")),
        ("{port: 8443, scheme: https}", format!("302 https://{{Host}}:8443{REST}")),
        ("{port: 443, scheme: https}", format!("302 https://{{Host}}{REST}")),
        ("{port: 8080}", format!("302 http://{{Host}}:8080{REST}")),
        ("{port: 80}", format!("302 http://{{Host}}{REST}")),
    ] {
        assert_eq!(location(filter, "/x"), expected, "{filter}");
    }
    assert_eq!(
        location("{path: {type: ReplacePrefixMatch, replacePrefixMatch: /y/}}", "/x"),
        format!("302 http://{{Host}}{REST} Prefix(\"/x\") -> [Text(\"/y\")]")
    );
}

#[test]
fn rewrites_replace_paths_and_hosts() {
    for (filter, rewrite, host) in [
        (
            "{path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}",
            "Prefix(\"/x\") -> []",
            BackendHost::Kept,
        ),
        (
            "{path: {type: ReplaceFullPath, replaceFullPath: /y}, hostname: h2}",
            "Regex { pattern: \"^.*$\", ignore_case: false } -> [Text(\"/y\")]",
            BackendHost::Set("h2".to_owned()),
        ),
    ] {
        let rules = format!(
            "rules:\n- matches: [{{path: {{value: /x}}}}]\n  filters: [{{type: URLRewrite, urlRewrite: {filter}}}]\n  {TO_A}"
        );
        let translation = with_base(&route("r", &rules));
        let found = &translation.routes("h")[0];
        let Action::Proxy(forward) = &found.action else { panic!("{found:?}") };
        assert_eq!(forward.host, host, "{filter}");
        let of = &found.rewrites[0];
        assert_eq!(format!("{:?} -> {:?}", of.from, of.to.0), rewrite, "{filter}");
    }
}

#[test]
fn filters_that_are_invalid_or_unknown_are_refused() {
    for filter in [
        "{type: RequestMirror}",
        "{type: RequestMirror, requestMirror: {percent: 101, backendRef: {name: a, port: 8080}}}",
        "{type: RequestMirror, requestMirror: {fraction: {numerator: 1, denominator: 0}, backendRef: {name: a, port: 8080}}}",
        "{type: RequestMirror, requestMirror: {percent: 1, fraction: {numerator: 1}, backendRef: {name: a, port: 8080}}}",
        "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: 'not a name', value: x}]}}",
        "{type: ExtensionRef}",
        "{type: URLRewrite}",
        "{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: '/a?b'}}}",
        "{type: URLRewrite, urlRewrite: {path: {type: Odd}}}",
        "{type: RequestRedirect, requestRedirect: {statusCode: 404}}",
    ] {
        let translation = with_base(&route("r", &format!("rules:\n- filters: [{filter}]\n  {TO_A}")));
        assert_eq!(translation.of_route("r", "Accepted"), "False UnsupportedValue", "{filter}");
        assert!(translation.routes("h").is_empty(), "{filter}");
    }
}

#[test]
fn grpc_routes_match_services_and_methods_over_http2() {
    for (matched, path) in [
        ("{method: {service: a.B, method: C}}", PathMatch::Exact("/a.B/C".to_owned())),
        ("{method: {service: a.B}}", PathMatch::prefix("/a.B")),
        (
            "{method: {method: C}}",
            PathMatch::Regex { pattern: "^(?:/[^/]+/C)$".to_owned(), ignore_case: false },
        ),
        ("{}", PathMatch::prefix("/")),
    ] {
        let text = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\nmetadata: {{name: g}}\nspec:\n  \
             parentRefs: [{{name: gw}}]\n  rules: [{{matches: [{matched}], backendRefs: [{{name: b, port: 8080}}]}}]"
        );
        let translation = with_base(&text);
        assert_eq!(translation.routes("h")[0].path, path, "{matched}");
        assert_eq!(translation.targets("h"), ["default/b:8080?h2c"], "{matched}");
    }
}

#[test]
fn every_origin_with_credentials_is_repeated_in_responses() {
    let cors = |text: &str| {
        let spec = format!(
            "rules: [{{filters: [{{type: CORS, cors: {{{text}}}}}], backendRefs: [{{name: a, port: 8080}}]}}]"
        );
        with_base(&route("r", &spec)).routes("h")[0].rules.cors.clone().unwrap()
    };
    use flatout_site::plan::Origins;
    assert_eq!(cors("allowOrigins: ['*']").origins, Origins::Any);
    let all = cors("allowOrigins: ['*'], allowCredentials: true");
    assert!(all.origins == Origins::Echoed && all.credentials);
    let wildcard = cors("allowOrigins: ['https://*.example.org']");
    assert_eq!(wildcard.origins, Origins::These(vec!["https://*.example.org".to_owned()]));
}

#[test]
fn the_shorter_limit_of_a_route_counts() {
    let ms = |it: u64| Some(std::time::Duration::from_millis(it));
    for (timeouts, expected) in [
        ("backendRequest: 500ms", ms(500)),
        ("request: 1s, backendRequest: 500ms", ms(500)),
        ("request: 1s", ms(1000)),
        ("request: 1s, backendRequest: 0s", ms(1000)),
        ("request: 0s, backendRequest: 0s", None),
    ] {
        let spec = format!("rules: [{{timeouts: {{{timeouts}}}, backendRefs: [{{name: a, port: 8080}}]}}]");
        let upstreams = with_base(&route("r", &spec)).sites.upstreams;
        assert_eq!(upstreams[0].request_time_max, expected, "{timeouts}");
    }
}

#[test]
fn mirrors_of_rules_and_backends_get_copies() {
    let mirror = |name: &str, share: &str| {
        format!("{{type: RequestMirror, requestMirror: {{{share}backendRef: {{name: {name}, port: 8080}}}}}}")
    };
    let spec = format!(
        "rules:\n- filters: [{}, {}]\n  backendRefs: [{{name: a, port: 8080, filters: [{}]}}]",
        mirror("b", ""),
        mirror("b", "percent: 25, "),
        mirror("a", "fraction: {numerator: 1, denominator: 1000}, "),
    );
    let translation = with_base(&route("r", &spec));
    let Action::Proxy(forward) = &translation.routes("h")[0].action else { panic!("no proxy") };
    let copies = forward.mirrors.iter().map(|it| {
        format!("{} {}/{}", translation.sites.upstreams[it.upstream].name, it.numerator, it.denominator)
    });
    let copies: Vec<String> = copies.collect();
    assert_eq!(copies, ["default/b:8080 1/1", "default/b:8080 25/100", "default/a:8080 1/1000"]);
    assert_eq!(translation.of_route("r", "ResolvedRefs"), "True ResolvedRefs");
    // One that leads nowhere is reported, and its requests are served.
    let spec = format!("rules:\n- filters: [{}]\n  {TO_A}", mirror("missing", ""));
    let translation = with_base(&route("r", &spec));
    assert_eq!(translation.of_route("r", "ResolvedRefs"), "False BackendNotFound");
    assert_eq!(translation.of_route("r", "Accepted"), "True Accepted");
    assert_eq!(translation.targets("h"), ["default/a:8080"]);
}

#[test]
fn retries_are_settings_of_the_upstream() {
    let spec =
        |retry: &str| format!("rules: [{{retry: {{{retry}}}, backendRefs: [{{name: a, port: 8080}}]}}]");
    let translation = with_base(&route("r", &spec("codes: [503, 500, 503], attempts: 4")));
    let upstream = translation.upstream("default/a:8080?retry=500+503x4");
    assert_eq!((&upstream.retry_on.statuses[..], upstream.retries_max), (&[500, 503][..], 4));
    assert!(upstream.retry_on.error && !upstream.retry_on.non_idempotent, "as without it");
    let translation = with_base(&route("r", &spec("attempts: 0")));
    assert_eq!(translation.upstream("default/a:8080?retry=x0").retries_max, 0);
    for bad in ["codes: [200]", "codes: [600]", "attempts: 17"] {
        let translation = with_base(&route("r", &spec(bad)));
        assert_eq!(translation.of_route("r", "Accepted"), "False UnsupportedValue", "{bad}");
    }
}

#[test]
fn routes_refused_by_the_site_layer_are_not_accepted() {
    let bad =
        "filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: 'a b', value: x}]}}]";
    let spec = format!("rules:\n- {bad}\n  {TO_A}\n- matches: [{{path: {{value: /x}}}}]\n  {TO_A}");
    let translation = with_base(&route("r", &spec));
    assert_eq!(translation.of_route("r", "Accepted"), "True Accepted", "of the other rule");
    assert_eq!(translation.of_route("r", "PartiallyInvalid"), "True UnsupportedValue");
    assert_eq!(translation.routes("h").len(), 1);
}
