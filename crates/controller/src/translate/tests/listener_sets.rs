//! ListenerSets: which a gateway allows, what their listeners serve, and their statuses.

use super::status::{gateway, secret};
use super::*;

const ANY: &str = "rules: [{backendRefs: [{name: a, port: 8080}]}]";
const OWN: &str = "  - {name: own, port: 80, protocol: HTTP, hostname: own.test}";

/// The base, whose gateway allows ListenerSets from these namespaces.
fn allowing(namespaces: &str) -> String {
    let allowed = format!("gatewayClassName: flatout\n  allowedListeners: {{namespaces: {namespaces}}}");
    gateway(OWN).replace("gatewayClassName: flatout", &allowed) + "\n"
}

/// A ListenerSet of the gateway `gw`, made on this day, with these listeners.
fn set(name: &str, namespace: &str, day: u8, listeners: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{name: {name}, namespace: {namespace}, \
         generation: 5, creationTimestamp: '2026-02-0{day}T00:00:00Z'}}\nspec:\n  parentRef: {{name: gw, namespace: default}}\n  \
         listeners: [{listeners}]\n"
    )
}

/// An HTTPRoute at a ListenerSet.
fn at_set(name: &str, parent: &str, spec: &str) -> String {
    route(name, spec).replace("{name: gw}", &format!("{{kind: ListenerSet, name: {parent}}}"))
}

fn of_set(translation: &Translation, name: &str) -> [String; 2] {
    ["Accepted", "Programmed"].map(|it| translation.condition("ListenerSet", name, "/conditions", it))
}

fn of_listener(translation: &Translation, name: &str, at: usize, condition: &str) -> String {
    translation.condition("ListenerSet", name, &format!("/listeners/{at}/conditions"), condition)
}

#[test]
fn a_gateway_allows_sets_by_namespace() {
    let namespace = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: {team: x}}\n";
    let selector = "{from: Selector, selector: {matchLabels: {team: x}}}";
    for (allowed, namespace_of_set, is_allowed) in [
        ("{from: All}", "team", true),
        ("{from: Same}", "team", false),
        ("{from: Same}", "default", true),
        ("{from: None}", "default", false),
        (selector, "team", true),
        (selector, "default", false),
    ] {
        let listener = "{name: l, port: 80, protocol: HTTP, hostname: set.test}";
        let text = allowing(allowed) + namespace + &set("s", namespace_of_set, 1, listener);
        let translation = translated(&text);
        let expected = match is_allowed {
            true => ["True Accepted", "True Programmed"],
            false => ["False NotAllowed"; 2],
        };
        assert_eq!(of_set(&translation, "s"), expected, "{allowed} {namespace_of_set}");
        let count = translation.status("Gateway", "gw")["attachedListenerSets"].clone();
        assert_eq!(count, usize::from(is_allowed), "{allowed} {namespace_of_set}");
        assert_eq!(translation.sites.sites.iter().any(|it| it.name == "set.test:80"), is_allowed);
    }
    let silent = gateway(OWN) + "\n" + &set("s", "default", 1, "{name: l, port: 80, protocol: HTTP}");
    assert_eq!(of_set(&translated(&silent), "s"), ["False NotAllowed"; 2], "by default none are");
}

#[test]
fn routes_attach_to_the_listeners_of_their_parent_only() {
    let listener = "{name: l, port: 80, protocol: HTTP, hostname: set.test}";
    let text = allowing("{from: Same}")
        + &set("s", "default", 1, listener)
        + &route("of-gateway", ANY)
        + &route("wrong-section", ANY).replace("{name: gw}", "{name: gw, sectionName: l}")
        + &at_set("of-set", "s", &ANY.replace("name: a", "name: b"))
        + &at_set("of-none", "missing", ANY);
    let translation = translated(&text);
    assert_eq!(translation.targets("own.test"), ["default/a:8080"]);
    assert_eq!(translation.targets("set.test"), ["default/b:8080"]);
    assert_eq!(translation.of_route("of-set", "Accepted"), "True Accepted");
    assert_eq!(translation.status("HTTPRoute", "of-set")["parents"][0]["parentRef"]["kind"], "ListenerSet");
    assert_eq!(translation.of_route("wrong-section", "Accepted"), "False NoMatchingParent");
    assert!(!translation.statuses.iter().any(|it| it.key.name == "of-none"));
    let status = translation.status("ListenerSet", "s");
    assert_eq!(status["listeners"][0]["attachedRoutes"], 1);
    assert_eq!(status["conditions"][0]["observedGeneration"], 5);
    assert_eq!(translation.status("Gateway", "gw")["listeners"].as_array().map(Vec::len), Some(1));
}

#[test]
fn same_means_the_namespace_of_the_set() {
    let listener = "{name: l, port: 80, protocol: HTTP, hostname: set.test}";
    let in_team = |name: &str| {
        let text = at_set(name, "s", ANY).replace("metadata: {", "metadata: {namespace: team, ");
        text.replace("name: a, port", "name: a, namespace: default, port")
    };
    let beside = at_set("beside", "s", ANY).replace("name: s}", "name: s, namespace: team}");
    let text = allowing("{from: All}") + &set("s", "team", 1, listener) + &in_team("near") + &beside;
    let translation = translated(&text);
    assert_eq!(translation.of_route("near", "Accepted"), "True Accepted");
    assert_eq!(translation.of_route("beside", "Accepted"), "False NotAllowedByListeners");
}

#[test]
fn of_two_listeners_for_the_same_the_gateways_and_the_older_are_served() {
    let one = "{name: one, port: 80, protocol: HTTP, hostname: one.test}";
    let own = "{name: own, port: 80, protocol: HTTP, hostname: own.test}";
    let tcp = "{name: tcp, port: 80, protocol: TCP}";
    let text = allowing("{from: Same}")
        + &set("late", "default", 2, one)
        + &set("early", "default", 1, &format!("{own}, {one}, {tcp}"))
        + &set("odd", "default", 3, "{name: x, port: 82, protocol: HTTP, hostname: '?'}");
    let translation = translated(&text);
    assert_eq!(of_set(&translation, "early"), ["True ListenersNotValid", "True Programmed"]);
    assert_eq!(of_set(&translation, "late"), ["False ListenersNotValid"; 2]);
    assert_eq!(of_set(&translation, "odd"), ["False ListenersNotValid"; 2]);
    for (name, at, reason) in
        [("early", 0, "HostnameConflict"), ("early", 2, "ProtocolConflict"), ("late", 0, "HostnameConflict")]
    {
        for condition in ["Accepted", "Programmed"] {
            assert_eq!(
                of_listener(&translation, name, at, condition),
                format!("False {reason}"),
                "{name} {at}"
            );
        }
        assert_eq!(of_listener(&translation, name, at, "Conflicted"), format!("True {reason}"));
    }
    assert_eq!(of_listener(&translation, "early", 1, "Programmed"), "True Programmed");
    assert_eq!(translation.condition("Gateway", "gw", "/conditions", "Accepted"), "True Accepted");
    assert_eq!(translation.status("Gateway", "gw")["attachedListenerSets"], 1);
}

#[test]
fn grants_for_gateways_are_none_for_sets() {
    let made = rcgen::generate_simple_self_signed(["set.test".to_owned()]).unwrap();
    let secret = secret(&made.cert.pem(), &made.signing_key.serialize_pem())
        .replace("{name: cert}", "{name: cert, namespace: certs}");
    let grant = |kind: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {{name: g, namespace: certs}}\n\
             spec: {{from: [{{group: gateway.networking.k8s.io, kind: {kind}, namespace: default}}], to: [{{group: '', kind: Secret}}]}}\n"
        )
    };
    let listener =
        "{name: l, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert, namespace: certs}]}}";
    for (kind, resolved) in [("Gateway", "False RefNotPermitted"), ("ListenerSet", "True ResolvedRefs")] {
        let text = allowing("{from: Same}") + &secret + &grant(kind) + &set("s", "default", 1, listener);
        let translation = translated(&text);
        assert_eq!(of_listener(&translation, "s", 0, "ResolvedRefs"), resolved, "{kind}");
        let is_served = resolved.starts_with("True");
        assert_eq!(of_set(&translation, "s")[0].starts_with("True"), is_served, "{kind}");
    }
}

#[test]
fn sets_of_a_refused_gateway_and_too_many_listeners_are_refused() {
    let listener = "{name: l, port: 80, protocol: HTTP, hostname: set.test}";
    let refused = allowing("{from: Same}")
        .replace("gatewayClassName: flatout", "gatewayClassName: flatout\n  addresses: [{value: 192.0.2.1}]");
    let translation = translated(&(refused + &set("s", "default", 1, listener)));
    assert_eq!(of_set(&translation, "s"), ["False ParentNotAccepted"; 2]);
    let many: Vec<String> = (0..64)
        .map(|at| format!("{{name: l{at}, port: 80, protocol: HTTP, hostname: h{at}.test}}"))
        .collect();
    let mut text = allowing("{from: Same}");
    for day in 0..17 {
        let unique = many.join(", ").replace(".test", &format!(".s{day}.test"));
        text += &set(&format!("s{day:02}"), "default", 1, &unique);
    }
    let translation = translate(&objects(&text), &settings());
    assert_eq!(of_set(&translation, "s15"), ["True Accepted", "True Programmed"]);
    assert_eq!(of_set(&translation, "s16"), ["False NotAllowed"; 2], "1,088 listeners");
}
