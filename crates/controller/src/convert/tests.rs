//! Ingresses in YAML, and what the controller makes of the objects that they become.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{Settings, translate, yaml};

const SERVICES: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: app}\nspec: {ports: [{port: 80, name: web}]}\n---\n\
                        apiVersion: v1\nkind: Service\nmetadata: {name: new}\nspec: {ports: [{port: 80}]}\n";

fn ingress(name: &str, annotations: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: {name}\n  annotations: {{{annotations}}}\n\
         spec:\n  {spec}\n"
    )
}

fn path(path: &str, kind: &str, service: &str) -> String {
    format!(
        "{{path: '{path}', pathType: {kind}, backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}"
    )
}

fn converted(text: &str) -> Converted {
    let mut objects = Objects::default();
    for value in yaml::objects(&format!("{SERVICES}{text}")).unwrap() {
        objects.insert(value).unwrap();
    }
    convert(&objects)
}

/// The same object, from the text that was made of it.
fn read_again(found: &Converted) -> Vec<Value> {
    let again = yaml::objects(&yaml_documents(&found.objects)).unwrap();
    assert_eq!(again, found.objects, "the text says the same");
    again
}

/// The controller accepts all routes.
fn assert_accepted(found: &Converted) {
    assert_eq!(route_faults(&served(found, SERVICES)), [""; 0]);
}

fn route_faults(translation: &crate::Translation) -> Vec<String> {
    let of_routes = translation.statuses.iter().filter(|it| it.kind.name == "HTTPRoute");
    of_routes.flat_map(|status| status.faults()).collect()
}

fn settings() -> Settings {
    Settings {
        controller_name: crate::CONTROLLER_NAME.to_owned(),
        addresses: vec!["10.0.0.1".parse().unwrap()],
        published: Vec::new(),
        health: None,
        refused: BTreeSet::new(),
        assigned: BTreeMap::new(),
        folder: "/certificates".into(),
    }
}

fn routes(found: &Converted) -> Vec<&Value> {
    found.objects.iter().filter(|it| it["kind"] == "HTTPRoute").collect()
}

#[test]
fn hosts_and_paths_become_routes() {
    let spec = format!(
        "rules:\n  - {{host: a.test, http: {{paths: [{}, {}]}}}}\n  - {{host: b.test, http: {{paths: [{}]}}}}\n  \
         defaultBackend: {{service: {{name: app, port: {{name: web}}}}}}",
        path("/x", "Exact", "app"),
        path("/", "Prefix", "new"),
        path("", "ImplementationSpecific", "new"),
    );
    let found = converted(&ingress("main", "", &spec));
    assert_eq!((found.converted, found.left_out, &found.lost[..]), (1, 0, &[][..]));
    let routes = routes(&found);
    assert_eq!(routes.len(), 3);
    assert_eq!(routes[0]["spec"].get("hostnames"), None);
    assert_eq!(routes[0]["spec"]["rules"][0]["backendRefs"][0], json!({"name": "app", "port": 80}));
    assert_eq!(routes[1]["spec"]["hostnames"], json!(["a.test"]));
    assert_eq!(routes[1]["spec"]["rules"][0]["matches"][0]["path"], json!({"type": "Exact", "value": "/x"}));
    assert_eq!(
        routes[2]["spec"]["rules"][0]["matches"][0]["path"],
        json!({"type": "PathPrefix", "value": "/"})
    );
    assert_accepted(&found);
}

#[test]
fn every_route_has_a_name_of_its_own() {
    let spec = |host: &str| {
        format!(
            "tls: [{{hosts: [{host}], secretName: c}}]\n  rules:\n  - host: {host}\n    http: {{paths: [{}]}}",
            path("/", "Prefix", "app")
        )
    };
    let two = format!(
        "rules:\n  - host: a.test\n    http: {{paths: [{0}]}}\n  - host: b.test\n    http: {{paths: [{1}]}}",
        path("/", "Prefix", "app"),
        path("/b", "Prefix", "new")
    );
    let found = converted(
        &(ingress("main", "", &two)
            + &ingress("main-2", "", &spec("c.test"))
            + &ingress("main-2-redirect", "", &spec("d.test"))),
    );
    let names: Vec<&str> = found
        .objects
        .iter()
        .filter(|object| object["kind"] == "HTTPRoute")
        .filter_map(|object| object["metadata"]["name"].as_str())
        .collect();
    let all: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(all.len(), names.len(), "{names:?}");
    assert!(names.len() >= 6, "{names:?}");
}

#[test]
fn certificates_become_listeners_and_redirects_routes() {
    let spec = format!(
        "tls: [{{hosts: [a.test], secretName: c}}]\n  rules: [{{host: a.test, http: {{paths: [{}]}}}}, {{host: plain.test, http: \
         {{paths: [{}]}}}}]",
        path("/", "Prefix", "app"),
        path("/", "Prefix", "app"),
    );
    let found = converted(&ingress("main", "", &spec));
    let listeners = found.objects[0]["spec"]["listeners"].as_array().unwrap();
    assert_eq!(listeners.len(), 2);
    assert_eq!((&listeners[1]["hostname"], &listeners[1]["port"]), (&json!("a.test"), &json!(443)));
    let names: Vec<_> = routes(&found).iter().map(|it| it["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["main-redirect", "main", "main-2"]);
    let sections = |at: usize| routes(&found)[at]["spec"]["parentRefs"][0]["sectionName"].clone();
    assert_eq!([sections(0), sections(1), sections(2)], [json!("http"), json!("https-1"), json!("http")]);
    // A second Ingress of the host, without a certificate of its own: it has that of the first, and the redirect is there already.
    let second =
        spec.replace("tls: [{hosts: [a.test], secretName: c}]\n  ", "").replace("path: '/'", "path: '/b'");
    let both = converted(&(ingress("main", "", &spec) + &ingress("second", "", &second)));
    let names: Vec<_> = routes(&both).iter().map(|it| it["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["main-redirect", "main", "main-2", "second", "second-2"]);
    assert_eq!(
        routes(&both)[3]["spec"]["parentRefs"],
        json!([{"name": "gateway", "sectionName": "https-1"}])
    );
    let without = converted(&ingress("main", "nginx.ingress.kubernetes.io/ssl-redirect: 'false'", &spec));
    assert_eq!(routes(&without).len(), 2, "both ports have the routes");
}

#[test]
fn rewrites_and_cors_become_filters() {
    let rewritten = |target: &str, from: &str| {
        let spec = format!(
            "rules: [{{host: a.test, http: {{paths: [{}]}}}}]",
            path(from, "ImplementationSpecific", "app")
        );
        let annotation = format!("nginx.ingress.kubernetes.io/rewrite-target: '{target}'");
        converted(&ingress("main", &annotation, &spec))
    };
    for (target, from, kind, value, change) in [
        (
            "/",
            "/app",
            "RegularExpression",
            "(?i)/app.*",
            json!({"type": "ReplaceFullPath", "replaceFullPath": "/"}),
        ),
        (
            "/$2",
            "/app(/|$)(.*)",
            "PathPrefix",
            "/app",
            json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}),
        ),
        (
            "/v1/$1",
            "/app/(.*)",
            "PathPrefix",
            "/app",
            json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": "/v1/"}),
        ),
    ] {
        let found = rewritten(target, from);
        let rule = &routes(&found)[0]["spec"]["rules"][0];
        assert_eq!(rule["matches"][0]["path"], json!({"type": kind, "value": value}), "{from}");
        assert_eq!(rule["filters"][0]["urlRewrite"]["path"], change, "{target}");
        assert_eq!(found.lost.len(), usize::from(kind == "PathPrefix"), "{from}: {:?}", found.lost);
        assert_accepted(&found);
    }
    // Such a rewrite cannot be written; nothing else gets these requests.
    for (target, from) in [
        ("/$3", "/a(/|$)(.*)"),
        ("/$1/$2", "/(a|b)/(.*)"),
        ("x", "/"),
        ("/x?y", "/"),
        ("/$2", "/a[0-9](/|$)(.*)"),
    ] {
        let found = rewritten(target, from);
        assert_eq!((found.closed_paths, found.lost.len()), (1, 1), "{target}: {:?}", found.lost);
        assert_eq!(routes(&found)[0]["spec"]["rules"][0].get("backendRefs"), None, "{target}");
        assert_accepted(&found);
    }
    let cors =
        "nginx.ingress.kubernetes.io/enable-cors: 'true', nginx.ingress.kubernetes.io/use-regex: 'true'";
    let spec =
        format!("rules: [{{http: {{paths: [{}]}}}}]", path("/a[0-9]+", "ImplementationSpecific", "app"));
    let found = converted(&ingress("main", cors, &spec));
    let rule = &routes(&found)[0]["spec"]["rules"][0];
    assert_eq!(rule["filters"][0]["cors"]["allowCredentials"], json!(false), "not for every origin");
    assert_eq!(rule["matches"][0]["path"]["type"], "RegularExpression");
    assert_accepted(&found);
}

#[test]
fn canaries_share_the_path_of_their_ingress() {
    let spec = |service: &str| {
        format!("rules: [{{host: a.test, http: {{paths: [{}]}}}}]", path("/", "Prefix", service))
    };
    let prefix = "nginx.ingress.kubernetes.io/canary";
    let canary = format!("{prefix}: 'true', {prefix}-weight: '10', {prefix}-by-header: X-New");
    let found = converted(&(ingress("main", "", &spec("app")) + &ingress("canary", &canary, &spec("new"))));
    let rules = routes(&found)[0]["spec"]["rules"].as_array().unwrap().clone();
    assert_eq!(rules[0]["matches"][0]["headers"], json!([{"name": "X-New", "value": "always"}]));
    let backends =
        json!([{"name": "app", "port": 80, "weight": 90}, {"name": "new", "port": 80, "weight": 10}]);
    assert_eq!(rules[1]["backendRefs"], backends);
    assert_accepted(&found);
    let alone = converted(&ingress("canary", &canary, &spec("new")));
    assert!(alone.objects.is_empty() && alone.lost.iter().any(|it| it.contains("no other Ingress serves")));
}

#[test]
fn protection_is_never_dropped_and_losses_are_reported() {
    let spec = format!("rules: [{{host: a.test, http: {{paths: [{}]}}}}]", path("/", "Prefix", "app"));
    for name in
        ["auth-url", "auth-type", "whitelist-source-range", "configuration-snippet", "auth-tls-secret"]
    {
        let found = converted(&ingress("main", &format!("nginx.ingress.kubernetes.io/{name}: x"), &spec));
        assert_eq!((found.left_out, routes(&found).len()), (1, 1), "{name}");
        let rules = json!([{"matches": [{"path": {"type": "PathPrefix", "value": "/"}}]}]);
        assert_eq!(routes(&found)[0]["spec"]["rules"], rules, "{name}: requests get 500");
        assert!(found.lost[0].contains("left out") && found.lost[0].contains(name), "{:?}", found.lost);
    }
    let annotations = "nginx.ingress.kubernetes.io/affinity: cookie, nginx.ingress.kubernetes.io/backend-protocol: GRPC, other/x: z";
    let found = converted(&ingress("main", annotations, &spec));
    assert_eq!((found.lost.len(), routes(&found).len()), (2, 1), "{:?}", found.lost);
    let missing = spec.replace("{number: 80}", "{name: unknown}");
    let found = converted(&ingress("main", "", &missing));
    assert!(found.closed_paths == 1 && found.lost[0].contains("unknown"), "{:?}", found.lost);
}

/// Rates and sizes of bodies become a policy for all routes of the Ingress.
#[test]
fn limits_become_a_policy() {
    let hosts = ["a.test", "b.test"]
        .map(|host| format!("{{host: {host}, http: {{paths: [{}]}}}}", path("/", "Prefix", "app")));
    let spec = format!("rules: [{}]", hosts.join(", "));
    let policy = |annotations: &[(&str, &str)]| {
        let one = |(name, value): &(&str, &str)| format!("nginx.ingress.kubernetes.io/{name}: '{value}'");
        let annotations = annotations.iter().map(one).collect::<Vec<_>>().join(", ");
        let found = converted(&ingress("main", &annotations, &spec));
        assert_accepted(&found);
        let policies: Vec<Value> =
            found.objects.iter().filter(|it| it["kind"] == "LimitPolicy").cloned().collect();
        (policies, found.lost)
    };
    let (found, lost) = policy(&[("limit-rps", "5"), ("proxy-body-size", "8m")]);
    assert_eq!((found.len(), lost), (1, Vec::new()));
    assert_eq!(found[0]["spec"]["requests"], json!({"count": 5, "window": "1s", "burst": 25}));
    assert_eq!(found[0]["spec"]["bodyBytes"], 8 << 20);
    let targets = found[0]["spec"]["targetRefs"].as_array().unwrap();
    assert_eq!(targets.iter().map(|it| it["name"].as_str().unwrap()).collect::<Vec<_>>(), ["main", "main-2"]);
    let (found, lost) = policy(&[("limit-rpm", "60"), ("limit-burst-multiplier", "1"), ("limit-rps", "0")]);
    assert_eq!(found[0]["spec"]["requests"], json!({"count": 60, "window": "1m", "burst": 60}));
    assert!(lost[0].contains("limit-rps: it is no number of at least 1"), "{lost:?}");
    assert!(policy(&[("limit-rps", "1"), ("limit-rpm", "2")]).1[0].contains("one rate"));
    assert!(policy(&[("proxy-body-size", "big")]).1[0].contains("a size such as 8m"));
    assert_eq!(policy(&[("proxy-body-size", "0")]), (Vec::new(), Vec::new()));
}

#[test]
fn texts_that_yaml_reads_otherwise_are_quoted() {
    let value = json!({"a": ["yes", "1", "x: y", "", "a#b", "*", "ok", "-", "\n"], "b": {}, "c": [], "no": [{"d": [[1], {"e": null}]}]});
    let text = yaml_documents(std::slice::from_ref(&value));
    assert_eq!(yaml::objects(&text).unwrap(), [value], "{text}");
}

/// The path of ingress-nginx that gets a request: `location ~* "^PATH"`, of which the longest is tried first.
fn nginx_path<'p>(paths: &[&'p str], request: &str) -> Option<&'p str> {
    let mut all = paths.to_vec();
    all.sort_by_key(|path| std::cmp::Reverse(path.len()));
    let is_match = |path: &&str| {
        let pattern = flatout_site::Regex::new(&format!("^{path}"), true).unwrap();
        pattern.is_match(request.as_bytes())
    };
    all.into_iter().find(is_match)
}

/// What the controller makes of the converted objects.
fn served(found: &Converted, services: &str) -> crate::Translation {
    let class = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: flatout}\n\
                 spec: {controllerName: flatout.dev/controller}\n---\n";
    let mut objects = Objects::default();
    for value in yaml::objects(&format!("{class}{services}")).unwrap().into_iter().chain(read_again(found)) {
        objects.insert(value).unwrap();
    }
    translate(&objects, &settings())
}

/// All paths of a host are expressions as soon as one Ingress says so. Each request goes where ingress-nginx would send it.
#[test]
fn expressions_match_the_paths_of_ingress_nginx() {
    for (paths, requests) in [
        (&["/"][..], &["/", "/a"][..]),
        (&["/api", "/"], &["/api", "/API", "/apix", "/api/x", "/ap", "/x/api"]),
        (&["/v[0-9]+", "/v1/users", "/"], &["/v1", "/V12/x", "/v", "/v1/users", "/v1/USERS/7", "/v2/users"]),
        (&["/a|/b"], &["/a", "/A/x", "/b", "/B", "/x/b", "/x/a", "/ab", "/c"]),
        (&["/a|/b", "/c"], &["/c/b", "/c", "/C/B", "/x/b", "/x/c", "/bc"]),
        (&["/a|/bcd", "/abcdefgh", "/abc|/x"], &["/abcdefgh", "/abcd", "/x/bcd", "/y/x", "/ab"]),
        (&["/(a|b)/.*", "/a"], &["/a/x", "/a", "/B/", "/b", "/ax"]),
        (&["/(foo|bar)$", "/foo"], &["/foo", "/BAR", "/foo/x", "/bar/x", "/barx"]),
        (&["^/a[|]b", "/a"], &["/a|b", "/A|Bx", "/ab"]),
        (&["/img/.*\\.(png|jpe?g)", "/img"], &["/img/a.PNG", "/img/a.jpeg?x", "/img/a.gif", "/IMG"]),
        (&["/x.*", "/x/y.*"], &["/x/y", "/xy", "/x/Y/z"]),
        (&["/x\\.*", "/x/"], &["/x", "/x..", "/x/y", "/xy"]),
        (&["/(?!admin)[a-z]+", "/"], &["/admin", "/Admin/x", "/user", "/7"]),
        (&["/\\d{3}", "/\\w+", "/"], &["/123", "/12", "/ab", "/-"]),
        (&["/(?i)a", "/b"], &["/A", "/B", "/c"]),
        (&["/[^/]+/edit", "/docs"], &["/docs/edit", "/docs/x", "/x/EDIT", "/x/y/edit"]),
        (&["/a(b)?c", "/a"], &["/ac", "/ABC", "/ab", "/a"]),
    ] {
        let one = |(at, path): (usize, &&str)| {
            let path = path.replace('\'', "''");
            format!(
                "{{path: '{path}', pathType: ImplementationSpecific, backend: {{service: {{name: s{at}, port: {{number: 80}}}}}}}}"
            )
        };
        let list: Vec<String> = paths.iter().enumerate().map(one).collect();
        let service = |at: usize| {
            format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{at}}}\nspec: {{ports: [{{port: 80}}]}}\n"
            )
        };
        let services: String = (0..paths.len()).map(service).collect();
        // All in one Ingress, and each in its own, of which only the last has the annotation.
        let regex = "nginx.ingress.kubernetes.io/use-regex: 'true'";
        let spec = |paths: &str| format!("rules: [{{host: a.test, http: {{paths: [{paths}]}}}}]");
        let last = list.len() - 1;
        let each = |(at, path): (usize, &String)| {
            ingress(&format!("i{at}"), if at == last { regex } else { "" }, &spec(path))
        };
        for text in [
            ingress("main", regex, &spec(&list.join(", "))),
            list.iter().enumerate().map(each).collect::<String>(),
        ] {
            let found = converted(&text);
            assert_eq!((found.closed_paths, &found.lost[..]), (0, &[][..]), "{paths:?}");
            let translation = served(&found, &services);
            assert_eq!(route_faults(&translation), [""; 0], "{paths:?}");
            for request in requests {
                let (path, _) = request.split_once('?').unwrap_or((request, ""));
                let expected = match nginx_path(paths, path) {
                    Some(path) => format!("default/s{}:80", paths.iter().position(|it| *it == path).unwrap()),
                    None => "404".to_owned(),
                };
                let response = translation.response(&format!("http://a.test{request}"));
                assert_eq!(response, expected, "{request} of {paths:?}");
            }
        }
    }
}

/// An expression that cannot be used: what begins as it does gets 500, also where a shorter path of another Ingress would get it.
#[test]
fn expressions_that_cannot_be_used_are_closed() {
    let long = format!("/x/{}", "a".repeat(1100));
    for (path, closed, other, why) in [
        ("/x/(a", "/X/b", "/x", "unclosed group"),
        ("/x/a)", "/x/a", "/y", "unopened group"),
        ("/x/a)|(?:b", "/x/a", "/", "unopened group"),
        ("/x/[a", "/x/b", "/x", "unclosed character class"),
        ("/x/+{2", "/x/", "/y", "repetition"),
        ("/x/a*+b", "/x/aab", "/x", "possessive"),
        ("/x/[a-z]{2}+", "/x/aa", "/x", "possessive"),
        ("/x/(?<=a)b", "/x/ab", "/x", "look-around"),
        ("/x/(a)\\1", "/x/aa", "/x", "backreference"),
        ("/x/(?>a)", "/x/a", "/x", "unrecognized flag"),
        ("/x/(a{999}){999}", "/x/a", "/x", "size limit"),
        ("/x/((((a{50}){50}){50}){50})+", "/x/a", "/x", "size limit"),
        (&long, &long, "/x", "an HTTPRoute has at most 1024"),
    ] {
        let regex = "nginx.ingress.kubernetes.io/use-regex: 'true'";
        let spec = |path: &str, service: &str| {
            let path = format!(
                "{{path: '{path}', pathType: ImplementationSpecific, backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}"
            );
            format!("rules: [{{host: a.test, http: {{paths: [{path}]}}}}]")
        };
        let found = converted(
            &(ingress("main", regex, &spec(path, "new")) + &ingress("open", "", &spec("/", "app"))),
        );
        assert_eq!((found.closed_paths, found.converted, found.lost.len()), (1, 2, 1), "{path}");
        assert!(found.lost[0].contains(why) && found.lost[0].contains("get 500"), "{path}: {:?}", found.lost);
        assert_accepted(&found);
        let translation = served(&found, SERVICES);
        assert_eq!(translation.response(&format!("http://a.test{closed}")), "500", "{path}");
        let of_other = if closed == "/x/a" && other == "/" { "500" } else { "default/app:80" };
        assert_eq!(translation.response(&format!("http://a.test{other}")), of_other, "{path}");
    }
}

/// An Ingress that is left out has a shorter path of another one beside it, which leads to the same application.
#[test]
fn requests_of_ingresses_that_are_left_out_get_500() {
    let spec = |path: &str, kind: &str| {
        format!(
            "rules: [{{host: a.test, http: {{paths: [{{path: '{path}', pathType: {kind}, backend: {{service: {{name: app, port: {{number: 80}}}}}}}}]}}}}]"
        )
    };
    let prefix = "nginx.ingress.kubernetes.io";
    for (annotations, path, kind, cases) in [
        (
            "auth-url: 'http://x/'",
            "/admin",
            "Prefix",
            &[("/admin/x", "500"), ("/adminx", "default/app:80")][..],
        ),
        (
            "whitelist-source-range: 10.0.0.0/8",
            "/admin",
            "Exact",
            &[("/admin", "500"), ("/admin/x", "default/app:80")],
        ),
        (
            "auth-type: basic, nginx.ingress.kubernetes.io/use-regex: 'true'",
            "/adm[a-z]+",
            "Prefix",
            &[("/ADMIN/x", "500"), ("/adm", "default/app:80")],
        ),
        (
            "auth-tls-secret: ca, nginx.ingress.kubernetes.io/rewrite-target: /$2",
            "/admin(/|$)(.*)",
            "Prefix",
            &[("/admin/x", "500"), ("/admin", "500"), ("/adminx", "default/app:80")],
        ),
        (
            "auth-url: 'http://x/', nginx.ingress.kubernetes.io/canary: 'true'",
            "/admin",
            "Prefix",
            &[("/admin/x", "default/app:80")],
        ),
    ] {
        let protected = ingress("admin", &format!("{prefix}/{annotations}"), &spec(path, kind));
        let found = converted(&(protected + &ingress("open", "", &spec("/", "Prefix"))));
        assert_eq!((found.left_out, found.converted), (1, 1), "{annotations}");
        assert_accepted(&found);
        let translation = served(&found, SERVICES);
        for (path, expected) in cases {
            assert_eq!(
                translation.response(&format!("http://a.test{path}")),
                *expected,
                "{annotations} {path}"
            );
        }
    }
}

/// The same with each way in which another Ingress of the host could get requests of the protected one.
#[test]
fn open_ingresses_get_no_requests_of_protected_ones() {
    let made =
        |name: &str, year: u16, annotations: &[(&str, &str)], kind: &str, path: &str, service: &str| {
            let annotations: Vec<String> = annotations
                .iter()
                .map(|(name, value)| format!("nginx.ingress.kubernetes.io/{name}: '{value}'"))
                .collect();
            let spec =
                format!("rules: [{{host: a.test, http: {{paths: [{}]}}}}]", self::path(path, kind, service));
            ingress(name, &annotations.join(", "), &spec).replace(
                &format!("name: {name}\n"),
                &format!("name: {name}\n  creationTimestamp: '{year}-01-01T00:00:00Z'\n"),
            )
        };
    const AUTH: (&str, &str) = ("auth-url", "http://x/");
    const REGEX: (&str, &str) = ("use-regex", "true");
    const REWRITE: (&str, &str) = ("rewrite-target", "/$2");
    const ANY: &str = "ImplementationSpecific";
    const APP: &str = "default/app:80";
    let long = format!("/admin/(?:{})?+x", "a".repeat(900));
    type Case<'c> = (&'c [(&'c str, &'c str)], &'c str, &'c str, &'c [(&'c str, &'c str)], &'c str, &'c str);
    let cases: &[(Case<'_>, &[(&str, &str)])] = &[
        // Nothing is an expression: the start of the path counts, with its case.
        (
            (&[AUTH], ANY, "/wp-login", &[], "Prefix", "/"),
            &[
                ("/wp-login", "500"),
                ("/wp-login.php", "500"),
                ("/wp-login/x", "500"),
                ("/WP-LOGIN", APP),
                ("/wp", APP),
            ],
        ),
        ((&[AUTH], ANY, "/a.b", &[], "Prefix", "/"), &[("/a.bc", "500"), ("/aXb", APP)]),
        ((&[AUTH], ANY, "/a/", &[], "Prefix", "/"), &[("/a/b", "500"), ("/ab", APP)]),
        // Expressions ignore case.
        (
            (&[AUTH, REWRITE], ANY, "/admin(/|$)(.*)", &[], "Prefix", "/"),
            &[("/admin", "500"), ("/ADMIN/x", "500"), ("/adminx", APP)],
        ),
        // The longest expression is tried first.
        (
            (&[AUTH, REWRITE], ANY, "/admin(/|$)(.*)", &[REGEX], ANY, "/a.*"),
            &[("/admin/x", "500"), ("/adminx", APP)],
        ),
        ((&[AUTH], ANY, "/admin/[a-z]++/x", &[REGEX], ANY, "/admin/[a-z]+"), &[("/admin/a/x", "500")]),
        ((&[AUTH], ANY, &long, &[REGEX], ANY, "/admin/[a-z]+[a-z]*"), &[("/admin/x", "500")]),
        ((&[AUTH, REGEX], ANY, "/(?!x)ad", &[], ANY, "/(?:ad)"), &[("/ad", "500")]),
        ((&[AUTH, REGEX], ANY, "/(?!x)admin", &[], ANY, "/ad(mi)?n"), &[("/admin", "500")]),
        // The same path twice.
        ((&[AUTH], "Prefix", "/admin", &[], "Prefix", "/admin"), &[("/admin/x", "500")]),
        ((&[AUTH], "Prefix", "/admin", &[], ANY, "/admin"), &[("/admin/x", "500")]),
    ];
    for ((annotations, kind, path, others, other_kind, other), requests) in cases {
        // By name, each comes before the other.
        for (name, open) in [("admin", "open"), ("z", "open")] {
            let found = converted(
                &(made(name, 2020, annotations, kind, path, "new")
                    + &made(open, 2021, others, other_kind, other, "app")),
            );
            let translation = served(&found, SERVICES);
            let faults = route_faults(&translation);
            assert!(faults.iter().all(|it| it.contains("the same requests")), "{faults:?}");
            for (request, expected) in *requests {
                let response = translation.response(&format!("http://a.test{request}"));
                assert_eq!(
                    response, *expected,
                    "{request} of {path} beside {other}, {name}: {:?}",
                    found.lost
                );
            }
        }
    }
    // In ingress-nginx, the older one has the path.
    for name in ["admin", "z"] {
        let found = converted(
            &(made(name, 2021, &[AUTH], "Prefix", "/admin", "new")
                + &made("open", 2020, &[], "Prefix", "/admin", "app")),
        );
        assert_eq!(served(&found, SERVICES).response("http://a.test/admin/x"), APP, "{:?}", found.lost);
        assert!(
            found.lost.iter().any(|it| it.contains("the older Ingress default/open has it")),
            "{:?}",
            found.lost
        );
    }
    // An alias that is the host of another Ingress, and one of two.
    let alias = |host: &str, service: &str| {
        format!("rules: [{{host: {host}, http: {{paths: [{}]}}}}]", self::path("/", "Prefix", service))
    };
    let prefix = "nginx.ingress.kubernetes.io";
    let found = converted(
        &(ingress(
            "own",
            &format!("{prefix}/auth-url: 'http://x/', {prefix}/server-alias: c.test"),
            &alias("a.test", "app"),
        ) + &ingress(
            "other",
            &format!("{prefix}/server-alias: 'a.test, c.test'"),
            &alias("b.test", "new"),
        )),
    );
    let translation = served(&found, SERVICES);
    assert_eq!(translation.response("http://a.test/"), "500", "{:?}", found.lost);
    assert_eq!(translation.response("http://b.test/"), "default/new:80");
    assert_eq!(translation.response("http://c.test/"), "default/new:80", "the oldest by name");
}

/// A prefix with a rewrite comes after all expressions: a plain path above it stays one.
#[test]
fn prefixes_with_rewrites_keep_their_requests() {
    let spec = |path: &str, service: &str| {
        format!(
            "rules: [{{host: a.test, http: {{paths: [{}]}}}}]",
            self::path(path, "ImplementationSpecific", service)
        )
    };
    let rewrite = "nginx.ingress.kubernetes.io/rewrite-target: /$2";
    for (other, request, expected, lost) in [
        ("/ap", "/api/x", "default/new:80 /x", "the path `/ap` minds case"),
        ("/api/v1/users/list", "/api/v1/users/list", "default/app:80", ""),
        ("/api/v1", "/api/v1", "default/app:80", "before the prefix `/api`, which came first"),
        ("/ap[a-z]", "/api/x", "default/app:80", "before the prefix `/api`, which came first"),
        ("/b", "/api/x", "default/new:80 /x", ""),
        ("/", "/api/x", "default/new:80 /x", ""),
    ] {
        let found = converted(
            &(ingress("api", rewrite, &spec("/api(/|$)(.*)", "new"))
                + &ingress("other", "", &spec(other, "app"))),
        );
        assert_accepted(&found);
        assert_eq!(
            served(&found, SERVICES).response(&format!("http://a.test{request}")),
            expected,
            "{other}"
        );
        assert!(
            found.lost.iter().any(|it| it.contains("the prefix `/api`, which minds case")),
            "{:?}",
            found.lost
        );
        assert_eq!(found.lost.len(), if lost.is_empty() { 1 } else { 2 }, "{other}: {:?}", found.lost);
        assert!(found.lost.iter().any(|it| it.contains(lost)), "{other}: {:?}", found.lost);
    }
}

/// An HTTPRoute has at most 16 rules.
#[test]
fn many_paths_of_a_host_become_several_routes() {
    let paths: Vec<String> = (0..40).map(|at| path(&format!("/p{at}"), "Prefix", "app")).collect();
    let limit = "nginx.ingress.kubernetes.io/limit-rps: '5'";
    let found = converted(&ingress(
        "main",
        limit,
        &format!("rules: [{{host: a.test, http: {{paths: [{}]}}}}]", paths.join(", ")),
    ));
    let counts: Vec<usize> =
        routes(&found).iter().map(|it| it["spec"]["rules"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [16, 16, 8]);
    assert_accepted(&found);
    assert_eq!(served(&found, SERVICES).response("http://a.test/p39/x"), "default/app:80");
    let policy = found.objects.iter().find(|it| it["kind"] == "LimitPolicy").unwrap();
    assert_eq!(policy["spec"]["targetRefs"].as_array().unwrap().len(), 3);
}
