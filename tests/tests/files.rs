//! `flatout serve` from the side of browsers, caches and attackers.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flatout_tests::{Answer, Folder, Server, answers, until};

fn site(folder: &Folder, flags: &[&str]) -> Server {
    Server::site(&folder.0, &[&["--workers", "1"], flags].concat())
}

fn filled() -> Folder {
    let folder = Folder::new();
    folder.write("index.html", "home");
    folder.write("a.css", "body { color: red }\n".repeat(100));
    folder.write("sub/index.html", "sub");
    folder.write("docs/read me.txt", "read me");
    folder.write(".secret", "secret");
    folder.write(".git/config", "secret");
    folder.write(".well-known/security.txt", "contact");
    folder.write("large.bin", (0..1 << 20).map(|at: u32| (at * 7 % 251) as u8).collect::<Vec<_>>());
    folder
}

#[test]
fn files_and_folders() {
    let folder = filled();
    let server = site(&folder, &["--cache-control", "max-age=60"]);
    let home = server.get("/", "");
    assert_eq!((home.status, home.text()), (200, "home".to_owned()));
    assert_eq!(home.field("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(home.field("cache-control"), Some("max-age=60"));
    assert_eq!(server.get("/docs/read%20me.txt?v=1", "").text(), "read me");
    assert_eq!(server.get("/.well-known/security.txt", "").text(), "contact");
    let redirect = server.get("/sub?q=1", "");
    assert_eq!((redirect.status, redirect.field("location")), (301, Some("/sub/?q=1")));
    assert_eq!(server.get("/sub/", "").text(), "sub");
    let large = server.get("/large.bin", "");
    assert_eq!(large.body, std::fs::read(folder.0.join("large.bin")).unwrap());
    for hidden in ["/.secret", "/.git/config", "/docs/", "/docs/.", "/nothing", "//a.css", "/a.css/", "/SUB/"]
    {
        assert!(matches!(server.get(hidden, "").status, 400 | 404), "{hidden}");
    }
    assert_eq!(server.get("//evil.example/..", "").status, 400);
    assert_eq!(server.get("//evil.example", "").field("location"), None);
}

#[test]
fn there_is_no_way_out() {
    let folder = filled();
    std::os::unix::fs::symlink("/etc/passwd", folder.0.join("passwd")).unwrap();
    std::os::unix::fs::symlink("/etc", folder.0.join("etc")).unwrap();
    std::os::unix::fs::symlink("../../../../etc/passwd", folder.0.join("up")).unwrap();
    std::os::unix::fs::symlink(".", folder.0.join("loop")).unwrap();
    std::os::unix::fs::symlink("a.css", folder.0.join("inside.css")).unwrap();
    std::os::unix::fs::symlink(folder.0.join("a.css"), folder.0.join("absolute.css")).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.0.join("pipe"), mode).unwrap();
    let server = site(&folder, &[]);
    for path in [
        "/passwd",
        "/etc/passwd",
        "/etc/",
        "/up",
        "/loop/loop/passwd",
        "/pipe",
        "/../etc/passwd",
        "/%2e%2e/etc/passwd",
        "/sub/..%2f..%2fetc/passwd",
        "/sub/%252e%252e/",
        "/..;/etc/passwd",
        "/a.css%00",
        "/a.css%00.html",
        "/..\\etc",
        "/.%2e/",
        "/%c0%ae%c0%ae/etc/passwd",
        "/etc%2fpasswd",
    ] {
        let answer = server.get(path, "");
        assert!(matches!(answer.status, 400 | 404), "{path}: {answer:?}");
        assert!(!answer.text().contains("root:"), "{path}");
    }
    for path in ["/inside.css", "/absolute.css"] {
        assert_eq!(server.get(path, "").status, 200, "a link that stays inside is followed: {path}");
    }
}

#[test]
fn codings_are_negotiated() {
    let folder = filled();
    folder.write("side.js", "let a = 1;\n".repeat(100));
    folder.write("side.js.br", "brotli, they say");
    folder.write("stale.js", "let b = 2;\n".repeat(100));
    folder.write("stale.js.gz", "old");
    let old = std::time::SystemTime::now() - Duration::from_secs(1000);
    let stale = std::fs::File::options().write(true).open(folder.0.join("stale.js.gz")).unwrap();
    stale.set_modified(old).unwrap();
    let server = site(&folder, &[]);
    let coding = |path: &str, accept: &str| {
        let answer = server.get(path, &format!("Accept-Encoding: {accept}\r\n"));
        answer.field("content-encoding").map(str::to_owned)
    };
    until("text is compressed", || coding("/a.css", "zstd").is_some());
    assert_eq!(coding("/a.css", "gzip, br, zstd").as_deref(), Some("br"));
    assert_eq!(coding("/a.css", "gzip;q=1, br;q=0.5").as_deref(), Some("gzip"));
    assert_eq!(coding("/a.css", "identity").as_deref(), None);
    assert_eq!(coding("/a.css", "br;q=0").as_deref(), None);
    let plain = server.get("/a.css", "");
    let brotli = server.get("/a.css", "Accept-Encoding: br\r\n");
    assert_eq!(
        (plain.field("vary"), brotli.field("vary")),
        (Some("Accept-Encoding"), Some("Accept-Encoding"))
    );
    assert_ne!(plain.field("etag"), brotli.field("etag"));
    assert!(brotli.body.len() < plain.body.len() / 4);
    assert_eq!(server.get("/side.js", "Accept-Encoding: br\r\n").text(), "brotli, they say");
    assert_ne!(server.get("/stale.js", "Accept-Encoding: gzip\r\n").text(), "old");
    assert_eq!(server.get("/large.bin", "Accept-Encoding: br\r\n").field("vary"), None);
}

/// In memory and on disk, and whether the plain file exists or not.
#[test]
fn compressed_files_have_ranges_conditions_and_versions() {
    for (bytes, small) in [(1000, "256KiB"), (600_000, "256KiB"), (600_000, "1MiB"), (1000, "0")] {
        let folder = Folder::new();
        let packed = |kind: u8| (0..bytes).map(|at: u32| (at * 7 % 251) as u8 ^ kind).collect::<Vec<u8>>();
        let plain = vec![b'x'; bytes as usize + 10];
        for name in ["both.css", "only.css"] {
            if name == "both.css" {
                folder.write(name, &plain);
            }
            folder.write(&format!("{name}.gz"), packed(1));
            folder.write(&format!("{name}.br"), packed(2));
        }
        let server = site(&folder, &["--small-bytes", small]);
        for name in ["/both.css", "/only.css"] {
            let context = format!("{name} with {bytes} bytes, small-bytes {small}");
            let get = |fields: &str| server.get(name, fields);
            until("the scan has ended", || {
                get("Accept-Encoding: br\r\n").field("content-encoding") == Some("br")
            });
            for (coding, kind) in [("gzip", 1), ("br", 2)] {
                let accept = format!("Accept-Encoding: {coding}\r\n");
                let whole = get(&accept);
                assert_eq!((whole.status, whole.field("content-encoding")), (200, Some(coding)), "{context}");
                assert_eq!(whole.body, packed(kind), "{context}");
                assert_eq!(whole.field("content-type"), Some("text/css; charset=utf-8"), "{context}");
                assert_eq!(whole.field("vary"), Some("Accept-Encoding"), "{context}");
                let head = server
                    .one(&format!("HEAD {name} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{accept}\r\n"));
                assert_eq!(head.field("content-length"), Some(bytes.to_string().as_str()), "{context}");
                let part = get(&format!("{accept}Range: bytes=10-19\r\n"));
                assert_eq!((part.status, &part.body[..]), (206, &packed(kind)[10..20]), "{context}");
                let etag = whole.field("etag").unwrap();
                let same = get(&format!("{accept}If-None-Match: {etag}\r\n"));
                assert_eq!((same.status, same.field("vary")), (304, Some("Accept-Encoding")), "{context}");
                let modified = whole.field("last-modified").unwrap();
                assert_eq!(
                    get(&format!("{accept}If-Modified-Since: {modified}\r\n")).status,
                    304,
                    "{context}"
                );
                let rest = get(&format!("{accept}Range: bytes=10-\r\nIf-Range: {etag}\r\n"));
                assert_eq!((rest.status, &rest.body[..]), (206, &packed(kind)[10..]), "{context}");
                let other =
                    get(&format!("Accept-Encoding: identity\r\nRange: bytes=0-1\r\nIf-Range: {etag}\r\n"));
                assert!(matches!(other.status, 200 | 406), "the validator of another coding, {context}");
            }
            let unpacked = get("Accept-Encoding: identity\r\n");
            let unasked = get("");
            if name == "/both.css" {
                assert_eq!(
                    (unpacked.status, &unpacked.body, &unasked.body),
                    (200, &plain, &plain),
                    "{context}"
                );
            } else {
                assert_eq!(
                    (unpacked.status, unpacked.field("vary")),
                    (406, Some("Accept-Encoding")),
                    "{context}"
                );
                assert_eq!(get("Accept-Encoding: zstd, *;q=0\r\n").status, 406, "{context}");
                // Any coding is acceptable.
                assert_eq!(
                    (unasked.status, unasked.field("content-encoding")),
                    (200, Some("gzip")),
                    "{context}"
                );
            }
            // Another version, and none any more.
            let accept = "Accept-Encoding: gzip\r\n";
            let former = get(accept).field("etag").unwrap().to_owned();
            let newer = format!("newer{}", "y".repeat(bytes as usize - 10));
            folder.write("new", &newer);
            std::fs::rename(folder.0.join("new"), folder.0.join(format!("{}.gz", &name[1..]))).unwrap();
            until("the new version", || get(accept).body == newer.as_bytes());
            assert_ne!(get(accept).field("etag"), Some(former.as_str()), "{context}");
            std::fs::remove_file(folder.0.join(format!("{}.gz", &name[1..]))).unwrap();
            until("the gzip form is gone", || get(accept).field("content-encoding").is_none());
            assert_eq!(get(accept).status, if name == "/both.css" { 200 } else { 406 }, "{context}");
            std::fs::remove_file(folder.0.join(format!("{}.br", &name[1..]))).unwrap();
            let last = if name == "/both.css" { 200 } else { 404 };
            until("no form is left", || get("Accept-Encoding: br\r\n").status == last);
        }
        // The plain file comes.
        folder.write("late.css.gz", packed(1));
        until("the compressed one", || server.get("/late.css", "").body == packed(1));
        folder.write("late.css", &plain);
        until("the plain one", || server.get("/late.css", "").body == plain);
    }
}

#[test]
fn compressed_files_over_http_2_and_in_folders() {
    let folder = Folder::new();
    folder.write("index.html.gz", "packed index");
    folder.write("sub/a.css.gz", "packed css");
    folder.write("dir.gz", "a file");
    folder.write("dir/a", "a");
    folder.write("hidden.php.gz", "packed source");
    folder.write("source.php", "source");
    folder.write("private/a.txt", "private");
    let server = site(&folder, &["--listing", "--hide", "*.php private"]);
    until("the scan has ended", || server.get("/", "Accept-Encoding: gzip\r\n").text() == "packed index");
    assert_eq!(server.get("/", "Accept-Encoding: br\r\n").status, 406);
    assert_eq!(server.get("/dir", "Accept-Encoding: gzip\r\n").status, 301, "a folder is no compressed file");
    for path in [
        "/hidden.php",
        "/hidden.php.gz",
        "/source.php",
        "/SOURCE.php",
        "/private/a.txt",
        "/private",
        "/private/",
    ] {
        assert_eq!(server.get(path, "Accept-Encoding: gzip\r\n").status, 404, "{path}");
    }
    let listing = server.get("/sub/", "").text();
    assert!(listing.contains("a.css.gz") && listing.matches("a.css").count() == 2, "{listing}");
    let url = format!("http://{}/sub/a.css", server.address);
    let arguments = ["--silent", "--http2-prior-knowledge", "--include", "--header"];
    let curl = |accept: &str| {
        let output =
            std::process::Command::new("curl").args(arguments).args([accept, &url]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let got = curl("Accept-Encoding: gzip");
    assert!(got.starts_with("HTTP/2 200") && got.contains("content-encoding: gzip"), "{got}");
    assert!(curl("Accept-Encoding: identity").starts_with("HTTP/2 406"));
}

#[test]
fn conditions_and_ranges() {
    let folder = filled();
    let server = site(&folder, &["--compress", "off"]);
    for path in ["/a.css", "/large.bin"] {
        let whole = server.get(path, "");
        let (etag, modified) = (whole.field("etag").unwrap(), whole.field("last-modified").unwrap());
        let get = |fields: String| server.get(path, &fields);
        for fields in [
            format!("If-None-Match: {etag}\r\n"),
            format!("If-Modified-Since: {modified}\r\n"),
            "If-None-Match: *\r\n".to_owned(),
        ] {
            let answer = get(fields);
            assert_eq!((answer.status, answer.body.len(), answer.field("etag")), (304, 0, Some(etag)));
        }
        assert_eq!(get("If-Match: \"other\"\r\n".to_owned()).status, 412);
        let part = get("Range: bytes=10-19\r\n".to_owned());
        assert_eq!((part.status, &part.body[..]), (206, &whole.body[10..20]));
        let length = whole.body.len();
        assert_eq!(part.field("content-range").unwrap(), format!("bytes 10-19/{length}"));
        assert_eq!(get("Range: bytes=-5\r\n".to_owned()).body, whole.body[length - 5..]);
        assert_eq!(get(format!("Range: bytes=1-\r\nIf-Range: {etag}\r\n")).status, 206);
        assert_eq!(get("Range: bytes=1-\r\nIf-Range: \"other\"\r\n".to_owned()).status, 200);
        let beyond = get(format!("Range: bytes={length}-\r\n"));
        assert_eq!(
            (beyond.status, beyond.field("content-range")),
            (416, Some(format!("bytes */{length}").as_str()))
        );
        let parts = get("Range: bytes=0-1,100-101\r\n".to_owned());
        assert_eq!(parts.status, 206);
        let boundary = parts
            .field("content-type")
            .unwrap()
            .strip_prefix("multipart/byteranges; boundary=")
            .unwrap()
            .to_owned();
        assert_eq!(parts.body.windows(boundary.len()).filter(|at| *at == boundary.as_bytes()).count(), 3);
        for fields in [
            format!("Range: bytes={}\r\n", "0-,".repeat(2000)),
            "Range: bytes=a-b\r\n".to_owned(),
            "Range: lines=1-2\r\n".to_owned(),
        ] {
            assert_eq!(get(fields).body.len(), length, "ignored");
        }
        let overlapping = get("Range: bytes=0-99,50-149,100-199\r\n".to_owned());
        assert_eq!(overlapping.body, whole.body[..200], "merged into one");
        let head = server.one(&format!(
            "HEAD {path} HTTP/1.1\r\nHost: t\r\nRange: bytes=0-1\r\nConnection: close\r\n\r\n"
        ));
        assert_eq!((head.status, head.field("content-length")), (200, Some(length.to_string().as_str())));
    }
}

#[test]
fn applications_listings_and_custom_error_pages() {
    let folder = filled();
    folder.write("404.html", "nothing here");
    let spa = site(&folder, &["--spa"]);
    assert_eq!(
        (spa.get("/some/route", "").status, spa.get("/some/route", "").text()),
        (200, "home".to_owned())
    );
    assert_eq!(spa.get("/missing.js", "").status, 404);
    let listing = site(&folder, &["--listing"]);
    let page = listing.get("/docs/", "");
    assert_eq!((page.status, page.field("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.text().contains("href=\"read%20me.txt\"") && page.text().contains("href=\"../\""));
    assert!(!listing.get("/.git/", "").text().contains("config"));
    let missing = listing.get("/nothing", "");
    assert_eq!((missing.status, missing.text()), (404, "nothing here".to_owned()));
}

fn is_whole(answer: &Answer) -> bool {
    answer.status == 200 && !answer.body.is_empty() && answer.body.iter().all(|byte| *byte == answer.body[0])
}

/// A version repeats one letter, which determines its length, so a mixture is detected.
fn version(number: u32, bytes: usize) -> Vec<u8> {
    vec![b'a' + (number % 26) as u8; bytes + number as usize % 26]
}

#[test]
fn files_replaced_under_load_are_always_one_whole_version() {
    for bytes in [5_000, 600_000] {
        let folder = Folder::new();
        folder.write("file", version(0, bytes));
        let server = site(&folder, &[]);
        let stop = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut seen = std::collections::HashMap::new();
                        while !stop.load(Ordering::Relaxed) {
                            let answer = server.get("/file", "");
                            assert!(is_whole(&answer), "{}", answer.head);
                            let letter = answer.body[0];
                            assert_eq!(
                                answer.body.len(),
                                bytes + usize::from(letter - b'a'),
                                "one version's length"
                            );
                            let etag = answer.field("etag").unwrap().to_owned();
                            assert_eq!(*seen.entry(etag).or_insert(letter), letter, "one tag, one version");
                        }
                        seen.len()
                    })
                })
                .collect();
            for number in 1..30 {
                if number % 3 == 0 && bytes < 100_000 {
                    // Written in place in two steps: no client may see the incomplete file.
                    let mut file = std::fs::File::create(folder.0.join("file")).unwrap();
                    let content = version(number, bytes);
                    file.write_all(&content[..1000]).unwrap();
                    std::thread::sleep(Duration::from_millis(60));
                    file.write_all(&content[1000..]).unwrap();
                } else {
                    folder.write("file", version(number, bytes));
                }
                std::thread::sleep(Duration::from_millis(70));
            }
            stop.store(true, Ordering::Relaxed);
            readers.into_iter().map(|reader| reader.join().unwrap()).max().unwrap()
        });
        assert!(seen > 3, "{seen} versions were seen");
        until("the last version is served", || server.get("/file", "").body == version(29, bytes));
    }
}

#[test]
fn created_and_removed_files_are_noticed() {
    for watch in ["inotify", "sweep=200ms"] {
        let folder = filled();
        let server = site(&folder, &["--changes", watch, "--listing"]);
        folder.write("new/deep/file.txt", "one");
        until("a new folder", || server.get("/new/deep/file.txt", "").text() == "one");
        folder.write("new/deep/file.txt", "two");
        until("a changed file", || server.get("/new/deep/file.txt", "").text() == "two");
        std::fs::rename(folder.0.join("new"), folder.0.join("moved")).unwrap();
        until("a moved folder", || server.get("/moved/deep/file.txt", "").text() == "two");
        until("…which is gone from its place", || server.get("/new/deep/file.txt", "").status == 404);
        assert!(server.get("/moved/", "").text().contains("deep/"));
        std::fs::remove_dir_all(folder.0.join("moved")).unwrap();
        until("a removed folder", || server.get("/moved/deep/file.txt", "").status == 404);
        assert_eq!(server.get("/", "").text(), "home");
    }
}

#[test]
fn changed_link_targets_are_noticed() {
    // Like volumes in Kubernetes: files are links into a folder that is a link, and this link is switched.
    let folder = Folder::new();
    folder.write("..1/page.html", "one");
    folder.write("..2/page.html", "two");
    folder.write("real/inner.html", "one");
    std::os::unix::fs::symlink("..1", folder.0.join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/page.html", folder.0.join("page.html")).unwrap();
    std::os::unix::fs::symlink("real", folder.0.join("alias")).unwrap();
    let server = site(&folder, &[]);
    assert_eq!(server.get("/page.html", "").text(), "one");
    assert_eq!(server.get("/alias/inner.html", "").text(), "one");
    std::os::unix::fs::symlink("..2", folder.0.join("..next")).unwrap();
    std::fs::rename(folder.0.join("..next"), folder.0.join("..data")).unwrap();
    until("the other volume is served", || server.get("/page.html", "").text() == "two");
    folder.write("real/inner.html", "two");
    until("a change behind a link", || server.get("/alias/inner.html", "").text() == "two");
}

#[test]
fn a_root_that_is_a_link_can_be_turned() {
    let folder = Folder::new();
    folder.write("one/index.html", "one");
    folder.write("two/index.html", "two");
    let current = folder.0.join("current");
    std::os::unix::fs::symlink("one", &current).unwrap();
    let server = Server::site(&current, &[]);
    assert_eq!(server.get("/", "").text(), "one");
    let turn = |to: &str| {
        std::os::unix::fs::symlink(to, folder.0.join("next")).unwrap();
        std::fs::rename(folder.0.join("next"), &current).unwrap();
    };
    turn("two");
    until("the other release is served", || server.get("/", "").text() == "two");
    folder.write("two/new.html", "new");
    until("…and watched", || server.get("/new.html", "").text() == "new");
    turn("nowhere");
    assert_eq!(server.get("/", "").text(), "two", "what was there is served until something else is");
    turn("one");
    until("it came back", || server.get("/", "").text() == "one");
}

#[test]
fn changes_during_an_absence_of_the_root_are_noticed() {
    let folder = Folder::new();
    folder.write("root/file", "old");
    let root = folder.0.join("root");
    let server = Server::site(&root, &[]);
    std::fs::rename(&root, folder.0.join("away")).unwrap();
    folder.write("away/file", "new");
    // The change is reported and gathered while the root's path does not exist.
    std::thread::sleep(Duration::from_millis(300));
    std::fs::rename(folder.0.join("away"), &root).unwrap();
    until("the change is served", || server.get("/file", "").text() == "new");
}

#[test]
fn links_that_go_up_and_stay_inside_hold_while_others_rename() {
    let folder = Folder::new();
    folder.write("real/file", "real");
    std::fs::create_dir_all(folder.0.join("a/b")).unwrap();
    std::os::unix::fs::symlink("../../real/file", folder.0.join("a/b/link")).unwrap();
    let other = Folder::new();
    other.write("one", "");
    let server = site(&folder, &["--changes", "sweep=50ms"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (one, two) = (other.0.join("one"), other.0.join("two"));
            while !stop.load(Ordering::Relaxed) {
                std::fs::rename(&one, &two).unwrap();
                std::fs::rename(&two, &one).unwrap();
            }
        });
        let began = std::time::Instant::now();
        let mut missing = 0;
        while began.elapsed() < Duration::from_secs(2) {
            missing += usize::from(server.get("/a/b/link", "").status != 200);
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(missing, 0, "times it was not there");
    });
}

#[test]
fn memory_has_a_ceiling() {
    let folder = Folder::new();
    for number in 0..40 {
        folder.write(&format!("{number}.bin"), vec![number as u8; 100_000]);
    }
    let server = site(&folder, &["--memory-bytes", "1MiB"]);
    for _ in 0..3 {
        for number in 0..40u8 {
            let answer = server.get(&format!("/{number}.bin"), "");
            assert_eq!(answer.body, vec![number; 100_000]);
        }
        std::thread::sleep(Duration::from_millis(1100));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let anonymous = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kib: u64 = anonymous.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 6 << 10, "{anonymous}");
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_cuts_the_connection() {
    let folder = Folder::new();
    folder.write("file", vec![b'x'; 64 << 20]);
    let server = site(&folder, &[]);
    let mut stream = server.connect();
    stream.write_all(b"GET /file HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    std::fs::File::options().write(true).open(folder.0.join("file")).unwrap().set_len(1000).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.len() < 64 << 20, "never a clean end");
    drop(server.get("/", ""));
}

#[test]
fn a_large_file_that_is_written_over_is_never_half_of_two_versions() {
    const BYTES: usize = 64 << 20;
    let folder = Folder::new();
    folder.write("file", vec![b'x'; BYTES]);
    let server = site(&folder, &[]);
    let mut stream = server.connect();
    stream.write_all(b"GET /file HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    let mut writer = std::fs::File::create(folder.0.join("file")).unwrap();
    writer.write_all(&vec![b'y'; BYTES / 2]).unwrap();
    let half_written = server.get("/file", "");
    assert_eq!((half_written.status, half_written.field("retry-after")), (503, Some("1")));
    writer.write_all(&vec![b'y'; BYTES / 2]).unwrap();
    drop(writer);
    let mut taken = Vec::new();
    let _ = stream.read_to_end(&mut taken);
    assert!(taken.len() < BYTES - 1000, "never a clean end");
    until("the new version is served", || server.get("/file", "").body == vec![b'y'; BYTES]);
}

#[test]
fn links_cannot_make_millions_of_names() {
    let folder = Folder::new();
    folder.write("index.html", "home");
    // Each level doubles the number of paths.
    for level in 0..24 {
        let inner = folder.0.join(level.to_string());
        std::fs::create_dir(&inner).unwrap();
        for name in ["a", "b"] {
            std::os::unix::fs::symlink(format!("../{}", level + 1), inner.join(name)).unwrap();
        }
    }
    folder.write("24/file", "file");
    let server = site(&folder, &[]);
    assert_eq!(server.get("/24/file", "").text(), "file");
}

#[test]
fn names_of_every_kind() {
    let folder = Folder::new();
    for name in ["ä ö.txt", "100%.txt", "a;b.txt", "a+b.txt", "q?.txt", "\u{1F600}.txt"] {
        folder.write(name, name);
    }
    use std::os::unix::ffi::OsStrExt;
    std::fs::write(folder.0.join(Path::new(std::ffi::OsStr::from_bytes(b"\xff.txt"))), "bytes").unwrap();
    let server = site(&folder, &["--listing"]);
    let listing = server.get("/", "").text();
    let mut count = 0;
    for href in listing.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        let answer = server.get(&format!("/{href}"), "");
        assert_eq!(answer.status, 200, "{href}");
        count += 1;
    }
    assert_eq!(count, 7);
    let mut stream = server.connect();
    stream.write_all(b"GET /%FF.txt HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(answers(&bytes, false)[0].text(), "bytes");
}

#[test]
fn a_writer_that_pauses_is_waited_for() {
    for watch in ["inotify", "sweep=100ms"] {
        let folder = Folder::new();
        folder.write("file", "the former version");
        folder.write("large", vec![b'x'; 600_000]);
        let server = site(&folder, &["--changes", watch]);
        assert_eq!(server.get("/file", "").text(), "the former version");
        let path = |name: &str| folder.0.join(name);
        let mut small = std::fs::File::create(path("file")).unwrap();
        let mut large = std::fs::File::create(path("large")).unwrap();
        small.write_all(b"half").unwrap();
        large.write_all(&vec![b'y'; 300_000]).unwrap();
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(2500) {
            // Another attribute of the file changes, which causes scans.
            let mode = if began.elapsed().as_millis() % 200 < 100 { 0o644 } else { 0o600 };
            for name in ["file", "large"] {
                std::fs::set_permissions(path(name), std::os::unix::fs::PermissionsExt::from_mode(mode))
                    .unwrap();
            }
            let answer = server.get("/file", "");
            assert_eq!((answer.status, answer.text()), (200, "the former version".to_owned()), "{watch}");
            assert_eq!(server.get("/large", "").status, 503, "{watch}");
            std::thread::sleep(Duration::from_millis(50));
        }
        small.write_all(b" and the other half of it").unwrap();
        large.write_all(&vec![b'y'; 300_001]).unwrap();
        assert_eq!(server.get("/large", "").status, 503, "larger than before, and still open: {watch}");
        drop((small, large));
        until("the new version", || server.get("/file", "").text() == "half and the other half of it");
        until("the new large version", || server.get("/large", "").body == vec![b'y'; 600_001]);
    }
}

#[test]
fn a_file_that_grows_while_it_is_sent_is_sent_whole() {
    const BYTES: usize = 64 << 20;
    let folder = Folder::new();
    let line = |number: usize| format!("{number:063}\n");
    let log: String = (0..BYTES / 64).map(line).collect();
    folder.write("log", &log);
    let server = site(&folder, &[]);
    let send = |change: &dyn Fn()| {
        let mut stream = server.connect();
        stream.write_all(b"GET /log HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
        let mut bytes = vec![0; 1000];
        stream.read_exact(&mut bytes).unwrap();
        change();
        let _ = stream.read_to_end(&mut bytes);
        bytes
    };
    let append = || {
        let mut file = std::fs::File::options().append(true).open(folder.0.join("log")).unwrap();
        file.write_all(b"one more line\n").unwrap();
    };
    let grown = send(&append);
    let found = answers(&grown, false);
    assert_eq!(found[0].status, 200);
    assert!(found[0].body == log.as_bytes(), "all that was promised, and nothing else");
    let rewritten = send(&|| std::fs::write(folder.0.join("log"), vec![b'y'; BYTES + 1000]).unwrap());
    let head_bytes = rewritten.windows(4).position(|at| at == b"\r\n\r\n").unwrap() + 4;
    let promised = format!("Content-Length: {}\r\n", BYTES + "one more line\n".len());
    assert!(String::from_utf8_lossy(&rewritten[..head_bytes]).contains(&promised));
    let sent = rewritten.len() - head_bytes;
    assert!(sent < BYTES + "one more line\n".len(), "longer, but another version: never a clean end");
}

#[test]
fn unreadable_files_are_not_served() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "skipped: only root can become another user");
        return;
    }
    let folder = filled();
    let large = vec![b's'; 600_000];
    folder.write("private/file", "secret");
    for (name, content) in [("small.txt", &b"secret"[..]), ("large.txt", &large)] {
        folder.write(name, content);
    }
    let mode = |name: &str, mode: u32| {
        std::fs::set_permissions(folder.0.join(name), std::os::unix::fs::PermissionsExt::from_mode(mode))
            .unwrap();
    };
    for (name, bits) in [("small.txt", 0o600), ("large.txt", 0o600), ("private", 0o700)] {
        mode(name, bits);
    }
    let server = site(&folder, &["--user", "nobody", "--listing"]);
    assert_eq!(server.get("/a.css", "").status, 200);
    for path in ["/small.txt", "/large.txt", "/private/file", "/private/"] {
        let answer = server.get(path, "");
        assert!(matches!(answer.status, 403 | 404), "{path}: {}", answer.head);
    }
    assert!(!server.get("/", "").text().contains("small.txt"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let ids: Vec<String> = line("Uid:").split_whitespace().map(str::to_owned).collect();
    assert!(ids.iter().all(|id| *id == ids[0] && id != "0"), "{ids:?}");
    assert!(!line("Groups:").split_whitespace().any(|group| group == "0"), "root's groups");
    assert_eq!(line("CapEff:").trim_start_matches('0'), "", "root's capabilities");
    mode("small.txt", 0o644);
    until("it is readable now", || server.get("/small.txt", "").text() == "secret");
    mode("small.txt", 0o600);
    until("and now it is not", || server.get("/small.txt", "").status == 404);
}

#[test]
fn at_the_limit_of_watches_folders_are_scanned_and_a_warning_is_logged_once() {
    // The limit of a separate user namespace; the host's limit stays unchanged.
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c"]);
    let script = "echo 3 > /proc/sys/user/max_inotify_watches || exit 9; exec \"$@\"";
    if !command.args([script, "sh", "true"]).status().is_ok_and(|status| status.success()) {
        let _ = writeln!(std::io::stderr(), "skipped: there are no user namespaces here");
        return;
    }
    let folder = Folder::new();
    folder.write("index.html", "home");
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script, "sh"]);
    command.arg(flatout_tests::program("flatout")).arg("serve").arg(&folder.0);
    command.args(["--listen", "127.0.0.1:0", "--workers", "1"]);
    let server = Server::start(command);
    assert_eq!(server.get("/", "").text(), "home");
    for number in 0..10 {
        folder.write(&format!("{number}/file"), "one");
    }
    for number in 0..10 {
        until("a new folder", || server.get(&format!("/{number}/file"), "").text() == "one");
        folder.write(&format!("{number}/file"), "two");
    }
    for number in 0..10 {
        until("a change in it", || server.get(&format!("/{number}/file"), "").text() == "two");
    }
    let said = server.said();
    let warnings = said.iter().filter(|line| line.contains("max_user_watches"));
    assert_eq!(warnings.count(), 1, "{said:?}");
}

#[test]
fn files_of_new_folders_are_not_missed() {
    let folder = Folder::new();
    folder.write("index.html", "home");
    let server = site(&folder, &[]);
    for number in 0..60 {
        let inner = folder.0.join(number.to_string());
        std::fs::create_dir(&inner).unwrap();
        // About the time when changes have been gathered and the folder is scanned.
        std::thread::sleep(Duration::from_millis(number * 2));
        std::fs::write(inner.join("file"), "here").unwrap();
    }
    for number in 0..60 {
        until("the first file", || server.get(&format!("/{number}/file"), "").text() == "here");
    }
}

#[test]
fn an_error_page_varies_once() {
    let folder = filled();
    let alone = site(&folder, &[]);
    let place = folder.0.join("site.kdl");
    std::fs::write(&place, format!("listen \"127.0.0.1:0\"\nworkers 1\nfiles {:?}\n", folder.0)).unwrap();
    let mut command = std::process::Command::new(flatout_tests::program("flatout"));
    command.arg("serve").arg("-c").arg(&place);
    let in_site = Server::start(command);
    for server in [alone, in_site] {
        for accept in ["", "Accept: text/html\r\n", "Accept: */*\r\nX-Request-Id: a\r\n"] {
            let missing = server.get("/nothing", accept);
            let count = missing.head.to_ascii_lowercase().matches("\r\nvary:").count();
            assert_eq!((missing.status, count), (404, 1), "{accept:?}: {}", missing.head);
        }
    }
}
