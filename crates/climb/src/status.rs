//! A single request: checks the server's status before it is put under load.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use flatout_load::{Remote, Target};

/// How long until the response has to start.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Bytes up to the end of the status code: `HTTP/1.1 200`.
const STATUS_BYTES: usize = 12;

/// Sends a GET of the target to `remote`, and returns the status.
///
/// # Errors
/// There is no response, or it is not HTTP/1.
pub(crate) fn status(target: &Target, remote: &Remote) -> io::Result<u16> {
    match remote {
        Remote::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, ANSWER_TIME_MAX)?;
            stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
            ask(stream, target)
        }
        Remote::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
            ask(stream, target)
        }
    }
}

fn ask(mut stream: impl Read + Write, target: &Target) -> io::Result<u16> {
    let request =
        format!("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", target.path, target.host);
    stream.write_all(request.as_bytes())?;
    let mut start = [0; STATUS_BYTES];
    stream.read_exact(&mut start).map_err(|error| match error.kind() {
        // The kernel reports a time limit like this.
        ErrorKind::WouldBlock => io::Error::other(format!("no response within {ANSWER_TIME_MAX:?}")),
        _ => error,
    })?;
    let code = str::from_utf8(&start).ok().and_then(|start| start.strip_prefix("HTTP/1."));
    let code = code.and_then(|rest| rest.get(2..)?.parse().ok());
    code.ok_or_else(|| io::Error::other("its response is not HTTP/1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scripted(io::Cursor<&'static [u8]>);

    impl Read for Scripted {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Scripted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_status_is_read() {
        let target = Target::parse("http://127.0.0.1:1/").unwrap();
        let asked = |answer: &'static str| ask(Scripted(io::Cursor::new(answer.as_bytes())), &target).ok();
        assert_eq!(asked("HTTP/1.1 200 OK\r\n"), Some(200));
        assert_eq!(asked("HTTP/1.0 503 x\r\n"), Some(503));
        for wrong in ["", "HTTP/1.1", "SSH-2.0-OpenSSH_9", "HTTP/1.1 2\u{e9}0 OK"] {
            assert_eq!(asked(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_server_that_is_silent_is_called_that() {
        let (near, _far) = UnixStream::pair().unwrap();
        near.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let error = ask(near, &Target::parse("http://127.0.0.1:1/").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "no response within 5s");
    }
}
