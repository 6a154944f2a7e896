//! Starts chromium and ends it.
//!
//! It runs as an unprivileged user in its own sandbox, in a network namespace without any device: even a page that breaks out of the
//! sandbox reaches no network. It talks to us over two pipes.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flatout_lane::process::{Ending, end_with_this_thread, signal_group, user_ids};
use serde_json::json;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::timeout;

use super::devtools::{Devtools, text};
use super::group::BrowserGroup;
use super::memory::limit_pages;

/// Time limit of a browser's start.
const START_TIME_MAX: Duration = Duration::from_secs(30);

/// How often the memory of pages is examined.
const MEMORY_PERIOD: Duration = Duration::from_millis(250);

/// The end of the browser's messages, for an error.
const MESSAGES_BYTES_MAX: usize = 4096;

/// Whom a server that runs as root runs the browser as: chromium's sandbox does not work as root.
const USER_OF_ROOT: &str = "nobody";

/// Chromium's descriptors for DevTools are 3 and 4; ours are its stdin and stdout.
/// It waits for a line, until it is in its control group.
const SHELL_LINE: &str = "read -r _ && exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null";

/// A network namespace without devices, in a user namespace, so that no privilege is needed.
const NO_NETWORK: [&str; 5] = ["unshare", "--user", "--map-current-user", "--net", "--"];

/// How browsers are started.
#[derive(Debug, Clone)]
pub(crate) struct BrowserPlan {
    pub(crate) program: PathBuf,
    /// The folder for profiles.
    pub(crate) dir: PathBuf,
    /// Pages at the same time.
    pub(crate) pages: usize,
    pub(crate) page_memory_bytes: u64,
    pub(crate) has_sandbox: bool,
}

/// A running browser; it ends when this is dropped.
pub(crate) struct Browser {
    pub(crate) devtools: Devtools,
    /// Its `User-Agent`, with our name.
    pub(crate) user_agent: String,
    /// Pages that it has rendered or renders.
    pub(crate) pages: AtomicU64,
    /// Memory of its pages, in bytes, and pages that were killed because of it.
    pub(crate) memory: Arc<MemoryFigures>,
    /// The limits for all pages together, or why there are none.
    pub(crate) limits: String,
    _child: ChildGroup,
}

#[derive(Default)]
pub(crate) struct MemoryFigures {
    pub(crate) bytes: AtomicU64,
    pub(crate) killed: AtomicU64,
}

/// The processes of a browser, and its folder. Dropping it ends and removes both.
struct ChildGroup {
    child: Child,
    dir: PathBuf,
    /// Why there is none: browsers do without.
    limited: Result<BrowserGroup, String>,
}

impl Drop for ChildGroup {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = signal_group(self.child.id(), Ending::Forced);
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl ChildGroup {
    /// Moves the process into its control group, if it has one, and lets it go on.
    fn release(&mut self) -> Result<(), String> {
        if let Ok(group) = &self.limited
            && let Err(why) = group.add(self.child.id())
        {
            self.limited = Err(why);
        }
        let input = self.child.stdin.as_mut().ok_or("the browser has no pipes")?;
        input.write_all(b"\n").map_err(|error| format!("a pipe to the browser: {error}"))
    }
}

impl Browser {
    /// Starts a browser. The calling thread must not end before it.
    ///
    /// # Errors
    /// Why it does not start, and what to do.
    pub(crate) async fn start(plan: &BrowserPlan) -> Result<Browser, String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = plan.dir.join(format!("browser-{number}"));
        let limited = BrowserGroup::make(number, plan.pages, plan.page_memory_bytes);
        let (mut child, messages) = spawn(plan, &dir, limited)?;
        let pipes = (child.child.stdin.take(), child.child.stdout.take());
        let (Some(input), Some(output)) = pipes else { return Err("the browser has no pipes".to_owned()) };
        let pipes = Sender::from_owned_fd(OwnedFd::from(input))
            .and_then(|input| Ok((input, Receiver::from_owned_fd(OwnedFd::from(output))?)));
        let (input, output) = pipes.map_err(|error| format!("pipes to the browser: {error}"))?;
        let devtools = Devtools::begin(input, output);
        let version = timeout(START_TIME_MAX, devtools.command("", "Browser.getVersion", json!({}))).await;
        let Ok(Ok(version)) = version else { return Err(explain(plan, &messages)) };
        let user_agent =
            text(&version, "userAgent").replace("HeadlessChrome", "Chrome") + " flatout-prerender";
        let memory = Arc::new(MemoryFigures::default());
        tokio::spawn(watch_memory(child.child.id(), plan.page_memory_bytes, Arc::downgrade(&memory)));
        let limits = match &child.limited {
            Ok(group) => group.limits.clone(),
            Err(why) => format!("none for all pages together: {why}"),
        };
        Ok(Browser { devtools, user_agent, pages: AtomicU64::new(0), memory, limits, _child: child })
    }
}

async fn watch_memory(group: u32, bytes_max: u64, figures: std::sync::Weak<MemoryFigures>) {
    loop {
        tokio::time::sleep(MEMORY_PERIOD).await;
        let Some(figures) = figures.upgrade() else { return };
        let found = tokio::task::spawn_blocking(move || limit_pages(group, bytes_max)).await;
        let (bytes, killed) = found.unwrap_or_default();
        figures.bytes.store(bytes, Ordering::Relaxed);
        figures.killed.fetch_add(killed, Ordering::Relaxed);
    }
}

type Messages = Arc<Mutex<Vec<u8>>>;

fn spawn(
    plan: &BrowserPlan,
    dir: &Path,
    limited: Result<BrowserGroup, String>,
) -> Result<(ChildGroup, Messages), String> {
    let place = |error: io::Error| format!("{}: {error}", dir.display());
    std::fs::DirBuilder::new().mode(0o700).create(dir).map_err(place)?;
    let user = user_of_browser()?;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", SHELL_LINE]);
    if has_namespaces(user) {
        command.args(NO_NETWORK);
    } else if plan.has_sandbox {
        let _ = std::fs::remove_dir_all(dir);
        return Err("prerender: this machine does not let unprivileged users make namespaces, so chromium's sandbox and its \
             separation from the network do not work; allow them (sysctl kernel.unprivileged_userns_clone=1, or \
             user.max_user_namespaces), or accept the risk with prerender-sandbox off"
            .to_owned());
    }
    command.arg(&plan.program).args(arguments(plan)).arg(format!("--user-data-dir={}", dir.display()));
    command.arg("about:blank");
    command.env_clear().envs(environment(dir));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir("/")
        .process_group(0);
    if let Some((uid, gid)) = user {
        chown(dir, Some(uid), Some(gid)).map_err(place)?;
        command.uid(uid).gid(gid);
    }
    let child = end_with_this_thread(&mut command).spawn();
    let child = child.map_err(|error| format!("{}: {error}", plan.program.display()))?;
    let mut group = ChildGroup { child, dir: dir.to_owned(), limited };
    group.release()?;
    let messages = Messages::default();
    if let Some(stderr) = group.child.stderr.take() {
        let messages = messages.clone();
        let thread = std::thread::Builder::new().name("flatout-browser".to_owned());
        thread.spawn(move || collect(stderr, &messages)).map_err(|error| format!("a thread: {error}"))?;
    }
    Ok((group, messages))
}

/// The user for the browser, if that is not our own.
fn user_of_browser() -> Result<Option<(u32, u32)>, String> {
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    match is_root {
        false => Ok(None),
        true => user_ids(USER_OF_ROOT).map(Some).map_err(|error| format!("user {USER_OF_ROOT}: {error}")),
    }
}

/// Whether the browser can have a network namespace, and its sandbox the namespaces that it needs.
fn has_namespaces(user: Option<(u32, u32)>) -> bool {
    let [program, arguments @ ..] = NO_NETWORK;
    let mut command = Command::new(program);
    command.args(arguments).arg("true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command.status().is_ok_and(|status| status.success())
}

fn environment(dir: &Path) -> [(&'static str, String); 7] {
    let dir = dir.display().to_string();
    [
        ("PATH", "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("HOME", dir.clone()),
        ("XDG_CONFIG_HOME", dir.clone()),
        ("XDG_CACHE_HOME", dir.clone()),
        ("TMPDIR", dir),
        // It looks for one otherwise, and waits.
        ("DBUS_SESSION_BUS_ADDRESS", "/dev/null".to_owned()),
    ]
}

fn arguments(plan: &BrowserPlan) -> Vec<String> {
    let fixed = [
        "--headless",
        "--remote-debugging-pipe",
        "--no-first-run",
        "--no-default-browser-check",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-breakpad",
        "--disable-client-side-phishing-detection",
        "--disable-component-update",
        "--disable-default-apps",
        "--disable-dev-shm-usage",
        "--disable-domain-reliability",
        "--disable-extensions",
        "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication",
        "--disable-notifications",
        "--disable-quic",
        "--disable-sync",
        "--metrics-recording-only",
        "--mute-audio",
        "--password-store=basic",
        "--site-per-process",
        "--use-mock-keychain",
        // Popups, permissions, and addresses of this machine.
        "--block-new-web-contents",
        "--deny-permission-prompts",
        "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
        // All requests are answered over the pipe. These make those fail that are not, also without a namespace: no name resolves, not
        // even that of the only proxy.
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--proxy-server=http://prerender.invalid:9",
        "--proxy-bypass-list=<-loopback>",
    ];
    let mut all: Vec<String> = fixed.into_iter().map(str::to_owned).collect();
    all.push(format!("--js-flags=--max-old-space-size={}", (plan.page_memory_bytes >> 20).max(64)));
    if !plan.has_sandbox {
        all.push("--no-sandbox".to_owned());
    }
    all
}

/// Reads the browser's messages until it ends, and keeps their end.
fn collect(mut stderr: impl Read, messages: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 1024];
    while let Ok(count) = stderr.read(&mut buffer) {
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { return };
        let mut messages = messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.extend_from_slice(bytes);
        let excess = messages.len().saturating_sub(MESSAGES_BYTES_MAX);
        messages.drain(..excess);
    }
}

fn explain(plan: &BrowserPlan, messages: &Mutex<Vec<u8>>) -> String {
    let messages = messages.lock().unwrap_or_else(PoisonError::into_inner);
    let messages = String::from_utf8_lossy(&messages);
    let program = plan.program.display();
    let last = messages.lines().rev().find(|line| !line.contains("dbus")).unwrap_or("it reports nothing");
    format!(
        "the browser `{program}` does not start: {last}; install Debian's chromium, or set prerender-browser"
    )
}
