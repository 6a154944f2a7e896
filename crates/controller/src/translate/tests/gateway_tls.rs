//! Certificates of clients, and the certificate that backends are shown.

use super::policies::{CA, authority, config_map, policy};
use super::status::{gateway, secret};
use super::*;

const TO_A: &str = "rules: [{backendRefs: [{name: a, port: 8080}]}]";
const LISTENERS: &str = "  - {name: s, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}\n  \
                         - {name: t, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}\n  \
                         - {name: http, port: 80, protocol: HTTP}";

fn certificate(name: &str) -> String {
    let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    secret(&made.cert.pem(), &made.signing_key.serialize_pem())
        .replace("{name: cert}", &format!("{{name: {name}}}"))
}

/// A gateway with TLS as given, a certificate, and a ConfigMap `ca`.
fn with_tls(tls: &str, more: &str) -> Translation {
    let spec = format!("gatewayClassName: flatout\n  tls: {tls}");
    let base = gateway(LISTENERS).replace("gatewayClassName: flatout", &spec);
    translated(&format!("{base}\n{}{}{more}", certificate("cert"), config_map(&authority())))
}

fn of_listener(translation: &Translation, at: usize, condition: &str) -> String {
    translation.condition("Gateway", "gw", &format!("/listeners/{at}/conditions"), condition)
}

fn of_gateway(translation: &Translation, condition: &str) -> String {
    translation.condition("Gateway", "gw", "/conditions", condition)
}

impl Translation {
    /// The CAs that clients need a certificate of, at this port.
    fn clients(&self, port: u16) -> Option<&flatout_tls::ClientCertificates> {
        let at = self.sites.sites.iter().position(|it| it.name == format!("*:{port}")).expect("a site");
        self.site_secure[at].as_ref()?.clients.as_ref()
    }
}

#[test]
fn clients_need_a_certificate_by_port() {
    let ca = "{caCertificateRefs: [{kind: ConfigMap, group: '', name: ca}]}";
    let usual = with_tls(&format!("{{frontend: {{default: {{validation: {ca}}}}}}}"), "");
    let clients = usual.clients(443).unwrap();
    assert!(clients.required && usual.clients(8443) == Some(clients));
    let written = usual.files.iter().find(|(path, _)| Some(*path) == clients.authorities.as_deref()).unwrap();
    assert!(written.1.starts_with(b"-----BEGIN CERTIFICATE-----"));
    assert_eq!(of_gateway(&usual, "InsecureFrontendValidationMode"), "none");
    let one =
        format!("{{frontend: {{default: {{}}, perPort: [{{port: 8443, tls: {{validation: {ca}}}}}]}}}}");
    let one = with_tls(&one, "");
    assert!(one.clients(443).is_none() && one.clients(8443).is_some());
    let all_but_one = with_tls(
        &format!("{{frontend: {{default: {{validation: {ca}}}, perPort: [{{port: 8443, tls: {{}}}}]}}}}"),
        "",
    );
    assert!(all_but_one.clients(443).is_some() && all_but_one.clients(8443).is_none());
}

#[test]
fn a_fallback_for_invalid_certificates_is_reported() {
    let ca = "{mode: AllowInsecureFallback, caCertificateRefs: [{kind: ConfigMap, group: '', name: ca}]}";
    let translation = with_tls(&format!("{{frontend: {{default: {{validation: {ca}}}}}}}"), "");
    let clients = translation.clients(443).unwrap();
    assert!(clients.takes_unknown && !clients.required && clients.authorities.is_none());
    assert_eq!(of_gateway(&translation, "InsecureFrontendValidationMode"), "True ConfigurationChanged");
    assert_eq!(of_listener(&translation, 0, "Programmed"), "True Programmed");
    let update = translation.statuses.iter().find(|it| it.key.name == "gw").unwrap();
    assert!(
        update.faults().iter().any(|it| it.contains("InsecureFrontendValidationMode")),
        "{:?}",
        update.faults()
    );
}

#[test]
fn listeners_without_a_valid_ca_for_clients_are_not_served() {
    let far = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: far, namespace: elsewhere}\ndata: {ca.crt: x}\n";
    for (reference, resolved) in [
        ("{kind: ConfigMap, group: '', name: none}", "False InvalidCACertificateRef"),
        ("{kind: Service, group: '', name: a}", "False InvalidCACertificateKind"),
        ("{kind: ConfigMap, group: x.test, name: ca}", "False InvalidCACertificateKind"),
        ("{name: ca}", "False InvalidCACertificateKind"),
        ("{kind: ConfigMap, group: '', name: far, namespace: elsewhere}", "False RefNotPermitted"),
    ] {
        let tls = format!("{{frontend: {{default: {{validation: {{caCertificateRefs: [{reference}]}}}}}}}}");
        let translation = with_tls(&tls, far);
        for at in [0, 1] {
            assert_eq!(of_listener(&translation, at, "ResolvedRefs"), resolved, "{reference}");
            assert_eq!(
                of_listener(&translation, at, "Accepted"),
                "False NoValidCACertificate",
                "{reference}"
            );
            assert_eq!(of_listener(&translation, at, "Programmed"), "False Invalid", "{reference}");
        }
        assert_eq!(of_listener(&translation, 2, "Programmed"), "True Programmed", "HTTP has no certificates");
    }
    let two = "[{kind: ConfigMap, group: '', name: none}, {kind: ConfigMap, group: '', name: ca}]";
    let translation =
        with_tls(&format!("{{frontend: {{default: {{validation: {{caCertificateRefs: {two}}}}}}}}}"), "");
    assert_eq!(of_listener(&translation, 0, "ResolvedRefs"), "False InvalidCACertificateRef");
    assert_eq!(of_listener(&translation, 0, "Programmed"), "True Programmed", "one of them is enough");
    assert!(translation.clients(443).is_some());
}

#[test]
fn gateways_that_require_other_certificates_do_not_share_a_name() {
    let class = BASE.split_once("---").unwrap().0;
    let of = |name: &str, day: u8, tls: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}, creationTimestamp: \
             '2026-01-0{day}T00:00:00Z'}}\nspec:\n  gatewayClassName: flatout\n{tls}  addresses: [{{value: 10.0.0.1}}]\n  listeners:\n{LISTENERS}\n"
        )
    };
    let strict = "  tls: {frontend: {default: {validation: {caCertificateRefs: [{kind: ConfigMap, group: '', name: ca}]}}}}\n";
    let text = format!(
        "{class}{}{}{}{}",
        of("open", 1, ""),
        of("strict", 2, strict),
        certificate("cert"),
        config_map(&authority())
    );
    let translation = translated(&text);
    let of = |name: &str, at: usize| {
        translation.condition("Gateway", name, &format!("/listeners/{at}/conditions"), "Programmed")
    };
    assert_eq!(of("open", 0), "True Programmed");
    assert_eq!(of("strict", 0), "False ProtocolConflict");
    assert_eq!(of("strict", 2), "True Programmed", "HTTP is shared");
}

#[test]
fn backends_are_shown_the_certificate_of_their_gateway() {
    let policy = policy("p", 1, "", CA);
    let shown = "{backend: {clientCertificateRef: {kind: Secret, group: '', name: shown}}}";
    let more = certificate("shown") + &policy + &route("r", TO_A);
    let translation = with_tls(shown, &more);
    assert_eq!(of_gateway(&translation, "ResolvedRefs"), "True ResolvedRefs");
    let upstream = &translation.sites.upstreams[0];
    assert!(upstream.name.contains(",certificate="), "{}", upstream.name);
    let identity = upstream.servers[0].tls.as_ref().unwrap().certificate.as_ref().unwrap();
    assert!(translation.files.iter().any(|(path, _)| path == identity.key));
    let plain = with_tls(shown, &(certificate("shown") + &route("r", TO_A)));
    assert_eq!(plain.sites.upstreams[0].name, "default/a:8080", "without TLS, nothing is shown");
    let none = with_tls("{}", &more);
    assert_eq!(of_gateway(&none, "ResolvedRefs"), "none");
    assert!(none.sites.upstreams[0].servers[0].tls.as_ref().unwrap().certificate.is_none());
}

#[test]
fn a_route_at_two_gateways_shows_the_certificate_of_each() {
    let tls = "tls: {backend: {clientCertificateRef: {name: shown}}}";
    let other = format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: other}}\n\
         spec: {{gatewayClassName: flatout, {tls}, listeners: [{{name: http, port: 80, protocol: HTTP}}]}}\n"
    );
    let both = route("r", TO_A).replace("[{name: gw}]", "[{name: gw}, {name: other}]");
    let text = other + &certificate("shown") + &config_map(&authority()) + &policy("p", 1, "", CA) + &both;
    let translation = with_base(&text);
    let target = |bind: &str| translation.target(&translation.site(bind, "h").routes[0]);
    assert!(!target("10.0.0.2:80").contains("certificate="), "{}", target("10.0.0.2:80"));
    assert!(target("10.0.0.1:80").contains("certificate="), "{}", target("10.0.0.1:80"));
    assert_eq!(translation.of_route("r", "ResolvedRefs"), "True ResolvedRefs");
}

#[test]
fn a_certificate_for_backends_that_is_missing_is_reported() {
    let broken = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: broken}\ndata: {}\n";
    for (reference, resolved) in [
        ("{name: none}", "False InvalidClientCertificateRef"),
        ("{name: cert, group: x.test}", "False InvalidClientCertificateRef"),
        ("{name: cert, kind: Odd}", "False InvalidClientCertificateRef"),
        ("{name: broken}", "False InvalidClientCertificateRef"),
        ("{name: cert, namespace: elsewhere}", "False RefNotPermitted"),
    ] {
        let translation = with_tls(&format!("{{backend: {{clientCertificateRef: {reference}}}}}"), broken);
        assert_eq!(of_gateway(&translation, "ResolvedRefs"), resolved, "{reference}");
        assert_eq!(of_gateway(&translation, "Accepted"), "True Accepted", "{reference}");
        assert_eq!(of_listener(&translation, 0, "Programmed"), "True Programmed", "{reference}");
    }
}

#[test]
fn a_gateway_with_parameters_is_refused() {
    let infrastructure =
        "gatewayClassName: flatout\n  infrastructure: {parametersRef: {group: x.test, kind: X, name: x}}";
    let text = BASE.replace("gatewayClassName: flatout", infrastructure);
    let translation = translated(&format!("{text}\n{}", route("r", TO_A)));
    assert_eq!(of_gateway(&translation, "Accepted"), "False InvalidParameters");
    assert!(translation.sites.sites.is_empty());
}
