//! `proxy_pass` with variables in its path.

use super::written::of_server;

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

#[test]
fn other_places_stay_closed() {
    for content in [
        "proxy_pass http://a:1/$1;",
        "proxy_pass http://a:1/x$request_uri;",
        "rewrite ^/y /z; proxy_pass http://a:1$request_uri;",
        "proxy_pass http://a:1/$unknown;",
        "proxy_pass http://a:1$arg_f;",
        "proxy_pass http://$arg_f/x;",
        "proxy_pass http://unix:/s:/$arg_f;",
        "proxy_pass http://$host$request_uri;",
    ] {
        let site = of_server(&format!("location /x/ {{ {content} }}"));
        assert!(site.contains("respond 501") && !site.contains("| proxy "), "{content}: {site}");
    }
}
