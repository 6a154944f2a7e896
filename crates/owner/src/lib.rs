//! Who owns a socket: which processes listen on a TCP port, which hold a socket, according to `/proc`, and which
//! processes belong together.
//!
//! ```text
//! port ── /proc/net/tcp, tcp6 ──> inodes ── /proc/PID/fd/* ──> processes
//! ```
//!
//! A port may have several sockets (`SO_REUSEPORT`, or one per address), and a socket several processes (a parent and
//! the children that inherited it): all of them count. Processes that we may not inspect are counted and reported.
//!
//! ```
//! use flatout_owner::{Here, Listening};
//!
//! let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! let found = Listening::find(&Here, listener.local_addr()?.port())?;
//! assert!(found.pids.contains(&std::process::id()));
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod described;
mod proc;
mod stat;
mod table;

use std::collections::BTreeSet;
use std::io;

pub use described::{Holders, described};
pub use proc::{Here, Proc};
pub use stat::{Stat, TICKS_PER_S};
pub use table::Socket;

use table::listening;

/// Processes whose descriptors are searched, the oldest first.
const PROCESSES_MAX: usize = 65_536;

/// Descriptors of one process that are checked, the lowest first: a listener is older than its connections.
const DESCRIPTORS_MAX: usize = 65_536;

/// Other network namespaces that are searched.
const NAMESPACES_MAX: usize = 1024;

/// The processes that listen on a TCP port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// The port.
    pub port: u16,
    /// The listening sockets in our network namespace, on any address.
    pub sockets: Vec<Socket>,
    /// The processes that hold one of them, in ascending order.
    pub pids: Vec<u32>,
    /// If there are no sockets: the processes that listen on the port in other network namespaces.
    pub elsewhere: Vec<u32>,
    /// Sockets without a visible owner.
    unowned_count: usize,
    /// Processes whose descriptors we may not see.
    hidden_count: usize,
}

impl Listening {
    /// Finds the processes that listen on a port. Reads the tables of `/proc/net`, and the descriptors of all
    /// processes if there is a listener.
    ///
    /// # Errors
    /// The tables or the list of processes cannot be read.
    pub fn find(proc: &dyn Proc, port: u16) -> io::Result<Listening> {
        let sockets = listening(proc, "/proc/net", port)?;
        let inodes: Vec<u64> = sockets.iter().map(|socket| socket.inode).collect();
        let held = holders_of(proc, &inodes)?;
        let elsewhere = if sockets.is_empty() { elsewhere(proc, port)? } else { Vec::new() };
        let unowned_count = inodes.iter().filter(|inode| !held.inodes.contains(inode)).count();
        Ok(Listening {
            port,
            sockets,
            pids: held.pids,
            elsewhere,
            unowned_count,
            hidden_count: held.hidden_count,
        })
    }

    /// Why no process was found, or not all of them; `None` if every socket has its process.
    pub fn missing(&self) -> Option<String> {
        let Listening { port, unowned_count, hidden_count, .. } = self;
        match (self.sockets.len(), self.elsewhere.as_slice()) {
            (0, []) => Some(format!("nothing listens on port {port} in this network namespace")),
            (0, pids) => Some(format!(
                "nothing listens on port {port} in this network namespace; {} does in another one",
                some_of(pids)
            )),
            _ if *unowned_count == 0 => None,
            (count, _) if *hidden_count > 0 => Some(format!(
                "{unowned_count} of {count} sockets that listen on port {port} have no visible process; {} cannot be \
                 inspected: run as root",
                plural(*hidden_count, "process", "processes")
            )),
            (count, _) => Some(format!(
                "{unowned_count} of {count} sockets that listen on port {port} have no process here: they are the \
                 kernel's, or of another PID namespace"
            )),
        }
    }
}

/// The processes that listen on a port here, in ascending order; empty if that cannot be read.
pub fn listeners(proc: &dyn Proc, port: u16) -> Vec<u32> {
    Listening::find(proc, port).map(|found| found.pids).unwrap_or_default()
}

/// The visible processes that hold one of these sockets, in ascending order.
pub fn owners(proc: &dyn Proc, inodes: &[u64]) -> Vec<u32> {
    holders_of(proc, inodes).map(|held| held.pids).unwrap_or_default()
}

/// The processes of a process group, in ascending order.
///
/// # Errors
/// The list of processes cannot be read.
pub fn group(proc: &dyn Proc, id: u32) -> io::Result<Vec<u32>> {
    let mut pids = numbers(proc, "/proc")?;
    pids.truncate(PROCESSES_MAX);
    pids.retain(|&pid| Stat::read(proc, pid).is_ok_and(|stat| stat.group == id));
    Ok(pids)
}

/// The holders of sockets.
#[derive(Default)]
struct SocketHolders {
    pids: Vec<u32>,
    inodes: BTreeSet<u64>,
    hidden_count: usize,
}

fn holders_of(proc: &dyn Proc, wanted: &[u64]) -> io::Result<SocketHolders> {
    let mut held = SocketHolders::default();
    if wanted.is_empty() {
        return Ok(held);
    }
    for pid in numbers(proc, "/proc")?.into_iter().take(PROCESSES_MAX) {
        match sockets_of(proc, pid, wanted) {
            Ok(found) if found.is_empty() => {}
            Ok(found) => {
                held.pids.push(pid);
                held.inodes.extend(found);
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                held.hidden_count += usize::from(has_descriptors(proc, pid));
            }
            // It has exited meanwhile.
            Err(_) => {}
        }
    }
    Ok(held)
}

/// Which of these sockets a process holds.
fn sockets_of(proc: &dyn Proc, pid: u32, wanted: &[u64]) -> io::Result<BTreeSet<u64>> {
    let folder = format!("/proc/{pid}/fd");
    let mut found = BTreeSet::new();
    for descriptor in numbers(proc, &folder)?.into_iter().take(DESCRIPTORS_MAX) {
        // It may have been closed meanwhile.
        let Ok(target) = proc.link(&format!("{folder}/{descriptor}")) else { continue };
        let inode = inode_of(&target, "socket");
        found.extend(inode.filter(|inode| wanted.contains(inode)));
        if found.len() == wanted.len() {
            break;
        }
    }
    Ok(found)
}

/// Whether a process may have descriptors: a kernel thread has none, and no command line.
fn has_descriptors(proc: &dyn Proc, pid: u32) -> bool {
    proc.read(&format!("/proc/{pid}/cmdline")).map_or(true, |line| !line.is_empty())
}

/// The processes that listen on a port in other network namespaces, as far as we may inspect them.
fn elsewhere(proc: &dyn Proc, port: u16) -> io::Result<Vec<u32>> {
    let namespace = |pid: &str| inode_of(&proc.link(&format!("/proc/{pid}/ns/net")).ok()?, "net");
    let mut known: BTreeSet<u64> = namespace("self").into_iter().collect();
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let mut inodes = Vec::new();
    for pid in numbers(proc, "/proc")?.into_iter().take(PROCESSES_MAX) {
        let is_new = namespace(&pid.to_string()).is_some_and(|namespace| known.insert(namespace));
        if is_new {
            let sockets = listening(proc, &format!("/proc/{pid}/net"), port).unwrap_or_default();
            inodes.extend(sockets.into_iter().map(|socket| socket.inode));
        }
        if known.len() > NAMESPACES_MAX {
            break;
        }
    }
    Ok(owners(proc, &inodes))
}

/// The number in a link such as `socket:[4242]`.
fn inode_of(target: &str, kind: &str) -> Option<u64> {
    target.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}

/// The numeric names in a folder, such as processes or threads, in ascending order.
///
/// # Errors
/// The folder cannot be read.
pub fn numbers(proc: &dyn Proc, folder: &str) -> io::Result<Vec<u32>> {
    let mut numbers: Vec<u32> = proc.list(folder)?.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn some_of(pids: &[u32]) -> String {
    match pids {
        [pid, rest @ ..] if !rest.is_empty() => {
            format!("process {pid} with {}", plural(rest.len(), "other", "others"))
        }
        pids => format!("process {}", pids.first().copied().unwrap_or_default()),
    }
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests;
