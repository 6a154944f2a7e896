//! `flatout import`, held against the nginx that is imported from: both are asked the same.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use flatout_tests::{Folder, Server, program, until};

/// An nginx of the test's own, ended by its id.
struct Nginx {
    child: Child,
    port: u16,
}

impl Nginx {
    /// Starts it with this `http` block; `PORT`, `UPSTREAM` and `FOLDER` stand for what they say. None, with the reason on
    /// stderr, where there is no nginx.
    fn start(folder: &Folder, http: &str, upstream: &str) -> Option<Nginx> {
        let found = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"].into_iter();
        let Some(nginx) = found.into_iter().find(|path| std::path::Path::new(path).exists()) else {
            eprint_skipped();
            return None;
        };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let path = folder.0.display().to_string();
        let http =
            http.replace("PORT", &port.to_string()).replace("UPSTREAM", upstream).replace("FOLDER", &path);
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {path}/{name};\n"))
            .collect();
        // As root its workers would be nobody, who may not read the test's folder.
        let user = if is_root() { "user root;" } else { "" };
        folder.write(
            "nginx.conf",
            format!("{user} daemon off; pid {path}/pid; error_log {path}/error.log; events {{}}\nhttp {{\n{temporary}{http}\n}}\n"),
        );
        let child = Command::new(nginx)
            .args(["-p", &path, "-c", &format!("{path}/nginx.conf"), "-e", &format!("{path}/error.log")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("nginx listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Nginx { child, port })
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM ends its workers too.
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[expect(clippy::print_stderr, reason = "said past what the test harness keeps to itself")]
fn eprint_skipped() {
    eprintln!("skipped: there is no nginx here; ./x test installs it");
}

fn flatout(arguments: &[&str]) -> Output {
    Command::new(program("flatout")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// A server of the site file that an nginx configuration becomes.
fn imported(folder: &Folder) -> (Server, String) {
    let conf = folder.0.join("nginx.conf").display().to_string();
    let output = flatout(&["import", &conf]);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    folder.write("site.kdl", &text);
    let mut command = Command::new(program("flatout"));
    let site = folder.0.join("site.kdl").display().to_string();
    // `user` is for who may become another.
    command.args(["serve", "-c", &site, "--listen", "127.0.0.1:0", "--workers", "1"]);
    (Server::start(command), text)
}

const HTTP: &str = r#"
    include /etc/nginx/mime.types;
    add_header X-Frame-Options DENY always;
    map $arg_lang $greeting { default hello; de hallo; }
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
    }
    server { listen 127.0.0.1:PORT; server_name b.test .c.test; location / { return 200 "other"; } }
"#;

#[test]
fn nginx_and_what_it_becomes_answer_alike() {
    let (folder, behind) = (Folder::new(), Folder::new());
    for (name, text) in [
        ("www/index.html", "<h1>home</h1>"),
        ("www/sub/index.html", "sub"),
        ("www/a.css", "body{}"),
        ("www/404.html", "<p>gone</p>"),
        ("static/x.js", "1"),
        ("static/deep/y.txt", "y"),
    ] {
        folder.write(name, text);
    }
    behind.write("users.txt", "ann\n");
    behind.write("app/index.html", "application");
    let upstream = Server::site(&behind.0, &["--workers", "1"]);
    let address = upstream.address.to_string();
    let Some(nginx) = Nginx::start(&folder, HTTP, &address) else { return };
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
    ];
    let mut log: String = targets
        .iter()
        .map(|target| format!("127.0.0.1 - - [10/Oct/2026:13:55:36 +0000] \"GET {target} HTTP/1.1\" 200 1\n"))
        .collect();
    for host in ["b.test", "x.c.test", "c.test", "other.test"] {
        log.push_str(&format!(
            "{host}:80 127.0.0.1 - - [10/Oct/2026:13:55:36 +0000] \"GET /a HTTP/1.1\" 200 1 \"-\" \"-\"\n"
        ));
    }
    log.push_str("127.0.0.1 - - [10/Oct/2026:13:55:36 +0000] \"POST /api/users.txt HTTP/1.1\" 200 1\n127.0.0.1 - - [10/Oct/2026:13:55:36 +0000] \"HEAD / HTTP/1.1\" 200 1\n");
    folder.write("access.log", log);
    let log = folder.0.join("access.log").display().to_string();
    let output = flatout(&["import", "--check", &old, &new, &log, "--host", "a.test"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let count = targets.len() + 5;
    assert_eq!(
        said,
        format!(
            "{count} requests: {count} with equal responses, 0 with different ones\n1 not sent, because their methods may change something\n"
        ),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(0));

    // What differs is shown, and is a failure.
    folder.write("site.kdl", text.replace("\"ok\\n\"", "\"fine\\n\""));
    server.signal(rustix::process::Signal::HUP);
    until("it reloads", || server.said().iter().any(|line| line.contains("reloaded ")));
    let site = folder.0.join("site.kdl").display().to_string();
    let output = flatout(&["import", "--check", &old, &new, "-c", &site, "--host", "a.test"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("GET http://a.test/healthz\n  body             3 bytes, "), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn what_nginx_could_not_read_is_refused() {
    let folder = Folder::new();
    folder.write("nginx.conf", "http {\n  server { listen 80 }\n}\n");
    let conf = folder.0.join("nginx.conf").display().to_string();
    let output = flatout(&["import", &conf]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nginx.conf:2:22: `listen` is not ended by `;`"), "{said}");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
}
