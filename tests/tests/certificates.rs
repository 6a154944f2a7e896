//! Automatic certificates of `flatout serve`: from an ACME CA (pebble), and from a local CA.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flatout_tests::authority::Authority;
use flatout_tests::pebble::{Pebble, Ports};
use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Folder, PATIENCE, Server, Signal, program, until};

const NAME: &str = "www.flatout.test";

/// curl's exit status for a certificate that is not valid, or not any more.
const NOT_VALID: i32 = 60;

/// Lifetime of certificates that are not to be renewed, in seconds.
const LONG_S: u32 = 90 * 24 * 3600;

fn site() -> Folder {
    let site = Folder::new();
    site.write("index.html", "hello");
    site
}

/// A server for a domain, at the ports where the CA validates it.
fn served(site: &Folder, pebble: &Pebble, ports: Ports, state: &Path, flags: &[&str]) -> Server {
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg(&site.0).args(["--workers", "2", "--domain", NAME]);
    command.args(["--listen", &format!("127.0.0.1:{}", ports.tls)]);
    command.args(["--listen-plain", &format!("127.0.0.1:{}", ports.http)]);
    command.args(pebble.flags(state)).args(flags);
    Server::start(command)
}

fn says(server: &Server, what: &str) -> bool {
    server.said().iter().any(|line| line.contains(what))
}

fn wait_for(server: &Server, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !says(server, what) {
        assert!(Instant::now() < deadline, "not said in time: {what}: {:?}", server.said());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The one file below a folder whose name ends in this.
fn file(folder: &Path, ending: &str) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                return path;
            }
        }
    }
    panic!("no file {ending}");
}

fn ended(mut server: Server) {
    server.signal(Signal::TERM);
    assert!(server.wait().success());
}

#[test]
fn a_certificate_from_http_01_survives_a_restart() {
    let (site, state, ports) = (site(), Folder::new(), Ports::free());
    let pebble = Pebble::start(ports, LONG_S);
    let server = served(&site, &pebble, ports, &state.0, &["--acme-challenge", "http-01"]);
    wait_for(&server, "got a certificate for www.flatout.test, valid for 89 days");
    until("it is used", || pebble.curl(NAME, ports.tls, "/").as_deref() == Ok("hello"));
    let moved = server.get("/x", "");
    assert_eq!((moved.status, moved.field("location")), (308, Some(&*format!("https://t:{}/x", ports.tls))));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for ending in ["/ACCOUNT.json", "/www.flatout.test.pem", "/tickets"] {
        assert_eq!(mode(&file(&state.0, ending)), 0o600, "{ending}");
    }
    assert_eq!(fs::read_dir(state.0.join("acme/challenges")).unwrap().count(), 0, "nothing is left");
    ended(server);
    let server = served(&site, &pebble, ports, &state.0, &[]);
    assert_eq!(pebble.curl(NAME, ports.tls, "/").as_deref(), Ok("hello"), "at once");
    assert!(!says(&server, "next attempt in") && !says(&server, "got a certificate"), "{:?}", server.said());
}

#[test]
fn a_certificate_is_issued_by_tls_alpn_01() {
    let (site, state, ports) = (site(), Folder::new(), Ports::free());
    let pebble = Pebble::start(ports, LONG_S);
    let server = served(&site, &pebble, ports, &state.0, &["--acme-challenge", "tls-alpn-01"]);
    wait_for(&server, "got a certificate");
    until("it is used", || pebble.curl(NAME, ports.tls, "/").as_deref() == Ok("hello"));
}

#[test]
fn a_wildcard_certificate_is_issued_by_dns_01() {
    let (site, state, ports) = (site(), Folder::new(), Ports::free());
    let pebble = Pebble::start(ports, LONG_S);
    let hook = pebble.hook().display().to_string();
    let flags = ["--domain", "*.flatout.test", "--acme-dns-hook", &hook];
    let server = served(&site, &pebble, ports, &state.0, &flags);
    wait_for(&server, "got a certificate for *.flatout.test");
    until("it is used", || pebble.curl("any.flatout.test", ports.tls, "/").as_deref() == Ok("hello"));
    let hooked = pebble.hooked();
    for line in ["set _acme-challenge.flatout.test", "clear _acme-challenge.flatout.test"] {
        assert!(hooked.contains(line), "{hooked}");
    }
}

#[test]
fn an_unreachable_ca_does_not_stop_the_server() {
    let (site, state, ports) = (site(), Folder::new(), Ports::free());
    let pebble = Pebble::prepare(ports, LONG_S);
    let server = served(&site, &pebble, ports, &state.0, &["--https-redirect", "off"]);
    assert_eq!(server.get("/", "").text(), "hello");
    assert!(says(&server, "TLS connections to it are refused until the CA has issued one"));
    let untrusting = Authority::new();
    assert_eq!(untrusting.curl(NAME, ports.tls, "/", &["--insecure"]), Err(35), "no handshake");
    wait_for(&server, "the CA cannot be reached");
    let pebble = pebble.run();
    wait_for(&server, "got a certificate");
    until("it is used", || pebble.curl(NAME, ports.tls, "/").as_deref() == Ok("hello"));
}

#[test]
fn two_servers_with_one_state_folder_ask_once() {
    let (site, state, ports) = (site(), Folder::new(), Ports::free());
    let pebble = Pebble::start(ports, LONG_S);
    // Whichever server orders, the CA connects to the first.
    let first = served(&site, &pebble, ports, &state.0, &[]);
    let elsewhere = Ports::free();
    let second = served(&site, &pebble, elsewhere, &state.0, &[]);
    for port in [ports.tls, elsewhere.tls] {
        until("both use it", || pebble.curl(NAME, port, "/").as_deref() == Ok("hello"));
    }
    let said = [first.said(), second.said()].concat();
    assert_eq!(said.iter().filter(|line| line.contains("got a certificate")).count(), 1, "{said:?}");
    assert!(!said.iter().any(|line| line.contains("next attempt in")), "{said:?}");
}

#[test]
fn a_certificate_is_renewed_under_load_and_nothing_is_lost() {
    let (site, state, ports) = (site(), Folder::new(), Ports::free());
    let pebble = Pebble::start(ports, 30);
    let server = served(&site, &pebble, ports, &state.0, &[]);
    until("it is used", || pebble.curl(NAME, ports.tls, "/").as_deref() == Ok("hello"));
    let serial = || fs::read(file(&state.0, "/www.flatout.test.pem")).unwrap();
    let before = serial();
    let url = format!("https://127.0.0.1:{}/", ports.tls);
    let load = Command::new("h2load")
        .args(["-D", "25", "-c", "8", "-m", "4", "--rps", "50", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let newcomers = scope.spawn(|| {
            let mut failed = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                failed.extend(pebble.curl(NAME, ports.tls, "/").err());
            }
            failed
        });
        until("it is renewed", || serial() != before);
        until("the new one is used", || {
            server.said().iter().filter(|line| line.contains("certificates have changed")).count() >= 2
        });
        is_over.store(true, Ordering::Relaxed);
        // On a slow machine the CA may take longer than the old certificate has left: that loses no connection.
        let mut failed = newcomers.join().unwrap();
        failed.retain(|&status| status != NOT_VALID);
        assert_eq!(failed, Vec::<i32>::new(), "{:?}", server.said());
    });
    let output = load.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains(" 0 failed, 0 errored, 0 timeout"), "{text}");
}

#[test]
fn an_upgrade_during_an_order_restarts_the_order() {
    let (site, state, ports) = (site(), Folder::new(), Ports::free());
    let pebble = Pebble::start(ports, LONG_S);
    let admin = state.0.join("admin.sock");
    let flag = format!("unix:{}", admin.display());
    let mut server =
        served(&site, &pebble, ports, &state.0, &["--acme-challenge", "http-01", "--admin", &flag]);
    let challenges = state.0.join("acme/challenges");
    let token = || {
        let mut names =
            fs::read_dir(&challenges).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.find(|name| !name.starts_with('.'))
    };
    until("the CA is to look", || token().is_some());
    let asked = format!("/.well-known/acme-challenge/{}", token().unwrap());
    let second = orphan(&upgrade(&admin).unwrap());
    assert!(server.wait().success(), "it has nothing else to do, and leaves its order as it is");
    until("the new process answers for it", || server.get(&asked, "").status == 200);
    until("there is a certificate", || pebble.curl(NAME, ports.tls, "/").as_deref() == Ok("hello"));
    // A later process uses the existing certificate from its first connection on.
    let is_over = AtomicBool::new(false);
    let _third = std::thread::scope(|scope| {
        let newcomers = scope.spawn(|| {
            let mut failed = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                failed.extend(pebble.curl(NAME, ports.tls, "/").err());
            }
            failed
        });
        let third = orphan(&upgrade(&admin).unwrap());
        until("the second ends", || !second.is_there());
        assert_eq!(pebble.curl(NAME, ports.tls, "/").as_deref(), Ok("hello"));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(newcomers.join().unwrap(), Vec::<i32>::new());
        third
    });
}

#[test]
fn broken_state_files_are_replaced_and_readable_ones_refused() {
    let (site, state, ports) = (site(), Folder::new(), Ports::free());
    let pebble = Pebble::start(ports, LONG_S);
    let server = served(&site, &pebble, ports, &state.0, &[]);
    wait_for(&server, "got a certificate");
    ended(server);
    let (account, certificate) = (file(&state.0, "/ACCOUNT.json"), file(&state.0, "/www.flatout.test.pem"));
    for (path, text) in [(&account, "{"), (&certificate, "nonsense"), (&file(&state.0, "/tickets"), "x")] {
        fs::write(path, text).unwrap();
    }
    let server = served(&site, &pebble, ports, &state.0, &[]);
    wait_for(&server, "got a certificate");
    until("it is used", || pebble.curl(NAME, ports.tls, "/").as_deref() == Ok("hello"));
    for said in ["no certificate in it", "the ACME account is broken", "earlier sessions cannot be resumed"] {
        assert!(says(&server, said), "{said}: {:?}", server.said());
    }
    ended(server);
    fs::set_permissions(&certificate, Permissions::from_mode(0o644)).unwrap();
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg(&site.0).args(["--domain", NAME, "--listen", "127.0.0.1:0"]);
    let output = command.args(pebble.flags(&state.0)).stdin(Stdio::null()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        message.contains("others may read or write it (mode 0644)") && message.contains("chmod 600"),
        "{message}"
    );
}

#[test]
fn failed_orders_are_retried() {
    let (site, state, ports) = (site(), Folder::new(), Ports::free());
    let pebble = Pebble::start(ports, LONG_S);
    // The CA validates the name at a port without a listener.
    let server = served(&site, &pebble, Ports::free(), &state.0, &["--acme-challenge", "http-01"]);
    wait_for(&server, "no certificate for www.flatout.test: refused by the CA: ");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}/dir", silent.local_addr().unwrap().port());
    let state = Folder::new();
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg(&site.0).args(["--domain", NAME, "--https-redirect", "off"]);
    command.args(["--listen", "127.0.0.1:0", "--listen-plain", "127.0.0.1:0", "--acme-directory", &url]);
    let mut server = Server::start({
        command.arg("--state").arg(&state.0);
        command
    });
    wait_for(&server, "public CAs do not issue a certificate for it: names that end in `test` are reserved");
    let _asked = silent.accept().unwrap();
    assert_eq!(server.get("/", "").text(), "hello");
    server.signal(Signal::TERM);
    assert!(server.wait().success(), "a CA that does not answer holds nobody up");
}

#[test]
fn a_local_ca_signs_for_this_machine_and_is_kept() {
    let (site, state) = (site(), Folder::new());
    let start = || {
        let mut command = Command::new(program("flatout"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--tls", "local"]).arg(&site.0);
        command.arg("--state").arg(&state.0);
        Server::start(command)
    };
    let trusted = |server: &Server, name: &str, url: &str| {
        let port = server.secure_port.unwrap();
        let output = Command::new("curl")
            .args(["-s", "--max-time", "10", "--cacert"])
            .arg(state.0.join("local/ca.pem"))
            .args(["--resolve", &format!("{name}:{port}:127.0.0.1"), &format!("https://{url}:{port}/")])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let server = start();
    assert_eq!(trusted(&server, "localhost", "localhost"), "hello");
    assert_eq!(trusted(&server, "localhost", "127.0.0.1"), "hello");
    assert!(says(
        &server,
        "local/ca.pem /usr/local/share/ca-certificates/flatout-local-ca.crt && sudo update-ca-certificates"
    ));
    let authority = fs::read(state.0.join("local/ca.pem")).unwrap();
    ended(server);
    let server = start();
    assert_eq!(trusted(&server, "localhost", "localhost"), "hello");
    assert_eq!(fs::read(state.0.join("local/ca.pem")).unwrap(), authority);
    let mode = fs::metadata(state.0.join("local/ca.key")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
}

#[test]
fn sessions_outlive_a_restart_with_a_state_folder() {
    let (site, authority, state) = (site(), Authority::new(), Folder::new());
    authority.sign("a", "a.test");
    let (certificate, key, kept) =
        (authority.path("a.pem"), authority.path("a.key"), state.0.display().to_string());
    let start = |flags: &[&str]| {
        let mut command = Command::new(program("flatout"));
        command
            .arg("serve")
            .arg(&site.0)
            .args(["--listen", "127.0.0.1:0", "--tls", &certificate, &key])
            .args(flags);
        Server::start(command)
    };
    let session = authority.path("session");
    // TLS 1.2: openssl writes its session without waiting for anything after the handshake.
    let connect = |server: &Server, flag: &str| {
        let port = server.secure_port.unwrap();
        let output = Command::new("openssl")
            .args(["s_client", "-tls1_2", "-connect", &format!("127.0.0.1:{port}"), "-servername", "a.test"])
            .args([flag, &session])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for (flags, expected) in [(&["--state", kept.as_str()][..], "Reused, TLSv1.2"), (&[], "New, TLSv1.2")] {
        let server = start(flags);
        assert!(connect(&server, "-sess_out").contains("New, TLSv1.2"));
        ended(server);
        let said = connect(&start(flags), "-sess_in");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn hsts_is_sent_over_https_only() {
    let (site, authority) = (site(), Authority::new());
    authority.sign("a", "a.test");
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg(&site.0).args(["--listen", "127.0.0.1:0", "--listen-plain", "127.0.0.1:0"]);
    command.args([
        "--tls",
        &authority.path("a.pem"),
        &authority.path("a.key"),
        "--hsts",
        "365d subdomains=on",
    ]);
    let server = Server::start(command);
    let port = server.secure_port.unwrap();
    for target in ["/", "/nowhere"] {
        let head = authority.curl("a.test", port, target, &["--head"]).unwrap().to_lowercase();
        assert_eq!(
            head.matches("strict-transport-security: max-age=31536000; includesubdomains\r\n").count(),
            1,
            "{head}"
        );
        assert_eq!(server.get(target, "").field("strict-transport-security"), None);
    }
}

#[test]
fn mistakes_are_reported_before_binding() {
    for (flags, expected) in [
        (&["--domain", "1.2.3.4"][..], "certificates for addresses are not supported"),
        (&["--domain", "a b"], "need a domain such as example.org"),
        (&["--domain", "*.a.test"], "*.a.test: needs a program that sets DNS records"),
        (&["--domain", "a.test", "--acme-challenge", "dns-01"], "acme-challenge dns-01: needs a program"),
        (&["--acme-contact", "a@b.test"], "acme-contact: there is no domain"),
        (&["--domain", "a.test", "--acme-directory", "http://a.test/"], "need an address with https://"),
        (&["--domain", "a.test", "--acme-contact", "nobody"], "need an address such as"),
    ] {
        let output =
            Command::new(program("flatout")).arg("serve").args(flags).stdin(Stdio::null()).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}
