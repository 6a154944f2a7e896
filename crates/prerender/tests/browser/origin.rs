//! A site for tests, and requests to its renderer.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use flatout_prerender::{Plan, Renderer, SiteSockets};
use tempfile::TempDir;

/// A site with fixed responses, and its renderer.
pub(crate) struct Origin {
    pub(crate) renderer: Renderer,
    sockets: SiteSockets,
    requests: Arc<Mutex<Vec<String>>>,
    pub(crate) dir: TempDir,
    _turn: Turn,
}

/// A response of the renderer.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) fields: HashMap<String, String>,
    pub(crate) body: String,
}

impl Page {
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map(String::as_str).unwrap_or_default()
    }

    /// Whether scripts have run; a busy machine may not be done in time.
    pub(crate) fn is_drawn(&self) -> bool {
        self.field("x-prerender").starts_with("rendered")
    }

    pub(crate) fn is_rendered(&self) -> bool {
        self.field("x-prerender") == "rendered"
    }
}

/// One browser at a time: machines are small.
pub(crate) struct Turn(());

static IS_TAKEN: Mutex<bool> = Mutex::new(false);
static FREED: Condvar = Condvar::new();

impl Turn {
    fn take() -> Turn {
        let mut is_taken = FREED.wait_while(IS_TAKEN.lock().unwrap(), |is_taken| *is_taken).unwrap();
        *is_taken = true;
        Turn(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *IS_TAKEN.lock().unwrap() = false;
        FREED.notify_one();
    }
}

/// Whether this machine has chromium; the reason to skip a test is shown otherwise.
#[allow(clippy::print_stderr, reason = "whoever runs the tests sees what was skipped")]
pub(crate) fn has_chromium() -> bool {
    let found =
        ["/usr/bin/chromium", "/usr/local/bin/chromium"].iter().any(|path| PathBuf::from(path).exists());
    if !found {
        eprintln!("skipped: this machine has no chromium (apt-get install chromium)");
    }
    found
}

/// A response with this body as HTML.
pub(crate) fn page(body: &str) -> String {
    respond("200 OK", "text/html; charset=utf-8", "", body)
}

pub(crate) fn respond(status: &str, kind: &str, lines: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n{lines}\r\n{body}"
    )
}

impl Origin {
    /// A site whose response to each target is made by `respond`, as raw HTTP. The target comes with its method before it.
    pub(crate) fn new<R: Into<Vec<u8>>>(
        plan: Plan,
        respond: impl Fn(&str) -> R + Send + Sync + 'static,
    ) -> Origin {
        let turn = Turn::take();
        let dir = TempDir::new().unwrap();
        // Browsers of a test as root run as another user.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        let sockets = SiteSockets { renderer: dir.path().join("renderer"), site: dir.path().join("site") };
        let listener = UnixListener::bind(&sockets.site).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, respond) = (requests.clone(), Arc::new(respond));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(mut stream), seen, respond) = (stream, seen.clone(), respond.clone()) else { return };
                std::thread::spawn(move || {
                    let Some(head) = read_head(&mut stream) else { return };
                    let line = head.lines().next().unwrap_or_default();
                    let asked = line.rsplit_once(' ').unwrap_or_default().0.to_owned();
                    seen.lock().unwrap().push(head);
                    let _ = stream.write_all(&respond(&asked).into());
                });
            }
        });
        let renderer = Renderer::start(dir.path().to_owned()).unwrap();
        renderer.change(&plan, std::slice::from_ref(&sockets)).unwrap();
        Origin { renderer, sockets, requests, dir, _turn: turn }
    }

    /// Requests a page as a crawler does, through the renderer.
    pub(crate) fn get(&self, target: &str) -> Page {
        self.get_with(
            target,
            "X-Forwarded-Proto: https\r\nCookie: secret=1\r\nAuthorization: Basic c2VjcmV0\r\n",
        )
    }

    pub(crate) fn get_with(&self, target: &str, lines: &str) -> Page {
        let mut stream = UnixStream::connect(&self.sockets.renderer).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let head = format!("GET {target} HTTP/1.1\r\nHost: shop.test\r\n{lines}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text);
        let (head, body) = text.split_once("\r\n\r\n").expect("a whole response");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
        let fields = lines.filter_map(|line| line.split_once(": "));
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        Page { status, fields, body: body.to_owned() }
    }

    /// The heads of all requests that have come to the site.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// The main processes of browsers of this test.
    pub(crate) fn browsers(&self) -> Vec<u32> {
        let dir = format!("--user-data-dir={}", self.dir.path().display());
        let ids = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_browser = |id: &u32| {
            let command = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            command.contains(&dir) && !command.contains("--type=") && !command.contains("/bin/sh")
        };
        ids.filter(is_browser).collect()
    }
}

fn read_head(stream: &mut UnixStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0; 1];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// A plan with times that a slow machine keeps.
pub(crate) fn plan() -> Plan {
    Plan { page_time: Duration::from_secs(30), idle_time: Duration::from_millis(300), ..Plan::default() }
}

/// The same for pages that do not finish.
pub(crate) fn short_plan() -> Plan {
    Plan { page_time: Duration::from_secs(4), ..plan() }
}
