//! Headless Chromium, driven over its debugging pipe: opens pages, evaluates scripts, presses keys, and takes
//! screenshots. Collects all complaints and network requests of a page.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Folder;

/// The timeout for one response of the browser; its start on a busy host is the slowest.
const PATIENCE: Duration = Duration::from_secs(60);

/// The height of a window, and how high it becomes at most.
const HEIGHT: u64 = 900;
const HEIGHT_MAX: u64 = 12_000;
/// How many times a window follows a page that grows.
const RESIZES_MAX: u32 = 5;

/// The browser sends no requests of its own, and leaves no files. Tests sign their own certificates.
const FLAGS: [&str; 14] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--ignore-certificate-errors",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// Finds texts that are hard to read, from the computed colours of the page.
const CONTRAST: &str = "
      (() => {
        const pen = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
        const colour = (text) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = text; pen.fillRect(0, 0, 1, 1);
          return [...pen.getImageData(0, 0, 1, 1).data]; };
        const light = (rgb) => rgb.slice(0, 3).map((part) => part / 255)
          .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
          .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
        const ground = (one) => { for (; one; one = one.parentElement) {
          const found = colour(getComputedStyle(one).backgroundColor); if (found[3] > 250) return found; }
          return [255, 255, 255]; };
        const poor = new Set();
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
          const one = texts.currentNode.parentElement;
          if (!texts.currentNode.textContent.trim() || ['SCRIPT', 'STYLE'].includes(one.tagName)) continue;
          const style = getComputedStyle(one), ink = colour(one.closest('svg') ? style.fill : style.color);
          const [low, high] = [light(ink), light(ground(one))].sort((a, b) => a - b);
          const ratio = (high + 0.05) / (low + 0.05);
          if (ratio < 4.5) poor.add(`${one.tagName}.${one.className} ${ratio.toFixed(2)}`);
        }
        return [...poor];
      })()";

/// A browser with one page, ended when it is dropped.
pub struct Browser {
    child: Child,
    pipe: ChildStdin,
    said: Receiver<Value>,
    next: u64,
    page: String,
    frame: Option<String>,
    width: u32,
    is_dark: bool,
    is_loaded: bool,
    /// The origin of the page, to which it may send requests.
    home: String,
    complaints: Vec<String>,
    folder: Folder,
}

/// A colour: red, green, blue.
pub type Colour = [u8; 3];

impl Browser {
    /// A browser with a page of this width. `None`, with the reason on stderr, if Chromium is not installed.
    ///
    /// # Panics
    /// Chromium is installed but does not start.
    pub fn start(width: u32, is_dark: bool) -> Option<Browser> {
        let folder = Folder::new();
        let log = File::create(folder.0.join("log")).expect("a file");
        // It uses descriptors 3 and 4.
        let script = "command -v chromium >/dev/null || exit 127; exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null";
        let mut child = Command::new("sh")
            .args(["-c", script, "sh"])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", folder.0.join("data").display()))
            .arg("about:blank")
            .env("HOME", &folder.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("a shell");
        let pipe = child.stdin.take().expect("a pipe");
        let mut answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, said) = channel();
        std::thread::spawn(move || {
            loop {
                let mut message = Vec::new();
                match answers.read_until(0, &mut message) {
                    Ok(0) => return,
                    Ok(_) => {
                        message.pop();
                        // The last message of a killed browser may be incomplete.
                        let Ok(message) = serde_json::from_slice(&message) else { return };
                        let _ = tell.send(message);
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        });
        let (page, frame, complaints) = (String::new(), None, Vec::new());
        let mut browser = Browser {
            child,
            pipe,
            said,
            next: 1,
            page,
            frame,
            width,
            is_dark,
            is_loaded: false,
            home: "file:".to_owned(),
            complaints,
            folder,
        };
        if browser.is_missing() {
            // Bypasses the output capture of the test harness.
            let _ = writeln!(std::io::stderr(), "skipped: there is no chromium here; ./x test installs it");
            return None;
        }
        let target = browser.call("", "Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("", "Target.attachToTarget", attach);
        browser.page = session["sessionId"].as_str().expect("a session").to_owned();
        let page = browser.page.clone();
        browser.watch(&page);
        browser.call(&page, "Page.enable", json!({}));
        browser.resize(HEIGHT);
        Some(browser)
    }

    /// Whether the shell has ended because there is no browser.
    fn is_missing(&mut self) -> bool {
        self.send("", "Browser.getVersion", json!({}));
        match self.said.recv_timeout(PATIENCE) {
            Ok(_) => false,
            Err(_) => {
                let status = self.child.wait().expect("a status").code();
                assert_eq!(status, Some(127), "chromium does not start: {}", self.log());
                true
            }
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.0.join("log")).unwrap_or_default()
    }

    /// Opens a file and waits until it is drawn, with all its frames.
    ///
    /// # Panics
    /// That takes too long.
    pub fn open(&mut self, file: &Path) {
        self.home = "file:".to_owned();
        self.load(&format!("file://{}", file.display()));
    }

    /// Opens a page of a server, which may send requests to that server.
    ///
    /// # Panics
    /// That takes too long.
    pub fn visit(&mut self, url: &str) {
        self.home = url.to_owned();
        self.load(url);
    }

    fn load(&mut self, url: &str) {
        self.is_loaded = false;
        self.frame = None;
        let page = self.page.clone();
        self.call(&page, "Page.navigate", json!({ "url": url }));
        while !self.is_loaded {
            self.hear();
        }
        // Invisible parts are not drawn, above all in frames: make the window as high as the page. A page may grow when it is drawn.
        let drawn =
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))";
        for _ in 0..RESIZES_MAX {
            let height = self.evaluate("document.documentElement.scrollHeight").as_u64().unwrap_or(HEIGHT);
            self.resize(height.clamp(HEIGHT, HEIGHT_MAX));
            assert_eq!(self.evaluate(drawn), true);
            if self.evaluate("document.documentElement.scrollHeight <= innerHeight") == true {
                break;
            }
        }
        if self.frame.is_some() {
            assert_eq!(self.evaluate_in_frame(drawn), true);
        }
    }

    fn resize(&mut self, height: u64) {
        let size = json!({ "width": self.width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        let page = self.page.clone();
        self.call(&page, "Emulation.setDeviceMetricsOverride", size);
    }

    /// The value of a script in the page.
    ///
    /// # Panics
    /// It throws.
    pub fn evaluate(&mut self, script: &str) -> Value {
        self.evaluate_in(&self.page.clone(), script)
    }

    /// The value of a script in the page's frame, which is a separate process.
    ///
    /// # Panics
    /// There is no frame, or it throws.
    pub fn evaluate_in_frame(&mut self, script: &str) -> Value {
        self.evaluate_in(&self.frame.clone().expect("the page has a frame"), script)
    }

    fn evaluate_in(&mut self, session: &str, script: &str) -> Value {
        let arguments = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        let found = self.call(session, "Runtime.evaluate", arguments);
        assert!(found["exceptionDetails"].is_null(), "{script}: {found}");
        found["result"]["value"].clone()
    }

    /// Presses a key: a character, or a key by its name.
    ///
    /// # Panics
    /// The browser does not respond.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        let text = if key == "Enter" { "\r" } else { key };
        let down = if code == 0 || key == "Enter" { "keyDown" } else { "rawKeyDown" };
        let page = self.page.clone();
        for kind in [down, "keyUp"] {
            let mut event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" {
                event["text"] = text.into();
            }
            self.call(&page, "Input.dispatchKeyEvent", event);
        }
    }

    /// The colours at these points of a screenshot, and the number of different colours.
    ///
    /// # Panics
    /// There is no screenshot.
    pub fn colours(&mut self, points: &[(f64, f64)]) -> (Vec<Colour>, u64) {
        let page = self.page.clone();
        let picture = self.call(&page, "Page.captureScreenshot", json!({ "format": "png" }));
        let picture = picture["data"].as_str().expect("a picture");
        if let Ok(folder) = std::env::var("FLATOUT_PICTURES") {
            let name = format!("{folder}/{}-{}.base64", self.child.id(), self.next);
            std::fs::write(name, picture).expect("a file");
        }
        let script = format!(
            "(async () => {{
               const image = new Image();
               image.src = 'data:image/png;base64,{picture}';
               await image.decode();
               const canvas = new OffscreenCanvas(image.width, image.height), pen = canvas.getContext('2d');
               pen.drawImage(image, 0, 0);
               const all = pen.getImageData(0, 0, image.width, image.height).data;
               const at = ([x, y]) => Array.from(all.subarray(4 * (Math.round(y) * image.width + Math.round(x))).subarray(0, 3));
               return [{}.map(at), new Set(new Uint32Array(all.buffer)).size];
             }})()",
            json!(points)
        );
        let found = self.evaluate(&script);
        let colours = serde_json::from_value(found[0].clone()).expect("colours");
        (colours, found[1].as_u64().expect("a number"))
    }

    /// Texts whose contrast is below WCAG 2, level AA.
    ///
    /// # Panics
    /// The browser does not respond.
    pub fn poor_contrasts(&mut self) -> Value {
        self.evaluate(CONTRAST)
    }

    /// The complaints of the pages so far: errors, warnings, and requests to a network.
    pub fn complaints(&mut self) -> &[String] {
        // Messages sent before the response to this have been received with it.
        self.evaluate("0");
        &self.complaints
    }

    /// Enables events of a page or a frame.
    fn watch(&mut self, session: &str) {
        let scheme = if self.is_dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        let frames = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
        self.send(session, "Runtime.enable", json!({}));
        self.send(session, "Log.enable", json!({}));
        self.send(session, "Network.enable", json!({}));
        self.send(session, "Emulation.setEmulatedMedia", media);
        self.send(session, "Target.setAutoAttach", frames);
        self.send(session, "Runtime.runIfWaitingForDebugger", json!({}));
    }

    fn send(&mut self, session: &str, method: &str, arguments: Value) -> u64 {
        let id = self.next;
        self.next += 1;
        let mut message = json!({ "id": id, "method": method, "params": arguments });
        if !session.is_empty() {
            message["sessionId"] = session.into();
        }
        // A browser that has ended is noticed by the missing response.
        let _ = self.pipe.write_all(format!("{message}\0").as_bytes());
        id
    }

    fn call(&mut self, session: &str, method: &str, arguments: Value) -> Value {
        let id = self.send(session, method, arguments);
        loop {
            let message = self.hear();
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    /// The next message; keeps relevant events.
    fn hear(&mut self) -> Value {
        let message = match self.said.recv_timeout(PATIENCE) {
            Ok(message) => message,
            Err(error) => panic!("chromium: {error}: {}", self.log()),
        };
        let about = &message["params"];
        let url = about["request"]["url"].as_str().unwrap_or_default();
        let local = [&self.home, "file:", "data:", "about:", "blob:"];
        let is_local = local.iter().any(|scheme| url.starts_with(scheme));
        match message["method"].as_str().unwrap_or_default() {
            "Page.loadEventFired" => self.is_loaded = true,
            "Target.attachedToTarget" => {
                let session = about["sessionId"].as_str().expect("a session").to_owned();
                self.watch(&session);
                self.frame = Some(session);
            }
            "Network.requestWillBeSent" if !is_local => self.complaints.push(format!("asks for {url}")),
            "Runtime.exceptionThrown" => self.complaints.push(about["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" => self.complaints.push(about["args"].to_string()),
            "Log.entryAdded" => self.complaints.push(about["entry"]["text"].to_string()),
            _ => {}
        }
        message
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.send("", "Browser.close", json!({}));
        for _ in 0..100 {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
