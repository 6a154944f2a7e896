//! `response-trailer`: fields after bodies of every origin, over each protocol, under conditions, and after a reload.

use std::process::{Command, Stdio};

use flatout_tests::authority::self_sign;
use flatout_tests::{Folder, Server, program};

/// The application, whose trailer field is sent before those of the server in front of it would be lost.
const APP: &str = r#"
response-trailer "X-App" "1"
respond 200 "from the application"
"#;

const SITE: &str = r#"
upstream app { server "ADDRESS"; }
response-trailer "X-Path" "$uri $status"
response-trailer "X-Fine" "yes" when=success
when "method == 'HEAD'" { response-trailer "X-Head" "never sent"; }
when "arg['more'] == '1'" { response-trailer "X-More" "$arg_more"; }
route "/app/" { proxy app; }
route "/cached/" { cache "1h"; proxy app; }
route "/files/" { rewrite-prefix "/files/" "/"; files folder; }
route "/empty" { respond 204; }
route "/gone" { respond 410 "gone"; }
respond 200 "short"
"#;

fn served(folder: &Folder, text: &str) -> Server {
    folder.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
    Server::start(command)
}

fn setup(more: &str) -> (Folder, [Server; 2]) {
    let folder = Folder::new();
    folder.write("folder/text", "from a file");
    self_sign(&folder);
    let app = served(&folder, &format!("listen \"127.0.0.1:0\"\nworkers 1\n{APP}"));
    let site = SITE.replace("ADDRESS", &format!("http://{}", app.address));
    let server = served(&folder, &format!("listen \"127.0.0.1:0\"\nworkers 1\n{more}\n{site}"));
    (folder, [app, server])
}

/// The bytes of a response, until the server closes.
fn raw(server: &Server, request: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = server.connect();
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn got(server: &Server, path: &str) -> String {
    raw(server, &format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
}

#[test]
fn bodies_of_every_origin_have_trailer_fields() {
    let (_folder, [_app, server]) = setup("");
    // The second response of a cache is a stored one.
    for _ in 0..2 {
        for (path, body, status, others) in [
            ("/", "short", "200", "X-Fine: yes\r\n"),
            ("/?more=1", "short", "200", "X-Fine: yes\r\nX-More: 1\r\n"),
            ("/files/text", "from a file", "200", "X-Fine: yes\r\n"),
            ("/app/x", "from the application", "200", "X-Fine: yes\r\n"),
            ("/cached/x", "from the application", "200", "X-Fine: yes\r\n"),
            ("/gone", "gone", "410", ""),
        ] {
            let text = got(&server, path);
            let (head, rest) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains("Transfer-Encoding: chunked") && !head.contains("X-Path"), "{path} {head}");
            let at = path.split('?').next().unwrap().replace("/files/", "/");
            let end = format!("\r\n0\r\nX-Path: {at} {status}\r\n{others}");
            assert!(rest.contains(body) && rest.contains(&end), "{path} {rest}");
            assert!(rest.ends_with("\r\n\r\n"), "{path} {rest}");
        }
    }
    // That of the application follows the server's.
    assert!(got(&server, "/app/x").ends_with("X-Fine: yes\r\nX-App: 1\r\n\r\n"));
}

#[test]
fn responses_without_chunks_have_no_trailer_fields() {
    let (_folder, [_app, server]) = setup("");
    for (request, body) in [
        ("GET / HTTP/1.0\r\n\r\n", "short"),
        ("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", ""),
        ("GET /empty HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", ""),
    ] {
        let text = raw(&server, request);
        // They keep their length.
        let has_length = text.to_ascii_lowercase().contains("\r\ncontent-length: ");
        assert_eq!(has_length, !request.contains("/empty"), "{request} {text}");
        assert!(text.ends_with(&format!("\r\n\r\n{body}")) && !text.contains("X-"), "{request} {text}");
    }
}

#[test]
fn http2_has_them_as_a_second_block_of_fields() {
    let (_folder, [_app, plain]) = setup("");
    let (_secure_folder, [_secure_app, secure]) = setup("tls \"cert.pem\" \"key.pem\"");
    for (server, scheme, flag) in [(&plain, "http", "--http2-prior-knowledge"), (&secure, "https", "--http2")]
    {
        let port = server.secure_port.unwrap_or(server.address.port());
        for path in ["/", "/files/text", "/app/x", "/cached/x"] {
            let url = format!("{scheme}://127.0.0.1:{port}{path}");
            let output =
                Command::new("curl").args(["-skv", "--max-time", "60", flag, &url]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
            assert!(said.contains("< x-fine: yes"), "{flag} {path}\n{said}");
            assert!(said.contains("< x-path: /"), "{flag} {path}\n{said}");
        }
    }
}

#[test]
fn fields_that_are_read_before_the_body_are_refused() {
    let folder = Folder::new();
    for name in ["Content-Type", "Set-Cookie", "Vary"] {
        folder.write("site.kdl", format!("response-trailer {name:?} \"x\"\nrespond 200 \"\"\n"));
        let checked =
            Command::new(program("flatout")).arg("check").arg(folder.0.join("site.kdl")).output().unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(said.contains("is read before the body"), "{name} {said}");
    }
}
