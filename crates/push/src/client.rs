//! Publishes to a channel of a server: one connection, and one request for each message.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use flatout_wire::answer::{self, Answer, ResponseFraming};

/// The timeout for one message.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Bytes of a response.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Publishes to one channel.
pub struct Client {
    host: String,
    target: String,
    token: String,
    stream: TcpStream,
    read: Vec<u8>,
}

impl Client {
    /// Connects to the server of a channel such as `http://127.0.0.1:8080/live/NBA.1`. `host` names another site of the server
    /// than the URL.
    ///
    /// # Errors
    /// The URL is invalid, or the connection fails.
    pub fn connect(url: &str, host: Option<&str>, token: &str) -> io::Result<Client> {
        let malformed = || {
            io::Error::new(
                ErrorKind::InvalidInput,
                "need a URL such as http://HOST:PORT/live/CHANNEL, and a host and a token without spaces",
            )
        };
        let rest = url.strip_prefix("http://").ok_or_else(malformed)?;
        let (authority, target) = rest.split_once('/').ok_or_else(malformed)?;
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let host = host.unwrap_or(authority);
        if ![host, authority, target, token].into_iter().all(is_plain)
            || host.is_empty()
            || authority.is_empty()
        {
            return Err(malformed());
        }
        // A port follows the last colon that is not part of an IPv6 address.
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIME_MAX))?;
        stream.set_write_timeout(Some(TIME_MAX))?;
        stream.set_nodelay(true)?;
        Ok(Client {
            host: host.to_owned(),
            target: format!("/{target}"),
            token: token.to_owned(),
            stream,
            read: Vec::new(),
        })
    }

    /// Publishes a message: returns the server's response, good or bad. `query` is added to the URL, such as
    /// `event=goal`.
    ///
    /// # Errors
    /// The connection was closed, or the response is not HTTP.
    pub fn publish(
        &mut self,
        message: &[u8],
        content_type: &str,
        query: &str,
    ) -> io::Result<Result<String, String>> {
        let separator = match (query.is_empty(), self.target.contains('?')) {
            (true, _) => "",
            (false, true) => "&",
            (false, false) => "?",
        };
        let head = format!(
            "POST {}{separator}{query} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: {content_type}\r\n\
             Content-Length: {}\r\n\r\n",
            self.target,
            self.host,
            self.token,
            message.len()
        );
        self.stream.write_all(&[head.as_bytes(), message].concat())?;
        let (status, body) = self.response()?;
        let text = String::from_utf8_lossy(&body).trim().to_owned();
        Ok(if status == 200 { Ok(text) } else { Err(format!("{status}: {text}")) })
    }

    fn response(&mut self) -> io::Result<(u16, Vec<u8>)> {
        let odd = || io::Error::new(ErrorKind::InvalidData, "unexpected response");
        loop {
            let parsed = answer::parse(&self.read, false, RESPONSE_BYTES_MAX).map_err(|_| odd())?;
            if let Some(Answer { status, head_bytes, framing: ResponseFraming::Length(bytes), .. }) = parsed {
                let end = head_bytes + usize::try_from(bytes).map_err(|_| odd())?;
                if end > RESPONSE_BYTES_MAX {
                    return Err(odd());
                }
                if self.read.len() >= end {
                    let body = self.read.get(head_bytes..end).unwrap_or_default().to_vec();
                    self.read.drain(..end);
                    return Ok((status.code(), body));
                }
            } else if parsed.is_some() || self.read.len() > RESPONSE_BYTES_MAX {
                return Err(odd());
            }
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece)? {
                0 => {
                    return Err(io::Error::new(
                        ErrorKind::UnexpectedEof,
                        "the server has closed the connection",
                    ));
                }
                count => self.read.extend_from_slice(piece.get(..count).unwrap_or_default()),
            }
        }
    }
}
