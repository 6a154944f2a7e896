//! Reloads and upgrades apply a file as a fresh start would, or refuse it and change nothing.

use std::collections::HashMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flatout_tests::authority::Authority;
use flatout_tests::upgrading::{Orphan, orphan, upgrade};
use flatout_tests::{Folder, Server, program, until};

/// Ports of a file.
type Ports = [u16; 3];

/// Ports that are free now.
fn free_ports() -> Ports {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// Reloads. Returns the message of success or of failure.
fn reload(admin: &Path) -> Result<String, String> {
    let admin = format!("unix:{}", admin.display());
    let output = Command::new(program("flatout")).args(["reload", "--admin", &admin]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// A server, its file, and the process that has taken over from it, if any.
struct Site {
    folder: Folder,
    admin: PathBuf,
    /// Killed when it is dropped.
    _server: Server,
    successor: Option<Orphan>,
}

impl Site {
    /// Starts a server with `text` and an admin listener.
    fn start(text: &str) -> Site {
        let folder = Folder::new();
        let admin = folder.0.join("admin.sock");
        write(&folder, &admin, text);
        let mut command = Command::new(program("flatout"));
        command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
        Site { _server: Server::start(command), folder, admin, successor: None }
    }

    fn write(&self, text: &str) {
        write(&self.folder, &self.admin, text);
    }

    fn upgrade(&mut self) -> Result<(), String> {
        // The former successor is to drain, not to be killed.
        if let Some(former) = self.successor.replace(orphan(&upgrade(&self.admin)?)) {
            std::mem::forget(former);
        }
        Ok(())
    }
}

fn write(folder: &Folder, admin: &Path, text: &str) {
    folder.write("site.kdl", format!("admin \"unix:{}\"\n{text}", admin.display()));
}

/// What clients get at a port: without TLS, with it, with a client certificate, with an old version, and whatever the
/// certificate is.
fn probe(authority: &Authority, port: u16) -> [String; 5] {
    let (certificate, key) = (authority.path("client.pem"), authority.path("client.key"));
    let as_client = ["--cert", &certificate, "--key", &key];
    let told = |said: Result<String, i32>| match said {
        Ok(body) => body,
        Err(7) => "closed".to_owned(),
        Err(60) => "another certificate".to_owned(),
        // The number depends on when the client notices.
        Err(_) => "refused".to_owned(),
    };
    let plain = Command::new("curl")
        .args(["--silent", "--max-time", "30", &format!("http://127.0.0.1:{port}/")])
        .output()
        .unwrap();
    let plain = match plain.status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&plain.stdout).into_owned()),
        code => Err(code.unwrap_or(-1)),
    };
    let secure = |more: &[&str]| told(authority.curl("a.test", port, "/", more));
    let with = |more: &[&'static str]| secure(&[&as_client[..], more].concat());
    [told(plain), secure(&[]), with(&[]), with(&["--tls-max", "1.2"]), with(&["--insecure"])]
}

fn probe_all(authority: &Authority, ports: Ports) -> [[String; 5]; 3] {
    ports.map(|port| probe(authority, port))
}

/// Files that differ in how their ports speak, in an order in which each follows from another in one step.
fn files(authority: &Authority, state: &Path) -> Vec<(&'static str, String)> {
    let tls = |name: &str| {
        format!(
            "tls {:?} {:?}\n",
            authority.path(&format!("{name}.pem")),
            authority.path(&format!("{name}.key"))
        )
    };
    let (a, b) = (tls("a"), tls("b"));
    let ca = format!("tls-client-ca {:?}\n", authority.path("ca.pem"));
    let optional = format!("tls-client-ca {:?} optional=on\n", authority.path("ca.pem"));
    let local = format!("tls \"local\"\nstate {:?}\n", state.display().to_string());
    let domain = "domain \"a.test\"\nacme-directory \"https://127.0.0.1:1/\"\nhttps-redirect off\n";
    let listen = |ports: &str| -> String {
        ports.chars().map(|port| format!("listen \"127.0.0.1:{{{port}}}\"\n")).collect()
    };
    let plain = |ports: &str| listen(ports).replace("listen ", "listen-plain ");
    vec![
        ("tls", listen("A") + &a),
        ("another text", listen("A") + &a),
        ("a listener more", listen("AC") + &a),
        ("client certificates", listen("AC") + &a + &ca),
        ("optional client certificates", listen("AC") + &a + &optional),
        ("without client certificates", listen("AC") + &a),
        ("another certificate", listen("AC") + &b),
        ("both certificates, only new versions", listen("AC") + &a + &b + "tls-min-version \"1.3\"\n"),
        ("a plain listener", listen("AC") + &plain("B") + &a),
        ("plain and secure swapped", listen("BC") + &plain("A") + &a),
        ("swapped back, with client certificates", listen("AC") + &plain("B") + &a + &ca),
        ("a listener less", listen("C") + &plain("B") + &a + &ca),
        ("nothing secure", listen("AC")),
        ("another plain listener", listen("ABC")),
        ("secure again", listen("A") + &plain("B") + &a + &ca),
        ("a shared port", listen("A") + &plain("B") + &a + &ca + "share-port\n"),
        ("a shared port more", listen("AC") + &plain("B") + &a + &ca + "share-port\n"),
        ("a shared port swapped", listen("BC") + &plain("A") + &a + &ca + "share-port\n"),
        ("a local certificate", listen("A") + &plain("B") + &local),
        ("local, with client certificates", listen("AC") + &plain("B") + &local + &ca),
        ("a domain", listen("AC") + &plain("B") + &local + domain),
        ("a domain, with client certificates", listen("BC") + &plain("A") + &local + &ca + domain),
        ("the end", listen("AB") + &plain("C") + &a),
    ]
}

fn at(ports: Ports, name: &str, text: &str) -> String {
    let ports = ["{A}", "{B}", "{C}"].into_iter().zip(ports);
    let text = ports.fold(text.to_owned(), |text, (name, port)| text.replace(name, &port.to_string()));
    format!("workers 2\n{text}respond 200 {name:?}\n")
}

/// The CA that signs servers and clients, and a state folder.
fn authority() -> (Authority, Folder) {
    let authority = Authority::new();
    authority.sign("a", "a.test");
    authority.sign("b", "b.test");
    authority.sign("client", "client");
    let state = Folder::new();
    fs::set_permissions(&state.0, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    (authority, state)
}

/// What clients get at each port of a file after a fresh start.
fn fresh(authority: &Authority, name: &str, text: &str) -> [[String; 5]; 3] {
    let ports = free_ports();
    let _site = Site::start(&at(ports, name, text));
    probe_all(authority, ports)
}

#[test]
fn every_port_speaks_after_a_reload_as_after_a_fresh_start() {
    let (authority, state) = authority();
    let (ports, files) = (free_ports(), files(&authority, &state.0));
    let (name, text) = &files[0];
    let mut site = Site::start(&at(ports, name, text));
    let mut before = fresh(&authority, name, text);
    assert_eq!(probe_all(&authority, ports), before);
    let mut refused = Vec::new();
    for (name, text) in &files[1..] {
        site.write(&at(ports, name, text));
        if let Err(why) = reload(&site.admin) {
            assert!(why.contains("restart"), "{name}: {why}");
            assert_eq!(probe_all(&authority, ports), before, "{name}: refused, so nothing changes: {why}");
            refused.push(*name);
            site.upgrade().unwrap_or_else(|why| panic!("{name}: {why}"));
        }
        let expected = fresh(&authority, name, text);
        // Listeners that were removed stay for a moment, and so does a process that was replaced.
        until(name, || probe_all(&authority, ports) == expected);
        before = expected;
    }
    let expected = ["nothing secure", "secure again", "a shared port", "a local certificate", "the end"];
    assert_eq!(refused, expected, "the others need no restart");
}

#[test]
fn every_port_speaks_after_an_upgrade_as_after_a_fresh_start() {
    let (authority, state) = authority();
    let (ports, files) = (free_ports(), files(&authority, &state.0));
    let (name, text) = &files[0];
    let mut site = Site::start(&at(ports, name, text));
    for (name, text) in &files[1..] {
        site.write(&at(ports, name, text));
        site.upgrade().unwrap_or_else(|why| panic!("{name}: {why}"));
        let expected = fresh(&authority, name, text);
        until(name, || probe_all(&authority, ports) == expected);
    }
}

/// Words of a site file that are not settings.
const BLOCKS: [&str; 13] = [
    "site",
    "route",
    "files",
    "proxy",
    "push",
    "redirect",
    "respond",
    "stub-status",
    "reroute",
    "close",
    "upstream",
    "map",
    "tls-passthrough",
];

/// Settings of which a file may have several: a change adds one. Others are replaced.
const LISTS: [&str; 6] = ["listen", "listen-plain", "tls", "domain", "admin", "response-header"];

/// Settings that this test does not change by an upgrade: the number of workers must stay, becoming another user needs
/// root, not every kernel polls, a redirect hides the rest, and a bus that cannot be reached makes each later upgrade wait.
const NOT_UPGRADED: [&str; 5] = ["workers", "busy-poll", "user", "https-redirect", "bus"];

/// The file in which each setting is changed; `{F}` is its folder.
const BASE: &str = "workers 2\nlisten \"127.0.0.1:{A}\"\nlisten-plain \"127.0.0.1:{B}\"\ntls \"{F}/cert.pem\" \"{F}/key.pem\"\n\
    state \"{F}/state\"\ndomain \"a.test\"\nacme-directory \"https://127.0.0.1:1/\"\nhttps-redirect off\n\
    access-log \"{F}/access.log\"\nbasic-auth \"realm\" file=\"{F}/users\"\n";

/// A change of each setting.
const CHANGES: &str = r#"
listen "127.0.0.1:{C}"
workers 3
cpus "0"
busy-poll "50us"
tunnel-time "2h"
limit-rate "1MiB"
limit-rate-after "1KiB"
user "nobody"
server-name "other"
drain-time "31s"
tunnel-drain-time "2h"
trusted-proxies "192.0.2.0/24"
resolver "192.0.2.53"
client-address "x-real-ip"
tls "{F}/cert.pem" "{F}/other.pem"
listen-plain "127.0.0.1:{C}"
https-redirect on
hsts "1h"
underscore-headers on
request-trailers "x-sum"
hide "*.bak"
push-group "other"
request-time "61s"
tls-min-version "1.3"
tls-client-ca "{F}/cert.pem"
early-data on
tls-handshake-time "9s"
domain "b.test"
acme-directory "https://127.0.0.1:2/"
acme-contact "a@a.test"
acme-ca "{F}/cert.pem"
acme-challenge "tls-alpn-01"
acme-dns-hook "{F}/hook"
acme-profile "short"
state "{F}/state-2"
index "none.html" "other.html"
spa
listing
compress off
cache-control "no-store"
small-bytes "1KiB"
memory-bytes "1MiB"
changes "off"
ranges 3
encode gzip
encode-types "text/css"
encode-min "2KiB"
decode on
methods GET
paths strict
rewrite "^/a" "/b"
rewrite-prefix "/a" "/b"
log-requests off
replace-text "a" "b"
replace-types "text/*"
charset "koi8-r"
charset-types "text/css"
redirect-origin "http://$host"
request-param "A" "$host"
request-header set "X-A" "b"
response-header set "X-A" "b"
response-trailer "X-A" "b"
error-page 404 text="none"
maintenance on except="127.0.0.1"
try-files "{F}" final=on
files-at "/app/"
allow all
deny "192.0.2.1"
satisfy any
set "later" "x"
when "method == 'PUT'" { response-header set "X-B" "b" }
expires "1h"
proxy-redirect "http://a.test/" "/"
proxy-cookie-domain "a.test" "b.test"
proxy-cookie-path "/a" "/b"
proxy-cookie-flags "*" secure
rate-limit "1000/s"
request-limit 20
basic-auth "other" file="{F}/users"
auth-user "bob" "$2y$12$abcdefghijklmnopqrstuuJ5oJ8pHWiK6GxCfX1GDZwm4mwHcvGZa"
forward-auth "http://127.0.0.1:1" path="/a"
cors "https://a.test"
proxy-host "a.test"
proxy-method PUT
proxy-body "text"
forward-headers off
x-forwarded off
forwarded on
via "edge"
buffer-requests
buffer-response "1MiB"
x-accel on
x-sendfile "{F}" "/files"
mirror "http://127.0.0.1:1" share="10%"
buffer-dir "{F}"
buffer-size "1MiB"
buffer-memory "1MiB"
forward-path normal
upgrade off
cache "1m"
cache-valid "1m" 404
cache-key "$host$request_uri"
cache-bypass "$http_x_a"
cache-refresh "$http_x_a"
cache-no-store "$http_x_a"
cache-min-uses 2
cache-ignore "Expires"
cache-stale "1s" 503
cache-updating "1s"
prerender
prerender-for ai=off
prerender-when "method == 'GET'"
prerender-verify all
prerender-addresses "GPTBot" "{F}/networks.txt"
prerender-time "3s"
prerender-stale "3s"
prerender-allow "https://a.test"
prerender-pages 3
prerender-queue 3
prerender-client-budget "3/m"
prerender-site-budget "3/m"
prerender-refresh 3
prerender-quiet "02:00-03:00"
prerender-warm-rate "3/m"
prerender-page-time "3s"
prerender-page-memory "200MiB"
prerender-browser-pages 3
prerender-browser "chromium-3"
prerender-sandbox off
cache-slice "1MiB"
cache-status off
cache-memory "1MiB"
cache-inactive "1h"
cache-dir "{F}/cache"
cache-size "1GiB"
balance least-connections
protocol h2c
pool 3
pool-time "3s"
upstream-connections 3
queue 3
queue-time "3s"
connect-time "3s"
send-time "3s"
read-time "3s"
retries 3
fastcgi-root "/srv/a" index="a.php" front=off split=".a" at="/a/"
fastcgi-param "A" "b"
scgi-param "C" "d"
uwsgi-param "E" "f"
retry-on error 503
retry-time "3s"
retry-budget "3%"
failures 3 window="3s"
health-check "/health"
slow-start "3s"
eject-outliers on interval="3s"
send-proxy v1
upstream-source "127.0.0.1"
named-servers "*.test" time="3s"
upstream-state "{F}/state.json"
upstream-name "a.test"
upstream-ca "{F}/cert.pem"
upstream-certificate "{F}/cert.pem" "{F}/key.pem"
upstream-verify off
push-token "secret"
push-secret "12345678901234567890123456789012"
push-kind latest
push-history 3
push-message-bytes "1KiB"
push-lag 3
push-heartbeat "3s"
push-retry "3s"
push-poll-time "3s"
push-keys-line "{value}"
push-origin "https://a.test"
push-subscribers 3
push-per-address 3
push-channels 3
push-memory "1MiB"
access-log "{F}/other.log"
log-format json
log-buffer "1KiB"
log-flush "3s"
log-only "status>=500"
log-sample 3
log-level warning
admin "unix:{F}/other.sock"
admin-public
head-bytes "1KiB"
uri-bytes "1KiB"
headers 30
body-bytes "1KiB"
bodies-memory "1MiB"
half-close on
head-time "3s"
idle-time "3s"
min-rate 3
min-rate-window "3s"
connections 300
connections-per-address 300
requests-per-connection 3
http2 off
streams 3
stream-window "1MiB"
backlog 300
nodelay off
tcp-keepalive "3s"
defer-accept "3s"
congestion reno
share-port
locality off
bus "nats://127.0.0.1:1"
"#;

/// Every setting, and whether the manual says that a change of it needs a restart.
fn settings() -> HashMap<String, bool> {
    let output = Command::new(program("flatout")).args(["check", "--schema"]).output().unwrap();
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut found = HashMap::new();
    for scope in schema["$defs"].as_object().unwrap().values() {
        for (name, word) in scope["properties"].as_object().unwrap() {
            let is_setting = !BLOCKS.contains(&name.as_str())
                && !["server", "servers-file", "case", "default"].contains(&name.as_str());
            if is_setting {
                let help = word["description"].as_str().unwrap();
                found.insert(name.clone(), help.contains("a change needs a restart"));
            }
        }
    }
    found
}

/// Each setting is changed in a running server: the reload applies it, or refuses it by name and leaves everything as it
/// was. An upgrade applies what a reload refuses.
#[test]
fn a_reload_applies_or_refuses_a_change_of_every_setting() {
    let (ports, folder) = (free_ports(), Folder::new());
    flatout_tests::authority::self_sign(&folder);
    fs::copy(folder.0.join("key.pem"), folder.0.join("other.pem")).unwrap();
    folder.write("networks.txt", "192.0.2.0/24\n");
    folder.write("users", "eve:$2y$12$abcdefghijklmnopqrstuuJ5oJ8pHWiK6GxCfX1GDZwm4mwHcvGZa\n");
    let filled = |text: &str| {
        let text = text.replace("{F}", &folder.0.display().to_string());
        ["{A}", "{B}", "{C}"]
            .iter()
            .zip(ports)
            .fold(text, |text, (name, port)| text.replace(name, &port.to_string()))
    };
    let text = |settings: &str, generation: usize| {
        format!(
            "{}response-header set \"X-Generation\" \"{generation}\"\nrespond 200 \"hello\"\n",
            filled(settings)
        )
    };
    let mut base = BASE.to_owned();
    let mut site = Site::start(&text(&base, 0));
    let served = |generation: usize| {
        let address = ([127, 0, 0, 1], ports[1]).into();
        let mut stream = std::net::TcpStream::connect::<std::net::SocketAddr>(address).unwrap();
        stream.set_read_timeout(Some(flatout_tests::PATIENCE)).unwrap();
        std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            .unwrap();
        let answers = flatout_tests::answers(&flatout_tests::read_to_close(&mut stream), false);
        answers.first().and_then(|answer| answer.field("x-generation")) == Some(&generation.to_string())
    };
    let mut settings = settings();
    let (mut in_force, mut generation) = (0, 0);
    for change in CHANGES.lines().filter(|line| !line.is_empty()) {
        let name = change.split(' ').next().unwrap();
        let is_refused = settings.remove(name).unwrap_or_else(|| panic!("there is no setting `{name}`"));
        let kept = base.lines().filter(|line| LISTS.contains(&name) || line.split(' ').next() != Some(name));
        let changed = kept.chain([change]).map(|line| format!("{line}\n")).collect::<String>();
        generation += 1;
        site.write(&text(&changed, generation));
        match reload(&site.admin) {
            Ok(said) => {
                assert!(!is_refused, "{name}: it should be refused: {said}");
                until(name, || served(generation));
            }
            Err(why) => {
                assert!(is_refused, "{name}: {why}");
                assert!(
                    why.contains(&format!("`{name}`")) && why.contains("need a restart"),
                    "{name}: {why}"
                );
                assert!(served(in_force), "{name}: it was refused, so nothing changes");
                if NOT_UPGRADED.contains(&name) {
                    continue;
                }
                site.upgrade().unwrap_or_else(|why| panic!("{name}: {why}"));
                until(name, || served(generation));
                base = changed;
            }
        }
        // Back to the base, which has what needed a restart.
        generation += 1;
        site.write(&text(&base, generation));
        reload(&site.admin).unwrap_or_else(|why| panic!("after {name}: {why}"));
        until(name, || served(generation));
        in_force = generation;
    }
    assert!(
        settings.is_empty(),
        "settings without a change in this test: add one to CHANGES for {settings:?}"
    );
}
