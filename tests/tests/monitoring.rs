//! The Grafana board and the alert rules in `packaging/monitoring`: every metric and label in them is one that a server has.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use flatout_tests::authority::Authority;
use flatout_tests::{Folder, Server, program};

fn packaged(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/monitoring").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The metrics of a server that uses all that has metrics: their names with the labels of their samples.
fn metrics() -> BTreeMap<String, BTreeSet<String>> {
    let folder = Folder::new();
    let authority = Authority::new();
    authority.sign("server", "localhost");
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let SocketAddr::V4(address) = upstream.local_addr().unwrap() else { panic!("an IPv4 address") };
    let path = |name: &str| folder.0.join(name).display().to_string();
    let (admin, log, cache) = (path("admin.sock"), path("access.log"), path("cache"));
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    // No server is at this address: the connection to the bus is missing, and has metrics.
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nadmin \"unix:{admin}\"\naccess-log \"{log}\"\ncache-dir \"{cache}\"\ntls \"{certificate}\" \"{key}\"\n\
             bus \"nats://127.0.0.1:1\"\nupstream \"api\" {{ server \"http://{address}\"; }}\n\
             site \"*\" {{ route \"/live\" {{ push; push-token secret; }}; route \"/\" {{ proxy api; cache \"10s\"; }}; }}\n"
        ),
    );
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    let server = Server::start(command);
    let counted = authority.curl("localhost", server.secure_port.unwrap(), "/live/a?presence=1", &[]);
    assert_eq!(counted.as_deref(), Ok("{\"a\":0}"));
    let mut stream = UnixStream::connect(&admin).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for line in body.lines() {
        // Families without a sample yet are listed by their type; counters have a suffix in samples.
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let suffixes: &[&str] = match kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_count", "_sum"],
                _ => &[""],
            };
            for suffix in suffixes {
                found.entry(format!("{name}{suffix}")).or_default();
            }
        }
        if let Some((name, rest)) = line.split_once('{') {
            let labels = rest.split_once('}').map_or("", |(labels, _)| labels);
            let labels = labels.split("\",").filter_map(|label| label.split_once("=\""));
            let names = labels.map(|(name, _)| name.to_owned());
            found.entry(name.to_owned()).or_default().extend(names);
        }
    }
    found
}

/// The metrics in an expression, each with the labels that select from it.
fn used(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |byte: char| byte.is_ascii_lowercase() || byte == '_';
    let mut rest = expression;
    let mut found = Vec::new();
    while let Some(at) = ["flatout_", "process_"].iter().filter_map(|prefix| rest.find(prefix)).min() {
        rest = &rest[at..];
        let length = rest.find(|byte| !is_name(byte)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(length);
        let selected =
            after.strip_prefix('{').and_then(|after| after.split_once('}')).map_or("", |(labels, _)| labels);
        let label = |text: &str| text.trim().split(['=', '!']).next().unwrap_or("").to_owned();
        found.push((
            name.to_owned(),
            selected.split(',').map(label).filter(|label| !label.is_empty()).collect(),
        ));
        rest = after;
    }
    found
}

/// The labels by which an expression groups.
fn groups(expression: &str) -> impl Iterator<Item = &str> {
    let lists = expression.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    lists.flat_map(|(labels, _)| labels.split(',').map(str::trim))
}

#[test]
fn board_and_alerts_use_existing_metrics() {
    let metrics = metrics();
    let board: serde_json::Value = serde_json::from_str(&packaged("grafana.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut expressions: Vec<String> =
        targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    let rules = packaged("alerts.yml");
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    for alert in &alerts {
        let (_, expression) = alert.split_once("expr:").unwrap();
        expressions.push(expression.split("labels:").next().unwrap().to_owned());
    }
    assert!(panels.len() >= 15 && alerts.len() >= 10, "{} panels, {} alerts", panels.len(), alerts.len());
    // Prometheus adds these.
    let added = ["job", "instance", "le"];
    for expression in &expressions {
        let used = used(expression);
        assert!(!used.is_empty() || expression.contains("up{"), "no metric: {expression}");
        for (name, labels) in &used {
            let known = metrics.get(name).unwrap_or_else(|| panic!("no metric {name}: {expression}"));
            for label in labels.iter().map(String::as_str).chain(groups(expression)) {
                assert!(
                    added.contains(&label) || known.contains(label) || known.is_empty(),
                    "{name} has no label {label}: {expression}"
                );
            }
        }
    }
}

/// Prometheus's own tool, where it is installed.
#[test]
fn promtool_accepts_the_alert_rules() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/monitoring/alerts.yml");
    let Ok(output) = Command::new("promtool").args(["check", "rules"]).arg(path).output() else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
