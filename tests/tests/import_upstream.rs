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
    let (folder, behind) = (Folder::new(), Folder::new());
    behind.write(
        "site.kdl",
        "site \"*\" { route \"/missing\" { respond 404 none; }; route \"/\" { respond 200 \"$uri $arg_v\"; }; }",
    );
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
            command.args(["--silent", "--max-time", "30", "--write-out", " %{http_code}"]);
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
