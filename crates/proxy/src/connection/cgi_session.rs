//! What a connection with CGI responses carries: over FastCGI, SCGI or uwsgi.

use crate::connection::cgi::CgiResponse;
use crate::connection::fastcgi::FastCgiSession;
use crate::plan::Protocol;

/// The state of a connection with CGI responses: of its current one.
pub(crate) enum CgiSession {
    /// Records of FastCGI carry it.
    FastCgi(FastCgiSession),
    /// SCGI and uwsgi: what the server sends, until it closes the connection.
    Plain(CgiResponse),
}

impl CgiSession {
    /// For a connection of this protocol; `None`: its responses are not those of CGI.
    pub(crate) fn of(protocol: Protocol) -> Option<CgiSession> {
        match protocol {
            Protocol::FastCgi => Some(CgiSession::FastCgi(FastCgiSession::default())),
            Protocol::Scgi | Protocol::Uwsgi => Some(CgiSession::Plain(CgiResponse::default())),
            Protocol::Http1 | Protocol::H2c { .. } | Protocol::H2 { .. } => None,
        }
    }

    /// Starts a request.
    pub(crate) fn begin(&mut self, is_head: bool) {
        match self {
            CgiSession::FastCgi(session) => session.begin(is_head),
            CgiSession::Plain(response) => *response = CgiResponse::until_close(is_head),
        }
    }

    /// Appends what `bytes` mean in HTTP/1 to `out`.
    ///
    /// # Errors
    /// Why the response is not usable.
    pub(crate) fn decode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            CgiSession::FastCgi(session) => session.decode(bytes, out),
            CgiSession::Plain(response) => response.content(bytes, out),
        }
    }

    /// The server has closed the connection, which may be the end of the response.
    pub(crate) fn closed(&mut self, out: &mut Vec<u8>) {
        if let CgiSession::Plain(response) = self {
            response.closed(out);
        }
    }

    /// What the application has reported: lines that are complete, and the rest if nothing follows.
    pub(crate) fn take_messages(&mut self, is_last: bool) -> Vec<u8> {
        match self {
            CgiSession::FastCgi(session) => session.take_messages(is_last),
            CgiSession::Plain(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::response::HEAD_BYTES_MAX;

    /// The response whose connection ends after `bytes`, read at once and byte by byte.
    fn decoded(is_head: bool, bytes: &str) -> Result<String, String> {
        let decode = |step: usize| {
            let mut session = CgiSession::of(Protocol::Uwsgi).unwrap();
            session.begin(is_head);
            let mut out = Vec::new();
            bytes.as_bytes().chunks(step).try_for_each(|part| session.decode(part, &mut out))?;
            session.closed(&mut out);
            session.closed(&mut out);
            Ok(String::from_utf8(out).unwrap())
        };
        let whole: Result<String, String> = decode(bytes.len().max(1));
        assert_eq!(whole.is_ok(), decode(1).is_ok());
        whole
    }

    #[test]
    fn responses_end_with_their_length_or_their_connection() {
        let head = "Connection: close\r\n\r\n";
        for (is_head, bytes, expected) in [
            (false, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "200 \r\nContent-Length: 2\r\n|hi"),
            (
                false,
                "HTTP/1.0 404 Not Found\r\nStatus: 200\r\nContent-Length: 0\r\n\r\n",
                "404 \r\nContent-Length: 0\r\n|",
            ),
            (
                false,
                "Status: 201\nX-A: b\n\nhi",
                "201 \r\nX-A: b\r\nTransfer-Encoding: chunked\r\n|2\r\nhi\r\n0\r\n\r\n",
            ),
            (false, "Content-Length: 1\n\nhi", "200 \r\nContent-Length: 1\r\n|h"),
            (false, "Content-Length: 3\n\nhi", "200 \r\nContent-Length: 3\r\n|hi"),
            (false, "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\nhi", "304 \r\nETag: \"a\"\r\n|"),
            (true, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", "200 \r\nContent-Length: 9\r\n|"),
        ] {
            let expected = format!("HTTP/1.1 {}", expected.replacen('|', head, 1));
            assert_eq!(decoded(is_head, bytes), Ok(expected), "{bytes}");
        }
        for half in ["", "HTTP/1.1 200 OK\r\n", "X-A: b\r\n"] {
            assert_eq!(decoded(false, half).as_deref(), Ok(""), "{half}");
        }
    }

    #[test]
    fn garbage_says_why() {
        for (bytes, why) in [
            ("HTTP/2 200\r\n\r\n", "no colon"),
            ("HTTP/1.1\r\n\r\n", "got Status ``"),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", "got Status `101"),
            ("X-A: b\r\nHTTP/1.1 200 OK\r\n\r\n", "no colon"),
            ("\u{1}\u{2}\n\n", "no colon"),
        ] {
            let found = decoded(false, bytes).unwrap_err();
            assert!(found.contains(why), "{bytes}: {found}");
        }
        assert!(decoded(false, &"h".repeat(HEAD_BYTES_MAX + 1)).unwrap_err().contains("longer than"));
    }
}
