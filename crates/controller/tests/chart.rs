//! The Helm chart: with its own values it makes what the plain manifests are. `./x package` builds Helm; without it, the tests are skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

/// What the chart is rendered for: a version that has everything it uses.
const KUBERNETES: &str = "1.35.4";

fn kubernetes_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes")
}

/// Helm, as `./x package` has built it, or as it is installed.
fn helm() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin/helm");
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&paths).map(|folder| folder.join("helm"));
    std::iter::once(built).chain(installed).find(|path| path.exists())
}

fn render(helm: &Path, values: &[&str]) -> Output {
    let mut command = Command::new(helm);
    command.args(["template", "flatout"]).arg(kubernetes_folder().join("chart"));
    command.args(["--namespace", "flatout-system", "--kube-version", KUBERNETES]);
    for value in values {
        command.args(["--set", value]);
    }
    command.output().unwrap()
}

/// Objects by kind and name.
type ByName = BTreeMap<String, Value>;

fn read(texts: &[String]) -> ByName {
    let mut all = ByName::new();
    for text in texts {
        for object in flatout_controller::yaml::objects(text).unwrap() {
            let text = |pointer: &str| {
                object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let name = format!("{} {}", text("/kind"), text("/metadata/name"));
            assert!(all.insert(name.clone(), object).is_none(), "{name} is there twice");
        }
    }
    all
}

fn rendered(helm: &Path, values: &[&str]) -> ByName {
    let output = render(helm, values);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    read(&[String::from_utf8(output.stdout).unwrap()])
}

/// The plain manifests, as kustomize puts them into their namespace.
fn plain(files: &[&str]) -> ByName {
    let text = |name: &&str| std::fs::read_to_string(kubernetes_folder().join(name)).unwrap();
    let common = ["base/rbac.yaml", "base/policies.yaml", "base/gateway-class.yaml"];
    let mut all = read(&common.iter().chain(files).map(text).collect::<Vec<_>>());
    for object in all.values_mut() {
        if !["ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "GatewayClass"]
            .iter()
            .any(|kind| object["kind"] == *kind)
        {
            object["metadata"]["namespace"] = json!("flatout-system");
        }
    }
    all
}

#[test]
fn the_chart_makes_the_plain_manifests() {
    let Some(helm) = helm() else { return };
    assert_eq!(rendered(&helm, &[]), plain(&["deployment.yaml"]));
    let split = plain(&["split/controller.yaml", "split/data-planes.yaml"]);
    assert_eq!(rendered(&helm, &["split=true"]), split);
}

#[test]
fn values_of_the_chart_have_an_effect() {
    let Some(helm) = helm() else { return };
    let values = [
        "image=registry.test/flatout:1",
        "class=edge",
        "args={--publish=edge.test}",
        "autoscaling.enabled=false",
        "replicas=5",
        "resources.requests.cpu=2",
        "maxUnavailable=50%",
        "spreadOver=",
        "drainSeconds=3",
        "terminationSeconds=90",
        "service.type=ClusterIP",
    ];
    let all = rendered(&helm, &values);
    let at = |object: &str, pointer: &str| all[object].pointer(pointer).cloned().unwrap_or_default();
    let pod = |pointer: &str| at("Deployment flatout", &format!("/spec/template/spec{pointer}"));
    assert_eq!(pod("/containers/0/image"), "registry.test/flatout:1");
    assert!(pod("/containers/0/args").as_array().unwrap().contains(&json!("--publish=edge.test")));
    assert_eq!(pod("/containers/0/resources/requests/cpu"), 2);
    assert_eq!(pod("/containers/0/lifecycle/preStop/sleep/seconds"), 3);
    assert_eq!(
        (pod("/terminationGracePeriodSeconds"), pod("/topologySpreadConstraints")),
        (json!(90), Value::Null)
    );
    assert_eq!(at("Deployment flatout", "/spec/replicas"), 5);
    assert_eq!(at("PodDisruptionBudget flatout", "/spec/maxUnavailable"), "50%");
    assert_eq!(at("Service flatout", "/spec/type"), "ClusterIP");
    assert_eq!(
        at("Service flatout", "/spec/externalTrafficPolicy"),
        Value::Null,
        "clusters refuse it for this type"
    );
    assert!(all.contains_key("GatewayClass edge"));
    assert!(!all.keys().any(|name| name.starts_with("HorizontalPodAutoscaler")));
    let split = rendered(&helm, &["split=true", "plansSecret=own", "controller.replicas=3"]);
    assert_eq!(split["Deployment flatout-controller"]["spec"]["replicas"], 3);
    for name in ["flatout", "flatout-controller"] {
        let volumes = &split[&format!("Deployment {name}")]["spec"]["template"]["spec"]["volumes"];
        assert_eq!(volumes[1]["secret"]["secretName"], "own", "{name}");
    }
}

#[test]
fn mistakes_in_values_of_the_chart_are_refused() {
    let Some(helm) = helm() else { return };
    for (value, reason) in [
        ("replicas=0", "minimum: got 0, want 1"),
        ("repicas=2", "additional properties 'repicas' not allowed"),
        ("split=maybe", "got string, want boolean"),
        ("class=Not A Name", "does not match pattern"),
        ("service.type=ExternalName", "value must be one of"),
    ] {
        let output = render(&helm, &[value]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(reason), "{value}: {text}");
    }
}
