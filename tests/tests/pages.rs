//! The pages of `flatout` in Chromium: they are drawn without complaints and network requests, fit a phone, and can
//! be used with the keyboard. Without Chromium the tests report that they are skipped.
//!
//! With `FLATOUT_PICTURES=FOLDER` all screenshots are saved there, in base64.

use std::path::PathBuf;
use std::process::{Command, Output};

use flatout_tests::browser::{Browser, Colour};
use flatout_tests::{Folder, Server, program, until};
use serde_json::{Value, json};

/// The widths of a phone and of a window.
const PHONE: u32 = 390;
const WINDOW: u32 = 1000;

/// The page of flame graphs in the frame of a climb's page.
const FRAMES: &str = "document.querySelectorAll('.graph div').length";

fn run(folder: &Folder, arguments: &[&str]) -> Output {
    Command::new(program("flatout")).args(arguments).current_dir(&folder.0).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn interval(gain: f64, half: f64) -> Value {
    json!({ "gain": gain, "low": gain - half, "high": gain + half })
}

fn rung(name: &str, status: &str, measured: Option<(f64, f64)>, reason: &str) -> Value {
    let mut rung = json!({
        "name": name, "status": status, "gain": null, "low": null, "high": null, "leave_one_out": null,
        "leave_one_out_interval": null, "shapley": null, "effects": null, "pairs": 0, "reason": reason,
        "apply": format!("flatout tune apply {name} --port 8080"), "take_back": format!("flatout tune undo {name}"),
    });
    let Some((gain, half)) = measured else { return rung };
    let main = interval(gain, half);
    for end in ["gain", "low", "high"] {
        rung[end] = main[end].clone();
    }
    rung["effects"] = json!({ "throughput": main, "p99": interval(0.7 * gain, 3.0 * half), "cpu": interval(0.9 * gain, half) });
    rung["shapley"] = interval(0.9 * gain, half);
    if status == "kept" {
        rung["leave_one_out"] = (0.8 * gain).into();
        rung["leave_one_out_interval"] = json!([0.8 * gain - half, 0.8 * gain + half]);
    }
    rung
}

fn side(requests_per_s: f64, slower: u64) -> Value {
    let ns: Vec<u64> = (0..2000u64).map(|at| slower * (100_000 + 40 * at * at)).collect();
    json!({
        "requests_per_s": requests_per_s, "p50_ns": 140_000 * slower, "p99_ns": 4_000_000 * slower,
        "cpu_us_per_request": 1e6 / requests_per_s, "requests": 200_000, "errors": 0, "runs": 20,
        "latency": { "ns": ns, "counts": vec![100; 2000] },
    })
}

/// Stacks of a server: with a firewall before, with a cache after.
fn profile(requests: f64, is_after: bool) -> Value {
    let frame = |name: &str, kind: &str| json!({ "name": name, "kind": kind });
    let frames = json!([
        frame("server", "root"),
        frame("main", "user"),
        frame("serve::answer", "user"),
        frame("tcp_sendmsg", "kernel"),
        frame("nf_hook_slow", "kernel"),
        frame("cache::look_up", "user"),
        frame("</script><img src=x onerror=alert(1)>", "inlined"),
    ]);
    let stack = |frames: &[u32], weight: u64| json!({ "frames": frames, "weight": weight });
    let mut stacks =
        vec![stack(&[0, 1], 1_000_000), stack(&[0, 1, 2, 6], 3_000_000), stack(&[0, 1, 2, 3], 9_000_000)];
    stacks.push(if is_after { stack(&[0, 1, 5], 6_000_000) } else { stack(&[0, 1, 2, 3, 4], 6_000_000) });
    json!({
        "format": "flatout-profile-1", "what": "server (process 7)", "unit": "cpu-ns", "rate_hz": 499, "seconds": 3.0,
        "cpu_count": 2, "sample_count": 900, "lost_count": 0, "idle_weight": 1_000_000_000, "request_count": requests,
        "notes": [], "frames": frames, "stacks": stacks,
    })
}

/// A climb with a rung of every kind, and with markup in names.
fn climb() -> Value {
    let rungs = [
        rung(
            "mitigations",
            "skipped",
            None,
            "protection is lost while it is tried; if that is acceptable: --accept-risk",
        ),
        rung("workers", "kept", Some((0.82, 0.06)), ""),
        rung("conntrack", "kept", Some((0.114, 0.02)), ""),
        rung("congestion", "none", Some((0.004, 0.012)), "within the noise of this machine"),
        rung("sendfile of a long-named variant", "worse", Some((-0.21, 0.03)), "it harms"),
        rung(
            "tap",
            "skipped",
            Some((0.12, 0.05)),
            "what stopping it would gain; it is somebody else's and stays",
        ),
        rung("xps", "not-measurable", None, "127.0.0.1:8080 is reached without a network device; try --lab"),
        rung("</script><img src=x onerror=console.error(1)>", "kept", Some((0.06, 0.018)), "<b onclick=x>"),
        rung("somaxconn", "skipped", None, "it is already as suggested"),
    ];
    json!({
        "noise_floor": 0.015, "noise": interval(0.001, 0.014), "objective": "throughput", "rungs": rungs,
        "total": interval(1.1, 0.05), "total_effects": null, "before": side(100_000.0, 2), "after": side(210_000.0, 1),
        "machine": { "processor": "CPU 9", "cpus": 2, "kernel": "6.18.44" }, "url": "http://127.0.0.1:8080/json",
        "command": "flatout climb --port 8080 -H 'Authorization: Bearer abc'",
        "today": { "rate_per_s": 150_000.0, "price_per_hour": 0.36 },
        "profiles": { "before": profile(1000.0, false), "after": profile(2000.0, true), "missing": null },
        "apply": "flatout tune apply workers conntrack --port 8080", "take_back": "flatout tune undo workers conntrack",
        "left_behind": null, "end": "done", "error": null,
    })
}

/// The page of a climb.
fn drawn(folder: &Folder, climb: &Value) -> PathBuf {
    folder.write("climb.json", climb.to_string());
    let output = run(folder, &["report", "climb.json", "--report", "climb.html", "--compare", "climb.json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    folder.0.join("climb.html")
}

/// The page of flame graphs in a climb's page, as a separate file.
fn flames(folder: &Folder, climb: &Value) -> PathBuf {
    let page = std::fs::read_to_string(drawn(folder, climb)).unwrap();
    let inner = page.split_once("srcdoc='").unwrap().1.split_once('\'').unwrap().0;
    folder.write("flames.html", inner.replace("&#39;", "'").replace("&amp;", "&"));
    folder.0.join("flames.html")
}

/// The centre of each element that matches the selector.
fn middles(browser: &mut Browser, selector: &str) -> Vec<(f64, f64)> {
    let script = format!(
        "[...document.querySelectorAll({})].map((one) => one.getBoundingClientRect())
           .map((box) => [box.x + box.width / 2 + scrollX, box.y + box.height / 2 + scrollY])",
        json!(selector)
    );
    serde_json::from_value(browser.evaluate(&script)).unwrap()
}

fn assert_no_overflow(browser: &mut Browser, what: &str) {
    let widths = "[document.documentElement.scrollWidth, innerWidth]";
    let widths = browser.evaluate(widths);
    assert!(widths[0].as_u64() <= widths[1].as_u64(), "{what} is wider than its window: {widths}");
}

fn assert_no_complaints(browser: &mut Browser) {
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

/// Whether a colour is mostly red, green or blue.
fn is_mostly(colour: Colour, channel: usize) -> bool {
    (0..3).all(|other| other == channel || u32::from(colour[channel]) > u32::from(colour[other]) + 25)
}

/// A point within a kernel frame in the flame graphs of a climb.
fn of_kernel(browser: &mut Browser) -> (f64, f64) {
    let graph = "(() => { const box = [...document.querySelectorAll('.graph div')]
        .find((one) => one.textContent === 'tcp_sendmsg').getBoundingClientRect();
        return [box.x + box.width - 4, box.y + 2]; })()";
    let frame = "(() => { const box = document.querySelector('iframe').getBoundingClientRect();
        return [box.x + 1, box.y + 1]; })()";
    let (x, y): (f64, f64) = serde_json::from_value(browser.evaluate_in_frame(graph)).unwrap();
    let (left, top): (f64, f64) = serde_json::from_value(browser.evaluate(frame)).unwrap();
    (left + x, top + y)
}

#[test]
fn a_climb_draws_light_and_dark_wide_and_narrow() {
    let folder = Folder::new();
    let page = drawn(&folder, &climb());
    for (width, is_dark) in [(WINDOW, false), (WINDOW, true), (PHONE, false), (PHONE, true)] {
        let Some(mut browser) = Browser::start(width, is_dark) else { return };
        browser.open(&page);
        let what = format!("{width} px, dark: {is_dark}");
        assert_no_overflow(&mut browser, &what);
        // The page may be ready before its frame is drawn.
        until("frames in three graphs", || browser.evaluate_in_frame(FRAMES).as_u64().unwrap() > 12);
        // Kept is green, worse is red, the total is blue, the kernel is red; the positions are taken from the page
        // itself.
        let mut points = vec![(3.0, 3.0), of_kernel(&mut browser)];
        for (class, count) in [("kept", 3), ("worse", 1), ("all", 1)] {
            let places = middles(&mut browser, &format!(".fall .bar.{class}"));
            assert_eq!(places.len(), count, "{class}");
            // Beside the interval that is drawn over the centre.
            points.extend(places.iter().map(|(x, y)| (*x, y - 5.0)));
        }
        let (colours, different) = browser.colours(&points);
        assert!(different > 100, "{what}: a picture of {different} colours");
        assert_eq!(colours[0][0] < 100, is_dark, "{what}: the ground is {:?}", colours[0]);
        for (colour, channel) in colours[1..].iter().zip([0, 1, 1, 1, 0, 2]) {
            assert!(is_mostly(*colour, channel), "{what}: {colours:?}");
        }
        let widths = browser.evaluate_in_frame("[document.documentElement.scrollWidth, innerWidth]");
        assert!(widths[0].as_u64() <= widths[1].as_u64(), "{what}: the flame graphs overflow: {widths}");
        assert_no_complaints(&mut browser);
    }
}

/// Names are shown as text everywhere, and commands without secrets.
#[test]
fn names_stay_names_and_secrets_secret() {
    let folder = Folder::new();
    let page = drawn(&folder, &climb());
    let Some(mut browser) = Browser::start(WINDOW, false) else { return };
    browser.open(&page);
    assert_eq!(browser.evaluate("document.querySelectorAll('img, script, b[onclick]').length"), 0);
    assert_eq!(browser.evaluate_in_frame("document.querySelectorAll('img').length"), 0);
    let text = browser.evaluate("document.body.textContent");
    let text = text.as_str().unwrap();
    for expected in [
        "</script><img src=x",
        "<b onclick=x>",
        "flatout tune undo conntrack",
        "Authorization: ***",
        "no significant difference",
    ] {
        assert!(text.contains(expected), "{expected}");
    }
    assert!(!text.contains("Bearer"));
    assert_no_complaints(&mut browser);
}

#[test]
fn text_can_be_read() {
    let folder = Folder::new();
    let (page, flames) = (drawn(&folder, &climb()), flames(&folder, &climb()));
    for is_dark in [false, true] {
        let Some(mut browser) = Browser::start(WINDOW, is_dark) else { return };
        for file in [&page, &flames] {
            browser.open(file);
            browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })");
            assert_eq!(browser.poor_contrasts(), json!([]), "dark: {is_dark}, {}", file.display());
        }
    }
}

#[test]
fn a_flame_graph_is_walked_through_by_keys() {
    let folder = Folder::new();
    let mut one = climb();
    one["profiles"]["after"] = Value::Null;
    let page = flames(&folder, &one);
    let Some(mut browser) = Browser::start(WINDOW, false) else { return };
    browser.open(&page);
    let names = |browser: &mut Browser| {
        let names =
            browser.evaluate("[...document.querySelectorAll('.graph div')].map((one) => one.textContent)");
        let mut names: Vec<String> = serde_json::from_value(names).unwrap();
        names.sort();
        names.join(" ")
    };
    let all = "</script><img src=x onerror=alert(1)> all main nf_hook_slow serve::answer server tcp_sendmsg";
    assert_eq!(names(&mut browser), all);
    let told = |browser: &mut Browser| browser.evaluate("document.querySelector('#told').textContent");

    // By Tab into the graph, which is the last focusable element.
    for _ in 0..20 {
        browser.press("Tab");
        if browser.evaluate("document.activeElement.className") == "graph" {
            break;
        }
    }
    assert_eq!(browser.evaluate("document.activeElement.className"), "graph", "the graph can be focused");
    for _ in 0..4 {
        browser.press("ArrowUp");
    }
    assert_eq!(told(&mut browser), "tcp_sendmsg (kernel): 15.000 µs/request, 78.9%");
    browser.press("Enter");
    assert!(!names(&mut browser).contains("script"), "zoomed: what is beside it is gone");
    browser.press("Escape");
    assert_eq!(names(&mut browser), all);
    browser.press("/");
    "nf_".chars().for_each(|key| browser.press(&key.to_string()));
    assert_eq!(browser.evaluate("document.querySelector('nav output').textContent"), "31.6% matched");
    let found = middles(&mut browser, ".graph div[style*='--found']");
    assert_eq!(found.len(), 1);
    let [red, green, blue] = browser.colours(&[(found[0].0, found[0].1 - 6.0)]).0[0];
    assert!(red > green && blue > green, "what was found is violet: {red} {green} {blue}");
    browser.press("Escape");
    assert_eq!(browser.evaluate("document.querySelector('input').value"), "");

    let clicked = "[...document.querySelectorAll('.graph div')].find((one) => one.textContent === 'serve::answer').click()";
    browser.evaluate(clicked);
    assert!(
        !names(&mut browser).is_empty()
            && told(&mut browser).as_str().unwrap().starts_with("serve::answer (user)")
    );
    assert_no_complaints(&mut browser);
}

/// Vanished and new frames are in the third graph, in blue and red.
#[test]
fn the_difference_of_two_profiles_is_drawn() {
    let folder = Folder::new();
    folder.write("before.json", profile(1000.0, false).to_string());
    folder.write("after.json", profile(2000.0, true).to_string());
    let output = run(&folder, &["profile", "--diff", "before.json", "after.json", "--report", "diff.html"]);
    assert!(output.status.success(), "{}", stderr(&output));
    for (width, is_dark) in [(WINDOW, false), (PHONE, true)] {
        let Some(mut browser) = Browser::start(width, is_dark) else { return };
        browser.open(&folder.0.join("diff.html"));
        assert_no_overflow(&mut browser, "the difference");
        let headings = browser.evaluate("[...document.querySelectorAll('h2')].map((one) => one.textContent)");
        let expected =
            ["before: 19.000 µs/request", "after: 9.500 µs/request", "difference: -9.500 µs/request"];
        assert_eq!(headings, json!(expected));
        let names = "[...document.querySelectorAll('.graph')].map((graph) => [...graph.children].map((one) => one.textContent))";
        let names: Vec<Vec<String>> = serde_json::from_value(browser.evaluate(names)).unwrap();
        let has = |graph: usize, name: &str| names[graph].iter().any(|other| other == name);
        assert!(has(0, "nf_hook_slow") && !has(1, "nf_hook_slow") && has(2, "nf_hook_slow"), "{names:?}");
        assert!(!has(0, "cache::look_up") && has(2, "cache::look_up"), "{names:?}");
        let mut colour = |name: &str| {
            let script = format!(
                "(() => {{ const box = [...document.querySelectorAll('.graph:last-child div')]
                   .find((one) => one.textContent === '{name}').getBoundingClientRect();
                   return [box.x + box.width / 2 + scrollX, box.y + 1 + scrollY]; }})()"
            );
            let point = serde_json::from_value(browser.evaluate(&script)).unwrap();
            browser.colours(&[point]).0[0]
        };
        let (gone, new) = (colour("nf_hook_slow"), colour("cache::look_up"));
        assert!(is_mostly(gone, 2) && is_mostly(new, 0), "gone is {gone:?}, new is {new:?}");
        assert_no_complaints(&mut browser);
    }
}

#[test]
fn the_page_of_a_load_draws() {
    let folder = Folder::new();
    let server = Server::json();
    let url = format!("http://{}/json?token=abc", server.address);
    let flags = ["-d2s", "-c2", "-H", "Authorization: Bearer abc", "--report", "bench.html", "--json"];
    let output = run(&folder, &[&["bench", &url], &flags[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let (json, page) = (String::from_utf8_lossy(&output.stdout), folder.0.join("bench.html"));
    for text in [&*json, &std::fs::read_to_string(&page).unwrap()] {
        assert!(!text.contains("abc") && text.contains("***"), "a secret is told: {text}");
    }
    for (width, is_dark) in [(WINDOW, true), (PHONE, false)] {
        let Some(mut browser) = Browser::start(width, is_dark) else { return };
        browser.open(&page);
        assert_no_overflow(&mut browser, "the page of a load");
        let points = browser
            .evaluate("[...document.querySelectorAll('.wide polyline')].map((one) => one.points.length)");
        assert!(points[1].as_u64() > Some(100), "{points}");
        let height = "Math.min(...[...document.querySelectorAll('svg text')].filter((one) => one.getClientRects().length).map((one) => one.getBoundingClientRect().height))";
        let height = browser.evaluate(height);
        assert!(height.as_f64() > Some(9.0), "text of a plot is {height} px high on {width} px");
        let shown = if width == PHONE { ".narrow circle.one" } else { ".wide circle.one" };
        let place = middles(&mut browser, shown);
        let colour = browser.colours(&place[..1]).0[0];
        assert!(is_mostly(colour, 2), "a line's mark is {colour:?}");
        let text = browser.evaluate("document.body.textContent");
        let text = text.as_str().unwrap_or_default();
        assert!(
            text.contains("flatout bench 'http://") && text.contains(" UTC") && text.contains("Limit: "),
            "{text}"
        );
        assert_no_complaints(&mut browser);
    }
}
