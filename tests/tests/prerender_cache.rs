//! Rendered pages in the cache: stale ones, tags, refreshes, budgets, a full disk.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use flatout_tests::{Server, until};
use rustix::process::geteuid;

use crate::prerender::{ASSISTANT, Application, CRAWLER, SITE, has_chromium, is_drawn};

/// Draws this text.
fn script(text: &str) -> String {
    format!("document.getElementById('root').textContent = 'drawn ' + location.href + ' {text}';")
}

#[test]
fn stale_pages_are_served_while_they_are_rendered_again_and_tags_remove_them() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    application.folder.write("app/app.js", script("first"));
    let site = SITE.replace(
        "prerender\n",
        "prerender\nprerender-time \"1s\"\nresponse-header set \"Cache-Tag\" \"articles, app\"\n",
    );
    let server = application.start(&site);
    let first = server.get("/articles/1", CRAWLER);
    assert!(is_drawn(&first) && first.text().contains("first"), "{}", first.text());
    application.folder.write("app/app.js", script("second"));
    let mut stale = None;
    until("the page is stale", || {
        let found = server.get("/articles/1", CRAWLER);
        let is_stale = matches!(found.field("X-Cache-Status"), Some("STALE" | "UPDATING"));
        stale = Some(found);
        is_stale
    });
    assert!(stale.is_some_and(|stale| stale.text().contains("first")), "nobody waits for the render");
    until("it was rendered again", || server.get("/articles/1", CRAWLER).text().contains("second"));
    assert!(is_drawn(&server.get("/other", CRAWLER)));
    let (is_done, text) = application.flatout(&["purge", "--tag", "articles"]);
    assert!(is_done && text.contains("purged 2"), "{text}");
    assert_eq!(server.get("/articles/1", CRAWLER).field("X-Cache-Status"), Some("MISS"));
}

#[test]
fn the_most_used_pages_are_rendered_again_before_they_expire() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    application.folder.write("app/app.js", script("first"));
    let refreshing = "prerender\nprerender-time \"6s\"\nprerender-refresh 1\n";
    let server = application.start(&SITE.replace("prerender\n", refreshing));
    assert!(is_drawn(&server.get("/seldom", CRAWLER)));
    for _ in 0..3 {
        assert!(is_drawn(&server.get("/often", CRAWLER)));
    }
    application.folder.write("app/app.js", script("second"));
    until("a page was refreshed", || {
        application.flatout(&["prerender", "status"]).1.contains(" 1 refreshed")
    });
    // Nobody has requested it since: the render goes on in the background.
    until("the refresh is stored", || server.get("/often", CRAWLER).text().contains("second"));
    assert!(!application.flatout(&["prerender", "status"]).1.contains(" 3 refreshed"));
}

#[test]
fn warm_ups_wait_for_their_hours() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    let hour = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3600 % 24;
    let quiet = format!("prerender-quiet \"{:02}:00-{:02}:00\"\n", (hour + 3) % 24, (hour + 5) % 24);
    let site = format!("{quiet}prerender-warm-rate \"100/s\"\n{SITE}");
    let server = application.start(&site);
    assert!(application.flatout(&["prerender", "warm", "http://t/one"]).0);
    until("it waits", || application.flatout(&["prerender", "status"]).1.contains("prerender-quiet"));
    assert!(is_drawn(&server.get("/two", CRAWLER)), "crawlers do not wait");
    let (_, text) = application.flatout(&["prerender", "status"]);
    assert!(text.contains("0 done, 1 to come") && text.contains("Googlebot 1"), "{text}");
    application.write(&site.replace(&quiet, ""));
    let (is_done, text) = application.flatout(&["reload"]);
    assert!(is_done, "{text}");
    until("it is done", || application.flatout(&["prerender", "status"]).1.contains("1 done, 0 to come"));
    assert_eq!(server.get("/one", CRAWLER).field("X-Cache-Status"), Some("HIT"));
}

#[test]
fn a_budget_limits_renders_and_no_hits() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    let server = application.start(&format!("prerender-client-budget \"2/h\"\n{SITE}"));
    for target in ["/1", "/2"] {
        assert!(is_drawn(&server.get(target, CRAWLER)), "{target}");
    }
    let third = server.get("/3", CRAWLER);
    assert_eq!((third.status, third.field("X-Prerender")), (200, Some("skipped; reason=budget")));
    assert_eq!(third.field("Cache-Control"), Some("no-store"));
    let hit = server.get("/1", ASSISTANT);
    assert_eq!((hit.field("X-Cache-Status"), is_drawn(&hit)), (Some("HIT"), true));
    assert!(application.flatout(&["prerender", "warm", "http://t/4"]).0);
    until("a warm-up has no client", || server.get("/4", CRAWLER).field("X-Cache-Status") == Some("HIT"));
    application.write(&format!("prerender-client-budget off\nprerender-site-budget \"1/h\"\n{SITE}"));
    let (is_done, text) = application.flatout(&["reload"]);
    assert!(is_done, "{text}");
    until("the site has a budget", || is_drawn(&server.get("/3", CRAWLER)));
    let next = server.get("/5", CRAWLER);
    assert_eq!(next.field("X-Prerender"), Some("skipped; reason=budget"));
}

/// Needs root, and is skipped without: a browser cannot have a user of its own where there is only one.
#[test]
fn a_full_disk_fails_no_page() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    let cache = application.folder.0.join("cache");
    std::fs::create_dir(&cache).unwrap();
    let mount = "mount -t tmpfs -o size=64k none \"$0\"";
    let mut tried = Command::new("unshare");
    tried.args(["--mount", "sh", "-c", mount]).arg(&cache);
    if !geteuid().is_root() || !tried.output().is_ok_and(|output| output.status.success()) {
        return;
    }
    let long = format!("document.body.append('long'.repeat(5000)); {}", script("it"));
    application.folder.write("app/app.js", long);
    let site = format!("cache-dir \"{{F}}/cache\"\ncache-memory \"1MiB\"\n{SITE}");
    let command = application.command(&site);
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "sh", "-c", &format!("{mount} && exec \"$@\"")]).arg(&cache);
    inside.arg(command.get_program()).args(command.get_args());
    let server = Server::start(inside);
    for target in ["/1", "/2", "/3", "/4", "/5", "/6", "/1"] {
        let found = server.get(target, CRAWLER);
        assert!(is_drawn(&found) && found.text().contains("longlong"), "{target}: {:?}", server.said());
    }
    until("it is reported", || server.said().iter().any(|line| line.contains("No space left on device")));
}
