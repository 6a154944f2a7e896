//! Conditions, variables and maps of a site file, in a server: bodies, guards that wait, the cache, changed files, reloads.

use std::process::Command;

use flatout_tests::{Folder, Server, program, until};
use rustix::process::Signal;

/// Responds with what it got.
const ECHO: &str =
    "respond 200 \"$request_method $request_uri $content_length$http_transfer_encoding $http_x_shard\"";

fn served(folder: &Folder, text: &str) -> Server {
    folder.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    command.args(["--listen", "127.0.0.1:0", "--workers", "1"]);
    Server::start(command)
}

/// The status and the body for a request with these fields and body.
fn ask(server: &Server, request: &str, rest: &str) -> String {
    let answer = server.one(&format!("{request} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n{rest}"));
    format!("{} {}", answer.status, answer.text().trim_end())
}

fn get(server: &Server, target: &str, fields: &str) -> String {
    ask(server, &format!("GET {target}"), &format!("{fields}\r\n"))
}

#[test]
fn bodies_arrive_at_routes_with_conditions() {
    let folders = [Folder::new(), Folder::new(), Folder::new()];
    let upstream = served(&folders[0], ECHO);
    let verifier = served(
        &folders[1],
        "when \"header['x-token'] != 'good'\" { respond 403 \"no\" }\nrespond 200 \"yes\"",
    );
    folders[2].write("dist/a.txt", "a file");
    folders[2].write("dist/pages/sorry.txt", "sorry");
    let server = served(
        &folders[2],
        &format!(
            "upstream app {{ server \"{}\"; }}\nupstream verify {{ server \"{}\"; }}\n\
             route \"/\" when=\"remote in ['192.0.2.0/24']\" {{ respond 403 \"elsewhere\"; }}\n\
             route \"/\" {{ try-files \"dist\"; reroute \"@app\"; }}\n\
             route \"@app\" {{ proxy app; }}\n\
             route \"/guarded\" when=\"random >= 0 && method == 'POST'\" {{ proxy app; forward-auth verify path=\"/check\"; \
             body-bytes 8; }}\n\
             route \"/failing\" {{ proxy \"http://127.0.0.1:1\"; error-page 502 to=\"/pages/sorry.txt\"; }}\n\
             route \"/pages/\" entry=internal {{ files \"dist\"; }}\n",
            upstream.address, verifier.address
        ),
    );
    let whole = "Content-Length: 5\r\n\r\nhello";
    let chunked = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let late = "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(get(&server, "/a.txt", ""), "200 a file");
    assert_eq!(get(&server, "/b?x=1", ""), "200 GET /b?x=1");
    for body in [whole, chunked] {
        assert_eq!(ask(&server, "POST /b", body), "200 POST /b 5", "{body}");
        let token = format!("X-Token: good\r\n{body}");
        assert_eq!(ask(&server, "POST /guarded", &token), "200 POST /guarded 5", "{body}");
    }
    let refused = ask(&server, "POST /guarded", &format!("X-Token: bad\r\n{late}"));
    assert!(refused.starts_with("403 no"), "{refused}");
    let large = "X-Token: good\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello all\r\n0\r\n\r\n".to_owned();
    assert!(ask(&server, "POST /guarded", &large).starts_with("413 "), "the limit of the route");
    assert!(get(&server, "/pages/sorry.txt", "").starts_with("404 "), "it is internal");
    assert_eq!(get(&server, "/failing", ""), "502 sorry");
    assert_eq!(ask(&server, "POST /failing", whole), "502 sorry");
}

#[test]
fn files_of_maps_and_reloads_change_conditions() {
    let folders = [Folder::new(), Folder::new()];
    let upstream = served(&folders[0], ECHO);
    let folder = &folders[1];
    folder.write("shards.txt", "alice 1;\n");
    let site = |allowed: &str| {
        format!(
            "map shard \"$arg_user\" file=\"shards.txt\" {{ default \"0\"; }}\n\
             when \"$shard == '{allowed}'\" {{ respond 200 \"shard $shard\"; }}\n\
             cache \"1h\"\ncache-key \"$uri$variant\"\n\
             set variant expr=\"header.accept.contains('json') ? 'json' : 'html'\"\n\
             request-header set \"X-Shard\" \"$variant\"\nproxy \"http://{}\"\n",
            upstream.address
        )
    };
    let server = served(folder, &site("1"));
    assert_eq!(get(&server, "/?user=Alice", ""), "200 shard 1");
    assert_eq!(get(&server, "/c?user=bob&n=1", ""), "200 GET /c?user=bob&n=1  html");
    // The key has the variable and not the query.
    assert_eq!(get(&server, "/c?user=bob&n=2", ""), "200 GET /c?user=bob&n=1  html");
    assert_eq!(get(&server, "/c?user=bob&n=2", "Accept: text/json\r\n"), "200 GET /c?user=bob&n=2  json");
    folder.write("shards.txt", "alice 1;\nbob 1;\n");
    until("the file is read", || get(&server, "/?user=bob", "") == "200 shard 1");
    folder.write("shards.txt", "alice 1 2 3;\n");
    until("the mistake is reported", || {
        server.said().iter().any(|line| line.contains("former entries stay in use"))
    });
    assert_eq!(get(&server, "/?user=bob", ""), "200 shard 1");
    folder.write("shards.txt", "alice 1;\ncarol 2;\n");
    folder.write("site.kdl", site("2"));
    server.signal(Signal::HUP);
    until("the reload", || get(&server, "/?user=carol", "") == "200 shard 2");
    assert_ne!(get(&server, "/?user=alice", ""), "200 shard 1");
}
