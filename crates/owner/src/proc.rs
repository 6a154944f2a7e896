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
        File::open(path)?.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        Ok(fs::read_dir(path)?.flatten().map(|entry| entry.file_name().to_string_lossy().into()).collect())
    }

    fn link(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_link(path)?.to_string_lossy().into())
    }
}
