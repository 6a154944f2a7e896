//! Scripts, and parameters of requests.

use flatout_gateway::Client;

use super::*;
use crate::receiver::Receiver;
use crate::table::FixedTable;

fn plan() -> Cgi {
    Cgi { root: "/srv/none".to_owned(), ..Cgi::default() }
}

#[test]
fn the_script_is_in_the_path_or_the_front_controller() {
    let files = [
        "/srv/none/index.php",
        "/srv/none/a.php",
        "/srv/none/admin/index.php",
        "/srv/none/.git/hook.php",
        "/srv/none/.git/index.php",
        "/srv/none/.well-known/a.php",
    ];
    for (path, name, path_info) in [
        ("/a.php", "/a.php", ""),
        ("/a.php/b/c.php", "/a.php", "/b/c.php"),
        ("/", "/index.php", ""),
        ("/admin/", "/admin/index.php", ""),
        ("/posts/1", "/index.php", ""),
        ("/posts/", "/index.php", ""),
        ("/upload/evil.jpg/x.php", "/index.php", ""),
        ("/a.phpx", "/index.php", ""),
        ("/.git/hook.php", "/index.php", ""),
        ("/.git/", "/index.php", ""),
        ("/.well-known/a.php", "/.well-known/a.php", ""),
    ] {
        let found = script(path.as_bytes(), &plan(), |file| files.contains(&file), true).unwrap();
        assert_eq!(
            (&found.name[..], &found.path_info[..]),
            (name.as_bytes(), path_info.as_bytes()),
            "{path}"
        );
    }
    let elsewhere = script(b"/b.php/c", &plan(), |_| false, false).unwrap();
    assert_eq!((&elsewhere.name[..], &elsewhere.path_info[..]), (&b"/b.php"[..], &b"/c"[..]));
}

#[test]
fn without_a_front_controller_a_path_names_its_script() {
    let files = ["/srv/none/index.php", "/srv/none/a.php", "/srv/none/admin/index.php", "/srv/none/run"];
    let php = Cgi { has_front: false, ..plan() };
    let every = Cgi { split: String::new(), ..php.clone() };
    for (plan, path, name) in [
        (&php, "/a.php", Some("/a.php")),
        (&php, "/admin/", Some("/admin/index.php")),
        (&php, "/none.php", None),
        (&php, "/upload/evil.jpg/x.php", None),
        (&php, "/posts/1", None),
        (&every, "/run", Some("/run")),
        (&every, "/a.php/b", None),
        (&every, "/admin/", Some("/admin/index.php")),
        (&every, "/none", None),
    ] {
        let found = script(path.as_bytes(), plan, |file| files.contains(&file), true);
        let found = found.map(|script| String::from_utf8(script.name).unwrap());
        assert_eq!(found.as_deref(), name, "{path}");
    }
    let elsewhere = script(b"/any/path", &every, |_| false, false).unwrap();
    assert_eq!((&elsewhere.name[..], &elsewhere.path_info[..]), (&b"/any/path"[..], &b""[..]));
}

/// The folder of an application that is not at `/`.
#[test]
fn scripts_below_a_path_are_in_its_folder() {
    let plan = Cgi { root: "/srv/wiki".to_owned(), at: "/app".to_owned(), ..Cgi::default() };
    let files = ["/srv/wiki/index.php", "/srv/wiki/a.php", "/srv/wiki/app/b.php"];
    for (path, name, path_info) in [
        ("/app/a.php/x", Some("/app/a.php"), "/x"),
        ("/app/", Some("/app/index.php"), ""),
        ("/app/none", Some("/app/index.php"), ""),
        ("/app/app/b.php", Some("/app/app/b.php"), ""),
        // Not below the path.
        ("/a.php", None, ""),
        ("/app", None, ""),
        ("/application/a.php", None, ""),
    ] {
        let found = script(path.as_bytes(), &plan, |file| files.contains(&file), true);
        let found = found.map(|script| (script.name, script.path_info));
        let expected = name.map(|name| (name.as_bytes().to_vec(), path_info.as_bytes().to_vec()));
        assert_eq!(found, expected, "{path}");
    }
    let upstream = FixedTable::new(vec![()], ()).id(0).unwrap();
    let head = b"GET /app/a.php?q HTTP/1.1\r\nHost: t\r\n".to_vec();
    let plan = Cgi { root: "/none/wiki".to_owned(), ..plan };
    let pairs =
        parameters(&Job::new(upstream, 0, Receiver::nobody(), head), Protocol::FastCgi, &plan).unwrap();
    let mut sent = Vec::new();
    for (name, value) in [("SCRIPT_NAME", "/app/a.php"), ("SCRIPT_FILENAME", "/none/wiki/a.php")] {
        sent.clear();
        fastcgi::write_param(name.as_bytes(), value.as_bytes(), &mut sent);
        assert!(pairs.windows(sent.len()).any(|part| part == sent), "{name}");
    }
}

#[test]
fn heads_become_parameters() {
    let upstream = FixedTable::new(vec![()], ()).id(0).unwrap();
    let head = b"GET /a%20b.php/x?q=%201 HTTP/1.1\r\nHost: t:8080\r\nProxy: evil\r\nCookie: a\r\nCookie: b\r\nX-Forwarded-Proto: https\r\n:REMOTE_USER: ann\r\n:GATEWAY_INTERFACE: own\r\nRemote-User: eve\r\n";
    let job = Job::new(upstream, 0, Receiver::nobody(), head.to_vec());
    let mut plan = plan();
    plan.params = vec![("SERVER_SOFTWARE".to_owned(), "own".to_owned())];
    let pairs = parameters(&job, Protocol::FastCgi, &plan).unwrap();
    let has = |name: &str, value: &str| {
        let mut pair = Vec::new();
        fastcgi::write_param(name.as_bytes(), value.as_bytes(), &mut pair);
        pairs.windows(pair.len()).any(|part| part == pair)
    };
    for (name, value) in [
        ("SCRIPT_NAME", "/a b.php"),
        ("SCRIPT_FILENAME", "/srv/none/a b.php"),
        ("PATH_INFO", "/x"),
        ("QUERY_STRING", "q=%201"),
        ("REQUEST_URI", "/a%20b.php/x?q=%201"),
        ("HTTP_HOST", "t:8080"),
        ("SERVER_NAME", "t"),
        ("SERVER_PORT", "8080"),
        ("HTTP_COOKIE", "a; b"),
        ("HTTPS", "on"),
        ("SERVER_SOFTWARE", "own"),
        ("REMOTE_USER", "ann"),
        ("HTTP_REMOTE_USER", "eve"),
        ("GATEWAY_INTERFACE", "own"),
    ] {
        assert!(has(name, value), "{name}");
    }
    assert!(!has("GATEWAY_INTERFACE", "CGI/1.1"));
    let mut other = head.to_vec();
    drop_params(&mut other);
    let lines = String::from_utf8(other).unwrap();
    assert!(lines.ends_with("X-Forwarded-Proto: https\r\nRemote-User: eve\r\n"), "{lines}");
    assert!(!has("HTTP_PROXY", "evil") && !has("SERVER_SOFTWARE", "flatout"));
}

#[test]
fn the_client_of_a_trusted_proxy_is_named_in_place_of_the_proxy() {
    let upstream = FixedTable::new(vec![()], ()).id(0).unwrap();
    let pairs = |address: Option<&str>, is_https: bool, field: &str| {
        let head = format!("GET /a.php HTTP/1.1\r\nHost: t\r\n{field}");
        let mut job = Job::new(upstream, 0, Receiver::nobody(), head.into_bytes());
        job.peer = Some("[::ffff:10.0.0.1]:4000".parse().unwrap());
        let address = address.map(|address| address.parse().unwrap());
        job.client = Some(Client { address, is_https, is_early: false, is_from_proxy: true });
        parameters(&job, Protocol::FastCgi, &plan()).unwrap()
    };
    let has = |pairs: &[u8], name: &str, value: &str| {
        let mut pair = Vec::new();
        fastcgi::write_param(name.as_bytes(), value.as_bytes(), &mut pair);
        pairs.windows(pair.len()).any(|part| part == pair)
    };
    let behind = pairs(Some("203.0.113.9"), true, "");
    assert!(has(&behind, "REMOTE_ADDR", "203.0.113.9") && !has(&behind, "REMOTE_PORT", "4000"));
    assert!(has(&behind, "HTTPS", "on") && has(&behind, "SERVER_PORT", "443"));
    let direct = pairs(Some("10.0.0.1"), false, "");
    assert!(has(&direct, "REMOTE_ADDR", "10.0.0.1") && has(&direct, "REMOTE_PORT", "4000"));
    assert!(!has(&direct, "HTTPS", "on") && has(&direct, "SERVER_PORT", "80"));
    let ruled = pairs(Some("10.0.0.1"), false, "X-Forwarded-Proto: https\r\n");
    assert!(has(&ruled, "HTTPS", "on"));
    // Of a client that nobody trusts, the field is passed on and decides nothing.
    let mut job = Job::new(
        upstream,
        0,
        Receiver::nobody(),
        b"GET /a.php/x HTTP/1.1\r\nX-Forwarded-Proto: https\r\n".to_vec(),
    );
    job.has_sent_scheme = true;
    let sent = parameters(&job, Protocol::FastCgi, &plan()).unwrap();
    assert!(!has(&sent, "HTTPS", "on") && has(&sent, "HTTP_X_FORWARDED_PROTO", "https"));
    assert!(has(&sent, "DOCUMENT_URI", "/a.php") && has(&sent, "PATH_INFO", "/x"));
    // On a Unix socket whose peer is not trusted, nobody is named.
    let unnamed = pairs(None, false, "");
    assert!(!has(&unnamed, "REMOTE_ADDR", "10.0.0.1") && !has(&unnamed, "REMOTE_PORT", "4000"));
}

#[test]
fn paths_without_a_normal_form_are_refused() {
    let upstream = FixedTable::new(vec![()], ()).id(0).unwrap();
    let job = |head: &[u8]| Job::new(upstream, 0, Receiver::nobody(), head.to_vec());
    assert!(parameters(&job(b"GET /a/%2e%2e/b.php HTTP/1.1\r\n"), Protocol::FastCgi, &plan()).is_err());
    let long = job(&[b"GET / HTTP/1.1\r\nX-A: ", &vec![b'x'; 66_000][..], b"\r\n"].concat());
    for (protocol, is_sent) in [(Protocol::FastCgi, false), (Protocol::Uwsgi, false), (Protocol::Scgi, true)]
    {
        let plan = Upstream { protocol, cgi: plan(), ..Upstream::new("test", Vec::new()) };
        let written = write_request(&long, &plan, &mut Vec::new());
        assert_eq!(written.is_ok(), is_sent, "{protocol:?} {written:?}");
    }
}

#[test]
fn applications_of_all_paths_get_them_as_path_info() {
    let upstream = FixedTable::new(vec![()], ()).id(0).unwrap();
    let head =
        b"POST /a%20b.php/x?q=%201 HTTP/1.1\r\nHost: t:8080\r\n:REMOTE_USER: ann\r\n:CONTENT_LENGTH: 7\r\n";
    let mut job = Job::new(upstream, 0, Receiver::nobody(), head.to_vec());
    job.body = bytes::Bytes::from_static(b"body");
    let plan = |protocol| Upstream {
        protocol,
        cgi: Cgi { params: vec![("SCRIPT_NAME".to_owned(), "/app".to_owned())], ..Cgi::default() },
        ..Upstream::new("test", Vec::new())
    };
    let mut out = Vec::new();
    write_request(&job, &plan(Protocol::Scgi), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let (_, headers) = text.split_once(':').unwrap();
    assert!(
        headers.starts_with("CONTENT_LENGTH\x004\0SCGI\x001\0") && headers.ends_with("\0,body"),
        "{headers:?}"
    );
    for pair in
        ["PATH_INFO\0/a b.php/x\0", "SCRIPT_NAME\0/app\0", "REMOTE_USER\0ann\0", "QUERY_STRING\0q=%201\0"]
    {
        assert!(headers.contains(pair), "{pair:?}: {headers:?}");
    }
    assert!(
        !headers.contains("DOCUMENT_ROOT") && headers.matches("CONTENT_LENGTH").count() == 1,
        "{headers:?}"
    );
    let mut out = Vec::new();
    write_request(&job, &plan(Protocol::Uwsgi), &mut out).unwrap();
    let bytes = usize::from(u16::from_le_bytes([out[1], out[2]]));
    assert_eq!((out[0], out[3], &out[4 + bytes..]), (0, 0, &b"body"[..]));
}
