//! Configurations, and the site files that they become.

use flatout_config::Source;

use crate::nginx::{FILE, parse};
use crate::{Imported, site_file};

fn imported(text: &str) -> Imported {
    let source = Source::new("nginx.conf", text.as_bytes().to_vec(), &FILE).unwrap();
    site_file(&parse(&source, "nginx.conf").unwrap())
}

/// The site file of the directives of one server, without what is the same for all of them.
fn of_server(text: &str) -> String {
    let whole = imported(&format!("http {{ server {{ listen 80; {text} }} }}")).text;
    let (_, site) = whole.split_once("site \"*\" {\n").unwrap_or(("", &whole));
    let (site, _) = site.split_once("\n}\n").unwrap_or((site, ""));
    site.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" | ")
}

#[test]
fn the_published_climb_is_converted() {
    let text = include_str!("../../../../climbs/nginx-flask/step5.conf");
    let imported = imported(text);
    assert!(imported.text.starts_with("listen \"127.0.0.1:18089\"\n"), "{}", imported.text);
    for expected in [
        "idle-time \"15s\"\n",
        "access-log \"access.log\" buffer=\"256KiB\" flush=\"10s\"\n",
        "    route \"/\" {\n",
        "        proxy \"unix:app.sock\"\n",
        "// not converted: proxy_cache api;  (nginx.conf:24) caching is not supported yet\n",
        "\n// 26 directives: 10 converted, 6 not needed, 10 not converted.\n",
    ] {
        assert!(imported.text.contains(expected), "{expected}\n{}", imported.text);
    }
    assert_eq!((imported.carried, imported.needless, imported.left), (10, 6, 10));
}

#[test]
fn locations_become_routes_with_the_same_precedence() {
    let text = "root /r; location = /a {} location ^~ /b {} location ~ \\.c$ {} location ~* \\.d$ {} location /e {} \
                location /f/ {} location / {} location =/g {} location @h {}";
    assert_eq!(
        of_server(text),
        "route \"/a\" match=exact { | files \"/r\" | } | route \"/b\" match=starts-with before-patterns=on { | files \"/r\" | } | \
         route \"\\\\.c$\" match=regex { | files \"/r\" | } | route \"\\\\.d$\" match=regex-ignore-case { | files \"/r\" | } | \
         route \"/e\" match=starts-with { | files \"/r\" | } | route \"/f/\" { | files \"/r\" | } | route \"/\" { | files \"/r\" | } | \
         route \"/g\" match=exact { | files \"/r\" | } | // not converted: location @h { … }  (nginx.conf:1) no try_files refers to it"
    );
}

#[test]
fn directives_have_their_words() {
    for (text, expected) in [
        ("root /r; index a.html; autoindex on;", "index \"a.html\" | listing on | files \"/r\""),
        ("return 301 https://$host$request_uri;", "redirect \"https://$host$request_uri\" status=301"),
        ("return 204;", "respond 204"),
        ("return 403 \"go away\";", "respond 403 \"go away\" type=\"text/plain\""),
        ("client_max_body_size 0; return 204;", "body-bytes \"1024TiB\" | respond 204"),
        ("root /r; expires 1h;", "cache-control \"max-age=3600\" | files \"/r\""),
        (
            "root /r; deny 10.0.0.1; allow unix:; deny all;",
            "deny \"10.0.0.1\" | allow unix | deny all | files \"/r\"",
        ),
        ("root /r; auth_basic off;", "basic-auth off | files \"/r\""),
        ("root /r; auth_basic X; auth_basic_user_file u;", "basic-auth \"X\" file=u | files \"/r\""),
        (
            "root /r; add_header A b; add_header C \"\";",
            "response-header add \"A\" \"b\" when=success | files \"/r\"",
        ),
        (
            "root /r; error_page 404 =200 /x.html;",
            "error-page 404 file=\"/r/x.html\" status=200 | files \"/r\"",
        ),
        (
            "root /r; rewrite ^/a$ /b last; rewrite ^/c$ /d;",
            "rewrite \"^/a$\" \"/b\" then=stop | rewrite \"^/c$\" \"/d\" | files \"/r\"",
        ),
        (
            "root /r; rewrite ^/a$ /b? permanent;",
            "files \"/r\" | route \"^/a$\" match=regex { | redirect \"$scheme://$http_host/b\" status=301 | }",
        ),
        ("location / { root /r; try_files $uri /index.html; }", "route \"/\" { | files \"/r\" | spa | }"),
        (
            "root /r; location / { try_files $uri @app; } location @app { proxy_pass http://a:1; proxy_set_header Host $host; }",
            "route \"/\" { | try-files \"/r\" | proxy \"http://a:1\" | x-forwarded off | }",
        ),
        (
            "location / { proxy_pass http://a; proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }",
            "route \"/\" { | proxy \"http://a\" | }",
        ),
        (
            "location / { proxy_pass https://a:1/b/; proxy_hide_header C; proxy_request_buffering on; }",
            "route \"/\" { | rewrite-prefix \"/\" \"/b/\" | proxy a-1 | proxy-host \"a:1\" | x-forwarded off | buffer-requests | \
             response-header remove \"C\" | }",
        ),
        (
            "location /i/ { alias /s/; } location ~ ^/x { alias /y; }",
            "route \"/i/\" { | files \"/s/\" | rewrite-prefix \"/i/\" \"/\" | } | route \"^/x\" match=regex { | \
             // not converted: alias /y;  (nginx.conf:1) it needs a location with a plain path, and a folder without variables | \
             respond 501 \"not converted\" | }",
        ),
        (
            "root /r; location /a/ { location /a/b { deny all; } }",
            "files \"/r\" | route \"/a/\" { | files \"/r\" | } | route \"/a/b\" match=starts-with { | deny all | files \"/r\" | }",
        ),
        (
            "location = /auth { internal; proxy_pass http://z; } location /p { auth_request /auth; return 204; }",
            "route \"/auth\" match=exact { | respond 404 | } | route \"/p\" match=starts-with { | forward-auth \"http://z\" path=\"/auth\" | respond 204 | }",
        ),
        (
            "root /r; if ($scheme = http) { return 301 /x; } ssl_certificate a; foo bar;",
            "files \"/r\" | // not converted: if ($scheme = http) { … }  (nginx.conf:1) conditions are not supported; use sites, routes, maps or methods | \
             // not converted: ssl_certificate a;  (nginx.conf:1) TLS for clients is not supported yet | \
             // not converted: foo bar;  (nginx.conf:1) there is no equivalent",
        ),
        (
            "location ~ (?=a) { return 204; }",
            "// not converted: location ~ (?=a) { … }  (nginx.conf:1) look-around, including look-ahead and look-behind, is not supported | respond 404",
        ),
        ("root /r; error_log off; sendfile on; gzip_vary on; proxy_cache off;", "files \"/r\""),
    ] {
        assert_eq!(of_server(text), expected, "{text}");
    }
}

/// nginx takes lists from the innermost block that has any; a site file adds them up.
#[test]
fn lists_are_written_where_they_hold() {
    let of = |inner: &str| {
        imported(&format!(
            "http {{ add_header A 1 always; server {{ listen 80; server_name x; root /r; {inner} }} }}"
        ))
        .text
    };
    assert_eq!(of("").matches("response-header add \"A\"").count(), 1);
    assert!(of("").contains("\nresponse-header add \"A\" \"1\"\n"), "at the top");
    let own = of("location /a { add_header B 2 always; } location /b {}");
    assert_eq!((own.matches("\"A\"").count(), own.matches("\"B\"").count()), (1, 1));
    assert!(
        own.contains("route \"/b\" match=starts-with {\n        response-header add \"A\" \"1\"\n"),
        "{own}"
    );
}

#[test]
fn proxy_protocol_is_believed_where_somebody_is_trusted() {
    let with = |more: &str| {
        let server = "server { listen 80 proxy_protocol; listen 81; return 204; }";
        imported(&format!("http {{ {more} {server} }}")).text
    };
    let trusted = with("set_real_ip_from 10.0.0.0/8; real_ip_header proxy_protocol;");
    for expected in [
        "listen \":80\" proxy-protocol=on\nlisten \":81\" proxy-protocol=off\n",
        "trusted-proxies \"10.0.0.0/8\"\n",
        "client-address proxy-protocol\n",
    ] {
        assert!(trusted.contains(expected), "{expected}\n{trusted}");
    }
    let nobody = with("");
    assert!(nobody.contains("// not converted: proxy_protocol of listen 80 proxy_protocol;"), "{nobody}");
    assert!(nobody.contains("listen \":80\"\nlisten \":81\"\n"), "{nobody}");
}

#[test]
fn upstreams_zones_maps_and_logs() {
    let text = "limit_req_zone $binary_remote_addr zone=z:1m rate=30r/m; limit_conn_zone $http_x zone=c:1m;\n\
                map $host $m { default a; example.org b; ~^x c; } map $host $n { volatile; a b; }\n\
                log_format f escape=json '$remote_addr ' '$status'; access_log a f; access_log b combined buffer=64k if=$n;\n\
                upstream u { ip_hash; server a weight=3 max_fails=2 fail_timeout=5s; server b:1 backup slow_start=5s; keepalive 8; foo; }\n\
                upstream unused { server a; }\n\
                server { server_name s ~^x\\d mail.* ~^(?<n>y)$; access_log off; limit_req zone=z burst=5; limit_conn c 10; location / { proxy_pass http://u; } }\n\
                server { server_name s; } server { listen 81; server_name .t; return 444; }";
    let imported = imported(&format!("user a; worker_processes 2; http {{ {text} }}"));
    for expected in [
        "listen \":80\"\nlisten \":81\"\n",
        "user a\n",
        "workers 2\n",
        "access-log a format=\"$remote_addr $status\"\n",
        "access-log b buffer=\"64KiB\"\n// not converted: `if=$n` of this log (nginx.conf:3)\n",
        "// not converted: map $host $m { … }  (nginx.conf:2) its case `~^x` is not plain text\n",
        "map n \"$host\" {\n    case a b\n}\n",
        "upstream u {\n    balance hash key=client\n    server \"http://a\" weight=3\n    // not converted: `slow_start=5s` of b:1\n    \
         server \"b:1\" backup=on\n    pool 8\n    // not converted: foo;  (nginx.conf:4) there is no equivalent\n    \
         failures 2 window=\"5s\" down-time=\"5s\"\n}\n",
        "// not converted: upstream unused { … }  (nginx.conf:5) no proxy_pass uses it\n",
        "site s \"~^x\\\\d\" \"~^mail\\\\..+$\" \"*\" {\n    // not converted: the name ~^(?<n>y)$; named groups and variables are not \
         supported in names\n    access-log off\n    rate-limit \"30/m\" burst=5 delay=0 key=client name=z status=503 fields=off\n    request-limit 10 key=\"$http_x\" name=c queue=0\n",
        "        proxy u\n        proxy-host u\n",
        "// not converted: server { … }  (nginx.conf:7) no request would reach it here",
        "site t \"*.t\" {\n    close\n}\n",
    ] {
        assert!(imported.text.contains(expected), "{expected}\n{}", imported.text);
    }
}
