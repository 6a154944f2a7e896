//! Our own packet tap, like those of DHCP clients and monitoring agents: the kernel copies every packet to it.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A packet socket that sees every packet of the network it was opened in, until it is dropped. It is never read, so
/// once its queue is full it costs as much as any tap, without the work of a program.
#[derive(Debug)]
pub struct Tap {
    _socket: OwnedFd,
}

impl Tap {
    /// Opens one in the network of this thread.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW; a kernel without packet sockets.
    pub fn open() -> io::Result<Tap> {
        let every = i32::from((libc::ETH_P_ALL as u16).to_be());
        // SAFETY: a system call with three numbers; no memory is involved.
        let descriptor = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, every) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        Ok(Tap { _socket: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Needs CAP_NET_RAW, and is skipped without.
    #[test]
    fn a_tap_is_there_until_it_is_dropped() {
        let count = thread::spawn(|| {
            crate::namespace::enter_new().ok()?;
            let taps = || {
                let table = std::fs::read_to_string("/proc/thread-self/net/packet").unwrap();
                table.lines().skip(1).filter(|line| line.split_whitespace().nth(3) == Some("0003")).count()
            };
            let before = taps();
            let tap = Tap::open().ok()?;
            let during = taps();
            drop(tap);
            Some((before, during, taps()))
        });
        if let Some(count) = count.join().unwrap() {
            assert_eq!(count, (0, 1, 0));
        }
    }
}
