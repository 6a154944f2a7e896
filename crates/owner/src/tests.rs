//! Recorded machines, and this one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;

use super::*;

/// A fake `/proc`: files, links, and folders that may not be read.
#[derive(Default)]
struct Fake {
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
    closed: BTreeSet<String>,
}

impl Fake {
    /// Sockets that listen on port 8080, by address and inode.
    fn table(mut self, path: &str, sockets: &[(&str, u64)]) -> Fake {
        let lines = sockets.iter().map(|(address, inode)| {
            format!(
                "   0: {address}:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"
            )
        });
        let header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        self.files.insert(path.to_owned(), std::iter::once(header.to_owned()).chain(lines).collect());
        self
    }

    fn process(mut self, pid: u32, sockets: &[u64]) -> Fake {
        self.files.insert(format!("/proc/{pid}/cmdline"), "server".to_owned());
        self.links.insert(format!("/proc/{pid}/fd/0"), "/dev/null".to_owned());
        for (descriptor, inode) in sockets.iter().enumerate() {
            self.links.insert(format!("/proc/{pid}/fd/{}", descriptor + 9), format!("socket:[{inode}]"));
        }
        self
    }

    fn hidden(mut self, pid: u32, command: &str) -> Fake {
        self.files.insert(format!("/proc/{pid}/cmdline"), command.to_owned());
        self.closed.insert(format!("/proc/{pid}/fd"));
        self
    }

    fn in_namespace(mut self, pid: &str, namespace: u64) -> Fake {
        self.links.insert(format!("/proc/{pid}/ns/net"), format!("net:[{namespace}]"));
        self
    }

    fn find(&self) -> Listening {
        Listening::find(self, 8080).unwrap()
    }
}

impl Proc for Fake {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let text = self.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(text.clone().into_bytes())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        if self.closed.contains(path) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let below = |known: &String| known.strip_prefix(path)?.strip_prefix('/').map(str::to_owned);
        let names = self.files.keys().chain(self.links.keys()).filter_map(below);
        let first: BTreeSet<_> = names.filter_map(|name| name.split('/').next().map(str::to_owned)).collect();
        Ok(first.into_iter().collect())
    }

    fn link(&self, path: &str) -> io::Result<String> {
        Ok(self.links.get(path).ok_or(io::ErrorKind::NotFound)?.clone())
    }
}

const ANY: &str = "00000000";
const ANY_V6: &str = "00000000000000000000000000000000";
const MAPPED: &str = "0000000000000000FFFF00000100007F";

#[test]
fn every_process_of_every_socket_is_found() {
    // Two workers with a socket each; a master whose socket its two children inherited; and an unrelated process.
    let fake = Fake::default()
        .table("/proc/net/tcp", &[(ANY, 1), (ANY, 2)])
        .table("/proc/net/tcp6", &[(ANY_V6, 3), (MAPPED, 4)])
        .process(100, &[1])
        .process(20, &[50, 2])
        .process(7, &[3, 4])
        .process(8, &[3, 4])
        .process(9, &[3])
        .process(10, &[50]);
    let found = fake.find();
    assert_eq!(found.pids, [7, 8, 9, 20, 100]);
    assert_eq!((found.sockets.len(), found.missing()), (4, None));
    assert_eq!(found.sockets[3].address.to_string(), "127.0.0.1");
    assert_eq!(owners(&fake, &[50]), [10, 20]);
    assert_eq!(owners(&fake, &[]), []);
}

#[test]
fn unreadable_processes_are_counted() {
    let fake = Fake::default()
        .table("/proc/net/tcp", &[(ANY, 1), (ANY, 2)])
        .process(5, &[1])
        .hidden(6, "nginx: worker")
        .hidden(2, "");
    let found = fake.find();
    assert_eq!(found.pids, [5], "a kernel thread has no descriptors to hide");
    assert_eq!(
        found.missing().unwrap(),
        "1 of 2 sockets that listen on port 8080 have no visible process; 1 process cannot be inspected: run as root"
    );
    let fake = Fake::default().table("/proc/net/tcp", &[(ANY, 1)]).process(5, &[]);
    assert!(fake.find().missing().unwrap().contains("another PID namespace"));
}

#[test]
fn a_server_in_another_network_namespace_is_named() {
    let fake = Fake::default().table("/proc/net/tcp", &[]).process(5, &[1]).in_namespace("5", 11);
    let message = fake.find().missing().unwrap();
    assert_eq!(message, "nothing listens on port 8080 in this network namespace", "ours is not known");
    let fake = fake
        .in_namespace("self", 10)
        .process(6, &[1])
        .in_namespace("6", 11)
        .table("/proc/5/net/tcp", &[(ANY, 1)])
        .table("/proc/6/net/tcp", &[(ANY, 1)]);
    let found = fake.find();
    assert_eq!((found.pids.as_slice(), found.elsewhere.as_slice()), (&[][..], &[5, 6][..]));
    assert!(found.missing().unwrap().ends_with("process 5 with 1 other does in another one"));
}

#[test]
fn a_listener_of_our_own_is_found() {
    for address in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
        // A machine may lack IPv6.
        let Ok(listener) = TcpListener::bind(address) else { continue };
        let port = listener.local_addr().unwrap().port();
        let us = std::process::id();
        let found = Listening::find(&Here, port).unwrap();
        // A child that another test has just forked holds it too, until its exec.
        assert!(found.pids.contains(&us), "{address}: {found:?}");
        assert!(found.sockets[0].address.is_loopback() && found.missing().is_none(), "{found:?}");
        drop(listener);
        assert!(Listening::find(&Here, port).unwrap().missing().unwrap().contains("nothing listens"));
    }
}

#[test]
fn groups_are_identified_by_their_id() {
    let mut fake = Fake::default();
    for (pid, stat) in
        [(7, "7 (nginx: master) S 1 7"), (9, "9 (a) b) S 7 7"), (11, "11 (other) S 1 11"), (12, "12 garbage")]
    {
        fake = fake.process(pid, &[]);
        let rest = "7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 500";
        fake.files.insert(format!("/proc/{pid}/stat"), format!("{stat} {rest}"));
    }
    assert_eq!(group(&fake, 7).unwrap(), [7, 9]);
    assert!(group(&fake, 8).unwrap().is_empty());
}
