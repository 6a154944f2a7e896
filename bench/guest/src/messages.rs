//! Messages over connections that have switched protocols: an echo upstream, and the client.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use crate::Failure;

/// Bytes of a message, as a WebSocket frame with a mask would be.
const MESSAGE_BYTES: usize = 70;

const HEAD_BYTES_MAX: usize = 4 << 10;

const ACCEPT: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Switches protocols for every request, and then echoes.
pub(crate) fn serve(address: SocketAddr) -> io::Result<()> {
    on_one_thread(async move {
        let listener = TcpListener::bind(address).await?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            tokio::task::spawn_local(async move {
                stream.set_nodelay(true)?;
                read_head(&mut stream).await?;
                stream.write_all(ACCEPT).await?;
                crate::echo::repeat(stream).await
            });
        }
    })
}

/// One message at a time over each of `connections`, for `seconds`: prints the number of round trips.
#[expect(clippy::print_stdout, reason = "the count is what it is run for")]
pub(crate) fn ask(address: SocketAddr, connections: usize, seconds: u64) -> Result<(), Failure> {
    let count = Rc::new(Cell::new(0u64));
    let counted = count.clone();
    on_one_thread(async move {
        let mut streams = Vec::new();
        for _ in 0..connections {
            streams.push(connect(address).await?);
        }
        let ends = Instant::now() + Duration::from_secs(seconds);
        let tasks: Vec<_> = streams
            .into_iter()
            .map(|stream| tokio::task::spawn_local(exchange(stream, ends, counted.clone())))
            .collect();
        for task in tasks {
            task.await.map_err(io::Error::other)??;
        }
        Ok(())
    })?;
    println!("{}", count.get());
    Ok(())
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let request = format!(
        "GET /messages HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let head = read_head(&mut stream).await?;
    match head.starts_with(b"HTTP/1.1 101 ") {
        true => Ok(stream),
        false => Err(io::Error::other(String::from_utf8_lossy(&head).into_owned())),
    }
}

async fn exchange(mut stream: TcpStream, ends: Instant, count: Rc<Cell<u64>>) -> io::Result<()> {
    let mut message = [b'm'; MESSAGE_BYTES];
    while Instant::now() < ends {
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
        count.set(count.get() + 1);
    }
    Ok(())
}

/// Reads a head byte by byte, so that nothing after it is consumed.
async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.push(stream.read_u8().await?);
    }
    Ok(head)
}

fn on_one_thread(work: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    LocalSet::new().block_on(&runtime, work)
}
