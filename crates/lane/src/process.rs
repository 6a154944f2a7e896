//! tmp
use std::io;
use std::os::fd::OwnedFd;
pub fn raise_descriptor_limit() {}
pub fn descriptor_limit() -> u64 {
    20000
}
pub fn become_user(_: &str) -> io::Result<()> {
    Ok(())
}
pub fn listen_fds() -> Vec<OwnedFd> {
    vec![]
}
pub fn notify(_: &str) {}
