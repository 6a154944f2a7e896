//! Access logs of routes: their requests are in these logs alone.

use std::process::{Command, Output};

use flatout_tests::{Folder, Server, program, until};

use crate::rules;

/// One log for the server, one for the site, and two routes with their own: the second one has two.
const SITE: &str = "\
listen \"127.0.0.1:0\"
listen-plain \"127.0.0.1:0\"
tls local
state state
workers 1
admin \"unix:admin.sock\"
log-format \"$request_method $request_uri $status $upstream_cache_status\"
log-flush \"10ms\"
access-log \"all.log\"
upstream api {
    server \"ORIGIN\"
}
site localhost t \"127.0.0.1\" {
    access-log \"site.log\"
    route \"/api/\" {
        access-log \"api.log\"
        cache \"1m\"
        proxy api
    }
    route \"/closed/\" {
        access-log \"closed.log\" format=\"$status $request_uri\"
        access-log \"errors.log\" only=\"status>=400\"
        deny all
        files public
    }
    route \"/from/\" {
        reroute \"/api/from\"
    }
    route \"/quiet/\" {
        access-log off
        respond 200 quiet
    }
    route \"/left/\" {
        access-log \"left.log\" format=\"$status $request_uri\"
        close
    }
    route \"/left-quietly/\" {
        access-log off
        close
    }
    route \"/silent/\" {
        access-log \"silent.log\"
        when \"query == 'log=0'\" {
            log-requests off
        }
        respond 200 silent
    }
    files public
}
";

fn lines(folder: &Folder, log: &str) -> Vec<String> {
    let text = std::fs::read_to_string(folder.0.join(log)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn flatout(folder: &Folder, arguments: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } =
        Command::new(program("flatout")).current_dir(&folder.0).args(arguments).output().unwrap();
    (status.success(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

#[test]
fn requests_of_a_route_are_in_its_own_logs_alone() {
    let folder = Folder::new();
    folder.write("public/a.txt", "hello");
    let (origin, _) = flatout_tests::cached::origin();
    let site = SITE.replace("ORIGIN", &origin.to_string());
    folder.write("site.kdl", &site);
    let mut command = Command::new(program("flatout"));
    let server = Server::start({
        command.current_dir(&folder.0).args(["serve", "-c", "site.kdl"]);
        command
    });
    for target in
        ["/a.txt", "/api/x", "/api/x", "/closed/a", "/from/", "/quiet/", "/silent/?log=0", "/silent/?log=1"]
    {
        server.get(target, "");
    }
    let port = server.secure_port.unwrap();
    for (version, target) in [("--http1.1", "/api/one"), ("--http2", "/api/two"), ("--http2", "/closed/two")]
    {
        let url = format!("https://127.0.0.1:{port}{target}");
        assert!(
            Command::new("curl").args(["-sk", version, "-o", "/dev/null", &url]).status().unwrap().success()
        );
    }
    for version in ["--http1.1", "--http2"] {
        for target in ["/left-quietly/", "/left/"] {
            let url = format!("https://127.0.0.1:{port}{target}");
            assert!(!Command::new("curl").args(["-sk", version, &url]).status().unwrap().success());
        }
    }
    until("all lines", || {
        ["all.log", "site.log", "api.log", "closed.log", "silent.log", "left.log"]
            .map(|log| lines(&folder, log).len())
            == [1, 1, 5, 2, 1, 2]
    });
    assert_eq!(lines(&folder, "all.log"), ["GET /a.txt 200 -"]);
    assert_eq!(lines(&folder, "site.log"), ["GET /a.txt 200 -"]);
    let api = [
        "GET /api/x 200 MISS",
        "GET /api/x 200 HIT",
        "GET /from/ 200 MISS",
        "GET /api/one 200 MISS",
        "GET /api/two 200 MISS",
    ];
    assert_eq!(lines(&folder, "api.log"), api);
    assert_eq!(lines(&folder, "closed.log"), ["403 /closed/a", "403 /closed/two"]);
    assert_eq!(lines(&folder, "errors.log"), ["GET /closed/a 403 -", "GET /closed/two 403 -"]);
    assert_eq!(lines(&folder, "silent.log"), ["GET /silent/?log=1 200 -"]);
    assert_eq!(lines(&folder, "left.log"), ["000 /left/", "000 /left/"]);

    let (_, explained) = flatout(
        &folder,
        &["explain", "GET", &format!("http://{}/closed/a", server.address), "-c", "site.kdl"],
    );
    assert!(
        explained.contains("log        closed.log\n") && explained.contains("log        errors.log\n"),
        "{explained}"
    );
    assert!(!explained.contains("all.log") && !explained.contains("site.log"), "{explained}");

    // A reload finds the logs of routes in another order.
    let of_api =
        &site[site.find("    route \"/api/\"").unwrap()..site.find("    route \"/closed/\"").unwrap()];
    let moved =
        site.replace(of_api, "").replace("    files public\n}\n", &format!("{of_api}    files public\n}}\n"));
    assert_ne!(moved, site);
    folder.write("site.kdl", &moved);
    assert!(flatout(&folder, &["reload", "-c", "site.kdl"]).0);
    server.get("/api/x", "");
    server.get("/closed/moved", "");
    until("the lines after the reload", || {
        lines(&folder, "api.log").len() == 6 && lines(&folder, "closed.log").len() == 3
    });
    assert_eq!(lines(&folder, "api.log")[5], "GET /api/x 200 HIT");
    assert_eq!(lines(&folder, "closed.log")[2], "403 /closed/moved");

    // Logs are opened at the start, so a reload that would need another one is refused.
    folder.write(
        "site.kdl",
        moved.replace(
            "        respond 200 quiet",
            "        access-log \"more.log\"\n        respond 200 quiet",
        ),
    );
    let (is_reloaded, said) = flatout(&folder, &["reload", "-c", "site.kdl"]);
    assert!(!is_reloaded && said.contains("access-log"), "{said}");
    server.get("/api/x", "");
    until("the line after the refused reload", || lines(&folder, "api.log").len() == 7);
    assert_eq!(lines(&folder, "all.log").len(), 1);
}

/// Also one that waits for its upstream, over HTTP/1 and HTTP/2.
#[test]
fn a_request_whose_client_leaves_is_in_the_logs_of_its_route() {
    let folder = Folder::new();
    // It accepts connections, and responds to none.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let site = "\
listen \"127.0.0.1:0\"
listen-plain \"127.0.0.1:0\"
tls local
state state
workers 1
log-format \"$request_uri $outcome\"
log-flush \"10ms\"
access-log \"all.log\"
site localhost t \"127.0.0.1\" {
    access-log \"site.log\"
    proxy \"http://SILENT\"
    route \"/own/\" {
        access-log \"own.log\"
        proxy \"http://SILENT\"
    }
    route \"/quiet/\" {
        access-log off
        proxy \"http://SILENT\"
    }
    route \"/unlogged/\" {
        access-log \"unlogged.log\"
        when \"query == 'log=0'\" {
            log-requests off
        }
        proxy \"http://SILENT\"
    }
}
";
    folder.write("site.kdl", site.replace("SILENT", &silent.local_addr().unwrap().to_string()));
    let mut command = Command::new(program("flatout"));
    let server = Server::start({
        command.current_dir(&folder.0).args(["serve", "-c", "site.kdl"]);
        command
    });
    let leave = |version: &str, target: &str| {
        let url = format!("https://127.0.0.1:{}{target}", server.secure_port.unwrap());
        let mut curl = Command::new("curl");
        let status =
            curl.args(["-sk", "--max-time", "0.5", version, "-o", "/dev/null", &url]).status().unwrap();
        assert!(!status.success());
    };
    for target in ["/quiet/a", "/unlogged/a?log=0", "/own/a", "/unlogged/a?log=1", "/a"] {
        leave("--http1.1", target);
        leave("--http2", target);
    }
    until("the last lines", || lines(&folder, "all.log").len() >= 2 && lines(&folder, "site.log").len() >= 2);
    for (log, target) in
        [("all.log", "/a"), ("site.log", "/a"), ("own.log", "/own/a"), ("unlogged.log", "/unlogged/a?log=1")]
    {
        let expected = [target, target].map(|target| format!("{target} client_gone"));
        assert_eq!(lines(&folder, log), expected, "{log}");
    }
}

#[test]
fn a_log_that_cannot_be_opened_or_read_is_refused() {
    let folder = Folder::new();
    folder.write("public/a.txt", "hello");
    for (log, why) in [
        ("access-log \"x\" buffer=\"1B\"", "log buffer: got 1 bytes, allowed 1KiB to 64MiB"),
        ("access-log \"x\" format=\"$nothing\"", "nothing"),
        ("access-log \"x\" sample=0", "log sample: got 0"),
    ] {
        folder.write("site.kdl", format!("route \"/a\" {{\n    {log}\n    files public\n}}\nfiles public\n"));
        let (is_valid, said) = flatout(&folder, &["check", "site.kdl"]);
        assert!(!is_valid && said.contains(why) && said.contains("site.kdl:2:"), "{log}\n{said}");
    }
}

/// A site whose requests continue at other routes, because of what an application says or does not say.
const CONTINUED: &str = "\
workers 1
admin \"unix:admin.sock\"
log-format \"$request_uri $status $upstream_status\"
log-flush \"10ms\"
access-log \"all.log\"
site a.test {
    access-log \"site.log\"
    route \"/down\" {
        proxy \"http://127.0.0.1:1\"
        error-page 502 to=\"/sorry\"
    }
    route \"/sorry\" {
        respond 200 sorry
    }
    route \"/broken\" {
        proxy \"http://APPLICATION\"
        error-page 503 to=\"/own\" upstream=on
    }
    route \"/own\" {
        access-log \"own.log\"
        respond 200 sorry
    }
    route \"/file\" {
        x-accel on
        proxy \"http://APPLICATION\"
    }
    route \"/private/\" entry=internal {
        files \"public\"
        rewrite-prefix \"/private/\" \"/\"
        request-limit 1
    }
}
";

#[test]
fn attempts_at_upstreams_stay_with_a_request_that_continues_elsewhere() {
    let (folder, behind) = (Folder::new(), Folder::new());
    let application = rules::served(
        &behind,
        "route \"/broken\" { respond 503 no; }\n\
         route \"/file\" { response-header set \"X-Accel-Redirect\" \"/private/a.txt\"; respond 200 no; }\n",
    );
    folder.write("public/a.txt", "hello");
    folder.write("site.kdl", CONTINUED.replace("APPLICATION", &application.address.to_string()));
    let mut command = Command::new(program("flatout"));
    command.current_dir(&folder.0).args(["serve", "-c", "site.kdl", "--listen", "127.0.0.1:0"]);
    let server = Server::start(command);
    for (target, status, text) in
        [("/down", 502, "sorry"), ("/broken", 503, "sorry"), ("/file", 200, "hello")]
    {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
        let answer = server.one(&request);
        assert_eq!((answer.status, &*answer.text()), (status, text), "{target}");
    }
    until("all lines", || lines(&folder, "site.log").len() + lines(&folder, "own.log").len() == 3);
    let of_site = lines(&folder, "site.log");
    assert!(of_site[0].starts_with("/down 502 502"), "{of_site:?}");
    assert_eq!(of_site[1], "/file 200 200");
    assert_eq!(lines(&folder, "own.log"), ["/broken 503 503"]);
    assert_eq!(lines(&folder, "all.log"), of_site);
}
