//! Binds the sockets of listeners.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use flatout_lane::listener::{self, ListenOptions};

use super::{Entry, Listeners, RELEASED_TIME_MAX, Start, file_id};
use crate::Error;
use crate::plan::{Address, Locality, Plan, SocketPlan};

/// How often to try it again meanwhile.
const RELEASED_RETRY_TIME: Duration = Duration::from_millis(20);

impl Listeners {
    pub(super) fn bind_one(
        &self,
        id: u32,
        asked: &Address,
        start: Start,
        plan: &Plan,
        added: &[(Entry, Vec<OwnedFd>)],
    ) -> Result<(Entry, Vec<OwnedFd>), Error> {
        let mut own = self.entries.iter().chain(added.iter().map(|(entry, _)| entry));
        let mut options = options(&plan.socket);
        let began = Instant::now();
        if own.any(|entry| overlaps(&entry.address, asked)) {
            options.share_port = true;
            // Sockets of this address that are being closed would still get connections.
            while self.was_released(|released| released == asked) {
                sleep(RELEASED_RETRY_TIME);
            }
        }
        let refused = |error| Error::Listen(asked.url(start.is_secure), asked.clone(), error);
        let bound = loop {
            match self.bind_now(asked, plan, &options) {
                Err(error)
                    if error.kind() == ErrorKind::AddrInUse
                        && self.was_released(|released| released == asked || overlaps(released, asked))
                        && began.elapsed() < RELEASED_TIME_MAX =>
                {
                    sleep(RELEASED_RETRY_TIME);
                }
                bound => break bound.map_err(refused)?,
            }
        };
        let (address, sockets) = bound;
        let sockets = match &address {
            Address::Tcp(_) => sockets,
            Address::Unix(_) => match sockets.first() {
                Some(socket) => self.shared(socket)?,
                None => sockets,
            },
        };
        let file = match &address {
            Address::Unix(path) => file_id(path),
            Address::Tcp(_) => None,
        };
        Ok((Entry { id, asked: Some(asked.clone()), address, start, file }, sockets))
    }

    /// One socket per worker, or one Unix socket for all.
    fn bind_now(
        &self,
        asked: &Address,
        plan: &Plan,
        options: &ListenOptions,
    ) -> std::io::Result<(Address, Vec<OwnedFd>)> {
        match asked {
            Address::Tcp(tcp) => {
                let (actual, sockets) = listener::bind_tcp(*tcp, self.cpus.len(), options)?;
                if picks_by_cpu(&plan.socket, tcp, self.cpus.len()) {
                    select_by_cpu(sockets.first().map(OwnedFd::as_fd), &self.cpus)?;
                }
                Ok((Address::Tcp(actual), sockets))
            }
            Address::Unix(path) => Ok((asked.clone(), vec![listener::bind_unix(path, options)?])),
        }
    }

    /// Whether this server listened a moment ago at an address that is such a one.
    fn was_released(&self, is_such: impl Fn(&Address) -> bool) -> bool {
        self.released.iter().any(|(released, since)| since.elapsed() < RELEASED_TIME_MAX && is_such(released))
    }

    /// A descriptor of one socket for every worker; the kernel wakes one of them for each connection.
    pub(super) fn shared(&self, socket: &OwnedFd) -> Result<Vec<OwnedFd>, Error> {
        let copies = self.cpus.iter().map(|_| socket.try_clone()).collect::<Result<_, _>>();
        copies
            .map_err(|error| Error::System("cannot duplicate the listener for each worker".to_owned(), error))
    }
}

pub(super) fn options(plan: &SocketPlan) -> ListenOptions {
    ListenOptions {
        backlog: plan.backlog,
        nodelay: plan.nodelay,
        defer_accept: plan.defer_accept,
        keepalive: plan.keepalive,
        congestion: plan.congestion.clone(),
        share_port: plan.share_port,
        unix_mode: plan.unix_mode,
    }
}

/// Whether one of these two stands for all addresses and includes the other, as `[::]:80` includes `0.0.0.0:80` and `127.0.0.1:80`.
/// Both can be bound; the kernel gives a connection to the one that is more specific.
fn overlaps(one: &Address, other: &Address) -> bool {
    let (Address::Tcp(one), Address::Tcp(other)) = (one, other) else { return false };
    let includes = |all: &SocketAddr, one: &SocketAddr| {
        all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4()) && all.port() == one.port()
    };
    one != other && (includes(one, other) || includes(other, one))
}

/// Whether to give connections to the worker on whose CPU they arrive. On loopback that is the client's CPU, so all
/// connections of a pinned client would go to one worker.
fn picks_by_cpu(plan: &SocketPlan, address: &std::net::SocketAddr, workers: usize) -> bool {
    match plan.locality {
        Locality::Off => false,
        Locality::On => true,
        Locality::Auto => workers > 1 && !address.ip().is_loopback() && listener::nic_queues() >= workers,
    }
}

fn select_by_cpu(first: Option<BorrowedFd<'_>>, cpus: &[Option<usize>]) -> std::io::Result<()> {
    let cpus: Option<Vec<usize>> = cpus.iter().copied().collect();
    match (first, cpus) {
        (Some(first), Some(cpus)) => listener::attach_cpu_selection(first, &cpus),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_overlap_if_one_stands_for_all_and_includes_the_other() {
        let overlap = |one: &str, other: &str| overlaps(&one.parse().unwrap(), &other.parse().unwrap());
        for (one, other, expected) in [
            ("[::]:80", "0.0.0.0:80", true),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("[::1]:80", "[::]:80", true),
            ("127.0.0.1:80", "[::]:80", true),
            ("[::1]:80", "0.0.0.0:80", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("[::]:80", "0.0.0.0:81", false),
            // One address twice is a mistake.
            ("0.0.0.0:80", "0.0.0.0:80", false),
            ("[::]:80", "unix:/run/a", false),
        ] {
            assert_eq!((overlap(one, other), overlap(other, one)), (expected, expected), "{one} {other}");
        }
    }
}
