//! tmp
use rustix::net::*;
use std::io;
use std::net::SocketAddr;
use std::os::fd::*;
use std::path::*;
use std::time::Duration;
pub struct ListenOptions {
    pub backlog: u32,
    pub nodelay: bool,
    pub defer_accept: Option<Duration>,
    pub congestion: Option<String>,
    pub share_port: bool,
}
pub enum LocalAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}
pub fn bind_tcp(
    mut a: SocketAddr,
    workers: usize,
    o: &ListenOptions,
) -> io::Result<(SocketAddr, Vec<OwnedFd>)> {
    let mut v = vec![];
    for _ in 0..workers {
        let s = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )?;
        sockopt::set_socket_reuseport(&s, true)?;
        sockopt::set_socket_reuseaddr(&s, true)?;
        sockopt::set_tcp_nodelay(&s, o.nodelay)?;
        bind(&s, &a)?;
        listen(&s, o.backlog as i32)?;
        a = getsockname(&s)?.try_into()?;
        v.push(s)
    }
    Ok((a, v))
}
pub fn bind_unix(_: &Path, _: &ListenOptions) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}
pub fn adopt(s: OwnedFd) -> io::Result<(OwnedFd, LocalAddress)> {
    Ok((s, LocalAddress::Unix("".into())))
}
pub fn attach_cpu_selection(_: BorrowedFd<'_>, _: &[usize]) -> io::Result<()> {
    Ok(())
}
pub fn nic_queues() -> usize {
    0
}
