//! A system log as the target of a log: each line is one message of RFC 5424 in one datagram, to a Unix socket or over UDP.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flatout_lane::process::host_name;

use super::clock::iso_time;
use super::sink::Written;

/// What the name of a log begins with.
const PREFIX: &str = "syslog:";

/// Where most systems have their log.
const USUAL_SOCKET: &str = "/dev/log";

/// Facility local7, severity informational, as nginx sends.
const PRIORITY: u8 = 23 * 8 + 6;

/// The longest line of a message; the rest is cut off. Receivers of larger datagrams are rare.
const LINE_BYTES_MAX: usize = 8 << 10;

/// How long a system log that does not read may hold up the writer, for each batch of lines.
const SEND_TIME_MAX: Duration = Duration::from_millis(500);

/// The address of a system log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyslogAddress {
    /// A datagram socket in the file system.
    Unix(PathBuf),
    /// A UDP address.
    Udp(SocketAddr),
}

impl SyslogAddress {
    /// The address that the name of a log has: `syslog:/dev/log`, `syslog:127.0.0.1:514`; `syslog:` is `/dev/log`. `None` if it
    /// is the name of a file.
    ///
    /// # Errors
    /// It is neither an absolute path nor an address with a port.
    pub fn parse(name: &str) -> Option<Result<SyslogAddress, String>> {
        let address = name.strip_prefix(PREFIX)?;
        let path = address.strip_prefix("unix:").unwrap_or(address);
        Some(match address {
            "" => Ok(SyslogAddress::Unix(USUAL_SOCKET.into())),
            _ if path.starts_with('/') => Ok(SyslogAddress::Unix(path.into())),
            _ => address.parse().map(SyslogAddress::Udp).map_err(|_| {
                format!(
                    "access-log: got `{name}`, need syslog:/PATH of a socket, such as syslog:/dev/log, or syslog:ADDRESS:PORT, \
                     such as syslog:127.0.0.1:514"
                )
            }),
        })
    }
}

/// A connection to a system log.
pub(super) struct Syslog {
    address: SyslogAddress,
    /// `None` after an error, until the next line.
    socket: Option<Socket>,
    host: String,
    message: Vec<u8>,
}

enum Socket {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

impl Syslog {
    pub(super) fn of(path: &Path) -> Option<io::Result<Syslog>> {
        let address = SyslogAddress::parse(path.to_str()?)?;
        Some(
            address
                .map_err(|message| io::Error::new(ErrorKind::InvalidInput, message))
                .and_then(Syslog::open),
        )
    }

    fn open(address: SyslogAddress) -> io::Result<Syslog> {
        let is_printable =
            |host: &String| !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
        let host = Some(host_name()).filter(is_printable).unwrap_or_else(|| "-".to_owned());
        let socket = Some(Socket::connect(&address)?);
        Ok(Syslog { address, socket, host, message: Vec::new() })
    }

    /// Sends lines, each ended by a line feed. After an error the rest is lost: the writer must not wait for each of them.
    pub(super) fn write(&mut self, lines: &[u8], lines_count: u64) -> Written {
        let mut written = Written::default();
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            self.write_message(line);
            match self.send() {
                Ok(()) => {
                    written.lines += 1;
                    written.bytes += self.message.len() as u64;
                }
                Err(error) => {
                    written.error = Some(error);
                    break;
                }
            }
        }
        written.lost = lines_count.saturating_sub(written.lines);
        written
    }

    fn write_message(&mut self, line: &[u8]) {
        use io::Write;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = iso_time(now.as_secs());
        let time = time.split('+').next().unwrap_or_default();
        self.message.clear();
        // Writing to memory does not fail.
        let _ = write!(
            self.message,
            "<{PRIORITY}>1 {time}.{:03}Z {} flatout {} access - ",
            now.subsec_millis(),
            self.host,
            std::process::id()
        );
        self.message.extend_from_slice(line.get(..LINE_BYTES_MAX).unwrap_or(line));
    }

    /// Sends the message. A system log that was restarted gets it too: its socket is a new one. Over UDP an error may be that of
    /// the message before.
    fn send(&mut self) -> io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => Socket::connect(&self.address)?,
        };
        match socket.send(&self.message) {
            Ok(()) => self.socket = Some(socket),
            Err(error) if is_full(&error) => {
                self.socket = Some(socket);
                return Err(error);
            }
            Err(_) => {
                let socket = Socket::connect(&self.address)?;
                socket.send(&self.message)?;
                self.socket = Some(socket);
            }
        }
        Ok(())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

impl Socket {
    fn connect(address: &SyslogAddress) -> io::Result<Socket> {
        match address {
            SyslogAddress::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                socket.set_write_timeout(Some(SEND_TIME_MAX))?;
                Ok(Socket::Unix(socket))
            }
            SyslogAddress::Udp(address) => {
                let socket = match address {
                    SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
                    SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
                }?;
                socket.connect(address)?;
                socket.set_write_timeout(Some(SEND_TIME_MAX))?;
                Ok(Socket::Udp(socket))
            }
        }
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        match self {
            Socket::Unix(socket) => socket.send(message),
            Socket::Udp(socket) => socket.send(message),
        }
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_system_logs_are_parsed() {
        let unix = |path: &str| Some(Ok(SyslogAddress::Unix(path.into())));
        assert_eq!(SyslogAddress::parse("syslog:"), unix("/dev/log"));
        assert_eq!(SyslogAddress::parse("syslog:/a"), unix("/a"));
        assert_eq!(SyslogAddress::parse("syslog:unix:/a"), unix("/a"));
        let udp = SyslogAddress::Udp("[::1]:514".parse().unwrap());
        assert_eq!(SyslogAddress::parse("syslog:[::1]:514"), Some(Ok(udp)));
        assert_eq!(SyslogAddress::parse("/var/log/a.log"), None);
        for bad in ["syslog:localhost", "syslog:127.0.0.1", "syslog:a/b"] {
            assert!(SyslogAddress::parse(bad).unwrap().unwrap_err().contains(bad));
        }
    }

    #[test]
    fn a_line_is_one_message_and_a_closed_socket_loses_lines() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut log = Syslog::open(SyslogAddress::Udp(receiver.local_addr().unwrap())).unwrap();
        let written = log.write(b"one\ntwo\n", 2);
        assert_eq!((written.lines, written.lost), (2, 0));
        let mut buffer = [0; 1 << 10];
        for expected in ["one", "two"] {
            let length = receiver.recv(&mut buffer).unwrap();
            let message = std::str::from_utf8(&buffer[..length]).unwrap();
            let words: Vec<&str> = message.split(' ').collect();
            assert_eq!(
                (words[0], words[3], words[5], words[6], words[7]),
                ("<190>1", "flatout", "access", "-", expected)
            );
            assert!(words[1].ends_with('Z') && words[1].len() == 24, "{message}");
        }
        let folder = std::env::temp_dir().join(format!("flatout-syslog-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("log");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let mut log = Syslog::open(SyslogAddress::Unix(path.clone())).unwrap();
        drop(receiver);
        let written = log.write(b"one\ntwo\n", 2);
        assert_eq!((written.lines, written.lost, written.error.is_some()), (0, 2, true));
        std::fs::remove_file(&path).unwrap();
        let receiver = UnixDatagram::bind(&path).unwrap();
        assert_eq!(log.write(b"three\n", 1).lines, 1, "a new system log is found");
        let length = receiver.recv(&mut buffer).unwrap();
        assert!(buffer[..length].ends_with(b" three"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
