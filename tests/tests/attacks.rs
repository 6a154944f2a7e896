//! The known attacks on HTTP/2 against `flatout serve`: its memory stays bounded, and other clients are
//! served. `./x bench attacks` measures their CPU cost, and the rate at which other clients are served.

#[path = "../../crates/engine/tests/support/attacks.rs"]
#[allow(dead_code, reason = "the engine's tests use more of it")]
mod attacks;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use attacks::{FLOODS, HOLDS, flood_until, hold_until};
use flatout_tests::{Folder, Server, program};

/// The additional memory that a server may use during an attack.
const MEMORY_BYTES_MAX: u64 = 32 << 20;

/// Concurrent attackers, with one connection each.
const FLOODS_AT_ONCE: usize = 8;

/// Connections that are held at the same time.
const HELD: usize = 50;

/// How long each attack lasts.
const TIME: Duration = Duration::from_millis(200);

/// A server with a small response, a large one, and a slow one.
fn serve(folder: &Folder) -> Server {
    folder.write("site/alive", "alive");
    folder.write("site/much", vec![b'm'; 1_000_000]);
    let site = folder.0.join("site").display().to_string();
    let text = "listen \"127.0.0.1:0\"\nworkers 1\nroute \"/never\" {\n    push\n}\n";
    folder.write("site.kdl", format!("{text}files {site:?}\n"));
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    Server::start(command)
}

/// A figure of the process's memory.
fn memory_bytes(server: &Server, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a figure");
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Requests that are served on one connection until `is_over`.
fn honest(mut socket: TcpStream, is_over: &AtomicBool) -> u32 {
    let mut served = 0;
    // At least one request: on a busy machine this thread may begin late.
    while served == 0 || !is_over.load(Ordering::Relaxed) {
        socket.write_all(b"GET /alive HTTP/1.1\r\nHost: t\r\n\r\n").expect("a server that reads");
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\nalive") {
            let mut piece = [0; 4096];
            let count = socket.read(&mut piece).expect("a response");
            assert!(count > 0, "closed behind {:?}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&piece[..count]);
        }
        served += 1;
    }
    served
}

/// Runs an attack beside an honest client, and checks the limits.
fn attacked(server: &Server, name: &str, attack: impl Fn(Instant) + Sync, attackers: usize) {
    let before = memory_bytes(server, "VmRSS");
    let is_over = AtomicBool::new(false);
    let ends = Instant::now() + TIME;
    let served = std::thread::scope(|scope| {
        let honest = scope.spawn(|| honest(server.connect(), &is_over));
        let attackers: Vec<_> = (0..attackers).map(|_| scope.spawn(|| attack(ends))).collect();
        attackers.into_iter().for_each(|attacker| attacker.join().expect("an attacker"));
        is_over.store(true, Ordering::Relaxed);
        honest.join().expect("an honest client")
    });
    let peak = memory_bytes(server, "VmHWM");
    let more = peak.saturating_sub(before);
    assert!(more < MEMORY_BYTES_MAX, "{name}: {} KiB more", more >> 10);
    assert!(served > 0, "{name}");
}

#[test]
fn memory_stays_bounded_and_other_clients_are_served() {
    let folder = Folder::new();
    let server = serve(&folder);
    for flood in FLOODS {
        let attack = |ends| {
            flood_until(server.address, flood, ends);
        };
        attacked(&server, flood.name, attack, FLOODS_AT_ONCE);
    }
    for hold in HOLDS {
        attacked(&server, hold.name, |ends| hold_until(server.address, hold, HELD, ends), 1);
    }
}
