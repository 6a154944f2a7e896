//! A packet tap of our own, as monitoring programs hold one: the kernel makes it a copy of every packet.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, recv};

/// A packet socket that sees every packet of the network it was opened in, and a thread that reads and forgets them: one
/// that nobody reads costs less once its queue is full. Both end when this is dropped.
#[derive(Debug)]
pub struct Tap {
    is_over: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

/// How long the reader waits for a packet before it looks whether it is to end.
const LOOK_TIME: Duration = Duration::from_millis(20);

/// Bytes that are read of a packet; the kernel has copied it whole to the socket all the same.
const READ_BYTES: usize = 64;

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
        let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
        set_socket_timeout(&socket, Timeout::Recv, Some(LOOK_TIME))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let read = move || {
            let mut bytes = [0; READ_BYTES];
            while !seen.load(Ordering::Relaxed) {
                // Nothing came in time, or a device went down: neither matters here.
                let _ = recv(&socket, &mut bytes[..], RecvFlags::TRUNC);
            }
        };
        let reader = thread::Builder::new().name("tap".to_owned()).spawn(read)?;
        Ok(Tap { is_over, reader: Some(reader) })
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs CAP_NET_RAW, and says nothing without.
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
