//! Upstreams, what they say back, and what an auth service says.

use super::written::{imported, of_server};

/// The site file of an `upstream` block that a location uses.
fn upstream(text: &str) -> String {
    let main = format!(
        "http {{ upstream u {{ {text} }} server {{ listen 80; location / {{ proxy_pass http://u; }} }} }}"
    );
    let whole = imported(&main).text;
    let (_, block) = whole.split_once("upstream u {\n").unwrap_or(("", &whole));
    let (block, _) = block.split_once("\n}").unwrap_or((block, ""));
    block.lines().map(str::trim).collect::<Vec<_>>().join(" | ")
}

#[test]
fn limits_of_connections_become_limits_of_requests() {
    for (text, expected) in [
        ("server a:1 max_conns=0;", "server \"a:1\""),
        ("server a:1 max_conns=3;", "server \"a:1\" max-requests=3 | queue 0"),
        (
            "server a:1 max_conns=1; server a:1 max_conns=1; server b:1 backup max_conns=2;",
            "server \"a:1\" max-requests=1 | server \"a:1\" max-requests=1 | \
             server \"b:1\" backup=on max-requests=2 | queue 0 | failures 1 window=\"10s\" down-time=\"10s\"",
        ),
        (
            "server a:1 max_conns=3; queue 100 timeout=70;",
            "server \"a:1\" max-requests=3 | queue 100 | queue-time \"70s\"",
        ),
    ] {
        assert_eq!(upstream(text), expected, "{text}");
    }
    assert!(upstream("server a:1 max_conns=many;").contains("// not converted: `max_conns=many` of a:1"));
}

#[test]
fn keys_of_hashes_are_converted() {
    for (key, expected) in [
        ("$arg_user", "balance hash key=\"argument user\""),
        ("$request_uri consistent", "balance hash key=target"),
        ("$http_x_user", "balance hash key=\"header x-user\""),
        ("$arg_a$arg_b", "// not converted: hash $arg_a$arg_b;"),
        ("$http_a$arg_b", "// not converted: hash $http_a$arg_b;"),
    ] {
        let text = upstream(&format!("hash {key}; server a:1; server b:1;"));
        assert!(text.contains(expected), "{key}: {text}");
    }
}

#[test]
fn bodies_are_buffered_unless_nginx_does_not() {
    for (text, top, route) in [
        ("location / { proxy_pass http://a; }", true, ""),
        ("location / { proxy_pass http://a; proxy_request_buffering off; }", false, "buffer-requests off"),
        ("location / { grpc_pass a:1; }", false, "buffer-requests off"),
        ("location / { return 204; }", false, ""),
    ] {
        let whole = imported(&format!("http {{ server {{ listen 80; {text} }} }}")).text;
        assert_eq!(whole.contains("\nbuffer-requests on\n"), top, "{whole}");
        assert_eq!(whole.contains("        buffer-requests off\n"), !route.is_empty(), "{whole}");
    }
}

#[test]
fn all_protocols_are_upgraded_where_nginx_forwards_the_field() {
    let with = "location / { proxy_pass http://a; proxy_set_header Upgrade $http_upgrade; }";
    let without = "location / { proxy_pass http://a; proxy_set_header Upgrade websocket; }";
    assert!(of_server(with).contains("| upgrade any |"), "{}", of_server(with));
    assert!(!of_server(without).contains("upgrade any"), "{}", of_server(without));
}

#[test]
fn redirects_and_cookies_of_upstreams_are_changed_as_in_nginx() {
    for (text, expected) in [
        ("proxy_redirect http://a/ /;", "proxy-redirect \"http://a/\" \"/\""),
        ("proxy_redirect http://a/ $scheme://$host/;", "proxy-redirect \"http://a/\" \"$scheme://$host/\""),
        ("proxy_redirect ~^http://[^/]+(/.+)$ $1;", "proxy-redirect \"~^http://[^/]+(/.+)$\" \"$1\""),
        ("proxy_redirect ~*http://a(?=x) /;", "// not converted: proxy_redirect"),
        ("proxy_redirect http://$nonesuch/ /;", "the variable $nonesuch is not supported"),
        ("proxy_cookie_domain .a.b .c.d;", "proxy-cookie-domain \"a.b\" \"c.d\""),
        ("proxy_cookie_domain ~\\.(org)$ x.$1;", "proxy-cookie-domain \"~*\\\\.(org)$\" \"x.$1\""),
        ("proxy_cookie_path / \"/; HTTPOnly; Secure\";", "| proxy-cookie-flags \"*\" httponly secure | }"),
        (
            "proxy_cookie_path /a/ \"/; Secure\";",
            "proxy-cookie-flags \"*\" secure | proxy-cookie-path \"/a/\" \"/\"",
        ),
        ("proxy_cookie_path / \"/; Max-Age=1\";", "// not converted: proxy_cookie_path"),
        ("proxy_cookie_flags ~^s secure;", "proxy-cookie-flags \"~*^s\" secure"),
        ("proxy_cookie_flags $arg_c secure;", "proxy-cookie-flags \"$arg_c\" secure"),
        ("proxy_cookie_flags a $arg_f;", "variables are not supported in flags"),
    ] {
        let site = of_server(&format!("location / {{ proxy_pass http://a; {text} }}"));
        assert!(site.contains(expected), "{text}: {site}");
    }
}

#[test]
fn fields_of_an_auth_service_are_variables() {
    let auth = "location = /auth { internal; proxy_pass http://z; } location / { proxy_pass http://a; \
                auth_request /auth; auth_request_set $user $upstream_http_x_user;";
    let site = of_server(&format!("{auth} proxy_set_header X-U \"<$user>\"; add_header X-V ${{user}}; }}"));
    assert!(site.contains("request-header set \"X-U\" \"<$auth_http_x_user>\""), "{site}");
    assert!(site.contains("response-header add \"X-V\" \"$auth_http_x_user\" when=success"), "{site}");
    assert!(!site.contains("not converted"), "{site}");
    // It would be another one in another place.
    let other = "auth_request_set $user $upstream_http_other; proxy_set_header X-U $user; }";
    assert!(
        of_server(&format!("{auth} }} location /b {{ proxy_pass http://a; {other}"))
            .contains("not converted")
    );
    let status = of_server(&format!("{auth} auth_request_set $s $upstream_status; }}"));
    assert!(status.contains("// not converted: auth_request_set $s"), "{status}");
}

#[test]
fn certificates_for_upstreams_and_names_are_converted() {
    let main = "http { server { listen 80; location / { proxy_pass https://a:1; proxy_ssl_certificate c.crt; \
                proxy_ssl_certificate_key c.key; proxy_ssl_name b.test:123; } } }";
    let text = imported(main).text;
    assert!(text.contains("    upstream-certificate \"c.crt\" \"c.key\"\n"), "{text}");
    assert!(text.contains("    upstream-name \"b.test\"\n"), "{text}");
    assert!(!text.contains("not converted:"), "{text}");
}

#[test]
fn servers_of_an_upstream_have_its_name_in_tls() {
    for (settings, expected) in [
        ("", false),
        ("proxy_ssl_server_name on;", true),
        ("proxy_ssl_verify on;", true),
        ("proxy_ssl_server_name on; proxy_ssl_name c.test;", false),
    ] {
        let main = format!(
            "http {{ upstream b {{ server a.test:443; }} server {{ listen 80; location / {{ proxy_pass https://b; {settings} }} }} }}"
        );
        let text = imported(&main).text;
        assert_eq!(text.contains("    upstream-name b\n"), expected, "{text}");
    }
}

/// Behind one address there may be many servers.
#[test]
fn grpc_without_keepalive_has_a_connection_for_each_request() {
    let main = "http { http2_body_preread_size 1m; http2_max_concurrent_streams 50; upstream k { server k:1; keepalive 4; } \
                server { listen 80; location /a { grpc_pass a:1; } location /k { grpc_pass k; } } }";
    let text = imported(main).text;
    assert!(text.contains("server \"a:1\"\n    protocol h2c\n    pool 0\n"), "{text}");
    assert!(text.contains("server \"k:1\"\n    pool 4\n    protocol h2c\n}"), "{text}");
    assert!(text.contains("stream-window 1048576\nstreams 50\n"), "{text}");
}

#[test]
fn dns_servers_are_those_for_names_that_are_looked_up_again() {
    let of = |upstream: &str, http: &str| {
        imported(&format!(
            "http {{ {http} upstream u {{ {upstream} }} server {{ listen 80; location / {{ proxy_pass http://u; }} }} }}"
        ))
        .text
    };
    let http = "resolver 127.0.0.1:8600 [::1] valid=5s ipv6=off;";
    let text = of("zone z 64k; server a.test:81 resolve;", http);
    assert!(text.contains("\nresolver \"127.0.0.1:8600\" \"[::1]\"\n"), "{text}");
    let text = of("zone z 64k; resolver 10.0.0.1; server a.test service=http resolve;", http);
    assert!(
        text.contains("\nresolver \"10.0.0.1\"\n") && text.contains("only one resolver for all upstreams"),
        "{text}"
    );
    assert!(!of("server a.test:81;", http).contains("resolver"), "looked up once, by the system's");
    let text = of("server a.test:81 resolve;", "resolver dns.test;");
    assert!(text.contains("// not converted: resolver dns.test;") && !text.contains("\nresolver"), "{text}");
}

#[test]
fn the_path_may_name_the_upstream() {
    let main =
        "http { upstream a { server a:1; } server { listen 80; location /a { proxy_pass http:/$uri; } } }";
    let text = imported(main).text;
    assert!(
        text.contains("map \"upstream_of_path\" \"$uri\" {\n    case \"~^/([^/]+)$\" \"$1\"\n}"),
        "{text}"
    );
    assert!(text.contains("proxy \"http://$upstream_of_path\" among=a\n"), "{text}");
}

#[test]
fn variables_of_upstreams_and_of_their_place_are_converted() {
    let site = of_server(
        "location / { proxy_pass http://a:81; add_header X-A $upstream_addr; add_header X-P $proxy_host:$proxy_port; }",
    );
    assert!(site.contains("response-header add \"X-A\" \"$upstream_addr\" when=success"), "{site}");
    assert!(site.contains("response-header add \"X-P\" \"a:81:81\" when=success"), "{site}");
}

#[test]
fn the_figures_of_nginx_are_those_of_the_server() {
    let site = of_server("root /r; location = /status { stub_status on; allow 127.0.0.1; deny all; }");
    let route = "route \"/status\" match=exact { | allow \"127.0.0.1\" | deny all | stub-status | }";
    assert!(site.contains(route) && !site.contains("not converted"), "{site}");
}

#[test]
fn rejected_handshakes_are_refused() {
    let main = "http { server { listen 443 ssl default_server; ssl_reject_handshake on; } \
                server { listen 443 ssl; server_name a; ssl_certificate c; ssl_certificate_key k; return 204; } }";
    let imported = imported(main);
    assert!(imported.text.contains("    tls refuse\n    respond 404\n"), "{}", imported.text);
    assert!(imported.text.contains("    tls \"c\" \"k\"\n"), "{}", imported.text);
    assert!(imported.unserved.is_empty() && imported.left == 0, "{}", imported.text);
}

#[test]
fn an_upstream_gets_the_parts_of_a_request_that_nginx_sends() {
    for (given, expected) in [
        ("proxy_method POST;", "proxy-method \"POST\""),
        ("proxy_method $arg_m;", "proxy-method \"$arg_m\""),
        ("proxy_set_body \"a=$arg_a\";", "proxy-body \"a=$arg_a\""),
        ("proxy_pass_request_body off;", "proxy-body \"\""),
        ("proxy_pass_request_body off; proxy_set_body x;", "proxy-body \"x\""),
        ("proxy_pass_request_headers off;", "forward-headers off"),
        ("proxy_pass_request_headers on; proxy_pass_request_body on;", "x-forwarded off"),
    ] {
        let site = of_server(&format!("location / {{ proxy_pass http://a; {given} }}"));
        let has = |setting: &str| site.contains(&format!("| {setting} "));
        assert!(has(expected) && !site.contains("501"), "{given}: {site}");
        assert_eq!(has("proxy-body"), expected.starts_with("proxy-body"), "{given}: {site}");
    }
}

#[test]
fn a_variable_names_no_upstream_if_all_are_down() {
    let text = "http { map $host $u { default a; } upstream a { server a:1 down; } \
                server { listen 80; location / { proxy_pass http://$u; } } }";
    let text = imported(text).text;
    assert!(!text.contains("proxy \"http://$u\"") && text.contains("respond 501"), "{text}");
}

/// nginx looks up names in variables while it runs, by its own resolver, and all others when it starts.
#[test]
fn names_in_variables_are_looked_up_by_the_resolver() {
    let of = |others: &str, location: &str| {
        imported(&format!(
            "http {{ {others} server {{ listen 80; location / {{ resolver 127.0.0.11:53 valid=30s; {location} }} }} }}"
        ))
        .text
    };
    let named = "set $app photos; set $port 8080; proxy_pass http://$app:$port;";
    for (others, location, expected) in [
        ("", named, true),
        ("upstream u { server 10.0.0.1; }", named, true),
        ("", "set $backend http://photos:80; proxy_pass $backend;", true),
        ("", "set $app photos; fastcgi_pass $app:9000;", true),
        ("", "proxy_pass http://photos:8080;", false),
        ("", "set $app 10.0.0.1; proxy_pass http://$app:80;", false),
    ] {
        let site = of(others, location);
        assert_eq!(site.contains("resolver \"127.0.0.11:53\""), expected, "{location}\n{site}");
    }
    let site = of("server { listen 81; location / { proxy_pass http://other; } }", named);
    assert!(!site.contains("\nresolver ") && site.contains("need the system's resolver"), "{site}");
}

/// The last `set` that applies has the requests.
#[test]
fn urls_that_conditions_choose_are_routes() {
    let site = of_server(
        "location / { set $to http://ui; if ($http_accept = application/ld+json) { set $to http://api; } \
         if ($request_method = POST) { set $to http://api; } proxy_set_header Host $host; proxy_pass $to; }",
    );
    let json = site.find("when=\"$http_accept == 'application/ld+json'\" { | proxy \"http://api\"");
    let post = site.find("when=\"$request_method == 'POST'\" { | proxy \"http://api\"");
    let usual = site.find("route \"/\" { | proxy \"http://ui\"");
    assert!(post.is_some() && post < json && json < usual, "{site}");
    assert!(!site.contains("respond 501"), "{site}");
    for lost in [
        "if ($arg_a) { set $to http://a; } set $to http://ui; proxy_pass $to;",
        "set $to http://ui; if ($arg_a) { set $to http://$host; } proxy_pass $to;",
        "set $to http://ui; if ($arg_a) { set $to http://a; } add_header X $to; proxy_pass $to;",
    ] {
        let site = of_server(&format!("location / {{ {lost} }}"));
        assert!(site.contains("respond 501") && !site.contains("proxy \"http://ui\""), "{lost}\n{site}");
    }
}

/// Laravel Octane: the query of one page is in a variable behind the name of the upstream.
#[test]
fn a_path_that_a_condition_chooses_is_a_rewrite() {
    let of = |sets: &str| {
        of_server(&format!(
            "root /srv; location / {{ try_files $uri @app; }} location @app {{ {sets} proxy_pass http://10.0.0.1$rest; }}"
        ))
    };
    let site = of("set $rest \"\"; if ($uri = /index.php) { set $rest ?$query_string; }");
    let expected = "when \"$uri == '/index.php'\" { | rewrite \"^\" \"/?$query_string?\" then=stop | }";
    assert!(site.contains(expected) && site.contains("proxy \"http://10.0.0.1\""), "{site}");
    assert!(!site.contains("proxy-redirect") && !site.contains("others="), "{site}");
    for other in
        ["set $rest x; if ($arg_a) { set $rest /b; }", "set $rest \"\"; if ($arg_a) { set $rest .evil; }"]
    {
        let site = of(other);
        assert!(!site.contains("proxy \"http://10.0.0.1\""), "{other}\n{site}");
    }
}

/// nginx changes `Location` of an upstream by default only where that stands in `proxy_pass` itself.
#[test]
fn redirects_of_named_servers_stay() {
    for (pass, is_changed) in [
        ("proxy_pass http://10.0.0.1;", true),
        ("set $app 10.0.0.1; proxy_pass http://$app;", false),
        ("set $app http://10.0.0.1; if ($arg_a) { set $app http://10.0.0.2; } proxy_pass $app;", false),
        ("set $app 10.0.0.1; proxy_pass http://$app; proxy_redirect http://b/ /;", true),
    ] {
        let site = of_server(&format!("location / {{ {pass} }}"));
        assert_eq!(site.contains("proxy-redirect"), is_changed, "{pass}\n{site}");
    }
    let site =
        of_server("proxy_redirect http://b/ /; location / { set $app 10.0.0.1; proxy_pass http://$app; }");
    assert!(site.contains("proxy-redirect \"http://b/\" \"/\""), "{site}");
}

/// Without a path in `proxy_pass`, nginx makes all URLs of the upstream its own by default.
#[test]
fn redirects_of_an_upstream_without_a_path_are_those_of_the_server() {
    for (location, pass, expected) in [
        ("/x/", "http://a", "proxy-redirect \"http://a/\" \"/\""),
        ("~ ^/x", "http://a", "proxy-redirect \"http://a/\" \"/\""),
        ("/x/", "http://a/y/", "proxy-redirect \"http://a/y/\" \"/x/\""),
    ] {
        let site = of_server(&format!("location {location} {{ proxy_pass {pass}; }}"));
        assert!(site.contains(expected), "{location} {pass}\n{site}");
    }
}

/// A field of the upstream that is replaced by one of the server.
#[test]
fn fields_that_are_hidden_may_be_added() {
    let own = "proxy_pass http://10.0.0.1; proxy_hide_header X-Frame-Options;";
    let order = |site: &str| {
        let at = |text: &str| site.rfind(text).unwrap_or_else(|| panic!("{text}\n{site}"));
        at("response-header remove \"X-Frame-Options\"")
            < at("response-header add \"X-Frame-Options\" \"DENY\"")
    };
    for text in [
        format!("location / {{ add_header X-Frame-Options DENY; {own} }}"),
        format!("add_header X-Frame-Options DENY; location / {{ {own} }}"),
        "add_header X-Frame-Options DENY; proxy_hide_header X-Frame-Options; location / { proxy_pass http://a; }"
            .to_owned(),
    ] {
        let site = of_server(&text);
        assert!(order(&site), "{text}\n{site}");
        let route = site.split("route ").nth(1).unwrap_or_default();
        assert_eq!(route.matches("response-header add").count(), 1, "{text}\n{site}");
    }
    let site = of_server(
        "location / { expires 1h; proxy_hide_header Cache-Control; proxy_hide_header X-A; proxy_pass http://a; }",
    );
    assert!(!site.contains("remove \"Cache-Control\"") && site.contains("remove \"X-A\""), "{site}");
}
