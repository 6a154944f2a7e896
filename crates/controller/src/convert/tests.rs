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
    let class = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: flatout}\n\
                 spec: {controllerName: flatout.dev/controller}\n---\n";
    let mut objects = Objects::default();
    for value in yaml::objects(&format!("{class}{SERVICES}")).unwrap().into_iter().chain(read_again(found)) {
        objects.insert(value).unwrap();
    }
    let settings = Settings {
        controller_name: crate::CONTROLLER_NAME.to_owned(),
        addresses: vec!["10.0.0.1".parse().unwrap()],
        published: Vec::new(),
        health: None,
        refused: BTreeSet::new(),
        assigned: BTreeMap::new(),
        folder: "/certificates".into(),
    };
    for status in translate(&objects, &settings).statuses.iter().filter(|it| it.kind.name == "HTTPRoute") {
        let faults = status.faults();
        assert!(faults.is_empty(), "{}: {faults:?}", status.key);
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
        ("/", "/app", "PathPrefix", "/app", json!({"type": "ReplaceFullPath", "replaceFullPath": "/"})),
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
        assert_accepted(&found);
    }
    for (target, from) in
        [("/$3", "/a(/|$)(.*)"), ("/$1/$2", "/(a|b)/(.*)"), ("x", "/"), ("/x?y", "/"), ("/x", "/a(.*)")]
    {
        let found = rewritten(target, from);
        assert!(routes(&found).is_empty() && found.lost.len() == 1, "{target}: {:?}", found.lost);
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
    assert!(alone.objects.is_empty() && alone.lost.iter().any(|it| it.contains("no other Ingress")));
}

#[test]
fn protection_is_never_dropped_and_losses_are_reported() {
    let spec = format!("rules: [{{host: a.test, http: {{paths: [{}]}}}}]", path("/", "Prefix", "app"));
    for name in
        ["auth-url", "auth-type", "whitelist-source-range", "configuration-snippet", "auth-tls-secret"]
    {
        let found = converted(&ingress("main", &format!("nginx.ingress.kubernetes.io/{name}: x"), &spec));
        assert_eq!((found.left_out, found.objects.len()), (1, 0), "{name}");
        assert!(found.lost[0].contains("left out") && found.lost[0].contains(name), "{:?}", found.lost);
    }
    let annotations = "nginx.ingress.kubernetes.io/affinity: cookie, nginx.ingress.kubernetes.io/backend-protocol: GRPC, other/x: z";
    let found = converted(&ingress("main", annotations, &spec));
    assert_eq!((found.lost.len(), routes(&found).len()), (2, 1), "{:?}", found.lost);
    let missing = spec.replace("{number: 80}", "{name: unknown}");
    let found = converted(&ingress("main", "", &missing));
    assert!(found.objects.is_empty() && found.lost[0].contains("unknown"), "{:?}", found.lost);
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
