//! A tree of files: a recorded machine, or the image of one that is not running. It runs no commands and has no
//! kernel.
//!
//! A link in it may point anywhere, `/etc` or `../../../etc`: the kernel takes the tree's top as the root (`openat2`
//! with `RESOLVE_IN_ROOT`, Linux 5.6), so that no path leaves it, and nothing on our own machine is read or written.
//! Files outside, such as our journal, are accessed by their own paths.

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, mkdirat, openat2, readlinkat, renameat, unlinkat};
use rustix::io::Errno;

use crate::netlink::Protocol;
use crate::system::{Kernel, READ_BYTES_MAX, RunError, System, write_to};

/// The tree below a folder.
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The tree below this folder.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Tree {
        Tree { root: root.into() }
    }

    /// A path inside the tree; `None` for one outside.
    fn inside<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        path.strip_prefix(&self.root).ok()
    }

    /// Opens a path inside the tree.
    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let root = File::open(&self.root)?;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o600) } else { Mode::empty() };
        let flags = flags | OFlags::CLOEXEC;
        for _ in 0..ATTEMPTS_MAX {
            match openat2(root.as_fd(), path, flags, mode, ResolveFlags::IN_ROOT) {
                // Something was renamed meanwhile, and the kernel cannot tell whether the path left the tree.
                Err(Errno::AGAIN) => {}
                opened => return Ok(opened?),
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// The folder of a path inside the tree, and the name in it.
    fn parent(&self, path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
        let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
        let folder = self.open(path.parent().unwrap_or(Path::new("")), OFlags::PATH | OFlags::DIRECTORY)?;
        Ok((folder, name.into()))
    }
}

/// How often to look up a path that keeps changing.
const ATTEMPTS_MAX: usize = 16;

impl System for Tree {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let Some(inside) = self.inside(path) else { return Kernel.read(path) };
        let mut bytes = Vec::new();
        // Do not wait for a pipe in the tree.
        let file = File::from(self.open(inside, OFlags::RDONLY | OFlags::NONBLOCK)?);
        file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let Some(inside) = self.inside(path) else { return Kernel.list(path) };
        let folder = self.open(inside, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Kernel.list(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())))
    }

    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        let Some(inside) = self.inside(path) else { return Kernel.modified(path) };
        File::from(self.open(inside, OFlags::RDONLY | OFlags::NONBLOCK)?).metadata()?.modified()
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        let Some(inside) = self.inside(path) else { return Kernel.link(path) };
        let (folder, name) = self.parent(inside)?;
        let target = readlinkat(folder, &name, Vec::new())?;
        Ok(std::ffi::OsString::from_vec(target.into_bytes()).into())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let Some(inside) = self.inside(path) else { return Kernel.write(path, bytes) };
        // Overwritten in one piece and then truncated: a crash in between leaves the value with empty lines after it,
        // and never an empty file, which would look like someone else's change.
        let file = File::from(self.open(inside, OFlags::WRONLY | OFlags::NONBLOCK)?);
        let former_bytes = file.metadata()?.len().min(READ_BYTES_MAX) as usize;
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().max(former_bytes), b'\n');
        write_to(file.try_clone()?, &padded)?;
        file.set_len(bytes.len() as u64)
    }

    fn create(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        let Some(inside) = self.inside(path) else { return Kernel.create(path, bytes, mode) };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK;
        let mut file = File::from(self.open(inside, flags)?);
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(bytes)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        let Some(inside) = self.inside(path) else { return Kernel.create_folder(path) };
        let ancestors: Vec<&Path> = inside.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        for folder in ancestors.into_iter().rev() {
            let (parent, name) = self.parent(folder)?;
            match mkdirat(parent, &name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        let Some(inside) = self.inside(path) else { return Kernel.sync(path) };
        File::from(self.open(inside, OFlags::RDONLY | OFlags::NONBLOCK)?).sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (Some(from), Some(to)) = (self.inside(from), self.inside(to)) else {
            return Kernel.rename(from, to);
        };
        let ((from, old), (to, new)) = (self.parent(from)?, self.parent(to)?);
        Ok(renameat(from, &old, to, &new)?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let Some(inside) = self.inside(path) else { return Kernel.remove(path) };
        let (folder, name) = self.parent(inside)?;
        Ok(unlinkat(folder, &name, AtFlags::empty())?)
    }

    fn run(&self, _: &str, _: &[&str], _: &str) -> Result<String, RunError> {
        Err(RunError::OnlyFiles)
    }

    fn ask(&self, _: Protocol, _: &[u8], _: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<()> {
        Err(io::Error::new(ErrorKind::Unsupported, "with --root there is no kernel to ask"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::fake::Folder;

    /// Links out of the tree, by an absolute path and by `..`, to a file and to a folder.
    #[test]
    fn no_path_leaves_the_tree() {
        let (outer, tree) = (Folder::new(), Folder::new());
        let secret = outer.0.join("secret");
        std::fs::write(&secret, "ours").unwrap();
        let system = Tree::at(&tree.0);
        let up = "../".repeat(20);
        symlink(&secret, tree.0.join("absolute")).unwrap();
        symlink(format!("{up}{}", secret.display()), tree.0.join("upwards")).unwrap();
        symlink(&outer.0, tree.0.join("folder")).unwrap();
        for path in ["absolute", "upwards", "folder/secret"] {
            let path = tree.0.join(path);
            assert!(system.read(&path).is_err() && system.modified(&path).is_err(), "{}", path.display());
            assert!(system.write(&path, b"theirs").is_err() && system.sync(&path).is_err());
        }
        let below = tree.0.join("folder/made");
        assert!(system.create(&below, b"x", 0o600).is_err() && system.create_folder(&below).is_err());
        assert!(system.list(&tree.0.join("folder")).is_err());
        assert!(system.remove(&tree.0.join("folder/secret")).is_err());
        assert!(system.rename(&tree.0.join("absolute"), &tree.0.join("folder/moved")).is_err());
        let dots = tree.0.join("..").join(outer.0.file_name().unwrap()).join("secret");
        assert!(system.read(&dots).is_err(), "{}", dots.display());
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "ours");
        assert_eq!(std::fs::read_dir(&outer.0).unwrap().count(), 1);
    }

    #[test]
    fn links_within_the_tree_are_followed() {
        let tree = Folder::new();
        let system = Tree::at(&tree.0);
        let at = |path: &str| tree.0.join(path);
        system.create_folder(&at("usr/lib/deep")).unwrap();
        system.create(&at("usr/lib/deep/a"), b"1", 0o644).unwrap();
        symlink("/usr/lib", at("lib")).unwrap();
        symlink("deep/../deep", at("usr/lib/again")).unwrap();
        assert_eq!(system.read(&at("lib/again/a")).unwrap(), b"1");
        system.write(&at("lib/deep/a"), b"2").unwrap();
        assert_eq!(
            (system.list(&at("lib")).unwrap(), system.link(&at("lib")).unwrap()),
            (vec!["again".to_owned(), "deep".to_owned()], PathBuf::from("/usr/lib"))
        );
        system.rename(&at("lib/deep/a"), &at("lib/b")).unwrap();
        system.sync(&at("lib")).unwrap();
        assert_eq!(std::fs::read(at("usr/lib/b")).unwrap(), b"2");
        system.remove(&at("lib/b")).unwrap();
        assert!(system.read(&at("lib/b")).is_err_and(|error| error.kind() == ErrorKind::NotFound));
    }
}
