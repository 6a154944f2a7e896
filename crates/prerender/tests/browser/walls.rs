//! What pages cannot reach. Each attempt is aimed at a listener of this test on loopback, which must see no connection; addresses of
//! other machines are not tried with a real browser, but in `walls::judge` and `walls::addresses`.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::origin::{Origin, has_chromium, page, plan, respond};

/// A listener that counts its connections.
fn forbidden() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    (port, count)
}

const ATTEMPTS: &str = r#"<!DOCTYPE html><html><head>
<script src="http://127.0.0.1:PORT/script.js"></script>
<link rel="stylesheet" href="http://127.0.0.1:PORT/style.css"><link rel="preconnect" href="http://127.0.0.1:PORT/">
<link rel="dns-prefetch" href="http://localhost:PORT/"><link rel="prefetch" href="http://127.0.0.1:PORT/prefetch">
<script type="speculationrules">{"prerender":[{"urls":["http://127.0.0.1:PORT/x"]}],"prefetch":[{"urls":["/x"]}]}</script>
<style>@import url(http://127.0.0.1:PORT/import.css); @font-face { font-family: x; src: url(http://127.0.0.1:PORT/font) } p { font-family: x }</style>
</head><body><p>text</p><ul id="log"></ul>
<img src="http://127.0.0.1:PORT/image"><iframe src="http://127.0.0.1:PORT/frame"></iframe><iframe src="file:///etc/passwd"></iframe>
<object data="http://127.0.0.1:PORT/object"></object><embed src="http://127.0.0.1:PORT/embed">
<video src="http://127.0.0.1:PORT/video" autoplay></video><audio src="http://127.0.0.1:PORT/audio" autoplay></audio>
<script>
window.prerenderReady = false;
const log = (name, result) => { const li = document.createElement('li'); li.textContent = name + '=' + result; document.getElementById('log').append(li); };
const attempt = (name, promise) => Promise.race([promise, new Promise((_, no) => setTimeout(no, 3000))])
  .then(value => log(name, 'reached ' + value), () => log(name, 'refused'));
const all = [];
for (const [name, url] of Object.entries({
  loopback: 'http://127.0.0.1:PORT/', name: 'http://localhost:PORT/', six: 'http://[::1]:PORT/', mapped: 'http://[::ffff:127.0.0.1]:PORT/',
  zero: 'http://0.0.0.0:PORT/', decimal: 'http://2130706433:PORT/', hex: 'http://0x7f.1:PORT/', file: 'file:///etc/passwd',
  redirect: '/redirect', chain: '/chain', chrome: 'chrome://version/', other: 'https://other.test/',
})) all.push(attempt(name, fetch(url).then(r => r.text())));
all.push(attempt('nocors', fetch('http://127.0.0.1:PORT/', { mode: 'no-cors' }).then(r => 'x')));
all.push(attempt('post', fetch('http://127.0.0.1:PORT/', { method: 'POST', body: 'x', mode: 'no-cors' })));
all.push(attempt('socket', new Promise((yes, no) => { const s = new WebSocket('ws://127.0.0.1:PORT/'); s.onopen = yes; s.onerror = no })));
all.push(attempt('events', new Promise((yes, no) => { const s = new EventSource('http://127.0.0.1:PORT/'); s.onopen = yes; s.onerror = no })));
all.push(attempt('worker', new Promise((yes, no) => {
  const w = new Worker(URL.createObjectURL(new Blob(["fetch('http://127.0.0.1:PORT/', {mode: 'no-cors'}).then(() => postMessage(1), () => postMessage(0))"])));
  w.onmessage = m => m.data ? yes(1) : no(); w.onerror = no;
})));
all.push(attempt('rtc', new Promise((yes, no) => {
  const c = new RTCPeerConnection({ iceServers: [{ urls: 'stun:127.0.0.1:PORT' }] }); c.createDataChannel('x');
  c.onicecandidate = e => e.candidate && yes(e.candidate.candidate); c.createOffer().then(o => c.setLocalDescription(o));
})));
navigator.sendBeacon('http://127.0.0.1:PORT/beacon', 'x');
const frame = document.createElement('iframe'); frame.srcdoc = "<script src='http://127.0.0.1:PORT/in-frame.js'></" + "script>"; document.body.append(frame);
const form = document.createElement('form'); form.action = 'http://127.0.0.1:PORT/form'; form.target = 'other'; document.body.append(form); form.submit();
Promise.all(all).then(() => window.prerenderReady = true);
</script></body></html>"#;

#[test]
fn pages_reach_nothing_but_their_own_site() {
    if !has_chromium() {
        return;
    }
    let (port, count) = forbidden();
    let body = ATTEMPTS.replace("PORT", &port.to_string());
    let origin = Origin::new(plan(), move |asked| match asked {
        "GET /" => page(&body),
        "GET /redirect" => {
            respond("302 Found", "text/plain", &format!("Location: http://127.0.0.1:{port}/\r\n"), "")
        }
        "GET /chain" => respond("307 Temporary Redirect", "text/plain", "Location: /redirect\r\n", ""),
        _ => respond("404 Not Found", "text/plain", "", ""),
    });
    // Over http: chromium itself refuses some of this to pages of https.
    let found = origin.get_with("/", "");
    assert!(found.is_rendered(), "{found:?}");
    for name in [
        "loopback", "name", "six", "mapped", "zero", "decimal", "hex", "file", "redirect", "chain", "chrome",
        "other", "nocors", "post", "socket", "events", "worker", "rtc",
    ] {
        assert!(found.body.contains(&format!("<li>{name}=refused</li>")), "{name}: {}", found.body);
    }
    assert!(!found.body.contains("root:"), "no file was read");
    assert_eq!(count.load(Ordering::SeqCst), 0, "connections to a forbidden address");
    let asked: Vec<String> =
        origin.requests().iter().filter_map(|head| head.lines().next().map(str::to_owned)).collect();
    assert!(
        asked.iter().any(|line| line.starts_with("GET /redirect")),
        "the redirect itself was fetched: {asked:?}"
    );
}

#[test]
fn frames_of_the_own_site_are_loaded_and_endless_ones_end() {
    if !has_chromium() {
        return;
    }
    let origin = Origin::new(plan(), |asked| match asked {
        "GET /" => page(
            "<body><iframe src='/frame'></iframe><script>addEventListener('message', e => document.body.append(e.data))</script>",
        ),
        "GET /frame" => page("<script>parent.postMessage('from the frame', '*')</script>"),
        "GET /endless" => page("<body><p>text</p><iframe src='/endless?1'></iframe>"),
        asked if asked.starts_with("GET /endless?") => {
            page(&format!("<iframe src='{}1'></iframe>", &asked[4..]))
        }
        _ => respond("404 Not Found", "text/plain", "", ""),
    });
    let found = origin.get("/");
    assert!(found.is_rendered() && found.body.contains("from the frame"), "{found:?}");
    let found = origin.get("/endless");
    assert!(found.status == 200 && found.body.contains("<p>text</p>"), "{found:?}");
    assert!(origin.requests().len() < 600, "{} requests", origin.requests().len());
}

/// Skipped where this process can make no control groups.
#[test]
fn browsers_have_limits_for_all_pages_together() {
    if !has_chromium() {
        return;
    }
    let origin = Origin::new(plan(), |_| page("<p>text"));
    assert!(origin.get("/").is_rendered());
    let limits = origin.renderer.figures().limits;
    if let Some(why) = limits.strip_prefix("none for all pages together: ") {
        assert!(!why.is_empty());
        return;
    }
    assert!(limits.starts_with("1536 MiB and 1024 threads"), "{limits}");
    let [id] = origin.browsers()[..] else { panic!("one browser is expected: {:?}", origin.browsers()) };
    let groups = std::fs::read_to_string(format!("/proc/{id}/cgroup")).unwrap();
    let own = format!("flatout-browser-{}-", std::process::id());
    let group = groups.lines().find_map(|line| line.split('/').find(|name| name.starts_with(&own)));
    let group = group.unwrap_or_else(|| panic!("{groups}")).to_owned();
    origin.renderer.end();
    let mut find = std::process::Command::new("find");
    let left = find.args(["/sys/fs/cgroup", "-type", "d", "-name", &group]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "", "the group goes with the browser");
}

#[test]
fn browsers_have_no_network_and_their_sandbox() {
    if !has_chromium() {
        return;
    }
    let origin = Origin::new(plan(), |_| page("<p>text"));
    assert!(origin.get("/").is_rendered());
    let [id] = origin.browsers()[..] else { panic!("one browser is expected: {:?}", origin.browsers()) };
    let space = |id: &str| std::fs::read_link(format!("/proc/{id}/ns/net")).unwrap();
    assert_ne!(space(&id.to_string()), space("self"), "a network namespace of its own");
    let devices = std::fs::read_to_string(format!("/proc/{id}/net/dev")).unwrap();
    let names: Vec<&str> =
        devices.lines().skip(2).filter_map(|line| line.split_once(':')).map(|it| it.0.trim()).collect();
    assert_eq!(names, ["lo"], "loopback, which is down, and nothing else");
    let command = std::fs::read(format!("/proc/{id}/cmdline")).unwrap();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    assert!(!command.contains("--no-sandbox"), "{command}");
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let uid =
        status.lines().find_map(|line| line.strip_prefix("Uid:\t")?.split('\t').next()?.parse::<u32>().ok());
    assert_ne!(uid, Some(0), "never as root");
}
