//! I/O on one connection. Every function is one system call on a non-blocking socket.

use std::fs::File;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags};

/// The result of a read or a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// This many bytes. For a read, 0 is the end of the peer's stream.
    Bytes(usize),
    /// Nothing can be moved now; an event will report readiness.
    WouldBlock,
    /// The connection has failed: reset, timed out, or closed locally.
    Broken,
}

/// Makes a call that moves bytes. After a signal it is repeated: edge-triggered readiness is not reported twice. Out
/// of kernel memory (ENOBUFS, ENOMEM) ends the connection for the same reason.
#[inline]
pub(crate) fn moved(mut call: impl FnMut() -> Result<usize, Errno>) -> Moved {
    loop {
        match call() {
            Ok(bytes) => return Moved::Bytes(bytes),
            Err(Errno::AGAIN) => return Moved::WouldBlock,
            Err(Errno::INTR) => {}
            Err(_) => return Moved::Broken,
        }
    }
}

/// Reads into `buffer`.
#[inline]
pub fn recv(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Moved {
    moved(|| rustix::net::recv(socket, &mut *buffer, RecvFlags::empty()).map(|(bytes, _)| bytes))
}

/// Copies bytes from the socket into `buffer` without removing them.
pub fn peek(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Moved {
    moved(|| rustix::net::recv(socket, &mut *buffer, RecvFlags::PEEK).map(|(bytes, _)| bytes))
}

/// Sends `bytes`, or a part from their start.
#[inline]
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Moved {
    moved(|| rustix::net::send(socket, bytes, SendFlags::NOSIGNAL))
}

/// Sends the slices in order, or a part from their start. `more` delays an incomplete packet, because other bytes
/// follow at once.
pub fn send_slices(socket: BorrowedFd<'_>, slices: &[IoSlice<'_>], more: bool) -> Moved {
    let flags = if more { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
    moved(|| rustix::net::sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags))
}

/// Sends up to `bytes` bytes of a file from `offset` on, without copying them through the process.
/// [`Moved::Bytes`]`(0)` means that the file ends there.
pub fn send_file(socket: BorrowedFd<'_>, file: &File, offset: u64, bytes: u64) -> Moved {
    let mut offset = offset;
    #[cfg(feature = "simulation")]
    if crate::clock::simulated::is_set() {
        return send_copied(socket, file, offset, bytes);
    }
    // Linux moves at most 0x7ffff000 bytes per call (sendfile(2)).
    let bytes = bytes.min(0x7fff_f000) as usize;
    moved(|| rustix::fs::sendfile(socket, file, Some(&mut offset), bytes))
}

/// The same with a copy. How many pages of the page cache fit a socket depends on where the kernel has put them, and so on what else the
/// machine does.
#[cfg(feature = "simulation")]
fn send_copied(socket: BorrowedFd<'_>, file: &File, offset: u64, bytes: u64) -> Moved {
    use std::os::unix::fs::FileExt;
    let mut copy = vec![0; bytes.min(256 << 10) as usize];
    match file.read_at(&mut copy, offset) {
        Ok(0) => Moved::Bytes(0),
        Ok(count) => send(socket, &copy[..count]),
        Err(_) => Moved::Broken,
    }
}

/// Bytes that were sent but not acknowledged by the peer's kernel; 0 if the kernel does not report it.
///
/// # Source
/// `SIOCOUTQ`, tcp(7).
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int, and `bytes` is one that lives through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Shuts down our sending side; sent bytes still arrive.
pub fn shutdown_write(socket: BorrowedFd<'_>) {
    // The only error is that the connection is already gone.
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
}

/// Makes the kernel close a connection whose peer acknowledges no sent data for this long (`TCP_USER_TIMEOUT`,
/// tcp(7)). Has no effect on other sockets. Costs one system call.
pub fn give_up_after(socket: BorrowedFd<'_>, time: std::time::Duration) {
    let milliseconds = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, milliseconds);
}

/// Sets an int option that rustix does not wrap.
pub(crate) fn set_int_option(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let bytes = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is an int of that many bytes, lives through the call, and the kernel copies it.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), bytes) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How much of what is sent waits in the kernel, for the simulator.
#[cfg(feature = "simulation")]
pub mod simulated {
    use std::cell::Cell;
    use std::num::NonZeroU64;
    use std::os::fd::AsFd;

    thread_local! {
        static SEND_BUFFER: Cell<Option<usize>> = const { Cell::new(None) };
        static ACCEPTS_PER_FAILURE: Cell<Option<NonZeroU64>> = const { Cell::new(None) };
        static ACCEPTS: Cell<u64> = const { Cell::new(0) };
    }

    /// With `Some(n)`, every n-th accept fails because the process has no descriptors left; with `None`, none does.
    pub fn set_accepts_per_failure(accepts: Option<NonZeroU64>) {
        ACCEPTS_PER_FAILURE.set(accepts);
        ACCEPTS.set(0);
    }

    pub(super) fn fails_to_accept() -> bool {
        let Some(accepts) = ACCEPTS_PER_FAILURE.get() else { return false };
        ACCEPTS.set(ACCEPTS.get() + 1);
        ACCEPTS.get() % accepts == 0
    }

    /// Sets it for sockets that this thread opens or accepts from now on; `None` is the kernel's default.
    pub fn set_send_buffer(bytes: Option<usize>) {
        SEND_BUFFER.set(bytes);
    }

    /// Applies it to a socket.
    pub fn limit_send_buffer(socket: impl AsFd) {
        if let Some(bytes) = SEND_BUFFER.get() {
            // The kernel has a minimum of its own.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, bytes);
        }
    }
}

/// The result of an accept.
#[derive(Debug)]
pub enum Accepted {
    /// A connection, non-blocking, and its peer: `None` on a Unix socket.
    Connection(OwnedFd, Option<SocketAddr>),
    /// The queue is empty.
    Empty,
    /// Accepting must pause: the process or the host is out of descriptors or memory, or the listener is broken.
    Exhausted(io::Error),
    /// This one connection failed before it was accepted; the next may be good.
    Aborted,
}

/// Accepts one connection from the listener's queue.
pub fn accept(listener: BorrowedFd<'_>) -> Accepted {
    #[cfg(feature = "simulation")]
    if simulated::fails_to_accept() {
        return Accepted::Exhausted(Errno::MFILE.into());
    }
    match rustix::net::acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok((socket, peer)) => {
            #[cfg(feature = "simulation")]
            simulated::limit_send_buffer(&socket);
            Accepted::Connection(socket, peer.and_then(|peer| peer.try_into().ok()))
        }
        Err(Errno::AGAIN) => Accepted::Empty,
        // accept(2): errors of the new connection itself are reported here, to be treated like "try again".
        Err(
            Errno::CONNABORTED
            | Errno::INTR
            | Errno::PERM
            | Errno::PROTO
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NONET
            | Errno::NOPROTOOPT
            | Errno::OPNOTSUPP,
        ) => Accepted::Aborted,
        Err(error) => Accepted::Exhausted(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eintr_is_retried_other_errors_end() {
        let results = [Err(Errno::INTR), Err(Errno::INTR), Ok(3)];
        let mut calls = results.into_iter();
        assert_eq!(moved(|| calls.next().unwrap()), Moved::Bytes(3));
        assert_eq!(moved(|| Err(Errno::AGAIN)), Moved::WouldBlock);
        assert_eq!(moved(|| Err(Errno::NOBUFS)), Moved::Broken);
    }
}
