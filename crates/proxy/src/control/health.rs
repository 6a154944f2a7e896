//! Health checks: periodic requests to each server, each over its own connection.

use std::io;

use flatout_engine::say;
use flatout_lane::connect::Remote;
use flatout_wire::answer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::health_h2;
use super::secure::Secure;
use crate::plan::{Active, Protocol};
use crate::server::{LiveServer, ServerMode};

/// The head of a response must fit in this many bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Checks a server periodically, for ever, and records its state.
pub(crate) async fn watch(name: &str, protocol: Protocol, server: &LiveServer, active: &Active) {
    // The state from before a reload is kept.
    let mut count = Count { is_up: server.is_checked_up(), row: 0 };
    let mut ticks = interval(active.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if server.mode() == ServerMode::SetDown {
            continue;
        }
        let asked = match timeout(active.time_max, ask(server, &active.path, protocol)).await {
            Ok(Ok(status)) if active.statuses.contains(&status) => Ok(()),
            Ok(Ok(status)) => Err(format!("status {status}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no response within {:?}", active.time_max)),
        };
        if count.note(asked.is_ok(), active) {
            server.set_healthy(count.is_up);
            match &asked {
                Ok(()) => say(format_args!("upstream {name}: server {} is up", server.name)),
                Err(why) => say(format_args!("upstream {name}: server {} is down: {why}", server.name)),
            }
        }
    }
}

/// The state of a server, and the number of results in a row that contradict it.
struct Count {
    is_up: bool,
    /// Results in a row that contradict it.
    row: u32,
}

impl Count {
    /// Counts a result. Returns whether it has changed the state.
    fn note(&mut self, is_good: bool, active: &Active) -> bool {
        if is_good == self.is_up {
            self.row = 0;
            return false;
        }
        self.row += 1;
        let changes = self.row >= if self.is_up { active.fall } else { active.rise };
        if changes {
            *self = Count { is_up: is_good, row: 0 };
        }
        changes
    }
}

async fn ask(server: &LiveServer, path: &str, protocol: Protocol) -> io::Result<u16> {
    let remote = server.remote().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let mut wire = match (&*remote, server.is_secure()) {
        (Remote::Tcp(address), false) => Wire::Tcp(TcpStream::connect(address).await?),
        (Remote::Unix(socket), false) => Wire::Unix(UnixStream::connect(socket).await?),
        (Remote::Tcp(address), true) => {
            let socket = TcpStream::connect(address).await?.into_std()?.into();
            Wire::Secure(Box::new(Secure::open(server, socket).await?))
        }
        (Remote::Unix(socket), true) => {
            let socket = UnixStream::connect(socket).await?.into_std()?.into();
            Wire::Secure(Box::new(Secure::open(server, socket).await?))
        }
    };
    match protocol {
        Protocol::Http1 | Protocol::FastCgi => status(wire, &server.name, path).await,
        _ => health_h2::status(&mut wire, &server.name, path, server.is_secure()).await,
    }
}

/// A connection of any kind.
pub(crate) enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
    Secure(Box<Secure>),
}

impl Wire {
    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Wire::Tcp(stream) => stream.write_all(bytes).await,
            Wire::Unix(stream) => stream.write_all(bytes).await,
            Wire::Secure(secure) => secure.write_all(bytes).await,
        }
    }

    pub(crate) async fn read(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => stream.read_buf(into).await,
            Wire::Unix(stream) => stream.read_buf(into).await,
            Wire::Secure(secure) => secure.read(into).await,
        }
    }
}

async fn status(mut stream: Wire, host: &str, path: &str) -> io::Result<u16> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: flatout-health-check\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    while stream.read(&mut bytes).await? > 0 {
        match answer::parse(&bytes, false, HEAD_BYTES_MAX) {
            Ok(Some(answer)) if answer.status.code() >= 200 => return Ok(answer.status.code()),
            Ok(Some(interim)) => drop(bytes.drain(..interim.head_bytes)),
            Ok(None) => {}
            Err(fault) => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{fault:?}"))),
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn state_changes_after_answers_in_a_row() {
        let active = Active {
            path: "/".to_owned(),
            interval: Duration::from_secs(1),
            time_max: Duration::from_secs(1),
            rise: 2,
            fall: 3,
            statuses: 200..=299,
        };
        let mut count = Count { is_up: true, row: 0 };
        let states: Vec<bool> = [false, false, true, false, false, false, true, false, true, true]
            .map(|is_good| {
                count.note(is_good, &active);
                count.is_up
            })
            .into();
        assert_eq!(states, [true, true, true, true, true, false, false, false, false, true]);
    }
}
