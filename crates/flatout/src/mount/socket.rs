//! A socket that has left the lane, as used by hyper and by services that take over a connection.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, IoSlice};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use flatout_engine::DetachedConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

/// How long a peer may accept no data at all.
const STALLED_TIME_MAX: Duration = Duration::from_secs(60);

/// A socket, preceded by the bytes that were already read from it.
pub(super) struct Socket {
    read: Bytes,
    stream: Stream,
    stalled: Option<Pin<Box<Sleep>>>,
    /// `None` once it was ended.
    end: Option<oneshot::Receiver<Infallible>>,
    /// Dropped with it.
    _gone: oneshot::Sender<Infallible>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Ends a [`Socket`] from elsewhere, and knows when it was dropped.
pub(super) struct Owner {
    end: oneshot::Sender<Infallible>,
    gone: oneshot::Receiver<Infallible>,
}

impl Socket {
    /// # Errors
    /// The runtime cannot watch the socket.
    pub(super) fn new(taken: DetachedConnection) -> io::Result<(Socket, Owner)> {
        let socket = taken.carrier.into_socket()?;
        let stream = match taken.peer {
            Some(_) => Stream::Tcp(TcpStream::from_std(socket.into())?),
            None => Stream::Unix(UnixStream::from_std(StdUnixStream::from(socket))?),
        };
        let (end, ended) = oneshot::channel();
        let (alive, gone) = oneshot::channel();
        let socket = Socket { read: taken.read, stream, stalled: None, end: Some(ended), _gone: alive };
        Ok((socket, Owner { end, gone }))
    }

    /// Whether it was ended; wakes the last task that asked.
    fn poll_ended(&mut self, context: &mut Context<'_>) -> bool {
        let ended = self.end.as_mut().is_none_or(|end| Pin::new(end).poll(context).is_ready());
        if ended {
            self.end = None;
        }
        ended
    }

    /// Writes with a time limit. Reading has no time limit: only the service that took over the connection knows when its
    /// peer has to send.
    fn poll_write_slices(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_open()?;
        let polled = match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        };
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALLED_TIME_MAX)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// # Errors
    /// It was ended; only a waiting reader is woken.
    fn check_open(&mut self) -> io::Result<()> {
        let is_open = self
            .end
            .as_mut()
            .is_some_and(|end| matches!(end.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        if is_open { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }
}

impl Owner {
    /// Ready when the socket was dropped. Once `until` is ready, the socket is closed: reads return end of file, writes
    /// fail.
    pub(super) async fn dropped(mut self, until: impl Future<Output = ()>) {
        tokio::select! {
            _ = &mut self.gone => return,
            () = until => {}
        }
        drop(self.end);
        let _ = self.gone.await;
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.read.is_empty() {
            let count = self.read.len().min(buffer.remaining());
            buffer.put_slice(&self.read[..count]);
            self.read.advance(count);
            return Poll::Ready(Ok(()));
        }
        if self.poll_ended(context) {
            return Poll::Ready(Ok(()));
        }
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_slices(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_slices(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use flatout_engine::ConnectionPermit;
    use tokio::io::AsyncReadExt;
    use tokio::io::AsyncWriteExt;

    fn taken(read: &'static [u8]) -> (DetachedConnection, StdUnixStream) {
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (
            DetachedConnection {
                carrier: OwnedFd::from(ours).into(),
                read: Bytes::from_static(read),
                peer: None,
                is_direct: true,
                permit: ConnectionPermit::none(),
            },
            theirs,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_times_out() {
        let (taken, _peer) = taken(b"");
        let (mut socket, _owner) = Socket::new(taken).unwrap();
        let began = tokio::time::Instant::now();
        let error = socket.write_all(&vec![0; 16 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= STALLED_TIME_MAX);
    }

    #[tokio::test]
    async fn an_ended_socket_is_at_its_end_for_both_sides() {
        let (taken, _peer) = taken(b"first");
        let (mut socket, owner) = Socket::new(taken).unwrap();
        let reader = tokio::spawn(async move {
            let mut text = String::new();
            socket.read_to_string(&mut text).await.unwrap();
            (text, socket.write_all(b"x").await.unwrap_err().kind())
        });
        owner.dropped(async {}).await;
        assert_eq!(reader.await.unwrap(), ("first".to_owned(), io::ErrorKind::BrokenPipe));
    }
}
