//! `proxy_pass` with variables in its path.

use super::written::{imported, of_server};

#[test]
fn a_path_with_variables_replaces_the_whole_one() {
    for (location, pass, expected) in [
        ("/", "http://a:1/t$is_args$args", "rewrite \"^\" \"/t\" then=stop | proxy"),
        ("/", "http://a:1/t", "rewrite-prefix \"/\" \"/t\" | proxy"),
        ("/x/", "http://a:1/$arg_f", "rewrite \"^\" \"/$arg_f?\" then=stop | proxy"),
        ("/x/", "http://a:1/$host?a=$arg_a", "rewrite \"^\" \"/$host?a=$arg_a?\" then=stop | proxy"),
        ("/x/", "http://a:1$uri", "rewrite \"^\" \"$uri?\" then=stop | proxy"),
        ("/x/", "http://a:1$request_uri", "{ | proxy \"http://a:1\""),
        ("/x/", "http://a:1$uri$is_args$args", "{ | proxy \"http://a:1\""),
        ("~ ^/v(\\d)", "http://a:1/$1", "rewrite \"^/v(\\\\d)\" \"/$1?\" then=stop | proxy"),
        ("~* ^/v(\\d)", "http://a:1/$1", "rewrite \"^/v(\\\\d)\" \"/$1?\" then=stop ignore-case=on | proxy"),
    ] {
        let site = of_server(&format!("location {location} {{ proxy_pass {pass}; }}"));
        assert!(site.contains(expected), "{pass}: {site}");
        assert!(!site.contains("proxy-redirect") || !pass.contains('$'), "{site}");
    }
}

/// The value of a variable is known, and its `proxy_pass` still replaces the whole path.
#[test]
fn a_path_behind_a_variable_replaces_the_whole_one() {
    let vars = "set $app web; set $port 5800; set $proto http;";
    for (location, path, expected) in [
        ("~ (/app)?/ws", "/ws", "| rewrite \"^\" \"/ws?\" then=stop | proxy \"http://web:5800\""),
        ("^~ /app/", "/", "| rewrite \"^\" \"/?\" then=stop | proxy \"http://web:5800\""),
        (
            "/app/",
            "",
            "{ | set app \"web\" | set port \"5800\" | set proto \"http\" | proxy \"http://web:5800\"",
        ),
    ] {
        let pass = format!("proxy_pass $proto://$app:$port{path}; proxy_set_header Host $app:$port;");
        let site = of_server(&format!("location {location} {{ {vars} {pass} }}"));
        assert!(site.contains(expected) && !site.contains("not converted"), "{path}: {site}");
        assert!(site.contains("proxy-host \"web:5800\""), "{site}");
        // What a rewrite makes of the path is not in it.
        let rewritten = format!("location {location} {{ {vars} {pass} rewrite /app(.*) $1 break; }}");
        let expected =
            if path.is_empty() { "rewrite \"/app(.*)\" \"$1\" then=stop | proxy" } else { expected };
        assert!(
            of_server(&rewritten)
                .contains(expected.trim_start_matches("| ").split(" | proxy").next().unwrap()),
            "{rewritten}"
        );
    }
}

#[test]
fn requests_of_grpc_go_elsewhere() {
    let site = of_server(
        "location / { set $app web; if ($http_content_type = \"application/grpc\") { grpc_pass grpcs://$app:1; } \
         proxy_set_header Early-Data $ssl_early_data; proxy_pass https://$app:2; }",
    );
    assert!(!site.contains("respond 501") && !site.contains("Early-Data"), "{site}");
    assert!(site.contains("proxy web-1") && site.contains("proxy web-2"), "{site}");
    assert!(site.contains("when=\"$http_content_type == 'application/grpc'\""), "{site}");
}

#[test]
fn other_places_stay_closed() {
    for content in [
        "proxy_pass http://a:1/$1;",
        "proxy_pass http://a:1/x$request_uri;",
        "rewrite ^/y /z; proxy_pass http://a:1$request_uri;",
        "proxy_pass http://a:1/$unknown;",
        "proxy_pass http://$unknown/x;",
        "proxy_pass http://$host/x$request_uri;",
        "resolver dns.example; proxy_pass http://$host/;",
        "proxy_pass http://unix:/s:/$arg_f;",
    ] {
        let site = of_server(&format!("location /x/ {{ {content} }}"));
        assert!(site.contains("respond 501") && !site.contains("| proxy "), "{content}: {site}");
    }
}

#[test]
fn requests_name_servers_as_in_nginx() {
    let resolver = "resolver 10.0.0.2 [::1]:53 valid=30s ipv6=off; resolver_timeout 3s;";
    let by_name = |pass: &str| {
        // Without proxy_ssl_verify, nginx verifies nothing.
        let tls = if pass.starts_with("https") { " | upstream-verify off" } else { "" };
        format!(
            "named-servers \"*\" resolver=\"10.0.0.2 [::1]:53\" ipv6=off time=\"3000ms\" valid=\"30s\"{tls} | queue-time \"4000ms\""
        )
    };
    let whole = |content: &str| {
        let text = imported(&format!("http {{ server {{ listen 80; {content} }} }}")).text;
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" | ")
    };
    for (pass, proxy) in [
        (
            "http://$host:8080",
            "{ | proxy \"http://$host:8080\" others=named-by-requests | proxy-host upstream",
        ),
        ("http://$host$request_uri", "{ | proxy \"http://$host\" others=named-by-requests"),
        ("http://$host$uri$is_args$args", "{ | proxy \"http://$host\" others=named-by-requests"),
        (
            "https://$arg_f/x",
            "rewrite \"^\" \"/x?\" then=stop | proxy \"https://$arg_f\" others=named-by-requests",
        ),
        (
            "http://$1.internal:80/$2?a=b",
            "rewrite \"^/x/(.)(.)\" \"/$2?a=b?\" then=stop | proxy \"http://$1.internal:80\"",
        ),
    ] {
        let path = if pass.contains("$1") { "~ ^/x/(.)(.)" } else { "/x/" };
        let content = format!("location {path} {{ {resolver} proxy_pass {pass}; }}");
        let site = of_server(&content);
        let (whole, by_name) = (whole(&content), by_name(pass));
        assert!(whole.contains(&by_name) && site.contains(proxy), "{pass}: {by_name}\n{whole}\n{site}");
        assert!(!site.contains("not converted") && !site.contains("501"), "{site}");
    }
    // Without a resolver, nginx knows addresses only.
    let site = whole("location / { proxy_pass http://$arg_f; }");
    assert!(site.contains("named-servers address | queue-time"), "{site}");
    let site = of_server("location / { proxy_pass http://$arg_f; proxy_set_header Host $host; }");
    assert!(site.contains("proxy-host \"$host\""), "{site}");
    let site = whole("location / { fastcgi_pass $arg_f; }");
    assert!(site.contains("protocol fastcgi") && site.contains("proxy \"http://$arg_f\" others="), "{site}");
}
