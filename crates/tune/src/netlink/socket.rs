//! The socket for one request and its reply. Limited in time and size.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, recvfrom, sendto,
    socket_with,
};

use super::Protocol;

/// How long a reply may take. The kernel needs microseconds; a driver that queries its card may take longer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Largest datagram. The kernel sends lists in pieces of at most 32 KiB, and no attribute is longer than 64 KiB.
const DATAGRAM_BYTES_MAX: usize = 128 << 10;

/// The kernel's own address.
const KERNEL: u32 = 0;

/// Sends a request and passes each datagram of the reply to `take`, until that returns true.
pub(crate) fn talk(
    protocol: Protocol,
    request: &[u8],
    take: &mut dyn FnMut(&[u8]) -> bool,
) -> io::Result<()> {
    let protocol = match protocol {
        Protocol::Route => None,
        Protocol::Audit => Some(netlink::AUDIT),
        Protocol::Netfilter => Some(netlink::NETFILTER),
        Protocol::Generic => Some(netlink::GENERIC),
        Protocol::SocketDiagnosis => Some(netlink::SOCK_DIAG),
    };
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    sendto(&socket, request, SendFlags::empty(), &SocketAddrNetlink::new(KERNEL, 0))?;
    let deadline = Instant::now() + ANSWER_TIME_MAX;
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let told = format!("no reply within {ANSWER_TIME_MAX:?}");
            return Err(io::Error::new(ErrorKind::TimedOut, told));
        }
        set_socket_timeout(&socket, Timeout::Recv, Some(left))?;
        // With `TRUNC` the length is the datagram's, even if the buffer is shorter.
        match recvfrom(&socket, &mut buffer[..], RecvFlags::TRUNC) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
            Ok((_, _, from)) if !is_kernel(from.as_ref()) => {}
            Ok((_, length, _)) => {
                let datagram = buffer.get(..length).ok_or_else(|| {
                    let told = format!("got a datagram of {length} bytes, more than {DATAGRAM_BYTES_MAX}");
                    io::Error::new(ErrorKind::InvalidData, told)
                })?;
                if take(datagram) {
                    return Ok(());
                }
            }
        }
    }
}

fn is_kernel(from: Option<&SocketAddrAny>) -> bool {
    let from = from.and_then(|from| SocketAddrNetlink::try_from(from.clone()).ok());
    from.is_some_and(|from| from.pid() == KERNEL)
}
