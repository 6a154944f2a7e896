//! The lines of every response, formatted once a second.

use flatout_wire::Status;
use flatout_wire::h1::write_status_line;
use flatout_wire::h2::hpack::encode_lines;

use crate::service::Response;

/// `Server` and `Date`, and the start of a response with status 200, which most have.
pub(crate) struct Prelude {
    server: Vec<u8>,
    /// `HTTP/1.1 200 OK`, `Server`, `Date`, one after another.
    ok: Vec<u8>,
    /// Where the lines after the status line start.
    lines_at: usize,
    /// `server` and `date` for HTTP/2, the same on every connection: our encoder uses no dynamic table.
    fields_h2: Vec<u8>,
    unix_seconds: u64,
}

impl Prelude {
    pub(crate) fn new(server_name: Option<&str>) -> Prelude {
        let server = server_name.map_or_else(Vec::new, |name| format!("Server: {name}\r\n").into_bytes());
        Prelude { server, ok: Vec::new(), lines_at: 0, fields_h2: Vec::new(), unix_seconds: u64::MAX }
    }

    /// Updates the time; formats only when the second has changed.
    #[inline]
    pub(crate) fn follow(&mut self, unix_seconds: u64) {
        if self.unix_seconds != unix_seconds {
            self.format(unix_seconds);
        }
    }

    #[cold]
    fn format(&mut self, unix_seconds: u64) {
        self.unix_seconds = unix_seconds;
        self.ok.clear();
        write_status_line(Status::OK, &mut self.ok);
        self.lines_at = self.ok.len();
        self.ok.extend_from_slice(&self.server);
        self.ok.extend_from_slice(b"Date: ");
        self.ok.extend_from_slice(&flatout_wire::date::format(unix_seconds));
        self.ok.extend_from_slice(b"\r\n");
        self.fields_h2.clear();
        encode_lines(self.ok.get(self.lines_at..).unwrap_or_default(), &mut self.fields_h2);
    }

    /// The same as HTTP/2 fields, after the status.
    #[inline]
    pub(crate) fn write_h2(&self, response: &Response, out: &mut Vec<u8>) {
        let lines = self.ok.get(self.lines_at..).unwrap_or_default();
        match response.own_prelude() {
            (false, false) => out.extend_from_slice(&self.fields_h2),
            (true, false) => encode_lines(lines.get(self.server.len()..).unwrap_or_default(), out),
            (false, true) => encode_lines(&self.server, out),
            (true, true) => {}
        }
    }

    /// Writes the status line, and `Server` and `Date` unless the response has its own.
    #[inline]
    pub(crate) fn write(&self, response: &Response, out: &mut Vec<u8>) {
        if response.status() == Status::OK && response.own_prelude() == (false, false) {
            return out.extend_from_slice(&self.ok);
        }
        self.write_other(response.final_status(), response, out);
    }

    /// The same with another status line.
    #[inline(never)]
    pub(crate) fn write_other(&self, status: Status, response: &Response, out: &mut Vec<u8>) {
        write_status_line(status, out);
        let lines = self.ok.get(self.lines_at..).unwrap_or_default();
        match response.own_prelude() {
            (false, false) => out.extend_from_slice(lines),
            (true, false) => out.extend_from_slice(lines.get(self.server.len()..).unwrap_or_default()),
            (false, true) => out.extend_from_slice(&self.server),
            (true, true) => {}
        }
    }
}
