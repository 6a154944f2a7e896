//! A server on a bus is replaced by a new process: for the other servers it stays the same one.

use std::fs;
use std::path::{Path, PathBuf};

use flatout_tests::upgrading::{Orphan, orphan, upgrade};

use super::*;

/// The sites of a server with a log below `/live` and latest values below `/quotes`, which `more` follows.
fn site(admin: &Path, bus: &str, more: &str) -> String {
    let route = |path: &str, settings: &str| {
        format!(
            "route \"{path}\" {{\n    push\n    push-token secret\n    push-history 20000\n    push-lag 100000\n{settings}}}\n"
        )
    };
    let (live, quotes) = (route("/live", ""), route("/quotes", "    push-kind latest\n"));
    let admin = admin.display();
    format!("listen \"127.0.0.1:0\"\nworkers 2\nadmin \"unix:{admin}\"\nbus {bus}\n{live}{quotes}{more}")
}

/// The URL of this bus in a site file.
fn quoted(nats: &Nats) -> String {
    format!("\"{}\"", nats.url())
}

/// A server with these sites, and its admin listener.
fn server(folder: &Folder, name: &str, bus: &str) -> (Server, PathBuf) {
    let admin = folder.0.join(name);
    folder.write(&format!("{name}.kdl"), site(&admin, bus, ""));
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join(format!("{name}.kdl")));
    (Server::start(command), admin)
}

fn replaced(server: &mut Server, admin: &Path) -> Orphan {
    let next = orphan(&upgrade(admin).unwrap());
    // Its end is in its own hands; what it has not sent is with the new one.
    assert!(server.wait().success());
    next
}

fn set_quote(server: &Server, value: &str) {
    let head =
        "POST /quotes/q?key=k HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer secret";
    let length = value.len();
    let (status, _, said) = place(server).ask(&format!("{head}\r\nContent-Length: {length}\r\n\r\n{value}"));
    assert_eq!(status, 200, "{said}");
}

fn quote(server: &Server) -> String {
    server.get("/quotes/q?keys=k", "").text()
}

/// Messages that were acknowledged while the bus was away reach the other servers after an upgrade: each once, in order, with the latest
/// values.
#[test]
fn an_upgrade_keeps_unsent_messages() {
    for has_history in [true, false] {
        let (folder, mut nats) = (Folder::new(), Nats::keeping());
        let history = if has_history { " history=\"1h\"" } else { "" };
        let bus = format!("\"{}\"{history}", nats.url());
        let (mut here, admin) = server(&folder, "a", &bus);
        let (there, _) = server(&folder, "b", &bus);
        [&here, &there].into_iter().for_each(|server| wait_joined(server, 1));
        let listeners =
            [Way::Events, Way::WebSocket].map(|way| Listener::start(&place(&there), "a", way, ""));
        place(&here).publish("a", &texts("one", 0..100));
        set_quote(&here, "1");
        listeners.iter().for_each(|listener| drop(listener.wait(100)));
        until("the first quote", || quote(&there) == "{\"k\":\"1\"}");
        nats.end();
        until("that it is lost", || [&here, &there].iter().all(|it| has_said(it, "was lost") == 1));
        // Fewer than the stream keeps of a channel.
        place(&here).publish("a", &texts("one", 100..800));
        set_quote(&here, "2");
        let _next = replaced(&mut here, &admin);
        assert_eq!(figure(&admin, "flatout_bus_queued"), 701.0, "{:?}", here.said());
        place(&here).publish("a", &texts("one", 800..850));
        nats.restart();
        wait_joined(&there, 2);
        until("all is sent", || figure(&admin, "flatout_bus_queued") == 0.0);
        place(&here).publish("a", &texts("one", 850..851));
        // Without a history, the other server may have joined again after this one had sent it.
        match has_history {
            true => until("the second quote", || quote(&there) == "{\"k\":\"2\"}"),
            false => {
                set_quote(&here, "3");
                until("the third quote", || quote(&there) == "{\"k\":\"3\"}");
            }
        }
        for listener in &listeners {
            until("the last message", || listener.heard().iter().any(|text| text == "one 850"));
            // Without a history, a server that joins again after the other one has missed what that one has sent.
            match has_history {
                true => check(&listener.heard(), &[("one", 851)], "the rest"),
                false => check_rest(&listener.heard(), &[("one", 851)]),
            }
        }
        // A new subscriber has no hole either.
        if has_history {
            let listener = Listener::start(&place(&there), "a", Way::Events, "all");
            check(&listener.wait(851), &[("one", 851)], "a new subscriber");
        }
        assert_eq!(has_said(&here, "has not confirmed"), 0, "{:?}", here.said());
    }
}

/// The order of messages is that of one publisher before and after.
#[test]
fn a_client_can_resume_on_another_server_after_an_upgrade() {
    let (folder, nats) = (Folder::new(), Nats::start());
    let (mut here, admin) = server(&folder, "a", &quoted(&nats));
    let (there, _) = server(&folder, "b", &quoted(&nats));
    [&here, &there].into_iter().for_each(|server| wait_joined(server, 1));
    let listener = Listener::start(&place(&there), "a", Way::Events, "");
    place(&here).publish("a", &texts("one", 0..20));
    let (_, position) = poll(&here, "a", "all");
    let mut orphans = Vec::new();
    for round in 2..5 {
        let said = upgrade(&admin).unwrap();
        orphans.push(orphan(&said));
        place(&here).publish("a", &texts("one", round * 10..round * 10 + 10));
        check(&listener.wait(round * 10 + 10), &[("one", round * 10 + 10)], "there");
    }
    assert!(here.wait().success());
    assert_eq!(poll(&there, "a", &position).0, texts("one", 20..50), "from before the upgrades");
    let (_, position) = poll(&here, "a", "all");
    place(&here).publish("a", &texts("one", 50..60));
    listener.wait(60);
    assert_eq!(poll(&there, "a", &position).0, texts("one", 50..60), "from after the upgrades");
    // And back.
    let (_, position) = poll(&there, "a", "all");
    place(&here).publish("a", &texts("one", 60..61));
    assert_eq!(poll(&here, "a", &position).0, texts("one", 60..61));
}

/// A purge that waits for the bus is not lost with the process that has taken it.
#[test]
fn a_waiting_purge_survives_an_upgrade() {
    let (folder, mut nats) = (Folder::new(), Nats::start());
    let (origin, _) = origin();
    let [mut here, there] = ["a", "b"].map(|name| cacher(&folder, name, &origin, &nats.url()));
    [&here, &there].into_iter().for_each(|server| wait_joined(server, 1));
    until("a hit", || status(&there, "/x") == "HIT");
    nats.end();
    until("that it is lost", || [&here, &there].iter().all(|server| has_said(server, "was lost") == 1));
    let answer = purge(&folder, "a", &["http://t/x"]);
    assert!(answer.contains("the bus is disconnected"), "{answer}");
    let admin = folder.0.join("a");
    let _next = replaced(&mut here, &admin);
    assert_eq!(figure(&admin, "flatout_bus_queued"), 1.0);
    nats.restart();
    // It is sent when this one has joined: the other one has to be there first, or marks everything stale.
    until("the purge", || {
        let purged = figure(&folder.0.join("b"), "flatout_cache_purged_total");
        purged >= 1.0 || status(&there, "/x") == "EXPIRED"
    });
    until("all is sent", || figure(&admin, "flatout_bus_queued") == 0.0);
}

/// Messages of a channel reach the routes of its group on other servers, and no other channel of this name.
#[test]
fn a_channel_is_the_same_on_all_servers_and_on_no_other_route() {
    let (folder, nats) = (Folder::new(), Nats::start());
    let other = "route \"/other\" {\n    push\n    push-token secret\n}\n\
                 route \"/one\" {\n    push\n    push-token secret\n    push-group shared\n}\n\
                 route \"/two\" {\n    push\n    push-group shared\n}\n";
    let servers = ["a", "b"].map(|name| {
        let admin = folder.0.join(name);
        folder.write(&format!("{name}.kdl"), site(&admin, &quoted(&nats), other));
        let mut command = Command::new(program("flatout"));
        command.arg("serve").arg("-c").arg(folder.0.join(format!("{name}.kdl")));
        Server::start(command)
    });
    servers.iter().for_each(|server| wait_joined(server, 1));
    let [here, there] = &servers;
    let post = |path: &str, text: &str| {
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer secret");
        let (status, _, said) =
            place(here).ask(&format!("{head}\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
        assert_eq!(status, 200, "{said}");
    };
    for (path, text) in [("/other/a", "other"), ("/one/a", "shared"), ("/live/a", "live")] {
        post(path, text);
    }
    for (path, text) in
        [("/live/a", "live"), ("/other/a", "other"), ("/one/a", "shared"), ("/two/a", "shared")]
    {
        let answer = there.get(&format!("{path}?poll=1&since=all"), "");
        let messages: Vec<serde_json::Value> = serde_json::from_slice(&answer.body).expect("JSON");
        let found: Vec<&str> = messages.iter().map(|message| message["data"].as_str().unwrap()).collect();
        assert_eq!(found, [text], "{path}");
    }
}

/// Messages of the version before channels had groups are reported, and are a gap. They are in no channel.
#[test]
fn messages_of_an_earlier_version_are_a_gap() {
    let (folder, nats) = (Folder::new(), Nats::start());
    let (here, admin) = server(&folder, "a", &quoted(&nats));
    wait_joined(&here, 1);
    let listener = Listener::start(&place(&here), "a", Way::Events, "");
    let mut stream = subscribed(&nats, "nothing");
    let head = r#"{"origin":1,"number":1,"message":{"channel":"a","count":9,"age_ms":9000}}"#;
    let parcel = format!("{head}\nold");
    write!(stream.get_mut(), "PUB flatout.push.a {}\r\n{parcel}\r\n", parcel.len()).unwrap();
    assert_eq!(listener.wait(1), ["gap"]);
    until("that it is said", || has_said(&here, "messages of an earlier version of flatout") == 1);
    assert_eq!(figure(&admin, "flatout_bus_refused_total"), 1.0);
    assert!(fs::exists(&admin).unwrap());
    place(&here).publish("a", &texts("one", 0..1));
    assert_eq!(listener.wait(2), ["gap", "one 0"]);
}
