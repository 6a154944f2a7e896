//! The rights in the manifests: all that the controller reads and writes, and nothing else.

use std::collections::BTreeSet;
use std::path::Path;

use flatout_controller::objects::KINDS;
use serde_json::Value;

/// What has a status that the controller writes.
const WRITTEN: &[&str] = &[
    "Ingress",
    "GatewayClass",
    "Gateway",
    "ListenerSet",
    "HTTPRoute",
    "GRPCRoute",
    "TLSRoute",
    "BackendTLSPolicy",
    "CachePolicy",
    "LimitPolicy",
];

/// The rights in the ClusterRole, as verb, group and resource.
fn rights() -> BTreeSet<(String, String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/base/rbac.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let objects = flatout_controller::yaml::objects(&text).unwrap();
    let role = objects.into_iter().find(|it| it["kind"] == "ClusterRole").unwrap();
    let list = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let mut found = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for verb in list(&rule["verbs"]) {
            for group in list(&rule["apiGroups"]) {
                for resource in list(&rule["resources"]) {
                    found.insert((verb.clone(), group.clone(), resource));
                }
            }
        }
    }
    found
}

#[test]
fn the_controller_has_the_rights_that_it_needs_and_no_others() {
    let mut needed = BTreeSet::new();
    for kind in KINDS {
        for verb in ["get", "list", "watch"] {
            needed.insert((verb.to_owned(), kind.group.to_owned(), kind.plural.to_owned()));
        }
        if WRITTEN.contains(&kind.name) {
            needed.insert(("patch".to_owned(), kind.group.to_owned(), format!("{}/status", kind.plural)));
        }
    }
    for verb in ["create", "patch"] {
        needed.insert((verb.to_owned(), "events.k8s.io".to_owned(), "events".to_owned()));
    }
    assert_eq!(rights(), needed);
}

#[test]
fn the_own_kinds_are_defined() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/base/policies.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let objects = flatout_controller::yaml::objects(&text).unwrap();
    for kind in KINDS.iter().filter(|kind| kind.group == "flatout.dev") {
        let name = format!("{}.{}", kind.plural, kind.group);
        let object = objects.iter().find(|it| it["metadata"]["name"] == name.as_str()).unwrap();
        assert_eq!(object["spec"]["names"]["kind"], kind.name);
        let versions = object["spec"]["versions"].as_array().unwrap();
        let version = versions.iter().find(|it| it["name"] == kind.version).unwrap();
        assert!(version["served"] == true && version["subresources"]["status"].is_object());
    }
}
