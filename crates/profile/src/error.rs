//! Why there is no profile.

use std::{fmt, io};

/// Why sampling failed. The cause is the machine or the caller; retrying alone does not help.
#[derive(Debug)]
pub enum Error {
    /// There is no such process, or it has ended.
    NoProcess(u32),
    /// The kernel does not let us sample.
    Refused {
        /// `kernel.perf_event_paranoid`, if it can be read.
        paranoid: Option<i32>,
    },
    /// The kernel, or a seccomp filter, has no `perf_event_open`.
    Unsupported,
    /// Two profiles cannot be compared, and why.
    Incomparable(String),
    /// Any other error of the system.
    System(io::Error),
}

impl Error {
    /// The meaning of a failed `perf_event_open`.
    pub(crate) fn of_open(error: io::Error) -> Error {
        const ENOSYS: i32 = 38;
        match error.kind() {
            io::ErrorKind::PermissionDenied => Error::Refused { paranoid: paranoid() },
            _ if error.raw_os_error() == Some(ENOSYS) => Error::Unsupported,
            _ => Error::System(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoProcess(pid) => write!(f, "there is no process {pid}"),
            Error::Refused { paranoid: Some(level) } => write!(
                f,
                "the kernel does not let us sample (kernel.perf_event_paranoid is {level}); run as root, give the \
                 binary cap_perfmon and cap_syslog, or sample a process of your own with the level at 2 or below"
            ),
            Error::Refused { paranoid: None } => {
                f.write_str("the kernel does not let us sample; run as root or with CAP_PERFMON")
            }
            Error::Unsupported => f.write_str(
                "no perf_event_open here: the kernel was built without it, or a container's seccomp filter hides it",
            ),
            Error::Incomparable(why) => f.write_str(why),
            Error::System(error) => write!(f, "cannot sample: {error}"),
        }
    }
}

impl std::error::Error for Error {}

fn paranoid() -> Option<i32> {
    std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_gives_advice() {
        let told = |code| Error::of_open(io::Error::from_raw_os_error(code)).to_string();
        assert!(told(13).contains("run as root"), "{}", told(13));
        assert!(told(1).contains("run as root"), "{}", told(1));
        assert!(told(38).contains("seccomp"), "{}", told(38));
        assert!(told(24).starts_with("cannot sample: "), "{}", told(24));
        let hidden = Error::Refused { paranoid: None }.to_string();
        assert!(hidden.contains("CAP_PERFMON"), "{hidden}");
    }
}
