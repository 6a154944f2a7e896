//! Configurations for PHP: the application gets the same scripts from nginx and from the imported site.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use flatout_tests::peers::Peer;
use flatout_tests::{Answer, Folder, Server, answers, program};

use crate::fastcgi::{application, end, stdout};

const FILES: [(&str, &str); 9] = [
    ("www/index.php", "<?php index"),
    ("www/page.html", "a page"),
    ("www/wp-admin/index.php", "<?php admin"),
    ("www/wp-admin/install.php", "<?php install"),
    ("www/wp-admin/user.php", "<?php user"),
    ("www/closed/index.php", "<?php closed"),
    ("www/html/index.html", "<h1>html</h1>"),
    ("www/upload/evil.jpg", "<?php evil"),
    ("www/.env", "PASSWORD=1"),
];

const PARAMS: &str = "fastcgi_param QUERY_STRING $query_string; fastcgi_param REQUEST_METHOD $request_method; \
    fastcgi_param CONTENT_LENGTH $content_length; fastcgi_param SCRIPT_NAME $fastcgi_script_name; \
    fastcgi_param REQUEST_URI $request_uri; fastcgi_param DOCUMENT_ROOT $document_root; \
    fastcgi_param REMOTE_ADDR $remote_addr; fastcgi_param REDIRECT_STATUS 200; \
    fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_param PATH_INFO $fastcgi_path_info;";

fn ask(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    answers(&bytes, false).pop().unwrap_or_else(|| panic!("no response to {request}"))
}

fn get(address: SocketAddr, target: &str) -> Answer {
    ask(address, &format!("GET {target} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"))
}

/// An nginx and its imported site, before one application that says what it was asked for.
fn both(server: &str) -> Option<(Folder, Peer, Server)> {
    let names =
        ["SCRIPT_FILENAME", "SCRIPT_NAME", "REQUEST_URI", "QUERY_STRING", "DOCUMENT_ROOT", "REMOTE_ADDR"];
    let (php, _) = application(move |received| {
        let text = names.map(|name| received.param(name)).join("|");
        let text =
            format!("Content-Type: text/html\r\nX-Powered-By: php\r\n\r\n{text}|{}", received.body.len());
        [stdout(text.as_bytes()), end()].concat()
    });
    let folder = Folder::new();
    for (name, text) in FILES {
        folder.write(name, text);
    }
    let http = format!("server {{ listen 127.0.0.1:PORT; server_name a.test; root FOLDER/www; {server} }}");
    let http = http.replace("PARAMS", PARAMS).replace("PHP", &php.to_string());
    let nginx = Peer::nginx(&folder, &format!("types {{ text/html html; }}\n{http}"))?;
    let mut command = Command::new(program("flatout"));
    command.arg("import").arg(folder.0.join("nginx.conf")).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("respond 501"), "{text}");
    folder.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--workers", "1", "-c"]).arg(folder.0.join("site.kdl"));
    Some((folder, nginx, Server::start(command)))
}

#[test]
fn scripts_are_the_same_as_those_of_nginx() {
    let Some((_folder, nginx, imported)) = both(
        "index index.php index.html;
        location / { try_files $uri $uri/ /index.php$is_args$args; }
        location = /wp-admin/install.php { deny all; }
        location ^~ /closed/ { deny all; }
        location ~ \\.php$ { try_files $uri =404; PARAMS fastcgi_pass PHP; fastcgi_hide_header X-Powered-By; }",
    ) else {
        return;
    };
    for target in [
        "/",
        "/?a=b",
        "/index.php",
        "/index.php?c=%20d",
        "/wp-admin/",
        "/wp-admin/?x=1",
        "/wp-admin/user.php",
        "/wp-admin/user.php/x",
        "/wp-admin/install.php/x",
        "/none.php/x",
        "/posts/2026/hello/?page=2",
        "/page.html",
    ] {
        let (old, new) = (get(nginx.address(), target), get(imported.address, target));
        assert_eq!((new.status, new.text()), (old.status, old.text()), "{target}");
        assert_eq!(new.field("X-Powered-By"), None, "{target}");
    }
    // Never the text of a script, and never a part of a path as one.
    for target in ["/wp-admin/install.php", "/closed/", "/closed/index.php"] {
        assert_eq!(get(imported.address, target).status, 403, "{target}");
    }
    for target in ["/upload/evil.jpg/x.php", "/none.php", "/upload/evil.jpg%00.php", "/.env", "/INDEX.PHP"] {
        let new = get(imported.address, target).text();
        assert!(
            !new.contains("<?php") && !new.contains("evil.jpg|") && !new.contains("PASSWORD"),
            "{target}: {new}"
        );
    }
}

/// The page is found by the target that the client has sent, and the query is that of the rewrite.
#[test]
fn other_ways_to_a_front_controller() {
    for way in [
        "location / { if (!-e $request_filename) { rewrite ^ /index.php last; } }",
        "location / { if (!-e $request_filename) { rewrite ^(.*)$ /index.php?q=$1 last; } }",
        "location / { try_files $uri /index.php?q=$uri&$args; }",
        "location / { try_files $uri @app; } location @app { rewrite ^ /index.php last; }",
    ] {
        let scripts = "location ~ \\.php$ { PARAMS fastcgi_pass PHP; }";
        let Some((_folder, nginx, imported)) = both(&format!("{way} {scripts}")) else { return };
        for target in ["/node/1?page=2", "/node/1", "/page.html", "/index.php?a=b"] {
            let (old, new) = (get(nginx.address(), target), get(imported.address, target));
            // An empty query leaves its `&`.
            let text = new.text().replace("&|", "|");
            assert_eq!((new.status, text), (old.status, old.text().replace("&|", "|")), "{way} {target}");
        }
    }
}

#[test]
fn without_a_front_controller_other_paths_name_no_script() {
    let Some((_folder, nginx, imported)) = both(
        "index index.php; location / { }
        location ~ \\.php$ { if (!-f $document_root$fastcgi_script_name) { return 404; } PARAMS fastcgi_pass PHP; }",
    ) else {
        return;
    };
    for target in ["/", "/index.php?a", "/wp-admin/", "/none.php", "/none", "/page.html"] {
        let (old, new) = (get(nginx.address(), target), get(imported.address, target));
        assert_eq!(new.status, old.status, "{target}");
        if old.status == 200 {
            assert_eq!(new.text(), old.text(), "{target}");
        }
    }
    let body = "0123456789".repeat(3000);
    let post = format!(
        "POST /index.php HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(ask(imported.address, &post).text(), ask(nginx.address(), &post).text());
}

/// An application below a path, in a folder of another name, and pages of php-fpm itself.
#[test]
fn scripts_of_an_alias_are_the_same_as_those_of_nginx() {
    let params = PARAMS.replace("$document_root$fastcgi_script_name", "$request_filename");
    let Some((_folder, nginx, imported)) = both(&format!(
        "index index.php;
        location /app/ {{
            alias FOLDER/www/wp-admin/;
            try_files $uri $uri/ /app//app/index.php?$args;
            location ~ \\.php$ {{ {params} fastcgi_pass PHP; }}
            location ^~ /app/closed/ {{ deny all; }}
        }}
        location /pages/ {{ alias FOLDER/www/html/; index index.html; try_files $uri $uri/ =404; }}
        location = /fpm-status {{ PARAMS fastcgi_pass PHP; }}"
    )) else {
        return;
    };
    for target in [
        "/app/",
        "/app/?x=1",
        "/app/user.php",
        "/app/index.php?c=%20d",
        "/app/posts/hello/?page=2",
        "/app/closed/x",
        "/pages/",
        "/pages/index.html",
        "/pages/none",
        "/fpm-status?json",
    ] {
        let (old, new) = (get(nginx.address(), target), get(imported.address, target));
        let text = |answer: &Answer| match answer.status {
            200 => answer.text().replace("/wp-admin/|", "/wp-admin|"),
            _ => String::new(),
        };
        let place = |text: String| text.split_once("/www").map_or(text.clone(), |(_, rest)| rest.to_owned());
        let (old_text, new_text) = (text(&old), text(&new));
        match target.starts_with("/fpm-status") {
            // The application knows it by its path; there is no file.
            true => {
                let rest = |text: &str| text.split_once('|').map(|(_, rest)| rest.to_owned());
                assert!(
                    rest(&new_text)
                        .is_some_and(|rest| rest.starts_with("/fpm-status|/fpm-status?json|json|")),
                    "{new_text}"
                );
                assert_eq!(new.status, old.status);
            }
            false => assert_eq!((new.status, place(new_text)), (old.status, place(old_text)), "{target}"),
        }
    }
    // The folder is the whole of its site: nothing outside of it, and never the text of a script.
    for target in ["/appindex.php", "/app../index.php", "/app/%2e%2e/index.php", "/application/index.php"] {
        let new = get(imported.address, target);
        assert!(new.status >= 400 && !new.text().contains("<?php"), "{target}: {}", new.text());
    }
}
