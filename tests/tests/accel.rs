//! Instructions of upstreams to this server: `X-Accel-Redirect`, `X-Sendfile`, `X-Accel-Expires`, `X-Accel-Charset`.

use std::process::Command;

use flatout_tests::{Answer, Folder, Server, program};

/// An application that leaves its responses to the server in front of it.
const APP: &str = r#"
route "/text" { response-header set "X-Accel-Charset" "koi8-r"; response-header set "X-Accel-Limit-Rate" "1000000"; respond 200 "text"; }
route "/file" { response-header set "X-Accel-Redirect" "/private/a%20b.txt"
    response-header set "Content-Type" "app/type"; response-header add "Set-Cookie" "id=1"; response-header set "X-App" "1"
    respond 200 "the application's own"; }
route "/missing" { response-header set "X-Accel-Redirect" "/private/none.txt"; response-header set "Content-Type" "app/type"; respond 200 ""; }
route "/named" { response-header set "X-Accel-Redirect" "@other"; respond 200 ""; }
route "/nobody" { response-header set "X-Accel-Redirect" "@nobody"; respond 200 ""; }
route "/other" { response-header set "X-Accel-Redirect" "/elsewhere/x?a=1&b=%20"; respond 200 ""; }
route "/loop" { response-header set "X-Accel-Redirect" "/loop"; respond 200 ""; }
route "/again" { response-header set "X-Accel-Redirect" "/file"; respond 200 ""; }
route "/bad" { response-header set "X-Accel-Redirect" "../etc/passwd"; respond 200 ""; }
route "/above" { response-header set "X-Accel-Redirect" "/%2e%2e/etc/passwd"; respond 200 ""; }
route "/locked" { response-header set "X-Accel-Redirect" "/locked-files/a%20b.txt"; respond 200 ""; }
route "/guarded" { response-header set "X-Accel-Redirect" "/guarded-files/a%20b.txt"; respond 200 ""; }
route "/moved" { response-header set "X-Accel-Redirect" "/moved-files/a%20b.txt"
    response-header set "Content-Type" "app/type"; response-header add "Set-Cookie" "id=1"; respond 200 ""; }
route "/lost" { response-header set "X-Accel-Redirect" "/lost-files/none.txt"
    response-header set "Content-Type" "app/type"; response-header add "Set-Cookie" "id=1"; respond 200 ""; }
route "/limited" { response-header set "X-Accel-Redirect" "/limited-files/a%20b.txt"; respond 200 ""; }
route "/error" { response-header set "X-Accel-Redirect" "/private/a%20b.txt"; respond 500 "broken"; }
route "/big" { response-header set "X-Accel-Redirect" "/private/a%20b.txt"; files folder; }
route "/sent" { response-header set "X-Sendfile" "/app/files/a b.txt"; respond 200 ""; }
route "/sent-outside" { response-header set "X-Sendfile" "/app/files/../secret"; respond 200 ""; }
route "/sent-elsewhere" { response-header set "X-Sendfile" "/etc/passwd"; respond 200 ""; }
route "/hour" { response-header set "X-Accel-Expires" "3600"; response-header set "Cache-Control" "no-store"; respond 200 "$request_id"; }
route "/never" { response-header set "X-Accel-Expires" "0"; response-header set "Cache-Control" "max-age=60"; respond 200 "$request_id"; }
respond 200 "$request_method $request_uri $content_length"
"#;

fn served(folder: &Folder, text: &str) -> Server {
    folder.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    command.args(["--listen", "127.0.0.1:0", "--workers", "1"]);
    Server::start(command)
}

/// The application, and a server that follows what it says, with these settings for its routes.
struct Setup {
    _folders: [Folder; 2],
    _app: Server,
    server: Server,
}

fn setup(settings: &str) -> Setup {
    let folders = [Folder::new(), Folder::new()];
    folders[0].write("folder/big", vec![b'x'; 3_000_000]);
    let app = served(&folders[0], APP);
    let verifier = format!("http://{}", app.address);
    folders[1].write("files/a b.txt", "a private file");
    let site = format!(
        "upstream app {{ server \"{0}\"; }}\nupstream other {{ server \"{0}\"; }}\n{settings}\n\
         route \"/private/\" entry=internal {{ rewrite-prefix \"/private/\" \"/\"; files files\n\
             error-page 404 text=\"nothing here\"; }}\n\
         route \"/locked-files/\" entry=internal {{ rewrite-prefix \"/locked-files/\" \"/\"; files files; basic-auth \"x\" file=users; }}\n\
         route \"/guarded-files/\" entry=internal {{ rewrite-prefix \"/guarded-files/\" \"/\"; files files\n\
             forward-auth \"{verifier}\" path=\"/check\"; request-limit 1; }}\n\
         route \"^/moved-files/(.*)$\" match=regex entry=internal {{ reroute \"/private/$1\"; }}\n\
         route \"/lost-files/\" entry=internal {{ rewrite-prefix \"/lost-files/\" \"/\"; files files\n\
             error-page 404 to=\"/sorry\" status=own; }}\n\
         route \"/sorry\" {{ respond 200 \"sorry\"; }}\n\
         route \"/limited-files/\" entry=internal {{ rewrite-prefix \"/limited-files/\" \"/\"; files files; rate-limit \"1/h\"; }}\n\
         route \"/elsewhere/\" entry=internal {{ proxy other; x-accel off; }}\n\
         route \"/form\" {{ proxy app; deny all; error-page 403 to=\"/denied\"; }}\n\
         route \"/denied\" {{ proxy app; }}\n\
         route \"@other\" {{ proxy other; request-header set \"X-Named\" \"1\"; }}\n\
         route \"/\" {{ proxy app; error-page 500 upstream=on text=\"a page\"; }}\n",
        app.address
    );
    folders[1].write("users", "bob:$2y$12$abcdefghijklmnopqrstuuJ5oJ8pHWiK6GxCfX1GDZwm4mwHcvGZa\n");
    let server = served(&folders[1], &site);
    Setup { _folders: folders, _app: app, server }
}

impl Setup {
    fn ask(&self, request: &str, fields: &str) -> Answer {
        let answer =
            self.server.one(&format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n"));
        for name in
            ["x-accel-redirect", "x-accel-expires", "x-accel-charset", "x-accel-limit-rate", "x-sendfile"]
        {
            assert_eq!(answer.field(name), None, "{request}");
        }
        answer
    }

    fn got(&self, request: &str) -> (u16, String) {
        let answer = self.ask(request, "");
        (answer.status, answer.text())
    }
}

const FILE: &str = "a private file";

#[test]
fn an_upstream_sends_a_file_of_another_route() {
    let setup = setup("x-accel on");
    let answer = setup.ask("GET /file", "");
    assert_eq!((answer.status, answer.text().as_str()), (200, FILE));
    let of = |name| answer.field(name);
    assert_eq!((of("content-type"), of("set-cookie"), of("x-app")), (Some("app/type"), Some("id=1"), None));
    let tag = answer.field("etag").expect("that of the file").to_owned();
    // What the client asks for is asked of the file.
    let part = setup.ask("GET /file", "Range: bytes=2-8\r\n");
    assert_eq!(
        (part.status, part.text().as_str(), part.field("content-range")),
        (206, "private", Some("bytes 2-8/14"))
    );
    assert_eq!(setup.ask("GET /file", "Range: bytes=20-\r\n").status, 416);
    assert_eq!(setup.ask("GET /file", &format!("If-None-Match: {tag}\r\n")).status, 304);
    let head = setup.ask("HEAD /file", "");
    assert_eq!((head.status, head.text().as_str(), head.field("content-length")), (200, "", Some("14")));
    let post = setup.ask("POST /file", "Content-Length: 5\r\n\r\nhello");
    assert_eq!((post.status, post.text().as_str()), (200, FILE));
    // The path is not open to anybody else.
    assert_eq!(setup.got("GET /private/a%20b.txt").0, 404);
    // One more route does not lose what the upstream says, and the page of an error has its cookies.
    for (path, text, of_upstream) in [("/moved", FILE, true), ("/lost", "sorry", false)] {
        let answer = setup.ask(&format!("GET {path}"), "");
        assert_eq!((answer.status, answer.text().as_str()), (200, text), "{path}");
        assert_eq!(answer.field("content-type") == Some("app/type"), of_upstream, "{path}");
        assert_eq!(answer.field("set-cookie"), Some("id=1"), "{path}");
    }
}

#[test]
fn instructions_without_trust_are_removed() {
    let setup = setup("x-accel off");
    assert_eq!(setup.got("GET /file"), (200, "the application's own".to_owned()));
    assert_eq!(setup.got("GET /sent"), (200, String::new()));
    assert_eq!(
        setup.ask("GET /text", "").field("content-type"),
        setup.ask("GET /", "").field("content-type")
    );
}

#[test]
fn requests_continue_at_named_routes_and_other_upstreams() {
    let setup = setup("x-accel on");
    assert_eq!(setup.got("GET /other"), (200, "GET /elsewhere/x?a=1&b=%20 ".to_owned()));
    let post = setup.ask("POST /other", "Content-Length: 5\r\n\r\nhello");
    assert_eq!((post.status, post.text().as_str()), (200, "GET /elsewhere/x?a=1&b=%20 "));
    assert_eq!(setup.got("GET /again"), (200, FILE.to_owned()));
    // Nobody reads the rest of the response that is not used.
    for _ in 0..5 {
        let answer = setup.ask("GET /big", "");
        assert_eq!((answer.status, answer.text().as_str()), (200, FILE));
    }
    // The other upstream redirects again, to the same name.
    assert_eq!(setup.got("GET /named").0, 500);
    assert_eq!(setup.got("GET /loop").0, 500);
}

#[test]
fn places_that_do_not_exist_are_errors() {
    let setup = setup("x-accel on");
    let missing = setup.ask("GET /missing", "");
    assert_eq!((missing.status, missing.text().as_str()), (404, "nothing here"));
    assert_ne!(missing.field("content-type"), Some("app/type"));
    for path in ["/bad", "/above", "/nobody"] {
        assert_eq!(setup.got(&format!("GET {path}")).0, 502, "{path}");
    }
    // The page of the application's error comes first.
    assert_eq!(setup.got("GET /error"), (500, "a page".to_owned()));
}

#[test]
fn rules_of_the_other_route_apply() {
    let setup = setup("x-accel on");
    assert_eq!(setup.got("GET /locked").0, 401);
    // Its guard waits for an auth service, for each of them.
    for _ in 0..3 {
        assert_eq!(setup.got("GET /guarded"), (200, FILE.to_owned()));
        let post = setup.ask("POST /guarded", "Content-Length: 5\r\n\r\nhello");
        assert_eq!((post.status, post.text().as_str()), (200, FILE));
    }
}

#[test]
fn the_page_of_an_error_is_got_without_the_body_of_the_request() {
    let setup = setup("x-accel on");
    for fields in ["Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"]
    {
        let post = setup.ask("POST /form", fields);
        assert_eq!((post.status, post.text().as_str()), (403, "GET /denied "), "{fields}");
    }
    // Nothing has counted the request before.
    assert_eq!(setup.got("GET /limited"), (200, FILE.to_owned()));
    assert_eq!(setup.got("GET /limited").0, 429);
}

#[test]
fn files_of_allowed_folders_are_sent() {
    let setup = setup("x-sendfile \"/app/files/\" \"/private\"");
    assert_eq!(setup.got("GET /sent"), (200, FILE.to_owned()));
    assert_eq!(setup.got("GET /sent-outside").0, 502);
    assert_eq!(setup.got("GET /sent-elsewhere").0, 502);
    assert_eq!(setup.got("GET /file"), (200, "the application's own".to_owned()), "x-accel is off");
}

#[test]
fn lifetimes_of_upstreams_are_for_the_cache_and_redirects_are_not_stored() {
    let setup = setup("x-accel on; cache \"1h\"");
    for _ in 0..3 {
        assert_eq!(setup.got("GET /file"), (200, FILE.to_owned()));
        let part = setup.ask("GET /file", "Range: bytes=2-8\r\n");
        assert_eq!((part.status, part.text().as_str()), (206, "private"));
    }
    let [hour, never] = ["/hour", "/never"].map(|path| {
        let ids: Vec<String> = (0..3).map(|_| setup.got(&format!("GET {path}")).1).collect();
        ids[1] == ids[2]
    });
    assert!(hour && !never, "{hour} {never}");
    assert_eq!(setup.ask("GET /hour", "").field("cache-control"), Some("no-store"));
    assert_eq!(setup.ask("GET /text", "").field("content-type"), Some("text/plain; charset=koi8-r"));
}

#[test]
fn caches_ignore_lifetimes_of_upstreams_where_the_route_says_so() {
    let setup = setup("x-accel on; cache \"1h\"; cache-ignore x-accel-expires");
    let ids: Vec<String> = (0..3).map(|_| setup.got("GET /never").1).collect();
    assert_eq!(ids[1], ids[2]);
}

#[test]
fn streams_of_http2_get_redirected_responses() {
    let setup = setup("x-accel on");
    for (path, expected) in [("/file", FILE), ("/other", "GET /elsewhere/x?a=1&b=%20 "), ("/guarded", FILE)] {
        let url = format!("http://{}{path}", setup.server.address);
        let output = Command::new("curl").args(["-s", "--http2-prior-knowledge", &url]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{path}");
    }
}
