//! `flatout import` of proxies and caches, compared with the imported nginx.

use std::process::{Command, Output, Stdio};

use flatout_tests::peers::Peer;
use flatout_tests::{Folder, Server, program};

fn flatout(folder: &Folder, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("flatout"));
    command.args(arguments).current_dir(&folder.0).stdin(Stdio::null()).output().unwrap()
}

/// The status and the body of each target, one after the other, from the imported nginx and from flatout. `UPSTREAM` stands for a
/// server that responds with its argument `v`. `None` without nginx.
fn responses(http: &str, targets: &[&str]) -> Option<[Vec<String>; 2]> {
    parts(http, targets, &["--write-out", " %{http_code}"])
}

/// The same with what these arguments of curl print.
fn parts(http: &str, targets: &[&str], printed: &[&str]) -> Option<[Vec<String>; 2]> {
    let (folder, behind) = (Folder::new(), Folder::new());
    behind.write(
        "site.kdl",
        "site \"*\" { route \"/missing\" { respond 404 none; }; \
         route \"/moved\" { redirect \"http://$http_host/moved/there\" status=302; }; route \"/\" { respond 200 \"$uri $arg_v\"; }; }",
    );
    std::fs::create_dir_all(folder.0.join("www/folder")).unwrap();
    let upstream = Server::start({
        let mut command = Command::new(program("flatout"));
        command.args(["serve", "-c"]).arg(behind.0.join("site.kdl"));
        command.args(["--listen", "127.0.0.1:0", "--workers", "1"]);
        command
    });
    let nginx = Peer::nginx(&folder, &http.replace("UPSTREAM", &upstream.address.to_string()))?;
    let ask = |at: String| {
        let get = |target: &&str| {
            let mut command = Command::new("curl");
            command.args(["--silent", "--max-time", "30"]).args(printed);
            let output = command.arg(format!("http://{at}{target}")).output().unwrap();
            format!("{target}: {}", String::from_utf8_lossy(&output.stdout))
        };
        targets.iter().map(get).collect::<Vec<_>>()
    };
    let old = ask(format!("127.0.0.1:{}", nginx.port));
    let output = flatout(&folder, &["import", "nginx.conf"]);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    folder.write("site.kdl", output.stdout);
    let checked = flatout(&folder, &["check", "site.kdl"]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let server = Server::start({
        let mut command = Command::new(program("flatout"));
        // Only root may use `user`.
        command.args(["serve", "-c"]).arg(folder.0.join("site.kdl"));
        command.args(["--listen", "127.0.0.1:0", "--workers", "1"]);
        command
    });
    Some([old, ask(server.address.to_string())])
}

/// What a request gets that does not use the cache is stored, unless `proxy_no_cache` forbids it.
#[test]
fn responses_of_requests_that_bypass_the_cache_are_stored_as_by_nginx() {
    let http = r#"
        proxy_cache_path FOLDER/cache keys_zone=one:1m;
        server {
            listen 127.0.0.1:PORT;
            proxy_cache one;
            proxy_cache_key $uri;
            proxy_cache_valid 1h;
            location /stored { proxy_pass http://UPSTREAM; proxy_cache_bypass $arg_new; }
            location /unstored { proxy_pass http://UPSTREAM; proxy_cache_bypass $arg_new; proxy_no_cache $arg_new; }
            location /both { proxy_pass http://UPSTREAM; proxy_cache_bypass $arg_a $arg_b; proxy_no_cache $arg_b; }
        }
    "#;
    let targets = [
        "/stored?v=1",
        "/stored?v=2",
        "/stored?v=3&new=1",
        "/stored?v=4",
        "/stored?v=5&new=0",
        "/unstored?v=1",
        "/unstored?v=2",
        "/unstored?v=3&new=1",
        "/unstored?v=4",
        "/both?v=1",
        "/both?v=2&a=1",
        "/both?v=3",
        "/both?v=4&b=1",
        "/both?v=5",
        "/both?v=6&a=1&b=1",
        "/both?v=7",
    ];
    let Some([old, new]) = responses(http, &targets) else { return };
    assert_eq!(new, old);
    assert!(new.contains(&"/stored?v=4: /stored 3 200".to_owned()), "{new:#?}");
}

/// The port is that of nginx.conf, whichever flatout listens on here.
#[test]
fn redirects_have_the_addresses_of_nginx() {
    let http = r#"
        server {
            listen 127.0.0.1:PORT;
            server_name a.test;
            root FOLDER/www;
            location /off/ { absolute_redirect off; alias FOLDER/www/; }
            location /app/ { proxy_pass http://UPSTREAM/moved/; }
            location /plain/ { absolute_redirect off; proxy_pass http://UPSTREAM/moved/; }
            location /gone { return 301 /here; }
        }
    "#;
    let targets = ["/folder", "/folder?a=b", "/off/folder", "/gone", "/app/x", "/plain/x"];
    let printed = ["--output", "/dev/null", "--write-out", "%{http_code} %header{location}"];
    let Some([old, new]) = parts(http, &targets, &printed) else { return };
    assert_eq!(old, new);
    assert!(new.iter().take(4).all(|it| it.contains(": 301 ")), "{new:?}");
    assert!(new[0].contains(": 301 http://127.0.0.1:") && new[2].ends_with(": 301 /off/folder/"), "{new:?}");
    assert!(new[4].ends_with("/app/there") && new[5].ends_with(": 302 /plain/there"), "{new:?}");
}
