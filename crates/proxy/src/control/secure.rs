//! TLS connections to upstream servers outside a worker's lane, for the health checks.

use std::io;
use std::os::fd::OwnedFd;

use flatout_engine::Moved;
use flatout_engine::tls::{Channel, Shake};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::server::LiveServer;

/// A connection registered with the runtime.
pub(crate) struct Secure {
    channel: Channel,
    /// A duplicate of the socket's descriptor, whatever its type: used for readiness only.
    watched: TcpStream,
}

impl Secure {
    /// Does the handshake.
    ///
    /// # Errors
    /// The handshake failed, or the server's certificate is not trusted.
    pub(crate) async fn open(server: &LiveServer, socket: OwnedFd) -> io::Result<Secure> {
        let watched = TcpStream::from_std(socket.try_clone()?.into())?;
        let Ok(channel) = server.secure(socket)? else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut secure = Secure { channel, watched };
        // Send the ClientHello without waiting for an event.
        let mut shake = secure.channel.shake();
        loop {
            match shake {
                Shake::Done => return Ok(secure),
                Shake::Failed => return Err(secure.fault()),
                Shake::GoesOn => {}
            }
            secure.watched.readable().await?;
            let Secure { channel, watched } = &mut secure;
            let tried = watched.try_io(Interest::READABLE, || match channel.shake() {
                Shake::GoesOn => Err(io::ErrorKind::WouldBlock.into()),
                shake => Ok(shake),
            });
            shake = tried.unwrap_or(Shake::GoesOn);
        }
    }

    pub(crate) async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = self.moved(Interest::WRITABLE, |channel| channel.send(bytes)).await?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Appends the next data to `into`: returns how many bytes, 0 at EOF.
    pub(crate) async fn read(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        let mut buffer = [0; 4096];
        let count = self.moved(Interest::READABLE, |channel| channel.receive(&mut buffer)).await?;
        into.extend_from_slice(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }

    async fn moved(
        &mut self,
        interest: Interest,
        mut call: impl FnMut(&mut Channel) -> Moved,
    ) -> io::Result<usize> {
        // The rest of an earlier record causes no event.
        let mut moved = call(&mut self.channel);
        loop {
            match moved {
                Moved::Bytes(count) => return Ok(count),
                Moved::Broken => return Err(self.fault()),
                Moved::WouldBlock => {}
            }
            self.watched.ready(interest).await?;
            let Secure { channel, watched } = self;
            let tried = watched.try_io(interest, || match call(channel) {
                Moved::WouldBlock => Err(io::ErrorKind::WouldBlock.into()),
                moved => Ok(moved),
            });
            moved = tried.unwrap_or(Moved::WouldBlock);
        }
    }

    fn fault(&self) -> io::Error {
        let fault = self.channel.fault().cloned();
        fault.map_or_else(|| io::ErrorKind::ConnectionReset.into(), io::Error::other)
    }
}
