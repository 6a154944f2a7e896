//! `fastcgi_pass`, and the site files that it becomes.

use super::written::{imported, of_server};

/// nginx's own `fastcgi_params`, in part.
const USUAL: &str = "fastcgi_param QUERY_STRING $query_string; fastcgi_param SCRIPT_NAME $fastcgi_script_name; \
    fastcgi_param HTTPS $https if_not_empty; fastcgi_param REMOTE_ADDR $remote_addr; fastcgi_param REDIRECT_STATUS 200; \
    fastcgi_param SERVER_SOFTWARE nginx/$nginx_version; fastcgi_param DOCUMENT_ROOT $document_root; \
    fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;";

fn upstream(location: &str) -> String {
    let whole = imported(&format!("http {{ server {{ listen 80; root /srv; {location} }} }}")).text;
    let inner = whole.split("upstream ").nth(1).and_then(|rest| rest.split('}').next()).unwrap_or_default();
    inner.lines().skip(1).map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" | ")
}

#[test]
fn scripts_get_an_upstream_with_their_folder() {
    let fpm = "server \"unix:/run/fpm.sock\" | protocol fastcgi | ";
    for (location, expected) in [
        (
            format!("location ~ \\.php$ {{ {USUAL} fastcgi_pass unix:/run/fpm.sock; }}"),
            format!("{fpm}fastcgi-root \"/srv\" front=off | pool 0"),
        ),
        (
            format!(
                "location / {{ try_files $uri /index.php; }} location ~ \\.php$ {{ {USUAL} fastcgi_param APP prod; \
                 fastcgi_pass unix:/run/fpm.sock; }}"
            ),
            format!("{fpm}fastcgi-root \"/srv\" front=off | fastcgi-param \"APP\" \"prod\" | pool 0"),
        ),
        (
            "location ~ \\.pl$ { fastcgi_param SCRIPT_FILENAME /cgi$fastcgi_script_name; fastcgi_pass unix:/run/fpm.sock; }"
                .to_owned(),
            format!("{fpm}fastcgi-root \"/cgi\" front=off split=\".pl\" | pool 0"),
        ),
        (
            "location / { fastcgi_param SCRIPT_FILENAME /app/run.php; fastcgi_pass unix:/run/fpm.sock; }".to_owned(),
            format!(
                "{fpm}fastcgi-root \"/app\" index=\"run.php\" | fastcgi-param \"SCRIPT_FILENAME\" \"/app/run.php\" | pool 0"
            ),
        ),
        (
            "location / { fastcgi_param REQUEST_URI $request_uri; fastcgi_pass unix:/run/fpm.sock; }".to_owned(),
            format!("{fpm}fastcgi-root \"/nonexistent\" index=off front=off split=off | pool 0"),
        ),
    ] {
        assert_eq!(upstream(&location), expected, "{location}");
    }
}

#[test]
fn a_front_controller_stands_behind_the_files() {
    let text = format!(
        "root /srv; index index.php; location / {{ try_files $uri $uri/ /index.php?$args; }} \
         location ~ \\.php$ {{ try_files $uri =404; {USUAL} fastcgi_pass unix:/run/fpm.sock; fastcgi_read_timeout 5m; }}"
    );
    assert_eq!(
        of_server(&text),
        "index \"index.php\" | route \"/\" { | when \"path.endsWith('/') && method in ['GET', 'HEAD', 'POST'] && ('/srv' + $uri + 'index.php').isFile()\" { | \
         reroute \"${uri}index.php?$args\" | } | try-files \"/srv\" final=on | reroute \"/index.php?$args\" | } | \
         route \"\\\\.php$\" match=regex { | proxy fpm | x-forwarded off | }"
    );
    // With rules of its own, the location of scripts gets the requests.
    let limited = text.replace("try_files $uri =404;", "deny 10.0.0.1;");
    assert!(
        of_server(&limited).contains("try-files \"/srv\" final=on | reroute \"/index.php?$args\""),
        "{limited}"
    );
}

#[test]
fn another_script_runs_in_place_of_one_that_is_not_there() {
    let text = |tried: &str| {
        format!(
            "root /srv; location ~ \\.php$ {{ try_files {tried}; {USUAL} fastcgi_pass unix:/run/fpm.sock; }}"
        )
    };
    let site = of_server(&text("$uri /index.php =404"));
    let expected = "when \"!('/srv' + $uri).isFile() && '/srv/index.php'.isFile()\" { | \
                    rewrite \"^\" \"/index.php\" then=stop | } |";
    assert!(site.contains(expected) && !site.contains("not converted"), "{site}");
    // A place, or another status, is something else.
    for tried in ["$uri /index.php =503", "$uri /index.php @app", "/index.php $uri =404"] {
        assert!(!of_server(&text(tried)).contains("when "), "{tried}");
    }
}

#[test]
fn folders_lead_to_their_script() {
    let text = format!(
        "root /srv; index index.php; location / {{ }} location ~ \\.php$ {{ {USUAL} fastcgi_pass unix:/run/fpm.sock; }}"
    );
    let site = of_server(&text);
    let expected = "when \"path.endsWith('/') && method in ['GET', 'HEAD', 'POST'] && ('/srv' + $uri + 'index.php').isFile()\" { | reroute \"${uri}index.php?$args\" | }";
    assert!(site.contains(expected), "{site}");
    let site = of_server(&text.replace("index.php;", "index.html index.php;"));
    assert!(site.contains("&& !('/srv' + $uri + 'index.html').isFile() && ("), "{site}");
    let site = of_server(&text.replace("location / { }", "location /a/ { alias /b/; }"));
    let expected = "route \"/a/\" { | files-at \"/a/\" | when \"path.endsWith('/') && method in ['GET', 'HEAD', 'POST'] && ('/b' + $uri.substring(2) + 'index.php').isFile()\" { | \
                    reroute \"${uri}index.php?$args\" | } | files \"/b/\" | }";
    assert!(site.contains(expected), "{site}");
}

/// An application below a path, in a folder of another name.
#[test]
fn scripts_of_an_alias_have_their_whole_path() {
    let php = "USUAL fastcgi_split_path_info ^(.+\\.php)(/.+)$; fastcgi_pass unix:/run/fpm.sock; \
               fastcgi_param SCRIPT_FILENAME $request_filename;";
    let php = php.replace(
        "USUAL",
        &USUAL.replace("fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;", ""),
    );
    let imported = imported(&format!(
        "http {{ server {{ listen 80; location /app/ {{ alias /srv/wiki/; index index.php; try_files $uri $uri/ /app/index.php?$args; \
         location ~ [^/]\\.php(/|$) {{ {php} }} location ^~ /app/cache/ {{ deny all; }} location ~* \\.png$ {{ expires 1d; }} }} }} }}"
    ));
    let site = &imported.text;
    for expected in [
        "fastcgi-root \"/srv/wiki\" front=off at=\"/app/\"",
        "        files-at \"/app/\"\n\n        when \"path.endsWith('/') && method in ['GET', 'HEAD', 'POST'] && ('/srv/wiki' + $uri.substring(4) + 'index.php').isFile()\" {\n            \
         reroute \"${uri}index.php?$args\"\n        }\n        try-files \"/srv/wiki/\" final=on\n        reroute \"/app/index.php?$args\"\n",
        "        deny all\n        files-at \"/app/\"\n",
        "        expires \"1d\"\n        index \"index.php\"\n        files-at \"/app/\"\n        files \"/srv/wiki/\"\n",
    ] {
        assert!(site.contains(expected), "{expected}\n{site}");
    }
    assert!(!site.contains("respond 501") && !site.contains("not converted:"), "{site}");
    for last in ["/app//app/index.php?$args", "/app/index.php?$args"] {
        let site = of_server(&format!(
            "location /app/ {{ alias /srv/; try_files $uri {last}; location ~ php {{ fastcgi_pass a:1; }} }}"
        ));
        assert!(site.contains("reroute \"/app/index.php?$args\""), "{last}\n{site}");
    }
    // The folder would be that of the server, or the path would be there twice.
    for file in ["$document_root$fastcgi_script_name", "/srv$fastcgi_script_name"] {
        let php = php.replace("$request_filename", file);
        let site = of_server(&format!(
            "root /r; location /app/ {{ alias /srv/wiki/; location ~ \\.php$ {{ {php} }} }}"
        ));
        assert!(site.contains("respond 501") && !site.contains("proxy "), "{file}\n{site}");
    }
}

/// A parameter that decides what is run or who is asking must not be lost.
#[test]
fn parameters_that_matter_close_their_location() {
    for params in [
        "fastcgi_param SCRIPT_FILENAME $other$fastcgi_script_name;",
        "fastcgi_param REMOTE_USER $unknown;",
        "fastcgi_param PHP_VALUE $unknown;",
        "alias /x/; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;",
    ] {
        let text = format!("location / {{ {params} fastcgi_pass unix:/run/fpm.sock; }}");
        let site = of_server(&text);
        assert!(site.contains("respond 501") && !site.contains("proxy "), "{text}\n{site}");
    }
    let variable = of_server("location / { fastcgi_pass $backend; }");
    assert!(variable.contains("respond 501"), "{variable}");
}

#[test]
fn parameters_with_variables_belong_to_the_route() {
    let text = "set_real_ip_from 10.0.0.1; auth_basic x; auth_basic_user_file /u; location / { fastcgi_param REMOTE_USER $remote_user; fastcgi_param HTTP_X_A $host; \
                fastcgi_param REMOTE_ADDR $remote_addr; fastcgi_param B $nothing; fastcgi_pass unix:/run/fpm.sock; }";
    let site = of_server(text);
    for expected in [
        "request-param \"REMOTE_USER\" \"$remote_user\"",
        "request-param \"HTTP_X_A\" \"$host\"",
        "request-param \"REMOTE_ADDR\" \"$remote_addr\"",
        "// not converted: fastcgi_param B $nothing;",
    ] {
        assert!(site.contains(expected), "{expected}\n{site}");
    }
}

#[test]
fn caches_and_fields_are_those_of_the_family() {
    let text = "fastcgi_cache_path /c keys_zone=z:1m; server { listen 80; root /r; location ~ \\.php$ { \
                fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_pass unix:/run/fpm.sock; \
                fastcgi_cache z; fastcgi_cache_valid 200 5m; fastcgi_hide_header X-Powered-By; fastcgi_intercept_errors on; \
                error_page 404 /404.html; fastcgi_request_buffering off; } }";
    let site = imported(&format!("http {{ {text} }}")).text;
    for expected in [
        "cache \"5m\"",
        "response-header remove \"X-Powered-By\"",
        "upstream=on",
        "buffer-requests off",
        "cache-dir \"/c-flatout\"",
    ] {
        assert!(site.contains(expected), "{expected}\n{site}");
    }
}

/// What follows the script may have a variable of its own, and is not sent where nginx sends none.
#[test]
fn the_rest_of_the_path_is_sent_as_in_nginx() {
    let split = "fastcgi_split_path_info ^(.+\\.php)(/.*)$; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;";
    let of = |given: &str| {
        let server =
            format!("root /r; location ~ \\.php(/|$) {{ {split} {given} fastcgi_pass unix:/run/fpm.sock; }}");
        imported(&format!("http {{ server {{ listen 80; {server} }} }}")).text
    };
    for given in [
        "set $rest $fastcgi_path_info; fastcgi_param PATH_INFO $rest;",
        "fastcgi_param PATH_INFO $fastcgi_path_info;",
    ] {
        let text = of(given);
        let has = |word: &str| text.contains(word);
        assert!(!has("not converted:") && !has("PATH_INFO") && !has("set "), "{text}");
    }
    let text = of("");
    assert!(text.contains("fastcgi-param \"PATH_INFO\" \"\""), "{text}");
}

/// Another index file is served where the script is not there.
#[test]
fn pages_behind_a_script_are_index_files_too() {
    let text = format!(
        "root /srv; index index.php index.html /index.php$request_uri; location / {{ }} \
         location ~ \\.php$ {{ {USUAL} fastcgi_pass unix:/run/fpm.sock; }} location /a/ {{ alias /b/; }}"
    );
    let site = of_server(&text);
    let missing = |name: &str| format!("!('/srv' + $uri + '{name}').isFile()");
    for expected in [
        "index \"index.html\" | ".to_owned(),
        "('/srv' + $uri + 'index.php').isFile()\" { | reroute \"${uri}index.php?$args\"".to_owned(),
        format!(
            "('/srv' + $uri).isDirectory() && {} && {}\" {{ | reroute \"/index.php$request_uri\"",
            missing("index.php"),
            missing("index.html")
        ),
        "('/b' + $uri.substring(2) + 'index.php').isFile()\" { | reroute \"${uri}index.php?$args\""
            .to_owned(),
    ] {
        assert!(site.contains(&expected), "{expected}\n{site}");
    }
}

/// Pages of php-fpm itself have no file: the folder of the site must not decide whether they are there.
#[test]
fn pages_of_the_application_itself_need_no_script() {
    for (location, is_page) in [
        ("= /fpm-status", true),
        ("~ ^/(status|ping)$", true),
        ("= /index.php", false),
        ("~ ^/(status|ping)", false),
        ("~ ^/(index|get)\\.php$", false),
        ("/status", false),
    ] {
        let upstream =
            upstream(&format!("location {location} {{ {USUAL} fastcgi_pass unix:/run/fpm.sock; }}"));
        let expected = "fastcgi-root \"/nonexistent\" front=off split=off";
        assert_eq!(upstream.contains(expected), is_page, "{location}\n{upstream}");
    }
    let site = of_server(&format!(
        "root /srv; location = /auto.php {{ {USUAL} try_files /auto.php =404; fastcgi_pass unix:/run/fpm.sock; }}"
    ));
    assert!(site.contains("proxy fpm") && !site.contains("not converted"), "{site}");
}

/// A named location cannot choose the script of a folder: what comes last gets these requests.
#[test]
fn folders_of_a_named_location_continue() {
    let site = of_server(&format!(
        "root /srv; index index.php; location / {{ error_page 418 = @m; if ($arg_a) {{ return 418; }} try_files $uri $uri/ /index.php?$args; }} \
         location @m {{ try_files $uri $uri/ /index.php?$args; }} location ~ \\.php$ {{ {USUAL} fastcgi_pass unix:/run/fpm.sock; }}"
    ));
    let (before, named) = site.split_once("route \"@m\"").unwrap();
    assert!(before.contains("try-files \"/srv\" final=on | reroute \"/index.php?$args\""), "{site}");
    assert!(named.contains("try-files \"/srv\" | reroute \"/index.php?$args\""), "{site}");
}

/// Of the folders of Nextcloud's updater, nothing but the scripts is there.
#[test]
fn folders_alone_may_be_tried_for_their_script() {
    let text = format!(
        "root /srv; index index.php; location ~ ^/(?:updater|ocs-provider)(?:$|/) {{ try_files $uri/ =404; }} \
         location ~ \\.php$ {{ {USUAL} fastcgi_pass unix:/run/fpm.sock; }}"
    );
    let site = of_server(&text);
    let expected = "when \"path.endsWith('/') && method in ['GET', 'HEAD', 'POST'] && ('/srv' + $uri + 'index.php').isFile()\" { | reroute \"${uri}index.php?$args\" | } | \
                    when \"!path.endsWith('/') && ('/srv' + $uri + '/index.php').isFile()\" { | reroute \"${uri}/index.php?$args\" | } | \
                    respond 404";
    assert!(site.contains(expected) && !site.contains("501"), "{site}");
    for text in [
        text.replace("index index.php", "index index.html index.php"),
        text.replace("unix:/run/fpm.sock", "$x"),
    ] {
        let site = of_server(&text);
        assert!(site.contains("respond 501"), "{site}");
    }
    let missing = text.replace(
        "try_files $uri/ =404;",
        "if (!-e $request_filename) { rewrite ^(.+)$ /index.php?q=$1 last; }",
    );
    let site = of_server(&missing);
    assert!(site.contains("reroute \"/index.php?q=$uri&$args\"") && !site.contains("501"), "{site}");
}

/// A parameter that is left out if it is empty does not take the place of another one.
#[test]
fn https_behind_a_proxy_stays_on() {
    let of = |params: &str| upstream(&format!("location / {{ {params} fastcgi_pass unix:/run/fpm.sock; }}"));
    assert!(of(&format!("fastcgi_param HTTPS on; {USUAL}")).contains("fastcgi-param \"HTTPS\" \"on\""));
    assert!(of(&format!("{USUAL} fastcgi_param HTTPS on;")).contains("fastcgi-param \"HTTPS\" \"on\""));
    assert!(!of("fastcgi_param HTTPS on; fastcgi_param HTTPS $https;").contains("HTTPS"));
}

/// The contents of empty locations have the same address.
#[test]
fn scripts_of_an_empty_location_are_in_its_own_folder() {
    let site = of_server(
        "root /r; index index.php; location /a/ { } location / { } location ~ ^/a/.*\\.php$ { deny all; } \
         location ~ \\.php$ { fastcgi_pass a:1; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; }",
    );
    let to = "reroute \"${uri}index.php?$args\"";
    let (_, root) = site.split_once("route \"/\" {").unwrap();
    assert!(root.contains(to), "{site}");
}
