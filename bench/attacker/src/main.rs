//! Runs one of the known attacks on HTTP/2 against a server for a while.
//!
//! `attacker --list` prints their names. `attacker ADDRESS SECONDS CONNECTIONS NAME` runs one. A flood uses
//! this many concurrent connections, and replaces those that the server closes. Other attacks hold this many
//! connections open.
#![forbid(unsafe_code)]

#[path = "../../../crates/engine/tests/support/attacks.rs"]
#[allow(dead_code, reason = "the engine's tests use more of it")]
mod attacks;

use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use attacks::{FLOODS, HOLDS, flood_until, hold_until};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut out = std::io::stdout().lock();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => {
            let names = FLOODS.iter().map(|flood| flood.name).chain(HOLDS.iter().map(|hold| hold.name));
            for name in names {
                writeln!(out, "{name}")?;
            }
        }
        [address, seconds, connections, name] => {
            let ends = Instant::now() + Duration::from_secs_f64(seconds.parse()?);
            let begun = attack(address.parse()?, name, connections.parse()?, ends)?;
            writeln!(out, "{begun}")?;
        }
        _ => return Err("usage: attacker --list | ADDRESS SECONDS CONNECTIONS NAME".into()),
    }
    Ok(())
}

/// How many connections it has begun.
fn attack(server: SocketAddr, name: &str, connections: usize, ends: Instant) -> Result<u64, String> {
    if let Some(flood) = FLOODS.iter().find(|flood| flood.name == name) {
        return Ok(std::thread::scope(|scope| {
            let flooding: Vec<_> =
                (0..connections).map(|_| scope.spawn(|| flood_until(server, flood, ends))).collect();
            flooding.into_iter().filter_map(|one| one.join().ok()).sum()
        }));
    }
    let hold = HOLDS.iter().find(|hold| hold.name == name).ok_or_else(|| format!("no attack {name:?}"))?;
    hold_until(server, hold, connections, ends);
    Ok(connections as u64)
}
