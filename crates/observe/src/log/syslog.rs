//! A system log as the target of a log: each line is one message of RFC 5424, or of RFC 3164 as nginx sends it, in one datagram, to a Unix socket or over UDP.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flatout_lane::process::host_name;

use super::clock::{iso_time, syslog_time};
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

/// A system log, as the name of a log describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyslogTarget {
    address: SyslogAddress,
    form: MessageForm,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SyslogAddress {
    /// A datagram socket in the file system.
    Unix(PathBuf),
    /// A UDP address.
    Udp(SocketAddr),
}

/// The form of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MessageForm {
    /// That of RFC 5424.
    Usual,
    /// That of RFC 3164, as nginx writes it.
    Old { priority: u8, tag: String, has_host: bool },
}

/// Facilities by their numbers, with their names in nginx.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "intern", "lpr", "news", "uucp", "clock", "authpriv", "ftp",
    "ntp", "audit", "alert", "cron", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];

/// Severities by their numbers, with their names in nginx.
const SEVERITIES: [&str; 8] = ["emerg", "alert", "crit", "error", "warn", "notice", "info", "debug"];

/// The longest name of a program in a message of RFC 3164 (5.3).
const TAG_BYTES_MAX: usize = 32;

impl SyslogTarget {
    /// The system log that the name of a log has: `syslog:/dev/log`, `syslog:127.0.0.1:514`; `syslog:` is `/dev/log`. Behind
    /// `syslog:server=` the name is that of nginx, with `facility=`, `severity=`, `tag=` and `nohostname`, and messages are those
    /// of RFC 3164. `None` if it is the name of a file.
    ///
    /// # Errors
    /// It is neither an absolute path nor an address with a port, or an option has a value that does not exist.
    pub fn parse(name: &str) -> Option<Result<SyslogTarget, String>> {
        let rest = name.strip_prefix(PREFIX)?;
        Some(match rest.strip_prefix("server=") {
            None => address(name, rest).map(|address| SyslogTarget { address, form: MessageForm::Usual }),
            Some(rest) => of_nginx(name, rest),
        })
    }
}

fn address(name: &str, text: &str) -> Result<SyslogAddress, String> {
    let path = text.strip_prefix("unix:").unwrap_or(text);
    match text {
        "" => Ok(SyslogAddress::Unix(USUAL_SOCKET.into())),
        _ if path.starts_with('/') => Ok(SyslogAddress::Unix(path.into())),
        _ => text.parse().map(SyslogAddress::Udp).map_err(|_| {
            format!(
                "access-log: got `{name}`, need syslog:/PATH of a socket, such as syslog:/dev/log, or syslog:ADDRESS:PORT, \
                 such as syslog:127.0.0.1:514"
            )
        }),
    }
}

/// An address with options, as in nginx.
fn of_nginx(name: &str, text: &str) -> Result<SyslogTarget, String> {
    let mut parts = text.split(',');
    let address = address(name, parts.next().unwrap_or_default())?;
    let (mut facility, mut severity, mut tag, mut has_host) = (23, 6, "nginx", true);
    let number = |names: &[&str], wanted: &str| {
        let at = names.iter().position(|name| *name == wanted);
        at.ok_or_else(|| format!("access-log: got `{wanted}` in `{name}`, need one of {}", names.join(" ")))
    };
    for part in parts {
        match part.split_once('=').unwrap_or((part, "")) {
            ("facility", wanted) => facility = number(&FACILITIES, wanted)?,
            ("severity", wanted) => severity = number(&SEVERITIES, wanted)?,
            ("tag", wanted) => tag = wanted,
            ("nohostname", "") => has_host = false,
            _ => {
                return Err(format!(
                    "access-log: got `{part}` in `{name}`, need facility=, severity=, tag= or nohostname"
                ));
            }
        }
    }
    let is_tag = |tag: &str| {
        (1..=TAG_BYTES_MAX).contains(&tag.len())
            && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if !is_tag(tag) {
        return Err(format!(
            "access-log: got the tag `{tag}` in `{name}`, need 1 to {TAG_BYTES_MAX} letters, digits and _"
        ));
    }
    let priority = (facility * 8 + severity) as u8;
    Ok(SyslogTarget { address, form: MessageForm::Old { priority, tag: tag.to_owned(), has_host } })
}

/// A connection to a system log.
pub(super) struct Syslog {
    target: SyslogTarget,
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
        let target = SyslogTarget::parse(path.to_str()?)?;
        Some(
            target.map_err(|message| io::Error::new(ErrorKind::InvalidInput, message)).and_then(Syslog::open),
        )
    }

    fn open(target: SyslogTarget) -> io::Result<Syslog> {
        let is_printable =
            |host: &String| !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
        let host = Some(host_name()).filter(is_printable).unwrap_or_else(|| "-".to_owned());
        let socket = Some(Socket::connect(&target.address)?);
        Ok(Syslog { target, socket, host, message: Vec::new() })
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
        self.message.clear();
        // Writing to memory does not fail.
        let _ = match &self.target.form {
            MessageForm::Usual => {
                let time = iso_time(now.as_secs());
                let time = time.split('+').next().unwrap_or_default();
                write!(
                    self.message,
                    "<{PRIORITY}>1 {time}.{:03}Z {} flatout {} access - ",
                    now.subsec_millis(),
                    self.host,
                    std::process::id()
                )
            }
            MessageForm::Old { priority, tag, has_host } => {
                let host = if *has_host { format!("{} ", self.host) } else { String::new() };
                write!(self.message, "<{priority}>{} {host}{tag}: ", syslog_time(now.as_secs()))
            }
        };
        self.message.extend_from_slice(line.get(..LINE_BYTES_MAX).unwrap_or(line));
    }

    /// Sends the message. A system log that was restarted gets it too: its socket is a new one. Over UDP an error may be that of
    /// the message before.
    fn send(&mut self) -> io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => Socket::connect(&self.target.address)?,
        };
        match socket.send(&self.message) {
            Ok(()) => self.socket = Some(socket),
            Err(error) if is_full(&error) => {
                self.socket = Some(socket);
                return Err(error);
            }
            Err(_) => {
                let socket = Socket::connect(&self.target.address)?;
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
        let unix = |path: &str| Some(Ok(usual(SyslogAddress::Unix(path.into()))));
        assert_eq!(SyslogTarget::parse("syslog:"), unix("/dev/log"));
        assert_eq!(SyslogTarget::parse("syslog:/a"), unix("/a"));
        assert_eq!(SyslogTarget::parse("syslog:unix:/a"), unix("/a"));
        let udp = SyslogAddress::Udp("[::1]:514".parse().unwrap());
        assert_eq!(SyslogTarget::parse("syslog:[::1]:514"), Some(Ok(usual(udp))));
        assert_eq!(SyslogTarget::parse("/var/log/a.log"), None);
        for bad in [
            "syslog:localhost",
            "syslog:127.0.0.1",
            "syslog:a/b",
            "syslog:server=/a,facility=x",
            "syslog:server=/a,severity=8",
            "syslog:server=/a,tag=a-b",
            "syslog:server=/a,other",
            "syslog:server=localhost",
        ] {
            assert!(SyslogTarget::parse(bad).unwrap().unwrap_err().contains(bad));
        }
    }

    fn usual(address: SyslogAddress) -> SyslogTarget {
        SyslogTarget { address, form: MessageForm::Usual }
    }

    #[test]
    fn messages_of_nginx_have_its_form() {
        for (options, begin, end) in [
            ("", "<190>", " nginx: one"),
            (",nohostname", "<190>", " nginx: one"),
            (",facility=user,severity=alert,tag=a_1", "<9>", " a_1: one"),
        ] {
            let target = SyslogTarget::parse(&format!("syslog:server=unix:/a{options}")).unwrap().unwrap();
            let mut log = Syslog { target, socket: None, host: "here".to_owned(), message: Vec::new() };
            log.write_message(b"one");
            let message = String::from_utf8(log.message).unwrap();
            // `Nov  6 08:49:37` has 15 characters.
            let rest = message.strip_prefix(begin).unwrap().get(15..).unwrap();
            let host = if options.contains("nohostname") { "" } else { " here" };
            assert_eq!(rest, format!("{host}{end}"), "{message}");
        }
    }

    #[test]
    fn a_line_is_one_message_and_a_closed_socket_loses_lines() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut log = Syslog::open(usual(SyslogAddress::Udp(receiver.local_addr().unwrap()))).unwrap();
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
        let mut log = Syslog::open(usual(SyslogAddress::Unix(path.clone()))).unwrap();
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
