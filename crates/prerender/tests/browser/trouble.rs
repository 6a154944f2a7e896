//! Pages and browsers that misbehave cost one page, and nothing else.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flatout_prerender::{Plan, RenderOutcome};

use super::origin::{Origin, has_chromium, page, plan, respond, short_plan};

fn good(origin: &Origin) {
    let found = origin.get("/good");
    assert!(found.is_drawn() && found.body.contains("drawn"), "{found:?}");
}

const GOOD: &str = "<body><script>document.body.append('dra' + 'wn')</script>";

#[test]
fn scripts_that_disturb_do_not_stop_a_page() {
    if !has_chromium() {
        return;
    }
    let origin = Origin::new(plan(), |asked| match asked {
        "GET /dialogs" => page(
            "<body onbeforeunload='return 1'><iframe srcdoc=\"<script>alert(1)</script>\"></iframe>\
             <script>alert(1); confirm(2); prompt(3); print(); document.body.append('dra' + 'wn')</script>",
        ),
        "GET /popups" => page(
            "<body><a id=a target=_blank href='/x'>x</a><script>for (let i = 0; i < 200; i++) { window.open('/x' + i); a.click() }\
             document.body.append('dra' + 'wn')</script>",
        ),
        "GET /workers" => page(
            "<body><script>for (let i = 0; i < 10; i++) new Worker('/w.js'); navigator.serviceWorker?.register('/sw.js');\
             document.body.append('dra' + 'wn')</script>",
        ),
        "GET /errors" => {
            page("<body><script>document.body.append('dra' + 'wn'); throw new Error('x')</script>")
        }
        "GET /prototypes" => page(
            "<body><script>document.body.append('dra' + 'wn'); Element.prototype.getHTML = () => 'fake'; Array.prototype.push = () => 0;\
             document.querySelectorAll = () => []; JSON.stringify = () => 'fake'</script>",
        ),
        "GET /download" => page(
            "<body><script>document.body.append('dra' + 'wn'); const a = document.createElement('a');\
             a.href = 'data:text/plain,x'; a.download = 'x'; a.click()</script>",
        ),
        _ => respond("200 OK", "text/javascript", "", "for (;;) {}"),
    });
    for target in ["/dialogs", "/popups", "/workers", "/errors", "/prototypes", "/download"] {
        let found = origin.get(target);
        assert!(found.is_rendered() && found.body.contains("drawn"), "{target}: {found:?}");
    }
}

#[test]
fn pages_that_hang_or_grow_cost_only_themselves() {
    if !has_chromium() {
        return;
    }
    let plan = Plan { pages: 2, page_memory_bytes: 200 << 20, ..short_plan() };
    let origin = Arc::new(Origin::new(plan, |asked| match asked {
        "GET /loop" => page("<body><p>before</p><script>setTimeout(() => { for (;;) {} }, 10)</script>"),
        "GET /reloads" => page("<body><script>location.reload()</script>"),
        "GET /bomb" => page(
            "<body><script>const a = []; setInterval(() => { for (let i = 0; i < 4; i++) a.push(new Uint8Array(8 << 20).fill(1)) }, 5); window.prerenderReady = false</script>",
        ),
        "GET /elements" => page(
            "<body><script>for (let i = 0; i < 250000; i++) document.body.append(document.createElement('i'))</script>",
        ),
        "GET /text" => page("<body><script>document.body.append('x'.repeat(40 << 20))</script>"),
        "GET /good" => page(GOOD),
        _ => respond("404 Not Found", "text/plain", "", ""),
    }));
    good(&origin);
    let browsers = origin.browsers();
    for target in ["/loop", "/reloads", "/bomb", "/elements", "/text"] {
        let beside = origin.clone();
        let other = std::thread::spawn(move || good(&beside));
        let found = origin.get(target);
        let mark = found.field("x-prerender");
        assert!(found.status == 200 && !found.is_rendered(), "{target}: {mark}");
        assert!(
            !mark.starts_with("skipped") || found.body.contains("<script>"),
            "the page as it is: {target}: {mark}"
        );
        assert_eq!(found.field("cache-control") == "no-store", mark.starts_with("skipped"), "{target}");
        other.join().unwrap();
    }
    good(&origin);
    let bombs = origin.renderer.figures().killed;
    assert!(bombs >= 1, "the process of the bomb was killed: {:?}", origin.renderer.figures());
    assert_eq!(origin.browsers(), browsers, "the browser is still the first one");
}

#[test]
fn a_browser_that_is_killed_is_replaced() {
    if !has_chromium() {
        return;
    }
    let origin = Arc::new(Origin::new(plan(), |asked| match asked {
        "GET /slow" => page(
            "<body><script>window.prerenderReady = false; setTimeout(() => { document.body.append('dra' + 'wn'); window.prerenderReady = true }, 3000)</script>",
        ),
        _ => page(GOOD),
    }));
    good(&origin);
    let beside = origin.clone();
    let slow = std::thread::spawn(move || beside.get("/slow"));
    let begun = Instant::now();
    while origin.renderer.figures().active == 0 && begun.elapsed() < Duration::from_secs(30) {
        std::thread::yield_now();
    }
    for id in origin.browsers() {
        assert!(Command::new("kill").args(["-9", &id.to_string()]).status().unwrap().success());
    }
    let found = slow.join().unwrap();
    assert!(found.is_rendered() && found.body.contains("drawn"), "{found:?}");
    assert_eq!(origin.renderer.figures().browsers, 2);
    good(&origin);
}

#[test]
fn browsers_are_replaced_after_their_pages_and_end_with_the_renderer() {
    if !has_chromium() {
        return;
    }
    let origin = Origin::new(Plan { pages_per_browser: 2, ..plan() }, |_| page(GOOD));
    for _ in 0..5 {
        good(&origin);
    }
    assert_eq!(origin.renderer.figures().browsers, 3);
    assert_eq!(origin.browsers().len(), 1);
    let outcomes = origin.renderer.figures().outcomes;
    let rendered = RenderOutcome::ALL.iter().position(|it| *it == RenderOutcome::Rendered).unwrap();
    assert_eq!(outcomes[rendered], 5);
    // Its folder goes with a browser.
    let profiles = || {
        let names = std::fs::read_dir(origin.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("browser-")).count()
    };
    assert_eq!(profiles(), 1);
    origin.renderer.end();
    assert_eq!((profiles(), origin.browsers()), (0, Vec::new()));
}

#[test]
fn without_room_the_page_comes_as_it_is() {
    if !has_chromium() {
        return;
    }
    let origin = Arc::new(Origin::new(Plan { pages: 1, queue: 0, ..short_plan() }, |asked| match asked {
        "GET /never" => page("<body><script>window.prerenderReady = false</script>"),
        _ => page(GOOD),
    }));
    let beside = origin.clone();
    let never = std::thread::spawn(move || beside.get("/never"));
    let begun = Instant::now();
    while origin.renderer.figures().active == 0 && begun.elapsed() < Duration::from_secs(30) {
        std::thread::yield_now();
    }
    let found = origin.get("/good");
    assert_eq!(found.field("x-prerender"), "skipped; reason=overload");
    assert_eq!((found.field("cache-control"), found.status), ("no-store", 200));
    assert!(found.body.contains("<script>"), "{found:?}");
    never.join().unwrap();
    good(&origin);
}

#[test]
fn without_a_browser_the_page_comes_as_it_is() {
    let plan = Plan { program: "/nonexistent/chromium".into(), ..plan() };
    let origin = Origin::new(plan, |_| page(GOOD));
    for _ in 0..2 {
        let found = origin.get("/good");
        assert_eq!(found.field("x-prerender"), "skipped; reason=no-browser");
        assert!(found.status == 200 && found.body.contains("<script>"), "{found:?}");
    }
    assert_eq!(origin.renderer.figures().browsers, 0);
}
