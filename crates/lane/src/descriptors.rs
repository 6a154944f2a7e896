//! Passes descriptors from one process to another: packets over a pair of Unix sockets (`SOCK_SEQPACKET`,
//! `SCM_RIGHTS`).
//!
//! A packet arrives completely or not at all, and its descriptors arrive with it.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Bytes per packet: a send buffer of the default size holds several, including the kernel's overhead.
pub const PACKET_BYTES_MAX: usize = 32 << 10;

/// Descriptors per packet. The kernel allows 253 (`SCM_MAX_FD`).
pub const DESCRIPTORS_MAX: usize = 64;

const _: () = assert!(DESCRIPTORS_MAX <= 253);

/// How often a packet is sent again, and at what interval, while the user has too many descriptors in flight
/// (`ETOOMANYREFS`): other processes of the same user pass descriptors too.
const SENDS_MAX: usize = 50;
const SEND_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// One end of a pair.
#[derive(Debug)]
pub struct SeqpacketSocket(OwnedFd);

impl SeqpacketSocket {
    /// Creates a pair; each end belongs to one process.
    ///
    /// # Errors
    /// The kernel's: no descriptors, no memory.
    pub fn pair() -> io::Result<(SeqpacketSocket, SeqpacketSocket)> {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((SeqpacketSocket(one), SeqpacketSocket(other)))
    }

    /// The end that this process got as its standard input.
    ///
    /// # Errors
    /// `InvalidInput` if the standard input is something else.
    pub fn from_stdin() -> io::Result<SeqpacketSocket> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        let is_ours = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET);
        match is_ours {
            true => Ok(SeqpacketSocket(socket)),
            false => Err(io::Error::new(ErrorKind::InvalidInput, "the standard input is not such a socket")),
        }
    }

    /// Limits how long a call waits for the other side; then it fails with `WouldBlock`. `None` waits forever.
    ///
    /// # Errors
    /// A time that the kernel rejects, such as zero.
    pub fn set_patience(&self, time: Option<Duration>) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.0, Timeout::Recv, time)?;
        Ok(sockopt::set_socket_timeout(&self.0, Timeout::Send, time)?)
    }

    /// Waits until a packet has come or the other side has closed, at most for this time. Returns whether it has.
    ///
    /// # Errors
    /// The kernel's: no memory.
    pub fn wait(&self, time: Duration) -> io::Result<bool> {
        let time = Timespec::try_from(time).map_err(|_| ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&time)) {
            Err(Errno::INTR) => Ok(false),
            ready => Ok(ready? > 0),
        }
    }

    /// Sends a packet with these descriptors. The sender keeps its own copies.
    ///
    /// # Errors
    /// The other side has closed or does not read, or the packet is empty or too large.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.is_empty() || bytes.len() > PACKET_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut sent = 1;
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            match sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::TOOMANYREFS) if sent < SENDS_MAX => {
                    sent += 1;
                    sleep(SEND_AGAIN_AFTER);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives a packet into `buffer` and returns its length and descriptors; a length of 0 means that the other
    /// side has closed.
    ///
    /// # Errors
    /// `WouldBlock` if nothing came in time. `InvalidData` if the packet was larger than the buffer, or if this
    /// process may not have that many descriptors: those that came are closed.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let slices = &mut [IoSliceMut::new(buffer)];
            match recvmsg(&self.0, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                received => break received?,
            }
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                descriptors.extend(some);
            }
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "the packet or its descriptors did not fit: see the limit of open files",
            ));
        }
        Ok((received.bytes, descriptors))
    }
}

impl From<SeqpacketSocket> for OwnedFd {
    fn from(passing: SeqpacketSocket) -> OwnedFd {
        passing.0
    }
}

impl From<OwnedFd> for SeqpacketSocket {
    fn from(socket: OwnedFd) -> SeqpacketSocket {
        SeqpacketSocket(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_arrive_with_their_packet() {
        let (one, other) = SeqpacketSocket::pair().unwrap();
        let pairs: Vec<_> = (0..DESCRIPTORS_MAX).map(|_| UnixStream::pair().unwrap()).collect();
        let descriptors: Vec<_> = pairs.iter().map(|(here, _)| here.as_fd()).collect();
        one.send(b"first", &descriptors).unwrap();
        one.send(b"second", &[]).unwrap();
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        let (length, passed) = other.receive(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], passed.len()), (&b"first"[..], DESCRIPTORS_MAX));
        let (length, none) = other.receive(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], none.len()), (&b"second"[..], 0));
        for (descriptor, (_, there)) in passed.into_iter().zip(&pairs) {
            UnixStream::from(descriptor).write_all(b"x").unwrap();
            assert_eq!((&*there).read(&mut [0]).unwrap(), 1);
        }
        drop(one);
        assert_eq!(other.receive(&mut buffer).unwrap().0, 0);
        assert!(other.send(b"x", &[]).is_err());
    }

    #[test]
    fn oversized_packets_are_errors_and_waits_are_limited() {
        let (one, other) = SeqpacketSocket::pair().unwrap();
        assert!(one.send(b"", &[]).is_err());
        assert!(one.send(&vec![0; PACKET_BYTES_MAX + 1], &[]).is_err());
        one.send(b"longer", &[]).unwrap();
        assert_eq!(other.receive(&mut [0; 3]).unwrap_err().kind(), ErrorKind::InvalidData);
        other.set_patience(Some(Duration::from_millis(10))).unwrap();
        assert_eq!(other.receive(&mut [0; 3]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}
