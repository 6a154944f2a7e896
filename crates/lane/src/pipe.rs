//! Moves bytes from one socket to another through a pipe, without copying them to user space (`splice(2)`).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::socket::{Moved, moved};

/// A pipe, and the number of bytes in it.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    bytes: usize,
}

impl Pipe {
    /// An empty pipe: two descriptors, 64 KiB of room unless the host is configured otherwise.
    pub fn new() -> io::Result<Pipe> {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        Ok(Pipe { reader, writer, bytes: 0 })
    }

    /// An empty pipe with room for this many bytes, or as many as the host allows.
    pub fn with_room(bytes: usize) -> io::Result<Pipe> {
        let pipe = Pipe::new()?;
        // If the user's pipes already have too many pages, it keeps the default size.
        let _ = fcntl_setpipe_size(&pipe.writer, bytes);
        Ok(pipe)
    }

    /// Bytes in the pipe.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Receives up to `bytes` bytes from a socket. [`Moved::Bytes`]`(0)` is the end of the peer's stream;
    /// [`Moved::WouldBlock`] also means that the pipe is full.
    pub fn fill(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> Moved {
        #[cfg(feature = "simulation")]
        if crate::clock::simulated::is_set() {
            return self.fill_copied(socket, bytes);
        }
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let filled = moved(|| splice(socket, None, &self.writer, None, bytes, flags));
        if let Moved::Bytes(count) = filled {
            self.bytes += count;
        }
        filled
    }

    /// The same with a copy. How much of a socket's memory fits a pipe depends on how the kernel has put it together, and so on what else the
    /// machine does.
    #[cfg(feature = "simulation")]
    fn fill_copied(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> Moved {
        // The last page and the first may be used in part.
        const ROOM_BYTES: usize = 14 * 4096;
        let room = ROOM_BYTES.saturating_sub(self.bytes).min(bytes);
        if room == 0 {
            return Moved::WouldBlock;
        }
        let mut copy = vec![0; room];
        match crate::socket::recv(socket, &mut copy) {
            Moved::Bytes(count @ 1..) => self.copy_in(&copy[..count]),
            moved => moved,
        }
    }

    /// Appends its content to `out`. Returns whether that was all.
    pub fn empty_into(&mut self, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.resize(start + self.bytes, 0);
        let mut at = start;
        while self.bytes > 0 {
            let rest = out.get_mut(at..).unwrap_or_default();
            match moved(|| rustix::io::read(&self.reader, &mut *rest)) {
                Moved::Bytes(count @ 1..) => {
                    at += count;
                    self.bytes -= count.min(self.bytes);
                }
                _ => break,
            }
        }
        out.truncate(at);
        self.bytes == 0
    }

    /// Sends up to `bytes` bytes of its content to a socket. `more` delays an incomplete packet, because other bytes follow.
    pub fn drain(&mut self, socket: BorrowedFd<'_>, bytes: usize, more: bool) -> Moved {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let flags = if more { flags | SpliceFlags::MORE } else { flags };
        let drained = moved(|| splice(&self.reader, None, socket, None, self.bytes.min(bytes), flags));
        if let Moved::Bytes(count) = drained {
            self.bytes -= count;
        }
        drained
    }

    /// Copies bytes into it, for a socket that cannot be spliced from.
    pub fn copy_in(&mut self, bytes: &[u8]) -> Moved {
        let copied = moved(|| rustix::io::write(&self.writer, bytes));
        if let Moved::Bytes(count) = copied {
            self.bytes += count;
        }
        copied
    }

    /// Copies its content to a buffer, for a socket that cannot be spliced to. It counts as in the pipe until
    /// [`Pipe::count_out`].
    pub fn copy_out(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.reader, &mut *buffer) {
                Err(Errno::INTR) => {}
                read => return Ok(read?),
            }
        }
    }

    /// This many of the bytes that were copied out have been sent.
    pub fn count_out(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_go_from_socket_to_socket() {
        let (mut sender, from) = UnixStream::pair().unwrap();
        let (to, mut receiver) = UnixStream::pair().unwrap();
        from.set_nonblocking(true).unwrap();
        let mut pipe = Pipe::new().unwrap();
        assert_eq!(pipe.fill(from.as_fd(), 99), Moved::WouldBlock);
        sender.write_all(b"hello").unwrap();
        assert_eq!(pipe.fill(from.as_fd(), 99), Moved::Bytes(5));
        assert_eq!((pipe.drain(to.as_fd(), 2, false), pipe.bytes()), (Moved::Bytes(2), 3));
        assert_eq!((pipe.drain(to.as_fd(), usize::MAX, false), pipe.bytes()), (Moved::Bytes(3), 0));
        let mut bytes = [0; 5];
        receiver.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        sender.write_all(b"again").unwrap();
        assert_eq!(pipe.fill(from.as_fd(), 99), Moved::Bytes(5));
        let mut out = b"hello ".to_vec();
        assert!(pipe.empty_into(&mut out) && pipe.bytes() == 0);
        assert_eq!(out, b"hello again");
        drop(sender);
        assert_eq!(pipe.fill(from.as_fd(), 99), Moved::Bytes(0));
    }
}
