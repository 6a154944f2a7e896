//! `flatout import`, compared with the imported nginx: both get the same requests.

use std::process::{Command, Output, Stdio};

use flatout_tests::peers::Peer;
use flatout_tests::{Folder, Server, program, until};

fn flatout(arguments: &[&str]) -> Output {
    Command::new(program("flatout")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// A server with the site file imported from an nginx configuration.
pub(crate) fn imported(folder: &Folder) -> (Server, String) {
    let mut command = Command::new(program("flatout"));
    let output =
        command.args(["import", "nginx.conf"]).current_dir(&folder.0).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    folder.write("site.kdl", &text);
    let mut command = Command::new(program("flatout"));
    let site = folder.0.join("site.kdl").display().to_string();
    // Only root may use `user`.
    command.args(["serve", "-c", &site, "--listen", "127.0.0.1:0", "--workers", "1"]);
    (Server::start(command), text)
}

const HTTP: &str = r#"
    include /etc/nginx/mime.types;
    add_header X-Frame-Options DENY always;
    map $arg_lang $greeting { default hello; de hallo; }
    map $sent_http_content_type $policy { ~*^text/(CSS) "self $1"; }
    map "$request_method:$arg_kind" $where { default http://UPSTREAM; "~^(?!GET|HEAD)" http://127.0.0.1:1; ~x http://127.0.0.1:2; }
    add_header X-Policy $policy;
    expires $keep;
    include conf.d/*.conf;
    upstream app { server UPSTREAM; keepalive 8; }
    server {
        listen 127.0.0.1:PORT default_server;
        server_name a.test;
        root FOLDER/www;
        error_page 404 /404.html;
        rewrite ^/old/(.*)$ /new/$1 permanent;
        location / { try_files $uri $uri/ =404; }
        location = /healthz { default_type text/plain; return 200 "ok\n"; }
        location = /greeting { default_type text/plain; return 200 "$greeting $arg_name\n"; }
        location /moved { return 302 /sub/; }
        location /away { return 301 https://b.test$request_uri; }
        location ^~ /static/ { alias FOLDER/static/; expires 1h; }
        location ~* \.css$ { add_header Cache-Control "max-age=60"; add_header X-Frame-Options DENY; }
        location /forbidden { deny all; }
        location /api/ {
            proxy_pass http://app/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
        }
        location /app { proxy_pass http://app; proxy_hide_header ETag; }
        location /none { return 404; }
        location /query { if ($arg_a = b) { return 403; } return 204; }
        location /state { set $s 0; if ($arg_x) { set $s 1; } if ($s) { return 503; } return 204; }
        location /port { return 301 https://c.test/$server_name; }
        location /page/ { error_page 404 = @page; }
        location @page { return 200 "page"; }
        location /spa/ { try_files $uri $uri/ /spa/app.html; }
        location = /index.html { add_header X-Policy "of the page"; }
        location = /spa/app.html { add_header Cache-Control no-store; }
        location /behind/ { try_files /sub/$uri /sub$uri @page; }
        location /tried/ { try_files $uri /healthz; }
        location /whole/ { try_files $uri /greeting$request_uri; }
        location /greeting/ { return 200 "$uri $args"; }
        location /fallen/ { try_files $uri /args$is_args$args; }
        location /slash { rewrite ^(.+)/+$ $1 permanent; return 200 "no slash"; }
        location ~ ^/odd { rewrite ^/(?!odd/(a|b)) /healthz last; return 200 "$uri"; }
        location ~ ^/(?!sub|un)[a-z]+/here$ { return 200 "here"; }
        location ^~ /nested/ { return 200 outer; location ~ \.(one|two)$ { return 200 inner; } }
        location ~ ^/outer/ { return 200 "outer"; location ~* \.ONE$ { return 200 "one"; } }
        location /where { proxy_pass $where; proxy_read_timeout 1s; proxy_connect_timeout 1s; }
        location /moved-page { error_page 301 /404.html; return 301 https://b.test/x; }
        location /moved-text { error_page 302 @moved; return 302 https://b.test/y; }
        location @moved { return 200 "moved"; }
        location /escaped/ { rewrite ^/escaped/(.*)$ /args?id=$1 last; }
        rewrite ^/encoded/(.*)$ https://b.test/?id=$1 redirect;
        location = /args { return 200 "args: $args"; }
        location = /data.json { return 200 "{}"; }
        location ~ ^/download/(.*)$ { alias FOLDER/static/$1; }
        location /of-host { root FOLDER/hosts/$host; }
        location /of-query/ { alias FOLDER/hosts/$arg_site/of-host/; }
        location /agents/ { if ($http_user_agent ~ ^flatout) { return 403; } try_files $uri /healthz; }
        location ^~ /protected/ { location /protected/deep/ { } return 204; }
        location /missing/ { if (!-e $request_filename) { rewrite /admin$ $uri/ permanent; rewrite ^/missing/[a-z]+/(a.txt)$ /missing/$1 last; rewrite ^/missing/x/(.*)$ /args?x=$1 last; } }
        location ~ ^/named/(?<id>[0-9]+)$ { rewrite ^ /args?id=$id last; }
        location /typed/ { types { } default_type text/x-own; }
        location = /if { if ($arg_a = 1) { proxy_pass http://app; } proxy_pass http://127.0.0.1:1; }
    }
    server { listen 127.0.0.1:PORT; server_name b.test .c.test; location / { return 200 "other"; } }
    server {
        listen 127.0.0.1:PORT;
        server_name ~^(www\.)?(?<zone>[a-z]+)\.(?<end>d|e)\.test$;
        location / { return 200 "$1 $zone $end $3"; }
        location ~ /group/(.) { return 200 "$1 $zone"; }
        location /files { root FOLDER/hosts/$zone.test; }
    }
"#;

#[test]
fn converted_sites_respond_as_nginx_does() {
    let (folder, behind) = (Folder::new(), Folder::new());
    for (name, text) in [
        ("www/index.html", "<h1>home</h1>"),
        ("conf.d/keep.conf", "map $sent_http_content_type $keep { default 1h; ~css 1d; }"),
        ("www/sub/index.html", "sub"),
        ("www/a.css", "body{}"),
        ("www/404.html", "<p>gone</p>"),
        ("static/x.js", "1"),
        ("static/deep/y.txt", "y"),
        ("www/spa/app.html", "an application"),
        ("www/sub/behind/a.txt", "behind"),
        ("www/tried/folder/a.txt", "a"),
        ("www/agents/a.txt", "not for all"),
        ("www/protected/deep/a.css", "a{}"),
        ("www/missing/a.txt", "there"),
        ("www/typed/a.html", "of its own type"),
        ("hosts/a.test/of-host/a.txt", "of a"),
        ("hosts/b.test/of-host/a.txt", "of b"),
        ("hosts/b.test/files/index.html", "files of b"),
    ] {
        folder.write(name, text);
    }
    behind.write("users.txt", "ann\n");
    behind.write("app/index.html", "application");
    let upstream = Server::site(&behind.0, &["--workers", "1"]);
    let address = upstream.address.to_string();
    let Some(nginx) = Peer::nginx(&folder, &HTTP.replace("UPSTREAM", &address)) else { return };
    let (server, text) = imported(&folder);
    assert!(text.ends_with("not converted.\n") && text.contains("    server \"127.0.0.1:"), "{text}");

    let (old, new) = (format!("http://127.0.0.1:{}", nginx.port), format!("http://{}", server.address));
    let targets = [
        "/",
        "/index.html",
        "/sub",
        "/sub/",
        "/a.css",
        "/a.css?v=1",
        "/nothere",
        "/404.html",
        "/old/x",
        "/old/x?a=b",
        "/healthz",
        "/healthz/",
        "/greeting?name=ann",
        "/greeting?lang=de&name=eve",
        "/moved",
        "/away/x?y",
        "/static/x.js",
        "/static/deep/y.txt",
        "/static/none",
        "/forbidden",
        "/forbidden/x",
        "/api/users.txt",
        "/api",
        "/api/none",
        "/app",
        "/app/",
        "/none",
        "/query",
        "/query?a=b",
        "/state",
        "/state?x=1",
        "/port",
        "/page/none",
        "/tried/none",
        "/whole/none?x=a+b&y=%20",
        "/spa/none/page?x=1",
        "/spa/none.js",
        "/spa/app.html",
        "/behind/a.txt",
        "/behind/none",
        "/fallen/none?x=1&y",
        "/fallen/none",
        "/tried/folder",
        "/tried/folder/",
        "/tried/folder/a.txt",
        "/slash",
        "/slash/a//",
        "/slash/?x=1",
        "/odd/a",
        "/odd/c",
        "/oddly",
        "/any/here",
        "/sub/here",
        "/nested/a.one",
        "/nested/a.three",
        "/outer/a.one",
        "/outer/a",
        "/where",
        "/where?kind=x",
        "/if?a=1",
        "/if",
        "/moved-page",
        "/moved-text",
        "/escaped/a%26b=1",
        "/escaped/a&b=1",
        "/escaped/a%20b+c%25?x=1",
        "/encoded/a%26b=1%3F",
        "/encoded/a&b=1",
        "/data.json",
        "/download/x.js",
        "/download/deep/y.txt",
        "/download/deep",
        "/download/none",
        "/of-host/a.txt",
        "/of-host",
        "/of-host/none",
        "/of-query/a.txt?site=b.test",
        "/of-query/a.txt?site=none",
        "/of-query/a.txt",
        "/agents/a.txt",
        "/agents/none",
        "/protected/deep/a.css",
        "/protected/here",
        "/protected/deep/here",
        "/missing/a.txt",
        "/missing/some/a.txt",
        "/missing/x/y",
        "/missing/admin",
        "/missing/other",
        "/named/12",
        "/typed/a.html",
        "/typed/none",
    ];
    let mut log: String = targets
        .iter()
        .map(|target| format!("127.0.0.1 - - [10/Oct/2026:13:55:36 +0000] \"GET {target} HTTP/1.1\" 200 1\n"))
        .collect();
    let others = [
        ("b.test", "/a"),
        ("x.c.test", "/a"),
        ("c.test", "/a"),
        ("other.test", "/a"),
        ("www.b.d.test", "/a"),
        ("b.e.test", "/a"),
        ("b.e.test", "/group/x"),
        ("b.e.test", "/files/"),
        ("b.e.test", "/files"),
        ("c.e.test", "/files/"),
    ];
    for (host, path) in others {
        log.push_str(&format!(
            "{host}:80 127.0.0.1 - - [10/Oct/2026:13:55:36 +0000] \"GET {path} HTTP/1.1\" 200 1 \"-\" \"-\"\n"
        ));
    }
    log.push_str("127.0.0.1 - - [10/Oct/2026:13:55:36 +0000] \"POST /api/users.txt HTTP/1.1\" 200 1\n127.0.0.1 - - [10/Oct/2026:13:55:36 +0000] \"HEAD / HTTP/1.1\" 200 1\n");
    folder.write("access.log", log);
    let log = folder.0.join("access.log").display().to_string();
    let fields = ["--field", "x-policy", "--field", "cache-control"];
    let output =
        flatout(&[&["import", "--check", &old, &new, &log, "--host", "a.test"][..], &fields[..]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    let count = targets.len() + others.len() + 1;
    assert_eq!(
        said,
        format!(
            "{count} requests: {count} with equal responses, 0 with different ones\n1 not sent, because their methods may change something\n"
        ),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(0));

    // Differences are shown, and the exit status is a failure.
    folder.write("site.kdl", text.replace("\"ok\\n\"", "\"fine\\n\""));
    server.signal(rustix::process::Signal::HUP);
    until("it reloads", || server.said().iter().any(|line| line.contains("reloaded ")));
    let site = folder.0.join("site.kdl").display().to_string();
    let output = flatout(&["import", "--check", &old, &new, "-c", &site, "--host", "a.test"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("GET http://a.test/healthz\n  body             line 1: ok  →  line 1: fine\n"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(1));
}

/// Servers with TLS are compared too, by the name of each request.
#[test]
fn servers_with_tls_are_compared() {
    let folder = Folder::new();
    let authority = flatout_tests::authority::Authority::new();
    let tls = |name: &str| {
        authority.sign(name, &format!("{name}.test"));
        format!(
            "tls \"{}\" \"{}\"",
            authority.path(&format!("{name}.pem")),
            authority.path(&format!("{name}.key"))
        )
    };
    // A wrong name in TLS gets the other site's certificate, and 421.
    let (a, b) = (tls("a"), tls("b"));
    let server = |text: &str| {
        let own = Folder::new();
        let site = format!(
            "site a.test {{ listen \"127.0.0.1:0\" default=on; {a}; respond 200 one; }}\nsite b.test {{ listen \"127.0.0.1:0\"; {b}; respond 200 {text}; route \"/r\" {{ redirect \"https://$host/x\"; }}; }}\n"
        );
        own.write("site.kdl", site);
        let mut command = Command::new(program("flatout"));
        command.arg("serve").arg("-c").arg(own.0.join("site.kdl"));
        (Server::start(command), own)
    };
    let line = |host: &str, path: &str| {
        format!(
            "{host}:443 192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] \"GET {path} HTTP/1.1\" 200 1 \"-\" \"-\"\n"
        )
    };
    folder.write("access.log", [line("a.test", "/"), line("b.test", "/"), line("b.test", "/r")].concat());
    let log = folder.0.join("access.log").display().to_string();
    let (old, _old) = server("two");
    let (new, _new) = server("two");
    let (other, _other) = server("three");
    let url = |server: &Server| format!("https://127.0.0.1:{}", server.secure_port.unwrap());
    let output = flatout(&["import", "--check", &url(&old), &url(&new), &log]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(said, "3 requests: 3 with equal responses, 0 with different ones\n");
    let output = flatout(&["import", "--check", &url(&old), &url(&other), &log]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("GET http://b.test/\n  body             line 1: two  →  line 1: three\n"),
        "{said}"
    );
    let output = flatout(&["import", "--check", &url(&old), "ftp://x", &log]);
    assert_eq!(output.status.code(), Some(2));
}

/// Rules that refuse requests.
const GUARDED: &str = r#"
    events {}
    http {
        server {
            listen 127.0.0.1:1;
            server_name a.test;
            root FOLDER/www;
            location / { limit_except GET { deny all; } }
            location /users/ { auth_basic x; auth_basic_user_file FOLDER/users; alias FOLDER/www/; }
            location /pictures/ {
                alias FOLDER/www/;
                valid_referers none blocked server_names *.b.test;
                if ($invalid_referer) { return 403; }
            }
        }
    }
"#;

#[test]
fn converted_rules_refuse_the_same_requests() {
    let folder = Folder::new();
    folder.write("www/a.txt", "a");
    folder.write("users", "ann:$apr1$saltsalt$LrttParrLPdxvgutaSXWJ0\neve:saK8NpLaeYLyo\n");
    folder.write("nginx.conf", GUARDED.replace("FOLDER", &folder.0.display().to_string()));
    let (server, text) = imported(&folder);
    let referer = |value: &str| format!("Referer: {value}\r\n");
    // `ann:secret`, `ann:wrong` and `eve:secret`.
    let basic = |encoded: &str| format!("Authorization: Basic {encoded}\r\n");
    for (line, fields, status) in [
        ("GET /a.txt", String::new(), 200),
        ("DELETE /a.txt", String::new(), 403),
        ("GET /users/a.txt", String::new(), 401),
        ("GET /users/a.txt", basic("YW5uOnNlY3JldA=="), 200),
        ("GET /users/a.txt", basic("YW5uOndyb25n"), 401),
        ("GET /users/a.txt", basic("ZXZlOnNlY3JldA=="), 401),
        ("GET /pictures/a.txt", String::new(), 200),
        ("GET /pictures/a.txt", referer("https://a.test/x"), 200),
        ("GET /pictures/a.txt", referer("http://X.B.test:81/"), 200),
        ("GET /pictures/a.txt", referer("https://b.test.evil.test/"), 403),
        ("GET /pictures/a.txt", referer("https://evil.test/a.test/"), 403),
    ] {
        let request = format!("{line} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n{fields}\r\n");
        assert_eq!(server.one(&request).status, status, "{line} {fields}\n{text}");
    }
}

#[test]
fn invalid_nginx_files_are_refused() {
    let folder = Folder::new();
    folder.write("nginx.conf", "http {\n  server { listen 80 }\n}\n");
    let conf = folder.0.join("nginx.conf").display().to_string();
    let output = flatout(&["import", &conf]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nginx.conf:2:22: `listen` is not ended by `;`"), "{said}");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
}

/// IPv4 and IPv6 at one port, as most configurations have them, and requests that follow from both files.
#[test]
fn a_port_of_both_families_is_served_and_compared() {
    const HTTP: &str = r#"
        map $http_x_kind $kind { default none; ~^(big|small)$ $1; }
        types { }
        server {
            listen PORT;
            listen [::]:PORT;
            if ($arg_secret = yes) { return 403; }
            location / { return 200 "$uri $kind"; }
            location ~ \.(css|js)$ { return 200 "style"; }
        }
    "#;
    let folder = Folder::new();
    let Some(nginx) = Peer::nginx(&folder, HTTP) else { return };
    let port = flatout_tests::peers::free_port();
    let text = flatout(&["import", &folder.0.join("nginx.conf").display().to_string()]).stdout;
    let text = String::from_utf8(text).unwrap().replace(&format!(":{}\"", nginx.port), &format!(":{port}\""));
    folder.write("site.kdl", &text);
    let site = folder.0.join("site.kdl").display().to_string();
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "-c", &site, "--workers", "1"]);
    let _server = Server::start(command);
    let conf = folder.0.join("nginx.conf").display().to_string();
    for host in ["127.0.0.1", "[::1]"] {
        let (old, new) = (format!("http://{host}:{}", nginx.port), format!("http://{host}:{port}"));
        let output =
            flatout(&["import", "--check", &old, &new, "-c", &conf, "-c", &site, "--requests", "300"]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "300 requests: 300 with equal responses, 0 with different ones\n", "{text}");
    }
    let output = flatout(&["import", "--check", "http://a", "http://b", "-c", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(2));
}
