//! CachePolicies and LimitPolicies: what their routes get, and their statuses.

use std::time::Duration;

use super::*;

const TO_A: &str = "rules: [{backendRefs: [{name: a, port: 8080}]}]";

fn policy(kind: &str, name: &str, route: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: flatout.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}, generation: 6}}\n\
         spec: {{targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: {route}}}], {spec}}}\n"
    )
}

pub(super) fn cache(name: &str, route: &str, spec: &str) -> String {
    policy("CachePolicy", name, route, spec)
}

pub(super) fn limit(name: &str, route: &str, spec: &str) -> String {
    policy("LimitPolicy", name, route, spec)
}

fn accepted(translation: &Translation, kind: &str, name: &str) -> String {
    translation.condition(kind, name, "/ancestors/0/conditions", "Accepted")
}

#[test]
fn routes_of_a_cache_policy_are_cached_each_for_itself() {
    let rules = "rules: [{backendRefs: [{name: a, port: 8080}, {name: b, port: 8080}]}, {matches: [{headers: [{name: x, value: v}]}], \
                 backendRefs: [{name: b, port: 8080}]}, {filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}]";
    let text = route("r", rules)
        + &cache("c", "r", "validFor: 1m, staleFor: 1h, updatingFor: 10s")
        + &route("s", TO_A);
    let translation = with_base(&text);
    let routes = translation.routes("h");
    let cached: Vec<_> = routes.iter().filter_map(|it| it.rules.cache.as_ref()).collect();
    assert_eq!(cached.len(), 3, "neither the redirect nor the other route");
    let rules = &cached[0].rules;
    assert_eq!(rules.valid[0].time, Duration::from_secs(60));
    assert_eq!((rules.stale_time, rules.updating_time), (Duration::from_secs(3600), Duration::from_secs(10)));
    assert!(rules.is_replaced(503) && !rules.is_replaced(404));
    let mut keys: Vec<String> = cached.iter().map(|it| format!("{:?}", it.key)).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 3, "the same URL has other responses at other backends");
    assert_eq!(accepted(&translation, "CachePolicy", "c"), "True Accepted");
    let ancestor = &translation.status("CachePolicy", "c")["ancestors"][0];
    assert_eq!(
        (&ancestor["ancestorRef"]["name"], &ancestor["conditions"][0]["observedGeneration"]),
        (&"gw".into(), &6.into())
    );
}

#[test]
fn routes_of_a_limit_policy_have_its_limits() {
    let text = route("r", TO_A)
        + &limit("l", "r", "requests: {count: 100, window: 10s, burst: 20}, bodyBytes: 1000");
    let translation = with_base(&text);
    let rules = &translation.routes("h")[0].rules;
    assert_eq!((rules.rates[0].rate, rules.rates[0].burst, rules.rates[0].status), (0, 20, 429));
    assert_eq!(rules.body.bytes_max, Some(1000));
    let rate = &translation.sites.rates[0];
    assert_eq!((rate.requests, rate.window), (100, Duration::from_secs(10)));
    assert_eq!(accepted(&translation, "LimitPolicy", "l"), "True Accepted");
}

#[test]
fn an_invalid_limit_closes_its_route_and_an_invalid_cache_does_not() {
    for spec in [
        "x: 1",
        "requests: {count: 0}",
        "requests: {count: 1, window: '5'}",
        "requests: {count: 1}, targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: r, sectionName: s}]",
    ] {
        let text = match spec.contains("targetRefs") {
            true => limit("l", "r", spec).replacen(
                "targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: r}], ",
                "",
                1,
            ),
            false => limit("l", "r", spec),
        };
        let translation =
            with_base(&(route("r", TO_A) + &text + &route("s", &TO_A.replace("name: a", "name: b"))));
        assert_eq!(accepted(&translation, "LimitPolicy", "l"), "False Invalid", "{spec}");
        assert_eq!(translation.of_route("r", "Accepted"), "False UnsupportedValue", "{spec}");
        assert_eq!(translation.targets("h"), ["500", "default/b:8080"], "{spec}");
    }
    let translation = with_base(&(route("r", TO_A) + &cache("c", "r", "validFor: '5'")));
    assert_eq!(accepted(&translation, "CachePolicy", "c"), "False Invalid");
    assert_eq!(translation.targets("h"), ["default/a:8080"]);
    assert!(translation.routes("h")[0].rules.cache.is_none());
}

#[test]
fn of_two_policies_for_one_route_the_older_counts() {
    let old = limit("old", "r", "bodyBytes: 1")
        .replace("generation: 6", "creationTimestamp: '2026-01-01T00:00:00Z'");
    let new = limit("new", "r", "bodyBytes: 2")
        .replace("generation: 6", "creationTimestamp: '2026-01-02T00:00:00Z'");
    let grpc = limit("grpc", "g", "bodyBytes: 3").replace("kind: HTTPRoute", "kind: GRPCRoute");
    let at = |host: &str| format!("hostnames: [{host}]\n{TO_A}");
    let of_grpc = route("g", &at("g")).replace("HTTPRoute", "GRPCRoute");
    let translation = with_base(&(new + &old + &grpc + &route("r", &at("h")) + &of_grpc));
    let limit = |host: &str| translation.routes(host)[0].rules.body.bytes_max;
    assert_eq!((limit("h"), limit("g")), (Some(1), Some(3)));
    assert_eq!(accepted(&translation, "LimitPolicy", "old"), "True Accepted");
    let unused = translation.statuses.iter().find(|it| it.key.name == "new");
    assert!(unused.is_none(), "it concerns no route");
}
