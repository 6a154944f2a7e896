//! Policies beside each other and beside all kinds of routes: what becomes of requests.

use super::ingresses::CLASS;
use super::policies::{CA, authority, config_map, policy};
use super::route_policies::{cache, limit};
use super::status::gateway;
use super::*;

const TO_A: &str = "backendRefs: [{name: a, port: 8080}]";

/// What a route of some kind makes of requests for the service `a`: the upstream without its settings but `tls`, or the status.
fn reached(translation: &Translation, kind: &str) -> String {
    let shown = |name: &str| match name.split_once('?') {
        Some((name, settings)) if settings.split(',').any(|it| it == "tls") => format!("{name} tls"),
        Some((name, _)) => name.to_owned(),
        None => name.to_owned(),
    };
    match kind {
        "passthrough" | "terminate" => {
            let site = translation.site("10.0.0.1:443", "a.test");
            let share = site.tls_passthrough.as_ref().unwrap().shares.first();
            let upstream = share.and_then(|it| it.upstream);
            upstream.map_or("refused".to_owned(), |at| shown(&translation.sites.upstreams[at].name))
        }
        _ => shown(&translation.response("http://a.test/x.Y/Z")),
    }
}

/// A BackendTLSPolicy holds for each kind of route that leads to its service; one that is invalid closes the service.
#[test]
fn servers_with_a_policy_are_asked_by_tls_from_every_kind_of_route() {
    let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    let secret = super::status::secret(&made.cert.pem(), &made.signing_key.serialize_pem());
    let listeners = |tls: &str| {
        gateway(&format!(
            "  - {{name: web, port: 80, protocol: HTTP}}\n  - {{name: tls, port: 443, protocol: TLS, hostname: a.test, tls: {{{tls}}}}}"
        ))
    };
    let rules = format!("hostnames: [a.test]\nrules: [{{{TO_A}}}]");
    let ingress = |annotations: &str| {
        format!(
            "{CLASS}---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: i, annotations: {{{annotations}}}}}\nspec: \
             {{ingressClassName: flatout, rules: [{{host: a.test, http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: a, \
             port: {{number: 8080}}}}}}}}]}}}}]}}\n"
        )
    };
    let none = "caCertificateRefs: [{group: \"\", kind: ConfigMap, name: none}]";
    let for_b = policy("p", 1, "", CA).replace("name: a,", "name: b,").replace("name: a}", "name: b}");
    let (a, tls) = ("default/a:8080", "default/a:8080 tls");
    for (policies, http, passed, ended) in [
        (String::new(), a, a, a),
        (policy("p", 1, "", CA), tls, a, "refused"),
        (policy("p", 1, ", sectionName: web", CA), tls, a, "refused"),
        (policy("p", 1, ", sectionName: other", CA), a, a, a),
        (policy("p", 1, ", sectionName: missing", CA), a, a, a),
        (for_b, a, a, a),
        (policy("p", 1, "", none), "500", a, "refused"),
        (policy("p", 1, "", CA).replace("p.example.org", "'a b'"), "500", a, "refused"),
        (policy("old", 1, "", none) + &policy("new", 2, "", CA), "500", a, "refused"),
        (policy("old", 1, "", CA) + &policy("new", 2, "", none), tls, a, "refused"),
        (policy("all", 1, "", none) + &policy("port", 2, ", sectionName: web", CA), tls, a, "refused"),
        (policy("all", 1, "", CA) + &policy("port", 2, ", sectionName: web", none), "500", a, "refused"),
        (policy("p", 1, "", CA).replace("kind: Service", "kind: Other"), a, a, a),
        (
            policy("p", 1, "", CA)
                .replace("metadata: {name: p,", "metadata: {name: p, namespace: elsewhere,"),
            a,
            a,
            a,
        ),
    ] {
        for (kind, object, expected) in [
            ("HTTPRoute", route("r", &rules), http),
            ("GRPCRoute", route("r", &rules).replace("HTTPRoute", "GRPCRoute"), http),
            ("passthrough", route("r", &rules).replace("HTTPRoute", "TLSRoute"), passed),
            ("terminate", route("r", &rules).replace("HTTPRoute", "TLSRoute"), ended),
            ("Ingress", ingress(""), http),
            (
                "Ingress",
                ingress("nginx.ingress.kubernetes.io/backend-protocol: HTTPS"),
                if http == a { tls } else { http },
            ),
        ] {
            let ending = match kind {
                "passthrough" => "mode: Passthrough",
                _ => "certificateRefs: [{name: cert}]",
            };
            let base = listeners(ending);
            let base = if kind == "Ingress" {
                base.replace("gatewayClassName: flatout", "gatewayClassName: none")
            } else {
                base
            };
            let text = format!("{base}\n{secret}{}{policies}{object}", config_map(&authority()));
            assert_eq!(reached(&translated(&text), kind), expected, "{kind}: {policies}");
        }
    }
}

/// Policies of routes: the oldest of a kind counts, each kind for itself, for its own namespace and kind of route.
#[test]
fn policies_of_routes_are_chosen_by_age_kind_and_target() {
    let dated = |text: String, day: u8| {
        text.replace(
            "generation: 6",
            &format!("generation: 6, creationTimestamp: '2026-01-0{day}T00:00:00Z'"),
        )
    };
    let limited =
        |name: &str, day: u8, bytes: u32| dated(limit(name, "r", &format!("bodyBytes: {bytes}")), day);
    let cached = |name: &str, day: u8, spec: &str| dated(cache(name, "r", spec), day);
    let a = "default/a:8080";
    for (policies, response, limit, is_cached) in [
        (String::new(), a, None, false),
        (limited("one", 1, 1), a, Some(1), false),
        (limited("two", 2, 2) + &limited("one", 1, 1), a, Some(1), false),
        (limited("b", 1, 2) + &limited("a", 1, 1), a, Some(1), false),
        (cached("c", 1, "validFor: 1m") + &limited("l", 2, 1), a, Some(1), true),
        (cached("new", 2, "validFor: soon") + &cached("old", 1, "validFor: 1m"), a, None, true),
        (cached("new", 2, "validFor: 1m") + &cached("old", 1, "validFor: soon"), a, None, false),
        (
            dated(super::route_policies::limit("bad", "r", "requests: {count: 0}"), 1) + &limited("l", 2, 1),
            "500",
            None,
            false,
        ),
        (
            limited("l", 1, 1) + &dated(super::route_policies::limit("bad", "r", "requests: {count: 0}"), 2),
            a,
            Some(1),
            false,
        ),
        (limited("l", 1, 1).replace("kind: HTTPRoute", "kind: GRPCRoute"), a, None, false),
        (limited("l", 1, 1).replace("name: r}", "name: s}"), a, None, false),
        (
            limited("l", 1, 1).replace("metadata: {name: l,", "metadata: {name: l, namespace: elsewhere,"),
            a,
            None,
            false,
        ),
        (limited("l", 1, 1).replace("group: gateway.networking.k8s.io", "group: ''"), a, None, false),
        (limited("l", 1, 0), a, Some(0), false),
    ] {
        let rules = format!("hostnames: [a.test]\nrules: [{{{TO_A}}}]");
        let translation = with_base(&(route("r", &rules) + &policies));
        assert_eq!(translation.response("http://a.test/"), response, "{policies}");
        let found = translation
            .routes("a.test")
            .first()
            .map(|it| (it.rules.body.bytes_max, it.rules.cache.is_some()));
        assert_eq!(found.unwrap_or_default(), (limit, is_cached), "{policies}");
        let is_accepted = translation.of_route("r", "Accepted").starts_with("True");
        assert_eq!(is_accepted, response == a, "{policies}");
    }
}

/// Listeners of sets beside those of their gateway and of each other: which route gets a request.
#[test]
fn listeners_of_sets_have_the_names_that_older_ones_leave() {
    let base = gateway("  - {name: own, port: 80, protocol: HTTP, hostname: own.test}").replace(
        "gatewayClassName: flatout",
        "gatewayClassName: flatout\n  allowedListeners: {namespaces: {from: All}}",
    );
    let set = |name: &str, day: u8, listener: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{name: {name}, creationTimestamp: '2026-02-0{day}T00:00:00Z'}}\n\
             spec: {{parentRef: {{name: gw}}, listeners: [{{name: l, port: 80, protocol: HTTP{listener}}}]}}\n"
        )
    };
    let at = |name: &str, parent: &str, service: &str| {
        route(name, &format!("rules: [{{backendRefs: [{{name: {service}, port: 8080}}]}}]"))
            .replace("{name: gw}", parent)
    };
    let (a, b) = ("default/a:8080", "default/b:8080");
    let (of_gateway, of_one) = (at("g", "{name: gw}", "a"), at("o", "{kind: ListenerSet, name: one}", "b"));
    let of_two = at("t", "{kind: ListenerSet, name: two}", "a");
    for (objects, cases) in [
        (
            set("one", 1, ", hostname: set.test"),
            &[("http://set.test/", b), ("http://own.test/", a), ("http://x.test/", "404")][..],
        ),
        (set("one", 1, ""), &[("http://set.test/", b), ("http://own.test/", a)]),
        (set("one", 1, ", hostname: own.test"), &[("http://own.test/", a)]),
        (set("one", 1, ", hostname: '*.test'"), &[("http://own.test/", a), ("http://x.test/", b)]),
        (
            set("one", 1, ", hostname: set.test") + &set("two", 2, ", hostname: set.test"),
            &[("http://set.test/", b)],
        ),
        (
            set("one", 2, ", hostname: set.test") + &set("two", 1, ", hostname: set.test"),
            &[("http://set.test/", a)],
        ),
        (
            set("one", 1, ", hostname: '*.test'") + &set("two", 2, ", hostname: x.test"),
            &[("http://x.test/", a), ("http://y.test/", b)],
        ),
        (
            set("one", 1, "").replace("port: 80", "port: 81"),
            &[("http://set.test:81/", b), ("http://own.test/", a)],
        ),
        (
            set("one", 1, "").replace("protocol: HTTP", "protocol: HTTPS"),
            &[("http://own.test/", a), ("http://x.test/", "404")],
        ),
        (
            set("one", 1, "").replace("name: gw", "name: other"),
            &[("http://own.test/", a), ("http://x.test/", "404")],
        ),
        (
            set("one", 1, ", allowedRoutes: {namespaces: {from: None}}"),
            &[("http://own.test/", a), ("http://x.test/", "404")],
        ),
        (
            set("one", 1, ", allowedRoutes: {kinds: [{kind: GRPCRoute}]}"),
            &[("http://own.test/", a), ("http://x.test/", "404")],
        ),
    ] {
        let translation = translated(&format!("{base}\n{of_gateway}{of_one}{of_two}{objects}"));
        check_responses(&translation, cases, &objects);
    }
}
