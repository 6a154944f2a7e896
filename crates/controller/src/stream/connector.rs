//! The connection of a data plane to a controller: all addresses are tried in turn.

use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use super::credentials::{DataPlaneCredentials, DataPlaneStream, Token};
use super::socket::TimedSocket;
use super::{
    Acknowledgement, HELLO_TIME_MAX, Hello, Message, PLAN_BYTES_MAX, REPLY_BYTES_MAX, SILENCE_MAX,
    connection_fault, receive, send,
};
use crate::data::FORMAT;

/// The pause after all controllers were tried; it doubles each time,
const PAUSE_MIN: Duration = Duration::from_millis(200);

/// up to this one.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Connects to controllers in turn.
pub(super) struct Connector {
    controllers: Vec<String>,
    credentials: DataPlaneCredentials,
    name: String,
    /// Addresses that are tried next, the last one first, with the names that certificates must have.
    queue: Vec<(SocketAddr, String)>,
    pause: Duration,
}

/// A connection to a controller.
pub(super) struct ControllerSession {
    stream: DataPlaneStream,
    pub(super) shown: String,
    /// It has begun with its term, which was accepted.
    pub(super) is_welcomed: bool,
    /// It has sent something after that.
    pub(super) is_accepted: bool,
}

impl Connector {
    pub(super) fn new(
        controllers: Vec<String>,
        credentials: DataPlaneCredentials,
        name: String,
    ) -> Connector {
        Connector { controllers, credentials, name, queue: Vec::new(), pause: PAUSE_MIN }
    }

    /// A controller has responded: if it goes away, the next one is tried soon.
    pub(super) fn reset(&mut self) {
        self.pause = PAUSE_MIN;
    }

    /// Connects to the next address.
    ///
    /// # Errors
    /// It does not respond, or shows no certificate that is trusted.
    pub(super) fn connect(&mut self) -> Result<ControllerSession, String> {
        if self.queue.is_empty() {
            self.queue = self.addresses()?;
        }
        let (at, host) = self.queue.pop().ok_or("no controller has an address")?;
        let shown = format!("{host} ({at})");
        self.connect_to(at, &host).map_err(|why| format!("{shown}: {why}")).map(|stream| ControllerSession {
            stream,
            shown,
            is_welcomed: false,
            is_accepted: false,
        })
    }

    fn connect_to(&self, at: SocketAddr, host: &str) -> Result<DataPlaneStream, String> {
        let socket =
            TcpStream::connect_timeout(&at, HELLO_TIME_MAX).map_err(|error| connection_fault(&error))?;
        let mut stream = self.credentials.connect(host, TimedSocket::new(socket, HELLO_TIME_MAX))?;
        let token = Token::read(&self.credentials.token)?;
        let hello = Hello { formats: vec![FORMAT], name: self.name.clone(), token: token.text().to_owned() };
        send(&mut stream, &hello, REPLY_BYTES_MAX).map_err(|error| connection_fault(&error))?;
        Ok(stream)
    }

    /// All addresses of all controllers, in reverse order.
    fn addresses(&self) -> Result<Vec<(SocketAddr, String)>, String> {
        let (mut found, mut fault) = (Vec::new(), None);
        for controller in &self.controllers {
            let host = controller.rsplit_once(':').map_or(controller.as_str(), |(host, _)| host);
            match controller.to_socket_addrs() {
                Ok(all) => found.extend(all.map(|at| (at, host.to_owned()))),
                Err(error) => fault = Some(format!("{controller}: {error}")),
            }
        }
        found.reverse();
        fault.filter(|_| found.is_empty()).map_or(Ok(found), Err)
    }

    /// Waits, if all addresses were tried: for half of the pause, and a random part of the rest.
    pub(super) fn wait(&mut self) {
        if self.queue.is_empty() {
            let random = RandomState::new().hash_one(0) as u32;
            thread::sleep(self.pause / 2 + self.pause.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0));
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }
}

impl ControllerSession {
    pub(super) fn next(&mut self) -> Result<Message, String> {
        self.stream.sock.allow(SILENCE_MAX);
        receive(&mut self.stream, PLAN_BYTES_MAX).map_err(|error| connection_fault(&error))
    }

    pub(super) fn acknowledge(&mut self, result: &Acknowledgement) -> Result<(), String> {
        self.stream.sock.allow(SILENCE_MAX);
        send(&mut self.stream, result, REPLY_BYTES_MAX).map_err(|error| connection_fault(&error))
    }
}
