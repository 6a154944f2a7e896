//! Servers by SRV records: a scripted name server on loopback decides who they are.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::{Arc, Mutex};

use flatout_tests::peers::free_port;
use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Folder, program, until};

use crate::live_upstreams::{Site, json, start, write};

/// What the name server says.
#[derive(Clone)]
enum Script {
    /// These records, each with priority, weight, port and target, for one second.
    Records(Vec<(u16, u16, u16, &'static str)>),
    NoSuchName,
    Silent,
    /// Bytes that are no response.
    Malformed,
}

/// A name server: each target is at 127.0.0.1.
struct NameServer {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
}

fn name_of(text: &str) -> Vec<u8> {
    let labels = text.split('.').filter(|label| !label.is_empty());
    let mut bytes: Vec<u8> =
        labels.flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat()).collect();
    bytes.push(0);
    bytes
}

fn response(query: &[u8], script: &Script) -> Option<Vec<u8>> {
    let end = 12 + query[12..].iter().position(|&byte| byte == 0)? + 5;
    let kind = query[end - 3];
    let mut records: Vec<Vec<u8>> = Vec::new();
    let mut code = 0;
    match (kind, script) {
        (1, _) => records.push(vec![127, 0, 0, 1]),
        (33, Script::Records(of)) => {
            let bytes = |(priority, weight, port, target): &(u16, u16, u16, &str)| {
                let numbers = [priority, weight, port].iter().flat_map(|it| it.to_be_bytes()).collect();
                [numbers, name_of(target)].concat()
            };
            records.extend(of.iter().map(bytes));
        }
        (33, Script::NoSuchName) => code = 3,
        (33, Script::Silent) => return None,
        (33, Script::Malformed) => return Some(vec![query[0], query[1], 0xff]),
        _ => {}
    }
    let mut answer = [&query[..2], &[0x81, 0x80 | code, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]].concat();
    answer.extend_from_slice(&query[12..end]);
    for data in records {
        answer.extend_from_slice(&[0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 1]);
        answer.extend_from_slice(&(data.len() as u16).to_be_bytes());
        answer.extend_from_slice(&data);
    }
    Some(answer)
}

impl NameServer {
    fn start(script: Script) -> NameServer {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (address, script) = (socket.local_addr().unwrap(), Arc::new(Mutex::new(script)));
        let followed = script.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok((count, from)) = socket.recv_from(&mut buffer) {
                let script = followed.lock().unwrap().clone();
                if let Some(bytes) = response(&buffer[..count], &script) {
                    let _ = socket.send_to(&bytes, from);
                }
            }
        });
        NameServer { address, script }
    }

    fn say(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    /// A proxy with a service, and these further settings of its upstream.
    fn site(&self, settings: &str) -> Site {
        let folder = Folder::new();
        self.write(&folder, settings);
        let server = start(&folder);
        Site { folder, server }
    }

    fn write(&self, folder: &Folder, settings: &str) {
        write(folder, &[], &format!("    server \"srv+http://_http._tcp.api.test\"\n{settings}"));
        let text = std::fs::read_to_string(folder.0.join("site.kdl")).unwrap();
        folder.write("site.kdl", format!("resolver \"{}\"\n{text}", self.address));
    }
}

fn line(site: &Site, server: &str) -> Option<String> {
    let list = site.upstream(&["list", "app"]).unwrap();
    list.lines().find(|line| line.contains(&format!(" {server} "))).map(str::to_owned)
}

#[test]
fn records_are_followed_and_failures_keep_the_last_servers() {
    let ports = [free_port(), free_port(), free_port()];
    let _servers = ports.map(json);
    let [a, b, c] = ["a", "b", "c"]
        .iter()
        .zip(ports)
        .map(|(name, port)| format!("{name}.api.test:{port}"))
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let records = |last: bool| {
        let mut of = vec![(10, 7, ports[0], "a.api.test"), (20, 0, ports[1], "b.api.test")];
        if last {
            of.push((10, 3, ports[2], "c.api.test"));
        }
        Script::Records(of)
    };
    let names = NameServer::start(records(false));
    let site = names.site("");
    let first = line(&site, &a).unwrap();
    assert!(first.contains("  7  ") && !first.contains("backup"), "at the start already: {first}");
    assert!(line(&site, &b).unwrap().contains(", backup"));
    assert_eq!(site.server.get("/json", "").status, 200);

    names.say(records(true));
    until("the new record is used", || line(&site, &c).is_some_and(|it| it.contains("  3  ")));
    names.say(Script::Records(vec![(0, 1, ports[2], "c.api.test")]));
    until("the others have left", || line(&site, &a).is_none() && line(&site, &b).is_none());
    let bad_port = Script::Records(vec![(0, 1, 0, "c.api.test")]);
    let none = Script::Records(vec![(0, 0, 0, ".")]);
    for (script, why) in [
        (Script::NoSuchName, "the name does not exist (NXDOMAIN)"),
        (Script::Records(Vec::new()), "it has no SRV records"),
        (bad_port, "a record has the target `c.api.test` and the port 0"),
        (none, "there is no such service"),
    ] {
        names.say(script);
        until(why, || {
            site.server
                .said()
                .iter()
                .any(|line| line.contains(why) && line.contains("1 servers found before"))
        });
        assert!(line(&site, &c).is_some());
        assert_eq!(site.server.get("/json", "").status, 200);
    }
    let metrics = site.page("/metrics");
    let labels = "{upstream=\"app\",source=\"srv+http://_http._tcp.api.test\"}";
    assert!(metrics.contains(&format!("flatout_upstream_source_valid{labels} 0\n")), "{metrics}");
    for script in [Script::Silent, Script::Malformed] {
        names.say(script);
        // A reload does not wait for the name server: it has the last servers.
        site.reload();
        assert!(line(&site, &c).is_some());
        assert_eq!(site.server.get("/json", "").status, 200);
    }
    names.say(records(false));
    until("records are used again", || line(&site, &a).is_some() && line(&site, &c).is_none());
    let metrics = site.page("/metrics");
    assert!(metrics.contains(&format!("flatout_upstream_source_valid{labels} 1\n")), "{metrics}");

    // DNS owns the list; operators drain.
    let why = site.upstream(&["add", "app", "127.0.0.1:1"]).unwrap_err();
    assert!(why.contains("are those of srv+http://_http._tcp.api.test: change them there"), "{why}");
    site.upstream(&["drain", "app", &a]).unwrap();
    site.reload();
    // The name server fails just when the new process starts: it takes over the servers too.
    names.say(Script::NoSuchName);
    let replaced = orphan(&upgrade(&site.admin()).unwrap());
    until("the new process has the servers and the mark", || {
        site.upstream(&["list"]).is_ok() && line(&site, &a).is_some_and(|it| it.contains("draining"))
    });
    assert!(line(&site, &b).is_some_and(|it| it.contains(", backup")));
    assert!(site.has_logged("could not be looked up; its 2 servers of before the upgrade are used"));
    assert_eq!(site.server.get("/json", "").status, 200);
    names.say(records(true));
    until("the new process follows the records", || line(&site, &c).is_some());
    drop(replaced);
}

#[test]
fn a_service_without_records_starts_and_gets_its_servers_later() {
    let port = free_port();
    let _server = json(port);
    let names = NameServer::start(Script::NoSuchName);
    let site =
        names.site("    health-check \"/json\" interval=\"50ms\"\n    balance sticky\n    eject-outliers on");
    assert!(
        site.has_logged("upstream app: srv+http://_http._tcp.api.test: the name does not exist (NXDOMAIN)")
    );
    assert_eq!(site.server.get("/json", "").status, 503);
    let check =
        Command::new(program("flatout")).arg("check").arg(site.folder.0.join("site.kdl")).output().unwrap();
    let text = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(
        check.status.success() && text.contains("srv+http://_http._tcp.api.test: the name does not exist"),
        "{text}"
    );
    names.say(Script::Records(vec![(0, 1, port, "a.api.test")]));
    until("the server is used", || site.server.get("/json", "").status == 200);
    let explain = Command::new(program("flatout"))
        .args(["explain", "GET", "http://t/x", "-c"])
        .arg(site.folder.0.join("site.kdl"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&explain.stdout).into_owned();
    assert!(text.contains("app: srv+http://_http._tcp.api.test"), "{text}");
}

#[test]
fn proxy_and_to_take_a_service() {
    let port = free_port();
    let _server = json(port);
    let names = NameServer::start(Script::Records(vec![(0, 1, port, "a.api.test")]));
    let folder = Folder::new();
    let service = "srv+http://_http._tcp.api.test";
    folder.write("site.kdl", format!("resolver \"{}\"\nproxy \"{service}\"\n", names.address));
    let run = |args: &[&str]| {
        let output = Command::new(program("flatout")).args(args).current_dir(&folder.0).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let (is_valid, text) = run(&["check", "site.kdl"]);
    assert!(is_valid, "{text}");
    let (_, text) = run(&["explain", "GET", "http://t/x", "-c", "site.kdl"]);
    assert!(text.contains(service), "{text}");
    let (is_valid, text) = run(&["serve", "--to", "srv+http://api.test:80"]);
    assert!(
        !is_valid && text.contains("--to: got `srv+http://api.test:80`: SRV records name the ports"),
        "{text}"
    );
}

#[test]
fn mistakes_have_their_place() {
    let folder = Folder::new();
    for (server, why) in [
        ("server \"srv+http://api.test:80\"", "SRV records name the ports"),
        ("server \"srv+ftp://api.test\"", "need srv+http://NAME or srv+https://NAME"),
        ("server \"srv+http://a..b\"", "need a name such as"),
        ("server \"srv+http://api.test\" weight=2", "SRV records have priorities and weights"),
    ] {
        folder.write("site.kdl", format!("upstream app {{\n    {server}\n}}\nproxy app\n"));
        let output = Command::new(program("flatout"))
            .args(["check", "--elsewhere"])
            .arg(folder.0.join("site.kdl"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("site.kdl:2:") && text.contains(why), "{text}");
    }
    for (addresses, why) in
        [("\"dns.test\"", "got `dns.test`, need an IP address"), ("\"10.0.0.1:0\"", "need an IP address")]
    {
        folder.write("site.kdl", format!("resolver {addresses}\nrespond 200\n"));
        let output =
            Command::new(program("flatout")).arg("check").arg(folder.0.join("site.kdl")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("site.kdl:1:") && text.contains(why), "{text}");
    }
}
