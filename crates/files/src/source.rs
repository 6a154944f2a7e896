//! The root, and the only function that opens files below it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Plan;
use super::hidden::is_visible;

/// The folder that is served.
pub(crate) struct Source {
    root: OwnedFd,
    root_path: PathBuf,
    pub(crate) plan: Plan,
    /// Errors that a test injects for paths.
    #[cfg(test)]
    pub(crate) faults: std::sync::Mutex<std::collections::HashMap<PathBuf, Errno>>,
}

/// What an error means for the requested file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It does not exist, or we must not read it.
    Absent,
    /// The process or the host is out of descriptors or memory; this says nothing about the file.
    Exhausted,
    /// A temporary problem: a disk or network in trouble.
    Passing,
}

impl Source {
    /// Opens the root.
    ///
    /// # Errors
    /// The root is not a readable folder.
    pub(crate) fn open(plan: Plan) -> io::Result<Source> {
        let root_path = plan.root.canonicalize()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &root_path, flags, Mode::empty())?;
        Ok(Source {
            root,
            root_path,
            plan,
            #[cfg(test)]
            faults: std::sync::Mutex::default(),
        })
    }

    pub(crate) fn root_path(&self) -> &Path {
        &self.root_path
    }

    /// Whether the root's path still leads to the same folder: deployments rename folders and switch links.
    pub(crate) fn is_current(&self) -> bool {
        let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let here = rustix::fs::fstat(&self.root).ok().map(|stat| (stat.st_dev, stat.st_ino));
        here.is_some() && std::fs::metadata(&self.plan.root).ok().map(identity) == here
    }

    /// Whether a path may be served.
    pub(crate) fn is_visible(&self, path: &Path) -> bool {
        is_visible(path, &self.plan.hide)
    }

    /// Whether the name itself is a symbolic link.
    pub(crate) fn is_link(&self, path: &Path) -> bool {
        let found = rustix::fs::statat(&self.root, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Symlink
        })
    }

    /// Opens a path below the root. Does not block on special files. Follows symbolic links that stay inside.
    ///
    /// # Source
    /// Uses openat2(2), Linux 5.6; older kernels compare the canonical path instead.
    pub(crate) fn open_beneath(&self, path: &Path) -> io::Result<File> {
        self.fail(path)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let beneath = |path: &Path| {
            let path = if path == Path::new("") { Path::new(".") } else { path };
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve)
        };
        let opened = match beneath(path) {
            // An absolute link may still lead inside, and a link with `..` fails during a concurrent rename. Open the
            // canonical path instead, under the same rule.
            Err(Errno::XDEV | Errno::AGAIN) => beneath(&self.canonical(path)?),
            Err(Errno::NOSYS) => {
                rustix::fs::openat(CWD, self.root_path.join(self.canonical(path)?), flags, Mode::empty())
            }
            opened => opened,
        };
        Ok(opened?.into())
    }

    /// The path without links, relative to the root.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        let full = self.root_path.join(path).canonicalize()?;
        let inside =
            full.strip_prefix(&self.root_path).map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(inside.to_path_buf())
    }

    #[cfg(test)]
    fn fail(&self, path: &Path) -> io::Result<()> {
        self.faults.lock().unwrap().get(path).map_or(Ok(()), |errno| Err((*errno).into()))
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "fails in tests only")]
    fn fail(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Classifies this error.
pub(crate) fn fault(error: &io::Error) -> Fault {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Fault::Exhausted,
        Some(
            Errno::NOENT
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::ACCESS
            | Errno::PERM
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::XDEV
            // A socket, or a device without a driver.
            | Errno::NXIO
            | Errno::NODEV
            | Errno::OPNOTSUPP
            | Errno::INVAL,
        ) => Fault::Absent,
        Some(_) => Fault::Passing,
        // Our own errors: a link that leads outside, a name with a zero byte.
        None => Fault::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_different_messages() {
        let kind = |errno: Errno| fault(&errno.into());
        assert_eq!(kind(Errno::NOENT), Fault::Absent);
        assert_eq!(kind(Errno::ACCESS), Fault::Absent);
        assert_eq!(kind(Errno::MFILE), Fault::Exhausted);
        for passing in [Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::NOTCONN, Errno::AGAIN] {
            assert_eq!(kind(passing), Fault::Passing, "{passing:?}");
        }
    }
}
