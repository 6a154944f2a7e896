//! Messages over connections that have switched protocols: an echo upstream, and the client.

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use flatout_engine::Address;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::task::{JoinSet, LocalSet};

use crate::Failure;

/// Bytes of a message, as a WebSocket frame with a mask would be.
const MESSAGE_BYTES: usize = 70;

const HEAD_BYTES_MAX: usize = 4 << 10;

const ACCEPT: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Connections from one source address: a client has some 28,000 ports.
const PER_SOURCE: usize = 20_000;

/// Requests to change protocols in progress; the others wait for their turn.
const OPENING_MAX: usize = 64;

/// Switches protocols for every request, and then echoes. Addresses are of TCP, or `unix:` with a path.
pub(crate) fn serve(addresses: &[&str]) -> Result<(), Failure> {
    let addresses: Vec<Address> =
        addresses.iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
    Ok(on_one_thread(async move {
        let mut listeners = JoinSet::new();
        for address in addresses {
            listeners.spawn_local(listen(address));
        }
        match listeners.join_next().await {
            Some(ended) => ended.map_err(io::Error::other)?,
            None => Ok(()),
        }
    })?)
}

async fn listen(address: Address) -> io::Result<()> {
    match address {
        Address::Tcp(address) => {
            let listener = TcpListener::bind(address).await?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                tokio::task::spawn_local(switch(stream));
            }
        }
        Address::Unix(path) => {
            let listener = UnixListener::bind(path)?;
            loop {
                let (stream, _) = listener.accept().await?;
                tokio::task::spawn_local(switch(stream));
            }
        }
    }
}

async fn switch(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    read_head(&mut stream).await?;
    stream.write_all(ACCEPT).await?;
    crate::echo::repeat(stream).await
}

/// One message at a time over each of `connections`, for `seconds`: prints the number of round trips.
#[expect(clippy::print_stdout, reason = "the count is what it is run for")]
pub(crate) fn ask(address: SocketAddr, connections: usize, seconds: u64) -> Result<(), Failure> {
    let count = Rc::new(Cell::new(0u64));
    let counted = count.clone();
    on_one_thread(async move {
        let streams = connect_all(address, connections).await?;
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

/// Opens `connections`, prints their number, and then sends a message over each of them every `seconds`, evenly spread. At the end
/// of its input it prints how many messages came back, and how many connections had failed.
#[expect(clippy::print_stdout, reason = "the counts are what it is run for")]
pub(crate) fn keep(address: SocketAddr, connections: usize, seconds: u64) -> Result<(), Failure> {
    let (count, failed) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
    let (counted, failures) = (count.clone(), failed.clone());
    on_one_thread(async move {
        let streams = connect_all(address, connections).await?;
        println!("{}", streams.len());
        let every = Duration::from_secs(seconds);
        for (at, stream) in streams.into_iter().enumerate() {
            let wait = every.mul_f64(at as f64 / connections as f64);
            let (counted, failures) = (counted.clone(), failures.clone());
            tokio::task::spawn_local(async move {
                tokio::time::sleep(wait).await;
                if exchange_every(stream, every, counted).await.is_err() {
                    failures.set(failures.get() + 1);
                }
            });
        }
        let (ended, wait) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || ended.send(io::copy(&mut io::stdin(), &mut io::sink())));
        wait.await.map_err(io::Error::other)??;
        Ok(())
    })?;
    println!("{} {}", count.get(), failed.get());
    Ok(())
}

/// Opens connections from as many source addresses of loopback as they need.
async fn connect_all(address: SocketAddr, connections: usize) -> io::Result<Vec<TcpStream>> {
    let (mut streams, mut opening) = (Vec::with_capacity(connections), JoinSet::new());
    for at in 0..connections {
        if opening.len() == OPENING_MAX
            && let Some(opened) = opening.join_next().await
        {
            streams.push(opened.map_err(io::Error::other)??);
        }
        let source = match address.is_ipv4() && connections > PER_SOURCE {
            true => Some(Ipv4Addr::from(Ipv4Addr::new(127, 0, 0, 2).to_bits() + (at / PER_SOURCE) as u32)),
            false => None,
        };
        opening.spawn_local(connect(address, source));
    }
    while let Some(opened) = opening.join_next().await {
        streams.push(opened.map_err(io::Error::other)??);
    }
    Ok(streams)
}

async fn connect(address: SocketAddr, source: Option<Ipv4Addr>) -> io::Result<TcpStream> {
    let mut stream = match source {
        Some(source) => {
            let socket = TcpSocket::new_v4()?;
            socket.bind((source, 0).into())?;
            socket.connect(address).await?
        }
        None => TcpStream::connect(address).await?,
    };
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
    while Instant::now() < ends {
        exchange_once(&mut stream, &count).await?;
    }
    Ok(())
}

async fn exchange_every(mut stream: TcpStream, every: Duration, count: Rc<Cell<u64>>) -> io::Result<()> {
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        exchange_once(&mut stream, &count).await?;
    }
}

async fn exchange_once(stream: &mut TcpStream, count: &Cell<u64>) -> io::Result<()> {
    let mut message = [b'm'; MESSAGE_BYTES];
    stream.write_all(&message).await?;
    stream.read_exact(&mut message).await?;
    count.set(count.get() + 1);
    Ok(())
}

/// Reads a head byte by byte, so that nothing after it is consumed.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, work)
}
