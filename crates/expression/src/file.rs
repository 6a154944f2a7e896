//! File tests. Each is a system call, which waits for a slow volume: `explain --cost` counts it as many steps.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What such a call costs, beside steps of some nanoseconds.
pub(crate) const STEPS: usize = 20;

/// A test of the file at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileTest {
    /// It is a regular file.
    File,
    /// It is a folder.
    Folder,
    /// It exists.
    Anything,
    /// Its owner may execute it.
    Executable,
}

impl FileTest {
    /// The test of a method.
    pub(crate) fn of(name: &str) -> Option<FileTest> {
        Some(match name {
            "isFile" => FileTest::File,
            "isDirectory" => FileTest::Folder,
            "exists" => FileTest::Anything,
            "isExecutable" => FileTest::Executable,
            _ => return None,
        })
    }

    /// Whether this is true for the file at a path; never for a relative one, and for one that cannot be reached.
    pub fn holds(self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        let Some(metadata) = path.is_absolute().then(|| path.metadata().ok()).flatten() else { return false };
        match self {
            FileTest::File => metadata.is_file(),
            FileTest::Folder => metadata.is_dir(),
            FileTest::Anything => true,
            FileTest::Executable => metadata.permissions().mode() & 0o100 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_differ() {
        let tests = [FileTest::File, FileTest::Folder, FileTest::Anything, FileTest::Executable];
        for (path, expected) in [
            ("/dev", [false, true, true, true]),
            ("/proc/self/exe", [true, false, true, true]),
            ("/proc/self/status", [true, false, true, false]),
            ("/dev/null/x", [false; 4]),
            ("/nowhere", [false; 4]),
            ("dev", [false; 4]),
            ("", [false; 4]),
            ("/dev\0", [false; 4]),
        ] {
            assert_eq!(tests.map(|test| test.holds(path.as_bytes())), expected, "{path}");
        }
    }
}
