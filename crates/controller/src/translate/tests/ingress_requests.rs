//! Ingresses beside each other: the responses to requests of a host, with each annotation, TLS, expressions and canaries.

use std::sync::OnceLock;

use flatout_proxy::Balance;

use super::ingresses::{CLASS, annotated, notes, with};
use super::status::secret;
use super::*;

const A: &str = "default/a:8080";
const B: &str = "default/b:8080";

/// How an Ingress asks for TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tls {
    Unasked,
    Served,
    /// Its Secret is missing.
    Broken,
}

/// An Ingress for paths of a host, each with its type and service.
fn ingress(
    (name, year): (&str, u16),
    annotations: &[(&str, &str)],
    (host, tls): (&str, Tls),
    paths: &[(&str, &str, &str)],
) -> String {
    let tls = match tls {
        Tls::Unasked => String::new(),
        Tls::Served => format!("  tls: [{{hosts: ['{host}'], secretName: cert}}]\n"),
        Tls::Broken => format!("  tls: [{{hosts: ['{host}'], secretName: missing}}]\n"),
    };
    let path = |(path, kind, service): &(&str, &str, &str)| {
        format!(
            "{{path: '{path}', pathType: {kind}, backend: {{service: {{name: {service}, port: {{number: 8080}}}}}}}}"
        )
    };
    let paths: Vec<String> = paths.iter().map(path).collect();
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\n\
         metadata: {{name: {name}, creationTimestamp: '{year}-01-01T00:00:00Z', annotations: {{{}}}}}\n\
         spec:\n  ingressClassName: flatout\n{tls}  rules: [{{host: '{host}', http: {{paths: [{}]}}}}]\n",
        annotated(annotations),
        paths.join(", ")
    )
}

/// The translation of Ingresses, with their class and a Secret `cert`.
fn served(ingresses: &str) -> Translation {
    static SECRET: OnceLock<String> = OnceLock::new();
    let secret = SECRET.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
        secret(&made.cert.pem(), &made.signing_key.serialize_pem())
    });
    with(&format!("{CLASS}{secret}{ingresses}"))
}

/// What an annotation does.
type Effect = fn(&Translation, &Route) -> bool;

/// The servers that a route leads to.
fn upstream_of<'t>(translation: &'t Translation, route: &Route) -> &'t Upstream {
    let Action::Proxy(forward) = &route.action else { panic!("{}: no proxy", route.name) };
    &translation.sites.upstreams[forward.upstream]
}

/// Each annotation has its effect on all routes of its Ingress and of its canary, with and without TLS, as a plain path and as an expression.
#[test]
fn each_annotation_holds_with_tls_expressions_and_canaries() {
    let cases: &[(&[(&str, &str)], Effect)] = &[
        (&[], |_, _| true),
        (&[("whitelist-source-range", "10.0.0.0/8")], |_, it| it.rules.access.len() == 2),
        (&[("allowlist-source-range", "::1, 10.0.0.0/8")], |_, it| it.rules.access.len() == 3),
        (&[("auth-url", "http://b.default.svc:8080/check")], |_, it| it.rules.forward_auth.is_some()),
        (&[("limit-rps", "5")], |_, it| it.rules.rates.len() == 1 && it.rules.rates[0].burst == 25),
        (&[("limit-rpm", "5"), ("limit-burst-multiplier", "2")], |_, it| it.rules.rates[0].burst == 10),
        (&[("proxy-body-size", "1k")], |_, it| it.rules.body.bytes_max == Some(1024)),
        (&[("enable-cors", "true")], |_, it| it.rules.cors.as_ref().is_some_and(|it| !it.credentials)),
        (&[("enable-cors", "true"), ("cors-allow-origin", "https://o.test")], |_, it| {
            it.rules.cors.as_ref().is_some_and(|it| it.credentials)
        }),
        (&[("proxy-read-timeout", "7")], |at, it| {
            upstream_of(at, it).read_time_max == std::time::Duration::from_secs(7)
        }),
        (&[("proxy-send-timeout", "7s")], |at, it| upstream_of(at, it).name.contains("send=7000ms")),
        (&[("proxy-connect-timeout", "3")], |at, it| {
            upstream_of(at, it).connect_time_max == std::time::Duration::from_secs(3)
        }),
        (&[("backend-protocol", "grpc")], |at, it| upstream_of(at, it).name.ends_with("?h2c")),
        (&[("backend-protocol", "HTTPS")], |at, it| {
            upstream_of(at, it).servers.iter().all(|it| it.tls.is_some())
        }),
        (&[("affinity", "cookie")], |at, it| matches!(upstream_of(at, it).balance, Balance::Sticky { .. })),
        (&[("rewrite-target", "/")], |_, it| it.rewrites.len() == 1),
        (&[("ssl-redirect", "false")], |_, _| true),
        (&[("force-ssl-redirect", "true")], |_, _| true),
    ];
    let mut count = 0;
    for (annotations, has_effect) in cases {
        for tls in [Tls::Unasked, Tls::Served, Tls::Broken] {
            for (is_regex, has_canary) in [(false, false), (false, true), (true, false), (true, true)] {
                let path = if is_regex { "/x[0-9]" } else { "/x" };
                let regex: &[(&str, &str)] = if is_regex { &[("use-regex", "true")] } else { &[] };
                let main = ingress(
                    ("main", 2021),
                    &[annotations, regex].concat(),
                    ("a.test", tls),
                    &[(path, "Prefix", "a")],
                );
                let canary = [("canary", "true"), ("canary-by-header", "X-New"), ("canary-by-cookie", "new")];
                let canary =
                    ingress(("canary", 2020), &canary, ("a.test", Tls::Unasked), &[(path, "Prefix", "b")]);
                let translation = served(&if has_canary { main + &canary } else { main });
                let about = format!("{annotations:?} {tls:?} regex {is_regex} canary {has_canary}");
                let is_set = |name: &str, value: &str| annotations.contains(&(name, value));
                let redirects = is_set("force-ssl-redirect", "true")
                    || (tls != Tls::Unasked && !is_set("ssl-redirect", "false"));
                let request = |scheme: &str, fields: &str| {
                    translation.response(
                        &format!("{scheme}://a.test/x7{fields}")
                            .replace("/x7", if is_regex { "/X7" } else { "/x" }),
                    )
                };
                let name = |found: String| match found.starts_with("default/") {
                    true => found.split(['?', ' ']).next().unwrap_or_default().to_owned(),
                    false => found,
                };
                let plain =
                    |service: &str| if redirects { "redirect 308".to_owned() } else { service.to_owned() };
                let secure = |service: &str| match tls {
                    Tls::Served => service.to_owned(),
                    _ => "closed-port".to_owned(),
                };
                let new = if has_canary { B } else { A };
                for (fields, service) in
                    [("", A), (" X-New=always", new), (" X-New=never", A), (" Cookie=new=always", new)]
                {
                    assert_eq!(name(request("http", fields)), plain(service), "{fields} {about}");
                    assert_eq!(name(request("https", fields)), secure(service), "{fields} {about}");
                }
                for route in translation.sites.sites.iter().flat_map(|site| &site.routes) {
                    let is_served = matches!(route.action, Action::Proxy(_));
                    assert!(!is_served || has_effect(&translation, route), "{}: {about}", route.name);
                }
                count += 1;
            }
        }
    }
    assert_eq!(count, 12 * cases.len());
}

/// A mistake in an annotation closes its Ingress and its canary, and no other Ingress of the host.
#[test]
fn mistakes_close_their_ingress_with_tls_expressions_and_canaries() {
    for mistake in [
        ("configuration-snippet", "more_set_headers"),
        ("server-snippet", "location / {}"),
        ("auth-snippet", "x"),
        ("whitelist-source-range", "10.0.0.0/33"),
        ("auth-type", "basic"),
        ("auth-tls-secret", "default/ca"),
        ("limit-rps", "0"),
        ("limit-rpm", "-1"),
        ("proxy-body-size", "99999999999999999999"),
        ("proxy-read-timeout", "soon"),
        ("cors-max-age", "long"),
        ("backend-protocol", "AJP"),
        ("canary-weight", "some"),
    ] {
        for (tls, is_regex) in
            [(Tls::Unasked, false), (Tls::Served, false), (Tls::Unasked, true), (Tls::Served, true)]
        {
            let path = if is_regex { "/x[0-9]" } else { "/x7" };
            let regex = ("use-regex", if is_regex { "true" } else { "false" });
            let text = ingress(("main", 2022), &[mistake, regex], ("a.test", tls), &[(path, "Prefix", "a")])
                + &ingress(
                    ("canary", 2020),
                    &[("canary", "true"), ("canary-by-header", "X-New")],
                    ("a.test", tls),
                    &[(path, "Prefix", "b")],
                )
                + &ingress(("other", 2021), &[], ("a.test", tls), &[("/", "Prefix", "b")]);
            let translation = served(&text);
            let about = format!("{mistake:?} {tls:?} {is_regex}");
            let scheme = if tls == Tls::Served { "https" } else { "http" };
            for (request, expected) in
                [("/x7/y", "500"), ("/x7/y X-New=always", "500"), ("/y", B), ("/y X-New=always", B)]
            {
                let response = translation.response(&format!("{scheme}://a.test{request}"));
                assert_eq!(response, expected, "{request} {about}");
            }
            let notes = notes(&translation);
            assert!(
                notes.iter().any(|it| it.contains(&format!("not served: annotation {}", mistake.0))),
                "{notes:?}"
            );
        }
    }
}

/// Several Ingresses of one host: paths by length, the oldest of equal ones, and what one says of the host.
#[test]
fn ingresses_of_a_host_share_its_requests() {
    let (plain, tls) = (("a.test", Tls::Unasked), ("a.test", Tls::Served));
    let one = |path: &str, kind: &str| ingress(("one", 2020), &[], plain, &[(path, kind, "a")]);
    let two = |path: &str, kind: &str| ingress(("two", 2021), &[], plain, &[(path, kind, "b")]);
    let regex = |path: &str, service: &str| {
        ingress(
            ("regex", 2022),
            &[("use-regex", "true")],
            plain,
            &[(path, "ImplementationSpecific", service)],
        )
    };
    let rewrite = |target: &str, path: &str, service: &str| {
        ingress(
            ("rewrite", 2022),
            &[("rewrite-target", target)],
            plain,
            &[(path, "ImplementationSpecific", service)],
        )
    };
    let secure =
        |annotations: &[(&str, &str)]| ingress(("secure", 2022), annotations, tls, &[("/s", "Prefix", "b")]);
    let cases: &[(String, &[RequestCase<'_>])] = &[
        // Paths.
        (
            one("/x", "Prefix") + &two("/x/y", "Prefix"),
            &[("http://a.test/x/y/z", B), ("http://a.test/x/yz", A), ("http://a.test/", "404")],
        ),
        (
            one("/x", "Prefix") + &two("/x", "Exact"),
            &[("http://a.test/x", B), ("http://a.test/x/", A), ("http://a.test/X", "404")],
        ),
        (one("/x", "Prefix") + &two("/x", "Prefix"), &[("http://a.test/x", A)]),
        (one("/x/", "Prefix") + &two("/x", "Prefix"), &[("http://a.test/x", A), ("http://a.test/x/y", A)]),
        (
            one("/x", "ImplementationSpecific") + &two("/xy", "Prefix"),
            &[("http://a.test/xyz", A), ("http://a.test/xy/z", B)],
        ),
        (
            one("/x", "Prefix") + &two("/x", "ImplementationSpecific"),
            &[("http://a.test/x/y", A), ("http://a.test/xy", B)],
        ),
        (one("", "Prefix") + &two("/", "Prefix"), &[("http://a.test/x", A)]),
        (
            one("/a//b", "Prefix") + &two("/", "Prefix"),
            &[("http://a.test/a//b", B), ("http://a.test/a/b", B)],
        ),
        (one("/x", "Odd") + &two("/", "Prefix"), &[("http://a.test/x", B)]),
        // Host names.
        (
            one("/", "Prefix") + &two("/", "Prefix").replace("a.test", "*.test"),
            &[("http://a.test/", A), ("http://b.test/", B), ("http://x.a.test/", B), ("http://test/", "404")],
        ),
        (
            one("/x", "Prefix") + &two("/", "Prefix").replace("a.test", ""),
            &[("http://a.test/x", A), ("http://a.test/y", "404"), ("http://b.test/x", B)],
        ),
        (one("/", "Prefix").replace("a.test", "A.Test"), &[("http://a.test/", A)]),
        (one("/", "Prefix").replace("a.test", "a..test") + &two("/", "Prefix"), &[("http://a.test/", B)]),
        // Expressions: those of all Ingresses of the host, the longest first.
        (
            one("/x", "Prefix") + &regex("/x[0-9]+", "b"),
            &[
                ("http://a.test/x7", B),
                ("http://a.test/X7/y", B),
                ("http://a.test/xy", A),
                ("http://a.test/X", A),
            ],
        ),
        (
            one("/x7", "Exact") + &regex("/x[0-9]+", "b"),
            &[("http://a.test/x7", B), ("http://a.test/y", "404")],
        ),
        (
            one("/api", "Prefix") + &regex("/", "b"),
            &[
                ("http://a.test/api", A),
                ("http://a.test/API/x", A),
                ("http://a.test/apix", A),
                ("http://a.test/x", B),
            ],
        ),
        (one("/api", "Prefix") + &regex("/(.*)", "b"), &[("http://a.test/api", B)]),
        (one("/a.b", "Prefix") + &regex("/", "b"), &[("http://a.test/axb", A)]),
        (one("/a(", "Prefix") + &regex("/", "b"), &[("http://a.test/a(", B)]),
        (
            one("/api", "Prefix") + &regex("/x", "b").replace("a.test", "b.test"),
            &[("http://a.test/API", "404"), ("http://b.test/XY", B)],
        ),
        (
            one("/api", "Prefix") + &regex("/a|/b", "b"),
            &[
                ("http://a.test/a", B),
                ("http://a.test/x/b", B),
                ("http://a.test/api/b", B),
                ("http://a.test/c", "404"),
            ],
        ),
        (one("/", "Prefix") + &rewrite("/", "/", "b"), &[("http://a.test/x", A), ("http://a.test/X", A)]),
        (
            one("/ap", "Prefix") + &rewrite("/$2", "/api(/|$)(.*)", "b"),
            &[
                ("http://a.test/api/x?q=1", "default/b:8080 /x?q=1"),
                ("http://a.test/API", "default/b:8080 /"),
                ("http://a.test/apix", A),
            ],
        ),
        (
            rewrite("/new/$1", "/old/([a-z]+)/.*", "b"),
            &[("http://a.test/old/abc/x", "default/b:8080 /new/abc"), ("http://a.test/old/7/x", "404")],
        ),
        (
            rewrite("/fixed", "/old", "b"),
            &[
                ("http://a.test/OLDER", "default/b:8080 /fixed"),
                ("http://a.test/old?q", "default/b:8080 /fixed?q"),
            ],
        ),
        // TLS: of all Ingresses of the host.
        (
            one("/x", "Prefix") + &secure(&[]),
            &[
                ("http://a.test/x", "redirect 308"),
                ("https://a.test/x", A),
                ("https://a.test/s", B),
                ("https://b.test/x", "404"),
            ],
        ),
        (
            one("/x", "Prefix") + &secure(&[("ssl-redirect", "false")]),
            &[("http://a.test/x", "redirect 308"), ("http://a.test/s", B), ("https://a.test/x", A)],
        ),
        (
            ingress(("one", 2020), &[("ssl-redirect", "false")], plain, &[("/x", "Prefix", "a")])
                + &secure(&[]),
            &[("http://a.test/x", A), ("https://a.test/x", A), ("http://a.test/s", "redirect 308")],
        ),
        (
            one("/x", "Prefix") + &secure(&[]).replace("secretName: cert", "secretName: none"),
            &[
                ("http://a.test/x", A),
                ("http://a.test/s", "redirect 308"),
                ("https://a.test/s", "closed-port"),
            ],
        ),
        (
            ingress(("one", 2020), &[], ("a.test", Tls::Broken), &[("/x", "Prefix", "a")]) + &secure(&[]),
            &[("http://a.test/x", "redirect 308"), ("https://a.test/x", A)],
        ),
        (
            one("/x", "Prefix").replace("a.test", "b.test") + &secure(&[]),
            &[("http://b.test/x", A), ("https://b.test/x", "404")],
        ),
        (
            one("/x", "Prefix") + &secure(&[("server-alias", "b.test")]),
            &[("http://b.test/s", B), ("https://b.test/s", "404")],
        ),
        // Aliases. A host with rules is none, whoever is older; nor does it get expressions from one.
        (
            ingress(("one", 2020), &[("server-alias", "b.test, *.c.test")], plain, &[("/x", "Prefix", "a")]),
            &[("http://b.test/x", A), ("http://x.c.test/x", A), ("http://c.test/x", "404")],
        ),
        (
            ingress(("one", 2020), &[("server-alias", "b.test")], plain, &[("/x", "Prefix", "a")])
                + &two("/x", "Prefix").replace("a.test", "b.test"),
            &[("http://b.test/x", B), ("http://a.test/x", A)],
        ),
        (
            ingress(
                ("one", 2020),
                &[("server-alias", "b.test"), ("use-regex", "true")],
                plain,
                &[("/.*", "Prefix", "a")],
            ) + &two("/x", "Prefix").replace("a.test", "b.test"),
            &[("http://b.test/x", B), ("http://b.test/y", "404")],
        ),
        (
            ingress(("one", 2020), &[("server-alias", "c.test")], plain, &[("/x", "Prefix", "a")])
                + &ingress(
                    ("two", 2021),
                    &[("server-alias", "c.test")],
                    ("b.test", Tls::Unasked),
                    &[("/", "Prefix", "b")],
                ),
            &[("http://c.test/x", A), ("http://c.test/y", "404"), ("http://b.test/y", B)],
        ),
        (
            ingress(("one", 2020), &[("server-alias", "b b")], plain, &[("/x", "Prefix", "a")]),
            &[("http://a.test/x", A)],
        ),
        // Default backends: the rest of their own hosts, unless a rule is for it.
        (
            one("/x", "Prefix")
                .replace("spec:\n", "spec:\n  defaultBackend: {service: {name: b, port: {number: 8080}}}\n"),
            &[("http://a.test/x", A), ("http://a.test/y", B), ("http://b.test/x", B)],
        ),
        (
            one("/x", "Prefix")
                .replace("spec:\n", "spec:\n  defaultBackend: {service: {name: b, port: {number: 8080}}}\n")
                + &two("/", "Prefix").replace("name: b", "name: a"),
            &[("http://a.test/y", A), ("http://b.test/y", B)],
        ),
        (
            one("/x", "Prefix")
                .replace("spec:\n", "spec:\n  defaultBackend: {resource: {kind: Bucket, name: b}}\n"),
            &[("http://a.test/y", "500")],
        ),
        // Services.
        (one("/x", "Prefix").replace("name: a,", "name: missing,"), &[("http://a.test/x", "500")]),
        (one("/x", "Prefix").replace("number: 8080", "number: 1"), &[("http://a.test/x", "500")]),
        (one("/x", "Prefix").replace("number: 8080", "name: web"), &[("http://a.test/x", A)]),
    ];
    for (ingresses, requests) in cases {
        check_responses(&served(ingresses), requests, ingresses);
    }
}

/// Which requests a canary gets, beside other Ingresses.
#[test]
fn canaries_get_requests_of_their_own_main_ingress_only() {
    let plain = ("a.test", Tls::Unasked);
    let main = |path: &str| ingress(("main", 2020), &[], plain, &[(path, "Prefix", "a")]);
    let canary = |annotations: &[(&str, &str)], path: &str| {
        ingress(
            ("canary", 2021),
            &[&[("canary", "true")], annotations].concat(),
            plain,
            &[(path, "Prefix", "b")],
        )
    };
    let header: (&str, &str) = ("canary-by-header", "X-New");
    let all: (&str, &str) = ("canary-weight", "100");
    let cases: &[(String, &[RequestCase<'_>])] = &[
        (
            main("/x") + &canary(&[header], "/x"),
            &[
                ("http://a.test/x", A),
                ("http://a.test/x x-new=always", B),
                ("http://a.test/x X-NEW=never", A),
                ("http://a.test/x X-New=yes", A),
            ],
        ),
        (
            main("/x") + &canary(&[header, ("canary-by-header-value", "v2")], "/x"),
            &[
                ("http://a.test/x X-New=v2", B),
                ("http://a.test/x X-New=always", A),
                ("http://a.test/x X-New=V2", A),
            ],
        ),
        (
            main("/x") + &canary(&[header, all], "/x"),
            &[("http://a.test/x", B), ("http://a.test/x X-New=never", A)],
        ),
        (
            main("/x") + &canary(&[header, ("canary-by-header-value", "v2"), all], "/x"),
            &[("http://a.test/x X-New=never", B), ("http://a.test/x X-New=v1", B)],
        ),
        (
            main("/x") + &canary(&[("canary-by-cookie", "new")], "/x"),
            &[
                ("http://a.test/x Cookie=new=always", B),
                ("http://a.test/x Cookie=new=never", A),
                ("http://a.test/x Cookie=other=always", A),
            ],
        ),
        (
            main("/x") + &canary(&[("canary-by-cookie", "new"), all], "/x"),
            &[("http://a.test/x Cookie=new=never", A), ("http://a.test/x", B)],
        ),
        (
            main("/x") + &canary(&[header, ("canary-by-cookie", "new")], "/x"),
            &[
                ("http://a.test/x X-New=never Cookie=new=always", A),
                ("http://a.test/x X-New=always Cookie=new=never", B),
            ],
        ),
        (main("/x") + &canary(&[("canary-weight", "0")], "/x"), &[("http://a.test/x", A)]),
        (main("/x") + &canary(&[("canary-weight", "1000")], "/x"), &[("http://a.test/x", B)]),
        (main("/x") + &canary(&[], "/x"), &[("http://a.test/x", A)]),
        // No main: another path, host, or type of path.
        (main("/x") + &canary(&[all], "/x/y"), &[("http://a.test/x/y", A)]),
        (
            main("/x") + &canary(&[all], "/x").replace("host: 'a.test'", "host: 'b.test'"),
            &[("http://a.test/x", A), ("http://b.test/x", "404")],
        ),
        (main("/x") + &canary(&[all], "/x").replace("Prefix", "Exact"), &[("http://a.test/x", A)]),
        (canary(&[all], "/x"), &[("http://a.test/x", "closed-port")]),
        (
            main("/x")
                + &canary(&[all], "/x").replace("name: canary,", "name: canary, namespace: elsewhere,"),
            &[("http://a.test/x", A)],
        ),
        // Beside a longer path, TLS and aliases.
        (
            main("/x")
                + &ingress(("long", 2020), &[], plain, &[("/x/y", "Prefix", "a")])
                + &canary(&[all], "/x"),
            &[("http://a.test/x/z", B), ("http://a.test/x/y", A)],
        ),
        (
            ingress(("main", 2020), &[], ("a.test", Tls::Served), &[("/x", "Prefix", "a")])
                + &canary(&[all], "/x"),
            &[("http://a.test/x", "redirect 308"), ("https://a.test/x", B)],
        ),
        (
            ingress(("main", 2020), &[("server-alias", "b.test")], plain, &[("/x", "Prefix", "a")])
                + &canary(&[all], "/x"),
            &[("http://b.test/x", B)],
        ),
        // The canary's own expressions make the host's paths expressions, too.
        (main("/x[0-9]") + &canary(&[all, ("use-regex", "true")], "/x[0-9]"), &[("http://a.test/X7", B)]),
        (main("/x") + &canary(&[all, ("rewrite-target", "/new")], "/x"), &[("http://a.test/X/y", B)]),
    ];
    for (ingresses, requests) in cases {
        check_responses(&served(ingresses), requests, ingresses);
    }
}

/// A canary has no requests of an older Ingress that has its path, also of another namespace: neither by an alias, nor by another type of path.
#[test]
fn canaries_get_no_requests_of_older_ingresses() {
    let (a, b) = (("a.test", Tls::Unasked), ("b.test", Tls::Unasked));
    let far = |text: String| text.replace("metadata: {name: ", "metadata: {namespace: far, name: ");
    let all = [("canary", "true"), ("canary-weight", "100")];
    let regex = ("use-regex", "true");
    let mistake = ("whitelist-source-range", "10.0.0.0/33");
    let cases: &[(String, String, &[RequestCase<'_>])] = &[
        (
            ingress(("own", 2020), &[], a, &[("/", "Prefix", "a")]),
            ingress(("main", 2021), &[("server-alias", "a.test")], b, &[("/", "Prefix", "b")])
                + &ingress(("canary", 2022), &all, b, &[("/", "Prefix", "b")]),
            &[("http://a.test/x", A)],
        ),
        (
            ingress(("own", 2020), &[mistake], a, &[("/", "Prefix", "a")]),
            ingress(("main", 2021), &[], a, &[("/", "Prefix", "b")])
                + &ingress(("canary", 2022), &all, a, &[("/", "Prefix", "b")]),
            &[("http://a.test/x", "500")],
        ),
        (
            ingress(("own", 2020), &[regex], a, &[("/x", "Prefix", "a")]),
            ingress(("main", 2021), &[], a, &[("/x", "ImplementationSpecific", "b")])
                + &ingress(("canary", 2022), &all, a, &[("/x", "ImplementationSpecific", "b")]),
            &[("http://a.test/x", A)],
        ),
        (
            ingress(("own", 2020), &[], a, &[("/x/", "Prefix", "a")]),
            ingress(("main", 2021), &[], a, &[("/x", "Prefix", "b")])
                + &ingress(("canary", 2022), &all, a, &[("/x", "Prefix", "b")]),
            &[("http://a.test/x/y", A)],
        ),
        // The same namespace, and a canary that is older than all.
        (
            ingress(("own", 2020), &[], a, &[("/x", "Prefix", "a")])
                + &ingress(("main", 2021), &[], a, &[("/x", "Exact", "b")])
                + &ingress(("canary", 2019), &all, a, &[("/x", "Exact", "b")]),
            String::new(),
            &[("http://a.test/x", B), ("http://a.test/x/y", A)],
        ),
    ];
    for (own, other, requests) in cases {
        for other in [other.clone(), far(other.clone())] {
            let translation = served(&(own.clone() + &other));
            check_responses(&translation, requests, &format!("{own}{other}"));
            let notes = notes(&translation);
            assert_eq!(
                notes
                    .iter()
                    .any(|it| it.contains("an older Ingress has the path")
                        || it.contains("the alias `a.test`")),
                !other.is_empty(),
                "{notes:?}"
            );
        }
    }
}

/// What a protected Ingress, or a closed one, cannot match gets 500, beside paths and expressions of an open one.
#[test]
fn paths_that_cannot_be_used_are_closed_before_others() {
    let plain = ("a.test", Tls::Unasked);
    let regex = ("use-regex", "true");
    let protection = ("whitelist-source-range", "10.0.0.0/8");
    let mistake = ("whitelist-source-range", "10.0.0.0/33");
    for annotation in [protection, mistake, ("limit-rps", "5")] {
        for (path, kind, regexes, open, request, expected) in [
            // The fallback of the expression is shorter than the open one.
            ("/admin/[a-z]+(?<=x)/x", "Prefix", &[regex][..], "/admin/[a-z]+", "/admin/a/x", "500"),
            ("/admin/[a-z]+(?<=x)", "Prefix", &[regex], "/admin/[a-z]+/[a-z0-9]*x", "/admin/a/x", A),
            ("/admin/(", "Prefix", &[regex], "/adm", "/ADMIN/x", "500"),
            // A type of path that no version of the API has.
            ("/admin", "Odd", &[], "/", "/admin/x", "500"),
            ("/admin", "Odd", &[], "/", "/x", A),
            ("/admin/", "Odd", &[], "/", "/admin/x", "500"),
        ] {
            let protected = [&[annotation], regexes].concat();
            let text = ingress(("protected", 2021), &protected, plain, &[(path, kind, "b")])
                + &ingress(("open", 2020), regexes, plain, &[(open, "Prefix", "a")]);
            let response = served(&text).response(&format!("http://a.test{request}"));
            assert_eq!(response, expected, "{path} {kind} {annotation:?}");
        }
    }
}

/// The requests of objects beyond the largest number of rates get 500.
#[test]
fn rates_of_all_objects_are_limited() {
    use super::super::route_policy::RATES_MAX;
    let policy = |at: usize| {
        format!(
            "---\napiVersion: flatout.dev/v1alpha1\nkind: LimitPolicy\nmetadata: {{name: p{at}}}\n\
             spec: {{targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: r{at}}}], requests: {{count: 1}}}}\n"
        )
    };
    let policies: String = (0..RATES_MAX - 1).map(policy).collect();
    let limited = |name: &str, year: u16, host: &str| {
        let paths = [("/x", "Prefix", "a"), ("/y", "Prefix", "a")];
        ingress((name, year), &[("limit-rps", "5")], (host, Tls::Unasked), &paths)
    };
    let text = policies + &limited("first", 2020, "a.test") + &limited("second", 2021, "b.test");
    let translation = served(&text);
    assert_eq!(translation.sites.rates.len(), RATES_MAX);
    let cases = [
        ("http://a.test/x", A),
        ("http://a.test/y", A),
        ("http://b.test/x", "500"),
        ("http://b.test/y", "500"),
    ];
    check_responses(&translation, &cases, "rates");
    let noted = notes(&translation).iter().filter(|it| it.contains("the largest number")).count();
    assert_eq!(noted, 1);
}

/// cert-manager solves HTTP-01 by an Ingress or an HTTPRoute for a pod of its own, beside the one that needs the certificate: before there is a
/// certificate, and while it is renewed.
#[test]
fn challenges_of_cert_manager_reach_their_solver() {
    let path = "/.well-known/acme-challenge/token";
    let url = format!("http://a.test{path}");
    let annotations = [("whitelist-source-range", "0.0.0.0/0,::/0")];
    let solver = ingress(
        ("cm-acme-http-solver", 2026),
        &annotations,
        ("a.test", Tls::Unasked),
        &[(path, "ImplementationSpecific", "b")],
    );
    let main = |annotations: &[(&str, &str)], tls: Tls, path: &str| {
        ingress(("main", 2020), annotations, ("a.test", tls), &[(path, "Prefix", "a")])
    };
    let regex = ("use-regex", "true");
    for (main, plain, secure) in [
        (main(&[], Tls::Broken, "/"), B, "closed-port"),
        (main(&[], Tls::Served, "/"), "redirect 308", B),
        (main(&[("force-ssl-redirect", "true")], Tls::Broken, "/"), B, "closed-port"),
        (main(&[regex], Tls::Broken, "/(.*)"), B, "closed-port"),
        (main(&[("configuration-snippet", "x")], Tls::Broken, "/"), B, "closed-port"),
        (main(&[("auth-type", "basic")], Tls::Served, "/"), "redirect 308", B),
    ] {
        let translation = served(&(main.clone() + &solver));
        assert_eq!(translation.response(&url), plain, "{main}");
        assert_eq!(translation.response(&url.replace("http:", "https:")), secure, "{main}");
    }
    let redirect = "hostnames: [a.test]\nrules: [{filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}]";
    let challenge = format!(
        "hostnames: [a.test]\nrules: [{{matches: [{{path: {{type: Exact, value: {path}}}}}], backendRefs: [{{name: b, port: 8080, weight: 1}}]}}]"
    );
    let translation = with_base(&(route("main", redirect) + &route("cm-acme-http-solver", &challenge)));
    assert_eq!(translation.response(&url), B);
    assert_eq!(translation.response("http://a.test/"), "redirect 302 /");
}
