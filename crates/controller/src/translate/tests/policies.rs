//! `BackendTLSPolicy`: what upstreams get, and the statuses of policies.

use flatout_tls::SubjectName;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::*;

const TO_A: &str = "rules: [{backendRefs: [{name: a, port: 8080}]}]";

pub(super) fn authority() -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

/// A ConfigMap `ca` with this value.
pub(super) fn config_map(authorities: &str) -> String {
    let lines: String = authorities.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: ca}}\ndata:\n  other: x\n  ca.crt: |\n{lines}"
    )
}

/// A policy for the service `a`.
pub(super) fn policy(name: &str, created: u8, section: &str, validation: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\n\
         metadata: {{name: {name}, generation: 4, creationTimestamp: \"2026-01-0{created}T00:00:00Z\"}}\n\
         spec: {{targetRefs: [{{group: \"\", kind: Service, name: a{section}}}], validation: {{hostname: {name}.example.org, {validation}}}}}\n"
    )
}

pub(super) const CA: &str = "caCertificateRefs: [{group: \"\", kind: ConfigMap, name: ca}]";

fn of_policy(translation: &Translation, name: &str, condition: &str) -> String {
    translation.condition("BackendTLSPolicy", name, "/ancestors/0/conditions", condition)
}

#[test]
fn servers_of_a_service_with_a_policy_are_checked() {
    let text = config_map(&authority()) + &policy("p", 1, "", CA) + &route("r", TO_A);
    let translation = with_base(&text);
    let name = translation.sites.upstreams[0].name.clone();
    assert!(name.starts_with("default/a:8080?tls,name=p.example.org,ca="), "{name}");
    for server in &translation.upstream(&name).servers {
        let tls = server.tls.as_ref().unwrap();
        assert!(tls.verify && tls.name.as_deref() == Some("p.example.org"));
        let file = tls.authorities.as_deref().unwrap();
        let written = translation.files.iter().find(|(path, _)| *path == file).unwrap();
        assert!(written.1.starts_with(b"-----BEGIN CERTIFICATE-----"));
    }
    assert_eq!(of_policy(&translation, "p", "Accepted"), "True Accepted");
    assert_eq!(of_policy(&translation, "p", "ResolvedRefs"), "True ResolvedRefs");
    let ancestor = &translation.status("BackendTLSPolicy", "p")["ancestors"][0];
    assert_eq!(ancestor["ancestorRef"]["name"], "gw");
    assert_eq!(ancestor["conditions"][0]["observedGeneration"], 4);
    assert_eq!(translation.of_route("r", "ResolvedRefs"), "True ResolvedRefs");
}

#[test]
fn a_policy_for_a_port_comes_before_one_for_the_service() {
    let both = policy("all", 1, "", CA) + &policy("port", 2, ", sectionName: web", CA);
    let rules = "rules: [{backendRefs: [{name: a, port: 8080}]}, {backendRefs: [{name: a, port: 9090}]}]";
    let translation = with_base(&(config_map(&authority()) + &both + &route("r", rules)));
    let names: Vec<&str> = translation.sites.upstreams.iter().map(|it| it.name.as_str()).collect();
    assert!(names[0].starts_with("default/a:8080?tls,name=port.example.org"), "{names:?}");
    assert!(names[1].starts_with("default/a:9090?tls,name=all.example.org"), "{names:?}");
    for name in ["all", "port"] {
        assert_eq!(of_policy(&translation, name, "Accepted"), "True Accepted");
    }
}

#[test]
fn of_two_policies_for_one_target_the_older_counts() {
    let both = policy("late", 2, "", CA) + &policy("early", 1, "", CA);
    let translation = with_base(&(config_map(&authority()) + &both + &route("r", TO_A)));
    assert!(translation.sites.upstreams[0].name.contains("name=early.example.org"));
    assert_eq!(of_policy(&translation, "early", "Accepted"), "True Accepted");
    assert_eq!(of_policy(&translation, "late", "Accepted"), "False Conflicted");
}

#[test]
fn an_invalid_policy_closes_its_service() {
    let with = |text: &str| config_map("no certificate") + &policy("p", 1, "", text) + &route("r", TO_A);
    let secret = "caCertificateRefs: [{group: \"\", kind: Secret, name: ca}]";
    let none = "caCertificateRefs: [{group: \"\", kind: ConfigMap, name: none}]";
    let email = format!("{CA}, subjectAltNames: [{{type: Email, hostname: b.example.org}}]");
    let empty = format!("{CA}, subjectAltNames: [{{type: URI, hostname: b.example.org}}]");
    for (text, accepted, resolved) in [
        (with(CA), "False NoValidCACertificate", "False InvalidCACertificateRef"),
        (with(none), "False NoValidCACertificate", "False InvalidCACertificateRef"),
        (with(secret), "False NoValidCACertificate", "False InvalidKind"),
        (with("wellKnownCACertificates: System"), "False Invalid", "none"),
        (with(&email), "False Invalid", "none"),
        (with(&empty), "False Invalid", "none"),
        (with(CA).replace("hostname: p.example.org", "hostname: 'a b'"), "False Invalid", "none"),
        (with(CA).replace("hostname: p.example.org", "hostname: ''"), "False Invalid", "none"),
        (with(CA).replace("hostname: p.example.org", "hostname: '*.example.org'"), "False Invalid", "none"),
        (with(CA).replace("hostname: p", &format!("hostname: {}", "x".repeat(64))), "False Invalid", "none"),
        (
            with(&format!("{CA}, subjectAltNames: [{{type: Hostname, hostname: 'a b'}}]")),
            "False Invalid",
            "none",
        ),
    ] {
        let translation = with_base(&text);
        assert_eq!(translation.targets("h"), ["500"], "{text}");
        assert_eq!(of_policy(&translation, "p", "Accepted"), accepted, "{text}");
        assert_eq!(of_policy(&translation, "p", "ResolvedRefs"), resolved, "{text}");
        assert_eq!(translation.of_route("r", "ResolvedRefs"), "False InvalidBackendTLSPolicy");
    }
}

#[test]
fn other_names_take_the_place_of_the_host_name() {
    let names =
        "subjectAltNames: [{type: URI, uri: 'spiffe://test/a'}, {type: Hostname, hostname: B.example.org}]";
    let text = config_map(&authority()) + &policy("p", 1, "", &format!("{CA}, {names}")) + &route("r", TO_A);
    let translation = with_base(&text);
    let upstream = &translation.sites.upstreams[0];
    assert!(upstream.name.ends_with(",dns=b.example.org,uri=spiffe://test/a"), "{}", upstream.name);
    let tls = upstream.servers[0].tls.as_ref().unwrap();
    let expected =
        [SubjectName::Dns("b.example.org".to_owned()), SubjectName::Uri("spiffe://test/a".to_owned())];
    assert_eq!((tls.name.as_deref(), &tls.alternatives[..]), (Some("p.example.org"), &expected[..]));
    assert_eq!(of_policy(&translation, "p", "Accepted"), "True Accepted");
}

#[test]
fn policies_that_concern_no_gateway_have_no_status() {
    let translation = with_base(&(config_map(&authority()) + &policy("p", 1, "", CA)));
    assert!(!translation.statuses.iter().any(|it| it.kind.name == "BackendTLSPolicy"));
}
