//! This process's descriptors and user, signals to others, and systemd's socket activation.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{
    Gid, Pid, Resource, Rlimit, Signal, Uid, getrlimit, kill_process, kill_process_group, setrlimit,
};

/// The original limit of open descriptors of this process.
static STARTED_WITH: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit of open descriptors as far as possible: to the hard limit, and as root to `fs.nr_open`. If it is
/// refused, the limit stays as it was.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // In a second call, the limit is already the raised one.
    let _ = STARTED_WITH.set(limit);
    let nr_open =
        std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if rustix::process::geteuid().is_root() && nr_open > limit.maximum {
        let beyond = Rlimit { current: nr_open, maximum: nr_open };
        if setrlimit(Resource::Nofile, beyond).is_ok() {
            return;
        }
    }
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// The limit of open descriptors.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The name of the host, which in a pod is the pod's; empty if it cannot be read.
pub fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// How to end a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// SIGTERM: it may finish its work.
    Asked,
    /// SIGKILL.
    Forced,
}

impl Ending {
    fn signal(self) -> Signal {
        match self {
            Ending::Asked => Signal::TERM,
            Ending::Forced => Signal::KILL,
        }
    }
}

/// Ends all processes of a group that was made for a child of ours; `group` is that child's id.
///
/// # Errors
/// `NotFound` if it has no process left, `InvalidInput` for an invalid id.
pub fn signal_group(group: u32, end: Ending) -> io::Result<()> {
    let group = i32::try_from(group).ok().and_then(Pid::from_raw);
    let group = group.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(kill_process_group(group, end.signal())?)
}

/// Ends one process.
///
/// # Errors
/// `NotFound` if it does not exist, `PermissionDenied` if it belongs to another user, `InvalidInput` for an invalid id.
pub fn signal_process(id: u32, end: Ending) -> io::Result<()> {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw);
    let id = id.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(kill_process(id, end.signal())?)
}

/// Makes a process receive SIGTERM when the thread that starts it ends, for whatever reason: a server that was
/// started for a measurement does not outlive it. The server's own children get no signal.
pub fn end_with_this_thread(command: &mut Command) -> &mut Command {
    let parent = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
        // If the parent has ended before the call above, no signal will come.
        match rustix::process::getppid() {
            now if now == Some(parent) => Ok(()),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(ask) }
}

/// Starts a process with the descriptor limit that it would have without [`raise_descriptor_limit`]: a server under
/// test has the same limit as in production.
pub fn with_own_descriptor_limit(command: &mut Command) -> &mut Command {
    let Some(limit) = STARTED_WITH.get().copied() else { return command };
    let lower = move || Ok(setrlimit(Resource::Nofile, limit)?);
    // SAFETY: between fork and exec one system call is made, and nothing is allocated.
    unsafe { command.pre_exec(lower) }
}

/// Switches to user `name` permanently, in all threads: supplementary groups, group, user. Does nothing if the
/// process already runs as this user, and not as root.
///
/// # Errors
/// `NotFound` for a user that does not exist, `PermissionDenied` if we are not root.
pub fn become_user(name: &str) -> io::Result<()> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let (uid, gid) = look_up(&name)?;
    let (real, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    if uid != 0 && real.as_raw() == uid && effective.as_raw() == uid {
        return Ok(());
    }
    // SAFETY: `name` is a C string that lives through the call.
    succeed(unsafe { libc::initgroups(name.as_ptr(), gid) })?;
    // SAFETY: no memory is involved; glibc changes all threads alike.
    succeed(unsafe { libc::setgid(gid) })?;
    // SAFETY: as above.
    succeed(unsafe { libc::setuid(uid) })?;
    // SAFETY: as above; its failure proves that the process cannot become root again.
    if uid != 0 && unsafe { libc::setuid(0) } == 0 {
        return Err(io::Error::other("the process can still become root again"));
    }
    Ok(())
}

/// The ids of a user and of its group, for changing the owner of files.
///
/// # Errors
/// `NotFound` for a user that does not exist.
pub fn user_ids(name: &str) -> io::Result<(u32, u32)> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    look_up(&name)
}

/// Groups of a user that are looked up; the kernel's own limit is 65,536.
const GROUPS_MAX: usize = 1024;

/// Runs `work` with the rights of user `name`, in a thread of its own; the process keeps its rights.
///
/// # Errors
/// `NotFound` for a user that does not exist, `PermissionDenied` if we are not root.
pub fn as_user<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let (uid, gid) = look_up(&name)?;
    let groups = groups_of(&name, gid)?;
    let switched = move || {
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_gid(Gid::from_raw(gid))?;
        rustix::thread::set_thread_uid(Uid::from_raw(uid))?;
        Ok(work())
    };
    // Only this thread has these rights, and it ends with them.
    std::thread::scope(|scope| scope.spawn(switched).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// All groups of a user.
fn groups_of(name: &CStr, gid: libc::gid_t) -> io::Result<Vec<Gid>> {
    let mut groups: Vec<libc::gid_t> = vec![0; GROUPS_MAX];
    let mut count = GROUPS_MAX as libc::c_int;
    // SAFETY: `name` is a C string that lives through the call, and `count` is the length of the buffer.
    let result = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut count) };
    if result < 0 {
        return Err(io::Error::other(format!("the user has more than {GROUPS_MAX} groups")));
    }
    groups.truncate(usize::try_from(count).unwrap_or(0));
    Ok(groups.into_iter().map(Gid::from_raw).collect())
}

/// The listening sockets passed by systemd (`LISTEN_PID`, `LISTEN_FDS`); none in a second call.
///
/// # Errors
/// Malformed variables, or a descriptor that is not open.
pub fn listen_fds() -> io::Result<Vec<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let descriptors = sd_notify::listen_fds()?;
    if descriptors.len() == 0 || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    // SAFETY: by systemd's protocol these descriptors are open and ours alone, and they are taken only once.
    Ok(descriptors.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) }).collect())
}

/// Tells systemd that the service is ready. Does nothing without `NOTIFY_SOCKET`.
pub fn notify_ready() {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
}

/// Another process has replaced this one.
static IS_REPLACED: AtomicBool = AtomicBool::new(false);

/// Tells systemd that another process is now the main one of the service; from then on this one sends no
/// notifications.
pub fn notify_replaced_by(pid: u32) {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::MainPid(pid)]);
    IS_REPLACED.store(true, Ordering::Relaxed);
}

/// Tells systemd that the service is stopping.
pub fn notify_stopping() {
    if IS_REPLACED.load(Ordering::Relaxed) {
        return;
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
}

fn look_up(name: &CStr) -> io::Result<(libc::uid_t, libc::gid_t)> {
    let mut buffer = vec![0; 16 << 10];
    let mut found = std::ptr::null_mut();
    // SAFETY: an all-zero `passwd` is a valid value of that plain C struct.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: all pointers are to live objects, and the length is the buffer's.
    let error =
        unsafe { libc::getpwnam_r(name.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    if found.is_null() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no such user"));
    }
    Ok((entry.pw_uid, entry.pw_gid))
}

fn succeed(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_limit_only_rises() {
        let before = descriptor_limit();
        raise_descriptor_limit();
        assert!(descriptor_limit() >= before);
    }

    #[test]
    fn a_child_has_the_limit_that_we_were_started_with() {
        raise_descriptor_limit();
        let started_with = STARTED_WITH.get().unwrap().current.unwrap();
        let mut shell = Command::new("/bin/sh");
        let asked = with_own_descriptor_limit(&mut shell).args(["-c", "ulimit -n"]).output().unwrap();
        assert_eq!(String::from_utf8(asked.stdout).unwrap().trim(), started_with.to_string());
    }

    #[test]
    fn a_process_ends_with_the_thread_that_started_it() {
        let start = || end_with_this_thread(Command::new("sleep").arg("60")).spawn().unwrap();
        let mut child = std::thread::spawn(start).join().unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn an_unknown_user_is_an_error_and_changes_nothing() {
        let error = become_user("no-such-user-here").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn another_user_has_its_own_rights_in_one_thread() {
        let read = || std::fs::read("/etc/shadow").err().map(|error| error.kind());
        let found = as_user("nobody", read);
        if !rustix::process::geteuid().is_root() {
            assert_eq!(found.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            return;
        }
        assert_eq!(found.unwrap(), Some(io::ErrorKind::PermissionDenied));
        assert_eq!(read(), None);
        assert_eq!(as_user("no-such-user-here", || ()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn nothing_is_handed_over_to_a_test() {
        assert!(listen_fds().unwrap().is_empty());
        notify_ready();
        notify_stopping();
    }
}
