//! A socket whose messages have a deadline as a whole: a peer that sends a byte now and then holds nothing for longer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A socket with a deadline.
pub(crate) struct TimedSocket {
    socket: TcpStream,
    until: Instant,
}

impl TimedSocket {
    /// Reads and writes may take this long from now on, all together.
    pub(crate) fn new(socket: TcpStream, time_max: Duration) -> TimedSocket {
        // Messages are written as a whole, and the peer waits for them.
        let _ = socket.set_nodelay(true);
        TimedSocket { socket, until: Instant::now() + time_max }
    }

    /// The same from now on.
    pub(crate) fn allow(&mut self, time_max: Duration) {
        self.until = Instant::now() + time_max;
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for TimedSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(buffer)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
