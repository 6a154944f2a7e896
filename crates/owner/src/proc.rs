//! Access to `/proc`: tests and recorded machines have their own.

use std::fs::{self, File};
use std::io::{self, Read};

/// The required access to `/proc`. Paths are absolute.
pub trait Proc {
    /// A file's bytes, at most a few MiB: listeners come first in the kernel's tables, before any connection.
    ///
    /// # Errors
    /// The system's.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// The names in a folder.
    ///
    /// # Errors
    /// The system's.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The system's.
    fn link(&self, path: &str) -> io::Result<String>;
}

/// The machine we run on.
#[derive(Debug, Clone, Copy)]
pub struct Here;

/// Bytes read from one file: enough for 25 000 listeners.
const READ_BYTES_MAX: u64 = 4 << 20;

impl Proc for Here {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(of_this_thread(path))?.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        Ok(fs::read_dir(path)?.flatten().map(|entry| entry.file_name().to_string_lossy().into()).collect())
    }

    fn link(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_link(of_this_thread(path))?.to_string_lossy().into())
    }
}

/// `/proc/net` and `/proc/self` are those of this process's first thread. This thread may be in another network namespace.
fn of_this_thread(path: &str) -> String {
    let own = |before: &str, within: &str| {
        path.strip_prefix(before).map(|rest| format!("/proc/thread-self/{within}{rest}"))
    };
    own("/proc/net/", "net/").or_else(|| own("/proc/self/ns/", "ns/")).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_those_of_the_thread() {
        assert_eq!(of_this_thread("/proc/net/tcp"), "/proc/thread-self/net/tcp");
        assert_eq!(of_this_thread("/proc/self/ns/net"), "/proc/thread-self/ns/net");
        assert_eq!(of_this_thread("/proc/1/net/tcp"), "/proc/1/net/tcp");
        let own = fs::read_link("/proc/thread-self/ns/net").unwrap().to_string_lossy().into_owned();
        assert_eq!(Here.link("/proc/self/ns/net").unwrap(), own);
    }
}
