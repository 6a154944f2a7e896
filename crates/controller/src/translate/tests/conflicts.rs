//! Objects that want the same requests: the oldest gets them.

use super::*;

const TO_A: &str = "backendRefs: [{name: a, port: 8080}]";
const TO_B: &str = "backendRefs: [{name: b, port: 8080}]";

/// A route of a year. The matches are in YAML, without brackets.
pub(super) fn dated(name: &str, year: u16, spec: &str) -> String {
    route(name, spec)
        .replace("generation: 3", &format!("generation: 3, creationTimestamp: '{year}-01-01T00:00:00Z'"))
}

fn rules(matches: &str, backends: &str) -> String {
    format!("hostnames: [a.test]\nrules: [{{matches: [{matches}], {backends}}}]")
}

fn message(translation: &Translation, kind: &str, name: &str, condition: &str) -> String {
    let conditions =
        translation.status(kind, name).pointer("/parents/0/conditions").and_then(Value::as_array);
    let found = conditions.unwrap().iter().find(|it| it["type"] == condition);
    found.map(|it| it["message"].as_str().unwrap().to_owned()).unwrap_or_default()
}

#[test]
fn a_route_whose_requests_an_older_one_gets_has_a_condition() {
    let path = "{path: {type: Exact, value: /x}}";
    let both = |new: &str| dated("new", 2026, &rules(new, TO_B)) + &dated("old", 2020, &rules(path, TO_A));
    let conflict = "flatout.dev/Conflicted";
    let translation = with_base(&both(path));
    assert_eq!(translation.targets("a.test"), ["default/a:8080", "default/b:8080"]);
    assert_eq!(translation.of_route("new", conflict), "True OlderObject");
    assert_eq!(translation.of_route("new", "Accepted"), "True Accepted");
    assert_eq!(translation.of_route("old", conflict), "none");
    let why = message(&translation, "HTTPRoute", "new", conflict);
    assert_eq!(why, "an older object has the same requests: rule 0, match 0: HTTPRoute default/old");
    for different in [
        "{path: {type: PathPrefix, value: /x}}",
        "{path: {type: Exact, value: /y}}",
        "{path: {type: Exact, value: /x}, method: GET}",
        "{path: {type: Exact, value: /x}, headers: [{name: a, value: b}]}",
    ] {
        assert_eq!(with_base(&both(different)).of_route("new", conflict), "none", "{different}");
    }
    // Of two matches one is new; the order of fields does not matter; shares of several backends are one route.
    let fields = |one: &str, other: &str| {
        format!("{{headers: [{{name: {one}, value: v}}, {{name: {other}, value: v}}]}}")
    };
    let shared = "backendRefs: [{name: a, port: 8080, weight: 1}, {name: b, port: 8080, weight: 1}]";
    let old = dated("old", 2020, &rules(&fields("one", "two"), shared));
    let new = dated("new", 2026, &rules(&format!("{}, {path}", fields("two", "one")), shared));
    let translation = with_base(&(new + &old));
    assert_eq!(translation.of_route("new", conflict), "True OlderObject");
    assert!(
        message(&translation, "HTTPRoute", "new", conflict)
            .ends_with("rule 0, match 0: HTTPRoute default/old")
    );
    assert_eq!(translation.of_route("old", conflict), "none");
}

#[test]
fn rules_of_one_route_and_other_hosts_are_no_conflict() {
    let twice = "hostnames: [a.test]\nrules: [{backendRefs: [{name: a, port: 8080}]}, {backendRefs: [{name: b, port: 8080}]}]";
    let other = dated("other", 2026, &format!("hostnames: [b.test]\nrules: [{{{TO_B}}}]"));
    let translation = with_base(&(dated("twice", 2020, twice) + &other));
    for name in ["twice", "other"] {
        assert_eq!(translation.of_route(name, "flatout.dev/Conflicted"), "none", "{name}");
    }
}

#[test]
fn an_http_route_and_a_grpc_route_do_not_share_a_host_name() {
    let of = |kind: &str, name: &str, year: u16, host: &str| {
        let rule = if kind == "HTTPRoute" { TO_A } else { TO_B };
        dated(name, year, &format!("hostnames: ['{host}']\nrules: [{{{rule}}}]")).replace("HTTPRoute", kind)
    };
    let accepted = |translation: &Translation, kind: &str, name: &str| {
        translation.condition(kind, name, "/parents/0/conditions", "Accepted")
    };
    for (http, grpc, hosts, expected) in [
        (2020, 2026, ("a.test", "a.test"), ["True Accepted", "False Conflicted"]),
        (2026, 2020, ("a.test", "a.test"), ["False Conflicted", "True Accepted"]),
        (2026, 2020, ("a.test", "*.test"), ["False Conflicted", "True Accepted"]),
        (2026, 2020, ("a.test", "b.test"), ["True Accepted", "True Accepted"]),
    ] {
        let text = of("HTTPRoute", "h", http, hosts.0) + &of("GRPCRoute", "g", grpc, hosts.1);
        let translation = with_base(&text);
        let found = [accepted(&translation, "HTTPRoute", "h"), accepted(&translation, "GRPCRoute", "g")];
        assert_eq!(found, expected, "{http} {grpc} {hosts:?}");
        let attached = translation.status("Gateway", "gw").pointer("/listeners/0/attachedRoutes").unwrap();
        assert_eq!(*attached, expected.iter().filter(|it| it.starts_with("True")).count());
        if expected[0].starts_with("False") {
            assert_ne!(translation.targets("a.test"), ["default/a:8080"], "{hosts:?}");
            assert!(
                message(&translation, "HTTPRoute", "h", "Accepted")
                    .contains("the older GRPCRoute default/g has")
            );
        }
    }
    // A third one conflicts with what is served only.
    let text = of("HTTPRoute", "h", 2020, "a.test")
        + &of("GRPCRoute", "g", 2021, "*.test")
        + &of("HTTPRoute", "i", 2022, "b.test");
    let translation = with_base(&text);
    assert_eq!(accepted(&translation, "GRPCRoute", "g"), "False Conflicted");
    assert_eq!(accepted(&translation, "HTTPRoute", "i"), "True Accepted");
}
