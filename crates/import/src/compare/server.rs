//! A server of the comparison.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flatout_tls::unverified_client_config;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::ask::Stream;

/// A server's address.
#[derive(Debug, Clone)]
pub enum Server {
    /// `host:port`
    Tcp(String),
    /// `host:port` with TLS. The certificate is not verified: the two servers are compared, not trusted.
    Tls(String, Arc<ClientConfig>),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Server {
    /// Parses `http://host[:port]`, `https://host[:port]` or `unix:PATH`.
    ///
    /// # Errors
    /// The value, and the expected form.
    pub fn parse(text: &str) -> Result<Server, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Server::Unix(path.into()));
        }
        let wrong = || format!("got `{text}`, need http://HOST:PORT, https://HOST:PORT or unix:PATH");
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let rest = rest.trim_end_matches('/');
        if rest.is_empty() || rest.contains(['/', '?', '#', '@']) {
            return Err(wrong());
        }
        let has_port = rest.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = |usual: &str| if has_port { rest.to_owned() } else { format!("{rest}:{usual}") };
        match scheme {
            "http" => Ok(Server::Tcp(address("80"))),
            "https" => Ok(Server::Tls(address("443"), unverified_client_config()?)),
            _ => Err(wrong()),
        }
    }

    /// The `Host` that follows from its address.
    pub fn host(&self) -> String {
        match self {
            Server::Tcp(address) => address.strip_suffix(":80").unwrap_or(address).to_owned(),
            Server::Tls(address, _) => address.strip_suffix(":443").unwrap_or(address).to_owned(),
            Server::Unix(_) => "localhost".to_owned(),
        }
    }

    /// The start of its URLs.
    pub(super) fn scheme(&self) -> &'static str {
        match self {
            Server::Tls(..) => "https://",
            Server::Tcp(_) | Server::Unix(_) => "http://",
        }
    }

    /// A connection for a request with this `Host`, which is also the name in TLS.
    pub(super) fn connect(&self, host: &str, time_max: Duration) -> io::Result<Box<dyn Stream>> {
        match self {
            Server::Tcp(address) => Ok(Box::new(connected(address, time_max)?)),
            Server::Tls(address, config) => {
                let stream = connected(address, time_max)?;
                stream.limit(time_max)?;
                let session =
                    ClientConnection::new(config.clone(), name_of(host)).map_err(io::Error::other)?;
                Ok(Box::new(StreamOwned::new(session, stream)))
            }
            Server::Unix(path) => Ok(Box::new(UnixStream::connect(path)?)),
        }
    }
}

/// The name of a `Host` for TLS. What is none becomes one that no server has.
fn name_of(host: &str) -> ServerName<'static> {
    let has_port = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let name = has_port.map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    ServerName::try_from(name.to_owned())
        .unwrap_or_else(|_| ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into()))
}

fn connected(address: &str, time_max: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, time_max) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
