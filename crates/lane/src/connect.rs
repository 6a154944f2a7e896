//! Outgoing connections, without blocking, to TCP and Unix sockets.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::socket::set_int_option;

/// The address to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remote::Tcp(address) => address.fmt(f),
            Remote::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Starts a connection, from one of our own addresses if given (TCP only). The socket is non-blocking; it becomes
/// writable when [`outcome`] can report the result. Costs two to five system calls.
///
/// # Errors
/// Errors that the kernel reports at once: no descriptors, no free port (`AddrNotAvailable`), a Unix socket without a
/// listener or with a full queue.
pub fn begin(remote: &Remote, source: Option<IpAddr>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    match remote {
        Remote::Tcp(address) => {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
            sockopt::set_tcp_nodelay(&socket, true)?;
            if let Some(source) = source {
                // The port is chosen when the remote is known, so that all ports are available for each remote.
                set_int_option(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
                net::bind(&socket, &SocketAddr::new(source, 0))?;
            }
            match net::connect(&socket, address) {
                Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
                Err(error) => Err(error.into()),
            }
        }
        Remote::Unix(path) => {
            let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            #[cfg(feature = "simulation")]
            crate::socket::simulated::limit_send_buffer(&socket);
            net::connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(socket)
        }
    }
}

/// The result of a connection attempt, once its socket is writable or broken.
///
/// # Errors
/// The reason for its failure: `ConnectionRefused`, `TimedOut`, …
pub fn outcome(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(sockopt::socket_error(socket)??)
}

/// Connects once, waits for the result and closes: checks whether anybody accepts.
///
/// # Errors
/// As [`begin`] and [`outcome`], and `TimedOut` after `patience`.
pub fn probe(remote: &Remote, source: Option<IpAddr>, patience: Duration) -> io::Result<()> {
    let socket = begin(remote, source)?;
    let time = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&time)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) => outcome(rustix::fd::AsFd::as_fd(&socket)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    #[test]
    fn connecting_succeeds_only_with_a_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = Remote::Tcp(listener.local_addr().unwrap());
        probe(&remote, None, PATIENCE).unwrap();
        probe(&remote, Some(IpAddr::from([127, 0, 0, 7])), PATIENCE).unwrap();
        let _ = listener.accept().unwrap();
        assert_eq!(listener.accept().unwrap().1.ip(), IpAddr::from([127, 0, 0, 7]));
        drop(listener);
        assert_eq!(probe(&remote, None, PATIENCE).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn unix_sockets_can_be_connected() {
        let path = std::env::temp_dir().join(format!("flatout-connect-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let remote = Remote::Unix(path.clone());
        probe(&remote, None, PATIENCE).unwrap();
        drop(listener);
        std::fs::remove_file(path).unwrap();
        assert_eq!(probe(&remote, None, PATIENCE).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
