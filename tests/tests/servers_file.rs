//! `servers-file`: the servers of an upstream follow a file, without a reload.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use flatout_tests::authority::self_sign;
use flatout_tests::peers::free_port;
use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Folder, Server, Signal, program, until};

use crate::live_upstreams::{Site, json, start, write};

const FILE: &str = "api.servers";

const SETTING: &str = "    servers-file \"api.servers\"";

/// Replaces a file in one step, as deployment tools do.
fn replace(folder: &Folder, text: &str) {
    folder.write("api.servers.new", text);
    fs::rename(folder.0.join("api.servers.new"), folder.0.join(FILE)).unwrap();
}

fn line(port: u16, words: &str) -> String {
    format!("127.0.0.1:{port} {words}\n")
}

/// Whether the upstream has these servers and no others.
fn has(site: &Site, ports: &[u16]) -> bool {
    let list = site.upstream(&["list", "app"]).unwrap();
    let servers = list.lines().filter(|line| line.starts_with("app ") && line.contains("127.0.0.1:"));
    servers.count() == ports.len() && ports.iter().all(|&port| site.line(port).is_some())
}

/// What a command that fails prints.
fn refused(arguments: &[&str], file: &Path) -> String {
    let output = Command::new(program("flatout")).args(arguments).arg(file).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success(), "{text}");
    text
}

#[test]
fn servers_follow_the_file_and_a_file_with_a_mistake_changes_nothing() {
    let ports = [free_port(), free_port(), free_port()];
    let _servers = ports.map(json);
    let folder = Folder::new();
    folder.write(FILE, line(ports[0], "") + &line(ports[1], "weight=3"));
    let site = Site::in_folder(folder, &[], SETTING);
    assert!(has(&site, &ports[..2]) && site.line(ports[1]).unwrap().contains("  3  "));
    let mut client = site.server.connect();
    let mut get = || crate::live_upstreams::status(&mut client);
    assert_eq!(get(), "200");

    replace(&site.folder, &(line(ports[1], "drain # for a deployment") + &line(ports[2], "backup")));
    until("the servers follow", || {
        has(&site, &ports[1..]) && site.line(ports[1]).unwrap().contains("  draining")
    });
    assert!(site.line(ports[2]).unwrap().contains(", backup"));
    assert_eq!(get(), "200", "on the same connection");
    let added = format!("added 127.0.0.1:{}; removed 127.0.0.1:{}; new weight for", ports[2], ports[0]);
    until("the log has it", || site.has_logged(&added) && site.has_logged("it has 2 servers now"));

    // Written in place, with mistakes, then without a server, then removed.
    let bad = [
        ("127.0.0.1:1 weight=0\n127.0.0.1\n", "line 1: got weight=0"),
        ("# none\n", "there is no server in it"),
    ];
    for (text, why) in bad {
        site.folder.write(FILE, text);
        until("the mistake is logged", || {
            site.has_logged(why) && site.has_logged("the 2 servers found before stay in use")
        });
        assert!(has(&site, &ports[1..]));
    }
    fs::remove_file(site.folder.0.join(FILE)).unwrap();
    until("the loss is logged", || site.has_logged("No such file or directory"));
    assert!(has(&site, &ports[1..]));
    let list = site.upstream(&["list"]).unwrap();
    assert!(list.contains("2 servers, last good list: No such file"), "{list}");
    let metrics = site.page("/metrics");
    let labels =
        format!("{{upstream=\"app\",source=\"servers-file {}\"}}", site.folder.0.join(FILE).display());
    assert!(metrics.contains(&format!("flatout_upstream_source_valid{labels} 0\n")), "{metrics}");
    assert!(metrics.contains(&format!("flatout_upstream_source_problems_total{labels} 3\n")), "{metrics}");
    until("the live page has it", || site.page("/status").contains("\"problem\":\"servers-file "));

    replace(&site.folder, &line(ports[0], "weight=2"));
    until("a good file is used again", || has(&site, &ports[..1]));
    let metrics = site.page("/metrics");
    assert!(metrics.contains(&format!("flatout_upstream_source_valid{labels} 1\n")), "{metrics}");
    assert_eq!(get(), "200");
    assert!(site.server.said().iter().all(|line| !line.contains("reloaded")));
}

#[test]
fn a_config_map_and_links_on_the_way_are_followed() {
    let ports = [free_port(), free_port(), free_port()];
    let _servers = ports.map(json);
    let folder = Folder::new();
    let version = |name: &str, port: u16| {
        fs::create_dir(folder.0.join(name)).unwrap();
        folder.write(&format!("{name}/{FILE}"), line(port, ""));
    };
    version("..1", ports[0]);
    symlink("..1", folder.0.join("..data")).unwrap();
    symlink("..data/api.servers", folder.0.join(FILE)).unwrap();
    version("..2", ports[1]);
    // The same behind a link to a folder: inotify sees nothing of it.
    version("r1", ports[0]);
    version("r2", ports[1]);
    symlink("r1", folder.0.join("current")).unwrap();
    let site = Site::in_folder(folder, &[], SETTING);
    assert!(has(&site, &ports[..1]));
    let swap = |link: &str, to: &str| {
        symlink(to, site.folder.0.join("link.new")).unwrap();
        fs::rename(site.folder.0.join("link.new"), site.folder.0.join(link)).unwrap();
    };
    swap("..data", "..2");
    until("the swap is seen", || has(&site, &ports[1..2]));

    write(&site.folder, &[], "    servers-file \"current/api.servers\"");
    site.reload();
    assert!(has(&site, &ports[..1]), "a reload reads the new file");
    swap("current", "r2");
    until("the sweep finds it", || has(&site, &ports[1..2]));
    // Now it watches the new folder.
    site.folder.write("r2/api.servers", line(ports[1], "") + &line(ports[2], ""));
    until("the new folder is watched", || has(&site, &ports[1..]));
}

#[test]
fn the_file_owns_the_list_and_operators_drain() {
    let ports = [free_port(), free_port(), free_port()];
    let _servers = ports.map(json);
    let folder = Folder::new();
    let state = folder.0.join("app.json");
    folder.write(FILE, line(ports[0], "") + &line(ports[1], "drain"));
    let settings = format!("{SETTING}\n    upstream-state \"{}\"", state.display());
    let mut site = Site::in_folder(folder, &ports[2..], &settings);
    assert!(has(&site, &ports), "with the server of the site file");
    let [first, second, third] = ports.map(|port| format!("127.0.0.1:{port}"));
    for arguments in [
        &["add", "app", "127.0.0.1:1"][..],
        &["remove", "app", &first],
        &["remove", "app", &third],
        &["weight", "app", &first, "5"],
        &["set", "app", &first],
    ] {
        let why = site.upstream(arguments).unwrap_err();
        assert!(why.contains("the servers of upstream app are those of servers-file "), "{why}");
        assert!(why.contains("drain, down and up are possible here"), "{why}");
    }
    let why = site.upstream(&["up", "app", &second]).unwrap_err();
    assert!(why.contains("is drained by servers-file "), "{why}");
    site.upstream(&["drain", "app", &first]).unwrap();
    let again = site.upstream(&["drain", "app", &first]).unwrap();
    assert!(again.contains("already (by tester (uid "), "{again}");

    // The operator's mark stays while the file changes, over a reload, a restart and an upgrade.
    let is_drained = |site: &Site| site.line(ports[0]).is_some_and(|line| line.contains("  draining"));
    replace(&site.folder, &(line(ports[0], "weight=9") + &line(ports[1], "")));
    until("the file is followed", || site.line(ports[1]).is_some_and(|line| !line.contains("draining")));
    assert!(is_drained(&site) && site.line(ports[0]).unwrap().contains("  9  "));
    write(&site.folder, &ports[2..], &format!("{settings}\n    read-time \"3s\""));
    site.reload();
    assert!(is_drained(&site) && has(&site, &ports));
    site = {
        let Site { folder, mut server } = site;
        server.signal(Signal::TERM);
        server.wait();
        let server = start(&folder);
        Site { folder, server }
    };
    assert!(is_drained(&site) && has(&site, &ports));
    let replaced = orphan(&upgrade(&site.admin()).unwrap());
    until("the new process has the mark", || site.upstream(&["list"]).is_ok() && is_drained(&site));
    replace(&site.folder, &line(ports[0], ""));
    until("the new process follows the file", || has(&site, &[ports[0], ports[2]]));
    assert!(is_drained(&site));
    site.upstream(&["up", "app", &first]).unwrap();
    assert!(!is_drained(&site));

    // Leaving the file ends what an operator wanted.
    site.upstream(&["down", "app", &first]).unwrap();
    replace(&site.folder, &line(ports[1], ""));
    until("it has left", || has(&site, &[ports[1], ports[2]]));
    replace(&site.folder, &line(ports[0], ""));
    until("it is back", || has(&site, &[ports[0], ports[2]]));
    assert!(!site.line(ports[0]).unwrap().contains("set down"));
    drop(replaced);
}

#[test]
fn a_broken_file_stops_a_start_but_no_reload() {
    let ports = [free_port(), free_port()];
    let _servers = ports.map(json);
    let folder = Folder::new();
    write(&folder, &[], SETTING);
    let site_file = folder.0.join("site.kdl");
    let why = refused(&["serve", "-c"], &site_file);
    assert!(why.contains("upstream app: servers-file ") && why.contains("No such file"), "{why}");
    folder.write(FILE, "10.0.0.1:80 weight=0\n\nten\n");
    let why = refused(&["serve", "-c"], &site_file);
    assert!(why.contains("line 1: got weight=0") && why.contains("line 3: got `ten`"), "{why}");
    let why = refused(&["check"], &site_file);
    assert!(why.contains("site.kdl:5: warning: a server would not start here: servers-file "), "{why}");
    assert!(why.contains("line 1: got weight=0") && why.contains("line 3: got `ten`"), "{why}");
    folder.write("other.kdl", "upstream a { servers-file \"\"; }\nproxy a\n");
    let why = refused(&["check", "--elsewhere"], &folder.0.join("other.kdl"));
    assert!(why.contains("other.kdl:1:") && why.contains("need the path of a file"), "{why}");
    folder.write(FILE, line(ports[0], "") + &line(ports[1], "drain"));
    let explained = Command::new(program("flatout"))
        .args(["explain", "GET", "http://t/x", "-c"])
        .arg(&site_file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    let listed = format!("api.servers: 127.0.0.1:{}, 127.0.0.1:{} (drained)", ports[0], ports[1]);
    assert!(text.contains(&listed), "{text}");

    let server = start(&folder);
    let site = Site { folder, server };
    site.folder.write(FILE, "ten\n");
    until("the mistake is logged", || site.has_logged("line 1: got `ten`"));
    write(&site.folder, &[], &format!("{SETTING}\n    read-time \"3s\""));
    let message = site.reload();
    assert!(message.contains("reloaded"), "{message}");
    assert!(has(&site, &ports), "the last good list is kept");
    assert_eq!(site.server.get("/json", "").status, 200);
    // Another file has no list yet.
    write(&site.folder, &[], "    servers-file \"missing.servers\"");
    let why = refused(&["reload", "-c"], &site.folder.0.join("site.kdl"));
    assert!(why.contains("missing.servers: No such file"), "{why}");
    assert!(has(&site, &ports));
}

#[test]
fn the_file_is_followed_with_tls_http2_checks_and_sticky_sessions() {
    let folder = Folder::new();
    self_sign(&folder);
    let backend = |folder: &Folder| {
        let mut command = Command::new(program("flatout"));
        folder.write(
            "backend.kdl",
            "listen \"127.0.0.1:0\"\nworkers 1\nroute \"/\" { respond 200 \"hello\"; }\n",
        );
        command.args(["serve", "-c"]).arg(folder.0.join("backend.kdl"));
        command.arg("--tls").arg(folder.0.join("cert.pem")).arg(folder.0.join("key.pem"));
        Server::start(command)
    };
    let backends = [backend(&folder), backend(&folder)];
    let ports = backends.each_ref().map(|server| server.secure_port.unwrap());
    let lines =
        |ports: &[u16]| ports.iter().map(|port| format!("https://127.0.0.1:{port}\n")).collect::<String>();
    folder.write(FILE, lines(&ports[..1]));
    let settings = format!(
        "{SETTING}\n    protocol h2\n    upstream-verify off\n    balance sticky\n    eject-outliers on\n    \
         health-check \"/health\" interval=\"50ms\" rise=1 fall=1"
    );
    let site = Site::in_folder(folder, &[], &settings);
    let get = |cookie: &str| {
        let response = site.server.get("/", cookie);
        let set = response.field("set-cookie").and_then(|it| it.split(';').next()).map(str::to_owned);
        (response.status, set)
    };
    until("the first server is up", || get("").0 == 200);
    let first = get("").1.unwrap();
    replace(&site.folder, &lines(&ports));
    until("both servers get requests", || get("").1.is_some_and(|cookie| cookie != first));
    let again = get(&format!("Cookie: {first}\r\n"));
    assert_eq!(again, (200, None), "the client keeps its server");
    // Settings of the upstream apply: a server without TLS is a mistake.
    replace(&site.folder, "127.0.0.1:1\n");
    until("the mistake is logged", || site.has_logged("line 1: protocol h2 is over TLS"));
    replace(&site.folder, &lines(&ports[1..]));
    until("the first one has left", || has(&site, &ports[1..]));
    let moved = get(&format!("Cookie: {first}\r\n"));
    assert!(moved.0 == 200 && moved.1.is_some(), "{moved:?}");
}
