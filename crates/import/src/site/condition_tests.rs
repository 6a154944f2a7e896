//! Conditions, variables, tables and named locations, and what they become.

use super::written::{imported, of_server};

#[test]
fn conditions_variables_and_tables() {
    for (text, expected) in [
        ("root /r; if ($http_x) { return 403; }", "when \"!($http_x in ['', '0'])\" { | respond 403 | }"),
        (
            "root /r; if ($request_method !~ ^(GET|HEAD)$ ) { return 405; }",
            "when \"!$request_method.matches(r'^(GET|HEAD)$')\" { | respond 405 | }",
        ),
        (
            "root /r; if ($http_user_agent ~* \"bad bot\") { return 444; }",
            "when \"$http_user_agent.matches(r'(?i)bad bot')\" { | close | }",
        ),
        (
            "location / { root /r; try_files $uri $uri.html $uri/ =404; }",
            "when \"!('/r' + $uri).isFile() && ('/r' + $uri + '.html').isFile()\" { | rewrite \"^\" \"$uri.html\" then=stop | \
             files \"/r\" | } | files \"/r\"",
        ),
        (
            "location /m/ { root /r; try_files /m.html =503; }",
            "when \"'/r/m.html'.isFile()\" { | rewrite \"^\" \"/m.html\" then=stop | files \"/r\" | } | respond 503 |",
        ),
        (
            "root /r; if (-f $document_root/down) { return 503; } location /x { alias /x; } location / { proxy_pass http://a:1; }",
            "when \"'/r/down'.isFile()\" { | respond 503 | } | route \"/x\" match=starts-with { | files-at \"/x\" | files \"/x\" | }",
        ),
        (
            "root /r; if (-f $document_root/m.html) { rewrite ^(.*)$ /m.html last; return 503; } location / { proxy_pass http://a:1; }",
            "when \"'/r/m.html'.isFile()\" { | rewrite \"^(.*)$\" \"/m.html\" then=stop | } | route \"/\" { | proxy",
        ),
        (
            "root /r; location / { if (-f ${document_root}/c${uri}.html) { rewrite ^ /c$uri.html break; } proxy_pass http://a:1; }",
            "when \"('/r/c' + $uri + '.html').isFile()\" { | rewrite \"^\" \"/c$uri.html\" then=stop | } | proxy",
        ),
        (
            "root /r; location / { try_files $uri $uri/ /go?$args; if (!-e $request_filename) { rewrite ^(.+)$ /go?q=$1 last; } } location /go { return 200 a; }",
            "route \"/\" { | when \"!('/r' + $uri).exists()\" { | rewrite \"^(.+)$\" \"/go?q=$1\" then=route | } | try-files \"/r\" final=on | \
             reroute \"/go?$args\" | }",
        ),
        (
            "root /r; error_page 503 @m; location @m { try_files /m.html =503; } location / { return 503; }",
            "route \"@m\" { | rewrite \"^\" \"/m.html\" then=stop | try-files \"/r\" final=on | respond 503 | }",
        ),
        (
            "location / { if ($request_method = OPTIONS) { add_header X-A b; add_header Content-Length 0; return 204; } proxy_pass http://a:1; }",
            "when \"$request_method == 'OPTIONS'\" { | response-header set \"X-A\" \"b\" when=success | respond 204 | } | proxy",
        ),
        (
            "root /r; location / { if (!-f $request_filename) { proxy_pass http://a:1; break; } }",
            "route \"/\" when=\"!('/r' + $uri).isFile()\" { | proxy \"http://a:1\" | proxy-host \"a:1\" | x-forwarded off | \
             proxy-redirect \"http://a:1/\" \"/\" | } | route \"/\" { | files \"/r\" | }",
        ),
        (
            "root /r; if (!-f $request_filename) { rewrite ^/([a-z]+)$ /$1.html last; } location /x/ { alias /y/; }",
            "route \"/x/\" { | files-at \"/x/\" | files \"/y/\" | }",
        ),
        (
            "root /r; if ($ssl_early_data) { return 425; }",
            "when \"!($ssl_early_data in ['', '0'])\" { | respond 425 | }",
        ),
        ("root /r; if (-f /r/down) { return 503; }", "when \"'/r/down'.isFile()\" { | respond 503 | }"),
        (
            "root /r; if (!-d $request_filename) { return 404; }",
            "when \"!('/r' + $uri).isDirectory()\" { | respond 404 | }",
        ),
        (
            "root /r; location / { error_page 404 =301 https://a.test/; error_page 403 https://b.test/$uri; }",
            "error-page 404 to=\"@error-page-1\" status=own | error-page 403 to=\"@error-page-2\" status=own",
        ),
        (
            "root /r; location / { error_page 403 https://b.test$uri; }",
            "route \"@error-page-1\" { | redirect \"https://b.test$uri\" status=302 | }",
        ),
        (
            "root /r; location /a { rewrite ^ https://a.test/?c=d permanent; }",
            "when \"query != ''\" { | redirect \"https://a.test/?c=d&$args\" status=301 | } | redirect \"https://a.test/?c=d\" status=301",
        ),
        (
            "location /a { rewrite ^(.*) $1?c=d; return 200 $args; }",
            "rewrite \"^(.*)\" \"$1?c=d\" then=stop | respond 200 \"$args\"",
        ),
        (
            "root /r; location /a { rewrite ^/a /b; break; rewrite ^/b /c last; if ($http_x) { return 200 a; } }",
            "route \"/a\" match=starts-with { | rewrite \"^/a\" \"/b\" then=stop | files \"/r\" | }",
        ),
        (
            "root /r; location /a { break; return 200 a; }",
            "route \"/a\" match=starts-with { | files \"/r\" | }",
        ),
        (
            "location /a { return 403; rewrite ^ /b last; }",
            "route \"/a\" match=starts-with { | respond 403 | }",
        ),
        (
            "root /r; location / { if (-f $request_filename) { break; } rewrite ^ /index.php last; }",
            "route \"/\" { | when \"('/r' + $uri).isFile()\" { | rewrite \"^\" \"$uri\" then=stop | } | \
             rewrite \"^\" \"/index.php\" then=route | files \"/r\" | }",
        ),
        (
            "root /r; if ($http_x) { rewrite ^/a /b; break; } rewrite ^/b /c;",
            "when \"!($http_x in ['', '0'])\" { | rewrite \"^/a\" \"/b\" | rewrite \"^\" \"$uri\" then=stop | } | \
             rewrite \"^/b\" \"/c\"",
        ),
        (
            "root /r; location / { if (-f $request_filename) { break; } if (!-e $request_filename) { rewrite ^ /a last; break; } } \
             location /a { return 204; }",
            "route \"/\" { | try-files \"/r\" final=on | reroute \"/a?$args\" | }",
        ),
        (
            "root /r; location /a { rewrite ^/a(.*) /b$1; break; }",
            "rewrite \"^/a(.*)\" \"/b$1\" then=stop | files \"/r\"",
        ),
        ("root /r; set $backend \"a-$host\"; add_header X $backend;", "set backend \"a-$host\""),
        (
            "root /r; error_page 404 = /e; location = /e { internal; return 204; }",
            "error-page 404 to=\"/e\" status=own",
        ),
        (
            "root /r; error_page 404 /e; location = /e { internal; return 204; }",
            "route \"/e\" match=exact entry=internal { | respond 204 | }",
        ),
        (
            "root /r; add_header A b; if ($request_method = OPTIONS) { add_header C d; add_header C e; return 204; }",
            "when \"$request_method == 'OPTIONS'\" { | response-header remove \"A\" | response-header set \"C\" \"d\" when=success | \
             response-header add \"C\" \"e\" when=success | respond 204 | }",
        ),
        (
            "root /r; if ($http_x) { rewrite ^/a(.*)$ /b$1 last; }",
            "when \"!($http_x in ['', '0'])\" { | rewrite \"^/a(.*)$\" \"/b$1\" then=stop | }",
        ),
        (
            "root /r; if ($http_x) { rewrite ^ https://$host$request_uri? permanent; }",
            "when \"!($http_x in ['', '0'])\" { | redirect \"https://$host$request_uri\" status=301 | }",
        ),
        (
            "root /r; set $m 0; if ($http_x) { set $m 1; } if ($m) { return 503; }",
            "set m \"0\" | when \"!($http_x in ['', '0'])\" { | set m \"1\" | } | when \"!($m in ['', '0'])\" { | respond 503 | }",
        ),
        (
            "location / { root /r; limit_except GET { allow 10.0.0.0/8; deny all; } }",
            "when \"!(method in ['GET', 'HEAD'])\" { | allow \"10.0.0.0/8\" | deny all | } | files \"/r\"",
        ),
        (
            "server_name .a.test; return 301 https://$server_name:$server_port/;",
            "redirect \"https://a.test:80/\" status=301",
        ),
        (
            "location / { set $app 10.0.0.1; set $port 81; proxy_pass http://$app:$port; proxy_set_header Host $host; }",
            "proxy \"http://10.0.0.1:81\"",
        ),
        (
            "location /a/ { proxy_pass http://b/c/; proxy_cookie_path /c/ /a/; proxy_cookie_domain .b b.test; proxy_cookie_flags x secure; }",
            "proxy-redirect \"http://b/c/\" \"/a/\" | proxy-cookie-domain \"b\" \"b.test\" | proxy-cookie-path \"/c/\" \"/a/\" | \
             proxy-cookie-flags x secure",
        ),
        (
            "root /r; server_name a.test; valid_referers none blocked server_names *.b.test c.test/x ~d; if ($invalid_referer) { return 403; }",
            "set invalid_referer expr=\"!has(header.referer) || (has(header.referer) && \
             !header.referer.matches(r'^(?i)(http://.{4}|https://.{3})')) || header.referer.matches(r'^(?i:https?)://(?:(?i:a\\\\.test)(?:[/:]|$)|\
             (?i:[^/:]+\\\\.b\\\\.test)(?:[/:]|$)|(?i:c\\\\.test)(?::[^/]*)?/x|(?i:.*(?:d)))') ? '' : '1'\" | \
             when \"!($invalid_referer in ['', '0'])\" { | respond 403 | }",
        ),
        (
            "root /r; location /a { auth_request /no; } location = /no { return 403; }",
            "route \"/a\" match=starts-with { | respond 403 | }",
        ),
        (
            "root /r; set $args x=$arg_y; if ($arg_z) { set $args \"\"; }",
            "rewrite \"^\" \"$uri?x=$arg_y?\" | when \"!($arg_z in ['', '0'])\" { | rewrite \"^\" \"$uri?\" | } | files \"/r\"",
        ),
        (
            "root /r; location /a { auth_request /maybe; } location = /maybe { internal; if ($arg_k = a) { return 204; } return 401; }",
            "route \"/a\" match=starts-with { | forward-auth \"/maybe\" | files \"/r\" | } | \
             route \"/maybe\" match=exact entry=internal { | when \"$arg_k == 'a'\" { | respond 204 | } | respond 401 | }",
        ),
        (
            "root /r; location /a { auth_request /yes; } location = /yes { return 204; }",
            "route \"/a\" match=starts-with { | files \"/r\" | }",
        ),
        (
            "root /r; add_header ETag x; add_header Last-Modified \"\";",
            "response-header set \"ETag\" \"x\" when=success | response-header remove \"Last-Modified\"",
        ),
        ("listen 8080; location /a { return 301 /b; }", "redirect \"$scheme://$http_host/b\" status=301"),
        ("port_in_redirect off; location /a { return 301 /b; }", "redirect \"$scheme://$host/b\" status=301"),
        ("absolute_redirect off; location /a { return 301 /b; }", "redirect \"/b\" status=301"),
        ("root /r; if ( $http_x = \"\" ) { return 403; }", "when \"$http_x == ''\" { | respond 403 | }"),
        (
            "root /r; satisfy any; allow 127.0.0.1; deny all; auth_basic x; auth_basic_user_file u;",
            "satisfy any | ",
        ),
    ] {
        assert!(of_server(text).contains(expected), "{text}\n{}", of_server(text));
    }
    let text = "geo $a { default 0; 10.0.0.0/8 1; } geo $http_x $b { ranges; 1.1.1.1-1.1.1.2 1; } \
                split_clients \"$remote_addr\" $c { 10% x; * y; } map $host $d { hostnames; .a.test 1; default 0; } \
                map $host $e { *.a.test 1; } server { listen 80; set $v 1; return 204; }";
    let text = imported(&format!("http {{ {text} }}")).text;
    for expected in [
        "map a \"$remote_addr\" by=address {\n    default \"0\"\n    case \"10.0.0.0/8\" \"1\"\n}\n",
        "map b \"$http_x\" by=address {\n    case \"1.1.1.1\" \"1\"\n    case \"1.1.1.2\" \"1\"\n}\n",
        "map c \"$remote_addr\" by=share {\n    case \"10%\" x\n    default y\n}\n",
        "map d \"$host\" {\n    case \"a.test\" \"1\"\n    case \"*.a.test\" \"1\"\n    default \"0\"\n}\n",
        "map e \"$host\" {\n    case \"~^\\\\*\\\\.a\\\\.test$\" \"1\"\n}\n",
        "\nset v \"\"\n",
        "    set v \"1\"\n    respond 204\n",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

/// Which folder is there does not change while a server runs.
#[test]
fn folders_are_chosen_by_their_presence() {
    let of = |condition: &str, one: &str, other: &str| {
        of_server(&format!("set $root {one}; if ({condition}) {{ set $root {other}; }} root $root;"))
    };
    assert!(of("!-d /none/a", "/none/a", "/etc").contains("files \"/etc\""));
    assert!(of("!-d \"/etc\"", "/etc", "/none/a").contains("files \"/etc\""));
    assert!(of("-d /etc", "/none/a", "/etc").contains("files \"/etc\""));
    for condition in ["!-d /none/$host", "!-f /none/a", "$host = a"] {
        assert!(of(condition, "/none/a", "/etc").contains("respond 501"), "{condition}");
    }
    // Neither of both is there.
    assert!(of("!-d /none/a", "/none/a", "/none/b").contains("respond 501"));
}

/// Behind a file, a query is part of its name.
#[test]
fn files_with_a_query_are_tried_without_one() {
    let of = |tried: &str| of_server(&format!("root /r; location / {{ try_files {tried}; }}"));
    let site = of("$uri /index.html$is_args$args =404");
    assert!(
        site.contains("when \"!('/r' + $uri).isFile() && (query == '' && '/r/index.html'.isFile())\" { | rewrite \"^\" \"/index.html\" then=stop | files \"/r\" | }"),
        "{site}"
    );
    assert!(
        !of("$uri /index.html?$args =404").contains("index.html"),
        "{}",
        of("$uri /index.html?$args =404")
    );
}

#[test]
fn named_locations_become_routes() {
    for (text, expected) in [
        (
            "root /r; error_page 404 = @app; location / { } location @app { proxy_pass http://a; proxy_set_header Host $http_host; }",
            "error-page 404 to=\"@app\" status=own | route \"/\" { | files \"/r\" | } | route \"@app\" { | proxy \"http://a\" | x-forwarded off | }",
        ),
        (
            "root /r; location / { try_files $uri @old; } location @old { rewrite ^/(.*)$ /new/$1 last; } location /new/ { return 204; }",
            "route \"/\" { | index off | try-files \"/r\" final=on | reroute \"@old\" | }",
        ),
        (
            "root /r; location / { try_files $uri /app?$args; } location = /app { proxy_pass http://a; proxy_set_header Host $http_host; }",
            "route \"/\" { | index off | try-files \"/r\" final=on | reroute \"/app?$args\" | }",
        ),
        (
            "root /r; location / { try_files $uri @app; } location @app { add_header A $upstream_status; proxy_pass http://a; proxy_set_header Host $http_host; }",
            "route \"@app\" { | response-header add \"A\" \"$upstream_status\" when=success | proxy \"http://a\" | x-forwarded off | }",
        ),
        (
            "root /r; error_page 404 @lost; location / { } location @lost { memcached_pass a:1; }",
            "route \"@lost\" { | respond 501 \"not converted\"",
        ),
    ] {
        assert!(of_server(text).contains(expected), "{text}\n{}", of_server(text));
    }
}

#[test]
fn variables_choose_among_upstreams() {
    let text = imported(
        "http { upstream a { server 10.0.0.1; } upstream b { server 10.0.0.2; } map $host $u { default a; x b; } \
         server { listen 80; location / { proxy_pass http://$u; proxy_set_header Host $host; } location /a/ { proxy_pass http://$u/x; } } }",
    )
    .text;
    assert!(text.contains("upstream a {\n") && text.contains("upstream b {\n"), "{text}");
    assert!(
        text.contains(
            "    route \"/\" {\n        proxy \"http://$u\" among=\"a b\"\n        proxy-host \"$host\"\n        x-forwarded off\n    }\n"
        ),
        "{text}"
    );
    assert!(
        text.contains(
            "    route \"/a/\" {\n        rewrite \"^\" \"/x?\" then=stop\n        proxy \"http://$u\" among=\"a b\"\n        x-forwarded off\n"
        ) && !text.contains("named-servers"),
        "{text}"
    );
}

/// A later range replaces a part of an earlier one; one that is deleted must be the same.
#[test]
fn ranges_of_addresses_become_networks() {
    let text = "geo $a { ranges; 10.0.0.0-10.0.0.255 x; 10.0.0.4-10.0.0.6 y; 10.1.0.0-10.1.0.9 z; delete 10.1.0.0-10.1.0.9; } \
                geo $b { 10.0.0.0/8 x; 10.1.0.0/16 y; delete 10.1.0.0/16; } server { listen 80; return 204; }";
    let text = imported(&format!("http {{ {text} }}")).text;
    let expected = "map a \"$remote_addr\" by=address {
    case \"10.0.0.0/30\" x
    case \"10.0.0.7\" x
    case \"10.0.0.8/29\" x
    case \"10.0.0.16/28\" x
    case \"10.0.0.32/27\" x
    case \"10.0.0.64/26\" x
    case \"10.0.0.128/25\" x
    case \"10.0.0.4/31\" y
    case \"10.0.0.6\" y
}

map b \"$remote_addr\" by=address {
    case \"10.0.0.0/8\" x
}
";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn maps_of_the_response_are_for_its_fields() {
    let with = |cases: &str, rules: &str| {
        imported(&format!(
            "http {{ map $sent_http_content_type $e {{ {cases} }} server {{ root /r; {rules} }} }}"
        ))
    };
    let made = with("default off; text/html epoch; ~image/(.*) $1; '' 1h;", "expires $e; add_header X-E $e;");
    assert!(made.left == 0, "{}", made.text);
    for expected in [
        "map e \"$sent_http_content_type\" {\n    case \"~*^text/html(?:;|$)\" epoch\n    default off\n    \
         case \"~image/(.*)\" \"$1\"\n    case \"\" \"1h\"\n}\n",
        "    expires \"$e\"\n",
        "    response-header add \"X-E\" \"$e\" when=success\n",
    ] {
        assert!(made.text.contains(expected), "{expected}\n{}", made.text);
    }
    // It is known too late for these, and knows nothing of the request.
    let early = with("text/html a;", "return 200 $e;");
    assert!(early.text.contains("501"), "{}", early.text);
    let mixed = with("text/html $host;", "add_header X-E $e;");
    assert!(mixed.left == 3 && !mixed.text.contains("map e"), "{}", mixed.text);
}

#[test]
fn proxies_under_conditions_are_routes() {
    let text = of_server(
        "location = /metrics { if ($arg_comp = core) { proxy_pass http://core; } if ($arg_comp = js) { proxy_pass http://js; } \
         proxy_pass http://rest; }",
    );
    let routes: Vec<&str> =
        text.split(" | ").filter(|line| line.contains("route ") || line.contains("proxy \"")).collect();
    assert_eq!(
        routes,
        [
            "route \"/metrics\" match=exact when=\"$arg_comp == 'js'\" {",
            "proxy \"http://js\"",
            "route \"/metrics\" match=exact when=\"$arg_comp == 'core'\" {",
            "proxy \"http://core\"",
            "route \"/metrics\" match=exact {",
            "proxy \"http://rest\"",
        ],
        "{text}"
    );
    // A map of URLs is such a condition, and rewrites around it apply.
    let map = "map $http_accept $to { default http://ui:1; ~json http://api:2; ~xml http://api:2; }";
    let text = imported(&format!(
        "http {{ {map} server {{ location / {{ proxy_pass $to; rewrite ^(.+)/+$ $1 permanent; }} }} }}"
    ))
    .text;
    let (first, second) = text.split_once("route \"/\" {").unwrap();
    for (route, url) in [(first, "http://api:2"), (second, "http://ui:1")] {
        assert!(route.contains(&format!("proxy \"{url}\"")) && route.contains("redirect \""), "{text}");
    }
    assert!(first.contains("route \"/\" when=\"$to == 'http://api:2'\""), "{text}");
    // What else it does would be lost.
    let text = of_server(
        "location / { if ($arg_a) { proxy_pass http://a; } set $x 1; add_header X $x; proxy_pass http://b; }",
    );
    assert!(text.contains("respond 501") && !text.contains("proxy \""), "{text}");
}

#[test]
fn expressions_inside_a_location_are_routes_of_that() {
    let text = of_server(
        "root /r; location ^~ /a/ { location ~ \\.(css|js)$ { expires 1h; } location ~* \\.php$ { proxy_pass http://a; } } \
         location ~ ^/b/ { deny all; location ~ \\.png$ { root /s; } }",
    );
    for expected in [
        "route \"/a/\" before-patterns=on when=\"$uri.matches(r'\\\\.(css|js)$')\" { | expires \"1h\" | files \"/r\" | }",
        "route \"/a/\" before-patterns=on when=\"$uri.matches(r'(?i)\\\\.php$')\" { | proxy \"http://a\"",
        "| route \"/a/\" before-patterns=on { | files \"/r\" | }",
        "route \"^/b/\" match=regex when=\"$uri.matches(r'\\\\.png$')\" { | deny all | files \"/s\" | }",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

/// As in nginx, what restricts a location restricts those inside it, and what is not inherited here closes them.
#[test]
fn inner_places_inherit_restrictions() {
    for (rules, expected, never) in [
        (
            "location ^~ /a/ { internal; location ~ x { expires 1h; } } location /p { proxy_pass http://p; }",
            "when=\"$uri.matches(r'x')\" entry=internal",
            "never",
        ),
        (
            "location /a/ { internal; location = /a/b { proxy_pass http://p; } }",
            "route \"/a/b\" match=exact entry=internal",
            "never",
        ),
        (
            "location /a { limit_except GET { deny all; } if ($arg_a) { proxy_pass http://p; } proxy_pass http://q; }",
            "respond 501",
            "proxy \"",
        ),
        (
            "location ^~ /a/ { alias /s/; location ~ x { expires 1h; } }",
            "matches(r'x')\" { | expires \"1h\" | files-at \"/a/\" | files \"/s/\" | }",
            "files \"/r\"",
        ),
        (
            "location /a { if ($arg_a) { return 403; } rewrite ^/a/(.*)$ http://o/$1 redirect; }",
            "status=302",
            "match=regex",
        ),
        (
            "location /a { rewrite /q(.*)$ /n?x=1 permanent; }",
            "&& query == ''\" { | redirect \"$scheme://$http_host/n?x=1\" status=301",
            "match=regex",
        ),
        (
            "location /a { if ($args ~ \"\\<\\?php\") { return 403; } }",
            "$args.matches(r'<\\\\?php')",
            "never",
        ),
    ] {
        let text = of_server(&format!("root /r; {rules}"));
        let place = text.split_once(" | route ").map_or("", |(_, places)| places);
        assert!(text.contains(expected) && !place.contains(never), "{rules}\n{text}");
    }
}

#[test]
fn the_last_table_of_a_name_counts() {
    let text = imported(
        "http { map $uri $x { default a; } geo $x { 10.0.0.0/8 b; } server { add_header X-X $x; return 204; } }",
    )
    .text;
    assert!(text.contains("map x \"$remote_addr\"") && !text.contains("map x \"$uri\""), "{text}");
}

#[test]
fn named_locations_have_no_actions_under_conditions() {
    let with =
        |rules: &str| format!("root /r; location / {{ try_files $uri @old; }} location @old {{ {rules} }}");
    let text = of_server(&with("rewrite ^ http://a/?b=c permanent;"));
    assert!(text.contains("route \"@old\" { | redirect \"http://a/?b=c&$args\" status=301 | }"), "{text}");
    for rules in ["root /s; try_files /a.html $uri =404;", "if (-f /r/down) { return 503; } return 200 x;"] {
        let text = of_server(&with(rules));
        assert!(text.contains("route \"@old\" { | respond 501 \"not converted\" | }"), "{text}");
    }
}

/// Redirects of errors have routes of their own.
#[test]
fn routes_for_errors_have_names_that_no_location_has() {
    let text = of_server(
        "root /r; error_page 403 https://a.test/; location / { error_page 404 https://b.test/; error_page 403 @error-page-1; } \
         location @error-page-1 { return 204; }",
    );
    assert_eq!(text.matches("route \"@error-page-1\"").count(), 1, "{text}");
    assert!(text.contains("route \"@error-page-2\" { | redirect "), "{text}");
}

/// Rewrites for files that do not exist: one that redirects, and others behind it.
#[test]
fn several_rewrites_for_missing_files_are_conditions() {
    let site = of_server(
        "root /r; if (!-e $request_filename) { rewrite /admin$ $scheme://$host$uri/ permanent; \
         rewrite ^/[a-z]+/(wp-.*) /$1 last; rewrite ^/[a-z]+/(.*\\.php)$ /$1 last; } location / { }",
    );
    let missing = "!('/r' + $uri).exists()";
    for expected in [
        format!("when \"({missing}) && $uri.matches(r'/admin$')\" {{ | redirect "),
        format!("when \"{missing}\" {{ | rewrite \"^/[a-z]+/(wp-.*)\" \"/$1\" then=stop | rewrite "),
    ] {
        assert!(site.contains(&expected), "{expected}\n{site}");
    }
    assert!(!site.contains("501") && site.contains("files \"/r\""), "{site}");
}

#[test]
fn look_ahead_and_named_groups_stand_in_rules_too() {
    let site =
        of_server("root /r; if ($request_uri ~ \"/\\.(?!well-known)\") { return 403; } location / { }");
    assert!(site.contains("respond 403") && !site.contains("501"), "{site}");
    let site = of_server(
        "location ~* -p-(?<id>[0-9]+)\\.html$ { rewrite ^ /product?id=$id last; } location / { return 204; }",
    );
    assert!(site.contains("\"/product?id=$1\" then=route") && !site.contains("501"), "{site}");
}

#[test]
fn groups_of_a_condition_are_variables() {
    for (content, expected) in [
        (
            "if ($host ~* ^www\\.(.*)$) { return 301 https://$1$request_uri; }",
            "set redirect_1 expr=\"$host.extract(r'(?i)^www\\\\.(.*)$')\" | redirect \"https://${redirect_1}$request_uri\" status=301",
        ),
        (
            "if ($host ~ ^www\\.(?P<rest>.+)$) { return 301 $scheme://$rest/; }",
            "redirect \"$scheme://${redirect_1}/\" status=301",
        ),
        (
            "if ($host ~* ^www\\.(.*)$) { set $rest $1; rewrite ^/(.*)$ $scheme://$rest/$1 permanent; }",
            "set rest expr=\"$host.extract(r'(?i)^www\\\\.(.*)$')\" | redirect \"$scheme://$rest$uri$is_args$args\" status=301",
        ),
    ] {
        let site = of_server(&format!("{content} location / {{ return 204; }}"));
        assert!(site.contains(expected) && !site.contains("501"), "{content}\n{site}");
    }
    // Without an expression there is no group.
    for content in ["if ($host = a) { return 301 /$1; }", "if ($host !~ (a)) { return 301 /$1; }"] {
        let site = of_server(&format!("{content} location / {{ return 204; }}"));
        assert!(!site.contains("$1"), "{content}\n{site}");
    }
}

#[test]
fn expressions_come_before_plain_locations_beside_them() {
    let refused = "location ~ \\.bak$ { deny all; }";
    for (text, expected) in [
        (
            format!("root /r; location ^~ /a/ {{ {refused} location /a/b/ {{ }} }}"),
            "route \"/a/b/\" before-patterns=on when=\"$uri.matches(r'\\\\.bak$')\" {",
        ),
        (
            format!("root /r; location ^~ /a/ {{ {refused} location /a/b/ {{ location /a/b/c/ {{ }} }} }}"),
            "route \"/a/b/\" before-patterns=on { | // not converted",
        ),
        (
            "root /r; location ^~ /a/ { location ~ \\.(?!x)bak$ { deny all; } location /a/b/ { } }"
                .to_owned(),
            "route \"/a/b/\" before-patterns=on { | // not converted",
        ),
        (
            format!("root /r; location ^~ /a/ {{ {refused} location ^~ /a/b/ {{ }} }}"),
            "route \"/a/b/\" before-patterns=on { | files",
        ),
        (
            "root /r; location ^~ /a/ { location ~ \\.css$ { expires 1h; } location /a/b/ { } }".to_owned(),
            "route \"/a/b/\" before-patterns=on { | files",
        ),
    ] {
        let site = of_server(&text);
        assert!(site.contains(expected), "{text}: {site}");
    }
}

/// nginx tries no expression of a map for an empty value.
#[test]
fn expressions_of_a_map_find_no_empty_value() {
    let of = |cases: &str| {
        imported(&format!("http {{ map $http_x $y {{ {cases} }} server {{ return 200 $y; }} }}")).text
    };
    assert!(of("default a; ~* $http_x;").contains("    case \"~*\" \"$http_x\"\n    case \"\" a\n"));
    assert!(of("~^b*$ c;").contains("    case \"\" \"\"\n"));
    assert!(!of("default a; ~b c;").contains("case \"\""));
    assert_eq!(of("default a; ~.* b; \"\" c;").matches("case \"\"").count(), 1);
}

/// The parenthesis behind a quoted expression is a word of its own.
#[test]
fn quoted_expressions_have_groups() {
    let site = of_server("root /r; if ($request_uri ~* \"^(.*/)index\\.php$\" ) { return 301 $1; }");
    let expected = "set redirect_1 expr=\"$request_uri.extract(r'(?i)^(.*/)index\\\\.php$')\" | redirect \"${redirect_1}\" status=301";
    assert!(site.contains(expected), "{site}");
}

/// Rules of a location that tries files do not follow the request to a named location.
#[test]
fn rules_of_files_are_not_those_of_a_named_location() {
    let site = of_server(
        "root /r; location ~ \\.css$ { expires max; try_files $uri @prod; } location @prod { proxy_pass http://10.0.0.1; }",
    );
    let expected = "expires max | index off | try-files \"/r\" final=on | reroute \"@prod\" | } | route \"@prod\" { | proxy \"http://10.0.0.1\"";
    assert!(site.replace("index off | ", "").contains(&expected.replace("index off | ", "")), "{site}");
}

/// nginx looks for the location of a folder's page once more.
#[test]
fn folders_have_the_rules_of_their_page() {
    let pages =
        "location ~* \\.html?$ { add_header Cache-Control no-cache; } location ~ \\.css$ { expires 1d; }";
    let site = of_server(&format!(
        "root /srv; index index.html index.txt; location / {{ try_files $uri $uri/ /index.html; }} {pages}"
    ));
    let expected = "when \"path.endsWith('/') && method in ['GET', 'HEAD', 'POST'] && ('/srv' + $uri + 'index.html').isFile()\" { | reroute \"${uri}index.html?$args\" | } | \
                    try-files \"/srv\" final=on";
    assert!(site.contains(expected), "{site}");
    let site = of_server(&format!("root /srv; location /a/ {{ alias /b/; }} {pages}"));
    assert!(site.contains("('/b' + $uri.substring(2) + 'index.html').isFile()\" { | reroute"), "{site}");
    let second = of_server(&format!("root /srv; index index.txt index.html; location / {{ }} {pages}"));
    assert!(
        second.contains("!('/srv' + $uri + 'index.txt').isFile() && ('/srv' + $uri + 'index.html').isFile()"),
        "{second}"
    );
    let other = of_server(
        "root /srv; location / { } location ~ \\.css$ { expires 1d; } location ~ \\.html$ { access_log off; }",
    );
    assert!(!other.contains("reroute"), "{other}");
}

/// Requests for which an earlier rule is the last one do not come to a redirect for all paths.
#[test]
fn a_redirect_of_a_server_leaves_out_requests_of_final_rules_before() {
    let redirect = "rewrite ^ https://b.test$request_uri? permanent;";
    let written = "redirect \"https://b.test$request_uri\" status=301";
    let site =
        of_server(&format!("rewrite ^/api/(.*)$ /v1/$1 last; {redirect} location /v1/ {{ return 200; }}"));
    let expected = "when \"$uri.matches(r'^/api/(.*)$')\" { | respond 501 \"not converted\" | }";
    assert!(site.contains(expected) && site.contains(written), "{site}");
    assert!(!site.contains("respond 200") && !site.contains("rewrite \"^/api"), "{site}");
    let site = of_server(&format!(
        "if ($uri ~ ^/.well-known/) {{ break; }} {redirect} location /.well-known/ {{ root /r; }}"
    ));
    let expected = format!("when \"!($uri.matches(r'^/.well-known/'))\" {{ | {written} | }}");
    assert!(site.contains(&expected) && site.contains("files \"/r\""), "{site}");
    assert!(!site.contains("501"), "{site}");
    for rules in [
        "rewrite ^/a$ /b; rewrite ^/b$ /c last;",
        "rewrite ^/a$ https://c.test/ permanent; rewrite ^/b$ /c last;",
        "if ($uri ~ ^/(a)\\1) { break; }",
        "if ($arg_a) { rewrite ^/b /c last; }",
        "if (!-e $request_filename) { rewrite ^ /index.php last; }",
    ] {
        let site = of_server(&format!("{rules} {redirect} location / {{ root /r; }}"));
        assert!(site.contains("respond 501") && !site.contains("files "), "{rules} {site}");
        assert!(!site.contains(written), "{rules} {site}");
    }
    for rules in ["", "rewrite ^/a$ /b;", "if ($arg_a) { return 403; }", "set $a b;"] {
        let site = of_server(&format!("{rules} {redirect} location / {{ root /r; }}"));
        assert!(site.contains(written) && !site.contains(&format!("{{ | {written}")), "{rules} {site}");
        assert!(!site.contains("files "), "{rules} {site}");
    }
}

/// In each, nginx goes on elsewhere for a part of the requests.
#[test]
fn conditions_with_two_ends_close_their_place() {
    for rules in [
        "if (-f $document_root/m) { rewrite ^/a /m last; return 503; } proxy_pass http://a:1;",
        "if ($arg_a) { proxy_pass http://b:1; break; } if ($arg_b) { proxy_pass http://c:1; } proxy_pass http://a:1;",
        "if ($arg_a) { proxy_pass http://b:1; break; } rewrite ^ /b break; proxy_pass http://a:1;",
    ] {
        let site = of_server(&format!("root /r; location / {{ {rules} }}"));
        assert!(site.contains("respond 501") && !site.contains("proxy \"http://a:1\""), "{rules} {site}");
    }
    let site = of_server("location /x { alias /x; if (-f $document_root/y) { return 403; } }");
    assert!(site.contains("respond 501") && !site.contains("files "), "{site}");
}
