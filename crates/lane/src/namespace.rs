//! Network namespaces: networks of our own beside the host's, which go away with the last thread that is in them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A network namespace that is held open.
#[derive(Debug)]
pub struct Network(OwnedFd);

impl Network {
    /// The one that this thread is in.
    ///
    /// # Errors
    /// A kernel without namespaces, or no descriptor left.
    pub fn of_this_thread() -> io::Result<Network> {
        Ok(Network(File::open("/proc/thread-self/ns/net")?.into()))
    }

    /// Moves this thread into it. Threads and processes that it starts from now on are in it too.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

impl AsFd for Network {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Moves this thread into a network namespace of its own, which has nothing but a loopback device that is down, and
/// puts that network's `/sys` over the host's, for this thread and what it starts alone.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_ADMIN; a kernel without namespaces.
pub fn enter_new() -> io::Result<()> {
    // SAFETY: network and mount namespaces belong to the thread that the kernel runs; no descriptor and no memory of
    // this process is unshared, so nothing that other threads rely on changes.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS) }?;
    // What is mounted from here on must not reach the host.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None)?)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Needs root, and says nothing without.
    #[test]
    fn a_network_of_its_own_ends_with_its_thread() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let home = Network::of_this_thread().unwrap();
        let devices = thread::spawn(|| {
            // A container may refuse it even to root.
            enter_new().ok()?;
            Some(std::fs::read_dir("/sys/class/net").unwrap().count())
        });
        if let Some(count) = devices.join().unwrap() {
            assert_eq!(count, 1, "loopback alone");
        }
        home.enter().unwrap();
    }
}
