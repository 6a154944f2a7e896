//! What inner blocks inherit and replace: locations inside locations, logs and TLS of servers.

use super::written::{imported, of_server};

/// The content of the route with this head.
fn route<'s>(site: &'s str, head: &str) -> &'s str {
    let (_, rest) = site.split_once(&format!("route {head} {{ | ")).unwrap_or(("", ""));
    rest.split_once(" | }").map_or(rest, |(content, _)| content)
}

#[test]
fn restrictions_of_a_location_hold_for_those_inside_it() {
    let site = of_server(
        "root /r; location /a/ { allow 10.0.0.0/8; deny all; auth_basic x; auth_basic_user_file /u; \
         satisfy any; client_max_body_size 5; location /a/b/ { } location = /a/c { expires 1s; } \
         location /a/d/ { deny 10.0.0.1; } location /a/e/ { auth_basic off; } \
         location /a/f/ { auth_basic_user_file /v; } location /a/g/ { location /a/g/h/ { } } }",
    );
    let (password, addresses) = ("basic-auth x file=\"/u\"", "allow \"10.0.0.0/8\" | deny all");
    let inherited = format!("{password} | satisfy any | body-bytes \"5\" | {addresses} | files \"/r\"");
    for head in ["\"/a/\"", "\"/a/b/\"", "\"/a/g/\"", "\"/a/g/h/\""] {
        assert_eq!(route(&site, head), inherited, "{head}: {site}");
    }
    let exact = route(&site, "\"/a/c\" match=exact");
    assert!(
        exact.contains(password) && exact.contains(addresses) && exact.contains("expires \"1s\""),
        "{exact}"
    );
    assert!(route(&site, "\"/a/d/\"").contains("| deny \"10.0.0.1\" | files"), "{site}");
    let open = route(&site, "\"/a/e/\"");
    assert!(open.starts_with("basic-auth off | satisfy any") && open.contains(addresses), "{open}");
    let other = route(&site, "\"/a/f/\"");
    assert!(other.contains("basic-auth x file=\"/v\"") && !other.contains(password), "{other}");
}

#[test]
fn limits_fields_and_questions_of_a_location_hold_inside_it() {
    let whole = imported(
        "http { limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s; server { listen 80; root /r; \
         location /a/ { limit_req zone=z; add_header X-A b; auth_request /auth; \
         location /a/b/ { add_header X-B c; } } \
         location = /auth { proxy_pass http://127.0.0.1:9000; } } }",
    )
    .text;
    let site: Vec<&str> = whole.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let site = site.join(" | ");
    for (head, field) in [("\"/a/\"", "X-A"), ("\"/a/b/\"", "X-B")] {
        let content = route(&site, head);
        for part in ["rate-limit \"1/s\"", "forward-auth ", &format!("response-header add \"{field}\"")] {
            assert_eq!(content.matches(part).count(), 1, "{head} {part}: {content}");
        }
        assert_eq!(content.matches("response-header").count(), 1, "{content}");
    }
}

#[test]
fn a_whole_configuration_without_a_number_of_processes_has_one() {
    let server = "http { server { listen 80; return 204; } }";
    for (main, expected) in [("events { }", true), ("", false), ("events { } worker_processes auto;", false)]
    {
        let text = imported(&format!("{main} {server}")).text;
        assert_eq!(text.contains("workers 1\n"), expected, "{main}: {text}");
    }
}

#[test]
fn logs_of_a_server_replace_those_around_it() {
    let server =
        |log: &str, name: &str| format!("server {{ listen 80; server_name {name}; {log} return 204; }}");
    let both = [server("access_log /own;", "a"), server("", "b")].concat();
    let text = imported(&format!("http {{ access_log /all; {both} }}")).text;
    let (own, other) = text.split_once("site b").unwrap();
    assert!(own.contains("    access-log \"/own\"\n") && !own.contains("/all"), "{text}");
    assert!(other.contains("    access-log \"/all\"\n"), "{text}");
    let text = imported(&format!("http {{ access_log /all; {} }}", server("", "a"))).text;
    assert!(text.contains("\naccess-log \"/all\"\n"), "{text}");
}

#[test]
fn certificates_of_clients_are_required_as_in_nginx() {
    let pair = "ssl_certificate /c; ssl_certificate_key /k;";
    let server = |name: &str, given: &str| {
        format!("server {{ listen 443 ssl; server_name {name}.test; {given} return 204; }}")
    };
    for (given, expected) in [
        ("ssl_verify_client on; ssl_client_certificate /a; ssl_crl /l;", "tls-client-ca \"/a\" crl=\"/l\""),
        ("ssl_verify_client optional; ssl_trusted_certificate /a;", "tls-client-ca \"/a\" optional=on"),
        (
            "ssl_verify_client optional_no_ca; ssl_client_certificate /a;",
            "tls-client-ca \"/a\" optional=on unknown=on",
        ),
        ("ssl_verify_client optional_no_ca;", "tls-client-ca any optional=on"),
        ("ssl_password_file /p;", "tls \"/c\" \"/k\" passwords=\"/p\""),
        // The certificate and the rules for clients are those of the address's default server.
        ("", "tls \"/c\" \"/k\""),
    ] {
        let text = imported(&format!("http {{ {} }}", server("a", &format!("{pair} {given}")))).text;
        assert!(text.contains(&format!("{expected}\n")), "{given}: {text}");
        assert_eq!(
            text.matches("tls-client-ca").count(),
            expected.matches("tls-client-ca").count(),
            "{text}"
        );
    }
    let first = server("a", &format!("{pair} ssl_verify_client on; ssl_client_certificate /a;"));
    let other = server("b", "ssl_verify_client on;");
    let text = imported(&format!("http {{ {first} {other} }}")).text;
    assert_eq!(text.matches("    tls-client-ca \"/a\"\n").count(), 2, "{text}");
    // The default server's certificate brings its CAs and revocation lists; those of the other server are not used.
    let first = server("a", &format!("{pair} ssl_verify_client on; ssl_client_certificate /a; ssl_crl /l;"));
    for given in ["", "ssl_client_certificate /b;", "ssl_client_certificate /b; ssl_crl /m;", "ssl_crl /m;"] {
        let result = imported(&format!(
            "http {{ {first} {} }}",
            server("b", &format!("ssl_verify_client on; {given}"))
        ));
        let text = &result.text;
        assert_eq!(text.matches("    tls-client-ca \"/a\" crl=\"/l\"\n").count(), 2, "{given}: {text}");
        assert!(!text.contains("/b") && !text.contains("/m") && result.left == 0, "{given}: {text}");
    }
    let first = server("a", &format!("{pair} ssl_verify_client on; ssl_client_certificate /a;"));
    let result =
        imported(&format!("http {{ {first} {} }}", server("b", "ssl_verify_client on; ssl_crl /m;")));
    assert_eq!(result.text.matches("    tls-client-ca \"/a\"\n").count(), 2, "{}", result.text);
    // Two addresses whose default servers have different CAs.
    let first = format!("{pair} ssl_verify_client on; ssl_client_certificate /a;");
    let second = |ca: &str| {
        format!(
            "server {{ listen 444 ssl; {pair} ssl_verify_client on; ssl_client_certificate {ca}; return 204; }}"
        )
    };
    for (ca, expected) in [("/a", 3), ("/b", 1)] {
        let other = server("c", "listen 444 ssl; listen 80; ssl_verify_client on;");
        let servers = format!("{} {} {other}", server("a", &first), second(ca));
        let text = imported(&format!("http {{ server {{ listen 80; return 204; }} {servers} }}")).text;
        assert_eq!(text.matches("    tls-client-ca \"/a\"\n").count(), expected, "{ca}: {text}");
        assert_eq!(text.contains("tls refuse"), expected == 1, "{ca}: {text}");
    }
    // A list of revoked certificates has no effect where none is verified.
    let unverified = format!("{pair} ssl_verify_client optional_no_ca; ssl_crl /l;");
    let result = imported(&format!("http {{ {} }}", server("a", &unverified)));
    assert!(result.text.contains("not converted: ssl_crl /l;"), "{}", result.text);
    assert_eq!(result.left, 1);
    // Nobody can be verified: nginx refuses everybody.
    let first = server("a", &format!("{pair} ssl_client_certificate /a;"));
    let result = imported(&format!("http {{ {first} {other} }}"));
    assert!(
        result.text.contains("    tls refuse\n") && !result.text.contains("tls-client-ca"),
        "{}",
        result.text
    );
    assert!(result.unserved.concat().contains("ssl_verify_client needs an ssl_client_certificate"));
}

#[test]
fn rules_of_tls_that_do_not_exist_here_are_reported() {
    let server = |given: &str, name: &str| {
        let pair = "ssl_certificate /c; ssl_certificate_key /k; return 204;";
        format!("server {{ listen 443 ssl; server_name {name}; {given} {pair} }}")
    };
    let whole = |servers: &str| imported(&format!("http {{ {servers} }}")).text;
    for (given, is_left) in
        [("TLSv1.2", true), ("TLSv1 TLSv1.1", true), ("TLSv1.2 TLSv1.3", false), ("TLSv1.3", false)]
    {
        let text = whole(&server(&format!("ssl_protocols {given};"), "a"));
        assert_eq!(text.contains("not converted: ssl_protocols"), is_left, "{text}");
        assert_eq!(text.contains("tls-min-version \"1.3\""), given == "TLSv1.3", "{text}");
    }
    let early = server("ssl_early_data on;", "a");
    assert!(whole(&early).contains("early-data on\n"));
    let text = whole(&[early, server("", "b")].concat());
    assert!(!text.contains("\nearly-data on"), "{text}");
    assert!(text.contains("not converted: ssl_early_data on;"), "{text}");
}

/// nginx does not count requests without a key: lists of clients without limits are made so.
#[test]
fn limits_do_not_count_requests_without_a_key() {
    let with = |key: &str| {
        let zones = format!("limit_req_zone {key} zone=z:1m rate=1r/s; limit_conn_zone {key} zone=c:1m;");
        let maps = "map $http_x $who { default $binary_remote_addr; me ''; }";
        imported(&format!(
            "http {{ {maps} {zones} server {{ listen 80; limit_req zone=z; limit_conn c 2; root /r; }} }}"
        ))
        .text
    };
    let limited = with("$who");
    for line in ["rate-limit \"1/s\" key=\"$who\"", "request-limit 2 key=\"$who\""] {
        assert!(limited.contains(&format!("    when \"$who != ''\" {{\n        {line}")), "{limited}");
    }
    let joined = with("$who$arg_a");
    assert!(joined.contains("when \"$who != '' || $arg_a != ''\" {"), "{joined}");
    // These are in every request.
    for key in ["$binary_remote_addr", "$arg_a$remote_addr", "$server_name", "a-$arg_a", "$uri"] {
        assert!(!with(key).contains("when \""), "{key}");
    }
}

#[test]
fn a_limit_with_two_statuses_counts_once() {
    let zone = "limit_conn_zone $binary_remote_addr zone=c:1m;";
    let site = imported(&format!(
        "http {{ {zone} server {{ location /a {{ limit_conn c 5; limit_conn_status 429; return 200; }} \
         location /b {{ limit_conn c 5; return 200; }} location /c {{ limit_conn c 6; return 200; }} }} }}"
    ));
    let limits: Vec<&str> =
        site.text.lines().map(str::trim).filter(|it| it.starts_with("request-limit")).collect();
    let same = "request-limit 5 key=client name=c queue=0 status=429";
    assert_eq!(limits, [same, same, "request-limit 6 key=client name=c-2 queue=0"], "{}", site.text);
    assert!(site.text.contains("has the status 429 here too"), "{}", site.text);
}

/// Fields stand where a person would write them: around locations that only add to them.
#[test]
fn fields_that_all_locations_have_are_written_once() {
    let site = of_server(
        "root /r; add_header X-A a always; add_header X-B b; location / { } location = /more { add_header X-B b; \
         add_header X-A a always; add_header X-C c; }",
    );
    assert_eq!(site.matches("X-A").count() + site.matches("X-B").count(), 2, "{site}");
    assert_eq!(
        route(&site, "\"/more\" match=exact"),
        "response-header add \"X-C\" \"c\" when=success | files \"/r\""
    );
    assert!(!site.contains("not converted"), "{site}");
    // One that lacks a field of the server replaces all of them.
    let site = of_server("root /r; add_header X-A a; location / { } location /b { add_header X-B b; }");
    assert_eq!(route(&site, "\"/\""), "response-header add \"X-A\" \"a\" when=success | files \"/r\"");
    assert!(!site.starts_with("response-header"), "{site}");
}

/// `^~` of a location inside a plain one is about the expressions beside it: nginx tries those of the server.
#[test]
fn outer_expressions_come_before_inner_locations() {
    let inner =
        "location / { root /r; location ^~ /files/ { return 200; } location ~* /private/ { deny all; } }";
    let site = of_server(&format!("{inner} location ~ \\.php$ {{ return 404; }}"));
    assert!(site.contains("route \"/files/\" { | respond 200"), "{site}");
    let expected = "route \"/private/\" match=regex-ignore-case when=\"!(path.startsWith('/files/'))\" {";
    assert!(site.contains(expected), "{site}");
    let alone = of_server(inner);
    assert!(alone.contains("route \"/files/\" before-patterns=on { | respond 200"), "{alone}");
    assert!(alone.contains("route \"/private/\" match=regex-ignore-case {"), "{alone}");
}

/// An expression inside a location finds no paths outside of it.
#[test]
fn inner_expressions_stay_below_their_location() {
    let of =
        |inner: &str| of_server(&format!("location /app/ {{ root /r; location ~ {inner} {{ deny all; }} }}"));
    for (inner, expected) in [
        ("\\.js$", "route \"^/app/.*(?:\\\\.js$)\" match=regex {"),
        ("/\\.ht", "route \"^/app(?:/.*)?(?:/\\\\.ht)\" match=regex {"),
        ("^/app/inc/", "route \"^/app/inc/\" match=regex {"),
        ("^/[a-z]+/inc/", "route \"^/[a-z]+/inc/\" match=regex when=\"path.startsWith('/app/')\" {"),
        ("(^|/)inc/", "route \"(^|/)inc/\" match=regex when=\"path.startsWith('/app/')\" {"),
        ("inc/|tmp/", "route \"inc/|tmp/\" match=regex when=\"path.startsWith('/app/')\" {"),
    ] {
        let site = of(inner);
        assert!(site.starts_with(expected), "{inner}\n{site}");
    }
    let site = of("^/wp-content/uploads/");
    assert!(
        !site.contains("deny all") && site.contains("it finds no path of the location around it"),
        "{site}"
    );
    // An inner location of the same path has all its requests.
    let site =
        of_server("location /a { root /r; location ^~ /a { return 204; } } location ~ x { return 404; }");
    assert!(site.matches("route \"/a\"").count() == 1 && site.contains("respond 204"), "{site}");
}

/// The variables of a condition that is true must not change the redirect of an earlier one.
#[test]
fn redirects_of_several_conditions_have_their_own_groups() {
    let site = of_server(
        "location / { rewrite ^(.+)/index\\.html$ $1 permanent; rewrite ^(.+)\\.html$ $1 permanent; root /r; }",
    );
    for expected in [
        "set redirect_1 expr=\"$uri.extract(r'^(.+)/index\\\\.html$')\" | redirect \"$scheme://$http_host${redirect_1}$is_args$args\"",
        "set redirect_2_1 expr=\"$uri.extract(r'^(.+)\\\\.html$')\" | redirect \"$scheme://$http_host${redirect_2_1}$is_args$args\"",
    ] {
        assert!(site.contains(expected), "{expected}\n{site}");
    }
}

/// Responses of a server itself have its fields, also where these stand in its routes because some have others.
#[test]
fn conditional_responses_of_a_server_have_its_fields() {
    let rules = "add_header Access-Control-Allow-Origin * always; if ($request_method = OPTIONS) { return 204; } location / { root /r; }";
    let site = of_server(&format!("{rules} location /a {{ add_header X-A b; return 200; }}"));
    let expected = "when \"$request_method == 'OPTIONS'\" { | response-header add \"Access-Control-Allow-Origin\" \"*\" | respond 204 | }";
    assert!(site.contains(expected), "{site}");
    let site = of_server(&format!(
        "{rules} error_page 404 /none.html; rewrite ^/b/(.*)$ /c/$1 permanent; location = /b/x {{ return 200; }}"
    ));
    assert!(site.contains("when \"$request_method == 'OPTIONS'\" { | respond 204 | }"), "{site}");
    assert_eq!(site.matches("response-header").count(), 1, "{site}");
}

/// What an expression inside a location finds may begin in the prefix of that.
#[test]
fn an_expression_inside_a_location_finds_its_prefix() {
    for (prefix, pattern, expected) in [
        ("/a/b/", r"~ /b/.*\.csv$", r#""/b/.*\\.csv$" match=regex when="path.startsWith('/a/b/')""#),
        ("/a/x/", r"~ x/.*\.csv$", r#""x/.*\\.csv$" match=regex when="path.startsWith('/a/x/')""#),
        ("/a/", "~ a?/z", r#""a?/z" match=regex when="path.startsWith('/a/')""#),
        ("/a.d/", "~ d", r#""d" match=regex when="path.startsWith('/a.d/')""#),
        ("/a/", r"~* \.csv$", r#""\\.csv$" match=regex-ignore-case when="path.startsWith('/a/')""#),
        ("/a/", "~ ^/[(]|b", r#""^/[(]|b" match=regex when="path.startsWith('/a/')""#),
        ("/a/", r"~ /\.", r#""^/a(?:/.*)?(?:/\\.)" match=regex"#),
        ("/a/", r"~ \.(csv|txt)$", r#""^/a/.*(?:\\.(csv|txt)$)" match=regex"#),
        ("/a", "~ b$", r#""^/a.*(?:b$)" match=regex"#),
        ("/a", "~ ^/a/b", r#""^/a/b" match=regex"#),
    ] {
        let site = of_server(&format!("root /r; location {prefix} {{ location {pattern} {{ deny all; }} }}"));
        assert_eq!(route(&site, expected), r#"deny all | files "/r""#, "{prefix} {pattern}: {site}");
    }
}

/// The page of a folder goes to the location that nginx chooses for its file.
#[test]
fn the_index_of_a_folder_has_the_rules_of_its_own_location() {
    let reroute = "when \"path.endsWith('/') && method in ['GET', 'HEAD', 'POST'] && ('/r' + $uri + 'index.html').isFile()\" { | \
                   reroute \"${uri}index.html?$args\" | }";
    for (folder, guard, expected) in [
        ("/d/", "= /d/index.html { deny all; }", true),
        ("/d/", "/d/index { deny all; }", true),
        ("/d/", r"~ ^/d/.*\.html$ { auth_basic x; auth_basic_user_file /u; }", true),
        ("/", r"~ ^/(c|d)/.*\.html$ { deny all; }", true),
        ("/", r"~ /c/.*\.html$ { deny all; }", true),
        ("/d/", "= /d/index.html { expires 1h; }", false),
        ("/d/", "= /e/index.html { deny all; }", false),
        ("/d/", r"~ /\.ht { deny all; }", false),
        ("/d/", r"~* \.(bak|sql)$ { deny all; }", false),
        ("/", "~ ^/private/ { deny all; }", false),
    ] {
        let site = of_server(&format!("root /r; location {folder} {{ }} location {guard}"));
        let content = site.split_once(&format!("route \"{folder}\" {{ | ")).map_or("", |(_, rest)| rest);
        assert_eq!(content.starts_with(reroute), expected, "{folder} {guard}: {site}");
    }
}

/// Names are those of the first server that has them, also where another one comes before it in the site file.
#[test]
fn a_server_with_a_wildcard_takes_no_names_of_older_ones() {
    let text = imported(
        "http { server { listen 80; server_name a.test; return 201; } \
         server { listen 80; server_name a.test www.*; return 202; } }",
    )
    .text;
    let (_, first) = text.split_once("respond 201").unwrap();
    assert!(!first.contains("site "), "the longest name comes first: {text}");
    let heads: Vec<&str> = text.lines().filter(|line| line.starts_with("site ")).collect();
    let [wildcard, own] = heads[..] else { panic!("{text}") };
    assert!(wildcard.starts_with("site \"~^www") && own.contains("a.test"), "{text}");
    assert!(!wildcard.contains("a.test"), "{text}");
}

/// nginx puts what follows the path of the location directly behind the alias.
#[test]
fn an_alias_without_the_slash_of_its_location_is_closed() {
    for (prefix, alias, expected) in [
        ("/static/", "/srv/app", "respond 501 \"not converted\""),
        ("^~ /static/", "/srv/a.html", "respond 501 \"not converted\""),
        ("/static/", "/srv/app/", "files \"/srv/app/\""),
        ("/static", "/srv/app", "files \"/srv/app\""),
    ] {
        let site = of_server(&format!("location {prefix} {{ alias {alias}; location /static/x/ {{ }} }}"));
        assert_eq!(site.matches(expected).count(), 2, "{prefix} {alias}: {site}");
    }
}
