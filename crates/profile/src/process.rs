//! Processes as `/proc` shows them: who listens on a port, who descends from whom, what they are called.

use std::collections::HashSet;
use std::fs;
use std::io;

/// How far up a process's ancestors are followed; deeper ones are nobody's servers.
const ANCESTORS_MAX: usize = 32;

/// The processes that hold a listening TCP socket of this port in our network namespace, in ascending order. Those
/// whose descriptors we may not see are left out.
///
/// # Errors
/// `/proc` cannot be read.
pub fn listening_on(port: u16) -> io::Result<Vec<u32>> {
    let mut inodes = HashSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match fs::read_to_string(table) {
            Ok(text) => inodes.extend(text.lines().filter_map(|line| listening_inode(line, port))),
            // A kernel without IPv6 has no such file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    if inodes.is_empty() {
        return Ok(Vec::new());
    }
    Ok(all()?.into_iter().filter(|&pid| holds_socket(pid, &inodes)).collect())
}

/// Whether there is such a process.
pub fn exists(pid: u32) -> bool {
    fs::exists(format!("/proc/{pid}/stat")).unwrap_or(false)
}

/// A process's short name, at most 15 characters.
pub fn name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Whether a process is one of `roots` or descends from one.
pub(crate) fn descends_from(pid: u32, roots: &HashSet<u32>) -> bool {
    let line = std::iter::successors(Some(pid), |&pid| parent(pid));
    line.take(ANCESTORS_MAX).any(|pid| roots.contains(&pid))
}

/// `roots` and all that descend from them, in ascending order.
pub(crate) fn family(roots: &HashSet<u32>) -> io::Result<Vec<u32>> {
    Ok(all()?.into_iter().filter(|&pid| descends_from(pid, roots)).collect())
}

/// The threads of a process.
pub(crate) fn threads(pid: u32) -> io::Result<Vec<u32>> {
    numbers(&format!("/proc/{pid}/task"))
}

fn all() -> io::Result<Vec<u32>> {
    numbers("/proc")
}

/// The names in a folder that are numbers, in ascending order.
fn numbers(folder: &str) -> io::Result<Vec<u32>> {
    let names = fs::read_dir(folder)?.flatten().map(|entry| entry.file_name());
    let mut numbers: Vec<u32> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The inode of a line of `/proc/net/tcp` that is a listening socket of this port.
///
/// ```text
///   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
///    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 31415 …
/// ```
fn listening_inode(line: &str, port: u16) -> Option<u64> {
    const LISTEN: &str = "0A";
    let mut fields = line.split_ascii_whitespace().skip(1);
    let local = fields.next()?.rsplit_once(':')?.1;
    let state = fields.nth(1)?;
    let is_it = state == LISTEN && u16::from_str_radix(local, 16) == Ok(port);
    is_it.then(|| fields.nth(5)?.parse().ok()).flatten()
}

fn holds_socket(pid: u32, inodes: &HashSet<u64>) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let targets = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let mut sockets = targets.filter_map(|target| {
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
    });
    sockets.any(|inode| inodes.contains(&inode))
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything, also spaces and parentheses.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_socket_table_are_read() {
        let line =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 31415 1 x 100";
        assert_eq!(listening_inode(line, 8080), Some(31415));
        assert_eq!(listening_inode(line, 8081), None);
        assert_eq!(listening_inode(&line.replace(" 0A ", " 01 "), 8080), None);
        for broken in ["", "sl", "0: zz 0 0A", "  sl  local_address rem_address   st", &line[..60]] {
            assert_eq!(listening_inode(broken, 8080), None, "{broken}");
        }
    }

    #[test]
    fn a_listener_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let us = std::process::id();
        // A child that another test has just forked holds it too, until its exec.
        assert!(listening_on(port).unwrap().contains(&us));
        drop(listener);
        assert!(!listening_on(port).unwrap().contains(&us));
    }

    #[test]
    fn families_are_followed_upwards() {
        let us = std::process::id();
        let child = std::process::Command::new("sleep").arg("10").spawn();
        let mut child = child.unwrap();
        let roots = HashSet::from([us]);
        assert!(descends_from(child.id(), &roots) && descends_from(us, &roots));
        assert!(family(&roots).unwrap().contains(&child.id()));
        assert!(!descends_from(1, &roots));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(name(us).is_some() && exists(us) && !exists(child.id()));
        assert!(threads(us).unwrap().contains(&us));
    }
}
