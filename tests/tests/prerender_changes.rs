//! Rendered pages and the rest of the server: reloads and upgrades during a render, HTTP/2, preflights, verified crawlers, the preview
//! and the live page.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use flatout_tests::authority::Authority;
use flatout_tests::browser::Browser;
use flatout_tests::{Folder, Server, program, until};
use rustix::process::geteuid;

use crate::prerender::{Application, CRAWLER, PERSON, SITE, has_chromium, is_drawn};

/// Draws what it gets of two requests, the second of which begins when the first one has ended.
const TWO_STEPS: &str = "(async () => { const one = await (await fetch('/gate')).text(); \
    const two = await (await fetch('/part.txt')).text(); \
    document.getElementById('root').textContent = 'drawn ' + location.href + ' ' + one + two; })();";

/// A server whose responses wait for the test.
fn gate() -> (u16, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 1024];
            if stream.read(&mut head).is_ok_and(|count| count > 0) && sender.send(stream).is_err() {
                return;
            }
        }
    });
    (port, requests)
}

fn open(mut waiting: TcpStream) {
    waiting.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nopen").unwrap();
}

#[test]
fn a_render_outlives_reloads_and_upgrades() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    application.folder.write("app/app.js", TWO_STEPS);
    application.folder.write("app/part.txt", " whole");
    let (gate, requests) = gate();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let site = SITE.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    let site = format!("{site}route \"/gate\" {{ proxy \"http://127.0.0.1:{gate}\"; }}\n");
    let server = application.start(&site);
    let admin = application.folder.0.join("admin");
    let successor = std::thread::scope(|scope| {
        let reloaded = scope.spawn(|| server.get("/reloaded", CRAWLER));
        let waiting = requests.recv().unwrap();
        application.write(&format!("prerender-pages 1\n{site}"));
        let (is_done, text) = application.flatout(&["reload"]);
        assert!(is_done, "{text}");
        open(waiting);
        let found = reloaded.join().unwrap();
        assert!(is_drawn(&found) && found.text().contains("open whole"), "{found:?}");
        let upgraded = scope.spawn(|| server.get("/upgraded", CRAWLER));
        let waiting = requests.recv().unwrap();
        let successor = flatout_tests::upgrading::orphan(&flatout_tests::upgrading::upgrade(&admin).unwrap());
        open(waiting);
        let found = upgraded.join().unwrap();
        assert!(is_drawn(&found) && found.text().contains("open whole"), "{found:?}");
        successor
    });
    assert!(successor.is_there());
    std::thread::scope(|scope| {
        let next = scope.spawn(|| server.get("/next", CRAWLER));
        open(requests.recv().unwrap());
        assert!(is_drawn(&next.join().unwrap()), "the new process renders");
    });
}

#[test]
fn crawlers_may_use_http2() {
    if !has_chromium() {
        return;
    }
    let (application, authority) = (Application::new(), Authority::new());
    authority.sign("a", "a.test");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (certificate, key) = (authority.path("a.pem"), authority.path("a.key"));
    let site = format!("listen \"127.0.0.1:{port}\"\ntls {certificate:?} {key:?}\n");
    let _server = application.start(&SITE.replace("listen \"127.0.0.1:0\"\n", &site));
    let get = |agent: &str| {
        let more =
            ["--http2", "--user-agent", agent, "--write-out", "|%{http_version}|%header{x-cache-status}|"];
        authority.curl("a.test", port, "/x", &more).unwrap_or_default()
    };
    let mut found = String::new();
    until("the server listens", || {
        found = get("Googlebot/2.1");
        !found.is_empty()
    });
    assert!(
        found.contains(&format!("drawn https://a.test:{port}/x")) && found.ends_with("|2|MISS|"),
        "{found}"
    );
    let again = get("Slackbot 1.0");
    assert!(again.contains("drawn https://") && again.ends_with("|2|HIT|"), "{again}");
    assert!(get("Mozilla/5.0 (X11; Linux x86_64)").contains("<script"));
}

#[test]
fn preflights_of_crawlers_are_not_rendered() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    let server = application.start(&format!("{SITE}cors \"https://b.test\"\n"));
    let lines = format!("{CRAWLER}Origin: https://b.test\r\n");
    let preflight = server.one(&format!(
        "OPTIONS /x HTTP/1.1\r\nHost: t\r\n{lines}Access-Control-Request-Method: GET\r\nConnection: close\r\n\r\n"
    ));
    assert_eq!((preflight.status, preflight.field("X-Prerender")), (204, None));
    assert_eq!(preflight.field("Access-Control-Allow-Origin"), Some("https://b.test"));
    let page = server.get("/x", &lines);
    assert!(is_drawn(&page), "{}", page.text());
    assert_eq!(page.field("Access-Control-Allow-Origin"), Some("https://b.test"));
    let person = server.get("/x", &format!("{PERSON}Origin: https://b.test\r\n"));
    assert_eq!(person.field("Access-Control-Allow-Origin"), Some("https://b.test"));
}

/// A server whose `/etc/hosts` is this file; `None` without root: a browser cannot have a user of its own where there is only one.
fn with_hosts(application: &Application, site: &str, hosts: &str) -> Option<Server> {
    application.folder.write("hosts", hosts);
    let mount = "mount --bind \"$0\" /etc/hosts";
    let hosts = application.folder.0.join("hosts");
    let mut tried = Command::new("unshare");
    tried.args(["--mount", "sh", "-c", mount]).arg(&hosts);
    if !geteuid().is_root() || !tried.output().is_ok_and(|output| output.status.success()) {
        return None;
    }
    let command = application.command(site);
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "sh", "-c", &format!("{mount} && exec \"$@\"")]).arg(&hosts);
    inside.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    Some(Server::start(inside))
}

#[test]
fn only_verified_crawlers_get_rendered_pages() {
    if !has_chromium() {
        return;
    }
    let site = format!(
        "{}route \"/who\" {{ respond 200 \"$crawler_verification\"; }}\n",
        SITE.replace("prerender\n", "prerender\nprerender-verify\n")
    );
    let who = |server: &Server, expected: &str| {
        until(expected, || server.get("/who", CRAWLER).text() == expected);
        assert_eq!(server.get("/who", "User-Agent: Slackbot 1.0\r\n").text(), "unverifiable");
        assert_eq!(server.get("/who", PERSON).text(), "");
    };
    let application = Application::new();
    let server = application.start(&site);
    assert!(server.get("/", CRAWLER).text().contains("<script"), "not before it was checked");
    who(&server, "forged");
    assert!(server.get("/", CRAWLER).text().contains("<script"));
    assert!(is_drawn(&server.get("/", "User-Agent: Slackbot 1.0\r\n")), "its operator publishes no names");
    assert!(server.get("/", CRAWLER).text().contains("<script"), "also if the page is in the cache");
    let metrics = application.admin_page("/metrics");
    let expected = "flatout_prerender_crawler_checks_total{crawler=\"Googlebot\",result=\"forged\"} 1";
    assert!(metrics.contains(expected), "{metrics}");
    drop(server);
    let hosts = "127.0.0.1 crawl-127-0-0-1.googlebot.com\n";
    let Some(server) =
        with_hosts(&application, &site.replace("prerender-verify", "prerender-verify all"), hosts)
    else {
        return;
    };
    who(&server, "verified");
    assert!(is_drawn(&server.get("/", CRAWLER)));
    assert!(
        server.get("/", "User-Agent: Slackbot 1.0\r\n").text().contains("<script"),
        "none but verified ones"
    );
}

#[test]
fn crawlers_from_published_addresses_are_verified() {
    let application = Application::new();
    let published = r#"{"prefixes": [{"ipv6Prefix": "2001:db8::/32"}, {"ipv4Prefix": "127.0.0.0/8"}]}"#;
    application.folder.write("google.json", published);
    application.folder.write("slack.txt", "# none of ours\n192.0.2.0/24\n");
    let site = "listen \"127.0.0.1:0\"\nrespond 200 \"$crawler_verification\"\n\
        prerender-addresses Googlebot \"google.json\"\nprerender-addresses slackbot \"slack.txt\"\n";
    let server = application.start(site);
    let slack = || server.get("/", "User-Agent: Slackbot 1.0\r\n").text();
    assert_eq!(server.get("/", CRAWLER).text(), "verified");
    assert_eq!(slack(), "forged");
    application.folder.write("slack.txt", "192.0.2.0/24\n127.0.0.1\n");
    until("the changed file", || slack() == "verified");
    application.folder.write("slack.txt", "nonsense\n");
    application.folder.write("google.json", "192.0.2.0/24\n");
    until("the other changed file", || server.get("/", CRAWLER).text() != "verified");
    assert_eq!(slack(), "verified", "a file with a mistake changes nothing");
}

#[test]
fn a_preview_lists_missing_tags_errors_and_broken_links() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    let broken = "<!DOCTYPE html><html><head><script src=\"/app.js\" defer></script></head><body><div id=\"root\"></div></body></html>";
    application.folder.write("app/index.html", broken);
    application.folder.write(
        "app/app.js",
        "document.getElementById('root').innerHTML = '<h1>It is drawn</h1><a href=\"/gone\">x</a><img src=\"/none.png\">'; \
         fetch('https://ads.test/x').catch(() => {}); throw new Error('the cart is empty');",
    );
    let server = application.start(&format!("{SITE}route \"/gone\" {{ respond 410; }}\n"));
    let file = application.folder.0.join("out.html");
    let (is_done, text) =
        application.flatout(&["prerender", "preview", "/articles/1", "--output", file.to_str().unwrap()]);
    assert!(is_done && text.contains("wrote "), "{text}");
    let page = std::fs::read_to_string(&file).unwrap();
    for expected in [
        "http://localhost/articles/1",
        "no title",
        "no description",
        "no og:image",
        "no canonical",
        "the cart is empty",
        "/gone (410)",
        "https://ads.test/x (origin)",
        "data:image/jpeg;base64,/9j/",
        "&lt;h1&gt;It is drawn&lt;/h1&gt;",
        "a crawler reads",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    assert!(!page.contains("<h1>It is drawn"), "the page's own HTML is text");
    let (is_done, text) = application.flatout(&["prerender", "preview", "http://t/x", "--output", "-"]);
    assert!(is_done && text.contains("http://t/x"), "{text}");
    assert!(
        server.get("/articles/1", CRAWLER).field("X-Cache-Status") == Some("MISS"),
        "the cache is not changed"
    );
    for (arguments, expected) in [
        (&["preview"][..], "need one"),
        (&["preview", "ftp://t/"], "need the URL"),
        (&["preview", "/gone"], "its status is 410"),
    ] {
        let (is_done, text) = application.flatout(&[&["prerender"], arguments].concat());
        assert!(!is_done && text.contains(expected), "{arguments:?}: {text}");
    }
    for (width, is_dark) in [(1280, false), (1280, true), (400, true)] {
        let Some(mut browser) = Browser::start(width, is_dark) else { return };
        browser.open(&file);
        assert_eq!(browser.poor_contrasts(), serde_json::json!([]), "{width} {is_dark}");
        assert_eq!(browser.complaints(), &[] as &[String]);
        let overflow = browser.evaluate("document.documentElement.scrollWidth > innerWidth");
        assert_eq!(overflow, serde_json::json!(false), "{width}");
    }
}

#[test]
fn the_live_page_shows_crawlers_by_name() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    let server = application.start(SITE);
    for _ in 0..3 {
        assert!(is_drawn(&server.get("/", CRAWLER)));
    }
    assert!(is_drawn(&server.get("/", "User-Agent: Slackbot 1.0\r\n")));
    server.get("/", PERSON);
    until("both are shown", || {
        let status: serde_json::Value = serde_json::from_str(&application.admin_page("/status")).unwrap();
        let crawlers = &status["now"]["prerender"]["crawlers"];
        let shown = |at: usize| (crawlers[at]["name"].as_str(), crawlers[at]["requests"].as_u64());
        (shown(0), shown(1)) == ((Some("Googlebot"), Some(3)), (Some("Slackbot"), Some(1)))
            && crawlers.as_array().is_some_and(|crawlers| crawlers.len() == 2)
    });
    let status: serde_json::Value = serde_json::from_str(&application.admin_page("/status")).unwrap();
    let listen = &status["about"]["listen"];
    assert_eq!(listen.as_array().map(Vec::len), Some(1), "without the renderer's own socket: {listen}");
    let plain = Folder::new();
    plain.write("index.html", "x");
    let mut command = Command::new(program("flatout"));
    let admin = format!("unix:{}", plain.0.join("admin").display());
    command.arg("serve").arg(&plain.0).args(["--listen", "127.0.0.1:0", "--admin", &admin]);
    let _other = Server::start(command);
    let mut other = Command::new("curl");
    other.args(["--silent", "--unix-socket"]).arg(plain.0.join("admin")).arg("http://t/status");
    let status: serde_json::Value = serde_json::from_slice(&other.output().unwrap().stdout).unwrap();
    assert!(status["now"]["prerender"].is_null(), "{status}");
}
