//! Network namespaces: separate networks, which disappear with the last thread in them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// An open network namespace.
#[derive(Debug)]
pub struct Network(OwnedFd);

impl Network {
    /// The namespace of this thread.
    ///
    /// # Errors
    /// The kernel has no namespaces, or no descriptor is left.
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

/// Moves this thread into a new network namespace, which has only a loopback device that is down, and mounts its
/// `/sys` over the host's, only for this thread and its children.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_ADMIN; a kernel without namespaces.
pub fn enter_new() -> io::Result<()> {
    // SAFETY: network and mount namespaces belong to the thread that the kernel runs; no descriptor and no memory of
    // this process is unshared, so nothing that other threads rely on changes.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS) }?;
    // Mounts from here on must not propagate to the host.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None)?)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Needs root, and is skipped without.
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
