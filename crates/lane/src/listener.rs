//! Listening sockets: bound, configured, and grouped so that each worker has its own.

use std::io;
use std::mem::size_of_val;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::socket::set_int_option;

/// Options of a listening socket; its connections inherit those that concern TCP.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// Connections that wait to be accepted, per socket; the kernel caps it at `net.core.somaxconn`.
    pub backlog: u32,
    /// `TCP_NODELAY`.
    pub nodelay: bool,
    /// `TCP_DEFER_ACCEPT`, in whole seconds, rounded up.
    pub defer_accept: Option<Duration>,
    /// `TCP_CONGESTION`.
    pub congestion: Option<String>,
    /// Whether other processes of this user may listen on the same port.
    pub share_port: bool,
    /// `SO_KEEPALIVE`: a connection that has been silent for this long is probed, and is closed when the peer's host
    /// does not reply to [`KEEPALIVE_PROBES`] probes.
    pub keepalive: Option<Duration>,
    /// The mode of a Unix socket's file, less the umask.
    pub unix_mode: Option<u32>,
}

/// Probes without a reply after which the kernel closes a connection (`TCP_KEEPCNT`).
pub const KEEPALIVE_PROBES: u32 = 4;

/// Time between two of them (`TCP_KEEPINTVL`).
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// The address of an inherited socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalAddress {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A path; empty for an unnamed or abstract socket.
    Unix(PathBuf),
}

/// Binds one listening socket for each of `workers`, in order, and returns the address: port 0 is resolved.
///
/// The sockets form one `SO_REUSEPORT` group, whose indices follow the order of binding.
///
/// # Errors
/// The system's, such as `AddrInUse` if another process has the port and it must not be shared.
pub fn bind_tcp(
    address: SocketAddr,
    workers: usize,
    options: &ListenOptions,
) -> io::Result<(SocketAddr, Vec<OwnedFd>)> {
    let mut address = address;
    if !options.share_port {
        // With `SO_REUSEPORT` we would join any existing group: only a bind without it detects that the port is in
        // use.
        let alone = tcp_socket(address)?;
        net::bind(&alone, &address)?;
        address = local_tcp(&alone)?;
    }
    let mut sockets = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = tcp_socket(address)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        net::bind(&socket, &address)?;
        address = local_tcp(&socket)?;
        sockets.push(socket);
    }
    for socket in &sockets {
        set_tcp_options(socket, options)?;
        listen(socket, options)?;
    }
    Ok((address, sockets))
}

/// Binds one listening Unix socket. A socket file without a listener is replaced.
///
/// # Errors
/// `AddrInUse` if another process listens, or the path is not a socket; the system's otherwise.
pub fn bind_unix(path: &Path, options: &ListenOptions) -> io::Result<OwnedFd> {
    let socket = net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    if let Some(mode) = options.unix_mode {
        // The file gets the mode that its socket has before the bind, so it never has another one.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    }
    let address = SocketAddrUnix::new(path)?;
    if let Err(error) = net::bind(&socket, &address) {
        if error != rustix::io::Errno::ADDRINUSE || !is_stale(path) {
            return Err(error.into());
        }
        std::fs::remove_file(path)?;
        net::bind(&socket, &address)?;
    }
    listen(&socket, options)?;
    Ok(socket)
}

/// Takes over a socket that another program has bound, such as systemd, and sets our options on it.
///
/// # Errors
/// `InvalidInput` if it is not a listening stream socket; the system's if it refuses an option.
pub fn adopt(socket: OwnedFd, options: &ListenOptions) -> io::Result<(OwnedFd, LocalAddress)> {
    if sockopt::socket_type(&socket)? != SocketType::STREAM || !sockopt::socket_acceptconn(&socket)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a listening stream socket"));
    }
    rustix::io::ioctl_fionbio(&socket, true)?;
    let address = if sockopt::socket_domain(&socket)? == AddressFamily::UNIX {
        let unix: SocketAddrUnix = net::getsockname(&socket)?.try_into()?;
        let path = unix.path().map(|path| path.to_string_lossy().into_owned());
        LocalAddress::Unix(path.unwrap_or_default().into())
    } else {
        set_tcp_options(&socket, options)?;
        LocalAddress::Tcp(local_tcp(&socket)?)
    };
    // A second listen(2) only changes the backlog.
    listen(&socket, options)?;
    Ok((socket, address))
}

/// Makes the kernel give each connection to the group's member for the CPU on which its packets arrive: member `n` is
/// for `cpus[n]`. On any other CPU the kernel's hash decides, as without this.
///
/// # Source
/// `SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5; socket(7).
pub fn attach_cpu_selection(group: BorrowedFd<'_>, cpus: &[usize]) -> io::Result<()> {
    attach(group, libc::SO_ATTACH_REUSEPORT_CBPF, &cpu_selection(cpus))
}

/// Makes a TCP listener ignore new connections, while started handshakes complete and can be accepted. A new client
/// gets no reply, retries after a second, and is refused if the listener is closed by then. Does nothing for a Unix
/// socket.
///
/// # Source
/// `SO_ATTACH_FILTER`, socket(7); on a TCP socket the filter sees segments starting at the TCP header (`tcp_filter`).
pub fn refuse_new(listener: BorrowedFd<'_>) -> io::Result<()> {
    if sockopt::socket_domain(listener)? == AddressFamily::UNIX {
        return Ok(());
    }
    attach(listener, libc::SO_ATTACH_FILTER, &without_syn())
}

fn attach(socket: BorrowedFd<'_>, option: libc::c_int, program: &[libc::sock_filter]) -> io::Result<()> {
    let header = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: `header` points at `program`, both live through the call, and the kernel copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const header).cast(),
            size_of_val(&header) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The largest number of receive queues of this host's physical NICs; 0 without any.
pub fn nic_queues() -> usize {
    let Ok(interfaces) = std::fs::read_dir("/sys/class/net") else { return 0 };
    let queues =
        interfaces.flatten().filter(|interface| interface.path().join("device").exists()).map(|nic| {
            let Ok(queues) = std::fs::read_dir(nic.path().join("queues")) else { return 0 };
            queues.flatten().filter(|queue| queue.file_name().to_string_lossy().starts_with("rx-")).count()
        });
    queues.max().unwrap_or(0)
}

fn tcp_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if let IpAddr::V6(ip) = address.ip() {
        // `[::]` accepts IPv4 too, whatever the host's default is.
        sockopt::set_ipv6_v6only(&socket, !ip.is_unspecified())?;
    }
    Ok(socket)
}

fn local_tcp(socket: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(net::getsockname(socket)?.try_into()?)
}

fn set_tcp_options(socket: &OwnedFd, options: &ListenOptions) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, options.nodelay)?;
    if let Some(congestion) = &options.congestion {
        sockopt::set_tcp_congestion(socket, congestion)
            .map_err(|error| named(error.into(), &format!("congestion control `{congestion}`")))?;
    }
    if let Some(time) = options.defer_accept {
        set_defer_accept(socket, time)?;
    }
    if let Some(silence) = options.keepalive {
        sockopt::set_tcp_keepidle(socket, silence.max(Duration::from_secs(1)))?;
        sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
        sockopt::set_socket_keepalive(socket, true)?;
    }
    Ok(())
}

fn set_defer_accept(socket: &OwnedFd, time: Duration) -> io::Result<()> {
    let seconds = time.as_secs_f64().ceil().clamp(1.0, 3600.0) as libc::c_int;
    set_int_option(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, seconds)
}

fn listen(socket: &OwnedFd, options: &ListenOptions) -> io::Result<()> {
    Ok(net::listen(socket, i32::try_from(options.backlog).unwrap_or(i32::MAX))?)
}

fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn named(error: io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// `A = cpu; return A` if member and CPU have the same number, otherwise a comparison for each. A CPU without a
/// worker gets an index out of range, for which the kernel falls back to its hash.
fn cpu_selection(cpus: &[usize]) -> Vec<libc::sock_filter> {
    // linux/bpf_common.h and linux/filter.h: BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K, BPF_RET|BPF_A.
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const RETURN_A: u16 = 0x16;
    const CPU: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_CPU) as u32;
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = vec![instruction(LOAD, 0, 0, CPU)];
    if cpus.iter().copied().eq(0..cpus.len()) {
        program.push(instruction(RETURN_A, 0, 0, 0));
        return program;
    }
    for (member, cpu) in cpus.iter().enumerate() {
        program.push(instruction(JUMP_IF_EQUAL, 0, 1, *cpu as u32));
        program.push(instruction(RETURN, 0, 0, member as u32));
    }
    program.push(instruction(RETURN, 0, 0, u32::MAX));
    program
}

/// Drops segments with SYN and without ACK.
fn without_syn() -> [libc::sock_filter; 5] {
    // linux/bpf_common.h: BPF_LD|BPF_B|BPF_ABS, BPF_ALU|BPF_AND|BPF_K, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K.
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// In the TCP header (RFC 9293 section 3.1).
    const FLAGS_AT: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    [
        instruction(LOAD_BYTE, 0, 0, FLAGS_AT),
        instruction(AND, 0, 0, SYN | ACK),
        instruction(JUMP_IF_EQUAL, 0, 1, SYN),
        instruction(RETURN, 0, 0, 0),
        instruction(RETURN, 0, 0, u32::MAX),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu;
    use crate::socket::{Accepted, accept};
    use std::net::TcpStream;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    const OPTIONS: ListenOptions = ListenOptions {
        backlog: 64,
        nodelay: true,
        defer_accept: None,
        congestion: None,
        share_port: false,
        keepalive: None,
        unix_mode: None,
    };

    fn accepted(listener: &OwnedFd) -> Option<OwnedFd> {
        match accept(listener.as_fd()) {
            Accepted::Connection(socket, _) => Some(socket),
            _ => None,
        }
    }

    #[test]
    fn a_group_shares_one_port_and_options_are_inherited() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (actual, sockets) = bind_tcp(address.parse().unwrap(), 3, &OPTIONS).unwrap();
            assert_ne!(actual.port(), 0);
            let clients: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(actual).unwrap()).collect();
            let counts: Vec<usize> = sockets
                .iter()
                .map(|listener| {
                    let found = std::iter::from_fn(|| accepted(listener));
                    found.inspect(|socket| assert!(sockopt::tcp_nodelay(socket).unwrap())).count()
                })
                .collect();
            assert_eq!(counts.iter().sum::<usize>(), clients.len());
            assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
        }
    }

    #[test]
    fn a_used_port_is_an_error_unless_it_is_shared() {
        let shared = ListenOptions { share_port: true, ..OPTIONS };
        let (actual, _sockets) = bind_tcp("127.0.0.1:0".parse().unwrap(), 2, &shared).unwrap();
        let error = bind_tcp(actual, 2, &OPTIONS).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(bind_tcp(actual, 2, &shared).is_ok());
    }

    #[test]
    fn socket_options_are_set() {
        let options = ListenOptions {
            congestion: Some("reno".to_owned()),
            defer_accept: Some(Duration::from_millis(1500)),
            ..OPTIONS
        };
        let (actual, sockets) = bind_tcp("127.0.0.1:0".parse().unwrap(), 1, &options).unwrap();
        assert_eq!(sockopt::tcp_congestion(&sockets[0]).unwrap(), "reno");
        let _silent = TcpStream::connect(actual).unwrap();
        assert!(accepted(&sockets[0]).is_none(), "a connection without data is deferred");
        let unknown = ListenOptions { congestion: Some("nonesuch".to_owned()), ..OPTIONS };
        let error = bind_tcp("127.0.0.1:0".parse().unwrap(), 1, &unknown).unwrap_err();
        assert!(error.to_string().contains("nonesuch"), "{error}");
    }

    #[test]
    fn only_dead_unix_sockets_are_replaced() {
        let folder = std::env::temp_dir().join(format!("flatout-lane-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let live = bind_unix(&path, &OPTIONS).unwrap();
        assert_eq!(bind_unix(&path, &OPTIONS).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(live);
        let again = bind_unix(&path, &OPTIONS).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        assert!(accepted(&again).is_some());
        let private = folder.join("private");
        let _private = bind_unix(&private, &ListenOptions { unix_mode: Some(0o600), ..OPTIONS }).unwrap();
        let mode = std::fs::metadata(&private).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "nobody else may connect");
        let file = folder.join("file");
        std::fs::write(&file, "precious").unwrap();
        assert_eq!(bind_unix(&file, &OPTIONS).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn only_listeners_are_adopted() {
        let (actual, mut sockets) = bind_tcp("127.0.0.1:0".parse().unwrap(), 1, &OPTIONS).unwrap();
        let (_socket, address) = adopt(sockets.remove(0), &OPTIONS).unwrap();
        assert_eq!(address, LocalAddress::Tcp(actual));
        let (one, _two) = UnixStream::pair().unwrap();
        assert_eq!(adopt(one.into(), &OPTIONS).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn connections_of_an_adopted_listener_have_our_options() {
        for adopted in [false, true] {
            let options = ListenOptions { keepalive: Some(Duration::from_secs(77)), ..OPTIONS };
            let (address, listener) = if adopted {
                let foreign = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let address = foreign.local_addr().unwrap();
                (address, adopt(foreign.into(), &options).unwrap().0)
            } else {
                let (address, mut sockets) = bind_tcp("127.0.0.1:0".parse().unwrap(), 1, &options).unwrap();
                (address, sockets.remove(0))
            };
            let _client = TcpStream::connect(address).unwrap();
            let socket = accepted(&listener).unwrap();
            assert!(sockopt::tcp_nodelay(&socket).unwrap() && sockopt::socket_keepalive(&socket).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), Duration::from_secs(77));
            assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), KEEPALIVE_PROBES);
        }
    }

    #[test]
    fn connections_go_to_the_member_of_their_cpu() {
        let cpus = cpu::allowed();
        let order: Vec<usize> = (0..cpus.len()).collect();
        // In order, and in reverse, so that member and CPU differ.
        for map in [order.clone(), order.iter().rev().copied().collect()] {
            let (actual, sockets) = bind_tcp("127.0.0.1:0".parse().unwrap(), map.len(), &OPTIONS).unwrap();
            attach_cpu_selection(sockets[0].as_fd(), &map).unwrap();
            for (member, cpu) in map.iter().enumerate().filter(|(_, cpu)| cpus.contains(cpu)) {
                let connect = move || {
                    cpu::pin(*cpu).unwrap();
                    (0..8).map(|_| TcpStream::connect(actual).unwrap()).collect::<Vec<_>>()
                };
                let clients = std::thread::scope(|scope| scope.spawn(connect).join().unwrap());
                let found = std::iter::from_fn(|| accepted(&sockets[member])).count();
                assert_eq!(found, clients.len(), "member {member} of {map:?}");
            }
        }
    }

    #[test]
    fn cpus_without_a_worker_fall_back() {
        let (actual, sockets) = bind_tcp("127.0.0.1:0".parse().unwrap(), 2, &OPTIONS).unwrap();
        attach_cpu_selection(sockets[0].as_fd(), &[4000, 4001]).unwrap();
        let clients: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(actual).unwrap()).collect();
        let found: usize = sockets.iter().map(|socket| std::iter::from_fn(|| accepted(socket)).count()).sum();
        assert_eq!(found, clients.len());
    }
}
