//! Ingresses and their annotations.

use std::time::Duration;

use flatout_site::plan::{Limited, Template, Verdict};

use super::*;

pub(super) const CLASS: &str = "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: flatout}\n\
                     spec: {controller: flatout.dev/controller}\n";

/// An Ingress of the class with these annotations and rules, behind the objects of the base without its gateway.
fn ingress(annotations: &str, spec: &str) -> String {
    let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    format!(
        "{CLASS}---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: i, annotations: {{{annotations}}}}}\n\
         spec:\n  ingressClassName: flatout\n{spec}"
    )
}

pub(super) fn annotated(annotations: &[(&str, &str)]) -> String {
    let one = |(name, value): &(&str, &str)| format!("nginx.ingress.kubernetes.io/{name}: '{value}'");
    annotations.iter().map(one).collect::<Vec<_>>().join(", ")
}

pub(super) fn with(text: &str) -> Translation {
    translated(&format!("{}\n{text}", BASE.replace("gatewayClassName: flatout", "gatewayClassName: none")))
}

const RULES: &str = "rules:\n- host: a.test\n  http:\n    paths:\n    - {path: /x, pathType: Prefix, backend: {service: {name: a, port: {number: 8080}}}}";

pub(super) fn notes(translation: &Translation) -> Vec<String> {
    translation.statuses.iter().flat_map(|it| it.faults()).collect()
}

#[test]
fn paths_of_ingresses_are_matched_by_type() {
    for (path, expected) in [
        ("path: /x, pathType: Prefix", PathMatch::prefix("/x")),
        ("path: /x/, pathType: Prefix", PathMatch::prefix("/x")),
        ("path: /x, pathType: Exact", PathMatch::Exact("/x".to_owned())),
        ("pathType: Prefix", PathMatch::prefix("/")),
        (
            "path: /x, pathType: ImplementationSpecific",
            PathMatch::Prefix { path: "/x".to_owned(), segments: false, before_patterns: false },
        ),
    ] {
        let translation = with(&ingress("", &RULES.replace("path: /x, pathType: Prefix", path)));
        assert_eq!(translation.routes("a.test")[0].path, expected, "{path}");
        assert_eq!(translation.targets("a.test"), ["default/a:8080"], "{path}");
        assert!(translation.routes("b.test").is_empty(), "{path}");
    }
}

#[test]
fn ports_have_names_and_a_default_backend_serves_the_rest() {
    let rules = RULES.replace("number: 8080", "name: other")
        + "\ndefaultBackend: {service: {name: b, port: {number: 8080}}}";
    let translation = with(&ingress("", &rules));
    assert_eq!(translation.targets("a.test"), ["default/a:9090", "default/b:8080"]);
    assert_eq!(translation.targets("b.test"), ["default/b:8080"]);
    let missing = with(&ingress("", &RULES.replace("number: 8080", "name: none")));
    assert_eq!(missing.targets("a.test"), ["500"]);
    assert!(notes(&missing)[0].contains("no port `none`"), "{:?}", notes(&missing));
}

#[test]
fn ingresses_of_other_classes_are_left_alone() {
    let other = CLASS.replace("flatout.dev", "example.org");
    let text = ingress("", RULES).replace(CLASS, &other);
    assert!(with(&text).sites.sites.is_empty());
    let default = CLASS.replace(
        "{name: flatout}",
        "{name: flatout, annotations: {ingressclass.kubernetes.io/is-default-class: 'true'}}",
    );
    let text = ingress("", RULES).replace(CLASS, &default).replace("  ingressClassName: flatout\n", "");
    assert_eq!(with(&text).targets("a.test").len(), 1);
    let text =
        ingress("kubernetes.io/ingress.class: flatout", RULES).replace("  ingressClassName: flatout\n", "");
    assert_eq!(with(&text).targets("a.test").len(), 1);
}

#[test]
fn rewrite_targets_use_groups_of_the_path() {
    let rules = RULES.replace("/x, pathType: Prefix", "'/x(/|$)(.*)', pathType: ImplementationSpecific");
    let translation = with(&ingress(&annotated(&[("rewrite-target", "/$2"), ("use-regex", "true")]), &rules));
    let route = &translation.routes("a.test")[0];
    assert_eq!(route.path, PathMatch::Regex { pattern: "^/x(/|$)(.*)".to_owned(), ignore_case: true });
    assert_eq!(format!("{:?}", route.rewrites[0].to.0), "[Text(\"/\"), Variable(Capture(2))]");
}

#[test]
fn settings_of_upstreams_follow_annotations() {
    let annotations = annotated(&[
        ("proxy-connect-timeout", "2"),
        ("proxy-read-timeout", "120s"),
        ("affinity", "cookie"),
        ("session-cookie-name", "stick"),
        ("proxy-body-size", "8m"),
        ("server-alias", "c.test, d.test"),
    ]);
    let translation = with(&ingress(&annotations, RULES));
    let name = "default/a:8080?read=120000ms,connect=2000ms,cookie=stick";
    let upstream = translation.upstream(name);
    assert_eq!(
        (upstream.connect_time_max, upstream.read_time_max),
        (Duration::from_secs(2), Duration::from_secs(120))
    );
    assert_eq!(upstream.balance, flatout_proxy::Balance::Sticky { cookie: "stick".to_owned() });
    assert_eq!(translation.routes("a.test")[0].rules.body.bytes_max, Some(8 << 20));
    assert_eq!(translation.targets("d.test"), [name]);
    assert_eq!(notes(&translation), [""; 0]);
}

#[test]
fn access_and_rates_protect_routes() {
    let annotations = annotated(&[("whitelist-source-range", "10.0.0.0/8, 192.0.2.1"), ("limit-rps", "5")]);
    let translation = with(&ingress(&annotations, RULES));
    let rules = &translation.routes("a.test")[0].rules;
    let verdicts: Vec<Verdict> = rules.access.iter().map(|it| it.verdict).collect();
    assert_eq!(verdicts, [Verdict::Allow, Verdict::Allow, Verdict::Deny]);
    let rate = &translation.sites.rates[rules.rates[0].rate];
    assert_eq!((rate.requests, rate.window, rules.rates[0].burst), (5, Duration::from_secs(1), 25));
    assert_eq!(rate.key, Limited::Client { ipv6_bits: 64 });
}

#[test]
fn a_canary_gets_its_requests_by_field_cookie_and_share() {
    let main = ingress("", RULES);
    let canary = |annotations: &[(&str, &str)]| {
        ingress(
            &annotated(&[&[("canary", "true")], annotations].concat()),
            &RULES.replace("name: a", "name: b"),
        )
        .replace(CLASS, "")
        .replace("metadata: {name: i,", "metadata: {name: canary,")
    };
    let text = main
        + &canary(&[("canary-by-header", "X-New"), ("canary-by-cookie", "new"), ("canary-weight", "20")]);
    let translation = with(&text);
    let b = "default/b:8080";
    assert_eq!(translation.targets("a.test"), [b, b, b, "default/a:8080"]);
    let conditions = |at: usize| -> Vec<String> {
        translation.routes("a.test")[at].when.iter().map(|it| it.source().to_owned()).collect()
    };
    assert_eq!(conditions(0), ["header[\"x-new\"] == \"always\""]);
    assert_eq!(conditions(1), ["cookie[\"new\"] == \"always\"", "header[\"x-new\"] != \"never\""]);
    assert_eq!(
        conditions(2),
        ["random < 0.2000", "header[\"x-new\"] != \"never\"", "cookie[\"new\"] != \"never\""]
    );
    assert!(conditions(3).is_empty());
}

#[test]
fn passwords_come_from_secrets_and_a_missing_one_closes_the_ingress() {
    let annotations = annotated(&[("auth-type", "basic"), ("auth-secret", "users"), ("auth-realm", "here")]);
    let text = ingress(&annotations, RULES);
    let closed = with(&text);
    assert_eq!(closed.targets("a.test"), ["500"]);
    assert!(notes(&closed)[0].contains("no Secret default/users"), "{:?}", notes(&closed));
    let hash = "$2y$04$gsQiMKD3w7nUIwXvpaPIuORbKqLT.tRn4yf7..Kj4/SYV/FlbZ5hi";
    let secret = format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: users}}\nstringData: {{auth: 'me:{hash}'}}\n"
    );
    let open = with(&format!("{text}{secret}"));
    let route = &open.routes("a.test")[0];
    let auth = route.rules.basic_auth.as_ref().unwrap();
    assert_eq!((auth.realm.as_str(), auth.users[0].name.as_str()), ("here", "me"));
}

#[test]
fn annotations_that_would_leave_a_hole_close_the_ingress() {
    for (name, value, reason) in [
        ("configuration-snippet", "deny all;", "nginx's configuration"),
        ("auth-url", "auth/check", "need a URL"),
        ("auth-url", "http://auth:x/", "need a URL"),
        ("auth-url", "http://$arg_to/", "need a URL"),
        ("auth-url", "https://$host:8443/oauth2/auth", "need a URL"),
        ("auth-url", "http://a.test:9999/oauth2/auth", "name a Service"),
        ("auth-url", "http://auth/$nothing", "nothing"),
        ("auth-proxy-set-headers", "default/fields", "not supported"),
        ("auth-type", "digest", "there is only basic"),
        ("auth-tls-secret", "default/ca", "certificates of clients"),
        ("whitelist-source-range", "10.0.0.0/99", "10.0.0.0/99"),
        ("limit-rps", "many", "need a number"),
        ("rewrite-target", "$host.evil", "begins with `/`"),
        ("proxy-body-size", "big", "a size such as 8m"),
        ("session-cookie-name", "", "need a name"),
        ("session-cookie-name", "a b;c=d", "need a name"),
        ("proxy-ssl-verify", "on", "BackendTLSPolicy"),
        ("enable-modsecurity", "true", "ModSecurity"),
        ("backend-protocol", "FCGI", "HTTP, HTTPS and GRPC"),
    ] {
        let translation = with(&ingress(&annotated(&[(name, value)]), RULES));
        assert_eq!(translation.targets("a.test"), ["500"], "{name}");
        let notes = notes(&translation);
        assert!(notes[0].contains("not served") && notes[0].contains(reason), "{notes:?}");
    }
    let odd = with(&ingress(&annotated(&[("proxy-buffering", "off")]), RULES));
    assert_eq!(odd.targets("a.test").len(), 1);
    assert!(notes(&odd)[0].contains("proxy-buffering has no effect"), "{:?}", notes(&odd));
}

/// The annotations of an Ingress that asks a service, and what its requests get: the upstream that is asked, or 500.
#[test]
fn a_service_of_the_cluster_is_asked_about_each_request() {
    let service = |namespace: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: auth, namespace: {namespace}}}\n\
             spec: {{ports: [{{name: http, port: 80}}, {{name: other, port: 4180}}]}}\n"
        )
    };
    let grant = "---\napiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: login}\n\
                 spec: {from: [{group: networking.k8s.io, kind: Ingress, namespace: default}], to: [{group: '', kind: Service}]}\n";
    let behind = ingress("", "rules: [{host: a.test, http: {paths: [{path: /oauth2, pathType: Prefix, backend: {service: {name: auth, port: {number: 4180}}}}]}}]")
        .replace(CLASS, "")
        .replace("metadata: {name: i,", "metadata: {name: oauth2,");
    let (near, far) = (service("default"), service("login"));
    for (url, objects, asked) in [
        (
            "http://auth.default.svc.cluster.local/check?a=$host",
            &near,
            Ok(("default/auth:80", "/check?a=$host")),
        ),
        ("http://auth.default.svc:4180", &near, Ok(("default/auth:4180", "/"))),
        ("http://auth.default/x", &near, Ok(("default/auth:80", "/x"))),
        ("https://auth.default.svc:4180/x", &near, Ok(("default/auth:4180?tls", "/x"))),
        ("https://$host/oauth2/auth", &format!("{near}{behind}"), Ok(("default/auth:4180", "/oauth2/auth"))),
        ("https://a.test/oauth2/auth", &format!("{near}{behind}"), Ok(("default/auth:4180", "/oauth2/auth"))),
        ("http://auth.login.svc/x", &format!("{far}{grant}"), Ok(("login/auth:80", "/x"))),
        ("http://auth.login.svc/x", &far, Err("no ReferenceGrant")),
        ("http://auth.default.svc:81/x", &near, Err("no port 81")),
        ("http://gone.default.svc/x", &near, Err("no Service default/gone")),
        (
            "https://$host/oauth2x",
            &format!("{near}{behind}"),
            Err("no other Ingress of this namespace serves `a.test/oauth2x`"),
        ),
        // The application itself is not asked, nor is one of another namespace.
        ("https://$host/x/auth", &near, Err("without asking a service itself")),
        (
            "https://$host/oauth2/auth",
            &format!("{near}{}", behind.replace("name: oauth2,", "name: oauth2, namespace: other,")),
            Err("no other Ingress"),
        ),
        ("https://login.example.org/check", &near, Err("no other Ingress of this namespace")),
    ] {
        let translation = with(&(ingress(&annotated(&[("auth-url", url)]), RULES) + objects));
        let routes = translation.routes("a.test");
        let route = routes.iter().find(|route| route.name.contains("/i")).unwrap();
        match asked {
            Ok((upstream, target)) => {
                assert_eq!(translation.target(route), "default/a:8080", "{url}");
                let auth = route.rules.forward_auth.as_ref().unwrap();
                assert_eq!(translation.sites.upstreams[auth.upstream].name, upstream, "{url}");
                assert_eq!(auth.target, Template::parse(target, |_| None).unwrap(), "{url}");
            }
            Err(why) => {
                assert_eq!(translation.target(route), "500", "{url}: nobody gets in");
                assert!(
                    notes(&translation).iter().any(|it| it.contains(why)),
                    "{url}: {:?}",
                    notes(&translation)
                );
            }
        }
    }
}

#[test]
fn clients_without_permission_are_sent_to_the_sign_in_page() {
    let url = ("auth-url", "http://a.default.svc:8080/check");
    for (annotations, sign_in) in [
        (
            vec![("auth-signin", "https://x/start")],
            "https://x/start?rd=$scheme://$http_host$escaped_request_uri",
        ),
        (
            vec![("auth-signin", "https://x/start?a=b")],
            "https://x/start?a=b&rd=$scheme://$http_host$escaped_request_uri",
        ),
        (
            vec![("auth-signin", "https://$host/start?rd=$escaped_request_uri")],
            "https://$host/start?rd=$escaped_request_uri",
        ),
        (
            vec![("auth-signin", "https://x/start"), ("auth-signin-redirect-param", "to")],
            "https://x/start?to=$scheme://$http_host$escaped_request_uri",
        ),
    ] {
        let all = [&annotations[..], &[url, ("auth-response-headers", "X-User, X-Groups")]].concat();
        let translation = with(&ingress(&annotated(&all), RULES));
        let auth = translation.routes("a.test")[0].rules.forward_auth.clone().unwrap();
        assert_eq!(auth.sign_in, Some(Template::parse(sign_in, |_| None).unwrap()));
        assert_eq!(auth.response_fields, ["X-User", "X-Groups"]);
    }
    for (name, value) in
        [("auth-signin", "/start"), ("auth-method", "POST"), ("auth-response-headers", "a b")]
    {
        let translation = with(&ingress(&annotated(&[url, (name, value)]), RULES));
        assert_eq!(translation.targets("a.test"), ["500"], "{name}");
        assert!(notes(&translation)[0].contains(&format!("not served: annotation {name}")), "{name}");
    }
}

#[test]
fn tls_redirects_plain_requests() {
    let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    let secret = super::status::secret(&made.cert.pem(), &made.signing_key.serialize_pem());
    let rules = format!("tls: [{{hosts: [a.test], secretName: cert}}]\n{RULES}");
    let translation = with(&(ingress("", &rules) + &secret));
    assert_eq!(translation.targets("a.test"), ["redirect 308"]);
    let secure = &translation.site("10.0.0.1:443", "a.test").routes;
    assert_eq!(translation.target(&secure[0]), "default/a:8080");
    let both = with(&(ingress(&annotated(&[("ssl-redirect", "false")]), &rules) + &secret));
    assert_eq!(both.targets("a.test"), ["default/a:8080"]);
    // Without the Secret, nothing is served in cleartext in its place.
    let broken = with(&ingress("", &rules));
    assert_eq!(broken.targets("a.test"), ["redirect 308"]);
    assert!(notes(&broken).iter().any(|it| it.contains("no Secret default/cert")), "{:?}", notes(&broken));
    // An entry without hosts is for all hosts.
    let all = with(&(ingress("", &rules.replace("hosts: [a.test], ", "")) + &secret));
    assert_eq!(all.targets("a.test"), ["redirect 308"]);
    assert_eq!(all.site("10.0.0.1:443", "a.test").routes.len(), 1);
}

/// A canary has the rules of the Ingress whose requests it gets, and no others.
#[test]
fn a_canary_has_the_protection_of_its_main_ingress() {
    let canary = |annotations: &[(&str, &str)]| {
        ingress(
            &annotated(&[&[("canary", "true"), ("canary-by-header", "X-New")], annotations].concat()),
            &RULES.replace("name: a", "name: b"),
        )
        .replace(CLASS, "")
        .replace("metadata: {name: i,", "metadata: {name: canary, creationTimestamp: '2020-01-01T00:00:00Z',")
    };
    let (a, b) = ("default/a:8080", "default/b:8080");
    let protected =
        annotated(&[("whitelist-source-range", "10.0.0.0/8"), ("limit-rps", "5"), ("proxy-body-size", "8m")]);
    let translation = with(&(ingress(&protected, RULES) + &canary(&[("proxy-body-size", "0")])));
    assert_eq!(translation.targets("a.test"), [b, a]);
    for route in translation.routes("a.test") {
        let rules = &route.rules;
        assert_eq!((rules.access.len(), rules.rates.len(), rules.body.bytes_max), (2, 1, Some(8 << 20)));
        assert_eq!(rules.rates[0].rate, 0, "both count together");
    }
    // What is not served has no canary either: it would be open.
    let refused = annotated(&[("auth-tls-secret", "default/ca")]);
    for main in [ingress(&refused, RULES), ingress("", &RULES.replace("/x", "/y"))] {
        let translation = with(&(main + &canary(&[])));
        let targets = translation.sites.sites.iter().flat_map(|site| site.routes.iter());
        assert!(targets.map(|route| translation.target(route)).all(|target| target != b));
        let notes = notes(&translation);
        assert!(notes.iter().any(|it| it.contains("of which this is a canary")), "{notes:?}");
    }
}

#[test]
fn the_oldest_ingress_of_a_path_gets_its_requests() {
    let other = |year: u16, rules: &str| {
        ingress("", rules).replace(CLASS, "").replace(
            "metadata: {name: i,",
            &format!("metadata: {{name: other, creationTimestamp: '{year}-01-01T00:00:00Z',"),
        )
    };
    let to_b = RULES.replace("name: a", "name: b");
    let first = ingress("", RULES)
        .replace("metadata: {name: i,", "metadata: {name: i, creationTimestamp: '2020-01-01T00:00:00Z',");
    let translation = with(&(other(2026, &to_b) + &first));
    assert_eq!(translation.targets("a.test")[0], "default/a:8080");
    assert_eq!(
        notes(&translation),
        ["an older object has the same requests: the path /x: Ingress default/i"]
    );
    assert!(notes(&with(&(other(2026, &to_b.replace("/x", "/x/y")) + &first))).is_empty());
}

/// The application is open at `/`, and protected at a longer path of another Ingress: what cannot be protected gets no requests at all, not
/// those of the open path.
#[test]
fn requests_of_a_refused_ingress_do_not_go_to_a_shorter_path() {
    let open = ingress("", &RULES.replace("/x", "/")).replace("{name: i,", "{name: open,");
    let protected = |annotations: &[(&str, &str)], path: &str, kind: &str| {
        let rules = RULES.replace("path: /x, pathType: Prefix", &format!("path: '{path}', pathType: {kind}"));
        with(&(open.clone() + &ingress(&annotated(annotations), &rules).replace(CLASS, "")))
    };
    let (a, refused) = ("default/a:8080", ("auth-tls-secret", "default/ca"));
    let regex = ("use-regex", "true");
    let whitelist = ("whitelist-source-range", "10.0.0.0/8");
    for (annotations, path, kind, cases) in [
        (
            &[refused][..],
            "/x",
            "Prefix",
            &[("http://a.test/x", "500"), ("http://a.test/x/y", "500"), ("http://a.test/xy", a)][..],
        ),
        (&[refused], "/x", "Exact", &[("http://a.test/x", "500"), ("http://a.test/x/y", a)]),
        (&[refused], "/x", "ImplementationSpecific", &[("http://a.test/xy", "500"), ("http://a.test/y", a)]),
        (
            &[refused, ("server-alias", "b.test")],
            "/x",
            "Prefix",
            &[("http://b.test/x", "500"), ("http://b.test/y", "404")],
        ),
        (&[refused, regex], "/x[0-9]", "Prefix", &[("http://a.test/X7/y", "500"), ("http://a.test/x/y", a)]),
        (
            &[refused, ("rewrite-target", "/$1")],
            "/x/(.*)",
            "Prefix",
            &[("http://a.test/x/y", "500"), ("http://a.test/x", a)],
        ),
        // A canary is no place of its own.
        (&[refused, ("canary", "true")], "/", "Prefix", &[("http://a.test/x", a)]),
        // Expressions that are invalid, that would be too large, or with look-behind: all that begins alike is closed, if it is protected.
        (&[refused, regex], "/x/(a", "Prefix", &[("http://a.test/x/b", "500"), ("http://a.test/x", a)]),
        (&[whitelist, regex], "/x/(a", "Prefix", &[("http://a.test/x/b", "500"), ("http://a.test/x", a)]),
        (&[whitelist, regex], "/x+(a", "Prefix", &[("http://a.test/", "500")]),
        (
            &[whitelist, regex],
            "/xy?(a{999}){999}",
            "Prefix",
            &[("http://a.test/x", "500"), ("http://a.test/y", a)],
        ),
        (&[whitelist, regex], "/x(?<=y)|/z", "Prefix", &[("http://a.test/z", "500")]),
        (&[whitelist, regex], "/x(?<=y|w)", "Prefix", &[("http://a.test/xz", "500"), ("http://a.test/z", a)]),
        (&[whitelist, regex], "/x\\1", "Prefix", &[("http://a.test/x1", "500"), ("http://a.test/z", a)]),
        (&[regex], "/x/(a", "Prefix", &[("http://a.test/x/b", a)]),
    ] {
        let translation = protected(annotations, path, kind);
        check_responses(&translation, cases, &format!("{annotations:?} {path}"));
    }
}
