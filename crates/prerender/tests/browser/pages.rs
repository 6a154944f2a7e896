//! What crawlers get.

use super::origin::{Origin, has_chromium, page, plan, respond, short_plan};

const APPLICATION: &str = r#"<!DOCTYPE html><html lang="en"><head><title>Shop</title>
<link rel="modulepreload" href="/x.js"><script type="application/ld+json">{"@type":"Product"}</script>
<script src="/app.js" defer></script></head><body><div id="root"></div>
<img data-src="/lazy.jpg"><noscript>none</noscript></body></html>"#;

const SCRIPT: &str = r#"
fetch('/api/article?id=7').then(r => r.json()).then(article => {
  document.title = article.title;
  document.getElementById('root').innerHTML = '<h1>' + article.title + '</h1><x-card></x-card>';
  const meta = (name, content) => { const m = document.createElement('meta'); m.name = name; m.content = content; document.head.append(m); };
  meta('og:title', article.title);
  meta('prerender-header', 'X-Robots-Tag: noarchive');
  const script = document.createElement('script'); script.text = 'window.later = 1'; document.body.append(script);
});
customElements.define('x-card', class extends HTMLElement {
  connectedCallback() { this.attachShadow({ mode: 'open' }).innerHTML = '<p>in the shadow</p><script>1</script>'; }
});"#;

fn application(asked: &str) -> String {
    match asked {
        "GET /app.js" => respond("200 OK", "text/javascript", "", SCRIPT),
        "GET /api/article?id=7" => respond("200 OK", "application/json", "", r#"{"title":"Seven & more"}"#),
        "GET /old" => respond("301 Moved Permanently", "text/html", "Location: /new\r\n", "moved"),
        "GET /missing" => respond("404 Not Found", "text/html", "", "<h1>missing</h1>"),
        "GET /broken" => respond("500 Internal Server Error", "text/html", "", "<h1>broken</h1>"),
        "GET /data" => respond("200 OK", "application/json", "", "{}"),
        "GET /gone" => page("<head><meta name='prerender-status-code' content='404'></head><body>gone"),
        "GET /moved" => page("<script>location.href = '/elsewhere?x=1'</script>"),
        "GET /private" => respond("200 OK", "text/html", "Cache-Control: private\r\n", "<p>private"),
        "GET /ready" => page(
            "<script>window.prerenderReady = false; \
             setTimeout(() => { document.body.append('at last'); window.prerenderReady = true }, 1500)</script>",
        ),
        _ => page(APPLICATION),
    }
}

#[test]
fn crawlers_get_the_page_that_scripts_have_drawn() {
    if !has_chromium() {
        return;
    }
    let origin = Origin::new(plan(), application);
    let found = origin.get("/articles/7");
    assert!(found.is_rendered(), "{found:?}");
    assert_eq!(found.status, 200);
    for expected in [
        "<!DOCTYPE html><html lang=\"en\">",
        "<h1>Seven &amp; more</h1>",
        "<title>Seven &amp; more</title>",
        "og:title",
        "application/ld+json",
        "<template shadowrootmode=\"open\"><p>in the shadow</p></template>",
        "src=\"/lazy.jpg\"",
        "</html>",
    ] {
        assert!(found.body.contains(expected), "{expected} is missing in {}", found.body);
    }
    for wrong in ["/app.js", "modulepreload", "window.later", "prerender-header", "<script>1"] {
        assert!(!found.body.contains(wrong), "{wrong} is in {}", found.body);
    }
    assert_eq!(found.field("x-robots-tag"), "noarchive");
    assert_eq!(found.field("content-type"), "text/html; charset=utf-8");
    let requests = origin.requests();
    assert!(
        requests.iter().all(|head| !head.contains("secret")),
        "nothing of the visitor is sent: {requests:?}"
    );
    assert!(requests.iter().all(|head| head.to_ascii_lowercase().contains("x-prerender: 1")), "{requests:?}");
    assert!(requests.iter().all(|head| !head.contains("lazy.jpg")), "no picture is fetched: {requests:?}");
}

#[test]
fn statuses_redirects_and_other_content_are_respected() {
    if !has_chromium() {
        return;
    }
    let origin = Origin::new(plan(), application);
    for (target, status, mark, field) in [
        ("/old", 301, "plain", ("location", "/new")),
        ("/missing", 404, "plain", ("content-type", "text/html")),
        ("/broken", 500, "plain", ("content-type", "text/html")),
        ("/data", 200, "plain", ("content-type", "application/json")),
        ("/gone", 404, "rendered", ("content-type", "text/html; charset=utf-8")),
        ("/moved", 302, "moved", ("location", "https://shop.test/elsewhere?x=1")),
        ("/private", 200, "rendered", ("cache-control", "no-store")),
    ] {
        let found = origin.get(target);
        assert_eq!((found.status, found.field("x-prerender")), (status, mark), "{target}");
        assert_eq!(found.field(field.0), field.1, "{target}");
    }
}

#[test]
fn a_page_says_when_it_is_ready() {
    if !has_chromium() {
        return;
    }
    let origin = Origin::new(plan(), application);
    let found = origin.get("/ready");
    assert!(found.is_rendered() && found.body.contains("at last"), "{found:?}");
}

/// The end of a page is found out by a request of its own, which neither the page nor its policy may hold up, and no site may see.
#[test]
fn pages_that_allow_no_requests_finish_in_time() {
    if !has_chromium() {
        return;
    }
    let origin = Origin::new(plan(), |asked| match asked {
        "GET /policy" => page(
            "<head><meta http-equiv=Content-Security-Policy content=\"connect-src 'none'\"></head><body><p>policy</p>",
        ),
        "GET /sandbox" => respond(
            "200 OK",
            "text/html",
            "Content-Security-Policy: sandbox\r\n",
            "<!DOCTYPE html><p>sandbox</p>",
        ),
        _ => page(
            "<p>replaced</p><script>window.fetch = () => new Promise(() => {}); window.setTimeout = () => 0</script>",
        ),
    });
    for target in ["/policy", "/sandbox", "/replaced"] {
        let found = origin.get(target);
        assert!(found.is_rendered() && found.body.contains(&target[1..]), "{found:?}");
    }
    let requests = origin.requests();
    assert!(requests.iter().all(|head| !head.contains("barrier")), "{requests:?}");
}

#[test]
fn pages_that_never_finish_are_serialized_at_their_deadline() {
    if !has_chromium() {
        return;
    }
    let origin = Origin::new(short_plan(), |asked| match asked {
        "GET /polls" => {
            page("<p>polls</p><script>setInterval(() => fetch('/x' + Math.random()), 50)</script>")
        }
        "GET /never" => page("<p>never</p><script>window.prerenderReady = false</script>"),
        "GET /adds" => page(
            "<p>adds</p><script>setInterval(() => document.body.append('x'), 1); window.prerenderReady = false</script>",
        ),
        _ => respond("200 OK", "text/plain", "", "x"),
    });
    for target in ["/polls", "/never", "/adds"] {
        let found = origin.get(target);
        assert_eq!(found.field("x-prerender"), "rendered; late", "{target}");
        assert_eq!(found.field("flatout-cache-control"), "max-age=60", "{target}");
        assert!(found.body.contains(&format!("<p>{}</p>", &target[1..])), "{found:?}");
    }
}

#[test]
fn bytes_that_are_no_utf_8_are_read_in_their_charset() {
    if !has_chromium() {
        return;
    }
    let origin = Origin::new(plan(), |_| {
        let body = b"<body>\xe9\xe8<script>document.body.append(String.fromCharCode(0xd800, 65))</script>";
        let head = respond("200 OK", "text/html; charset=iso-8859-1", "", "");
        let head = head.replace("Content-Length: 0", &format!("Content-Length: {}", body.len()));
        [head.as_bytes(), body].concat()
    });
    let found = origin.get("/");
    assert!(found.is_rendered() && found.body.contains("éè") && found.body.contains("A</body>"), "{found:?}");
}
