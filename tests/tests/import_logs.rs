//! Logs, rates, addresses and servers of an imported configuration beside those of nginx: both get the same requests.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use flatout_tests::peers::Peer;
use flatout_tests::{Answer, Folder, Server, answers, program, read_to_close, until};

use super::import::imported;

const HTTP: &str = r#"
    log_format all '$request_method $request_uri|$request_body|$kind|$good|$own|$sent_http_x_a|$upstream_http_x_b|$status|$server_protocol';
    map $arg_k $kind { a one; default other; }
    map $status $good { ~^2 1; }
    map $arg_slow $rate { yes 4k; }
    geo $near { default far; proxy 127.0.0.0/8; 192.0.2.3/24 near; 2001:db8::/32 six; }
    geo $first { default far; proxy 127.0.0.0/8; proxy 10.0.0.0/8; proxy_recursive; 192.0.2.0/24 near; }
    server {
        listen 127.0.0.1:PORT default_server;
        server_name a.test;
        set $own none;
        access_log FOLDER/old/all.log all;
        access_log FOLDER/old/good.log all if=$good;
        access_log FOLDER/old/asked.log all if=$arg_log$arg_logs;
        add_header X-A "$near $first" always;
        location /app { set $own app; proxy_pass http://UPSTREAM; }
        location /none { return 404; }
        location /quiet { access_log off; return 200; }
        location /own { access_log FOLDER/old/own.log all if=$kind; return 200; }
        location /file { limit_rate $rate; root FOLDER; }
        location /set { if ($arg_slow) { set $limit_rate 4k; } root FOLDER; }
        location / { return 200 "<$request_body>"; }
    }
    server { listen 127.0.0.1:PORT; server_name ""; access_log off; return 204; }
    server { listen 127.0.0.1:PORT; server_name "~^(?<shop>[a-z]+)\p{N}+\.b\.test$"; access_log off; return 200 $shop; }
"#;

const LOGS: [&str; 4] = ["all", "good", "asked", "own"];

fn upstream() -> (Server, Folder) {
    let folder = Folder::new();
    folder
        .write("site.kdl", "site \"*\" { response-header set \"X-B\" \"of <$arg_k>\"; respond 200 app; }\n");
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--listen", "127.0.0.1:0", "-c"]).arg(folder.0.join("site.kdl"));
    (Server::start(command), folder)
}

fn ask(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    answers(&read_to_close(&mut stream), false).into_iter().next().unwrap()
}

/// A request whose connection is closed, with these fields, each ended by CRLF.
fn request(method: &str, target: &str, fields: &str, body: &str) -> String {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    format!("{method} {target} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n{fields}{length}\r\n{body}")
}

#[test]
fn an_imported_configuration_writes_the_same_logs() {
    let (folder, (upstream, _behind)) = (Folder::new(), upstream());
    for file in ["old/x", "new/x", "file/a", "set/a"] {
        folder.write(file, "x".repeat(8 << 10));
    }
    let Some(nginx) = Peer::nginx(&folder, &HTTP.replace("UPSTREAM", &upstream.address.to_string())) else {
        return;
    };
    // nginx has read its configuration: the imported one has logs of its own.
    let config = std::fs::read_to_string(folder.0.join("nginx.conf")).unwrap();
    folder.write("nginx.conf", config.replace("/old/", "/new/"));
    let (server, text) = imported(&folder);
    assert!(!text.contains("not converted:") && !text.contains("501"), "{text}");
    let both = |request: &str| [nginx.address(), server.address].map(|address| ask(address, request));
    let form = "name=a&text=b c\"d";
    for request in [
        request("GET", "/?k=a", "", ""),
        request("POST", "/app?k=a", "", form),
        request("POST", "/app?log=1", "X-Forwarded-For: 192.0.2.1\r\n", "{\"a\": \"b\"}"),
        request("GET", "/app", "X-Forwarded-For: 192.0.2.1, 10.0.0.1\r\n", ""),
        request("GET", "/none", "X-Forwarded-For: 2001:db8::1\r\n", ""),
        request("GET", "/none?log=0", "X-Forwarded-For: unknown\r\n", ""),
        request("GET", "/none?log=0&logs=0", "", ""),
        request("POST", "/text?log=yes", "", "abc"),
        request("GET", "/quiet", "", ""),
        request("GET", "/own?k=a", "", ""),
        request("GET", "/last?log=1", "", ""),
        "GET /unnamed HTTP/1.0\r\n\r\n".to_owned(),
        request("GET", "/", "", "").replace("a.test", "shop12.b.test"),
        request("GET", "/", "", "").replace("a.test", "12.b.test"),
    ] {
        let [old, new] = both(&request);
        let parts = |answer: &Answer| (answer.status, answer.field("X-A").map(str::to_owned), answer.text());
        match old.status {
            // The page is nginx's.
            404 => assert_eq!((new.status, new.field("X-A")), (404, old.field("X-A")), "{request}"),
            _ => assert_eq!(parts(&new), parts(&old), "{request}\n{text}"),
        }
    }
    let read = |of: &str, log: &str| {
        std::fs::read_to_string(folder.0.join(of).join(format!("{log}.log"))).unwrap_or_default()
    };
    for log in LOGS {
        let old = read("old", log);
        assert!(!old.is_empty(), "{log}");
        until("the lines are written", || read("new", log).lines().count() >= old.lines().count());
        assert_eq!(read("new", log), old, "{log}\n{text}");
    }
    // Two seconds at this rate: nginx sends the first second's bytes at once.
    for path in ["/file/a", "/set/a"] {
        let began = Instant::now();
        assert_eq!(ask(server.address, &request("GET", path, "", "")).body.len(), 8 << 10, "{text}");
        assert!(began.elapsed() < Duration::from_secs(1), "{path} {:?}", began.elapsed());
        assert_eq!(
            ask(server.address, &request("GET", &format!("{path}?slow=yes"), "", "")).body.len(),
            8 << 10
        );
        assert!(began.elapsed() > Duration::from_secs(1), "{path} {:?}", began.elapsed());
    }
}
