//! The start of a connection: who it is, and the statements that it will ask.

use std::io;

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::messages;

/// The socket, logged in and with these statements prepared.
pub(super) async fn connect(config: &Config, statements: &[&str]) -> io::Result<TcpStream> {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.as_str(),
        _ => return Err(io::Error::other("the database has no host name")),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let mut start = Start { stream, input: BytesMut::new(), out: BytesMut::new() };
    start.log_in(config).await?;
    for (place, sql) in statements.iter().enumerate() {
        messages::prepare(place, sql, &mut start.out)?;
    }
    frontend::sync(&mut start.out);
    start.until_ready().await?;
    Ok(start.stream)
}

struct Start {
    stream: TcpStream,
    input: BytesMut,
    out: BytesMut,
}

impl Start {
    async fn log_in(&mut self, config: &Config) -> io::Result<()> {
        let user = config.get_user().unwrap_or("postgres");
        let database = config.get_dbname().unwrap_or(user);
        let password = config.get_password().unwrap_or_default();
        let parameters = [("user", user), ("database", database), ("client_encoding", "UTF8")];
        frontend::startup_message(parameters, &mut self.out)?;
        match self.next().await? {
            Message::AuthenticationOk => return self.until_ready().await,
            Message::AuthenticationCleartextPassword => frontend::password_message(password, &mut self.out)?,
            Message::AuthenticationMd5Password(body) => {
                let hash = md5_hash(user.as_bytes(), password, body.salt());
                frontend::password_message(hash.as_bytes(), &mut self.out)?;
            }
            Message::AuthenticationSasl(_) => self.scram(password).await?,
            _ => return Err(io::Error::other("the database asks for another way to log in")),
        }
        self.until_ready().await
    }

    async fn scram(&mut self, password: &[u8]) -> io::Result<()> {
        let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
        frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), &mut self.out)?;
        let Message::AuthenticationSaslContinue(body) = self.next().await? else { return Err(unexpected()) };
        scram.update(body.data())?;
        frontend::sasl_response(scram.message(), &mut self.out)?;
        let Message::AuthenticationSaslFinal(body) = self.next().await? else { return Err(unexpected()) };
        scram.finish(body.data())
    }

    /// Until the server is ready for a statement.
    async fn until_ready(&mut self) -> io::Result<()> {
        while !matches!(self.next().await?, Message::ReadyForQuery(_)) {}
        Ok(())
    }

    /// Sends the buffered data, and returns the next message.
    async fn next(&mut self) -> io::Result<Message> {
        self.stream.write_all_buf(&mut self.out).await?;
        loop {
            if let Some((b'E', body)) = messages::first(&self.input)? {
                return Err(io::Error::other(messages::fault(body)));
            }
            if let Some(message) = Message::parse(&mut self.input)? {
                return Ok(message);
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn unexpected() -> io::Error {
    io::Error::other("the database sent what nobody asked for")
}
