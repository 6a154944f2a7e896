//! The CPU time of a server on this machine: which processes it is, and what the kernel says they used.
//!
//! User and kernel time come from `/proc/PID/stat`, in ticks of 10 ms: exact in sum, sampled in their split.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use flatout_lane::connect::Remote;

use crate::outcome::ServerCpu;

/// A server's processes.
#[derive(Debug)]
pub(crate) struct Server {
    pids: Vec<u32>,
}

/// Times so far.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Used {
    pids: Vec<u32>,
    user_ticks: u64,
    kernel_ticks: u64,
}

/// `USER_HZ`: what the kernel counts in, on every architecture that Linux has today.
const TICKS_PER_S: u64 = 100;

/// A listening socket in the tables of /proc/net.
const LISTEN_STATE: &str = "0A";

impl Server {
    /// The process of this id, or those that listen on the remote's port on this machine.
    pub(crate) fn find(pid: Option<u32>, remote: &Remote) -> Option<Server> {
        let pids = match (pid, remote) {
            (Some(pid), _) => vec![pid],
            (None, Remote::Tcp(address)) if address.ip().is_loopback() => owners(&listening(address.port())),
            (None, _) => Vec::new(),
        };
        (!pids.is_empty()).then_some(Server { pids })
    }

    /// What its processes have used so far; none when none of them can be read.
    pub(crate) fn used(&self) -> Option<Used> {
        let mut used = Used { pids: Vec::new(), user_ticks: 0, kernel_ticks: 0 };
        for &pid in &self.pids {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
            if let Some((user, kernel)) = stat.as_deref().and_then(ticks) {
                used.pids.push(pid);
                used.user_ticks += user;
                used.kernel_ticks += kernel;
            }
        }
        (!used.pids.is_empty()).then_some(used)
    }
}

impl Used {
    /// What was used since `before`; none if a process has ended meanwhile.
    pub(crate) fn since(&self, before: &Used) -> Option<ServerCpu> {
        let time = |ticks: u64| Duration::from_millis(ticks * (1000 / TICKS_PER_S));
        (self.pids == before.pids).then(|| ServerCpu {
            pids: self.pids.clone(),
            user: time(self.user_ticks - before.user_ticks),
            kernel: time(self.kernel_ticks - before.kernel_ticks),
        })
    }
}

/// User and kernel ticks in the text of `/proc/PID/stat`. The name before them may hold anything, `)` too.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// The inodes of sockets that listen on this port.
fn listening(port: u16) -> HashSet<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).filter_map(|line| listener_inode(line, port)).collect()
}

fn listener_inode(line: &str, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (_, hex) = fields.get(1)?.rsplit_once(':')?;
    let is_it = fields.get(3) == Some(&LISTEN_STATE) && u16::from_str_radix(hex, 16) == Ok(port);
    fields.get(9).filter(|_| is_it).map(|inode| (*inode).to_owned())
}

/// The processes that have one of these sockets open, in ascending order.
fn owners(inodes: &HashSet<String>) -> Vec<u32> {
    if inodes.is_empty() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| has_socket(pid, inodes))
        .collect();
    pids.sort_unstable();
    pids
}

fn has_socket(pid: u32, inodes: &HashSet<String>) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).any(|link| {
        let link = link.to_string_lossy();
        link.strip_prefix("socket:[")
            .and_then(|rest| rest.strip_suffix(']'))
            .is_some_and(|inode| inodes.contains(inode))
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_found_by_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = Remote::Tcp(listener.local_addr().unwrap());
        let server = Server::find(None, &remote).unwrap();
        assert_eq!(server.pids, [std::process::id()]);
        let before = server.used().unwrap();
        let used = server.used().unwrap().since(&before).unwrap();
        assert!(used.user + used.kernel < Duration::from_secs(1));
        drop(listener);
        assert!(Server::find(None, &remote).is_none());
    }

    #[test]
    fn any_name_may_stand_in_stat() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 100 0 0 0 31 42 0 0 20 0 1 0 5 6 7";
        assert_eq!(ticks(stat), Some((31, 42)));
        assert_eq!(ticks("garbage"), None);
    }
}
