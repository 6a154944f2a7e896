//! Listeners, host names, attachment, and the statuses of objects.

use rcgen::generate_simple_self_signed;

use super::*;

const ANY: &str = "rules: [{backendRefs: [{name: a, port: 8080}]}]";

/// The base, whose gateway has these listeners.
pub(super) fn gateway(listeners: &str) -> String {
    let base = BASE.replace("  - {name: http, port: 80, protocol: HTTP}", listeners);
    assert_ne!(base, BASE);
    base
}

#[test]
fn classes_of_this_controller_are_accepted() {
    let other = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: other}\n\
                 spec: {controllerName: example.org/other}\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\n\
                 metadata: {name: odd}\nspec: {controllerName: flatout.dev/controller, parametersRef: {name: x}}";
    let translation = with_base(other);
    let accepted = |name: &str| translation.condition("GatewayClass", name, "/conditions", "Accepted");
    assert_eq!(accepted("flatout"), "True Accepted");
    assert_eq!(accepted("odd"), "False InvalidParameters");
    assert!(!translation.statuses.iter().any(|it| it.key.name == "other"));
    let mut sorted = FEATURES.to_vec();
    sorted.sort_unstable();
    assert_eq!(sorted, FEATURES, "in the order that the standard demands");
}

#[test]
fn readiness_is_a_page_beside_the_sites() {
    let health = Some("10.0.0.1:8081".parse().unwrap());
    let settings = Settings { health, ..settings() };
    let translation = translate(&objects(&format!("{BASE}\n---\n{}", route("r", ANY))), &settings);
    assert!(translation.with_readiness("ok\n").is_none(), "it has this text");
    let changed = translation.with_readiness("ok: the plan before stays in use\n").unwrap();
    assert_eq!(changed.response("http://a.test:8081/readyz"), "200", "what is served works");
    assert_eq!(changed.response("http://a.test/"), "default/a:8080");
    let differ: Vec<bool> =
        changed.sites.sites.iter().zip(&translation.sites.sites).map(|(one, other)| one != other).collect();
    assert_eq!(differ.iter().filter(|it| **it).count(), 1, "only the site of that page");
    assert!(changed.with_readiness("ok\n").unwrap().is_alike(&translation));
}

#[test]
fn gateways_of_other_classes_are_left_alone() {
    let text = BASE.replace("gatewayClassName: flatout", "gatewayClassName: other");
    let translation = translated(&format!("{text}\n---\n{}", route("r", ANY)));
    assert_eq!(translation.statuses.len(), 1, "only that of the class");
    assert!(translation.sites.sites.is_empty());
}

#[test]
fn a_gateway_counts_its_routes_and_reports_its_address() {
    let translation = with_base(&(route("r", ANY) + &route("s", ANY)));
    let status = translation.status("Gateway", "gw");
    assert_eq!(status["addresses"][0]["value"], "10.0.0.1");
    assert_eq!(status["listeners"][0]["attachedRoutes"], 2);
    assert_eq!(status["conditions"][0]["observedGeneration"], 2);
    for condition in ["Accepted", "Programmed"] {
        let expected = format!("True {condition}");
        assert_eq!(translation.condition("Gateway", "gw", "/conditions", condition), expected);
        assert_eq!(translation.condition("Gateway", "gw", "/listeners/0/conditions", condition), expected);
    }
    assert_eq!(
        translation.condition("Gateway", "gw", "/listeners/0/conditions", "Conflicted"),
        "False NoConflicts"
    );
    assert_eq!(translation.status("HTTPRoute", "r")["parents"][0]["conditions"][0]["observedGeneration"], 3);
}

#[test]
fn an_address_stays_until_the_status_has_it() {
    let gateway = |name: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}}}\n\
             spec: {{gatewayClassName: flatout, listeners: [{{name: http, port: 80, protocol: HTTP}}]}}\n"
        )
    };
    let mut settings = settings();
    let mut address = |text: &str| {
        let translation = translate(&objects(text), &settings);
        settings.assigned = translation.assigned.clone();
        translation.status("Gateway", "new")["addresses"][0]["value"].clone()
    };
    let (class, _) = BASE.split_once("---").unwrap();
    assert_eq!(address(&format!("{class}{}{}", gateway("first"), gateway("new"))), "10.0.0.2");
    assert_eq!(address(&format!("{class}{}", gateway("new"))), "10.0.0.2", "although another one is free");
}

#[test]
fn a_gateway_without_an_accepted_listener_is_not_accepted() {
    let translation = translated(&gateway("  - {name: odd, port: 1111, protocol: INVALID}"));
    assert_eq!(translation.condition("Gateway", "gw", "/conditions", "Accepted"), "False ListenersNotValid");
    assert_eq!(translation.condition("Gateway", "gw", "/conditions", "Programmed"), "False Invalid");
    let some = "  - {name: odd, port: 1111, protocol: INVALID}\n  - {name: http, port: 80, protocol: HTTP}";
    let translation = translated(&gateway(some));
    assert_eq!(translation.condition("Gateway", "gw", "/conditions", "Accepted"), "True ListenersNotValid");
}

#[test]
fn gateways_get_addresses_by_age_and_keep_them() {
    let text = |status: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: early, creationTimestamp: '2020-01-01T00:00:00Z'}}\n\
             spec: {{gatewayClassName: flatout, listeners: [{{name: l, port: 80, protocol: HTTP}}]}}\n{status}"
        )
    };
    let address = |translation: &Translation, name: &str| {
        translation.status("Gateway", name)["addresses"][0]["value"].as_str().unwrap().to_owned()
    };
    let first = with_base(&text(""));
    assert_eq!((address(&first, "early"), address(&first, "gw")), ("10.0.0.1".into(), "10.0.0.2".into()));
    let kept = with_base(&text("status: {addresses: [{value: 10.0.0.2}]}"));
    assert_eq!((address(&kept, "early"), address(&kept, "gw")), ("10.0.0.2".into(), "10.0.0.1".into()));
}

#[test]
fn addresses_of_others_are_refused() {
    for (asked, name, expected) in [
        ("{type: IPAddress, value: 10.0.0.2}", "Programmed", "True Programmed"),
        ("{type: IPAddress, value: 192.0.2.1}", "Programmed", "False AddressNotUsable"),
        ("{value: 192.0.2.1}, {value: 10.0.0.2}", "Programmed", "False AddressNotUsable"),
        ("{value: 192.0.2.1}, {value: 10.0.0.2}", "Accepted", "True Accepted"),
        ("{value: 10.0.0.2}, {value: ''}", "Programmed", "True Programmed"),
        ("{type: Hostname, value: example.org}", "Accepted", "False UnsupportedAddress"),
        ("{value: 10.0.0.2}, {type: Hostname, value: example.org}", "Accepted", "False UnsupportedAddress"),
    ] {
        let text = BASE.replace(
            "gatewayClassName: flatout",
            &format!("gatewayClassName: flatout\n  addresses: [{asked}]"),
        );
        let translation = translated(&text);
        assert_eq!(translation.condition("Gateway", "gw", "/conditions", name), expected, "{asked}");
    }
}

#[test]
fn the_more_specific_listener_has_its_names_for_itself() {
    let text = gateway(
        "  - {name: all, port: 80, protocol: HTTP}\n  - {name: wild, port: 80, protocol: HTTP, hostname: '*.example.org'}\n  \
         - {name: one, port: 80, protocol: HTTP, hostname: one.example.org}",
    );
    let at = |name: &str, section: &str, service: &str| {
        route(name, &format!("rules: [{{backendRefs: [{{name: {service}, port: 8080}}]}}]"))
            .replace("{name: gw}", &format!("{{name: gw, sectionName: {section}}}"))
    };
    let translation = translated(&(text + &at("r", "all", "a") + &at("s", "wild", "b")));
    assert_eq!(translation.targets("example.net"), ["default/a:8080"]);
    assert_eq!(translation.targets("x.example.org"), ["default/b:8080"]);
    assert_eq!(translation.targets("one.example.org"), [""; 0], "no route is at this listener");
}

#[test]
fn host_names_of_routes_are_those_in_common() {
    let text = gateway("  - {name: wild, port: 80, protocol: HTTP, hostname: '*.example.org'}");
    let hosts = "hostnames: [a.example.org, example.net, '*.b.example.org']";
    let translation = translated(&(text.clone() + &route("r", &format!("{hosts}\n{ANY}"))));
    assert_eq!(translation.targets("a.example.org").len(), 1);
    assert_eq!(translation.targets("x.b.example.org").len(), 1);
    assert_eq!(translation.targets("c.example.org").len(), 0);
    assert_eq!(translation.targets("example.net").len(), 0, "404 of the rest");
    let none = translated(&(text + &route("r", &format!("hostnames: [example.net]\n{ANY}"))));
    assert_eq!(none.of_route("r", "Accepted"), "False NoMatchingListenerHostname");
}

#[test]
fn routes_attach_only_where_they_are_allowed() {
    let namespaces = "apiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {team: x}}\n";
    for (listener, parent, expected) in [
        ("", "{name: gw}", "True Accepted"),
        ("", "{name: gw, sectionName: l}", "True Accepted"),
        ("", "{name: gw, port: 80}", "True Accepted"),
        ("", "{name: gw, port: 81}", "False NoMatchingParent"),
        ("", "{name: gw, sectionName: m}", "False NoMatchingParent"),
        (", allowedRoutes: {namespaces: {from: None}}", "{name: gw}", "False NotAllowedByListeners"),
        (", allowedRoutes: {kinds: [{kind: GRPCRoute}]}", "{name: gw}", "False NotAllowedByListeners"),
        (
            ", allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: x}}}}",
            "{name: gw}",
            "True Accepted",
        ),
        (
            ", allowedRoutes: {namespaces: {from: Selector, selector: {matchExpressions: [{key: team, operator: NotIn, values: [x]}]}}}",
            "{name: gw}",
            "False NotAllowedByListeners",
        ),
    ] {
        let text = gateway(&format!("  - {{name: l, port: 80, protocol: HTTP{listener}}}"));
        let text = format!("{text}\n---\n{namespaces}{}", route("r", ANY).replace("{name: gw}", parent));
        assert_eq!(translated(&text).of_route("r", "Accepted"), expected, "{listener} {parent}");
    }
}

#[test]
fn listeners_that_conflict_or_are_unsupported_are_not_served() {
    for (second, condition, expected) in [
        ("port: 80, protocol: HTTP", "Conflicted", "True HostnameConflict"),
        ("port: 80, protocol: HTTPS", "Conflicted", "True ProtocolConflict"),
        ("port: 81, protocol: TCP", "Accepted", "False UnsupportedProtocol"),
        ("port: 81, protocol: HTTP, hostname: 'a b'", "Accepted", "False UnsupportedValue"),
        (
            "port: 81, protocol: HTTP, allowedRoutes: {kinds: [{kind: TCPRoute}]}",
            "ResolvedRefs",
            "False InvalidRouteKinds",
        ),
        ("port: 81, protocol: HTTPS", "ResolvedRefs", "False InvalidCertificateRef"),
        (
            "port: 81, protocol: HTTPS, tls: {certificateRefs: [{name: missing}]}",
            "ResolvedRefs",
            "False InvalidCertificateRef",
        ),
        (
            "port: 81, protocol: HTTPS, tls: {certificateRefs: [{name: far, namespace: elsewhere}]}",
            "ResolvedRefs",
            "False RefNotPermitted",
        ),
    ] {
        let text =
            gateway(&format!("  - {{name: one, port: 80, protocol: HTTP}}\n  - {{name: two, {second}}}"));
        let translation = translated(&(text + &route("r", ANY)));
        let of = |name| translation.condition("Gateway", "gw", "/listeners/1/conditions", name);
        assert_eq!(of(condition), expected, "{second}");
        // Of two for the same, the reason is in all conditions.
        let programmed = match condition {
            "Conflicted" => expected.replace("True", "False"),
            _ => "False Invalid".to_owned(),
        };
        assert_eq!(of("Programmed"), programmed, "{second}");
        if condition == "Conflicted" {
            assert_eq!(of("Accepted"), programmed, "{second}");
        }
        assert_eq!(translation.targets("h").len(), 1, "the first one is: {second}");
    }
}

pub(super) fn secret(certificate: &str, key: &str) -> String {
    let encoded = |text: &str| {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(text)
    };
    format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: cert}}\ntype: kubernetes.io/tls\n\
         data: {{tls.crt: '{}', tls.key: '{}'}}\n",
        encoded(certificate),
        encoded(key)
    )
}

const HTTPS: &str = "  - {name: s, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}";

#[test]
fn certificates_of_secrets_become_files() {
    let made = generate_simple_self_signed(["example.org".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let translation = translated(&(gateway(HTTPS) + "\n" + &secret(&certificate, &key) + &route("r", ANY)));
    let profile = translation.site_secure[0].as_ref().unwrap();
    let identity = &profile.identities[0];
    let files: Vec<_> = translation.files.iter().collect();
    assert!(files.contains(&(identity.certificate.as_path(), certificate.as_bytes())));
    assert!(files.contains(&(identity.key.as_path(), key.as_bytes())));
    assert!(!translation.site_listen[0][0].listen.is_plain);
    let shown = format!("{:?}", objects(&secret(&certificate, &key)));
    assert!(!shown.contains("tls.key"), "{shown}");
}

#[test]
fn broken_secrets_are_reported_and_not_served() {
    let made = generate_simple_self_signed(["example.org".to_owned()]).unwrap();
    let other = generate_simple_self_signed(["example.org".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    for text in [
        secret("Hello world", "Hello world"),
        secret(&certificate, ""),
        secret("", &key),
        secret(&certificate, &other.signing_key.serialize_pem()),
        secret(&certificate, &key).replace("tls.crt", "tls.cert"),
        secret(&certificate, &key).replace("tls.key: '", "tls.key: '*"),
    ] {
        let translation = translated(&(gateway(HTTPS) + "\n" + &text));
        let of = |name| translation.condition("Gateway", "gw", "/listeners/0/conditions", name);
        assert_eq!(of("ResolvedRefs"), "False InvalidCertificateRef", "{text}");
        assert_eq!(translation.sites.sites.len(), 0, "{text}");
    }
}
