//! Servers that stand out from their siblings: they pause, are shown with the reason, and come back.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flatout_tests::{Folder, Server, Signal, program, until};

/// A server that can be made slow, or to fail.
struct Origin {
    address: SocketAddr,
    requests: Arc<AtomicU64>,
    fails: Arc<AtomicBool>,
    is_slow: Arc<AtomicBool>,
}

impl Origin {
    fn start() -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, fails, is_slow): (Arc<AtomicU64>, Arc<AtomicBool>, Arc<AtomicBool>) =
            Default::default();
        let origin =
            Origin { address, requests: requests.clone(), fails: fails.clone(), is_slow: is_slow.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let (requests, fails, is_slow) = (requests.clone(), fails.clone(), is_slow.clone());
                std::thread::spawn(move || {
                    let mut seen = Vec::new();
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        seen.extend_from_slice(&buffer[..count]);
                        if !seen.ends_with(b"\r\n\r\n") {
                            continue;
                        }
                        seen.clear();
                        requests.fetch_add(1, Ordering::Relaxed);
                        // The time of the application, not a wait of the test.
                        let time_ms = if is_slow.load(Ordering::Relaxed) { 30 } else { 1 };
                        std::thread::sleep(Duration::from_millis(time_ms));
                        let status = if fails.load(Ordering::Relaxed) { "500 Bad" } else { "200 OK" };
                        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok");
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        origin
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

struct Site {
    folder: Folder,
    server: Server,
}

impl Site {
    fn of(origins: &[Origin], settings: &str) -> Site {
        let folder = Folder::new();
        let servers: Vec<String> = origins.iter().map(|it| format!("server \"{}\"", it.address)).collect();
        folder.write(
            "site.kdl",
            format!(
                "listen \"127.0.0.1:0\"\nworkers 1\nadmin \"unix:{}\"\nupstream app {{\n{}\n\
                 eject-outliers on interval=\"1s\" requests=20 {settings}\n}}\nsite \"*\" {{ proxy app }}\n",
                folder.0.join("admin.sock").display(),
                servers.join("\n")
            ),
        );
        let mut command = Command::new(program("flatout"));
        command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
        Site { server: Server::start(command), folder }
    }

    fn ask(&self) -> u16 {
        self.server.get("/", "").status
    }

    fn admin(&self) -> PathBuf {
        self.folder.0.join("admin.sock")
    }

    fn list(&self) -> String {
        let mut command = Command::new(program("flatout"));
        command.args(["upstream", "list", "--admin", &format!("unix:{}", self.admin().display())]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    fn metrics(&self) -> String {
        let mut stream = UnixStream::connect(self.admin()).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn top(&self) -> serde_json::Value {
        let output = Command::new(program("flatout"))
            .args(["top", &format!("unix:{}", self.admin().display()), "--json", "--count", "1"])
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Sends requests until a server is shown in this state.
    fn until_shown(&self, state: &str) -> String {
        let mut list = String::new();
        until(state, || {
            for _ in 0..20 {
                self.ask();
            }
            list = self.list();
            list.contains(state)
        });
        list
    }
}

fn origins() -> [Origin; 3] {
    [Origin::start(), Origin::start(), Origin::start()]
}

#[test]
fn a_server_with_more_errors_than_others_pauses_and_returns() {
    let origins = origins();
    origins[1].fails.store(true, Ordering::Relaxed);
    let site = Site::of(&origins, "pause=\"3s\" slow=off");
    let list = site.until_shown("ejected (100 % errors, others 0.0 %)");
    assert_eq!(list.matches("ejected").count(), 1, "{list}");
    let before = origins[1].requests();
    assert!((0..30).all(|_| site.ask() == 200), "it gets no requests");
    assert_eq!(origins[1].requests(), before);
    let metrics = site.metrics();
    let labels = format!("{{upstream=\"app\",server=\"{}\"", origins[1].address);
    for expected in [
        format!("flatout_upstream_ejections_total{labels},reason=\"errors\"}} 1\n"),
        format!("flatout_upstream_server_state{labels},state=\"ejected\"}} 1\n"),
    ] {
        assert!(metrics.contains(&expected), "{expected}{metrics}");
    }
    let top = site.top();
    let server = &top["upstreams"][0]["servers"][1];
    assert_eq!(
        (&server["state"], &server["why"]),
        (&"ejected".into(), &"100 % errors, others 0.0 %".into()),
        "{top}"
    );
    // A reload keeps it out.
    site.server.signal(Signal::HUP);
    until("the reload", || site.server.said().iter().any(|line| line.contains("reload")));
    assert!(site.list().contains("ejected"), "{}", site.list());
    origins[1].fails.store(false, Ordering::Relaxed);
    until("its return", || !site.list().contains("ejected"));
    until("requests", || {
        site.ask();
        origins[1].requests() > before
    });
    let said = site.server.said().join("\n");
    let name = origins[1].address;
    assert!(said.contains(&format!("server {name} is ejected for 3 s: 100 % errors")), "{said}");
    assert!(said.contains(&format!("server {name} gets requests again after its pause")), "{said}");
}

#[test]
fn a_server_that_is_slower_than_others_pauses() {
    let origins = origins();
    origins[2].is_slow.store(true, Ordering::Relaxed);
    let site = Site::of(&origins, "pause=\"1h\"");
    let list = site.until_shown("times as slow as others");
    let row = list.lines().find(|line| line.contains("ejected")).unwrap();
    assert!(row.contains(&origins[2].address.to_string()), "{list}");
}

#[test]
fn half_of_the_servers_stay_and_serve() {
    let origins = origins();
    origins[0].fails.store(true, Ordering::Relaxed);
    let site = Site::of(&origins, "pause=\"1h\" slow=off");
    site.until_shown("ejected");
    origins[1].fails.store(true, Ordering::Relaxed);
    until("a second one that stands out", || {
        for _ in 0..20 {
            site.ask();
        }
        site.server.said().iter().any(|line| line.contains("and stays: 1 of 3 servers are out already"))
    });
    assert_eq!(site.list().matches("ejected").count(), 1, "{}", site.list());
}

#[test]
fn servers_that_all_fail_are_not_ejected() {
    let origins = origins();
    origins.iter().for_each(|origin| origin.fails.store(true, Ordering::Relaxed));
    let site = Site::of(&origins, "slow=off");
    let ejections =
        || site.metrics().lines().any(|line| line.contains("ejections_total") && !line.ends_with(" 0"));
    let before: u64 = origins.iter().map(Origin::requests).sum();
    until("several comparisons", || {
        for _ in 0..50 {
            site.ask();
        }
        origins.iter().map(Origin::requests).sum::<u64>() > before + 1500
    });
    assert!(!ejections());
}
