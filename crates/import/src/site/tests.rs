//! Configurations, and the site files that they become.

use super::written::{imported, of_server};

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
        "cache-dir \"/dev/shm/flatout-nginx-flask-flatout\"\ncache-size \"256MiB\"\ncache-inactive \"1d\"\n",
        "        cache \"1d\"\n        cache-valid \"1m\" \"404\" \"302\"\n        cache-key \"$host$request_uri$http_authorization\"\n",
        "\n// 26 directives: 19 converted, 7 not needed, 0 not converted.\n",
    ] {
        assert!(imported.text.contains(expected), "{expected}\n{}", imported.text);
    }
    assert_eq!(imported.left, 0);
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
        ("root /r; index a.html b.html;", "index \"a.html\" \"b.html\" | files \"/r\""),
        (
            "location /a/ { root /r; index /b.html; }",
            "route \"/a/\" { | when \"path.endsWith('/') && method in ['GET', 'HEAD', 'POST']\" { | reroute \"/b.html?$args\" | } | files \"/r\" | }",
        ),
        (
            "location /a/ { alias /r/; index $host.html; }",
            "route \"/a/\" { | files-at \"/a/\" | index off | when \"path.endsWith('/') && method in ['GET', 'HEAD', 'POST'] && ('/r' + $uri.substring(2) + $host + '.html').isFile()\" { | \
             reroute \"${uri}$host.html?$args\" | } | files \"/r/\" | }",
        ),
        (
            "root /r; autoindex on; autoindex_format json; max_ranges 2;",
            "listing json | ranges 2 | files \"/r\"",
        ),
        ("return 301 https://$host$request_uri;", "redirect \"https://$host$request_uri\" status=301"),
        ("return 204;", "respond 204"),
        // It is run before nginx reads the body.
        ("return 200 \"$request_body ok\";", "respond 200 \" ok\" type=\"text/plain\""),
        ("return 200 $request_body;", "respond 200"),
        ("return 403 \"go away\";", "respond 403 \"go away\" type=\"text/plain\""),
        ("client_max_body_size 0; return 204;", "body-bytes \"1024TiB\" | respond 204"),
        (
            "root /r; limit_rate 100k; limit_rate_after 2m;",
            "limit-rate \"100KiB\" | limit-rate-after \"2MiB\" | files \"/r\"",
        ),
        (
            "root /r; set $rate 5m; limit_rate $rate; limit_rate_after 0;",
            "limit-rate \"5MiB\" | limit-rate-after \"0\" | set rate \"5m\" | files \"/r\"",
        ),
        (
            "root /r; limit_rate 0; limit_rate_after 0;",
            "limit-rate off | limit-rate-after \"0\" | files \"/r\"",
        ),
        ("root /r; expires 1h;", "expires \"1h\" | files \"/r\""),
        ("root /r; charset UTF-8;", "charset utf-8 | files \"/r\""),
        ("root /r; expires max;", "expires max | files \"/r\""),
        ("root /r; expires modified +1h;", "expires \"1h\" from=modified | files \"/r\""),
        ("root /r; expires 0;", "expires \"0\" | files \"/r\""),
        ("root /r; expires modified -1h;", "expires \"-1h\" from=modified | files \"/r\""),
        ("root /r; expires epoch;", "expires never | files \"/r\""),
        (
            "root /r; expires 10ms;",
            "// not converted: expires 10ms;  (nginx.conf:1) its value is not understood | files \"/r\"",
        ),
        ("root /r; expires @15h30m;", "expires \"@15h30m\" | files \"/r\""),
        ("root /r; expires $arg_e;", "expires \"$arg_e\" | files \"/r\""),
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
            "root /r; error_page 302 /moved?$arg_a; location = /moved { return 303 /there; }",
            "error-page 302 to=\"/moved?$arg_a\" | files \"/r\" | route \"/moved\" match=exact { | redirect \"$scheme://$http_host/there\" status=303 | }",
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
        (
            "root /r; location / { try_files $uri /index.html; } location = /index.html { expires 1h; }",
            "route \"/\" { | index off | try-files \"/r\" final=on | reroute \"/index.html\" | } | \
             route \"/\" match=exact { | reroute \"/index.html?$args\" | } | \
             route \"/index.html\" match=exact { | expires \"1h\" | files \"/r\" | }",
        ),
        (
            "root /r; index index.html b.html; location / { } location = /index.html { expires 1h; }",
            "index \"index.html\" \"b.html\" | route \"/\" { | files \"/r\" | } | \
             route \"/\" match=exact when=\"'/r/index.html'.isFile()\" { | reroute \"/index.html?$args\" | } | \
             route \"/index.html\" match=exact { | expires \"1h\" | files \"/r\" | }",
        ),
        (
            "location / { root /r; try_files $uri /index.html; }",
            "route \"/\" { | index off | try-files \"/r\" final=on | reroute \"/index.html\" | }",
        ),
        (
            "root /r; location / { try_files $uri @app; } location @app { proxy_pass http://a:1; proxy_set_header Host $http_host; }",
            "route \"/\" { | index off | try-files \"/r\" final=on | proxy \"http://a:1\" | x-forwarded off | }",
        ),
        (
            "location / { proxy_pass http://a; proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }",
            "route \"/\" { | proxy \"http://a\" | proxy-host \"$host\" | x-forwarded off | request-header set \"X-Forwarded-For\" \"$proxy_add_x_forwarded_for\" | }",
        ),
        (
            "location / { proxy_pass http://a; proxy_set_header Host $http_host; proxy_set_header X-Forwarded-For $remote_addr; \
             proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $http_host; }",
            "route \"/\" { | proxy \"http://a\" | }",
        ),
        (
            // As nginx has it, without the usual port, and with no field more.
            "location / { proxy_pass http://a:80; proxy_set_header X-Forwarded-Proto $scheme; }",
            "route \"/\" { | proxy \"http://a:80\" | proxy-host a | x-forwarded off | request-header set \"X-Forwarded-Proto\" \"$scheme\" | \
             proxy-redirect \"http://a:80/\" \"/\" | }",
        ),
        (
            // X-Forwarded-Host would name another host than Host does.
            "location / { proxy_pass http://a; proxy_set_header Host b; proxy_set_header X-Forwarded-Proto $scheme; }",
            "route \"/\" { | proxy \"http://a\" | proxy-host b | x-forwarded off | request-header set \"X-Forwarded-Proto\" \"$scheme\" | }",
        ),
        (
            "location / { proxy_pass http://a; proxy_set_header Host b; proxy_set_header X-Forwarded-Proto $scheme; \
             proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Host $http_host; }",
            "route \"/\" { | proxy \"http://a\" | proxy-host b | }",
        ),
        (
            "location images/ { return 200; } location = x { return 200; } location / { return 204; }",
            "// not converted: location images/ { … }  (nginx.conf:1) no path begins so; an expression needs ~ | \
             // not converted: location = x { … }  (nginx.conf:1) no path begins so; an expression needs ~ | route \"/\" { | respond 204 | }",
        ),
        (
            "location / { proxy_pass https://a:1/b/; proxy_hide_header C; proxy_hide_header Upgrade; proxy_request_buffering on; proxy_buffering on; proxy_max_temp_file_size 64m; }",
            "route \"/\" { | rewrite-prefix \"/\" \"/b/\" | proxy a-1 | proxy-host \"a:1\" | x-forwarded off | proxy-redirect \"https://a:1/b/\" \"/\" | buffer-response \"64MiB\" | \
             response-header remove \"C\" | }",
        ),
        (
            "location /a/ { alias /s/; try_files $uri =404; } location /b/ { alias /s/; try_files $uri $uri/ @app; } \
             location @app { proxy_pass http://a; }",
            "route \"/a/\" { | files-at \"/a/\" | index off | files \"/s/\" | } | route \"/b/\" { | files-at \"/b/\" | \
             try-files \"/s/\" final=on | proxy \"http://a\" | proxy-host a | x-forwarded off | proxy-redirect \"http://a/\" \"/\" | }",
        ),
        (
            "location /i/ { alias /s/; } location ~ ^/x { alias /y; }",
            "route \"/i/\" { | files-at \"/i/\" | files \"/s/\" | } | route \"^/x\" match=regex { | \
             // not converted: alias /y;  (nginx.conf:1) it needs a folder, and a group or a variable behind it | \
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
            "location / { proxy_pass http://z; } location /files/ { internal; root /r; }",
            "route \"/\" { | proxy \"http://z\" | proxy-host z | x-forwarded off | proxy-redirect \"http://z/\" \"/\" | x-accel on | } | \
             route \"/files/\" entry=internal { | files \"/r\" | }",
        ),
        (
            "location / { proxy_pass http://z; proxy_ignore_headers X-Accel-Redirect; } location /files/ { internal; root /r; }",
            "route \"/\" { | proxy \"http://z\" | proxy-host z | x-forwarded off | proxy-redirect \"http://z/\" \"/\" | } | \
             route \"/files/\" entry=internal { | files \"/r\" | }",
        ),
        (
            "root /r; if ($scheme = http) { return 301 /x; } ssl_engine a;",
            "when \"$scheme == 'http'\" { | redirect \"$scheme://$http_host/x\" status=301 | } | files \"/r\" | \
             // not converted: ssl_engine a;  (nginx.conf:1) there is no equivalent",
        ),
        (
            "root /r; foo bar;",
            "respond 501 \"not converted\" | // not converted: foo bar;  (nginx.conf:1) there is no equivalent",
        ),
        (
            "location ~ (?=a) { return 204; }",
            "route \"^\" match=regex { | // not converted: location ~ (?=a) { … }  (nginx.conf:1) look-around and back-references \
             are not supported | respond 501 \"not converted\" | }",
        ),
        ("root /r; error_log off; sendfile on; gzip_vary on; proxy_cache off;", "files \"/r\""),
    ] {
        assert_eq!(of_server(text), expected, "{text}");
    }
}

#[test]
fn redirects_have_the_origin_of_nginx() {
    let origins = |text: &str| {
        let site = imported(&format!("http {{ server {{ {text} }} }}")).text;
        let lines = site.lines().filter_map(|line| line.trim().strip_prefix("redirect-origin "));
        lines.map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    for (text, expected) in [
        ("listen 80; root /r;", "\"$scheme://$http_host\""),
        ("listen 8080; location /a { alias /r; }", "\"$scheme://$host:8080\""),
        ("listen 8080; root /r; port_in_redirect off;", "\"$scheme://$host\""),
        (
            "listen 8080; root /r; server_name a.test b.test; server_name_in_redirect on;",
            "\"$scheme://a.test:8080\"",
        ),
        ("listen 8080; root /r; absolute_redirect off;", ""),
        ("listen 8080; root /r; location /a/ { absolute_redirect off; }", "\"$scheme://$host:8080\" off"),
        ("listen 80; location / { proxy_pass http://a; }", "\"$scheme://$http_host\""),
        ("listen 80; location / { proxy_pass http://a; proxy_redirect off; }", ""),
        ("listen 80; return 204;", ""),
    ] {
        assert_eq!(origins(text), expected, "{text}");
    }
}

#[test]
fn addresses_of_servers_are_known_where_a_listener_has_one() {
    for (listens, expected) in [
        ("listen 127.0.0.1:81; listen [::1]:82;", "respond 200 \"$server_addr:$server_port\""),
        ("listen 127.0.0.1:81;", "respond 200 \"127.0.0.1:81\""),
        ("listen 127.0.0.1:81; listen 82;", "respond 501"),
    ] {
        let text = "location / { return 200 $server_addr:$server_port; }";
        let site = imported(&format!("http {{ server {{ {listens} {text} }} }}")).text;
        assert!(site.contains(expected), "{listens}\n{site}");
    }
}

/// A larger window refuses nothing.
#[test]
fn the_largest_window_of_servers_is_that_of_all() {
    let with = |one: &str, other: &str| {
        let site = "return 204;";
        imported(&format!(
            "http {{ server {{ listen 80; {one} {site} }} server {{ listen 81; {other} {site} }} }}"
        ))
    };
    let size = |bytes: &str| format!("http2_body_preread_size {bytes};");
    let imported = with(&size("128k"), &size("1m"));
    assert!(imported.text.contains("stream-window 1048576\n"), "{}", imported.text);
    assert_eq!(imported.left, 0, "{}", imported.text);
    assert!(!with(&size("0"), "").text.contains("\nstream-window"), "a smaller one remains");
}

/// nginx writes a line at once, and with `buffer=` when that is full.
#[test]
fn lines_of_logs_are_written_soon() {
    let of = |log: &str| imported(&format!("http {{ {log} server {{ listen 80; return 204; }} }}")).text;
    assert!(of("access_log a;").contains("log-flush \"100ms\"\n"));
    assert!(of("access_log a buffer=1m;").contains(" buffer=\"1MiB\" flush=\"10s\"\n"));
    assert!(of("access_log a buffer=1m flush=1s;").contains(" buffer=\"1MiB\" flush=\"1s\"\n"));
    assert!(!of("").contains("log-flush"));
}

/// nginx takes lists from the innermost block that has any; a site file combines all levels.
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
    assert_eq!((own.matches("\"A\"").count(), own.matches("\"B\"").count()), (2, 1));
    let rest = "route \"/\" {\n        response-header add \"A\" \"1\"\n        files \"/r\"\n";
    assert!(own.contains(rest), "what matches no location: {own}");
    let returned = of("location /a { add_header B 2 always; } return 204;");
    assert!(returned.contains("response-header add \"A\" \"1\"\n        respond 204"), "{returned}");
    assert!(
        own.contains("route \"/b\" match=starts-with {\n        response-header add \"A\" \"1\"\n"),
        "{own}"
    );
}

#[test]
fn proxy_protocol_needs_trusted_addresses() {
    let with = |more: &str| {
        let server = "server { listen 80 proxy_protocol; listen 81; return 204; }";
        imported(&format!("http {{ {more} {server} }}")).text
    };
    let trusted = with("set_real_ip_from 10.0.0.0/8; real_ip_header proxy_protocol;");
    for expected in [
        "listen \":80\" proxy-protocol=on\nlisten \":81\"\n",
        "trusted-proxies \"10.0.0.0/8\"\n",
        "client-address proxy-protocol\n",
    ] {
        assert!(trusted.contains(expected), "{expected}\n{trusted}");
    }
    let nobody = with("");
    assert!(nobody.contains("listen \":80\" proxy-protocol=untrusted\nlisten \":81\"\n"), "{nobody}");
}

#[test]
fn a_location_has_its_own_clients_unless_an_if_decides_by_them() {
    let with = |outer: &str, inner: &str| {
        imported(&format!(
            "http {{ geo $bad {{ 192.0.2.1 1; }} map $bad $worse {{ 1 1; }} limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s; \
             limit_req_zone $http_x zone=y:1m rate=1r/s; limit_conn_zone $remote_addr zone=c:1m; \
             server {{ listen 80; root /www; {outer} location /a {{ {inner} }} }} }}"
        ))
    };
    let header = "real_ip_header X-Client;";
    for rules in [
        "if ($http_x) { return 403; }",
        "limit_req zone=y;",
        "deny 192.0.2.1;",
        "location /a/b { allow 192.0.2.1; deny all; }",
        "limit_req zone=z;",
        "limit_conn c 1;",
    ] {
        let open = with("set_real_ip_from 10.0.0.1;", &format!("{header} {rules}"));
        assert_eq!((open.unserved.len(), open.left), (0, 0), "{}", open.text);
        assert!(open.text.contains("        client-address \"X-Client\"\n"), "{}", open.text);
        assert_eq!(open.text.matches("trusted-proxies").count(), 1, "{}", open.text);
    }
    let own = with("set_real_ip_from 10.0.0.1;", "set_real_ip_from 10.0.0.2; set_real_ip_from unix:;").text;
    let lines = "        client-address \"X-Real-IP\"\n        trusted-proxies \"10.0.0.2\"\n        trusted-proxies unix\n";
    assert!(own.contains(lines), "{own}");
    for rules in [
        "if ($remote_addr = 192.0.2.1) { return 403; }",
        "if ($bad) { return 403; }",
        "if ($worse) { return 403; }",
        "set $x $bad; if ($x) { return 403; }",
        "set_real_ip_from proxy.test; deny 192.0.2.1;",
        "set_real_ip_from proxy.test; limit_req zone=z;",
    ] {
        let closed = with("", &format!("{header} {rules}"));
        assert_eq!(closed.unserved.len(), 2, "{}", closed.text);
        assert!(closed.unserved[1].contains("access depends on the client address"), "{}", closed.text);
    }
    let named = with("", &format!("{header} set_real_ip_from proxy.test;"));
    let why = "set_real_ip_from proxy.test;  (nginx.conf:1) only addresses and networks are supported\n";
    assert!(named.unserved.is_empty() && named.text.contains(why), "{}", named.text);
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
        "user a\n",
        "workers 2\n",
        "log-flush \"100ms\"\n",
        "access-log a format=\"$remote_addr $status\" escape=json\n",
        "access-log b buffer=\"64KiB\" when=\"!($n in ['', '0'])\" flush=\"10s\"\n",
        "map m \"$host\" {\n    default a\n    case \"example.org\" b\n    case \"~^x\" c\n}\n",
        "map n \"$host\" {\n    case a b\n}\n",
        "upstream u {\n    balance hash key=client\n    server \"http://a\" weight=3\n    // not converted: `slow_start=5s` of b:1\n    \
         server \"b:1\" backup=on\n    pool 8\n    // not converted: foo;  (nginx.conf:4) there is no equivalent\n    \
         failures 2 window=\"5s\" down-time=\"5s\"\n}\n",
        "// not converted: upstream unused { … }  (nginx.conf:5) nothing is passed to it\n",
        "site s \"~^x\\\\d\" \"~^mail\\\\..+$\" {\n    // not converted: the name ~^(?<n>y)$; named groups and variables are not \
         supported in names\n    listen \":80\" default=on\n    redirect-origin \"$scheme://$http_host\"\n    access-log off\n    rate-limit \"30/m\" burst=5 delay=0 key=client name=z status=503 fields=off\n",
        "    when \"$http_x != ''\" {\n        request-limit 10 key=\"$http_x\" name=c queue=0\n    }\n",
        "        proxy u\n        proxy-host u\n",
        "// not converted: server { … }  (nginx.conf:7) nginx sends it no requests either",
        "site t \"*.t\" {\n    listen \":81\" default=on\n    access-log a ",
        "    close\n}\n",
    ] {
        assert!(imported.text.contains(expected), "{expected}\n{}", imported.text);
    }
}

#[test]
fn the_longest_name_with_a_wildcard_at_its_end_counts() {
    let text = imported(
        "http { server { listen 80 default_server; server_name ~^mail; return 201; } server { listen 80; server_name mail.*; return 202; } \
         server { listen 80; server_name mail.a.*; return 203; } }",
    )
    .text;
    let at = |status: &str| text.find(&format!("respond {status}")).unwrap();
    assert!(at("203") < at("202") && at("202") < at("201"), "{text}");
    assert!(text.contains("site \"~^mail\" \"*\""), "{text}");
}

/// A redirect of a server comes before all its locations, exact ones included.
#[test]
fn redirects_of_a_server_come_before_its_locations() {
    let site = of_server("location = /a { return 200; } rewrite ^ https://b.test$request_uri? permanent;");
    assert!(site.contains("redirect \"https://b.test$request_uri\" status=301"), "{site}");
    assert!(!site.contains("route ") && site.contains("`rewrite` of its server applies first"), "{site}");
    let exact = of_server(
        "add_header A b always; rewrite ^/old/(.*)$ /new/$1 permanent; location = /old/a { add_header C d; return 200; }",
    );
    let expected = "when \"$uri.matches(r'^/old/(.*)$')\" { | response-header add \"A\" \"b\" | set redirect_1 expr=\"$uri.extract(r'^/old/(.*)$')\" | redirect ";
    assert!(exact.contains(expected) && !exact.contains("route \"^/old"), "{exact}");
    let plain = of_server("rewrite ^/old/(.*)$ /new/$1 permanent; location /old/ { return 200; }");
    assert!(plain.starts_with("route \"^/old/(.*)$\" match=regex"), "{plain}");
}

/// nginx chooses among the servers of one address. A server may get requests at some of its addresses only.
#[test]
fn servers_stay_at_the_addresses_where_they_get_requests() {
    let of = |text: &str| imported(&format!("http {{ {text} }}")).text;
    let site = of("server { listen 80 default_server; server_name a.test; return 204; } \
         server { listen 80; listen 81; server_name a.test; return 201; } \
         server { listen 80; listen 82; server_name _; return 202; } server { listen 81; server_name _; return 203; }");
    assert!(site.contains("site \"a.test\" {\n    listen \":80\" default=on\n"), "{site}");
    assert!(site.contains("site \"a.test\" {\n    listen \":81\" default=on\n    respond 201\n"), "{site}");
    assert!(site.contains("site \"*\" {\n    listen \":82\"\n    respond 202\n"), "{site}");
    assert_eq!(site.matches(":80\"").count(), 1, "{site}");
    assert!(!site.contains("respond 203") && site.contains("nginx sends it no requests either"), "{site}");
}

/// A response that must not be stored replaces nothing that others get.
#[test]
fn responses_for_one_person_are_not_stored_for_others() {
    let of = |text: &str| {
        imported(&format!(
            "http {{ proxy_cache_path /c keys_zone=a:1m; server {{ listen 80; location / {{ proxy_pass http://a; proxy_cache a; {text} }} }} }}"
        ))
    };
    let open = of("proxy_cache_bypass $cookie_s $upstream_http_x; proxy_no_cache $cookie_s;");
    for expected in [
        "not converted: proxy_cache_bypass $cookie_s $upstream_http_x;",
        "        cache-bypass \"$cookie_s\"\n",
        "        cache-no-store \"$cookie_s\"\n",
    ] {
        assert!(open.text.contains(expected), "{expected}\n{}", open.text);
    }
    assert!(!open.text.contains("cache-refresh"), "{}", open.text);
    assert_eq!(open.left, 1);
    for unknown in ["$cookie_s $upstream_http_x", "$upstream_http_x"] {
        let closed = of(&format!(
            "proxy_cache_valid 1m; proxy_cache_bypass $cookie_s; proxy_no_cache {unknown}; proxy_no_cache $arg_n;"
        ));
        assert!(!closed.text.contains("        cache"), "{}", closed.text);
        assert!(closed.text.contains("nothing is cached here"), "{}", closed.text);
        assert_eq!(closed.left, 2);
    }
}

#[test]
fn caches_are_converted() {
    let of = |text: &str| {
        let path = "proxy_cache_path /c/a keys_zone=a:1m inactive=2h max_size=1g;";
        imported(&format!(
            "http {{ {path} server {{ listen 80; location / {{ proxy_pass http://a; {text} }} }} }}"
        ))
    };
    let begin = "        proxy \"http://a\"\n        proxy-host a\n        x-forwarded off\n        proxy-redirect \"http://a/\" \"/\"\n";
    for (text, expected) in [
        (
            "proxy_cache a;",
            "        cache \"0s\"\n        cache-ignore request\n        cache-stale \"0s\"\n        cache-status off\n        x-accel on\n",
        ),
        (
            "proxy_cache a; proxy_cache_valid 404 1m; proxy_cache_valid 10m; proxy_cache_valid any 5s; proxy_cache_min_uses 3; \
             proxy_ignore_headers X-Accel-Expires Set-Cookie; proxy_cache_use_stale error updating; proxy_cache_lock on; \
             proxy_cache_bypass $cookie_s $arg_nocache; proxy_no_cache $http_x $cookie_s; add_header X-Cache-Status $upstream_cache_status;",
            "        cache \"10m\"\n        cache-valid \"1m\" \"404\"\n        cache-valid \"10m\" \"301\" \"302\"\n        cache-valid \"5s\" \"201-599\"\n\
            \x20       cache-bypass \"$cookie_s\"\n        cache-refresh \"$arg_nocache\"\n        cache-no-store \"$http_x\" \"$cookie_s\"\n        cache-min-uses 3\n\
            \x20       cache-ignore request x-accel-expires set-cookie\n        cache-stale \"2h\"\n        cache-updating \"2h\"\n",
        ),
        (
            "proxy_cache a; proxy_cache_use_stale timeout http_500 http_429;",
            "        cache \"0s\"\n        cache-ignore request\n        cache-stale \"2h\" 500 429\n        cache-status off\n        x-accel on\n",
        ),
        (
            "slice 1m; proxy_cache a; proxy_cache_key $uri$is_args$args$slice_range; proxy_set_header Range $slice_range; \
             proxy_cache_valid 206 1h; proxy_cache_valid 404 206 304 416 1m;",
            "        cache \"1h\"\n        cache-valid \"1m\" \"404\"\n        cache-key \"$uri$is_args$args\"\n        cache-slice \"1MiB\"\n\
            \x20       cache-ignore request\n        cache-stale \"0s\"\n        cache-status off\n        x-accel on\n",
        ),
        ("slice 0; proxy_cache off; proxy_cache_valid 1m;", ""),
        ("slice 1m; proxy_set_header Range $slice_range;", ""),
    ] {
        let imported = of(text);
        assert!(imported.text.contains(&format!("{begin}{expected}    }}\n")), "{text}\n{}", imported.text);
        assert!(
            imported
                .text
                .contains("cache-dir \"/c/a-flatout\"\ncache-size \"1GiB\"\ncache-inactive \"2h\"\n"),
            "{}",
            imported.text
        );
        assert_eq!(imported.left, 0, "{}", imported.text);
    }
    let unknown = of("proxy_cache b; proxy_cache_key $proxy_host;");
    assert!(unknown.text.contains("there is no proxy_cache_path with this keys_zone"), "{}", unknown.text);
    for size in ["1k", "1g", "x"] {
        let left = of(&format!("proxy_cache a; slice {size};"));
        assert!(left.text.contains("a slice has 4 KiB to 16 MiB") && left.left == 1, "{}", left.text);
    }
    let range = of("proxy_set_header Range $slice_range;");
    assert!(range.text.contains("the variable $slice_range is not supported"), "{}", range.text);
    let key = of("proxy_cache a; proxy_cache_key $nonesuch$uri;");
    assert!(key.text.contains("the variable $nonesuch is not supported; the key is"), "{}", key.text);
}

#[test]
fn compression_is_converted() {
    for (text, expected) in [
        (
            "gzip on;",
            "compress on | encode \"gzip=1\" | encode-types \"text/html\" | encode-min 20 | respond 204",
        ),
        ("gzip off;", "compress off | encode off | respond 204"),
        (
            "brotli on; gzip on; gzip_comp_level 5; gzip_types text/css text/html; gzip_min_length 1000; gzip_vary on; gzip_proxied any;",
            "compress on | encode \"br=6\" \"gzip=5\" | encode-types \"text/html\" \"text/css\" | encode-min 1000 | respond 204",
        ),
        ("gzip_types *;", "respond 204"),
    ] {
        assert_eq!(of_server(&format!("{text} return 204;")), expected, "{text}");
    }
    let below = "gzip on; server { listen 80; gzip_types *; return 204; }";
    let text = imported(&format!("http {{ {below} }}")).text;
    assert!(text.contains("    encode-types \"text/html\" \"*/*\"\n"), "{text}");
}

#[test]
fn tls_is_converted() {
    let redirect = "server { listen 80; server_name a.test; return 301 https://$host$request_uri; }";
    let secure = "server { listen 443 ssl http2; server_name a.test; ssl_certificate /c.pem; ssl_certificate_key /k.pem; ssl_ciphers X; return 204; }";
    let imported = imported(&format!(
        "http {{ ssl_protocols TLSv1.3; ssl_early_data on; ssl_client_certificate /ca.pem; ssl_verify_client optional; {redirect} {secure} }}"
    ));
    assert_eq!(
        imported.text,
        "early-data on\n\n\
         site \"a.test\" {\n    listen-plain \":80\" default=on\n    redirect \"https://$host$request_uri\" status=301\n}\n\n\
         site \"a.test\" {\n    listen \":443\" default=on\n    tls \"/c.pem\" \"/k.pem\"\n    tls-min-version \"1.3\"\n    \
         tls-client-ca \"/ca.pem\" optional=on\n    respond 204\n}\n\n\
         // 16 directives: 15 converted, 1 not needed, 0 not converted.\n"
    );
}

/// What a person would write: addresses that all servers share are at the top.
#[test]
fn addresses_belong_to_servers() {
    let text = |servers: &str| imported(&format!("http {{ {servers} }}")).text;
    let end = |text: &str| text.split("\n\n//").next().unwrap_or_default().to_owned();
    for (servers, expected) in [
        (
            "server { server_name a; return 204; } server { listen *:80; server_name b; return 204; }",
            "listen \":80\"\n\nsite a \"*\" {\n    respond 204\n}\n\nsite b {\n    respond 204\n}",
        ),
        (
            "server { listen 80; listen 127.0.0.1:81 default; server_name a; return 204; } server { listen 80 default_server; listen localhost:81; server_name b; return 204; }",
            "site a {\n    listen \":80\"\n    listen \"127.0.0.1:81\" default=on\n    respond 204\n}\n\n\
             site b {\n    listen \":80\" default=on\n    listen \"127.0.0.1:81\"\n    respond 204\n}",
        ),
        (
            "server { listen 80; return 204; } server { listen 8000-8001; return 205; }",
            "site \"*\" {\n    listen \":80\"\n    respond 204\n}\n\n\
             site \"*\" {\n    listen \":8000\"\n    listen \":8001\"\n    respond 205\n}",
        ),
        (
            "set_real_ip_from 10.0.0.0/8; server { listen 80; set_real_ip_from 192.0.2.1; real_ip_header X-A; server_name a; return 204; } server { listen 81; return 204; }",
            "client-address \"X-Real-IP\"\ntrusted-proxies \"10.0.0.0/8\"\n\n\
             site a {\n    listen \":80\" default=on\n    trusted-proxies \"192.0.2.1\"\n    client-address \"X-A\"\n    respond 204\n}\n\n\
             site \"*\" {\n    listen \":81\"\n    respond 204\n}",
        ),
    ] {
        assert_eq!(end(&text(servers)), expected, "{servers}");
    }
    let lost = text("server { listen example.org:80; return 204; } server { listen 80; return 204; }");
    assert!(lost.starts_with("// NOT SERVED: these servers are missing."), "{lost}");
}

/// Each of these servers has one place that nginx would have handled or checked in a way that is not converted.
#[test]
fn unconverted_directives_close_their_location() {
    let open = "location / { root /r; }";
    for (closed, text) in [
        (1, "location / { memcached_pass a:1; }"),
        (1, "location / { content_by_lua_file x; }"),
        (1, "location / { perl a::handler; }"),
        (1, "location / { js_content a; }"),
        (1, "location / { some_module_pass a; }"),
        (1, "location / { unheard_of x; root /r; }"),
        (1, "location / { root /r; access_by_lua_file x; }"),
        (1, "location / { root /r; auth_jwt x; }"),
        (0, "location / { root /r; auth_jwt off; }"),
        (0, "location / { root /r; limit_except GET { deny all; } }"),
        (1, "location / { root /r; limit_except GET { auth_basic a; auth_basic_user_file u; } }"),
        (0, "location / { root /r; if ($http_x) { return 403; } }"),
        (1, "location / { root /r; if ($unknown) { return 403; } }"),
        (1, "location / { root /r; if ($http_x ~ (?=a)) { return 403; } }"),
        (0, "location / { root /r; if ($http_x) { set $x 1; return 403; } }"),
        (1, "location / { root /r; if ($http_x) { set $x $unknown; return 403; } }"),
        (0, "location / { root /r; set $x 0; if ($http_x) { set $x 1; } if ($x) { return 403; } }"),
        (1, "location / { root /r; if ($http_x) { memcached_pass a:1; } }"),
        (0, "location / { root /r; if ($http_x) { add_header A b; } }"),
        (0, "location / { root /r; if ($host ~ ^www\\.$) { return 301 http://x/; } }"),
        (1, "location / { root /r; rewrite (?=a) /b; }"),
        (1, "location / { root /r; auth_request /none; }"),
        (0, "location / { root /r; auth_request /a/b; } location = /a/b { root /r; deny all; }"),
        (
            1,
            "location / { root /r; auth_request /a/b; } location /a/b { root /r; } location ~ /a/ { return 200; }",
        ),
        (1, "location / { root /r; auth_request /a/b; } location = /a/b { root /r; try_files $uri =404; }"),
        (0, "location / { root /r; try_files /a $uri =404; }"),
        (1, "location / { root /r; try_files /a$unknown $uri =404; }"),
        (1, "location / { root /r; try_files /a @none; }"),
        (0, "location / { root /r; try_files $uri /index.php?$args; } location ~ x { return 404; }"),
        (2, "location / { root /r; try_files $uri /a/x; } location ~ ^/a { memcached_pass a:1; }"),
        (1, "location / { root /r; auth_basic a; auth_basic_user_file $arg_f; }"),
        (1, "auth_basic a; auth_basic_user_file u; location / { root /r; auth_basic_user_file $arg_f; }"),
        (0, "location / { root /r; auth_basic off; auth_basic_user_file $arg_f; }"),
        (1, "auth_jwt x; location / { root /r; }"),
        (1, "auth_jwt x; location / { root /r; } location /a { auth_jwt off; root /r; }"),
        (2, "if ($unknown) { return 403; } location / { root /r; } location /a { root /r; }"),
        (2, "location / { root /r; } location ~ (a)\\1 { deny all; }"),
        (1, "location /a { location ~ b { memcached_pass a:1; } root /r; } location / { root /r; }"),
        (1, "location /a { alias $x; } location / { root /r; }"),
        (0, "location / { proxy_pass http://a; proxy_method GET; }"),
        (1, "location / { proxy_pass http://a; proxy_method HEAD; }"),
        (1, "location / { proxy_pass http://a; proxy_method $unknown; }"),
        (1, "proxy_set_body $request_body; location / { proxy_pass http://a; }"),
        (1, "location / { root /r; try_files $uri/ =404; }"),
        (1, "location / { root /r; try_files $uri/index.html =404; }"),
        (1, "location / { root /r; try_files /a $uri/ =404; }"),
        (1, "location / { root /r; if ($http_x) { break; } set $x 1; if ($x) { return 403; } }"),
        (1, "location / { root /r; if ($http_x) { break; } return 200 x; }"),
        (1, "location / { root /r; rewrite ^/a /b; if ($http_x) { break; } rewrite ^/b /c; }"),
        (0, "location / { root /r; if ($http_x) { break; } }"),
        (0, "location / { root /r; if ($http_x) { break; } rewrite ^/a /b; }"),
        (0, "location / { root /r; if ($http_x) { rewrite ^ http://a/ permanent; break; } set $x 1; }"),
        (1, "ssl_verify_client on; ssl_verify_depth 0; location / { root /r; }"),
        (0, "ssl_verify_client on; ssl_verify_depth 2; location / { root /r; }"),
        (0, open),
    ] {
        let imported = imported(&format!("http {{ server {{ listen 80; {text} }} }}"));
        let places = imported.unserved.len().saturating_sub(1);
        // A server whose expression is lost is closed as a whole, also without its location.
        let expected = if text.contains("\\1") { 1 } else { closed };
        assert_eq!(places, expected, "{text}\n{}", imported.text);
        assert_eq!(imported.text.contains("respond 501"), closed > 0, "{text}\n{}", imported.text);
        let lines = imported.text.lines().take(imported.unserved.len());
        let first: Vec<&str> = lines.map(|line| line.trim_start_matches("// ").trim()).collect();
        assert_eq!(first, imported.unserved.iter().map(|line| line.trim()).collect::<Vec<_>>());
    }
}

#[test]
fn passwords_hold_where_realm_and_file_come_together() {
    let both = "auth_basic X; location / { root /r; auth_basic_user_file u; }";
    assert!(of_server(both).contains("basic-auth \"X\" file=u"), "{}", of_server(both));
    let off = "auth_basic off; location / { root /r; auth_basic_user_file u; }";
    assert!(!of_server(off).contains("file=u"), "{}", of_server(off));
}

/// The written names are those of the table.
#[test]
fn source_and_secrets_are_hidden_where_files_are_served() {
    let files = imported("http { server { listen 80; root /r; } }").text;
    assert!(files.contains("\nhide \"*.php\"") && files.contains(" \".ht*\""), "{files}");
    assert!(!imported("http { server { listen 80; return 204; } }").text.contains("hide"));
}

/// A redirecting `rewrite` of a location stays in it.
#[test]
fn redirects_of_locations_stay_there() {
    for (text, expected) in [
        (
            "location / { return 204; } location /old { rewrite ^ /new permanent; }",
            "route \"/old\" match=starts-with { | redirect \"$scheme://$http_host/new$is_args$args\" status=301 | }",
        ),
        (
            "location / { return 204; } location /old { rewrite ^/(.*)$ http://x/$1? redirect; }",
            "route \"/old\" match=starts-with { | redirect \"http://x$uri\" status=302 | }",
        ),
        (
            "location / { rewrite ^(.+)(/+)$ $1 permanent; return 204; }",
            "route \"/\" { | when \"$uri.matches(r'^(.+)(/+)$')\" { | set redirect_1 expr=\"$uri.extract(r'^(.+)(?:/+)$')\" | \
             redirect \"$scheme://$http_host${redirect_1}$is_args$args\" status=301 | } | respond 204 | }",
        ),
        (
            "location / { return 204; } location /old/ { rewrite ^/old/(.*)$ http://x/$1? redirect; return 404; }",
            "route \"/old/\" { | when \"$uri.matches(r'^/old/(.*)$')\" { | set redirect_1 expr=\"$uri.extract(r'^/old/(.*)$')\" | \
             redirect \"http://x/${redirect_1}\" status=302 | } | respond 404 | }",
        ),
    ] {
        assert!(of_server(text).contains(expected), "{text}\n{}", of_server(text));
    }
    let lost = of_server(
        "location / { return 204; } location /old { rewrite ^/a /b; rewrite b(.*)$ http://x/$1 redirect; }",
    );
    assert!(lost.contains("respond 501") && !lost.contains("redirect \"http"), "{lost}");
}

#[test]
fn rates_that_differ_between_requests() {
    for (text, expected) in [
        (
            "root /r; limit_rate $arg_l; limit_rate_after ${arg_a}k;",
            "limit-rate \"$arg_l\" | limit-rate-after \"${arg_a}k\" | files",
        ),
        (
            "root /r; if ($arg_slow) { set $limit_rate 4k; }",
            "when \"!($arg_slow in ['', '0'])\" { | set \"limit_rate\" \"4k\" | } | limit-rate \"$limit_rate\" | files",
        ),
        (
            "root /r; limit_rate 1m; location /x { set $limit_rate 4k; }",
            "set \"limit_rate_here\" expr=\"$limit_rate == '' ? '1m' : $limit_rate\" | limit-rate \"$limit_rate_here\"",
        ),
    ] {
        let site = of_server(text);
        assert!(site.contains(expected) && !site.contains("not converted"), "{text}\n{site}");
    }
    let lost = of_server("root /r; limit_rate $upstream_http_x;");
    assert!(lost.contains("not converted: limit_rate") && !lost.contains("limit-rate"), "{lost}");
}

#[test]
fn logs_of_locations_and_their_conditions() {
    for (text, expected) in [
        ("access_log a; root /r; location /x { access_log off; }", "access-log off"),
        (
            "access_log a; root /r; location /x { access_log off; location /x/y { access_log a; } }",
            "access-log off | files \"/r\" | } | route \"/x/y\" match=starts-with { | files",
        ),
        (
            "access_log a; root /r; location /x { access_log b; location /x/y { } }",
            "access-log b | files \"/r\" | } | route \"/x/y\" match=starts-with { | access-log b | files",
        ),
        ("access_log a combined if=$arg_l; root /r;", "access-log a when=\"!($arg_l in ['', '0'])\" | files"),
        (
            "access_log a combined if=$arg_l; access_log b combined if=$arg_l; root /r;",
            "access-log a when=\"!($arg_l in ['', '0'])\" | access-log b when=\"!($arg_l in ['', '0'])\" | files",
        ),
    ] {
        let site = of_server(text);
        assert!(site.contains(expected) && !site.contains("not converted"), "{text}\n{site}");
    }
    // Each log has its own condition; some are about the response.
    let map = "map $status $ok { ~^2 1; } map $arg_a $asked { x 1; }";
    let own = "access_log a combined if=$ok; access_log b combined if=$asked$ok; access_log c; root /r;";
    let site = imported(&format!(
        "http {{ {map} server {{ {own} location /x {{ access_log a combined if=$ok; }} }} }}"
    ));
    for expected in [
        "    access-log a when=\"!($ok in ['', '0'])\"\n",
        "    access-log b when=\"!(($asked + $ok) in ['', '0'])\"\n",
        "    access-log c\n",
        "        access-log a when=\"!($ok in ['', '0'])\"\n",
    ] {
        assert!(site.text.contains(expected) && !site.text.contains("not converted:"), "{}", site.text);
    }
    let many: String = (0..7).map(|at| format!("access_log l{at} combined if=$arg_a{at};")).collect();
    let site = of_server(&format!("{many} root /r;"));
    assert_eq!(
        (site.matches("not converted: `if=").count(), site.matches(" when=").count()),
        (7, 0),
        "{site}"
    );
    // There is nothing to switch off, and what is not known is not converted.
    let off = of_server("access_log off; root /r; location /x { access_log off; }");
    assert_eq!(off.matches("access-log off").count(), 1, "{off}");
    let site = of_server("access_log a combined if=$nothing; root /r;");
    assert!(site.contains("not converted") && !site.contains("when="), "{site}");
}

#[test]
fn bodies_of_requests_are_logged() {
    let text = "http { log_format b '$uri $request_body'; server { access_log a b; location / { proxy_pass http://a:1; } } }";
    let site = imported(text).text;
    assert!(site.contains("access-log a format=\"$uri $request_body\"\n"), "{site}");
    // Variables of sites, of maps and of `set`.
    let text = "http { map $arg_a $kind { x 1; } map $status $good { ~^2 1; }\n\
                log_format b '$kind $good $sent_http_content_type ${upstream_http_x_a} $server_protocol $http2 $own $1 $none'; \
                server { set $own x; access_log a b; return 204; } }";
    let site = imported(text).text;
    let format = "format=\"$kind $good $sent_http_content_type ${upstream_http_x_a} $server_protocol $http2 $own - -\"\n";
    assert!(site.contains(format) && site.contains("// not converted: $none of the log format b"), "{site}");
    // It is not known when a request begins, so that no file has its name.
    let named = of_server("access_log /var/log/$request_body.log; location / { proxy_pass http://a:1; }");
    assert!(named.contains("not converted: access_log") && !named.contains("access-log"), "{named}");
}

/// What only rules of responses know is not taken for a fact of the request.
#[test]
fn the_body_is_a_value_of_responses_only() {
    let field = of_server("location / { add_header X-B $request_body; proxy_pass http://a:1; }");
    assert!(field.contains("response-header add \"X-B\" \"$request_body\" when=success"), "{field}");
    let guard = of_server("location / { if ($request_body ~ evil) { return 403; } proxy_pass http://a:1; }");
    assert!(guard.contains("respond 501") && !guard.contains("proxy "), "{guard}");
    let cookie = of_server("location / { add_header X-C $upstream_cookie_sid; proxy_pass http://a:1; }");
    assert!(cookie.contains("\"$upstream_cookie_sid\""), "{cookie}");
}

#[test]
fn texts_are_replaced_as_nginx_does() {
    let text = "location / { sub_filter_types text/css; sub_filter_once off; sub_filter </head> '<b>$host</b></head>'; \
                sub_filter a b; proxy_pass http://a:1; }";
    let site = of_server(text);
    for expected in [
        "replace-types \"text/html\" \"text/css\"",
        "replace-text \"</head>\" \"<b>$host</b></head>\" once=off",
        "replace-text \"a\" \"b\" once=off",
    ] {
        assert!(site.contains(expected), "{expected}\n{site}");
    }
    // The inner list replaces the outer one.
    let nested = of_server("root /r; sub_filter a b; location /x { sub_filter c d; } location /y { }");
    assert_eq!(nested.matches("replace-text \"a\" \"b\"").count(), 2, "/ and /y: {nested}");
    assert!(
        nested.contains("route \"/x\" match=starts-with { | compress off | small-bytes \"1MiB\" | replace-text \"c\" \"d\""),
        "{nested}"
    );
    let variable = of_server("root /r; sub_filter //$host b; location / { }");
    assert!(variable.contains("replace-text \"//$host\" \"b\""), "{variable}");
    let variable = of_server("root /r; sub_filter $unknown b; location / { }");
    assert!(variable.contains("// not converted: sub_filter $unknown b;"), "{variable}");
}

#[test]
fn a_server_may_be_for_requests_without_a_host() {
    let named = "server { listen 80; server_name a.test; return 201; }";
    for (others, expected) in [
        ("server { listen 80; server_name \"\"; return 444; }", Some("site \"\" {\n")),
        ("server { listen 80; return 444; }", Some("site \"\" {\n")),
        ("server { listen 80; server_name '' b.test; return 444; }", Some("site \"\" \"b.test\" {\n")),
        // The first one has such requests.
        ("server { listen 80; return 444; } server { listen 80; return 202; }", Some("site \"\" {\n")),
        // It has all other requests, too.
        ("server { listen 80 default_server; return 444; }", None),
        ("server { listen 80; server_name _; return 444; }", None),
    ] {
        let site = imported(&format!("http {{ {named} {others} }}")).text;
        assert_eq!(site.matches("site \"\"").count(), usize::from(expected.is_some()), "{others}\n{site}");
        assert!(expected.is_none_or(|expected| site.contains(expected)), "{others}\n{site}");
    }
}

#[test]
fn classes_of_unicode_in_names_are_those_of_ascii() {
    let site = imported(
        "http { server { server_name \"~^(?<shop>\\p{L}+)\\p{N}+\\.a\\.test$\"; return 301 http://b.test/$shop; } }",
    );
    let site = site.text;
    assert!(site.contains("[A-Za-z]+)[0-9]+") && !site.contains("not converted:"), "{site}");
}

#[test]
fn a_named_group_of_a_server_name_is_a_variable() {
    let text = imported(
        "http { server { server_name ~^(?<sub>.+)\\.a\\.test$; return 301 http://b.test/$sub; } \
         server { server_name c.test; return 301 http://b.test/$sub; } }",
    )
    .text;
    for expected in [
        "site \"~^(?<sub>.+)\\\\.a\\\\.test$\"",
        "    set sub expr=\"host.extract(r'(?i)^(?<sub>.+)\\\\.a\\\\.test$')\"\n",
        "redirect \"http://b.test/$sub\" status=301",
        "the variable $sub is not supported",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[test]
fn groups_of_a_rewrite_may_have_names() {
    let site = of_server(
        "location / { root /r; rewrite ^/_export/(?<how>[^/]+)/(?P<id>.*) /doku.php?do=export_$how&id=${id} last; }",
    );
    assert!(site.contains("\"/doku.php?do=export_$1&id=$2\" then=route"), "{site}");
    assert!(!site.contains("not converted"), "{site}");
}

/// Logs of `http` that each server replaces.
#[test]
fn logs_that_no_server_has_are_not_missed() {
    let of = |servers: &str| imported(&format!("http {{ access_log /a; {servers} }}"));
    let own = of(
        "server { listen 80; access_log off; return 204; } server { listen 81; access_log /b; return 204; }",
    );
    assert!(own.left == 0 && !own.text.contains("access-log \"/a\""), "{}", own.text);
    let one = of("server { listen 80; access_log off; return 204; } server { listen 81; return 204; }");
    assert!(one.text.contains("access-log \"/a\""), "{}", one.text);
}
