//! A server of the comparison.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use super::ask::Stream;

/// A server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// `host:port`
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Server {
    /// Parses `http://host[:port]` or `unix:PATH`.
    ///
    /// # Errors
    /// The value, and the expected form.
    pub fn parse(text: &str) -> Result<Server, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Server::Unix(path.into()));
        }
        let rest = text.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        match rest.filter(|rest| !rest.is_empty() && !rest.contains(['/', '?', '#', '@'])) {
            Some(host) if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
                Ok(Server::Tcp(host.to_owned()))
            }
            Some(host) => Ok(Server::Tcp(format!("{host}:80"))),
            None => Err(format!("got `{text}`, need http://HOST:PORT or unix:PATH")),
        }
    }

    /// The `Host` that follows from its address.
    pub fn host(&self) -> String {
        match self {
            Server::Tcp(address) => address.strip_suffix(":80").unwrap_or(address).to_owned(),
            Server::Unix(_) => "localhost".to_owned(),
        }
    }

    pub(super) fn connect(&self, time_max: Duration) -> io::Result<Box<dyn Stream>> {
        match self {
            Server::Tcp(address) => {
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for address in address.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, time_max) {
                        Ok(stream) => return Ok(Box::new(stream)),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Server::Unix(path) => Ok(Box::new(UnixStream::connect(path)?)),
        }
    }
}
