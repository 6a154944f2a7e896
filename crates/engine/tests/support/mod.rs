//! A server for one test, and client helpers.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

pub(crate) mod attacks;
mod client;
pub(crate) mod h2;
pub(crate) mod secure;

use std::cell::RefCell;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) use client::{body_of, get, last, read_until, rest};
use flatout_engine::{Address, Begun, Handle, Limits, Plan, Server, Service, Worker, start};

/// A server that ends with its test.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) handle: Handle,
    server: Option<Server>,
    certified: Option<secure::Certified>,
}

/// Whether the tests run over TLS, as those of `encrypted.rs` do. Tests of the socket itself are not possible there,
/// because the client in between has its own socket; `tls.rs` tests it.
pub(crate) fn is_encrypted() -> bool {
    std::env::current_exe().is_ok_and(|path| path.to_string_lossy().contains("/encrypted-"))
}

impl Running {
    pub(crate) fn serving(
        limits: Limits,
        make: impl Fn(Worker) -> Box<dyn Service> + Send + Sync + 'static,
    ) -> Running {
        Running::on_workers(1, limits, make)
    }

    pub(crate) fn on_workers(
        workers: usize,
        limits: Limits,
        make: impl Fn(Worker) -> Box<dyn Service> + Send + Sync + 'static,
    ) -> Running {
        Running::start(workers, limits, is_encrypted().then_some(&[][..]), make)
    }

    /// A TLS server, and a client in front of it that offers these protocols.
    pub(crate) fn over_tls(
        protocols: &[&[u8]],
        make: impl Fn(Worker) -> Box<dyn Service> + Send + Sync + 'static,
    ) -> Running {
        Running::start(1, Limits::default(), Some(protocols), make)
    }

    fn start(
        workers: usize,
        limits: Limits,
        protocols: Option<&[&[u8]]>,
        make: impl Fn(Worker) -> Box<dyn Service> + Send + Sync + 'static,
    ) -> Running {
        let certified = protocols.map(|_| secure::Certified::new());
        let plan = Plan {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            tls: certified.as_ref().map(secure::Certified::acceptor),
            workers: Some(workers),
            limits,
            ..Plan::default()
        };
        let server = start(plan, make).unwrap();
        let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
        let address = match &certified {
            Some(certified) => {
                let mut client = (*certified.client(rustls::ALL_VERSIONS)).clone();
                client.alpn_protocols = protocols.unwrap_or_default().iter().map(|it| it.to_vec()).collect();
                secure::encrypting(address, client.into())
            }
            None => address,
        };
        Running { address, handle: server.handle(), server: Some(server), certified }
    }

    /// Waits until the server ends by itself.
    pub(crate) fn wait(&mut self) {
        self.server.take().unwrap().wait().unwrap();
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// A connection with a small receive buffer.
    pub(crate) fn connect_with_small_buffer(&self) -> TcpStream {
        use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
        let small = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        // Set it before connecting: a buffer that has grown cannot shrink until it was read.
        sockopt::set_socket_recv_buffer_size(&small, 100_000).unwrap();
        connect(&small, &self.address).unwrap();
        TcpStream::from(small)
    }

    /// Sends `bytes` and reads until the server closes.
    pub(crate) fn all(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes.as_ref()).unwrap();
        rest(&mut stream)
    }
}

/// The paths of requests in progress.
#[derive(Default)]
pub(crate) struct Paths(RefCell<Vec<String>>);

impl Paths {
    /// Keeps the path of a request, or nothing for a refused one.
    pub(crate) fn keep(&self, begun: &Begun<'_>) -> u64 {
        let path = begun.head.map_or(String::new(), |head| String::from_utf8_lossy(head.path()).into_owned());
        self.0.borrow_mut().push(path);
        self.0.borrow().len() as u64
    }

    /// The path for the mark that [`Paths::keep`] returned.
    pub(crate) fn of(&self, mark: u64) -> String {
        self.0.borrow()[mark as usize - 1].clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(server) = self.server.take() {
            server.wait().unwrap();
        }
    }
}
