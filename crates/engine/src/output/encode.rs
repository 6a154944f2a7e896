//! From a response to its bytes: the head, framed by the state machine, and the body after it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use flatout_wire::Status;
use flatout_wire::h1::{Length, Misfit, Next, Server, Wants};

use super::{COPY_BYTES_MAX, Output, Piece, Prelude};
use crate::exchange::panicked;
use crate::service::{BUFFER_BYTES_KEPT, Body, BoxBody, Part, Response, Takeover};

/// What follows after the encoded bytes.
pub(crate) enum Follow {
    /// The response has ended.
    Next(Next),
    /// More of the body, from a task.
    Stream(BoxBody),
    /// More of the body, pushed by key.
    Pushed,
    /// Something that is not HTTP.
    Take(Takeover),
}

impl Output {
    /// Adds a response and leaves it to be reset. `close` makes it the last one.
    ///
    /// Its body may be the application's own type and panic when it is asked for its length, or dropped: then nothing
    /// of it is kept, and the response is the one for a panic.
    #[inline]
    pub(crate) fn encode(
        &mut self,
        response: &mut Response,
        machine: &mut Server,
        close: bool,
        prelude: &Prelude,
    ) -> Follow {
        let close = close || response.closes();
        if response.is_plain() {
            return self.encode_memory(response, machine, close, prelude);
        }
        self.try_to_encode(response, machine, close, prelude)
    }

    #[inline(never)]
    fn try_to_encode(
        &mut self,
        response: &mut Response,
        machine: &mut Server,
        close: bool,
        prelude: &Prelude,
    ) -> Follow {
        let before = self.mark();
        match catch_unwind(AssertUnwindSafe(|| self.encode_other(response, machine, close, prelude))) {
            Ok(Ok(follow)) => follow,
            // A response can be replaced as long as the state machine has not seen it.
            Ok(Err(_)) | Err(_) if machine.owes_response() => {
                self.back_to(before);
                self.encode_memory(&mut panicked(), machine, true, prelude)
            }
            Ok(Err(_)) | Err(_) => {
                machine.close();
                Follow::Next(Next::Close)
            }
        }
    }

    #[inline]
    fn encode_memory(
        &mut self,
        response: &mut Response,
        machine: &mut Server,
        close: bool,
        prelude: &Prelude,
    ) -> Follow {
        prelude.write(response, &mut self.bytes);
        response.write_fields(&mut self.bytes);
        let carried = response.body_bytes().map_or(0, <[u8]>::len);
        let length = declared_length(response, carried as u64);
        let framed = machine.respond_whole(response.status(), length, carried, close, &mut self.bytes);
        self.head_ends_at = self.len();
        // Shorter than declared: what was encoded is sent, and the connection aborted.
        let Ok((follows, next)) = framed else { return Follow::Next(Next::Close) };
        if follows {
            // The worker's own buffer is copied even if it is large: otherwise it would be allocated again each time.
            let is_kept = matches!(response.body(), Body::Buffered) && carried <= BUFFER_BYTES_KEPT;
            if carried <= COPY_BYTES_MAX || is_kept {
                self.bytes.extend_from_slice(response.body_bytes().unwrap_or_default());
            } else {
                self.add_large(response);
            }
        }
        Follow::Next(next)
    }

    /// Adds a body in memory that is too large to be copied after its head.
    fn add_large(&mut self, response: &mut Response) {
        let large = match response.take_body() {
            Body::Shared(bytes) => bytes,
            Body::Static(bytes) => Bytes::from_static(bytes),
            _ => Bytes::new(),
        };
        self.cut(Piece::Bytes(large));
    }

    fn encode_other(
        &mut self,
        response: &mut Response,
        machine: &mut Server,
        close: bool,
        prelude: &Prelude,
    ) -> Result<Follow, Misfit> {
        if !response.hints().is_empty() {
            machine.inform(Status::EARLY_HINTS, response.hints(), &mut self.bytes);
        }
        let has_trailers = !response.trailers().is_empty() && machine.takes_trailers();
        let trailers = if has_trailers { response.trailers().to_vec() } else { Vec::new() };
        let body = response.take_body();
        let status = match body {
            Body::Take(_) => response.status(),
            _ => response.final_status(),
        };
        let length = match &body {
            _ if !trailers.is_empty() => Length::Unknown,
            Body::Stream(body) => response.length_of_stream(body).map_or(Length::Unknown, Length::Known),
            Body::Pushed => response.declared_length().map_or(Length::Unknown, Length::Known),
            body => declared_length(response, length_of(body)),
        };
        prelude.write_other(status, response, &mut self.bytes);
        response.write_fields(&mut self.bytes);
        if let Body::Take(takeover) = body {
            // The rest of the request's body would be taken for the other protocol.
            if machine.wants() != Wants::Answer {
                return Err(Misfit);
            }
            machine.switch(status, &mut self.bytes);
            self.head_ends_at = self.len();
            return Ok(Follow::Take(takeover));
        }
        let follows = machine.respond(status, length, close, &mut self.bytes);
        self.head_ends_at = self.len();
        if follows {
            match body {
                Body::Stream(body) => return Ok(Follow::Stream(body)),
                Body::Pushed => return Ok(Follow::Pushed),
                body => self.add_framed(body, machine)?,
            }
        }
        Ok(Follow::Next(machine.end(&trailers, &mut self.bytes)?))
    }

    /// Adds a body whose pieces are all available.
    fn add_framed(&mut self, body: Body, machine: &mut Server) -> Result<(), Misfit> {
        let parts = match body {
            Body::Shared(bytes) => vec![Part::Bytes(bytes)],
            Body::Static(bytes) => vec![Part::Bytes(Bytes::from_static(bytes))],
            Body::File(range) => vec![Part::File(range)],
            Body::Parts(parts) => parts,
            Body::Empty | Body::Buffered | Body::Stream(_) | Body::Pushed | Body::Take(_) => Vec::new(),
        };
        for part in parts {
            let bytes = length_of_part(&part);
            if bytes == 0 {
                continue;
            }
            let behind = machine.data(bytes as usize, &mut self.bytes)?;
            match part {
                Part::Bytes(bytes) => self.add(bytes),
                Part::File(range) => self.cut(Piece::File(range)),
            }
            self.bytes.extend_from_slice(behind);
        }
        Ok(())
    }
}

/// The length in the head: the body's, unless a response without a body declares another.
#[inline]
fn declared_length(response: &Response, carried: u64) -> Length {
    match response.declared_length() {
        Some(bytes) if carried == 0 => Length::Declared(bytes),
        _ => Length::Known(carried),
    }
}

pub(super) fn length_of(body: &Body) -> u64 {
    match body {
        Body::Static(bytes) => bytes.len() as u64,
        Body::Shared(bytes) => bytes.len() as u64,
        Body::File(range) => range.bytes,
        Body::Parts(parts) => parts.iter().map(length_of_part).sum(),
        Body::Empty | Body::Buffered | Body::Stream(_) | Body::Pushed | Body::Take(_) => 0,
    }
}

fn length_of_part(part: &Part) -> u64 {
    match part {
        Part::Bytes(bytes) => bytes.len() as u64,
        Part::File(range) => range.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_wire::head::HeadLimits;

    const KEPT: &str = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";

    /// The part of the response to `request` that is in memory.
    fn encoded(response: &mut Response, request: &str) -> String {
        let mut prelude = Prelude::new(Some("t"));
        prelude.follow(784_111_777);
        let mut machine = Server::default();
        machine.head(request.as_bytes(), &mut Vec::new(), &HeadLimits::default()).unwrap().unwrap();
        let mut output = Output::default();
        output.encode(response, &mut machine, false, &prelude);
        String::from_utf8(output.bytes).unwrap()
    }

    #[test]
    fn small_response() {
        let mut response = Response::new();
        response.header("Content-Type", "text/plain").buffer().extend_from_slice(b"hi");
        let expected = "HTTP/1.1 200 OK\r\nServer: t\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                        Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n";
        assert_eq!(encoded(&mut response, KEPT), format!("{expected}hi"));
        assert_eq!(encoded(&mut response, &KEPT.replace("GET", "HEAD")), expected);
    }

    #[test]
    fn connection_field_is_sent_if_not_default() {
        for (request, line) in [
            ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", Some("Connection: keep-alive")),
            ("GET / HTTP/1.0\r\n\r\n", Some("Connection: close")),
            (KEPT, None),
            ("GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", Some("Connection: close")),
        ] {
            let head = encoded(&mut Response::new(), request);
            assert_eq!(head.lines().find(|line| line.starts_with("Connection")), line);
        }
    }

    #[test]
    fn bodyless_statuses_have_no_length() {
        for status in [Status::NO_CONTENT, Status::NOT_MODIFIED] {
            let mut response = Response::with_status(status);
            response.set_body(Body::Static(b"never sent"));
            let head = encoded(&mut response, KEPT);
            assert!(!head.contains("Content-Length") && head.ends_with("\r\n\r\n"), "{head}");
        }
    }

    #[test]
    fn length_can_be_declared_without_a_body() {
        let mut response = Response::new();
        response.declare_length(99);
        let head = encoded(&mut response, &KEPT.replace("GET", "HEAD"));
        assert!(head.contains("Content-Length: 99\r\n"), "{head}");
        response.set_status(Status::NOT_MODIFIED);
        let head = encoded(&mut response, KEPT);
        assert!(head.contains("Content-Length: 99\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn hints_precede_and_trailers_follow_the_response() {
        let mut response = Response::new();
        response.hint("Link", "</a.css>").trailer("X-Sum", "7").buffer().extend_from_slice(b"hi");
        let text = encoded(&mut response, KEPT);
        assert!(
            text.starts_with("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\n"),
            "{text}"
        );
        let chunked = "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 7\r\n\r\n";
        assert!(text.ends_with(chunked), "{text}");
        let mut response = Response::new();
        response.hint("Link", "</a.css>").trailer("X-Sum", "7").buffer().extend_from_slice(b"hi");
        let old = encoded(&mut response, "GET / HTTP/1.0\r\n\r\n");
        assert!(old.starts_with("HTTP/1.1 200 OK\r\n") && old.ends_with("\r\n\r\nhi"), "{old}");
    }

    #[test]
    fn field_cannot_split_the_response() {
        let mut response = Response::new();
        response.header("X", "a\r\nSet-Cookie: b");
        assert_eq!(response.status(), Status::INTERNAL_SERVER_ERROR);
        assert!(!encoded(&mut response, KEPT).contains("Cookie"));
    }

    #[test]
    fn reserved_fields_cannot_be_set() {
        let mut response = Response::new();
        response
            .header("content-length", "99")
            .header("Transfer-Encoding", "x")
            .header("Connection", "close");
        response.header("Date", "then").header("Server", "me");
        let head = encoded(&mut response, KEPT);
        assert_eq!(
            head,
            "HTTP/1.1 200 OK\r\nDate: then\r\nServer: me\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
}
