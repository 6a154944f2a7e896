//! `TLSRoute`: which connections go to which services as they are, and the statuses of routes and listeners.

use super::*;

const PASSTHROUGH: &str = "  - {name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}";
const TO_A: &str = "rules: [{backendRefs: [{name: a, port: 8080}]}]";

/// The objects of [`BASE`], with these listeners, and these further objects.
fn with_listeners(listeners: &str, more: &str) -> Translation {
    let base = BASE.replace("  - {name: http, port: 80, protocol: HTTP}", listeners);
    assert_ne!(base, BASE);
    translated(&format!("{base}\n{more}"))
}

/// A TLSRoute at the gateway `gw`, with these lines as its specification.
fn tls_route(name: &str, spec: &str) -> String {
    route(name, spec).replace("kind: HTTPRoute", "kind: TLSRoute")
}

fn of_route(translation: &Translation, name: &str, condition: &str) -> String {
    translation.condition("TLSRoute", name, "/parents/0/conditions", condition)
}

fn of_listener(translation: &Translation, at: usize, condition: &str) -> String {
    translation.condition("Gateway", "gw", &format!("/listeners/{at}/conditions"), condition)
}

/// A Secret `c` with a certificate for this name.
fn certificate(name: &str) -> String {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: c}}\ntype: kubernetes.io/tls\nstringData: {}\n",
        serde_json::json!({"tls.crt": made.cert.pem(), "tls.key": made.signing_key.serialize_pem()})
    )
}

impl Translation {
    /// The upstreams and weights of a name at the port for TLS; `None` where connections are not passed on.
    fn passed(&self, host: &str) -> Option<Vec<String>> {
        let passthrough = self.site("10.0.0.1:443", host).tls_passthrough.as_ref()?;
        let name = |at: usize| self.sites.upstreams[at].name.as_str();
        let share = |it: &site_plan::PassthroughShare| {
            format!("{} {}", it.weight, it.upstream.map_or("nobody", name))
        };
        Some(passthrough.shares.iter().map(share).collect())
    }
}

#[test]
fn connections_go_to_services_by_their_names() {
    let weights = "hostnames: [both.test]\nrules: [{backendRefs: [{name: a, port: 8080, weight: 3}, {name: b, port: 8080}]}]";
    let text = tls_route("r", &format!("hostnames: [a.test, '*.a.test']\n{TO_A}")) + &tls_route("s", weights);
    let translation = with_listeners(PASSTHROUGH, &text);
    let a = "1 default/a:8080?passthrough".to_owned();
    assert_eq!(translation.passed("a.test"), Some(vec![a.clone()]));
    assert_eq!(translation.passed("x.a.test"), Some(vec![a]));
    let both = ["3 default/a:8080?passthrough", "1 default/b:8080?passthrough"].map(str::to_owned);
    assert_eq!(translation.passed("both.test"), Some(both.to_vec()));
    assert_eq!(translation.passed("other.test"), Some(Vec::new()), "refused: there is no route");
    let listens = translation.site_listen.iter().flatten();
    assert!(listens.into_iter().all(|it| !it.listen.is_plain));
    for name in ["r", "s"] {
        assert_eq!(of_route(&translation, name, "Accepted"), "True Accepted");
        assert_eq!(of_route(&translation, name, "ResolvedRefs"), "True ResolvedRefs");
    }
    let listener = &translation.status("Gateway", "gw")["listeners"][0];
    assert_eq!(
        (&listener["attachedRoutes"], &listener["supportedKinds"][0]["kind"]),
        (&2.into(), &"TLSRoute".into())
    );
    assert_eq!(of_listener(&translation, 0, "Programmed"), "True Programmed");
    let servers = &translation.upstream("default/a:8080?passthrough").servers;
    assert_eq!(servers.len(), 2, "the ready ones");
}

#[test]
fn services_of_any_protocol_get_connections() {
    let base = BASE.replace("{port: 8080, name: web,", "{port: 8080, name: web, appProtocol: https,");
    let base = base.replace("  - {name: http, port: 80, protocol: HTTP}", PASSTHROUGH);
    let translation =
        translated(&format!("{base}\n{}", tls_route("r", &format!("hostnames: [a.test]\n{TO_A}"))));
    assert!(translation.upstream("default/a:8080?passthrough").servers.iter().all(|it| it.tls.is_none()));
}

#[test]
fn the_oldest_route_of_a_name_wins_and_listeners_limit_names() {
    let old = tls_route("z", "hostnames: [a.test]\nrules: [{backendRefs: [{name: b, port: 8080}]}]")
        .replace("{name: z,", "{name: z, creationTimestamp: '2020-01-01T00:00:00Z',");
    let new = tls_route("a", &format!("hostnames: [a.test]\n{TO_A}"))
        .replace("{name: a,", "{name: a, creationTimestamp: '2021-01-01T00:00:00Z',");
    let translation = with_listeners(PASSTHROUGH, &(new + &old));
    assert_eq!(translation.passed("a.test"), Some(vec!["1 default/b:8080?passthrough".to_owned()]));

    let listener =
        "  - {name: tls, hostname: '*.in.test', port: 443, protocol: TLS, tls: {mode: Passthrough}}";
    let text = tls_route("in", &format!("hostnames: [a.in.test, b.out.test]\n{TO_A}"))
        + &tls_route("out", &format!("hostnames: [out.test]\n{TO_A}"));
    let translation = with_listeners(listener, &text);
    assert!(translation.passed("a.in.test").is_some_and(|shares| shares.len() == 1));
    assert_eq!(of_route(&translation, "in", "Accepted"), "True Accepted");
    assert_eq!(of_route(&translation, "out", "Accepted"), "False NoMatchingListenerHostname");
    let hosts = translation.sites.sites.iter().map(|site| site.name.as_str());
    assert_eq!(hosts.collect::<Vec<_>>(), ["*.in.test:443", "a.in.test:443"], "no site for other names");
}

#[test]
fn references_that_lead_nowhere_are_reported() {
    let far = "hostnames: [a.test]\nrules: [{backendRefs: [{name: far, namespace: elsewhere, port: 8080}]}]";
    let grant = |kind: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {{name: g, namespace: elsewhere}}\n\
             spec:\n  from: [{{group: gateway.networking.k8s.io, kind: {kind}, namespace: default}}]\n  to: [{{group: '', kind: Service}}]\n"
        )
    };
    for (spec, more, reason) in [
        (far, String::new(), "False RefNotPermitted"),
        (far, grant("HTTPRoute"), "False RefNotPermitted"),
        (far, grant("TLSRoute"), "True ResolvedRefs"),
        (
            "hostnames: [a.test]\nrules: [{backendRefs: [{name: missing, port: 1}]}]",
            String::new(),
            "False BackendNotFound",
        ),
        (
            "hostnames: [a.test]\nrules: [{backendRefs: [{group: x.test, kind: Odd, name: a, port: 1}]}]",
            String::new(),
            "False InvalidKind",
        ),
    ] {
        let translation = with_listeners(PASSTHROUGH, &(tls_route("r", spec) + &more));
        assert_eq!(of_route(&translation, "r", "ResolvedRefs"), reason, "{spec} {more}");
        assert_eq!(of_route(&translation, "r", "Accepted"), "True Accepted");
        let is_nobody = translation.passed("a.test") == Some(vec!["1 nobody".to_owned()]);
        assert_eq!(is_nobody, !reason.starts_with("True"));
    }
    // No rules, and more than one.
    let none = with_listeners(PASSTHROUGH, &tls_route("r", "hostnames: [a.test]"));
    assert_eq!(
        (none.passed("a.test"), of_route(&none, "r", "Accepted")),
        (Some(Vec::new()), "True Accepted".to_owned())
    );
    let two = "hostnames: [a.test]\nrules: [{backendRefs: [{name: a, port: 8080}]}, {backendRefs: [{name: b, port: 8080}]}]";
    let two = with_listeners(PASSTHROUGH, &tls_route("r", two));
    assert_eq!(of_route(&two, "r", "PartiallyInvalid"), "True UnsupportedValue");
    assert_eq!(two.passed("a.test"), Some(vec!["1 default/a:8080?passthrough".to_owned()]));
}

#[test]
fn listeners_and_routes_of_other_kinds_do_not_fit() {
    let text = tls_route("tls", &format!("hostnames: [a.test]\n{TO_A}")) + &route("http", TO_A);
    let translation = with_listeners("  - {name: http, port: 80, protocol: HTTP}\n", &text);
    assert_eq!(of_route(&translation, "tls", "Accepted"), "False NotAllowedByListeners");
    let translation = with_listeners(PASSTHROUGH, &text);
    assert_eq!(translation.of_route("http", "Accepted"), "False NotAllowedByListeners");
    for (tls, condition, expected) in [
        ("", "ResolvedRefs", "False InvalidCertificateRef"),
        (
            ", tls: {mode: Terminate, certificateRefs: [{name: c}]}",
            "ResolvedRefs",
            "False InvalidCertificateRef",
        ),
        (", tls: {mode: Odd}", "Accepted", "False UnsupportedValue"),
    ] {
        let translation = with_listeners(&format!("  - {{name: tls, port: 443, protocol: TLS{tls}}}"), &text);
        assert_eq!(of_listener(&translation, 0, condition), expected, "{tls}");
        assert_eq!(of_listener(&translation, 0, "Programmed"), "False Invalid", "{tls}");
        assert!(translation.sites.sites.is_empty());
    }
    let kinds = "  - {name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}, allowedRoutes: {kinds: [{kind: TCPRoute}, \
                 {kind: TLSRoute}]}}";
    let translation = with_listeners(kinds, &text);
    assert_eq!(of_listener(&translation, 0, "ResolvedRefs"), "False InvalidRouteKinds");
    assert_eq!(translation.passed("a.test").map(|shares| shares.len()), Some(1));
}

#[test]
fn tls_that_ends_here_shares_a_port_with_tls_that_does_not() {
    let secret = certificate("www.test");
    let https = |name: &str| {
        format!(
            "  - {{name: web, hostname: {name}, port: 443, protocol: HTTPS, tls: {{certificateRefs: [{{name: c}}]}}}}\n"
        )
    };
    let tls = "  - {name: tls, hostname: '*.test', port: 443, protocol: TLS, tls: {mode: Passthrough}}";
    let text = tls_route("db", &format!("hostnames: [db.test]\n{TO_A}"))
        + &route("www", &format!("hostnames: [www.test]\n{TO_A}"))
        + &secret;
    let translation = with_listeners(&format!("{}{tls}", https("www.test")), &text);
    assert_eq!(translation.passed("db.test").map(|shares| shares.len()), Some(1));
    assert_eq!(translation.passed("www.test"), None);
    assert_eq!(translation.site("10.0.0.1:443", "www.test").routes.len(), 1);
    assert_eq!(
        translation.passed("elsewhere.org"),
        None,
        "other names get the certificate and 404, as without passthrough"
    );
    for at in [0, 1] {
        assert_eq!(of_listener(&translation, at, "Programmed"), "True Programmed");
    }
    // Not with the same name, and not beside HTTP.
    let translation = with_listeners(&format!("{}{tls}", https("'*.test'")), &text);
    assert_eq!(of_listener(&translation, 1, "Conflicted"), "True HostnameConflict");
    let http = "  - {name: web, port: 443, protocol: HTTP}\n";
    let translation = with_listeners(&format!("{http}{tls}"), &text);
    assert_eq!(of_listener(&translation, 1, "Conflicted"), "True ProtocolConflict");
}

#[test]
fn connections_are_passed_on_behind_the_end_of_tls() {
    let listeners = "  - {name: in, hostname: in.test, port: 443, protocol: TLS, tls: {certificateRefs: [{name: c}]}}\n  \
                     - {name: as-it-is, hostname: db.test, port: 443, protocol: TLS, tls: {mode: Passthrough}}";
    let text = tls_route("r", TO_A) + &certificate("in.test");
    let translation = with_listeners(listeners, &text);
    for (at, host, ends_tls) in [(0, "in.test", true), (1, "db.test", false)] {
        assert_eq!(translation.passed(host), Some(vec!["1 default/a:8080?passthrough".to_owned()]), "{host}");
        let site = translation.site("10.0.0.1:443", host);
        assert_eq!(site.tls_passthrough.as_ref().map(|it| it.ends_tls), Some(ends_tls), "{host}");
        let place = translation.sites.sites.iter().position(|it| it.name == site.name).unwrap();
        let profile = translation.site_secure[place].as_ref();
        let shown = profile.map(|it| (it.identities.len(), it.is_opaque, it.realm.as_str()));
        assert_eq!(shown, ends_tls.then_some((1, true, host)), "{host}");
        assert_eq!(of_listener(&translation, at, "Programmed"), "True Programmed");
        let listener = &translation.status("Gateway", "gw")["listeners"][at];
        assert_eq!(
            (&listener["attachedRoutes"], &listener["supportedKinds"][0]["kind"]),
            (&1.into(), &"TLSRoute".into())
        );
    }
    assert_eq!(translation.sites.upstreams.len(), 1, "both go to the same servers");
}

#[test]
fn services_that_need_tls_get_no_decrypted_connections() {
    let listener =
        "  - {name: in, hostname: in.test, port: 443, protocol: TLS, tls: {certificateRefs: [{name: c}]}}";
    let policy = super::policies::policy("p", 1, "", super::policies::CA);
    let policy = super::policies::config_map(&super::policies::authority()) + &policy;
    let text = tls_route("r", TO_A) + &certificate("in.test");
    let translation = with_listeners(listener, &(text.clone() + &policy));
    assert_eq!(of_route(&translation, "r", "ResolvedRefs"), "False UnsupportedValue");
    assert_eq!(translation.passed("in.test"), Some(vec!["1 nobody".to_owned()]));
    let as_it_is = listener.replace("tls: {", "tls: {mode: Passthrough, ");
    let translation = with_listeners(&as_it_is, &(text + &policy));
    assert_eq!(
        of_route(&translation, "r", "ResolvedRefs"),
        "True ResolvedRefs",
        "the client's own TLS reaches them"
    );
}
