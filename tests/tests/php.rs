//! `flatout serve DIR --php` with a real php-fpm, where it is installed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use flatout_tests::{Folder, Server, program, until};

/// php-fpm with a pool of its own, ended with the test.
struct Fpm {
    child: Child,
    socket: PathBuf,
}

impl Drop for Fpm {
    fn drop(&mut self) {
        // Its master ends its processes.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// The program, whose name has a version.
fn installed() -> Option<PathBuf> {
    let entries = std::fs::read_dir("/usr/sbin").ok()?.flatten().map(|entry| entry.path());
    let is_fpm = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("php-fpm"))
    };
    entries.filter(is_fpm).max()
}

/// Starts php-fpm; `None` where there is none.
fn fpm(folder: &Folder) -> Option<Fpm> {
    let program = installed()?;
    let socket = folder.0.join("fpm.sock");
    let path = |name: &str| folder.0.join(name).display().to_string();
    folder.write(
        "fpm.conf",
        format!(
            "[global]\nerror_log = {}\ndaemonize = no\n[www]\nuser = root\ngroup = root\nlisten = {}\npm = static\npm.max_children = 2\n\
             catch_workers_output = yes\n",
            path("fpm.log"),
            socket.display()
        ),
    );
    let mut command = Command::new(program);
    command.args(["--nodaemonize", "--allow-to-run-as-root", "--fpm-config", &path("fpm.conf")]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("php-fpm listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    Some(Fpm { child, socket })
}

/// A site with a front controller, scripts in folders, files, and files that nobody may get.
fn site(folder: &Folder) {
    folder.write(
        "site/index.php",
        "<?php echo 'front ', $_SERVER['REQUEST_URI'], ' ', $_SERVER['SCRIPT_NAME'], ' ', $_SERVER['QUERY_STRING'];",
    );
    folder.write(
        "site/hello.php",
        "<?php echo 'hello ', $_SERVER['PATH_INFO'] ?? '-', ' ', $_POST['a'] ?? '-';",
    );
    folder.write("site/blog/index.php", "<?php echo 'blog ', $_SERVER['SCRIPT_NAME'];");
    folder.write("site/style.css", "body {}");
    folder.write("site/picture.jpg", "<?php echo 'EVIL';");
    folder.write("site/.env", "PASSWORD=SECRET");
    folder.write("site/.git/hook.php", "<?php echo 'EVIL';");
    for name in ["old.php.bak", "a.phtml", "B.PHP", "lib.inc", "hello.php~", "dump.sql"] {
        folder.write(&format!("site/{name}"), "<?php $password = 'SECRET';");
    }
}

fn serve(folder: &Folder, fpm: &Fpm, flags: &[&str]) -> Server {
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "site", "--port", "0", "--php", &format!("unix:{}", fpm.socket.display())]);
    Server::start({
        command.args(flags).current_dir(&folder.0);
        command
    })
}

#[test]
fn scripts_run_and_files_are_sent() {
    let folder = Folder::new();
    let Some(fpm) = fpm(&folder) else { return };
    site(&folder);
    let server = serve(&folder, &fpm, &[]);
    let text = |path: &str| server.get(path, "").text();
    assert_eq!(text("/"), "front / /index.php ");
    assert_eq!(text("/posts/1?a=b"), "front /posts/1?a=b /index.php a=b");
    assert_eq!(text("/hello.php"), "hello  -");
    assert_eq!(text("/hello.php/more/path"), "hello /more/path -");
    assert_eq!(text("/blog/"), "blog /blog/index.php");
    assert_eq!(text("/style.css"), "body {}");
    let redirect = server.get("/blog", "");
    assert_eq!((redirect.status, redirect.field("location")), (301, Some("/blog/")), "{}", redirect.head);
    let posted = server.one(
        "POST /hello.php HTTP/1.1\r\nHost: t\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 3\r\nConnection: close\r\n\r\na=b",
    );
    assert_eq!(posted.text(), "hello  b");
}

/// Whatever path is tried, no source is sent and no file that is not a script runs.
#[test]
fn source_is_never_sent() {
    let folder = Folder::new();
    let Some(fpm) = fpm(&folder) else { return };
    site(&folder);
    // A list of the user's own comes in addition.
    let server = serve(&folder, &fpm, &["--hide", "*.sql"]);
    for path in [
        "/index.php",
        "/INDEX.PHP",
        "/B.PHP",
        "/b.php",
        "/old.php.bak",
        "/a.phtml",
        "/lib.inc",
        "/hello.php~",
        "/dump.sql",
        "/.env",
        "/%2eenv",
        "/.git/hook.php",
        "/picture.jpg/x.php",
        "/picture.jpg/.php",
        "/picture.jpg%00.php",
        "/hello.php%20",
        "/hello.php.",
        "/hello%2ephp",
        "/hello.php%2f",
        "//hello.php",
        "/./hello.php",
        "/style.css/../hello.php",
    ] {
        let answer = server.one(&format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
        let text = answer.text();
        assert!(
            !text.contains("SECRET") && !text.contains("<?php") && !text.contains("EVIL"),
            "{path}: {text}"
        );
    }
    assert_eq!(server.get("/picture.jpg", "").text(), "<?php echo 'EVIL';", "a file is a file");
}

/// A script that is replaced runs at once; a response is stored if it says so; a dead php-fpm gives 502.
#[test]
fn php_responses_are_cached_and_failures_are_named() {
    let folder = Folder::new();
    let Some(fpm) = fpm(&folder) else { return };
    site(&folder);
    folder.write("site/now.php", "<?php header('Cache-Control: max-age=60'); echo hrtime(true);");
    folder.write(
        "site/user.php",
        "<?php setcookie('a', 'b'); header('Cache-Control: private'); echo hrtime(true);",
    );
    folder.write(
        "site/broken.php",
        "<?php error_log('a line for the log'); http_response_code(500); echo 'sorry';",
    );
    let server = serve(&folder, &fpm, &["--cache", "0s"]);
    let text = |path: &str| server.get(path, "").text();
    assert_eq!(text("/now.php"), text("/now.php"));
    assert_ne!(text("/user.php"), text("/user.php"));
    let broken = server.get("/broken.php", "");
    assert_eq!((broken.status, broken.text().as_str()), (500, "sorry"));
    drop(fpm);
    assert_eq!(server.get("/hello.php", "").status, 502);
    assert_eq!(server.get("/style.css", "").text(), "body {}");
}

#[test]
fn a_missing_php_fpm_is_a_clear_error() {
    let folder = Folder::new();
    folder.write("site/index.php", "<?php");
    let fails = |arguments: &[&str]| {
        let mut command = Command::new(program("flatout"));
        let output = command.arg("serve").args(arguments).current_dir(&folder.0).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let refused = fails(&["site", "--php", "https://127.0.0.1:1"]);
    assert!(refused.contains("no TLS"), "{refused}");
    let refused = fails(&["nowhere", "--php", "unix:fpm.sock"]);
    assert!(refused.contains("nowhere"), "{refused}");
    let refused = fails(&["site", "--php", "unix:fpm.sock", "--to", "http://127.0.0.1:1"]);
    assert!(refused.contains("one of --php and --to"), "{refused}");
    folder.write("site.kdl", "files site\n");
    let refused = fails(&["-c", "site.kdl", "--php", "unix:fpm.sock"]);
    assert!(refused.contains("leave out"), "{refused}");
}
