//! What `flatout import` cannot convert must not be served: the same requests go to the imported nginx and to the imported
//! site, which must never send more than nginx does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use flatout_tests::peers::Peer;
use flatout_tests::{Answer, Folder, Server, answers, program};

/// The files of each site: pages, uploads, source and secrets.
const FILES: [(&str, &str); 34] = [
    ("www/index.php", "<?php echo 'index';"),
    ("www/index.html", "<h1>index</h1>"),
    ("www/style.css", "body{}"),
    ("www/page.html", "page"),
    ("www/robots.txt", "User-agent: *"),
    ("www/wp-config.php", "<?php $password = 1;"),
    ("www/wp-config.php.bak", "<?php $password = 1;"),
    ("www/wp-config.php~", "<?php $password = 1;"),
    ("www/.wp-config.php.swp", "<?php $password = 1;"),
    ("www/settings.inc", "<?php $password = 1;"),
    ("www/dump.sql", "insert into users"),
    ("www/.env", "PASSWORD=1"),
    ("www/.htaccess", "deny from all"),
    ("www/.git/config", "[core]"),
    ("www/.well-known/security.txt", "Contact: x"),
    ("www/composer.json", "{}"),
    ("www/sub/index.php", "<?php echo 'sub';"),
    ("www/sub/pic.png", "png"),
    ("www/html/index.html", "html"),
    ("www/uploads/pic.png", "png"),
    ("www/uploads/evil.php", "<?php evil();"),
    ("www/uploads/evil.phtml", "<?php evil();"),
    ("www/core/lib.module", "<?php module();"),
    ("www/core/page.twig", "{{ secret }}"),
    ("www/data/secret.txt", "secret"),
    ("www/private/secret.txt", "secret"),
    ("www/private/deep/x.css", "secret css"),
    ("www/api/index.html", "api"),
    ("www/wp-content/uploads/a.jpg", "jpg"),
    ("www/wp-content/uploads/a.php", "<?php evil();"),
    ("www/wp-admin/install.php", "<?php install();"),
    ("www/wp-admin/css/a.css", "css"),
    ("www/maintenance.html", "maintenance"),
    ("www/404.php", "<?php not_found();"),
];

/// Paths beside those of the files.
const PATHS: [&str; 24] = [
    "/",
    "/sub/",
    "/sub",
    "/html/",
    "/uploads/",
    "/none",
    "/none.css",
    "/none.php",
    "/a/b/c",
    "/index.php/extra",
    "/index.php?a=b",
    "/uploads/evil.php/x.css",
    "/style.css/x.php",
    "/INDEX.PHP",
    "/index%2ephp",
    "/index.php%00.css",
    "//index.php",
    "/./index.php",
    "/data/../index.php",
    "/private",
    "/private/",
    "/secret",
    "/sub/index.php",
    "/wp-admin/",
];

fn get(address: SocketAddr, path: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    answers(&bytes, false).pop()
}

/// An nginx and its imported site.
struct Both {
    nginx: Peer,
    imported: Server,
    text: String,
    complaints: String,
    folder: Folder,
}

impl Both {
    /// Of an `http` block, in which HANDLER stands for an application that cannot be reached: nginx responds 502.
    fn of(http: &str) -> Option<Both> {
        let folder = Folder::new();
        for (name, text) in FILES {
            folder.write(name, text);
        }
        let hash = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";
        folder.write("passwords", format!("user:{hash}\n"));
        let types = "types { text/html html; text/css css; text/plain txt; image/png png; image/jpeg jpg; }";
        let http = http.replace("HANDLER", "127.0.0.1:1");
        let nginx = Peer::nginx(&folder, &format!("{types}\n{http}"))?;
        let conf = folder.0.join("nginx.conf").display().to_string();
        let output = Command::new(program("flatout")).args(["import", &conf]).stdin(Stdio::null()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        let complaints = String::from_utf8(output.stderr).unwrap();
        folder.write("site.kdl", &text);
        let mut command = Command::new(program("flatout"));
        let site = folder.0.join("site.kdl").display().to_string();
        command.args(["serve", "-c", &site, "--listen", "127.0.0.1:0", "--workers", "1"]);
        let imported = Server::start(command);
        Some(Both { nginx, imported, text, complaints, folder })
    }

    /// The statuses of nginx and of the imported site for a path, whose body must not be more than nginx's.
    fn statuses(&self, path: &str) -> (u16, u16) {
        let (Some(old), Some(new)) = (get(self.nginx.address(), path), get(self.imported.address, path))
        else {
            panic!("no response to {path}\n{}", self.text);
        };
        let context = || format!("{path}: nginx {}, imported {}\n{}", old.status, new.status, self.text);
        if new.status == 200 {
            assert_eq!((old.status, old.text()), (200, new.text()), "{}", context());
        }
        let told = new.text();
        for secret in ["<?php", "password", "PASSWORD", "[core]", "insert into", "{{"] {
            assert!(!told.contains(secret), "{secret} in {}", context());
        }
        // What nginx has passed on is refused, unless its form is refused before.
        if old.status == 502 {
            assert!(matches!(new.status, 502 | 501 | 400 | 403 | 404 | 301), "{}", context());
        }
        (old.status, new.status)
    }

    /// Asks both for everything.
    fn compare(&self) {
        for (name, _) in FILES {
            self.statuses(name.strip_prefix("www").unwrap_or(name));
        }
        for path in PATHS {
            self.statuses(path);
        }
    }

    /// The status of the imported site for each of these paths.
    fn expect(&self, expected: &[(&str, u16)]) {
        for (path, status) in expected {
            let (old, new) = self.statuses(path);
            assert_eq!(new, *status, "{path}: nginx {old}\n{}", self.text);
        }
    }
}

const PLAIN: &str = "
    server {
        listen 127.0.0.1:PORT; server_name a.test; root FOLDER/www; index index.php;
        location / { try_files $uri $uri/ /index.php?$query_string; }
        location ~ \\.php$ { include /etc/nginx/fastcgi_params; fastcgi_pass HANDLER; }
    }";

#[test]
fn the_usual_php_configuration_serves_no_source() {
    let Some(both) = Both::of(PLAIN) else { return };
    both.compare();
    both.expect(&[
        ("/", 502),
        ("/index.php", 502),
        ("/sub/", 502),
        ("/none", 502),
        ("/wp-config.php", 502),
        ("/style.css", 200),
        ("/uploads/pic.png", 200),
        ("/wp-config.php.bak", 502),
        ("/.env", 502),
        ("/html/index.html", 200),
    ]);
    // Nothing is left out, and nothing is closed.
    assert!(both.complaints.is_empty(), "{}", both.complaints);
}

/// The list of hidden names is in the site file, and can be changed there.
#[test]
fn hidden_names_can_be_shown_again() {
    let config = "server { listen 127.0.0.1:PORT; server_name a.test; root FOLDER/www; location / { } }";
    let Some(both) = Both::of(config) else { return };
    for path in ["/dump.sql", "/wp-config.php.bak", "/composer.json", "/index.php"] {
        assert_eq!(get(both.imported.address, path).unwrap().status, 404, "{path}");
    }
    assert!(both.complaints.is_empty(), "{}", both.complaints);
    let hidden =
        both.text.lines().find(|line| line.starts_with("hide ") && line.contains("\"*.sql\"")).unwrap();
    let shown = hidden.replace(" \"*.sql\"", "");
    both.folder.write("site.kdl", both.text.replace(hidden, &shown));
    both.imported.signal(rustix::process::Signal::HUP);
    flatout_tests::until("it reloads", || {
        get(both.imported.address, "/dump.sql").is_some_and(|answer| answer.status == 200)
    });
    assert_eq!(get(both.imported.address, "/composer.json").unwrap().status, 404);
}

#[test]
fn wordpress_serves_no_source() {
    let Some(both) = Both::of(
        "upstream php { server HANDLER; }
        server {
            listen 127.0.0.1:PORT default_server; server_name a.test www.a.test; root FOLDER/www;
            index index.php index.html;
            client_max_body_size 64m;
            location = /favicon.ico { log_not_found off; access_log off; }
            location = /robots.txt { allow all; log_not_found off; access_log off; }
            location / { try_files $uri $uri/ /index.php?$args; }
            rewrite /wp-admin$ $scheme://$host$uri/ permanent;
            location ~ /\\. { deny all; }
            location ~* /(?:uploads|files)/.*\\.php$ { deny all; }
            location ~ [^/]\\.php(/|$) {
                fastcgi_split_path_info ^(.+?\\.php)(/.*)$;
                if (!-f $document_root$fastcgi_script_name) { return 404; }
                fastcgi_param HTTP_PROXY \"\";
                fastcgi_pass php; fastcgi_index index.php;
            }
            location ~* \\.(js|css|png|jpg|jpeg|gif|ico)$ { expires max; log_not_found off; }
        }",
    ) else {
        return;
    };
    both.compare();
    both.expect(&[
        ("/", 502),
        ("/robots.txt", 200),
        ("/index.php", 502),
        ("/wp-admin/install.php", 502),
        ("/wp-admin/css/a.css", 200),
        ("/wp-content/uploads/a.jpg", 200),
        ("/wp-content/uploads/a.php", 403),
        ("/.env", 403),
        ("/.git/config", 403),
        ("/hello-world/", 502),
        ("/dump.sql", 502),
    ]);
}

#[test]
fn laravel_serves_no_source() {
    let Some(both) = Both::of(
        "server {
            listen 127.0.0.1:PORT; server_name a.test; root FOLDER/www;
            add_header X-Frame-Options \"SAMEORIGIN\"; add_header X-Content-Type-Options \"nosniff\";
            index index.php; charset utf-8;
            location / { try_files $uri $uri/ /index.php?$query_string; }
            location = /favicon.ico { access_log off; log_not_found off; }
            location = /robots.txt { access_log off; log_not_found off; }
            error_page 404 /index.php;
            location ~ \\.php$ {
                fastcgi_pass HANDLER; fastcgi_param SCRIPT_FILENAME $realpath_root$fastcgi_script_name;
                fastcgi_hide_header X-Powered-By;
            }
            location ~ /\\.(?!well-known).* { deny all; }
        }",
    ) else {
        return;
    };
    both.compare();
    both.expect(&[
        ("/", 502),
        ("/robots.txt", 200),
        ("/.env", 403),
        ("/.well-known/security.txt", 200),
        ("/style.css", 200),
        ("/404.php", 502),
        ("/login", 502),
    ]);
}

#[test]
fn nextcloud_serves_no_source() {
    let Some(both) = Both::of(
        "upstream php-handler { server HANDLER; }
        map $arg_v $asset_immutable { \"\" \"\"; default \", immutable\"; }
        server {
            listen 127.0.0.1:PORT; server_name a.test; root FOLDER/www;
            client_max_body_size 512M; client_body_timeout 300s; fastcgi_buffers 64 4K;
            gzip on; gzip_vary on; gzip_types text/css;
            add_header Referrer-Policy \"no-referrer\" always;
            fastcgi_hide_header X-Powered-By;
            index index.php index.html /index.php$request_uri;
            location = / { if ( $http_user_agent ~ ^DavClnt ) { return 302 /remote.php/webdav/$is_args$args; } }
            location = /robots.txt { allow all; log_not_found off; access_log off; }
            location ^~ /.well-known {
                location = /.well-known/carddav { return 301 /remote.php/dav/; }
                location /.well-known/acme-challenge { try_files $uri $uri/ =404; }
                return 301 /index.php$request_uri;
            }
            location ~ ^/(?:build|tests|config|lib|3rdparty|templates|data)(?:$|/) { return 404; }
            location ~ ^/(?:\\.|autotest|occ|issue|indie|db_|console) { return 404; }
            location ~ \\.php(?:$|/) {
                rewrite ^/(?!index|remote|public|cron) /index.php$request_uri;
                fastcgi_split_path_info ^(.+?\\.php)(/.*)$;
                set $path_info $fastcgi_path_info;
                try_files $fastcgi_script_name =404;
                fastcgi_pass php-handler; fastcgi_intercept_errors on;
            }
            location ~ \\.(?:css|js|svg|gif|png|jpg)$ {
                try_files $uri /index.php$request_uri;
                add_header Cache-Control \"public, max-age=15778463$asset_immutable\";
                access_log off;
            }
            location /remote { return 301 /remote.php$request_uri; }
            location / { try_files $uri $uri/ /index.php$request_uri; }
        }",
    ) else {
        return;
    };
    both.compare();
    both.expect(&[
        ("/", 502),
        ("/robots.txt", 200),
        ("/data/secret.txt", 404),
        ("/style.css", 200),
        ("/none.css", 502),
        ("/index.php", 502),
        ("/.env", 404),
        ("/apps/files", 502),
    ]);
}

#[test]
fn drupal_serves_no_source() {
    let Some(both) = Both::of(
        "server {
            listen 127.0.0.1:PORT; server_name a.test; root FOLDER/www;
            location = /favicon.ico { log_not_found off; access_log off; }
            location = /robots.txt { allow all; log_not_found off; access_log off; }
            location ~* \\.(txt|log)$ { deny all; }
            location ~ \\..*/.*\\.php$ { return 403; }
            location ~ ^/sites/.*/private/ { return 403; }
            location ~ ^/sites/[^/]+/files/.*\\.php$ { deny all; }
            location ~* ^/.well-known/ { allow all; }
            location ~ (^|/)\\. { return 403; }
            location / { try_files $uri /index.php?$query_string; }
            location @rewrite { rewrite ^ /index.php; }
            location ~ /vendor/.*\\.php$ { deny all; return 404; }
            location ~* \\.(engine|inc|install|make|module|profile|po|sh|.*sql|theme|twig|tpl(\\.php)?|xtmpl|yml)(~|\\.sw[op]|\\.bak|\\.orig|\\.save)?$|/(\\.(?!well-known).*)$|composer\\.(lock|json)$ { deny all; return 404; }
            location ~ '\\.php$|^/update.php' {
                fastcgi_split_path_info ^(.+?\\.php)(|/.*)$;
                try_files $fastcgi_script_name =404;
                fastcgi_pass HANDLER;
            }
            location ~ ^/sites/.*/files/styles/ { try_files $uri @rewrite; }
            location ~ ^(/[a-z\\-]+)?/system/files/ { try_files $uri /index.php?$query_string; }
            location ~* \\.(js|css|png|jpg|jpeg|gif|ico|svg)$ { try_files $uri @rewrite; expires max; log_not_found off; }
            if ($request_uri ~* \"^(.*/)index\\.php/(.*)\") { return 307 $1$2; }
        }",
    ) else {
        return;
    };
    both.compare();
    both.expect(&[("/index.php", 502), ("/style.css", 200), ("/node/1", 502), ("/uploads/evil.php", 502)]);
}

/// Each of these servers restricts or handles requests in a way of its own.
#[test]
fn restrictions_are_converted_or_their_location_closed() {
    let mut all: Vec<(&str, &[(&str, u16)])> = vec![
        // Handlers that are not supported.
        ("location / { uwsgi_pass HANDLER; }", &[("/page.html", 502)]),
        ("location / { scgi_pass HANDLER; }", &[("/page.html", 502)]),
        ("location / { memcached_pass HANDLER; set $memcached_key $uri; }", &[("/page.html", 501)]),
        ("location / { grpc_pass grpc://HANDLER; }", &[("/page.html", 502)]),
        (
            "location / { try_files $uri @app; } location @app { uwsgi_pass HANDLER; }",
            &[("/page.html", 200), ("/none", 502)],
        ),
        (
            "location / { error_page 404 = @app; } location @app { scgi_pass HANDLER; }",
            &[("/page.html", 200), ("/none", 502)],
        ),
        (
            "error_page 404 /404.php; location / { } location ~ \\.php$ { fastcgi_pass HANDLER; }",
            &[("/page.html", 200), ("/none", 502)],
        ),
        (
            "location / { if (!-e $request_filename) { rewrite ^ /index.php last; } } location ~ \\.php$ { fastcgi_pass HANDLER; }",
            &[("/page.html", 200), ("/none", 502)],
        ),
        (
            "index index.html index.php; location / { try_files $uri $uri/ =404; } location ~ \\.php$ { fastcgi_pass HANDLER; }",
            &[("/html/", 200), ("/sub/", 502)],
        ),
        (
            "location / { location ~ \\.php$ { fastcgi_pass HANDLER; } }",
            &[("/page.html", 200), ("/index.php", 502)],
        ),
        (
            "location /sub/ { location ~ \\.png$ { fastcgi_pass HANDLER; } } location / { }",
            &[("/sub/pic.png", 502), ("/uploads/pic.png", 200)],
        ),
        (
            "location ^~ /sub/ { location ~ \\.png$ { fastcgi_pass HANDLER; } } location / { }",
            &[("/sub/pic.png", 502), ("/uploads/pic.png", 200)],
        ),
        (
            "location /sub/ { alias FOLDER/www/sub/; index index.php; location ~ \\.php$ { fastcgi_pass HANDLER; } } location / { }",
            &[("/sub/pic.png", 200), ("/sub/index.php", 502), ("/sub/none", 404)],
        ),
        // Files under other names than their own.
        ("location / { try_files /maintenance.html $uri =404; }", &[("/page.html", 200), ("/none", 200)]),
        ("location / { try_files /sub$uri =404; }", &[("/page.html", 404), ("/pic.png", 200)]),
        ("location / { try_files $uri =403; }", &[("/none", 403), ("/page.html", 200)]),
        ("location / { try_files $uri/ =404; }", &[("/page.html", 501)]),
        ("location / { try_files $uri/index.html =404; }", &[("/page.html", 501)]),
        // An index that is no file: nginx responds 403.
        (
            "location / { index $arg_x; }",
            &[("/sub/", 404), ("/sub/?x=none", 404), ("/html/?x=index.html", 200)],
        ),
        // The page of the whole site has a location of its own, which is not where requests for `/` go in each case.
        (
            "index none.html index.php; location / { try_files $uri $uri/ /none.html?a; } location = /none.html { return 403; } \
             location ~ \\.php$ { fastcgi_pass HANDLER; }",
            &[("/", 502)],
        ),
        (
            "index index.html index.php; location / { } location = /index.html { return 403; } \
             location ~ \\.php$ { fastcgi_pass HANDLER; }",
            &[("/", 403)],
        ),
        (
            "location / { try_files $uri @app; } location = /index.html { return 403; } location @app { return 204; }",
            &[("/", 204)],
        ),
        (
            "location / { internal; } location = /index.html { internal; } location /app { proxy_pass http://HANDLER; }",
            &[("/", 404)],
        ),
        // What nginx applies nothing behind.
        (
            "location / { if (-f $request_filename) { break; } rewrite ^ /maintenance.html last; }",
            &[("/page.html", 200), ("/none", 200), ("/maintenance.html", 200)],
        ),
        (
            "location / { if (-d $request_filename) { break; } if (-f $request_filename) { break; } rewrite ^ /none last; }",
            &[("/page.html", 200), ("/html/", 200)],
        ),
        (
            "location / { } location /sub/ { rewrite ^/sub/none /sub/pic.png; break; rewrite ^/sub/pic /data/secret.txt last; }",
            &[("/sub/none", 200), ("/sub/pic.png", 200)],
        ),
        (
            "location / { } location /sub/ { return 403; rewrite ^ /data/secret.txt last; }",
            &[("/sub/pic.png", 403)],
        ),
        ("break; return 200 all; location /private { deny all; }", &[("/private/secret.txt", 403)]),
        // Rules for access.
        (
            "location / { real_ip_header X-A; if ($remote_addr = 192.0.2.1) { return 403; } }",
            &[("/page.html", 501)],
        ),
        ("location / { } location /private { internal; }", &[("/private/secret.txt", 404)]),
        ("location / { } location /private { deny all; }", &[("/private/secret.txt", 403)]),
        (
            "location / { } location /private { location ~ \\.css$ { expires 1h; } deny all; }",
            &[("/private/deep/x.css", 403)],
        ),
        (
            "location / { } location /private/ { deny all; location /private/deep/ { expires 1h; } }",
            &[("/private/deep/x.css", 403), ("/private/secret.txt", 403)],
        ),
        (
            "location / { } location /private/ { auth_basic x; auth_basic_user_file FOLDER/passwords; location = /private/secret.txt { } }",
            &[("/private/secret.txt", 401)],
        ),
        (
            "location / { location ~ \\.css$ { return 403; } } location /core/ { } location /private/ { }",
            &[("/style.css", 403), ("/private/deep/x.css", 200), ("/core/page.twig", 404)],
        ),
        (
            "location / { location ~ \\.css$ { expires 1h; } } location /private/ { deny all; }",
            &[("/private/deep/x.css", 403), ("/style.css", 200)],
        ),
        (
            "location / { location ~ \\.css$ { add_header A b; root FOLDER/www/private/deep; } } location /private/ { deny all; }",
            &[("/private/deep/x.css", 403)],
        ),
        ("location / { limit_except POST { deny all; } }", &[("/page.html", 403)]),
        ("location / { if ($http_x_token = \"\") { return 403; } }", &[("/page.html", 403)]),
        ("if ($cookie_auth != yes) { return 302 /login; } location / { }", &[("/page.html", 302)]),
        ("if ($http_x_token = \"\") { rewrite ^ /login last; } location / { }", &[("/page.html", 404)]),
        ("location / { if ($request_method = GET) { return 405; } }", &[("/page.html", 405)]),
        (
            "location / { valid_referers none server_names; if ($invalid_referer = \"\") { return 403; } }",
            &[("/page.html", 403)],
        ),
        (
            "location / { secure_link $arg_md5; secure_link_md5 \"x\"; if ($secure_link = \"\") { return 403; } }",
            &[("/page.html", 403)],
        ),
        ("location / { auth_request /auth; } location = /auth { return 403; }", &[("/page.html", 403)]),
        ("auth_request /auth; location / { } location = /auth { return 403; }", &[("/page.html", 403)]),
        (
            "location / { auth_request /auth; } location = /auth { if ($request_uri ~ k=a) { return 204; } if ($request_uri ~ k=b) { return 401; } \
             if ($request_uri ~ k=c) { return 302 /x; } if ($arg_k = d) { return 204; } return 403; }",
            &[
                ("/page.html?k=a", 200),
                ("/page.html?k=b", 401),
                ("/page.html?k=c", 500),
                ("/page.html?k=d", 403),
                ("/page.html", 403),
                ("/auth?k=a", 204),
            ],
        ),
        (
            "location / { auth_request /page.html; } location = /page.html { internal; }",
            &[("/html/", 200), ("/page.html", 404)],
        ),
        (
            "location / { auth_request /none.html; } location = /none.html { internal; }",
            &[("/page.html", 500)],
        ),
        (
            "location / { satisfy any; deny all; allow 127.0.0.2; auth_basic x; auth_basic_user_file FOLDER/passwords; }",
            &[("/page.html", 401)],
        ),
        ("rewrite ^/(?!public)(.*)$ /private/none/$1; location / { }", &[("/page.html", 404)]),
        ("rewrite ^/page $http_x$connection_requests/none; location / { }", &[("/page.html", 501)]),
        (
            "location ~ ^/(?!page) { return 403; } location / { }",
            &[("/style.css", 403), ("/private/secret.txt", 403)],
        ),
        (
            "location ~ ^/(?=private) { proxy_pass http://HANDLER; } location / { }",
            &[("/private/secret.txt", 502)],
        ),
        ("location ~ (.)\\1 { return 403; } location / { }", &[("/page.html", 501)]),
        ("location / { ssi on; }", &[("/page.html", 501)]),
        // What concerns the form of a response only closes nothing.
        (
            "if ($http_user_agent ~ Mobile) { return 302 http://m.test$request_uri; } location / { }",
            &[("/page.html", 200)],
        ),
        (
            "location / { if ($request_method = OPTIONS) { return 204; } sub_filter zzz yyy; }",
            &[("/page.html", 200)],
        ),
        (
            "if (-f $document_root/maintenance.on) { return 503; } location / { etag off; msie_padding on; }",
            &[("/page.html", 200)],
        ),
    ];
    // nginx's own errors about passwords differ by its libraries: only the imported site is asked.
    all.push(("location / { } location /auth { return 404; }", &[("/page.html", 200)]));
    for (server, expected) in all {
        let http =
            format!("server {{ listen 127.0.0.1:PORT; server_name a.test; root FOLDER/www; {server} }}");
        let Some(both) = Both::of(&http) else { return };
        both.compare();
        both.expect(expected);
        let is_closed = expected.iter().any(|(_, status)| *status == 501);
        assert_eq!(both.text.starts_with("// NOT SERVED: "), is_closed, "{server}\n{}", both.text);
        assert_eq!(!both.complaints.is_empty(), is_closed, "{server}\n{}", both.complaints);
    }
}

/// A server that only this machine can reach must not be reachable from elsewhere.
#[test]
fn a_server_on_loopback_stays_there() {
    let folder = Folder::new();
    folder.write(
        "nginx.conf",
        "http { server { listen 80; server_name a.test; root /srv; }
        server { listen 127.0.0.1:8080; server_name b.test; root /secret; }
        server { listen 8081; server_name a.test; root /lost; } }",
    );
    let conf = folder.0.join("nginx.conf").display().to_string();
    let output = Command::new(program("flatout")).args(["import", &conf]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for expected in [
        "site \"a.test\" {\n    listen \":80\" default=on\n    redirect-origin \"$scheme://$http_host\"\n    files \"/srv\"\n}",
        "site \"b.test\" {\n    listen \"127.0.0.1:8080\" default=on\n    redirect-origin \"$scheme://$host:8080\"\n    files \"/secret\"\n}",
        "site \"a.test\" {\n    listen \":8081\" default=on\n    redirect-origin \"$scheme://$host:8081\"\n    files \"/lost\"\n}",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}
